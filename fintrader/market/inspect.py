"""Inspection of bars and stored files without a build: a dry run, verification, and the quality
report.

The report lists faults and gaps of a set of bars, by symbol and day, as JSON and as a page.
"""

from __future__ import annotations

import html
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from fintrader.bars.bars import Bars, bar_length, concat
from fintrader.bars.calendar import SessionGrid, day_starts
from fintrader.bars.checks import KINDS, Fault, find_faults
from fintrader.bars.chunks import verify_store
from fintrader.bars.corporate_actions import (
    add_announced,
    load_actions,
    undo_adjustment,
)
from fintrader.bars.sources.bar_files import read_columns, read_files, select_files
from fintrader.bars.sources.feed import Feed
from fintrader.bars.sources.feeds import FilesFeed
from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.listing import BarFile
from fintrader.bars.sources.vendor import Request, VendorFeed
from fintrader.errors import BarError, DataError, StorageError
from fintrader.files import unseal, write_json, write_text
from fintrader.market.bar_source import open_bar_store, open_daily, open_source
from fintrader.market.build import RECORD, lay_grid, market_path
from fintrader.market.reading import read_daily, start_short_bars
from fintrader.market.settings import DataSettings, factor_column
from fintrader.progress import SILENT, Progress, shorten_list
from fintrader.records import to_json
from fintrader.results.verify import Check
from fintrader.storage.objects import ObjectStore


@dataclass(frozen=True)
class FileOutline:
    """Columns and number of rows of a file of bars."""

    name: str
    kind: str
    columns: tuple[str, ...] = ()
    rows: int | None = None
    """None where the format does not store it."""
    problem: str = ""
    """Reason why the columns cannot be used; empty without one."""


@dataclass(frozen=True)
class DryRun:
    """Everything that a build would read, request and write."""

    source: str
    store: str
    """Folder or URL of the chunks of bars."""
    files: tuple[FileOutline, ...] = ()
    requests: tuple[Request, ...] = ()
    """Requests to a vendor that the store does not answer."""
    market: Path | None = None
    """The market's file; None where it is known only after the requests, or a file has a
    problem."""
    is_built: bool = False
    """The market's file exists."""

    def describe(self) -> str:
        """Format the dry run as lines for a terminal."""
        lines = [f"source {self.source}, bars kept in {self.store}"]
        for file in self.files:
            rows = "" if file.rows is None else f", {file.rows:,} rows"
            state = file.problem or f"columns {', '.join(file.columns)}"
            lines.append(f"  {file.name} ({file.kind}{rows}): {state}")
        for symbols, first, last in self.requests:
            lines.append(f"  would request {shorten_list(symbols)}, {first} to {last}")
        if self.market is not None:
            state = "exists" if self.is_built else "would be built"
            lines.append(f"market {self.market} {state}")
        return "\n".join(lines)


def dry_run(settings: DataSettings, *, cache: Path) -> DryRun:
    """Find out what a build would do, without writing or downloading anything. Raises DataError
    when there is no file at all."""
    settings = settings.effective()
    source = settings.source
    plan = DryRun(source.kind, str(open_bar_store(settings, cache)))
    if isinstance(source, FilesSettings):
        files = tuple(_outline(file, source) for file in select_files(source, settings.bar_path))
        plan = replace(plan, files=files)
        if any(file.problem for file in files):
            return plan
    feed = open_source(settings, cache)
    if isinstance(feed, VendorFeed):
        return replace(plan, requests=tuple(feed.list_requests()))
    feed.daily = open_daily(settings)
    path = market_path(settings, feed, cache)
    return replace(plan, market=path, is_built=path.is_file())


def _outline(file: BarFile, settings: FilesSettings) -> FileOutline:
    try:
        columns = tuple(read_columns(file, settings))
        rows = None
        if file.kind == "parquet":
            with pq.ParquetFile(file.open()) as parquet:
                rows = parquet.metadata.num_rows
        return FileOutline(file.name, file.kind, columns, rows)
    except BarError as error:
        problem = str(error).removeprefix(f"{file.name}: ")
        return FileOutline(file.name, file.kind, problem=problem)


def check_stored_files(
    settings: DataSettings, *, cache: Path, progress: Progress = SILENT
) -> list[Check]:
    """Compare each stored chunk of bars and each market in the cache with its hash.

    Raises StorageError when the store cannot be reached.
    """
    store = open_bar_store(settings, cache)
    markets = sorted(cache.glob("*/market.safetensors"))
    with progress.task("verify", total=1 + len(markets), unit="files") as task:
        problems = verify_store(store)
        task.advance(note="chunks of bars")
        checks = [
            Check(
                "stored bars",
                "each chunk of bars with its hash in the manifests",
                tuple(problems),
                f"every byte in {store} is as it was written",
                "`fintrader data build CONFIG` reads or downloads damaged bars again",
            )
        ]
        for path in markets:
            checks.append(check_market(path, has_record=True))
            task.advance(note=path.parent.name)
    return checks


