"""Every kind of fault the bars of a market can have, and detectors that find them without changing anything.

What becomes of each when a market is built stands in `KINDS`. Nothing is erased by looking at what came after it: a
price that jumps and comes back is reported and kept, because to drop it one would have to know the next bar.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fintrader.data.bars import COLUMNS, MINUTE_NS, PRICES, Array, Bars
from fintrader.data.calendar import SessionGrid, exchange_days

KINDS: dict[str, str] = {
    "not_finite_price": "a price is NaN or infinite: the build refuses it",
    "zero_price": "a price is zero: the build refuses it",
    "negative_price": "a price is negative: the build refuses it",
    "not_finite_volume": "a volume is NaN or infinite: the build refuses it",
    "negative_volume": "a volume is negative: the build refuses it",
    "future": "the bar lies in the future: the build refuses it",
    "conflicting_duplicate": "different rows for one symbol and time: the build refuses them",
    "exact_duplicate": "a row repeats another: one is kept",
    "out_of_order": "rows are not in order of time: they are sorted",
    "off_minute": "a time lies inside a minute: it counts to the minute in which it lies",
    "crossed_range": "the high lies below the low: the range is widened to hold open and close",
    "open_outside_range": "the open lies outside low and high: the range is widened",
    "close_outside_range": "the close lies outside low and high: the range is widened",
    "closed_day": "bars on a day without a session: left out",
    "outside_session": "bars before the open or after the close: left out",
    "shifted_day": "a day's bars stand whole hours away from the session: those outside are left out, mend the zone",
    "price_spike": "closes jump away and come back within half an hour's bars, both at once: kept",
    "wick": "a high or low reaches far beyond the bar's open and close: kept",
    "stale_run": "many bars in a row are the same in price and volume, as of a frozen feed: kept",
    "repeated_day": "a day's closes are those of another day: kept",
    "split": "a night's move looks like an unadjusted split: kept, declare it under data.adjust",
    "scale_jump": "prices change by a factor of 100 or more: kept",
    "zero_volume": "the price moves in a bar without volume: kept",
    "volume_outlier": "a volume is thousands of times the usual one: kept",
    "gap": "minutes are missing in which the symbol would all but surely have traded: last past close, not tradable",
    "thin_day": "a symbol has less than half its usual bars on a day: last past close, not tradable",
    "missing_session": "a symbol has no bar in a whole session: last past close, not tradable",
    "market_hole": "minutes in which nobody traded: last past close, not tradable",
    "market_halt": "minutes of a market-wide halt: last past close, not tradable",
    "late_listing": "a symbol begins after the first session: no price before",
    "ended": "a symbol's bars end before the last session: no price after, sold at its last bar",
}
"""Kind -> what it means and what the build makes of it."""

MARKET_HALTS = ("1997-10-27", "2020-03-09", "2020-03-12", "2020-03-16", "2020-03-18")
"""Days of market-wide circuit breakers in New York (https://www.nyse.com/trade/market-wide-circuit-breakers)."""

_SPLITS = (1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0)
_EXCURSION_BARS = 30
_UNLIKELY = -15.0
"""Chance, as a power of ten, below which silence is no chance."""


@dataclass(frozen=True, order=True)
class Fault:
    """One fault of one symbol on one day (symbol "" stands for the whole market)."""

    kind: str
    symbol: str
    day: str
    """Exchange's date, like 2016-01-04."""
    count: int
    """Bars concerned."""
    detail: str = ""


def find_faults(bars: Bars, grid: SessionGrid, *, now: float | None = None) -> list[Fault]:
    """All faults of raw bars, sorted by kind, symbol and day. `grid` is one of exchange minutes that spans them."""
    found = list(_row_faults(bars, _days(bars, grid), now))
    bars = bars.take(_valid(bars, now)).sorted()
    if len(bars):
        first = np.concatenate([[True], (np.diff(bars.ts) != 0) | (np.diff(bars.symbol) != 0)])
        bars = bars.take(first)
        found += _placement_faults(bars, grid, _days(bars, grid))
        at = grid.locate(bars.ts)
        inside = at >= 0
        bars, at = bars.take(inside), at[inside]
        if len(bars):
            found += _price_faults(bars, at, grid)
            found += _coverage_faults(bars, at, grid)
    return sorted(found)


def _days(bars: Bars, grid: SessionGrid) -> Array:
    """`[R]` datetime64[D]: the exchange's own date of each row."""
    quarter = 15 * MINUTE_NS  # no zone's offset or change of clocks is finer
    quarters, inverse = np.unique(bars.ts // quarter, return_inverse=True)
    return np.asarray(exchange_days(grid.calendar, quarters * quarter)[inverse].astype("datetime64[D]"))


def _grouped(kind: str, bars: Bars, mask: Array, days: Array) -> Iterator[Fault]:
    """One fault per symbol and day in which `mask` holds."""
    rows = np.flatnonzero(mask)
    keys = np.stack([bars.symbol[rows].astype(np.int64), days[rows].astype(np.int64)], axis=1)
    groups, counts = np.unique(keys, axis=0, return_counts=True)
    for (code, day), count in zip(groups, counts, strict=True):
        yield Fault(kind, bars.symbols[code], str(np.datetime64(int(day), "D")), int(count))


def _runs(mask: Array) -> list[list[int]]:
    """`[start, stop)` of each run in which `mask` holds."""
    edges: list[list[int]] = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0)).reshape(-1, 2).tolist()
    return edges


