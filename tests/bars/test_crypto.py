"""Pairs from ccxt, by the real client of one exchange (Bitstamp) against answers of our own, on a
calendar without nights."""

import datetime as dt
import json
import re
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
import torch

import fintrader
from fintrader.bars.calendar import sessions_a_year
from fintrader.bars.sources.crypto import Ccxt, convert_rows, fetch_pages
from fintrader.bars.sources.vendor import CalendarDays, VendorFeed
from fintrader.bars.sources.vendor_settings import CcxtSettings
from fintrader.config import validate
from fintrader.errors import ConfigError, DataError
from fintrader.market.inspect import examine
from fintrader.market.settings import DataSettings
from fintrader.storage.objects import ObjectStore
from tests.bars.tables import COLUMNS, RawFeed, as_bars, minute_table

DAY = pd.Timedelta("1D")
FIRST = pd.Timestamp("2024-02-28", tz="UTC")


def pair_table(days=3, symbols=("BTC/USD", "ETH/USD"), seed=0):
    """Minute bars around the clock, over a leap day, with a quiet stretch longer than a page."""
    random = np.random.default_rng(seed)
    ts = pd.date_range(FIRST, periods=days * 1440, freq="min")
    parts = []
    for number, symbol in enumerate(symbols):
        close = 100 * (number + 1) * np.exp(np.cumsum(random.normal(0, 5e-4, len(ts))))
        part = pd.DataFrame(
            {"ts": ts, "ticker": symbol, "open": close, "high": close * 1.001, "low": close * 0.999}
        )
        parts.append(part.assign(close=close, volume=random.uniform(0.001, 3.0, len(ts))))
    table = pd.concat(parts, ignore_index=True)
    quiet = (table.ts >= FIRST + DAY + pd.Timedelta("1h")) & (
        table.ts < FIRST + DAY + pd.Timedelta("20h")
    )
    return table[~(quiet & (table.ticker == "ETH/USD"))].reset_index(drop=True)


class Bitstamp:
    """What www.bitstamp.net answers with, and what it was asked."""

    def __init__(self, table):
        self.table = table
        self.asked = []
        self.faults = []

    def answer(self, request):
        pair = re.search(r"/ohlc/(\w+)/", request.url)
        if pair is None:
            names = sorted(set(self.table.ticker))
            return 200, {}, json.dumps([_listing(name) for name in names])
        query = {name: int(value) for name, value in request.params.items()}
        self.asked.append(query)
        if self.faults:
            return self.faults.pop(0), {}, "{}"
        mine = self.table[self.table.ticker.str.replace("/", "").str.lower() == pair.group(1)]
        second = (mine.ts - pd.Timestamp(0, tz="UTC")) // pd.Timedelta("1s")
        page = mine[(second >= query["start"]) & (second <= query["end"])].head(query["limit"])
        rows = [
            {"timestamp": str(int(row.ts.timestamp()))}
            | {name: repr(getattr(row, name)) for name in COLUMNS}
            for row in page.itertuples()
        ]
        return 200, {}, json.dumps({"data": {"pair": pair.group(1), "ohlc": rows}})


def _listing(name):
    base, counter = name.split("/")
    return {
        "name": name,
        "description": f"{base} / {counter}",
        "minimum_order": f"10.0 {counter}",
        "minimum_order_value": "10",
        "market_symbol": name.replace("/", "").lower(),
        "base_currency": base,
        "counter_currency": counter,
        "base_decimals": "8",
        "counter_decimals": "2",
        "trading": "Enabled",
        "market_type": "SPOT",
    }


@contextmanager
def serving(table):
    responses = pytest.importorskip("responses")
    server = Bitstamp(table)
    with responses.RequestsMock(assert_all_requests_are_fired=False) as network:
        network.add_callback(
            responses.GET, re.compile("https?://"), server.answer, content_type="application/json"
        )
        yield server


def ccxt_feed(store, *, symbols=("BTC/USD", "ETH/USD"), **values):
    ccxt = pytest.importorskip("ccxt")
    settings = validate(CcxtSettings, {"exchange": "bitstamp"} | values, "test")
    vendor = Ccxt(settings, ccxt.bitstamp({"enableRateLimit": False}))
    how = {"today": dt.date(2024, 3, 5), "sleep": lambda _: None}
    days = CalendarDays("24/7", dt.date(2024, 2, 28), dt.date(2024, 3, 1))
    feed = VendorFeed(vendor, symbols, days, ObjectStore(store), **how)
    feed.retries = 2
    feed.prepare()
    return feed


def test_pairs_come_page_by_page_as_they_are_and_once(tmp_path):
    table = pair_table()
    with serving(table) as server:
        feed = ccxt_feed(tmp_path)
        for symbol in ("BTC/USD", "ETH/USD"):
            mine = table[table.ticker == symbol]
            got = feed.bars(symbol)
            for name in COLUMNS:
                np.testing.assert_array_equal(getattr(got, name), mine[name])
            np.testing.assert_array_equal(
                got.ts, mine.ts.astype("datetime64[ns, UTC]").astype("int64")
            )
        asked = len(server.asked)
        assert {query["limit"] for query in server.asked} == {1000}
        assert ccxt_feed(tmp_path).inputs == feed.inputs
        assert len(server.asked) == asked