def check_market(path: Path, *, has_record: bool = False) -> Check:
    """Compare a market's arrays, and the record of its build where it has one, with their seals."""
    # imported here, because the rest of this module needs no torch
    from fintrader.market.tensors import MarketTensors

    problems = []
    comparisons: list[Callable[[Path], object]] = [partial(MarketTensors.load, verify=True)]
    if has_record:
        comparisons.append(_check_record)
    for compare in comparisons:
        try:
            compare(path)
        except (DataError, StorageError) as error:
            problems.append(str(error))
    return Check(
        f"market {path.absolute().parent.name}",
        "the arrays with the hash in the file, and the record of the build with its seal",
        tuple(problems),
        "every byte is as it was written",
        f"delete {_name_market(path)}; `fintrader data build CONFIG` makes the market again",
    )


def _name_market(path: Path) -> Path:
    """Return a market's folder if it holds nothing else, else the file."""
    folder = path.absolute().parent
    own = {path.name, RECORD, ".lock"}
    is_alone = path.name == "market.safetensors" and {p.name for p in folder.iterdir()} <= own
    return folder if is_alone else path


def _check_record(market: Path) -> None:
    """Raise DataError when the record of a market is missing, or differs from its seal."""
    again = f"delete {market.parent} and build it again"
    data = ObjectStore(market.parent).get(RECORD)
    if data is None:
        raise DataError(f"{RECORD} is missing; {again}")
    unseal(data, DataError(f"{RECORD} is damaged; {again}"))


@dataclass(frozen=True)
class QualityReport:
    """Faults and coverage of a set of bars."""

    calendar: str
    rows: int
    symbols: tuple[str, ...]
    sessions: tuple[str, ...]
    """The exchange's dates."""
    bar_minutes: int
    """Length of most bars."""
    minutes: tuple[int, ...]
    """Exchange minutes of each session."""
    early_closes: tuple[str, ...]
    """The calendar's half days."""
    coverage: tuple[tuple[float | None, ...], ...]
    """Share of a session's bars in which a symbol traded, by symbol and session; None before its
    first session and after its last."""
    kinds: dict[str, int]
    """Number of faults of each kind."""
    faults: tuple[Fault, ...]


def quality_report(
    settings: DataSettings, *, cache: Path | None = None, progress: Progress = SILENT
) -> QualityReport:
    """Report on the bars that these settings name, without changing them.

    Rows of files are cut unchanged into chunks in a temporary folder. A vendor's bars are read from
    the store, which needs a build's `cache`. Raises DataError when the bars cannot be read at all.
    """
    settings = settings.effective()
    source = settings.source
    with progress.task("quality", total=2) as task, tempfile.TemporaryDirectory() as folder:
        feed: Feed
        if isinstance(source, FilesSettings):
            store = ObjectStore(folder)
            feed = FilesFeed(source, settings.bar_path, store, settings.calendar, is_raw=True)
        else:
            feed = open_source(settings, cache)
        feed.prepare(progress)
        task.advance(note=f"{len(feed.symbols)} symbols read")
        report = examine(feed, settings)
        task.advance()
    return report


def read_source(settings: DataSettings, cache: Path | None = None) -> Bars:
    """Read all bars of the source into memory, those of files unchanged and in their order. Raises
    DataError."""
    source = settings.source
    if isinstance(source, FilesSettings):
        bars = read_files(source, settings.bar_path, settings.universe.symbols).without_empty()
        return replace(bars, ts=day_starts(settings.calendar, source.timezone, bars.ts))
    feed = open_source(settings, cache)
    feed.prepare(SILENT)
    return concat([feed.bars(symbol) for symbol in feed.symbols]).without_empty()


def examine(feed: Feed, settings: DataSettings, *, now: float | None = None) -> QualityReport:
    """Report on a feed's bars. Splits are compared with the declared and the announced ones."""
    wanted = settings.universe.symbols
    symbols = tuple(name for name in feed.symbols if not wanted or name in wanted)

    def read() -> Iterator[Bars]:
        for name in symbols:
            yield undo_adjustment(feed.bars(name).without_empty(), factor_column(settings))

    grid = _lay_grid(read(), settings, now)
    actions, _ = add_announced(load_actions(settings.actions), feed.actions)
    other = open_daily(settings)
    daily = None if other is None else read_daily(other, symbols)
    placed = (start_short_bars(bars, grid, settings) for bars in read())
    faults = find_faults(placed, grid, actions=actions, daily=daily, now=now)
    dates = tuple(str(day) for day in grid.dates)
    minutes = grid.session_minutes
    early = np.flatnonzero(minutes < minutes.max())
    return QualityReport(
        calendar=settings.calendar,
        rows=sum(map(len, read())),
        symbols=symbols,
        sessions=dates,
        bar_minutes=grid.bar_minutes,
        minutes=tuple(minutes.tolist()),
        early_closes=tuple(dates[session] for session in early),
        coverage=tuple(
            _measure_coverage(start_short_bars(bars, grid, settings), grid) for bars in read()
        ),
        kinds=dict(sorted(Counter(fault.kind for fault in faults).items())),
        faults=tuple(faults),
    )


