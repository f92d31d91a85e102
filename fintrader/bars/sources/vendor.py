"""Bars from a vendor's servers: asked for once, month by month, and kept in the store.

Only days that are over are asked for, so that what is stored does not change any more. A killed
download continues where it was; a second one asks for nothing; a new month adds only itself. Only
the exchange's own sessions are kept.

That a ticker has no bars of a session is believed when two answers of different days say so: a
server that fails may well answer with nothing. Until then every build asks again.
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

from fintrader.bars.bars import PRICES, Array, Bars, concat
from fintrader.bars.calendar import day_starts, session_grid
from fintrader.bars.chunks import Collection, decode
from fintrader.bars.corporate_actions import Action
from fintrader.bars.sources.announced import (
    Adjustment,
    Announced,
    asked_on,
    for_accounts,
    outdated,
    scale,
)
from fintrader.bars.sources.feed import Feed
from fintrader.bars.sources.vendor_settings import VendorSettings
from fintrader.errors import DataError
from fintrader.progress import SILENT, Progress
from fintrader.storage.objects import ObjectStore

log = logging.getLogger("fintrader.bars")
ResultT = TypeVar("ResultT")
_Request = tuple[list[str], dt.date, dt.date]
"""Tickers, first and last day."""


class Busy(Exception):
    """The vendor failed for a reason that may pass: a rate limit, a server's fault, a broken
    line."""


class Refused(DataError):
    """The vendor does not accept a request: a ticker that it does not know, or a day."""


class Vendor(Protocol):
    """How to ask one vendor."""

    name: str
    batch: int
    """Tickers per request."""
    daily: bool
    """Whether bars are whole days."""
    adjustment: Adjustment
    """What is in the prices, as of the day on which they are asked for."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides the bars besides ticker and day: interval, feed, adjustment."""

    def earliest(self, today: dt.date) -> dt.date | None:
        """First day that the vendor still has, None when it is not known."""

    def fetch(self, symbols: Sequence[str], first: dt.date, last: dt.date) -> dict[str, Bars]:
        """Bars of the days `first` to `last` by ticker; a ticker without bars may be absent.

        Raises Busy for what may pass, Refused for a ticker that it does not know, and DataError for
        what will not pass.
        """

    def announced(self, symbols: Sequence[str], first: dt.date, last: dt.date) -> list[Action]:
        """Splits and cash dividends with ex-dates from `first` to `last`, dividends as paid for a
        share of the day.

        Raises like `fetch`.
        """


