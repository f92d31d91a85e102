"""The torch engine on CUDA against itself on the CPU."""

import pytest
import torch
from gymnasium.vector import AutoresetMode

from fintrader.envs import EnvSettings, TradingEnv
from tests.engines.strategies import random_actions
from tests.factories import make_market

CASES = [
    {},
    {
        "action": "trade",
        "max_shares": 500.0,
        "reward": "differential_sharpe",
        "turbulence": {"c0": 3.0},
    },
    {"decision_interval": 3, "half_spread_bps": 2.0, "reward": "drawdown"},
]


@pytest.mark.gpu
@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cuda_equals_the_cpu(case, mode):
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
