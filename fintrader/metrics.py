"""Return, risk and ratios of a series of returns, alone and against a benchmark's.

Every function takes simple returns `[S]` (0.01 is one per cent), one a session unless `periods`
says otherwise, and gives a float, or None where the number does not exist (too few values, nothing
to divide by). A NaN is a missing day: it is left out, but its day still counts as time; against a
benchmark, days on which either is NaN are left out of both. The risk-free rate is 0. The sources
are named in `results.catalogue`.

empyrical computes every measure that it has (`_measure`). The rules around it are our own: an
infinite ratio (no dispersion, no loss) is None, because it cannot be compared or stored; a series
of nothing but NaN has no return and no drawdown; wealth below zero does not grow. Our own, too, is
what empyrical lacks, and what takes or gives more than one series (equity `[T, B]`, drawdowns).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
TRADING_DAYS = 252
"""Sessions in a year of an exchange that rests at weekends: the convention of the paper's table and
of empyrical. A market says how many its own year has (`MarketTensors.sessions_a_year`), and its
results after it."""
FEWEST_SESSIONS = TRADING_DAYS // 4
"""A quarter of a year. Growth over fewer sessions is not compounded to a year: a good week would
become millions of per cent, which says nothing about any year."""
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
"""Metrics that compound growth to a year: None below a quarter of one."""


def fewest_sessions(sessions_a_year: int = TRADING_DAYS) -> int:
    """Return a quarter of a year in sessions: `FEWEST_SESSIONS` for a year of 252."""
    return sessions_a_year // 4


def too_short(key: str, sessions: int, sessions_a_year: int = TRADING_DAYS) -> bool:
    """Return True where a metric compounds and `sessions` are less than a quarter of a year."""
    return key in COMPOUNDED and sessions < fewest_sessions(sessions_a_year)


def session_ends(session: ArrayLike) -> NDArray[np.int64]:
    """Index of the last bar of each session, `[S]`. `session`: `[T]`, never decreasing."""
    numbers = np.asarray(session)
    if numbers.size == 0:
        return np.empty(0, dtype=np.int64)
    return np.append(np.flatnonzero(np.diff(numbers)), numbers.size - 1).astype(np.int64)


def session_starts(session: ArrayLike) -> NDArray[np.int64]:
    """Index of the first bar of each session, `[S]`. `session`: `[T]`, never decreasing, not
    empty."""
    return np.append(0, session_ends(session)[:-1] + 1)


def daily_equity(equity: ArrayLike, session: ArrayLike) -> Array:
    """The last value of each session: `[T]` (or `[T, B]`) and `[T]` -> `[S]` (or `[S, B]`)."""
    values: Array = np.asarray(equity, dtype=np.float64)[session_ends(session)]
    return values


def returns_of(equity: ArrayLike, start: Any = None) -> Array:
    """Simple returns along axis 0. With `start` (USD) the first value is a return too, against that
    capital.

    A value that follows zero equity returns 0: nothing is left that could grow.
    """
    values = np.asarray(equity, dtype=np.float64)
    if start is not None:
        values = np.concatenate(
            [np.broadcast_to(np.asarray(start, dtype=np.float64), values[:1].shape), values]
        )
    before = values[:-1]
    after = values[1:]
    alive = before != 0
    return np.where(alive, after / np.where(alive, before, 1.0) - 1, 0.0)


def daily_returns(equity: ArrayLike, session: ArrayLike, start: Any = None) -> Array:
    """Return of each session, the first one against the starting capital: `[T]`, `[T]` -> `[S]`.

    `start` defaults to the first equity value, which a backtest books before anything has been
    traded.
    """
    values = np.asarray(equity, dtype=np.float64)
    if values.shape[0] == 0:
        return values
    return returns_of(daily_equity(values, session), values[0] if start is None else start)


def known(returns: ArrayLike) -> Array:
    """The returns that are there, in order."""
    values = np.asarray(returns, dtype=np.float64)
    kept: Array = values[~np.isnan(values)]
    return kept


def finite(value: float) -> float | None:
    """`value` as a plain float, None when it is NaN or infinite."""
    return float(value) if math.isfinite(value) else None


def ratio(above: float, below: float) -> float | None:
    """`above / below`, None when `below` is zero or either is no finite number."""
    return (
        finite(above / below)
        if below != 0 and math.isfinite(above) and math.isfinite(below)
        else None
    )


def deviation(values: Array) -> float:
    """Sample standard deviation (n - 1), exactly 0 when all values are equal, NaN below two
    values."""
    if values.size < 2:
        return math.nan
    return 0.0 if values.max() == values.min() else float(values.std(ddof=1))


def _measure(name: str, *series: Array, **options: float) -> float | None:
    """Compute empyrical's measure of that name; None without returns, where it is NaN or infinite.

    The import is late because it takes a second and loads pandas, scipy and yfinance, which no
    command needs to print its help or to refuse its input.
    """
    if not series[0].size:
        return None
    import empyrical

    with np.errstate(all="ignore"):
        return finite(getattr(empyrical, name)(*series, **options))


def cumulative_return(returns: ArrayLike) -> float | None:
    """`Π (1 + r) − 1`."""
    return _measure("cum_returns_final", known(returns))


def annual_return(returns: ArrayLike, periods: float = TRADING_DAYS) -> float | None:
    """Compound annual growth rate, `(Π (1 + r))^(periods / S) − 1`, with S counting missing days
    too."""
    growth = cumulative_return(returns)
    if growth is None or growth < -1:
        return None
    return _measure("annual_return", np.asarray(returns, dtype=np.float64), annualization=periods)


def mean_return(returns: ArrayLike) -> float | None:
    """Arithmetic mean of the periods' returns."""
    values = known(returns)
    return finite(values.mean()) if values.size else None


