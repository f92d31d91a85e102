"""With fractional shares the step is differentiable in the action."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.dynamics import advance, begin, market_view, observe
from fintrader.envs.reward import make_reward
from fintrader.envs.settings import REWARDS
from tests.factories import make_market

CASES: list[dict[str, Any]] = [
    {"action": "target"},
    {"action": "target", "fill": "next_close", "half_spread_bps": 5.0},
    {"action": "trade", "max_shares": 50.0, "dead_band": 0.0},
    {"action": "trade", "max_shares": 9000.0, "dead_band": 0.0},  # cash runs out: the common factor has a gradient
    {"action": "trade", "max_shares": 9000.0, "dead_band": 0.0, "impact_bps": 500.0},
    {"action": "target", "decision_interval": 3, "impact_bps": 500.0},
    {"action": "target", "short": True, "max_leverage": 2.0, "borrow_bps_per_year": 300.0},
]


def test_a_step_with_gradients_is_one_of_the_core_on_any_engine() -> None:
    """The kernels know no gradient: the step that asks for one leaves them, and the next goes on where it led."""
    market, settings = make_market(30, 3, gaps=False), EnvSettings(fractional=True, random_start=False)
    env, plain = (TradingEnv(market, settings, num_envs=2) for _ in range(2))
    assert env.engine == "fused"
    action = torch.tensor([[0.2, 0.3, 0.1], [0.5, 0.1, 0.0]])
    for one in (env, plain):
        one.reset()
        one.step(action)
    asked = (action * 0.5).requires_grad_()
    _, reward, *_ = env.step(asked)
    (gradient,) = torch.autograd.grad(reward.sum(), asked)
    assert bool((gradient[0] != 0).any())
    _, other, *_ = plain.step(action * 0.5)
    torch.testing.assert_close(reward.detach(), other, rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(env.step(action)[0], plain.step(action)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reward_name", REWARDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradcheck(case: dict[str, Any], reward_name: str) -> None:
    settings = EnvSettings(fractional=True, random_start=False, reward=reward_name, reward_scale=100.0, **case)
    view = market_view(make_market(30, 3, gaps=False), settings)
    reward = make_reward(settings)
    key = torch.zeros(2, dtype=torch.int64)
    cash = torch.full((2,), 1e5, dtype=torch.float64)
    shares = torch.tensor([[10.0, 0.0, 40.0], [100.0, 20.0, 5.0]], dtype=torch.float64)
    account = begin(view, key, key, cash, shares, key, settings)

    def two_steps(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        middle, r1, *_ = advance(view, account, first, settings, reward, record=False)
        last, r2, *_ = advance(view, middle, second, settings, reward, record=False)
        return r1, r2, observe(view, last, torch.float64)

    generator = torch.Generator().manual_seed(3)
    inputs = [torch.rand(2, 3, generator=generator, dtype=torch.float64) * 0.8 + 0.1 for _ in range(2)]
    inputs[1][:, 0] *= -1.0  # a sale
    for value in inputs:
        value.requires_grad_(True)
    assert torch.autograd.gradcheck(two_steps, inputs, eps=1e-6, atol=1e-5, rtol=1e-3)
    gradients = torch.autograd.grad(sum(out.sum() for out in two_steps(*inputs)[:2]), inputs)
    assert all(bool((g != 0).any()) for g in gradients)
