"""The numbers of one strategy in one backtest, as they are stored and shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from fintrader.metrics import TRADING_DAYS


@dataclass(frozen=True)
class StrategyMetrics:
    """Every metric of `results.catalogue`, which has titles, units and formulas; None where one is
    undefined."""

    # return
    sessions: float | None = None
    sessions_a_year: float | None = None
    cumulative_return: float | None = None
    annual_return: float | None = None
    final_equity_usd: float | None = None
    mean_daily_return: float | None = None
    best_day: float | None = None
    worst_day: float | None = None
    best_month: float | None = None
    worst_month: float | None = None
    hit_rate_day: float | None = None
    hit_rate_month: float | None = None
    stability: float | None = None
    # risk
    annual_volatility: float | None = None
    downside_risk: float | None = None
    skew: float | None = None
    kurtosis: float | None = None
    value_at_risk: float | None = None
    conditional_value_at_risk: float | None = None
    tail_ratio: float | None = None
    # ratio
    sharpe: float | None = None
    sharpe_low: float | None = None
    sharpe_high: float | None = None
    sortino: float | None = None
    calmar: float | None = None
    omega: float | None = None
    payoff_ratio: float | None = None
    martin_ratio: float | None = None
    # drawdown
    max_drawdown: float | None = None
    average_drawdown: float | None = None
    longest_drawdown_days: float | None = None
    longest_recovery_days: float | None = None
    ulcer_index: float | None = None
    # against the benchmark portfolio
    invested_share: float | None = None
    active_return: float | None = None
    tracking_error: float | None = None
    information_ratio: float | None = None
    information_ratio_low: float | None = None
    information_ratio_high: float | None = None
    # against the index
    alpha: float | None = None
    beta: float | None = None
    correlation: float | None = None
    index_information_ratio: float | None = None
    index_tracking_error: float | None = None
    up_capture: float | None = None
    down_capture: float | None = None
    batting_average: float | None = None
    treynor_ratio: float | None = None
    # trading
    turnover: float | None = None
    traded_usd: float | None = None
    cost_usd: float | None = None
    cost_share: float | None = None
    break_even_cost_bps: float | None = None
    trades: float | None = None
    orders: float | None = None
    capped_orders: float | None = None
    unfilled_orders: float | None = None
    cancelled_usd: float | None = None
    income_usd: float | None = None
    round_trips: float | None = None
    round_trip_hit_rate: float | None = None
    round_trip_profit_usd: float | None = None
    holding_minutes_mean: float | None = None
    holding_minutes_median: float | None = None
    exposure_max: float | None = None
    time_in_market: float | None = None
    concentration: float | None = None
    largest_weight: float | None = None
    # from bars
    minute_annual_volatility: float | None = None
    minute_sharpe: float | None = None
    minute_sortino: float | None = None
    minute_max_drawdown: float | None = None

    @classmethod
    def of(cls, values: Mapping[str, float | None]) -> StrategyMetrics:
        """The metrics among a pod's numbers, by key; the others are undefined."""
        return cls(**{key: values.get(key) for key in KEYS})

    def __getitem__(self, key: str) -> float | None:
        """A metric by its key in the catalogue."""
        if key not in KEYS:
            raise KeyError(key)
        value: float | None = getattr(self, key)
        return value

    @property
    def annual_sessions(self) -> int:
        """Sessions a year by which annual figures are scaled."""
        return int(self.sessions_a_year or TRADING_DAYS)

    def by_key(self) -> dict[str, float | None]:
        """All metrics, in the catalogue's order."""
        return {key: self[key] for key in KEYS}


KEYS = tuple(field.name for field in dataclasses.fields(StrategyMetrics))
NO_METRICS = StrategyMetrics()
"""For a strategy that is not there: every metric is a dash."""