def best(returns: ArrayLike) -> float | None:
    """The largest return."""
    values = known(returns)
    return finite(values.max()) if values.size else None


def worst(returns: ArrayLike) -> float | None:
    """The smallest return."""
    values = known(returns)
    return finite(values.min()) if values.size else None


def hit_rate(returns: ArrayLike) -> float | None:
    """Share of periods with a positive return."""
    values = known(returns)
    return finite((values > 0).mean()) if values.size else None


def profit_factor(returns: ArrayLike) -> float | None:
    """Mean gain times number of gains over the same of losses: `Σ r⁺ / Σ r⁻`."""
    values = known(returns)
    return ratio(float(values[values > 0].sum()), float(-values[values < 0].sum()))


def payoff_ratio(returns: ArrayLike) -> float | None:
    """Mean gain over mean loss."""
    values = known(returns)
    gains = values[values > 0]
    losses = values[values < 0]
    return ratio(float(gains.mean()), float(-losses.mean())) if gains.size and losses.size else None


def annual_volatility(returns: ArrayLike, periods: float = TRADING_DAYS) -> float | None:
    """`std(r) · √periods`, sample standard deviation."""
    values = known(returns)
    if deviation(values) == 0:
        return 0.0
    return _measure("annual_volatility", values, annualization=periods)


def downside_risk(returns: ArrayLike, periods: float = TRADING_DAYS) -> float | None:
    """`√(mean(min(r, 0)²)) · √periods`: the mean runs over all periods, the gains counting as
    zero."""
    return _measure("downside_risk", known(returns), annualization=periods)


def skew(returns: ArrayLike) -> float | None:
    """Third standardised moment, `m₃ / m₂^1.5` (moments about the mean, divided by n)."""
    return _standard_moment(returns, 3)


def kurtosis(returns: ArrayLike) -> float | None:
    """Fourth standardised moment less 3, `m₄ / m₂² − 3`: 0 for a normal distribution."""
    moment = _standard_moment(returns, 4)
    return None if moment is None else moment - 3


def _standard_moment(returns: ArrayLike, order: int) -> float | None:
    values = known(returns)
    if values.size < 2 or values.max() == values.min():
        return None
    centred = values - values.mean()
    spread = float(np.sqrt(np.square(centred).mean()))
    # Standardise first: with tiny returns the plain moments would underflow before they are
    # divided.
    return finite(np.power(centred / spread, order).mean()) if spread > 0 else None


