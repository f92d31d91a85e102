"""Compiled passes over long columns: one pass through memory instead of numpy's dozen.

Each is causal and adds in the order of the plain formula: later bars change no bit of a value.
Import it late: numba takes half a second to load, and few commands need it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_LANES = 256
"""Bars that are worked on together: this many stay in the processor's nearest cache."""
_njit = njit(error_model="numpy", cache=True, no_cfunc_wrapper=True)
"""Divide as numpy does, without a check for zero; a wrapper for C would only be compiled."""


# A window is the head of one block and the tail of the block before, and both sums are known:
# constant work a bar, and rounding errors do not accumulate.
@_njit
def moving_sum(values: Any, window: int, skipped: int) -> Any:
    """Sum over the last `window` values, `[L]` float64; NaN for the first window - 1.

    `values` may be the end of a series of which `skipped` values lie before: a sum within them has
    the bits that it has in the whole series.

    Van Herk's two half-windows (doi:10.1016/0167-8655(92)90069-C): blocks of `window` bars, a
    running total from the block's start and one from the end of the block before.
    """
    length = len(values)
    result = np.empty(length)
    behind = np.full(window + 1, np.nan)  # nothing lies behind the first block
    behind[window] = 0.0  # the window is exactly one block
    for start in range(-(skipped % window), length, window):
        stop = min(start + window, length)
        ahead = 0.0 if start >= 0 else np.nan  # of a block that was cut the end is known
        for t in range(max(start, 0), stop):
            ahead = ahead + values[t]
            result[t] = behind[t - start + 1] + ahead
        if stop - start < window:
            break
        total = 0.0
        for t in range(stop - 1, max(start, -1), -1):
            total = total + values[t]
            behind[t - start] = total
    return result


# Eight series at a time: the additions of one series wait for each other, those of others do not.
@_njit
def last_moving_sums(values: Any, times: Any, window: int, skipped: int, wanted: int) -> Any:
    """The last `wanted` sums of `moving_sum` for each series of `values * times`, `[N, L]` both,
    bit for bit; `[N, wanted]` float64. The products are not stored."""
    count, length = values.shape
    result = np.full((count, wanted), np.nan)
    total = np.empty(8)
    begin = length - wanted
    first = begin - (begin + skipped) % window
    for n in range(0, count, 8):
        lanes = min(8, count - n)
        for start in range(first, length, window):
            if start < 0:  # of a block that was cut only the end is known
                continue
            stop = min(start + window, length)
            total[:] = 0.0
            for t in range(start, stop):
                for j in range(lanes):
                    total[j] += values[n + j, t] * times[n + j, t]
                if t >= max(begin, window - 1):
                    for j in range(lanes):
                        result[n + j, t - begin] = total[j]
            total[:] = 0.0
            for t in range(start - 1, max(start, begin) - window, -1):
                if t < 0:
                    break
                for j in range(lanes):
                    total[j] += values[n + j, t] * times[n + j, t]
                if t + window - 1 < stop:
                    for j in range(lanes):
                        result[n + j, t + window - 1 - begin] += total[j]
    return result


# The lags are the outer loop and neighbouring bars the inner one, which vectorises.
@_njit
def moving_deviation(values: Any, mean: Any, window: int) -> Any:
    """Mean absolute deviation from the moving mean, `[L]`: mean_k |x[t-k] - mean[t]|."""
    length = len(values)
    result = np.full(length, np.nan)
    total = np.empty(_LANES)
    for start in range(window - 1, length, _LANES):
        count = min(_LANES, length - start)
        here = mean[start : start + count]
        total[:count] = 0.0
        for lag in range(window):
            past = values[start - lag : start - lag + count]
            for j in range(count):
                total[j] += abs(past[j] - here[j])
        for j in range(count):
            result[start + j] = total[j] / window
    return result


# The sum and its weights decay together at each bar: a recursion, which no array operation does.
@_njit
def exponential_mean(values: Any, alpha: float) -> Any:
    """Exponential mean `[L]`: y[t] = sum_k (1 - alpha)^k x[t - k] / sum_k (1 - alpha)^k. The
    weights' sum is the divisor (pandas `ewm(adjust=True)`), so no bar is invented before the
    first."""
    decay = 1.0 - alpha
    result = np.empty(len(values))
    total = weight = 0.0
    for t in range(len(values)):
        total = total * decay + values[t]
        weight = weight * decay + 1.0
        result[t] = total / weight
    return result


