"""Faults of one symbol's days, found in a few passes over its bars, and a summary of its days.

All functions here look at one symbol at a time, so that a build can check bars while it reads them.
`nights` and `alignment` compare the summaries of all symbols.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fintrader.bars.bars import DAY_MINUTES, MINUTE_NS, PRICES, Array, Bars, bar_length
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.checks.kinds import SURE, UNLIKELY, group_by_day, list_runs
from fintrader.bars.evidence import measure_shift
from fintrader.results.market_description import Fault

_FEW_BARS = 5
"""Most bars of a day that is compared by whole rows, since few equal closes may be chance. Longer
days are compared by their closes."""
_RUN_DAYS = 3
"""Number of consecutive repeated days that are no chance, however coarse the prices."""
_PAUSE_BARS = 4
"""Number of bar lengths; a longer step separates two phases of trading."""
SCALE_JUMP = 70.0
"""Least ratio of two consecutive prices that no market produces."""
_EXCURSION_BARS = 180
"""Most bars after which a price that jumped away may come back."""
BLOCK_PLACES = 15
"""Number of places in a block, whose closes are compared with those of other symbols."""
_SCALE_BARS = 30
"""Number of bars whose returns are divided by one volatility."""
LAGS = (-2, -1, 0, 1, 2)
"""Offsets from a session's start, in bars, at which an opening print is looked for."""


@dataclass(frozen=True, eq=False)
class Days:
    """Summary of one symbol's `D` days with at least one bar inside the session.

    Places are the intervals of `length` minutes of which the sessions consist, `P` in all sessions
    together; a bar stands at a place.
    """

    symbol: str
    session: Array
    """`[D]` int64: number of the session."""
    dates: Array
    """`[D]` datetime64[D]: the exchange's dates."""
    bars: Array
    """`[D]` int64: number of bars."""
    open: Array
    """`[D]` float64: open of the first bar; `close`: of the last bar; `high` and `low`: of the
    day."""
    high: Array
    low: Array
    close: Array
    volume: Array
    """`[D]` float64: mean number of shares per bar."""
    turnover: Array
    """`[D]` float64: mean of close times shares per bar, USD."""
    content: Array
    """`[D]` int64: hash of the day's closes (of whole rows on days of at most five bars); 0 for a
    day whose prices vary too little to identify it."""
    blocks: Array
    """`[P // 15 + 1]` uint64: hash of each 15 closes in a row; 0 where a bar is missing or prices
    hardly move."""
    length: int
    """Usual length of the bars, minutes; 0 for daily bars, for which `moves` is empty."""
    moves: Array
    """`[P]` int8: return at each place, 30 to a standard deviation, see `_trace_moves`."""
    place: Array
    """`[D]` int64: number of the first place of each day's session; `places`: `[D]` int64, the
    session's number of places."""
    places: Array
    silent: Array
    """`[2, D]` int64: number of places before the day's first bar, and after its last one."""
    ends: Array
    """`[3, D]` float64: log of the volume of the first, second and last bar over the day's mean."""
    openings: Array
    """`[D, 5]` float64: open of the bar at each of the `LAGS` from the session's start; NaN without
    a bar."""
    unopened: Array
    """`[D]` float64: 1 if the open of daily bars differs from that of the session's first bar, 0 if
    they are equal, NaN without daily bars."""

    @cached_property
    def first(self) -> Array:
        """`[D]` int64: row of each day's first bar, among the symbol's bars inside the sessions."""
        return np.asarray(np.cumsum(self.bars) - self.bars)

    @cached_property
    def gaps(self) -> Array:
        """`[D]` int64: number of sessions since the symbol's day before; 0 on the first day."""
        return np.diff(self.session, prepend=self.session[:1])

    def find_day(self, bar: int) -> int:
        """Return the number of the day that contains a row of the bars."""
        return int(np.searchsorted(self.first, bar, side="right")) - 1

    def report_fault(
        self, kind: str, day: int, detail: str = "", count: int | None = None
    ) -> Fault:
        """Return a fault on a day, given by its number; `count` is that of the bars concerned, by
        default all of the day."""
        held = self.bars[day] if count is None else count
        return Fault(kind, self.symbol, str(self.dates[day]), int(held), detail)


