"""With fractional shares the step is differentiable in the action."""

import pytest
import torch

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.account import advance
from fintrader.envs.episodes import begin, observe
from fintrader.envs.market_view import build_market_view
from fintrader.envs.reward import make_reward
from fintrader.envs.settings import REWARDS
from tests.engines.twins import refused
from tests.factories import make_market
from tests.quick import slow_but

CASES = [
    {"action": "target"},
    {"action": "target", "fill": "next_close", "half_spread_bps": 5.0},
    {"action": "trade", "max_shares": 50.0, "dead_band": 0.0},
    {
        "action": "trade",
        "max_shares": 9000.0,
        "dead_band": 0.0,
    },  # cash runs out: the common factor has a gradient
    {"action": "trade", "max_shares": 9000.0, "dead_band": 0.0, "impact_bps": 500.0},
    {"action": "target", "decision_interval": 3, "impact_bps": 500.0},
    {"action": "target", "short": True, "max_leverage": 2.0, "borrow_bps_per_year": 300.0},
]


def test_steps_with_and_without_gradients_take_turns():
    market = make_market(30, 3, gaps=False)
    config = EnvSettings(fractional=True, start="first")
    env, plain = (TradingEnv(market, config, num_envs=2) for _ in range(2))
    assert env.engine == "fused"
    action = torch.tensor([[0.2, 0.3, 0.1], [0.5, 0.1, 0.0]])
    for one in (env, plain):
        one.reset(seed=0)
        one.step(action)
    asked = (action * 0.5).requires_grad_()
    obs, reward, *_ = env.step(asked)
    (gradient,) = torch.autograd.grad(reward.sum(), asked)
    assert bool((gradient[0] != 0).any())
    _, other, *_ = plain.step(action * 0.5)
    torch.testing.assert_close(reward.detach(), other, rtol=1e-4, atol=1e-8)
    with refused(env, "NaN"):
        env.step((action * float("nan")).requires_grad_())
    obs, reward, *_ = env.step(action)
    assert not obs.requires_grad
    assert not reward.requires_grad
    torch.testing.assert_close(obs, plain.step(action)[0], rtol=1e-5, atol=1e-6)


def draw_actions(steps):
    """Actions with a sale in the second step, which require a gradient."""
    generator = torch.Generator().manual_seed(3)
    actions = [
        torch.rand(2, 3, generator=generator, dtype=torch.float64) * 0.8 + 0.1 for _ in range(steps)
    ]
    actions[1][:, 0] *= -1.0
    return [action.requires_grad_() for action in actions]


@pytest.mark.parametrize("case", slow_but(0, 2, every=CASES), ids=str)
def test_gradients_through_the_environment_are_finite_differences(case):
    config = EnvSettings(fractional=True, start="first", initial_cash_usd=1e5, **case)
    env = TradingEnv(make_market(30, 3, gaps=False, events=True), config, num_envs=2)

    def three_steps(*actions):
        env.reset(options={"shares": torch.tensor([[10.0, 0.0, 40.0], [100.0, 20.0, 5.0]])})
        for action in actions:
            env.step(action)
        account = env.account
        return (
            account.cash / 1e5,
            account.shares / 1e3,
            account.equity / 1e5,
            account.peak_equity / 1e5,
        )

    assert torch.autograd.gradcheck(three_steps, draw_actions(3), eps=1e-6, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("reward_name", slow_but(0, 2, 4, every=REWARDS))
def test_gradients_of_rewards_and_observations_are_finite_differences(reward_name):
    config = EnvSettings(fractional=True, start="first", reward=reward_name, reward_scale=100.0)
    view = build_market_view(make_market(30, 3, gaps=False), config)
    reward = make_reward(config)
    key = torch.zeros(2, dtype=torch.int64)
    cash = torch.full((2,), 1e5, dtype=torch.float64)
    shares = torch.tensor([[10.0, 0.0, 40.0], [100.0, 20.0, 5.0]], dtype=torch.float64)
    account = begin(view, key, key, cash, shares, key, config)

    def two_steps(first, second):
        middle, r1, *_ = advance(view, account, first, config, reward, record=False)
        last, r2, *_ = advance(view, middle, second, config, reward, record=False)
        return r1, r2, observe(view, last, torch.float64)

    inputs = draw_actions(2)
    assert torch.autograd.gradcheck(two_steps, inputs, eps=1e-6, atol=1e-5, rtol=1e-3)
    gradients = torch.autograd.grad(sum(out.sum() for out in two_steps(*inputs)[:2]), inputs)
    assert all(bool((g != 0).any()) for g in gradients)
