"""What must hold after a simulated tournament (`simulation.py`), and what it cost."""

from __future__ import annotations

import statistics
from typing import Any

from fintrader.files import read_jsonl
from fintrader.results.leaderboard import read_leaderboard, read_pods
from fintrader.tournament.search_space import Range
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.store import RunStore
from tests.tournament.simulation import Simulated, World


def settings(pods: int, gpus: int, **changes: Any) -> TournamentSettings:
    """A tournament by arrival over that many pods."""
    values: dict[str, Any] = {
        "order": "arrival",
        "pool_size": gpus,
        "founders": min(8, pods),
        "leaderboard_size": 64,
        "retries": 10,
        "search": {"learning_rate": Range(low=1e-5, high=1e-1, log=True)},
        **changes,
    }
    return TournamentSettings(pods=pods, **values)


def check(outcome: Simulated, settings: TournamentSettings) -> None:
    """Nothing lost, nothing doubled, capacity honoured, and the board is what its pods' results say."""
    cluster, run = outcome.cluster, outcome.run
    assert not cluster.problems, cluster.problems[:5]
    names = [f"p{index:04d}" for index in range(settings.pods)]
    events = [str(event["pod"]) for event in read_jsonl(run.events) if event["event"] == "applied"]
    assert sorted(events) == sorted(names), "every pod is applied once"
    store = RunStore(run)
    specs, results = store.specs(), store.results()
    assert list(results) == names
    rows = read_pods(run.leaderboard)
    assert [row["pod"] for row in rows] == names
    assert sorted(row["applied"] for row in rows) == list(range(settings.pods))
    for row in rows:
        result = results[row["pod"]]
        assert (row["score"], row["status"], row["snapshot"]) == (result.score, result.status, result.snapshot)
        assert result.spec == specs[row["pod"]].digest
        if row["parent"]:
            assert row["parent_snapshot"] == results[row["parent"]].snapshot
    scored = [pod for pod in names if results[pod].score is not None]
    best = sorted(scored, key=lambda pod: (-float(results[pod].score or 0.0), specs[pod].index))
    assert [row["pod"] for row in read_leaderboard(run.leaderboard)] == best[: settings.leaderboard_size]


def figures(outcome: Simulated, world: World, pods: int) -> dict[str, Any]:
    """What the orchestrator cost, and what its pods waited for."""
    cluster, clock = outcome.cluster, outcome.clock
    waits = sorted(outcome.applied[pod] - cluster.ended.get(pod, outcome.applied[pod]) for pod in outcome.applied)
    idle = sorted(cluster.idle[world.gpus :]) or [0.0]
    turns = sorted(clock.turns)
    return {
        "pods": pods,
        "gpus": world.gpus,
        "simulated_hours": round(outcome.makespan / 3600, 2),
        "orchestrator_cpu_seconds": round(clock.cpu, 2),
        "orchestrator_cpu_ms_per_pod": round(1000 * clock.cpu / pods, 3),
        "turns": len(turns),
        "turn_cpu_ms_p50": round(1000 * statistics.median(turns), 2),
        "turn_cpu_ms_p99": round(1000 * percentile(turns, 0.99), 2),
        "result_waits_seconds_p50": round(percentile(waits, 0.5), 3),
        "result_waits_seconds_p99": round(percentile(waits, 0.99), 3),
        "gpu_idle_between_pods_seconds_p50": round(percentile(idle, 0.5), 3),
        "gpu_idle_between_pods_seconds_p99": round(percentile(idle, 0.99), 3),
        "losses": dict(cluster.losses),
        "attempts_most": max(cluster.attempts.values()),
        "orchestrator_restarts": outcome.restarts,
    }


def percentile(ordered: list[float], share: float) -> float:
    """Nearest rank in a sorted list."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
