"""One stored backtest, one truth: report and app draw the same numbers, and those are the ones
computed by hand."""

import base64
import json
import re

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("streamlit")


from fintrader.backtesting import read_backtest, simulate
from fintrader.envs import EnvSettings
from fintrader.report.html import render_report
from fintrader.report.run_comparison import render_comparison
from fintrader.results import figures
from fintrader.results.figures.returns import intraday_returns, monthly_returns
from fintrader.results.formatting import find_timezone
from tests.app.conftest import Open, open_page  # noqa: F401
from tests.engines import fakes
from tests.engines.policies import noisy_policy
from tests.factories import make_market
from tests.report.test_report import charts_of


def numbers(values):
    """An array as plotly sends it, a list or base64 of its bytes; what is missing is None."""
    if isinstance(values, dict):
        array = np.frombuffer(base64.b64decode(values["bdata"]), dtype=np.dtype(values["dtype"]))
        shape = [int(size) for size in values["shape"].split(",")] if "shape" in values else [-1]
        values = array.reshape(shape).tolist()
    flat = [cell for row in values for cell in (row if isinstance(row, list) else [row])]
    return [None if isinstance(cell, float) and np.isnan(cell) else cell for cell in flat]


def traces(figure):
    """What each trace of a drawn figure shows, by its name (or number): places and values."""
    found = {}
    for k, trace in enumerate(figure["data"]):
        key = "x" if trace.get("orientation") == "h" else "z" if trace["type"] == "heatmap" else "y"
        name = str(trace.get("name") or k)
        found[name] = (numbers(trace["x"]), numbers(trace[key]))
    return found


def sessions(timezone, opening, days, bars, minutes=30):
    starts = [pd.Timestamp(f"{day} {opening}", tz=timezone) for day in days]
    times = [start + pd.Timedelta(minutes=minutes * k) for start in starts for k in range(bars)]
    return pd.DatetimeIndex(times).tz_convert("UTC")


def test_a_gain_of_every_night_stands_in_the_night():
    """1 % every night, nothing by day: 100 bps in `overnight`, 0 in every other slot, whatever the
    season."""
    days = [
        "2020-03-05",
        "2020-03-06",
        "2020-03-09",
        "2020-03-10",
    ]  # New York changes its clocks on the 8th
    times = sessions("America/New_York", "09:30", days, bars=13)
    number = np.repeat(np.arange(4), 13)
    curve = pd.Series(100 * 1.01**number, index=times)
    table = intraday_returns(curve, number, "America/New_York")
    assert list(table.columns[:3]) == ["overnight", "10:00", "10:30"]
    assert table.columns[-1] == "15:30"
    assert list(table.index) == [0, 1, 3, 4]
    assert table["overnight"].tolist()[:2] == pytest.approx(
        [100.0, 100.0]
    )  # Monday's is the weekend
    assert table.loc[4, "overnight"] == pytest.approx(100.0)
    assert np.isnan(table.loc[3, "overnight"])  # before the first session there was no night
    assert np.abs(table.drop(columns="overnight").to_numpy()).max() < 1e-9


def test_a_market_that_never_closes_has_slots_of_its_bars_and_no_night():
    times = pd.date_range("2024-01-01", periods=72, freq="h", tz="UTC")
    curve = pd.Series(100 * 1.01 ** np.arange(72), index=times)
    session = np.repeat([0, 1, 2], 24)
    assert list(intraday_returns(curve, session, "UTC")) == [f"{k:02d}:00" for k in range(24)]
    figure = figures.intraday_figure(curve, session, "UTC", 30)
    assert figure.layout.xaxis.title.text == "slots of 60 minutes, UTC time"


def test_wealth_and_drawdown_share_the_dates_of_one_chart():
    """From 100 to 110, 99 and 121: multiples above, and 10 % below the peak once."""
    days = pd.bdate_range("2024-01-01", periods=4, tz="UTC")
    curves = pd.DataFrame({"own": [100.0, 110.0, 99.0, 121.0], "benchmark": 50.0}, days)
    figure = figures.wealth_figure(curves).to_plotly_json()
    own, rival, below, below_rival = figure["data"]
    assert numbers(own["y"]) == pytest.approx([1.0, 1.1, 0.99, 1.21])
    assert numbers(below["y"]) == pytest.approx([0.0, 0.0, -0.1, 0.0])
    assert numbers(rival["y"]) == [1.0] * 4
    assert numbers(below_rival["y"]) == [0.0] * 4
    assert numbers(own["x"]) == numbers(below["x"])
    assert [trace.get("yaxis", "y") for trace in figure["data"]] == ["y", "y", "y2", "y2"]
    assert figure["layout"]["yaxis2"]["domain"][1] < figure["layout"]["yaxis"]["domain"][0]
    assert figure["layout"]["yaxis2"]["tickformat"] == ".1%"


