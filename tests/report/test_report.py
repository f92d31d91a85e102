import base64
import doctest
import gzip
import html
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from fintrader.backtesting import (
    StoredBacktest,
    read_backtest,
    simulate,
    simulate_baselines,
    write_backtest,
)
from fintrader.backtesting.assessment import assess
from fintrader.backtesting.sensitivity import Choices, sensitivity
from fintrader.backtesting.writer import tabulate
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from fintrader.pipeline import evaluation
from fintrader.report.html import render_report
from fintrader.report.run_comparison import labels, render_comparison, write_comparison
from fintrader.report.tearsheet import LEAST_SESSIONS, tear_sheet_inputs, write_tear_sheet
from fintrader.results import figures
from fintrader.results.context import BacktestContext, FoldReturns
from fintrader.results.figures import holdings
from fintrader.results.market_description import Provenance
from fintrader.verdict import sharpe as significance
from tests.engines.policies import crashing_market, idle_policy, noisy_policy
from tests.factories import make_market


def page_of(results, context=None, **more):
    context = context or BacktestContext(trials=5)
    return render_report(tabulate(results, context, assess(results, trials=5), **more))


def charts_of(page):
    packed = re.search('<script type="text/plain" id="charts">([^<]*)<', page)
    return json.loads(gzip.decompress(base64.b64decode(packed.group(1))))


def test_every_odd_result_has_a_report():
    market = make_market(60, 4)
    settings = EnvSettings()
    idle = simulate(idle_policy, make_market(60, 3), settings)
    assert "Never traded" in page_of({"ensemble": idle})
    assert "never held a position" in page_of({"ensemble": idle})
    ruined = simulate(lambda obs: torch.full((1, 2), 0.5), crashing_market(), settings)
    assert "Went bankrupt" in page_of({"ensemble": ruined})
    tiny = simulate(noisy_policy(4), market.split().test.window(0, 2), settings)
    assert "Too short to tell" in page_of({"ensemble": tiny})
    short = simulate(noisy_policy(4), market, EnvSettings(short=True, max_leverage=1.5))
    assert (short.shares < 0).any()
    assert "chart-weights" in page_of({"ensemble": short})
    alone = simulate_baselines(market, settings)["benchmark"]
    assert "benchmark" in page_of({"benchmark": alone}).lower()
    assert "Not assessed" in render_report(tabulate({"ensemble": tiny}))


@pytest.mark.slow
def test_charts_hold_what_was_simulated():
    market = make_market(45 * 20, 4, session_bars=20)
    settings = EnvSettings(cost_bps=3)
    policy = noisy_policy(4)
    results = {
        "ensemble": simulate(policy, market, settings),
        **simulate_baselines(market, settings, every=True),
    }
    rows = sensitivity(policy, market, settings, choices=Choices(costs_bps=(0.0, 10.0)))
    page = page_of(results, sensitivity=rows)
    charts = charts_of(page)
    assert {"costs", "without", "trades-0"} <= set(charts)
    for key in charts:
        assert f'id="chart-{key}"' in page
    assert len(results) == 9
    for chart in charts.values():
        assert (
            sum(trace["type"] == "scatter" and "lines" in trace["mode"] for trace in chart["data"])
            < 10
        )
    left_out = set(results) - {
        trace["name"].replace(" ", "_").lower() for trace in charts["equity"]["data"]
    }
    assert left_out == {"vol_targeted", "benchmark"}, "the latter is drawn under the name Index"
    best = max(results, key=lambda name: results[name].equity[-1])
    assert best == "cash", "the best line is drawn, cash too"
    assert "Index" in {trace["name"] for trace in charts["equity"]["data"]}
    assert "8 of 9 are drawn; left out, but in the tables: Vol targeted." in page
    assert len(charts["costs"]["data"][0]["y"]) == 3


def test_names_from_outside_cannot_become_markup():
    market = make_market(60, 2)
    market = replace(market, symbols=("<script>alert(1)</script>", "B&B"))
    result = simulate(noisy_policy(2), market, EnvSettings(), name="ensemble", note="<b>note</b>")
    context = BacktestContext(run="<i>run</i>", trials=5, quality={"<u>": "<u>"})
    page = page_of({"ensemble": result}, context)
    assert "<script>alert" not in page
    for raw in ("<b>note</b>", "<i>run</i>", "<u>"):
        assert raw not in page


