"""Faults of single rows: impossible values, times while the exchange is closed, and prices and
volumes that are extreme, repeat themselves or contradict each other."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from fintrader.bars.bars import MINUTE_NS, PRICES, Array, Bars
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.checks.kinds import group_by_day, list_runs
from fintrader.results.market_description import Fault


def find_row_faults(bars: Bars, days: Array, now: float | None) -> Iterator[Fault]:
    """Find impossible, misplaced and repeated rows in raw bars of any order.

    days: `[R]` datetime64[D], the exchange's date of each row; now: seconds since 1970, by default
    the present.
    """
    prices = np.stack([getattr(bars, name) for name in PRICES])
    good = mask_valid_rows(bars, now)
    crossed = good & mask_crossed(bars)
    whole = good & ~crossed
    back, again, conflicting = (np.zeros(len(bars), dtype=bool) for _ in range(3))
    # out of order: a row that is earlier than the row of its symbol before it in the file
    order = np.argsort(bars.symbol, kind="stable")
    back[order[1:]] = (np.diff(bars.ts[order]) < 0) & (np.diff(bars.symbol[order]) == 0)
    order = np.lexsort((bars.ts, bars.symbol))
    ordered = bars.take(order)
    again[order] = ordered.repeats()
    conflicting[order] = ordered.contradictions()
    masks = {
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
    for kind, mask in masks.items():
        yield from group_by_day(kind, bars, mask, days)


def mask_crossed(bars: Bars) -> Array:
    """Return `[R]` bool: rows whose low lies above the high by more than rounding."""
    return np.asarray(bars.low > bars.high * (1 + 1e-6))


def find_broken_ranges(bars: Bars, days: Array) -> Iterator[Fault]:
    """Find one symbol's rows whose low lies above the high, or whose open or close lies outside of
    the two by more than rounding; each kind only if it is found in more than 1 % of the rows. days:
    `[R]` datetime64[D], the exchange's dates."""
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
    """Return `[R]` bool: rows whose price (role: `open` or `close`) lies outside of low and high by
    more than rounding."""
    price = getattr(bars, role)
    return np.asarray((price > bars.high * 1.0001) | (price < bars.low * 0.9999))


def find_placement_faults(bars: Bars, grid: SessionGrid, days: Array) -> Iterator[Fault]:
    """Find rows at times while the exchange is closed: on a day off, or before or after a session.
    days: `[R]` datetime64[D], the exchange's dates."""
    outside = grid.locate(bars.ts) < 0
    session = np.minimum(np.searchsorted(grid.dates, days), grid.num_sessions - 1)
    trading = grid.dates[session] == days
    yield from group_by_day("closed_day", bars, outside & ~trading, days)
    yield from group_by_day("outside_session", bars, outside & trading, days)


def mask_valid_rows(bars: Bars, now: float | None) -> Array:
    """Return `[R]` bool: rows with finite positive prices, a finite volume of at least 0, and a
    time that is not in the future. now: seconds since 1970, by default the present."""
    good = np.isfinite(bars.volume) & (bars.volume >= 0) & ~_future(bars, now)
    for name in PRICES:
        values = getattr(bars, name)
        good &= np.isfinite(values) & (values > 0)
    return np.asarray(good)


def _future(bars: Bars, now: float | None) -> Array:
    return np.asarray(bars.ts > np.int64((time.time() if now is None else now) * 1e9))


def find_price_faults(bars: Bars, grid: SessionGrid) -> Iterator[Fault]:
    """Find extreme, repeated and contradictory prices and volumes in valid bars, sorted by symbol
    and time, which all lie inside the sessions of `grid`."""
    for part in bars.by_symbol().values():
        if len(part) >= 2:
            session = grid.session[grid.locate(part.ts)]
            yield from _check_symbol(part, session, grid.dates[session])


def _check_symbol(bars: Bars, session: Array, dates: Array) -> Iterator[Fault]:
    """Find one symbol's faults. session, dates: `[R]` number and date of each row's session."""
    open_, high, low, close = (getattr(bars, column) for column in PRICES)
    volume = bars.volume
    top = np.maximum(open_, close)
    bottom = np.minimum(open_, close)
    reach = np.maximum(high / top - 1, 1 - low / bottom)
    same = np.diff(session, prepend=-1) == 0
    for values in (open_, high, low, close, volume):
        same[1:] &= np.diff(values) == 0
    stale = np.zeros(len(close), dtype=bool)
    for start, stop in list_runs(same):
        stale[start:stop] = stop - start >= 9  # ten equal bars
    masks = {
        "wick": reach > max(0.1, 50 * float(np.median(high / low - 1))),
        "zero_volume": (volume == 0) & (high > low),
        "volume_outlier": volume > 20_000 * max(float(np.median(volume)), 1.0),
        "stale_run": stale,
    }
    for kind, mask in masks.items():
        yield from group_by_day(kind, bars, mask, dates)
