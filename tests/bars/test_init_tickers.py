"""`fintrader init` from tickers and from an index: the newest clients of the vendors, against
servers on loopback, through the command line."""

import datetime as dt
import os
import re
import shutil
import signal
import traceback
import warnings
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import requests
import yaml

from fintrader.bars.calendar import session_grid
from fintrader.bars.sources.alpaca import Alpaca
from fintrader.bars.sources.crypto import Ccxt
from fintrader.bars.sources.tickers import (
    EXCHANGES,
    find_ticker_calendar,
    is_path,
    read_pair,
    read_tickers,
)
from fintrader.bars.sources.vendor import RateLimit, VendorFeed
from fintrader.bars.sources.vendor_settings import AlpacaSettings
from fintrader.bars.sources.yahoo import Yahoo
from fintrader.cli.options import parse_config
from fintrader.market import bar_source
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline.config import load_config
from tests import ROOT
from tests.engines.runs import fintrader
from tests.engines.servers import Fake, alpaca, binance, leading_to, listen, yahoo
from tests.quick import slow_but

TODAY = dt.datetime.now(dt.UTC).date()
YESTERDAY = TODAY - dt.timedelta(days=1)


def sessions_back(days, calendar="XNAS"):
    return session_grid(calendar, YESTERDAY - dt.timedelta(days=days), YESTERDAY)


def walk(tickers, stamps, seed=0):
    """Bars at naive times of New York, with a common factor."""
    random = np.random.default_rng(seed)
    common = random.normal(0, 0.004, len(stamps))
    parts = []
    for number, ticker in enumerate(tickers):
        moves = common + random.normal(0, 0.008, len(stamps))
        close = np.round(40 * (number + 1) * np.exp(np.cumsum(moves)), 2)
        open_ = np.round(np.concatenate([close[:1], close[:-1]]) * 1.001, 2)
        part = {"ts": stamps, "ticker": ticker, "open": open_, "close": close}
        part |= {"high": np.maximum(open_, close) + 0.02, "low": np.minimum(open_, close) - 0.02}
        parts.append(pd.DataFrame(part | {"volume": random.integers(1e6, 9e6, len(stamps))}))
    return pd.concat(parts, ignore_index=True)


def days_table(tickers, days=420, calendar="XNAS"):
    return walk(tickers, pd.DatetimeIndex(sessions_back(days, calendar).dates))


def minutes_table(tickers, days):
    stamps = pd.DatetimeIndex(sessions_back(days).minutes, tz="UTC")
    table = walk(tickers, stamps.tz_convert("America/New_York").tz_localize(None))
    for name in ("open", "high", "low", "close"):  # moves of minutes
        table[name] = np.round(50 + (table[name] - 50) / 40, 4)
    return table


@pytest.fixture(autouse=True)
def waits(tmp_path, monkeypatch):
    """Work in an empty folder, without waits or cached answers."""
    yfinance = pytest.importorskip("yfinance")
    monkeypatch.chdir(tmp_path)
    yfinance.set_tz_cache_location(str(tmp_path / "yfinance"))
    yfinance.data.YfData.cache_get.cache_clear()
    made = []
    monkeypatch.setattr(bar_source, "VendorFeed", partial(VendorFeed, sleep=made.append))
    return made


@pytest.fixture
def serving():
    """Start servers of a table on loopback, with a vendor's answers."""
    with ExitStack() as running:

        def start(table, answer):
            fake = Fake(table)
            return fake, running.enter_context(listen(fake, answer))

        yield start


@pytest.fixture
def yahoo_of(serving, monkeypatch):
    """Make yfinance's own client request from a server of this table."""
    curl = pytest.importorskip("curl_cffi.requests")

    def serve(table):
        fake, address = serving(table, yahoo)
        session = leading_to(address, curl.Session())
        monkeypatch.setattr(bar_source, "Yahoo", lambda source: Yahoo(source, session))
        return fake

    return serve


