import html
import re

import pytest

pytest.importorskip("streamlit")

from fintrader import cli
from fintrader.report.html import render_report
from fintrader.report.run_comparison import render_comparison
from fintrader.results.catalogue import CATALOGUE
from fintrader.results.figures import title_of
from fintrader.results.formatting import ACTIVE_COLUMNS, DASH, PAPER_COLUMNS, statistic
from fintrader.results.run import Run
from fintrader_app import tables
from fintrader_app.shell import human
from tests.app.conftest import Open, cards, healthy, open_page, said, table_with  # noqa: F401


@pytest.fixture(scope="module")
def stored(template):
    return Run(template / "runs" / "demo").backtest()


def rows_of(page):
    """First cell of each table row -> the other cells, as text; of equal first cells the first."""
    found = {}
    for row in re.findall(r"<tr[^>]*>(.*?)</tr>", page, re.S):
        row = re.sub(r'<span class="note">.*?</span>', "", row, flags=re.S)
        first, *rest = [
            html.unescape(re.sub("<[^>]*>", "", c))
            for c in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
        ]
        found.setdefault(first, rest)
    return found


def lines_of(text):
    """The same of a printed table."""
    found = {}
    for line in text.splitlines():
        if len(cells := re.split(r"\s{2,}", line)) > 1:
            found.setdefault(cells[0], cells[1:])
    return found


@pytest.fixture(scope="module")
def report(stored):
    return rows_of(render_report(stored))


def test_every_metric_in_report_and_app(template, stored, report, open_page):
    beside = ",".join(name for name in stored.strategies if name != "ensemble")
    test = open_page(
        template, "backtest", run="demo", part="metrics", strategy="ensemble", beside=beside
    )
    healthy(test)
    table = table_with(test, "Formula").set_index("Metric")
    titles = [title_of(name) for name in stored.strategies]
    heads = [rest for first, rest in report.items() if first == "Return"]
    assert heads[0] == titles
    compared = 0
    for metric in CATALOGUE:
        for name, text in zip(stored.strategies, report[metric.title], strict=True):
            assert table.loc[metric.title, human(name)] == text, (metric.key, name)
            compared += 1
    assert compared == len(CATALOGUE) * len(stored.strategies)
    for key, title in tables.SHORT_HEADLINE[:-1]:  # ten sessions: nothing of a year, on either page
        assert (
            cards(test)[title]
            == statistic(key, stored.metrics["ensemble"][key])
            == report[_title(key)][0]
        )
    of_a_year = [
        metric for metric in CATALOGUE if metric.unit.endswith("a year") or "annual" in metric.key
    ]
    assert len(of_a_year) > 8
    for metric in of_a_year:
        assert set(report[metric.title][: len(stored.strategies)]) == {DASH}, metric.key


def _title(key):
    return next(metric.title for metric in CATALOGUE if metric.key == key)


def test_the_papers_table_in_report_terminal_and_notebook(template, stored, report):
    run = Run(template / "runs" / "demo")
    page = render_report(stored)
    printed = repr(run)
    notebook = run._repr_html_()
    other = render_comparison({"one": stored, "two": stored})
    paper = [lines_of(printed), rows_of(notebook), report]
    where = "Against cash"
    active = [
        lines_of(printed[printed.index(where) :]),
        *(rows_of(t[t.index(where) :]) for t in (notebook, page)),
    ]
    for (terminal, html_, shown), count in (
        (paper, len(PAPER_COLUMNS)),
        (active, len(ACTIVE_COLUMNS) + 1),
    ):
        for name in stored.strategies:
            cells = terminal[name.replace("_", " ")]
            assert len(cells) == count
            assert cells == html_[name.replace("_", " ")] == shown[title_of(name)][:count]
    other = other[other.index("<h2>Runs") :]  # the verdicts come first
    assert rows_of(other)["one"][: len(PAPER_COLUMNS)] == report["Ensemble"][: len(PAPER_COLUMNS)]


def test_the_evidence_in_report_and_app(template, stored, report, open_page):
    test = open_page(template, "honesty", run="demo")
    healthy(test)
    assert cards(test)["Look"] == report["Look at this window"][0] == "2"
    assert cards(test)["p-value"] == DASH, "ten sessions have no test"
    assert "p-value" not in report
    assert report["E-value"][0].startswith(f"{cards(test)['E-value']}, most ")
    bands = table_with(test, "Estimate").set_index("Metric")
    assert set(bands.index) == {"Sharpe ratio", "Max drawdown, sessions"}, (
        "thirty sessions have no annual return"
    )
    low, high = bands.loc["Max drawdown, sessions", ["Low", "High"]]
    assert f"{low} to {high}" == report["Max drawdown, sessions, 95 % interval"][0]
    rivals = table_with(test, "Against").set_index("Against")
    page = render_report(stored)
    excess = rows_of(page[page.index("Excess over") :])
    for name, row in rivals.iterrows():
        band = f"{row['Low']} to {row['High']}"
        assert excess[str(name)] == [row["Excess in the window"], band, row["p, paired bootstrap"]]
    above = stored.verdict.random_portfolios.share_above.cumulative_return
    assert (
        report["Random static portfolios"][0]
        == f"{statistic('cumulative_return', above)} did better"
    )
    assert f"cumulative return {statistic('cumulative_return', above)}" in said(test)
    choices = table_with(test, "Choice")
    changed = rows_of(page[page.index("<h2>What if one choice") :])
    for setting, returned, sharpe in zip(
        choices["Setting"], choices["Return"], choices["Sharpe"], strict=True
    ):
        plain = setting.removesuffix(" (as run)").replace("_", " ")
        row = next(
            cells
            for first, cells in changed.items()
            if first.endswith(f": {plain}") and cells[0] == returned
        )
        assert row[1] == sharpe


def test_scores_in_terminal_and_app(site, open_page, capsys):
    (site / "runs" / "demo" / "tournament.json").write_text("{}")
    cli.main(["status", str(site / "runs" / "demo")])
    printed = capsys.readouterr().out
    test = open_page(site, "tournament", run="demo")
    top = Run(site / "runs" / "demo").leaderboard.iloc[0]
    line = next(line for line in printed.splitlines() if top["pod"] in line)
    assert line.split("│")[3].strip() == cards(test)["Best score"]
