"""Sources of a deployment's bars: a run's bars played again, or a vendor's as they are made."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from fintrader.bars.bars import MINUTE_NS, Bars, bar_length
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.corporate_actions import Action, add_announced, load_actions
from fintrader.bars.sources.alpaca import Alpaca
from fintrader.bars.sources.crypto import Ccxt
from fintrader.bars.sources.vendor import Busy, Refused
from fintrader.bars.sources.vendor_settings import (
    INTERVALS,
    AlpacaSettings,
    CcxtSettings,
    VendorSettings,
)
from fintrader.deploy.received_bars import join_bars
from fintrader.deploy.rows import Level
from fintrader.errors import DataError, DeployError
from fintrader.market.bar_source import open_feed
from fintrader.market.settings import DataSettings

LIMIT_SECONDS = 10.0
"""Time limit of a live request: short, since the next bar is near and a halt waits for the
request."""
_TRIES = 4
"""Requests for the bars before the first decision, a second or more apart."""


class LiveFeed(Protocol):
    """A source of bars, symbol by symbol, as they are known at a moment."""

    kind: str

    def history(self, first: int, stop: int) -> Bars:
        """Fetch the bars that begin in `[first, stop)`, ns. Raises DataError."""

    def poll(self, since: int, now: int) -> Bars:
        """Fetch the bars that begin at `since` or later and have closed by `now`; none if no
        answer comes in time."""

    def actions(self, first: dt.date, last: dt.date) -> Sequence[Action]:
        """Fetch the splits and dividends that are known of these days."""

    def level(self, grid: SessionGrid) -> Level | None:
        """Return the index of a synthetic source; None for other sources."""


class ReplayFeed:
    """The bars that a run was made of, one after another as they would have come."""

    kind = "replay"

    def __init__(
        self,
        settings: DataSettings,
        symbols: Sequence[str],
        *,
        cache: Path | None = None,
        until: dt.date | None = None,
    ) -> None:
        """cache: folder of markets and of a vendor's bars; until: the last day that is played.

        Raises DataError where the bars no longer exist.
        """
        if isinstance(settings.source, VendorSettings) and settings.end is None:
            settings = settings.model_copy(update={"end": until})  # no newer day is asked for
        # the bars were compared with daily ones when the policy's market was built
        self._feed = open_feed(settings.model_copy(update={"daily": None}), cache)
        self._feed.prepare(None)
        self.companies = dict(self._feed.companies)
        known = set(self._feed.symbols)
        bars = [
            self._feed.bars(symbol).without_empty().sorted()
            for symbol in symbols
            if symbol in known
        ]
        # A daily bar is as long as a session, although two of them begin a day or more apart.
        self.bar_ns = min(min(map(bar_length, bars)), settings.bar_minutes) * MINUTE_NS
        """Length of a bar of the source."""
        joined = join_bars(bars)
        self._bars = joined.take(np.argsort(joined.ts, kind="stable"))
        declared = load_actions(settings.actions, self._feed.holder)
        self._actions = add_announced(declared, self._feed.actions)[0]

    def level(self, grid: SessionGrid) -> Level | None:
        index = self._feed.index(grid)
        return None if index is None else (grid.minutes, index)

    def poll(self, since: int, now: int) -> Bars:
        return self.history(since, now - self.bar_ns + 1)

    def actions(self, first: dt.date, last: dt.date) -> Sequence[Action]:
        return [action for action in self._actions if first <= action.day <= last]

    def history(self, first: int, stop: int) -> Bars:
        return self._bars.take(slice(*np.searchsorted(self._bars.ts, [first, stop])))


class PolledFeed:
    """Bars of Alpaca, or of an exchange in ccxt, as they are made, asked for once a bar."""

    def __init__(self, kind: str, vendor: Alpaca | Ccxt, symbols: Sequence[str]) -> None:
        self.kind = kind
        self.symbols = list(symbols)
        self._vendor = vendor
        self._bar_ns = vendor.settings.bar_minutes * MINUTE_NS

    def history(self, first: int, stop: int) -> Bars:
        for number in range(_TRIES):
            try:
                return self._request_bars(first, stop)
            except Busy as error:
                busy = error
                time.sleep(2.0**number)
        raise DataError(
            f"{self.kind} does not give the bars before the first decision ({busy}); try again"
        )

    def poll(self, since: int, now: int) -> Bars:
        try:
            return self._request_bars(since, now - self._bar_ns + 1)  # closed bars only
        except Busy:  # the next minute asks again
            return join_bars([])

    def actions(self, first: dt.date, last: dt.date) -> Sequence[Action]:
        try:
            return self._vendor.announced(self.symbols, first, last)
        except Busy as error:
            raise DataError(
                f"{self.kind} does not send splits and dividends ({error}); try again"
            ) from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise DataError(
                f"{self.kind} sends a split or dividend that cannot be read ({error!r}); try again"
            ) from error

    def level(self, grid: SessionGrid) -> Level | None:
        return None

    def _request_bars(self, first: int, stop: int) -> Bars:
        parts = []
        for start in range(0, len(self.symbols), self._vendor.batch):
            names = self.symbols[start : start + self._vendor.batch]
            try:
                parts += [*self._vendor.between(names, first, stop).values()]
            except Refused as error:
                raise DataError(f"{error}; the policy was trained on these tickers") from None
        return join_bars(parts)


def open_live_feed(
    kind: str,
    settings: DataSettings,
    symbols: Sequence[str],
    *,
    cache: Path | None = None,
    until: dt.date | None = None,
) -> LiveFeed:
    """Open a deployment's feed (`cache` and `until`: of `ReplayFeed`). Raises DeployError for live
    daily bars."""
    if kind == "replay":
        return ReplayFeed(settings, symbols, cache=cache, until=until)
    if settings.bar_minutes >= 390:
        raise DeployError(
            "a live feed needs bars shorter than 390 minutes, since a day's bar is known only after"
            " the close; train with a smaller data.bar_minutes"
        )
    source = settings.source
    vendor: Alpaca | Ccxt
    if kind == "alpaca":
        chosen = source if isinstance(source, AlpacaSettings) else AlpacaSettings()
        vendor = Alpaca(chosen, timeout_seconds=LIMIT_SECONDS)
    else:
        length = max(minutes for minutes in INTERVALS if settings.bar_minutes % minutes == 0)
        bars = CcxtSettings.model_validate({"exchange": kind, "bar_minutes": length})
        vendor = Ccxt(bars)
    return PolledFeed(kind, vendor, symbols)
