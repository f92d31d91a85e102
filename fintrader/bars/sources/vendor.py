"""Bars from a vendor's servers: each is requested once and kept in the store, by month.

Only days that are over are requested, so that stored bars never change. A download that was killed
continues where it stopped, and a complete one is not requested again. Only bars of the exchange's
sessions are kept.

If an answer has no bars of a session, the server may just have failed. So the session counts as
empty only after a second such answer on another day; until then, the first two builds of each day
request it again.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from fintrader.bars.bars import PRICES, Bars, concat
from fintrader.bars.calendar import day_starts, resolve_calendar, session_grid
from fintrader.bars.chunks import Chunk, Collection, decode
from fintrader.bars.clean import refuse_bad_rows
from fintrader.bars.corporate_actions import Action
from fintrader.bars.sources.announced import (
    Adjustment,
    Announced,
    is_outdated,
    scale,
    select_for_accounts,
)
from fintrader.bars.sources.feed import Feed
from fintrader.bars.sources.vendor_settings import VendorSettings
from fintrader.errors import BarError, DataError
from fintrader.files import hash_bytes
from fintrader.progress import SILENT, Progress, format_duration, shorten_list
from fintrader.storage.objects import ObjectStore

log = logging.getLogger("fintrader.bars")
ResultT = TypeVar("ResultT")
_SAVE_SECONDS = 20.0
"""Seconds between two writes of the manifest; a killed download loses the bars of at most this
time. For the members of an index a write takes a second."""
TIMEOUT_SECONDS = 20.0
"""Seconds to wait for an answer before the request is repeated; a page takes a second or two."""


_SHARE_CLASS = re.compile(r"(?<=[A-Z])[.-](?=[ABC]$)")


def spell_share_class(symbol: str, sign: str) -> str:
    """Spell a ticker's share class with the vendor's `sign`: BRK.B or BRK-B."""
    return _SHARE_CLASS.sub(sign, symbol)


class Request(NamedTuple):
    """A request for the bars of some tickers on the days `first` to `last`."""

    symbols: list[str]
    first: dt.date
    last: dt.date

    @property
    def month(self) -> str:
        """Month of the first day, like 2016-01."""
        return f"{self.first:%Y-%m}"


class Busy(Exception):
    """The vendor failed for a reason that may pass: a rate limit, an error of the server, a broken
    connection."""

    def __init__(self, reason: str, cause: BaseException | None = None) -> None:
        """cause: the client's error, by which `is_offline` is decided: no server was reached."""
        super().__init__(reason)
        # requests, curl_cffi and Python each have their own ConnectionError
        self.is_offline = "ConnectionError" in [kind.__name__ for kind in type(cause).__mro__]


class RateLimit:
    """A limit on the number of requests in any 60 seconds."""

    def __init__(self, limit: int) -> None:
        self._begun: deque[float] = deque(maxlen=limit)

    def wait(self) -> None:
        """Wait until a further request may begin, and count it."""
        if len(self._begun) == self._begun.maxlen:
            time.sleep(max(0.0, self._begun[0] + 60 - time.monotonic()))
        self._begun.append(time.monotonic())


class Refused(DataError):
    """The vendor rejects a request, as for an unknown ticker or day."""


class Vendor:
    """Requests to one vendor. A subclass implements `fetch` or `fetch_ticker`; the other methods
    have defaults."""

    name: str
    batch: int
    """Tickers per request."""
    adjustment: Adjustment
    """Kinds of actions that the vendor's prices are adjusted for, as of the day of the request."""
    settings: VendorSettings
    requests_a_minute = 60
    """Rate by which the duration of a download is estimated."""

    @property
    def months(self) -> int:
        """Most months per request: all for daily bars, 12 for hourly bars, else one."""
        return {"1d": 10_000, "1h": 12}.get(self.settings.interval, 1)

    @property
    def page(self) -> int | None:
        """Approximate number of bars per request; None: all of a ticker."""
        return None

    def list_traps(self) -> dict[str, str]:
        """Return the vendor's peculiarities that a user should know: title -> sentence."""
        return {}

    @property
    def identity(self) -> dict[str, str]:
        """Settings that decide the bars, such as interval, feed and adjustment: name -> value."""
        others = self.settings.model_dump(exclude={"kind", "actions", "bar_minutes"})
        return {"interval": self.settings.interval, **others}

    def earliest(self, today: dt.date) -> dt.date | None:
        """Return the first day of which the vendor still has bars, None if it is not known."""
        return None

    def fetch(self, symbols: Sequence[str], first: dt.date, last: dt.date) -> dict[str, Bars]:
        """Request the bars of the days `first` to `last`, by ticker; a ticker without bars may be
        absent.

        Raises Busy for a failure that may pass, Refused for an unknown ticker, and DataError for
        other failures.
        """
        answers = {name: self.fetch_ticker(name, first, last) for name in symbols}
        return {name: bars for name, bars in answers.items() if bars is not None}

    def fetch_ticker(self, symbol: str, first: dt.date, last: dt.date) -> Bars | None:
        """Request the bars of one ticker, for a vendor that takes one ticker per request; None
        without bars. Raises like `fetch`."""
        raise NotImplementedError

    def announced(self, symbols: Sequence[str], first: dt.date, last: dt.date) -> list[Action]:
        """Request the splits and cash dividends with ex-dates from `first` to `last`; dividends in
        USD per share as paid on that day.

        Raises like `fetch`.
        """
        return []


