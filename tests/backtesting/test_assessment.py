import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fintrader.backtesting import simulate, simulate_baselines
from fintrader.backtesting.assessment import assess
from fintrader.backtesting.baselines import buy_and_hold, hold_benchmark
from fintrader.backtesting.null_models import information_free, random_portfolios
from fintrader.backtesting.result import measured_against
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from fintrader.files import dump_json
from fintrader.records import from_json, to_json
from fintrader.verdict.selection import SearchRecord, diagnose
from fintrader.verdict.verdict import NullSearch, Verdict
from tests.engines.policies import crashing_market, idle_policy, noisy_policy
from tests.factories import make_market, pick_assets


def with_returns(result, daily):
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
def template():
    test = make_market(180, 4).split().test
    embargoed = replace(test.provenance, is_adjacent=False)
    return simulate(
        noisy_policy(4), replace(test, provenance=embargoed), EnvSettings(), name="ensemble"
    )


def pair(template, ours, theirs):
    """A result and the benchmark portfolio it is measured against."""
    rival = with_returns(replace(template, name="equal_weight"), theirs)
    return measured_against(
        {"ensemble": with_returns(template, ours), "equal_weight": rival}, rival
    )


def test_the_verdict_is_the_held_out_windows_and_is_said_in_three_sentences(template):
    rng = np.random.default_rng(0)
    theirs = rng.normal(0.0004, 0.01, 250)
    noise = rng.normal(0, 0.004, 250)
    lucky = assess(pair(template, theirs + noise - noise.mean() + 1e-4, theirs), trials=80, look=1)
    assert lucky.text.startswith("Not distinguishable from luck: ahead of equal weight by 2.5")
    assert "look 1 at this window" in lucky.text
    assert (
        "With 250 sessions the test has 80 % power only above an information ratio of 2."
        in lucky.text
    )
    assert lucky.text.endswith("more sessions give 80 % power.")
    assert not lucky.is_likely_skill
    ahead = pair(template, theirs + noise + 0.0015, theirs)
    skilled = assess(ahead, trials=80)
    assert skilled.text.startswith("Unlikely to be luck: ahead of equal weight")
    assert skilled.is_likely_skill
    assert skilled.excess["equal_weight"].low > 0
    behind = assess(pair(template, 0.3 * theirs + 0.2 * noise + 1e-4, np.abs(theirs)), trials=80)
    assert not behind.is_likely_skill
    for verdict in (lucky, skilled, behind):
        assert from_json(Verdict, json.loads(dump_json(to_json(verdict)))) == verdict
    assert [lucky.state, skilled.state] == ["not_told_from_luck", "likely_skill"]


def test_what_was_tried_is_no_matter_of_the_verdict_and_each_look_is(template):
    rng = np.random.default_rng(4)
    theirs = rng.normal(0.0004, 0.01, 250)
    results = pair(template, theirs + rng.normal(0.0008, 0.004, 250), theirs)
    noise = rng.normal(0, 0.01, (60, 80))
    few, many = (
        assess(results, trials=count, search=SearchRecord(noise[:, :count])) for count in (2, 80)
    )
    assert few.evidence == many.evidence
    assert few.selection.sharpe.expected_best < many.selection.sharpe.expected_best
    assert "80 trials" in many.selection.sentence
    p_value = many.evidence.alpha.p_value
    assert 0.0016 < p_value <= 0.04
    assert many.is_likely_skill
    third = assess(results, trials=80, look=3)
    assert third.evidence.alpha.p_value == p_value
    assert third.evidence.level == pytest.approx(0.00338, rel=1e-2)
    assert not third.is_likely_skill
    assert "look 3 at this window" in third.text


def test_optimistic_fills_and_free_trading_get_no_good_verdict(template):
    rng = np.random.default_rng(0)
    theirs = rng.normal(0.0004, 0.01, 250)
    results = pair(template, theirs + rng.normal(0.002, 0.004, 250), theirs)
    named = {
        "fill": ({"fill": "close"}, "filled at the close"),
        "free": ({"cost_bps": 0.0}, "free of costs"),
        "whole": ({"participation": "none"}, "whatever the volume"),
    }
    for changed, words in named.values():
        taken = assess(results, trials=8, settings=EnvSettings(**changed))
        assert taken.text.startswith("Cannot be believed as it stands, with")
        assert words in taken.text
        assert not taken.is_likely_skill
    told = assess(results, trials=8, caveats=["a universe of survivors"])
    assert "a universe of survivors" in told.text
    assert not told.is_likely_skill
    foresight = assess(pair(template, theirs + rng.normal(0.01, 0.004, 250), theirs), trials=8)
    assert "a leak is the likelier reason" in foresight.text
    assert not foresight.is_likely_skill


