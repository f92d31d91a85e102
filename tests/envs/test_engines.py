"""The functional core compiled, and on CUDA, against the core as it stands."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode

from fintrader.envs import EnvSettings, TradingEnv
from tests.engines.strategies import random_actions
from tests.factories import make_market

CASES: list[dict[str, Any]] = [
    {},
    {
        "action": "trade",
        "max_shares": 500.0,
        "reward": "differential_sharpe",
        "turbulence_column": "c0",
    },
    {"decision_interval": 3, "half_spread_bps": 2.0, "reward": "drawdown"},
]


def assert_equal(first: TradingEnv, second: TradingEnv, count: int, steps: int = 25) -> None:
    """Both environments step by step: books and observations bit by bit, logarithms to their last
    digit."""
    first.reset(seed=0)
    second.reset(seed=0)
    for action in random_actions(0, steps, count, 6):
        a = first.step(action)
        b = second.step(action)
        for place in (0, 2, 3):
            assert torch.equal(a[place], b[place])
        torch.testing.assert_close(a[1], b[1], rtol=1e-5, atol=1e-9)
    for name, value in first.state_dict().items():
        if name == "account.memory":
            torch.testing.assert_close(value, second.state_dict()[name], rtol=1e-9, atol=1e-15)
        else:
            assert torch.equal(value, second.state_dict()[name]), name


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on CPU needs a C++ compiler")
@pytest.mark.parametrize("case", CASES[1:2], ids=str)
def test_compiled_core_equals_the_eager_one(case: dict[str, Any]) -> None:
    market = make_market(60, 6)
    settings = EnvSettings(episode_bars=9, **case)
    eager = TradingEnv(market, settings, num_envs=16, engine="torch")
    compiled = TradingEnv(market, settings, num_envs=16, engine="compiled")
    assert_equal(eager, compiled, 16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cuda_equals_the_cpu(case: dict[str, Any], mode: AutoresetMode) -> None:
    market = make_market(60, 6)
    settings = EnvSettings(episode_bars=9, **case)
    cpu = TradingEnv(market, settings, num_envs=64, autoreset_mode=mode, engine="torch")
    cuda = TradingEnv(market, settings, num_envs=64, autoreset_mode=mode, device="cuda")
    cpu.reset(seed=0)
    cuda.reset(seed=0)
    for action in random_actions(0, 25, 64, 6):
        a = cpu.step(action)
        b = cuda.step(action.cuda())
        torch.testing.assert_close(a[0], b[0].cpu(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(a[1], b[1].cpu(), rtol=1e-5, atol=1e-7)
        assert torch.equal(a[2], b[2].cpu())
        assert torch.equal(a[3], b[3].cpu())
        assert torch.equal(
            cpu.account.shares, cuda.account.shares.cpu()
        )  # whole shares: sums are exact everywhere
        torch.testing.assert_close(cpu.account.cash, cuda.account.cash.cpu(), rtol=1e-12, atol=1e-6)