# `row` points at the next row to place; a bar without a row repeats the close before it.
@_njit
def on_grid(at: Any, length: int, open_: Any, high: Any, low: Any, close: Any, volume: Any) -> Any:
    """Place rows of the grid's bars `at` on `length` bars that begin with the first row's.

    Returns `[length]` each: open, high, low, close, volume, and true where there is a row. Without
    a row all prices are the last close and the volume is 0.
    """
    opens = np.empty(length)
    highs = np.empty(length)
    lows = np.empty(length)
    closes = np.empty(length)
    volumes = np.empty(length)
    traded = np.empty(length, dtype=np.bool_)
    row = 0
    for t in range(length):
        there = row < len(at) and at[row] - at[0] == t
        if there:
            opens[t], highs[t], lows[t], closes[t] = open_[row], high[row], low[row], close[row]
            volumes[t] = volume[row]
            row += 1
        else:
            opens[t] = highs[t] = lows[t] = closes[t] = close[row - 1]
            volumes[t] = 0.0
        traded[t] = there
    return opens, highs, lows, closes, volumes, traded


@_njit
def mark_steps(open_: Any, close: Any, factor: float) -> Any:
    """Mark the bars, `[L]`, whose open or close differs from the close before by a ratio above
    `factor`."""
    far = np.zeros(len(close), dtype=np.bool_)
    for t in range(1, len(close)):
        high = max(open_[t], close[t])
        low = min(open_[t], close[t])
        far[t] = max(high / close[t - 1], close[t - 1] / low) > factor
    return far


# In a series that runs forward an open lies near the close before it; in one that runs backward a
# close lies near the open before it.
@_njit
def backward_votes(open_: Any, close: Any, first: Any) -> Any:
    """Votes for a day that runs backward, less those for a day that runs forward, and the number of
    votes cast, `[D]` each. Days begin at rows `first` `[D]`."""
    votes = np.zeros(len(first), dtype=np.int64)
    cast = np.zeros(len(first), dtype=np.int64)
    for day in range(len(first)):
        stop = first[day + 1] if day + 1 < len(first) else len(close)
        for t in range(first[day] + 1, stop):
            forward = abs(open_[t] - close[t - 1])
            backward = abs(close[t] - open_[t - 1])
            votes[day] += np.int64(forward > backward) - np.int64(forward < backward)
            cast[day] += np.int64(forward != backward)
    return votes, cast


@_njit
def add_distances(values: Any, mean: Any, is_squared: bool, total: Any, count: Any) -> None:
    """Add the finite distances of `[R, F]` from `mean` `[F]`, or their squares, to `total` `[F]`,
    row after row, and their number to `count` `[F]`."""
    for row in range(values.shape[0]):
        for f in range(values.shape[1]):
            distance = np.float64(values[row, f]) - mean[f]
            if np.isfinite(distance):
                total[f] += distance * distance if is_squared else distance
                count[f] += 1.0


@_njit
def apply_scale(values: Any, mean: Any, spread: Any, low: Any, high: Any, clip: float) -> None:
    """In place: (x − mean) / spread of `[R, F]`, between `low` and `high` `[F]`; 0 where undefined,
    ±clip where still infinite."""
    for row in range(values.shape[0]):
        for f in range(values.shape[1]):
            value = (np.float64(values[row, f]) - mean[f]) / spread[f]
            value = low[f] if value < low[f] else value
            values[row, f] = high[f] if value > high[f] else value
            if not np.isfinite(values[row, f]):  # a large one may overflow float32
                values[row, f] = 0.0 if np.isnan(value) else (clip if value > 0 else -clip)


@_njit
def by_row(table: Any, rows: Any) -> None:
    """Copy `[L, F]`, stored column by column, to `[L, F]`, stored row by row."""
    length, width = table.shape
    for start in range(0, length, _LANES):
        stop = min(start + _LANES, length)
        for f in range(width):
            for t in range(start, stop):
                rows[t, f] = table[t, f]
