"""A finished tournament raced again, and the comparison of the two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fintrader.config import Settings
from fintrader.errors import TournamentError
from fintrader.files import read_jsonl
from fintrader.progress import Progress
from fintrader.runs import RunFolder
from fintrader.tournament.launchers import Launcher, LauncherFactory
from fintrader.tournament.run import EnsembleBuilder, TournamentResult, run_tournament
from fintrader.tournament.schedulers import Replay, scheduler_of
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.spec import PodSpec
from fintrader.tournament.status import _require
from fintrader.tournament.store import RunStore


def replay(
    source: RunFolder,
    target: RunFolder,
    settings: TournamentSettings,
    *,
    market: Path,
    env: Settings | None = None,
    agent: Settings | Sequence[Settings] = (),
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
    launcher: Launcher | LauncherFactory | None = None,
    body: str | None = None,
    ensemble: EnsembleBuilder | None = None,
    data_hash: str | None = None,
) -> TournamentResult:
    """Race `source` again into `target`, each pod seeing what it saw then. Byte-equal on the CPU with step budgets.

    Raises TournamentError when the source is unfinished or lost a pod for good (what killed it cannot be replayed),
    and what `run_tournament` raises. `compare` tells whether the two agree.
    """
    _require(source)
    store = RunStore(source)
    specs = list(store.specs().values())
    results = store.results()
    applied = [int(str(event["pod"])[1:]) for event in read_jsonl(source.events) if event.get("event") == "applied"]
    applied = list(dict.fromkeys(applied))
    if sorted(applied) != list(range(len(specs))) or len(results) != len(specs):
        raise TournamentError(f"{source.root} is not finished; run its own command again first")
    lost = [pod for pod, result in results.items() if result.status == "failed"]
    if lost:
        raise TournamentError(f"{source.root} lost {', '.join(lost)}; a run with failed pods cannot be replayed")
    more: dict[str, Any] = {} if body is None else {"body": body}
    return run_tournament(
        settings.model_copy(update={"pods": len(specs)}),
        folder=target,
        market=market,
        env=env,
        agent=agent,
        seed=seed,
        device=device,
        progress=progress,
        launcher=launcher,
        scheduler=Replay([spec.seen for spec in specs], applied, scheduler_of(settings)),
        ensemble=ensemble,
        data_hash=data_hash,
        **more,
    )


def compare(one: RunFolder, other: RunFolder) -> list[str]:
    """In what two runs differ, leaving times and places out: specs, results, snapshots, board; empty if in nothing."""
    from fintrader.results.leaderboard import canonical

    a, b = RunStore(one), RunStore(other)
    differences = []
    specs_a, specs_b = a.specs(), b.specs()
    if set(specs_a) != set(specs_b):
        differences.append(f"pods: {sorted(set(specs_a) ^ set(specs_b))} are in one only")
    results_a, results_b = a.results(), b.results()
    for pod in sorted(set(specs_a) & set(specs_b)):
        if specs_a[pod] != specs_b[pod]:
            differences.append(f"{pod}: spec ({', '.join(_differing(specs_a[pod], specs_b[pod]))})")
        left, right = results_a.get(pod), results_b.get(pod)
        if (left and left.reproducible()) != (right and right.reproducible()):
            differences.append(f"{pod}: result")
    if canonical(one.leaderboard) != canonical(other.leaderboard):
        differences.append("leaderboard")
    return differences


def _differing(a: PodSpec, b: PodSpec) -> list[str]:
    return [name for name in PodSpec.model_fields if getattr(a, name) != getattr(b, name)]
