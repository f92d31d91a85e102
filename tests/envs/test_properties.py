"""Invariants of the trading contract, over random settings, markets and actions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fintrader.envs import EnvSettings, TradingEnv
from tests.engines.strategies import env_settings, random_actions
from tests.factories import examples, joined, make_market, pick_assets

SEEDS = st.integers(0, 10_000)


def rollout(env: TradingEnv, actions: Tensor) -> dict[str, Tensor]:
    """Every step's outputs, stacked time first."""
    obs, _ = env.reset()
    rows: dict[str, list[Tensor]] = {"obs": [obs], "reward": [], "done": [], "equity": [env.equity]}
    rows |= {"cash": [env.account.cash], "shares": [env.account.shares]}
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        account = env.account
        values = (obs, reward, terminated | truncated, account.equity, account.cash, account.shares)
        for name, value in zip(rows, values, strict=True):
            rows[name].append(value)
    return {name: torch.stack(values) for name, values in rows.items()}


@settings(max_examples=examples(40))
@given(config=env_settings(short=False), seed=SEEDS, float64=st.booleans())
def test_long_only_accounts_never_owe(config: EnvSettings, seed: int, float64: bool) -> None:
    dtype = torch.float64 if float64 else torch.float32
    env = TradingEnv(make_market(60, 5, seed=seed % 5), config, num_envs=6, dtype=dtype, seed=seed)
    rows = rollout(env, random_actions(seed, 40, 6, 5))
    assert bool((rows["cash"] >= 0).all())
    assert bool((rows["shares"] >= 0).all())
    assert all(bool(rows[name].isfinite().all()) for name in ("obs", "reward", "equity", "cash", "shares"))
    if not config.fractional:
        assert torch.equal(rows["shares"], rows["shares"].trunc())


@settings(max_examples=examples(30))
@given(config=env_settings(short=True), seed=SEEDS)
def test_gross_exposure_stays_within_the_leverage_limit_after_fills(config: EnvSettings, seed: int) -> None:
    # At next_close the fill price is the mark, so the limit can be read off the account.
    config = config.model_copy(update={"fill": "next_close", "decision_interval": 1, "borrow_bps_per_year": 0.0})
    market = make_market(60, 4, seed=seed % 5, gaps=False, volatility=0.03)
    env = TradingEnv(market, config, num_envs=5, dtype=torch.float64, seed=seed, record=True)
    env.reset()
    env.autoreset_mode = AutoresetMode.NEXT_STEP
    for action in random_actions(seed, 30, 5, 4):
        before = env.account
        env.step(action)
        after = env.account
        gross = (after.shares * env._view.mark[after.bar]).abs().sum(1)
        grew = (after.shares.abs() > before.shares.abs()).any(1) & ~before.finished
        allowed = config.max_leverage * after.equity * (1 + 1e-9) + 1e-9
        assert bool((~grew | (gross <= allowed)).all())


@settings(max_examples=examples(30))
@given(config=env_settings(fractional=False), seed=SEEDS)
def test_permuting_tickers_permutes_the_result(config: EnvSettings, seed: int) -> None:
    market = make_market(60, 5, seed=seed % 5)
    order = np.random.default_rng(seed).permutation(5)
    actions = random_actions(seed, 30, 4, 5)
    plain = rollout(TradingEnv(market, config, num_envs=4, seed=seed), actions)
    mixed = rollout(TradingEnv(pick_assets(market, order), config, num_envs=4, seed=seed), actions[:, :, order])
    exact = config.impact_bps_per_million_usd == 0 and config.min_commission_usd == 0 and not config.short
    if exact and config.borrow_bps_per_year == 0:  # only sums of squares or of rounded fees depend on the order
        assert torch.equal(plain["shares"][:, :, order], mixed["shares"])
        assert torch.equal(plain["cash"], mixed["cash"])
        assert torch.equal(plain["reward"], mixed["reward"])
    else:
        torch.testing.assert_close(plain["equity"], mixed["equity"], rtol=1e-2, atol=0.0)


@settings(max_examples=examples(30))
@given(config=env_settings(), seed=SEEDS)
def test_batch_size_and_neighbours_change_nothing(config: EnvSettings, seed: int) -> None:
    market = make_market(60, 4, seed=seed % 5)
    actions = random_actions(seed, 30, 7, 4)
    many = rollout(TradingEnv(market, config, num_envs=7, seed=seed), actions)
    few = rollout(TradingEnv(market, config, num_envs=3, seed=seed), actions[:, :3])
    for name, value in few.items():
        assert torch.equal(many[name][:, :3], value), name


@pytest.mark.parametrize("action", ["target", "trade"])
def test_zero_action_from_cash_costs_nothing(action: str) -> None:
    env = TradingEnv(make_market(60, 4), EnvSettings(action=action), num_envs=3, record=True)
    env.reset()
    for _ in range(20):
        *_, info = env.step(torch.zeros(3, 4))
        assert float(info["cost"].sum()) == 0.0
    assert torch.equal(env.equity, torch.full((3,), 1e6, dtype=torch.float64))


def test_zero_action_holds_in_trade_mode_and_goes_to_cash_in_target_mode() -> None:
    market = make_market(60, 4, gaps=False)
    start = {"shares": torch.full((4,), 10.0), "start": 0}
    hold = TradingEnv(market, EnvSettings(action="trade"), num_envs=1, record=True)
    hold.reset(options=start)
    *_, info = hold.step(torch.zeros(1, 4))
    assert hold.account.shares.tolist() == [[10.0] * 4]
    assert float(info["cost"]) == 0.0
    sell = TradingEnv(market, EnvSettings(action="target", cost_bps=20.0), num_envs=1, record=True)
    sell.reset(options=start)
    *_, info = sell.step(torch.zeros(1, 4))
    notional = 10.0 * float(market.open[1].double().sum())
    assert sell.account.shares.tolist() == [[0.0] * 4]
    assert float(info["cost"]) == pytest.approx(0.002 * notional)
    assert float(sell.account.cash) == pytest.approx(1e6 + 0.998 * notional)


@settings(max_examples=examples(30))
@given(config=env_settings(), seed=SEEDS, cut=st.integers(5, 45))
def test_values_after_t_change_nothing_up_to_t(config: EnvSettings, seed: int, cut: int) -> None:
    market = make_market(60, 5, seed=seed % 5)
    changed = joined(market, make_market(60, 5, seed=5 + seed % 5, volatility=0.1), cut + 1)
    config = config.model_copy(update={"random_start": False})
    actions = random_actions(seed, cut // config.decision_interval, 3, 5)
    plain = rollout(TradingEnv(market, config, num_envs=3, seed=seed), actions)
    other = rollout(TradingEnv(changed, config, num_envs=3, seed=seed), actions)
    for name, value in plain.items():
        assert torch.equal(value, other[name]), name


def test_a_value_after_t_does_change_what_follows() -> None:
    """The test above would pass for an environment that ignores its market."""
    market = make_market(60, 3, gaps=False)
    close = market.close.clone()
    close[11:] *= 1.5
    actions = torch.ones(15, 2, 3)
    plain = rollout(TradingEnv(market, EnvSettings(random_start=False), num_envs=2), actions)
    other = rollout(TradingEnv(replace(market, close=close), EnvSettings(random_start=False), num_envs=2), actions)
    assert torch.equal(plain["equity"][:11], other["equity"][:11])
    assert not torch.equal(plain["equity"][11], other["equity"][11])
