import math

import empyrical
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from fintrader import metrics
from tests.factories import examples
from tests.oracles import returns_oracle as oracle

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
    metrics.cumulative_return: oracle.cumulative_return,
    metrics.annual_return: oracle.annual_return,
    metrics.annual_volatility: oracle.annual_volatility,
    metrics.downside_risk: oracle.downside_risk,
    metrics.sharpe: oracle.sharpe,
    metrics.sortino: oracle.sortino,
    metrics.max_drawdown: oracle.max_drawdown,
    metrics.calmar: oracle.calmar,
    metrics.omega: oracle.omega,
    metrics.tail_ratio: oracle.tail_ratio,
    metrics.value_at_risk: oracle.value_at_risk,
    metrics.conditional_value_at_risk: oracle.conditional_value_at_risk,
}
TWO_SERIES = {
    metrics.alpha: oracle.alpha,
    metrics.beta: oracle.beta,
    metrics.up_capture: oracle.up_capture,
    metrics.down_capture: oracle.down_capture,
    metrics.information_ratio: oracle.information_ratio,
    metrics.batting_average: oracle.batting_average,
}


def agree(ours, theirs, what, tolerance=1e-7):
    """Equal to the tolerance (relative above one); None where the oracle has no finite number.

    Adding one to a return of 1e-7 keeps nine of its digits, in both computations.
    """
    if not math.isfinite(theirs):
        assert ours is None, f"{what}: {ours} where the oracle has {theirs}"
    else:
        assert ours is not None, f"{what}: None where the oracle has {theirs}"
        assert math.isclose(ours, theirs, rel_tol=tolerance, abs_tol=tolerance), (
            f"{what}: {ours} != {theirs}"
        )


@settings(max_examples=examples(1000, quick=100))
@given(SERIES)
@example(np.array([]))
@example(np.array([0.01]))
@example(np.zeros(3))
@example(np.array([-1.0, 0.5]))
@example(np.array([-0.5, math.nan]))
def test_one_series_agrees_with_the_oracle(returns):
    values = metrics.drop_missing(returns).tolist()
    for ours, theirs in ONE_SERIES.items():
        if ours in (metrics.annual_return, metrics.calmar) and len(values) < len(returns):
            continue  # a missing day counts as time there: the test below
        agree(ours(returns), theirs(values), ours.__name__)


@settings(max_examples=examples(1000, quick=100))
@given(st.lists(st.tuples(RETURN, RETURN), min_size=0, max_size=40))
def test_two_series_agree_with_the_oracle(pairs):
    returns, benchmark = (
        np.array([pair[side] for pair in pairs], dtype=np.float64) for side in (0, 1)
    )
    both = ~np.isnan(returns) & ~np.isnan(benchmark)
    for ours, theirs in TWO_SERIES.items():
        agree(
            ours(returns, benchmark),
            theirs(returns[both].tolist(), benchmark[both].tolist()),
            ours.__name__,
        )


def test_a_market_like_series_agrees_to_twelve_digits():
    random = np.random.default_rng(3)
    benchmark = 0.0004 + 0.01 * random.standard_t(4, 1500)
    returns = 0.0002 + 0.8 * benchmark + 0.004 * random.normal(size=1500)
    for one, theirs in ONE_SERIES.items():
        assert one(returns) == pytest.approx(theirs(returns.tolist()), rel=1e-12), one.__name__
    for two, oracle_of_two in TWO_SERIES.items():
        expected = oracle_of_two(returns.tolist(), benchmark.tolist())
        assert two(returns, benchmark) == pytest.approx(expected, rel=1e-12), two.__name__


