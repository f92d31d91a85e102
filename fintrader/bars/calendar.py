"""Grids of an exchange's sessions and minutes, and the train, validation and test windows.

Sessions, half days and daylight saving come from exchange_calendars. Windows consist of whole
sessions and never overlap.
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
"""A quarter of an hour: offsets and clock changes of all exchanges' zones are multiples of it, and
nearly all sessions begin and end at one."""


class Windows(NamedTuple):
    """Half-open ranges of bars `[start, stop)`. An embargo separates train from validation, and
    validation from test."""

    train: tuple[int, int]
    validation: tuple[int, int]
    test: tuple[int, int]


@dataclass(frozen=True, eq=False)
class SessionGrid:
    """All bars of a calendar between two dates: `S` sessions, `T` bars of `bar_minutes` (the last
    bar of a session may be shorter), and the `Q` exchange minutes that the bars consist of."""

    calendar: str
    bar_minutes: int
    dates: Array
    """`[S]` datetime64[D], the exchange's own dates."""
    minutes: Array
    """`[T]` int64: start of each bar, nanoseconds since 1970 UTC."""
    session: Array
    """`[T]` int64: number of each bar's session, 0 to S - 1."""
    exchange_minutes: Array
    """`[Q]` int64: start of each exchange minute, nanoseconds since 1970 UTC."""
    bar_of_minute: Array
    """`[Q]` int64: number of the bar that contains each exchange minute."""
    open: Array
    """`[S]` int64: opening time of each regular session, nanoseconds since 1970 UTC, even if the
    grid holds extended hours. With `clock` hours: start of the session's first bar."""
    close: Array
    """`[S]` int64: closing time of each regular session, which is the end of its last minute."""
    extended: tuple[int, int] | None
    """Length of extended hours before the open and after the close, in nanoseconds; None for a
    calendar without known extended hours."""

    @property
    def num_bars(self) -> int:
        """Number of bars, T."""
        return len(self.minutes)

    @property
    def num_sessions(self) -> int:
        """Number of sessions, S."""
        return len(self.dates)

    @cached_property
    def first_bar(self) -> Array:
        """`[S + 1]` int64: number of the first bar of each session, followed by T."""
        return np.searchsorted(self.session, np.arange(self.num_sessions + 1))

    @cached_property
    def ends(self) -> Array:
        """`[T]` int64: end of each bar's last minute, nanoseconds since 1970 UTC."""
        minute = np.searchsorted(self.bar_of_minute, np.arange(self.num_bars), side="right") - 1
        return np.asarray(self.exchange_minutes[minute] + MINUTE_NS)

    @cached_property
    def times(self) -> pd.DatetimeIndex:
        """`[T]`: start of each bar, in the exchange's time zone."""
        import pandas as pd

        return pd.DatetimeIndex(self.minutes, tz="UTC").tz_convert(
            find_exchange_timezone(self.calendar)
        )

    def cut(self, first: int, last: int) -> SessionGrid:
        """Return the grid of the sessions with the numbers `first` to `last`, both included."""
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
        """`[S]` int64: number of exchange minutes in each session (in New York 390, or 210 on a
        half day)."""
        return np.bincount(self.session[self.bar_of_minute], minlength=self.num_sessions)

    @cached_property
    def begin(self) -> Array:
        """`[S]` int64: start of each session's first minute in the grid, extended hours
        included."""
        return np.asarray(self.minutes[self.first_bar[:-1]])

    @cached_property
    def end(self) -> Array:
        """`[S]` int64: end of each session's last minute in the grid, extended hours included."""
        return np.asarray(self.exchange_minutes[np.cumsum(self.session_minutes) - 1] + MINUTE_NS)

    @cached_property
    def borders(self) -> Array:
        """`[S + 1]` int64: `night_borders` of `begin` and `end`."""
        return night_borders(self.begin, self.end)

    @cached_property
    def _bar_at(self) -> Array:
        """Number of the bar of every minute from the grid's first to its last, -1 while the
        exchange is closed, and one more -1 at the end."""
        minute = (self.exchange_minutes - self.exchange_minutes[0]) // MINUTE_NS
        bars: Array = np.full(int(minute[-1]) + 2, -1)
        bars[minute] = self.bar_of_minute
        return bars

    def locate(self, ts: Array) -> Array:
        """Return `[R]` int64: number of the bar that contains each time `ts` (nanoseconds since
        1970 UTC), -1 while the exchange is closed."""
        minute = ts // MINUTE_NS
        minute -= self.exchange_minutes[0] // MINUTE_NS
        if len(minute) and not (minute.min() >= 0 and minute.max() < len(self._bar_at)):
            minute[(minute < 0) | (minute >= len(self._bar_at))] = -1
        return np.asarray(self._bar_at[minute])

    @cached_property
    def pauses(self) -> Array:
        """`[P]` int64: times at which trading stops for a while, nanoseconds since 1970 UTC."""
        is_last = np.append(np.diff(self.exchange_minutes) > MINUTE_NS, True)
        return np.asarray(self.exchange_minutes[is_last] + MINUTE_NS)

    @cached_property
    def begins(self) -> Array:
        """`[P]` int64: times at which trading begins, before each of the `pauses`."""
        is_first = np.append(True, np.diff(self.exchange_minutes) > MINUTE_NS)
        return np.asarray(self.exchange_minutes[is_first])

    @cached_property
    def longest_part(self) -> int:
        """Number of minutes of the longest time without a pause."""
        return int((self.pauses - self.begins).max() // MINUTE_NS)

    def start_short_bars(self, ts: Array, minutes: int) -> Array:
        """Correct `[R]` int64 starts `ts` of bars that were computed as their ends less `minutes`;
        keep their order.

        The last bar before a close or a break may be shorter: a bar that ends together with one of
        the grid begins no earlier than that one, and a bar that ends after a pause begins no
        earlier than the pause.
        """
        end = ts + minutes * MINUTE_NS
        end -= end % MINUTE_NS  # some vendors stamp the first second after
        at = np.minimum(np.searchsorted(self.ends, end), self.num_bars - 1)
        ts = np.where(self.ends[at] == end, np.maximum(ts, self.minutes[at]), ts)
        before = np.searchsorted(self.pauses, end) - 1
        return np.where(before >= 0, np.maximum(ts, self.pauses[np.maximum(before, 0)]), ts)

    def early_or_late(self, ts: Array) -> Array:
        """Return `[R]` bool: True for times in extended hours, before the open or after the close
        of a session; all False for a calendar without known extended hours."""
        if self.extended is None:
            return np.zeros(len(ts), dtype=bool)
        before, after = self.extended
        at = np.maximum(np.searchsorted(self.open - before, ts, side="right") - 1, 0)
        within = (ts >= self.open[at] - before) & (ts < self.close[at] + after)
        return np.asarray(within & ((ts < self.open[at]) | (ts >= self.close[at])))


def night_borders(begin: Array, end: Array) -> Array:
    """Return `[S + 1]` int64 nanoseconds: half a day before the first session, the middle of each
    night between two sessions, and half a day after the last session."""
    half_day = 12 * 60 * MINUTE_NS
    middle = end[:-1] + (begin[1:] - end[:-1]) // 2
    return np.concatenate([[begin[0] - half_day], middle, [end[-1] + half_day]])


Hours = Literal["regular", "extended", "clock"]
EXTENDED_MINUTES = {"XNYS": (330, 240)}
"""Calendar -> minutes of extended hours before the open and after the close. In New York trading
runs from 04:00 to 20:00, on a half day to 17:00. exchange_calendars resolves aliases such as XNAS
and NYSE to XNYS."""


def session_grid(
    calendar: str, start: dt.date, end: dt.date, bar_minutes: int = 1, hours: Hours = "regular"
) -> SessionGrid:
    """Return the grid of all sessions from `start` to `end`, both included.

    Bars begin with the session and again after a lunch break, unless they are as long as it.

    With `extended` hours the grid also holds the minutes before the open and after the close. With
    `clock` hours every bar begins at a multiple of its length after midnight, so that the first bar
    of a session may begin before the open, and the last one may end after the close.

    Raises DataError when the calendar is unknown or has no session in the range, and when extended
    hours are wanted but not known.
    """
    if end < start:
        raise DataError(
            f"the range begins on {start}, after its end on {end}: correct data.start or data.end"
        )
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
                f"data.hours: the extended hours of {calendar} are not known; set it to regular"
            )
        spans = [(early, late)]
    begin = spans[0][0]
    parts = np.stack(spans, axis=1).T.reshape(-1, 2).tolist()
    minutes = np.concatenate([np.arange(first, stop, MINUTE_NS) for first, stop in parts])
    if hours == "clock":
        zone = find_exchange_timezone(calendar)
        step = bar_minutes * MINUTE_NS
        bars = np.unique(minutes - since_midnight(minutes, zone) % step)
        minutes = (bars[:, None] + np.arange(0, step, MINUTE_NS)).ravel()
        begin = open_ = open_ - since_midnight(open_, zone) % step
    at = np.searchsorted(minutes, begin)
    lengths = np.diff(at, append=len(minutes))
    session = np.repeat(np.arange(len(at)), lengths)
    number = np.arange(len(minutes)) - at[session]
    if hours == "regular":
        has_break = (resume < close) & (lengths > bar_minutes)
        after = np.searchsorted(minutes, resume[has_break])
        stops = at[has_break] + lengths[has_break]
        for first, stop in zip(after.tolist(), stops.tolist(), strict=True):
            number[first:stop] -= number[first]
    is_first = number % bar_minutes == 0
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
    """Return the sessions from `start` to `end`: their dates, `[S]` datetime64[D], and their times,
    `[6, S]` int64 nanoseconds since 1970 UTC.

    The six times are: start of extended hours, open, start of the lunch break, end of the lunch
    break, close, end of extended hours. Without a lunch break its start and end equal the close.

    Raises DataError when the calendar is unknown or does not cover the range.
    """
    exchange = _open_calendar(calendar, start.year, end.year)
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
    """Return `[R]`: local time in a zone, without zone information, of moments in nanoseconds since
    1970 UTC."""
    import pandas as pd

    return pd.DatetimeIndex(ts, tz="UTC").tz_convert(zone).tz_localize(None)


