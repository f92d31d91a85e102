"""Rows that cannot be bars, and rows where the exchange is closed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Set

import numpy as np

from fintrader.bars.bars import COLUMNS, MINUTE_NS, PRICES, Array, Bars
from fintrader.bars.calendar import SessionGrid, exchange_days
from fintrader.results.market_description import Fault


def find_row_faults(bars: Bars, days: Array, now: float | None) -> Iterator[Fault]:
    """Find impossible and repeated rows in raw bars of any order.

    days: `[R]` the exchange's dates; now: seconds since 1970.
    """
    prices = np.stack([getattr(bars, name) for name in PRICES])
    good = mask_valid_rows(bars, now)
    crossed = good & (bars.high < bars.low)
    back, exact, conflicting = (np.zeros(len(bars), dtype=bool) for _ in range(3))
    # out of order: a row earlier than the one of its symbol that stands before it in the file
    order = np.argsort(bars.symbol, kind="stable")
    back[order[1:]] = (np.diff(bars.ts[order]) < 0) & (np.diff(bars.symbol[order]) == 0)
    order = np.lexsort((bars.ts, bars.symbol))
    ordered = bars.take(order)
    again = ordered.repeats()
    same = again.copy()
    for name in COLUMNS:
        values = getattr(ordered, name)
        same[1:] &= (np.diff(values) == 0) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
    exact[order] = same
    conflicting[order] = again & ~same
    found = {
        "not_finite_price": ~np.isfinite(prices).all(axis=0),
        "zero_price": (prices == 0).any(axis=0),
        "negative_price": (prices < 0).any(axis=0),
        "not_finite_volume": ~np.isfinite(bars.volume),
        "negative_volume": bars.volume < 0,
        "future": _future(bars, now),
        "off_minute": bars.ts % MINUTE_NS != 0,
        "crossed_range": crossed,
        "open_outside_range": good & ~crossed & ((bars.open > bars.high) | (bars.open < bars.low)),
        "close_outside_range": good
        & ~crossed
        & ((bars.close > bars.high) | (bars.close < bars.low)),
        "out_of_order": back,
        "exact_duplicate": exact,
        "conflicting_duplicate": conflicting,
    }
    for kind, mask in found.items():
        yield from _group_by_day(kind, bars, mask, days)


def find_placement_faults(
    bars: Bars, grid: SessionGrid, days: Array, shifted: Set[tuple[str, str]]
) -> Iterator[Fault]:
    """Find rows while the exchange is closed: on a day off, or before and after a session.

    shifted: (symbol, day) of days that are reported as shifted already.
    """
    outside = grid.locate(bars.ts) < 0
    session = np.minimum(np.searchsorted(grid.dates, days), grid.num_sessions - 1)
    trading = grid.dates[session] == days
    yield from _group_by_day("closed_day", bars, outside & ~trading, days)
    for fault in _group_by_day("outside_session", bars, outside & trading, days):
        if (fault.symbol, fault.day) not in shifted:
            yield fault


def mask_valid_rows(bars: Bars, now: float | None) -> Array:
    """`[R]` bool: rows with possible prices, volume and time."""
    good = np.isfinite(bars.volume) & (bars.volume >= 0) & ~_future(bars, now)
    for name in PRICES:
        values = getattr(bars, name)
        good &= np.isfinite(values) & (values > 0)
    return np.asarray(good)


def _future(bars: Bars, now: float | None) -> Array:
    return np.asarray(bars.ts > np.int64((time.time() if now is None else now) * 1e9))


def date_rows(bars: Bars, grid: SessionGrid) -> Array:
    """`[R]` datetime64[D]: the exchange's date of each row."""
    quarter = 15 * MINUTE_NS  # no zone's offset or change of clocks is finer
    quarters, inverse = np.unique(bars.ts // quarter, return_inverse=True)
    return np.asarray(
        exchange_days(grid.calendar, quarters * quarter)[inverse].astype("datetime64[D]")
    )


def _group_by_day(kind: str, bars: Bars, mask: Array, days: Array) -> Iterator[Fault]:
    """Yield one fault for each symbol and day with rows in `mask`."""
    rows = np.flatnonzero(mask)
    keys = np.stack([bars.symbol[rows].astype(np.int64), days[rows].astype(np.int64)], axis=1)
    groups, counts = np.unique(keys, axis=0, return_counts=True)
    for (code, day), count in zip(groups, counts, strict=True):
        yield Fault(kind, bars.symbols[code], str(np.datetime64(int(day), "D")), int(count))