def _valid(bars: Bars, now: float | None) -> Array:
    good = np.isfinite(bars.volume) & (bars.volume >= 0) & ~_future(bars, now)
    for name in PRICES:
        values = getattr(bars, name)
        good &= np.isfinite(values) & (values > 0)
    return np.asarray(good)


def _future(bars: Bars, now: float | None) -> Array:
    return np.asarray(bars.ts > np.int64((time.time() if now is None else now) * 1e9))


def _row_faults(bars: Bars, days: Array, now: float | None) -> Iterator[Fault]:
    prices = np.stack([getattr(bars, name) for name in PRICES])
    good = _valid(bars, now)
    crossed = good & (bars.high < bars.low)
    # order: a row earlier than one of its symbol that stands before it in the file
    order = np.argsort(bars.symbol, kind="stable")
    back, exact, conflicting = (np.zeros(len(bars), dtype=bool) for _ in range(3))
    back[order[1:]] = (np.diff(bars.ts[order]) < 0) & (np.diff(bars.symbol[order]) == 0)
    order = np.lexsort((bars.ts, bars.symbol))
    again = np.concatenate([[False], (np.diff(bars.ts[order]) == 0) & (np.diff(bars.symbol[order]) == 0)])
    same = again.copy()
    for name in COLUMNS:
        values = getattr(bars, name)[order]
        same[1:] &= (np.diff(values) == 0) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
    exact[order], conflicting[order] = same, again & ~same
    found = {
        "not_finite_price": ~np.isfinite(prices).all(axis=0),
        "zero_price": (prices == 0).any(axis=0),
        "negative_price": (prices < 0).any(axis=0),
        "not_finite_volume": ~np.isfinite(bars.volume),
        "negative_volume": bars.volume < 0,
        "future": _future(bars, now),
        "off_minute": bars.ts % MINUTE_NS != 0,
        "crossed_range": crossed,
        "open_outside_range": good & ~crossed & ((bars.open > bars.high) | (bars.open < bars.low)),
        "close_outside_range": good & ~crossed & ((bars.close > bars.high) | (bars.close < bars.low)),
        "out_of_order": back,
        "exact_duplicate": exact,
        "conflicting_duplicate": conflicting,
    }
    for kind, mask in found.items():
        yield from _grouped(kind, bars, mask, days)


