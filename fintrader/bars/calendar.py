"""The exchange's minutes, and the train, validation and test windows on them.

Sessions, half days and daylight saving come from exchange_calendars; windows are whole sessions
that never overlap.
"""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self
from zoneinfo import ZoneInfo

import numpy as np
from pydantic import Field, model_validator

from fintrader.bars.bars import MINUTE_NS, Array
from fintrader.config import Settings
from fintrader.errors import DataError
from fintrader.metrics import TRADING_DAYS

if TYPE_CHECKING:
    import pandas as pd

QUARTER_NS = 15 * MINUTE_NS
"""No zone's offset or change of clocks is finer, and nearly all sessions begin and end so."""


class Windows(NamedTuple):
    """Half-open ranges of bars `[start, stop)`; an embargo lies before validation and before
    test."""

    train: tuple[int, int]
    validation: tuple[int, int]
    test: tuple[int, int]


@dataclass(frozen=True, eq=False)
class SessionGrid:
    """All bars of a calendar between two dates: `S` sessions, `T` bars of `bar_minutes` (the last
    of a session may be shorter), `Q` exchange minutes below them."""

    calendar: str
    bar_minutes: int
    dates: Array
    """`[S]` datetime64[D], the exchange's own dates."""
    minutes: Array
    """`[T]` int64: start of each bar, nanoseconds since 1970 UTC."""
    session: Array
    """`[T]` int64: number of the session, 0 to S - 1."""
    exchange_minutes: Array
    """`[Q]` int64: start of each exchange minute, nanoseconds since 1970 UTC."""
    bar_of_minute: Array
    """`[Q]` int64: the bar in which an exchange minute lies."""
    open: Array
    """`[S]` int64: when each regular session opens, also where the grid's hours are longer."""
    close: Array
    """`[S]` int64: when each regular session closes: the end of its last minute."""
    extended: tuple[int, int] | None
    """Nanoseconds of trading before the open and after the close; None for a calendar without known
    extended hours."""

    @property
    def num_bars(self) -> int:
        """T."""
        return len(self.minutes)

    @property
    def num_sessions(self) -> int:
        """Number of sessions, S."""
        return len(self.dates)

    @cached_property
    def first_bar(self) -> Array:
        """`[S + 1]` int64: the first bar of each session, and T at the end."""
        return np.searchsorted(self.session, np.arange(self.num_sessions + 1))

    @cached_property
    def times(self) -> pd.DatetimeIndex:
        """`[T]`: start of each bar, in the exchange's time zone."""
        import pandas as pd

        return pd.DatetimeIndex(self.minutes, tz="UTC").tz_convert(timezone_of(self.calendar))

    def cut(self, first: int, last: int) -> SessionGrid:
        """Cut the grid of the sessions `first` to `last`, both included."""
        bars = slice(*self.first_bar[[first, last + 1]])
        minutes = slice(*np.searchsorted(self.bar_of_minute, [bars.start, bars.stop]))
        days = slice(first, last + 1)
        return replace(
            self,
            dates=self.dates[days],
            minutes=self.minutes[bars],
            session=self.session[bars] - first,
            exchange_minutes=self.exchange_minutes[minutes],
            bar_of_minute=self.bar_of_minute[minutes] - bars.start,
            open=self.open[days],
            close=self.close[days],
        )

    @property
    def session_minutes(self) -> Array:
        """`[S]` int64: exchange minutes of each session (390, or 210 on a half day in New York)."""
        return np.bincount(self.session[self.bar_of_minute], minlength=self.num_sessions)

    @cached_property
    def begin(self) -> Array:
        """`[S]` int64: start of the first minute of each session of the grid's hours."""
        return np.asarray(self.minutes[self.first_bar[:-1]])

    @cached_property
    def end(self) -> Array:
        """`[S]` int64: end of the last minute of each session of the grid's hours."""
        return np.asarray(self.exchange_minutes[np.cumsum(self.session_minutes) - 1] + MINUTE_NS)

    @cached_property
    def borders(self) -> Array:
        """`[S + 1]` int64: `night_borders` of the grid's hours."""
        return night_borders(self.begin, self.end)

    @cached_property
    def _bar_at(self) -> Array:
        """The bar of each minute from the grid's first to its last, -1 where the exchange is
        closed; one more -1 at the end."""
        minute = (self.exchange_minutes - self.exchange_minutes[0]) // MINUTE_NS
        bars: Array = np.full(int(minute[-1]) + 2, -1)
        bars[minute] = self.bar_of_minute
        return bars

    def locate(self, ts: Array) -> Array:
        """`[R]` int64: the bar that holds each time, -1 where the exchange is closed."""
        minute = ts // MINUTE_NS
        minute -= self.exchange_minutes[0] // MINUTE_NS
        if len(minute) and not (minute.min() >= 0 and minute.max() < len(self._bar_at)):
            minute[(minute < 0) | (minute >= len(self._bar_at))] = -1
        return np.asarray(self._bar_at[minute])

    def early_or_late(self, ts: Array) -> Array:
        """`[R]` bool: times before the open or after the close of a session, within its extended
        hours."""
        if self.extended is None:
            return np.zeros(len(ts), dtype=bool)
        before, after = self.extended
        at = np.maximum(np.searchsorted(self.open - before, ts, side="right") - 1, 0)
        within = (ts >= self.open[at] - before) & (ts < self.close[at] + after)
        return np.asarray(within & ((ts < self.open[at]) | (ts >= self.close[at])))