def value_at_risk(returns: ArrayLike, cutoff: float = 0.05) -> float | None:
    """The `cutoff` quantile of the returns (a return, so usually negative), linearly
    interpolated."""
    return _measure("value_at_risk", known(returns), cutoff=cutoff)


def conditional_value_at_risk(returns: ArrayLike, cutoff: float = 0.05) -> float | None:
    """Mean of the worst `⌊(n − 1) · cutoff⌋ + 1` returns (expected shortfall)."""
    values = known(returns)
    return _measure("conditional_value_at_risk", values, cutoff=cutoff) if values.size else None


def tail_ratio(returns: ArrayLike) -> float | None:
    """`|95th percentile| / |5th percentile|`."""
    return _measure("tail_ratio", known(returns))


def sharpe(returns: ArrayLike, periods: float = TRADING_DAYS) -> float | None:
    """`mean(r) / std(r) · √periods`, risk-free rate 0; None when all returns are equal."""
    values = known(returns)
    if deviation(values) == 0:
        return None
    return _measure("sharpe_ratio", values, annualization=periods)


def sortino(returns: ArrayLike, periods: float = TRADING_DAYS) -> float | None:
    """`mean(r) · periods / downside_risk`; None without a loss."""
    return _measure("sortino_ratio", known(returns), annualization=periods)


def calmar(returns: ArrayLike, periods: float = TRADING_DAYS) -> float | None:
    """`annual_return / |max_drawdown|`; None without a drawdown."""
    if annual_return(returns, periods) is None:
        return None
    return _measure("calmar_ratio", np.asarray(returns, dtype=np.float64), annualization=periods)


def omega(returns: ArrayLike) -> float | None:
    """`Σ r⁺ / Σ r⁻` about a threshold of 0; None without a loss."""
    return _measure("omega_ratio", known(returns))


def stability(returns: ArrayLike) -> float | None:
    """R² of a straight line through the cumulative log returns; None when wealth reached zero."""
    values = known(returns)
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


def max_drawdown(returns: ArrayLike) -> float | None:
    """The deepest drawdown, <= 0."""
    return _measure("max_drawdown", known(returns))


def average_drawdown(returns: ArrayLike) -> float | None:
    """Mean over drawdown episodes of each one's deepest point, <= 0; 0 without any."""
    if not known(returns).size:
        return None
    depths = [
        float(depth[start:stop].min())
        for depth in [drawdowns(returns)]
        for start, stop in episodes(depth)
    ]
    return finite(float(np.mean(depths))) if depths else 0.0


def longest_drawdown(returns: ArrayLike) -> float | None:
    """Periods of the longest stay below a peak, the recovering one included."""
    if not known(returns).size:
        return None
    last = np.size(returns) - 1
    return float(
        max(
            (min(stop, last) - start + 1 for start, stop in episodes(drawdowns(returns))), default=0
        )
    )


def longest_recovery(returns: ArrayLike) -> float | None:
    """Most periods from an episode's deepest point back to the peak (or to the end, when never
    recovered)."""
    if not known(returns).size:
        return None
    depth = drawdowns(returns)
    last = np.size(returns) - 1
    waits = [
        min(stop, last) - start - int(np.argmin(depth[start:stop]))
        for start, stop in episodes(depth)
    ]
    return float(max(waits, default=0))


def episodes(depth: Array) -> list[tuple[int, int]]:
    """Half-open ranges `[start, stop)` of periods that lie below the peak."""
    below = np.concatenate([[False], np.asarray(depth) < 0, [False]])
    edges = np.flatnonzero(below[1:] != below[:-1])
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def ulcer_index(returns: ArrayLike) -> float | None:
    """`√(mean(drawdown²))`."""
    return finite(math.sqrt(np.square(drawdowns(returns)).mean())) if known(returns).size else None


