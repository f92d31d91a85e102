"""What the environment's benchmarks run on a GPU, or for minutes, runs here in small."""

from __future__ import annotations

import pytest
import torch

from benchmarks import _env_cuda, _env_factored
from benchmarks.env import alternate
from fintrader.envs import TradingEnv
from tests.factories import make_market

CPU = torch.device("cpu")


def test_the_training_figure_is_made_of_whole_updates() -> None:
    figures = _env_cuda.training(make_market(60, 4), 8, CPU, updates=2)
    assert figures["training_accounts"] == 8
    assert figures["training_steps_per_second"] >= figures["training_mean_steps_per_second"] > 0
    assert torch.get_float32_matmul_precision() == "highest"


def test_policies_decide_on_either_observation() -> None:
    market = make_market(60, 4)
    flat = _env_cuda.make_env(market, 4, CPU, observation_dtype="bfloat16")
    factored = _env_cuda.make_env(market, 4, CPU, observation="factored")
    assert _env_cuda.deciding(flat)(3) == _env_cuda.deciding_factored(factored)(3) == 12


def test_factored_and_flat_policies_are_the_same_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("ACCOUNTS", 8), ("STEPS", 2), ("SAMPLES", 16), ("STORED", 64), ("RATIOS", (0.25, 1.0))):
        monkeypatch.setattr(_env_factored, name, size)
    market = make_market(60, 4)
    figures = _env_factored.measure(market, alternate, 1)
    assert [part["rows"] for part in figures["training"].values()] == [4, 16]
    assert set(figures["inference"]) >= {"factored_times_flat", "env_and_factored_times_env_and_flat"}
    flat, policy = _env_factored.policies(TradingEnv(market, num_envs=2))
    assert [id(p) for p in flat.parameters()] == [id(p) for p in policy.parameters()]
