"""A finished tournament raced again, and the comparison of the two."""

from __future__ import annotations

from typing import Any

from fintrader.errors import TournamentError
from fintrader.files import read_jsonl
from fintrader.results.leaderboard import canonical
from fintrader.runs import RunFolder
from fintrader.tournament.run import TournamentResult, run_tournament
from fintrader.tournament.schedulers import Replay, scheduler_of
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.spec import PodSpec
from fintrader.tournament.status import require_tournament
from fintrader.tournament.store import RunStore


def replay(source: RunFolder, settings: TournamentSettings, **how: Any) -> TournamentResult:
    """Race `source` again, each pod seeing what it saw then. Byte-equal on the CPU with step budgets.

    `how` is what `run_tournament` takes beside the settings (its `folder` is the new one), but for the scheduler.

    Raises TournamentError when the source is unfinished or lost a pod for good (what killed it cannot be replayed),
    and what `run_tournament` raises. `compare` says whether the two agree.
    """
    require_tournament(source)
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
    scheduler = Replay([spec.seen for spec in specs], applied, scheduler_of(settings))
    return run_tournament(settings.model_copy(update={"pods": len(specs)}), scheduler=scheduler, **how)


def compare(one: RunFolder, other: RunFolder) -> list[str]:
    """In what two runs differ, leaving times and machines out: specs, results, leaderboard; empty if in nothing."""
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