def martin_ratio(returns: ArrayLike, periods: float = TRADING_DAYS) -> float | None:
    """Annual return over the Ulcer index."""
    growth = annual_return(returns, periods)
    ulcer = ulcer_index(returns)
    return None if growth is None or ulcer is None else ratio(growth, ulcer)


def paired(returns: ArrayLike, benchmark: ArrayLike) -> tuple[Array, Array]:
    """Both series on the days that both have. Raises ValueError when their lengths differ."""
    ours = np.asarray(returns, dtype=np.float64)
    theirs = np.asarray(benchmark, dtype=np.float64)
    if ours.shape != theirs.shape:
        raise ValueError(f"{ours.shape[0]} returns beside {theirs.shape[0]} of the benchmark")
    both = ~np.isnan(ours) & ~np.isnan(theirs)
    return ours[both], theirs[both]


def beta(returns: ArrayLike, benchmark: ArrayLike) -> float | None:
    """`cov(r, b) / var(b)`; None when the benchmark hardly moves (variance below 1e-30)."""
    ours, theirs = paired(returns, benchmark)
    if deviation(ours) == 0 and deviation(theirs) > 0:
        return 0.0
    return _measure("beta", ours, theirs)


def alpha(returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS) -> float | None:
    """Jensen's alpha a year: `(1 + mean(r − β b))^periods − 1`."""
    return _measure("alpha", *paired(returns, benchmark), annualization=periods)


def correlation(returns: ArrayLike, benchmark: ArrayLike) -> float | None:
    """Pearson's correlation."""
    ours, theirs = paired(returns, benchmark)
    if ours.size < 2 or deviation(ours) == 0 or deviation(theirs) == 0:
        return None
    return finite(float(np.corrcoef(ours, theirs)[0, 1]))


def active_return(
    returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS
) -> float | None:
    """`mean(r − b) · periods`: what was earned beyond the benchmark, a year, not compounded."""
    ours, theirs = paired(returns, benchmark)
    return finite(float((ours - theirs).mean()) * periods) if ours.size else None


def tracking_error(
    returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS
) -> float | None:
    """`std(r − b) · √periods`."""
    ours, theirs = paired(returns, benchmark)
    return finite(deviation(ours - theirs) * math.sqrt(periods)) if ours.size > 1 else None


def information_ratio(
    returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS
) -> float | None:
    """`mean(r − b) / std(r − b) · √periods` (empyrical's `excess_sharpe`, a year)."""
    ours, theirs = paired(returns, benchmark)
    if deviation(ours - theirs) == 0:
        return None
    a_session = _measure("excess_sharpe", ours, theirs)
    return None if a_session is None else finite(a_session * math.sqrt(periods))


def up_capture(
    returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS
) -> float | None:
    """Annual return over the benchmark's, both on the days on which the benchmark rose."""
    ours, theirs = paired(returns, benchmark)
    return _capture(ours, theirs, theirs > 0, periods)


def down_capture(
    returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS
) -> float | None:
    """Annual return over the benchmark's, both on the days on which the benchmark fell."""
    ours, theirs = paired(returns, benchmark)
    return _capture(ours, theirs, theirs < 0, periods)


def _capture(ours: Array, theirs: Array, days: NDArray[np.bool_], periods: float) -> float | None:
    # empyrical's captures know years of 252 sessions only; this is their formula for any year.
    growth = annual_return(ours[days], periods)
    reference = annual_return(theirs[days], periods)
    return None if growth is None or reference is None else ratio(growth, reference)


def batting_average(returns: ArrayLike, benchmark: ArrayLike) -> float | None:
    """Share of days on which the strategy beat the benchmark."""
    ours, theirs = paired(returns, benchmark)
    # empyrical makes a pandas table of this and two more shares, at a hundred times the cost.
    return finite((ours > theirs).mean()) if ours.size else None


def treynor_ratio(
    returns: ArrayLike, benchmark: ArrayLike, periods: float = TRADING_DAYS
) -> float | None:
    """Annual return over beta."""
    slope = beta(returns, benchmark)
    growth = annual_return(paired(returns, benchmark)[0], periods)
    return None if slope is None or growth is None else ratio(growth, slope)
