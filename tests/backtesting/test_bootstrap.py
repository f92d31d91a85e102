from __future__ import annotations

import math

import numpy as np
import pytest

from fintrader.backtesting.bootstrap import block_length, bootstrap_indices, intervals, paired_excess, superiority
from fintrader.errors import BacktestError


def autoregressive(rng: np.random.Generator, size: int, phi: float) -> np.ndarray:
    values = rng.normal(size=size)
    for t in range(1, size):
        values[t] += phi * values[t - 1]
    return values


@pytest.mark.parametrize("phi", [-0.4, 0.0, 0.3, 0.8])
def test_block_length_agrees_with_arch(phi: float) -> None:
    from arch.bootstrap import optimal_block_length

    for seed, size in ((0, 60), (1, 250), (2, 1000)):
        values = autoregressive(np.random.default_rng(seed), size, phi)
        theirs = float(optimal_block_length(values).iloc[0, 0])
        assert block_length(values) == pytest.approx(max(theirs, 1.0), rel=1e-10)
    assert block_length(np.ones(50)) == 1


def test_blocks_have_the_stated_mean_length_and_wrap_around() -> None:
    rows = bootstrap_indices(50, 5.0, 4000, np.random.default_rng(0))
    assert rows.shape == (4000, 50)
    assert rows.min() == 0
    assert rows.max() == 49
    follows = (np.diff(rows, axis=1) % 50) == 1
    # A new block begins with probability 1/5, and lands on the next row by chance once in fifty.
    assert follows.mean() == pytest.approx(1 - 1 / 5 + 1 / 5 / 50, abs=0.01)
    assert np.bincount(rows.ravel(), minlength=50) / rows.size == pytest.approx(np.full(50, 0.02), abs=0.002)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """True annual Sharpe ratio 1 over a year: 90 % intervals hold it about nine times in ten."""
    rng = np.random.default_rng(1)
    held = 0
    for k in range(200):
        found, _ = intervals(rng.normal(1 / math.sqrt(252) / 100, 0.01, 252), seed=k, level=0.9, repeats=400)
        band = found["sharpe"]
        held += band.low <= 1 <= band.high
    assert held / 200 == pytest.approx(0.9, abs=0.07)


def test_intervals_of_little_or_nothing() -> None:
    found, _ = intervals([0.01, -0.01], seed=0)
    assert found["sharpe"].low is None
    assert found["max_drawdown"].estimate == pytest.approx(-0.01)
    found, _ = intervals(np.zeros(30), seed=0)
    assert found["sharpe"].estimate is None
    assert found["annual_return"].low == 0
    again, _ = intervals(np.random.default_rng(0).normal(size=40) / 100, seed=5)
    same, _ = intervals(np.random.default_rng(0).normal(size=40) / 100, seed=5)
    assert again == same


def test_paired_excess_finds_an_edge_and_only_an_edge() -> None:
    rng = np.random.default_rng(2)
    market = rng.normal(0, 0.02, 250)
    ahead = paired_excess(market + rng.normal(0.0005, 0.002, 250), market, seed=0)
    assert ahead.p_value < 0.01
    assert ahead.low < ahead.excess < ahead.high
    same = [paired_excess(market + rng.normal(0, 0.002, 250), market, seed=k, repeats=300) for k in range(100)]
    assert np.mean([found.p_value < 0.1 for found in same if found]) == pytest.approx(0.1, abs=0.08)
    assert paired_excess([0.1] * 3, [0.0] * 3, seed=0) is None


def test_superiority_agrees_with_arch() -> None:
    from arch.bootstrap import SPA

    rng = np.random.default_rng(3)
    benchmark = rng.normal(size=250)
    for shift in (0.0, 0.05, 0.1):
        models = rng.normal(shift, 1, (250, 6))
        ours = superiority(models, benchmark, seed=1, block=3, repeats=8000)
        theirs = SPA(-benchmark, -models, block_size=3, reps=4000, bootstrap="stationary", seed=1)
        theirs.compute()
        expected = theirs.pvalues
        # arch compares means that are not studentised; with equal variances the two differ by little.
        assert ours.reality_check == pytest.approx(expected["upper"], abs=0.02)
        assert ours.spa == pytest.approx(expected["consistent"], abs=0.08)
        assert ours.spa_lower <= ours.spa + 1e-12 <= ours.spa_upper + 2e-12


def test_superiority_has_its_size_and_power() -> None:
    rng = np.random.default_rng(4)
    null = [superiority(rng.normal(size=(120, 5)), rng.normal(size=120), seed=k, repeats=300) for k in range(150)]
    assert np.mean([found.spa < 0.1 for found in null]) == pytest.approx(0.1, abs=0.08)
    models = rng.normal(size=(120, 5))
    models[:, 3] += 0.6
    found = superiority(models, rng.normal(size=120) * 0.1, seed=0)
    assert found.spa < 0.01
    with pytest.raises(BacktestError, match="too few"):
        superiority(models[:5], np.zeros(5), seed=0)
    flat = superiority(np.zeros((50, 2)), np.zeros(50), seed=0)
    assert flat.spa == 1
