"""Growth over less than a quarter is not compounded to a year, anywhere; and a p-value is never
printed as 0.000."""

import html
import re

import pytest

from fintrader.backtesting import simulate_all_baselines
from fintrader.backtesting.simulation import simulate
from fintrader.backtesting.writer import tabulate
from fintrader.envs import EnvSettings
from fintrader.metrics import COMPOUNDED, FEWEST_SESSIONS
from fintrader.numerals import DASH, chance, p_equals
from fintrader.report.run_comparison import render_comparison
from fintrader.results.catalogue import BY_KEY
from fintrader.results.context import BacktestContext
from fintrader.results.figures import excess_figure
from fintrader.results.formatting import PAPER_COLUMNS, describe_standing, explain_short_window
from fintrader.results.strategy_metrics import StrategyMetrics
from fintrader.verdict.bootstrap import intervals
from fintrader.verdict.verdict import Excess
from tests.engines.policies import noisy_policy
from tests.factories import make_market

BARS = 5


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
    for results, known in ((short, set()), (enough, {"annual_return"})):
        bands = intervals(results["ensemble"].daily_returns, seed=0).by_metric()
        assert set(bands) == {"sharpe", "max_drawdown"} | known


def test_no_metric_that_compounds_was_forgotten():
    compounding = re.compile(r"\^\(?Y|annual return|CAGR", re.I)
    assert {
        key for key, metric in BY_KEY.items() if compounding.search(metric.formula)
    } == COMPOUNDED


def test_terminal_notebook_and_comparison_say_why(short, enough):
    stored = tabulate(short)
    line = explain_short_window(stored.metrics.values())
    assert f"omitted below {FEWEST_SESSIONS} sessions" in line
    compared = render_comparison({"one": stored, "two": stored})
    for page in (repr(stored), stored._repr_html_(), compared):
        assert line in " ".join(html.unescape(page).split())
    assert compared.count(f">{DASH}</td>") >= 2 * len(
        COMPOUNDED & {key for key, _ in PAPER_COLUMNS}
    )
    assert explain_short_window(tabulate(enough).metrics.values()) == ""


def test_a_p_value_is_never_nothing():
    assert (chance(0.0), chance(0.0004), chance(0.0123)) == ("< 0.001", "< 0.001", "0.012")
    assert (p_equals(1e-9), p_equals(0.25)) == ("p < 0.001", "p = 0.250")
    row = Excess(0.1, 0.05, 0.15, 0.95, p_value=1 / 5001, block=5.0)
    assert "p < 0.001" in excess_figure({"equal_weight": row}).data[0].hovertemplate


ACTIVE = {"active_return": 0.252, "information_ratio": 2.0}
BAND = {"information_ratio_low": 0.5, "information_ratio_high": 3.5}
RATIO = "information ratio 2.00 (95 % interval 0.50 to 3.50): more than the portfolio."


@pytest.mark.parametrize(
    ("own", "rivals", "portfolio", "words"),
    [
        ({}, {"equal_weight": 0.01}, None, ""),
        ({}, {}, "cash", "above its benchmark portfolio, cash (+0.00 %)."),
        (
            {},
            {"ridge": 0.03, "equal_weight": 0.02},
            "equal_weight",
            "below ridge (+3.00 %) and level with its benchmark portfolio, equal weight (+2.00 %).",
        ),
        (
            ACTIVE | BAND | {"sessions": 50},
            {},
            "cash",
            f"cash (+0.00 %). Active return +5.00 % in the window, {RATIO}",
        ),
        (
            ACTIVE | BAND | {"sessions": 50, "sessions_a_year": 365},
            {},
            "cash",
            f"cash (+0.00 %). Active return +3.45 % in the window, {RATIO}",
        ),
        (
            ACTIVE | BAND | {"sessions": FEWEST_SESSIONS},
            {},
            "cash",
            f"cash (+0.00 %). Active return +25.20 % a year, {RATIO}",
        ),
        (ACTIVE | BAND | {"information_ratio_low": -0.1}, {}, "cash", "): within chance."),
    ],
)
def test_where_a_result_stands(own, rivals, portfolio, words):
    values = {"ensemble": {"cumulative_return": 0.02, **own}}
    values |= {name: {"cumulative_return": returned} for name, returned in rivals.items()}
    metrics = {name: StrategyMetrics.of(row) for name, row in values.items()}
    context = BacktestContext(portfolio=portfolio, left_out={"ridge": "no features"})
    said = describe_standing(metrics, context)
    if "ridge" not in rivals and portfolio:
        words += " Without ridge: no features."
    assert said.startswith("Net of costs, Ensemble (+2.00 %) is " if words else "")
    assert said.endswith(words)
    assert bool(said) == bool(words)
