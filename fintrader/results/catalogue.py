"""Every number of a backtest, each with its unit, formula and source, computed from plain arrays.

Returns are daily-resampled (the last equity of each session, the first against the starting capital), 252 sessions
a year, risk-free rate 0: the convention of the paper's table and of empyrical. What is computed from minutes says
so in its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fintrader import metrics as m

Array = NDArray[np.float64]
EMPYRICAL = "empyrical"
PYFOLIO = "pyfolio"


class OrderCounts(NamedTuple):
    """What became of a strategy's orders; one that is given again counts again."""

    given: int = 0
    capped: int = 0
    """Asked for more than their share of the bar's volume."""
    unfilled: int = 0
    """Of which nothing filled: no trade in the bar, no volume, or no money."""
    cancelled_usd: float = 0.0
    """What did not fill of all of them, at the close of the bar they met."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class History:
    """What the numbers are computed from: one strategy over T bars and N assets."""

    minutes: NDArray[np.int64]
    """`[T]`: start of each bar, nanoseconds since 1970 UTC."""
    session: NDArray[np.int64]
    """`[T]`: number of the trading session."""
    equity: Array
    """`[T]` USD at each bar's close; `equity[0]` is the starting capital, nothing has been traded by then."""
    benchmark: Array
    """`[T]`: level of the index."""
    shares: Array
    """`[T, N]` held at each bar's close, before the orders decided at that close."""
    mark: Array
    """`[T, N]` USD: the price each position is marked at; 0 before a symbol's first bar."""
    costs_usd: Array
    """`[T]` fees, spread, impact and interest, at the bar whose equity they first reduce."""
    turnover_usd: Array
    """`[T]` notional bought and sold, at the same bars."""
    income_usd: Array
    """`[T]` dividends, and cash for what splits left of a share, at the bar that begins with them."""
    trades: pd.DataFrame
    """One row a fill (columns: `backtest_files.TRADE_COLUMNS`): `shares` is signed (bought > 0), `notional_usd` is not;
    `kind` is `order`, `forced` (the symbol ended, or a margin call), `ruin` (the account was closed) or `split` (the
    change that a split made, at no price)."""
    orders: OrderCounts = field(default_factory=OrderCounts)
    has_positions: bool = True
    """False for a curve that was not traded here (the index): it has no positions, no turnover and no costs."""
    portfolio: Array | None = None
    """`[T]` USD: equity of the benchmark portfolio (what `env.benchmark` names, traded at the same costs) at the same
    bars; None where it is not known. The index above is another thing: a level that nobody paid to hold."""

    @property
    def information_ratio_interval(self) -> tuple[float | None, float | None]:
        """Both ends of the information ratio's 95 % interval; a history alone cannot resample, and knows none."""
        return None, None


class _Sample:
    """What the metrics read, computed once for a history."""

    def __init__(self, history: History) -> None:
        self.of = history
        self.daily = m.daily_returns(history.equity, history.session)
        self.index = rounding_apart(self.daily, m.daily_returns(history.benchmark, history.session))
        self.portfolio: Array | None = None
        if history.portfolio is not None:
            self.portfolio = rounding_apart(self.daily, m.daily_returns(history.portfolio, history.session))
        self.sessions = len(self.daily)

    @cached_property
    def monthly(self) -> Array:
        """Return of each calendar month (UTC) the window touches."""
        ends = m.session_ends(self.of.session)
        months = self.of.minutes[ends].astype("datetime64[ns]").astype("datetime64[M]").astype(np.int64)
        return m.daily_returns(self.of.equity[ends], np.asarray(months), start=self.of.equity[0])

    @cached_property
    def minute(self) -> Array:
        """Return of each bar."""
        return m.returns_of(self.of.equity)

    @property
    def bars_per_year(self) -> float:
        return len(self.minute) / self.sessions * m.TRADING_DAYS

    @cached_property
    def exposure(self) -> Array:
        """`[T]`: gross value of the positions over equity."""
        return gross_exposure(self.of.shares, self.of.mark, self.of.equity)

    @cached_property
    def closing_weights(self) -> Array:
        """`[S, N]`: weights at each session's close."""
        ends = m.session_ends(self.of.session)
        return weights(self.of.shares[ends], self.of.mark[ends], self.of.equity[ends])

    @cached_property
    def traded_usd(self) -> float:
        return float(self.of.turnover_usd.sum())

    @cached_property
    def cost(self) -> float:
        return float(self.of.costs_usd.sum())

    @cached_property
    def profit_before_costs(self) -> float:
        equity = self.of.equity
        return float(equity[-1] - equity[0] + self.of.costs_usd.sum())

    @cached_property
    def round_trips(self) -> pd.DataFrame:
        """Profit and holding time of every closed lot (first in, first out): `profit_usd`, `minutes`."""
        return round_trips(self.of.trades)


