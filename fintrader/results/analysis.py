"""Analyses of a backtest that need its market: attribution, execution, factors, and the result with
one choice changed.

`backtesting/analysis.py` and `backtesting/sensitivity.py` compute them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VariedChoice = Literal["cost_bps", "fill", "delay_bars", "capital_usd", "start_sessions", "without"]


@dataclass(frozen=True)
class SymbolAttribution:
    """One symbol's part of the active profit."""

    symbol: str
    mean_weight: float
    portfolio_weight: float
    """Mean weight in the benchmark portfolio."""
    selection_usd: float
    timing_usd: float


@dataclass(frozen=True)
class Attribution:
    """Profit over the benchmark portfolio, split by `backtesting.attribution`; the last four USD
    amounts sum to `active_usd`."""

    portfolio: str
    """The benchmark portfolio's name; `cash` where there is none to split."""
    pnl_usd: float
    portfolio_pnl_usd: float
    active_usd: float
    selection_usd: float
    timing_usd: float
    fills_usd: float
    costs_usd: float
    symbols: tuple[SymbolAttribution, ...]
    """The largest parts first."""


@dataclass(frozen=True)
class FillGroup:
    """Fills of orders that took a similar share of their bar's volume."""

    participation: str
    """The range of shares, in words."""
    fills: int
    notional_usd: float
    mean_participation: float | None
    most_participation: float | None
    slippage_bps: float | None
    """Fill price against the close at the decision, positive for a loss; mean by notional."""
    cost_bps: float | None
    """Fees, spread and impact."""


@dataclass(frozen=True)
class ExecutionCosts:
    """Distance of the fills from the prices that decisions saw, and their costs."""

    groups: tuple[FillGroup, ...]
    """By share of the bar's volume; groups without a fill are left out."""
    total: FillGroup
    slippage_usd: float
    cost_usd: float


@dataclass(frozen=True)
class FactorBeta:
    """Exposure to one factor."""

    factor: str
    beta: float
    t: float
    about: str
    """Construction of the factor."""


@dataclass(frozen=True)
class FactorFit:
    """Regression of a strategy's daily returns on factors."""

    sessions: int
    alpha: float | None
    """A year's alpha; None below a quarter of a year."""
    alpha_t: float
    r_squared: float
    betas: tuple[FactorBeta, ...]


@dataclass(frozen=True)
class Analysis:
    """Analyses of the main strategy that need the market it traded in."""

    attribution: Attribution
    execution: ExecutionCosts | None
    """None for a strategy without orders."""
    factors: dict[str, FactorFit]
    """By strategy: the main one and its benchmark portfolio, where a regression was possible."""


@dataclass(frozen=True)
class Variation:
    """Outcome of a whole simulation with one choice changed."""

    kind: VariedChoice
    setting: str
    """The changed value: a number, a kind of fill, or the symbol that was never bought."""
    is_chosen: bool
    """The backtest itself was made with this value."""
    cumulative_return: float | None
    sharpe: float | None
    max_drawdown: float | None

    def __post_init__(self) -> None:
        if self.kind not in ("fill", "without"):
            float(self.setting)

    @property
    def number(self) -> float:
        """The setting as a number."""
        return float(self.setting)