class VendorFeed(Feed):
    """Bars of a vendor, by way of the store. Tickers that were not `listed` by hand may be without
    bars (`missing`)."""

    inputs_need_bars = True
    _collection: Collection

    def __init__(
        self,
        vendor: Vendor,
        settings: VendorSettings,
        symbols: Sequence[str],
        calendar: str,
        store: ObjectStore,
        *,
        listed: bool = True,
        today: dt.date | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not symbols:
            raise DataError(
                "no tickers to ask for; list them under data.source.symbols or set"
                " data.universe.index"
            )
        self.vendor = vendor
        self.settings = settings
        self.calendar = calendar
        self._asked = self.symbols = sorted(set(symbols))
        self._listed = listed
        self._today = self.tickers_as_of = today or dt.datetime.now(dt.UTC).date()
        self._sleep = sleep
        self._store = store
        yesterday = self._today - dt.timedelta(days=1)
        self.end = min(settings.end or yesterday, yesterday)
        self._grid = session_grid(calendar, settings.start, self.end)
        self._months = sorted({str(day)[:7] for day in self._grid.dates})

    def prepare(self, progress: Progress | None = None) -> None:
        """Ask for what the store lacks. Raises DataError: no network, wrong keys, a rate limit, an
        unknown ticker."""
        with self._stored().objects.lock():
            collection = self._stored()
            announced = Announced(collection.objects)
            requests = self._missing(collection)
            wanted = {name for names, _, _ in requests for name in names}
            self._hear(announced, wanted, collection)
            if self._forget(collection, announced, requests):
                requests = self._missing(collection)
            earliest = self.vendor.earliest(self._today)
            oldest = min((first for _, first, _ in requests), default=self._today)
            if earliest is not None and oldest < earliest:
                raise DataError(
                    f"{self.vendor.name} has no bars of this length before {earliest} any more"
                    f" (asked for {oldest}); set data.source.start later, or choose longer bars"
                )
            said = progress if progress is not None and requests else SILENT
            with said.task(f"ask {self.vendor.name}", total=len(requests), unit="requests") as task:
                for symbols, first, last in requests:
                    self._ask(collection, symbols, first, last)
                    task.advance(note=f"{symbols[0]} {first:%Y-%m}")
            self._hear(announced, wanted, collection)  # of those that have bars only now
        self._collection = collection
        self._announced = announced
        pieces = {name: collection.pieces(name, self._months) for name in self._asked}
        self.symbols = [name for name in self._asked if pieces[name]]
        self.missing = [name for name in self._asked if not pieces[name]]
        if self.missing and (self._listed or not self.symbols):
            raise DataError(
                f"{self.vendor.name} has no bars of {', '.join(self.missing)} from"
                f" {self.settings.start} to {self.end}; check the spelling, or whether it was"
                " listed then"
            )
        hashes = [
            (piece["sha256"], self._scale(name, piece))
            for name in self.symbols
            for piece in pieces[name]
        ]
        self.actions = tuple(
            action
            for name in self.symbols
            for action in for_accounts(
                announced.of(name), self.vendor.adjustment, self._basis(name)
            )
            if self.settings.start <= action.day <= self.end
        )
        told = [action.model_dump(mode="json") for action in self.actions]
        digest = hashlib.sha256(json.dumps([hashes, told]).encode()).hexdigest()
        self.inputs = {
            "kind": self.vendor.name,
            **self.vendor.identity,
            "end": str(self.end),
            "sha256": digest,
        }

    def planned(self) -> list[_Request]:
        """(tickers, first day, last day) of each request that the store does not answer; asks for
        nothing."""
        return self._missing(self._stored())

    def stored(self) -> list[Collection]:
        return [self._stored()]

    def _stored(self) -> Collection:
        return Collection.open(
            self._store, self.vendor.name, {"vendor": self.vendor.name, **self.vendor.identity}
        )

    def span(self) -> tuple[int, int]:
        return int(self._grid.exchange_minutes[0]), int(self._grid.exchange_minutes[-1])

    def bars(self, symbol: str) -> Bars:
        parts = []
        for piece in self._collection.pieces(symbol, self._months):
            bars = decode(self._collection.piece(piece), symbol, str(self._collection.objects))
            ratio = self._scale(symbol, piece)
            prices: dict[str, Any] = {name: getattr(bars, name) / ratio for name in PRICES}
            parts.append(
                bars if ratio == 1 else replace(bars, **prices, volume=bars.volume * ratio)
            )
        bars = concat(parts)
        first, last = self.span()
        inside = (bars.ts >= first) & (bars.ts <= last)
        return replace(
            bars.take(inside), row=None
        ).sorted()  # a session that came late stands last in the store

    def _basis(self, name: str) -> dt.date:
        """The day as of which a ticker's prices are adjusted: that of the last request for them."""
        return max(asked_on(piece) for piece in self._collection.pieces(name, self._months))

    def _scale(self, name: str, piece: Mapping[str, Any]) -> float:
        """By what a chunk's prices are divided to be on the scale of the last request's."""
        if self.vendor.adjustment not in ("split", "all"):
            return 1.0
        return scale(self._announced.of(name), asked_on(piece), self._basis(name))

    def _hear(self, announced: Announced, wanted: set[str], collection: Collection) -> None:
        """Ask what happened to the shares of which there are bars, of `wanted` until today."""
        if not self.settings.actions:
            return
        first = self.settings.start
        yesterday = self._today - dt.timedelta(days=1)
        lacking = {
            *announced.lacking(self._asked, first, self.end),
            *announced.lacking(wanted, first, yesterday),
        }
        names = sorted(name for name in lacking if collection.pieces(name))
        for at in range(0, len(names), self.vendor.batch):
            some = names[at : at + self.vendor.batch]
            announced.put(
                some,
                first,
                self._today,
                self._asking(self.vendor.announced, some, first, self._today),
            )

    def _forget(
        self, collection: Collection, announced: Announced, requests: Sequence[_Request]
    ) -> bool:
        """Drop what must be asked for again because the vendor has adjusted it for a dividend
        since."""
        found = False
        for name in {name for names, _, _ in requests for name in names}:
            days = [asked_on(piece) for piece in collection.pieces(name)]
            actions = announced.of(name)
            if any(outdated(actions, self.vendor.adjustment, day, self._today) for day in days):
                for known in (collection.chunks, collection.through, collection.unconfirmed):
                    known.pop(name, None)
                found = True
        return found

    def _missing(self, collection: Collection) -> list[_Request]:
        """(tickers, first day, last day) of each request to make, within one month each."""
        dates = self._grid.dates
        months = dates.astype("datetime64[M]")
        requests = []
        for month in np.unique(months):
            first = dates[months == month][0].item()
            last = dates[months == month][-1].item()
            groups: dict[dt.date, list[str]] = {}
            for name in self._asked:
                known = collection.through.get(name, {}).get(str(month))
                done = known and dt.date.fromisoformat(known[0]) <= first
                begin = (
                    dt.date.fromisoformat(known[1]) + dt.timedelta(days=1)
                    if known and done
                    else first
                )
                if begin <= last:
                    groups.setdefault(begin, []).append(name)
            for begin, names in sorted(groups.items()):
                size = self.vendor.batch
                requests += [
                    (names[at : at + size], begin, last) for at in range(0, len(names), size)
                ]
        return requests

    def _ask(
        self, collection: Collection, symbols: list[str], first: dt.date, last: dt.date
    ) -> None:
        found = self._fetch(symbols, first, last)
        month = f"{first:%Y-%m}"
        request = {
            "symbols": symbols,
            "first": str(first),
            "last": str(last),
            **self.vendor.identity,
        }
        request["asked"] = str(self._today)
        for name in symbols:
            bars = self._inside(found[name]) if name in found else None
            if bars is not None and collection.pieces(name, [month]):
                bars = bars.take(~np.isin(bars.ts, collection.bars(name, [month]).ts))
            if bars is not None and len(bars):
                collection.add(name, month, bars, request)
            self._settle(collection, name, first, last)
        collection.save()

    def _fetch(self, symbols: Sequence[str], first: dt.date, last: dt.date) -> dict[str, Bars]:
        """Bars by ticker. One that is refused costs no other its bars, unless it was listed by
        hand."""
        try:
            return self._asking(self.vendor.fetch, symbols, first, last)
        except Refused:
            if self._listed:
                raise
            alone = (
                [self._fetch([name], first, last) for name in symbols] if len(symbols) > 1 else []
            )
            return {name: bars for found in alone for name, bars in found.items()}

    def _asking(
        self, ask: Callable[..., ResultT], symbols: Sequence[str], first: dt.date, last: dt.date
    ) -> ResultT:
        settings = self.settings
        return with_retries(
            lambda: ask(symbols, first, last),
            self.vendor.name,
            settings.retries,
            settings.backoff_seconds,
            self._sleep,
        )

    def _settle(self, collection: Collection, name: str, first: dt.date, last: dt.date) -> None:
        """Note through which session a ticker's bars need not be asked for again."""
        month = f"{first:%Y-%m}"
        missing = self._without_bars(collection, name, first, last)
        unconfirmed = collection.unconfirmed.setdefault(name, {})
        asked, until = unconfirmed.pop(month, [str(self._today), ""])
        if asked < str(self._today) and (
            name in collection.chunks or not self._listed
        ):  # the same answer on another day
            missing = [day for day in missing if str(day) > until]
            asked = str(self._today)
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

    def _without_bars(
        self, collection: Collection, name: str, first: dt.date, last: dt.date
    ) -> list[dt.date]:
        """Sessions from `first` to `last`, of one month, of which the store has no bar of this
        ticker."""
        month = f"{first:%Y-%m}"
        has_bars: Array = np.zeros(self._grid.num_sessions, dtype=bool)
        if collection.pieces(name, [month]):
            at = self._grid.locate(collection.bars(name, [month]).ts)
            has_bars[self._grid.session[at[at >= 0]]] = (
                True  # the month may hold days that are not asked for now
            )
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
    call: Callable[[], ResultT],
    name: str,
    retries: int,
    backoff_seconds: float,
    sleep: Callable[[float], None],
) -> ResultT:
    """`call()`, again after each Busy with doubling waits. Raises DataError when it stays busy."""
    for attempt in range(retries + 1):
        try:
            return call()
        except Busy as busy:
            reason = busy
            if attempt < retries:
                sleep(backoff_seconds * 2**attempt)
    raise DataError(
        f"{name} does not answer: {reason}; check the network, or try again later (it continues"
        " from here)"
    )
