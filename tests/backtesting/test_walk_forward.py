from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
import torch

from fintrader.backtesting import simulate
from fintrader.backtesting.sensitivity import (
    Choices,
    sensitivity,
    simulate_delayed,
    simulate_without_each,
)
from fintrader.backtesting.settings import WalkForwardSettings
from fintrader.backtesting.walk_forward import cut_fold, make_folds, stitch
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from fintrader.results.market_description import Provenance
from tests.engines.policies import noisy_policy
from tests.factories import make_market, reprice
from tests.oracles.trade_list import trade_list_profit

SHORT = WalkForwardSettings(sessions=(6, 3, 4))


def test_folds_roll_on_and_keep_their_distance():
    market = make_market(20 * 31, 3, session_bars=20)
    folds = make_folds(market, SHORT)
    assert len(folds) == 5
    session = market.session.numpy()
    tested = set()
    for fold in folds:
        for window in (fold.train, fold.validation, fold.test):
            assert window[0] % 20 == 0
            assert window[1] % 20 == 0
        assert (
            session[fold.validation[0]] - session[fold.train[1] - 1] == 2
        )  # one session of embargo between
        assert session[fold.test[0]] - session[fold.validation[1] - 1] == 2
        days = set(session[slice(*fold.test)].tolist())
        assert not days & tested
        tested |= days
    assert tested == set(range(11, 31))
    anchored = make_folds(market, SHORT.model_copy(update={"anchored": True}))
    assert all(fold.train[0] == 0 for fold in anchored)
    assert [fold.test for fold in anchored] == [fold.test for fold in folds]
    with pytest.raises(BacktestError, match="too few for a fold"):
        make_folds(market.window(0, 200), SHORT)


@pytest.mark.parametrize("commission", [0.0, 5.0])
def test_stitched_windows_compound_and_their_trades_add_up(commission):
    market = make_market(20 * 31, 4, session_bars=20)
    settings = EnvSettings(cost_bps=10, min_commission_usd=commission)
    parts = [
        simulate(noisy_policy(4), cut_fold(market, fold).split().test, settings)
        for fold in make_folds(market, SHORT)
    ]
    whole = stitch(parts, name="walk-forward")
    assert len(whole.equity) == sum(len(part.equity) for part in parts)
    assert (np.diff(whole.minutes) > 0).all()
    growth = 1.0
    for part in parts[:-1]:
        notional = np.abs(part.shares[-1] * part.mark[-1])
        fee = np.minimum(np.maximum(commission * (notional > 0), 0.001 * notional), notional)
        growth *= (part.equity[-1] - fee.sum()) / part.equity[0]
    growth *= parts[-1].equity[-1] / parts[-1].equity[0]
    assert whole.equity[-1] / whole.equity[0] == pytest.approx(growth, rel=1e-10)
    assert trade_list_profit(whole) == pytest.approx(whole.equity[-1] - whole.equity[0], rel=1e-9)
    # What is carried over is what was left: no return appears between two windows.
    for edge in np.cumsum([len(part.equity) for part in parts])[:-1]:
        for curve in (whole.equity, whole.benchmark):
            assert curve[edge] == pytest.approx(curve[edge - 1], rel=1e-12)
    assert len(np.unique(whole.session)) == 20
    assert whole.metrics["sharpe"] is not None
    # What its positions would cost to sell is in proportion to them.
    parts[-1] = replace(parts[-1], closing_cost_usd=np.arange(4.0))
    expected = np.arange(4.0) * whole.equity[-1] / parts[-1].equity[-1]
    assert stitch(parts).closing_cost_usd == pytest.approx(expected, rel=1e-12)


def test_a_strategy_may_be_ruined_in_the_last_window_alone():
    market = make_market(80, 2, gaps=False)
    rise = torch.ones(80, 1)
    rise[60:] = 100.0
    market = reprice(market, open=market.open * rise, close=market.close * rise)
    settings = EnvSettings(short=True, max_leverage=2)
    sell = lambda obs: torch.full((1, 2), -1.0)  # noqa: E731
    parts = [simulate(sell, market.window(*bars), settings) for bars in ((0, 40), (40, 80))]
    assert parts[1].equity[-1] <= 0
    whole = stitch(parts)
    assert whole.ruined
    assert whole.equity[-1] <= 0
    with pytest.raises(BacktestError, match="test window 1 left no capital"):
        stitch([parts[1], replace(parts[0], minutes=parts[1].minutes + 10**15)])


def test_overlapping_windows_are_refused():
    market = make_market(100, 3)
    result = simulate(noisy_policy(3), market, EnvSettings())
    with pytest.raises(BacktestError, match="overlaps"):
        stitch([result, result])
    with pytest.raises(BacktestError, match="no test window"):
        stitch([])


def by_kind(rows):
    """In the order of the rows, which stand together by kind."""
    return {kind: list(group) for kind, group in groupby(rows, key=lambda row: row.kind)}


def test_rows_are_the_simulations_they_name():
    market = replace(make_market(100, 4), provenance=Provenance(sessions_a_year=365))
    settings = EnvSettings(cost_bps=7)
    policy = noisy_policy(4)
    groups = by_kind(sensitivity(policy, market, settings))
    assert list(groups) == [
        "cost_bps",
        "fill",
        "delay_bars",
        "capital_usd",
        "start_sessions",
        "without",
    ]
    costs = groups["cost_bps"]
    assert [row.setting for row in costs] == ["0", "1", "2", "5", "7", "10", "20", "50"]
    assert [row.setting for row in costs if row.is_chosen] == ["7"]
    for row in costs:
        changed = settings.model_copy(update={"cost_bps": float(row.setting)})
        assert row.sharpe == simulate(policy, market, changed).metrics["sharpe"]
    assert costs[0].cumulative_return > costs[-1].cumulative_return
    later = simulate(policy, market.window(40, 100), settings)
    assert groups["start_sessions"][1].cumulative_return == later.metrics["cumulative_return"]
    assert len(groups["start_sessions"]) == 4
    assert len(groups["without"]) == 4


