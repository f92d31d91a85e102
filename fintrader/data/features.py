"""Moving sums, extremes and averages along axis 0: causal, and bit-equal on every prefix.

Sums and extremes use van Herk's two half-windows (doi:10.1016/0167-8655(92)90069-C): blocks of `window` bars, a running
total from the block's start and one from its end. Constant work a bar, no drift over long series, and the value at
bar t is made of bars <= t only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from pydantic import Field, field_validator
from scipy.signal import lfilter

from fintrader.config import PathText, Settings, load_object
from fintrader.data.bars import Array
from fintrader.data.clean import SymbolBars
from fintrader.errors import ConfigError, DataError


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
    ends = np.arange(window - 1, length)
    starts = ends - window + 1
    whole = starts % window == 0  # the window is exactly one block
    result[window - 1 :] = np.where(whole, ahead[ends], operation(behind[starts], ahead[ends]))
    return result


def moving_mean(values: Array, window: int) -> Array:
    """Simple moving average, `[L]`."""
    return np.asarray(moving(values, window, np.add) / window)


def moving_std(values: Array, window: int, ddof: int = 0) -> Array:
    """Moving standard deviation, `[L]`."""
    mean = moving_mean(values, window)
    spread = moving(values * values, window, np.add) - window * mean * mean
    return np.asarray(np.sqrt(np.maximum(spread, 0.0) / (window - ddof)))


def moving_deviation(values: Array, window: int) -> Array:
    """Mean absolute deviation from the moving mean, `[L]`: mean_k |x[t-k] - mean[t]|."""
    mean = moving_mean(values, window)
    if len(values) < window:
        return mean
    total = np.zeros(len(values))
    for lag in range(window):
        total[window - 1 :] += np.abs(values[window - 1 - lag : len(values) - lag] - mean[window - 1 :])
    total[: window - 1] = np.nan
    return np.asarray(total / window)


def exponential(values: Array, alpha: float) -> Array:
    """Exponentially weighted mean with the weights' sum as divisor (pandas `ewm(adjust=True)`), `[L]`.

    y[t] = sum_k (1 - alpha)^k x[t - k] / sum_k (1 - alpha)^k; no bar is invented before the first.
    """
    decay = 1.0 - alpha
    total = lfilter([1.0], [1.0, -decay], values)
    weight = lfilter([1.0], [1.0, -decay], np.ones(len(values)))
    return np.asarray(total / weight)


PAPER_FEATURES = ("macd", "bollinger_upper", "bollinger_lower", "rsi_30", "cci_30", "dx_30", "sma_30", "sma_60")
"""The eight of the papers (FinRL's macd, boll_ub, boll_lb, rsi_30, cci_30, dx_30, close_30_sma, close_60_sma)."""


class FeatureSettings(Settings):
    """Which features a market carries, and how they are scaled."""

    names: tuple[str, ...] = (
        "return_1", "return_5", "return_30", "volatility_30", "volume_30", "rsi_30", "macd", "bollinger_upper",
        "bollinger_lower", "sma_60",
    )  # fmt: skip
    """`kind_window`, or `package.module:function`. Kinds: return, volatility, volume, rsi, cci, dx, macd,
    bollinger_upper, bollinger_lower, sma, age."""
    extra: tuple[str, ...] = ()
    """Extra columns of the bars that become features, standardised like the others."""
    extra_raw: tuple[str, ...] = ()
    """Extra columns of the bars that become features just as they are."""
    context: tuple[str, ...] = ("time_of_day", "time_to_close", "turbulence", "index_return_1", "index_return_30")
    """Columns common to all symbols, out of these kinds: time_of_day, time_to_close, turbulence, index_return_K,
    index_volatility_K."""
    daily: Mapping[str, PathText] = Field(default_factory=dict)
    """Daily series that become context, name -> CSV or Parquet file with date and close, like {vix: vix.csv}: each bar
    sees the close of the last finished day, as its logarithm."""
    turbulence_days: int = Field(60, ge=5)
    """Finished days from which mean and covariance of a day's returns are taken."""
    clip: float = Field(10.0, gt=0)
    """Standardised features are cut off at so many standard deviations."""
    standardise: bool = True
    """Whether to subtract the mean and divide by the standard deviation of the training window."""

    @field_validator("names")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if ":" not in name:
                _parse(name)
        return value

    @field_validator("context")
    @classmethod
    def _known_context(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in ("time_of_day", "time_to_close", "turbulence") and not _INDEX.fullmatch(name):
                raise ValueError(
                    f"{name!r} is no context; known: time_of_day, time_to_close, turbulence, index_return_K, "
                    "index_volatility_K"
                )
        return value


def log_return(bars: SymbolBars, window: int) -> Array:
    """ln(close[t] / close[t - window])."""
    result = np.full(len(bars), np.nan)
    result[window:] = np.log(bars.close[window:] / bars.close[:-window])
    return result


def volatility(bars: SymbolBars, window: int) -> Array:
    """Square root of the mean squared one-bar log return of the last `window` bars."""
    steps = np.diff(np.log(bars.close), prepend=np.log(bars.close[:1]))
    return np.asarray(np.sqrt(moving_mean(steps * steps, window)))


def volume(bars: SymbolBars, window: int) -> Array:
    """Volume surprise: ln((1 + volume[t]) / (1 + mean volume of the last `window` bars))."""
    return np.asarray(np.log1p(bars.volume) - np.log1p(moving_mean(bars.volume, window)))


def rsi(bars: SymbolBars, window: int) -> Array:
    """Relative strength index, 0 to 100: 100 · up / (up + down), Wilder means of rises and falls (50 if no move)."""
    change = np.diff(bars.close, prepend=bars.close[:1])
    up = exponential(np.maximum(change, 0.0), 1.0 / window)
    down = exponential(np.maximum(-change, 0.0), 1.0 / window)
    total = up + down
    result: Array = np.divide(100.0 * up, total, out=np.full(len(bars), 50.0), where=total > 0)
    result[: min(window, len(bars))] = np.nan
    return result


def cci(bars: SymbolBars, window: int) -> Array:
    """Commodity channel index: (typical - mean) / (0.015 · mean absolute deviation), typical = (high+low+close)/3."""
    typical = (bars.high + bars.low + bars.close) / 3.0
    spread = moving_deviation(typical, window)
    distance = typical - moving_mean(typical, window)
    flat = spread <= 1e-12 * typical  # a silent window: rounding noise over rounding noise means nothing
    return np.where(np.isnan(spread), np.nan, np.divide(distance, 0.015 * spread, out=np.zeros(len(bars)), where=~flat))


def dx(bars: SymbolBars, window: int) -> Array:
    """Directional movement index, 0 to 100: 100 · |+DI − −DI| / (+DI + −DI), Wilder means of the movements."""
    rise = np.diff(bars.high, prepend=bars.high[:1])
    fall = -np.diff(bars.low, prepend=bars.low[:1])
    plus = exponential(np.where((rise > fall) & (rise > 0), rise, 0.0), 1.0 / window)
    minus = exponential(np.where((fall > rise) & (fall > 0), fall, 0.0), 1.0 / window)
    total = plus + minus  # the true range divides both and cancels
    result: Array = np.divide(100.0 * np.abs(plus - minus), total, out=np.zeros(len(bars)), where=total > 0)
    result[: min(window, len(bars))] = np.nan
    return result


def macd(bars: SymbolBars, window: int) -> Array:
    """(EMA of span 12 − EMA of span 26) / close; `window` stretches both spans (macd_2 has 24 and 52)."""
    fast = exponential(bars.close, 2.0 / (12 * window + 1))
    slow = exponential(bars.close, 2.0 / (26 * window + 1))
    result = (fast - slow) / bars.close
    result[: 26 * window - 1] = np.nan
    return result


def bollinger_upper(bars: SymbolBars, window: int) -> Array:
    """(mean + 2 standard deviations) / close − 1, of the last `window` closes."""
    return (moving_mean(bars.close, window) + 2.0 * moving_std(bars.close, window, ddof=1)) / bars.close - 1.0


def bollinger_lower(bars: SymbolBars, window: int) -> Array:
    """(mean − 2 standard deviations) / close − 1, of the last `window` closes."""
    return (moving_mean(bars.close, window) - 2.0 * moving_std(bars.close, window, ddof=1)) / bars.close - 1.0


def sma(bars: SymbolBars, window: int) -> Array:
    """Mean of the last `window` closes / close − 1."""
    return moving_mean(bars.close, window) / bars.close - 1.0


def age(bars: SymbolBars, window: int) -> Array:
    """Bars since the last trade, at most `window`: how old the carried price is."""
    index = np.arange(len(bars))
    last = np.maximum.accumulate(np.where(bars.tradable, index, 0))
    return np.minimum(index - last, window).astype(np.float64)


_FEATURES: dict[str, tuple[Callable[[SymbolBars, int], Array], int]] = {
    "return": (log_return, 1),
    "volatility": (volatility, 30),
    "volume": (volume, 30),
    "rsi": (rsi, 30),
    "cci": (cci, 30),
    "dx": (dx, 30),
    "macd": (macd, 1),
    "bollinger_upper": (bollinger_upper, 20),
    "bollinger_lower": (bollinger_lower, 20),
    "sma": (sma, 30),
    "age": (age, 60),
}
_INDEX = re.compile(r"index_(return|volatility)_([1-9]\d*)")


def _parse(name: str) -> tuple[Callable[[SymbolBars, int], Array], int]:
    match = re.fullmatch(r"([a-z_]+?)(?:_([1-9]\d*))?", name)
    if not match or match.group(1) not in _FEATURES:
        raise ValueError(
            f"{name!r} is no feature; known kinds: {', '.join(_FEATURES)} (like rsi_30), or module:function"
        )
    function, window = _FEATURES[match.group(1)]
    return function, int(match.group(2) or window)


def symbol_features(bars: SymbolBars, names: Sequence[str]) -> Array:
    """`[L, F]` float64, NaN while undefined. Raises DataError when a function of your own returns another shape."""
    table = np.empty((len(bars), len(names)))
    for column, name in enumerate(names):
        if ":" in name:
            values = np.asarray(load_object(name)(bars), dtype=np.float64)
            if values.shape != (len(bars),):
                raise DataError(f"feature {name} returned shape {values.shape}; it must return ({len(bars)},)")
        elif name in bars.extras:
            values = bars.extras[name]
        else:
            try:
                function, window = _parse(name)
            except ValueError as error:
                raise ConfigError(f"data.features.names: {error}") from None
            values = function(bars, window)
        table[:, column] = values
    return table


def context_features(
    names: Sequence[str],
    *,
    benchmark: Array,
    session: Array,
    day_close: Array,
    turbulence_days: int,
) -> Array:
    """`[T, M]` float64, NaN while undefined.

    benchmark `[T]`; session `[T]`, its number, from 0; day_close `[S, N]`, each symbol's close of each session (NaN
    where unlisted), of which bar t only sees sessions before its own.
    """
    length = np.bincount(session)
    inside = np.arange(len(session)) - (np.cumsum(length) - length)[session]  # the bar's number in its session
    table = np.empty((len(session), len(names)))
    for column, name in enumerate(names):
        match = _INDEX.fullmatch(name)
        if name == "time_of_day":
            table[:, column] = 2.0 * (inside + 0.5) / length.max() - 1.0
        elif name == "time_to_close":
            table[:, column] = 2.0 * (length[session] - inside - 0.5) / length.max() - 1.0
        elif name == "turbulence":
            before = np.concatenate([[np.nan], turbulence(day_close, turbulence_days)[:-1]])
            table[:, column] = np.log1p(before)[session]
        elif match:
            window = int(match.group(2))
            steps = np.diff(np.log(benchmark), prepend=np.log(benchmark[:1]))
            if match.group(1) == "return":
                table[:, column] = moving(steps, window, np.add)
            else:
                table[:, column] = np.sqrt(moving_mean(steps * steps, window))
    return table


def turbulence(day_close: Array, days: int, *, shrinkage: float = 0.5) -> Array:
    """`[S]`: Mahalanobis distance of each day's returns from the `days` before it, divided by their number.

    d[s] = (y[s] − μ)ᵀ Σ⁻¹ (y[s] − μ) / n, with μ and Σ of days s − days … s − 1 (Kritzman & Li 2010, doi:
    10.2469/faj.v66.n5.3). Σ is shrunk half-way to its diagonal, because there are often more symbols than days. Only
    symbols with a price on all these days count. NaN while fewer than `days` are finished.
    """
    returns = np.full(day_close.shape, np.nan)
    returns[1:] = np.log(day_close[1:] / day_close[:-1])
    result = np.full(len(day_close), np.nan)
    for today in range(days + 1, len(day_close)):
        past, now = returns[today - days : today], returns[today]
        listed = np.isfinite(past).all(axis=0) & np.isfinite(now)
        listed &= np.where(listed, past, 0.0).std(axis=0) > 0
        if not listed.any():
            continue
        past, gap = past[:, listed], now[listed] - past[:, listed].mean(axis=0)
        covariance = np.atleast_2d(np.cov(past, rowvar=False))
        shrunk = (1 - shrinkage) * covariance + shrinkage * np.diag(np.diag(covariance))
        result[today] = float(gap @ np.linalg.solve(shrunk, gap)) / len(gap)
    return result


_BLOCK = 4096


def scale(values: Array, train: tuple[int, int], scaled: Array) -> tuple[Array, Array]:
    """Mean and standard deviation `[F]` of each column of `[T, N, F]` over the training window, of finite values only.

    0 and 1 for columns that are not `scaled` (`[F]` bool), hold nothing finite, or do not vary.
    """
    width = values.shape[2]
    blocks = [slice(start, min(start + _BLOCK, train[1])) for start in range(train[0], train[1], _BLOCK)]
    count, total, square = np.zeros(width), np.zeros(width), np.zeros(width)
    for rows in blocks:
        block = values[rows].astype(np.float64)
        finite = np.isfinite(block)
        count += finite.sum(axis=(0, 1))
        total += np.where(finite, block, 0.0).sum(axis=(0, 1))
    mean = total / np.maximum(count, 1)
    for rows in blocks:
        block = values[rows].astype(np.float64) - mean
        square += (np.where(np.isfinite(block), block, 0.0) ** 2).sum(axis=(0, 1))
    spread = np.sqrt(square / np.maximum(count, 1))
    varies = scaled & (spread > 1e-12 * np.maximum(1.0, np.abs(mean)))
    return np.where(scaled, mean, 0.0), np.where(varies, spread, 1.0)


def standardise(
    values: Array, names: Sequence[str], train: tuple[int, int], scaled: Array, clip: float
) -> dict[str, dict[str, float]]:
    """In place: (x − mean) / std with the statistics of `scale`, which are returned by name; 0 where undefined.

    `scaled` columns are cut off at ±clip.
    """
    mean, spread = scale(values, train, scaled)
    low, high = np.where(scaled, -clip, -np.inf), np.where(scaled, clip, np.inf)
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        block[...] = np.clip((block - mean) / spread, low, high)
        np.nan_to_num(block, copy=False, nan=0.0, posinf=clip, neginf=-clip)
    return {name: {"mean": float(m), "std": float(s)} for name, m, s in zip(names, mean, spread, strict=True)}