def _placement_faults(bars: Bars, grid: SessionGrid, days: Array) -> Iterator[Fault]:
    """Rows where the exchange is closed: a day off, a shifted day, or early and late trading."""
    outside = grid.locate(bars.ts) < 0
    session = np.minimum(np.searchsorted(grid.dates, days), grid.num_sessions - 1)
    trading = grid.dates[session] == days
    yield from _grouped("closed_day", bars, outside & ~trading, days)
    shifted = np.zeros(len(bars), dtype=bool)
    rows = np.flatnonzero(outside & trading)
    starts = grid.minutes[grid.first_bar[:-1]]
    for code, number in np.unique(np.stack([bars.symbol[rows], session[rows]], axis=1), axis=0):
        mine = (bars.symbol == code) & (days == grid.dates[number])
        first, last = bars.ts[mine].min(), bars.ts[mine].max()
        length = int(grid.session_minutes[number]) * MINUTE_NS
        early, late = first - starts[number], last + MINUTE_NS - starts[number] - length
        # both ends moved the same way by about a whole number of half hours, and the day is as long as a session
        moved = round((early + late) / 2 / (30 * MINUTE_NS)) * 30 * MINUTE_NS
        if moved and max(abs(early - moved), abs(late - moved)) < 15 * MINUTE_NS:
            shifted |= mine & outside
            day, by = str(grid.dates[number]), f"by {moved // MINUTE_NS} minutes"
            yield Fault("shifted_day", bars.symbols[code], day, int(mine.sum()), by)
    yield from _grouped("outside_session", bars, outside & trading & ~shifted, days)


def _price_faults(bars: Bars, at: Array, grid: SessionGrid) -> Iterator[Fault]:
    edges = np.searchsorted(bars.symbol, np.arange(len(bars.symbols) + 1))
    for name, (start, stop) in zip(bars.symbols, itertools.pairwise(edges), strict=True):
        if stop - start >= 2:
            rows = slice(int(start), int(stop))
            yield from _one_symbols_prices(bars, rows, name, grid.session[at[rows]], grid)


def _one_symbols_prices(bars: Bars, rows: slice, name: str, session: Array, grid: SessionGrid) -> Iterator[Fault]:
    open_, high, low, close = (getattr(bars, column)[rows] for column in PRICES)
    volume = bars.volume[rows]
    step = np.diff(np.log(close))
    usual = 1.4826 * float(np.median(np.abs(step))) or 1e-4
    today = 1.4826 * _daily_median(np.abs(step), session[1:], grid.num_sessions)  # `[S]`: some days are wild

    def faults(kind: str, mask: Array) -> Iterator[Fault]:
        for day, count in zip(*np.unique(session[mask], return_counts=True), strict=True):
            yield Fault(kind, name, str(grid.dates[day]), int(count))

    jump, scale = _jumps(open_, close, volume, session, calm=today < 3 * usual)
    far = np.maximum(0.05, 20 * np.maximum(usual, today))
    for row in np.flatnonzero(jump):
        yield Fault("split", name, str(grid.dates[session[row]]), 1, f"{jump[row]:g} to 1")
    yield from faults("scale_jump", scale)
    yield from faults("price_spike", _excursions(np.log(close), session, far) & ~scale)
    top, bottom = np.maximum(open_, close), np.minimum(open_, close)
    reach = np.maximum(high / top - 1, 1 - low / bottom)
    yield from faults("wick", reach > max(0.1, 50 * float(np.median(high / low - 1))))
    yield from faults("zero_volume", (volume == 0) & (high > low))
    typical = float(np.median(volume))
    yield from faults("volume_outlier", volume > 20_000 * max(typical, 1.0))
    same = np.diff(session, prepend=-1) == 0
    for values in (open_, high, low, close, volume):
        same[1:] &= np.diff(values) == 0
    stale = np.zeros(len(close), dtype=bool)
    for start, stop in _runs(same):
        stale[start:stop] = stop - start >= 9  # ten bars alike
    yield from faults("stale_run", stale)
    seen: dict[bytes, int] = {}
    bounds = np.flatnonzero(np.diff(session, prepend=-1, append=-1))
    for start, stop in itertools.pairwise(bounds.tolist()):
        if stop - start >= 30 and np.ptp(close[start:stop]) > 0:
            earlier = seen.setdefault(close[start:stop].tobytes(), int(session[start]))
            if earlier != session[start]:
                day = str(grid.dates[session[start]])
                yield Fault("repeated_day", name, day, int(stop - start), f"same as {grid.dates[earlier]}")


