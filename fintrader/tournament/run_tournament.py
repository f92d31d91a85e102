"""One tournament from its settings to its ensemble, restartable at any time.

`run_tournament` takes the lease, checks that the folder belongs to this tournament, races the pods
in the reconcile loop (`orchestrator.py`), and builds the ensemble. A repeated call resumes,
extends, or finds everything done. `replay` races a finished one again.
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fintrader.agents.heads import ActionHead
from fintrader.agents.settings import ActionHeadSettings
from fintrader.config import Settings
from fintrader.envs import EnvSettings
from fintrader.envs.benchmark import lay_out
from fintrader.envs.settings import GymnasiumSettings
from fintrader.errors import ConfigError, TournamentError
from fintrader.market.tensors import MarketTensors
from fintrader.progress import SILENT, Progress
from fintrader.records import to_json
from fintrader.results.tournament_events import (
    AdoptionEvent,
    FinishEvent,
    read_events,
    select_events,
)
from fintrader.runs import RunFolder
from fintrader.storage.mirror import find_mirror
from fintrader.storage.outages import OutageReporter, allow_outages
from fintrader.tournament import lease as leases
from fintrader.tournament.ensemble import StoredEnsemble, build_ensemble, check_tilts
from fintrader.tournament.events import list_applied
from fintrader.tournament.folds import make_blocks
from fintrader.tournament.generator import Generator
from fintrader.tournament.launchers import Launcher, LauncherFactory
from fintrader.tournament.launchers.local import LocalLauncher, find_slots
from fintrader.tournament.leaderboard import Leaderboard
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.orchestrator import MonotonicClock, Orchestrator
from fintrader.tournament.pod_context import BODY, PodContext
from fintrader.tournament.recount import has_specs_of
from fintrader.tournament.schedulers import Replay, Scheduler, make_scheduler
from fintrader.tournament.settings import OperationsSettings, TournamentSettings
from fintrader.tournament.spec import TournamentIdentity
from fintrader.tournament.status import require_tournament
from fintrader.tournament.store import RunStore
from fintrader.tournament.warm_start import WarmStart, copy_warm_start

_CHANGEABLE = frozenset(
    {"pods", "workers", "devices", "keep"}
    | {"ensemble_size", "ensemble_shrinkage", "ensemble_tracking_error"}
)
EnsembleBuilder = Callable[[RunFolder, Leaderboard, TournamentSettings], StoredEnsemble]


def run_tournament(
    settings: TournamentSettings,
    *,
    operations: OperationsSettings,
    folder: RunFolder,
    market: Path,
    data_hash: str,
    env: EnvSettings | GymnasiumSettings,
    agents: Sequence[Settings],
    seed: int = 0,
    device: str = "auto",
    progress: Progress = SILENT,
    body: str = BODY,
    launcher: Launcher | LauncherFactory | None = None,
    scheduler: Scheduler | None = None,
    ensemble: EnsembleBuilder = build_ensemble,
    watch: Callable[[Orchestrator], None] | None = None,
    clock: MonotonicClock | None = None,
    inherit: Callable[[RunStore], WarmStart | None] | None = None,
    title: str = "tournament",
) -> FinishEvent:
    """Race pods until `settings.pods` have a result, then build the ensemble. Call it again to
    resume or extend. Returns the event that the log ends with.

    `operations` are the waits and retries of pods. `agents` gives the base settings of each
    algorithm that takes part. `device` replaces `auto` in `settings.devices`. `body` names
    the function that trains a pod, `launcher` starts pods with a body of
    its own. `watch` is called at every reconcile. `clock` is real time, or that of a
    simulated cluster. `inherit` copies pods of an earlier run into the store, as the first parents
    (see `warm_start.inherit`). `title` names the search in its progress.

    Raises TournamentError when another process runs this tournament, the folder belongs to another
    one, there is no capacity, no pod succeeds, or the disk is full; ConfigError for an impossible
    search space. Stored results survive all these errors.
    """
    mirror = find_mirror(folder.root)
    generator = Generator(settings, tuple(agents), env.model_dump(mode="json"), seed, data_hash)
    with _explain_full_disk(folder), leases.acquire(folder, mirror) as lease:
        _check_market(settings, market, env, agents)
        store = open_store(folder, mirror)
        store.pull()
        parents = None if inherit is None else inherit(store)
        if parents is not None:
            generator = replace(generator, inherited=parents.entries)
        store.claim(describe_identity(generator), lambda: has_specs_of(folder, generator))
        store.publish()
        store.keep_market(data_hash, market)
        access = PodContext(
            folder, market.resolve(), mirror, token=lease.token, operations=operations
        )
        if launcher is None:
            devices = [device if name == "auto" else name for name in settings.devices]
            slots = partial(find_slots, devices)
            launcher = LocalLauncher(access, body=body, slots=slots, workers=settings.workers)
        elif callable(launcher):
            launcher = launcher(settings, access)
        if not isinstance(launcher, Launcher):
            raise ConfigError(
                f"launcher: {type(launcher).__name__} is no subclass of"
                " fintrader.tournament.launchers.Launcher; derive it from that class"
            )
        scheduler = scheduler or make_scheduler(settings)
        orchestrator = Orchestrator(operations, store, lease, scheduler, generator, launcher, clock)
        with allow_outages(operations.outage_seconds, OutageReporter(progress)):
            try:
                orchestrator.run(progress, watch, title)
            finally:
                launcher.close()
                orchestrator.index.close()
            return _finish(orchestrator, ensemble, progress)


def replay(source: RunFolder, settings: TournamentSettings, **options: Any) -> FinishEvent:
    """Race `source` again, each pod after the same results. Byte-equal on the CPU with step
    budgets.

    `options` are further arguments of `run_tournament`, such as the new run's `folder`, except the
    scheduler.

    Raises TournamentError when the source is unfinished or has failed pods (a kill cannot be
    replayed), and all errors of `run_tournament`. `status.compare` compares the two.
    """
    require_tournament(source)
    store = RunStore(source)
    specs = list(store.read_specs().values())
    results = store.read_results()
    events = read_events(source.events)
    applied = [int(pod[1:]) for pod in list_applied(events)]
    if sorted(applied) != list(range(len(specs))) or len(results) != len(specs):
        raise TournamentError(
            f"{source.root} is not finished; run its own command again first, with"
            f" tournament.pods: {max(settings.pods, len(specs))}"
        )
    lost = [pod for pod, result in results.items() if result.status == "failed"]
    if lost:
        raise TournamentError(
            f"{source.root}: {', '.join(lost)} failed; replay a run without failed pods"
        )
    adopted = {event.pod for event in select_events(events, AdoptionEvent)}
    adopted_specs = {spec.index: spec for spec in specs if spec.pod in adopted}
    scheduler = Replay(
        [spec.seen for spec in specs], applied, make_scheduler(settings), adopted_specs
    )
    options["inherit"] = lambda target: copy_warm_start(target, store)
    return run_tournament(
        settings.model_copy(update={"pods": len(specs)}), scheduler=scheduler, **options
    )


def _check_market(
    settings: TournamentSettings, path: Path, env: Any, agents: Sequence[Settings]
) -> None:
    """Raise ConfigError before training when the market is too short for the folds, or when
    shrinkage needs tilts that an agent lacks."""
    folds = settings.validation_folds
    shrinks = settings.ensemble_shrinkage != "none"
    if not (folds or shrinks):
        return
    market = MarketTensors.load(path)
    if folds is not None:
        make_blocks(market, folds, env)
    layout = lay_out(market, env)
    for agent in agents:
        head = getattr(agent, "head", None)
        if shrinks and isinstance(head, ActionHeadSettings):
            check_tilts(ActionHead(layout, head))


def _finish(
    orchestrator: Orchestrator, ensemble: EnsembleBuilder, progress: Progress
) -> FinishEvent:
    """Choose the members, store the ensemble, and log the end."""
    run = orchestrator.store.run
    board = orchestrator.leaderboard
    if not board.rows:
        raise TournamentError(f"{run.root}: no pod has a score, so there is nothing to choose from")
    for row in board.rows:
        orchestrator.store.ensure_policy(row.result)
    members = ensemble(run, board, orchestrator.settings).members
    orchestrator.retention.drop_surplus(board, orchestrator.specs, now=True)
    end = FinishEvent(trials=board.trials, best=board.rows[0].spec.pod, members=members)
    ends = select_events(orchestrator.log.records, FinishEvent)
    if all(replace(end, time=known.time) != known for known in ends):
        orchestrator.log.append(end)
        progress.event(to_json(end), "")
    orchestrator.store.publish()
    return end


def list_changeable(settings: TournamentSettings) -> frozenset[str]:
    """List the settings that a resumed tournament may change: none of them alters a pod that
    exists. The number of pods is fixed in halving, where it alters them."""
    return _CHANGEABLE - ({"pods"} if settings.order == "halving" else set())


def describe_identity(generator: Generator) -> TournamentIdentity:
    """Describe the inputs on which every pod of a tournament depends."""
    changeable = set(list_changeable(generator.settings))
    return TournamentIdentity(
        settings=generator.settings.model_dump(mode="json", exclude=changeable),
        agents=tuple(agent.model_dump(mode="json") for agent in generator.agents),
        env=generator.env,
        seed=generator.seed,
        data_hash=generator.data_hash,
        inherited={entry.spec.pod: str(entry.result.snapshot) for entry in generator.inherited},
    )


@contextlib.contextmanager
def _explain_full_disk(folder: RunFolder) -> Iterator[None]:
    """Turn a full disk into an error with a remedy."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        full = (
            "full" in str(error)
            if isinstance(error, sqlite3.OperationalError)
            else error.errno == errno.ENOSPC
        )
        if not full:
            raise
        raise TournamentError(
            f"{folder.root}: the disk is full; free some space and run the same command again;"
            " finished pods are kept"
        ) from None
