"""Baselines do what their notes say, through the policy's own ledger."""

from __future__ import annotations

import numpy as np
import pytest

from fintrader.backtest import simulate_baselines
from fintrader.backtest.baselines import equal_weight
from fintrader.envs import EnvSettings
from tests.factories import make_market


def test_buy_and_hold_buys_once_in_equal_dollars() -> None:
    market = make_market(60, 5, gaps=False)
    result = simulate_baselines(market, EnvSettings(cost_bps=20, action="trade", decision_interval=9))["buy_and_hold"]
    assert (result.trades["fill_bar"] == 1).all()
    assert len(result.trades) == 5
    spent = result.trades["notional_usd"].to_numpy()
    assert spent == pytest.approx(np.full(5, 200_000), rel=0.02)  # next open's price, costs, whole shares
    assert (result.shares[1:] == result.shares[1]).all()
    assert result.cash.min() >= 0
    assert result.costs_usd.sum() == pytest.approx(0.002 * spent.sum(), rel=1e-9)


def test_only_members_that_trade_are_bought() -> None:
    market = make_market(60, 5)  # S001 is listed later, S002 ends early
    result = simulate_baselines(market, EnvSettings())["buy_and_hold"]
    bought = result.trades[result.trades["shares"] > 0]
    assert "S001" not in set(bought["symbol"])
    sold = result.trades[result.trades["shares"] < 0]
    assert list(sold["symbol"]) == ["S002"]
    assert list(sold["kind"]) == ["forced"]


def test_equal_weight_is_equal_after_each_rebalance_and_pays_for_it() -> None:
    market = make_market(80, 4, gaps=False, session_bars=20)
    result = equal_weight(market, EnvSettings(cost_bps=20))
    assert set(result.trades["fill_bar"]) <= {1, 21, 41, 61}
    for bar in (1, 21, 41, 61):
        assert result.weights()[bar] == pytest.approx(np.full(4, 0.25), abs=0.01)
    free = equal_weight(market, EnvSettings(cost_bps=0))
    assert free.equity[-1] > result.equity[-1]
    rarely = equal_weight(market, EnvSettings(cost_bps=20), every_sessions=2)
    assert set(rarely.trades["fill_bar"]) <= {1, 41}
    assert rarely.note == "1/n, rebalanced every 2 sessions, net of costs"


def test_benchmark_is_the_scaled_index() -> None:
    market = make_market(60, 3)
    result = simulate_baselines(market, EnvSettings(initial_cash_usd=500))["benchmark"]
    level = market.benchmark.numpy()
    assert result.equity == pytest.approx(500 * level / level[0], rel=1e-12)
    assert result.metrics["cost_usd"] == 0
    assert result.metrics["beta"] == pytest.approx(1)
    assert result.metrics["tracking_error"] == pytest.approx(0, abs=1e-12)
    assert result.metrics["exposure_mean"] is None


@pytest.mark.parametrize("fractional", [False, True])
def test_holding_means_no_orders(fractional: bool) -> None:
    market = make_market(40, 3, gaps=False)
    result = simulate_baselines(market, EnvSettings(fractional=fractional))["buy_and_hold"]
    assert len(result.trades) == 3
