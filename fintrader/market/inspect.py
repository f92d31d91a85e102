"""Bars and stored files looked at without building anything: a dry run, verification, and the
quality report.

The report says what is wrong, missing or odd in a set of bars, by symbol and day, as JSON and as a
page.
"""

from __future__ import annotations

import html
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from fintrader.bars.bars import Bars, bar_length, concat
from fintrader.bars.calendar import SessionGrid, day_starts, session_date, session_grid
from fintrader.bars.checks import KINDS, Fault, find_faults
from fintrader.bars.chunks import verify_store
from fintrader.bars.corporate_actions import (
    Action,
    as_traded,
    load_actions,
    place_by_session,
    with_announced,
)
from fintrader.bars.sources.bar_files import read_columns, read_files
from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.listing import BarFile, files_of
from fintrader.bars.sources.vendor import VendorFeed
from fintrader.errors import BarError, DataError, StorageError
from fintrader.files import unseal, write_json, write_text
from fintrader.market.bar_source import bar_store, open_source
from fintrader.market.build import RECORD, market_path
from fintrader.market.settings import DataSettings, factor_column
from fintrader.progress import SILENT, Progress
from fintrader.results.verify import Check
from fintrader.storage.objects import ObjectStore


def dry_run(settings: DataSettings, *, cache: Path) -> dict[str, Any]:
    """Plain JSON: the source, where bars and market would be kept, and what would be read or asked
    for.

    Files: name, kind, columns, rows where the format tells them, and what is wrong with the
    columns, if anything (`problem`). Vendors: the requests that the store does not answer. Nothing
    is built, cut or downloaded. Raises DataError when there is no file at all.
    """
    settings = settings.effective()
    source = settings.source
    report: dict[str, Any] = {"source": source.kind, "store": str(bar_store(settings, cache))}
    if isinstance(source, FilesSettings):
        files = [_describe(file, source) for file in files_of(source, settings.bar_path)]
        report["files"] = files
        report["problems"] = [
            f"{file['name']}: {file['problem']}" for file in files if file["problem"]
        ]
        if report["problems"]:
            return report
    feed = open_source(settings, cache)
    if isinstance(feed, VendorFeed):
        report["requests"] = [
            {"symbols": symbols, "first": str(first), "last": str(last)}
            for symbols, first, last in feed.list_requests()
        ]
        return report
    path = market_path(settings, feed, cache)
    return report | {"market": str(path), "built": path.is_file()}


def _describe(file: BarFile, settings: FilesSettings) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": file.name,
        "kind": file.kind,
        "rows": None,
        "columns": [],
        "problem": None,
    }
    try:
        described["columns"] = read_columns(file, settings)
        if file.kind == "parquet":
            with pq.ParquetFile(file.open()) as parquet:
                described["rows"] = parquet.metadata.num_rows
    except BarError as error:
        described["problem"] = str(error).removeprefix(f"{file.name}: ")
    return described


def describe(report: dict[str, Any]) -> str:
    """A dry run's report as lines for a terminal."""
    lines = [f"source {report['source']}, bars kept in {report['store']}"]
    for file in report.get("files", ()):
        rows = "" if file["rows"] is None else f", {file['rows']:,} rows"
        state = file["problem"] or f"columns {', '.join(file['columns'])}"
        lines.append(f"  {file['name']} ({file['kind']}{rows}): {state}")
    for request in report.get("requests", ()):
        symbols = request["symbols"]
        names = f"{symbols[0]} and {len(symbols) - 1} more" if len(symbols) > 1 else symbols[0]
        lines.append(f"  ask for {names}, {request['first']} to {request['last']}")
    if "market" in report:
        lines.append(
            f"market {report['market']}"
            f" {'is there already' if report['built'] else 'would be built'}"
        )
    return "\n".join(lines)


