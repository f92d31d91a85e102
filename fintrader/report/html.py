"""`report.html`: the sections of a backtest on one self-contained page, verdict first. It uses no
network and no wall clock, so equal inputs give equal bytes."""

from __future__ import annotations

from pathlib import Path

from fintrader.files import write_text
from fintrader.report.page import Page
from fintrader.report.recipe import element, record_of
from fintrader.report.tearsheet import explain_absence
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.sections import BacktestView, Section, present_backtest

FIRST_PAGE = ("equity", "periods")
"""Sections that an allocator reads below the verdict; all others are folded."""


def render_report(stored: StoredBacktest, sheet: str = "") -> str:
    """Render the page as text, its times the market's own, with a link to the tear sheet at the
    address `sheet`. Equal tables give equal text."""
    view = BacktestView.of(stored.on_clock(stored.market_timezone))
    verdict, *sections = present_backtest(view)
    run = stored.context.run or "Backtest"
    metrics = {name: values.by_key() for name, values in stored.metrics.items()}
    page = Page(f"{run}: {view.title}", element(record_of(stored.context, metrics)))
    page.add_header(run, verdict)
    for section in sections:
        page.add(section, is_folded=section.key not in FIRST_PAGE)
    if sheet:
        page.link("Tear sheet", sheet)
    elif "config" in stored.context.recipe:
        absence = Section("tear-sheet", "Tear sheet", notes=[explain_absence(stored)])
        page.add(absence, is_folded=True)
    return page.render()


def write_report(path: Path, stored: StoredBacktest, sheet: str = "") -> Path:
    """Write the page as one self-contained HTML file, atomically; `sheet`: address of the tear
    sheet, relative to it."""
    write_text(path, render_report(stored, sheet))
    return path
