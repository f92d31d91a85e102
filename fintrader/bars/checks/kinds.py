"""Kinds of faults in the bars of a market, and the answer of a build to each."""

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
    row is kept
exact_duplicate: a row repeats another: one of them is kept
out_of_order: rows are not in order of time: they are sorted
off_minute: a time has seconds: it counts to the minute in which it lies
crossed_range: the high lies below the low, in more than 1 % of a symbol's rows as with wrongly
    named columns: stops the build; waived, or in fewer rows, the range is widened
open_outside_range: the open lies outside low and high: the range is widened, and in more than 1 %
    of a symbol's rows this is named in the log
close_outside_range: the close lies outside low and high: the range is widened, and in more than 1 %
    of a symbol's rows this is named in the log
closed_day: bars on a day without a session: left out
outside_session: bars before the open or after the close: left out
shifted_day: a day's bars are displaced from the session by half hours, or by a number of bars:
    stops the build; waived, those outside of the session are left out
misaligned: a symbol's bars are early or late against other symbols or daily bars, or all symbols'
    bars are early, so that a symbol may show another's next return: stops the build; waived, kept
bar_length: bars of a day or several stand further apart than the symbol's others, as if only every
    second or fifth were there: stops the build; waived, kept
reversed_day: a day's bars are in reverse order, so that each close meets the open of the bar
    before: stops the build; waived, kept
frozen_price: the price stays the same to the tick for half an hour or more while trades go on, as
    if the feed were frozen: stops the build; waived, kept
repeated_day: a day's closes are those of another day: stops the build; waived, kept
foreign_day: a day's prices, or some of them, are those of another symbol: stops the build; waived,
    kept
excursion_day: a whole day's prices differ from the days before and after by one factor, without the
    volume that such news brings: stops the build; waived, kept
last_bar_jump: the symbol's last bar jumps further than any before it, and no later bar shows
    whether the price returns: stops the build; waived, kept
scale_jump: prices change by a factor of 70 or more from one bar to the next: stops the build;
    waived, kept
volume_scale: from a day on volumes are at least 30 times larger or smaller than before, as in lots
    or another unit: stops the build; waived, kept
split: an overnight move looks like a split of 2 to 1 or more that is not declared, or unlike the
    declared one: stops the build; declare it under data.actions, or waive it
small_split: an overnight move looks like an undeclared split of less than 2 to 1: kept and named in
    the log; declare it under data.actions
quiet_jump: an overnight move of 8 % or more persists, or one that is too small for excursion_day
    reverses the next night, without the volume that such news brings, as after a special dividend,
    a spin-off or a change of unit: kept and named in the log; declare it under data.actions
filled_day: a day's bar repeats the day before's, as in a holiday that a vendor filled: kept and
    named in the log
volume_jump: from a day on volumes are at least 30 times larger or smaller than before, as after
    news, a suspension or in thin trading: kept and named in the log
limit_price: the price stays the same to the tick for half an hour or more, at the highest or lowest
    of its trading phase, as at a price limit of the exchange: kept and named in the log
between_bars: a day's bars of all symbols begin between the usual times, as after an outage: each
    counts to the grid's bar in which it begins, and this is named in the log
missing_edge: the first or the last bar of sessions is missing, in all symbols or in one, where
    other bars hardly ever are, or many first or last bars of a day are missing and the day's volume
    is displaced by as much: kept and named in the log
middle_close: closes lie in the middle of high and low, where perhaps nothing traded: kept and named
    in the log
adjusted_part: prices are whole cents on a part of the days and not on another part, as if only one
    part were adjusted for dividends: kept and named in the log
paid_twice: prices do not fall by the declared dividends, as if they were already adjusted for them,
    or a dividend is declared twice: kept and named in the log; remove the dividends from
    data.actions (dividend_usd 0 there overrides a vendor's), or use unadjusted prices
unlike_daily: a day's open, high, low or close differs from the bars of data.daily by half of a
    usual day's range or more: kept and named in the log
price_spike: closes jump away in one step and come back in one step within 180 bars: kept and named
    in the log
wick: a high or low reaches far beyond the bar's open and close: kept
stale_run: ten or more bars in a row have equal prices and volumes, as if the feed were frozen: kept
zero_volume: the price moves in a bar without volume: kept
volume_outlier: a volume is thousands of times the usual one: kept
gap: bars are missing in which the symbol would almost surely have traded: filled with the last
    close, not tradable
thin_day: a symbol has less than half its usual bars on a day: missing bars are filled with the last
    close, not tradable
missing_session: a symbol has no bar in a whole session: filled with the last close, not tradable
market_hole: no symbol trades for longer than chance explains: filled with the last close, not
    tradable
market_halt: no symbol trades during a market-wide halt: filled with the last close, not tradable
late_listing: a symbol begins after the first session: no price before that
ended: a symbol's bars end before the last session: no price after that, sold at its last bar
"""
KINDS: dict[str, str] = {
    kind: " ".join(meaning.split())
    for kind, meaning in re.findall(r"^(\w+): (.*(?:\n .*)*)", _MEANINGS, re.MULTILINE)
}
"""Kind -> its meaning, and the build's answer to it."""

STOPPING = tuple(kind for kind, meaning in KINDS.items() if "stops the build" in meaning)
"""Kinds that no market produces: they stop a build, unless `data.waive` names them."""
DOUBTFUL = tuple(kind for kind, meaning in KINDS.items() if "named in the log" in meaning)
"""Kinds that a market rarely produces: a build names them in the log and goes on."""

SURE = 6.0
"""Standard deviations beyond which a result is certain."""
UNLIKELY = -15.0
"""log10 of the probability below which an event counts as a fault."""


def list_runs(mask: Array, session: Array | int = 0) -> list[tuple[int, int]]:
    """List the runs `[start, stop)` in which `mask` `[R]` is True. session: `[R]` number of the
    session; a run ends where it changes."""
    level = np.where(mask, session, -1)
    edges = np.flatnonzero(np.diff(level, prepend=-1, append=-1)).tolist()
    return [(start, stop) for start, stop in itertools.pairwise(edges) if mask[start]]


def group_by_day(kind: str, bars: Bars, mask: Array, days: Array) -> Iterator[Fault]:
    """Yield one fault for each symbol and day with rows in `mask` `[R]`. days: `[R]` datetime64[D],
    the date of each row."""
    rows = np.flatnonzero(mask)
    keys = np.stack([bars.symbol[rows].astype(np.int64), days[rows].astype(np.int64)], axis=1)
    groups, counts = np.unique(keys, axis=0, return_counts=True)
    for (code, day), count in zip(groups, counts, strict=True):
        yield Fault(kind, bars.symbols[code], str(np.datetime64(int(day), "D")), int(count))
