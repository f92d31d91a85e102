import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fintrader.backtesting import simulate, simulate_baselines
from fintrader.backtesting.walk_forward import stitch
from fintrader.backtesting.writer import tabulate
from fintrader.envs import EnvSettings
from fintrader.results import periods
from fintrader.results.allocation import (
    OTHER,
    active_shares,
    at_other_capital,
    pnl_by_month,
    pnl_table,
    summarise_trips,
    symbol_pnl,
)
from fintrader.results.analysis import Variation
from fintrader.results.history import round_trips
from tests.engines.policies import noisy_policy
from tests.factories import examples, make_market
from tests.oracles.round_trips import list_round_trips


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("short", [False, True])
def test_profit_by_symbol_is_what_a_ledger_by_symbol_says(events, short):
    market = make_market(300, 4, session_bars=20, events=events)
    settings = EnvSettings(
        cost_bps=7, short=short, max_leverage=1.5 if short else 1.0, borrow_bps_per_year=300
    )
    result = simulate(noisy_policy(4), market, settings, name="ensemble")
    stored = tabulate({"ensemble": result})
    profit = symbol_pnl(stored, "ensemble")
    assert profit.shape[0] == 15
    assert profit.to_numpy().sum() == pytest.approx(
        result.equity[-1] - result.equity[0], abs=0.005
    )  # to the cent
    wealth = result.equity[[0, *range(19, 300, 20)]]
    assert profit.sum(axis=1).to_numpy() == pytest.approx(np.diff(wealth), abs=0.005)
    for k, symbol in enumerate(
        result.symbols
    ):  # cash of each symbol, fill by fill, and what is left of it
        cash = sum(
            -fill.shares * fill.price_usd - fill.cost_usd
            for fill in result.trades.itertuples()
            if fill.symbol == symbol and fill.kind != "split"
        )
        expected = cash + result.shares[-1, k] * result.mark[-1, k]
        assert profit.get(symbol, pd.Series([0.0])).sum() == pytest.approx(expected, abs=0.005)
    interest = result.costs_usd.sum() - result.trades["cost_usd"].sum()
    assert profit[OTHER].sum() == pytest.approx(result.income_usd.sum() - interest, abs=0.005)
    assert (abs(profit[OTHER].sum()) > 0.01) == (events or short)
    table = pnl_table(profit, stored.trades)
    assert table["cost_usd"].sum() == pytest.approx(result.trades["cost_usd"].sum())
    assert table["fills"].sum() == (result.trades["kind"] != "split").sum()
    assert table["profit_usd"].is_monotonic_decreasing


def test_profit_by_symbol_of_a_walk_forward_and_of_nothing():
    market = make_market(400, 4, session_bars=20, gaps=False)
    settings = EnvSettings(cost_bps=5)
    windows = [market.window(0, 200), market.window(200, 400)]
    whole = stitch([simulate(noisy_policy(4), one, settings, name="ensemble") for one in windows])
    profit = symbol_pnl(tabulate({"ensemble": whole}), "ensemble")
    assert profit.to_numpy().sum() == pytest.approx(whole.equity[-1] - whole.equity[0], abs=0.005)
    assert profit[OTHER].abs().max() < 0.005
    idle = symbol_pnl(
        tabulate({"cash": simulate_baselines(market, settings, every=True)["cash"]}), "cash"
    )
    assert list(idle.columns) == [OTHER]
    assert idle.to_numpy().sum() == 0


def test_profit_by_month_by_hand():
    """A session of New York that ends after midnight UTC belongs to the month before."""
    ends = pd.DatetimeIndex(["2024-01-31 15:00", "2024-02-01 00:30", "2024-02-02 15:00"], tz="UTC")
    profit = pd.DataFrame(
        {"A": [1.0, 2.0, -5.0], "B": [4.0, -9.0, 6.0], OTHER: [0.5, 0.0, 0.25]}, index=ends
    )
    table = pnl_by_month(profit, "America/New_York")
    assert table.to_dict("index") == {
        "2024-01": {
            "profit_usd": -1.5,
            "best": "A",
            "best_usd": 3.0,
            "worst": "B",
            "worst_usd": -5.0,
        },
        "2024-02": {
            "profit_usd": 1.25,
            "best": "B",
            "best_usd": 6.0,
            "worst": "A",
            "worst_usd": -5.0,
        },
    }
    assert pnl_by_month(profit, "UTC")["profit_usd"].tolist() == [5.5, -5.75]


