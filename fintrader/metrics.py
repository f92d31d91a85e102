"""Return, risk and ratios of a series of returns, alone and against a benchmark's.

Every function takes simple returns `[S]` (0.01 is one per cent), one a session unless `periods`
names another number of periods a year, and returns a float, or None where the measure is undefined
(too few values, division by zero). A NaN is a missing day: it is left out, but still counts as
time; against a benchmark, days on which either is NaN are left out of both. The risk-free rate is
0. `results.catalogue` names the sources.

empyrical computes every measure that it has (`_measure`), with these rules around it: an infinite
ratio (no dispersion, no loss) is None, because it cannot be compared or stored; a series of NaN
alone has no return and no drawdown; wealth below zero does not grow. This module computes the
measures that empyrical lacks, and those that take or return several series (equity `[T, B]`,
drawdowns).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Measure = float | None
"""A number, None where it is undefined."""
TRADING_DAYS = 252
"""Sessions in a year of an exchange that closes at weekends, as in the paper's table and empyrical.
Other markets have their own number (`MarketTensors.sessions_a_year`), which their results use."""
FEWEST_SESSIONS = TRADING_DAYS // 4
"""A quarter of a year. Growth over fewer sessions is not annualised: a good week would become
millions of per cent."""
COMPOUNDED = frozenset(
    {
        "annual_return",
        "calmar",
        "martin_ratio",
        "alpha",
        "up_capture",
        "down_capture",
        "treynor_ratio",
    }
)
"""Metrics that compound growth to a year."""
ANNUAL = COMPOUNDED | {
    "annual_volatility",
    "downside_risk",
    "active_return",
    "tracking_error",
    "index_tracking_error",
    "turnover",
    "minute_annual_volatility",
}
"""Annual rates; None below a quarter of a year. Ratios (Sharpe, information) have a value for any
window: their intervals show the uncertainty."""


def min_sessions(sessions_a_year: int = TRADING_DAYS) -> int:
    """Return a quarter of a year in sessions: `FEWEST_SESSIONS` for a year of 252."""
    return sessions_a_year // 4


def is_too_short(key: str, sessions: int, sessions_a_year: int = TRADING_DAYS) -> bool:
    """Check for an annual rate over less than a quarter of a year of `sessions`."""
    return key in ANNUAL and sessions < min_sessions(sessions_a_year)


def find_session_ends(session: ArrayLike) -> NDArray[np.int64]:
    """Find the index of the last bar of each session, `[S]`. `session`: `[T]`, never decreasing."""
    numbers = np.asarray(session)
    if numbers.size == 0:
        return np.empty(0, dtype=np.int64)
    return np.append(np.flatnonzero(np.diff(numbers)), numbers.size - 1).astype(np.int64)


def find_session_starts(session: ArrayLike) -> NDArray[np.int64]:
    """Find the index of the first bar of each session, `[S]`. `session`: `[T]`, never decreasing,
    not empty."""
    return np.append(0, find_session_ends(session)[:-1] + 1)


def daily_equity(equity: ArrayLike, session: ArrayLike) -> Array:
    """Equity at the end of each session: `[T]` (or `[T, B]`) and `[T]` -> `[S]` (or `[S, B]`)."""
    return np.asarray(equity, dtype=np.float64)[find_session_ends(session)]


def simple_returns(equity: ArrayLike, start: Any = None) -> Array:
    """Simple returns along axis 0; with `start` (USD) also the first value's return on that
    capital.

    The return on zero equity is 0.
    """
    values = np.asarray(equity, dtype=np.float64)
    if start is not None:
        values = np.concatenate([np.broadcast_to(start, values[:1].shape), values])
    before = values[:-1]
    after = values[1:]
    is_positive = before != 0
    return np.where(is_positive, after / np.where(is_positive, before, 1.0) - 1, 0.0)


def daily_returns(equity: ArrayLike, session: ArrayLike, start: Any = None) -> Array:
    """Return of each session, the first one on the starting capital: `[T]`, `[T]` -> `[S]`.

    `start` defaults to the first equity value, which a backtest records before its first trade.
    """
    values = np.asarray(equity, dtype=np.float64)
    if values.shape[0] == 0:
        return values
    return simple_returns(daily_equity(values, session), values[0] if start is None else start)


def drop_rounding_differences(ours: Array, theirs: Array) -> Array:
    """Return `theirs [S]`, or `ours` if the two differ only by rounding (as when a curve is scaled
    to the capital), so that active returns are exactly 0."""
    return ours if np.allclose(ours, theirs, rtol=0.0, atol=1e-13) else theirs


def drop_missing(returns: ArrayLike) -> Array:
    """Drop NaN from returns; the others keep their order."""
    values = np.asarray(returns, dtype=np.float64)
    return values[~np.isnan(values)]


def finite_or_none(value: float) -> Measure:
    """Convert `value` to a float, NaN and infinity to None."""
    return float(value) if math.isfinite(value) else None


def divide(above: Array, below: Array, otherwise: float = 0.0) -> Array:
    """Compute `above / below` element by element; `otherwise` where `below` is not positive. The
    result has the form of `above`."""
    return np.divide(above, below, out=np.full_like(above, otherwise), where=below > 0)


def ratio(above: float, below: float) -> Measure:
    """`above / below`; None when `below` is zero or either is not finite."""
    if below == 0 or not math.isfinite(above) or not math.isfinite(below):
        return None
    return finite_or_none(above / below)


def standard_deviation(values: Array) -> float:
    """Sample standard deviation (n - 1), exactly 0 when all values are equal, NaN below two
    values."""
    if values.size < 2:
        return math.nan
    return 0.0 if values.max() == values.min() else float(values.std(ddof=1))


def _measure(name: str, *series: Array, **options: float) -> Measure:
    """Compute empyrical's measure of that name; None if there are no returns or it is not finite.

    The import is late because it takes a second and loads pandas, scipy and yfinance, which a
    command's help and its refusals do not need.
    """
    if not series[0].size:
        return None
    import empyrical

    with np.errstate(all="ignore"):
        return finite_or_none(getattr(empyrical, name)(*series, **options))


def cumulative_return(returns: ArrayLike) -> Measure:
    """`Π (1 + r) − 1`."""
    return _measure("cum_returns_final", drop_missing(returns))


def annual_return(returns: ArrayLike, periods: float = TRADING_DAYS) -> Measure:
    """Compound annual growth rate, `(Π (1 + r))^(periods / S) − 1`, with S counting missing days
    too."""
    growth = cumulative_return(returns)
    if growth is None or growth < -1:
        return None
    return _measure("annual_return", np.asarray(returns, dtype=np.float64), annualization=periods)


def mean_return(returns: ArrayLike) -> Measure:
    """Arithmetic mean of the periods' returns."""
    return _reduce(returns, np.mean)


