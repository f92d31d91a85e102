"""The short form of `benchmarks/scaling.py`: the orchestrator in front of a simulated cluster, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster.simulation import Simulated, World, check, settings, simulate
from fintrader.results.leaderboard import canonical
from tests.engines.chaos import events_of

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
    assert len(events_of(outcome.run, "resumed")) == 3


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
