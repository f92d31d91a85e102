"""What must hold after a simulated tournament (`simulation.py`)."""

from __future__ import annotations

from typing import Any

from fintrader.files import read_jsonl
from fintrader.results.leaderboard import read_leaderboard, read_pods
from fintrader.tournament.search_space import Range
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.store import RunStore
from tests.engines.simulation import Simulated


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
