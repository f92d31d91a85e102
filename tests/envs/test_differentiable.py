"""With fractional shares the step is differentiable in the action."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.account import advance
from fintrader.envs.episodes import begin, observe
from fintrader.envs.market_view import build_market_view
from fintrader.envs.reward import make_reward
from fintrader.envs.settings import REWARDS
from fintrader.errors import EnvError
from tests.engines.strategies import env_settings, random_actions
from tests.factories import examples, make_market

CASES: list[dict[str, Any]] = [
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


def test_steps_with_and_without_gradients_take_turns() -> None:
    market = make_market(30, 3, gaps=False)
    config = EnvSettings(fractional=True, random_start=False)
    env, plain = (TradingEnv(market, config, num_envs=2) for _ in range(2))
    assert env.engine == "fused"
    action = torch.tensor([[0.2, 0.3, 0.1], [0.5, 0.1, 0.0]])
    for one in (env, plain):
        one.reset(seed=0)
        one.step(action)
    asked = (action * 0.5).requires_grad_()
    obs, reward, *_ = env.step(asked)
    assert "Advance" in obs.grad_fn.name()  # one function, not the core's many
    (gradient,) = torch.autograd.grad(reward.sum(), asked)
    assert bool((gradient[0] != 0).any())
    _, other, *_ = plain.step(action * 0.5)
    torch.testing.assert_close(reward.detach(), other, rtol=1e-4, atol=1e-8)
    before = env.state_dict()
    with pytest.raises(EnvError, match="NaN"):
        env.step((action * float("nan")).requires_grad_())
    assert all(torch.equal(value, env.state_dict()[name]) for name, value in before.items())
    obs, reward, *_ = env.step(action)
    assert not obs.requires_grad
    assert not reward.requires_grad
    torch.testing.assert_close(obs, plain.step(action)[0], rtol=1e-5, atol=1e-6)


def rollout(env: TradingEnv, actions: list[Tensor], seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Everything that the steps made, and the slopes of a random sum of it in the actions and the
    first accounts."""
    env.reset(seed=0)
    accounts = env.state_dict()
    leaves = [
        accounts[f"account.{name}"].requires_grad_()
        for name in ("cash", "shares", "equity", "peak_equity")
    ]
    env.load_state_dict(accounts)
    made: list[Tensor] = []
    for action in actions:
        if env.autoreset_mode is AutoresetMode.DISABLED and bool(env.account.finished.any()):
            env.reset(options={"reset_mask": env.account.finished.clone()})
        obs, reward, terminated, truncated, info = env.step(action)
        seen = [obs, info["final_obs"]] if "final_obs" in info else [obs]
        made += [part if isinstance(part, Tensor) else part["private"] for part in seen]
        made += [reward, terminated, truncated]
    first = env.account.first_equity.unsqueeze(1)
    account = env.account
    made += [account.memory, account.shares]
    made += [
        value / first.squeeze(1) for value in (account.cash, account.equity, account.peak_equity)
    ]
    generator = torch.Generator().manual_seed(seed)
    total = sum(
        (part * torch.randn(part.shape, generator=generator)).sum()
        for part in made
        if part.is_floating_point()
    )
    slopes = torch.autograd.grad(
        total, [*actions, *leaves], allow_unused=True, materialize_grads=True
    )
    return [part.detach() for part in made], list(slopes)


@settings(max_examples=examples(120), deadline=None)
@given(
    config=env_settings(),
    mode=st.sampled_from(AutoresetMode),
    flat=st.booleans(),
    steps=st.sampled_from([1, 4]),
    seed=st.integers(0, 10_000),
)
def test_the_kernel_and_its_gradient_are_those_of_the_core(
    config: EnvSettings, mode: AutoresetMode, flat: bool, steps: int, seed: int
) -> None:
    # Where nothing costs anything, all orders together may cost the cash to its last digit, and
    # that one decides.
    update = {"cost_bps": max(config.cost_bps, 1.0), "observation": "flat" if flat else "factored"}
    config = config.model_copy(update=update)
    market = make_market(60, 5, seed=seed % 5, volume=3e4, events=True)
    actions = [action.requires_grad_() for action in random_actions(seed, steps, 6, 5)]
    (made, slopes), (expected, core) = (
        rollout(
            TradingEnv(market, config, num_envs=6, seed=seed, autoreset_mode=mode, engine=engine),
            actions,
            seed,
        )
        for engine in ("fused", "torch")
    )
    for got, right in zip(made, expected, strict=True):
        rtol = 1e-6 if got.dtype == torch.float32 else 1e-9
        torch.testing.assert_close(got, right, rtol=rtol, atol=1e-8)
    for kinds in (slice(0, steps), *(slice(place, place + 1) for place in range(steps, steps + 4))):
        size = max(float(slope.abs().max()) for slope in core[kinds])
        for got, right in zip(slopes[kinds], core[kinds], strict=True):
            assert got.dtype == right.dtype
            torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5 * size + 1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_of_the_kernel_are_finite_differences(case: dict[str, Any]) -> None:
    config = EnvSettings(fractional=True, random_start=False, initial_cash_usd=1e5, **case)
    env = TradingEnv(
        make_market(30, 3, gaps=False, events=True), config, num_envs=2, engine="fused"
    )

    def three_steps(*actions: Tensor) -> tuple[Tensor, ...]:
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

    generator = torch.Generator().manual_seed(3)
    actions = [
        torch.rand(2, 3, generator=generator, dtype=torch.float64) * 0.8 + 0.1 for _ in range(3)
    ]
    actions[1][:, 0] *= -1.0  # a sale
    for value in actions:
        value.requires_grad_(True)
    assert torch.autograd.gradcheck(three_steps, actions, eps=1e-6, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("reward_name", REWARDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_of_the_core_are_finite_differences(
    case: dict[str, Any], reward_name: str
) -> None:
    config = EnvSettings(
        fractional=True, random_start=False, reward=reward_name, reward_scale=100.0, **case
    )
    view = build_market_view(make_market(30, 3, gaps=False), config)
    reward = make_reward(config)
    key = torch.zeros(2, dtype=torch.int64)
    cash = torch.full((2,), 1e5, dtype=torch.float64)
    shares = torch.tensor([[10.0, 0.0, 40.0], [100.0, 20.0, 5.0]], dtype=torch.float64)
    account = begin(view, key, key, cash, shares, key, config)

    def two_steps(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        middle, r1, *_ = advance(view, account, first, config, reward, record=False)
        last, r2, *_ = advance(view, middle, second, config, reward, record=False)
        return r1, r2, observe(view, last, torch.float64)

    generator = torch.Generator().manual_seed(3)
    inputs = [
        torch.rand(2, 3, generator=generator, dtype=torch.float64) * 0.8 + 0.1 for _ in range(2)
    ]
    inputs[1][:, 0] *= -1.0  # a sale
    for value in inputs:
        value.requires_grad_(True)
    assert torch.autograd.gradcheck(two_steps, inputs, eps=1e-6, atol=1e-5, rtol=1e-3)
    gradients = torch.autograd.grad(sum(out.sum() for out in two_steps(*inputs)[:2]), inputs)
    assert all(bool((g != 0).any()) for g in gradients)