def test_passing_faults_are_tried_again_and_mistakes_are_named(tmp_path):
    with serving(pair_table()) as server:
        server.faults = [429, 503]
        feed = ccxt_feed(tmp_path / "a")
        assert len(feed.bars("BTC/USD")) == 3 * 1440
        with pytest.raises(DataError, match=r"no pair 'BTC/USDT'; did you mean BTC/USD"):
            ccxt_feed(tmp_path / "b", symbols=("BTC/USDT",))
        server.faults = [503] * 9
        with pytest.raises(DataError, match="ccxt does not answer"):
            ccxt_feed(tmp_path / "c")
    with pytest.raises(DataError, match="no exchange 'bitstmp'; did you mean bitstamp"):
        ccxt_feed(tmp_path, exchange="bitstmp")


def test_pages_are_put_together_whatever_they_hold():
    """An exchange that answers with at most seven rows, some of them before what was asked, twice,
    or empty."""
    minute = 60_000
    there = [
        time for time in range(0, 100 * minute, minute) if not 20 * minute <= time < 60 * minute
    ]
    rows = [[time, 1.0 + time, 2.0 + time, 0.5 + time, 1.5 + time, time / minute] for time in there]
    rows[3][4] = None  # no close
    rows[5][5] = None  # nothing traded
    asked = []

    def ask(since):
        asked.append(since)
        return (
            [row for row in rows if row[0] >= since - 2 * minute][:7]
            if since < 20 * minute
            else _later(rows, since)
        )

    got = fetch_pages(ask, (minute, 90 * minute), minute, 7)
    assert [row[0] for row in got] == [
        time for time in there if minute <= time < 90 * minute and time != 3 * minute
    ]
    assert asked == sorted(set(asked))
    bars = convert_rows(got, "BTC/USD", "an exchange")
    assert bars.symbols == ("BTC/USD",)
    np.testing.assert_array_equal(bars.ts, [row[0] * 1_000_000 for row in got])
    np.testing.assert_array_equal(bars.close, [row[0] + 1.5 for row in got])
    assert bars.volume[bars.ts == 5 * minute * 1_000_000] == 0.0
    assert bars.volume.sum() == sum(row[5] or 0 for row in got)


def _later(rows, since):
    """A page of the bars from a time on, none where they lie further ahead."""
    return [row for row in rows if since <= row[0] < since + 7 * 60_000]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"start": "2024-02-28"}, "set calendar to 24/7"),
        ({"calendar": "24/7"}, "start: ccxt is asked for bars from this day on"),
    ],
)
def test_pairs_need_a_calendar_and_a_first_day(values, said):
    with pytest.raises(ConfigError, match=said):
        validate(DataSettings, {"source": {"kind": "ccxt"}, **values}, "test")


# --- a calendar that never rests ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calendar", "year"), [("XNAS", 252), ("XLON", 252), ("24/7", 365), ("24/5", 252)]
)
def test_sessions_a_year(calendar, year):
    assert sessions_a_year(calendar) == year


def test_a_market_around_the_clock_is_built_traded_and_annualised_by_its_own_year():
    table = pair_table(days=30)
    market = fintrader.load_market(
        table,
        calendar="24/7",
        bar_minutes=60,
        features={
            "names": ["return_5", "gap", "intraday", "rsi_30"],
            "context": ["time_of_day", "time_to_close"],
        },
        windows={"fractions": [0.4, 0.2, 0.4]},
    )
    assert (market.sessions_a_year, market.timezone) == (365, "UTC")
    assert market.num_bars == 30 * 24
    assert torch.bincount(market.session).tolist() == [24] * 30
    hours = table.assign(hour=table.ts.dt.floor("h")).groupby(["hour", "ticker"])
    expected = hours.close.last().unstack().ffill()
    np.testing.assert_allclose(market.close.numpy(), expected.to_numpy(), rtol=1e-6)
    volume = hours.volume.sum().unstack().fillna(0.0)
    np.testing.assert_allclose(market.volume.numpy(), volume.to_numpy(), rtol=1e-5)

    test = market.split().test
    settings = fintrader.EnvSettings(
        action="target", fractional=True, cost_bps=1.0, initial_cash_usd=1_000.0
    )
    done = fintrader.backtest(lambda obs: torch.full((len(obs), 2), 0.5), test, settings)["policy"]
    daily = done.daily_returns
    assert done.metrics["sharpe"] == pytest.approx(daily.mean() / daily.std(ddof=1) * 365**0.5)
    bought = done.trades.shares.abs()
    assert (bought % 1 != 0).all()  # a thousand dollars buy parts of coins
    assert (market.volume.numpy() % 1 != 0).any()


def test_whole_days_and_quality_around_the_clock():
    days = pd.DataFrame({"ts": pd.date_range("2024-02-01", periods=40, tz="UTC")})
    close = 100 + np.arange(40.0)
    table = days.assign(
        ticker="BTC/USD", open=close, high=close, low=close, close=close, volume=1.5
    )
    market = fintrader.load_market(table, calendar="24/7", features={"names": ["return_1"]})
    assert (market.num_bars, market.bar_minutes) == (40, 1440)
    np.testing.assert_array_equal(market.close[:, 0].numpy(), close.astype(np.float32))
    report = examine(RawFeed(as_bars(minute_table())), DataSettings(calendar="24/7"))
    assert set(report.minutes) == {1440}