def test_a_search_without_information_that_scored_as_well_is_said(template):
    rng = np.random.default_rng(0)
    theirs = rng.normal(0.0004, 0.01, 250)
    results = pair(template, theirs + rng.normal(0.001, 0.004, 250), theirs)
    for score in (1.0, 3.0):
        control = NullSearch(score, 2.0, "sharpe")
        judged = assess(results, trials=80, search=SearchRecord(null_model=control))
        assert ("search without information" in judged.text) == (score > 2)
        assert judged.is_likely_skill


def test_holdings_that_paid_whenever_they_were_held_are_said_to(template):
    market = make_market(20 * 60, 4, session_bars=20, gaps=False)
    results = {"ensemble": simulate(noisy_policy(4), market, EnvSettings(cost_bps=2.0))}
    portfolio = hold_benchmark("equal_weight", market, EnvSettings(cost_bps=2.0))
    results = measured_against({**results, "equal_weight": portfolio}, portfolio)
    found = assess(results, trials=1, market=market, settings=EnvSettings(cost_bps=2.0))
    shift = found.evidence.shift
    assert shift.shifts == 999
    assert shift.p_value > 0.01
    # Timing, by hand: weights at each close beyond beta times the portfolio's, times the next bar's
    # return.
    beta = found.evidence.alpha.beta
    active = results["ensemble"].weights() - beta * portfolio.weights()
    close = market.adjusted_close.numpy().astype(np.float64)
    earned = float((active[:-1] * (close[1:] / close[:-1] - 1)).sum())
    assert shift.earned == pytest.approx(earned, rel=1e-6)


def test_the_edges_have_their_own_sentences(template):
    market = make_market(60, 3)
    settings = EnvSettings()
    idle = assess({"ensemble": simulate(idle_policy, market, settings)}, trials=8)
    assert idle.text.startswith("Never traded: there is nothing to judge.")
    assert idle.state == "no_verdict"
    why = "buy and hold 1% invested on average, because 2 of 3 sessions hold no trade"
    idle = assess({"ensemble": simulate(idle_policy, market, settings)}, trials=8, caveats=[why])
    assert f"nothing to judge. Reservations: {why}; " in idle.text
    bankrupt = simulate(lambda obs: torch.full((1, 2), 0.5), crashing_market(), settings)
    assert assess({"ensemble": bankrupt}, trials=1).text.startswith("Went bankrupt")
    assert assess({"ensemble": template}, trials=3).text.startswith("Too short to tell: 3 sessions")
    theirs = np.random.default_rng(0).normal(0, 0.01, 40)
    same = assess(pair(template, theirs, theirs), trials=3)
    assert same.text.startswith("Holds its benchmark")
    geared = assess(pair(template, 1.5 * theirs, theirs), trials=3)
    assert geared.text == "Nothing to judge: its returns, hedged with equal weight, do not vary."
    with pytest.raises(BacktestError, match="counted from 1"):
        assess(pair(template, 1.5 * theirs, theirs), trials=3, look=-3)
    losing = assess(
        pair(template, theirs - 0.01 + np.random.default_rng(1).normal(0, 0.002, 40), theirs),
        trials=3,
    )
    assert losing.text.startswith("Behind its benchmark: behind equal weight by 39.98 %")
    assert "(p < 0.001 for a negative alpha at a level of 3.04 %, looks not counted" in losing.text
    assert losing.state == "behind"
    assert not losing.is_likely_skill
    assert from_json(Verdict, json.loads(dump_json(to_json(losing)))) == losing
    # Earlier versions stored another state and sentence; both stay readable.
    older = replace(losing, state="not_told_from_luck")
    assert from_json(Verdict, json.loads(dump_json(to_json(older)))) == older
    risen = theirs - theirs.mean() + 0.002
    noise = np.random.default_rng(2).normal(0, 1e-4, 40)
    geared = assess(pair(template, 1.5 * risen - 7e-4 + noise, risen), trials=3)
    assert geared.text.startswith("Negative alpha: ahead of equal weight")
    assert "in the window" in losing.text
    assert "a year" not in losing.text
    assert "alpha is not positive" in losing.text
    assert assess({"ensemble": with_returns(template, theirs)}).selection.sentence.startswith(
        "Chosen from an unknown number of trials"
    )


