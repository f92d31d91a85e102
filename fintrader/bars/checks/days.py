"""Whole days of one symbol that are wrong for sure, found in a few passes over its bars, and its
days in short.

Everything here looks at one symbol at a time, so that a build can look while it reads; what only
the days of all symbols together can tell stands in `nights`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fintrader.bars.bars import MINUTE_NS, PRICES, Array, Bars
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.checks.kinds import Fault, runs

_HALF_HOUR = 30 * MINUTE_NS
_HALF_DAY = 24 * _HALF_HOUR
_FEW = 5
"""With fewer bars a day, equal closes may be chance: whole rows are compared."""
SCALE = 70.0
"""No price changes by such a factor in one bar."""
_SURE = 6.0
"""So many standard deviations are no chance."""
_UNLIKELY = -15.0
"""Chance, as a power of ten, below which a run is no chance."""


class Sessions:
    """When the sessions of a grid open and close."""

    def __init__(self, grid: SessionGrid) -> None:
        edges = np.searchsorted(grid.session[grid.bar_of_minute], np.arange(grid.num_sessions + 1))
        self.dates = grid.dates
        """`[S]` datetime64[D]."""
        self.open = grid.exchange_minutes[edges[:-1]]
        """`[S]` int64: start of each session's first minute."""
        self.close = grid.exchange_minutes[edges[1:] - 1] + MINUTE_NS
        """`[S]` int64: end of each session's last minute."""
        night = (self.open[1:] - self.close[:-1]) // 2
        inner = self.close[:-1] + night
        self.borders = np.concatenate(
            [[self.open[0] - _HALF_DAY], inner, [self.close[-1] + _HALF_DAY]]
        )
        """`[S + 1]` int64: the moments halfway between sessions, and half a day before the first
        and after the last."""


@dataclass(frozen=True, eq=False)
class Days:
    """One symbol's days in short: `D` days with at least one bar inside the session."""

    symbol: str
    session: Array
    """`[D]` int64: number of the session."""
    bars: Array
    """`[D]` int64: how many there are."""
    open: Array
    """`[D]` float64: the first bar's; `close` is the last bar's."""
    close: Array
    volume: Array
    """`[D]` float64: shares a bar, on average."""
    turnover: Array
    """`[D]` float64: price times shares a bar, on average."""
    content: Array
    """`[D]` int64: a hash of the day's closes, equal for equal ones; 0 for a day too uniform to be
    known by it."""
    length: int
    """Minutes between most bars and the next one; 0 where there is one a day."""


def look_at(bars: Bars, sessions: Sessions) -> tuple[Days | None, list[Fault]]:
    """One symbol's days, and what is wrong with them; None when no bar lies inside a session.

    bars: one symbol's, valid and sorted by time, those outside of the sessions among them.
    """
    symbol = bars.symbols[bars.symbol[0]] if len(bars) else ""
    edges = np.searchsorted(bars.ts, sessions.borders)
    length = _length(bars, int(np.count_nonzero(np.diff(edges))))
    found = list(_shifted(bars, symbol, sessions, edges, length))
    low = np.searchsorted(bars.ts, sessions.open)
    high = np.searchsorted(bars.ts, sessions.close)
    counts = high - low
    if counts.sum() < len(bars):
        change = np.bincount(low, minlength=len(bars) + 1) - np.bincount(
            high, minlength=len(bars) + 1
        )
        bars = bars.take(np.cumsum(change[:-1]) > 0)
    if len(bars) == 0:
        return None, found
    number = np.flatnonzero(counts)
    first = np.cumsum(counts[number]) - counts[number]
    last = first + counts[number] - 1
    days = Days(
        symbol=symbol,
        session=number,
        bars=counts[number],
        open=bars.open[first],
        close=bars.close[last],
        volume=np.add.reduceat(bars.volume, first) / counts[number],
        turnover=np.add.reduceat(bars.volume * bars.close, first) / counts[number],
        content=_contents(bars, first, last + 1),
        length=length,
    )
    at = [str(day) for day in sessions.dates[number]]
    for day, count in _scale_jumps(bars, first):
        found.append(Fault("scale_jump", symbol, at[day], count))
    found += _repeated(days, at)
    if length > 0:
        found += [
            Fault("reversed_day", symbol, at[day], int(counts[number[day]]))
            for day in _reversed(bars, first)
        ]
        found += _frozen(bars, symbol, first, length, at)
        found += _spread_out(bars, days, sessions, at)
        found += _last_jump(bars, symbol, first, at[-1])
    return days, found


def _length(bars: Bars, days: int) -> int:
    """The step that is most frequent, in minutes; 0 where hardly a day has two bars."""
    steps = np.diff(bars.ts) // MINUTE_NS
    steps = steps[(steps > 0) & (steps < 12 * 60)]
    return int(np.bincount(steps).argmax()) if 2 * len(steps) > days else 0


