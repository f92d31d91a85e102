"""The numbers of one strategy in one backtest, as they are stored and shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from fintrader.metrics import ANNUAL, TRADING_DAYS
from fintrader.numerals import is_short


@dataclass(frozen=True)
class StrategyMetrics:
    """Every metric of `results.catalogue`, which has titles, units and formulas; None where one is
    undefined, and for every annual rate of a window shorter than a quarter of a year."""

    # return
    sessions: float | None
    sessions_a_year: float | None
    cumulative_return: float | None
    annual_return: float | None
    final_equity_usd: float | None
    mean_daily_return: float | None
    best_day: float | None
    worst_day: float | None
    best_month: float | None
    worst_month: float | None
    hit_rate_day: float | None
    hit_rate_month: float | None
    stability: float | None
    # risk
    annual_volatility: float | None
    downside_risk: float | None
    skew: float | None
    kurtosis: float | None
    value_at_risk: float | None
    conditional_value_at_risk: float | None
    tail_ratio: float | None
    # ratio
    sharpe: float | None
    sharpe_low: float | None
    sharpe_high: float | None
    sortino: float | None
    calmar: float | None
    omega: float | None
    payoff_ratio: float | None
    martin_ratio: float | None
    # drawdown
    max_drawdown: float | None
    average_drawdown: float | None
    longest_drawdown_days: float | None
    longest_recovery_days: float | None
    ulcer_index: float | None
    # against the benchmark portfolio
    invested_share: float | None
    active_return: float | None
    tracking_error: float | None
    information_ratio: float | None
    information_ratio_low: float | None
    information_ratio_high: float | None
    # against the index
    alpha: float | None
    beta: float | None
    correlation: float | None
    index_information_ratio: float | None
    index_tracking_error: float | None
    up_capture: float | None
    down_capture: float | None
    batting_average: float | None
    treynor_ratio: float | None
    # trading
    turnover: float | None
    traded_usd: float | None
    cost_usd: float | None
    cost_share: float | None
    break_even_cost_bps: float | None
    trades: float | None
    orders: float | None
    capped_orders: float | None
    unfilled_orders: float | None
    cancelled_usd: float | None
    income_usd: float | None
    round_trips: float | None
    round_trip_hit_rate: float | None
    round_trip_profit_usd: float | None
    holding_minutes_mean: float | None
    holding_minutes_median: float | None
    exposure_max: float | None
    time_in_market: float | None
    concentration: float | None
    largest_weight: float | None
    # from bars
    minute_annual_volatility: float | None
    minute_sharpe: float | None
    minute_sortino: float | None
    minute_max_drawdown: float | None

    def __post_init__(self) -> None:
        if is_short(self.sessions, self.annual_sessions):
            vars(self).update(dict.fromkeys(ANNUAL))

    @classmethod
    def of(cls, values: Mapping[str, float | None]) -> StrategyMetrics:
        """The metrics among some numbers, by key; the others are undefined."""
        return cls(**{key: values.get(key) for key in KEYS})

    def __getitem__(self, key: str) -> float | None:
        """A metric by its key in the catalogue."""
        value: float | None = vars(self)[key]
        return value

    @property
    def annual_sessions(self) -> int:
        """Sessions a year by which annual figures are scaled."""
        return int(self.sessions_a_year or TRADING_DAYS)

    def by_key(self) -> dict[str, float | None]:
        """All metrics, in the catalogue's order."""
        return dict(vars(self))


KEYS = tuple(field.name for field in dataclasses.fields(StrategyMetrics))
NO_METRICS = StrategyMetrics.of({})
"""For a strategy that is not there: every metric is a dash."""
