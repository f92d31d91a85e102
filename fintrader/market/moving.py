"""Moving sums, averages and deviations along one column: causal, and bit-equal on every prefix.

The sums are van Herk's (`kernels.moving_sum`): constant work a bar, no drift over long series, and
the value at bar t is made of bars <= t only.
"""

from __future__ import annotations

import numpy as np

from fintrader.bars.bars import Array


def carry_forward(values: Array) -> Array:
    """The last finite value of each column up to each row of `[T, N]`; NaN before the first."""
    rows = np.where(np.isfinite(values), np.arange(len(values))[:, None], 0)
    return np.asarray(np.take_along_axis(values, np.maximum.accumulate(rows, axis=0), axis=0))


def moving_sum(values: Array, window: int) -> Array:
    """Sum of the last `window` values, `[L]` float64; NaN for the first window - 1."""
    from fintrader.bars import kernels

    return np.asarray(kernels.moving_sum(np.ascontiguousarray(values, dtype=np.float64), window))


def moving_mean(values: Array, window: int) -> Array:
    """Simple moving average, `[L]`."""
    total = moving_sum(values, window)
    total /= window
    return total


def moving_moments(values: Array, window: int) -> tuple[Array, Array]:
    """Moving mean and sample standard deviation, `[L]` each."""
    mean = moving_mean(values, window)
    spread = moving_sum(values * values, window)
    spread -= window * mean * mean
    np.maximum(spread, 0.0, out=spread)
    spread /= window - 1
    return mean, np.sqrt(spread, out=spread)


def moving_deviation(values: Array, mean: Array, window: int) -> Array:
    """Mean absolute deviation from the moving mean, `[L]`: mean_k |x[t-k] - mean[t]|."""
    from fintrader.bars import kernels

    return np.asarray(
        kernels.moving_deviation(np.ascontiguousarray(values, dtype=np.float64), mean, window)
    )


def find_latest(visible: Array, length: int) -> Array:
    """`[length]` int64: the last of the rows that are visible at each step, -1 where none is;
    `visible` `[R]`: the step from which on each row is."""
    latest = np.full(length, -1)
    inside = visible < length
    np.maximum.at(latest, visible[inside], np.flatnonzero(inside))
    return np.asarray(np.maximum.accumulate(latest))
