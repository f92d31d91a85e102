"""The short form of `benchmarks/scaling.py`: the orchestrator in front of a simulated cluster, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fintrader.files import read_jsonl
from fintrader.results.leaderboard import canonical
from fintrader.tournament.generator import MIN_PEERS, stop_rules
from fintrader.tournament.leaderboard import Entry, Leaderboard, submit
from fintrader.tournament.spec import PodResult, PodSpec
from tests.engines.simulation import Simulated, World, simulate
from tests.engines.simulation_checks import check, settings

ROUGH = World(
    gpus=48,
    gpus_per_node=8,
    pod=(400.0, 800.0),
    start=(5.0, 20.0),
    end=(1.0, 2.0),
    failure_rate=1 / 3000,
    preemption_rate=1 / 4000,
    zombies=0.3,
    seed=3,
)


def test_nothing_is_lost_or_doubled_in_a_rough_cluster(tmp_path: Path) -> None:
    """Failures, preempted nodes, results after the pod was given up, and three deaths of the orchestrator."""
    asked = settings(240, 48)
    outcome = simulate(tmp_path / "run", asked, ROUGH, kill_after=(60, 61, 200))
    check(outcome, asked)
    cluster = outcome.cluster
    assert outcome.restarts == 3
    assert cluster.losses["killed"] > 20
    assert cluster.losses["drained"] > 20
    assert max(cluster.attempts.values()) > 2
    resumed = [event for event in read_jsonl(outcome.run.events) if event["event"] == "resumed"]
    assert len(resumed) == 3


def test_a_cluster_that_halves_and_returns_keeps_every_gpu_busy(tmp_path: Path) -> None:
    world = World(gpus=32, pod=(300.0, 300.0), preemption_rate=1 / 2000, away=500.0, seed=1)
    outcome = simulate(tmp_path / "run", settings(160, 32), world)
    check(outcome, settings(160, 32))
    assert outcome.cluster.losses["drained"] > 5
    # a GPU that is there and has work waits for the next turn at most
    assert max(outcome.cluster.idle) <= 0.6


@pytest.mark.parametrize("scheduler", ["submission", "generational"])
def test_reproducible_orders_do_not_depend_on_the_weather(tmp_path: Path, scheduler: str) -> None:
    if scheduler == "submission":
        asked = settings(80, 16, order="submission", pool_size=16)
    else:
        asked = settings(72, 16, scheduler="generational", population=24, survivors=4)

    def run(name: str, world: World, **more: Any) -> Simulated:
        outcome = simulate(tmp_path / name, asked, world, **more)
        check(outcome, asked)
        return outcome

    calm = run("calm", World(gpus=16, seed=5))
    rough = run("rough", World(gpus=12, pod=(1.0, 900.0), failure_rate=1 / 2000, zombies=0.5, seed=5), kill_after=(50,))
    assert canonical(calm.run.leaderboard) == canonical(rough.run.leaderboard)


def test_the_simulated_clock_gives_the_textbook_makespan(tmp_path: Path) -> None:
    """64 pods of 100 s and 10 s of overhead on 16 GPUs: four waves, and at most a few turns between them."""
    world = World(gpus=16, pod=(100.0, 100.0), start=(8.0,), end=(2.0,))
    outcome = simulate(tmp_path / "run", settings(64, 16), world)
    assert 4 * 110 <= outcome.makespan <= 4 * 110 + 4 * 0.2
    assert outcome.cluster.busy == pytest.approx(64 * 110)


# --- work that must not grow with the number of pods -----------------------------------------------------------


def spec(index: int, generation: int = 0) -> PodSpec:
    return PodSpec(
        pod=f"p{index:04d}",
        index=index,
        seed=index,
        origin="fresh",
        generation=generation,
        agent={"algo": "stub"},
        budget={"env_steps": 1},
    )


def result(index: int, score: float | None = 0.5, **more: Any) -> PodResult:
    status = "failed" if score is None else "done"
    return PodResult(pod=f"p{index:04d}", status=status, score=score, snapshot="0" * 64, **more)


class Counting(list[Entry]):
    """A list that counts how many of its elements are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def __iter__(self) -> Any:
        for entry in super().__iter__():
            self.read += 1
            yield entry

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.read += len(found) if isinstance(key, slice) else 1
        return found


def test_a_turn_does_not_read_the_history(tmp_path: Path) -> None:
    """The orchestrator's turns read no more of what was applied after 160 pods than after 40."""
    reads: list[tuple[int, int]] = []

    def look(orchestrator: Any, now: float) -> bool:
        board = orchestrator.leaderboard
        if not isinstance(board.applied, Counting):
            counting = Counting()
            counting.extend(board.applied)
            board.applied = counting
        reads.append((len(board.applied), board.applied.read))
        board.applied.read = 0
        return False

    asked = settings(160, 16, halving=0.5)
    simulate(tmp_path / "run", asked, World(gpus=16, pod=(50.0, 90.0), seed=2), stop=look)
    early = [read for applied, read in reads[1:] if applied <= 40]
    late = [read for applied, read in reads[1:] if applied > 120]
    assert early
    assert late
    assert max(late) <= max(early) + 32


def test_halving_compares_with_the_same_scores_as_a_search_through_the_history() -> None:
    from tests.engines.races import settings as small

    asked = small(halving=0.5, halving_rungs=(0.25, 0.5))
    board = Leaderboard(4)
    rng = np.random.default_rng(0)
    for index in range(60):
        reached = {"0.25": float(rng.normal()), "0.5": None if index % 7 == 0 else float(rng.normal())}
        submit(board, Entry(spec(index, generation=index % 3), result(index, rung_scores=reached)))
    for generation in range(4):
        expected = []
        for share in (0.25, 0.5):
            scores = [
                entry.result.rung_scores[str(share)]
                for entry in board.applied
                if entry.spec.generation == generation and entry.result.rung_scores[str(share)] is not None
            ]
            if len(scores) >= MIN_PEERS:
                expected.append((share, float(np.quantile(np.array(scores, dtype=float), 0.5))))
        assert [(rule.share, rule.score) for rule in stop_rules(asked, board, generation)] == expected
