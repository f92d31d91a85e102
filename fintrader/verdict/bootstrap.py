"""Resampling that keeps dependence in time: the stationary bootstrap, and the tests built on it.

Sources: Politis and Romano, "The Stationary Bootstrap" (1994); Politis and White, "Automatic
Block-Length Selection" (2004) with the correction of Patton, Politis and White (2009); Hansen, "A
Test for Superior Predictive Ability" (2005) [long-run variance]; Romano and Wolf, "Efficient
Computation of Adjusted p-Values for Resampling-Based Stepdown Multiple Testing" (2016).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fintrader.errors import BacktestError
from fintrader.metrics import TRADING_DAYS, Array, finite_or_none, is_too_short
from fintrader.seeding import create_numpy_generator
from fintrader.verdict.verdict import Excess, Interval, Intervals

REPEATS = 2000
"""Bootstrap samples: the standard error of a tail of 2.5 % is then 0.35 %."""
AT_ONCE = 1_000_000
"""Returns drawn at once: 8 MB an array, whatever the number of sessions."""


def block_length(x: Array) -> float:
    """Estimate the mean block length for the stationary bootstrap of a series x `[T]` (Politis and
    White, corrected 2009).

    b = (2 g² / d)^(1/3) T^(1/3) with g = Σ λ(k/m) |k| R(k), d = 2 (Σ λ(k/m) R(k))², λ the flat-top
    window and m twice the first lag after which the autocorrelations are negligible. At least 1; 1
    for a constant series.
    """
    size = x.size
    if size < 8 or x.max() == x.min():
        return 1.0
    centred = x - x.mean()
    most = math.ceil(min(3 * math.sqrt(size), size / 3))
    quiet = max(5, int(math.log10(size)))
    lags = min(math.ceil(math.sqrt(size)) + quiet, size - 2)
    level = 2 * math.sqrt(math.log10(size) / size)
    products = np.array([centred[k:] @ centred[: size - k] for k in range(lags + 1)])
    cut = [(centred[k:], centred[: size - k]) for k in range(1, lags + 2)]
    squares = np.array([(late @ late) * (early @ early) for late, early in cut])
    correlation = np.abs(products) / np.sqrt(np.where(squares > 0, squares, np.inf))
    last = next(
        (k - quiet for k in range(quiet, lags + 1) if (correlation[k - quiet : k] < level).all()),
        None,
    )
    m = lags if last is None else min(2 * max(last, 1), lags)
    k = np.arange(1, m + 1)
    window = np.where(k / m <= 0.5, 1.0, 2 * (1 - k / m))
    covariance = products / size
    g = float((2 * window * k * covariance[1 : m + 1]).sum())
    spectrum = float(covariance[0] + (2 * window * covariance[1 : m + 1]).sum())
    if spectrum == 0:
        return 1.0
    best = float(np.cbrt(g**2 / spectrum**2 * size))
    return max(1.0, min(best, most))


def bootstrap_indices(
    size: int, length: float, repeats: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Draw row numbers in circular blocks of geometric length with mean `length`; yield arrays `[R,
    size]` of some of the `repeats` samples each."""
    at_once = max(1, AT_ONCE // size)
    shapes = [(min(at_once, repeats - first), size) for first in range(0, repeats, at_once)]
    # All ends of blocks are drawn before any start, so that AT_ONCE does not change the samples.
    every = [rng.random(shape) < 1 / max(length, 1.0) for shape in shapes]
    steps = np.arange(size)
    for fresh in every:
        fresh[:, 0] = True
        starts = rng.integers(0, size, fresh.shape)
        since = np.maximum.accumulate(np.where(fresh, steps, 0), axis=1)
        yield (np.take_along_axis(starts, since, axis=1) + steps - since) % size


def intervals(
    returns: Array, *, repeats: int = REPEATS, sessions_a_year: int = TRADING_DAYS
) -> Intervals:
    """Compute 95 % stationary-bootstrap intervals of Sharpe ratio, annual return and max drawdown.

    `returns`: daily, `[S]`; equal returns get equal intervals, so that all tables agree. Below
    eight sessions the ends are None, because there is too little to resample. The annual return is
    None for a window that is too short (`metrics.is_too_short`).
    """
    length = block_length(returns)
    measured = [_measure_samples(returns[None, :], sessions_a_year)] if returns.size else []
    if returns.size >= 8:
        rng = create_numpy_generator(0, "intervals")
        drawn = bootstrap_indices(returns.size, length, repeats, rng)
        measured += [_measure_samples(returns[rows], sessions_a_year) for rows in drawn]

    def interval(name: str) -> Interval:
        # The returns themselves are the first sample.
        estimate, *samples = [one for part in measured for one in part[name]] or [math.nan]
        kept = np.array(samples)[np.isfinite(samples)]
        level = 0.95
        low, high = (
            float(np.percentile(kept, 50 * (1 + side * level))) if kept.size else math.nan
            for side in (-1, 1)
        )
        return Interval(finite_or_none(estimate), finite_or_none(low), finite_or_none(high), level)

    is_short = is_too_short("annual_return", returns.size, sessions_a_year)
    return Intervals(
        sharpe=interval("sharpe"),
        annual_return=None if is_short else interval("annual_return"),
        max_drawdown=interval("max_drawdown"),
        block_sessions=length,
    )


def _measure_samples(samples: Array, sessions_a_year: int) -> dict[str, Array]:
    """Compute the statistics of every row of `[R, S]`."""
    size = samples.shape[1]
    wealth = np.cumprod(1 + samples, axis=1)
    peak = np.maximum(np.maximum.accumulate(wealth, axis=1), 1.0)
    spread = samples.std(axis=1, ddof=1) if size > 1 else np.full(len(samples), np.nan)
    flat = ~(spread > 1e-15)
    sharpe = samples.mean(axis=1) / np.where(flat, np.nan, spread) * math.sqrt(sessions_a_year)
    growth = np.maximum(wealth[:, -1], 0.0) ** (sessions_a_year / size) - 1
    return {
        "sharpe": sharpe,
        "annual_return": growth,
        "max_drawdown": (wealth / peak - 1).min(axis=1),
    }


def paired_excess(
    returns: Array,
    baseline: Array,
    *,
    seed: int,
    repeats: int = REPEATS,
    sessions_a_year: int = TRADING_DAYS,
) -> Excess | None:
    """Bootstrap the annualised mean excess over a baseline in blocks of common days, with a 95 %
    interval; None below eight sessions."""
    excess = returns - baseline
    if excess.size < 8:
        return None
    length = block_length(excess)
    drawn = bootstrap_indices(excess.size, length, repeats, create_numpy_generator(seed, "excess"))
    means = np.concatenate([excess[rows].mean(axis=1) for rows in drawn])
    mean = float(excess.mean())
    level = 0.95
    low, high = np.percentile(means, [50 * (1 - level), 50 * (1 + level)]) * sessions_a_year
    p_value = (1 + int((means - mean >= mean).sum())) / (1 + repeats)
    return Excess(mean * sessions_a_year, float(low), float(high), level, p_value, length)


def romano_wolf(values: Array, *, seed: int, repeats: int = REPEATS) -> Array:
    """Test whether the mean of each column of values `[T, K]` is above zero, all K together:
    p-values `[K]`.

    The stepdown of Romano and Wolf: the share of bootstrap samples in which the largest t-ratio of
    this column and of all less significant ones reaches the column's t-ratio (2016, algorithm 4.1).
    The chance that any column of mean zero gets p < α is at most α. 1 for a constant column.
    Raises BacktestError below eight periods.
    """
    size, columns = values.shape
    if size < 8 or columns < 1:
        raise BacktestError(
            f"{size} periods of {columns} strategies are too few to test; give at least 8 periods"
        )
    flat = values.max(axis=0) == values.min(axis=0)
    mean = values.mean(axis=0)
    length = float(np.mean([block_length(values[:, k]) for k in range(columns)]))
    # The means of resampled rows are counts times rows: one product instead of an [R, T, K] array.
    means = np.concatenate(
        [
            np.stack([np.bincount(row, minlength=size) for row in rows]) / size @ values
            for rows in bootstrap_indices(
                size, length, repeats, create_numpy_generator(seed, "romano-wolf")
            )
        ]
    )
    scale = np.sqrt(np.maximum(_estimate_long_run_variance(values - mean, length), 1e-30) / size)
    observed = np.where(flat, -np.inf, mean / scale)
    drawn = np.where(flat, -np.inf, (means - mean) / scale)
    order = np.argsort(-observed, kind="stable")
    largest = np.maximum.accumulate(drawn[:, order[::-1]], axis=1)[:, ::-1]
    p_values = (1 + (largest >= observed[order]).sum(axis=0)) / (1 + repeats)
    stepped = np.empty(columns)
    stepped[order] = np.maximum.accumulate(np.where(flat[order], 1.0, p_values))
    return stepped


def _estimate_long_run_variance(centred: Array, length: float) -> Array:
    """Estimate the variance of √T times the mean of each column under the stationary bootstrap
    (Hansen 2005, section 3.2)."""
    size = centred.shape[0]
    stay = 1 - 1 / max(length, 1.0)
    variance: Array = np.square(centred).mean(axis=0)
    for k in range(1, size):
        weight = (1 - k / size) * stay**k + (k / size) * stay ** (size - k)
        if weight > 1e-12:
            variance = (
                variance + 2 * weight * (centred[: size - k] * centred[k:]).sum(axis=0) / size
            )
    return variance
