"""One clock a page."""

import json
import re

import pandas as pd
import pytest

from fintrader.results.allocation import symbol_pnl
from fintrader.results.backtest_files import read_backtest
from tests.app.conftest import healthy, said, table_with
from tests.quick import mostly_slow

ZONE = "America/New_York"
OPENING = {"market": "09:30", "utc": "14:30"}  # of the market of these tests, in winter


def charts(test):
    """Everything that the charts of a page hold, as JSON."""
    return "\n".join(chart.proto.spec for chart in test.get("plotly_chart"))


@pytest.mark.parametrize("clock", mostly_slow("market", every=["market", "utc"]))
def test_the_backtest_is_on_one_clock(open_page, template, clock):
    ends = {"market": "EST", "utc": "UTC"}
    for part in ("curves", "trades", "profit", "calendar", "decisions"):
        test = open_page(template, "backtest", run="demo", part=part, clock=clock)
        healthy(test)
        (switch,) = [one for one in test.get("button_group") if one.label == "Clock"]
        assert switch.value == clock
        drawn = charts(test)
        stamped = set(re.findall(r"\d\d:\d\d (EST|EDT|UTC)", drawn))
        assert stamped <= {ends[clock]}, part
        if part in ("curves", "trades"):
            assert stamped, part
        times = [
            c
            for t in test.dataframe
            # A decision is dated by its bar's close, which may lie in the next hour.
            for c in (t.value[n] for n in t.value if n != "decision_time")
            if str(c.dtype).startswith("datetime")
        ]
        assert bool(times) == (part in ("trades", "profit", "decisions")), part
        for column in times:
            assert set(column.dt.strftime("%H")) == {OPENING[clock][:2]}, part
    test = open_page(template, "backtest", run="demo", part="trades", clock=clock)
    title = {"market": f"Filled ({ZONE})", "utc": "Filled (UTC)"}[clock]
    assert title in "".join(str(frame.proto.columns) for frame in test.dataframe)


def test_the_clock_is_in_the_address_and_the_market_page_follows_it(open_page, template):
    test = open_page(template, "backtest", run="demo")
    (switch,) = [one for one in test.get("button_group") if one.label == "Clock"]
    assert [option.content for option in switch.proto.options] == ["New York time", "UTC"]
    switch.set_value("utc").run()
    assert test.query_params["clock"] == "utc"
    test.switch_page("views/market.py").run()
    for view in ("bars", "features"):
        for clock, opening in OPENING.items():
            page = open_page(template, "market", run="demo", view=view, clock=clock)
            healthy(page)
            assert opening in charts(page)
            assert OPENING["utc" if clock == "market" else "market"] not in charts(page)
    assert OPENING["utc"] in charts(test)
    assert test.query_params["clock"] == "utc"
    test.switch_page("views/backtest.py").run()
    assert "Sessions are named by the market" in said(test)
    assert test.query_params["run"] == "demo"


def test_a_market_in_utc_has_no_switch(open_page, site):
    path = site / "runs" / "demo" / "backtest" / "context.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"timezone": "UTC"}))
    test = open_page(site, "backtest", run="demo")
    healthy(test)
    assert not [one for one in test.get("button_group") if one.label == "Clock"]
    assert "Times are UTC, the market's own" in said(test)


def test_closed_lots_are_listed_newest_first(open_page, template):
    metrics = read_backtest(template / "runs" / "demo" / "backtest").metrics["ensemble"]
    test = open_page(template, "backtest", run="demo", part="profit")
    lots = table_with(test, "opened")
    assert len(lots) == metrics["round_trips"]
    trips = table_with(test, "Median").set_index("Lots").loc["All"]
    cents = 0.5 + 0.01 * len(lots)
    assert lots["profit_usd"].sum() == pytest.approx(trips["Profit"], abs=cents)
    assert (lots["opened"] < lots["closed"]).all()
    assert lots["closed"].is_monotonic_decreasing


def test_a_backtest_on_another_clock_is_the_same_backtest(template):
    stored = read_backtest(template / "runs" / "demo" / "backtest")
    local = stored.on_clock(ZONE)
    assert (stored.timezone, local.timezone) == ("UTC", ZONE)
    assert str(local.minutes.tz) == str(local.trades["fill_time"].dt.tz) == ZONE
    for read in (
        lambda s: s.curve(),
        lambda s: s.daily_returns(),
        lambda s: s.weights("ensemble"),
        lambda s: symbol_pnl(s, "ensemble"),
    ):
        pd.testing.assert_frame_equal(read(local).tz_convert("UTC"), read(stored), check_freq=False)
    assert str(stored.minutes.tz) == "UTC"
