"""The arithmetic of `benchmarks/scaling.py`, and the short form of its simulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster.prediction import PAPER, amdahl, overhead, paper
from benchmarks.cluster.simulation import Simulated, World, check, settings, simulate
from fintrader.results.leaderboard import canonical
from tests.engines.chaos import events_of

SAMPLES = {
    "warm_start": [1.0, 3.0],
    "cold_start": [9.0],
    "task_start": [10.0, 12.0],
    "checkpoint": [0.05],
    "evaluation": [4.0, 6.0],
    "snapshot_get": [0.5],
    "snapshot_put": [0.25],
    "snapshot_s3_get": [1.5],
    "snapshot_s3_put": [2.0],
    "result_file": [0.1],
}


def test_the_papers_efficiency_is_36_percent() -> None:
    assert [round(found["efficiency_16_to_80"], 2) for found in paper().values()] == [0.36, 0.36]
    for times in PAPER.values():
        fit = amdahl(times)
        for gpus, seconds in times.items():
            assert fit["serial_seconds"] + fit["parallel_gpu_seconds"] / int(gpus) == pytest.approx(seconds)


def test_a_pods_overhead_is_the_sum_of_its_parts() -> None:
    local, remote = (overhead(SAMPLES, 100.0, there) for there in (False, True))
    assert local == {"start": [13.0, 15.0], "end": [4.35, 6.35]}  # ten checkpoints are half a second
    assert remote == {"start": [14.0, 16.0], "end": [6.1, 8.1]}
    without_ray = {name: samples for name, samples in SAMPLES.items() if name != "task_start"}
    assert overhead(without_ray, 100.0, False)["start"] == [12.0]


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
