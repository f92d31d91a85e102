"""Session of a command: its logs, its metrics endpoint, and the run it holds, here and in
its store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from fintrader import logs, reproducible
from fintrader.config import check_url, is_url, split_address
from fintrader.errors import RunError
from fintrader.files import remove, write_text
from fintrader.pipeline.config import RunConfig
from fintrader.runs import RunFolder
from fintrader.seams import OBSERVERS, load_part
from fintrader.storage.lease import hold, is_held
from fintrader.storage.mirror import (
    Mirror,
    attach,
    find_mirror,
    locate_cache,
    locate_working_copy,
    open_working_copy,
)
from fintrader.storage.objects import ObjectStore
from fintrader.storage.outages import OutageReporter, allow_outages
from fintrader.terminal_progress import reporter
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.orchestrator import Orchestrator
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.status import make_index
from fintrader.tournament.store import RunStore


class MetricsEndpoint(Protocol):
    """A server of a tournament's metrics, such as `tournament.prometheus.Endpoint`."""

    host: str
    port: int

    def observe(
        self, run: str, settings: TournamentSettings
    ) -> AbstractContextManager[Callable[[Orchestrator], None]]:
        """Yield the callback that the reconcile loop calls after each turn."""

    def close(self) -> None:
        """Stop listening."""


_endpoint: ContextVar[MetricsEndpoint | None] = ContextVar("fintrader_endpoint", default=None)


@contextlib.contextmanager
def observing(config: RunConfig) -> Iterator[MetricsEndpoint | None]:
    """Inside the block, write logs in the configured format with the run's name, and serve metrics
    if configured.

    Raises ConfigError when the port is taken or the extra `observe` is missing.
    """
    with logs.use_format(), logs.bind(run=config.name):
        address = config.operations.metrics
        if address is None or _endpoint.get() is not None:
            yield _endpoint.get()
            return
        make_endpoint = load_part(OBSERVERS, "prometheus")
        endpoint: MetricsEndpoint = make_endpoint(*split_address(address))
        url = f"http://{endpoint.host}:{endpoint.port}/metrics"
        reporter().event({"event": "metrics", "metrics_url": url}, f"metrics: {url}")
        token = _endpoint.set(endpoint)
        try:
            yield endpoint
        finally:
            _endpoint.reset(token)
            endpoint.close()


@contextlib.contextmanager
def watching(
    config: RunConfig, folder: RunFolder
) -> Iterator[Callable[[Orchestrator], None] | None]:
    """Build the function that a search calls after each turn; None without observers."""
    endpoint = _endpoint.get()
    with logs.bind(run=folder.label):
        if endpoint is None:
            yield None
            return
        with endpoint.observe(folder.label, config.tournament) as watch:
            yield watch


PATIENCE_SECONDS = 30.0
"""Seconds that a reader waits for other readers."""
HELD = ".held"
"""Empty file in a copy of a run: another machine held the run when it was last
modified."""


@contextlib.contextmanager
def hold_run(config: RunConfig) -> Iterator[Mirror | None]:
    """Hold the run for this process, here and in its store; yield the store's mirror, None without
    a store.

    If this run was begun on this machine, a store that does not answer is retried for
    `operations.outage_seconds`; otherwise its URL may be wrong, and the call fails soon.

    Raises RunError when another process holds the run, here or on another machine; StorageError;
    ConfigError when this process does not compute as `reproducible` promises.
    """
    reproducible.require(config.reproducible)
    folder = config.folder
    with folder.lock():
        folder.refuse_unsafe()
        patience = (
            allow_outages(config.operations.outage_seconds, OutageReporter(reporter()))
            if folder.manifest.is_file()
            else contextlib.nullcontext()
        )
        with contextlib.ExitStack() as held:
            with patience:
                mirror = (
                    find_mirror(folder.root)
                    if config.store is None
                    else attach(folder.root, f"{config.store}/{config.name}")
                )
                if mirror is not None:
                    held.enter_context(hold(mirror.objects))
                    mirror.pull()
            if mirror is not None:
                index_tournaments(folder.root)
            yield mirror


def run_store(folder: RunFolder) -> RunStore:
    """Open a tournament's files, in its folder or, if that is a copy, in the store it mirrors."""
    return open_store(folder, find_mirror(folder.root))


def index_tournaments(root: Path, *, again: bool = False) -> None:
    """Build the missing databases of the tournaments in a run's folder (`again`: all of them)."""
    for path in (
        root / "tournament.json",
        *root.glob("null_model/tournament.json"),
        *root.glob("folds/**/tournament.json"),
    ):
        if path.is_file() and (again or not RunFolder(path.parent).leaderboard.is_file()):
            make_index(RunFolder(path.parent))


# --- runs by URL ----------------------------------------------------------------------------------


def open_run(where: str) -> Path:
    """Find the folder of a run: the path itself, or for a URL a copy of its present content,
    databases included.

    Nothing is written to the store. Raises RunError when no run is there, StorageError.
    """
    if not is_url(where):
        return Path(where)
    url = check_url(where)
    if not ObjectStore(url).list_names():
        ObjectStore(url).check_access()
        raise RunError(
            f"{url}: there is no run here; give the URL of the store and the name of the run"
        )
    home = open_working_copy(url, locate_cache("runs"))
    refresh(home)
    return home


def copy_store(url: str) -> Path:
    """Copy every run of a store with `open_run`; return the folder that holds the copies."""
    store = ObjectStore(check_url(url))
    store.check_access()
    for name in store.list_folders():
        if not name.startswith("."):
            open_run(f"{store.url}/{name}")
    return locate_working_copy(f"{store.url}/any", locate_cache("runs")).parent


def refresh(home: Path) -> None:
    """Update a read-only copy of a run from its store."""
    mirror = find_mirror(home)
    if mirror is None:
        return
    with contextlib.ExitStack() as stack:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:  # other readers may hold the lock
            try:
                stack.enter_context(RunFolder(home).lock())
                break
            except RunError:
                if time.monotonic() > deadline:
                    raise
        mirror.pull(curves=True)
        index_tournaments(home, again=True)
        if is_held(mirror.objects):
            write_text(home / HELD, "")
        else:
            remove(home / HELD)
