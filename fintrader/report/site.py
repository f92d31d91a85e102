"""A run as a folder of static pages for any web host: its verdict, its race, and a report for each
backtested window. Equal runs give equal bytes."""

from __future__ import annotations

from pathlib import Path

from fintrader.errors import RunError, UnsafePathError
from fintrader.files import make_folder, remove, write_bytes, write_text
from fintrader.numerals import DASH, count, score
from fintrader.report.html import render_report
from fintrader.report.page import Page
from fintrader.report.tearsheet import FORMATS
from fintrader.results.figures.skill import trials_figure
from fintrader.results.formatting import describe_score
from fintrader.results.leaderboard_reader import read_leaderboard, read_pods
from fintrader.results.run import WINDOWS, Run
from fintrader.results.sections import BacktestView, Chart, Section, present_curves, present_verdict
from fintrader.results.table import Table

MARK = ".fintrader-site"
"""File that marks a folder as an export, whose pages may be replaced."""


def write_site(run: Run, out: Path) -> Path:
    """Write the pages of a run to the folder `out`; return its index.html. Pages of an earlier
    export are replaced, all other files stay.

    Raises RunError for a run without a backtest, UnsafePathError when `out` holds a file of a
    page's name that no export wrote.
    """
    if run.config.get("env", {}).get("kind") == "gymnasium":
        raise RunError(f"{run.name}: its page is {run.folder.root / 'evaluation' / 'report.html'}")
    backtests = run.backtests
    if not backtests:
        raise RunError(f"{run.name}: it has no backtest yet; let `fintrader run` finish first")
    pages = {
        window: [f"report-{window}.html", *(f"tear_sheet-{window}{ending}" for ending in FORMATS)]
        for window in WINDOWS
    }
    written = ["index.html", *(name for names in pages.values() for name in names)]
    foreign = [name for name in written if (out / name).exists()]
    if foreign and not (out / MARK).is_file():
        raise UnsafePathError(
            f"{out} has a {foreign[0]} that no export wrote; choose another --out"
        )
    view = BacktestView.of(next(iter(backtests.values())))
    page = Page(run.name)
    page.add_header(run.name, present_verdict(view))
    page.add(present_curves(view))
    make_folder(out)
    write_text(out / MARK, "")
    for window, names in pages.items():
        for name in names:
            remove(out / name)
        if window not in backtests:
            continue
        page.link(f"Report of the {window} window", names[0])
        address = ""
        for name, ending in zip(names[1:], FORMATS, strict=True):
            sheet = run.folder.backtest_of(window) / f"tear_sheet{ending}"
            if sheet.is_file():
                address = name
                write_bytes(out / name, sheet.read_bytes())
                page.link(f"Tear sheet, {window}", name)
        write_text(out / names[0], render_report(backtests[window], address))
    metric = run.config.get("tournament", {}).get("metric")
    for number, raced in enumerate(run.folds or (run,), 1):
        page.add(_present_race(raced, f"race-{number}", metric))
    write_text(out / "index.html", page.render())
    return out / "index.html"


def _present_race(run: Run, key: str, metric: object) -> Section:
    """Present a tournament: its leaderboard, and the scores of all trials."""
    rows = read_leaderboard(run.folder.leaderboard, benchmark=True)
    cells = [
        (
            DASH if row.rank is None else str(row.rank),
            row.pod,
            score(row.score),
            row.algo or DASH,
            row.origin,
            row.parent or DASH,
            DASH if row.env_steps is None else count(row.env_steps),
        )
        for row in rows
    ]
    columns = ("Rank", "Pod", "Score", "Algorithm", "Origin", "Parent", "Env-steps")
    table = Table.of(
        columns, cells, notes=[describe_score(metric)], words=columns[1:2] + columns[3:6]
    )
    pods = read_pods(run.folder.leaderboard)
    scores = {pod.pod: pod.score for pod in pods if pod.score is not None}

    def draw() -> object:
        import pandas as pd

        return trials_figure(pd.Series(scores))

    title = f"The race of {run.name}: {count(len(pods))} pods"
    return Section(key, title, figures=[Chart(f"trials-{key}", draw)], tables=[table])