def best_return(returns: ArrayLike) -> Measure:
    """The largest return."""
    return _reduce(returns, np.max)


def worst_return(returns: ArrayLike) -> Measure:
    """The smallest return."""
    return _reduce(returns, np.min)


def hit_rate(returns: ArrayLike) -> Measure:
    """Share of periods with a positive return."""
    return _reduce(returns, lambda values: np.mean(values > 0))


def _reduce(returns: ArrayLike, to_number: Callable[[Array], Any]) -> Measure:
    values = drop_missing(returns)
    return finite_or_none(to_number(values)) if values.size else None


def payoff_ratio(returns: ArrayLike) -> Measure:
    """Mean gain over mean loss."""
    values = drop_missing(returns)
    gains = values[values > 0]
    losses = values[values < 0]
    return ratio(float(gains.mean()), float(-losses.mean())) if gains.size and losses.size else None


def annual_volatility(returns: ArrayLike, periods: float = TRADING_DAYS) -> Measure:
    """`std(r) · √periods`, sample standard deviation."""
    values = drop_missing(returns)
    if standard_deviation(values) == 0:
        return 0.0
    return _measure("annual_volatility", values, annualization=periods)


def downside_risk(returns: ArrayLike, periods: float = TRADING_DAYS) -> Measure:
    """`√(mean(min(r, 0)²)) · √periods`: the mean runs over all periods, the gains counting as
    zero."""
    return _measure("downside_risk", drop_missing(returns), annualization=periods)


def skew(returns: ArrayLike) -> Measure:
    """Third standardised moment, `m₃ / m₂^1.5` (moments about the mean, divided by n)."""
    return _standard_moment(returns, 3)


def kurtosis(returns: ArrayLike) -> Measure:
    """Fourth standardised moment less 3, `m₄ / m₂² − 3`: 0 for a normal distribution."""
    moment = _standard_moment(returns, 4)
    return None if moment is None else moment - 3


