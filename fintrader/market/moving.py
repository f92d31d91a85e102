"""Moving sums, averages and deviations along the last axis: causal, and bit-equal on every prefix.

The sums are van Herk's (`kernels.moving_sum`): constant work per bar, no drift over long series,
and the value at bar t is made of bars <= t only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fintrader.bars.bars import Array


def carry_forward(values: Array) -> Array:
    """The last finite value of each column up to each row of `[T, N]`; NaN before the first."""
    rows = np.where(np.isfinite(values), np.arange(len(values))[:, None], 0)
    return np.asarray(np.take_along_axis(values, np.maximum.accumulate(rows, axis=0), axis=0))


def by_series(kernel: Callable[..., Any], *series: Array, with_: tuple[float, ...]) -> Array:
    """Call a kernel with each series `[L]` of `[..., L]` and further numbers; stack its results."""
    columns = [np.ascontiguousarray(values, dtype=np.float64) for values in series]
    if columns[0].ndim == 1:
        return np.asarray(kernel(*columns, *with_))
    return np.stack([kernel(*own, *with_) for own in zip(*columns, strict=True)])


def moving_sum(
    values: Array, window: int, skipped: int = 0, wanted: int = 0, times: Array | float = 1.0
) -> Array:
    """Sum of the last `window` values, `[..., L]` float64; NaN for the first window - 1. `skipped`:
    number of earlier values that `values` omits, so that its blocks lie as in the whole series;
    `wanted`: number of last sums to compute, 0 for all; `times`: a factor of each value."""
    from fintrader.bars import kernels

    if wanted and values.ndim == 2:
        factors = np.broadcast_to(times, values.shape)
        return np.asarray(kernels.last_moving_sums(values, factors, window, skipped, wanted))
    summed = values if isinstance(times, float) else values * times
    return by_series(kernels.moving_sum, summed, with_=(window, skipped))[..., -wanted:]


def moving_mean(
    values: Array, window: int, skipped: int = 0, wanted: int = 0, times: Array | float = 1.0
) -> Array:
    """Simple moving average, `[..., L]`; its arguments are `moving_sum`'s."""
    total = moving_sum(values, window, skipped, wanted, times)
    total /= window
    return total


def moving_moments(
    values: Array, window: int, skipped: int = 0, wanted: int = 0
) -> tuple[Array, Array]:
    """Moving mean and sample standard deviation, `[..., L]` each; the arguments are
    `moving_sum`'s."""
    mean = moving_mean(values, window, skipped, wanted)
    spread = moving_sum(values, window, skipped, wanted, times=values)
    spread -= window * mean * mean
    np.maximum(spread, 0.0, out=spread)
    spread /= max(window - 1, 1)
    return mean, np.sqrt(spread, out=spread)


def moving_deviation(values: Array, mean: Array, window: int) -> Array:
    """Mean absolute deviation from the moving mean, `[..., L]`: mean_k |x[t-k] - mean[t]|."""
    from fintrader.bars import kernels

    return by_series(kernels.moving_deviation, values, mean, with_=(window,))


def find_latest(visible: Array, length: int) -> Array:
    """`[length]` int64: the last row that is visible at each step, -1 where none is. `visible`
    `[R]`: the first step at which each row is visible."""
    latest = np.full(length, -1)
    inside = visible < length
    np.maximum.at(latest, visible[inside], np.flatnonzero(inside))
    return np.asarray(np.maximum.accumulate(latest))
