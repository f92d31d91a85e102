"""Prices and volumes that jump, reach far, stand still or do not fit each other within a day."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from fintrader.bars.bars import PRICES, Array, Bars
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.checks.days import SCALE
from fintrader.bars.checks.kinds import runs
from fintrader.results.market_description import Fault

_EXCURSION_BARS = 30


def find_price_faults(bars: Bars, at: Array, grid: SessionGrid) -> Iterator[Fault]:
    """Find odd prices and volumes in valid bars sorted by symbol and time, each inside bar `at`
    `[R]` of the grid."""
    for name, rows in bars.split_symbols():
        if rows.stop - rows.start >= 2:
            yield from _check_symbol(bars.take(rows), name, grid.session[at[rows]], grid)


def _check_symbol(bars: Bars, name: str, session: Array, grid: SessionGrid) -> Iterator[Fault]:
    open_, high, low, close = (getattr(bars, column) for column in PRICES)
    volume = bars.volume
    step = np.diff(np.log(close))
    usual = 1.4826 * float(np.median(np.abs(step))) or 1e-4
    # `[S]`: some days are wild
    today = 1.4826 * _daily_median(np.abs(step), session[1:], grid.num_sessions)

    def group(kind: str, mask: Array) -> Iterator[Fault]:
        for day, count in zip(*np.unique(session[mask], return_counts=True), strict=True):
            yield Fault(kind, name, str(grid.dates[day]), int(count))

    far = np.maximum(0.05, 20 * np.maximum(usual, today))
    # such a jump is a fault of scale, see `days`
    scale = np.concatenate([[False], np.abs(step) > np.log(SCALE)])
    yield from group("price_spike", _find_excursions(np.log(close), session, far) & ~scale)
    top = np.maximum(open_, close)
    bottom = np.minimum(open_, close)
    reach = np.maximum(high / top - 1, 1 - low / bottom)
    yield from group("wick", reach > max(0.1, 50 * float(np.median(high / low - 1))))
    yield from group("zero_volume", (volume == 0) & (high > low))
    typical = float(np.median(volume))
    yield from group("volume_outlier", volume > 20_000 * max(typical, 1.0))
    same = np.diff(session, prepend=-1) == 0
    for values in (open_, high, low, close, volume):
        same[1:] &= np.diff(values) == 0
    stale = np.zeros(len(close), dtype=bool)
    for start, stop in runs(same):
        stale[start:stop] = stop - start >= 9  # ten bars alike
    yield from group("stale_run", stale)


def _daily_median(values: Array, session: Array, sessions: int) -> Array:
    """`[S]`: the median of each session's values, 0 where it has none."""
    result = np.zeros(sessions)
    for start, stop in itertools.pairwise(np.flatnonzero(np.diff(session, prepend=-1, append=-1))):
        result[session[start]] = np.median(values[start:stop])
    return result


def _find_excursions(level: Array, session: Array, far: Array) -> Array:
    """`[R]` bool: bars whose log close has left by more than the session's `far` `[S]` and comes
    back, each in one bar.

    Back means within 30 % of the move, by a bar that takes as much back to within 30 %, at most 30
    bars later and in the same session (or the very next bar). A price that leaves or returns step
    by step is a market that moves.
    """
    step = np.diff(level)
    away = np.zeros(len(level), dtype=bool)
    done = 0
    for before in np.flatnonzero(np.abs(step) > far[session[1:]]).tolist():
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