def write_quality(report: QualityReport, folder: Path) -> tuple[Path, Path]:
    """Write `quality.json` and `quality.html` (self-contained, with a heat map of the coverage);
    return both paths."""
    write_json(folder / "quality.json", to_json(report))
    write_text(folder / "quality.html", quality_page(report))
    return folder / "quality.json", folder / "quality.html"


def quality_page(report: QualityReport) -> str:
    """Render the report as one HTML page without other files."""
    kinds = _render_table(
        ("kind", "faults", "meaning, and what a build does"),
        [(kind, count, KINDS[kind]) for kind, count in report.kinds.items()],
    )
    faults = _render_table(
        ("kind", "symbol", "day", "bars", "detail"), [astuple(fault) for fault in report.faults]
    )
    figure = coverage_figure(report).to_html(
        full_html=False, include_plotlyjs=True, div_id="coverage"
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Quality of the bars</title>
<style>body{{font:14px system-ui;margin:2rem}}td,th{{padding:.2rem .7rem;text-align:left}}
table{{border-collapse:collapse}}tr:nth-child(even){{background:#f4f4f4}}</style></head><body>
<h1>Quality of the bars</h1>
<p>{len(report.symbols)} symbols, {len(report.sessions)} sessions of {html.escape(report.calendar)},
{report.rows:,} rows; {report.sessions[0]} to {report.sessions[-1]}.
Half days: {", ".join(report.early_closes) or "none"}.</p>
<h2>Coverage</h2>{figure}
<h2>Kinds of faults</h2>{kinds}
<h2>Faults</h2>{faults}</body></html>
"""


def _render_table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    cells = ("".join(f"<td>{html.escape(str(value))}</td>" for value in row) for row in rows)
    lines = "\n".join(f"<tr>{line}</tr>" for line in cells)
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>\n{lines}</table>"


def coverage_figure(report: QualityReport) -> Any:
    """Draw the share of bars with a trade, symbols by sessions, as a plotly figure."""
    import plotly.graph_objects as go

    heat = go.Heatmap(
        z=report.coverage,
        x=report.sessions,
        y=report.symbols,
        zmin=0,
        zmax=1,
        colorscale="Viridis",
        colorbar={"title": "share"},
        hovertemplate="%{y} %{x}: %{z:.1%}<extra></extra>",
    )
    figure = go.Figure(heat)
    figure.update_layout(
        height=max(300, 14 * len(report.symbols) + 120),
        margin={"l": 80, "r": 20, "t": 20, "b": 40},
    )
    figure.update_yaxes(autorange="reversed", type="category")
    return figure


def _lay_grid(parts: Iterable[Bars], settings: DataSettings, now: float | None) -> SessionGrid:
    """Lay the grid from the first bar to the last that is not in the future, with the bar length of
    the symbol that has most bars."""
    latest = (time.time() if now is None else now) * 1e9
    edges: list[int] = []
    longest = None
    for bars in parts:
        past = bars.ts[bars.ts <= latest]
        edges += [past.min(), past.max()] if len(past) else []
        longest = bars if longest is None or len(bars) > len(longest) else longest
    if longest is None or len(longest) == 0:
        raise DataError(f"{settings.bar_path}: no bars to examine")
    if not edges:
        raise DataError(
            f"{longest.origin}: every bar is in the future; check the times and"
            " data.source.timezone"
        )
    source = settings.source
    files = source if isinstance(source, FilesSettings) and source.label == "end" else None
    if files is not None and "bar_minutes" in files.model_fields_set:
        minutes = files.bar_minutes  # ends of short bars hide the usual length
    else:
        minutes = bar_length(longest.sorted())
    return lay_grid(settings, (min(edges), max(edges)), minutes)


def _measure_coverage(bars: Bars, grid: SessionGrid) -> tuple[float | None, ...]:
    """Measure a symbol's row of `QualityReport.coverage`."""
    at = np.unique(grid.locate(bars.ts))
    counts = np.bincount(grid.session[at[at >= 0]], minlength=grid.num_sessions)
    share = np.round(counts / np.diff(grid.first_bar), 4)
    days = np.flatnonzero(share)
    listed = range(days[0], days[-1] + 1) if len(days) else range(0)
    return tuple(float(value) if day in listed else None for day, value in enumerate(share))
