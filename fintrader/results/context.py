"""`BacktestContext`: the origin of a backtest, as it is stored, passed on and shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fintrader.records import JsonValue
from fintrader.results.market_description import Provenance
from fintrader.results.strategy_metrics import StrategyMetrics


@dataclass(frozen=True)
class TradingTerms:
    """Settings of `env` for carrying out orders; a trained policy can be traded under others."""

    fill: str
    """`env.fill`; `limit` for orders that rest at a price."""
    decision_interval: int
    fractional: bool
    dead_band: float
    trade_rate: float
    participation: float | Literal["none"]
    cost_bps: float
    half_spread_bps: float | dict[str, float]
    impact_bps: float
    min_commission_usd: float
    borrow_bps_per_year: float
    initial_cash_usd: float
    ruin_fraction: float
    max_leverage: float
    maintenance_margin: float
    turbulence: dict[str, float]
    impact_bps_per_million_usd: float = 0.0
    """Basis points that an order of a million USD costs, from `env.traders`."""
    execution: str = ""
    """How orders are worked, such as `twap over 60 bars`; empty: they fill at once."""

    def describe_half_spread(self) -> str:
        """Write half-spreads in basis points, as a range if symbols differ; empty without any."""
        rates = self.half_spread_bps
        values = list(rates.values()) if isinstance(rates, dict) else [rates]
        if not any(values):
            return ""
        low = min(values)
        high = max(values)
        return f"{low:g}" if low == high else f"{low:g} to {high:g} by symbol"


@dataclass(frozen=True)
class FoldReturns:
    """Returns of every strategy in one test window of a walk-forward."""

    first: str
    """Date (UTC) of its first bar; `last`: of its last."""
    last: str
    cumulative_return: dict[str, float | None]
    """By strategy."""


@dataclass(frozen=True)
class LimitedOutcome:
    """The policy's outcome within a deployment's limits."""

    cumulative_return: float
    cut: dict[str, int]
    """Number of orders that each limit cut, by its name."""
    halted: str
    """Reason for the halt; empty where it was not halted."""
    limits: dict[str, JsonValue]
    """Settings of the limits."""


@dataclass(frozen=True)
class BacktestContext:
    """Origin of a backtest: window, search, trading terms, data and code. Unknown parts are None or
    empty."""

    strategies: dict[str, str] = field(default_factory=dict)
    """A line on each strategy, by name."""
    timezone: str = "UTC"
    """The market's time zone (an IANA name)."""
    portfolio: str | None = None
    """The strategy that active figures are relative to."""
    run: str | None = None
    window: str | None = None
    """`test`, `validation`, `train`, or a title such as `walk-forward, 6 folds`."""
    window_key: str | None = None
    """Key of the window's bars on the ledger of looks."""
    trials: int | None = None
    """Number of strategies that were tried."""
    look: int | None = None
    """Number of this look at the window; None where nothing counted the looks."""
    seed: int | None = None
    command: str | None = None
    """The command line that makes the backtest again."""
    run_command: str | None = None
    """The command line that trained the policies, if it was a different one."""
    trading: TradingTerms | None = None
    changed: dict[str, str] = field(default_factory=dict)
    """Trading terms that differ from those of training, in words."""
    settings_hash: str | None = None
    config_hash: str | None = None
    data_hash: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    recipe: dict[str, JsonValue] = field(default_factory=dict)
    """Configuration, code and machine (`report.recipe`)."""
    market: Provenance = field(default_factory=Provenance)
    """Source of the bars, and what their build did."""
    data: dict[str, JsonValue] = field(default_factory=dict)
    """Facts about the window's bars, by label."""
    quality: dict[str, JsonValue] = field(default_factory=dict)
    """Faults in the bars, by kind."""
    shrinkage: tuple[dict[str, JsonValue], ...] = ()
    """Evidence by which each search's ensemble was shrunk to the benchmark."""
    correlations: tuple[float, ...] = ()
    """Correlation of each two members of an ensemble, of all searches (`StoredEnsemble`)."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Baselines that could not be simulated, and the reasons."""
    within_limits: LimitedOutcome | None = None
    share_of_oracle: dict[str, float] = field(default_factory=dict)
    """By strategy: its log growth over that of an oracle, which knows the planted signal."""
    null_model: StrategyMetrics | None = None
    """Metrics of the same search on features without information."""
    folds: tuple[FoldReturns, ...] = ()
    """Test windows of a walk-forward."""

    @property
    def costs(self) -> str:
        """Costs of a trade in a few words."""
        return "costs" if self.trading is None else f"{self.trading.cost_bps:g} bps a trade"
