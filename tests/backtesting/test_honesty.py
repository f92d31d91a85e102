from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fintrader.backtesting import BacktestResult, simulate, simulate_baselines
from fintrader.backtesting.baselines import equal_weight
from fintrader.backtesting.honesty import assess, sentence
from fintrader.backtesting.null_models import information_free, random_portfolios
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from tests.engines.policies import crashing_market, idle_policy, noisy_policy
from tests.factories import make_market, pick_assets


def with_returns(result: BacktestResult, daily: np.ndarray) -> BacktestResult:
    """The same result with another equity curve: one bar a session, these daily returns."""
    equity = 1e6 * np.concatenate([[1.0], np.cumprod(1 + daily)])
    bars = len(equity)
    base = {
        name: np.resize(getattr(result, name), (bars, *getattr(result, name).shape[1:]))
        for name in ("shares", "mark", "costs_usd", "turnover_usd", "income_usd", "benchmark")
    }
    session = np.concatenate([[0], np.arange(bars - 1)])
    minutes = result.minutes[0] + 86_400_000_000_000 * np.arange(bars)
    return replace(result, equity=equity, session=session, minutes=minutes, **base)


@pytest.fixture(scope="module")
def template() -> BacktestResult:
    return simulate(noisy_policy(4), make_market(60, 4), EnvSettings(), name="ensemble")


def test_luck_is_called_luck_and_skill_skill(template: BacktestResult) -> None:
    rng = np.random.default_rng(0)
    market = rng.normal(0, 0.01, 250)
    rival = with_returns(replace(template, name="equal_weight"), market)
    noise = rng.normal(0, 0.01, 250)
    noise += 0.0005 - noise.mean()
    trials = rng.normal(0, 0.01, (250, 80))
    lucky = assess({"ensemble": with_returns(template, noise), "equal_weight": rival}, trials=80, trial_returns=trials)
    assert lucky["verdict"].startswith("Not distinguishable from luck: deflated Sharpe 0.")
    assert lucky["verdict"].endswith("80 trials.")
    assert not lucky["likely_skill"]
    edge = rng.normal(0.004, 0.01, 250)
    trials[:, 5] += 0.006
    skilled = assess({"ensemble": with_returns(template, edge), "equal_weight": rival}, trials=80, trial_returns=trials)
    assert skilled["verdict"].startswith("Unlikely to be luck: deflated Sharpe")
    assert skilled["likely_skill"]
    assert skilled["superiority"]["equal_weight"]["spa"] < 0.05
    results = {"ensemble": with_returns(template, edge), "equal_weight": rival}
    for score, verdict in ((1.0, "Unlikely to be luck"), (3.0, "Not to be trusted: the same search found as much")):
        control = {"best_selection_score": score, "real_best_selection_score": 2.0, "metrics": {}}
        judged = assess(results, trials=80, trial_returns=trials, null_model=control)
        assert judged["verdict"].startswith(verdict)
        assert judged["likely_skill"] == (score < 2)
    assert skilled["excess"]["equal_weight"]["low"] > 0
    shadow = with_returns(replace(template, name="equal_weight"), edge + rng.normal(0, 0.002, 250))
    beaten = assess({"ensemble": with_returns(template, edge), "equal_weight": shadow}, trials=80, trial_returns=trials)
    assert "not ahead of equal weight" in beaten["verdict"]
    json.dumps([lucky, skilled, beaten], allow_nan=False)


def test_the_same_result_is_worth_less_the_more_was_tried(template: BacktestResult) -> None:
    result = {"ensemble": with_returns(template, np.random.default_rng(1).normal(0.001, 0.01, 250))}
    found = [assess(result, trials=count)["sharpe"]["deflated"] for count in (1, 10, 100, 1000)]
    assert found == sorted(found, reverse=True)
    assert found[0] == pytest.approx(assess(result, trials=1)["sharpe"]["probabilistic"])
    unknown = assess(result)
    assert unknown["verdict"].startswith("Cannot be judged: selected from an unknown number of trials")


def test_the_edges_have_their_own_sentences(template: BacktestResult) -> None:
    market, settings = make_market(60, 3), EnvSettings()
    idle = assess({"ensemble": simulate(idle_policy, market, settings)}, trials=8)
    assert idle["verdict"] == "Never traded: there is nothing to judge, after 8 trials."
    bankrupt = simulate(lambda obs: torch.full((1, 2), 0.5), crashing_market(), settings)
    assert assess({"ensemble": bankrupt}, trials=1)["verdict"].startswith("Went bankrupt")
    assert assess({"ensemble": template}, trials=3)["verdict"] == "Too short to judge: 3 sessions, 3 trials."
    losing = assess({"ensemble": with_returns(template, np.full(30, -0.01) + np.arange(30) / 1e5)}, trials=3)
    assert losing["verdict"].startswith("Lost money")
    report = {**losing, "sharpe": {**losing["sharpe"], "sharpe": 3.0, "deflated": 0.99}}
    report["overfitting"] = {"probability": 0.8}
    assert sentence(report).startswith("Likely overfitted: probability 0.80")