def check_days(bars: Bars, grid: SessionGrid) -> tuple[Days | None, list[Fault]]:
    """Summarise one symbol's days, and find their faults; the summary is None if no bar lies inside
    a session.

    bars: valid bars of one symbol, sorted by time, also those outside of the sessions.
    """
    length = bar_length(bars, 0)
    length = length if length < DAY_MINUTES // 2 else 0
    faults = list(_find_shifted(bars, grid, length))
    whole = bars
    at = grid.locate(bars.ts)
    if (at < 0).any():
        bars = bars.take(at >= 0)
        at = at[at >= 0]
    if len(bars) == 0:
        return None, faults
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
    faults += _find_scale_jumps(bars, days)
    faults += _find_repeated(days)
    faults += _find_excursions(bars, days) if len(bars) > 1 else []
    if length > 0:
        faults += _find_spread_out(bars, days, grid)
        for find in (_find_reversed, _find_frozen, _find_last_jump, _find_middles, _find_adjusted):
            faults += find(bars, days)
    return days, faults


def _pick_openings(bars: Bars, begin: Array, length: int) -> Array:
    """Find `Days.openings`, the opens around each session's start `begin` `[D]`, nanoseconds."""
    wanted = begin[:, None] + np.array(LAGS) * length * MINUTE_NS
    row = np.minimum(np.searchsorted(bars.ts, wanted), len(bars) - 1)
    return np.where(bars.ts[row] == wanted, bars.open[row], np.nan)


