"""Evidence in bars against their declared time zone, label and length.

A zone that is wrong for a part of the year, an end of a bar that is taken for its start, or bars of
five minutes on a grid of one leave nearly every row inside the sessions: such a market looks well
and is wrong. The evidence is the beginning and end of the days, the bars at the open and at the
close, the volume around them, and the steps between rows. The build stops where it is as good as
certain: a pattern must hold on nearly all days. Thin symbols, daily bars and odd days show none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from fintrader.bars.bars import MINUTE_NS, Array, Bars
from fintrader.bars.calendar import SessionGrid, night_borders
from fintrader.bars.clean import put_together
from fintrader.errors import BarError

_STEP = 30 * MINUTE_NS
"""Zones differ by multiples of this."""
_NEAR = _STEP // 2
_HOUR = 60 * MINUTE_NS
_LONGEST = _HOUR
"""Bars longer than this are too few a day to show where a session begins."""
_AUCTION = 5 * MINUTE_NS
"""The closing auction is printed within this after the close."""
_LENGTHS = (2, 3, 4, 5, 6, 10, 12, 13, 15, 20, 26, 30, 39, 60, 65, 78, 90, 120, 130, 180, 195, 240)
_JUMP = 4.0
"""The bar at the open has so many times the volume of the one before it, where trading goes on
before."""


@dataclass(frozen=True, eq=False)
class BarsByDay:
    """One symbol's sorted bars day by day, for the `D` sessions on which it has two bars or
    more."""

    bars: Bars
    ts: Array
    """`[R]` int64: the minute in which each bar is stamped."""
    session: Array
    """`[D]` int64."""
    open: Array
    """`[D]` int64: when the session opens; `close` likewise."""
    close: Array
    first: Array
    """`[D]` int64: stamp of the day's first bar; `last` likewise."""
    last: Array
    steps: Array
    """`[K]` int64: minutes from one bar to the next of its day."""
    alone: int
    """Days on which the symbol has one bar only, at the open."""

    @cached_property
    def minutes(self) -> int | None:
        """Length of the bars: the usual step, where few bars begin late; otherwise the length of
        which all steps but half a per cent are multiples. None: too few to say."""
        if len(self.steps) < 20:
            return None
        counts = np.bincount(self.steps)
        usual = int(counts.argmax())
        # hours that begin at 22:05 and end at midnight are no bars of five minutes
        if counts[usual] >= 0.8 * len(self.steps) and not counts[: usual // 2].any():
            return usual
        fitting = [
            length for length in _LENGTHS if counts[::length].sum() >= 0.995 * len(self.steps)
        ]
        return max(fitting, default=1)

    @property
    def step(self) -> int:
        """Nanoseconds of a bar as far as can be told: `minutes`, else the usual step."""
        minutes = self.minutes or (int(np.median(self.steps)) if len(self.steps) else 0)
        return minutes * MINUTE_NS

    @property
    def has_edges(self) -> bool:
        """True where the bars are short enough to show where a session begins and ends."""
        return 0 < self.step <= _LONGEST and len(self.session) > 0

    @property
    def wide(self) -> Array:
        """`[D]` bool: days with bars well before the open or after the close."""
        step = self.step
        return np.asarray((self.first < self.open - step) | (self.last > self.close + step))

    def at(self, moment: Array) -> tuple[Array, Array]:
        """`[D]` rows of the bars stamped so, and whether there is one."""
        row = np.minimum(np.searchsorted(self.ts, moment), len(self.ts) - 1)
        return row, self.ts[row] == moment

    def flat(self, row: Array) -> Array:
        """`[D]` bool: bars of a single price, as a print of an auction is."""
        return np.asarray(self.bars.high[row] == self.bars.low[row])

    def volume(self, moment: Array) -> Array:
        """`[D]` volume of the bars stamped so, 0 where there is none."""
        row, there = self.at(moment)
        return np.where(there, self.bars.volume[row], 0.0)


def days_of(bars: Bars, grid: SessionGrid) -> BarsByDay:
    """The days of one symbol's sorted bars. A day reaches from the middle of one night to that of
    the next."""
    ts = bars.ts - bars.ts % MINUTE_NS
    edge = np.searchsorted(ts, night_borders(grid.open, grid.close))
    start = edge[:-1]
    stop = edge[1:]
    day = np.flatnonzero(stop - start >= 2)
    apart = np.ones(len(ts), dtype=bool)
    apart[start[start < len(ts)]] = False
    if int((grid.close - grid.open).sum()) > len(grid.exchange_minutes) * MINUTE_NS:
        # a step over a lunch break is no multiple of the bars' length
        minute = np.searchsorted(grid.exchange_minutes, ts)
        apart[1:] &= np.diff(minute) == np.diff(ts) // MINUTE_NS
    steps = (np.diff(ts) // MINUTE_NS)[apart[1:]]
    single = np.flatnonzero(stop - start == 1)
    return BarsByDay(
        bars=bars,
        ts=ts,
        session=day,
        open=grid.open[day],
        close=grid.close[day],
        first=ts[start[day]],
        last=ts[stop[day] - 1],
        steps=steps[(steps > 0) & (steps <= 720)],
        alone=int(np.count_nonzero(ts[start[single]] == grid.open[single])),
    )


class Votes(NamedTuple):
    """Days on which the bars look as if their times were ends, or starts, of bars; taken as starts
    they were."""

    end: int = 0
    """One bar too late: the times are ends."""
    start: int = 0
    """In place: the times are starts."""
    early: int = 0
    """One bar too early: taken for ends, the times are starts."""
    prints: int = 0
    """Days in place with an auction's print one bar before the open."""
    days: int = 0

    def displaced(self) -> Literal["end", "start"] | None:
        """What the times are instead of what they were taken for, where it is as good as
        certain."""
        if self._is_certain(self.end, self.start + self.early):
            return "end"
        return "start" if self._is_certain(self.early, self.start) else None

    def _is_certain(self, votes: int, others: int) -> bool:
        most = votes * 10 >= 9 * self.days or (votes >= 3 and votes * 10 >= 6 * self.days)
        return votes > 0 and votes >= 9 * others and (most or votes >= 15)


def label_votes(days: BarsByDay) -> Votes:
    """Count votes on the label from the bars at open and close."""
    if not days.has_edges:
        return Votes()
    return sum_votes([_votes_at_the_edges(days), _votes_of_volume(days)])


def sum_votes(votes: Iterable[Votes]) -> Votes:
    """Sum votes of several kinds or symbols."""
    return Votes(*map(sum, zip(*votes, strict=True)))


def _votes_at_the_edges(days: BarsByDay) -> Votes:
    """Count votes of days without trading around the session: is the bar that is one too many a
    print, and the other a bar?

    A day of ends that also holds the opening print has its first bar at the open, as a day of
    starts; so it is told by the last one, which is no print. A day of starts may hold the closing
    print at the close.
    """
    step = days.step
    usual = ~days.wide
    final = days.open + (days.close - MINUTE_NS - days.open) // step * step  # start of the last bar
    row_open, at_open = days.at(days.open)
    row_before, before = days.at(days.open - step)
    _, after = days.at(days.open + step)
    row_last, _ = days.at(days.last)
    flat_open = days.flat(row_open)
    flat_before = days.flat(row_before)
    flat_last = days.flat(row_last)
    late = (days.last == days.close) | (days.last == final + step)
    end = usual & ~before & after & late & (~at_open | (flat_open & ~flat_last))
    # a session that opens later than the calendar's, or bars longer than its first one
    end |= usual & ~before & ~at_open & (days.last == days.close) & ~flat_last
    # no bar at the open, and a print of the closing auction after the close
    end |= usual & ~before & ~at_open & after & (days.last > days.close)
    plain = usual & before & (days.last == final - step)
    starts = usual & before & ~flat_before & (days.last == final) & flat_last
    early = plain | starts
    prints = usual & before & flat_before & at_open & ~flat_last & (days.last <= final)
    proper = usual & at_open & ~end & ~early & (~flat_open | ~late)
    return Votes(*(int(mask.sum()) for mask in (end, proper | prints, early, prints, usual)))


def _votes_of_volume(days: BarsByDay) -> Votes:
    """Count votes of days with trading around the session: which bar is the first with the volume
    of the open?"""
    wide = days.wide
    two_before, before, at, after = (
        days.volume(days.open + count * days.step) for count in (-2, -1, 0, 1)
    )
    # bars before the open jump, too, but the jump at the open is the largest
    jump = np.argmax([before - two_before, at - before, after - at], axis=0)
    early = wide & (jump == 0) & (before > _JUMP * two_before) & (at > 0)
    start = wide & (jump == 1) & (at > _JUMP * before)
    end = wide & (jump == 2) & (after > _JUMP * at) & (at > 0)
    ends, starts, earlies, days_seen = (int(mask.sum()) for mask in (end, start, early, wide))
    if max(ends, earlies) < 5:
        return Votes(start=starts, days=days_seen)
    return Votes(ends, starts, earlies, 0, days_seen)


def displacements(days: BarsByDay) -> Array:
    """`[D]` int64: nanoseconds by which each day stands away from its session, 0 where nothing says
    so.

    A day of the session's length has both ends moved alike. Where trading goes on around the
    session, its volume lies whole hours away from where it should.
    """
    step = days.step
    if not days.has_edges:
        return np.zeros(len(days.session), dtype=np.int64)
    moved = measure_shift(days.first - days.open, days.last + step - days.close, step)
    rows = np.flatnonzero(days.wide & (moved == 0))
    if len(rows):
        total = np.concatenate([[0.0], np.cumsum(days.bars.volume)])
        hours = np.arange(-12, 13) * _HOUR
        begin = np.searchsorted(days.ts, days.open[rows, None] + hours)
        stop = np.searchsorted(days.ts, days.close[rows, None] + hours + _AUCTION)
        inside = total[stop] - total[begin]  # [D, H]
        best = inside.argmax(axis=1)
        more = inside[np.arange(len(rows)), best] > 1.1 * inside[:, 12]
        moved[rows] = np.where(more, hours[best], 0)
    return moved


def measure_shift(early: Array, late: Array, step: int) -> Array:
    """`[D]` int64: nanoseconds, half hours, by which both ends of a day are moved alike; else 0.

    early, late: from the open to the first bar, and from the close to the end of the last one.
    """
    moved = np.round(early / _STEP).astype(np.int64) * _STEP
    # a session's last bar may be shorter than the others
    alike = (np.abs(early - moved) < _NEAR) & (late > moved - _NEAR) & (late < moved + _NEAR + step)
    return np.where(alike, moved, 0)


class SessionEvidence:
    """Sees the bars of every symbol of a build and raises BarError where they speak against what is
    declared.

    minutes: the length that is declared of files' bars; None of sources that need no declaration.
    """

    def __init__(self, grid: SessionGrid, minutes: int | None = None) -> None:
        self.grid = grid
        self.minutes = minutes
        _, self._season = np.unique(grid.open % (24 * _HOUR), return_inverse=True)
        self._whole = int(grid.session_minutes.max())
        self._votes = Votes()
        self._moved = defaultdict[int, Counter[int]](Counter)
        self._whole_days = self._others = 0

    def look(self, bars: Bars) -> BarsByDay:
        """One symbol's sorted bars. Raises BarError when they alone are evidence enough."""
        days = days_of(bars, self.grid)
        self._whole_days += days.alone
        self._others += len(days.steps)
        if not len(days.session):
            return days
        of = f"{bars.origin}: the bars of {bars.symbols[0]}"
        self._refuse_length(days, of)
        votes = label_votes(days)
        self._refuse_label(votes, days.step, of)
        moved = displacements(days)
        found = defaultdict[int, Counter[int]](Counter)
        for season, by in zip(self._season[days.session].tolist(), moved.tolist(), strict=True):
            found[season][by] += 1
            self._moved[season][by] += 1
        self._refuse_zone(found, of)
        self._votes = sum_votes([self._votes, votes])
        return days

    def judge(self) -> None:
        """Raise BarError when all symbols together are evidence enough: of thin ones, each alone
        says little."""
        self._refuse_label(self._votes, MINUTE_NS, "the bars of all symbols together")
        self._refuse_zone(self._moved, "the bars of all symbols together")
        if self._whole_days >= 10 and not self._others and self.grid.bar_minutes < self._whole:
            raise BarError(
                f"these are bars of whole days, and the market's are of {self.grid.bar_minutes}"
                " minutes: a day's close would be known in its first bar; set data.bar_minutes to"
                f" {self._whole}"
            )

    def _refuse_length(self, days: BarsByDay, of: str) -> None:
        found = days.minutes
        grid = self.grid.bar_minutes
        if found is None:
            return
        declared = self.minutes
        if (
            declared is not None
            and found == 1 < declared
            and np.mean(days.steps % declared != 0) > 0.05
        ):
            usual = int(np.median(days.steps))
            raise BarError(
                f"{of} stand {usual} minute{'s' * (usual > 1)} apart, and data.source.bar_minutes"
                f" says {declared}; set data.source.bar_minutes to {usual}"
            )
        fits = found <= grid and (grid % found == 0 or grid >= self._whole)
        if found > 1 and (not fits or (declared is not None and declared < found)):
            settings = (
                [f"data.source.bar_minutes to {found}"] if declared not in (None, found) else []
            )
            settings += [] if fits else [f"data.bar_minutes to {found} or a multiple of it"]
            raise BarError(
                f"{of} stand {found} minutes apart, so they are bars of {found} minutes"
                + ("" if fits else f", which cannot be spread over bars of {grid}")
                + f"; set {' and '.join(settings)}, or keep only bars of one length"
            )

    def _refuse_label(self, votes: Votes, step: int, of: str) -> None:
        label = votes.displaced()
        if label is None:
            return
        found = f"late on {votes.end}" if label == "end" else f"early on {votes.early}"
        raise BarError(
            f"{of} begin and end one bar too {found} of {votes.days} days, as if their times were"
            f" the {label}s of bars; set data.source.label to {label}"
            + (", or correct data.source.timezone" if step >= _STEP else "")
        )

    def _refuse_zone(self, found: dict[int, Counter[int]], of: str) -> None:
        """Most days are displaced, or nearly all of a season of clocks are and by the same
        hours."""
        total = sum(found.values(), Counter[int]())
        days = sum(total.values())
        displaced = days - total[0]
        seasons = []
        for counts in found.values():
            by, count = counts.most_common(1)[0]
            if by and count >= 3 and count * 10 >= 9 * sum(counts.values()):
                seasons.append((by, count))
        if displaced * 2 > days:
            by = max((one for one in total if one), key=lambda one: total[one])
            count = displaced
        elif seasons:
            by, count = max(seasons, key=lambda one: one[1])
        else:
            return
        minutes = by // MINUTE_NS
        season = len(seasons) < len(found) and any(
            2 * counts[0] > sum(counts.values()) for counts in found.values()
        )
        raise BarError(
            f"{of} stand {abs(minutes)} minutes {'after' if minutes > 0 else 'before'} the sessions"
            f" of {self.grid.calendar} on {count} of {days} days"
            + (
                ", all those of one season: their clock knows no daylight saving, or another one"
                if season
                else ""
            )
            + "; correct data.source.timezone"
            + (
                " (Etc/GMT+5 is Eastern standard time all year)"
                if season and minutes == -60
                else " (or data.calendar)"
            )
        )


def merge_opening_prints(bars: Bars, days: BarsByDay) -> tuple[Bars, int]:
    """One symbol's sorted bars with each print that is stamped one bar before the open made part of
    the bar at the open; how many."""
    row, there = days.at(days.open - days.step)
    there &= ~days.wide
    ts = bars.ts.copy()
    ts[row[there]] = days.open[there]
    return put_together(replace(bars, ts=ts).sorted()), int(there.sum())


def has_opening_prints(days: BarsByDay) -> bool:
    """True where most days hold one bar before the open, a print of a single price at the time of
    the opening."""
    votes = _votes_at_the_edges(days) if days.has_edges else Votes()
    return votes.prints >= 3 and votes.prints * 2 > votes.days
