"""Results of a made-up market say so wherever they are shown, and no caller can leave it out."""

import html
from dataclasses import replace

import pytest

import fintrader
from fintrader.backtesting import read_backtest, write_backtest
from fintrader.backtesting.writer import tabulate
from fintrader.report.html import render_report
from fintrader.report.run_comparison import render_comparison
from fintrader.report.tearsheet import tear_sheet
from fintrader.results.context import BacktestContext
from fintrader.results.market_description import MarketSource, PlantedDrift, Provenance
from fintrader.results.run import Run
from fintrader.runs import Manifest, RunFolder
from tests.engines.policies import noisy_policy
from tests.factories import make_market

MADE_UP = Provenance(
    MarketSource("synthetic"), planted_drift=PlantedDrift("signal", 1.2, 0.02, 4, bar_minutes=5)
)
REAL = Provenance(MarketSource("files"))
BANNER = "Synthetic market with a planted signal"


@pytest.fixture(scope="module")
def tests():
    market = make_market(70 * 10, 4, session_bars=10)
    return fintrader.backtest(noisy_policy(4), replace(market, provenance=MADE_UP))


def test_the_python_door_says_it(tests, tmp_path):
    verdict = tests.judge(1)
    shown = [
        str(tests),
        tests._repr_html_(),
        str(tests["policy"]),
        str(verdict),
        verdict._repr_html_(),
        tests.plot().layout.title.text,
        tests.report(tmp_path / "page.html").read_text(),
    ]
    assert [BANNER in text for text in shown] == [True] * len(shown)
    assert str(verdict).startswith(BANNER)


@pytest.mark.slow
def test_a_context_without_the_market_does_not_drop_it(tests, tmp_path):
    results = dict(tests)
    for context in (BacktestContext(), BacktestContext(market=REAL)):
        stored = tabulate(results, context)
        assert stored.notice == MADE_UP.notice
        for text in (str(stored), html.unescape(render_report(stored))):
            assert MADE_UP.notice in text
    write_backtest(tmp_path, results)
    read = read_backtest(tmp_path)
    assert str(read).startswith(MADE_UP.notice)
    assert MADE_UP.notice in render_comparison({"one": read, "two": read})


def test_real_bars_have_none(tests):
    results = {name: replace(result, provenance=REAL) for name, result in tests.items()}
    stored = tabulate(results)
    assert stored.notice == ""
    assert "notice" not in stored._repr_html_()
    assert not any("Synthetic" in str(result) for result in results.values())


@pytest.mark.slow
def test_the_tear_sheet_carries_it(tests):
    pytest.importorskip("pyfolio")
    figure = tear_sheet(tabulate(dict(tests)), "policy")
    (text,) = figure.texts
    assert " ".join(text.get_text().split()) == MADE_UP.notice
    assert text.get_position()[1] > max(axis.get_position().y1 for axis in figure.axes)


def test_a_stored_run_says_it_before_its_verdict(tests, tmp_path):
    run = RunFolder.named("made-up", tmp_path)
    config = {"name": "made-up", "seed": 0, "device": "cpu", "config_hash": "", "command": ""}
    Manifest.create(run.manifest, **config).finish()
    write_backtest(run.backtest, dict(tests))
    opened = Run(run)
    assert str(opened).startswith(MADE_UP.notice)
    assert str(opened).count(BANNER) == 1
    assert opened._repr_html_().startswith('<p class="notice"')
    assert BANNER in opened.plot().layout.title.text
