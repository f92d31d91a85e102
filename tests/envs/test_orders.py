"""Orders mean what they say: holding orders nothing, bands look at the target, and every engine counts alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fintrader.backtesting.account import BacktestAccount
from fintrader.data.tensors import MarketTensors
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import ConfigError, EnvError
from tests.engines.strategies import env_settings, random_actions
from tests.engines.twins import assert_bit_equal
from tests.factories import examples, make_market

ENGINES = ("torch", "fused")


def split_market(bars: int = 1100) -> MarketTensors:
    """Wild prices, and one that falls to a tenth between two bars, as at a split nobody adjusted for."""
    market = make_market(bars, 7, gaps=False, volatility=0.02)
    scale = torch.ones(bars, 7)
    scale[bars // 2 :, 3] = 0.1
    return replace(market, open=market.open * scale, close=market.close * scale)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "options", [{}, {"fractional": True}, {"short": True, "max_leverage": 2.0}, {"decision_interval": 3}], ids=str
)
def test_a_thousand_decisions_to_hold_order_nothing(engine: Any, options: dict[str, Any]) -> None:
    market = split_market(1100 * options.get("decision_interval", 1))
    env = TradingEnv(market, EnvSettings(random_start=False, **options), num_envs=2, engine=engine)
    env.reset(options={"cash_usd": torch.tensor([1e6, 3e7])})
    obs, *_ = env.step(torch.tensor([[0.1, 0.2, 0.0, 0.3, 0.05, 0.0, 0.1], [0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]]))
    held, cash = env.account.shares.clone(), env.account.cash.clone()
    assert float(held.sum()) > 0
    for _ in range(1000):
        obs, *_ = env.step(obs[:, 4:11])  # the weights held
    assert torch.equal(env.account.shares, held)
    assert torch.equal(env.account.cash, cash)


def test_holding_orders_nothing_in_a_backtest() -> None:
    account = BacktestAccount(split_market(), EnvSettings())
    account.act(torch.full((1, 7), 0.1))
    held = account.held.copy()
    for _ in range(1000):
        account.act(account.observe()[:, 4:11])
        assert (account.held == held).all()
    assert len(account.trade_log.equity) == 1100


@pytest.mark.parametrize("engine", ENGINES)
def test_the_band_compares_with_the_target_and_small_steps_towards_it_arrive(engine: Any) -> None:
    market = make_market(300, 5, gaps=False, volatility=1e-4)
    env = TradingEnv(market, EnvSettings(rebalance_band=0.02, random_start=False), num_envs=1, engine=engine)
    env.reset()
    target = torch.full((1, 5), 0.18)
    env.step(target)
    weights = env.account.shares * env._view.mark[env.account.bar] / env.equity.unsqueeze(1)
    assert weights[0].numpy() == pytest.approx(np.full(5, 0.18), abs=0.001)
    held = env.account.shares.clone()
    env.step(target + 0.015)  # inside the band
    assert torch.equal(env.account.shares, held)
    env.step(target - 0.03)  # beyond it: all the way, not to its edge
    weights = env.account.shares * env._view.mark[env.account.bar] / env.equity.unsqueeze(1)
    assert weights[0].numpy() == pytest.approx(np.full(5, 0.15), abs=0.001)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("action", "most", "ordered"), [(0.2, 100, 20), (0.29, 100, 29), (0.5, 7, 3), (1.0, 2**24, 2**24)]
)
def test_an_action_orders_its_share_of_the_most(engine: Any, action: float, most: float, ordered: int) -> None:
    market = make_market(10, 2, gaps=False)
    config = EnvSettings(action="trade", max_shares=most, initial_cash_usd=4e9, random_start=False)
    env = TradingEnv(market, config, num_envs=1, engine=engine)
    env.reset()
    env.step(torch.tensor([[action, 0.0]]))
    assert env.account.shares.tolist() == [[ordered, 0.0]]


@settings(max_examples=examples(40))
@given(
    config=env_settings(),
    cash=st.sampled_from([1e6, 1e8, 1e9]),
    cheapest=st.sampled_from([1e-4, 0.3, 20.0]),
    seed=st.integers(0, 10_000),
)
def test_engines_agree_on_any_amount_of_money_and_any_price(
    config: EnvSettings, cash: float, cheapest: float, seed: int
) -> None:
    market = make_market(40, 6, seed=seed % 5, volatility=0.05)
    scale = torch.logspace(float(np.log10(cheapest / 20.0)), 1.0, 6)
    market = replace(market, open=market.open * scale, close=market.close * scale)
    config = config.model_copy(update={"initial_cash_usd": cash, "max_shares": 3e5 if seed % 2 else 57.5})
    slow, fast = (TradingEnv(market, config, num_envs=5, seed=seed, engine=engine) for engine in ENGINES)
    assert_bit_equal(slow, fast, random_actions(seed, 25, 5, 6), endowed=False)


def test_more_money_than_is_added_up_exactly_is_refused_at_the_door() -> None:
    with pytest.raises(ConfigError, match="initial_cash_usd"):
        EnvSettings(initial_cash_usd=1e10)
    with pytest.raises(EnvError, match="at most"):
        TradingEnv(make_market(10, 2), num_envs=1).reset(options={"cash_usd": 1e10})


def test_a_hundred_million_in_a_stock_of_thirty_cents_is_bought_by_every_engine() -> None:
    market = make_market(10, 2, gaps=False, volatility=1e-5)
    scale = 0.3 / market.close[0]
    market = replace(market, open=market.open * scale, close=market.close * scale)
    config = EnvSettings(rebalance_band=0.05, initial_cash_usd=1e8, random_start=False)
    for engine in ENGINES:
        env = TradingEnv(market, config, num_envs=1, engine=engine)
        env.reset()
        env.step(torch.tensor([[0.5, 0.0]]))
        assert float(env.account.shares[0, 0]) == pytest.approx(0.5e8 / 0.3, rel=1e-3)