def since_midnight(ts: Array, zone: str) -> Array:
    """Return `[R]` int64: nanoseconds since local midnight in a zone, of moments in nanoseconds
    since 1970 UTC."""
    return np.asarray(to_wall(ts, zone).asi8 % (1440 * MINUTE_NS))


def day_starts(calendar: str, timezone: str, ts: Array) -> Array:
    """Return `[R]` int64: times of daily bars, moved from midnight in `timezone` to the open of
    that day's session.

    A day without a session stays at midnight, which is outside of all sessions. If any time is not
    a midnight, the bars are not daily and all times are returned unchanged.
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
    """Return the exchange's date at a moment, nanoseconds since 1970 UTC."""
    day: dt.date = exchange_days(calendar, np.array([ts]))[0].item()
    return day


def exchange_days(calendar: str, ts: Array) -> Array:
    """Return `[R]` datetime64[D]: the exchange's date at each moment, nanoseconds since 1970 UTC.
    Sessions that open on the evening before have the date of their close."""
    import pandas as pd

    quarters, inverse = np.unique(ts // QUARTER_NS, return_inverse=True)
    stamps = quarters * QUARTER_NS
    if calendar not in _LATEST and len(stamps):
        # open the calendar for the years of the data: their grid is usually built next
        _open_calendar(calendar, *to_wall(stamps[[0, -1]], "UTC").year.tolist())
    exchange = _open_calendar_of_any_years(calendar)
    wall = to_wall(stamps, exchange.tz)
    if exchange.open_offset < 0:
        wall += pd.Timedelta(hours=24 - exchange.open_times[-1][1].hour)
    return np.asarray(wall.to_numpy().astype("datetime64[D]")[inverse])


def find_exchange_timezone(calendar: str) -> str:
    """Return the exchange's time zone as an IANA name: `America/New_York` for XNAS. Raises
    DataError for an unknown calendar."""
    return str(_open_calendar_of_any_years(calendar).tz)


def resolve_calendar(calendar: str) -> str:
    """Return the name of the calendar that a name stands for: `XNYS` for XNAS and NYSE. Raises
    DataError for an unknown calendar."""
    return str(_open_calendar_of_any_years(calendar).name)


def sessions_a_year(calendar: str) -> int:
    """Return the number of sessions per year for annualised rates: 365 for a calendar with sessions
    on all seven weekdays, else 252 by convention, whatever the exchange's holidays. Raises
    DataError for an unknown calendar."""
    every_day = _open_calendar_of_any_years(calendar).weekmask == "1111111"
    return 365 if every_day else TRADING_DAYS


_LATEST: dict[str, Any] = {}
"""Name -> the calendar most recently opened under it."""


def _open_calendar_of_any_years(name: str) -> Any:
    """Open a calendar of any years, to read properties that do not depend on the year."""
    return _LATEST[name] if name in _LATEST else _open_calendar(name, 2000, 2001)


@lru_cache(maxsize=32)
def _open_calendar(name: str, first_year: int, last_year: int) -> Any:
    # imported here because it takes a second, and most commands never need it
    import exchange_calendars as xc

    if name in (FX, NASDAQ_NIGHT) and name not in xc.get_calendar_names():
        for own in _define_own_calendars():
            xc.register_calendar_type(own.name, own)
    try:
        _LATEST[name] = xc.get_calendar(name, start=f"{first_year}-01-01", end=f"{last_year}-12-31")
        return _LATEST[name]
    except xc.errors.InvalidCalendarName:
        raise DataError(
            f"{name!r} is no exchange calendar; give a name of exchange_calendars, such as XNAS or"
            " XNYS"
        ) from None
    except ValueError as error:
        raise DataError(
            f"calendar {name} does not cover {first_year} to {last_year} ({error}); choose other"
            " dates"
        ) from None


FX = "FX"
"""Calendar of the currency market: the week opens on Sunday at 17:00 New York time and closes on
Friday at 17:00, and every day ends at 17:00. It is defined here because exchange_calendars has no
such calendar: its 24/5 has no Sundays."""


NASDAQ_NIGHT = "23/5"
"""Calendar of NASDAQ with its night session (SR-NASDAQ-2025-109): a day begins at 21:00 New York
time of the evening before and ends at 20:00, on a half day at 17:00. XNAS has the regular
session."""


def _define_own_calendars() -> tuple[Any, ...]:
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
    """Train, validation and test windows: three date ranges (first and last day included), or three
    fractions of the sessions."""

    train: DateRange | None = None
    validation: DateRange | None = None
    test: DateRange | None = None
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """Shares of the sessions for train, validation and test, when no dates are given."""
    embargo_sessions: int = Field(1, ge=0)
    """Sessions between two windows that belong to neither. They are taken from the end of the
    earlier window, unless the dates already leave such a gap."""

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
    """Turn dates or fractions into windows, as ranges of the grid's bars. Raises DataError when a
    window is empty after the embargo."""
    dates = [getattr(settings, name) for name in Windows._fields]
    if None not in dates:
        given = np.array(dates, "datetime64[D]")
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
            days = " ({} to {})".format(*dates[number]) if dates[number] else ""
            raise DataError(
                f"the {name} window{days} holds no session after an embargo of"
                f" {settings.embargo_sessions}; the data has {grid.num_sessions} sessions from"
                f" {grid.dates[0]} to {grid.dates[-1]}: widen data.windows"
            )
        bars.append((int(grid.first_bar[start]), int(grid.first_bar[stop])))
    return Windows(*bars)