def night_borders(begin: Array, end: Array) -> Array:
    """`[S + 1]` int64: the middle of each night between sessions, and half a day before the first
    session and after the last."""
    half_day = 12 * 60 * MINUTE_NS
    middle = end[:-1] + (begin[1:] - end[:-1]) // 2
    return np.concatenate([[begin[0] - half_day], middle, [end[-1] + half_day]])


Hours = Literal["regular", "extended", "clock"]
EXTENDED_MINUTES = {"XNYS": (330, 240)}
"""Calendar (its first name in exchange_calendars, which XNAS, NYSE and others stand for) -> minutes
of trading before the open and after the close: 04:00 to 20:00 in New York, and to 17:00 on a half
day."""


def session_grid(
    calendar: str, start: dt.date, end: dt.date, bar_minutes: int = 1, hours: Hours = "regular"
) -> SessionGrid:
    """Lay the grid of all sessions from `start` to `end`, both included; with `extended` hours it
    holds the minutes before the open and after the close too, with `clock` hours the bars begin at
    multiples of their length after midnight, the first and the last of a session around its edges.

    Raises DataError when the calendar is unknown, has no known extended hours, or holds no session
    in the range.
    """
    if end < start:
        raise DataError(f"the range ends ({end}) before it begins ({start}); swap the two dates")
    dates, edges = session_edges(calendar, start, end)
    if len(dates) == 0:
        raise DataError(
            f"{calendar} has no session from {start} to {end}; choose a range with trading days"
        )
    early, open_, pause, resume, close, late = edges
    around = int((open_ - early)[0]), int((late - close)[0])
    spans = [(open_, pause), (resume, close)]
    if hours == "extended":
        if not any(around):
            raise DataError(
                f"data.hours: no extended hours are known of {calendar}; set it to regular"
            )
        spans = [(early, late)]
    begin = spans[0][0]
    parts = np.stack(spans, axis=1).T.reshape(-1, 2).tolist()
    minutes = np.concatenate([np.arange(first, stop, MINUTE_NS) for first, stop in parts])
    if hours == "clock":
        zone = timezone_of(calendar)
        step = bar_minutes * MINUTE_NS
        bars = np.unique(minutes - since_midnight(minutes, zone) % step)
        minutes = (bars[:, None] + np.arange(0, step, MINUTE_NS)).ravel()
        begin = open_ = open_ - since_midnight(open_, zone) % step
    at = np.searchsorted(minutes, begin)
    session = np.repeat(np.arange(len(at)), np.diff(at, append=len(minutes)))
    is_first = (np.arange(len(minutes)) - at[session]) % bar_minutes == 0
    return SessionGrid(
        calendar=calendar,
        bar_minutes=bar_minutes,
        dates=dates,
        minutes=minutes[is_first],
        session=session[is_first],
        exchange_minutes=minutes,
        bar_of_minute=np.cumsum(is_first) - 1,
        open=open_,
        close=close,
        extended=around if any(around) else None,
    )


