"""Prices and volumes that jump, reach far, stand still or do not fit each other within a day."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fintrader.bars.bars import PRICES, Array, Bars
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.checks.days import SCALE
from fintrader.bars.checks.kinds import group_by_day, runs
from fintrader.results.market_description import Fault

_EXCURSION_BARS = 30


def find_price_faults(bars: Bars, grid: SessionGrid) -> Iterator[Fault]:
    """Find odd prices and volumes in valid bars sorted by symbol and time, each inside a bar of the
    grid."""
    for one in bars.by_symbol().values():
        if len(one) >= 2:
            session = grid.session[grid.locate(one.ts)]
            yield from _check_symbol(one, session, grid.dates[session])


def _check_symbol(bars: Bars, session: Array, dates: Array) -> Iterator[Fault]:
    """Find one symbol's faults; `session` and `dates` `[R]` are those of its rows."""
    import pandas as pd  # late: settings load this module, and no pandas

    open_, high, low, close = (getattr(bars, column) for column in PRICES)
    volume = bars.volume
    step = np.diff(np.log(close))
    size = pd.Series(np.abs(step))
    # a symbol is wild, or a day is
    usual = np.maximum(size.median(), size.groupby(session[1:]).transform("median"))
    far = np.maximum(0.05, 20 * 1.4826 * np.asarray(usual))
    # such a jump is a fault of scale, see `days`
    scale = np.concatenate([[False], np.abs(step) > np.log(SCALE)])
    top = np.maximum(open_, close)
    bottom = np.minimum(open_, close)
    reach = np.maximum(high / top - 1, 1 - low / bottom)
    same = np.diff(session, prepend=-1) == 0
    for values in (open_, high, low, close, volume):
        same[1:] &= np.diff(values) == 0
    stale = np.zeros(len(close), dtype=bool)
    for start, stop in runs(same):
        stale[start:stop] = stop - start >= 9  # ten bars alike
    found = {
        "price_spike": _find_excursions(np.log(close), session, far) & ~scale,
        "wick": reach > max(0.1, 50 * float(np.median(high / low - 1))),
        "zero_volume": (volume == 0) & (high > low),
        "volume_outlier": volume > 20_000 * max(float(np.median(volume)), 1.0),
        "stale_run": stale,
    }
    for kind, mask in found.items():
        yield from group_by_day(kind, bars, mask, dates)


def _find_excursions(level: Array, session: Array, far: Array) -> Array:
    """`[R]` bool: bars whose log close has left in a step longer than `far` `[R - 1]` and comes
    back, each in one bar.

    Back means within 30 % of the move, by a bar that takes as much back to within 30 %, at most 30
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