@pytest.fixture
def alpaca_of(serving, monkeypatch):
    """Make alpaca-py request from a server of this table."""
    pytest.importorskip("alpaca")
    monkeypatch.setenv("APCA_API_KEY_ID", "PKTEST")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "secret")

    def serve(table, answer=alpaca):
        fake, address = serving(table, answer)
        monkeypatch.setenv("APCA_API_DATA_URL", address)
        return fake

    return serve


@pytest.fixture
def binance_of(serving, monkeypatch):
    """Make ccxt request from a server of this table."""
    ccxt = pytest.importorskip("ccxt")

    def serve(table):
        fake, address = serving(table, binance)
        client = ccxt.binance({"enableRateLimit": False})
        client.session = leading_to(address, requests.Session())
        monkeypatch.setattr(bar_source, "Ccxt", lambda source: Ccxt(source, client))
        return fake

    return serve


def done(*words):
    """Run a command that succeeds, with only progress on standard error; return its output."""
    seen = []

    def note(*_):
        stack = "".join(frame.filename for frame in traceback.extract_stack())
        seen.extend(name for name in ("yfinance", "alpaca", "ccxt") if f"/{name}/" in stack)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        result = fintrader(*words)
    assert result.status == 0, result.err
    assert seen == []
    assert not re.search("warn|Error|possibly delisted", result.err), result.err
    return result.out


def refused(*words):
    """Run a command that fails; return its error, without progress."""
    result = fintrader(*words)
    assert result.status == 2, (result.out, result.err)
    (line,) = [line for line in result.err.splitlines() if line.startswith("fintrader: ")]
    return line


def resolve_data(path):
    return yaml.safe_load(Path(path).read_text())["data"]


def requests_nothing(fake, path, *words):
    """Check that the store answers all requests of a configuration's market."""
    before = len(fake.requests), len(fake.asked_for_actions)
    out = done("data", "build", path, *words)
    assert (len(fake.requests), len(fake.asked_for_actions)) == before
    return out


def test_tickers_become_a_configuration_whose_market_requests_nothing(yahoo_of):
    table = days_table(["AAPL", "MSFT", "BRK-B"])
    fake = yahoo_of(table)
    out = done("init", "aapl", "MSFT,AAPL", "BRK.B", "--days", "400")
    assert "to be downloaded: 3 tickers, 27" in out
    assert re.search(r"prices +yahoo +sure +adjusted for splits", out)
    assert "`fintrader run aapl-msft-brk.b.yaml` goes from these bars to a backtest" in out
    data = resolve_data("aapl-msft-brk.b.yaml")
    assert data["universe"] == {"symbols": ["AAPL", "MSFT", "BRK.B"]}
    assert data["source"] == {"kind": "yahoo", "bar_minutes": 1440}
    assert (data["calendar"], data["bar_minutes"]) == ("XNAS", 390)
    assert data["end"] == YESTERDAY
    assert data["start"] == YESTERDAY - dt.timedelta(days=399)
    asked = {one["ticker"] for one in fake.requests}
    assert asked == {"AAPL", "MSFT", "BRK-B"}  # Yahoo's spelling
    assert len(fake.requests) == 3 + 3  # bars of all days at once, and actions
    assert "3 symbols" in requests_nothing(fake, "aapl-msft-brk.b.yaml")
    assert "dividends" in Path("aapl-msft-brk.b.yaml").read_text()


def test_one_common_renderer_writes_what_a_run_accepts(yahoo_of):
    fake = yahoo_of(days_table(["AAA", "BBB", "CCC", "DDD", "EEE"]))
    done("init", "AAA", "BBB", "CCC", "DDD", "EEE", "--out", "mine.yaml")
    config = load_config("mine.yaml")
    assert config.agent.algo == "apg"  # five names: the careful half
    assert config.data.windows.test[1] <= YESTERDAY
    requests_nothing(fake, "mine.yaml")