def _standard_moment(returns: ArrayLike, order: int) -> Measure:
    values = drop_missing(returns)
    if values.size < 2 or values.max() == values.min():
        return None
    centred = values - values.mean()
    spread = float(np.sqrt(np.square(centred).mean()))
    # Standardise first: the plain moments of tiny returns would underflow.
    return finite_or_none(np.power(centred / spread, order).mean()) if spread > 0 else None


def value_at_risk(returns: ArrayLike, cutoff: float = 0.05) -> Measure:
    """The `cutoff` quantile of the returns (a return, so usually negative), linearly
    interpolated."""
    return _measure("value_at_risk", drop_missing(returns), cutoff=cutoff)


def conditional_value_at_risk(returns: ArrayLike, cutoff: float = 0.05) -> Measure:
    """Mean of the worst `⌊(n − 1) · cutoff⌋ + 1` returns (expected shortfall)."""
    return _measure("conditional_value_at_risk", drop_missing(returns), cutoff=cutoff)


def tail_ratio(returns: ArrayLike) -> Measure:
    """`|95th percentile| / |5th percentile|`."""
    return _measure("tail_ratio", drop_missing(returns))


def sharpe(returns: ArrayLike, periods: float = TRADING_DAYS) -> Measure:
    """`mean(r) / std(r) · √periods`, risk-free rate 0; None when all returns are equal."""
    values = drop_missing(returns)
    if standard_deviation(values) == 0:
        return None
    return _measure("sharpe_ratio", values, annualization=periods)


def sortino(returns: ArrayLike, periods: float = TRADING_DAYS) -> Measure:
    """`mean(r) · periods / downside_risk`; None without a loss."""
    return _measure("sortino_ratio", drop_missing(returns), annualization=periods)


def calmar(returns: ArrayLike, periods: float = TRADING_DAYS) -> Measure:
    """`annual_return / |max_drawdown|`; None without a drawdown."""
    if annual_return(returns, periods) is None:
        return None
    return _measure("calmar_ratio", np.asarray(returns, dtype=np.float64), annualization=periods)


def omega(returns: ArrayLike) -> Measure:
    """`Σ r⁺ / Σ r⁻` about a threshold of 0; None without a loss."""
    return _measure("omega_ratio", drop_missing(returns))


def stability(returns: ArrayLike) -> Measure:
    """R² of a straight line through the cumulative log returns; None when wealth reached zero."""
    values = drop_missing(returns)
    if values.size < 2 or (values <= -1).any():
        return None
    curve = np.log1p(values).cumsum()
    return None if curve.max() == curve.min() else _measure("stability_of_timeseries", values)


def drawdowns(returns: ArrayLike) -> Array:
    """Distance below the running peak (the starting capital included) after each period, `[S]`, <=
    0."""
    values = np.asarray(returns, dtype=np.float64)
    wealth = np.concatenate([[100.0], 100 * np.cumprod(1 + np.nan_to_num(values, nan=0.0))])
    peak = np.maximum.accumulate(wealth)
    return ((wealth - peak) / peak)[1:]


def max_drawdown(returns: ArrayLike) -> Measure:
    """The deepest drawdown, <= 0."""
    return _measure("max_drawdown", drop_missing(returns))


def average_drawdown(returns: ArrayLike) -> Measure:
    """Mean depth of drawdown episodes, each at its deepest point, <= 0; 0 without any."""
    if not drop_missing(returns).size:
        return None
    depth = drawdowns(returns)
    depths = [float(depth[start:stop].min()) for start, stop in find_episodes(depth)]
    return finite_or_none(float(np.mean(depths))) if depths else 0.0


def longest_drawdown(returns: ArrayLike) -> Measure:
    """Periods of the longest stay below a peak, the recovering one included."""
    if not drop_missing(returns).size:
        return None
    last = np.size(returns) - 1
    episodes = find_episodes(drawdowns(returns))
    return float(max((min(stop, last) - start + 1 for start, stop in episodes), default=0))


def longest_recovery(returns: ArrayLike) -> Measure:
    """Most periods from an episode's deepest point back to the peak, or to the end of the
    series."""
    if not drop_missing(returns).size:
        return None
    depth = drawdowns(returns)
    last = np.size(returns) - 1
    waits = [
        min(stop, last) - start - int(np.argmin(depth[start:stop]))
        for start, stop in find_episodes(depth)
    ]
    return float(max(waits, default=0))


def find_episodes(depth: Array) -> list[tuple[int, int]]:
    """Find the half-open ranges `[start, stop)` of periods below the peak."""
    below = np.concatenate([[False], np.asarray(depth) < 0, [False]])
    edges = np.flatnonzero(below[1:] != below[:-1])
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def ulcer_index(returns: ArrayLike) -> Measure:
    """`√(mean(drawdown²))`."""
    return (
        finite_or_none(math.sqrt(np.square(drawdowns(returns)).mean()))
        if drop_missing(returns).size
        else None
    )


