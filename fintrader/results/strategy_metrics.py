"""The numbers of one strategy in one backtest, as they are stored and shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from fintrader.metrics import ANNUAL, TRADING_DAYS, Measure
from fintrader.numerals import is_short


@dataclass(frozen=True)
class StrategyMetrics:
    """Every metric of `results.catalogue`, which has titles, units and formulas. A metric is None
    where it is undefined; all annual rates are None for a window shorter than a quarter of a
    year."""

    # return
    sessions: Measure
    sessions_a_year: Measure
    cumulative_return: Measure
    annual_return: Measure
    final_equity_usd: Measure
    mean_daily_return: Measure
    best_day: Measure
    worst_day: Measure
    best_month: Measure
    worst_month: Measure
    hit_rate_day: Measure
    hit_rate_month: Measure
    stability: Measure
    # risk
    annual_volatility: Measure
    downside_risk: Measure
    skew: Measure
    kurtosis: Measure
    value_at_risk: Measure
    conditional_value_at_risk: Measure
    tail_ratio: Measure
    # ratio
    sharpe: Measure
    sharpe_low: Measure
    sharpe_high: Measure
    sortino: Measure
    calmar: Measure
    omega: Measure
    payoff_ratio: Measure
    martin_ratio: Measure
    # drawdown
    max_drawdown: Measure
    average_drawdown: Measure
    longest_drawdown_days: Measure
    longest_recovery_days: Measure
    ulcer_index: Measure
    # against the benchmark portfolio
    invested_share: Measure
    active_return: Measure
    tracking_error: Measure
    information_ratio: Measure
    information_ratio_low: Measure
    information_ratio_high: Measure
    # against the index
    alpha: Measure
    beta: Measure
    correlation: Measure
    index_information_ratio: Measure
    index_tracking_error: Measure
    up_capture: Measure
    down_capture: Measure
    batting_average: Measure
    treynor_ratio: Measure
    # trading
    turnover: Measure
    traded_usd: Measure
    cost_usd: Measure
    cost_share: Measure
    break_even_cost_bps: Measure
    trades: Measure
    orders: Measure
    capped_orders: Measure
    unfilled_orders: Measure
    cancelled_usd: Measure
    price_improvement_bps: Measure
    income_usd: Measure
    round_trips: Measure
    round_trip_hit_rate: Measure
    round_trip_profit_usd: Measure
    holding_minutes_mean: Measure
    holding_minutes_median: Measure
    exposure_max: Measure
    time_in_market: Measure
    concentration: Measure
    largest_weight: Measure
    # from bars
    minute_annual_volatility: Measure
    minute_sharpe: Measure
    minute_sortino: Measure
    minute_max_drawdown: Measure

    def __post_init__(self) -> None:
        if is_short(self.sessions, self.annual_sessions):
            vars(self).update(dict.fromkeys(ANNUAL))

    @classmethod
    def of(cls, values: Mapping[str, Measure]) -> StrategyMetrics:
        """Make metrics from values by key; missing ones are undefined."""
        return cls(**{key: values.get(key) for key in KEYS})

    def __getitem__(self, key: str) -> Measure:
        """Return a metric by its key in the catalogue."""
        value: Measure = vars(self)[key]
        return value

    @property
    def annual_sessions(self) -> int:
        """Number of sessions per year by which annual figures are scaled."""
        return int(self.sessions_a_year or TRADING_DAYS)

    def by_key(self) -> dict[str, Measure]:
        """Return all metrics by key, in the order of the fields."""
        return dict(vars(self))


KEYS = tuple(field.name for field in dataclasses.fields(StrategyMetrics))
NO_METRICS = StrategyMetrics.of({})
"""Metrics of an absent strategy: all are undefined."""
