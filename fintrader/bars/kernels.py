"""Compiled functions over long columns: one pass through memory, where numpy needs about a dozen.

The moving sums and means are causal: later bars change no bit of an earlier value. Import this
module inside functions: numba takes half a second to load, and few commands need it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_LANES = 256
"""Number of bars processed together, which fit into the processor's first-level cache."""
_njit = njit(error_model="numpy", cache=True, no_cfunc_wrapper=True)
"""numba's `njit`. `numpy`: a division by zero gives inf or NaN instead of an error;
`no_cfunc_wrapper`: no wrapper for C is compiled, since none is used."""


# A window consists of the head of one block and the tail of the block before it. The sums of both
# are known, so each bar costs constant work, and rounding errors do not accumulate.
@_njit
def moving_sum(values: Any, window: int, skipped: int) -> Any:
    """Sum over the last `window` values at each bar, `[L]` float64; NaN at the first window - 1
    bars.

    `values` `[L]` may be the end of a longer series, whose first `skipped` values are left out: the
    sums are then equal, bit for bit, to those of the whole series.

    Van Herk's algorithm (doi:10.1016/0167-8655(92)90069-C): the series is cut into blocks of
    `window` bars; a sum is the running total from the start of its block, plus the total of the
    last bars of the block before.
    """
    length = len(values)
    result = np.empty(length)
    tails = np.full(window + 1, np.nan)  # there is no block before the first
    tails[window] = 0.0  # the window is exactly one block
    for start in range(-(skipped % window), length, window):
        stop = min(start + window, length)
        head = 0.0 if start >= 0 else np.nan  # the start of a cut block is unknown
        for t in range(max(start, 0), stop):
            head = head + values[t]
            result[t] = tails[t - start + 1] + head
        if stop - start < window:
            break
        total = 0.0
        for t in range(stop - 1, max(start, -1), -1):
            total = total + values[t]
            tails[t - start] = total
    return result


# Eight series at a time: the additions within a series depend on each other, so the processor
# overlaps those of different series.
@_njit
def last_moving_sums(values: Any, factors: Any, window: int, skipped: int, wanted: int) -> Any:
    """Return the last `wanted` values of `moving_sum` for each series of `values * factors` (both
    `[N, L]`), bit for bit, as `[N, wanted]` float64. The products are not stored."""
    count, length = values.shape
    result = np.full((count, wanted), np.nan)
    total = np.empty(8)
    begin = length - wanted
    first = begin - (begin + skipped) % window
    for n in range(0, count, 8):
        lanes = min(8, count - n)
        for start in range(first, length, window):
            if start < 0:  # the start of a cut block is unknown
                continue
            stop = min(start + window, length)
            total[:] = 0.0
            for t in range(start, stop):
                for j in range(lanes):
                    total[j] += values[n + j, t] * factors[n + j, t]
                if t >= max(begin, window - 1):
                    for j in range(lanes):
                        result[n + j, t - begin] = total[j]
            total[:] = 0.0
            for t in range(start - 1, max(start, begin) - window, -1):
                if t < 0:
                    break
                for j in range(lanes):
                    total[j] += values[n + j, t] * factors[n + j, t]
                if t + window - 1 < stop:
                    for j in range(lanes):
                        result[n + j, t + window - 1 - begin] += total[j]
    return result


# The outer loop runs over the lags and the inner one over neighbouring bars, so that it vectorises.
@_njit
def moving_deviation(values: Any, mean: Any, window: int) -> Any:
    """Mean absolute deviation of the last `window` values from the moving mean, `[L]`: mean_k
    |x[t-k] - mean[t]|; NaN at the first window - 1 bars."""
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


# The sum and the sum of weights decay together at each bar: a recursion, for which numpy has no
# array operation. The processor overlaps the recursions of different series.
@_njit
def exponential_mean(values: Any, alpha: float) -> Any:
    """Exponential mean of each series `[N, L]`: y[t] = sum_k (1 - alpha)^k x[t - k] / sum_k
    (1 - alpha)^k over the bars that exist, as pandas' `ewm(adjust=True)`: no value is assumed
    before the first bar."""
    decay = 1.0 - alpha
    count, length = values.shape
    result = np.empty((count, length))
    total = np.zeros(count)
    weight = 0.0
    for t in range(length):
        weight = weight * decay + 1.0
        for n in range(count):
            total[n] = total[n] * decay + values[n, t]
            result[n, t] = total[n] / weight
    return result


@_njit
def mark_steps(open_: Any, close: Any, factor: float) -> Any:
    """Return `[L]` bool: bars whose open or close is more than `factor` times the close before, or
    less than 1 / `factor` of it."""
    far = np.zeros(len(close), dtype=np.bool_)
    for t in range(1, len(close)):
        high = max(open_[t], close[t])
        low = min(open_[t], close[t])
        far[t] = max(high / close[t - 1], close[t - 1] / low) > factor
    return far


# In rows in order of time an open lies near the close of the row before; in rows in reverse order a
# close lies near the open of the row before.
@_njit
def count_backward_votes(open_: Any, close: Any, first: Any) -> Any:
    """Count the votes of pairs of neighbouring rows on whether a day's rows are in reverse order.

    first: `[D]` the first row of each day. Returns two arrays `[D]` int64: votes for reverse order
    less votes against it, and the number of votes.
    """
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
    """Add, in place, the finite differences `values` `[R, F]` - `mean` `[F]` (their squares if
    `is_squared`) to `total` `[F]`, row after row, and their number to `count` `[F]`."""
    for row in range(values.shape[0]):
        for f in range(values.shape[1]):
            distance = np.float64(values[row, f]) - mean[f]
            if np.isfinite(distance):
                total[f] += distance * distance if is_squared else distance
                count[f] += 1.0


@_njit
def apply_scale(values: Any, mean: Any, spread: Any, low: Any, high: Any, clip: float) -> None:
    """Standardise `values` `[R, F]` in place: (x − mean) / spread, limited to `low` and `high`
    `[F]`. NaN becomes 0; a result that is still infinite becomes ±clip."""
    for row in range(values.shape[0]):
        for f in range(values.shape[1]):
            value = (np.float64(values[row, f]) - mean[f]) / spread[f]
            value = low[f] if value < low[f] else value
            values[row, f] = high[f] if value > high[f] else value
            if not np.isfinite(values[row, f]):  # a large value may overflow float32
                values[row, f] = 0.0 if np.isnan(value) else (clip if value > 0 else -clip)


@_njit
def copy_by_row(table: Any, rows: Any) -> None:
    """Copy `table` `[L, F]`, stored column by column, into `rows` `[L, F]`, stored row by row."""
    length, width = table.shape
    for start in range(0, length, _LANES):
        stop = min(start + _LANES, length)
        for f in range(width):
            for t in range(start, stop):
                rows[t, f] = table[t, f]