def test_the_best_line_is_drawn_whatever_its_name():
    days = pd.bdate_range("2024-01-01", periods=3, tz="UTC")
    names = ["ensemble", "best", "ridge", "buy_and_hold", "equal_weight", "benchmark"]
    names += ["momentum", "inverse_volatility", "minimum_variance", "cash", "vol_targeted"]
    curves = pd.DataFrame({name: [100.0, 101.0, 102.0] for name in names}, days)
    curves["vol_targeted"] *= [1.0, 1.1, 1.2]
    returns = curves.pct_change().iloc[1:]
    drawn = [
        figures.equity_figure(curves),
        figures.equity_figure(curves, relative=True),
        figures.drawdown_figure(curves),
        figures.rolling_figure(
            returns, "volatility", main="ensemble", window=2, sessions_a_year=252
        ),
    ]
    for figure in drawn:
        shown = [trace.name for trace in figure.data]
        assert "Vol targeted" in shown
        assert len(shown) == 8
        assert shown == [trace.name for trace in drawn[0].data]


def test_slots_are_means_of_simple_returns_on_the_markets_own_clock():
    """Two Mondays in Tokyo: 09:00 to 10:00 in quarters of an hour, then a lunch break, then
    12:30."""
    quarter = sessions("Asia/Tokyo", "09:00", ["2024-01-15", "2024-01-22"], bars=4, minutes=15)
    noon = sessions("Asia/Tokyo", "12:30", ["2024-01-15", "2024-01-22"], bars=1)
    times = quarter.append(noon).sort_values()
    curve = pd.Series(
        [100, 101, 103.02, 103.02, 103.02, 106.1106, 106.1106, 106.1106, 106.1106, 108.232812],
        times,
    )
    table = intraday_returns(curve, np.repeat([0, 1], 5), "Asia/Tokyo")
    assert list(table.columns) == ["overnight", "09:00", "09:30", "12:30"]
    # overnight: 3 % once. 09:00 holds the bar of 09:15 alone: 1 % and 0. 09:30: 2 % and 0. 12:30: 0
    # and 2 %.
    assert table.loc[0].tolist() == pytest.approx([300, 50, 100, 100])
    half_past = intraday_returns(curve, np.repeat([0, 1], 5), "America/New_York")
    assert list(half_past.index) == [6]  # Sunday evening there: not what anybody in Tokyo means
    assert "19:00" in half_past.columns


def test_months_are_the_markets_own():
    days = pd.DatetimeIndex(["2020-01-30", "2020-01-31", "2020-02-03", "2021-02-01"], tz="UTC")
    table = monthly_returns(pd.Series([0.1, 0.1, -0.5, 0.02], index=days), "UTC")
    assert table.loc[2020, 1] == pytest.approx(0.21)
    assert table.loc[2020, 2] == pytest.approx(-0.5)
    assert table.loc[2021, 2] == pytest.approx(0.02)
    assert np.isnan(table.loc[2021, 1])
    sydney = pd.Series([0.1], index=pd.DatetimeIndex(["2020-01-31 22:00"], tz="UTC"))
    assert monthly_returns(sydney, "Australia/Sydney").loc[2020, 2] == pytest.approx(0.1)


def test_drawdown_is_the_metric_of_its_grain():
    market = make_market(400, 3, session_bars=20)
    result = simulate(noisy_policy(3), market, EnvSettings())
    curve = pd.DataFrame({"a": result.equity}, index=pd.to_datetime(result.minutes, utc=True))
    by_bar = figures.drawdown_figure(curve)
    by_session = figures.drawdown_figure(curve, session=result.session)
    assert min(by_bar.data[0].y) == pytest.approx(result.metrics["minute_max_drawdown"])
    assert min(by_session.data[0].y) == pytest.approx(result.metrics["max_drawdown"])


def test_deepest_drawdowns_by_hand():
    days = pd.date_range("2024-01-01", periods=8, tz="UTC")
    table = figures.deepest_drawdowns(pd.Series([100.0, 90, 95, 100, 110, 55, 66, 60], index=days))
    assert table["Depth"].tolist() == pytest.approx([-0.5, -0.1])
    assert table["Peak"].tolist() == [days[4], days[0]]
    assert table["Trough"].tolist() == [days[5], days[1]]
    assert pd.isna(table["Recovered"].iloc[0])
    assert table["Recovered"].iloc[1] == days[3]
    assert table["Sessions"].tolist() == [3, 3]


