"""Prices and volumes that reach far, stand still or do not fit each other within a day."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fintrader.bars.bars import PRICES, Array, Bars
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.checks.kinds import group_by_day, runs
from fintrader.results.market_description import Fault


def find_price_faults(bars: Bars, grid: SessionGrid) -> Iterator[Fault]:
    """Find odd prices and volumes in valid bars sorted by symbol and time, each inside a bar of the
    grid."""
    for one in bars.by_symbol().values():
        if len(one) >= 2:
            session = grid.session[grid.locate(one.ts)]
            yield from _check_symbol(one, session, grid.dates[session])


def _check_symbol(bars: Bars, session: Array, dates: Array) -> Iterator[Fault]:
    """Find one symbol's faults; `session` and `dates` `[R]` are those of its rows."""
    open_, high, low, close = (getattr(bars, column) for column in PRICES)
    volume = bars.volume
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
        "wick": reach > max(0.1, 50 * float(np.median(high / low - 1))),
        "zero_volume": (volume == 0) & (high > low),
        "volume_outlier": volume > 20_000 * max(float(np.median(volume)), 1.0),
        "stale_run": stale,
    }
    for kind, mask in found.items():
        yield from group_by_day(kind, bars, mask, dates)