def test_trades_figure_draws_at_most_what_a_screen_can_show(monkeypatch):
    monkeypatch.setattr(holdings, "MOST_MARKS", 30)
    market = make_market(900, 2, gaps=False)
    result = simulate(noisy_policy(2), market, EnvSettings())
    stored = tabulate({"ensemble": result})
    rows = stored.prices[stored.prices["symbol"] == "S000"]
    closes = pd.Series(rows["close_usd"].to_numpy(), index=pd.DatetimeIndex(rows["minute"]))
    figure = figures.trades_figure(closes, stored.trades, symbol="S000")
    own = stored.trades[stored.trades["symbol"] == "S000"]
    marks = len(figure.data[1].x) + len(figure.data[2].x)
    assert marks == 30
    assert len(own) > 30
    assert set(figure.data[1].y) | set(figure.data[2].y) <= set(own["price_usd"])


def test_examples_in_the_documentation_run():
    found = doctest.testmod(significance)
    assert found.attempted >= 4
    assert found.failed == 0


def test_folds_and_data_have_their_sections():
    result = simulate(noisy_policy(3), make_market(60, 3), EnvSettings())
    context = BacktestContext(
        trials=4,
        window="walk-forward, 2 folds",
        folds=(
            FoldReturns("2020-01-02", "2020-02-03", {"ensemble": 0.0123}),
            FoldReturns("2020-02-04", "2020-03-05", {"ensemble": -0.5}),
        ),
        data={"symbols": 3, "repaired_bars": {"shuffled_rows": 7}},
        look=2,
    )
    page = page_of({"ensemble": result}, context)
    assert "Fold by fold" in page
    assert "2020-02-04 to 2020-03-05" in page
    assert "-50.00 %" in page
    assert "walk-forward, 2 folds window" not in page
    assert "shuffled rows 7" in page
    assert "folds</th>" not in page  # shown in its own section, not as JSON among the hashes
    assert "Fold by fold" not in page_of({"ensemble": result})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    market = make_market(20 * 30, 4, session_bars=20)
    settings = EnvSettings(cost_bps=2)
    found = {}
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp(f"run{seed}")
        ensemble = simulate(noisy_policy(4, seed), market, settings, name="ensemble")
        write_backtest(
            folder,
            {"ensemble": ensemble, **simulate_baselines(market, settings)},
            context=BacktestContext(trials=7),
        )
        found[f"run <{seed}>"] = read_backtest(folder)
    return found


def test_comparison_has_every_run_and_its_verdict(runs, tmp_path):
    path = write_comparison(tmp_path / "comparison.html", runs)
    page = path.read_text()
    assert page == render_comparison(runs)
    assert "14 trials in all of these runs together" in page
    assert "cover the same window" in page
    for name, stored in runs.items():
        assert name not in page  # escaped
        assert name.replace("<", "&lt;").replace(">", "&gt;") in page
        assert stored.verdict.text.split(":")[0] in page
    with pytest.raises(BacktestError, match="at least two"):
        render_comparison(dict(list(runs.items())[:1]))


def test_names_tell_folders_apart():
    assert labels(["runs/tiny", "runs/ov", "other/tiny"]) == ["runs/tiny", "ov", "other/tiny"]
    assert labels(["a/x/run/", "b/x/run"]) == ["a/x/run", "b/x/run"]
    assert labels(["s3://bucket/runs/one", "one"])[0] == "runs/one"
    assert labels(["runs/one", "runs/one/backtest/validation"]) == [
        "one",
        "one/backtest/validation",
    ]
    with pytest.raises(BacktestError, match="twice"):
        labels(["runs/one", "runs/../runs/one"])


def test_growth_starts_at_one_and_ends_at_the_return(runs):
    daily = {name: stored.daily_returns()["ensemble"] for name, stored in runs.items()}
    for trace, stored in zip(figures.growth_figure(daily).data, runs.values(), strict=True):
        assert trace.y[0] == 1
        assert trace.y[-1] - 1 == pytest.approx(stored.metrics["ensemble"]["cumulative_return"])


