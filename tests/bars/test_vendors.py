import contextlib
import datetime as dt
import logging
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import requests

from fintrader.bars.chunks import verify_store
from fintrader.bars.sources.alpaca import Alpaca
from fintrader.bars.sources.vendor import CalendarDays, VendorFeed
from fintrader.bars.sources.vendor_settings import AlpacaSettings, YahooSettings
from fintrader.bars.sources.yahoo import Yahoo
from fintrader.config import validate
from fintrader.errors import DataError
from fintrader.market import bar_source
from fintrader.market.build import build_market, make_market
from fintrader.market.inspect import dry_run, quality_report
from fintrader.market.settings import DataSettings
from fintrader.market.tensors import MarketTensors
from fintrader.storage.objects import ObjectStore
from tests.bars.tables import COLUMNS, assert_same_market, minute_table, stamps_of, write_csv
from tests.engines.servers import Fake, alpaca, serve, yahoo
from tests.quick import slow_but

TODAY = dt.date(2016, 1, 29)
KEY = "PKTESTKEY123"
SECRET = "very-secret-value-456"
ENDPOINT = "https://data.alpaca.markets"


def forget_answers():
    """yfinance remembers answers by URL for the whole process."""
    pytest.importorskip("yfinance").data.YfData.cache_get.cache_clear()


@pytest.fixture(autouse=True)
def _own_yfinance(tmp_path):
    yfinance = pytest.importorskip("yfinance")
    yfinance.set_tz_cache_location(str(tmp_path / "yfinance"))
    forget_answers()
    logging.getLogger("yfinance").setLevel(logging.CRITICAL)


@pytest.fixture
def bars():
    return minute_table(symbols=2, sessions=15)  # to 2016-01-25


@pytest.fixture(params=["yahoo", "alpaca"])
def kind(request):
    return str(request.param)


@pytest.fixture
def fake(kind, request):
    """The server of each vendor."""
    return request.getfixturevalue(f"fake_{kind}")


@pytest.fixture
def fake_yahoo(bars):
    with serve(Fake(bars), yahoo) as fake:
        yield fake


@pytest.fixture
def fake_alpaca(bars, monkeypatch):
    pytest.importorskip("alpaca")
    monkeypatch.setenv("APCA_API_KEY_ID", KEY)
    monkeypatch.setenv("APCA_API_SECRET_KEY", SECRET)
    monkeypatch.setenv("APCA_API_DATA_URL", ENDPOINT)
    with serve(Fake(bars), alpaca) as fake:
        yield fake


def feed_of(
    kind,
    store,
    *,
    symbols=("AAA", "BBB"),
    start="2016-01-04",
    end="2016-01-22",
    retries=2,
    batch=None,
    today=TODAY,
    listed=True,
    **values,
):
    vendor: Any
    if kind == "yahoo":
        vendor = Yahoo(validate(YahooSettings, values, "test"), requests.Session())
    else:
        vendor = Alpaca(validate(AlpacaSettings, values, "test"))
    vendor.batch = batch or vendor.batch
    days = CalendarDays("XNAS", dt.date.fromisoformat(start), dt.date.fromisoformat(end))
    how = {"today": today, "sleep": lambda _: None, "listed": listed}
    feed = VendorFeed(vendor, symbols, days, ObjectStore(store), **how)
    feed.retries = retries
    return feed


def prepared(*args, **values):
    """A feed whose bars are there."""
    feed = feed_of(*args, **values)
    feed.prepare()
    return feed


def first_days(requests):
    """The first day that each request asks for."""
    return [
        item.get("start", "")[:10]
        or str(pd.Timestamp(int(item["period1"]), unit="s", tz="America/New_York"))[:10]
        for item in requests
    ]


@pytest.fixture
def then(monkeypatch):
    """As if it were TODAY."""
    feed = partial(VendorFeed, today=TODAY, sleep=lambda _: None)
    monkeypatch.setattr(bar_source, "VendorFeed", feed)


def expected(bars, symbol, last):
    return bars[(bars.ticker == symbol) & (bars.ts < pd.Timestamp(last) + pd.Timedelta("1D"))]


def test_bars_come_as_they_are_and_once(kind, fake, tmp_path, bars):
    feed = prepared(kind, tmp_path / "store")
    for symbol in ("AAA", "BBB"):
        mine = expected(bars, symbol, "2016-01-22")
        got = feed.bars(symbol).sorted()
        for name in COLUMNS:
            np.testing.assert_allclose(getattr(got, name), mine[name], rtol=1e-12)
        np.testing.assert_array_equal(got.ts, stamps_of(mine))
    assert verify_store(ObjectStore(tmp_path / "store")) == []
    asked = len(fake.requests)
    again = prepared(kind, tmp_path / "store")
    assert len(fake.requests) == asked
    assert again.inputs == feed.inputs
    longer = prepared(kind, tmp_path / "store", end="2016-01-25")
    assert min(first_days(fake.requests[asked:])) >= "2016-01-23"
    assert len(longer.bars("AAA")) == len(expected(bars, "AAA", "2016-01-25"))
    assert longer.inputs != feed.inputs
    assert feed.bars("AAA").ts.max() < longer.bars("AAA").ts.max()


