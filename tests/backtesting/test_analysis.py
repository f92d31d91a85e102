from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fintrader.backtesting import simulate, simulate_baselines
from fintrader.backtesting.analysis import analyse
from fintrader.backtesting.attribution import attribute, symbol_returns
from fintrader.backtesting.execution import CLASSES, NO_VOLUME, measure_execution
from fintrader.backtesting.factors import FACTORS, LOOKBACK, factor_returns, fit_factors
from fintrader.backtesting.result import measured_against
from fintrader.backtesting.walk_forward import stitch
from fintrader.envs import EnvSettings
from tests.engines.policies import noisy_policy
from tests.factories import make_market, reprice
from tests.quick import slow_but


@pytest.mark.parametrize("events", slow_but(1, every=[False, True]))
def test_attribution_is_what_loops_over_bars_and_fills_say(events):
    market = make_market(300, 4, session_bars=20, events=events)
    settings = EnvSettings(cost_bps=7, fractional=True)
    ours = simulate(noisy_policy(4), market, settings, name="ensemble")
    theirs = simulate_baselines(market, settings)["equal_weight"]
    found = attribute(ours, theirs, symbol_returns([market]))
    parts = found.selection_usd + found.timing_usd + found.fills_usd + found.costs_usd
    assert parts == pytest.approx(found.active_usd, abs=0.005)  # to the cent
    assert sum(row.selection_usd + row.timing_usd for row in found.symbols) == pytest.approx(
        found.selection_usd + found.timing_usd, abs=0.005
    )
    returns = symbol_returns([market])
    selection = timing = fills = costs = 0.0
    mean = {
        who.name: np.mean([who.weights(slice(t, t + 1))[0] for t in range(299)], axis=0)
        for who in (ours, theirs)
    }
    for t in range(1, 300):
        for who, sign in ((ours, 1.0), (theirs, -1.0)):
            capital = ours.equity[t - 1]
            before = who.equity[t - 1]
            weight = who.weights(slice(t - 1, t))[0]
            for k in range(4):
                selection += sign * capital * mean[who.name][k] * returns[t, k]
                timing += sign * capital * (weight[k] - mean[who.name][k]) * returns[t, k]
            costs -= sign * capital * who.costs_usd[t] / before
            for fill in who.trades[who.trades["fill_bar"] == t].itertuples():
                if fill.kind != "split":
                    made = fill.shares * (who.mark[t, int(fill.symbol[1:])] - fill.price_usd)
                    fills += sign * capital * made / before
    assert found.selection_usd == pytest.approx(selection, abs=0.01)
    assert found.timing_usd == pytest.approx(timing, abs=0.01)
    assert found.costs_usd == pytest.approx(costs, abs=0.01)
    # Where dividends are re-invested at the close before, as `r` has them, is worth a few dollars
    # of a million.
    assert found.fills_usd == pytest.approx(fills, abs=300.0 if events else 5.0)


def test_a_walk_forward_is_attributed_as_a_whole():
    market = make_market(400, 4, session_bars=20, gaps=False)
    settings = EnvSettings(cost_bps=5)
    windows = [market.window(0, 200), market.window(200, 400)]
    own = stitch([simulate(noisy_policy(4), one, settings, name="ensemble") for one in windows])
    rival = stitch(
        [simulate_baselines(one, settings)["equal_weight"] for one in windows], name="equal_weight"
    )
    results = measured_against({"ensemble": own, "equal_weight": rival}, rival)
    found = analyse(results, windows)
    split = found.attribution
    parts = split.selection_usd + split.timing_usd + split.fills_usd + split.costs_usd
    assert split.portfolio == "equal_weight"
    assert parts == pytest.approx(
        own.equity[-1] - own.equity[0] - split.portfolio_pnl_usd, abs=0.005
    )
    assert found.execution.total.fills == (own.trades["kind"] == "order").sum()
    assert analyse(results, market.window(0, 200)) is None  # another window's market