def _daily_median(values: Array, session: Array, sessions: int) -> Array:
    """`[S]`: the median of each session's values, 0 where it has none."""
    result = np.zeros(sessions)
    for start, stop in itertools.pairwise(np.flatnonzero(np.diff(session, prepend=-1, append=-1))):
        result[session[start]] = np.median(values[start:stop])
    return result


def _excursions(level: Array, session: Array, far: Array) -> Array:
    """`[R]` bool: bars whose log close has left by more than the session's `far` `[S]` and comes back, each in one bar.

    Back means within 30 % of the move, by a bar that takes as much back to within 30 %, at most 30 bars later and in
    the same session (or the very next bar). What leaves or returns step by step is a market that moves.
    """
    step = np.diff(level)
    away = np.zeros(len(level), dtype=bool)
    done = 0
    for before in np.flatnonzero(np.abs(step) > far[session[1:]]).tolist():
        if before < done:  # the way back of the last one
            continue
        move, stop = step[before], min(before + 1 + _EXCURSION_BARS, len(step))
        there = slice(before + 1, stop)
        taken = -step[there] / move
        back = (np.abs(level[before + 2 : stop + 1] - level[before]) < 0.3 * abs(move)) & (np.abs(taken - 1) < 0.3)
        back[1:] &= session[before + 3 : stop + 1] == session[before + 1]
        if back.any():
            done = before + 2 + int(back.argmax())
            away[before + 1 : done] = True
    return away


def _jumps(open_: Array, close: Array, volume: Array, session: Array, calm: Array) -> tuple[Array, Array]:
    """`[R]` ratio of a likely split at a session's first bar (0 elsewhere), and where prices change scale.

    calm: `[S]` bool, sessions whose minutes move as little as usual.
    """
    ratio = np.ones(len(close))
    ratio[1:] = close[:-1] / open_[1:]
    scale = (np.maximum(ratio, 1 / ratio) > 70) | np.concatenate([[False], np.abs(np.diff(np.log(close))) > np.log(70)])
    split = np.zeros(len(close))
    first = np.flatnonzero(np.diff(session, prepend=session[0] - 1) != 0)
    turnover = np.add.reduceat(close * volume, first)
    last = np.append(first[1:], len(close)) - 1
    for number, row in enumerate(first):
        if number == 0 or scale[row]:
            continue
        # bad news makes people trade and prices move; nothing else tells a small split from it
        quiet = calm[session[row]] and turnover[number] < 3 * np.median(turnover[max(0, number - 20) : number])
        later = np.log(close[row - 1] / close[last[min(number + 1, len(first) - 1)]])
        for known in _SPLITS:
            for target in (known, 1 / known) if known > 1.25 else (known,):  # nobody merges five shares into four
                near = abs(np.log(ratio[row] / target)) < (0.05 if known > 1.25 else 0.02)
                # half of the move must still stand at the end of the day after: else it was a day of bad prices
                stands = later / np.log(target) > 0.5
                if near and stands and (known > 1.5 or quiet):
                    split[row] = target
    return split, scale


