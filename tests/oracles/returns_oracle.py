"""Measures of return series in plain Python floats: slow, obvious, no numpy and no empyrical.

NaN stands for a number that does not exist. Series hold no missing days, `S` is their length.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

Series = Sequence[float]
YEAR = 252


def divide(above: float, below: float) -> float:
    return above / below if below else math.nan


def mean(values: Series) -> float:
    return divide(math.fsum(values), len(values))


def deviation(values: Series) -> float:
    return statistics.stdev(values) if len(values) > 1 else math.nan


def twentieths(values: Series) -> list[float]:
    """The 19 values that cut the series into twentieths, linearly interpolated."""
    if not values:
        return [math.nan] * 19
    several = values if len(values) > 1 else [*values, *values]
    return statistics.quantiles(several, n=20, method="inclusive")


def cumulative_return(values: Series) -> float:
    return math.prod(1 + v for v in values) - 1 if values else math.nan


def annual_return(values: Series) -> float:
    growth = 1 + cumulative_return(values)
    if not growth >= 0:
        return math.nan
    try:
        return float(growth ** (YEAR / len(values))) - 1
    except OverflowError:
        return math.nan


def annual_volatility(values: Series) -> float:
    return deviation(values) * math.sqrt(YEAR)


def downside_risk(values: Series) -> float:
    return math.sqrt(mean([min(v, 0.0) ** 2 for v in values])) * math.sqrt(YEAR)


def sharpe(values: Series) -> float:
    return divide(mean(values), deviation(values)) * math.sqrt(YEAR)


def sortino(values: Series) -> float:
    return divide(mean(values) * YEAR, downside_risk(values)) if len(values) > 1 else math.nan


def max_drawdown(values: Series) -> float:
    wealth = peak = 1.0
    deepest = 0.0
    for value in values:
        wealth *= 1 + value
        peak = max(peak, wealth)
        deepest = min(deepest, wealth / peak - 1)
    return deepest if values else math.nan


def calmar(values: Series) -> float:
    return divide(annual_return(values), -max_drawdown(values))


def omega(values: Series) -> float:
    gains = math.fsum(v for v in values if v > 0)
    losses = -math.fsum(v for v in values if v < 0)
    return divide(gains, losses) if len(values) > 1 else math.nan


def tail_ratio(values: Series) -> float:
    return divide(abs(twentieths(values)[18]), abs(twentieths(values)[0]))


def value_at_risk(values: Series) -> float:
    return twentieths(values)[0]


def conditional_value_at_risk(values: Series) -> float:
    return mean(sorted(values)[: int((len(values) - 1) * 0.05) + 1])


def beta(values: Series, benchmark: Series) -> float:
    if len(values) < 2:
        return math.nan
    centre = mean(benchmark)
    variance = mean([(b - centre) ** 2 for b in benchmark])
    if variance < 1e-30:
        return math.nan
    return mean([(b - centre) * v for v, b in zip(values, benchmark, strict=True)]) / variance


def alpha(values: Series, benchmark: Series) -> float:
    slope = beta(values, benchmark)
    base = 1 + mean([v - slope * b for v, b in zip(values, benchmark, strict=True)])
    try:
        return base**YEAR - 1
    except OverflowError:
        return math.nan


def information_ratio(values: Series, benchmark: Series) -> float:
    return sharpe([v - b for v, b in zip(values, benchmark, strict=True)])


def up_capture(values: Series, benchmark: Series) -> float:
    return _capture([(v, b) for v, b in zip(values, benchmark, strict=True) if b > 0])


def down_capture(values: Series, benchmark: Series) -> float:
    return _capture([(v, b) for v, b in zip(values, benchmark, strict=True) if b < 0])


def _capture(days: Sequence[tuple[float, float]]) -> float:
    ours, theirs = (annual_return([day[side] for day in days]) for side in (0, 1))
    return divide(ours, theirs)


def batting_average(values: Series, benchmark: Series) -> float:
    return mean([float(v > b) for v, b in zip(values, benchmark, strict=True)])
