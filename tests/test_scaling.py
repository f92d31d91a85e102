"""The arithmetic of `benchmarks/scaling.py`; its simulation has tests of its own (`tournament/test_simulation.py`)."""

from __future__ import annotations

import pytest

from benchmarks.cluster.prediction import PAPER, amdahl, overhead, paper

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