def test_an_unknown_ticker_is_named_and_the_others_can_be_had(yahoo_of):
    fake = yahoo_of(days_table(["AAPL", "MSFT"]))
    said = refused("init", "AAPL", "NOPE", "MSFT", "--days", "300")
    assert "yahoo has no bars of NOPE from" in said
    assert "no file or folder here has that name" in said
    remedy = re.search(r"The others: fintrader (.+) \(with", said)[1]
    before = len(fake.requests)
    assert "aapl-msft.yaml is written" in done(*remedy.split(), "--days", "300")
    assert len(fake.requests) == before  # they are stored
    assert [str(path) for path in Path().glob("*.yaml")] == ["aapl-msft.yaml"]


def test_a_rate_limit_is_waited_for_and_a_lasting_one_reported(yahoo_of, waits):
    yfinance = pytest.importorskip("yfinance")
    fake = yahoo_of(days_table(["AAPL"]))
    fake.faults = [429, 429]
    done("init", "AAPL")
    assert waits == [2.0]  # yfinance itself retries once
    shutil.rmtree("data")
    yfinance.data.YfData.cache_get.cache_clear()
    fake.faults = [429] * 99
    assert "yahoo does not answer: too many requests" in refused("init", "AAPL", "--force")


def interrupting(after):
    """Alpaca that presses Ctrl-C after so many requests for bars."""
    left = [after]

    def answer(fake, path, query, headers):
        if path.endswith("/bars"):
            left[0] -= 1
            if left[0] == -1:
                os.kill(os.getpid(), signal.SIGINT)
        return alpaca(fake, path, query, headers)

    return answer