def martin_ratio(returns: ArrayLike, periods: float = TRADING_DAYS) -> Measure:
    """Annual return over the Ulcer index."""
    growth = annual_return(returns, periods)
    ulcer = ulcer_index(returns)
    return None if growth is None or ulcer is None else ratio(growth, ulcer)


def align(returns: ArrayLike, benchmark: ArrayLike) -> tuple[Array, Array]:
    """Keep the days that both series have. Raises ValueError when their lengths differ."""
    ours = np.asarray(returns, dtype=np.float64)
    theirs = np.asarray(benchmark, dtype=np.float64)
    if ours.shape != theirs.shape:
        raise ValueError(
            f"{ours.shape[0]} returns and {theirs.shape[0]} returns of the benchmark;"
            " give series of one length"
        )
    both = ~np.isnan(ours) & ~np.isnan(theirs)
    return ours[both], theirs[both]


def beta(returns: ArrayLike, benchmark: ArrayLike) -> Measure:
    """`cov(r, b) / var(b)`; None when the benchmark hardly moves (variance below 1e-30)."""
    ours, theirs = align(returns, benchmark)
    if standard_deviation(ours) == 0 and standard_deviation(theirs) > 0:
        return 0.0
    return _measure("beta", ours, theirs)


def alpha(returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS) -> Measure:
    """Jensen's annualised alpha: `(1 + mean(r − β b))^periods − 1`."""
    return _measure("alpha", *align(returns, benchmark), annualization=periods)


def correlation(returns: ArrayLike, benchmark: ArrayLike) -> Measure:
    """Pearson's correlation."""
    ours, theirs = align(returns, benchmark)
    if ours.size < 2 or standard_deviation(ours) == 0 or standard_deviation(theirs) == 0:
        return None
    return finite_or_none(float(np.corrcoef(ours, theirs)[0, 1]))


def active_return(
    returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS
) -> Measure:
    """`mean(r − b) · periods`: annual return in excess of the benchmark's, not compounded."""
    ours, theirs = align(returns, benchmark)
    return finite_or_none(float((ours - theirs).mean()) * periods) if ours.size else None


def tracking_error(
    returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS
) -> Measure:
    """`std(r − b) · √periods`."""
    ours, theirs = align(returns, benchmark)
    return (
        finite_or_none(standard_deviation(ours - theirs) * math.sqrt(periods))
        if ours.size > 1
        else None
    )


def information_ratio(
    returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS
) -> Measure:
    """`mean(r − b) / std(r − b) · √periods` (empyrical's `excess_sharpe`, annualised)."""
    ours, theirs = align(returns, benchmark)
    if standard_deviation(ours - theirs) == 0:
        return None
    by_session = _measure("excess_sharpe", ours, theirs)
    return None if by_session is None else finite_or_none(by_session * math.sqrt(periods))


def up_capture(returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS) -> Measure:
    """Annual return over the benchmark's, both on days with a rise of the benchmark."""
    return _capture(returns, benchmark, np.greater, periods)


def down_capture(
    returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS
) -> Measure:
    """Annual return over the benchmark's, both on days with a fall of the benchmark."""
    return _capture(returns, benchmark, np.less, periods)


def _capture(
    returns: ArrayLike, benchmark: ArrayLike, compare: np.ufunc, periods: float
) -> Measure:
    # empyrical's captures assume years of 252 sessions; this is their formula for any year.
    ours, theirs = align(returns, benchmark)
    days = compare(theirs, 0)
    growth = annual_return(ours[days], periods)
    reference = annual_return(theirs[days], periods)
    return None if growth is None or reference is None else ratio(growth, reference)


def batting_average(returns: ArrayLike, benchmark: ArrayLike) -> Measure:
    """Share of days with a higher return than the benchmark's."""
    ours, theirs = align(returns, benchmark)
    # empyrical builds a pandas table of this and two more shares, at a hundred times the cost.
    return finite_or_none((ours > theirs).mean()) if ours.size else None


def treynor_ratio(
    returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS
) -> Measure:
    """Annual return over beta."""
    slope = beta(returns, benchmark)
    growth = annual_return(align(returns, benchmark)[0], periods)
    return None if slope is None or growth is None else ratio(growth, slope)
