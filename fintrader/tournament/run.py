"""The orchestrator: one tournament from its settings to its ensemble, restartable anywhere.

`run_tournament` takes the lease, makes sure that the folder belongs to this tournament, lets the reconcile loop
(`reconcile.py`) race the pods, and builds the ensemble. Called again, it resumes, extends, or finds everything done.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fintrader.config import Settings
from fintrader.errors import ConfigError, MarketError, TournamentError
from fintrader.files import file_sha256
from fintrader.progress import SILENT, Progress
from fintrader.results.leaderboard import read_leaderboard
from fintrader.runs import RunFolder
from fintrader.tournament import lease as leases
from fintrader.tournament.generator import Generator
from fintrader.tournament.launchers import Launcher, LauncherFactory, LocalLauncher, slots_of
from fintrader.tournament.leaderboard import Leaderboard
from fintrader.tournament.orchestrator import Clock, Orchestrator
from fintrader.tournament.schedulers import Scheduler, scheduler_of
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.spec import BODY
from fintrader.tournament.store import RunStore

CHANGEABLE = frozenset(
    {"pods", "workers", "devices", "pods_per_device", "retries", "hang_seconds", "store_seconds"}
    | {"ensemble_size", "ensemble_weights", "ensemble_mode", "diversity"}
)
"""Settings that a resumed tournament may change: none of them alters a pod that exists."""


EnsembleBuilder = Callable[[RunFolder, Leaderboard, TournamentSettings], dict[str, Any]]


@dataclass(frozen=True)
class TournamentResult:
    """Where a finished tournament's files are, and what was chosen from how many."""

    folder: RunFolder
    trials: int
    """Pods that were scored: the number of tries the winner was chosen from."""
    best: str
    """Identifier of the pod that leads."""
    best_policy: Path
    ensemble_policy: Path
    members: tuple[str, ...]
    leaderboard: list[dict[str, Any]] = field(repr=False, default_factory=list)


def run_tournament(
    settings: TournamentSettings,
    *,
    folder: RunFolder,
    market: Path,
    env: Settings | None = None,
    agent: Settings | Sequence[Settings] = (),
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
    body: str = BODY,
    launcher: Launcher | LauncherFactory | None = None,
    scheduler: Scheduler | None = None,
    ensemble: EnsembleBuilder | None = None,
    data_hash: str | None = None,
    watch: Callable[[Orchestrator], None] | None = None,
    clock: Clock | None = None,
) -> TournamentResult:
    """Race pods until `settings.pods` have a result, then build the ensemble. Call it again to resume or extend.

    `agent` gives the base settings of the algorithm, or of the several that take part. `device` narrows
    `settings.devices` when that is `auto`. `body` and `launcher` say what a pod is and where it runs (a `launcher` that
    is made here, such as Ray's, brings its own body). `watch` is called at every reconcile. `clock` is real time, or
    that of a simulated cluster.

    Raises TournamentError when another process runs this tournament, the folder belongs to another one, there is no
    capacity, no pod succeeds, or the disk is full; ConfigError for an impossible search space. Nothing that was
    stored is lost by any of them.
    """
    agents: tuple[Settings, ...] = tuple(agent) if isinstance(agent, Sequence) else (agent,)
    if not agents:
        raise ConfigError("a tournament needs the settings of at least one agent")
    breeder = Generator(
        settings=settings,
        agents=agents,
        env=env.model_dump(mode="json") if env is not None else {},
        seed=seed,
        data_hash=market_hash(market) if data_hash is None else data_hash,
    )
    with _readable_disk_errors(folder), leases.acquire(folder) as lease:
        store = RunStore(folder)
        store.pull()
        store.claim(_identity(settings, breeder), lambda known: _modern(known, agents, env))
        store.publish()
        store.keep_market(breeder.data_hash, Path(market))
        if launcher is None and store.mirror is not None and store.mirror.objects.private:
            raise ConfigError(f"store: {store.mirror.objects} exists in one process only, and pods are others")
        if callable(launcher):
            launcher = launcher(settings, folder, Path(market).resolve(), lease.token)
        devices = (device,) if settings.devices == ("auto",) and device != "auto" else settings.devices
        launcher = launcher or LocalLauncher(
            folder,
            Path(market).resolve(),
            body=body,
            slots=lambda: slots_of(devices, settings.pods_per_device),
            workers=settings.workers,
            token=lease.token,
            hang_seconds=settings.hang_seconds,
            store_seconds=settings.store_seconds,
        )
        scheduler = scheduler or scheduler_of(settings)
        orchestrator = Orchestrator(settings, store, lease, scheduler, breeder, launcher, clock)
        try:
            orchestrator.race(progress or SILENT, watch)
        finally:
            launcher.close()
            orchestrator.close()
        return _finish(orchestrator, ensemble, progress or SILENT)


