"""Moving sums, extremes and averages along axis 0: causal, and bit-equal on every prefix.

Sums and extremes use van Herk's two half-windows (doi:10.1016/0167-8655(92)90069-C): blocks of `window` bars, a running
total from the block's start and one from its end. Constant work a bar, no drift over long series, and the value at
bar t is made of bars <= t only.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fintrader.data.bars import Array

_BLOCK = 4096


def moving(values: Array, window: int, operation: np.ufunc) -> Array:
    """`operation` (np.add, np.maximum, np.minimum) over the last `window` bars, `[L]`; NaN for the first window - 1."""
    length = len(values)
    if window == 1:
        return values.astype(np.float64)
    result = np.full(length, np.nan)
    if length < window:
        return result
    blocks = -(-length // window)
    identity = 0.0 if operation is np.add else (-np.inf if operation is np.maximum else np.inf)
    padded = np.full(blocks * window, identity)
    padded[:length] = values
    table = padded.reshape(blocks, window)
    ahead = operation.accumulate(table, axis=1).ravel()
    behind = operation.accumulate(table[:, ::-1], axis=1)[:, ::-1].ravel()
    operation(behind[: length - window + 1], ahead[window - 1 : length], out=result[window - 1 :])
    result[window - 1 :: window] = ahead[window - 1 : length : window]  # the window is exactly one block
    return result


def moving_mean(values: Array, window: int) -> Array:
    """Simple moving average, `[L]`."""
    return np.asarray(moving(values, window, np.add) / window)


def moving_std(values: Array, window: int, ddof: int = 0) -> Array:
    """Moving standard deviation, `[L]`."""
    return moving_moments(values, window, ddof)[1]


def moving_moments(values: Array, window: int, ddof: int = 0) -> tuple[Array, Array]:
    """Moving mean and standard deviation, `[L]` each."""
    mean = moving_mean(values, window)
    spread = moving(values * values, window, np.add) - window * mean * mean
    return mean, np.sqrt(np.maximum(spread, 0.0) / (window - ddof))


def moving_deviation(values: Array, mean: Array, window: int) -> Array:
    """Mean absolute deviation from the moving mean, `[L]`: mean_k |x[t-k] - mean[t]|."""
    if len(values) < window:
        return mean
    total = np.full(len(values), np.nan)
    distance = np.empty(_BLOCK)
    for start in range(window - 1, len(values), _BLOCK):  # what is used `window` times stays in the processor's cache
        stop = min(start + _BLOCK, len(values))
        here, block = distance[: stop - start], np.zeros(stop - start)
        for lag in range(window):
            np.subtract(values[start - lag : stop - lag], mean[start:stop], out=here)
            block += np.abs(here, out=here)
        total[start:stop] = block
    return np.asarray(total / window)


def exponential(values: Array, alpha: float) -> Array:
    """Exponentially weighted mean with the weights' sum as divisor (pandas `ewm(adjust=True)`), `[L]`.

    y[t] = sum_k (1 - alpha)^k x[t - k] / sum_k (1 - alpha)^k; no bar is invented before the first.
    """
    from scipy.signal import lfilter  # a second of start-up that most commands never need

    decay = 1.0 - alpha
    total = lfilter([1.0], [1.0, -decay], values)
    return np.asarray(total / _weights(decay, 1 << len(values).bit_length())[: len(values)])


@lru_cache(maxsize=8)
def _weights(decay: float, length: int) -> Array:
    """`[length]` sums of the weights, the same for every symbol."""
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], [1.0, -decay], np.ones(length)))