Compute = Callable[[_Sample], float | None]


@dataclass(frozen=True)
class Metric:
    """One number: its key in metrics.json, a title, its unit, how it is computed and where that comes from."""

    key: str
    title: str
    unit: str
    formula: str
    source: str
    group: str
    compute: Compute


def weights(shares: Array, mark: Array, equity: Array) -> Array:
    """`[T, N]`: value of each position over equity `[T]` (0 once the equity is gone)."""
    value = shares * mark
    share: Array = np.divide(value, equity[:, None], out=np.zeros_like(value), where=equity[:, None] > 0)
    return share


def gross_exposure(shares: Array, mark: Array, equity: Array) -> Array:
    """`[T]`: gross value of the positions over equity (0 once the equity is gone)."""
    gross = np.abs(shares * mark).sum(axis=1)
    share: Array = np.divide(gross, equity, out=np.zeros_like(gross), where=equity > 0)
    return share


def rounding_apart(ours: Array, theirs: Array) -> Array:
    """`theirs [S]`, or `ours` where only rounding tells them apart (a curve scaled to the capital, say), which is no
    active return."""
    return ours if np.allclose(ours, theirs, rtol=0.0, atol=1e-13) else theirs


def measure(history: History) -> dict[str, float | None]:
    """All metrics of one strategy, in the catalogue's order; None where one is undefined, never NaN."""
    sample = _Sample(history)
    with np.errstate(over="ignore", invalid="ignore"):
        return {metric.key: _plain(metric.compute(sample)) for metric in CATALOGUE}