def test_a_stopped_download_goes_on(alpaca_of):
    tickers = [f"AA{letter}" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXY"]  # two batches
    fake = alpaca_of(days_table(tickers, 50), interrupting(1))
    words = ("init", *tickers, "--from", "alpaca", "--days", "20", "--out", "x.yaml")
    result = fintrader(*words)
    assert result.status == 130
    assert "run the same command again to resume" in result.err
    assert not Path("x.yaml").exists()
    asked = [one["symbols"] for one in fake.requests]
    done(*words)
    assert [one["symbols"] for one in fake.requests] == [*asked, asked[1]]
    requests_nothing(fake, "x.yaml")


@pytest.mark.slow
def test_minutes_of_alpaca_come_by_month_and_reach_a_market(alpaca_of):
    fake = alpaca_of(minutes_table(["AAPL", "BRK.B"], 50))
    out = done("init", "AAPL", "BRK-B", "--from", "alpaca", "--days", "40", "--bar-minutes", "1")
    assert re.search(r"prices +alpaca +sure +as traded", out)
    assert {one["symbols"] for one in fake.requests} == {"AAPL,BRK.B"}  # Alpaca's spelling
    data = resolve_data("aapl-brk-b.yaml")
    assert (data["bar_minutes"], data["source"]["bar_minutes"]) == (5, 1)
    requests_nothing(fake, "aapl-brk-b.yaml")


BAR = {"t": f"{sessions_back(5).dates[-1]}T05:00:00Z", "o": 9, "h": 9, "l": 9, "c": 9, "v": 7}
ACTION = {"symbol": "AAPL", "ex_date": f"{YESTERDAY}"}
NOTHING = {"new_rate": 0, "old_rate": 1} | ACTION


@pytest.mark.parametrize(
    ("place", "body", "said"),
    slow_but(
        *range(0, 14, 2),
        every=[
            ("/bars", None, "another form"),
            ("/bars", {"bars": {"AAPL": "x"}}, "another form"),
            ("/bars", {"bars": {"AAPL": [BAR | {"c": "x"}]}}, "another form"),
            ("/bars", {"bars": {"AAPL": [BAR | {"l": -1}]}}, "column 'low': -1.0 is no price"),
            ("actions", None, "another form"),
            ("actions", {"corporate_actions": {"cash_dividends": [ACTION]}}, "another form"),
            ("actions", {"corporate_actions": {"forward_splits": [NOTHING]}}, "another form"),
        ],
    ),
)
def test_an_odd_answer_is_refused_and_not_stored(place, body, said, alpaca_of):
    """The remedy works: once the vendor answers as usual, the same command succeeds."""

    def answer(fake, path, query, headers):
        if path.endswith(place):
            return 200, body and {**body, "next_page_token": None}
        return alpaca(fake, path, query, headers)

    table = days_table(["AAPL"])
    alpaca_of(table, answer)
    words = ("init", "AAPL", "--from", "alpaca", "--days", "60")
    assert re.search(f"{said}.*; try again later", refused(*words))
    alpaca_of(table)
    done(*words)


def test_without_keys_alpaca_says_which(alpaca_of, monkeypatch):
    alpaca_of(days_table(["AAPL"]))
    monkeypatch.delenv("APCA_API_SECRET_KEY")
    said = refused("init", "AAPL", "--from", "alpaca")
    assert "set APCA_API_KEY_ID and APCA_API_SECRET_KEY in the environment" in said


def days_of_coins(pairs):
    table = walk(pairs, pd.date_range(end=YESTERDAY, periods=420, freq="D"))
    fake_times = table.ts.dt.tz_localize("UTC").dt.tz_convert("America/New_York")
    return table.assign(ts=fake_times.dt.tz_localize(None))


@pytest.mark.parametrize(
    ("words", "name"),
    slow_but(
        0,
        every=[
            (["BTC/USDT", "eth/usdt"], "btcusdt-ethusdt"),
            (["BTCUSDT", "ETH-USDT", "--from", "binance"], "btcusdt-eth-usdt"),
        ],
    ),
)
def test_pairs_come_from_an_exchange_without_keys(words, name, binance_of):
    fake = binance_of(days_of_coins(["BTC/USDT", "ETH/USDT"]))
    out = done("init", *words, "--days", "100")
    assert re.search(r"reach +binance +sure +the choice of binance", out)
    config = load_config(f"{name}.yaml")
    assert config.data.universe.symbols == ("BTC/USDT", "ETH/USDT")
    assert config.data.calendar == "24/7"
    assert config.env.fractional
    assert len(fake.requests) == 2
    requests_nothing(fake, f"{name}.yaml")


def test_an_unknown_pair_or_exchange_is_named(binance_of):
    binance_of(days_of_coins(["BTC/USDT"]))
    assert "did you mean BTC/USDT" in refused("init", "BTC/USD", "--from", "binance")
    assert "did you mean binance" in refused("init", "BTC/USDT", "--from", "binanse")
    assert "did you mean yahoo" in refused("init", "AAPL", "--from", "yahooo")
    assert "BTC-USD is Yahoo's ticker" in refused("init", "BTC/USDT", "--from", "yahoo")
    assert "has no pair 'AAPL'; pairs are written like" in refused("init", "BTC/USDT", "AAPL")


def test_a_young_and_a_dead_ticker_join_the_others(yahoo_of):
    """Months before the first bar are silent: init requests them twice, runs of the day never."""
    table = days_table(["AAPL", "NEW", "OLD"])
    day = pd.Timestamp(YESTERDAY)
    gone = (table.ticker == "NEW") & (table.ts < day - pd.Timedelta("100D"))
    gone |= (table.ticker == "OLD") & (table.ts > day - pd.Timedelta("200D"))
    fake = yahoo_of(table[~gone])
    done("init", "AAPL", "NEW", "OLD")
    assert "3 symbols" in requests_nothing(fake, "aapl-new-old.yaml")
    done("init", "NEW", "OLD")
    requests_nothing(fake, "new-old.yaml")


def test_one_ticker_gets_agents_that_may_hold_cash(yahoo_of):
    fake = yahoo_of(days_table(["AAPL"]))
    done("init", "AAPL,aapl,")
    assert load_config("aapl.yaml").agent.head.kind == "aim"
    requests_nothing(fake, "aapl.yaml")


def test_an_exchange_that_serves_no_such_country_or_keeps_little_says_so(binance_of):
    fake = binance_of(days_of_coins(["BTC/USDT"]))
    fake.faults = [451]
    assert "binance (ccxt) does not serve this country; choose" in refused("init", "BTC/USDT")
    fake.table = fake.table.tail(1)
    said = refused("init", "BTC/USDT")
    assert "has bars of 1 sessions" in said
    assert "longer bars with --bar-minutes" in said


def test_too_few_days_are_refused(yahoo_of):
    yahoo_of(days_table(["AAPL"]))
    first = sessions_back(20).dates[-2]
    said = refused("init", "AAPL", "--start", str(first))
    assert "has bars of 2 sessions" in said
    assert "more --days" in said


def test_no_network_is_reported_at_once(monkeypatch, waits):
    curl = pytest.importorskip("curl_cffi.requests")
    session = leading_to("http://127.0.0.1:9", curl.Session())
    monkeypatch.setattr(bar_source, "Yahoo", lambda source: Yahoo(source, session))
    assert "yahoo is out of reach: ConnectionError; check the network" in refused("init", "AAPL")
    assert waits == [2.0]
    monkeypatch.setenv("APCA_API_KEY_ID", "PKTEST")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "secret")
    monkeypatch.setenv("APCA_API_DATA_URL", "http://127.0.0.1:9")
    assert "alpaca is out of reach" in refused("init", "AAPL", "--from", "alpaca")


