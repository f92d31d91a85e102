"""The ridge baseline finds a signal that is there, knows nothing of later windows, and says why it
cannot be made."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fintrader.backtesting.all_baselines import simulate_all_baselines
from fintrader.backtesting.baselines import hold_benchmark
from fintrader.backtesting.result import measured_against
from fintrader.backtesting.ridge import _fit_coefficients, _Panel, fit_ridge, ridge
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from fintrader.market.tensors import Windows
from tests.factories import joined, make_market, planted_market
from tests.oracles.trade_list import trade_list_profit

SETTINGS = EnvSettings(decision_interval=5, cost_bps=5, benchmark="equal_weight")


@pytest.fixture(scope="module")
def market():
    whole = planted_market(4500, 8, regime_bars=600, session_bars=100, noise_features=2)
    return replace(whole, windows=Windows((0, 2400), (2500, 3400), (3500, 4500)))


def test_it_finds_a_planted_line_and_beats_equal_weight_after_costs(market):
    train, validation, test = market.split()
    fitted = fit_ridge(train, SETTINGS, validation=validation)
    signal, *noise = np.abs(fitted.coefficients)
    assert signal > 10 * max(noise)
    assert fitted.coefficients[0] > 0
    plain = hold_benchmark("equal_weight", test, SETTINGS)
    result = measured_against({"ridge": ridge(test, SETTINGS, fitted)}, plain)["ridge"]
    assert result.equity[-1] > 1.02 * plain.equity[-1]
    assert result.metrics["information_ratio_low"] > 0
    assert result.metrics["invested_share"] > 0.99
    assert result.cash.min() >= 0
    assert (result.trades["decision_bar"] % 5 == 0).all()
    assert (result.shares == np.trunc(result.shares)).all()


def test_the_coefficients_are_the_closed_form(market):
    """Two decisions ahead, against the same sums written out; blocks of rows change nothing."""
    panel = _Panel(market.window(0, 400), SETTINGS)
    bars = np.arange(0, 399, 5)
    paid = market.open.double().numpy()[bars + 1]
    change = paid[1:] / paid[:-1] - 1
    change -= change.mean(1, keepdims=True)
    ahead = (change[:-1] + change[1:]) / 2
    features = market.features.double().numpy()[bars[: len(ahead)]]
    x = (features - features.mean(1, keepdims=True)).reshape(-1, 3)
    square = x.T @ x
    slope = np.linalg.solve(square + 0.1 * np.diag(np.diag(square)), x.T @ ahead.reshape(-1))
    expected = slope / np.std(x @ slope)
    assert _fit_coefficients(panel, [(2, 0.1)], len(change))[0] == pytest.approx(expected, rel=1e-9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fintrader.backtesting.ridge.BLOCK", 7 * 8 * 3)
        assert _fit_coefficients(panel, [(2, 0.1)], len(change))[0] == pytest.approx(
            expected, rel=1e-9
        )


def test_later_bars_change_nothing_that_was_fitted_or_done_before(market):
    other = replace(planted_market(4500, 8, session_bars=100, seed=5), windows=market.windows)
    start = market.windows.validation[0]
    for cut, given in ((start, False), (market.windows.test[0], True)):
        one = market.split()
        changed = joined(market, other, cut).split()
        fits = [
            fit_ridge(part.train, SETTINGS, validation=part.validation if given else None)
            for part in (one, changed)
        ]
        assert (fits[0].coefficients == fits[1].coefficients).all()
        assert fits[0].trade_rate == fits[1].trade_rate
    test = one.test
    late = joined(test, other.window(3500, 4500), 500)
    ours, theirs = (ridge(window, SETTINGS, fits[0]) for window in (test, late))
    assert (ours.equity[:500] == theirs.equity[:500]).all()
    assert ours.equity[-1] != theirs.equity[-1]


def test_a_choice_inside_training_is_made_on_bars_the_fit_has_not_seen(market, monkeypatch):
    seen = []

    def watched(panel, tried, known):
        seen.append(known)
        return _fit_coefficients(panel, tried, known)

    monkeypatch.setattr("fintrader.backtesting.ridge._fit_coefficients", watched)
    fit_ridge(market.split().train, SETTINGS)
    assert seen == [
        384,
        479,
    ]  # of 479 changes the last fifth was kept for the choice, then all were fitted


def test_without_features_it_is_left_out_and_says_why():
    market = make_market(900, 4, gaps=False, session_bars=30)
    train, validation, test = market.split()
    flat = [
        replace(part, features=torch.ones_like(part.features)) for part in (train, validation, test)
    ]
    bare = [
        replace(part, features=part.features[:, :, :0], feature_names=())
        for part in (train, validation, test)
    ]
    for (fitted, chosen, window), why in ((flat, "each has one value"), (bare, "no features")):
        found = simulate_all_baselines(window, SETTINGS, train=fitted, validation=chosen)
        assert "ridge" not in found.results
        assert why in found.left_out["ridge"]
    with pytest.raises(BacktestError, match="too few"):
        fit_ridge(train.window(0, 60), SETTINGS)
    assert "ridge" in simulate_all_baselines(test, SETTINGS).left_out


def test_gaps_splits_and_members_that_come_and_go(market):
    odd = make_market(1200, 5, session_bars=30, events=True)
    train, validation, test = odd.split()
    for settings in (SETTINGS, SETTINGS.model_copy(update={"fill": "close", "fractional": True})):
        result = ridge(test, settings, fit_ridge(train, settings, validation=validation))
        assert np.isfinite(result.equity).all()
        profit = result.equity[-1] - result.equity[0]
        assert trade_list_profit(result) == pytest.approx(profit, abs=1e-6 * result.equity[0])
    with pytest.raises(BacktestError, match="2 features, here are 3"):
        ridge(market, SETTINGS, fit_ridge(train, SETTINGS))
