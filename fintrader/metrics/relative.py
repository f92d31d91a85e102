"""What a series of returns says beside a benchmark's: both `[S]`, of the same sessions; None where undefined.

Days on which either is NaN are left out of both (empyrical's convention).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fintrader.metrics.performance import annual_return, deviation, finite, ratio
from fintrader.metrics.resample import TRADING_DAYS, Array


def paired(returns: ArrayLike, benchmark: ArrayLike) -> tuple[Array, Array]:
    """Both series on the days that both have. Raises ValueError when their lengths differ."""
    ours, theirs = np.asarray(returns, dtype=np.float64), np.asarray(benchmark, dtype=np.float64)
    if ours.shape != theirs.shape:
        raise ValueError(f"{ours.shape[0]} returns beside {theirs.shape[0]} of the benchmark")
    both = ~np.isnan(ours) & ~np.isnan(theirs)
    return ours[both], theirs[both]


def beta(returns: ArrayLike, benchmark: ArrayLike) -> float | None:
    """`cov(r, b) / var(b)`; None when the benchmark hardly moves (variance below 1e-30)."""
    ours, theirs = paired(returns, benchmark)
    if ours.size < 2:
        return None
    residual = theirs - theirs.mean()
    variance = float(np.square(residual).mean())
    return None if variance < 1e-30 else ratio(float((residual * ours).mean()), variance)


def alpha(returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS) -> float | None:
    """Jensen's alpha a year: `(1 + mean(r − β b))^periods − 1`."""
    slope = beta(returns, benchmark)
    if slope is None:
        return None
    ours, theirs = paired(returns, benchmark)
    try:
        return finite((1 + float((ours - slope * theirs).mean())) ** periods - 1)
    except OverflowError:
        return None


def correlation(returns: ArrayLike, benchmark: ArrayLike) -> float | None:
    """Pearson's correlation."""
    ours, theirs = paired(returns, benchmark)
    if ours.size < 2 or deviation(ours) == 0 or deviation(theirs) == 0:
        return None
    return finite(float(np.corrcoef(ours, theirs)[0, 1]))


def tracking_error(returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS) -> float | None:
    """`std(r − b) · √periods`."""
    ours, theirs = paired(returns, benchmark)
    return finite(deviation(ours - theirs) * math.sqrt(periods)) if ours.size > 1 else None


def information_ratio(returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS) -> float | None:
    """`mean(r − b) / std(r − b) · √periods` (empyrical's `excess_sharpe`, a year)."""
    ours, theirs = paired(returns, benchmark)
    if ours.size < 2:
        return None
    return ratio(float((ours - theirs).mean()) * math.sqrt(periods), deviation(ours - theirs))


def up_capture(returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS) -> float | None:
    """Annual return over the benchmark's, both on the days on which the benchmark rose."""
    ours, theirs = paired(returns, benchmark)
    return _capture(ours, theirs, theirs > 0, periods)


def down_capture(returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS) -> float | None:
    """Annual return over the benchmark's, both on the days on which the benchmark fell."""
    ours, theirs = paired(returns, benchmark)
    return _capture(ours, theirs, theirs < 0, periods)


def _capture(ours: Array, theirs: Array, days: NDArray[np.bool_], periods: float) -> float | None:
    growth, reference = annual_return(ours[days], periods), annual_return(theirs[days], periods)
    return None if growth is None or reference is None else ratio(growth, reference)


def batting_average(returns: ArrayLike, benchmark: ArrayLike) -> float | None:
    """Share of days on which the strategy beat the benchmark."""
    ours, theirs = paired(returns, benchmark)
    return finite((ours > theirs).mean()) if ours.size else None


def treynor_ratio(returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS) -> float | None:
    """Annual return over beta."""
    slope, growth = beta(returns, benchmark), annual_return(paired(returns, benchmark)[0], periods)
    return None if slope is None or growth is None else ratio(growth, slope)