# --- words ----------------------------------------------------------------------------------------


def test_a_path_is_no_ticker(tmp_path):
    (tmp_path / "AAPL").mkdir()
    (tmp_path / "data").mkdir()
    paths = "AAPL my.csv nosuch/my.parquet *.csv data/bars data/usd a/b/c ./x s3://bucket/x .."
    assert all(map(is_path, [*paths.split(), "my file", "bars.csv.gz"]))
    words = "aapl MSFT,AAPL BRK.B ^NDX EURUSD=X 0700.HK BTC/USDT btc-usd"
    assert not any(map(is_path, words.split()))


def test_a_missing_file_is_a_missing_file_and_a_folder_wins(tmp_path, yahoo_of):
    assert "my.csv: no bar file there" in refused("init", "my.csv")
    assert "nosuch/dir/x: no bar file there" in refused("init", "nosuch/dir/x")
    (tmp_path / "AAPL").mkdir()
    days_table(["AAPL"]).to_csv("AAPL/AAPL.csv", index=False)
    yahoo_of(days_table(["AAPL", "MSFT"]))
    assert "--days is for tickers, but AAPL is a file or a folder" in refused(
        "init", "AAPL", "--days", "100"
    )
    assert "columns" in done("init", "AAPL", "--print")
    assert "give one path" in refused("init", "AAPL", "MSFT")
    assert "to be downloaded" in done("init", "AAPL", "MSFT", "--from", "yahoo", "--print")


@pytest.mark.parametrize(
    ("words", "said"),
    slow_but(
        *range(0, 20, 2),
        every=[
            (["AAPL", "--ts", "Time"], "--ts is for files, but these are tickers"),
            (["AAPL", "--preset", "lean"], "--preset is for files"),
            (["AAPL", "--index", "dow30"], "--index names the tickers"),
            ([], "needs FILE|FOLDER, TICKER ... or --index NAME"),
            (["AAPL", "--days", "3", "--start", "2024-01-02"], "omit one"),
            (["AAPL", "--start", "2999-01-01"], "is after"),
            (["AAPL", "SAP.DE"], "AAPL on XNAS, SAP.DE on XETR"),
            (["AAPL", "--bar-minutes", "7"], "--bar-minutes"),
            (["--index", "nasdaq100", "--from", "binance"], "binance has no shares"),
            (["AAPL", "--from", "alpaca", "--start", "2012-01-03"], "--start 2016-01-01"),
        ],
    ),
)
def test_mistakes_are_one_line(words, said):
    assert said in refused("init", *words)


def test_more_minutes_than_yahoo_keeps_are_refused_with_the_most(yahoo_of):
    fake = yahoo_of(minutes_table(["AAPL"], 40))
    said = refused("init", "AAPL", "--bar-minutes", "1", "--days", "45")
    days = re.search(r"--days (\d+) at most", said)[1]
    assert fake.requests == []
    done("init", "AAPL", "--bar-minutes", "1", "--days", days)
    assert max(int(one["period2"]) - int(one["period1"]) for one in fake.requests) <= 7 * 86_400
    requests_nothing(fake, "aapl.yaml")


