"""An option that accounts have sold: its premium, what is owed at each close, and its payoff."""

import math

import numpy as np
import pytest
import torch

from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.baselines import baseline_settings
from fintrader.envs import EnvSettings, RandomisedEnv, TradingEnv
from fintrader.envs.fast.triton_step import TritonStep
from fintrader.envs.market_view import build_market_view
from fintrader.envs.money import USD_GRID
from fintrader.envs.multi_agent import MultiTraderEnv
from fintrader.envs.settings import RandomiseSettings
from fintrader.errors import ConfigError, EnvError
from fintrader.market.tensors import Events
from tests.factories import make_market, market_of, reprice
from tests.oracles.ledger_oracle import option_value
from tests.quick import slow_but

STRADDLE = {"kind": "straddle", "weight": 0.5, "bars": 2, "volatility_bps": 100.0}
FREE = {"cost_bps": 0.0, "participation": None, "fractional": True, "benchmark": "cash"}
PREMIUM = 5.6418
"""Of a straddle on 500 USD at the price, with a deviation s = 1 % sqrt(2) left: per USD
2 (2 N(s / 2) - 1) = 2 (2 * 0.502821 - 1) = 0.0112837."""
NEXT = 5.8453
"""A bar later, 1 % higher, with s = 1 %: d = ln(1.01) / s = 0.995033, N(d + s / 2) = 0.841353,
N(d - s / 2) = 0.838921, the call 1.01 * 0.841353 - 0.838921 = 0.0108455 and the put 0.0008455."""


def price_path(*prices):
    return market_of(np.array(prices, dtype=float)[:, None], 10)


def open_env(market, engine="torch", **changes):
    values = {**FREE, "initial_cash_usd": 1000.0, "option": STRADDLE, "reward": "profit", **changes}
    values = {"start": "first"} | values
    return TradingEnv(market, EnvSettings(**values), num_envs=1, engine=engine)


@pytest.mark.parametrize("engine", ["torch", "fused"])
def test_an_account_gets_the_premium_and_owes_the_value_then_the_payoff(engine):
    env = open_env(price_path(100, 101, 99, 98, 120), engine)
    env.reset()
    assert float(env.account.cash) == pytest.approx(1000.0 + PREMIUM, abs=2e-4)
    assert float(env.equity) == float(env.account.first_equity) == 1000.0
    earned = []
    for owed in (NEXT, 5.0, 5.0):  # at expiry |0.99 - 1| of 500 USD, and for good
        *_, reward, _, _, _ = env.step(torch.zeros(1, 1))
        earned.append(float(reward))
        assert float(env.equity) == pytest.approx(1000.0 + PREMIUM - owed, abs=2e-4)
    assert earned == pytest.approx([(PREMIUM - NEXT) / 1e3, (NEXT - 5.0) / 1e3, 0.0], abs=1e-6)


@pytest.mark.parametrize("engine", ["torch", "fused"])
def test_the_next_episode_sells_the_next_option(engine):
    env = open_env(price_path(100, 101, 99, 98, 120), engine, episode_bars=1)
    env.reset()
    env.step(torch.zeros(1, 1))
    assert float(env.account.cash) == pytest.approx(1000.0 + PREMIUM, abs=2e-4)
    assert float(env.equity) == 1000.0


def test_an_option_is_written_on_a_share_of_cash_and_shares():
    env = open_env(price_path(100, 101, 99), initial_shares=10.0)
    env.reset()
    assert float(env.account.first_equity) == 2000.0
    assert float(env.account.cash) == pytest.approx(1000.0 + 2.0 * PREMIUM, abs=4e-4)


@pytest.mark.parametrize("engine", ["torch", "fused"])
def test_a_split_changes_nothing(engine):
    market = reprice(price_path(100, 50.5, 49.5, 49), events=Events.of([(1, 0, 2.0, 0.0)]))
    env = open_env(market, engine)
    env.reset()
    for owed in (NEXT, 5.0):
        env.step(torch.zeros(1, 1))
        assert float(env.equity) == pytest.approx(1000.0 + PREMIUM - owed, abs=2e-4)


@pytest.mark.parametrize("kind", slow_but(2, every=["call", "put", "straddle"]))
def test_the_table_of_values_is_as_fine_as_it_says(kind):
    """At the largest deviation, between its columns and beyond them, at all times to expiry."""
    prices = np.random.default_rng(0).uniform(-1.5, 1.5, 302)
    prices = np.append(100.0, 100.0 * np.exp(prices)).astype(np.float32)
    option = {"kind": kind, "strike": 1.1, "weight": 0.1, "bars": 301, "volatility_bps": 144.0}
    env = open_env(price_path(*prices), option=option, initial_cash_usd=1e6)
    env.reset()
    for left in range(300, -1, -1):
        env.step(torch.zeros(1, 1))
        owed = float(env.account.cash - env.equity) / 1e5 / 1.1
        price = float(prices[301 - left]) / float(prices[0]) / 1.1
        expected = option_value(env.settings.option, left, price)
        assert owed == pytest.approx(expected, abs=2e-6), (left, price)