@pytest.mark.parametrize("owned", [1_000.0, {"S000": 2_000.0, "S002": 500.0}])
def test_with_more_capital_the_first_shares_are_more_in_proportion(owned):
    market = make_market(60, 3, gaps=False, volume=1e9)
    settings = EnvSettings(initial_shares=owned, fractional=True, cost_bps=20.0)
    choices = Choices(costs_bps=(), fills=(), stocks=False)
    rows = by_kind(sensitivity(noisy_policy(3), market, settings, choices=choices))["capital_usd"]
    first, *more = [row.cumulative_return for row in rows]
    assert more == [pytest.approx(first, rel=1e-6)] * 2
    assert first != 0


def test_more_capital_than_the_market_takes_earns_less_of_it():
    market = make_market(60, 3, gaps=False, volume=600.0)
    settings = EnvSettings(cost_bps=0.0, impact_bps=50.0)
    rows = by_kind(
        sensitivity(
            noisy_policy(3), market, settings, choices=Choices(costs_bps=(), fills=(), stocks=False)
        )
    )["capital_usd"]
    assert [row.setting for row in rows] == ["1000000", "10000000", "100000000"]
    assert [row.is_chosen for row in rows] == [True, False, False]
    larger = simulate(
        noisy_policy(3), market, settings.model_copy(update={"initial_cash_usd": 1e8})
    )
    assert rows[-1].sharpe == larger.metrics["sharpe"]
    assert larger.metrics["exposure_max"] < 0.1  # all that the volume takes
    assert larger.metrics["capped_orders"] > 0.8 * larger.metrics["orders"] > 0
    assert larger.metrics["cancelled_usd"] > 1e6


@pytest.mark.parametrize("interval", [1, 7])
def test_a_stock_that_is_removed_is_never_bought(interval):
    market = make_market(100, 4)
    settings = EnvSettings(decision_interval=interval)
    policy = noisy_policy(4)
    rows = simulate_without_each(policy, market, settings)
    for n, row in enumerate(rows):

        def masked(obs, n=n):
            action = policy(obs).clone()
            action[:, n] = 0
            return action

        alone = simulate(masked, market, settings)
        assert row.setting == market.symbols[n]
        assert row.cumulative_return == pytest.approx(
            alone.metrics["cumulative_return"], rel=1e-3, abs=1e-6
        )


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_a_bar_of_delay_moves_every_fill_by_one_bar(interval):
    market = make_market(60, 3, gaps=False)
    settings = EnvSettings(decision_interval=interval, cost_bps=0)
    decisions = []

    def policy(obs):
        decisions.append(obs)
        return torch.full((1, 3), 0.3) if len(decisions) % 2 else torch.zeros(1, 3)

    plain = simulate(policy, market, settings)
    decisions.clear()
    late = simulate_delayed(policy, market, settings)
    expected = sorted(set(plain.trades["fill_bar"] + 1))
    assert sorted(set(late.trades["fill_bar"])) == [bar for bar in expected if bar < 60]


@pytest.mark.slow
def test_a_walk_forwards_rows_are_its_folds_put_together():
    market = make_market(20 * 12, 4, session_bars=20)
    settings = EnvSettings(cost_bps=7)
    windows = [market.window(0, 80), market.window(100, 180)]
    policies = [noisy_policy(4, seed) for seed in (0, 1)]
    groups = by_kind(sensitivity(policies, windows, settings))
    assert list(groups) == ["cost_bps", "fill", "delay_bars", "capital_usd"]
    for row in groups["cost_bps"]:
        changed = settings.model_copy(update={"cost_bps": float(row.setting)})
        parts = [
            simulate(policy, window, changed)
            for policy, window in zip(policies, windows, strict=True)
        ]
        assert row.cumulative_return == stitch(parts).metrics["cumulative_return"]
        assert row.is_chosen == (row.setting == "7")
    returns = [row.cumulative_return for row in groups["cost_bps"]]
    assert returns == sorted(returns, reverse=True)
    late = [
        simulate_delayed(policy, window, settings)
        for policy, window in zip(policies, windows, strict=True)
    ]
    assert groups["delay_bars"][1].sharpe == stitch(late).metrics["sharpe"]


def test_a_fold_that_leaves_nothing_has_rows_without_figures():
    """Sold short before every price rises a hundredfold: below nothing, and no fold can follow."""
    market = make_market(80, 2, gaps=False)
    rise = torch.ones(80, 1)
    rise[20:] = 100.0
    market = reprice(market, open=market.open * rise, close=market.close * rise)
    windows = [market.window(0, 40), market.window(40, 80)]
    settings = EnvSettings(short=True, max_leverage=2)
    sell = lambda obs: torch.full((1, 2), -1.0)  # noqa: E731
    rows = sensitivity([sell, sell], windows, settings, choices=Choices(costs_bps=(0,), fills=()))
    assert [(row.kind, row.setting) for row in rows] == [
        *(("cost_bps", "0"), ("cost_bps", "20"), ("delay_bars", "0"), ("delay_bars", "1")),
        *(("capital_usd", usd) for usd in ("1000000", "10000000", "100000000")),
    ]
    assert {row.cumulative_return for row in rows} == {None}
