"""Days of one symbol that are certainly wrong, found in a few passes over its bars, and a summary
of its days.

Everything here looks at one symbol at a time, so that a build can check while it reads; `nights`
compares the summaries of all symbols.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fintrader.bars.bars import DAY_MINUTES, MINUTE_NS, PRICES, Array, Bars, bar_length
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.checks.kinds import SURE, UNLIKELY, group_by_day, runs
from fintrader.bars.evidence import measure_shift
from fintrader.results.market_description import Fault

_FEW = 5
"""With fewer bars a day, equal closes may be chance: whole rows are compared."""
_RUN = 3
"""So many repeated days in a row are not chance, however coarse the prices."""
_PAUSE_BARS = 4
"""Missing bars in a row that separate two phases of trading."""
SCALE = 70.0
"""No price changes by this factor in one bar."""
_EXCURSION_BARS = 180
HASHED = 15
"""Places in a block, compared with the blocks of other symbols."""
_BLOCK = 30
"""Bars that share one scale."""
LAGS = (-2, -1, 0, 1, 2)
"""Offsets from a session's start at which to look for an opening print."""


@dataclass(frozen=True, eq=False)
class Days:
    """Summary of one symbol's `D` days with at least one bar inside the session."""

    symbol: str
    session: Array
    """`[D]` int64: number of the session."""
    dates: Array
    """`[D]` datetime64[D]: the exchange's dates."""
    bars: Array
    """`[D]` int64: number of bars."""
    open: Array
    """`[D]` float64: the first bar's; `close` is the last bar's."""
    high: Array
    low: Array
    close: Array
    volume: Array
    """`[D]` float64: shares a bar, on average."""
    turnover: Array
    """`[D]` float64: price times shares a bar, on average."""
    content: Array
    """`[D]` int64: a hash of the day's closes, equal for equal ones; 0 for a day too uniform to be
    recognised by it."""
    blocks: Array
    """`[P // 15]` uint64: a hash of 15 closes in a row, 0 where bars or moves are missing."""
    length: int
    """Minutes between most bars and the next one; 0 where there is one a day, and then the fields
    below are empty."""
    moves: Array
    """`[P]` int8: returns on all places of the sessions, see `_trace_moves`."""
    place: Array
    """`[D]` int64: first place of each day's session; `places` `[D]` is the number of them."""
    places: Array
    silent: Array
    """`[2, D]` int64: places without a bar before the first bar and after the last one."""
    ends: Array
    """`[3, D]` float64: log of the first, the second and the last bar's volume over the day's
    mean."""
    openings: Array
    """`[D, 5]` float64: opens of the bars LAGS places from the session's start, else NaN."""
    unopened: Array
    """`[D]` float64: 1 if the opening print of daily bars differs from the first bar, 0 if equal,
    NaN if unknown."""

    @cached_property
    def first(self) -> Array:
        """`[D]` int64: the first bar of each day, among all inside the sessions."""
        return np.asarray(np.cumsum(self.bars) - self.bars)

    @cached_property
    def gaps(self) -> Array:
        """`[D]` int64: sessions since the day before; 0 on the first day."""
        return np.diff(self.session, prepend=self.session[:1])

    def day_of(self, bar: int) -> int:
        """The number of the day that holds a bar."""
        return int(np.searchsorted(self.first, bar, side="right")) - 1

    def fault(self, kind: str, day: int, detail: str = "", count: int | None = None) -> Fault:
        """A fault of the day of this number; it counts all bars of the day, or so many."""
        held = self.bars[day] if count is None else count
        return Fault(kind, self.symbol, str(self.dates[day]), int(held), detail)