def test_an_observation_shows_how_far_the_price_is_from_the_strike():
    """In deviations of the option's life, 1 % sqrt(2); no option is left after its expiry."""
    market = price_path(100, 101, 99, 98)
    env = open_env(market)
    assert env.layout.account_width == 5
    seen = [env.reset()[0][0, 4], *(env.step(torch.zeros(1, 1))[0][0, 4] for _ in range(2))]
    assert [float(one) for one in seen] == pytest.approx([0.0, math.sqrt(0.5), 0.0], abs=1e-4)
    assert open_env(market, option=None).layout.account_width == 4


@pytest.mark.parametrize("engine", ["torch", "fused"])
def test_an_order_has_the_room_that_the_option_leaves(engine):
    """Twice 1000 USD of equity, though cash is more: 20 shares at 100 USD, or 2000 / 99 of a bid
    that fills at the open of 99."""
    loose = {"short": True, "max_leverage": 2.0}
    env = open_env(price_path(100, 100, 100), engine, action="trade", **loose)
    env.reset()
    env.step(torch.ones(1, 1))
    assert float(env.account.shares) == pytest.approx(20.0, abs=1e-4)
    env = open_env(price_path(100, 99, 99), engine, action="quote", quote_weight=3.0, **loose)
    env.reset()
    env.step(-torch.ones(1, 2))
    assert float(env.account.shares) == pytest.approx(2000.0 / 99.0, abs=1e-4)


@pytest.mark.parametrize("engine", ["torch", "fused"])
def test_a_margin_call_counts_the_option(engine):
    """20 shares fall from 100 to 96 USD: equity of 925.6 USD less the payoff of 20 is below 0.475
    of the 1920 that is held, and above it without the option."""
    loose = {"short": True, "max_leverage": 2.0, "maintenance_margin": 0.475}
    env = open_env(price_path(100, 100, 96, 96), engine, action="trade", **loose)
    env.reset()
    env.step(torch.ones(1, 1))
    env.step(torch.zeros(1, 1))
    assert float(env.account.shares) == 0.0
    assert float(env.equity) == pytest.approx(1000.0 + PREMIUM - 80.0 - 20.0, abs=0.01)


def test_the_baselines_of_a_backtest_sell_nothing():
    """They begin with what the account is worth, and the account with the premium in cash."""
    market = price_path(100, 101, 99, 98)
    settings = open_env(market, initial_shares=10.0).settings
    account = BacktestAccount(market, settings)
    assert account.equity == 2000.0
    assert account.cash == pytest.approx(1000.0 + 2.0 * PREMIUM, abs=4e-4)
    rivals = BacktestAccount(market, baseline_settings(settings, market))
    assert rivals.equity == rivals.cash == 2000.0


def test_shuffled_sessions_have_an_option_of_their_own_prices():
    market = make_market(60, 3, session_bars=10, events=True)
    changes = {"randomise": RandomiseSettings(variants=2, block_sessions=1), "start_groups": 2}
    settings = EnvSettings(option={"bars": 5, "volatility_bps": 300.0}, **changes)
    many = RandomisedEnv(TradingEnv(market, settings, num_envs=4), seed=3)
    for one in many.variants:
        view = one.view
        grown = view.underlying[0] / (view.mark[:, 0].double() * USD_GRID)
        steps = grown[1:] / grown[:-1]
        assert torch.allclose(steps, view.splits[view.event_row[1:], 0], rtol=1e-12)
        assert not torch.equal(view.underlying, build_market_view(market, settings).underlying)


def test_what_cannot_sell_an_option_says_so():
    market = make_market(60, 5)
    option = {"bars": 5, "volatility_bps": 300.0}
    with pytest.raises(EnvError, match=r"env\.option: no symbol 'X'"):
        TradingEnv(market, option={"symbol": "X", **option})
    with pytest.raises(EnvError, match="S001 has no price in the window's first bar"):
        TradingEnv(market, option={"symbol": "S001", **option})
    with pytest.raises(ConfigError, match="2,500 at most; lower either"):
        EnvSettings(option={"bars": 100, "volatility_bps": 251.0})
    with pytest.raises(ConfigError, match="leave out option or traders"):
        MultiTraderEnv(market, EnvSettings(option=option))


def test_the_cuda_kernel_leaves_an_option_to_torch(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # as if it were installed
    cuda = torch.device("cuda")
    sold = EnvSettings(option={"bars": 5, "volatility_bps": 300.0})
    assert TritonStep.find_obstacle(EnvSettings(), cuda, record=False) is None
    assert TritonStep.find_obstacle(sold, cuda, record=False) == "it sells no option"
