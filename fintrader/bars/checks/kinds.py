"""Kinds of faults in the bars of a market, and the kinds that stop a build."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import numpy as np

from fintrader.bars.bars import Array, Bars
from fintrader.results.market_description import Fault

_MEANINGS = """\
not_finite_price: a price is NaN or infinite: the build refuses it
zero_price: a price is zero: the build refuses it
negative_price: a price is negative: the build refuses it
not_finite_volume: a volume is NaN or infinite: the build refuses it
negative_volume: a volume is negative: the build refuses it
future: the bar lies in the future: the build refuses it
conflicting_duplicate: different rows for one symbol and time: stops the build; waived, the first
    one is kept
exact_duplicate: a row repeats another: one is kept
out_of_order: rows are not in order of time: they are sorted
off_minute: a time lies inside a minute: it counts to the minute in which it lies
crossed_range: the high lies below the low, in more than 1 % of a symbol's rows as with wrongly
    named columns: stops the build; waived, or in fewer, the range is widened
open_outside_range: the open lies outside low and high: the range is widened; named in the log above
    1 % of a symbol's rows
close_outside_range: the close lies outside low and high: the range is widened; named in the log
    above 1 % of a symbol's rows
closed_day: bars on a day without a session: left out
outside_session: bars before the open or after the close: left out
shifted_day: a day's bars stand half hours, or a number of bars, away from the session: stops the
    build; waived, those outside are left out
misaligned: a symbol's bars are early or late against the others or against daily bars, or all of
    them are early, so that one shows the next return of another: stops the build; waived, kept
bar_length: a day's bars stand further apart than the symbol's others, as if only every second or
    fifth were there: stops the build; waived, kept
reversed_day: a day's bars run backwards, each close meeting the open of the bar before: stops the
    build; waived, kept
frozen_price: the price stays the same to the tick for half an hour or more while trades go on, as
    of a frozen feed: stops the build; waived, kept
repeated_day: a day's closes are those of another day: stops the build; waived, kept
foreign_day: a day's prices, or some, are those of another symbol: stops the build; waived, kept
excursion_day: a whole day's prices lie away from the days before and after by one factor, without
    the trading that such news brings: stops the build; waived, kept
last_bar_jump: the very last bar jumps as none before it, and no later bar shows whether it returns:
    stops the build; waived, kept
scale_jump: prices change by a factor of 70 or more from one bar to the next: stops the build;
    waived, kept
volume_scale: from a day on volumes are 30 times or a thirtieth of what they were, or further off,
    as in lots or another unit: stops the build; waived, kept
split: a night's move looks like a split of 2 to 1 or more that is not declared, or not like the one
    that is: stops the build; declare it under data.actions, or waive it
small_split: a night's move looks like an unadjusted split of less than 2 to 1: kept and named in
    the log, declare it under data.actions
quiet_jump: an overnight move of 8 % or more persists, or a smaller one reverses overnight, without
    the trading that such news brings, as of a special dividend, a spin-off or another unit: kept
    and named in the log, declare it under data.actions
filled_day: a day's bar repeats the day before's, as in a holiday that a vendor filled: kept and
    named in the log
volume_jump: from a day on volumes are 30 times or a thirtieth of what they were, as after news, a
    suspension or in thin trading: kept and named in the log
limit_price: the price stays the same to the tick for half an hour or more, at the highest or lowest
    of its trading phase, as at a price limit of the exchange: kept and named in the log
between_bars: a day's bars begin between the usual times, in all symbols alike, as after an outage:
    each counts to the bar in which it begins, named in the log
missing_edge: the first or the last bar of sessions is missing, in all symbols or in one, where
    others hardly ever are, or a day's volume is as many bars late or early as are missing: kept and
    named in the log
middle_close: closes are the middle of high and low, at which there need have been no trade: kept
    and named in the log
adjusted_part: prices of a part of the days are whole cents and those of another part are not, as
    where only one is adjusted for dividends: kept and named in the log
paid_twice: prices do not fall by the declared dividends, as where they are adjusted for them, or
    one is declared twice: kept and named in the log; remove them from data.actions (there
    dividend_usd 0 overrides a vendor's), or the adjustment from the prices
unlike_daily: a day's open, high, low or close differs from the bars of data.daily by half of a
    usual day's range or more: kept and named in the log
price_spike: closes jump away and come back within 180 bars, both at once: kept and named in the log
wick: a high or low reaches far beyond the bar's open and close: kept
stale_run: many bars in a row are the same in price and volume, as of a frozen feed: kept
zero_volume: the price moves in a bar without volume: kept
volume_outlier: a volume is thousands of times the usual one: kept
gap: minutes are missing in which the symbol would all but surely have traded: last past close, not
    tradable
thin_day: a symbol has less than half its usual bars on a day: last past close, not tradable
missing_session: a symbol has no bar in a whole session: last past close, not tradable
market_hole: minutes without a trade in any symbol: last past close, not tradable
market_halt: minutes of a market-wide halt: last past close, not tradable
late_listing: a symbol begins after the first session: no price before
ended: a symbol's bars end before the last session: no price after, sold at its last bar
"""
KINDS: dict[str, str] = {
    kind: " ".join(meaning.split())
    for kind, meaning in re.findall(r"^(\w+): (.*(?:\n .*)*)", _MEANINGS, re.MULTILINE)
}
"""Kind -> its meaning and the build's answer to it."""

STOPPING = tuple(kind for kind, meaning in KINDS.items() if "stops the build" in meaning)
"""Kinds that no market produces: a build goes on only where `data.waive` names them."""
DOUBTFUL = tuple(kind for kind, meaning in KINDS.items() if "named in the log" in meaning)
"""Kinds that a market rarely produces: a build names them and goes on."""

SURE = 6.0
"""Standard deviations beyond which a result is certain."""
UNLIKELY = -15.0
"""Probability, as a power of ten, below which an event is a fault."""


def runs(mask: Array, session: Array | int = 0) -> list[tuple[int, int]]:
    """`[start, stop)` of each run in which `mask` holds; a run ends with its `session`."""
    level = np.where(mask, session, -1)
    edges = np.flatnonzero(np.diff(level, prepend=-1, append=-1)).tolist()
    return [(start, stop) for start, stop in itertools.pairwise(edges) if mask[start]]


def group_by_day(kind: str, bars: Bars, mask: Array, days: Array) -> Iterator[Fault]:
    """Yield one fault for each symbol and day (`days`: `[R]` datetime64[D]) with rows in `mask`."""
    rows = np.flatnonzero(mask)
    keys = np.stack([bars.symbol[rows].astype(np.int64), days[rows].astype(np.int64)], axis=1)
    groups, counts = np.unique(keys, axis=0, return_counts=True)
    for (code, day), count in zip(groups, counts, strict=True):
        yield Fault(kind, bars.symbols[code], str(np.datetime64(int(day), "D")), int(count))
