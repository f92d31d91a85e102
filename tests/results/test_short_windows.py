"""Nothing of less than a quarter is put on a year, anywhere; and a p-value is never printed as
0.000."""

import html
import json
import re

import pytest

import fintrader
from fintrader.backtesting import simulate_all_baselines, write_backtest
from fintrader.backtesting.simulation import simulate
from fintrader.backtesting.writer import tabulate
from fintrader.envs import EnvSettings
from fintrader.metrics import ANNUAL, COMPOUNDED, FEWEST_SESSIONS
from fintrader.numerals import DASH, chance, p_equals
from fintrader.records import from_json
from fintrader.report.run_comparison import render_comparison
from fintrader.results.catalogue import BY_KEY
from fintrader.results.context import BacktestContext
from fintrader.results.figures import excess_figure
from fintrader.results.formatting import PAPER_COLUMNS, describe_standing, explain_short_window
from fintrader.results.sections import (
    BacktestView,
    present_factors,
    present_regimes,
    present_rolling,
)
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


def test_annual_rates_begin_with_a_quarter(short, enough):
    for name, result in short.items():
        known = {key for key, value in result.metrics.by_key().items() if value is not None}
        assert not ANNUAL & known, name
        assert result.metrics["sessions"] == FEWEST_SESSIONS - 1
        assert {"cumulative_return", "sharpe", "max_drawdown"} <= known
    assert {key for key in ANNUAL if enough["ensemble"].metrics[key] is None} == set()
    for results, known in ((short, set()), (enough, {"annual_return"})):
        bands = intervals(results["ensemble"].daily_returns).by_metric()
        assert set(bands) == {"sharpe", "max_drawdown"} | known


def test_files_and_frames_hold_no_annual_rate_of_a_short_window(tmp_path):
    """Not those of this version, and none that another version wrote."""
    market = make_market(80 * BARS, 4, session_bars=BARS).window(0, (FEWEST_SESSIONS - 1) * BARS)
    tests = fintrader.backtest(noisy_policy(4), market)
    assert not ANNUAL & set(tests.metrics.dropna(axis=1, how="all"))
    stored = write_backtest(tmp_path, dict(tests), market=market, settings=EnvSettings())
    for row in json.loads((tmp_path / "metrics.json").read_text()).values():
        assert {row[name] for name in ANNUAL} == {None}
    factors = stored.analysis.factors
    assert [fit.alpha for fit in factors.values()] == [None]
    assert "Alpha a year" in str(present_factors(BacktestView.of(stored)))
    older = {"sessions": 62.0, "annual_volatility": 0.2, "sharpe": 1.5}
    read = from_json(StrategyMetrics, StrategyMetrics.of({}).by_key() | older)
    assert (read.annual_volatility, read.sharpe) == (None, 1.5)


def test_figures_of_a_part_of_the_window_are_of_a_session(enough):
    """A regime or a rolling window has fewer sessions than a quarter, however long the whole is."""
    stored = tabulate(enough)
    view = BacktestView.of(stored)
    columns = present_regimes(view).tables[0].columns
    assert columns == (
        "The index",
        "Sessions",
        "Mean return",
        "Index's mean return",
        "Sharpe",
        "Beta",
    )
    volatility = present_rolling(view).figures[1].draw()
    daily = stored.daily_returns()["ensemble"]
    assert volatility.data[0].y[-1] == pytest.approx(daily.tail(20).std())
    assert volatility.layout.yaxis.title.text == "volatility of a session"


def test_no_metric_that_compounds_was_forgotten():
    annual = {key for key, metric in BY_KEY.items() if "a year" in (metric.unit + metric.title)}
    assert annual - COMPOUNDED - {"sessions_a_year"} == ANNUAL - COMPOUNDED
    compounding = re.compile(r"\^\(?Y|annual return|CAGR", re.I)
    assert {
        key for key, metric in BY_KEY.items() if compounding.search(metric.formula)
    } == COMPOUNDED


def test_terminal_notebook_and_comparison_say_why(short, enough):
    stored = tabulate(short)
    (line,) = explain_short_window(stored.metrics.values())
    assert f"omitted below {FEWEST_SESSIONS} sessions" in line
    compared = render_comparison({"one": stored, "two": stored})
    for page in (repr(stored), stored._repr_html_(), compared):
        assert line in " ".join(html.unescape(page).split())
    assert compared.count(f">{DASH}</td>") >= 2 * len(
        COMPOUNDED & {key for key, _ in PAPER_COLUMNS}
    )
    assert explain_short_window(tabulate(enough).metrics.values()) == []


def test_a_p_value_is_never_nothing():
    assert (chance(0.0), chance(0.0004), chance(0.0123)) == ("< 0.001", "< 0.001", "0.012")
    assert (p_equals(1e-9), p_equals(0.25)) == ("p < 0.001", "p = 0.250")
    row = Excess(0.1, 0.05, 0.15, 0.95, p_value=1 / 5001, block=5.0)
    assert "p < 0.001" in excess_figure({"equal_weight": row}).data[0].hovertemplate


ACTIVE = {"active_return": 0.252, "information_ratio": 2.0}
BAND = {"information_ratio_low": 0.5, "information_ratio_high": 3.5}
RATIO = "Information ratio 2.00 (95 % interval 0.50 to 3.50): more than the portfolio."


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
            f"cash (+0.00 %). {RATIO}",
        ),
        (
            ACTIVE | BAND | {"sessions": 50, "sessions_a_year": 365},
            {},
            "cash",
            f"cash (+0.00 %). {RATIO}",
        ),
        (
            ACTIVE | BAND | {"sessions": FEWEST_SESSIONS},
            {},
            "cash",
            "cash (+0.00 %). Active return +25.20 % a year (the mean daily difference from cash, not"
            f" compounded). {RATIO}",
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