def test_yahoo_is_asked_for_seven_days_at_most(fake_yahoo, tmp_path):
    prepared("yahoo", tmp_path)
    spans = [int(item["period2"]) - int(item["period1"]) for item in fake_yahoo.requests]
    assert max(spans) <= 7 * 86_400
    assert len(spans) == 2 * 3  # two tickers, nineteen days


def test_yahoo_keeps_thirty_days_of_minutes(fake_yahoo, tmp_path):
    with pytest.raises(
        DataError,
        match=r"no bars of this length before 2015-12-31 \(asked for 2015-12-01\)",
    ):
        prepared("yahoo", tmp_path, start="2015-12-01")
    assert fake_yahoo.requests == []


@pytest.mark.usefixtures("fake")
def test_an_unknown_ticker_is_named(kind, tmp_path):
    with pytest.raises(DataError, match=f"{kind} has no bars of NOPE"):
        prepared(kind, tmp_path, symbols=("AAA", "NOPE"))


@pytest.mark.parametrize(
    ("kind", "fault"),
    slow_but(0, 3, every=[("alpaca", 429), ("alpaca", 500), ("alpaca", 503), ("yahoo", 429)]),
)
def test_passing_faults_are_tried_again_and_lasting_ones_told(kind, fault, fake, tmp_path):
    fake.faults = [fault, fault]
    feed = prepared(kind, tmp_path / "a")
    assert len(feed.bars("AAA")) == 14 * 390
    fake.faults = [fault] * 99
    forget_answers()
    with pytest.raises(DataError, match=rf"{kind} does not answer: .*continues from here"):
        prepared(kind, tmp_path / "b")


def test_a_broken_download_continues_where_it_was(fake_alpaca, tmp_path):
    values = {"batch": 1, "retries": 0}
    real = fake_alpaca.rows
    calls = {"n": 0}

    def once(*args):
        calls["n"] += 1
        if calls["n"] > 12:  # the first ticker's pages, then the line breaks
            fake_alpaca.faults = [500]
        return real(*args)

    fake_alpaca.rows = once
    with pytest.raises(DataError, match="does not answer"):
        prepared("alpaca", tmp_path, **values)
    fake_alpaca.rows, fake_alpaca.faults = real, []
    asked = len(fake_alpaca.requests)
    feed = prepared("alpaca", tmp_path, **values)
    assert {item["symbols"] for item in fake_alpaca.requests[asked:]} == {"BBB"}
    assert len(feed.bars("AAA")) == len(feed.bars("BBB")) == 14 * 390


def without(table, symbol, first, last):
    """The table without what a server that fails would leave out; the ticker itself stays known."""
    stop = pd.Timestamp(last, tz="America/New_York") + pd.Timedelta("1D")
    gone = (
        (table.ticker == symbol)
        & (table.ts >= pd.Timestamp(first, tz="America/New_York"))
        & (table.ts < stop)
    )
    return table[~gone]


@pytest.mark.parametrize(
    ("first", "last"),
    slow_but(
        2,
        every=[
            ("2016-01-04", "2016-01-25"),
            ("2016-01-11", "2016-01-25"),
            ("2016-01-06", "2016-01-08"),
        ],
    ),
)
def test_an_empty_answer_is_asked_for_again(kind, fake, first, last, tmp_path, caplog):
    """A server that gives nothing for a while, at the start, the end or in between: the same call
    mends it."""
    whole = fake.table
    fake.table = without(whole, "BBB", first, last)
    with contextlib.suppress(DataError):  # raised when nothing at all came
        prepared(kind, tmp_path)
    assert f"{kind} has no bars of BBB on" in caplog.text
    fake.table = whole
    forget_answers()
    asked = len(fake.requests)
    feed = prepared(kind, tmp_path)
    assert {item.get("ticker") or item["symbols"] for item in fake.requests[asked:]} == {"BBB"}
    assert len(feed.bars("BBB")) == len(feed.bars("AAA")) == 14 * 390
    assert feed.bars("BBB").is_sorted()
    assert verify_store(ObjectStore(tmp_path)) == []
    asked = len(fake.requests)
    prepared(kind, tmp_path)
    assert len(fake.requests) == asked


