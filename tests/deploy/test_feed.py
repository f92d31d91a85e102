"""Alpaca's bars as they are made, through alpaca-py and a server in the network's place; and who is
ever asked."""

import datetime as dt
import socket

import numpy as np
import pandas as pd
import pytest

from fintrader.bars.sources.alpaca import Alpaca
from fintrader.bars.sources.vendor_settings import AlpacaSettings
from fintrader.deploy.feed import LIMIT_SECONDS, PolledFeed, ReplayFeed, open_live_feed
from fintrader.errors import DataError, DeployError
from fintrader.market.settings import read_settings
from tests.bars.tables import minute_table
from tests.engines.alpaca_loopback import SECRET
from tests.engines.alpaca_market import LoopbackMarket
from tests.engines.deployments import MINUTE, frozen, replayed, settings
from tests.engines.servers import Fake, alpaca, serve

pytest.importorskip("alpaca", reason="alpaca-py is not installed")


def alpaca_feed(symbols, **chosen):
    vendor = Alpaca(AlpacaSettings(**chosen), timeout_seconds=LIMIT_SECONDS)
    return PolledFeed("alpaca", vendor, symbols)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setenv("APCA_API_DATA_URL", "https://data.alpaca.markets")
    with serve(Fake(minute_table(symbols=2, sessions=5)), alpaca) as server:
        yield server


@pytest.fixture
def feed():
    return alpaca_feed(["AAA", "BBB"])


def moment(text):
    return int(pd.Timestamp(text, tz="America/New_York").value)


def test_a_poll_gives_closed_bars_and_no_other(fake, feed):
    now = moment("2016-01-05 10:00:05")
    bars = feed.poll(moment("2016-01-05 09:50"), now)
    assert bars.symbols == ("AAA", "BBB")
    minutes = np.unique(bars.ts)
    assert (minutes + MINUTE <= now).all()
    assert (int(minutes[0]), int(minutes[-1])) == (
        moment("2016-01-05 09:50"),
        moment("2016-01-05 09:59"),
    )
    mine = fake.table[fake.table.ticker == "AAA"].set_index("ts").close
    row = np.flatnonzero((bars.ts == minutes[3]) & (bars.symbol == 0))[0]
    assert bars.close[row] == mine[pd.Timestamp(minutes[3], tz="UTC")]


def test_history_is_asked_for_page_by_page(fake, feed):
    bars = feed.history(moment("2016-01-04 09:30"), moment("2016-01-06 09:30"))
    assert len(bars) == 2 * 2 * 390
    assert len(fake.requests) == 4


def test_a_busy_vendor_is_asked_again_with_the_next_minute(fake, feed):
    fake.faults = [429]
    assert len(feed.poll(moment("2016-01-05 09:50"), moment("2016-01-05 10:00:05"))) == 0
    assert len(feed.poll(moment("2016-01-05 09:50"), moment("2016-01-05 10:01:05"))) == 22


def test_refused_keys_are_no_silence(fake, feed):
    fake.faults = [403]
    with pytest.raises(DataError, match="APCA_API_KEY_ID") as error:
        feed.poll(moment("2016-01-05 09:50"), moment("2016-01-05 10:00:05"))
    assert SECRET not in str(error.value)


def test_splits_of_the_day_are_announced(fake, feed):
    fake.actions = [("AAA", "2016-01-06", 2.0, 0.0)]
    (action,) = feed.actions(dt.date(2016, 1, 4), dt.date(2016, 1, 6))
    assert (action.symbol, action.day, action.split) == ("AAA", dt.date(2016, 1, 6), 2.0)


def test_daily_bars_are_no_live_feed():
    with pytest.raises(DeployError, match="after the close"):
        open_live_feed("alpaca", settings(bar_minutes=390), ["AAA"])


def test_a_replay_asks_nobody(tmp_path, monkeypatch):
    asked = []

    def reached(host, *_, **__):
        asked.append(str(host))
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", reached)
    monkeypatch.setattr(socket.socket, "connect", reached)
    data = settings(features={"names": ["return_1"]}, windows={"fractions": [0.6, 0.3, 0.1]})
    bundle, market = frozen(tmp_path, data)
    replayed(tmp_path, bundle, market).close()
    assert asked == []


def test_a_run_on_a_vendors_bars_is_replayed_from_its_store(fake, tmp_path):
    data = read_settings(
        {
            "source": {"kind": "alpaca"},
            "start": "2016-01-04",
            "universe": {"symbols": ["AAA", "BBB"]},
            "features": {"names": ["return_1"], "context": []},
        }
    )
    last = dt.date(2016, 1, 8)
    first = ReplayFeed(data, ["AAA", "BBB"], cache=tmp_path, until=last)
    asked = len(fake.requests)
    again = ReplayFeed(data, ["AAA", "BBB"], cache=tmp_path, until=last)
    assert len(fake.requests) == asked > 0  # nothing newer, and nothing twice
    now = moment("2016-01-05 10:00:05")
    assert (
        len(again.poll(moment("2016-01-05 09:50"), now))
        == len(first.poll(moment("2016-01-05 09:50"), now))
        == 20
    )


def test_a_bar_of_five_minutes_that_is_not_over_is_none(monkeypatch):
    now = pd.Timestamp("2016-03-15 14:32:30", tz="UTC").timestamp()
    with LoopbackMarket(now=lambda: now) as server:
        monkeypatch.setenv("APCA_API_DATA_URL", server.endpoint)
        feed = alpaca_feed(["AAA"], bar_minutes=5)
        bars = feed.poll(int((now - 1200) * 1e9), int(now * 1e9))
        minutes = sorted(
            pd.Timestamp(moment, unit="ns").strftime("%H:%M") for moment in bars.ts.tolist()
        )
        assert minutes == ["14:15", "14:20", "14:25"]  # the bar of 14:30 is on its way
        there = server.bars.rows("AAA", now - 300, now, 5)
        assert [row["t"][11:16] for row in there] == ["14:30"]


def test_a_data_server_that_falls_silent_holds_nothing_up(monkeypatch):
    now = pd.Timestamp("2016-03-15 14:32:05", tz="UTC").timestamp()
    with LoopbackMarket(now=lambda: now, faults={1: "hang"}, hang_s=3000) as server:
        monkeypatch.setenv("APCA_API_DATA_URL", server.endpoint)
        feed = alpaca_feed(["AAA"])
        assert feed._vendor.timeout_seconds == LIMIT_SECONDS
        feed._vendor.timeout_seconds = 0.5
        since = int((now - 605) * 1e9)
        at = int(now * 1e9)
        assert not len(feed.poll(since, at))  # given up, and asked again with the next bar
        assert server.fired == ["hang"]
        assert len(feed.poll(since, at)) == 10