def check_days(bars: Bars, grid: SessionGrid) -> tuple[Days | None, list[Fault]]:
    """Summarise one symbol's days, and find their faults; the summary is None when no bar lies
    inside a session.

    bars: one symbol's, valid and sorted by time, including those outside of the sessions.
    """
    length = bar_length(bars, 0)
    length = length if length < DAY_MINUTES // 2 else 0
    found = list(_find_shifted(bars, grid, length))
    whole = bars
    at = grid.locate(bars.ts)
    if (at < 0).any():
        bars = bars.take(at >= 0)
        at = at[at >= 0]
    if len(bars) == 0:
        return None, found
    counts = np.bincount(grid.session[at])
    number = np.flatnonzero(counts)
    counts = counts[number]
    first = np.cumsum(counts) - counts
    last = first + counts - 1
    moves = place = np.zeros(0, dtype=np.int8)
    blocks = np.zeros(0, dtype=np.uint64)
    begin = np.zeros(grid.num_sessions + 1, dtype=np.int64)
    if length > 0:
        moves, place, begin = _trace_moves(bars, grid, at, first, length)
        blocks = _hash_blocks(bars.close, place, len(moves))
    edges = place[[first, last]] if length > 0 else np.zeros((2, len(first)), dtype=np.int64)
    volume = np.add.reduceat(bars.volume, first) / counts
    ends = bars.volume[[first, np.minimum(first + 1, last), last]]
    ends = np.log(np.maximum(ends / np.maximum(volume, 1e-9), 1e-6))
    days = Days(
        symbol=bars.symbols[0],
        session=number,
        dates=grid.dates[number],
        bars=counts,
        open=bars.open[first],
        high=np.maximum.reduceat(bars.high, first),
        low=np.minimum.reduceat(bars.low, first),
        close=bars.close[last],
        volume=volume,
        turnover=np.add.reduceat(bars.volume * bars.close, first) / counts,
        content=_hash_days(bars, first, last + 1),
        blocks=blocks,
        length=length,
        moves=moves,
        place=begin[number],
        places=np.diff(begin)[number],
        silent=np.stack([edges[0] - begin[number], begin[number + 1] - 1 - edges[1]]),
        ends=ends,
        openings=_pick_openings(whole, grid.begin[number], length),
        unopened=np.full(len(number), np.nan),
    )
    found += _find_scale_jumps(bars, days)
    found += _find_repeated(days)
    found += _find_excursions(bars, days) if len(bars) > 1 else []
    if length > 0:
        found += _find_spread_out(bars, days, grid)
        for find in (_find_reversed, _find_frozen, _find_last_jump, _find_middles, _find_adjusted):
            found += find(bars, days)
    return days, found


def _pick_openings(bars: Bars, begin: Array, length: int) -> Array:
    """Pick `Days.openings`; begin: `[D]` int64, start of each session."""
    wanted = begin[:, None] + np.array(LAGS) * length * MINUTE_NS
    row = np.minimum(np.searchsorted(bars.ts, wanted), len(bars) - 1)
    return np.where(bars.ts[row] == wanted, bars.open[row], np.nan)