def test_a_tear_sheet_is_dated_by_the_market():
    market = replace(make_market(60, 3), provenance=Provenance(timezone="Australia/Sydney"))
    result = simulate(noisy_policy(3), market, EnvSettings())
    stored = tabulate({"ensemble": result})
    returns, positions, trades, _ = tear_sheet_inputs(stored, "ensemble")
    for inputs in (returns, positions):
        assert [*inputs.index.tz_localize(None)] == [*result.dates]
    assert {*trades.index.normalize()} <= {*returns.index}
    assert positions.sum(axis=1).tolist() == pytest.approx(result.equity[[19, 39, 59]])


def test_a_report_links_its_tear_sheet_or_names_the_command_that_draws_it():
    context = BacktestContext(run="mine", command="fintrader run a.yaml", recipe={"config": {}})
    result = simulate(noisy_policy(3), make_market(440, 3), EnvSettings())
    stored = tabulate({"ensemble": result}, context)
    assert len(stored.daily()) == LEAST_SESSIONS
    assert '<a href="tear_sheet.pdf">Tear sheet</a>' in render_report(stored, "tear_sheet.pdf")
    option = "--backtest.tear-sheet png"
    assert f"`fintrader backtest runs/mine {option}` draws" in render_report(stored)
    again = replace(context, command="fintrader backtest far/mine --env.cost-bps 5")
    for more in ("", " --backtest.tear-sheet none"):
        refused = replace(again, command=again.command + more)
        page = render_report(tabulate({"ensemble": result}, refused))
        assert f"`{again.command} {option}` draws" in page
    short = simulate(noisy_policy(3), make_market(420, 3), EnvSettings())
    page = render_report(tabulate({"ensemble": short}, context))
    assert f"pyfolio needs {LEAST_SESSIONS} sessions" in html.unescape(page)
    assert option not in page
    assert "tear sheet" not in render_report(tabulate({"ensemble": result}))


def test_a_backtest_links_its_newest_tear_sheet(tmp_path, monkeypatch):
    def write(path, _):
        path.write_bytes(b"a sheet")
        return path

    monkeypatch.setattr(evaluation, "write_tear_sheet", write)
    stored = tabulate({"ensemble": simulate(noisy_policy(3), make_market(60, 3), EnvSettings())})
    for wanted, links in {"png": ["tear_sheet.png"], "pdf": ["tear_sheet.pdf"], "none": []}.items():
        config = SimpleNamespace(backtest=SimpleNamespace(tear_sheet=wanted))
        evaluation._draw(config, stored, tmp_path)
        page = (tmp_path / "report.html").read_text()
        assert re.findall(r'<a href="([^"]+)">Tear sheet</a>', page) == links
        assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", *links]


@pytest.mark.slow
def test_tear_sheet(runs, tmp_path):
    pytest.importorskip("pyfolio")
    stored = next(iter(runs.values()))
    path = write_tear_sheet(tmp_path / "tear.png", stored)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    returns, positions, *_ = tear_sheet_inputs(stored, "ensemble")
    total = positions.sum(axis=1).to_numpy()
    assert total == pytest.approx(stored.daily()["ensemble"].to_numpy(), rel=1e-9)
    assert np.prod(1 + returns.to_numpy()) - 1 == pytest.approx(
        stored.metrics["ensemble"]["cumulative_return"]
    )
    with pytest.raises(BacktestError, match=r"\.png or a \.pdf"):
        write_tear_sheet(tmp_path / "tear.txt", stored)
    short = StoredBacktest(
        stored.metrics, {**stored.parts, "equity": stored.equity[stored.equity["session"] < 5]}
    )
    with pytest.raises(BacktestError, match="pyfolio needs 22 sessions, and there are 5"):
        write_tear_sheet(tmp_path / "tear.png", short)
    assert write_tear_sheet(tmp_path / "tear.pdf", stored).read_bytes().startswith(b"%PDF")