def test_words_are_read_as_users_write_them():
    assert read_tickers(["aapl", "MSFT, nvda", "AAPL,"]) == ["AAPL", "MSFT", "NVDA"]
    assert {*map(read_pair, ("BTC/USDT", "BTCUSDT", "btc-usdt"))} == {"BTC/USDT"}
    assert read_pair("ETH/BTC") == "ETH/BTC"
    assert {*map(read_pair, ("BTC-USD", "AAPL", "BRK-B", "ETHBTC"))} == {None}
    assert read_pair("BTC-USD", is_certain=True) == "BTC/USD"
    assert read_pair("ETHBTC", is_certain=True) == "ETH/BTC"


@pytest.mark.slow
def test_endings_name_calendars_that_exist():
    tickers = "005930.KS 7203.T RELIANCE.NS 0700.HK SAP.DE VOD.L BTC-USD EURUSD=X GC=F AAPL BRK.B"
    calendars = "XKRX XTKS XBOM XHKG XETR XLON 24/7 24/5 CMES XNAS XNAS"
    found = [find_ticker_calendar(ticker, is_daily=True) for ticker in tickers.split()]
    assert found == calendars.split()
    assert find_ticker_calendar("EURUSD=X", is_daily=False) == "FX"
    assert (
        find_ticker_calendar("^N225", is_daily=True)
        is find_ticker_calendar("X.QQ", is_daily=True)
        is None
    )
    for calendar in {*EXCHANGES.values()}:
        session_grid(calendar, dt.date(2024, 1, 2), dt.date(2024, 2, 2))


def test_an_index_is_placed_by_the_days_of_its_bars(yahoo_of):
    fake = yahoo_of(days_table(["^GDAXI"], calendar="XETR"))
    out = done("init", "^GDAXI")
    assert re.search("calendar +XETR", out)
    assert "an index cannot be bought" in out
    requests_nothing(fake, "gdaxi.yaml")


def test_rows_outside_of_the_calendar_are_refused(yahoo_of):
    coins = walk(["BTC-USD"], pd.date_range(end=YESTERDAY, periods=200, freq="D"))
    yahoo_of(coins)
    assert "24/7" in done("init", "BTC-USD", "--days", "150", "--print")
    done("init", "BTC-USD", "--days", "150")
    done("init", "BTC-USD", "--days", "150", "--calendar", "XNAS", "--out", "named.yaml")
    yahoo_of(coins.assign(ticker="AAPL"))
    assert "are outside the sessions of XNAS" in refused("init", "AAPL", "--days", "150")


def test_a_rate_limit_holds_in_every_minute(monkeypatch):
    now = [0.0]
    begun = []

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr("fintrader.bars.sources.vendor.time.sleep", sleep)
    monkeypatch.setattr("fintrader.bars.sources.vendor.time.monotonic", lambda: now[0])
    pace = RateLimit(3)
    for _ in range(10):
        pace.wait()
        begun.append(now[0])
        now[0] += 1.0
    assert max(sum(start <= at < start + 60 for at in begun) for start in begun) == 3
    assert begun[:4] == [0, 1, 2, 60]
    assert Alpaca(AlpacaSettings()).requests_a_minute < 200


# --- indices --------------------------------------------------------------------------------------


def at_2016(tickers, first, last):
    """Minutes of tickers between two days; a tuple has its own span."""
    parts = []
    for number, (ticker, stop) in enumerate(tickers.items()):
        grid = session_grid(
            "XNAS", dt.date.fromisoformat(first), dt.date.fromisoformat(stop or last)
        )
        stamps = pd.DatetimeIndex(grid.minutes, tz="UTC").tz_convert("America/New_York")
        part = walk([ticker], stamps.tz_localize(None), seed=number)
        first_price = part["open"].iloc[0]  # of all columns, so that highs stay above lows
        for name in ("open", "high", "low", "close"):
            part[name] = np.round(50 + (part[name] - first_price) / 40, 4)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


