"""`BacktestResult`: the history of one strategy in one window, bar by bar, and its measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fintrader import metrics as m
from fintrader.errors import BacktestError, find_meant
from fintrader.metrics import Array, Measure
from fintrader.numerals import format_count
from fintrader.results.backtest_files import empty_trades
from fintrader.results.catalogue import measure
from fintrader.results.formatting import statistic
from fintrader.results.history import AccountHistory, weights
from fintrader.results.market_description import Provenance
from fintrader.results.strategy_metrics import KEYS, StrategyMetrics

if TYPE_CHECKING:
    import plotly.graph_objects as go

HEADLINE = {"return": "cumulative_return", "Sharpe": "sharpe"}
"""Measures in a result's one-line form."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BacktestResult(AccountHistory):
    """One strategy over one window of T bars and N assets. Raises BacktestError when the curve is
    unusable."""

    name: str
    symbols: tuple[str, ...]
    benchmark_name: str = "index"
    ruined: bool = False
    """The account was closed for ruin before the window's end."""
    provenance: Provenance = field(default_factory=Provenance)
    """Source of the market, which gives the verdict its caveats and its banner."""
    last_bar: NDArray[np.int64] | None = None
    """`[N]`: the last bar at which each symbol has a price, -1 without any; None if unknown."""
    closing_cost_usd: Array | None = None
    """`[N]`: cost of closing each position at the window's end."""
    cut_from: tuple[str, ...] = ()
    """Windows of the split that contain the bars (`MarketTensors.cut_from`)."""
    is_seen: bool = False
    """True if the policy states that it was trained or chosen on some of these bars."""
    caveats: tuple[str, ...] = ()
    """Reservations about the policy for the verdict, in words that complete "with ..."."""
    portfolio_name: str = ""
    """Name of the benchmark portfolio, whose equity `portfolio` is."""
    note: str = ""
    """One line on how the strategy trades, for tables and the report."""

    @classmethod
    def of_curve(
        cls, name: str, equity: Array, symbols: tuple[str, ...] = (), **fields: Any
    ) -> BacktestResult:
        """Make the result of a curve `[T]` that was not traded here, with the other `fields`."""
        nothing = np.zeros(len(equity))
        held = np.broadcast_to(0.0, (len(equity), len(symbols)))
        return cls(
            name=name,
            equity=equity,
            symbols=symbols,
            shares=held,
            mark=held,
            costs_usd=nothing,
            turnover_usd=nothing,
            income_usd=nothing,
            trades=empty_trades(),
            has_positions=False,
            **fields,
        )

    def __post_init__(self) -> None:
        bars = len(self.minutes)
        if bars < 2:
            raise BacktestError(f"{self.name}: lengthen the window to at least two bars")
        names = ("session", "equity", "costs_usd", "turnover_usd", "income_usd")
        for name in (*names, "benchmark", "shares", "mark", "portfolio"):
            values = getattr(self, name)
            if values is not None and len(values) != bars:
                raise BacktestError(f"{self.name}: {name} has {len(values)} rows for {bars} bars")
        if not np.isfinite(self.equity).all():
            where = int(np.flatnonzero(~np.isfinite(self.equity))[0])
            raise BacktestError(
                f"{self.name}: equity is not finite at bar {where}; check the market's prices there"
            )
        if self.equity[0] <= 0:
            raise BacktestError(
                f"{self.name}: the account starts with {self.equity[0]:,.2f} USD; it must be"
                " positive"
            )

    def __repr__(self) -> str:
        first, last = (
            np.datetime_as_string(self.minutes[at].astype("datetime64[ns]"), unit="D")
            for at in (0, -1)
        )
        numbers = [format_count(len(self.daily_returns), "session")]
        numbers += [f"{word} {statistic(key, self.metrics[key])}" for word, key in HEADLINE.items()]
        numbers += filter(None, [self.provenance.notice.partition(":")[0]])
        return f"<{type(self).__name__} {self.name}: {first} to {last}, {', '.join(numbers)}>"

    @property
    def initial_cash_usd(self) -> float:
        """Starting capital."""
        return float(self.equity[0])

    @cached_property
    def cash(self) -> Array:
        """`[T]` USD: equity less the positions' value."""
        if not self.has_positions:
            return np.zeros_like(self.equity)
        cash: Array = self.equity - (self.shares * self.mark).sum(axis=1)
        return cash

    @cached_property
    def daily_returns(self) -> Array:
        """`[S]`: return of each session, the first against the starting capital."""
        return m.daily_returns(self.equity, self.session)

    @property
    def returns(self) -> pd.Series:
        """Return of each session `[S]`, by the exchange's date, as `judge` reads them."""
        return pd.Series(self.daily_returns, index=self.dates, name=self.name)

    def plot(self) -> go.Figure:
        """Equity at every bar, USD."""
        from fintrader.results.figures import equity_figure

        curve = pd.DataFrame({self.name: self.equity}, index=pd.to_datetime(self.minutes, utc=True))
        return equity_figure(curve, main=self.name, notice=self.provenance.notice)

    def __getattr__(self, name: str) -> Measure:
        """A measure of `metrics` by its key, such as `sharpe`."""
        if name in KEYS:
            return self.metrics[name]
        known = [one for one in (*KEYS, *dir(type(self)), *vars(self)) if one[0] != "_"]
        meant = None if name.startswith("_") else find_meant(name, known)
        hint = f"; did you mean {meant!r}?" if meant else ""
        raise AttributeError(f"{type(self).__name__} has no {name!r}{hint}")

    def weights(self, bars: NDArray[np.int64] | slice = slice(None)) -> Array:
        """`[len(bars), N]`: value of each position over equity (0 once the equity is gone)."""
        return weights(self.shares[bars], self.mark[bars], self.equity[bars])

    @cached_property
    def metrics(self) -> StrategyMetrics:
        """All measures of the result; `catalogue.CATALOGUE` defines each."""
        return measure(self)


Results = Mapping[str, BacktestResult]
"""Results by the name of the strategy."""


def refuse_other_bars(results: Results, other: BacktestResult) -> None:
    """Raise BacktestError unless all results cover the same bars as `other`."""
    for name, result in results.items():
        if not np.array_equal(result.minutes, other.minutes):
            raise BacktestError(
                f"{name} and {other.name} cover different bars; simulate them over the same window"
            )


def measured_against(results: Results, portfolio: BacktestResult) -> dict[str, BacktestResult]:
    """Measure active returns against `portfolio`. Raises BacktestError if the bars differ."""
    refuse_other_bars(results, portfolio)
    return {
        name: replace(result, portfolio=portfolio.equity, portfolio_name=portfolio.name)
        for name, result in results.items()
    }
