"""One content, three screens: terminal, report and app show the same sections of a backtest."""

import html
import re
from copy import copy

import pytest

pytest.importorskip("streamlit")

from fintrader import cli
from fintrader.files import write_json
from fintrader.pipeline.backtest_context import add_ensembles
from fintrader.records import to_json
from fintrader.report.html import render_report
from fintrader.report.run_comparison import render_comparison
from fintrader.results.formatting import PAPER_COLUMNS, format_title, statistic
from fintrader.results.run import Run
from fintrader.results.sections import (
    BacktestView,
    present_backtest,
    present_periods,
    present_search,
)
from fintrader.runs import RunFolder
from fintrader.tournament.ensemble import StoredEnsemble
from fintrader_app import tables
from fintrader_app.shell import plain
from fintrader_app.views.backtest import TABS
from tests.app.conftest import cards, healthy, open_page, said, texts_of  # noqa: F401


@pytest.fixture(scope="module")
def stored(template):
    return Run(template / "runs" / "demo").backtest()


@pytest.fixture(scope="module")
def sections(stored):
    return present_backtest(BacktestView.of(stored.on_clock(stored.market_timezone)))


def squeeze(text):
    """Drop blanks, which a screen may break anywhere."""
    return re.sub(r"\s+", "", text)


def words_of(section):
    yield from (section.title, section.headline, section.warning, *section.notes)
    for table in section.tables:
        yield from (table.title, *table.columns, *table.notes)
        for row in table.rows:
            yield from (*row.cells, row.note)


def test_the_report_says_every_word_of_every_section(stored, sections):
    page = squeeze(html.unescape(re.sub("<[^>]*>", "", render_report(stored)))).replace("`", "")
    assert len(sections) > 15
    for section in sections:
        for words in words_of(section):
            assert squeeze(words.replace("`", "")) in page, (section.key, words)


def test_the_search_says_how_alike_the_members_are(tmp_path, stored):
    kept = ((1.0, 0.3, None), (0.3, 1.0, 0.97), (None, 0.97, 1.0))
    three = StoredEnsemble(members=("p0", "p1", "p2"), correlations=kept)
    alone = StoredEnsemble(members=("p0",), correlations=((1.0,),))
    for name, ensemble in (("three", three), ("alone", alone)):
        write_json(RunFolder(tmp_path / name).ensemble / "ensemble.json", to_json(ensemble))
    shown = copy(stored)
    shown.context = add_ensembles(stored.context, [RunFolder(tmp_path / "three")])
    assert shown.context.correlations == (0.3, 0.97)
    sentence = "Validation excess returns of the members correlate pairwise by 0.30 to 0.97."
    assert sentence in present_search(BacktestView.of(shown)).notes
    assert sentence in render_report(shown)
    shown.context = add_ensembles(stored.context, [RunFolder(tmp_path / "alone")])
    assert "two members" not in str(present_search(BacktestView.of(shown)))


def test_the_terminal_prints_every_cell(sections):
    for section in sections:
        for table in section.tables:
            printed = squeeze(str(table))
            if not any(len(cell) > 30 for row in table.rows for cell in row.cells):
                for row in table.rows:
                    assert squeeze("".join(row.cells)) in printed, (section.key, row)
            for note in table.notes:
                assert squeeze(note) in printed


def test_a_run_prints_the_papers_table_of_the_report(template, stored, sections):
    run = Run(template / "runs" / "demo")
    paper = next(section for section in sections if section.key == "baselines").tables[0]
    rows = {row.cells[0]: row.cells[1:] for row in paper.rows}
    assert list(rows) == [format_title(name) for name in stored.strategies]
    printed = {
        cells[0]: tuple(cells[1:])
        for line in repr(run).split("Against")[0].splitlines()
        if len(cells := re.split(r"\s{2,}", line)) == len(PAPER_COLUMNS) + 1
    }
    notebook = run._repr_html_()
    for name, cells in rows.items():
        assert printed[name] == cells
        assert all(f">{html.escape(cell)}</td>" in notebook for cell in cells)
    other = render_comparison({"one": stored, "two": stored})
    row = re.search(r"<tr[^>]*><t[hd][^>]*>one<.*?</tr>", other[other.index("<h2>Runs") :], re.S)
    shown = re.findall(r"<td[^>]*>(.*?)</td>", row[0])
    assert tuple(shown[: len(PAPER_COLUMNS)]) == rows["Ensemble"]


@pytest.mark.slow
def test_the_app_shows_the_sections_of_the_report(template, stored, sections, open_page):
    view = BacktestView.of(stored)
    choice = {"run": "demo", "strategy": view.main, "compared": ",".join(view.others)}
    tests = [open_page(template, "backtest", part=part, **choice) for part in TABS]
    tests.append(open_page(template, "honesty", run="demo"))
    frames = []
    for test in tests:
        healthy(test)
        frames += map(texts_of, test.dataframe)
    text = " ".join(map(said, tests))
    compared = 0
    own = {"fills", "data", "provenance"}  # the app has candles, a market page and a settings page
    periods = present_periods(view)  # the report keeps to the closest rivals, for want of width
    sections = [periods if section.key == periods.key else section for section in sections]
    for section in sections:
        if section.key in own:
            continue
        assert section.tone is not None or plain(section.title) in text, section.key
        for table in section.tables:
            if table.has_heading:
                rows = [row.cells for row in table.rows]
                assert any(
                    [tuple(map(str, row))[: len(table.columns)] for row in frame.to_numpy()] == rows
                    for frame in frames
                ), (section.key, table.columns)
                compared += len(rows)
    assert compared > 100
    for key, title in tables.SHORT_HEADLINE[:-1]:  # ten sessions: nothing of a year
        assert cards(tests[0])[title] == statistic(key, stored.metrics["ensemble"][key])


def test_scores_in_terminal_and_app(site, open_page, capsys):
    (site / "runs" / "demo" / "tournament.json").write_text("{}")
    cli.main(["status", str(site / "runs" / "demo")])
    printed = capsys.readouterr().out
    test = open_page(site, "tournament", run="demo")
    top = Run(site / "runs" / "demo").leaderboard.iloc[0]
    line = next(line for line in printed.splitlines() if top["pod"] in line)
    assert re.split(r"\s{2,}", line.strip())[2] == cards(test)["Best score"]
