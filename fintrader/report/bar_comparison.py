"""A comparison of two sets of bars (`market.compare_bars`) as lines for a terminal, and as a page
with a heat map."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fintrader.bars.bars import COLUMNS, PRICES, Array
from fintrader.files import write_json, write_text
from fintrader.market.compare_bars import BarComparison, Suspicion
from fintrader.numerals import DASH, count, percent, ratio
from fintrader.progress import shorten_list
from fintrader.records import to_json
from fintrader.report.page import Page
from fintrader.results.figures.style import layout
from fintrader.results.sections import Chart, Section
from fintrader.results.table import Table

SHADES = (
    (0.0, "#eef4fb"),
    (0.25, "#a9cbe6"),
    (0.5, "#f4c98b"),
    (0.75, "#d9730d"),
    (1.0, "#7a1a12"),
)
"""Colours of the heat map, from no difference to a large one."""
LEAST_BPS = 0.01
MOST_BPS = 10_000.0
"""Ends of the logarithmic colour scale; values beyond an end have its colour."""
KINDS = {
    "scale": "Another scale",
    "volume_scale": "Volumes in another unit",
    "shift": "Times moved",
}


@dataclass(frozen=True)
class SharedSuspicion:
    """Suspicions of one kind and value that several symbols share."""

    kind: str
    symbols: tuple[str, ...]
    first: str
    last: str
    symbol_days: int
    detail: str


def merge_suspicions(report: BarComparison) -> list[SharedSuspicion]:
    """Merge the suspicions that several symbols share; those with the most symbol-days come
    first."""
    groups: dict[tuple[str, float], list[Suspicion]] = defaultdict(list)
    for suspicion in report.suspicions:
        key = suspicion.value
        if suspicion.kind != "shift":
            key = round(float(np.log(key)), 1)
        groups[suspicion.kind, key].append(suspicion)
    shared = [
        SharedSuspicion(
            kind=kind,
            symbols=tuple(sorted({one.symbol for one in group})),
            first=min(one.first for one in group),
            last=max(one.last for one in group),
            symbol_days=sum(one.sessions for one in group),
            detail=group[0].detail,
        )
        for (kind, _), group in groups.items()
    ]
    return sorted(shared, key=lambda one: -one.symbol_days)


def describe(report: BarComparison) -> str:
    """Describe the report in lines for a terminal."""
    parts = (_present_finding, _present_columns, _present_suspicions)
    return "\n".join(str(present(report)) for present in parts)


def render_comparison(report: BarComparison) -> str:
    """Render the report as one HTML page that needs no other file."""
    page = Page(f"{report.a.name} against {report.b.name}")
    page.add_header("Two sources of bars", _present_finding(report))
    page.add(_present_columns(report))
    page.add(_present_suspicions(report))
    title = "Largest price difference of each day, bps"
    worst = Chart("prices", partial(heat_map, report, PRICES, title))
    blank = "Blank where the two have no bar in common."
    page.add(Section("heat-map", "By symbol and day", figures=[worst], notes=[blank]))
    if report.only_a or report.only_b:
        alone = Chart("alone", partial(_draw_alone, report))
        page.add(Section("only-one", "Bars in one source only", figures=[alone]))
    page.add(_present_symbols(report))
    details = [
        Chart(
            name,
            partial(heat_map, report, (name,), f"{name.capitalize()}: largest difference, bps"),
        )
        for name in COLUMNS
        if report.columns[name].cells
    ]
    page.add(Section("details", "By column, symbol and day", figures=details))
    return page.render()


def _present_finding(report: BarComparison) -> Section:
    share = report.agree / report.bars if report.bars else 0.0
    about = "; ".join(
        f"{letter}: {side.name}, {count(side.rows)} rows, {count(side.repeated)} of them repeated"
        for letter, side in (("A", report.a), ("B", report.b))
    )
    lacking = {"A": report.symbols_only_a, "B": report.symbols_only_b}
    return Section(
        key="finding",
        title=f"{share:.1%} of the bars agree.",
        headline=(
            f"{len(report.symbols)} symbols in both, {report.sessions[0]} to"
            f" {report.sessions[-1]}, bars of {report.bar_minutes} minutes: of {report.bars:,} bars"
            f" {report.agree:,} agree within {report.tolerance_bps:g} bps in all prices;"
            f" {report.only_a:,} only in A, {report.only_b:,} only in B."
        ),
        notes=[
            about,
            *(
                f"Symbols only in {side}: {shorten_list(names)}."
                for side, names in lacking.items()
                if names
            ),
        ],
        tone="good" if share > 0.99 else "doubt",
    )


def _present_columns(report: BarComparison) -> Section:
    rows = [
        (
            name,
            count(column.cells),
            percent(column.agree),
            *map(ratio, (column.median_bps, column.p99_bps, column.largest_bps, column.mean_bps)),
        )
        for name, column in report.columns.items()
    ]
    note = (
        "Prices: 10,000 (B / A - 1); volume: 10,000 (B - A) / the larger. Median, 99 % and largest"
        f" are of the absolute difference. A cell agrees within {report.tolerance_bps:g} bps."
    )
    names = ("Column", "Cells", "Agree", "Median, bps", "99 %, bps", "Largest, bps", "Mean, bps")
    return Section("columns", "By column", tables=[Table.of(names, rows, notes=[note])])


def _present_suspicions(report: BarComparison) -> Section:
    found = merge_suspicions(report)
    rows = [
        (
            KINDS[one.kind],
            one.detail,
            shorten_list(one.symbols),
            one.first,
            one.last,
            count(one.symbol_days),
        )
        for one in found
    ]
    words = ("Kind", "Detail", "Symbols", "First day", "Last day")
    none = "Neither another scale nor a shift in time explains the differences."
    return Section(
        "explanations",
        "Possible explanations",
        tables=[Table.of((*words, "Symbol-days"), rows, words=words)] if found else [],
        notes=[] if found else [none],
    )


def _present_symbols(report: BarComparison) -> Section:
    columns = ("Symbol", "Bars in both", "Agree", "Only A", "Only B")
    rows = [
        (
            row.symbol,
            count(row.both),
            percent(row.agree / row.both, 1) if row.both else DASH,
            count(row.only_a),
            count(row.only_b),
            *(ratio(row.columns[name].median_bps) for name in COLUMNS),
        )
        for row in report.by_symbol
    ]
    medians = (f"{name.capitalize()}, median" for name in COLUMNS)
    return Section("symbols", "By symbol", tables=[Table.of((*columns, *medians), rows)])


def write_comparison(report: BarComparison, folder: Path) -> tuple[Path, Path]:
    """Write `comparison.json` and `comparison.html` (self-contained); returns both paths."""
    write_json(folder / "comparison.json", to_json(report))
    write_text(folder / "comparison.html", render_comparison(report))
    return folder / "comparison.json", folder / "comparison.html"


def heat_map(report: BarComparison, columns: Sequence[str], title: str) -> go.Figure:
    """Draw the largest difference of these columns for each symbol and session, in bps, on a
    logarithmic scale."""
    cells = np.fmax.reduce([_table(report, name) for name in columns])
    ticks = [LEAST_BPS, 0.1, 1.0, 10.0, 100.0, 1000.0, MOST_BPS]
    figure = _draw_map(
        report,
        np.round(np.log10(np.clip(cells, LEAST_BPS, MOST_BPS)), 2),
        title,
        customdata=cells,
        hovertemplate="%{y}, %{x}: %{customdata:,.2f} bps<extra></extra>",
        zmin=float(np.log10(LEAST_BPS)),
        zmax=float(np.log10(MOST_BPS)),
        colorscale=SHADES,
    )
    labels = [f"{tick:g}" for tick in ticks]
    figure.data[0].colorbar.update(tickvals=np.log10(ticks).tolist(), ticktext=labels)
    return figure


def _draw_alone(report: BarComparison) -> go.Figure:
    """Draw the number of bars that one side lacks, by symbol and session: bars only in B less bars
    only in A."""
    alone = _table(report, "only_b") - _table(report, "only_a")
    most = max(float(np.abs(alone).max()), 1.0)
    return _draw_map(
        report,
        alone,
        "Bars only in B (red) less bars only in A (blue)",
        hovertemplate="%{y}, %{x}: %{z:+,.0f} bars<extra></extra>",
        zmin=-most,
        zmax=most,
        colorscale=[[0.0, "#0b4f9e"], [0.5, "#ffffff"], [1.0, "#b42318"]],
    )


def _table(report: BarComparison, name: str) -> Array:
    return np.array(report.days[name], dtype=np.float64)


def _draw_map(report: BarComparison, z: Array, title: str, **look: Any) -> go.Figure:
    gap = 0.5 if len(report.sessions) <= 300 else 0.0  # smaller cells would be hidden by gaps
    bar = {"thickness": 12, "outlinewidth": 0}
    heat = go.Heatmap(
        z=z, x=report.sessions, y=report.symbols, colorbar=bar, xgap=gap, ygap=0.5, **look
    )
    height = max(260, 13 * len(report.symbols) + 130)
    figure = layout(go.Figure(heat), title, "", height=height, hovermode="closest")
    figure.update_yaxes(
        autorange="reversed", type="category", dtick=1, tickfont={"size": 9}, showgrid=False
    )
    return figure.update_xaxes(type="category", nticks=10, tickangle=0)
