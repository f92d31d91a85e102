"""All faults of bars, for the report on their quality. The bars stay as they are.

A price that jumps and comes back is reported, but no build drops it: that would take the next bar.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fintrader.bars.bars import Array, Bars
from fintrader.bars.calendar import SessionGrid, exchange_days
from fintrader.bars.checks.bad_rows import (
    find_placement_faults,
    find_row_faults,
    mask_valid_rows,
)
from fintrader.bars.checks.coverage import find_coverage_faults
from fintrader.bars.checks.gates import Gate
from fintrader.bars.checks.prices import find_price_faults
from fintrader.bars.corporate_actions import Action
from fintrader.results.market_description import Fault


def find_faults(
    parts: Iterable[Bars],
    grid: SessionGrid,
    *,
    actions: Sequence[Action] = (),
    daily: Mapping[str, Bars] | None = None,
    now: float | None = None,
) -> list[Fault]:
    """Find all faults of raw bars, sorted by kind, symbol and day.

    parts: those of one symbol each, in the order of their files; grid: spans the bars and has their bar length; actions: known splits and dividends; daily: daily
    bars of another source by symbol; now: seconds since 1970, for tests.
    """
    found: list[Fault] = []
    traded: dict[str, Array] = {}
    gate = Gate(grid, (), actions, daily=daily)
    for raw in parts:
        found += find_row_faults(raw, exchange_days(grid.calendar, raw.ts), now)
        bars = raw.take(mask_valid_rows(raw, now)).sorted()
        bars = bars.take(~bars.repeats())
        gate.see(bars)
        found += find_placement_faults(bars, grid, exchange_days(grid.calendar, bars.ts))
        at = grid.locate(bars.ts)
        found += find_price_faults(bars.take(at >= 0), grid)
        traded[bars.symbols[0]] = mask = np.zeros(grid.num_bars, dtype=bool)
        mask[at[at >= 0]] = True
    gate_faults = gate.faults([*traded])
    shifted = {(fault.symbol, fault.day) for fault in gate_faults if fault.kind == "shifted_day"}
    found = [
        fault
        for fault in found
        if fault.kind != "outside_session" or (fault.symbol, fault.day) not in shifted
    ]
    return sorted([*found, *gate_faults, *find_coverage_faults(traded, grid)])
