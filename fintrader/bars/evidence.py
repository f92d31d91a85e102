"""Evidence in bars against their declared time zone, label and length.

Some errors leave nearly every row inside the sessions, so that the market looks right and is wrong:
a time zone that is wrong for a part of the year, a time that is a bar's end and is read as its
start, or bars of five minutes on a grid of one minute. The evidence against them is the beginning
and end of each day, the bars at the open and at the close, the volume around them, and the steps
between rows. The build stops only if a pattern holds on nearly all days. Thinly traded symbols,
daily bars and single unusual days are no evidence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from fintrader.bars.bars import MINUTE_NS, Array, Bars
from fintrader.bars.calendar import SessionGrid, night_borders, to_wall
from fintrader.bars.clean import merge_rows
from fintrader.errors import BarError

_STEP = 30 * MINUTE_NS
"""Displacements by a wrong zone are rounded to multiples of half an hour."""
_NEAR = _STEP // 2
_HOUR = 60 * MINUTE_NS
_LONGEST = _HOUR
"""Bars longer than this are too few a day to show where a session begins."""
_AUCTION = 5 * MINUTE_NS
"""Longest time after the close at which the closing auction's trade is printed."""
_FEWEST_STEPS = 20
"""Fewest steps between bars that show their length."""
_JUMP = 4.0
"""Least ratio of the volume at the open to that of the bar before, for symbols that trade before
the open."""