def _plain(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


class _Lot(NamedTuple):
    shares: float
    price: float
    cost: float
    time: int


def round_trips(trades: pd.DataFrame) -> pd.DataFrame:
    """Match every reduction of a position with the oldest lots that opened it (FIFO), each with its share of costs.

    Returns one row a closed lot: symbol, shares, profit_usd (net of both costs), minutes held.
    """
    open_lots: dict[str, list[_Lot]] = {}
    closed: list[tuple[str, float, float, float]] = []
    times = trades["fill_time"].astype("int64").to_numpy()
    columns = (trades[name].to_numpy() for name in ("symbol", "shares", "price_usd", "cost_usd", "kind"))
    for time, symbol, shares, price, cost, kind in zip(times, *columns, strict=True):
        lots = open_lots.setdefault(symbol, [])
        if kind == "split":
            ratio = 1.0 + shares / sum(lot.shares for lot in lots)
            kept = lots if ratio > 0.0 else []  # of a few shares a reverse split may leave none, paid for in cash
            lots[:] = [_Lot(lot.shares * ratio, lot.price / ratio, lot.cost / ratio, lot.time) for lot in kept]
            continue
        left, each = float(shares), cost / abs(shares)
        while lots and left * lots[0].shares < 0:
            lot = lots[0]
            part = min(abs(left), abs(lot.shares))
            side = math.copysign(1.0, lot.shares)
            profit = side * part * (price - lot.price) - part * (each + lot.cost)
            closed.append((symbol, side * part, profit, (time - lot.time) / 60e9))
            left += side * part
            rest = lot.shares - side * part
            if abs(rest) > 1e-12 * abs(lot.shares):
                lots[0] = lot._replace(shares=rest)
            else:
                lots.pop(0)
        if abs(left) > 1e-12 * abs(shares):
            lots.append(_Lot(left, price, each, time))
    return pd.DataFrame(closed, columns=["symbol", "shares", "profit_usd", "minutes"])


def _fills(s: _Sample) -> float:
    return float((s.of.trades["kind"] != "split").sum())


def _break_even_bps(s: _Sample) -> float | None:
    """Cost per traded dollar at which this very trade list would have earned nothing."""
    return m.ratio(s.profit_before_costs * 1e4, s.traded_usd)


def _mean(values: Array | pd.Series) -> float | None:
    return float(values.mean()) if values.size else None


def _herfindahl(s: _Sample) -> float | None:
    """Mean over sessions with positions of Σ (w / Σ|w|)²."""
    weights = np.abs(s.closing_weights)
    gross = weights.sum(axis=1)
    shares = weights[gross > 0] / gross[gross > 0, None]
    return _mean(np.square(shares).sum(axis=1))


def _largest_weight(s: _Sample) -> float | None:
    return float(np.abs(s.closing_weights).max())


def _trips(column: str, compute: Callable[[pd.Series], float | None]) -> Compute:
    return lambda s: compute(s.round_trips[column]) if len(s.round_trips) else None


_trip_share, _median_minutes = _trips("profit_usd", m.hit_rate), _trips("minutes", pd.Series.median)


def _total_turnover(s: _Sample) -> float | None:
    return m.ratio(s.traded_usd * m.TRADING_DAYS / s.sessions, float(s.of.equity.mean()))


def _daily(compute: Callable[[Array], float | None]) -> Compute:
    return lambda s: compute(s.daily)


def _monthly(compute: Callable[[Array], float | None]) -> Compute:
    return lambda s: compute(s.monthly)


def _index(compute: Callable[[Array, Array], float | None]) -> Compute:
    return lambda s: compute(s.daily, s.index)


def _active(compute: Callable[[Array, Array], float | None]) -> Compute:
    return lambda s: None if s.portfolio is None else compute(s.daily, s.portfolio)


def _bars(compute: Callable[[Array, float], float | None]) -> Compute:
    return lambda s: compute(s.minute, s.bars_per_year)


_SHARE, _YEAR, _RATIO, _USD = "share", "share a year", "ratio", "USD"
_EQUITY, _COUNT, _MINUTES = "share of equity", "number", "minutes"
_LEDGER = "ledger"
_GROUPS: dict[str, tuple[tuple[str, str, str, str, str, Compute], ...]] = {
    "return": (
        ("cumulative_return", "Cumulative return", _SHARE, "Π(1 + r) − 1", EMPYRICAL, _daily(m.cumulative_return)),
        ("annual_return", "Annual return", _YEAR, "(Π(1 + r))^(252/S) − 1", EMPYRICAL, _daily(m.annual_return)),
        ("final_equity_usd", "Final equity", _USD, "V[T − 1]", _LEDGER, lambda s: float(s.of.equity[-1])),
        ("mean_daily_return", "Mean daily return", _SHARE, "mean(r)", EMPYRICAL, _daily(m.mean_return)),
        ("best_day", "Best day", _SHARE, "max(r)", PYFOLIO, _daily(m.best)),
        ("worst_day", "Worst day", _SHARE, "min(r)", PYFOLIO, _daily(m.worst)),
        ("best_month", "Best month", _SHARE, "max over calendar months", PYFOLIO, _monthly(m.best)),
        ("worst_month", "Worst month", _SHARE, "min over calendar months", PYFOLIO, _monthly(m.worst)),
        ("hit_rate_day", "Days with a gain", _SHARE, "mean(r > 0)", PYFOLIO, _daily(m.hit_rate)),
        ("hit_rate_month", "Months with a gain", _SHARE, "mean(monthly r > 0)", PYFOLIO, _monthly(m.hit_rate)),
        ("stability", "Stability", "R²", "R² of Σ ln(1 + r) on time", EMPYRICAL, _daily(m.stability)),
    ),
    "risk": (
        ("annual_volatility", "Annual volatility", _YEAR, "std(r)·√252", EMPYRICAL, _daily(m.annual_volatility)),
        ("downside_risk", "Downside risk", _YEAR, "√mean(min(r, 0)²)·√252", EMPYRICAL, _daily(m.downside_risk)),
        ("skew", "Skewness", _COUNT, "m₃/m₂^1.5", "scipy.stats.skew", _daily(m.skew)),
        ("kurtosis", "Excess kurtosis", _COUNT, "m₄/m₂² − 3", "scipy.stats.kurtosis", _daily(m.kurtosis)),
        ("value_at_risk", "Value at risk 5 %", _SHARE, "5 % quantile of r", EMPYRICAL, _daily(m.value_at_risk)),
        (
            "conditional_value_at_risk",
            "Expected shortfall 5 %",
            _SHARE,
            "mean of the worst 5 % of r",
            EMPYRICAL,
            _daily(m.conditional_value_at_risk),
        ),
        ("tail_ratio", "Tail ratio", _RATIO, "|95 % quantile|/|5 % quantile|", EMPYRICAL, _daily(m.tail_ratio)),
    ),
    "ratio": (
        ("sharpe", "Sharpe ratio", _RATIO, "mean(r)/std(r)·√252", "Sharpe (1994); empyrical", _daily(m.sharpe)),
        ("sortino", "Sortino ratio", _RATIO, "mean(r)·252/downside risk", "Sortino (1994)", _daily(m.sortino)),
        ("calmar", "Calmar ratio", _RATIO, "annual return/|max drawdown|", "Young (1991); empyrical", _daily(m.calmar)),
        ("omega", "Omega ratio", _RATIO, "Σr⁺/Σr⁻", "Keating and Shadwick (2002); empyrical", _daily(m.omega)),
        ("payoff_ratio", "Payoff ratio", _RATIO, "mean gain/mean loss", "quantstats", _daily(m.payoff_ratio)),
        ("martin_ratio", "Martin ratio", _RATIO, "annual return/Ulcer", "Martin (1989)", _daily(m.martin_ratio)),
    ),
    "drawdown": (
        ("max_drawdown", "Max drawdown", _SHARE, "min(V/peak − 1)", EMPYRICAL, _daily(m.max_drawdown)),
        ("average_drawdown", "Average drawdown", _SHARE, "mean depth", "Burke (1994)", _daily(m.average_drawdown)),
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
        ("ulcer_index", "Ulcer index", _SHARE, "√mean(drawdown²)", "Martin (1989)", _daily(m.ulcer_index)),
    ),
    "against the benchmark portfolio": (
        ("invested_share", "Invested share", _EQUITY, "mean(Σ|w|) over bars", PYFOLIO, lambda s: _mean(s.exposure)),
        (
            "active_return",
            "Active return",
            _YEAR,
            "mean(r − p)·252",
            "Grinold and Kahn (1999)",
            _active(m.active_return),
        ),
        ("tracking_error", "Tracking error", _YEAR, "std(r − p)·√252", "Grinold (1999)", _active(m.tracking_error)),
        (
            "information_ratio",
            "Information ratio",
            _RATIO,
            "mean(r − p)/std(r − p)·√252",
            "Grinold (1999); empyrical `excess_sharpe`, a year",
            _active(m.information_ratio),
        ),
        (
            "information_ratio_low",
            "Information ratio, low end",
            _RATIO,
            "2.5 % quantile, days resampled in pairs",
            "Politis and Romano (1994)",
            lambda s: s.of.information_ratio_interval[0],
        ),
        (
            "information_ratio_high",
            "Information ratio, high end",
            _RATIO,
            "97.5 % quantile, days resampled in pairs",
            "Politis and Romano (1994)",
            lambda s: s.of.information_ratio_interval[1],
        ),
    ),
    "against the index": (
        ("alpha", "Alpha", _YEAR, "(1 + mean(r − βb))^252 − 1", "Jensen (1968); empyrical", _index(m.alpha)),
        ("beta", "Beta", _RATIO, "cov(r, b)/var(b)", EMPYRICAL, _index(m.beta)),
        ("correlation", "Correlation", _COUNT, "Pearson's", "numpy.corrcoef", _index(m.correlation)),
        (
            "index_information_ratio",
            "Information ratio, index",
            _RATIO,
            "mean(r − b)/std(r − b)·√252",
            "empyrical `excess_sharpe`, a year",
            _index(m.information_ratio),
        ),
        (
            "index_tracking_error",
            "Tracking error, index",
            _YEAR,
            "std(r − b)·√252",
            "Grinold (1999)",
            _index(m.tracking_error),
        ),
        ("up_capture", "Up capture", _RATIO, "CAGR over b's, where b > 0", EMPYRICAL, _index(m.up_capture)),
        ("down_capture", "Down capture", _RATIO, "CAGR over b's, where b < 0", EMPYRICAL, _index(m.down_capture)),
        ("batting_average", "Days ahead of index", _SHARE, "mean(r > b)", EMPYRICAL, _index(m.batting_average)),
        ("treynor_ratio", "Treynor ratio", _YEAR, "annual return/β", "Treynor (1965)", _index(m.treynor_ratio)),
    ),
    "trading": (
        ("turnover", "Turnover a year", "× equity", "Σ notional/mean(V)·252/S", PYFOLIO, _total_turnover),
        ("traded_usd", "Traded notional", _USD, "Σ |shares|·price", _LEDGER, lambda s: s.traded_usd),
        ("cost_usd", "Costs paid", _USD, "Σ fees, spread, impact, interest", _LEDGER, lambda s: s.cost),
        ("cost_share", "Costs/capital", _SHARE, "costs/V[0]", _LEDGER, lambda s: s.cost / s.of.equity[0]),
        ("break_even_cost_bps", "Break-even cost", "bps", "profit before costs/notional", "algebra", _break_even_bps),
        ("trades", "Fills", "count", "rows of the trade list but splits", _LEDGER, _fills),
        ("orders", "Orders", "count", "an order given again counts again", _LEDGER, lambda s: s.of.orders.given),
        (
            "capped_orders",
            "Orders cut to the volume",
            "count",
            "> participation",
            _LEDGER,
            lambda s: s.of.orders.capped,
        ),
        ("unfilled_orders", "Orders unfilled", "count", "nothing traded", _LEDGER, lambda s: s.of.orders.unfilled),
        ("cancelled_usd", "Orders cancelled", _USD, "asked − filled", _LEDGER, lambda s: s.of.orders.cancelled_usd),
        ("income_usd", "Dividends", _USD, "and cash for fractions", _LEDGER, lambda s: float(s.of.income_usd.sum())),
        ("round_trips", "Closed lots", "count", "first in, first out", PYFOLIO, lambda s: float(len(s.round_trips))),
        ("round_trip_hit_rate", "Closed lots with a gain", _SHARE, "mean(profit > 0)", PYFOLIO, _trip_share),
        ("round_trip_profit_usd", "Profit a closed lot", _USD, "mean, net", PYFOLIO, _trips("profit_usd", _mean)),
        ("holding_minutes_mean", "Mean holding", _MINUTES, "nights included", PYFOLIO, _trips("minutes", _mean)),
        ("holding_minutes_median", "Median holding", _MINUTES, "nights included", PYFOLIO, _median_minutes),
        ("exposure_max", "Highest exposure", _EQUITY, "max(Σ|w|)", PYFOLIO, lambda s: float(s.exposure.max())),
        (
            "time_in_market",
            "Time in the market",
            "share of bars",
            "mean(Σ|w| > 0)",
            PYFOLIO,
            lambda s: float((s.exposure > 0).mean()),
        ),
        ("concentration", "Herfindahl index", _SHARE, "mean Σ(w/Σ|w|)²", "Herfindahl (1950)", _herfindahl),
        ("largest_weight", "Largest weight", _EQUITY, "max |w| at session closes", PYFOLIO, _largest_weight),
    ),
    "from bars": (
        ("minute_annual_volatility", "Volatility, bars", _YEAR, "std·√(bars a year)", "-", _bars(m.annual_volatility)),
        ("minute_sharpe", "Sharpe ratio, bars", _RATIO, "mean/std·√(bars a year)", "-", _bars(m.sharpe)),
        ("minute_sortino", "Sortino ratio, bars", _RATIO, "as daily", "-", _bars(m.sortino)),
        ("minute_max_drawdown", "Max drawdown, bars", _SHARE, "every bar", "-", lambda s: m.max_drawdown(s.minute)),
    ),
}
_OF_POSITIONS = {"invested_share", "break_even_cost_bps", *(row[0] for row in _GROUPS["trading"][5:])}


def _defined(key: str, compute: Compute) -> Compute:
    """None for curves that were not traded here (the index has no positions)."""
    return (lambda s: compute(s) if s.of.has_positions else None) if key in _OF_POSITIONS else compute


CATALOGUE: tuple[Metric, ...] = tuple(
    Metric(key, title, unit, formula, source, group, _defined(key, compute))
    for group, rows in _GROUPS.items()
    for key, title, unit, formula, source, compute in rows
)
"""Every metric. The order is the one of tables."""
BY_KEY = {metric.key: metric for metric in CATALOGUE}
