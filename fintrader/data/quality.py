"""The quality report: what is wrong, missing or odd in a set of bars, by symbol and day, as JSON and as a page."""

from __future__ import annotations

import html
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fintrader.data.bars import Bars, concat
from fintrader.data.calendar import SessionGrid, session_date, session_grid
from fintrader.data.faults import KINDS, find_faults
from fintrader.data.feeds import open_feed, read_source
from fintrader.data.settings import DataSettings
from fintrader.data.sources.vendor import VendorSettings
from fintrader.errors import DataError
from fintrader.files import write_json, write_text
from fintrader.progress import SILENT, Progress


def quality_report(
    settings: DataSettings, *, cache: Path | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Faults and coverage of the bars that these settings name, as plain JSON; the bars are only looked at.

    Files are read whole, as they are. A vendor's bars are those of the store, so they need the `cache` of a build.

    `faults` lists every fault (kind, symbol, day, count, detail), `kinds` counts them, `coverage` is the share of the
    exchange's minutes in which each symbol traded, `[symbols][sessions]` (None where it has not begun or has ended),
    `early_closes` the calendar's half days. Raises DataError when the bars cannot be read at all.
    """
    settings = settings.effective()
    with (progress or SILENT).task("quality", total=2) as task:
        bars = _all_bars(settings, cache, progress)
        task.advance(note=f"{len(bars)} rows read")
        report = examine(bars, settings)
        task.advance()
    return report


def _all_bars(settings: DataSettings, cache: Path | None, progress: Progress | None) -> Bars:
    if isinstance(settings.source, VendorSettings) and cache is not None:
        feed = open_feed(settings, cache)
        feed.prepare(progress)
        return concat([feed.bars(symbol) for symbol in feed.symbols])
    return read_source(settings)


def examine(bars: Bars, settings: DataSettings, *, now: float | None = None) -> dict[str, Any]:
    """The report of bars that were read already."""
    if len(bars) == 0:
        raise DataError(f"{bars.origin}: no bars to examine")
    grid = _spanning_grid(bars, settings, now)
    faults = find_faults(bars, grid, now=now)
    coverage = _coverage(bars, grid)
    dates = [str(day) for day in grid.dates]
    minutes = grid.session_minutes
    return {
        "calendar": settings.calendar,
        "rows": len(bars),
        "symbols": list(bars.symbols),
        "sessions": dates,
        "minutes": minutes.tolist(),
        "early_closes": [day for day, count in zip(dates, minutes, strict=True) if count < minutes.max()],
        "coverage": coverage,
        "kinds": dict(sorted(Counter(fault.kind for fault in faults).items())),
        "faults": [asdict(fault) for fault in faults],
    }


def write_quality(report: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """Write `quality.json` and `quality.html` (self-contained, with a heat map of the coverage); returns both paths."""
    folder = Path(folder)
    write_json(folder / "quality.json", report)
    write_text(folder / "quality.html", quality_page(report))
    return folder / "quality.json", folder / "quality.html"


def quality_page(report: dict[str, Any]) -> str:
    """The report as one HTML page that needs nothing else."""
    rows = "\n".join(
        "<tr>"
        + "".join(f"<td>{html.escape(str(fault[key]))}</td>" for key in ("kind", "symbol", "day", "count", "detail"))
        + "</tr>"
        for fault in report["faults"]
    )
    kinds = "\n".join(
        f"<tr><td>{kind}</td><td>{count}</td><td>{html.escape(KINDS[kind])}</td></tr>"
        for kind, count in report["kinds"].items()
    )
    figure = coverage_figure(report).to_html(full_html=False, include_plotlyjs=True, div_id="coverage")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Quality of the bars</title>
<style>body{{font:14px system-ui;margin:2rem}}td,th{{padding:.2rem .7rem;text-align:left}}
table{{border-collapse:collapse}}tr:nth-child(even){{background:#f4f4f4}}</style></head><body>
<h1>Quality of the bars</h1>
<p>{len(report["symbols"])} symbols, {len(report["sessions"])} sessions of {html.escape(report["calendar"])},
{report["rows"]:,} rows; {report["sessions"][0]} to {report["sessions"][-1]}.
Half days: {", ".join(report["early_closes"]) or "none"}.</p>
<h2>Coverage</h2>{figure}
<h2>Kinds of faults</h2><table><tr><th>kind</th><th>symbol-days</th><th>meaning, and what the build does</th></tr>
{kinds}</table>
<h2>Faults</h2><table><tr><th>kind</th><th>symbol</th><th>day</th><th>bars</th><th>detail</th></tr>
{rows}</table></body></html>
"""


def coverage_figure(report: dict[str, Any]) -> Any:
    """Share of minutes with a trade, symbols by sessions, as a plotly figure."""
    import plotly.graph_objects as go

    heat = go.Heatmap(
        z=report["coverage"],
        x=report["sessions"],
        y=report["symbols"],
        zmin=0,
        zmax=1,
        colorscale="Viridis",
        colorbar={"title": "share"},
        hovertemplate="%{y} %{x}: %{z:.1%}<extra></extra>",
    )
    figure = go.Figure(heat)
    figure.update_layout(
        height=max(300, 14 * len(report["symbols"]) + 120), margin={"l": 80, "r": 20, "t": 20, "b": 40}
    )
    figure.update_yaxes(autorange="reversed", type="category")
    return figure


def _spanning_grid(bars: Bars, settings: DataSettings, now: float | None) -> SessionGrid:
    """All sessions from the first bar to the last that is not of the future."""
    import time

    latest = (time.time() if now is None else now) * 1e9
    past = bars.ts[bars.ts <= latest]
    if len(past) == 0:
        raise DataError(f"{bars.origin}: every bar lies in the future; check the times and data.source.timezone")
    first = settings.start or session_date(settings.calendar, int(past.min()))
    last = settings.end or session_date(settings.calendar, int(past.max()))
    return session_grid(settings.calendar, first, last)


def _coverage(bars: Bars, grid: SessionGrid) -> list[list[float | None]]:
    at = grid.locate(bars.ts)
    rows = np.unique(np.stack([bars.symbol[at >= 0].astype(np.int64), at[at >= 0]], axis=1), axis=0)
    counts = np.zeros((len(bars.symbols), grid.num_sessions))
    np.add.at(counts, (rows[:, 0], grid.session[rows[:, 1]]), 1)
    share = np.round(counts / grid.session_minutes, 4)
    table: list[list[float | None]] = []
    for line in share:
        days = np.flatnonzero(line)
        listed = range(days[0], days[-1] + 1) if len(days) else range(0)
        table.append([float(value) if day in listed else None for day, value in enumerate(line)])
    return table