def session_edges(calendar: str, start: dt.date, end: dt.date) -> tuple[Array, Array]:
    """Return the sessions from `start` to `end`: their dates `[S]` datetime64[D], and `[6, S]`
    int64 nanoseconds since 1970 UTC, which are the begin of extended hours, the open, the begin and
    end of the break (both the close where there is none), the close, the end of extended hours.

    Raises DataError when the calendar is unknown or does not cover the range.
    """
    exchange = _calendar(calendar, start.year, end.year)
    rows = exchange.sessions.slice_indexer(str(start), str(end))
    open_ = exchange.opens_nanos[rows]
    close = exchange.closes_nanos[rows]
    breaks = np.stack([exchange.break_starts_nanos[rows], exchange.break_ends_nanos[rows]])
    pauses = np.where(np.isnat(breaks.view("datetime64[ns]")), close, breaks)
    before, after = EXTENDED_MINUTES.get(exchange.name, (0, 0))
    edges = [open_ - before * MINUTE_NS, open_, *pauses, close, close + after * MINUTE_NS]
    dates = exchange.sessions_nanos[rows].astype("datetime64[ns]").astype("datetime64[D]")
    return dates, np.stack(edges)


def to_wall(ts: Array, zone: str) -> pd.DatetimeIndex:
    """`[R]` the time that a zone's clocks show at each moment (nanoseconds since 1970 UTC)."""
    import pandas as pd

    return pd.DatetimeIndex(ts, tz="UTC").tz_convert(zone).tz_localize(None)


def since_midnight(ts: Array, zone: str) -> Array:
    """`[R]` int64: nanoseconds since midnight on a zone's clocks at each moment."""
    return np.asarray(to_wall(ts, zone).asi8 % (1440 * MINUTE_NS))


def day_starts(calendar: str, timezone: str, ts: Array) -> Array:
    """`[R]` int64: times of daily bars, moved from midnight in `timezone` to the first minute of
    the day's session.

    Days without a session stay at midnight, outside of all sessions. Unless all times are
    midnights, they are returned unchanged.
    """
    if len(ts) == 0 or (ts % QUARTER_NS).any():
        return ts
    local = to_wall(ts, timezone)
    if not (local == local.normalize()).all():
        return ts
    days = local.to_numpy().astype("datetime64[D]")
    dates, edges = session_edges(calendar, days.min().item(), days.max().item())
    at = np.searchsorted(dates, days)
    return np.where(np.isin(days, dates), np.append(edges[1], 0)[at], ts)


def session_date(calendar: str, ts: int) -> dt.date:
    """The exchange's own date at a moment (nanoseconds since 1970 UTC)."""
    day: dt.date = exchange_days(calendar, np.array([ts]))[0].item()
    return day


