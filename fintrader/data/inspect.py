"""What a build would read, found out without reading the bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from fintrader.data.cache_key import check_record, market_path
from fintrader.data.chunks import verify_store
from fintrader.data.feeds import bar_store, open_feed
from fintrader.data.settings import DataSettings
from fintrader.data.sources.files import BarFile, FilesSettings, list_files, read_columns
from fintrader.data.sources.synthetic import SyntheticSettings
from fintrader.data.sources.vendor import VendorFeed
from fintrader.data.tensors import MarketTensors
from fintrader.errors import BarError, DataError, StorageError
from fintrader.progress import SILENT, Progress


def dry_run(settings: DataSettings, *, cache: Path) -> dict[str, Any]:
    """Plain JSON: the source, where bars and market would be kept, and what would be read or asked for.

    Files: name, kind, columns, rows where the format tells them, and what is wrong with the columns, if anything
    (`problem`). Vendors: the requests that the store does not answer. Nothing is built, cut or downloaded. Raises
    DataError when there is no file at all.
    """
    settings = settings.effective()
    source = settings.source
    report: dict[str, Any] = {"source": source.kind, "store": str(bar_store(settings, cache))}
    if isinstance(source, FilesSettings):
        files = [_describe(file, source) for file in list_files(source)]
        report["files"] = files
        report["problems"] = [f"{file['name']}: {file['problem']}" for file in files if file["problem"]]
        if not report["problems"]:
            path = market_path(settings, open_feed(settings, cache), cache)
            report |= {"market": str(path), "built": path.is_file()}
    elif isinstance(source, SyntheticSettings):
        path = market_path(settings, open_feed(settings, cache), cache)
        report |= {"market": str(path), "built": path.is_file()}
    else:
        feed = open_feed(settings, cache)
        assert isinstance(feed, VendorFeed)
        report["requests"] = [
            {"symbols": symbols, "first": str(first), "last": str(last)} for symbols, first, last in feed.planned()
        ]
    return report


def _describe(file: BarFile, settings: FilesSettings) -> dict[str, Any]:
    described: dict[str, Any] = {"name": file.name, "kind": file.kind, "rows": None, "columns": [], "problem": None}
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
        lines.append(f"market {report['market']} {'is there already' if report['built'] else 'would be built'}")
    return "\n".join(lines)


def verify(settings: DataSettings, *, cache: Path, progress: Progress | None = None) -> list[str]:
    """One line for each stored file of the store and the cache that is missing or differs by as little as a bit.

    An empty list means that all is well. Raises StorageError when the store cannot be reached.
    """
    markets = sorted(Path(cache).glob("*/market.safetensors"))
    with (progress or SILENT).task("verify", total=1 + len(markets), unit="files") as task:
        problems = verify_store(bar_store(settings, cache))
        task.advance(note="chunks of bars")
        for path in markets:
            for check in (_check_market, check_record):
                try:
                    check(path)
                except (DataError, StorageError) as error:
                    problems.append(str(error))
            task.advance(note=path.parent.name)
    return problems


def _check_market(path: Path) -> None:
    MarketTensors.load(path, verify=True)
