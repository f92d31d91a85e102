from __future__ import annotations

import math
import warnings

import empyrical
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from fintrader import metrics
from tests.factories import examples

RETURN = st.one_of(
    st.floats(-0.9, 1.5).map(
        lambda value: round(value, 9)
    ),  # smaller moves drown in the rounding of 1 + r
    st.sampled_from([0.0, -1.0, math.nan, 0.01, -0.01]),
)
SERIES = st.one_of(
    st.lists(RETURN, min_size=0, max_size=40),
    st.builds(lambda value, size: [value] * size, RETURN, st.integers(1, 10)),
).map(lambda values: np.array(values, dtype=np.float64))

ONE_SERIES = {
    metrics.cumulative_return: empyrical.cum_returns_final,
    metrics.annual_return: empyrical.annual_return,
    metrics.annual_volatility: empyrical.annual_volatility,
    metrics.downside_risk: empyrical.downside_risk,
    metrics.sharpe: empyrical.sharpe_ratio,
    metrics.sortino: empyrical.sortino_ratio,
    metrics.max_drawdown: empyrical.max_drawdown,
    metrics.calmar: empyrical.calmar_ratio,
    metrics.omega: empyrical.omega_ratio,
    metrics.tail_ratio: empyrical.tail_ratio,
    metrics.conditional_value_at_risk: empyrical.conditional_value_at_risk,
}
TWO_SERIES = {
    metrics.alpha: empyrical.alpha,
    metrics.beta: empyrical.beta,
    metrics.up_capture: empyrical.up_capture,
    metrics.down_capture: empyrical.down_capture,
    metrics.information_ratio: lambda r, b: empyrical.excess_sharpe(r, b) * math.sqrt(252),
    metrics.batting_average: lambda r, b: empyrical.batting_average(r, b)["batting average"],
}


def agree(ours: float | None, theirs: float, what: str) -> None:
    """Equal to 1e-10 (relative above one); None where empyrical has no finite number."""
    if not math.isfinite(theirs):
        assert ours is None, f"{what}: {ours} where empyrical has {theirs}"
    else:
        assert ours is not None, f"{what}: None where empyrical has {theirs}"
        assert math.isclose(ours, theirs, rel_tol=1e-10, abs_tol=1e-10), (
            f"{what}: {ours} != {theirs}"
        )


@settings(max_examples=examples(1000))
@given(SERIES)
@example(np.array([]))
@example(np.array([0.01]))
@example(np.zeros(3))
@example(np.array([-1.0, 0.5]))
def test_one_series_agrees_with_empyrical(returns: np.ndarray) -> None:
    if not metrics.known(
        returns
    ).size:  # empyrical calls a series of NaN a return of zero; we call it unknown
        assert all(ours(returns) is None for ours in ONE_SERIES)
        return
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for ours, theirs in ONE_SERIES.items():
            agree(ours(returns), float(theirs(returns)), ours.__name__)
        agree(
            metrics.value_at_risk(returns),
            float(empyrical.value_at_risk(returns[~np.isnan(returns)])),
            "value_at_risk",
        )


@settings(max_examples=examples(1000))
@given(st.lists(st.tuples(RETURN, RETURN), min_size=0, max_size=40))
def test_two_series_agree_with_empyrical(pairs: list[tuple[float, float]]) -> None:
    returns, benchmark = (
        np.array([pair[side] for pair in pairs], dtype=np.float64) for side in (0, 1)
    )
    both = ~np.isnan(returns) & ~np.isnan(benchmark)
    returns = returns[both]
    benchmark = benchmark[both]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for ours, theirs in TWO_SERIES.items():
            agree(ours(returns, benchmark), float(theirs(returns, benchmark)), ours.__name__)


def test_missing_days_are_left_out_of_both_series() -> None:
    returns = np.array([0.01, math.nan, 0.02, -0.01, 0.03])
    benchmark = np.array([0.02, 0.05, math.nan, -0.02, 0.01])
    kept = [0, 3, 4]
    for ours in TWO_SERIES:
        assert ours(returns, benchmark) == ours(returns[kept], benchmark[kept])
    with pytest.raises(ValueError, match="beside"):
        metrics.beta(returns, benchmark[:-1])


def test_moments_and_stability_agree_with_scipy() -> None:
    returns = np.random.default_rng(0).standard_t(4, 300) / 100
    assert metrics.skew(returns) == pytest.approx(stats.skew(returns), rel=1e-10)
    assert metrics.kurtosis(returns) == pytest.approx(stats.kurtosis(returns), rel=1e-10)
    assert metrics.stability(returns) == pytest.approx(
        empyrical.stability_of_timeseries(returns), rel=1e-10
    )
    assert metrics.skew([0.01, 0.01]) is None
    assert metrics.stability([0.1, -1.0, 0.1]) is None
    assert metrics.annual_return([-2.5]) is None


def test_drawdown_episodes_by_hand() -> None:
    """Wealth 1.1, 0.99, 1.045, 1.2, 1.08, 1.14: one episode that recovers after 3 sessions, one
    that does not."""
    wealth = np.array([1.0, 1.1, 0.99, 1.045, 1.2, 1.08, 1.14])
    returns = wealth[1:] / wealth[:-1] - 1
    assert metrics.episodes(metrics.drawdowns(returns)) == [(1, 3), (4, 6)]
    assert metrics.max_drawdown(returns) == pytest.approx(-0.10)
    assert metrics.average_drawdown(returns) == pytest.approx(-0.10)
    assert metrics.longest_drawdown(returns) == 3
    assert metrics.longest_recovery(returns) == 2
    assert metrics.average_drawdown([0.1, 0.1]) == 0
    assert metrics.longest_drawdown([0.1, 0.1]) == 0


def test_daily_equity_is_the_last_value_of_each_session() -> None:
    equity = [100, 101, 102, 99, 105]
    session = [7, 7, 8, 8, 9]
    assert metrics.daily_equity(equity, session).tolist() == [101, 99, 105]
    assert metrics.daily_returns(equity, session) == pytest.approx(
        [0.01, 99 / 101 - 1, 105 / 99 - 1]
    )
    assert metrics.daily_returns(equity, session, start=202)[0] == pytest.approx(-0.5)
    assert metrics.daily_returns([100, 0, 0, 0], [0, 1, 2, 3]).tolist() == [0, -1, 0, 0]
    assert metrics.daily_returns([], []).size == 0