def market_hash(market: Path) -> str:
    """The content hash a market file carries, else the hash of its bytes. Raises MarketError when there is none."""
    from safetensors import SafetensorError, safe_open

    if not Path(market).is_file():
        raise MarketError(f"{market} does not exist; build it with `fintrader data build CONFIG`")
    try:
        with safe_open(str(market), framework="pt") as file:
            stored = (file.metadata() or {}).get("content_hash")
    except (SafetensorError, OSError):
        stored = None
    return stored or file_sha256(Path(market))


def _finish(orchestrator: Orchestrator, ensemble: EnsembleBuilder | None, progress: Progress) -> TournamentResult:
    """Choose the members, store the ensemble, and say what there is."""
    run = orchestrator.store.run
    if not orchestrator.board.rows:
        raise TournamentError(f"{run.root}: no pod has a score, so there is nothing to choose from")
    if ensemble is None:
        from fintrader.tournament.ensemble import build_ensemble

        ensemble = build_ensemble
    for row in orchestrator.board.rows:
        orchestrator.store.ensure_policy(row.result)
    chosen = ensemble(run, orchestrator.board, orchestrator.settings)
    best = orchestrator.board.rows[0].spec.pod
    trials = sum(1 for entry in orchestrator.board.applied if entry.result.score is not None)
    end = {"event": "finished", "trials": trials, "best": best, "members": chosen["members"]}
    if not any(end.items() <= known.items() for known in orchestrator.log.of("finished")):
        orchestrator.log.append(end)
        progress.event(end, "")
    orchestrator.store.publish()
    return TournamentResult(
        folder=run,
        trials=trials,
        best=best,
        best_policy=run.pod(best) / "policy.safetensors",
        ensemble_policy=run.ensemble / "policy.safetensors",
        members=tuple(chosen["members"]),
        leaderboard=read_leaderboard(run.leaderboard),
    )


def _identity(settings: TournamentSettings, breeder: Generator) -> dict[str, Any]:
    """What every pod of a tournament depends on."""
    return {
        "settings": settings.model_dump(mode="json", exclude=set(CHANGEABLE)),
        "agents": [agent.model_dump(mode="json") for agent in breeder.agents],
        "env": breeder.env,
        "seed": breeder.seed,
        "data_hash": breeder.data_hash,
    }


def _modern(known: dict[str, Any], agents: Sequence[Settings], env: Settings | None) -> dict[str, Any]:
    """A stored identity read through today's models, so that a new setting's default does not orphan the run."""
    modern = dict(known)
    with contextlib.suppress(ValidationError, KeyError, TypeError, ValueError):
        settings = TournamentSettings.model_validate(known["settings"])
        modern["settings"] = settings.model_dump(mode="json", exclude=set(CHANGEABLE))
        pairs = zip(agents, known["agents"], strict=True)
        modern["agents"] = [type(agent).model_validate(old).model_dump(mode="json") for agent, old in pairs]
        if env is not None:
            modern["env"] = type(env).model_validate(known["env"]).model_dump(mode="json")
    return modern


@contextlib.contextmanager
def _readable_disk_errors(folder: RunFolder) -> Any:
    import sqlite3

    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        full = "full" in str(error) if isinstance(error, sqlite3.OperationalError) else error.errno == errno.ENOSPC
        if not full:
            raise
        raise TournamentError(
            f"{folder.root}: the disk is full; free some space and run the same command again, nothing finished is lost"
        ) from None