@pytest.mark.parametrize("events", [False, True])
def test_execution_is_what_a_loop_over_fills_says(events):
    market = make_market(200, 4, session_bars=20, volume=3e4, events=events)
    result = simulate(noisy_policy(4), market, EnvSettings(cost_bps=5), name="ensemble")
    found = measure_execution(result, [market])
    adjusted = market.adjusted_close.numpy()
    slipped = 0.0
    largest = 0.0
    fills = dict.fromkeys([*CLASSES.values(), NO_VOLUME], 0)
    orders = result.trades[result.trades["kind"] == "order"]
    for fill in orders.itertuples():
        k = int(fill.symbol[1:])
        seen = (
            adjusted[fill.decision_bar, k]
            * float(market.close[fill.fill_bar, k])
            / adjusted[fill.fill_bar, k]
        )
        slipped += fill.shares * (fill.price_usd - seen) / seen * fill.price_usd
        volume = float(market.volume[fill.fill_bar, k])
        share = abs(fill.shares) / volume if volume else np.nan
        fills[next((name for edge, name in CLASSES.items() if share <= edge), NO_VOLUME)] += 1
        largest = max(largest, np.nan_to_num(share))
    assert found.slippage_usd == pytest.approx(slipped, rel=1e-4, abs=0.01)
    assert found.total.most_participation == pytest.approx(largest)
    assert largest <= 0.1 + 1e-6
    assert sum(row.fills for row in found.groups) == found.total.fills
    assert {row.participation: row.fills for row in found.groups} == {
        name: number for name, number in fills.items() if number
    }
    assert len(found.groups) > 2
    assert found.cost_usd == pytest.approx(orders["cost_usd"].sum())
    assert found.total.cost_bps == pytest.approx(1e4 * found.cost_usd / found.total.notional_usd)
    assert sum(row.notional_usd for row in found.groups) == pytest.approx(found.total.notional_usd)


def test_a_fill_at_the_limit_is_not_above_it():
    market = make_market(200, 4, session_bars=20, volume=3e3)
    result = simulate(noisy_policy(4), market, EnvSettings(cost_bps=5), name="ensemble")
    shares = result.trades["shares"] * (1 + 1e-12)
    rounded = replace(result, trades=result.trades.assign(shares=shares))
    names = [group.participation for group in measure_execution(rounded, [market]).groups]
    assert "5 to 10 %" in names
    assert "above 10 %" not in names


def test_factors_are_what_sorting_says():
    market = make_market(20 * 45, 9, session_bars=20, gaps=False)
    table = factor_returns([market])
    assert table.shape == (45, len(FACTORS))
    assert np.isnan(table[:LOOKBACK, 1:]).all()
    closes = (
        pd.DataFrame(market.close.numpy().astype(float))
        .iloc[[0, *range(19, 900, 20)]]
        .reset_index(drop=True)
    )
    returns = closes.pct_change().iloc[1:].reset_index(drop=True)
    assert table[:, 0] == pytest.approx(returns.mean(axis=1).to_numpy())
    for day in (LOOKBACK, 33, 44):
        month = closes.iloc[day] / closes.iloc[day - LOOKBACK] - 1
        week = closes.iloc[day] / closes.iloc[day - 5] - 1
        spread = returns.iloc[day - LOOKBACK : day].std()
        for column, score in ((1, month), (2, -week), (3, spread)):
            ranked = score.sort_values().index
            expected = returns.loc[day, ranked[-3:]].mean() - returns.loc[day, ranked[:3]].mean()
            assert table[day, column] == pytest.approx(expected), (day, column)


def test_the_future_moves_no_factor_rank():
    market = make_market(20 * 30, 9, session_bars=20, gaps=False)
    later = market.close.clone()
    later[560:] = later[560:].flip(1)
    changed = reprice(market, close=later)
    assert factor_returns([market])[:28] == pytest.approx(
        factor_returns([changed])[:28], nan_ok=True
    )


@pytest.mark.filterwarnings("error")
def test_betas_are_those_of_a_library():
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(3)
    factors = rng.normal(0, 0.01, (120, 3))
    factors[:LOOKBACK, 1:] = np.nan
    daily = (
        0.0002
        + 0.8 * factors[:, 0]
        - 0.3 * np.nan_to_num(factors[:, 1])
        + rng.normal(0, 0.002, 120)
    )
    found = fit_factors(daily, factors)
    model = sm.OLS(daily[LOOKBACK:], sm.add_constant(factors[LOOKBACK:]))
    fitted = model.fit(cov_type="HAC", cov_kwds={"maxlags": 4, "use_correction": False})
    assert [row.beta for row in found.betas] == pytest.approx(fitted.params[1:])
    assert [row.t for row in found.betas] == pytest.approx(fitted.tvalues[1:])
    assert found.alpha == pytest.approx(252 * fitted.params[0])
    assert found.alpha_t == pytest.approx(fitted.tvalues[0])
    assert found.r_squared == pytest.approx(fitted.rsquared)
    assert [row.factor for row in found.betas] == ["market", "momentum", "reversal"]
    assert fit_factors(daily[:29], factors[:29, :1]) is None
    assert fit_factors(daily[:14], factors[:14, :1]) is None
    assert fit_factors(daily[:14], np.full((14, 1), np.nan)) is None
    assert fit_factors(np.zeros(120), factors) is None
