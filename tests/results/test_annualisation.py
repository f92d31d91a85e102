"""A year has as many sessions as its market says, in every figure of a year and in no other."""

from dataclasses import replace

import empyrical
import numpy as np
import pytest

from fintrader.backtesting.assessment import assess
from fintrader.backtesting.baselines import usual_volatility
from fintrader.backtesting.factors import fit_factors
from fintrader.backtesting.null_models import random_portfolios
from fintrader.backtesting.result import measured_against
from fintrader.backtesting.simulation import simulate
from fintrader.backtesting.writer import tabulate
from fintrader.envs import EnvSettings
from fintrader.metrics import COMPOUNDED, min_sessions
from fintrader.report.html import render_report
from fintrader.results import figures
from fintrader.results.context import BacktestContext
from fintrader.results.market_description import Provenance
from fintrader.results.strategy_metrics import KEYS
from fintrader.tournament.evaluator import evaluate, score
from fintrader.verdict import alpha as ev
from tests.engines.policies import noisy_policy
from tests.factories import make_market

LINEAR = {"active_return", "turnover"}
ROOT = {
    "annual_volatility",
    "downside_risk",
    "sharpe",
    "sharpe_low",
    "sharpe_high",
    "sortino",
    "tracking_error",
}
ROOT |= {"information_ratio", "information_ratio_low", "information_ratio_high"}
ROOT |= {"index_information_ratio", "index_tracking_error"}
ROOT |= {"minute_annual_volatility", "minute_sharpe", "minute_sortino"}
MORE = 365 / 252


@pytest.fixture(scope="module")
def market():
    return make_market(120 * 5, 8, session_bars=5)


def results_of(market):
    ours = simulate(noisy_policy(8), market, EnvSettings(), name="ensemble")
    rival = simulate(noisy_policy(8, seed=1), market, EnvSettings(), name="equal_weight")
    return measured_against({"ensemble": ours, "equal_weight": rival}, rival)


@pytest.fixture(scope="module")
def both(market):
    """The same trades on an exchange, and on a market that never rests."""
    restless = replace(market, provenance=Provenance(sessions_a_year=365))
    return results_of(market), results_of(restless)


def test_every_figure_of_a_year_is_of_the_markets_own(both):
    usual, restless = (one["ensemble"].metrics for one in both)
    daily = both[0]["ensemble"].daily_returns
    assert (usual["sessions_a_year"], restless["sessions_a_year"]) == (252, 365)
    changed = {name for name in KEYS if usual[name] != restless[name]} - {"sessions_a_year"}
    assert changed == LINEAR | ROOT | COMPOUNDED
    for names, factor in ((LINEAR, MORE), (ROOT, MORE**0.5)):
        for name in names:
            assert restless[name] == pytest.approx(usual[name] * factor), name
    for name, theirs in (
        ("annual_return", empyrical.annual_return),
        ("calmar", empyrical.calmar_ratio),
    ):
        assert restless[name] == pytest.approx(theirs(daily, annualization=365)), name
        assert usual[name] == pytest.approx(theirs(daily, annualization=252)), name


def test_the_verdict_is_annualised_alike_and_decides_alike(both, market):
    usual, restless = (assess(one, trials=3, settings=EnvSettings(), market=market) for one in both)
    here, there = (one.evidence for one in (usual, restless))
    assert there.active_return == pytest.approx(MORE * here.active_return)
    for name, factor in (
        ("alpha", MORE),
        ("low", MORE),
        ("high", MORE),
        ("ratio", MORE**0.5),
        ("visible", MORE**0.5),
    ):
        assert getattr(there.alpha, name) == pytest.approx(factor * getattr(here.alpha, name)), name
    for name in ("p_value", "sessions_needed", "beta", "method"):
        assert getattr(there.alpha, name) == getattr(here.alpha, name), name
    assert restless.sharpe.sharpe == pytest.approx(MORE**0.5 * usual.sharpe.sharpe)
    excess = (one.excess["equal_weight"].excess for one in (usual, restless))
    assert next(excess) * MORE == pytest.approx(next(excess))
    assert restless.is_likely_skill == usual.is_likely_skill


def test_bets_and_factors_and_chance_follow(market):
    random = np.random.default_rng(0)
    ours, theirs = random.normal(0, 0.01, (2, 120))
    # a bet on an annual ratio is the smaller a day, the more days a year has
    assert ev.e_process(ours, theirs, 365)[-1] != ev.e_process(ours, theirs)[-1]
    factors = random.normal(0, 0.01, (120, 2))
    assert fit_factors(ours, factors, 365).alpha == pytest.approx(
        MORE * fit_factors(ours, factors).alpha
    )
    restless = replace(market, provenance=Provenance(sessions_a_year=365))
    drawn = [
        random_portfolios(one, EnvSettings(), seed=0, count=20).sharpe for one in (market, restless)
    ]
    np.testing.assert_allclose(drawn[1], drawn[0] * MORE**0.5)
    assert usual_volatility(restless) == pytest.approx(
        (usual_volatility(market) or 0.0) * MORE**0.5
    )


def test_a_quarter_is_a_quarter_of_that_year(market):
    assert (min_sessions(252), min_sessions(365)) == (63, 91)
    short = market.window(0, 70 * 5)
    for year, known in ((252, True), (365, False)):
        window = replace(short, provenance=Provenance(sessions_a_year=year))
        found = simulate(noisy_policy(8), window, EnvSettings(), name="ensemble").metrics
        assert (found["annual_return"] is not None) is known


def test_scores_of_the_tournament(market):
    random = np.random.default_rng(3)
    returns, index = random.normal(0.001, 0.01, (2, 200))
    for metric, factor in (
        ("sharpe", MORE**0.5),
        ("utility", MORE),
        ("information_ratio", MORE**0.5),
        ("return", 1.0),
    ):
        usual = score(returns, metric, index)
        assert usual is not None
        assert score(returns, metric, index, 365) == pytest.approx(usual * factor), metric
    growth = empyrical.annual_return(returns, annualization=365)
    depth = empyrical.max_drawdown(returns)
    assert score(returns, "calmar", index, 365) == pytest.approx(growth / -depth)
    restless = replace(market, provenance=Provenance(sessions_a_year=365))
    usual, more = (
        evaluate([(noisy_policy(8), one)], EnvSettings()).score for one in (market, restless)
    )
    assert usual is not None
    assert more == pytest.approx(usual * MORE**0.5)


def test_report_and_figures_say_which_year(both):
    for results, year in zip(both, (252, 365), strict=True):
        stored = tabulate(results, BacktestContext(trials=3), assess(results, trials=3))
        assert stored.sessions_a_year == year
        assert f"Daily returns, {year} sessions a year" in render_report(stored)
        returns = stored.daily_returns()
        drawn = figures.rolling_figure(
            returns, "sharpe", main="ensemble", window=20, sessions_a_year=year
        )
        recent = returns["ensemble"].tail(20)
        last = recent.mean() / recent.std() * year**0.5
        assert next(trace for trace in drawn.data if trace.name == "Ensemble").y[
            -1
        ] == pytest.approx(last)