def exchange_days(calendar: str, ts: Array) -> Array:
    """`[R]` datetime64[D]: the exchange's own date at each moment. A session that opens the evening
    before has the date of its close."""
    import pandas as pd

    quarters, inverse = np.unique(ts // QUARTER_NS, return_inverse=True)
    stamps = quarters * QUARTER_NS
    if calendar not in _LATEST and len(stamps):
        # these years: a grid of them is usually laid next
        _calendar(calendar, *to_wall(stamps[[0, -1]], "UTC").year.tolist())
    exchange = _calendar_of_any_years(calendar)
    wall = to_wall(stamps, exchange.tz)
    if exchange.open_offset < 0:
        wall += pd.Timedelta(hours=24 - exchange.open_times[-1][1].hour)
    return np.asarray(wall.to_numpy().astype("datetime64[D]")[inverse])


def timezone_of(calendar: str) -> str:
    """The exchange's time zone as an IANA name: `America/New_York` for XNAS. Raises DataError for
    an unknown calendar."""
    return str(_calendar_of_any_years(calendar).tz)


def sessions_a_year(calendar: str) -> int:
    """Sessions a year for annualised rates: 365 for a calendar with a session on every day of the
    week, else 252, the convention for exchanges whatever their holidays. Raises DataError for an
    unknown calendar."""
    every_day = _calendar_of_any_years(calendar).weekmask == "1111111"
    return 365 if every_day else TRADING_DAYS


_LATEST: dict[str, Any] = {}
"""The last calendar opened under each name."""


def _calendar_of_any_years(name: str) -> Any:
    """A calendar for properties that are the same in all years."""
    return _LATEST[name] if name in _LATEST else _calendar(name, 2000, 2001)


@lru_cache(maxsize=32)
def _calendar(name: str, first_year: int, last_year: int) -> Any:
    # imported late: a second of start-up that most commands never need
    import exchange_calendars as xc

    if name in (FX, NASDAQ_NIGHT) and name not in xc.get_calendar_names():
        for own in _define_own():
            xc.register_calendar_type(own.name, own)
    try:
        _LATEST[name] = xc.get_calendar(name, start=f"{first_year}-01-01", end=f"{last_year}-12-31")
        return _LATEST[name]
    except xc.errors.InvalidCalendarName:
        raise DataError(
            f"{name!r} is no exchange calendar; XNAS and XNYS are the usual ones"
        ) from None
    except ValueError as error:
        raise DataError(
            f"calendar {name} does not cover {first_year} to {last_year} ({error})"
        ) from None


FX = "FX"
"""The market in currencies, whose week opens on Sunday at 17:00 in New York and closes on Friday at
17:00; a day ends at 17:00. exchange_calendars has no such calendar: its 24/5 has no Sundays."""


NASDAQ_NIGHT = "23/5"
"""NASDAQ with its night session, by SR-NASDAQ-2025-109: a day begins at 21:00 in New York of the
evening before and ends at 20:00, on a half day at 17:00 as extended hours do. XNAS has the regular
session."""


def _define_own() -> tuple[Any, ...]:
    from exchange_calendars import ExchangeCalendar
    from exchange_calendars.exchange_calendar_xnys import XNYSExchangeCalendar

    class Currencies(ExchangeCalendar):  # type: ignore[misc]
        name = FX
        tz = ZoneInfo("America/New_York")
        open_times = close_times = ((None, dt.time(17)),)
        open_offset = -1

    class NightAndDay(XNYSExchangeCalendar):  # type: ignore[misc]
        name = NASDAQ_NIGHT
        open_times = ((None, dt.time(21)),)
        close_times = ((None, dt.time(20)),)
        open_offset = -1
        regular_early_close = dt.time(17)

    return Currencies, NightAndDay


DateRange = tuple[dt.date, dt.date]


class WindowSettings(Settings):
    """Either three date ranges (both days included) or three fractions of the sessions."""

    train: DateRange | None = None
    validation: DateRange | None = None
    test: DateRange | None = None
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """Shares of the sessions for train, validation and test, when no dates are given."""
    embargo_sessions: int = Field(1, ge=0)
    """Sessions that belong to no window before validation and before test; taken from the end of
    the earlier one."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        dates = [
            window for window in (self.train, self.validation, self.test) if window is not None
        ]
        if len(dates) not in (0, 3):
            raise ValueError("give all three of train, validation and test as dates, or none")
        edges = [edge for window in dates for edge in window]
        if edges != sorted(edges) or any(
            a >= b for a, b in zip(edges[1::2], edges[2::2], strict=False)
        ):
            raise ValueError(
                "the dates of train, validation and test must be in order and not overlap"
            )
        if not dates and (min(self.fractions) <= 0 or sum(self.fractions) > 1 + 1e-9):
            raise ValueError("fractions must be positive and sum to at most 1")
        return self


def make_windows(settings: WindowSettings, grid: SessionGrid) -> Windows:
    """Turn dates or fractions into ranges of bars. Raises DataError when a window is empty after
    the embargo."""
    if settings.train is not None and settings.validation is not None and settings.test is not None:
        given = np.array([settings.train, settings.validation, settings.test], "datetime64[D]")
        starts = np.searchsorted(grid.dates, given[:, 0]).tolist()
        stops = np.searchsorted(grid.dates, given[:, 1], side="right").tolist()
        ranges = list(zip(starts, stops, strict=True))
    else:
        cuts = np.cumsum((0.0, *settings.fractions)) * grid.num_sessions
        edges = [round(float(cut)) for cut in cuts]
        ranges = list(itertools.pairwise(edges))
    bars = []
    for number, (name, (start, stop)) in enumerate(zip(Windows._fields, ranges, strict=True)):
        if number < 2:
            stop = min(stop, ranges[number + 1][0] - settings.embargo_sessions)
        if stop <= start:
            raise DataError(
                f"the {name} window holds no session after an embargo of"
                f" {settings.embargo_sessions}; the data has {grid.num_sessions} sessions from"
                f" {grid.dates[0]} to {grid.dates[-1]}: widen data.windows"
            )
        bars.append((int(grid.first_bar[start]), int(grid.first_bar[stop])))
    return Windows(*bars)
