"""Several runs on one page: the result and the verdict of the main strategy of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fintrader.errors import BacktestError
from fintrader.files import write_text
from fintrader.numerals import DASH, chance, count, percent
from fintrader.report.page import Page
from fintrader.results import figures
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.formatting import (
    ACTIVE_COLUMNS,
    INTERVAL,
    PAPER_COLUMNS,
    explain_short_window,
    format_metric,
    format_title,
    look_words,
    main_strategy,
    rival_name,
)
from fintrader.results.sections import BacktestView, Chart, Section, present_origin
from fintrader.results.sections.comparison import present_comparison
from fintrader.results.table import Row, Table, format_active


def labels(places: Sequence[str]) -> list[str]:
    """Name each path or URL by its last part, and by parts above it until all names differ.

    The name of a window's folder (`RUN/backtest/WINDOW`) has its run in it. Raises BacktestError
    for a place named twice.
    """
    parts = [
        tuple(place.rstrip("/").split("/")) if "://" in place else Path(place).resolve().parts
        for place in places
    ]
    found = []
    for own, place in zip(parts, places, strict=True):
        others = [other for other in parts if other != own]
        if len(others) < len(parts) - 1:
            raise BacktestError(f"{place} is named twice; a comparison needs different backtests")
        depth = 3 if own[-2:-1] == ("backtest",) else 1
        while any(other[-depth:] == own[-depth:] for other in others):
            depth += 1
        found.append("/".join(own[-depth:]))
    return found


def render_comparison(runs: Mapping[str, StoredBacktest]) -> str:
    """Render the page as text; `runs` maps a run's name to its stored backtest. Raises
    BacktestError for fewer than two runs."""
    if len(runs) < 2:
        raise BacktestError("a comparison needs at least two backtests")
    page = Page("Comparison of runs")
    page.add_header("Comparison", present_comparison(runs))
    page.add(Section("verdicts", "Verdict of each run", tables=[_tabulate_verdicts(runs)]))
    page.add(Section("runs", "Runs", tables=[_tabulate_runs(runs)]))
    daily = {
        name: stored.daily_returns()[main_strategy(stored.strategies)]
        for name, stored in runs.items()
    }
    charts = (
        Chart("growth", partial(figures.growth_figure, daily)),
        Chart("drawdown", partial(figures.growth_figure, daily, drawdown=True)),
    )
    page.add(Section("growth", "Wealth and drawdown", figures=charts))
    for number, (name, stored) in enumerate(runs.items(), 1):
        origin = present_origin(BacktestView.of(stored))
        page.add(replace(origin, key=f"run-{number}", title=name))
    return page.render()


def write_comparison(path: Path, runs: Mapping[str, StoredBacktest]) -> Path:
    """Write the comparison as one self-contained HTML file, atomically."""
    write_text(path, render_comparison(runs))
    return path


def _tabulate_verdicts(runs: Mapping[str, StoredBacktest]) -> Table:
    rows = []
    for name, stored in runs.items():
        opening = stored.opening
        cells = (name, opening.headline, opening.why, f"{opening.sees} {opening.change}".strip())
        rows.append(Row(cells, is_main=opening.is_skill))
    columns = ("Run", "Verdict", "Why", "Power, and evidence needed")
    return Table(columns, rows, words=columns)


def _tabulate_runs(runs: Mapping[str, StoredBacktest]) -> Table:
    rows = []
    for name, stored in runs.items():
        main = main_strategy(stored.strategies)
        own = stored.metrics[main]
        alpha = None if stored.verdict is None else stored.verdict.evidence.alpha
        first, last = stored.minutes[[0, -1]].strftime("%d %b %Y")
        against = f", against {rival_name(stored.portfolio)}" if stored.portfolio else ""
        rivals = (stored.find_metrics(rival) for rival in ("equal_weight", "benchmark"))
        cells = (
            name,
            *(format_metric(key, own) for key, _ in PAPER_COLUMNS),
            *format_active(own),
            count(stored.context.trials),
            look_words(stored.verdict),
            DASH if alpha is None else chance(alpha.p_value),
            *(percent(rival.cumulative_return) for rival in rivals),
        )
        rows.append(Row(cells, note=f"{format_title(main)}, {first} to {last}{against}"))
    headings = (heading for _, heading in (*PAPER_COLUMNS, *ACTIVE_COLUMNS))
    columns = ("Run", *headings, INTERVAL, "Trials", "Look", "p", "Equal weight", "Index")
    short = explain_short_window(
        stored.metrics[main_strategy(stored.strategies)] for stored in runs.values()
    )
    caption = (
        "Equal weight and Index: cumulative returns of these baselines in the run's own window."
        " Active figures are against the benchmark portfolio named below the run, net of costs."
    )
    return Table(columns, rows, notes=[caption, *short])
