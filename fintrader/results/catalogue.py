"""Every number of a backtest, each with its unit, formula and source, computed from plain arrays.

Returns are daily-resampled (from each session's last equity; the first from the starting capital),
risk-free rate 0: the convention of the paper's table and of empyrical. A year has as many
sessions (`Y` in formulas) as the market says: 252, or 365 where it trades every day. Keys of
metrics of bar returns begin with `minute`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fintrader import metrics as m
from fintrader.metrics import Array, Measure
from fintrader.results.history import AccountHistory, MetricInputs
from fintrader.results.strategy_metrics import StrategyMetrics

EMPYRICAL = "empyrical"
PYFOLIO = "pyfolio"
_SHARE = "share"
_YEAR = "share a year"
_RATIO = "ratio"
_USD = "USD"
Compute = Callable[[MetricInputs], Measure]


@dataclass(frozen=True)
class Metric:
    """One number: its key in metrics.json, a title, its unit, its computation and its source."""

    key: str
    title: str
    unit: str
    formula: str
    source: str
    group: str
    compute: Compute


def measure(history: AccountHistory) -> StrategyMetrics:
    """Compute all metrics of one strategy, in the catalogue's order; None where one is undefined,
    never NaN."""
    sample = MetricInputs(history)
    values = {}
    with np.errstate(over="ignore", invalid="ignore"):
        for metric in CATALOGUE:
            # A curve that was not traded here (the index) has no positions.
            is_known = history.has_positions or metric.key not in _OF_POSITIONS
            value = metric.compute(sample) if is_known else None
            values[metric.key] = None if value is None else m.finite_or_none(value)
    return StrategyMetrics(**values)


def _improvement_bps(s: MetricInputs) -> Measure:
    """Compute the gain of the fills on the last close before their orders, in bps of their
    value."""
    fills = s.history.trades
    filled_usd = fills["notional_usd"][fills["kind"] == "order"].sum()
    return m.ratio(s.history.orders.improved_usd * 1e4, float(filled_usd))


def _break_even_bps(s: MetricInputs) -> Measure:
    """Compute the cost per traded dollar at which the same trades would have earned nothing."""
    earned = s.history.equity[-1] - s.history.equity[0] + s.cost
    return m.ratio(float(earned) * 1e4, s.traded_usd)


def _mean(values: Array | pd.Series) -> Measure:
    return float(values.mean()) if values.size else None


def _herfindahl(s: MetricInputs) -> Measure:
    """Mean over sessions with positions of Σ (w / Σ|w|)²."""
    weights = np.abs(s.closing_weights)
    gross = weights.sum(axis=1)
    shares = weights[gross > 0] / gross[gross > 0, None]
    return _mean(np.square(shares).sum(axis=1))


def _trips(column: str, compute: Callable[[pd.Series], Measure]) -> Compute:
    return lambda s: compute(s.round_trips[column]) if len(s.round_trips) else None


def _daily(compute: Callable[[Array], Measure]) -> Compute:
    return lambda s: compute(s.daily)


def _yearly(compute: Callable[[Array, float], Measure]) -> Compute:
    return lambda s: compute(s.daily, s.history.sessions_a_year)


def _index(compute: Callable[[Array, Array], Measure]) -> Compute:
    return lambda s: compute(s.daily, s.index)


def _index_yearly(compute: Callable[[Array, Array, float], Measure]) -> Compute:
    return lambda s: compute(s.daily, s.index, s.history.sessions_a_year)


def _active(compute: Callable[[Array, Array, float], Measure]) -> Compute:
    return lambda s: (
        None if s.portfolio is None else compute(s.daily, s.portfolio, s.history.sessions_a_year)
    )


def _bars(compute: Callable[[Array, float], Measure]) -> Compute:
    return lambda s: compute(s.minute, len(s.minute) / s.sessions * s.history.sessions_a_year)


_EQUITY = "share of equity"
_NUMBER = "number"
_MINUTES = "minutes"
_LEDGER = "ledger"
_GROUPS: dict[str, tuple[tuple[str, str, str, str, str, Compute], ...]] = {
    "return": (
        ("sessions", "Sessions", "count", "S", "calendar", lambda s: s.sessions),
        (
            "sessions_a_year",
            "Sessions a year",
            "count",
            "Y: 252, or 365 where every day has one",
            "calendar",
            lambda s: s.history.sessions_a_year,
        ),
        (
            "cumulative_return",
            "Cumulative return",
            _SHARE,
            "Π(1 + r) − 1",
            EMPYRICAL,
            _daily(m.cumulative_return),
        ),
        (
            "annual_return",
            "Annual return",
            _YEAR,
            "(Π(1 + r))^(Y/S) − 1",
            EMPYRICAL,
            _yearly(m.annual_return),
        ),
        (
            "final_equity_usd",
            "Final equity",
            _USD,
            "V[T − 1]",
            _LEDGER,
            lambda s: s.history.equity[-1],
        ),
        (
            "mean_daily_return",
            "Mean daily return",
            _SHARE,
            "mean(r)",
            EMPYRICAL,
            _daily(m.mean_return),
        ),
        ("best_day", "Best day", _SHARE, "max(r)", PYFOLIO, _daily(m.best_return)),
        ("worst_day", "Worst day", _SHARE, "min(r)", PYFOLIO, _daily(m.worst_return)),
        (
            "best_month",
            "Best month",
            _SHARE,
            "max over calendar months",
            PYFOLIO,
            lambda s: m.best_return(s.monthly),
        ),
        (
            "worst_month",
            "Worst month",
            _SHARE,
            "min over calendar months",
            PYFOLIO,
            lambda s: m.worst_return(s.monthly),
        ),
        ("hit_rate_day", "Days with a gain", _SHARE, "mean(r > 0)", PYFOLIO, _daily(m.hit_rate)),
        (
            "hit_rate_month",
            "Months with a gain",
            _SHARE,
            "mean(monthly r > 0)",
            PYFOLIO,
            lambda s: m.hit_rate(s.monthly),
        ),
        (
            "stability",
            "Stability",
            "R²",
            "R² of Σ ln(1 + r) on time",
            EMPYRICAL,
            _daily(m.stability),
        ),
    ),
    "risk": (
        (
            "annual_volatility",
            "Annual volatility",
            _YEAR,
            "std(r)·√Y",
            EMPYRICAL,
            _yearly(m.annual_volatility),
        ),
        (
            "downside_risk",
            "Downside risk",
            _YEAR,
            "√mean(min(r, 0)²)·√Y",
            EMPYRICAL,
            _yearly(m.downside_risk),
        ),
        ("skew", "Skewness", _NUMBER, "m₃/m₂^1.5", "scipy.stats.skew", _daily(m.skew)),
        (
            "kurtosis",
            "Excess kurtosis",
            _NUMBER,
            "m₄/m₂² − 3",
            "scipy.stats.kurtosis",
            _daily(m.kurtosis),
        ),
        (
            "value_at_risk",
            "Value at risk 5 %",
            _SHARE,
            "5 % quantile of r",
            EMPYRICAL,
            _daily(m.value_at_risk),
        ),
        (
            "conditional_value_at_risk",
            "Expected shortfall 5 %",
            _SHARE,
            "mean of the worst 5 % of r",
            EMPYRICAL,
            _daily(m.conditional_value_at_risk),
        ),
        (
            "tail_ratio",
            "Tail ratio",
            _RATIO,
            "|95 % quantile|/|5 % quantile|",
            EMPYRICAL,
            _daily(m.tail_ratio),
        ),
    ),
    "ratio": (
        (
            "sharpe",
            "Sharpe ratio",
            _RATIO,
            "mean(r)/std(r)·√Y",
            "Sharpe (1994); empyrical",
            _yearly(m.sharpe),
        ),
        (
            "sharpe_low",
            "Sharpe ratio, low end",
            _RATIO,
            "2.5 % quantile, blocks of days resampled",
            "Politis and Romano (1994)",
            lambda s: s.sharpe_interval.low,
        ),
        (
            "sharpe_high",
            "Sharpe ratio, high end",
            _RATIO,
            "97.5 % quantile, blocks of days resampled",
            "Politis and Romano (1994)",
            lambda s: s.sharpe_interval.high,
        ),
        (
            "sortino",
            "Sortino ratio",
            _RATIO,
            "mean(r)·Y/downside risk",
            "Sortino (1994)",
            _yearly(m.sortino),
        ),
        (
            "calmar",
            "Calmar ratio",
            _RATIO,
            "annual return/|max drawdown|",
            "Young (1991); empyrical",
            _yearly(m.calmar),
        ),
        (
            "omega",
            "Omega ratio",
            _RATIO,
            "Σr⁺/Σr⁻",
            "Keating and Shadwick (2002); empyrical",
            _daily(m.omega),
        ),
        (
            "payoff_ratio",
            "Payoff ratio",
            _RATIO,
            "mean gain/mean loss",
            "quantstats",
            _daily(m.payoff_ratio),
        ),
        (
            "martin_ratio",
            "Martin ratio",
            _RATIO,
            "annual return/Ulcer",
            "Martin (1989)",
            _yearly(m.martin_ratio),
        ),
    ),
    "drawdown": (
        (
            "max_drawdown",
            "Max drawdown, sessions",
            _SHARE,
            "min(V/peak − 1), closes",
            EMPYRICAL,
            _daily(m.max_drawdown),
        ),
        (
            "average_drawdown",
            "Average drawdown",
            _SHARE,
            "mean depth",
            "Burke (1994)",
            _daily(m.average_drawdown),
        ),
        (
            "longest_drawdown_days",
            "Longest drawdown",
            "sessions",
            "most sessions from a peak to its recovery",
            PYFOLIO,
            _daily(m.longest_drawdown),
        ),
        (
            "longest_recovery_days",
            "Longest recovery",
            "sessions",
            "most sessions from a trough to its recovery",
            PYFOLIO,
            _daily(m.longest_recovery),
        ),
        (
            "ulcer_index",
            "Ulcer index",
            _SHARE,
            "√mean(drawdown²)",
            "Martin (1989)",
            _daily(m.ulcer_index),
        ),
    ),
    "against the benchmark portfolio": (
        (
            "invested_share",
            "Invested share",
            _EQUITY,
            "mean(Σ|w|) over bars",
            PYFOLIO,
            lambda s: _mean(s.exposure),
        ),
        (
            "active_return",
            "Active return",
            _YEAR,
            "mean(r − p)·Y",
            "Grinold and Kahn (1999)",
            _active(m.active_return),
        ),
        (
            "tracking_error",
            "Tracking error",
            _YEAR,
            "std(r − p)·√Y",
            "Grinold (1999)",
            _active(m.tracking_error),
        ),
        (
            "information_ratio",
            "Information ratio",
            _RATIO,
            "mean(r − p)/std(r − p)·√Y",
            "Grinold (1999); empyrical `excess_sharpe`, a year",
            _active(m.information_ratio),
        ),
        (
            "information_ratio_low",
            "Information ratio, low end",
            _RATIO,
            "2.5 % quantile, days resampled in pairs",
            "Politis and Romano (1994)",
            lambda s: s.information_ratio_interval.low,
        ),
        (
            "information_ratio_high",
            "Information ratio, high end",
            _RATIO,
            "97.5 % quantile, days resampled in pairs",
            "Politis and Romano (1994)",
            lambda s: s.information_ratio_interval.high,
        ),
    ),
    "against the index": (
        (
            "alpha",
            "Alpha",
            _YEAR,
            "(1 + mean(r − βb))^Y − 1",
            "Jensen (1968); empyrical",
            _index_yearly(m.alpha),
        ),
        ("beta", "Beta", _RATIO, "cov(r, b)/var(b)", EMPYRICAL, _index(m.beta)),
        (
            "correlation",
            "Correlation",
            _NUMBER,
            "Pearson's",
            "numpy.corrcoef",
            _index(m.correlation),
        ),
        (
            "index_information_ratio",
            "Information ratio, index",
            _RATIO,
            "mean(r − b)/std(r − b)·√Y",
            "empyrical `excess_sharpe`, a year",
            _index_yearly(m.information_ratio),
        ),
        (
            "index_tracking_error",
            "Tracking error, index",
            _YEAR,
            "std(r − b)·√Y",
            "Grinold (1999)",
            _index_yearly(m.tracking_error),
        ),
        (
            "up_capture",
            "Up capture",
            _RATIO,
            "CAGR over b's, where b > 0",
            EMPYRICAL,
            _index_yearly(m.up_capture),
        ),
        (
            "down_capture",
            "Down capture",
            _RATIO,
            "CAGR over b's, where b < 0",
            EMPYRICAL,
            _index_yearly(m.down_capture),
        ),
        (
            "batting_average",
            "Days ahead of index",
            _SHARE,
            "mean(r > b)",
            EMPYRICAL,
            _index(m.batting_average),
        ),
        (
            "treynor_ratio",
            "Treynor ratio",
            _YEAR,
            "annual return/β",
            "Treynor (1965)",
            _index_yearly(m.treynor_ratio),
        ),
    ),
    "trading": (
        (
            "turnover",
            "Turnover a year",
            "× equity",
            "Σ notional/mean(V)·Y/S",
            PYFOLIO,
            lambda s: m.ratio(
                s.traded_usd * s.history.sessions_a_year / s.sessions,
                float(s.history.equity.mean()),
            ),
        ),
        (
            "traded_usd",
            "Traded notional",
            _USD,
            "Σ |shares|·price",
            _LEDGER,
            lambda s: s.traded_usd,
        ),
        (
            "cost_usd",
            "Costs paid",
            _USD,
            "Σ fees, spread, impact, interest",
            _LEDGER,
            lambda s: s.cost,
        ),
        (
            "cost_share",
            "Costs/capital",
            _SHARE,
            "costs/V[0]",
            _LEDGER,
            lambda s: s.cost / s.history.equity[0],
        ),
        (
            "break_even_cost_bps",
            "Break-even cost",
            "bps",
            "profit before costs/notional",
            "algebra",
            _break_even_bps,
        ),
        (
            "trades",
            "Fills",
            "count",
            "rows of the trade list except splits",
            _LEDGER,
            lambda s: (s.history.trades["kind"] != "split").sum(),
        ),
        (
            "orders",
            "Orders",
            "count",
            "an order given again counts again",
            _LEDGER,
            lambda s: s.history.orders.given,
        ),
        (
            "capped_orders",
            "Orders cut to the volume",
            "count",
            "> participation",
            _LEDGER,
            lambda s: s.history.orders.capped,
        ),
        (
            "unfilled_orders",
            "Orders unfilled",
            "count",
            "nothing traded",
            _LEDGER,
            lambda s: s.history.orders.unfilled,
        ),
        (
            "cancelled_usd",
            "Orders cancelled",
            _USD,
            "asked − filled",
            _LEDGER,
            lambda s: s.history.orders.cancelled_usd,
        ),
        (
            "price_improvement_bps",
            "Price improvement",
            "bps",
            "fills against the last close before the order, by value; before costs",
            _LEDGER,
            _improvement_bps,
        ),
        (
            "income_usd",
            "Dividends",
            _USD,
            "and cash for fractions",
            _LEDGER,
            lambda s: s.history.income_usd.sum(),
        ),
        (
            "round_trips",
            "Closed lots",
            "count",
            "first in, first out",
            PYFOLIO,
            lambda s: len(s.round_trips),
        ),
        (
            "round_trip_hit_rate",
            "Closed lots with a gain",
            _SHARE,
            "mean(profit > 0)",
            PYFOLIO,
            _trips("profit_usd", m.hit_rate),
        ),
        (
            "round_trip_profit_usd",
            "Profit a closed lot",
            _USD,
            "mean, net",
            PYFOLIO,
            _trips("profit_usd", _mean),
        ),
        (
            "holding_minutes_mean",
            "Mean holding",
            _MINUTES,
            "nights included",
            PYFOLIO,
            _trips("minutes", _mean),
        ),
        (
            "holding_minutes_median",
            "Median holding",
            _MINUTES,
            "nights included",
            PYFOLIO,
            _trips("minutes", pd.Series.median),
        ),
        (
            "exposure_max",
            "Highest exposure",
            _EQUITY,
            "max(Σ|w|)",
            PYFOLIO,
            lambda s: s.exposure.max(),
        ),
        (
            "time_in_market",
            "Time in the market",
            "share of bars",
            "mean(Σ|w| > 0)",
            PYFOLIO,
            lambda s: (s.exposure > 0).mean(),
        ),
        (
            "concentration",
            "Herfindahl index",
            _SHARE,
            "mean Σ(w/Σ|w|)²",
            "Herfindahl (1950)",
            _herfindahl,
        ),
        (
            "largest_weight",
            "Largest weight",
            _EQUITY,
            "max |w| at session closes",
            PYFOLIO,
            lambda s: np.abs(s.closing_weights).max(),
        ),
    ),
    "from bars": (
        (
            "minute_annual_volatility",
            "Volatility, bars",
            _YEAR,
            "std·√(bars a year)",
            "-",
            _bars(m.annual_volatility),
        ),
        (
            "minute_sharpe",
            "Sharpe ratio, bars",
            _RATIO,
            "mean/std·√(bars a year)",
            "-",
            _bars(m.sharpe),
        ),
        ("minute_sortino", "Sortino ratio, bars", _RATIO, "as daily", "-", _bars(m.sortino)),
        (
            "minute_max_drawdown",
            "Max drawdown, bars",
            _SHARE,
            "at every bar",
            "-",
            lambda s: m.max_drawdown(s.minute),
        ),
    ),
}
_OF_POSITIONS = {
    "invested_share",
    "break_even_cost_bps",
    *(row[0] for row in _GROUPS["trading"][5:]),
}
CATALOGUE: tuple[Metric, ...] = tuple(
    Metric(key, title, unit, formula, source, group, compute)
    for group, rows in _GROUPS.items()
    for key, title, unit, formula, source, compute in rows
)
"""Every metric, in the order of tables."""
BY_KEY = {metric.key: metric for metric in CATALOGUE}