def _shifted(
    bars: Bars, symbol: str, sessions: Sessions, edges: Array, length: int
) -> Iterator[Fault]:
    """Both ends of a day moved the same way by about a whole number of half hours: the day is as
    long as a session."""
    if not 0 < length <= 60:
        return
    day = np.flatnonzero(np.diff(edges) >= 2)
    early = bars.ts[edges[day]] - sessions.open[day]
    late = bars.ts[edges[day + 1] - 1] + length * MINUTE_NS - sessions.close[day]
    moved = np.round((early + late) / 2 / _HALF_HOUR).astype(np.int64) * _HALF_HOUR
    off = np.maximum(np.abs(early - moved), np.abs(late - moved))
    for one in np.flatnonzero((moved != 0) & (off < _HALF_HOUR // 2)):
        count = int(edges[day[one] + 1] - edges[day[one]])
        detail = f"by {moved[one] // MINUTE_NS} minutes"
        yield Fault("shifted_day", symbol, str(sessions.dates[day[one]]), count, detail)


def _contents(bars: Bars, first: Array, stop: Array) -> Array:
    """`[D]` int64, see `Days.content`. Not the same in another process."""
    found = np.zeros(len(first), dtype=np.int64)
    for day, (begin, end) in enumerate(zip(first.tolist(), stop.tolist(), strict=True)):
        close = bars.close[begin:end]
        if end - begin > _FEW:
            # a price that hardly moves is the same on other days by chance
            if end - begin >= 30 and np.count_nonzero(close[1:] != close[:-1]) >= 10:
                found[day] = hash(close.tobytes())
        elif (bars.high[begin:end] > bars.low[begin:end]).all():
            rows = [getattr(bars, name)[begin:end] for name in (*PRICES, "volume")]
            found[day] = hash(np.concatenate(rows).tobytes())
    return found


def _repeated(days: Days, at: list[str]) -> Iterator[Fault]:
    """Days whose content is that of an earlier one."""
    order = np.argsort(days.content, kind="stable")
    content = days.content[order]
    again = np.flatnonzero((content[1:] == content[:-1]) & (content[1:] != 0)) + 1
    earliest = np.searchsorted(content, content[again])
    for one, other in zip(order[again], order[earliest], strict=True):
        yield Fault(
            "repeated_day", days.symbol, at[one], int(days.bars[one]), f"same as {at[other]}"
        )


def _scale_jumps(bars: Bars, first: Array) -> Iterator[tuple[int, int]]:
    """Day and number of the bars at which the price becomes 70 times as much or as little."""
    from fintrader.bars import kernels

    if kernels.largest_step(bars.open, bars.close) < 0.99 * SCALE:
        return
    ratio = np.ones(len(bars))
    step = bars.close[1:] / bars.close[:-1]
    night = bars.open[1:] / bars.close[:-1]
    ratio[1:] = np.maximum(np.maximum(step, 1 / step), np.maximum(night, 1 / night))
    rows = np.flatnonzero(ratio > SCALE)
    for day, count in zip(
        *np.unique(np.searchsorted(first, rows, side="right") - 1, return_counts=True), strict=True
    ):
        yield int(day), int(count)


def _reversed(bars: Bars, first: Array) -> Array:
    """Days in which closes meet the open of the bar before, not opens the close: more often than by
    any chance."""
    from fintrader.bars import kernels

    votes, told = kernels.backward_votes(bars.open, bars.close, first)
    return np.flatnonzero((told >= 20) & (votes > _SURE * np.sqrt(told)))


def _frozen(bars: Bars, symbol: str, first: Array, length: int, at: list[str]) -> Iterator[Fault]:
    """Runs of bars that trade at one price and no other, far longer than such a symbol's ever
    are."""
    still = np.zeros(len(bars), dtype=bool)
    still[1:] = bars.close[1:] == bars.close[:-1]
    still &= (bars.high == bars.low) & (bars.volume > 0)
    still[first] = False
    usual = max(float(still.mean()), 1e-3)
    for begin, stop in runs(still):
        bars_alike = stop - begin
        if (
            bars_alike * length >= 29
            and bars_alike >= 9
            and bars_alike * np.log10(usual) < _UNLIKELY
        ):
            day = int(np.searchsorted(first, begin, side="right")) - 1
            yield Fault(
                "frozen_price", symbol, at[day], bars_alike + 1, f"at {bars.close[begin]:g}"
            )


def _spread_out(bars: Bars, days: Days, sessions: Sessions, at: list[str]) -> Iterator[Fault]:
    """Days whose bars all stand at every second, third, ... place, more of them than chance would
    put there."""
    open_ = sessions.open[days.session]
    places = (sessions.close[days.session] - open_) // (days.length * MINUTE_NS)
    first = np.cumsum(days.bars) - days.bars
    for day in np.flatnonzero((days.bars <= places // 2 + 1) & (days.bars >= 6)).tolist():
        rows = slice(int(first[day]), int(first[day] + days.bars[day]))
        place = (bars.ts[rows] - open_[day]) // (days.length * MINUTE_NS)
        for step in (60, 30, 15, 10, 5, 3, 2):
            share = np.bincount(place % step).max() / len(place)
            if (
                share > 0.95
                and len(place) * np.log10(step) > 9
                and len(place) * step > places[day] // 2
            ):
                minutes = f"{step * days.length} minutes apart, elsewhere {days.length}"
                yield Fault("bar_length", days.symbol, at[day], len(place), minutes)
                break


def _last_jump(bars: Bars, symbol: str, first: Array, day: str) -> Iterator[Fault]:
    """The last bar of all jumps by more than any of its kind does."""
    begin = max(int(first[-1]), len(bars) - 391)
    if len(bars) - begin < 10:
        return
    step = np.abs(np.diff(np.log(bars.close[begin:])))
    far = max(0.04, 20 * 1.4826 * float(np.median(step[:-1])), 3 * float(step[:-1].max()))
    if step[-1] > far:
        yield Fault("last_bar_jump", symbol, day, 1, f"{bars.close[-1] / bars.close[-2] - 1:+.1%}")