@pytest.mark.parametrize("name", ["", "Mars/Phobos", "../../etc/passwd", "/etc/passwd", "a\0"])
def test_the_time_zone_is_what_the_data_says(name):
    assert find_timezone("Asia/Tokyo") == "Asia/Tokyo"
    assert find_timezone(name) == "UTC"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Two runs on a market in Tokyo, written by the writers of real ones."""
    root = tmp_path_factory.mktemp("tokyo")
    tensors = fakes.save_market(
        root / "data" / "tensors", bars=2700, timezone="Asia/Tokyo", hours=-14
    )
    for seed, name in enumerate(("demo", "second")):
        fakes.make_run(root / "runs", name, market=tensors, seed=seed, checked=True)
    return root


@pytest.fixture(scope="module")
def stored(site):
    return read_backtest(site / "runs" / "demo" / "backtest")


def of_app(test):
    """Every chart of a page of the app by the name of its element, as it goes to the browser."""
    assert not test.exception
    charts = test.get("plotly_chart")
    return {
        re.sub("^.*?-(?=[a-z]+_)", "", chart.proto.id): json.loads(chart.proto.spec)
        for chart in charts
    }


BOTH = {
    "curves": "equity_equity equity_drawdown drawdowns_drawdown-bars",
    "risk": "rolling_rolling rolling_volatility rolling_beta",
    "decisions": "decisions_importance",
    "calendar": "returns_monthly returns_intraday returns_distribution",
    "weights": "trading_weights trading_turnover trading_exposure trading_paid capacity_capital",
    "profit": "profit_pnl",
    "honesty": "search_sharpe search_overfitting luck_alpha luck_betting luck_random"
    " sensitivity_costs",
    "metrics": "baselines_excess",
}
"""Charts of the report by the part of the app's page that draws them."""
ALONE = {"without"} | {f"trades-{k}" for k in range(9)}
"""Charts of the report that the app draws as candles of the market file."""


@pytest.mark.slow
def test_report_and_app_draw_the_same_numbers(site, stored, open_page):
    report = charts_of(render_report(stored))
    beside = ",".join(name for name in stored.strategies if name != "ensemble")
    app = {}
    for part, elements in BOTH.items():
        page = "honesty" if part == "honesty" else "backtest"
        drawn = of_app(open_page(site, page, run="demo", part=part, compared=beside))
        app |= {element.partition("_")[2]: drawn[element] for element in elements.split()}
    assert set(report) - ALONE == set(app)
    for key, chart in app.items():
        ours = traces(report[key])
        assert ours == traces(chart), key
        assert any(value is not None for _, values in ours.values() for value in values), key
    # a backtest is told in the time of its market
    assert stored.context.timezone == "Asia/Tokyo"
    for drawn in (report["intraday"], app["intraday"]):
        assert drawn["data"][0]["x"] == [
            "overnight",
            "09:30",
        ]  # 00:30 UTC, and a first bar of its own
        assert "Asia/Tokyo" in drawn["layout"]["xaxis"]["title"]["text"]


@pytest.mark.slow
def test_comparison_and_app_draw_the_same_numbers(site, open_page):
    lines = {name: f"{name} / ensemble" for name in ("demo", "second")}
    page = render_comparison(
        {lines[name]: read_backtest(site / "runs" / name / "backtest") for name in lines}
    )
    report = charts_of(page)
    app = of_app(open_page(site, "compare", runs="demo,second", lines=",".join(lines.values())))
    assert traces(report["growth"]) == traces(app["compare_equity"])
    assert traces(report["drawdown"]) == traces(app["compare_drawdown"])


@pytest.mark.parametrize("action", ["target", "limit"])
def test_a_fill_stands_on_the_candle_that_holds_its_price(action):
    """Limit orders fill within a bar and are known at its close, when the next one has begun."""
    market = make_market(120, 2, 2, seed=5, volume=1e9)
    chosen = EnvSettings(action=action, limit_offset_bps=30)
    draws = np.random.default_rng(1)
    width = 2 * market.num_assets if action == "limit" else market.num_assets

    def policy(obs):
        return torch.from_numpy(draws.uniform(-1, 1, (len(obs), width))).float()

    trades = simulate(policy, market, chosen).trades
    symbol = market.symbols[0]
    bars = market[symbol].query("tradable")
    placed = trades.assign(bar_start=market[symbol].index[trades["fill_bar"]])
    figure = figures.candles_figure(bars, placed, symbol=symbol, timezone=str(bars.index.tz))
    candles, *marks = figure.data
    place = {label: k for k, label in enumerate(candles.x)}
    at = [place[label] for side in marks for label in side.x]
    prices = np.concatenate([side.y for side in marks])
    assert len(at) > 20
    low, high = (getattr(candles, name)[at] for name in ("low", "high"))
    assert ((low <= prices * (1 + 1e-6)) & (prices <= high * (1 + 1e-6))).all()