SPAN = ["--start", "2016-03-07", "--end", "2016-04-01"]


@pytest.mark.slow
def test_the_members_of_an_index_come_by_date_and_the_papers_configuration_runs_on_them(alpaca_of):
    """SNDK leaves the index, and later the exchange; the bars of BKNG and META have today's
    tickers; most members have no bars."""
    tickers = dict.fromkeys(("AAPL", "MSFT", "BKNG", "META", "AMZN")) | {"SNDK": "2016-03-30"}
    fake = alpaca_of(at_2016(tickers, "2016-03-07", "2016-04-01"))
    words = ["init", "--index", "nasdaq100", "--from", "alpaca", *SPAN]
    planned = done(*words, "--print")
    size = re.search(r"(\d+) tickers, 19 sessions, at most ([\d,]+) bars", planned)
    assert int(size[1]) * 19 * 390 == int(size[2].replace(",", ""))
    assert int(size[1]) > 105
    assert "GB" in planned or "MB" in planned
    assert fake.requests == []
    out = done(*words)
    assert re.search(r"without bars +\d+ +sure", out)
    data = resolve_data("nasdaq100.yaml")
    assert data["universe"] == {"members": "nasdaq100"}
    assert data["source"] == {"kind": "alpaca", "bar_minutes": 1}
    assert "6 symbols" in requests_nothing(fake, "nasdaq100.yaml")
    paper = str(ROOT / "configs" / "podracer.yaml")
    span = ["--data.start", SPAN[1], "--data.end", SPAN[3]]
    windows = ["--data.windows.fractions", "0.4", "0.3", "0.3", "--data.universe.min-coverage", "0"]
    features = ["--data.features.names", "return_1", "--data.features.context", "time_of_day"]
    requests_nothing(fake, paper, *span, *windows, *features)
    market = MarketTensors.load(next(Path("data/tensors").glob("*/market.safetensors")))
    assert market.symbols == ("AAPL", "AMZN", "BKNG", "META", "MSFT", "SNDK.2016")
    left = market.member[:, -1].numpy()  # on 2016-03-16, though its bars go on
    assert (left == (np.arange(len(left)) < 7 * 390 // market.bar_minutes)).all()
    assert market.member[:, 0].all()
    assert market.provenance.survivorship.members_without_bars


def test_a_vendors_source_gives_way_to_a_folder():
    config = load_config(str(ROOT / "configs" / "podracer.yaml"))
    assert config.data.source.kind == "alpaca"
    own = parse_config("run", [str(ROOT / "configs" / "podracer.yaml"), "--data.path", "x"])
    assert own.data.effective().source.kind == "files"


@pytest.mark.slow
def test_daily_bars_of_another_index_come_from_yahoo(yahoo_of):
    pytest.importorskip("index_constitution")
    fake = yahoo_of(days_table(["AAPL", "MSFT", "JPM", "KO", "CAT"], 200))
    out = done("init", "--index", "dow30", "--days", "150")
    assert re.search(r"symbols +5 ", out)
    asked = {one["ticker"] for one in fake.requests}
    assert len(asked) == 5  # of an unknown ticker, yfinance requests only the zone
    requests_nothing(fake, "dow30.yaml")
    assert resolve_data("dow30.yaml")["source"]["bar_minutes"] == 1440
    planned = done("init", "--index", "sp500", "--days", "150", "--print")
    assert int(re.search(r"(\d+) tickers", planned)[1]) > 450


@pytest.mark.slow
def test_from_tickers_to_a_report(yahoo_of):
    fake = yahoo_of(days_table(["AAPL", "MSFT", "NVDA"]))
    done("init", "AAPL", "MSFT", "NVDA", "--days", "400")
    before = len(fake.requests)
    quick = ["--tournament.pods", "2", "--tournament.workers", "1"]
    quick += ["--tournament.budget.env-steps", "4000", "--backtest.null-model", "false"]
    done("run", "aapl-msft-nvda.yaml", *quick)
    assert len(fake.requests) == before
    assert (Path("runs") / "aapl-msft-nvda" / "backtest" / "report.html").is_file()
