from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fintrader.backtesting import BacktestResult, simulate, simulate_baselines
from fintrader.backtesting.analysis import analyse
from fintrader.backtesting.attribution import attribute, symbol_returns
from fintrader.backtesting.execution import NO_VOLUME, measure_execution
from fintrader.backtesting.factors import FACTORS, LOOKBACK, factor_returns, fit_factors
from fintrader.backtesting.result import measured_against, window_fields
from fintrader.backtesting.walk_forward import stitch
from fintrader.envs import EnvSettings
from fintrader.results.backtest_files import TRADE_COLUMNS, empty_trades
from tests.engines.policies import noisy_policy
from tests.factories import make_market, market_of


def held(market, name, shares, equity):
    """A result of these holdings and this wealth, without costs and trades."""
    nothing = np.zeros(len(equity))
    return BacktestResult(
        name=name,
        equity=equity,
        shares=shares,
        mark=market.close.numpy().astype(np.float64),
        costs_usd=nothing,
        turnover_usd=nothing,
        income_usd=nothing,
        trades=empty_trades(),
        **window_fields(market),
    )


def test_attribution_by_hand():
    """A rises 10 % while all is held in A, falls 10 % while all is in B, which stands still. The
    portfolio holds A."""
    market = market_of(np.array([[100.0, 50], [110, 50], [99, 50]]), 3)
    ours = held(
        market, "ensemble", np.array([[10.0, 0], [0, 22], [0, 22]]), np.array([1000.0, 1100, 1100])
    )
    theirs = held(
        market, "equal_weight", np.array([[1.0, 0], [1, 0], [1, 0]]), np.array([100.0, 110, 99])
    )
    found = attribute(ours, theirs, symbol_returns([market]))
    # Mean weights (½, ½) and (1, 0): 1000·(−½)·10 % and 1100·(−½)·(−10 %); timing has the rest of
    # 100 − (−10).
    assert found.pnl_usd == pytest.approx(100)
    assert found.portfolio_pnl_usd == pytest.approx(1000 * 0.1 - 1100 * 0.1)
    assert found.active_usd == pytest.approx(110)
    assert found.selection_usd == pytest.approx(-50 + 55, abs=1e-3)
    assert found.timing_usd == pytest.approx(105, abs=1e-3)
    assert (found.fills_usd, found.costs_usd) == pytest.approx((0.0, 0.0), abs=1e-3)
    assert [row.symbol for row in found.symbols] == ["S000", "S001"]
    assert found.symbols[0].portfolio_weight == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("events", [False, True])
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


def test_execution_by_hand():
    market = market_of(
        np.array([[100.0, 50], [101, 50], [102, 50]]), 3, volume=np.full((3, 2), 1000.0)
    )
    rows = [
        # decided at the close of bar 0, filled in bar 1: 1 % above what was seen, half of the
        # volume
        (0, 1, "S000", 500.0, 101.0, 10.0, "order"),
        # sold 2 % below what was seen, 0.1 % of the volume
        (1, 2, "S001", -1.0, 49.0, 0.49, "order"),
        (1, 2, "S001", -1.0, 49.0, 0.49, "forced"),
    ]
    frame = pd.DataFrame(
        rows,
        columns=["decision_bar", "fill_bar", "symbol", "shares", "price_usd", "cost_usd", "kind"],
    )
    frame["notional_usd"] = (frame["shares"] * frame["price_usd"]).abs()
    frame["decision_time"] = frame["fill_time"] = pd.Timestamp("2020-01-02", tz="UTC")
    result = held(market, "ensemble", np.zeros((3, 2)), np.full(3, 1000.0))
    found = measure_execution(
        replace(result, trades=frame[list(TRADE_COLUMNS)].astype(TRADE_COLUMNS)), [market]
    )
    small, large = found.groups
    assert (small.participation, large.participation) == ("up to 0.1 %", "above 10 %")
    assert (small.fills, small.slippage_bps) == (1, pytest.approx(200))
    assert (large.mean_participation, large.slippage_bps) == (
        pytest.approx(0.5),
        pytest.approx(100),
    )
    assert large.cost_bps == pytest.approx(1e4 * 10 / 50500)
    assert found.slippage_usd == pytest.approx(505 + 0.98)
    assert found.total.fills == 2


@pytest.mark.parametrize("events", [False, True])
def test_execution_is_what_a_loop_over_fills_says(events):
    market = make_market(200, 4, session_bars=20, volume=3e4, events=events)
    result = simulate(noisy_policy(4), market, EnvSettings(cost_bps=5), name="ensemble")
    found = measure_execution(result, [market])
    adjusted = market.adjusted_close.numpy()
    slipped = 0.0
    largest = 0.0
    without = 0
    for fill in result.trades[result.trades["kind"] == "order"].itertuples():
        k = int(fill.symbol[1:])
        seen = (
            adjusted[fill.decision_bar, k]
            * float(market.close[fill.fill_bar, k])
            / adjusted[fill.fill_bar, k]
        )
        slipped += fill.shares * (fill.price_usd - seen) / seen * fill.price_usd
        volume = float(market.volume[fill.fill_bar, k])
        without += volume == 0
        largest = max(largest, abs(fill.shares) / volume) if volume else largest
    assert found.slippage_usd == pytest.approx(slipped, rel=1e-4, abs=0.01)
    assert found.total.most_participation == pytest.approx(largest)
    assert largest <= 0.1 + 1e-6
    assert sum(row.fills for row in found.groups) == found.total.fills
    assert without == sum(row.fills for row in found.groups if row.participation == NO_VOLUME)
    assert sum(row.notional_usd for row in found.groups) == pytest.approx(found.total.notional_usd)


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
    changed = replace(market, close=later)
    assert factor_returns([market])[:28] == pytest.approx(
        factor_returns([changed])[:28], nan_ok=True
    )


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
    assert fit_factors(np.zeros(120), factors) is None
