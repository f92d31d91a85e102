"""Rows that cannot be bars, rows where the exchange is closed, and prices and volumes that
reach far, stand still or do not fit each other within a day."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from fintrader.bars.bars import MINUTE_NS, PRICES, Array, Bars
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.checks.kinds import group_by_day, runs
from fintrader.results.market_description import Fault


def find_row_faults(bars: Bars, days: Array, now: float | None) -> Iterator[Fault]:
    """Find impossible and repeated rows in raw bars of any order.

    days: `[R]` the exchange's dates; now: seconds since 1970.
    """
    prices = np.stack([getattr(bars, name) for name in PRICES])
    good = mask_valid_rows(bars, now)
    crossed = good & mask_crossed(bars)
    whole = good & ~crossed
    back, again, conflicting = (np.zeros(len(bars), dtype=bool) for _ in range(3))
    # out of order: a row earlier than the one of its symbol that stands before it in the file
    order = np.argsort(bars.symbol, kind="stable")
    back[order[1:]] = (np.diff(bars.ts[order]) < 0) & (np.diff(bars.symbol[order]) == 0)
    order = np.lexsort((bars.ts, bars.symbol))
    ordered = bars.take(order)
    again[order] = ordered.repeats()
    conflicting[order] = ordered.contradictions()
    found = {
        "not_finite_price": ~np.isfinite(prices).all(axis=0),
        "zero_price": (prices == 0).any(axis=0),
        "negative_price": (prices < 0).any(axis=0),
        "not_finite_volume": ~np.isfinite(bars.volume),
        "negative_volume": bars.volume < 0,
        "future": _future(bars, now),
        "off_minute": bars.ts % MINUTE_NS != 0,
        "crossed_range": crossed,
        "open_outside_range": whole & ((bars.open > bars.high) | (bars.open < bars.low)),
        "close_outside_range": whole & ((bars.close > bars.high) | (bars.close < bars.low)),
        "out_of_order": back,
        "exact_duplicate": again & ~conflicting,
        "conflicting_duplicate": conflicting,
    }
    for kind, mask in found.items():
        yield from group_by_day(kind, bars, mask, days)


def mask_crossed(bars: Bars) -> Array:
    """`[R]` bool: rows whose low lies above their high by more than rounding."""
    return np.asarray(bars.low > bars.high * (1 + 1e-6))


def find_broken_ranges(bars: Bars, days: Array) -> Iterator[Fault]:
    """Find one symbol's lows above highs, and opens and closes outside of both by more than
    rounding, each if in more than 1 % of the rows. days: `[R]` the exchange's dates."""
    crossed = mask_crossed(bars)
    if crossed.mean() > 0.01:
        yield from group_by_day("crossed_range", bars, crossed, days)
    for role in ("open", "close"):
        outside = ~crossed & mask_outside(bars, role)
        share = float(outside.mean())
        if share > 0.01:
            first = str(days[outside.argmax()])
            detail = f"in {share:.1%} of the rows"
            kind = f"{role}_outside_range"
            yield Fault(kind, bars.symbols[0], first, int(outside.sum()), detail)


def mask_outside(bars: Bars, role: str) -> Array:
    """`[R]` bool: rows whose `open` or `close` lies outside low and high by more than rounding."""
    price = getattr(bars, role)
    return np.asarray((price > bars.high * 1.0001) | (price < bars.low * 0.9999))


def find_placement_faults(bars: Bars, grid: SessionGrid, days: Array) -> Iterator[Fault]:
    """Find rows while the exchange is closed: on a day off, or before and after a session."""
    outside = grid.locate(bars.ts) < 0
    session = np.minimum(np.searchsorted(grid.dates, days), grid.num_sessions - 1)
    trading = grid.dates[session] == days
    yield from group_by_day("closed_day", bars, outside & ~trading, days)
    yield from group_by_day("outside_session", bars, outside & trading, days)


def mask_valid_rows(bars: Bars, now: float | None) -> Array:
    """`[R]` bool: rows with possible prices, volume and time."""
    good = np.isfinite(bars.volume) & (bars.volume >= 0) & ~_future(bars, now)
    for name in PRICES:
        values = getattr(bars, name)
        good &= np.isfinite(values) & (values > 0)
    return np.asarray(good)


def _future(bars: Bars, now: float | None) -> Array:
    return np.asarray(bars.ts > np.int64((time.time() if now is None else now) * 1e9))


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
