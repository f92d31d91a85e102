"""The simulation against a replay of its own trade list, and against the market's clock."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import fintrader
from fintrader.backtesting import simulate
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from fintrader.metrics import daily_returns
from tests.engines.policies import crashing_market, idle_policy, noisy_policy
from tests.factories import make_market
from tests.oracles.trade_list import trade_list_profit

VARIANTS = {
    "default": {},
    "trade": {"action": "trade", "max_shares": 700},
    "next_close": {"fill": "next_close"},
    "close": {"fill": "close"},
    "interval": {"decision_interval": 7},
    "fractional": {"fractional": True, "half_spread_bps": 3, "impact_bps": 50},
    "commission": {"min_commission_usd": 5.0},
    "short": {
        "short": True,
        "max_leverage": 2.0,
        "borrow_bps_per_year": 5000,
        "maintenance_margin": 0.45,
    },
}


def replay(result, market, settings):
    """Equity at every bar from the trade list alone, one trade at a time."""
    position = dict.fromkeys(result.symbols, 0.0)
    interest = result.costs_usd.sum() - result.trades["cost_usd"].sum()
    cash = settings.initial_cash_usd
    equity = []
    rows = result.trades.to_dict("records")
    for bar in range(market.num_bars):
        # Orders filled at the close of bar t show in the equity from bar t + 1 on.
        for row in rows:
            shown = row["fill_bar"] + (settings.fill == "close" and row["kind"] == "order")
            if shown == bar:
                cash -= row["shares"] * row["price_usd"] + row["cost_usd"]
                position[row["symbol"]] += row["shares"]
        value = 0.0
        for n, symbol in enumerate(result.symbols):
            seen = [float(p) for p in market.close[: bar + 1, n] if not math.isnan(float(p))]
            value += position[symbol] * (seen[-1] if seen else 0.0)
        equity.append(cash + value)
    assert position == pytest.approx(
        dict(zip(result.symbols, result.shares[-1], strict=True)), abs=1e-9
    )
    if not settings.borrow_bps_per_year:
        assert interest == pytest.approx(0, abs=1e-6)
    return np.array(equity)


@pytest.mark.parametrize("variant", VARIANTS)
def test_equity_is_what_the_trade_list_says(variant):
    market = make_market(60, 5)
    settings = EnvSettings(**VARIANTS[variant])
    result = simulate(noisy_policy(5), market, settings)
    profit = result.equity[-1] - result.equity[0]
    assert len(result.trades) > 20
    assert trade_list_profit(result) == pytest.approx(profit, rel=1e-9, abs=1e-6)
    expected = replay(result, market, settings)
    if settings.borrow_bps_per_year:  # interest is no trade: it stands in the costs
        shown = result.costs_usd.copy()
        for _, row in result.trades.iterrows():
            shown[row["fill_bar"]] -= row["cost_usd"]
        assert shown.min() > -1e-6
        assert shown.sum() > 0
        expected = expected - np.cumsum(shown)
    assert result.equity == pytest.approx(expected, rel=1e-9)
    assert result.cash.min() > -1e-6 or settings.short
    assert (
        result.costs_usd.sum() == pytest.approx(result.trades["cost_usd"].sum(), rel=1e-9)
        or settings.short
    )
    assert result.turnover_usd.sum() == pytest.approx(result.trades["notional_usd"].sum(), rel=1e-9)


def test_every_fill_is_later_than_its_decision():
    market = make_market(80, 5, session_bars=20)
    for fill in ("next_open", "next_close"):
        trades = simulate(noisy_policy(5), market, EnvSettings(fill=fill)).trades
        orders = trades[trades["kind"] == "order"]
        assert (orders["fill_bar"] > orders["decision_bar"]).all()
        assert (orders["fill_time"] >= orders["decision_time"]).all()
        prices = market.open if fill == "next_open" else market.close
        for row in orders.itertuples():
            n = market.symbols.index(row.symbol)
            assert bool(market.tradable[row.fill_bar, n])
            assert row.price_usd == float(prices[row.fill_bar, n])


def test_a_ruined_account_is_closed_and_stays_closed():
    market = crashing_market()
    result = simulate(lambda obs: torch.full((1, 2), 0.5), market, EnvSettings(cost_bps=20))
    assert result.ruined
    ruin = int(np.flatnonzero(result.equity < 100_000)[0])
    assert ruin == 20
    assert (result.shares[ruin:] == 0).all()
    assert (result.equity[ruin:] == result.equity[ruin]).all()
    assert result.equity[ruin] > 0
    assert result.trades["kind"].iloc[-1] == "ruin"
    assert trade_list_profit(result) == pytest.approx(
        result.equity[-1] - result.equity[0], rel=1e-9
    )
    assert result.metrics["cumulative_return"] < -0.9
    assert all(value is None or math.isfinite(value) for value in result.metrics.by_key().values())


def test_what_cannot_be_traded_is_a_typed_error():
    market = make_market(30, 3)
    with pytest.raises(BacktestError, match="at least two"):
        simulate(idle_policy, market.window(3, 4), EnvSettings())
    with pytest.raises(BacktestError, match="NaN"):
        simulate(lambda obs: torch.full((1, 3), math.nan), market, EnvSettings())
    with pytest.raises(BacktestError, match="3 assets"):
        simulate(lambda obs: torch.zeros(1, 2), market, EnvSettings())
    result = simulate(idle_policy, market, EnvSettings())
    result.equity[7] = math.nan
    with pytest.raises(BacktestError, match="bar 7"):
        replace(result)


@pytest.mark.parametrize(
    "own", [{"bind": lambda *_: len}, {"layout": "NCHW"}, {"meta": None}, {"meta": "text"}]
)
def test_names_of_other_libraries_mean_nothing_here(own):
    def hold(obs):
        return np.full(3, 0.2)

    market = make_market(60, 3)
    foreign = type("Foreign", (), {"__call__": lambda self, obs: hold(obs), **own})()
    result, plain = (fintrader.backtest(policy, market)["policy"] for policy in (foreign, hold))
    assert result.equity.tolist() == plain.equity.tolist()


def test_a_policy_that_fails_is_a_typed_error():
    with pytest.raises(BacktestError, match="fails on an observation of shape"):
        fintrader.backtest(lambda obs: {}["weights"], make_market(60, 3))


def test_an_index_with_missing_days_is_compared_on_the_days_both_have():
    result = simulate(
        noisy_policy(3), make_market(400, 3, session_bars=20), EnvSettings(cost_bps=0)
    )
    benchmark = result.benchmark.copy()
    benchmark[100:140] = math.nan  # sessions 5 and 6: no level, and no return into session 7
    holed = replace(result, benchmark=benchmark)
    kept = np.setdiff1d(np.arange(20), [5, 6, 7])
    ours = result.daily_returns[kept]
    theirs = daily_returns(result.benchmark, result.session)[kept]
    assert holed.metrics["beta"] == pytest.approx(np.cov(ours, theirs)[0, 1] / theirs.var(ddof=1))
    assert holed.metrics["beta"] != result.metrics["beta"]
    assert holed.metrics["sharpe"] == result.metrics["sharpe"]
    lost = replace(result, benchmark=np.full_like(benchmark, math.nan))
    assert lost.metrics["beta"] is None
    assert lost.metrics["index_tracking_error"] is None
    for found in (holed, lost):
        assert all(
            value is None or math.isfinite(value) for value in found.metrics.by_key().values()
        )
