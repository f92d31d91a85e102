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

from fintrader.bars.bars import COLUMNS, PRICES
from fintrader.files import write_json, write_text
from fintrader.market.compare_bars import BarComparison, ColumnDifference, Suspicion
from fintrader.records import to_json
from fintrader.report.page import Page
from fintrader.results.figures.style import layout
from fintrader.results.formatting import DASH, count
from fintrader.results.sections import Chart, Section
from fintrader.results.table import Table

SHADES = (
    (0.0, "#eef4fb"),
    (0.25, "#a9cbe6"),
    (0.5, "#f4c98b"),
    (0.75, "#d9730d"),
    (1.0, "#7a1a12"),
)
"""From no difference to a large one."""
LEAST_BPS = 0.01
MOST_BPS = 10_000.0
"""Ends of the logarithmic scale; values beyond have the colour of the end."""
SHOWN = 12
NUMBERS = ("Median, bps", "99 %, bps", "Largest, bps", "Mean, bps")
KINDS = {
    "scale": "another scale",
    "volume_scale": "volumes in another unit",
    "shift": "times moved",
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
    """Merge the suspicions that several symbols share, the widest first."""
    groups: dict[tuple[str, float], list[Suspicion]] = defaultdict(list)
    for one in report.suspicions:
        key = one.value if one.kind == "shift" else round(float(np.log(one.value)), 1)
        groups[one.kind, key].append(one)
    found = [
        SharedSuspicion(
            kind=kind,
            symbols=tuple(sorted({one.symbol for one in ones})),
            first=min(one.first for one in ones),
            last=max(one.last for one in ones),
            symbol_days=sum(one.sessions for one in ones),
            detail=ones[0].detail,
        )
        for (kind, _), ones in groups.items()
    ]
    return sorted(found, key=lambda one: -one.symbol_days)


def describe(report: BarComparison) -> str:
    """The report as lines for a terminal."""
    lines = [f"A: {report.a.name}, B: {report.b.name}", _lead(report)]
    for side, names in (("A", report.symbols_only_a), ("B", report.symbols_only_b)):
        lines += [f"symbols only in {side}: {_some(names)}"] if names else []
    lines.append(f"  {'':<8}{'cells':>12}{'agree':>9}" + "".join(f"{name:>14}" for name in NUMBERS))
    for name, column in report.columns.items():
        if column.cells:
            numbers = "".join(f"{value:>14,.2f}" for value in _list_numbers(column))
            lines.append(f"  {name:<8}{column.cells:>12,}{column.agree:>9.2%}{numbers}")
    suspects = merge_suspicions(report)
    lines += [
        f"  {KINDS[one.kind]}? {one.detail}: {_some(one.symbols)}, {one.first} to {one.last}"
        for one in suspects[:SHOWN]
    ]
    if len(suspects) > SHOWN:
        lines.append(f"  and {len(suspects) - SHOWN} more suspicions")
    return "\n".join(lines)


def _lead(report: BarComparison) -> str:
    return (
        f"{len(report.symbols)} symbols of both, {report.sessions[0]} to"
        f" {report.sessions[-1]}, bars of {report.bar_minutes} minutes: of {report.bars:,} bars"
        f" {report.agree:,} agree within {report.tolerance_bps:g} bps in all prices;"
        f" {report.only_a:,} only in A, {report.only_b:,} only in B"
    )


def render_comparison(report: BarComparison) -> str:
    """Render the report as one HTML page that needs nothing else."""
    page = Page(f"{report.a.name} against {report.b.name}")
    page.add_header("Two sources of bars", _present_finding(report))
    page.add(_present_columns(report))
    page.add(_present_suspicions(report))
    heat = partial(
        heat_map, report, _find_worst(report), "Largest price difference of each day, bps"
    )
    page.add(
        Section(
            key="heat-map",
            title="By symbol and day",
            figures=(Chart("prices", heat),),
            notes=("Blank where the two have no bar in common.",),
        )
    )
    if report.only_a or report.only_b:
        alone = Chart("alone", partial(_draw_alone, report))
        page.add(Section("only-one", "Bars that only one has", figures=(alone,)))
    page.add(_present_symbols(report))
    details = tuple(
        Chart(
            name,
            partial(
                heat_map,
                report,
                report.days[name],
                f"{name.capitalize()}: largest difference, bps",
            ),
        )
        for name in COLUMNS
        if report.columns[name].cells
    )
    page.add(Section("details", "By column, symbol and day", figures=details))
    return page.render()


def _present_finding(report: BarComparison) -> Section:
    share = report.agree / report.bars if report.bars else 0.0
    about = "; ".join(
        f"{letter}: {side.name}, {count(side.rows)} rows, {count(side.repeated)} of them repeated"
        for letter, side in (("A", report.a), ("B", report.b))
    )
    return Section(
        key="finding",
        title=f"{share:.1%} of the bars agree.",
        headline=f"{_lead(report)}.",
        notes=(about,),
        tone="good" if share > 0.99 else "doubt",
    )


def _present_columns(report: BarComparison) -> Section:
    rows = [(name, *_cells(column)) for name, column in report.columns.items()]
    note = (
        "Prices: 10,000 (B / A - 1); volume: 10,000 (B - A) / the larger. Median, 99 % and largest"
        f" are of the absolute difference. A cell agrees within {report.tolerance_bps:g} bps."
    )
    table = Table.of(("Column", "Cells", "Agree", *NUMBERS), rows, notes=[note])
    return Section("columns", "By column", tables=(table,))


def write_comparison(report: BarComparison, folder: Path) -> tuple[Path, Path]:
    """Write `comparison.json` and `comparison.html` (self-contained); returns both paths."""
    write_json(folder / "comparison.json", to_json(report))
    write_text(folder / "comparison.html", render_comparison(report))
    return folder / "comparison.json", folder / "comparison.html"


def heat_map(
    report: BarComparison, values: Sequence[Sequence[float | None]], title: str
) -> go.Figure:
    """Symbols by sessions, differences in bps on a logarithmic scale."""
    cells = np.array(
        [[np.nan if cell is None else cell for cell in row] for row in values], dtype=np.float64
    )
    ticks = [LEAST_BPS, 0.1, 1.0, 10.0, 100.0, 1000.0, MOST_BPS]
    return _map(
        report,
        np.round(np.log10(np.clip(cells, LEAST_BPS, MOST_BPS)), 2),
        cells,
        title,
        hover="%{y}, %{x}: %{customdata:,.2f} bps",
        zmin=float(np.log10(LEAST_BPS)),
        zmax=float(np.log10(MOST_BPS)),
        colorbar={
            "tickvals": np.log10(ticks).tolist(),
            "ticktext": [f"{tick:g}" for tick in ticks],
        },
    )


def _draw_alone(report: BarComparison) -> go.Figure:
    """Bars that one side lacks: how many more B has than A."""
    days = report.days
    alone = np.array(days["only_b"], dtype=np.float64) - np.array(days["only_a"], dtype=np.float64)
    most = max(float(np.abs(alone).max()), 1.0)
    title = "Bars only in B (red) less bars only in A (blue)"
    hover = "%{y}, %{x}: %{customdata:+,.0f} bars"
    scale = [[0.0, "#0b4f9e"], [0.5, "#ffffff"], [1.0, "#b42318"]]
    return _map(report, alone, alone, title, hover=hover, zmin=-most, zmax=most, colorscale=scale)


def _map(
    report: BarComparison, z: Any, shown: Any, title: str, *, hover: str, **look: Any
) -> go.Figure:
    symbols = report.symbols
    gap = 0.5 if len(report.sessions) <= 300 else 0.0  # finer cells would be nothing but gap
    look = {"colorscale": [list(one) for one in SHADES], "xgap": gap, "ygap": 0.5, **look}
    look["colorbar"] = {"thickness": 12, "outlinewidth": 0, **look.get("colorbar", {})}
    look |= {
        "x": report.sessions,
        "y": symbols,
        "customdata": shown,
        "hovertemplate": f"{hover}<extra></extra>",
    }
    height = max(260, 13 * len(symbols) + 130)
    figure = layout(
        go.Figure(go.Heatmap(z=z, **look)), title, "", height=height, hovermode="closest"
    )
    figure.update_yaxes(
        autorange="reversed", type="category", dtick=1, tickfont={"size": 9}, showgrid=False
    )
    return figure.update_xaxes(type="category", nticks=10, tickangle=0)


def _find_worst(report: BarComparison) -> list[list[float | None]]:
    """The largest difference of any price, by symbol and session."""
    tables = [report.days[name] for name in PRICES]
    return [
        [
            max((cell for cell in cells if cell is not None), default=None)
            for cells in zip(*rows, strict=True)
        ]
        for rows in zip(*tables, strict=True)
    ]


def _list_numbers(column: ColumnDifference) -> tuple[float | None, ...]:
    return (column.median_bps, column.p99_bps, column.largest_bps, column.mean_bps)


def _cells(column: ColumnDifference) -> list[str]:
    if not column.cells:
        return ["0", *[DASH] * (1 + len(NUMBERS))]
    return [
        count(column.cells),
        f"{column.agree:.2%}",
        *(f"{value:,.2f}" for value in _list_numbers(column)),
    ]


def _present_suspicions(report: BarComparison) -> Section:
    key = "explanations"
    title = "Possible explanations"
    found = merge_suspicions(report)
    if not found:
        none = "Neither a scale nor a shift in time that would explain differences."
        return Section(key, title, notes=(none,))
    rows = [
        (
            KINDS[one.kind].capitalize(),
            one.detail,
            _some(one.symbols),
            one.first,
            one.last,
            count(one.symbol_days),
        )
        for one in found
    ]
    words = ("Kind", "Detail", "Symbols", "First day", "Last day")
    return Section(key, title, tables=(Table.of((*words, "Symbol-days"), rows, words=words),))


def _present_symbols(report: BarComparison) -> Section:
    columns = (
        "Symbol",
        "Bars of both",
        "Agree",
        "Only A",
        "Only B",
        *(f"{name.capitalize()}, median" for name in COLUMNS),
    )
    rows = []
    for row in report.by_symbol:
        medians = [row.columns[name].median_bps for name in COLUMNS]
        cells = (
            row.symbol,
            count(row.both),
            f"{row.agree / row.both:.1%}" if row.both else DASH,
            count(row.only_a),
            count(row.only_b),
        )
        rows.append((*cells, *(DASH if value is None else f"{value:,.2f}" for value in medians)))
    lacking = {"A": report.symbols_only_a, "B": report.symbols_only_b}
    notes = [f"Only in {side}: {', '.join(names)}." for side, names in lacking.items() if names]
    return Section("symbols", "By symbol", tables=(Table.of(columns, rows),), notes=tuple(notes))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