def _trace_moves(
    bars: Bars, grid: SessionGrid, at: Array, first: Array, length: int
) -> tuple[Array, Array, Array]:
    """Trace a symbol's returns in a byte each, on places of `length` minutes within the sessions.

    at: `[R]` the grid's bar of each row; first: `[D]` first row of each day. Returns the moves
    `[P]` int8, 30 to a standard deviation of the bars around and 0 where there is none; the place
    of each row `[R]`; and the first place of each session `[S + 1]`.
    """
    minutes = grid.session_minutes
    begin = np.concatenate([[0], np.cumsum(-(-minutes // length))])
    session = grid.session[at]
    minute = np.searchsorted(grid.exchange_minutes, bars.ts, side="right") - 1
    place = begin[session] + (minute - (np.cumsum(minutes) - minutes)[session]) // length
    # a return over missing bars belongs to no single place: there a bar's own is taken
    before = np.where(np.diff(place, prepend=-9) == 1, np.roll(bars.close, 1), bars.open)
    before[first] = bars.open[first]
    move = np.log(bars.close / before)
    rows = np.diff(first, append=len(bars))
    # half an hour of minutes has a volatility of its own: the open and noon would weigh unlike
    blocks = np.flatnonzero((np.arange(len(bars)) - np.repeat(first, rows)) % _BLOCK == 0)
    rows = np.diff(blocks, append=len(bars))
    usual = np.repeat(1.25 * np.add.reduceat(np.abs(move), blocks) / rows, rows)
    moves = np.zeros(begin[-1], dtype=np.int8)
    # beyond four deviations a move is news of its own, and would outweigh the day
    moves[place] = np.clip(np.round(30 * move / np.maximum(usual, 1e-12)), -120, 120)
    return moves, place, begin


def _find_shifted(bars: Bars, grid: SessionGrid, length: int) -> Iterator[Fault]:
    """Find days as long as a session whose two ends are displaced alike: by about a whole number of
    half hours, or without a gap by exactly as many bars.

    An auction's print may stand alone before the open or after the close, so a bar of one price is
    no evidence of an end.
    """
    if not 0 < length <= 60:
        return
    edges = np.searchsorted(bars.ts, grid.borders)
    day = np.flatnonzero(np.diff(edges) >= 2)
    step = length * MINUTE_NS
    early = bars.ts[edges[day]] - grid.begin[day]
    late = bars.ts[edges[day + 1] - 1] + step - grid.end[day]
    moved = measure_shift(early, late, step)
    rows = edges[day + 1] - edges[day]
    outer = np.where(early < 0, edges[day], edges[day + 1] - 1)
    exact = (moved == 0) & (early == late) & (bars.high[outer] > bars.low[outer])
    exact &= rows > 0.95 * (grid.end[day] - grid.begin[day]) / step
    moved[exact] = early[exact]
    for number, by in zip(day[moved != 0], moved[moved != 0], strict=True):
        count = int(edges[number + 1] - edges[number])
        detail = f"by {by // MINUTE_NS} minutes"
        follows = number + 1 < grid.num_sessions and grid.begin[number + 1] == grid.end[number]
        kind = "between_bars" if by % step and follows else "shifted_day"
        yield Fault(kind, bars.symbols[0], str(grid.dates[number]), count, detail)


def _hash_days(bars: Bars, first: Array, stop: Array) -> Array:
    """`[D]` int64, see `Days.content`. Another process gets other hashes."""
    found = np.zeros(len(first), dtype=np.int64)
    inner = [(price > bars.low) & (price < bars.high) for price in (bars.open, bars.close)]
    # a bar of one or two prices equals others by chance
    different = 1 + (bars.high > bars.low) + (inner[0] | inner[1])
    for day, (begin, end) in enumerate(zip(first.tolist(), stop.tolist(), strict=True)):
        close = bars.close[begin:end]
        if end - begin > _FEW:
            # a price that hardly moves equals that of other days by chance
            if end - begin >= 30 and np.count_nonzero(close[1:] != close[:-1]) >= 10:
                found[day] = hash(close.tobytes())
        elif (different[begin:end] >= 3).all():
            rows = [getattr(bars, name)[begin:end] for name in (*PRICES, "volume")]
            found[day] = hash(np.concatenate(rows).tobytes())
    return found


def _hash_blocks(close: Array, place: Array, places: int) -> Array:
    """Hash the closes `[R]` by blocks of places, see `Days.blocks`."""
    number = place // HASHED
    first = np.flatnonzero(np.diff(number, prepend=-1))
    # the sum of products wraps, so that different closes give different hashes
    weights = np.random.default_rng(0).integers(1 << 62, size=HASHED, dtype=np.uint64)
    bits = np.ascontiguousarray(close, dtype=np.float64).view(np.uint64)
    found = np.add.reduceat(bits * weights[place % HASHED], first)
    # prices that move by a tick or two coincide by chance
    reach = np.maximum.reduceat(close, first) - np.minimum.reduceat(close, first)
    steps = np.abs(np.diff(close))
    is_wide = reach > 5 * steps[steps > 0].min(initial=np.inf)
    whole = np.diff(first, append=len(close)) == HASHED
    blocks = np.zeros(places // HASHED + 1, dtype=np.uint64)
    blocks[number[first]] = np.where(whole & is_wide, found, 0)
    return blocks


def _find_repeated(days: Days) -> Iterator[Fault]:
    """Find days with the content of an earlier one.

    A daily bar may equal another day's by chance, or the day before's, as in a filled holiday.
    """
    order = np.argsort(days.content, kind="stable")
    content = days.content[order]
    again = np.flatnonzero((content[1:] == content[:-1]) & (content[1:] != 0)) + 1
    first = order[np.searchsorted(content, content[again])]
    last = order[again - 1]
    again = order[again]
    few = days.bars[again] <= _FEW
    filled = few & (again - last == 1)
    chance = few & ~filled
    if chance.any() and len(days.content) >= _RUN and _repeats_by_chance(days):
        chance &= ~np.isin(again, _find_repeated_runs(days.content))
    else:
        chance[:] = False
    for day, other, is_filled in zip(again[~chance], first[~chance], filled[~chance], strict=True):
        kind = "filled_day" if is_filled else "repeated_day"
        yield days.fault(kind, day, f"same as {days.dates[other]}")


def _find_repeated_runs(content: Array) -> Array:
    """Numbers of the days in runs of `_RUN` that repeat others, in the same order."""
    seen: dict[bytes, int] = {}
    found: list[int] = []
    for start, part in enumerate(np.lib.stride_tricks.sliding_window_view(content, _RUN)):
        is_distinct = part.all() and len(np.unique(part)) == _RUN
        if is_distinct and start - seen.setdefault(part.tobytes(), start) >= _RUN:
            found += range(start, start + _RUN)
    return np.array(found, dtype=np.int64)


def _repeats_by_chance(days: Days) -> bool:
    """True if pairs of days that agree in all but one of open, high, low, close and volume are at
    least as many as those that agree in all, as with prices of few digits: a copy then proves
    nothing."""
    wide = days.high > days.low
    fields = [getattr(days, name)[wide] for name in (*PRICES, "volume")]

    def count_pairs(columns: list[Array]) -> int:
        sizes = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)[1]
        return int((sizes * (sizes - 1) // 2).sum())

    alike = count_pairs(fields)
    others = [count_pairs(fields[:k] + fields[k + 1 :]) - alike for k in range(len(fields))]
    return sum(others) >= alike


def _find_scale_jumps(bars: Bars, days: Days) -> Iterator[Fault]:
    """Find bars at which the price becomes 70 times as much or as little."""
    from fintrader.bars import kernels

    far = kernels.mark_steps(bars.open, bars.close, SCALE)
    if far.any():
        yield from group_by_day("scale_jump", bars, far, np.repeat(days.dates, days.bars))


def _find_reversed(bars: Bars, days: Days) -> Iterator[Fault]:
    """Find days whose bars run backwards: closes match the open of the bar before, instead of
    opens its close, more often than chance allows."""
    from fintrader.bars import kernels

    votes, cast = kernels.backward_votes(bars.open, bars.close, days.first)
    for day in np.flatnonzero((cast >= 20) & (votes > SURE * np.sqrt(cast))).tolist():
        yield days.fault("reversed_day", day)


def _find_frozen(bars: Bars, days: Days) -> Iterator[Fault]:
    """Find runs of bars that trade at a single price, far longer than the symbol's usual ones."""
    still = np.zeros(len(bars), dtype=bool)
    still[1:] = bars.close[1:] == bars.close[:-1]
    still &= (bars.high == bars.low) & (bars.volume > 0)
    still[days.first] = False
    usual = max(float(still.mean()), 1e-3)
    for begin, stop in runs(still):
        alike = stop - begin
        if alike * days.length >= 29 and alike >= 9 and alike * np.log10(usual) < UNLIKELY:
            price = f"at {bars.close[begin]:g}"
            day = days.day_of(begin)
            within = bars.take(slice(int(days.first[day]), int(days.first[day] + days.bars[day])))
            is_limit = _is_limit(within, begin - int(days.first[day]), days.length)
            kind = "limit_price" if is_limit else "frozen_price"
            yield days.fault(kind, day, price, alike + 1)


def _is_limit(bars: Bars, begin: int, length: int) -> bool:
    """True if a bar's price is the highest or lowest between two pauses in trading, and not the
    day's only price, as at a price limit of the exchange."""
    pauses = np.flatnonzero(np.diff(bars.ts) > _PAUSE_BARS * length * MINUTE_NS) + 1
    edges = np.concatenate([[0], pauses, [len(bars)]])
    part = slice(*edges[np.searchsorted(edges, begin, side="right") + np.array([-1, 0])])
    low = float(bars.low[part].min())
    high = float(bars.high[part].max())
    is_moving = float(bars.low.min()) < float(bars.high.max())
    return is_moving and float(bars.close[begin]) in (low, high)


def _find_spread_out(bars: Bars, days: Days, grid: SessionGrid) -> Iterator[Fault]:
    """Find days whose bars lie at every second, third, ... place of the grid only, more regularly
    than chance allows."""
    open_ = grid.begin[days.session]
    places = (grid.end[days.session] - open_) // (days.length * MINUTE_NS)
    for day in np.flatnonzero((days.bars <= places // 2 + 1) & (days.bars >= 6)).tolist():
        ts = bars.ts[days.first[day] :][: days.bars[day]]
        place = (ts - open_[day]) // (days.length * MINUTE_NS)
        for step in (60, 30, 15, 10, 5, 3, 2):
            share = np.bincount(place % step).max() / len(place)
            certain = share > 0.95 and len(place) * np.log10(step) > 9
            if certain and len(place) * step > places[day] // 2:
                minutes = f"{step * days.length} minutes apart, elsewhere {days.length}"
                yield days.fault("bar_length", day, minutes, len(place))
                break


def _find_last_jump(bars: Bars, days: Days) -> Iterator[Fault]:
    """Find a jump of the symbol's last bar that is far larger than its others."""
    close = bars.close[max(int(days.first[-1]), len(bars) - 391) :]
    if len(close) < 10:
        return
    step = np.abs(np.diff(np.log(close)))
    far = max(0.04, 20 * 1.4826 * float(np.median(step[:-1])), 3 * float(step[:-1].max()))
    if step[-1] > far:
        yield days.fault("last_bar_jump", -1, f"{close[-1] / close[-2] - 1:+.1%}", 1)


def _find_tick(bars: Bars) -> float:
    """Find the smallest step between two highs; infinite if all are equal."""
    prices = np.unique(bars.high)
    steps = np.diff(prices)
    return float(steps[steps > 1e-6 * prices[1:]].min(initial=np.inf))


def _find_middles(bars: Bars, days: Days) -> Iterator[Fault]:
    """Find days whose closes are the middle of high and low, in more bars than even odds allow."""
    reach = bars.high - bars.low
    tick = _find_tick(bars)
    wide = reach > 4.5 * tick
    middle = wide & (np.abs(2 * bars.close - bars.high - bars.low) <= np.maximum(tick, 0.1 * reach))
    cast, votes = (np.add.reduceat(mask, days.first, dtype=np.int64) for mask in (wide, middle))
    share = np.clip(votes / np.maximum(cast, 1), 0.5, 1 - 1e-9)
    # Chernoff's bound of fair coins
    odds = cast * (share * np.log(2 * share) + (1 - share) * np.log(2 * (1 - share)))
    hit = np.flatnonzero(odds > -UNLIKELY * np.log(10))
    if len(hit):
        said = f"on {len(hit)} of {len(days.session)} days"
        yield days.fault("middle_close", hit[0], said, votes[hit].sum())


def _find_adjusted(bars: Bars, days: Days) -> Iterator[Fault]:
    """Find a part of the days whose prices are no whole cents, where those of the others are; a
    part that is adjusted for a split is whole when multiplied by its ratio."""
    cents = 100 * bars.close

    def share_whole(ratio: int) -> Array:
        values = ratio * cents
        near = np.abs(values - np.round(values)) < ratio * (1e-4 + 1.2e-7 * cents)  # of a float32
        return np.add.reduceat(near, days.first, dtype=np.int64) / days.bars

    seen = (days.bars >= 20) & (days.close >= 1)  # below a dollar a tick is less
    share = share_whole(1)
    broken = np.flatnonzero(seen & (share < 0.5))
    if len(broken) < 5 or np.count_nonzero(seen & (share > 0.99)) < 5:
        return
    if not any(np.median(share_whole(ratio)[broken]) > 0.99 for ratio in range(2, 21)):
        said = f"on {len(broken)} of {len(days.session)} days, to {days.dates[broken[-1]]}"
        yield days.fault("adjusted_part", broken[0], said, days.bars[broken].sum())


def _find_excursions(bars: Bars, days: Days) -> Iterator[Fault]:
    """Find bars whose prices leave in one step and come back in another one."""
    import pandas as pd  # late: settings load this module, and no pandas

    step = np.abs(np.diff(np.log(bars.close)))
    session = np.repeat(days.session, days.bars)
    size = pd.Series(step)
    # a symbol is wild, or a day is
    usual = np.maximum(size.median(), size.groupby(session[1:]).transform("median"))
    far = np.maximum(0.05, 20 * 1.4826 * np.asarray(usual))
    away = _mark_excursions(np.log(bars.close), session, far)
    # such a jump is a fault of scale
    away[1:] &= step <= np.log(SCALE)
    yield from group_by_day("price_spike", bars, away, np.repeat(days.dates, days.bars))


def _mark_excursions(level: Array, session: Array, far: Array) -> Array:
    """`[R]` bool: bars whose log close has left in a step longer than `far` `[R - 1]` and comes
    back, each in one bar.

    Back means within 30 % of the move, by a bar that takes as much back to within 30 %, at most 180
    bars later and in the same session (or the very next bar). A price that leaves or returns step
    by step is a market that moves.
    """
    step = np.diff(level)
    away = np.zeros(len(level), dtype=bool)
    done = 0
    for before in np.flatnonzero(np.abs(step) > far).tolist():
        if before < done:  # the way back of the last one
            continue
        move = step[before]
        stop = min(before + 1 + _EXCURSION_BARS, len(step))
        there = slice(before + 1, stop)
        taken = -step[there] / move
        back = (np.abs(level[before + 2 : stop + 1] - level[before]) < 0.3 * abs(move)) & (
            np.abs(taken - 1) < 0.3
        )
        back[1:] &= session[before + 3 : stop + 1] == session[before + 1]
        if back.any():
            done = before + 2 + int(back.argmax())
            away[before + 1 : done] = True
    return away