def _trace_moves(
    bars: Bars, grid: SessionGrid, at: Array, first: Array, length: int
) -> tuple[Array, Array, Array]:
    """Put a symbol's returns on the places of the sessions, in one byte each.

    at: `[R]` number of the grid's bar of each row; first: `[D]` first row of each day; length:
    minutes of a bar. Returns the moves, `[P]` int8, in units of 1/30 standard deviation of the bars
    around and 0 without a bar; the place of each row, `[R]`; and the first place of each session,
    `[S + 1]`.
    """
    if length == grid.bar_minutes:  # bars begin anew after a lunch break
        begin = grid.first_bar
        place = at
    else:
        minutes = grid.session_minutes
        begin = np.concatenate([[0], np.cumsum(-(-minutes // length))])
        session = grid.session[at]
        minute = np.searchsorted(grid.exchange_minutes, bars.ts, side="right") - 1
        place = begin[session] + (minute - (np.cumsum(minutes) - minutes)[session]) // length
    # a return over missing bars belongs to no single place: there take close / open of the bar
    before = np.where(np.diff(place, prepend=-9) == 1, np.roll(bars.close, 1), bars.open)
    before[first] = bars.open[first]
    move = np.log(bars.close / before)
    rows = np.diff(first, append=len(bars))
    # scale each 30 bars by their own volatility, or the open would outweigh noon
    blocks = np.flatnonzero((np.arange(len(bars)) - np.repeat(first, rows)) % _SCALE_BARS == 0)
    rows = np.diff(blocks, append=len(bars))
    usual = np.repeat(1.25 * np.add.reduceat(np.abs(move), blocks) / rows, rows)
    moves = np.zeros(begin[-1], dtype=np.int8)
    # cut off moves at four deviations, or a single piece of news would outweigh the day
    moves[place] = np.clip(np.round(30 * move / np.maximum(usual, 1e-12)), -120, 120)
    return moves, place, begin


def _find_shifted(bars: Bars, grid: SessionGrid, length: int) -> Iterator[Fault]:
    """Find days that are as long as their session, but displaced: both ends by about the same
    number of half hours, or, for days almost without missing bars, by exactly the same number of
    bars.

    A bar of a single price may be an auction's trade before the open or after the close, so it is
    no evidence of where a day begins or ends.
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
    """Return `Days.content`, `[D]` int64. The hashes differ between processes.

    first, stop: `[D]` first row of each day, and the row after its last.
    """
    hashes = np.zeros(len(first), dtype=np.int64)
    inner = [(price > bars.low) & (price < bars.high) for price in (bars.open, bars.close)]
    # bars with only one or two different prices are often equal by chance
    different = 1 + (bars.high > bars.low) + (inner[0] | inner[1])
    for day, (begin, end) in enumerate(zip(first.tolist(), stop.tolist(), strict=True)):
        close = bars.close[begin:end]
        if end - begin > _FEW_BARS:
            # days whose price hardly moves are often equal by chance
            if end - begin >= 30 and np.count_nonzero(close[1:] != close[:-1]) >= 10:
                hashes[day] = hash(close.tobytes())
        elif (different[begin:end] >= 3).all():
            rows = [getattr(bars, name)[begin:end] for name in (*PRICES, "volume")]
            hashes[day] = hash(np.concatenate(rows).tobytes())
    return hashes


def _hash_blocks(close: Array, place: Array, places: int) -> Array:
    """Return `Days.blocks`. close, place: `[R]` close and place of each row; places: P."""
    number = place // BLOCK_PLACES
    first = np.flatnonzero(np.diff(number, prepend=-1))
    # the sum of products wraps around, which makes it a hash
    weights = np.random.default_rng(0).integers(1 << 62, size=BLOCK_PLACES, dtype=np.uint64)
    bits = np.ascontiguousarray(close, dtype=np.float64).view(np.uint64)
    hashes = np.add.reduceat(bits * weights[place % BLOCK_PLACES], first)
    # prices that move by a few ticks only are often equal by chance
    reach = np.maximum.reduceat(close, first) - np.minimum.reduceat(close, first)
    steps = np.abs(np.diff(close))
    is_wide = reach > 5 * steps[steps > 0].min(initial=np.inf)
    whole = np.diff(first, append=len(close)) == BLOCK_PLACES
    blocks = np.zeros(places // BLOCK_PLACES + 1, dtype=np.uint64)
    blocks[number[first]] = np.where(whole & is_wide, hashes, 0)
    return blocks


def _find_repeated(days: Days) -> Iterator[Fault]:
    """Find days that repeat the prices of an earlier day.

    A day of few bars may equal another one by chance; one that equals the day before is reported as
    `filled_day`, because vendors fill holidays so.
    """
    order = np.argsort(days.content, kind="stable")
    content = days.content[order]
    again = np.flatnonzero((content[1:] == content[:-1]) & (content[1:] != 0)) + 1
    first = order[np.searchsorted(content, content[again])]
    last = order[again - 1]
    again = order[again]
    few = days.bars[again] <= _FEW_BARS
    filled = few & (again - last == 1)
    chance = few & ~filled
    if chance.any() and len(days.content) >= _RUN_DAYS and _repeats_by_chance(days):
        chance &= ~np.isin(again, _find_repeated_runs(days.content))
    else:
        chance[:] = False
    for day, other, is_filled in zip(again[~chance], first[~chance], filled[~chance], strict=True):
        kind = "filled_day" if is_filled else "repeated_day"
        yield days.report_fault(kind, day, f"same as {days.dates[other]}")


def _find_repeated_runs(content: Array) -> Array:
    """Return the numbers of the days in runs of at least `_RUN_DAYS` days that repeat an earlier
    run in the same order."""
    seen: dict[bytes, int] = {}
    repeated: list[int] = []
    for start, part in enumerate(np.lib.stride_tricks.sliding_window_view(content, _RUN_DAYS)):
        is_distinct = part.all() and len(np.unique(part)) == _RUN_DAYS
        if is_distinct and start - seen.setdefault(part.tobytes(), start) >= _RUN_DAYS:
            repeated += range(start, start + _RUN_DAYS)
    return np.array(repeated, dtype=np.int64)


def _repeats_by_chance(days: Days) -> bool:
    """Report whether days of few bars repeat by chance, as with prices of few digits.

    That is so if the pairs of days that agree in all but one of open, high, low, close and volume
    are at least as many as the pairs that agree in all five.
    """
    wide = days.high > days.low
    fields = [getattr(days, name)[wide] for name in (*PRICES, "volume")]

    def count_pairs(columns: list[Array]) -> int:
        sizes = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)[1]
        return int((sizes * (sizes - 1) // 2).sum())

    alike = count_pairs(fields)
    others = [count_pairs(fields[:k] + fields[k + 1 :]) - alike for k in range(len(fields))]
    return sum(others) >= alike


def _find_scale_jumps(bars: Bars, days: Days) -> Iterator[Fault]:
    """Find bars whose price is over 70 times the last close, or under 1/70 of it."""
    from fintrader.bars import kernels

    far = kernels.mark_steps(bars.open, bars.close, SCALE_JUMP)
    if far.any():
        yield from group_by_day("scale_jump", bars, far, np.repeat(days.dates, days.bars))


def _find_reversed(bars: Bars, days: Days) -> Iterator[Fault]:
    """Find days whose bars are in reverse order: closes lie nearer to the open of the bar before
    than opens lie to its close, more often than chance explains."""
    from fintrader.bars import kernels

    votes, cast = kernels.count_backward_votes(bars.open, bars.close, days.first)
    for day in np.flatnonzero((cast >= 20) & (votes > SURE * np.sqrt(cast))).tolist():
        yield days.report_fault("reversed_day", day)


def _find_frozen(bars: Bars, days: Days) -> Iterator[Fault]:
    """Find runs of bars that trade at a single price, far longer than is usual for the symbol."""
    still = np.zeros(len(bars), dtype=bool)
    still[1:] = bars.close[1:] == bars.close[:-1]
    still &= (bars.high == bars.low) & (bars.volume > 0)
    still[days.first] = False
    usual = max(float(still.mean()), 1e-3)
    for begin, stop in list_runs(still):
        alike = stop - begin
        if alike * days.length >= 29 and alike >= 9 and alike * np.log10(usual) < UNLIKELY:
            day = days.find_day(begin)
            within = bars.take(slice(int(days.first[day]), int(days.first[day] + days.bars[day])))
            is_limit = _is_limit(within, begin - int(days.first[day]), days.length)
            kind = "limit_price" if is_limit else "frozen_price"
            yield days.report_fault(kind, day, f"at {bars.close[begin]:g}", alike + 1)


def _is_limit(bars: Bars, begin: int, length: int) -> bool:
    """Report whether the price may be at a limit of the exchange: it is the highest or lowest
    between two pauses in trading, and the day has other prices.

    bars: one day's; begin: row of the first bar at that price; length: minutes of a bar.
    """
    pauses = np.flatnonzero(np.diff(bars.ts) > _PAUSE_BARS * length * MINUTE_NS) + 1
    edges = np.concatenate([[0], pauses, [len(bars)]])
    part = slice(*edges[np.searchsorted(edges, begin, side="right") + np.array([-1, 0])])
    low = float(bars.low[part].min())
    high = float(bars.high[part].max())
    is_moving = float(bars.low.min()) < float(bars.high.max())
    return is_moving and float(bars.close[begin]) in (low, high)


def _find_spread_out(bars: Bars, days: Days, grid: SessionGrid) -> Iterator[Fault]:
    """Find days, or runs of days, whose bars are longer than the symbol's others: they stand at
    multiples of a longer step, or once in each part of a session, more regularly than chance
    explains. Trades of auctions do not count."""
    part = np.searchsorted(grid.pauses, bars.ts, side="right")
    offset = (bars.ts - grid.begins[part]) // MINUTE_NS
    is_first = np.diff(part, prepend=-1) > 0
    step = np.where(is_first, 0, np.diff(bars.ts, prepend=0) // MINUTE_NS)
    is_still = bars.high == bars.low
    is_far = is_first | (step > days.length)
    is_longer = np.add.reduceat(is_far, days.first, dtype=np.int64) > 0.9 * days.bars
    if is_longer.mean() > 0.9:
        return  # the other bars are too few to show their length
    time = (grid.end - grid.begin)[days.session] // MINUTE_NS
    for first, stop in list_runs(is_longer):
        rows = slice(int(days.first[first]), int(days.first[stop - 1] + days.bars[stop - 1]))
        steps = step[rows][~is_first[rows]]
        count = len(offset[rows])
        usual = int(np.bincount(steps).argmax()) if len(steps) else grid.longest_part
        share = np.bincount(offset[rows] % usual).max() / count
        is_certain = share > 0.95 and count * np.log10(usual / days.length) > 9
        if not len(steps) and (count < 10 or offset[rows].any()):
            continue
        if len(steps) and usual + days.length >= time[first:stop].max():
            continue  # a first and a last bar of a session
        is_auction = is_still[rows].mean() > 0.5 > is_still.mean()
        if is_certain and not is_auction and count * usual > time[first:stop].sum() // 2:
            minutes = f"{usual} minutes apart, elsewhere {days.length}"
            yield days.report_fault("bar_length", first, minutes, count)


def _find_last_jump(bars: Bars, days: Days) -> Iterator[Fault]:
    """Find a jump of the symbol's last bar that is far larger than those of the 390 bars before."""
    close = bars.close[max(int(days.first[-1]), len(bars) - 391) :]
    if len(close) < 10:
        return
    step = np.abs(np.diff(np.log(close)))
    far = max(0.04, 20 * 1.4826 * float(np.median(step[:-1])), 3 * float(step[:-1].max()))
    if step[-1] > far:
        yield days.report_fault("last_bar_jump", -1, f"{close[-1] / close[-2] - 1:+.1%}", 1)


def _find_tick(bars: Bars) -> float:
    """Find the smallest difference between two highs, USD; infinite if all are equal."""
    prices = np.unique(bars.high)
    steps = np.diff(prices)
    return float(steps[steps > 1e-6 * prices[1:]].min(initial=np.inf))


def _find_middles(bars: Bars, days: Days) -> Iterator[Fault]:
    """Find days on which more closes lie in the middle of high and low than in half of the bars,
    beyond chance."""
    reach = bars.high - bars.low
    tick = _find_tick(bars)
    wide = reach > 4.5 * tick
    middle = wide & (np.abs(2 * bars.close - bars.high - bars.low) <= np.maximum(tick, 0.1 * reach))
    cast, votes = (np.add.reduceat(mask, days.first, dtype=np.int64) for mask in (wide, middle))
    share = np.clip(votes / np.maximum(cast, 1), 0.5, 1 - 1e-9)
    # Chernoff's bound for throws of a fair coin
    odds = cast * (share * np.log(2 * share) + (1 - share) * np.log(2 * (1 - share)))
    hit = np.flatnonzero(odds > -UNLIKELY * np.log(10))
    if len(hit):
        detail = f"on {len(hit)} of {len(days.session)} days"
        yield days.report_fault("middle_close", hit[0], detail, votes[hit].sum())


def _find_adjusted(bars: Bars, days: Days) -> Iterator[Fault]:
    """Find days whose prices are not whole cents, if those of other days are: they may be adjusted
    for dividends. Prices that are whole cents when multiplied by 2 to 20 were adjusted for a split,
    and are not reported."""
    cents = 100 * bars.close

    def share_whole(ratio: int) -> Array:
        values = ratio * cents
        near = np.abs(values - np.round(values)) < ratio * (1e-4 + 1.2e-7 * cents)  # of a float32
        return np.add.reduceat(near, days.first, dtype=np.int64) / days.bars

    seen = (days.bars >= 20) & (days.close >= 1)  # below a dollar a tick is less than a cent
    share = share_whole(1)
    broken = np.flatnonzero(seen & (share < 0.5))
    if len(broken) < 5 or np.count_nonzero(seen & (share > 0.99)) < 5:
        return
    if not any(np.median(share_whole(ratio)[broken]) > 0.99 for ratio in range(2, 21)):
        detail = f"on {len(broken)} of {len(days.session)} days, to {days.dates[broken[-1]]}"
        yield days.report_fault("adjusted_part", broken[0], detail, days.bars[broken].sum())


def _find_excursions(bars: Bars, days: Days) -> Iterator[Fault]:
    """Find bars whose close jumps away in one step and comes back in another
    (`_mark_excursions`)."""
    import pandas as pd  # imported here: settings load this module, and not pandas

    step = np.abs(np.diff(np.log(bars.close)))
    session = np.repeat(days.session, days.bars)
    size = pd.Series(step)
    # usual for the symbol or for the day, whichever is larger
    usual = np.maximum(size.median(), size.groupby(session[1:]).transform("median"))
    far = np.maximum(0.05, 20 * 1.4826 * np.asarray(usual))
    away = _mark_excursions(np.log(bars.close), session, far)
    # larger jumps are reported as `scale_jump`
    away[1:] &= step <= np.log(SCALE_JUMP)
    yield from group_by_day("price_spike", bars, away, np.repeat(days.dates, days.bars))


def _mark_excursions(level: Array, session: Array, far: Array) -> Array:
    """Return `[R]` bool: bars during which the price is away, between a jump and its return.

    level: `[R]` log close; session: `[R]`; far: `[R - 1]` least size of a jump. The price has
    returned if it is within 30 % of the jump's size of the price before, by a single step of the
    jump's size within 30 %, at most 180 bars later and in the same session (or in the very next
    bar). A price that leaves or returns in several steps is an ordinary move.
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
