"""All faults of bars in memory, for the report on their quality. The bars stay as they are.

A price that jumps and comes back is reported, but no build drops it: that would take the next bar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fintrader.bars.bars import Bars
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
    bars: Bars,
    grid: SessionGrid,
    *,
    actions: Sequence[Action] = (),
    daily: Mapping[str, Bars] | None = None,
    now: float | None = None,
) -> list[Fault]:
    """Find all faults of raw bars, sorted by kind, symbol and day.

    grid: spans the bars and has their bar length; actions: known splits and dividends; daily: daily
    bars of another source by symbol; now: seconds since 1970, for tests.
    """
    found = list(find_row_faults(bars, exchange_days(grid.calendar, bars.ts), now))
    bars = bars.take(mask_valid_rows(bars, now)).sorted()
    bars = bars.take(~bars.repeats())
    gate = Gate(grid, (), actions, daily=daily)
    for rows in bars.by_symbol().values():
        gate.see(rows)
    gate_faults = gate.faults(bars.symbols)
    shifted = {(fault.symbol, fault.day) for fault in gate_faults if fault.kind == "shifted_day"}
    found += gate_faults
    days = exchange_days(grid.calendar, bars.ts)
    found += find_placement_faults(bars, grid, days, shifted)
    bars = bars.take(grid.locate(bars.ts) >= 0)
    found += find_price_faults(bars, grid)
    found += find_coverage_faults(bars, grid)
    return sorted(found)
