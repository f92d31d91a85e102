"""A deployment on a crypto account of this machine: ccxt, a loopback Binance, pairs round the clock.

Each call of `trade` is a life of its own, which goes on from the journal as another process would.
The server shows each bar of a made-up market from its begin on, before it has closed, with prices
that no closed bar has; orders fill at its close so far.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from fintrader.bars.sources.crypto import ENDPOINT
from fintrader.deploy.bundle import Bundle
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.feed import open_live_feed
from fintrader.deploy.journal import Journal
from fintrader.deploy.remote import RequestLimits
from fintrader.deploy.runner import Connections, Runner
from fintrader.deploy.settings import PaperSettings
from fintrader.deploy.spot import CcxtBroker
from fintrader.market.settings import DataSettings, read_settings
from tests.engines.alpaca_paper import SteppedClock
from tests.engines.binance_loopback import LoopbackBinance
from tests.engines.deployments import MINUTE, frozen

PAIRS = ("BTC/USDT", "ETH/USDT", "XRP/USDT")
PRICES = dict(zip(PAIRS, (50_000.0, 3_000.0, 2.5), strict=True))
LENGTH = 60
UNFINISHED = 1.5
"""Factor of the prices of a bar that has not closed."""


FOLDER = tempfile.TemporaryDirectory(prefix="fintrader-pairs-")


@cache
def make_table(days: int, first: str = "2024-02-01", seed: int = 5) -> pd.DataFrame:
    """Hourly bars of the pairs, every day of the week."""
    random = np.random.default_rng(seed)
    ts = pd.date_range(first, periods=days * 24, freq="h", tz="UTC")
    parts = []
    for symbol, price in PRICES.items():
        close = price * np.exp(np.cumsum(random.normal(0.0, 6e-3, len(ts))))
        opened = np.append(price, close[:-1])
        part = pd.DataFrame({"ts": ts, "symbol": symbol, "open": opened, "close": close})
        part["high"] = part[["open", "close"]].max(axis=1) * 1.001
        part["low"] = part[["open", "close"]].min(axis=1) * 0.999
        part["volume"] = 5e8 / price * random.uniform(0.5, 1.5, len(ts))
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


@cache
def settings(days: int) -> DataSettings:
    """Of a market of so many days, whose file is written once in a process."""
    path = Path(FOLDER.name) / f"{days}.csv"
    table = make_table(days)
    table.assign(ts=table.ts.dt.strftime("%Y-%m-%d %H:%M:%S")).rename(
        columns={"symbol": "ticker"}
    ).to_csv(path, index=False)
    return read_settings(
        {
            "bar_minutes": LENGTH,
            "calendar": "24/7",
            "path": str(path),
            "source": {"kind": "files", "timezone": "UTC", "bar_minutes": LENGTH},
            "features": {"names": ["return_1", "return_30", "rsi_2"], "context": []},
            "windows": {"fractions": [0.4, 0.2, 0.4], "embargo_sessions": 1},
        }
    )


class CryptoMarket:
    """A bundle, the window it trades, and the exchange."""

    def __init__(
        self,
        home: Path,
        *,
        days: int = 60,
        env: Mapping[str, Any] = MappingProxyType({}),
        **how: Any,
    ) -> None:
        """env: of the bundle; how: of the server."""
        self.home = home
        self.table = make_table(days)
        self.bundle: Bundle
        usual = {"fractional": True, "decision_interval": 2, "trade_rate": 1.0, "cost_bps": 10.0}
        self.bundle, self.market = frozen(
            home, settings(days), unchanged=True, **(usual | dict(env))
        )
        chosen = {"balances": {"USDT": 100_000.0}, **how}
        self.server = LoopbackBinance(prices=PRICES, **chosen)
        self.server.bars = self._list_bars
        self.server.clock = lambda: self.now / 1e9
        self.now = int(self.market.minutes[0])
        by_symbol = self.table.set_index("ts").groupby("symbol")
        self._rows = {name: rows.sort_index() for name, rows in by_symbol}
        self.at_minute: Callable[[int], object] = lambda now: None
        self.show_prices()

    def _list_bars(self, pair: str, start: int) -> Sequence[Any]:
        rows = self._rows[pair]
        begin = pd.Timestamp(start, unit="ms", tz="UTC")
        shown = rows[(rows.index >= begin) & (rows.index <= pd.Timestamp(self.now, tz="UTC"))]
        found = []
        for row in shown.itertuples():
            closes = row.Index.value + LENGTH * MINUTE
            factor = 1.0 if closes <= self.now else UNFINISHED
            prices = [f"{getattr(row, name) * factor:.8f}" for name in ("open", "high", "low")]
            prices.append(f"{row.close * factor:.8f}")
            tail = [closes // 1_000_000 - 1, "0", 1, "0", "0", "0"]
            found.append([row.Index.value // 1_000_000, *prices, f"{row.volume:.8f}", *tail])
        return found

    def show_prices(self) -> None:
        """Show the prices of this moment: the opens of the newest bars."""
        at = pd.Timestamp(self.now, tz="UTC")
        self.server.prices = {
            name: round(float(rows.open.iloc[rows.index.searchsorted(at, side="right") - 1]), 2)
            for name, rows in self._rows.items()
        }

    def _pass(self, now: int) -> None:
        is_new_bar = now // (LENGTH * MINUTE) != self.now // (LENGTH * MINUTE)
        self.now = now
        if is_new_bar:
            self.show_prices()
        self.at_minute(now)

    def connect(self) -> CcxtBroker:
        broker = CcxtBroker(
            "binance",
            self.bundle.symbols,
            self.server.endpoint,
            limits=RequestLimits(2.0, 1.0, 1_000_000, sleep=lambda seconds: None),
        )
        broker._client.enableRateLimit = False
        broker._client.milliseconds = lambda: self.now // 1_000_000
        return broker

    def trade(
        self, bars: int, *, change: Callable[[Runner], object] = lambda runner: None, **chosen: Any
    ) -> Journal:
        """Run the deployment up to a bar of the window; `change` gets the runner before it
        begins."""
        journal = Journal(self.home / JOURNAL, durable=False)
        tail = journal.tail(1)
        clock = SteppedClock(max(tail[0].time, self.now) if tail else int(self.market.minutes[0]))
        clock.at_minute = self._pass
        with patch.dict(os.environ, {ENDPOINT: self.server.endpoint}):
            feed = open_live_feed("binance", self.bundle.data, self.bundle.symbols)
        feed._vendor._client.enableRateLimit = False
        runner = Runner(
            self.bundle,
            PaperSettings(feed="binance", broker="binance", **chosen),
            Connections(clock, feed, self.connect(), journal),
            window=None,
            until=int(self.market.minutes[bars]) + LENGTH * MINUTE,
        )
        change(runner)
        try:
            runner.run()
        except BaseException:
            journal.close()
            raise
        return journal