def _coverage_faults(bars: Bars, at: Array, grid: SessionGrid) -> Iterator[Fault]:
    num = len(bars.symbols)
    traded: Array = np.zeros((num, grid.num_bars), dtype=bool)
    traded[bars.symbol, at] = True
    day_of = [str(day) for day in grid.dates]
    counts = np.stack([np.bincount(grid.session[row], minlength=grid.num_sessions) for row in traded])
    dead = _dead_minutes(traded, counts, grid)
    for number in np.unique(grid.session[dead]):
        silent = np.flatnonzero(dead & (grid.session == number))
        clock = [str(grid.minutes[row].astype("datetime64[ns]"))[11:16] for row in silent[[0, -1]]]
        kind = "market_halt" if day_of[number] in MARKET_HALTS else "market_hole"
        yield Fault(kind, "", day_of[number], len(silent), f"between {clock[0]} and {clock[1]} UTC")
    edges = grid.first_bar
    length = np.maximum(np.bincount(grid.session[~dead], minlength=grid.num_sessions), 1)
    for code, name in enumerate(bars.symbols):
        count = counts[code]
        days = np.flatnonzero(count)
        if len(days) == 0:
            continue
        first, last = int(days[0]), int(days[-1])
        if first > 0:
            yield Fault("late_listing", name, day_of[first], 1, "first session")
        if last < grid.num_sessions - 1:
            yield Fault("ended", name, day_of[last], 1, "last session")
        listed = np.flatnonzero(traded[code])  # what lies before the first bar or after the end is no gap
        begin, end = int(listed[0]), int(listed[-1]) + 1 if last < grid.num_sessions - 1 else grid.num_bars
        share = count / length
        usual = _usual(share[first : last + 1])
        for number in range(first, last + 1):
            if share[number] == 0:
                if not dead[edges[number] : edges[number + 1]].all():
                    yield Fault("missing_session", name, day_of[number], int(grid.session_minutes[number]))
                continue
            if share[number] < 0.5 * usual:
                yield Fault("thin_day", name, day_of[number], int(count[number]), f"{share[number]:.0%} of the minutes")
            rows = slice(max(int(edges[number]), begin), min(int(edges[number + 1]), end))
            yield from _gaps(traded[code, rows], ~dead[rows], usual, name, day_of[number], grid.minutes[rows])


def _usual(share: Array) -> float:
    """The share of a session's minutes in which a symbol trades on a day like any other."""
    return float(np.median(share[share > 0]))


def _silence(usual: float) -> float:
    """log10 of the chance of a silent minute; never less than -3, because minutes are not independent."""
    return float(np.log10(max(1.0 - usual, 1e-3)))


def _dead_minutes(traded: Array, counts: Array, grid: SessionGrid) -> Array:
    """`[T]` bool: runs of minutes in which all of these symbols fall silent, as good as never by chance.

    One symbol alone says nothing of the market, unless the day is known for a halt.
    """
    dead: Array = np.zeros(grid.num_bars, dtype=bool)
    share = counts / np.diff(grid.first_bar)
    chance = np.zeros((len(traded), grid.num_sessions))  # log10 of the chance of one silent minute, where listed
    for code in np.flatnonzero(counts.any(axis=1)):
        days = np.flatnonzero(counts[code])
        listed = slice(int(days[0]), int(days[-1]) + 1)
        chance[code, listed] = _silence(_usual(share[code, listed]))
    joint, listed_now = chance.sum(axis=0), np.count_nonzero(chance, axis=0)
    halted = np.isin(grid.dates, np.array(MARKET_HALTS, dtype="datetime64[D]"))
    quiet: Array = np.asarray(~traded.any(axis=0))
    # a run ends with its session
    ends = np.flatnonzero(np.diff(np.where(quiet, grid.session, -1), prepend=-1, append=-1))
    for start, stop in itertools.pairwise(ends):
        number = grid.session[start]
        if quiet[start] and (listed_now[number] > 1 or halted[number]):
            dead[start:stop] = joint[number] * (stop - start) < _UNLIKELY
    return dead


def _gaps(traded: Array, open_: Array, usual: float, name: str, day: str, minutes: Array) -> Iterator[Fault]:
    """Runs of silent minutes, of which a symbol that usually trades in a share `usual` has less than 1 in 10^15."""
    stamps = minutes[open_]
    for start, stop in _runs(~traded[open_]):
        run = stop - start
        if run >= 5 and run * _silence(usual) < _UNLIKELY:
            begin = str(stamps[start].astype("datetime64[ns]"))[11:16]
            yield Fault("gap", name, day, run, f"from {begin} UTC")
