from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from fintrader.backtesting import simulate
from fintrader.envs import EnvSettings
from fintrader.results.backtest_files import TRADE_COLUMNS
from fintrader.results.catalogue import CATALOGUE, round_trips
from tests.engines.policies import noisy_policy
from tests.factories import make_market


def test_no_metric_is_silently_nan() -> None:
    for bars in (2, 21, 60):
        numbers = simulate(noisy_policy(4), make_market(60, 4).window(0, bars), EnvSettings()).metrics
        assert list(numbers) == [metric.key for metric in CATALOGUE]
        assert all(value is None or math.isfinite(value) for value in numbers.values())


def trade(minute: int, symbol: str, shares: float, price: float, cost: float) -> dict[str, object]:
    time = pd.Timestamp("2020-01-02 14:30", tz="UTC") + pd.Timedelta(minutes=minute)
    when = {"decision_bar": minute, "fill_bar": minute, "decision_time": time, "fill_time": time}
    what = {"symbol": symbol, "shares": shares, "price_usd": price, "cost_usd": cost, "kind": "order"}
    return {**when, **what, "notional_usd": abs(shares) * price}


def test_round_trips_match_the_oldest_lots_first() -> None:
    """Buy 10 at 100 and 10 at 110, sell 15 at 120: ten lots earn 20 each, five earn 10 each, all less their costs."""
    rows = [
        trade(0, "A", 10, 100, 1.0),
        trade(5, "A", 10, 110, 2.0),
        trade(9, "A", -15, 120, 3.0),
        trade(9, "B", -4, 50, 0.0),  # a short position, covered at a loss
        trade(12, "B", 4, 55, 0.0),
    ]
    trips = round_trips(pd.DataFrame(rows).astype(TRADE_COLUMNS))
    assert trips["profit_usd"].tolist() == pytest.approx([200 - 1 - 2, 50 - 1 - 1, -20])
    assert trips["minutes"].tolist() == [9, 4, 3]
    assert trips["shares"].tolist() == [10, 5, -4]


def test_trading_numbers_by_hand() -> None:
    result = simulate(noisy_policy(4), make_market(60, 4), EnvSettings(cost_bps=20))
    numbers = result.metrics
    traded = result.trades["notional_usd"].sum()
    profit = result.equity[-1] - result.equity[0]
    assert numbers["cost_usd"] == pytest.approx(0.002 * traded)
    assert numbers["break_even_cost_bps"] == pytest.approx(1e4 * (profit + 0.002 * traded) / traded)
    assert numbers["turnover"] == pytest.approx(traded / result.equity.mean() * 252 / 3)
    assert numbers["trades"] == len(result.trades)
    weights = result.weights()[[19, 39, 59]]
    assert numbers["largest_weight"] == pytest.approx(weights.max())
    share = weights / weights.sum(axis=1, keepdims=True)
    assert numbers["concentration"] == pytest.approx(np.square(share).sum(axis=1).mean())
    assert numbers["minute_max_drawdown"] == pytest.approx(
        (result.equity / np.maximum.accumulate(result.equity)).min() - 1
    )