def check_stored_files(
    settings: DataSettings, *, cache: Path, progress: Progress | None = None
) -> list[Check]:
    """Compare each stored chunk of bars and each market in the cache with its hash.

    Raises StorageError when the store cannot be reached.
    """
    store = bar_store(settings, cache)
    markets = sorted(Path(cache).glob("*/market.safetensors"))
    with (progress or SILENT).task("verify", total=1 + len(markets), unit="files") as task:
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
    # here: nothing else that looks at bars needs torch
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
    """Return what a market consists of: its folder where that holds nothing else, or the file."""
    folder = path.absolute().parent
    own = {path.name, RECORD, ".lock"}
    is_alone = path.name == "market.safetensors" and {p.name for p in folder.iterdir()} <= own
    return folder if is_alone else path


def _check_record(market: Path) -> None:
    """Raise DataError when the record of a market is missing, or is not what was written, to the
    bit."""
    again = f"delete {market.parent} and build it again"
    data = ObjectStore(market.parent).get(RECORD)
    if data is None:
        raise DataError(f"{RECORD} is missing; {again}")
    unseal(data, DataError(f"{RECORD} is damaged; {again}"))


def quality_report(
    settings: DataSettings, *, cache: Path | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Faults and coverage of the bars that these settings name, as plain JSON; the bars are only
    looked at.

    Files are read whole, as they are. A vendor's bars are those of the store, so they need the
    `cache` of a build.

    `faults` lists every fault (kind, symbol, day, count, detail), `kinds` counts them,
    `bar_minutes` is how long most bars are, `coverage` the share of a session's bars in which each
    symbol traded, `[symbols][sessions]` (None where it has not begun or has ended), `early_closes`
    the calendar's half days. Raises DataError when the bars cannot be read at all.
    """
    settings = settings.effective()
    with (progress or SILENT).task("quality", total=2) as task:
        bars, announced = _source(settings, cache, progress)
        task.advance(note=f"{len(bars)} rows read")
        report = examine(bars, settings, announced)
        task.advance()
    return report


def read_source(
    settings: DataSettings, cache: Path | None = None, progress: Progress | None = None
) -> Bars:
    """All bars that the source has, in memory; those of files as they are, in their order. Raises
    DataError."""
    return _source(settings, cache, progress)[0]


def _source(
    settings: DataSettings, cache: Path | None, progress: Progress | None
) -> tuple[Bars, tuple[Action, ...]]:
    """All bars, and the actions that the source announces."""
    if isinstance(settings.source, FilesSettings):
        bars = read_files(settings.source, settings.bar_path, settings.universe.symbols)
        return (
            replace(bars, ts=day_starts(settings.calendar, settings.source.timezone, bars.ts)),
            (),
        )
    feed = open_source(settings, cache)
    feed.prepare(progress)
    return concat([feed.bars(symbol) for symbol in feed.symbols]), feed.actions


def examine(
    bars: Bars,
    settings: DataSettings,
    announced: Sequence[Action] = (),
    *,
    now: float | None = None,
) -> dict[str, Any]:
    """The report of bars that were read already. Splits are compared with those declared and those
    `announced`."""
    if len(bars) == 0:
        raise DataError(f"{bars.origin}: no bars to examine")
    grid = _spanning_grid(bars, settings, now)
    bars = as_traded(bars, factor_column(settings))
    faults = find_faults(bars, grid, declared=_declared(bars, settings, announced, grid), now=now)
    dates = [str(day) for day in grid.dates]
    minutes = grid.session_minutes
    return {
        "calendar": settings.calendar,
        "rows": len(bars),
        "symbols": list(bars.symbols),
        "sessions": dates,
        "bar_minutes": grid.bar_minutes,
        "minutes": minutes.tolist(),
        "early_closes": [
            day for day, count in zip(dates, minutes, strict=True) if count < minutes.max()
        ],
        "coverage": _coverage(bars, grid),
        "kinds": dict(sorted(Counter(fault.kind for fault in faults).items())),
        "faults": [asdict(fault) for fault in faults],
    }


def write_quality(report: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """Write `quality.json` and `quality.html` (self-contained, with a heat map of the coverage);
    returns both paths."""
    folder = Path(folder)
    write_json(folder / "quality.json", report)
    write_text(folder / "quality.html", quality_page(report))
    return folder / "quality.json", folder / "quality.html"


def quality_page(report: dict[str, Any]) -> str:
    """The report as one HTML page that needs nothing else."""
    meaning = "meaning, and what the build does"
    kinds = _table(
        ("kind", "symbol-days", meaning),
        [(*item, KINDS[item[0]]) for item in report["kinds"].items()],
    )
    faults = _table(
        ("kind", "symbol", "day", "bars", "detail"),
        [astuple(Fault(**one)) for one in report["faults"]],
    )
    figure = coverage_figure(report).to_html(
        full_html=False, include_plotlyjs=True, div_id="coverage"
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Quality of the bars</title>
<style>body{{font:14px system-ui;margin:2rem}}td,th{{padding:.2rem .7rem;text-align:left}}
table{{border-collapse:collapse}}tr:nth-child(even){{background:#f4f4f4}}</style></head><body>
<h1>Quality of the bars</h1>
<p>{len(report["symbols"])} symbols, {len(report["sessions"])} sessions of {html.escape(report["calendar"])},
{report["rows"]:,} rows; {report["sessions"][0]} to {report["sessions"][-1]}.
Half days: {", ".join(report["early_closes"]) or "none"}.</p>
<h2>Coverage</h2>{figure}
<h2>Kinds of faults</h2>{kinds}
<h2>Faults</h2>{faults}</body></html>
"""


def _table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    cells = ("".join(f"<td>{html.escape(str(value))}</td>" for value in row) for row in rows)
    lines = "\n".join(f"<tr>{line}</tr>" for line in cells)
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>\n{lines}</table>"


def coverage_figure(report: dict[str, Any]) -> Any:
    """Share of bars with a trade, symbols by sessions, as a plotly figure."""
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
        height=max(300, 14 * len(report["symbols"]) + 120),
        margin={"l": 80, "r": 20, "t": 20, "b": 40},
    )
    figure.update_yaxes(autorange="reversed", type="category")
    return figure