@pytest.mark.slow
def test_silence_is_believed_when_another_day_confirms_it(fake_alpaca, tmp_path):
    fake_alpaca.table = without(fake_alpaca.table, "BBB", "2016-01-06", "2016-01-08")

    def requests_on(day):
        before = len(fake_alpaca.requests)
        feed = prepared("alpaca", tmp_path, retries=0, today=dt.date(2016, 1, day))
        assert len(feed.bars("BBB")) == 11 * 390
        return len(fake_alpaca.requests) - before

    assert requests_on(25) > 0
    assert requests_on(25) > 0
    assert requests_on(26) > 0
    assert requests_on(26) == 0
    assert requests_on(27) == 0


def test_alpaca_declares_feed_and_adjustment_and_pages(fake_alpaca, tmp_path):
    prepared("alpaca", tmp_path, feed="iex", adjustment="split")
    assert {(item["feed"], item["adjustment"]) for item in fake_alpaca.requests} == {
        ("iex", "split")
    }
    assert len(fake_alpaca.requests) == -(-2 * 14 * 390 // 500)
    assert (
        len([item for item in fake_alpaca.requests if "page_token" in item])
        == len(fake_alpaca.requests) - 1
    )
    assert set(fake_alpaca.keys) == {(KEY, SECRET)}


@pytest.mark.slow
def test_alpaca_hours_outside_the_session_are_left_out(bars, tmp_path, fake_alpaca):
    early = bars[bars.ts.dt.strftime("%H") == "10"].assign(
        ts=lambda rows: rows.ts - pd.Timedelta("3h")
    )
    fake_alpaca.table = Fake(pd.concat([bars, early]).sort_values(["ticker", "ts"])).table
    feed = prepared("alpaca", tmp_path)
    assert len(feed.bars("AAA")) == 14 * 390


def test_no_key_is_told_or_written_anywhere(fake_alpaca, tmp_path, monkeypatch, caplog):
    messages = []
    for faults in ([401], [403], [422], [404], [500] * 9):
        fake_alpaca.faults = list(faults)
        with pytest.raises(DataError) as caught:
            prepared("alpaca", tmp_path / "store")
        messages.append(str(caught.value))
    assert "refuses the keys" in messages[0]
    fake_alpaca.faults = []
    prepared("alpaca", tmp_path / "store")
    texts = [*messages, caplog.text]
    texts += [file.read_bytes().decode("latin1") for file in tmp_path.rglob("*") if file.is_file()]
    assert len(texts) > 7
    for text in texts:
        assert KEY not in text
        assert SECRET not in text
    monkeypatch.delenv("APCA_API_SECRET_KEY")
    with pytest.raises(DataError, match="set APCA_API_KEY_ID and APCA_API_SECRET_KEY"):
        prepared("alpaca", tmp_path / "other")


def test_days_stand_at_their_sessions_start(tmp_path):
    days = pd.bdate_range("2016-01-04", "2016-01-15")
    table = pd.DataFrame(
        {
            "ts": days,
            "ticker": "AAA",
            "open": 1.0,
            "high": 2.0,
            "low": 0.5,
            "close": 1.5,
            "volume": 9,
        }
    )
    with serve(Fake(table), yahoo):
        feed = prepared("yahoo", tmp_path, symbols=("AAA",), bar_minutes=1440, end="2016-01-15")
        stamps = feed.bars("AAA").ts.astype("datetime64[ns]")
    assert [str(stamp)[:16] for stamp in stamps[[0, -1]]] == [
        "2016-01-04T14:30",
        "2016-01-15T14:30",
    ]
    assert len(stamps) == 10


@pytest.mark.usefixtures("then")
def test_a_vendors_market_is_the_files_market(fake_alpaca, tmp_path, bars):
    days = {"start": "2016-01-04", "end": "2016-01-22"}
    features = {"names": ["return_1", "rsi_30"], "context": ["time_of_day"]}
    settings = validate(
        DataSettings,
        {
            "source": {"kind": "alpaca"},
            **days,
            "universe": {"symbols": ["AAA", "BBB"]},
            "features": features,
        },
        "test",
    )
    path = build_market(settings, cache=tmp_path / "cache")
    asked = len(fake_alpaca.requests)
    assert build_market(settings, cache=tmp_path / "cache") == path
    assert len(fake_alpaca.requests) == asked
    built = MarketTensors.load(path, verify=True)
    table = bars[bars.ts < pd.Timestamp("2016-01-23")]
    report = quality_report(settings, cache=tmp_path / "cache")
    assert report.faults == ()
    assert report.rows == 2 * 14 * 390
    assert dry_run(settings, cache=tmp_path / "cache").requests == ()
    planned = dry_run(settings, cache=tmp_path / "empty")
    days = dt.date(2016, 1, 4), dt.date(2016, 1, 22)
    assert planned.requests == ((["AAA", "BBB"], *days),)
    assert "would request AAA, BBB, 2016-01-04 to 2016-01-22" in planned.describe()
    assert len(fake_alpaca.requests) == asked
    files = make_market(
        validate(
            DataSettings, {"path": str(write_csv(tmp_path, table)), "features": features}, "test"
        )
    )
    assert_same_market(files, built)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param("yahoo", marks=pytest.mark.slow), "alpaca"], indirect=True
)
@pytest.mark.usefixtures("then")
def test_an_index_is_asked_for_under_every_ticker_and_who_has_no_bars_is_reported(
    kind, fake, tmp_path, bars, monkeypatch
):
    """Half of the members' bars lie under the tickers of the day, some under later ones, most are
    not there at all."""
    names = {"AAA": "PCLN", "BBB": "META"}
    split = fake.table.ticker.map(names)
    other = fake.table[fake.table.ticker == "AAA"].assign(ticker="AAPL")
    fake.table = pd.concat([fake.table.assign(ticker=split), other], ignore_index=True)
    monkeypatch.setattr(VendorFeed, "retries", 0)
    data = {"source": {"kind": kind}, "start": "2016-01-04", "end": "2016-01-22"}
    universe = {"members": "nasdaq100", "tickers_as_of": "2023-01-03"}
    features = {"names": ["return_1"], "context": []}
    settings = validate(DataSettings, {**data, "universe": universe, "features": features}, "test")
    if kind == "yahoo":
        monkeypatch.setattr(bar_source, "Yahoo", lambda source: Yahoo(source, requests.Session()))
    market = MarketTensors.load(build_market(settings, cache=tmp_path / "cache"))
    assert market.symbols == ("AAPL", "META", "PCLN")
    assert market.member.all()
    np.testing.assert_allclose(
        market.close[:, 1].numpy(),
        expected(bars, "BBB", "2016-01-22").close.to_numpy(dtype=np.float32),
    )
    asked = {
        name
        for item in fake.requests
        for name in (item.get("ticker") or item.get("symbols", "")).split(",")
    }
    if kind == "alpaca":  # of a ticker that Yahoo does not know, yfinance asks the zone and no bars
        assert {
            "FB",
            "META",
            "PCLN",
            "BKNG",
            "SYMC",
            "GEN",
            "YHOO",
            "AABA",
            "FOXA",
            "TFCFA",
        } <= asked
    report = market.provenance.left_out
    assert report["FB"] == f"no bars from {kind}"
    assert {"MSFT", "BKNG"} <= set(report)
    survivorship = market.provenance.survivorship
    assert "MSFT" in survivorship.members_without_bars
    assert not {"META", "BKNG"} & set(survivorship.members_without_bars)
    assert survivorship.member_days_without_bars == pytest.approx(102 / 105, abs=0.001)


