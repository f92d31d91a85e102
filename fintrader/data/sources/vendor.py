"""Bars from a vendor's servers: asked for once, month by month, and kept in the store.

Only days that are over are asked for, so that what is stored does not change any more. A killed download continues
where it was; a second one asks for nothing; a new month adds only itself. Only the exchange's own sessions are kept.

That a ticker has no bars of a session is believed when two answers of different days say so: a server that fails may
well answer with nothing. Until then every build asks again.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
from pydantic import Field

from fintrader.config import Settings
from fintrader.data.bars import Array, Bars
from fintrader.data.calendar import day_starts, session_grid
from fintrader.data.chunks import Collection
from fintrader.data.sources.base import Feed
from fintrader.errors import DataError
from fintrader.progress import SILENT, Progress
from fintrader.storage.objects import Objects

log = logging.getLogger("fintrader.data")
ResultT = TypeVar("ResultT")


class VendorSettings(Settings):
    """What all vendors share."""

    symbols: tuple[str, ...] = ()
    """Tickers to ask for; those of `data.universe` (its list, or its index) when empty."""
    start: dt.date
    """First day."""
    end: dt.date | None = None
    """Last day, included; yesterday by default (today's bars are not over)."""
    retries: int = Field(4, ge=0)
    """How often a request that failed for a passing reason is made again."""
    backoff_seconds: float = Field(2.0, gt=0)
    """Wait before the first repetition; doubles with each one."""


class Busy(Exception):
    """The vendor failed for a reason that may pass: a rate limit, a server's fault, a broken line."""


class Vendor(Protocol):
    """How to ask one vendor."""

    name: str
    batch: int
    """Tickers per request."""
    daily: bool
    """Whether bars are whole days."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides the bars besides ticker and day: interval, feed, adjustment."""

    def earliest(self, today: dt.date) -> dt.date | None:
        """First day that the vendor still has, None when it is not known."""

    def fetch(self, symbols: Sequence[str], first: dt.date, last: dt.date) -> dict[str, Bars]:
        """Bars of the days `first` to `last` by ticker; a ticker without bars may be absent.

        Raises Busy for what may pass and DataError for what will not.
        """


class VendorFeed(Feed):
    """Bars of a vendor, by way of the store."""

    inputs_need_bars = True
    _collection: Collection

    def __init__(
        self,
        vendor: Vendor,
        settings: VendorSettings,
        symbols: Sequence[str],
        calendar: str,
        store: Objects,
        *,
        today: dt.date | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not symbols:
            raise DataError("no tickers to ask for; list them under data.source.symbols or set data.universe.index")
        self.vendor, self.settings, self.calendar = vendor, settings, calendar
        self.symbols = sorted(set(symbols))
        self._today = today or dt.datetime.now(dt.UTC).date()
        self._sleep = sleep
        self._store = store
        yesterday = self._today - dt.timedelta(days=1)
        self.end = min(settings.end or yesterday, yesterday)
        self._grid = session_grid(calendar, settings.start, self.end)
        self._months = sorted({str(day)[:7] for day in self._grid.dates})

    def prepare(self, progress: Progress | None = None) -> None:
        """Ask for what the store lacks. Raises DataError: no network, wrong keys, a rate limit, an unknown ticker."""
        with self._stored().objects.lock():
            collection = self._stored()
            requests = self._missing(collection)
            earliest = self.vendor.earliest(self._today)
            oldest = min((first for _, first, _ in requests), default=self._today)
            if earliest is not None and oldest < earliest:
                raise DataError(
                    f"{self.vendor.name} has no bars of this length before {earliest} any more (asked for {oldest}); "
                    "set data.source.start later, or choose longer bars"
                )
            with (progress or SILENT).task(f"ask {self.vendor.name}", total=len(requests), unit="requests") as task:
                for symbols, first, last in requests:
                    self._ask(collection, symbols, first, last)
                    task.advance(note=f"{symbols[0]} {first:%Y-%m}")
        self._collection = collection
        pieces = {name: collection.pieces(name, self._months) for name in self.symbols}
        unknown = [name for name in self.symbols if not pieces[name]]
        if unknown:
            raise DataError(
                f"{self.vendor.name} has no bars of {', '.join(unknown)} from {self.settings.start} to {self.end}; "
                "check the spelling, or whether it was listed then"
            )
        hashes = [piece["sha256"] for name in self.symbols for piece in pieces[name]]
        digest = hashlib.sha256(json.dumps(hashes).encode()).hexdigest()
        self.inputs = {"kind": self.vendor.name, **self.vendor.identity, "end": str(self.end), "sha256": digest}

    def planned(self) -> list[tuple[list[str], dt.date, dt.date]]:
        """(tickers, first day, last day) of each request that the store does not answer; asks for nothing."""
        return self._missing(self._stored())

    def _stored(self) -> Collection:
        return Collection.open(self._store, self.vendor.name, {"vendor": self.vendor.name, **self.vendor.identity})

    def span(self) -> tuple[int, int]:
        return int(self._grid.exchange_minutes[0]), int(self._grid.exchange_minutes[-1])

    def bars(self, symbol: str) -> Bars:
        bars = self._collection.bars(symbol, self._months)
        first, last = self.span()
        inside = (bars.ts >= first) & (bars.ts <= last)
        return replace(bars.take(inside), row=None).sorted()  # a session that came late stands last in the store

    def _missing(self, collection: Collection) -> list[tuple[list[str], dt.date, dt.date]]:
        """(tickers, first day, last day) of each request to make, within one month each."""
        dates = self._grid.dates
        months = dates.astype("datetime64[M]")
        requests = []
        for month in np.unique(months):
            first, last = dates[months == month][0].item(), dates[months == month][-1].item()
            groups: dict[dt.date, list[str]] = {}
            for name in self.symbols:
                known = collection.through.get(name, {}).get(str(month))
                done = known and dt.date.fromisoformat(known[0]) <= first
                begin = dt.date.fromisoformat(known[1]) + dt.timedelta(days=1) if known and done else first
                if begin <= last:
                    groups.setdefault(begin, []).append(name)
            for begin, names in sorted(groups.items()):
                size = self.vendor.batch
                requests += [(names[at : at + size], begin, last) for at in range(0, len(names), size)]
        return requests

    def _ask(self, collection: Collection, symbols: list[str], first: dt.date, last: dt.date) -> None:
        found = with_retries(
            lambda: self.vendor.fetch(symbols, first, last),
            self.vendor.name,
            self.settings.retries,
            self.settings.backoff_seconds,
            self._sleep,
        )
        month = f"{first:%Y-%m}"
        request = {"symbols": symbols, "first": str(first), "last": str(last), **self.vendor.identity}
        for name in symbols:
            bars = self._inside(found[name]) if name in found else None
            if bars is not None and collection.pieces(name, [month]):
                bars = bars.take(~np.isin(bars.ts, collection.bars(name, [month]).ts))
            if bars is not None and len(bars):
                collection.add(name, month, bars, request)
            self._settle(collection, name, first, last)
        collection.save()

    def _settle(self, collection: Collection, name: str, first: dt.date, last: dt.date) -> None:
        """Note through which session a ticker's bars need not be asked for again."""
        month = f"{first:%Y-%m}"
        missing = self._without_bars(collection, name, first, last)
        unconfirmed = collection.unconfirmed.setdefault(name, {})
        asked, until = unconfirmed.pop(month, [str(self._today), ""])
        if asked < str(self._today) and name in collection.chunks:  # the same answer on another day
            missing, asked = [day for day in missing if str(day) > until], str(self._today)
        through = last
        if missing:
            unconfirmed[month] = [asked, str(last)]
            log.warning("%s has no bars of %s on %s", self.vendor.name, name, _listed(missing))
            through = missing[0] - dt.timedelta(days=1)
        if not unconfirmed:
            del collection.unconfirmed[name]
        if through >= first:
            known = collection.through.setdefault(name, {}).get(month)
            since = known[0] if known and dt.date.fromisoformat(known[1]) < first else str(first)
            collection.through[name][month] = [since, str(through)]

    def _without_bars(self, collection: Collection, name: str, first: dt.date, last: dt.date) -> list[dt.date]:
        """Sessions from `first` to `last`, of one month, of which the store has no bar of this ticker."""
        month = f"{first:%Y-%m}"
        has_bars: Array = np.zeros(self._grid.num_sessions, dtype=bool)
        if collection.pieces(name, [month]):
            at = self._grid.locate(collection.bars(name, [month]).ts)
            has_bars[self._grid.session[at[at >= 0]]] = True  # the month may hold days that are not asked for now
        return [
            day
            for day, found in zip(self._grid.dates.tolist(), has_bars, strict=True)
            if first <= day <= last and not found
        ]

    def _inside(self, bars: Bars) -> Bars:
        """Bars of the exchange's sessions; a day's bar is moved to its session's first minute."""
        if self.vendor.daily:
            bars = replace(bars, ts=day_starts(self.calendar, "UTC", bars.ts))
        return bars.take(self._grid.locate(bars.ts) >= 0)


def _listed(days: Sequence[dt.date]) -> str:
    return f"{days[0]}" if len(days) == 1 else f"{len(days)} sessions from {days[0]} to {days[-1]}"


def with_retries(
    call: Callable[[], ResultT], name: str, retries: int, backoff_seconds: float, sleep: Callable[[float], None]
) -> ResultT:
    """`call()`, again after each Busy with doubling waits. Raises DataError when it stays busy."""
    for attempt in range(retries + 1):
        try:
            return call()
        except Busy as busy:
            reason = busy
            if attempt < retries:
                sleep(backoff_seconds * 2**attempt)
    raise DataError(f"{name} does not answer: {reason}; check the network, or try again later (it continues from here)")