def test_information_free_features_are_other_days_and_nothing_else():
    market = make_market(360, 4, session_bars=20)
    shifted = information_free(market, seed=3)
    assert torch.equal(shifted.close.nan_to_num(), market.close.nan_to_num())
    assert torch.equal(shifted.volume.nan_to_num(), market.volume.nan_to_num())
    assert torch.equal(shifted.tradable, market.tradable)
    assert not torch.equal(shifted.context, market.context)
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


def test_random_portfolios_centre_on_equal_weight_and_match_the_ledger():
    market = make_market(200, 6, gaps=False, volatility=0.004)
    settings = EnvSettings(cost_bps=20, fractional=True)
    drawn = random_portfolios(market, settings, seed=0, count=4000)
    hold = simulate_baselines(market, settings)["buy_and_hold"]
    assert drawn.cumulative_return.mean() == pytest.approx(
        hold.metrics["cumulative_return"], abs=0.01
    )
    one = random_portfolios(pick_assets(market, [0]), settings, seed=0, count=3)
    ledger = buy_and_hold(pick_assets(market, [0]), settings)
    assert one.cumulative_return == pytest.approx(
        np.full(3, ledger.metrics["cumulative_return"]), abs=1e-4
    )
    assert one.sharpe == pytest.approx(np.full(3, ledger.metrics["sharpe"]), rel=1e-2)
    daily = make_market(60, 1, gaps=False, session_bars=1)  # the first session holds nothing
    one = random_portfolios(daily, settings, seed=0, count=3)
    ledger = buy_and_hold(daily, settings)
    assert one.sharpe == pytest.approx(np.full(3, ledger.metrics["sharpe"]), rel=1e-3)
    share = drawn.compare(float(np.median(drawn.cumulative_return)), None).share_above
    assert share.cumulative_return == pytest.approx(0.5, abs=0.01)
    assert share.sharpe is None
    with pytest.raises(BacktestError, match="no member trades"):
        random_portfolios(replace(market, member=torch.zeros_like(market.member)), settings, seed=0)


def test_each_fold_of_a_walk_forward_selects_among_trials_of_its_own():
    rng = np.random.default_rng(3)
    apart = np.linspace(-0.006, 0.006, 6)  # trials that differ by more than chance alone makes them
    folds = [rng.normal(0, 0.01, (40, 6)) + apart + shift for shift in (0.0, 0.02)]
    whole = diagnose(12, SearchRecord(folds), 0)
    alone = [diagnose(6, SearchRecord(matrix), 0) for matrix in folds]
    pbo = [one.overfitting.probability for one in alone]
    assert whole.overfitting.probability == pytest.approx(np.mean(pbo))
    assert [window.probability for window in whole.overfitting.windows] == pbo
    assert whole.overfitting.splits == sum(one.overfitting.splits for one in alone)
    # A market that rose in one fold and not in the other is no variance among the trials of either.
    for name in ("trial_variance", "expected_best"):
        assert getattr(whole.sharpe, name) == pytest.approx(
            np.mean([getattr(one.sharpe, name) for one in alone])
        )
    together = diagnose(12, SearchRecord(np.hstack(folds)), 0)
    assert together.sharpe.trial_variance > 2 * whole.sharpe.trial_variance
    assert diagnose(12, SearchRecord([]), 0).overfitting is None
    active = diagnose(12, SearchRecord(folds, [folds[0], folds[0] - 0.02]), 0).romano_wolf
    assert active.trials == 12
    assert 1 <= active.ahead < 6


def test_random_portfolios_over_several_windows_are_sold_between_them():
    market = make_market(20 * 12, 1, session_bars=20, gaps=False)
    settings = EnvSettings(cost_bps=50)
    windows = [market.window(0, 100), market.window(120, 240)]
    drawn = random_portfolios(windows, settings, seed=0, count=3).cumulative_return
    expected = 1.0
    for (
        window
    ) in windows:  # one stock: every portfolio is that stock, bought and sold at half a per cent
        expected *= float(window.close[-1, 0]) / float(window.open[1, 0]) / 1.005 * 0.995
    assert drawn == pytest.approx(np.full(3, expected - 1), rel=1e-6)


def test_trials_that_are_alike_do_not_lower_the_hurdle():
    """What correlated trials share is luck that their variance does not hold: never less than that
    of one ratio."""
    rng = np.random.default_rng(5)
    alike = rng.normal(0, 0.01, (40, 1)) + rng.normal(0, 0.001, (40, 6))
    found = diagnose(6, SearchRecord(alike), 0).sharpe
    assert found.trial_variance == pytest.approx(252 / 39)
    assert found.trial_variance_source == "raised to 1/(S - 1) in 1 of 1 windows"
    assert found.deflated_effective > found.deflated  # alike, they count for fewer