def trade(minute, symbol, shares, price, cost):
    time = pd.Timestamp("2020-01-02 14:30", tz="UTC") + pd.Timedelta(minutes=minute)
    what = {"fill_time": time, "symbol": symbol, "kind": "order"}
    return {**what, "shares": shares, "price_usd": price, "cost_usd": cost}


def test_round_trips_match_the_oldest_lots_first():
    """Buy 10 at 100 and 10 at 110, sell 15 at 120: ten lots earn 20 each, five earn 10 each, all
    less their costs."""
    bought = [trade(0, "A", 10, 100, 1.0), trade(5, "A", 10, 110, 2.0)]
    sold = trade(9, "A", -15, 120, 3.0)
    # A short position, covered at a loss.
    short = [trade(9, "B", -4, 50, 0.0), trade(12, "B", 4, 55, 0.0)]
    trades = pd.DataFrame([*bought, sold, *short])
    trips = round_trips(trades)
    assert trips["profit_usd"].tolist() == pytest.approx([200 - 1 - 2, 50 - 1 - 1, -20])
    assert trips["minutes"].tolist() == [9, 4, 3]
    assert trips["shares"].tolist() == [10, 5, -4]
    assert (trips["closed"] - trips["opened"]).dt.total_seconds().tolist() == [540, 240, 180]
    table = summarise_trips(trades)
    assert list(table.index) == ["All", "With a gain", "Without"]
    assert table["lots"].tolist() == [3, 2, 1]
    assert table["sum"].tolist() == pytest.approx([225, 245, -20])
    assert table.loc["All"].tolist() == pytest.approx([3, 225, 75, 48, 197, -20, 16 / 3])
    assert summarise_trips(trades[:3]).loc["Without"].isna().sum() == 5
    assert summarise_trips(trades[:2]).empty


@settings(max_examples=examples(60))
@given(
    fills=st.lists(
        st.tuples(
            st.sampled_from("AB"),
            st.sampled_from([-7, -3, -1, 1, 2, 5]),
            st.sampled_from(["order", "order", "double", "end", "leave"]),
        ),
        max_size=40,
    )
)
def test_round_trips_are_those_of_each_share(fills):
    """Long, short, turned from one to the other, and split."""
    held = {"A": 0, "B": 0}
    rows = []
    for minute, (symbol, shares, kind) in enumerate(fills):
        row = trade(minute, symbol, shares, 20.0 + minute % 7, 0.25 * abs(shares))
        if kind != "order":
            if not held[symbol]:
                continue
            row["shares"] = {"double": 1, "end": -1, "leave": 0}[kind] * held[symbol]
            row["kind"] = "split"
        held[symbol] += row["shares"]
        rows.append(row)
    if not rows:
        return
    trades = pd.DataFrame(rows)
    found = round_trips(trades)
    times = trades["fill_time"]
    expected = list_round_trips(trades)
    assert list(found["symbol"]) == [row[0] for row in expected]
    assert list(found["opened"]) == [times[row[1]] for row in expected]
    assert list(found["closed"]) == [times[row[2]] for row in expected]
    assert found["shares"].to_numpy(float) == pytest.approx([row[3] for row in expected])
    assert found["profit_usd"].to_numpy(float) == pytest.approx([row[4] for row in expected])


def test_active_share_by_hand():
    market = make_market(60, 4, session_bars=20, gaps=False)
    settings = EnvSettings(cost_bps=5)
    baselines = simulate_baselines(market, settings, every=True)
    stored = tabulate({"ensemble": simulate(noisy_policy(4), market, settings), **baselines})
    found = active_shares(stored, "ensemble", "equal_weight")
    own = stored.weights("ensemble")
    theirs = stored.weights("equal_weight")
    for k in range(3):
        gaps = [abs(own.get(s, theirs[s] * 0).iloc[k] - theirs[s].iloc[k]) for s in theirs.columns]
        cash = abs(own.iloc[k].sum() - theirs.iloc[k].sum())
        assert found["active_share"].iloc[k] == pytest.approx((sum(gaps) + cash) / 2)
        assert found["effective"].iloc[k] == pytest.approx(
            own.iloc[k].sum() ** 2 / (own.iloc[k] ** 2).sum()
        )
    assert active_shares(stored, "equal_weight", "equal_weight")["active_share"].max() == 0
    against_cash = active_shares(stored, "equal_weight", None)
    assert against_cash["active_share"].to_numpy() == pytest.approx(
        against_cash["invested"].to_numpy()
    )
    assert against_cash["effective"].to_numpy() == pytest.approx([4, 4, 4], rel=0.05)
    assert active_shares(stored, "cash", "cash")["effective"].tolist() == [0, 0, 0]