def test_information_free_features_are_other_days_and_nothing_else() -> None:
    market = make_market(360, 4, session_bars=20)
    shifted = information_free(market, seed=3)
    assert torch.equal(shifted.close, market.close) or bool(market.close.isnan().any())
    assert torch.equal(shifted.open.nan_to_num(), market.open.nan_to_num())
    assert torch.equal(shifted.benchmark, market.benchmark)
    assert not torch.equal(shifted.features, market.features)
    assert torch.equal(information_free(market, seed=3).features, shifted.features)
    for start, stop in market.windows:
        rows = {tuple(row) for row in market.features[start:stop].flatten(1).tolist()}
        assert all(tuple(row) in rows for row in shifted.features[start:stop].flatten(1).tolist())
        same = (shifted.features[start:stop] == market.features[start:stop]).flatten(1).all(1)
        assert not bool(same.any())
    # Bars keep their place in the day.
    whole = replace(market, windows=None)
    moved = information_free(whole, seed=1)
    for bar in (0, 57, 359):
        source = int((whole.features == moved.features[bar]).flatten(1).all(1).nonzero()[0])
        assert source % 20 == bar % 20
        assert source // 20 != bar // 20
    with pytest.raises(BacktestError, match="at least four"):
        information_free(make_market(60, 3, session_bars=30), seed=0)


def test_random_portfolios_centre_on_equal_weight_and_match_the_ledger() -> None:
    market = make_market(200, 6, gaps=False, volatility=0.004)
    settings = EnvSettings(cost_bps=20, fractional=True)
    drawn = random_portfolios(market, settings, seed=0, count=4000)
    hold = simulate_baselines(market, settings)["buy_and_hold"]
    assert drawn.cumulative_return.mean() == pytest.approx(hold.metrics["cumulative_return"], abs=0.01)
    one = random_portfolios(pick_assets(market, [0]), settings, seed=0, count=3)
    ledger = equal_weight(pick_assets(market, [0]), settings, every_sessions=10**6)
    assert one.cumulative_return == pytest.approx(np.full(3, ledger.metrics["cumulative_return"]), abs=1e-4)
    assert one.sharpe == pytest.approx(np.full(3, ledger.metrics["sharpe"]), rel=1e-2)
    share = drawn.share_above(float(np.median(drawn.cumulative_return)), None)
    assert share["cumulative_return"] == pytest.approx(0.5, abs=0.01)
    assert share["sharpe"] is None
    with pytest.raises(BacktestError, match="no member trades"):
        random_portfolios(replace(market, member=torch.zeros_like(market.member)), settings, seed=0)


def test_the_folds_of_a_walk_forward_are_judged_together() -> None:
    rng = np.random.default_rng(3)
    template = simulate(noisy_policy(4), make_market(20 * 30, 4, session_bars=20), EnvSettings())
    results = {"ensemble": with_returns(template, rng.normal(0.001, 0.01, 30))}
    apart = np.linspace(-0.006, 0.006, 6)  # trials that differ by more than chance alone makes them
    folds = [rng.normal(0, 0.01, (40, 6)) + apart + shift for shift in (0.0, 0.02)]
    whole = assess(results, trials=12, trial_returns=folds)
    alone = [assess(results, trials=12, trial_returns=matrix) for matrix in folds]
    pbo = [one["overfitting"]["probability"] for one in alone]
    assert whole["overfitting"]["probability"] == pytest.approx(np.mean(pbo))
    assert [window["probability"] for window in whole["overfitting"]["windows"]] == pbo
    assert whole["overfitting"]["trials"] == 12
    assert whole["overfitting"]["splits"] == sum(one["overfitting"]["splits"] for one in alone)
    # A market that rose in one fold and not in the other is no variance among the trials of either.
    variances = [one["sharpe"]["trial_variance"] for one in alone]
    assert whole["sharpe"]["trial_variance"] == pytest.approx(np.mean(variances))
    assert whole["sharpe"]["trial_variance_source"] == "12 trials on 2 selection windows"
    together = assess(results, trials=12, trial_returns=np.hstack(folds))
    assert together["sharpe"]["trial_variance"] > 2 * whole["sharpe"]["trial_variance"]
    assert assess(results, trials=12, trial_returns=[])["overfitting"] is None


def test_random_portfolios_over_several_windows_are_sold_between_them() -> None:
    market, settings = make_market(20 * 12, 1, session_bars=20, gaps=False), EnvSettings(cost_bps=50)
    windows = [market.window(0, 100), market.window(120, 240)]
    drawn = random_portfolios(windows, settings, seed=0, count=3).cumulative_return
    expected = 1.0
    for window in windows:  # one stock: every portfolio is that stock, bought and sold at half a per cent
        expected *= float(window.close[-1, 0]) / float(window.open[1, 0]) / 1.005 * 0.995
    assert drawn == pytest.approx(np.full(3, expected - 1), rel=1e-6)


def test_trials_that_are_alike_do_not_lower_the_hurdle() -> None:
    """What correlated trials share is luck that their variance does not hold: never less than that of one ratio."""
    rng = np.random.default_rng(5)
    template = simulate(noisy_policy(4), make_market(20 * 30, 4, session_bars=20), EnvSettings())
    results = {"ensemble": with_returns(template, rng.normal(0.003, 0.01, 30))}
    alike = rng.normal(0, 0.01, (40, 1)) + rng.normal(0, 0.001, (40, 6))
    known, unknown = (assess(results, trials=6, trial_returns=trials)["sharpe"] for trials in (alike, None))
    assert known["trial_variance"] == unknown["trial_variance"] == pytest.approx(252 / 29)
    assert known["trial_variance_source"] == "1/(T - 1); 6 trials on their selection window differ by less"
    assert known["deflated"] == unknown["deflated"]
    assert known["deflated_effective"] > known["deflated"]  # alike, they count for fewer
