"""The arithmetic of `benchmarks/scaling.py`; its simulation has tests of its own (`tournament/test_simulation.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cluster.constants import distribution
from benchmarks.cluster.prediction import PAPER, amdahl, overhead, paper, throughput

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


def test_the_prediction_agrees_with_its_formula(tmp_path: Path) -> None:
    """Many pods for few GPUs: P/G (S + o), and at most one pod's time for the tail."""
    found = throughput(tmp_path, SAMPLES, pods=120, seconds=100.0, remote=False, gpus=(4,))
    row = found["by_gpus"]["4"]
    assert found["overhead_seconds"] == pytest.approx(14.0 + 5.35)
    formula = 30 * 119.35
    assert formula - 30 <= row["seconds"] <= formula + 130
    assert row["efficiency"] == pytest.approx(3000 / row["seconds"], abs=1e-4)


def test_percentiles_of_a_distribution() -> None:
    found = distribution([k / 1000 for k in range(1, 101)])
    assert (found["n"], found["p05_ms"], found["p50_ms"], found["p95_ms"], found["max_ms"]) == (100, 6, 51, 96, 100)
    assert found["mean_ms"] == pytest.approx(50.5)


def test_bytes_are_those_handed_to_the_collectives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of one: a gradient a minibatch is four bytes a parameter, a fusion is the inherited state, once."""
    import torch.distributed as dist
    from safetensors.torch import save

    from benchmarks.communication import EPOCHS, arm
    from benchmarks.known_optimum import ENGINE_PPO, QuadraticMarket
    from fintrader.agents import PPO, make_agent
    from fintrader.tournament.fusion.worker import inherited

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    updates = 2
    job = {"device": "cpu", "num_envs": 4, "env_steps": updates * 16 * 4 * EPOCHS, "agent": {}}
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        gradients, rare, alone = (arm(name, 0, job) for name in ("gradients", "fusions_8", "alone"))
    finally:
        dist.destroy_process_group()
    settings = PPO.model_validate(ENGINE_PPO)
    minibatches = updates * settings.update_epochs * settings.num_minibatches
    assert gradients["calls_per_epoch"] == minibatches
    assert gradients["bytes_per_epoch"] == minibatches * 4 * gradients["parameters"]
    agent = make_agent(settings, QuadraticMarket(4).layout, seed=0)
    state = inherited(agent.inheritable_state())
    assert rare["calls_per_epoch"] == 2  # how long it is, and what it is
    moments = 2 * 4 * gradients["parameters"]
    assert rare["bytes_per_epoch"] > len(save(state)) + moments
    assert rare["bytes_per_epoch"] < 2 * (len(save(state)) + moments)
    assert alone["bytes_per_epoch"] == 0
    # with nobody else in the group, both ways are the learner alone
    assert gradients["share"] == alone["share"] == rare["share"]