def test_capacity_rows_are_in_order():
    settings = (("capital_usd", "10000000"), ("fill", "close"), ("capital_usd", "1e6"))
    rows = [Variation(*setting, False, 0.1, 1.0, -0.1) for setting in settings]
    assert [row.setting for row in at_other_capital(rows)] == ["1e6", "10000000"]


def daily(sessions=120):
    rng = np.random.default_rng(1)
    days = pd.date_range("2023-11-20 20:59", periods=sessions, freq="B", tz="UTC")
    index = rng.normal(0, np.where(np.arange(sessions) < sessions // 2, 0.002, 0.02))
    return pd.DataFrame({"ensemble": 0.001 + 0.5 * index, "benchmark": index}, index=days)


def test_years_and_months_by_hand():
    days = pd.DatetimeIndex(["2019-12-31", "2020-01-02", "2020-01-31", "2020-02-03"], tz="UTC")
    frame = pd.DataFrame({"a": [0.1, 0.1, 0.1, -0.5]}, index=days)
    months = periods.find_months(days, "UTC")
    table = periods.compound(frame, months)
    assert table.index.tolist() == ["2019-12", "2020-01", "2020-02"]
    assert table["a"].tolist() == pytest.approx([0.1, 0.21, -0.5])
    assert periods.compound(frame, months.str[:4])["sessions"].tolist() == [1, 3]
    night = pd.DatetimeIndex(["2019-12-31 22:00"], tz="UTC")
    assert periods.find_months(night, "Australia/Sydney").tolist() == ["2020-01"]


def test_stress_days_are_the_worst_of_the_index():
    frame = daily()
    found = periods.stress_days(frame, "benchmark")
    assert found["benchmark"].tolist() == sorted(frame["benchmark"])[: periods.STRESS_DAYS]
    assert found["ensemble"].tolist() == pytest.approx(
        [0.001 + 0.5 * value for value in found["benchmark"]]
    )
    assert periods.stress_days(frame.abs(), "benchmark").empty


def test_regimes_are_what_loops_say():
    frame = daily()
    table = periods.regime_table(frame, "benchmark", "ensemble")
    index = frame["benchmark"].to_numpy()
    ours = frame["ensemble"].to_numpy()
    days = range(periods.LOOKBACK, 120)
    spread = {s: np.std(index[s - periods.LOOKBACK : s], ddof=1) for s in days}
    bounds = np.quantile(list(spread.values()), [1 / 3, 2 / 3])
    volatile = [s for s in days if spread[s] > bounds[1]]
    assert table.loc["volatile third", "sessions"] == len(volatile)
    assert table.loc["volatile third", "strategy"] == pytest.approx(ours[volatile].mean())
    fallen = [s for s in days if np.prod(1 + index[s - periods.LOOKBACK : s]) <= 1]
    assert table.loc["index has fallen", "sessions"] == len(fallen)
    assert table.loc["index has fallen", "index"] == pytest.approx(index[fallen].mean())
    assert table["sessions"].iloc[:3].sum() == table["sessions"].iloc[3:].sum() == 100
    assert table["beta"].to_numpy() == pytest.approx([0.5] * 5)
    assert periods.regime_table(daily(59), "benchmark", "ensemble").empty


def test_a_session_moves_no_regime_of_its_own_or_of_an_earlier_one():
    frame = daily()
    changed = frame.copy()
    changed.iloc[100:, 1] = -0.3
    before, after = (
        periods.regimes(one, "benchmark")["index has risen"] for one in (frame, changed)
    )
    assert before.iloc[:101].tolist() == after.iloc[:101].tolist()