def test_a_missing_day_counts_as_time_and_as_nothing_else():
    returns = np.array([0.01, math.nan, -0.02, 0.03, math.nan])
    growth = 1.01 * 0.98 * 1.03
    assert metrics.annual_return(returns) == pytest.approx(growth ** (252 / 5) - 1, rel=1e-12)
    assert metrics.calmar(returns) == pytest.approx((growth ** (252 / 5) - 1) / 0.02, rel=1e-12)
    for measure in ONE_SERIES:
        if measure not in (metrics.annual_return, metrics.calmar):
            assert measure(returns) == measure(metrics.drop_missing(returns)), measure.__name__
        assert measure([math.nan, math.nan]) is None, measure.__name__


def test_equal_returns_have_no_dispersion_and_no_ratio_to_it():
    """0.003 summed a hundred times is not a hundred times 0.003: the mean is off in its last
    bit."""
    flat = np.full(100, 0.003)
    moving = np.random.default_rng(0).normal(0, 0.01, 100)
    assert metrics.annual_volatility(flat) == 0
    assert metrics.sharpe(flat) is None
    assert metrics.sortino(flat) is None
    assert metrics.calmar(flat) is None
    assert metrics.stability(np.zeros(5)) is None
    assert metrics.information_ratio(moving + 0.0, moving) is None
    assert metrics.beta(flat, moving) == 0
    assert metrics.treynor_ratio(flat, moving) is None
    assert metrics.beta(moving, flat) is None


def test_missing_days_are_left_out_of_both_series():
    returns = np.array([0.01, math.nan, 0.02, -0.01, 0.03])
    benchmark = np.array([0.02, 0.05, math.nan, -0.02, 0.01])
    kept = [0, 3, 4]
    for ours in TWO_SERIES:
        assert ours(returns, benchmark) == ours(returns[kept], benchmark[kept])
    with pytest.raises(ValueError, match="give series"):
        metrics.beta(returns, benchmark[:-1])


def test_moments_and_stability_agree_with_scipy():
    returns = np.random.default_rng(0).standard_t(4, 300) / 100
    assert metrics.skew(returns) == pytest.approx(stats.skew(returns), rel=1e-10)
    assert metrics.kurtosis(returns) == pytest.approx(stats.kurtosis(returns), rel=1e-10)
    assert metrics.stability(returns) == pytest.approx(
        empyrical.stability_of_timeseries(returns), rel=1e-10
    )
    assert metrics.skew([0.01, 0.01]) is None
    assert metrics.stability([0.1, -1.0, 0.1]) is None
    assert metrics.annual_return([-2.5]) is None


def test_drawdown_episodes_by_hand():
    """Wealth 1.1, 0.99, 1.045, 1.2, 1.08, 1.14: one episode that recovers after 3 sessions, one
    that does not."""
    wealth = np.array([1.0, 1.1, 0.99, 1.045, 1.2, 1.08, 1.14])
    returns = wealth[1:] / wealth[:-1] - 1
    assert metrics.find_episodes(metrics.drawdowns(returns)) == [(1, 3), (4, 6)]
    assert metrics.max_drawdown(returns) == pytest.approx(-0.10)
    assert metrics.average_drawdown(returns) == pytest.approx(-0.10)
    assert metrics.longest_drawdown(returns) == 3
    assert metrics.longest_recovery(returns) == 2
    assert metrics.average_drawdown([0.1, 0.1]) == 0
    assert metrics.longest_drawdown([0.1, 0.1]) == 0


def test_daily_equity_is_the_last_value_of_each_session():
    equity = [100, 101, 102, 99, 105]
    session = [7, 7, 8, 8, 9]
    assert metrics.daily_equity(equity, session).tolist() == [101, 99, 105]
    assert metrics.daily_returns(equity, session) == pytest.approx(
        [0.01, 99 / 101 - 1, 105 / 99 - 1]
    )
    assert metrics.daily_returns(equity, session, start=202)[0] == pytest.approx(-0.5)
    assert metrics.daily_returns([100, 0, 0, 0], [0, 1, 2, 3]).tolist() == [0, -1, 0, 0]
    assert metrics.daily_returns([], []).size == 0