class CalendarDays(NamedTuple):
    """A range of days of an exchange's calendar."""

    calendar: str
    first: dt.date
    last: dt.date | None = None
    """The last day, included; None: yesterday."""


class VendorFeed(Feed):
    """Bars of a vendor, kept in a store.

    listed: True if a person listed the tickers, as opposed to the members of an index. A listed
    ticker without bars is an error; others are only named in `missing`.
    """

    inputs_need_bars = True
    retries = 5
    """Number of times that a request is repeated after failures that may pass."""
    _collection: Collection

    def __init__(
        self,
        vendor: Vendor,
        symbols: Sequence[str],
        days: CalendarDays,
        store: ObjectStore,
        *,
        listed: bool = True,
        today: dt.date | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not symbols:
            raise DataError(
                "no tickers to request; list them under data.universe.symbols or set"
                " data.universe.members"
            )
        self.vendor = vendor
        self.calendar = days.calendar
        self.asked = self.symbols = sorted(set(symbols))
        self._listed = listed
        self.today = self.tickers_as_of = today or dt.datetime.now(dt.UTC).date()
        self._sleep = sleep
        self._store = store
        self._is_reached = False
        self._silent: dict[str, list[dt.date]] = {}
        self.num_outside = 0
        """Number of rows received by this process outside of all sessions and extended hours."""
        yesterday = self.today - dt.timedelta(days=1)
        self.start = days.first
        self.end = min(days.last or yesterday, yesterday)
        self._grid = session_grid(days.calendar, self.start, self.end)
        months = self._grid.dates.astype("datetime64[M]")
        self._edges = {
            str(month): (days[0].item(), days[-1].item())
            for month in np.unique(months)
            for days in [self._grid.dates[months == month]]
        }
        """Month -> dates of its first and its last session."""
        self._months = list(self._edges)

    def prepare(self, progress: Progress | None = None) -> None:
        """Request the bars and actions that the store lacks. Raises DataError without a network,
        and for wrong keys, a rate limit or an unknown ticker."""
        with self._open_stored().objects.lock():
            self._collection = self._open_stored()
            self._announced = Announced(self._collection.objects)
            self._download(progress)
        chunks = {name: self.list_chunks(name) for name in self.asked}
        self.symbols = [name for name in self.asked if chunks[name]]
        self.missing = [name for name in self.asked if not chunks[name]]
        if self.missing and (self._listed or not self.symbols):
            raise DataError(
                f"{self.vendor.name} has no bars of {', '.join(self.missing)} from"
                f" {self.start} to {self.end}; check the spelling, or whether it was"
                " listed then"
            )
        self.actions = tuple(self._select_actions())
        hashes = [
            (chunk.sha256, self._scale(name, chunk))
            for name in self.symbols
            for chunk in chunks[name]
        ]
        actions = [action.model_dump(mode="json") for action in self.actions]
        digest = hash_bytes(json.dumps([hashes, actions]).encode())
        self.inputs = {
            "kind": self.vendor.name,
            **self.vendor.identity,
            "end": str(self.end),
            "sha256": digest,
        }

    def _download(self, progress: Progress | None) -> None:
        requests = self._plan()
        wanted = {name for request in requests for name in request.symbols}
        self._request_actions(wanted)
        if self._forget(wanted):
            requests = self._plan()
        earliest = self.vendor.earliest(self.today)
        oldest = min((request.first for request in requests), default=self.today)
        if earliest is not None and oldest < earliest:
            raise DataError(
                f"{self.vendor.name} has no bars of this length before {earliest}"
                f" (asked for {oldest}); set data.start later, or choose longer bars"
            )
        shown = progress if progress is not None and requests else SILENT
        with shown.task(f"ask {self.vendor.name}", total=len(requests), unit="requests") as task:
            saved = time.monotonic()
            try:
                for request in requests:
                    self._request_bars(request)
                    task.advance(note=f"{request.symbols[0]} {request.month}")
                    if time.monotonic() > saved + _SAVE_SECONDS:
                        self._collection.save()
                        saved = time.monotonic()
            finally:
                self._collection.save()
        # once more, for tickers whose first bars came with these requests
        self._request_actions(wanted)
        self._warn_of_silence()

    def _warn_of_silence(self) -> None:
        """Warn of sessions without bars, in one message for all tickers."""
        named = [
            f"{name} on {days[0]}"
            if len(days) == 1
            else f"{name} on {len(days)} sessions from {days[0]} to {days[-1]}"
            for name, days in self._silent.items()
        ]
        if named:
            log.warning("%s has no bars of %s", self.vendor.name, shorten_list(named))
        self._silent.clear()

    def _select_actions(self) -> Iterator[Action]:
        """Yield the actions of the range that the prices are not adjusted for; one on a day off is
        moved to the next session."""
        dates = self._grid.dates
        for name in self.symbols:
            known = self._announced.list_actions(name)
            for action in select_for_accounts(known, self.vendor.adjustment, self._basis(name)):
                if self.start <= action.day <= dates[-1]:
                    day = dates[np.searchsorted(dates, np.datetime64(action.day))].item()
                    yield action.model_copy(update={"day": day})

    def list_requests(self) -> list[Request]:
        """List the requests for bars that the store lacks, without making any."""
        self._collection = self._open_stored()
        return self._plan()

    def describe_size(self) -> str:
        """Describe what is still to be downloaded, its size and the time it takes, in two lines for
        a terminal; empty if nothing is missing."""
        requests = self.list_requests()
        if not requests:
            return ""
        interval = self.vendor.settings.bar_minutes
        rows = sum(
            len(request.symbols) * len(self.list_sessions(request.first, request.last))
            for request in requests
        ) * max(1, self.session_minutes // interval)
        page = self.vendor.page
        tickers = [name for request in requests for name in request.symbols]
        count = max(len(requests), -(-rows // page)) if page else len(tickers)
        megabytes = max(1.0, rows * (60 if interval > 60 else 18) / 1e6)
        seconds = 60 * max(1, count // self.vendor.requests_a_minute)
        return (
            f"to be downloaded: {len(set(tickers))} tickers, {len(self._grid.dates):,} sessions, at"
            f" most {rows:,} bars;\nestimated: {megabytes:,.0f} MB in {self._store}, {count:,}"
            f" requests, {format_duration(seconds)} or more. If stopped, the same command resumes."
        )

    def list_sessions(self, first: dt.date, last: dt.date) -> list[dt.date]:
        """List the feed's sessions from `first` to `last`, both included."""
        dates = self._grid.dates
        inside = (dates >= np.datetime64(first)) & (dates <= np.datetime64(last))
        return [*dates[inside].tolist()]

    @property
    def session_minutes(self) -> int:
        """Number of minutes of the longest session."""
        return int(self._grid.session_minutes.max())

    def list_chunks(self, symbol: str) -> list[Chunk]:
        """List a ticker's stored chunks of the feed's months."""
        return self._collection.list_chunks(symbol, self._months)

    def stored(self) -> list[Collection]:
        return [self._open_stored()]

    def _open_stored(self) -> Collection:
        identity = {"vendor": self.vendor.name, **self.vendor.identity}
        if resolve_calendar(self.calendar) != "XNYS":
            # stored bars depend on the calendar: its sessions are kept, daily bars have their opens
            identity["calendar"] = self.calendar
        return Collection.open(self._store, self.vendor.name, identity)

    def span(self) -> tuple[int, int]:
        return int(self._grid.exchange_minutes[0]), int(self._grid.exchange_minutes[-1])

    def bars(self, symbol: str) -> Bars:
        parts = []
        for chunk in self.list_chunks(symbol):
            bars = decode(self._collection.read(chunk), symbol, str(self._collection.objects))
            ratio = self._scale(symbol, chunk)
            if ratio != 1:
                prices = {name: getattr(bars, name) / ratio for name in PRICES}
                bars = replace(bars, **prices, volume=bars.volume * ratio)
            parts.append(bars)
        bars = concat(parts)
        first, last = self.span()
        inside = (bars.ts >= first) & (bars.ts <= last)
        # sorted, because a session that was answered late stands last in the store
        return replace(bars.take(inside), row=None).sorted()

    def _basis(self, name: str) -> dt.date:
        """Return the day as of which a ticker's prices are adjusted: the day of its last
        request."""
        return max(chunk.asked for chunk in self.list_chunks(name))

    def _scale(self, name: str, chunk: Chunk) -> float:
        """Return the divisor that puts a chunk's prices on the scale of the ticker's last
        request."""
        if self.vendor.adjustment not in ("split", "all"):
            return 1.0
        return scale(self._announced.list_actions(name), chunk.asked, self._basis(name))

    def _request_actions(self, wanted: set[str]) -> None:
        """Request the actions of all tickers with bars that are not known up to the feed's last
        day; for the tickers in `wanted`, up to yesterday."""
        if not self.vendor.settings.actions:
            return
        first = self.start
        yesterday = self.today - dt.timedelta(days=1)
        lacking = {
            *self._announced.list_unknown(self.asked, first, self.end),
            *self._announced.list_unknown(wanted, first, yesterday),
        }
        names = sorted(name for name in lacking if self._collection.list_chunks(name))
        for batch in self._cut_batches(names):
            actions = self._request(self.vendor.announced, Request(batch, first, self.today))
            self._announced.put(batch, first, self.today, actions)

    def _forget(self, wanted: set[str]) -> bool:
        """Drop the stored bars of tickers in `wanted` that are outdated (`is_outdated`); return
        True if there were any."""
        collection = self._collection
        has_outdated = False
        for name in wanted:
            days = [chunk.asked for chunk in collection.list_chunks(name)]
            actions = self._announced.list_actions(name)
            if any(is_outdated(actions, self.vendor.adjustment, day, self.today) for day in days):
                for book in (collection.chunks, collection.through, collection.unconfirmed):
                    book.pop(name, None)
                collection.twice.pop(name, None)
                has_outdated = True
        return has_outdated

    def _cut_batches(self, names: list[str]) -> list[list[str]]:
        size = self.vendor.batch
        return [names[at : at + size] for at in range(0, len(names), size)]

    def _plan(self) -> list[Request]:
        """Plan the requests for bars that the collection lacks."""
        tickers: dict[tuple[dt.date, dt.date], list[str]] = {}
        for name in self.asked:
            for span in self._list_lacking(name):
                tickers.setdefault(span, []).append(name)
        return [
            Request(batch, *span)
            for span, names in sorted(tickers.items())
            for batch in self._cut_batches(names)
        ]

    def _list_lacking(self, name: str) -> list[tuple[dt.date, dt.date]]:
        """List the spans of days, first and last, that must be requested for a ticker."""
        earliest = self.vendor.earliest(self.today) or dt.date.min
        spans: list[tuple[dt.date, dt.date]] = []
        number = 0  # number of months in the last span
        for month, (first, last) in self._edges.items():
            begin = first
            known = self._collection.through.get(name, {}).get(month)
            if known is not None and known[0] <= str(first):
                begin = dt.date.fromisoformat(known[1]) + dt.timedelta(days=1)
                begin = max(begin, earliest)  # the vendor no longer keeps older bars
            if begin > last or self._was_asked_twice(name, month, last):
                number = self.vendor.months
            elif number < self.vendor.months and spans and begin == first:
                spans[-1] = spans[-1][0], last
                number += 1
            else:
                spans.append((begin, last))
                number = 1
        return spans

    def _was_asked_twice(self, name: str, month: str, last: dt.date) -> bool:
        """Report whether two answers of today had no bars of some session up to `last`."""
        _, until = self._collection.unconfirmed.get(name, {}).get(month, ("", ""))
        day = self._collection.twice.get(name, {}).get(month)
        return day == str(self.today) and until >= str(last)

    def _request_bars(self, request: Request) -> None:
        collection = self._collection
        answers = self._fetch(request)
        asked = {"asked": str(self.today), **self.vendor.identity}
        for name in request.symbols:
            bars = self._keep_sessions(answers[name]) if name in answers else None
            if bars is not None:
                months = self._grid.dates[self._grid.session[self._grid.locate(bars.ts)]]
                months = months.astype("datetime64[M]")
            for month, (first, last) in self._edges.items():
                if last < request.first or first > request.last:
                    continue
                part = Request(request.symbols, max(first, request.first), min(last, request.last))
                mine = None if bars is None else bars.take(months == np.datetime64(month))
                if mine and collection.list_chunks(name, [month]):
                    mine = mine.take(~np.isin(mine.ts, collection.bars(name, [month]).ts))
                if mine:
                    span = {"first": str(part.first), "last": str(part.last)}
                    collection.add(name, month, mine, {"symbols": request.symbols, **span, **asked})
                self._settle(name, part)

    def _fetch(self, request: Request) -> dict[str, Bars]:
        """Fetch bars by ticker. If the request is refused, request each ticker alone and leave out
        refused ones; raises Refused if a person listed the tickers."""
        try:
            return self._request(self.vendor.fetch, request)
        except Refused:
            if self._listed:
                raise
            alone = request.symbols if len(request.symbols) > 1 else ()
            answers: dict[str, Bars] = {}
            for name in alone:
                answers |= self._fetch(request._replace(symbols=[name]))
            return answers

    def _request(self, ask: Callable[..., ResultT], request: Request) -> ResultT:
        """Make a request, and repeat it after each Busy with doubling waits. Raises DataError if
        the vendor stays busy."""
        for attempt in range(self.retries + 1):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # clients warn about their dependencies
                    answer = ask(*request)
            except Busy as busy:
                reason = busy
                if busy.is_offline and not self._is_reached and attempt:
                    break
                if attempt < self.retries:
                    self._sleep(2.0 * 2**attempt)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise DataError(
                    f"{self.vendor.name}: the answer for {shorten_list(request.symbols)} has"
                    f" another form than expected ({type(error).__name__}); try again later, or"
                    " update the vendor's package"
                ) from None
            else:
                self._is_reached = True
                return answer
        state = (
            "does not answer" if self._is_reached or not reason.is_offline else "is out of reach"
        )
        raise DataError(
            f"{self.vendor.name} {state}: {reason}; check the network, or try again later"
            " (it continues from here)"
        )

    def sample(self, symbol: str) -> Bars | None:
        """Request the bars of a ticker without storing them; None without bars. Raises
        DataError."""
        request = Request([symbol], self.start, self.end)
        return self._request(self.vendor.fetch, request).get(symbol)

    def _settle(self, name: str, request: Request) -> None:
        """Record up to which session the bars of a ticker need no further request."""
        collection = self._collection
        month = request.month
        missing = self._find_empty_sessions(name, request)
        unconfirmed = collection.unconfirmed.setdefault(name, {})
        asked, until = unconfirmed.pop(month, (str(self.today), ""))
        if asked < str(self.today) and (name in collection.chunks or not self._listed):
            # an answer on another day confirms that sessions up to `until` have no bars
            missing = [day for day in missing if str(day) > until]
            asked = str(self.today)
        elif until and missing:
            collection.twice.setdefault(name, {})[month] = asked
        through = request.last
        if missing:
            unconfirmed[month] = asked, str(through)
            if month not in collection.twice.get(name, ()):
                self._silent.setdefault(name, []).extend(missing)
            through = missing[0] - dt.timedelta(days=1)
        if not unconfirmed:
            del collection.unconfirmed[name]
        if through >= request.first:
            first = str(request.first)
            known = collection.through.setdefault(name, {}).get(month)
            since = known[0] if known and known[1] < first else first
            collection.through[name][month] = since, str(through)

    def _find_empty_sessions(self, name: str, request: Request) -> list[dt.date]:
        """List the sessions of a request of which no bar of a ticker is stored."""
        held = set[dt.date]()
        if self._collection.list_chunks(name, [request.month]):
            at = self._grid.locate(self._collection.bars(name, [request.month]).ts)
            held = {*self._grid.dates[self._grid.session[at[at >= 0]]].tolist()}
        wanted = self.list_sessions(request.first, request.last)
        return [day for day in wanted if day not in held]

    def _keep_sessions(self, bars: Bars) -> Bars:
        """Keep the bars of the exchange's sessions; daily bars are moved to the open of their
        session. Raises BarError for impossible bars, which must not get into the store."""
        if self.vendor.settings.interval == "1d":
            bars = replace(bars, ts=day_starts(self.calendar, "UTC", bars.ts))
        is_inside = self._grid.locate(bars.ts) >= 0
        is_outside = ~is_inside & ~self._grid.early_or_late(bars.ts)
        self.num_outside += int(np.count_nonzero(is_outside))
        bars = bars.take(is_inside)
        try:
            refuse_bad_rows(bars)
        except BarError as error:
            problem = str(error).partition("; correct")[0]
            raise BarError(f"{problem}; try again later, or leave the ticker out") from None
        return bars
