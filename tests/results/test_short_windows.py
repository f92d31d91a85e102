"""Growth over less than a quarter is not compounded to a year, anywhere; and a p-value is never
printed as 0.000."""

import html
import re
from dataclasses import replace

import pytest

from fintrader.backtesting import simulate_all_baselines, write_backtest
from fintrader.backtesting.simulation import simulate
from fintrader.envs import EnvSettings
from fintrader.metrics import COMPOUNDED, FEWEST_SESSIONS
from fintrader.report.html import render_report
from fintrader.report.run_comparison import render_comparison
from fintrader.results.catalogue import BY_KEY
from fintrader.results.context import BacktestContext
from fintrader.results.figures import excess_figure
from fintrader.results.formatting import (
    DASH,
    chance,
    describe_standing,
    explain_short_window,
    p_equals,
)
from fintrader.results.strategy_metrics import StrategyMetrics
from fintrader.verdict.bootstrap import intervals
from fintrader.verdict.verdict import Excess
from tests.engines.policies import noisy_policy
from tests.factories import make_market

BARS = 5
WHY = f"omitted below {FEWEST_SESSIONS} sessions"


def traded(sessions):
    """A policy and its baselines over so many sessions."""
    market = make_market(80 * BARS, 4, session_bars=BARS).window(0, sessions * BARS)
    settings = EnvSettings()
    return simulate_all_baselines(market, settings).join(
        {"ensemble": simulate(noisy_policy(4), market, settings)}
    )


@pytest.fixture(scope="module")
def short():
    return traded(FEWEST_SESSIONS - 1)


@pytest.fixture(scope="module")
def enough():
    return traded(FEWEST_SESSIONS)


def test_what_compounds_growth_to_a_year_begins_with_a_quarter(short, enough):
    for name, result in short.items():
        known = {key for key, value in result.metrics.by_key().items() if value is not None}
        assert not COMPOUNDED & known, name
        assert result.metrics["sessions"] == FEWEST_SESSIONS - 1
        assert {"cumulative_return", "annual_volatility", "sharpe", "max_drawdown"} <= known
    assert {key for key in COMPOUNDED if enough["ensemble"].metrics[key] is None} == set()


def test_no_metric_that_compounds_was_forgotten():
    compounding = re.compile(r"\^\(?Y|annual return|CAGR", re.I)
    assert {
        key for key, metric in BY_KEY.items() if compounding.search(metric.formula)
    } == COMPOUNDED


def test_the_interval_of_the_annual_return_begins_there_too(short, enough):
    assert set(intervals(short["ensemble"].daily_returns, seed=0).by_metric()) == {
        "sharpe",
        "max_drawdown",
    }
    assert set(intervals(enough["ensemble"].daily_returns, seed=0).by_metric()) == {
        "sharpe",
        "annual_return",
        "max_drawdown",
    }


@pytest.mark.slow
def test_terminal_notebook_report_and_comparison_say_why(short, enough, tmp_path):
    stored, longer = (
        write_backtest(tmp_path / name, results)
        for name, results in (("short", short), ("enough", enough))
    )
    line = explain_short_window(stored.metrics.values())
    assert WHY in line

    def shown(one):
        pages = [
            render_report(one),
            render_comparison({"one": one, "two": one}),
            one._repr_html_(),
        ]
        return [" ".join(html.unescape(page).split()) for page in [repr(one), *pages]]

    assert [line in page for page in shown(stored)] == [True] * 4
    assert [WHY in page for page in shown(longer)] == [False] * 4
    dashes = shown(stored)[1].count(f">{DASH}</td>")
    assert dashes >= len(COMPOUNDED) * len(stored.strategies)
    bands = [page[page.index("95 % interval") :] for page in (shown(stored)[1], shown(longer)[1])]
    row = '<th scope="row">Annual return</th>'
    assert row not in bands[0][: bands[0].index("</table>")]
    assert row in bands[1][: bands[1].index("</table>")]


def test_a_p_value_is_never_nothing():
    assert (chance(0.0), chance(0.0004), chance(0.0123)) == ("< 0.001", "< 0.001", "0.012")
    assert (p_equals(1e-9), p_equals(0.25)) == ("p < 0.001", "p = 0.250")
    row = Excess(0.1, 0.05, 0.15, 0.95, p_value=1 / 5001, block=5.0)
    assert "p < 0.001" in excess_figure({"equal_weight": row}).data[0].hovertemplate


def test_an_active_return_is_the_windows_there():
    own = StrategyMetrics(cumulative_return=0.02, active_return=0.252, information_ratio=2.0)
    own = replace(own, information_ratio_low=0.5, information_ratio_high=3.5)
    said = {
        sessions: describe_standing(
            {"ensemble": replace(own, sessions=sessions)}, BacktestContext(portfolio="cash")
        )
        for sessions in (FEWEST_SESSIONS - 13, FEWEST_SESSIONS)
    }
    assert "Active return +5.00 % in the window" in said[FEWEST_SESSIONS - 13]
    assert "Active return +25.20 % a year" in said[FEWEST_SESSIONS]
