"""All faults of bars that are in memory, for the report on their quality. Nothing is changed.

Nothing is erased by looking at what came after it either: a price that jumps and comes back is
reported and kept, because to drop it one would have to know the next bar.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from fintrader.bars.bars import Bars
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.checks.bad_rows import days_of, placement_faults, row_faults, valid_rows
from fintrader.bars.checks.coverage import coverage_faults
from fintrader.bars.checks.days import Days, Sessions, look_at
from fintrader.bars.checks.kinds import Fault
from fintrader.bars.checks.nights import Declared, look_across
from fintrader.bars.checks.prices import price_faults


def find_faults(
    bars: Bars,
    grid: SessionGrid,
    *,
    declared: Mapping[str, Declared] | None = None,
    now: float | None = None,
) -> list[Fault]:
    """All faults of raw bars, sorted by kind, symbol and day. `grid` spans them, in bars of their
    own length.

    declared: splits and dividends that are known, see `nights`; now: seconds since 1970, for tests.
    """
    found = list(row_faults(bars, days_of(bars, grid), now))
    bars = bars.take(valid_rows(bars, now)).sorted()
    if not len(bars):
        return sorted(found)
    bars = bars.take(
        np.concatenate([[True], (np.diff(bars.ts) != 0) | (np.diff(bars.symbol) != 0)])
    )
    certain = _day_faults(bars, grid, declared)
    shifted = {(fault.symbol, fault.day) for fault in certain if fault.kind == "shifted_day"}
    found += certain
    found += placement_faults(bars, grid, days_of(bars, grid), shifted)
    at = grid.locate(bars.ts)
    inside = at >= 0
    bars = bars.take(inside)
    at = at[inside]
    if len(bars):
        found += price_faults(bars, at, grid)
        found += coverage_faults(bars, at, grid)
    return sorted(found)


def _day_faults(
    bars: Bars, grid: SessionGrid, declared: Mapping[str, Declared] | None
) -> list[Fault]:
    """What `days` and `nights` find in sorted bars."""
    sessions = Sessions(grid)
    found = list[Fault]()
    days: list[Days] = []
    edges = np.searchsorted(bars.symbol, np.arange(len(bars.symbols) + 1))
    for start, stop in itertools.pairwise(edges.tolist()):
        if stop > start:
            seen, faults = look_at(bars.take(np.arange(start, stop)), sessions)
            found += faults
            days += [] if seen is None else [seen]
    return found + look_across(days, grid.dates, declared)