def _spanning_grid(bars: Bars, settings: DataSettings, now: float | None) -> SessionGrid:
    """All sessions from the first bar to the last that is not of the future, in bars as long as
    these."""
    latest = (time.time() if now is None else now) * 1e9
    past = bars.ts[bars.ts <= latest]
    if len(past) == 0:
        raise DataError(
            f"{bars.origin}: every bar lies in the future; check the times and data.source.timezone"
        )
    first = settings.start or session_date(settings.calendar, int(past.min()))
    last = settings.end or session_date(settings.calendar, int(past.max()))
    return session_grid(settings.calendar, first, last, _own_length(bars), settings.hours)


def _own_length(bars: Bars) -> int:
    """Minutes of the bars themselves, whatever the market's are to be: as the symbol with most rows
    has them."""
    most = np.bincount(bars.symbol).argmax()
    return bar_length(bars.take(bars.symbol == most).sorted())


def _declared(
    bars: Bars, settings: DataSettings, announced: Sequence[Action], grid: SessionGrid
) -> dict[str, dict[int, tuple[float, float]]]:
    """Symbol -> session -> split and dividend, as far as the settings name them or the source
    announces them."""
    actions, _ = with_announced(load_actions(settings.adjust), announced)
    return place_by_session(actions, bars.symbols, grid)


def _coverage(bars: Bars, grid: SessionGrid) -> list[list[float | None]]:
    at = grid.locate(bars.ts)
    rows = np.unique(np.stack([bars.symbol[at >= 0].astype(np.int64), at[at >= 0]], axis=1), axis=0)
    counts = np.zeros((len(bars.symbols), grid.num_sessions))
    np.add.at(counts, (rows[:, 0], grid.session[rows[:, 1]]), 1)
    share = np.round(counts / np.diff(grid.first_bar), 4)
    table: list[list[float | None]] = []
    for line in share:
        days = np.flatnonzero(line)
        listed = range(days[0], days[-1] + 1) if len(days) else range(0)
        table.append([float(value) if day in listed else None for day, value in enumerate(line)])
    return table