def test_a_ticker_that_is_refused_costs_the_others_nothing(fake_alpaca, tmp_path):
    def refusing(fake, path, query, headers):
        if "BAD" in query["symbols"].split(","):
            return 422, {"message": "invalid symbol: BAD"}
        return alpaca(fake, path, query, headers)

    with serve(Fake(minute_table(symbols=2, sessions=15)), refusing):
        feed = prepared("alpaca", tmp_path / "index", symbols=("AAA", "BAD", "BBB"), listed=False)
        assert feed.symbols == ["AAA", "BBB"]
        assert feed.missing == ["BAD"]
        with pytest.raises(DataError, match="does not accept the request for AAA, BAD, BBB"):
            prepared("alpaca", tmp_path / "list", symbols=("AAA", "BAD", "BBB"))


def test_retries_wait_twice_as_long_each_time(fake_yahoo, tmp_path):
    feed = feed_of("yahoo", tmp_path, retries=3)
    waits = []
    feed._sleep = waits.append
    fake_yahoo.faults = [429] * 9
    with pytest.raises(DataError, match="yahoo does not answer: too many requests"):
        feed.prepare()
    assert waits == [2.0, 4.0, 8.0]


def test_without_tickers_there_is_nothing_to_ask(tmp_path):
    vendor = Yahoo(YahooSettings())
    days = CalendarDays("XNAS", dt.date(2016, 1, 4))
    with pytest.raises(DataError, match="no tickers to request"):
        VendorFeed(vendor, [], days, ObjectStore(tmp_path), today=TODAY)


def test_calendars_of_one_city_have_bars_of_their_own(tmp_path):
    feed = feed_of("yahoo", tmp_path)
    (regular,) = feed.stored()
    for calendar, is_same in (("XNYS", True), ("23/5", False), ("FX", False)):
        feed.calendar = calendar
        (own,) = feed.stored()
        assert (own.objects.url == regular.objects.url) == is_same


def test_a_vendor_has_no_extended_hours(tmp_path):
    values = {"source": {"kind": "alpaca"}, "start": "2016-01-04", "hours": "extended"}
    settings = validate(DataSettings, values, "test")
    with pytest.raises(DataError, match="regular hours only; set it to regular"):
        bar_source.open_source(settings, tmp_path)