@dataclass(frozen=True, eq=False)
class BarsByDay:
    """One symbol's sorted bars, grouped by day; `D` days are those with at least two bars."""

    bars: Bars
    ts: Array
    """`[R]` int64: time of each bar, rounded down to the minute; all times are nanoseconds since
    1970 UTC."""
    session: Array
    """`[D]` int64: number of each day's session."""
    open: Array
    """`[D]` int64: opening time of the session; `close`: its closing time."""
    close: Array
    first: Array
    """`[D]` int64: time of the day's first bar; `last`: of its last bar."""
    last: Array
    resume: Array
    """`[D]` int64: time at which the session's last part begins, after its break or at the open."""
    is_rested: Array
    """`[D]` bool: True if the session opens more than an hour after the close of the one before;
    False for the first session."""
    extended: tuple[int, int] | None
    """Length of extended hours before the open and after the close; None if they are not known."""
    steps: Array
    """`[K]` int64: minutes from each bar to the next one of the same day."""
    num_single_bars: int
    """Number of days on which the symbol has a single bar, at the open; 0 if more than a tenth of
    such bars stand elsewhere."""

    @cached_property
    def minutes(self) -> int | None:
        """Length of the bars in minutes; None where there are fewer than `_FEWEST_STEPS` steps.

        The most frequent step, if it makes up 80 % of all steps and no step is below half of it;
        otherwise the largest divisor of that step of which at least 99.5 % of the steps are
        multiples: bars may be missing.
        """
        if len(self.steps) < _FEWEST_STEPS:
            return None
        counts = np.bincount(self.steps)
        usual = int(counts.argmax())
        # rare short steps, as of hourly bars in a session from 22:05 to midnight, do not count
        if counts[usual] >= 0.8 * len(self.steps) and not counts[: usual // 2].any():
            return usual
        return max(
            length
            for length in range(1, usual + 1)
            if length == 1 or counts[::length].sum() >= 0.995 * len(self.steps)
        )

    @property
    def step(self) -> int:
        """Estimated length of a bar in nanoseconds: `minutes`, else the median step; 0 without
        steps."""
        minutes = self.minutes or (int(np.median(self.steps)) if len(self.steps) else 0)
        return minutes * MINUTE_NS

    @property
    def has_edges(self) -> bool:
        """True if the bars are short enough to show where a session begins and ends."""
        return 0 < self.step <= _LONGEST

    @property
    def wide(self) -> Array:
        """`[D]` bool: days with bars more than one bar length before the open or after the
        close."""
        step = self.step
        return np.asarray((self.first < self.open - step) | (self.last > self.close + step))

    @property
    def finals(self) -> list[Array]:
        """Start of each session's last bar `[D]`, where bars begin anew after a break, and where
        they do not."""
        return [_find_last_bar(begin, self.close, self.step) for begin in (self.resume, self.open)]

    def find_bars(self, moment: Array) -> tuple[Array, Array]:
        """Find the bar at a time. moment: `[D]` int64. Returns its row `[D]`, and `[D]` bool: True
        if there is a bar at exactly that time."""
        row = np.minimum(np.searchsorted(self.ts, moment), len(self.ts) - 1)
        return row, self.ts[row] == moment

    def has_single_price(self, row: Array) -> Array:
        """Return `[D]` bool: True if the bar of each `row` has a single price, like the trade of an
        auction."""
        return np.asarray(self.bars.high[row] == self.bars.low[row])

    def read_volume(self, moment: Array) -> Array:
        """Return the volume `[D]` of the bar at each time `moment` `[D]`, 0 without one."""
        row, there = self.find_bars(moment)
        return np.where(there, self.bars.volume[row], 0.0)


def split_by_day(bars: Bars, grid: SessionGrid) -> BarsByDay:
    """Group one symbol's sorted bars by day. A day reaches from the middle of one night to the
    middle of the next."""
    ts = bars.ts - bars.ts % MINUTE_NS
    before, after = grid.extended or (0, 0)
    edge = np.searchsorted(ts, night_borders(grid.open - before, grid.close + after))
    start = edge[:-1]
    stop = edge[1:]
    day = np.flatnonzero(stop - start >= 2)
    is_counted = np.ones(len(ts), dtype=bool)
    is_counted[start[start < len(ts)]] = False
    if int((grid.close - grid.open).sum()) > len(grid.exchange_minutes) * MINUTE_NS:
        # leave out steps over a lunch break: they need not be multiples of the bars' length
        minute = np.searchsorted(grid.exchange_minutes, ts)
        is_counted[1:] &= np.diff(minute) == np.diff(ts) // MINUTE_NS
    between = np.diff(ts, prepend=ts[:1]) // MINUTE_NS
    # A bar that is stamped with its end may be shorter before a close or a break.
    at_pause = np.isin(ts, grid.pauses)
    usual = np.bincount(between[is_counted & ~at_pause & (between >= 0) & (between <= 720)])
    if usual.sum() >= _FEWEST_STEPS:
        is_counted &= ~(at_pause & (between < usual.argmax()))
    steps = between[is_counted]
    single = np.flatnonzero(stop - start == 1)
    is_open = ts[start[single]] == grid.open[single]
    close = grid.close[day]
    return BarsByDay(
        bars=bars,
        ts=ts,
        session=day,
        open=grid.open[day],
        close=close,
        first=ts[start[day]],
        last=ts[stop[day] - 1],
        is_rested=np.append(False, grid.open[1:] > grid.close[:-1] + _HOUR)[day],
        extended=grid.extended,
        resume=np.maximum(grid.begins[np.searchsorted(grid.pauses, close)], grid.open[day]),
        steps=steps[(steps > 0) & (steps <= 720)],
        num_single_bars=int(is_open.sum()) if is_open.sum() >= 0.9 * len(single) else 0,
    )


class Votes(NamedTuple):
    """Number of days that speak for each meaning of the bars' times, which were read as the starts
    of bars."""

    end: int = 0
    """Days one bar too late: the times are the ends of bars."""
    start: int = 0
    """Days in place: the times are the starts of bars."""
    early: int = 0
    """Days one bar too early: the times are the starts of bars, but were read as ends and moved."""
    prints: int = 0
    """Days in place with the opening auction's trade one bar before the open; `start` includes
    them."""
    days: int = 0
    """All days that were examined."""

    def displaced(self) -> Literal["end", "start"] | None:
        """Return the true meaning of the times if they were almost certainly misread; else None."""
        if self._is_certain(self.end, self.start + self.early):
            return "end"
        return "start" if self._is_certain(self.early, self.start) else None

    def _is_certain(self, votes: int, others: int) -> bool:
        most = votes * 10 >= 9 * self.days or (votes >= 3 and votes * 10 >= 6 * self.days)
        return votes > 0 and votes >= 9 * others and (most or votes >= 15)


def label_votes(days: BarsByDay, moved_by: int | None = None) -> Votes:
    """Count the days that speak for each label, by the bars at the open and the close.

    moved_by: minutes by which the times were moved because they are read as ends; None if they were
    not moved.
    """
    if moved_by is not None and moved_by * MINUTE_NS >= _AUCTION:
        votes = [_count_early_votes(days, moved_by * MINUTE_NS)]
        return sum_votes([*votes, _count_volume_votes(days)] if days.has_edges else votes)
    if days.has_edges:
        return sum_votes([_count_edge_votes(days), _count_volume_votes(days)])
    return _count_late_votes(days) if days.minutes else Votes()


def sum_votes(votes: Iterable[Votes]) -> Votes:
    """Add up the votes of several methods or symbols."""
    return Votes(*map(sum, zip(*votes, strict=True)))


def _count_edge_votes(days: BarsByDay) -> Votes:
    """Count votes of days without trading outside of the session, by their first and last bars.

    Starts of bars reach from the open to one bar before the close, ends from one bar after the open
    to the close. The trade of an auction may add a bar of a single price: the opening auction's at
    the open, or one bar before it; the closing auction's at the close. A day whose bars reach from
    the open to the close is therefore decided by its bar with more than one price.
    """
    step = days.step
    usual = ~days.wide
    finals = days.finals
    row_open, at_open = days.find_bars(days.open)
    row_before, before = days.find_bars(days.open - step)
    _, after = days.find_bars(days.open + step)
    row_last, _ = days.find_bars(days.last)
    flat_open = days.has_single_price(row_open)
    flat_before = days.has_single_price(row_before)
    flat_last = days.has_single_price(row_last)
    late = (days.last == days.close) | _is_any(days.last - step, finals)
    end = usual & ~before & after & late & (~at_open | (flat_open & ~flat_last))
    # no bar at the open or one bar after it, but a full bar at the close: the first bar came later
    end |= usual & ~before & ~at_open & (days.last == days.close) & ~flat_last
    # no bar at the open, and the closing auction's trade after the close
    end |= usual & ~before & ~at_open & after & (days.last > days.close)
    plain = usual & before & _is_any(days.last + step, finals)
    starts = usual & before & ~flat_before & _is_any(days.last, finals) & flat_last
    early = plain | starts
    is_within = days.last <= np.maximum(*finals)
    prints = usual & before & flat_before & at_open & ~flat_last & is_within
    proper = usual & at_open & ~end & ~early & (~flat_open | ~late)
    return Votes(*(int(mask.sum()) for mask in (end, proper | prints, early, prints, usual)))


def _count_late_votes(days: BarsByDay) -> Votes:
    """Count votes of days of bars longer than an hour, by their first and last bars alone: the bars
    next to the session are others of the day, or of another day."""
    end = (days.first == days.open + days.step) & (days.last == days.close)
    start = days.first == days.open
    return Votes(int(end.sum()), int(start.sum()), days=len(days.session))


def _count_early_votes(days: BarsByDay, step: int) -> Votes:
    """Count votes on bars whose times were moved by `step`, by the first and last bar of each
    stretch of sessions without a pause of more than an hour. Moved wrongly, a stretch begins one
    bar early, not only with the trade of the opening auction, and lacks its last bar."""
    first = np.flatnonzero(days.is_rested)
    if not len(first):
        return Votes()
    last = np.append(first[1:], len(days.session)) - 1
    before, after = days.extended or (0, 0)
    row, _ = days.find_bars(days.first[first])
    is_print = days.has_single_price(row) & ~days.has_single_price(row + 1)
    early = start = np.zeros(len(first), dtype=bool)
    for opened, resumed, closed in (
        (days.open, days.resume, days.close),
        (days.open - before, days.open - before, days.close + after),
    ):
        finals = [_find_last_bar(begin, closed, step)[last] for begin in (opened, resumed)]
        late = days.first[first] - opened[first]
        early = early | (late == -step) & (days.last[last] < np.minimum(*finals))
        start = start | (late == 0) & _is_any(days.last[last], finals)
    early &= ~start & ~is_print
    return Votes(start=int(start.sum()), early=int(early.sum()), days=len(first))


def _find_last_bar(begin: Array, close: Array, step: int) -> Array:
    """Return `[D]` int64: start of the last of the bars of length `step` that begin at `begin`."""
    return np.asarray(begin + (close - MINUTE_NS - begin) // step * step)


def _is_any(ts: Array, moments: list[Array]) -> Array:
    """Return `[D]` bool: True where a time equals one of the `moments`."""
    return np.asarray(np.any([ts == moment for moment in moments], axis=0))


def _count_volume_votes(days: BarsByDay) -> Votes:
    """Count votes of days with trading outside of the session, by the bar at which the volume of
    the open begins."""
    wide = days.wide
    two_before, before, at, after = (
        days.read_volume(days.open + count * days.step) for count in (-2, -1, 0, 1)
    )
    # volume may rise before the open too, but it rises most at the open
    jump = np.argmax([before - two_before, at - before, after - at], axis=0)
    early = wide & (jump == 0) & (before > _JUMP * two_before) & (at > 0)
    start = wide & (jump == 1) & (at > _JUMP * before)
    end = wide & (jump == 2) & (after > _JUMP * at) & (at > 0)
    ends, starts, earlies, days_seen = (int(mask.sum()) for mask in (end, start, early, wide))
    if max(ends, earlies) < 5:
        # On few days the volume of the close must end one bar late, too.
        final, later = (days.read_volume(days.close + count * days.step) for count in (0, 1))
        ends = 0 if starts else int((end & (final > _JUMP * later)).sum())
        return Votes(end=ends, start=starts, days=days_seen)
    return Votes(ends, starts, earlies, 0, days_seen)


def measure_displacements(days: BarsByDay) -> Array:
    """Return `[D]` int64: nanoseconds by which each day's bars are displaced from its session, 0
    without evidence.

    If a day is as long as its session, both of its ends must be displaced by the same amount. If
    there is also trading outside of the session, the day is displaced by the whole number of hours
    at which a span of the session's length holds the most volume.
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
    """Return `[D]` int64: nanoseconds, in half hours, by which both ends of a day are displaced; 0
    if they are not displaced by the same amount.

    early: `[D]` time from the open to the first bar; late: `[D]` from the close to the end of the
    last bar; step: length of a bar, all in nanoseconds.
    """
    moved = np.round(early / _STEP).astype(np.int64) * _STEP
    # A session's last bar may be shorter than the others. A whole session after a bar before the
    # open is not displaced.
    is_late = late < moved + max(_NEAR, step)
    alike = (np.abs(early - moved) < _NEAR) & (late > moved - _NEAR) & is_late
    return np.where(alike, moved, 0)


class SessionEvidence:
    """Checks the bars of all symbols of a build and raises BarError where they contradict the
    declared length, label or zone.

    minutes: declared length of the bars in files; None for sources without such a setting;
    is_moved: True if times are read as ends, so that they were moved by this length.
    """

    def __init__(
        self, grid: SessionGrid, minutes: int | None = None, *, is_moved: bool = False
    ) -> None:
        self.grid = grid
        self.minutes = minutes
        self.is_moved = is_moved
        _, self._season = np.unique(grid.open % (24 * _HOUR), return_inverse=True)
        self._whole = int(grid.session_minutes.max())
        self._votes = Votes()
        self._moved = defaultdict[int, Counter[int]](Counter)
        self._whole_days = self._split_days = self._others = 0

    def examine(self, bars: Bars) -> BarsByDay:
        """Check one symbol's sorted bars and add them to the evidence; return its days. Raises
        BarError if this symbol alone is evidence enough."""
        days = split_by_day(bars, self.grid)
        self._whole_days += days.num_single_bars
        num_split = int(np.count_nonzero((days.first == days.open) & (days.last == days.resume)))
        self._split_days += num_split
        self._others += len(days.steps)
        subject = f"{bars.origin}: the bars of {bars.symbols[0]}"
        votes = label_votes(days, self.minutes if self.is_moved else None)
        self._refuse_label(votes, days.step, subject)
        if 2 * np.count_nonzero(bars.high > bars.low) > len(bars):  # no trades of auctions
            self._refuse_parts(days.num_single_bars, num_split, len(days.steps), subject)
        if not len(days.session):
            return days
        self._refuse_length(days, subject)
        self._refuse_crossing(days, subject)
        moved = measure_displacements(days)
        shifts = defaultdict[int, Counter[int]](Counter)
        for season, by in zip(self._season[days.session].tolist(), moved.tolist(), strict=True):
            shifts[season][by] += 1
            self._moved[season][by] += 1
        self._refuse_zone(shifts, subject)
        self._votes = sum_votes([self._votes, votes])
        return days

    def judge(self) -> None:
        """Raise BarError if all symbols together are evidence enough, since a thinly traded symbol
        alone proves little."""
        self._refuse_label(self._votes, MINUTE_NS, "the bars of all symbols together")
        self._refuse_zone(self._moved, "the bars of all symbols together")
        self._refuse_parts(
            self._whole_days, self._split_days, self._others, "the bars of all symbols"
        )

    def _refuse_parts(self, whole: int, split: int, num_steps: int, subject: str) -> None:
        """Raise BarError for bars of whole sessions or of the parts around a break, if the market's
        bars are shorter. whole: number of days with a single bar, at the open; split: of days with
        one at the begin of each part; num_steps: number of steps between bars of one part."""
        for count, length, kind in (
            (whole, self._whole, "daily bars"),
            (split, self.grid.longest_part, "bars of the parts of a session around its break"),
        ):
            is_most = 2 * count > whole + split and not num_steps
            if count >= 10 and is_most and self.grid.bar_minutes < length:
                raise BarError(
                    f"{subject} are {kind}, and the market's bars have {self.grid.bar_minutes}"
                    " minutes: a close would be known in its first bar; set"
                    f" {'data.source.bar_minutes and ' * (self.minutes is not None)}"
                    f"data.bar_minutes to {length}, or keep only bars of one length"
                )

    def _refuse_length(self, days: BarsByDay, subject: str) -> None:
        length = days.minutes
        grid = self.grid.bar_minutes
        if length is None:
            return
        declared = self.minutes
        is_odd = length > 1 or np.mean(days.steps % (declared or 1) != 0) > 0.05
        is_shorter = declared is not None and length < declared and is_odd
        if (is_shorter and (length == 1 or self.is_moved)) or self._has_dense_days(days):
            usual = int(np.median(days.steps))
            raise BarError(
                f"{subject} stand {usual} minute{'s' * (usual > 1)} apart, and"
                f" data.source.bar_minutes says {declared}; set data.source.bar_minutes to {usual},"
                " or keep only bars of one length"
            )
        fits = length <= grid and (grid % length == 0 or grid >= self._whole)
        if length > 1 and (not fits or (declared is not None and declared < length)):
            settings = (
                [f"data.source.bar_minutes to {length}"] if declared not in (None, length) else []
            )
            settings += [] if fits else [f"data.bar_minutes to {length} or a multiple of it"]
            raise BarError(
                f"{subject} stand {length} minutes apart, so they are bars of {length} minutes"
                + ("" if fits else f", which cannot be spread over bars of {grid}")
                + f"; set {' and '.join(settings)}, or keep only bars of one length"
            )

    def _has_dense_days(self, days: BarsByDay) -> bool:
        """Return True if three sessions have at least half more bars than bars of the declared
        length, by which these were moved, leave room for. Trades of auctions do not count."""
        if not self.is_moved or not self.minutes:
            return False
        at = self.grid.locate(days.ts)
        is_counted = (at >= 0) & (days.bars.high > days.bars.low)
        count = np.bincount(self.grid.session[at[is_counted]], minlength=self.grid.num_sessions)
        return int((count > 1.5 * np.ceil(self.grid.session_minutes / self.minutes)).sum()) >= 3

    def _refuse_crossing(self, days: BarsByDay, subject: str) -> None:
        """Raise BarError if more than 10 % of the bars end within a later bar of the grid, which
        would show their closes before they are known."""
        minutes = self.minutes or days.minutes or 1
        if minutes == 1 or self.grid.bar_minutes >= self._whole:
            return
        ends = days.ts + minutes * MINUTE_NS
        ends[:-1] = np.minimum(ends[:-1], days.ts[1:])
        pauses = np.append(self.grid.pauses, ends[-1])
        ends = np.minimum(ends, pauses[np.searchsorted(self.grid.pauses, days.ts, side="right")])
        begin = self.grid.locate(days.ts)
        last = self.grid.locate(ends - MINUTE_NS)
        is_across = (begin >= 0) & (last > begin)
        if is_across.mean() > 0.1:
            at = int(is_across.argmax())
            first, until = (to_wall(np.array([ns]), "UTC")[0] for ns in (days.ts[at], ends[at]))
            raise BarError(
                f"{subject} do not begin with those of the market: one from {first:%H:%M} to"
                f" {until:%H:%M} UTC ends within a later one, and its close would be known too"
                " early; correct data.source.timezone or data.calendar (24/5 and 24/7 begin bars at"
                " midnight in UTC), set data.hours to clock if bars begin at full hours by the"
                " exchange's clock, or get shorter bars"
            )

    def _refuse_label(self, votes: Votes, step: int, subject: str) -> None:
        label = votes.displaced()
        if label is None:
            return
        when = f"late on {votes.end}" if label == "end" else f"early on {votes.early}"
        raise BarError(
            f"{subject} begin and end one bar too {when} of {votes.days} days, as if their times"
            f" were the {label}s of bars; set data.source.label to {label}"
            + (", or correct data.source.timezone" if step >= _STEP else "")
        )

    def _refuse_zone(self, shifts: dict[int, Counter[int]], subject: str) -> None:
        """Raise BarError if more than half of all days are displaced, or at least 90 % of the days
        of one season (sessions with one opening time in UTC) by the same amount."""
        total = sum(shifts.values(), Counter[int]())
        days = sum(total.values())
        displaced = days - total[0]
        seasons = []
        for counts in shifts.values():
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
        season = len(seasons) < len(shifts) and any(
            2 * counts[0] > sum(counts.values()) for counts in shifts.values()
        )
        raise BarError(
            f"{subject} stand {abs(minutes)} minutes {'after' if minutes > 0 else 'before'} the"
            f" sessions of {self.grid.calendar} on {count} of {days} days"
            + (
                ", all those of one season: their zone has no daylight saving, or another one"
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
    """Merge each opening print, a bar one bar length before the open, into the bar at the open.

    bars: one symbol's, sorted. Returns them and the number of merged prints; days with more trading
    outside of the session stay unchanged.
    """
    row, there = days.find_bars(days.open - days.step)
    there &= ~days.wide
    ts = bars.ts.copy()
    ts[row[there]] = days.open[there]
    return merge_rows(replace(bars, ts=ts).sorted()), int(there.sum())


def has_opening_prints(days: BarsByDay) -> bool:
    """True if most days, and at least three, have one bar of a single price one bar length before
    the open: the opening auction's trade."""
    votes = _count_edge_votes(days) if days.has_edges else Votes()
    return votes.prints >= 3 and votes.prints * 2 > votes.days
