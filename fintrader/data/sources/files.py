"""Where files of bars lie: a local path, a folder, a glob pattern, the members of a zip archive, an fsspec URL."""

from __future__ import annotations

import contextlib
import hashlib
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pydantic import Field, field_validator

from fintrader.config import PathText, Settings, base_name, is_url
from fintrader.data.bars import COLUMNS, MINUTE_NS, Array, Bars, concat
from fintrader.errors import BarError, DataError
from fintrader.files import file_sha256
from fintrader.storage.objects import file_system


def list_files(path: str) -> list[BarFile]:
    """The bar files that a path or URL names, sorted. Raises DataError when there is none, or of an unknown kind."""
    fs, inside = file_system(path)
    try:
        if fs.isdir(inside):
            found = [name for name in sorted(fs.find(inside)) if kind_of(name)]
        elif any(mark in inside for mark in "*?["):
            found = [name for name in sorted(fs.glob(inside)) if kind_of(name)]
        else:
            found = [inside] if fs.exists(inside) else []
    except Exception as error:  # a cloud's client has its own exceptions, and their text may hold secrets
        raise DataError(f"{path}: {type(error).__name__}; check the URL, the network and the credentials") from None
    scheme = f"{path.partition('://')[0]}://" if is_url(path) else ""
    if not found:
        raise DataError(f"{path}: no bar file there; give a Parquet or CSV file, a folder or a pattern (--data.path)")
    return [file for name in found for file in _open(name if is_url(name) else scheme + name)]


def _open(path: str) -> list[BarFile]:
    """The bar files in a path or URL: itself, or the members of a zip archive."""
    name = base_name(path)
    kind = kind_of(name)
    if kind is None:
        raise DataError(
            f"{path}: neither Parquet nor CSV nor zip by its name; convert it, or point --data.path elsewhere"
        )
    if kind != "zip":
        return [BarFile(name, kind, path)]
    try:
        with _archive(path) as archive:
            members = [name for name in sorted(archive.namelist()) if kind_of(name) in ("csv", "parquet")]
    except (zipfile.BadZipFile, OSError) as error:
        raise BarError(f"{name}: cannot be read ({error}); it may be truncated") from None
    return [BarFile(f"{name}:{member}", str(kind_of(member)), path, member=member) for member in members]


@contextlib.contextmanager
def _archive(path: str) -> Iterator[zipfile.ZipFile]:
    """A zip archive, local or at a URL (of which only the parts that are asked for are read)."""
    fs, inside = file_system(path)
    with fs.open(inside, "rb") as file, zipfile.ZipFile(file) as archive:
        yield archive


@dataclass(frozen=True)
class BarFile:
    """One file of bars, wherever it lies."""

    name: str
    """What to call it in messages."""
    kind: str
    """csv or parquet."""
    path: str
    """Local path or URL of the file, or of the zip archive it is in."""
    member: str | None = None
    """Name within the zip archive."""

    @property
    def stem(self) -> str:
        """The name without folders and endings: the symbol, for files that hold one symbol each."""
        return (self.member or self.path).rsplit("/", 1)[-1].split(".")[0]

    def open(self) -> Any:
        """The file for pyarrow: a path, or a file object. Raises DataError when it cannot be opened."""
        if self.member is not None:
            with _archive(self.path) as archive:
                return pa.BufferReader(archive.read(self.member))
        if is_url(self.path):
            fs, path = file_system(self.path)
            return fs.open(path, "rb")
        return self.path

    def sha256(self) -> str:
        """Of its content, in hex."""
        source = self.open()
        if isinstance(source, str):
            return file_sha256(Path(source))
        with source:
            return hashlib.file_digest(source, "sha256").hexdigest()

    def version(self) -> str | None:
        """A cheap token that changes when the file does (size and times, or an object's ETag).

        None without one, and for a file that changed so lately that it may change again within the clock's grain.
        """
        if is_url(self.path):
            fs, path = file_system(self.path)
            details = fs.info(path)
            tag = details.get("ETag") or details.get("mtime") or details.get("created")
            return f"{details.get('size')} {tag}" if tag else None
        status = Path(self.path).stat()
        if time.time_ns() - status.st_mtime_ns < _RACY_NS:
            return None
        return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


def kind_of(name: str) -> str | None:
    """parquet, csv or zip by a file's name, None for anything else."""
    for kind, endings in (("parquet", (".parquet", ".pq")), ("csv", (".csv", ".csv.gz")), ("zip", (".zip",))):
        if name.lower().endswith(endings):
            return kind
    return None


BATCH_ROWS = 500_000
_RACY_NS = 2_000_000_000


class ColumnNames(Settings):
    """How the file calls its columns."""

    ts: str = "ts"
    symbol: str = "ticker"
    open: str = "open"
    high: str = "high"
    low: str = "low"
    close: str = "close"
    volume: str = "volume"


class FilesSettings(Settings):
    """Long tables of bars in Parquet or CSV files."""

    kind: Literal["files"] = "files"
    path: PathText = "data/bars"
    """A Parquet or CSV file, a zip archive or a folder of such files, a glob pattern, or an fsspec URL of one."""
    symbol_from: Literal["column", "name"] = "column"
    """Where the symbol stands: in a column, or in the file's name (one file per symbol, like AAPL.csv)."""
    columns: ColumnNames = ColumnNames()
    timezone: str = "America/New_York"
    """Zone of times that carry none themselves (times with an offset or a zone are taken as they are)."""
    label: Literal["start", "end"] = "start"
    """Whether a bar's time is its start or its end."""
    bar_minutes: int = Field(1, ge=1)
    """Length of the bars in the files; used to move end labels to the start."""
    decimals: int | None = Field(None, ge=0, le=8)
    """Round prices to so many decimals (for files that store them as float32)."""
    extra: tuple[str, ...] = ()
    """Further numeric columns to carry along; name them under `features` to make them features."""

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        import zoneinfo

        try:
            zoneinfo.ZoneInfo(value)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError):
            raise ValueError("not a time zone; write it like America/New_York") from None
        return value


def read_files(settings: FilesSettings, symbols: tuple[str, ...] = ()) -> Bars:
    """All rows of all files (of `symbols` only, when given). Raises BarError, see the module's docstring."""
    bars = concat([batch for file in list_files(settings.path) for batch in iterate(file, settings)])
    if symbols:
        wanted = [code for code, name in enumerate(bars.symbols) if name in symbols]
        bars = bars.take(np.isin(bars.symbol, wanted)).without_unused()
    return bars


def iterate(file: BarFile, settings: FilesSettings) -> Iterator[Bars]:
    """The rows of one file in file order, in the long schema, some hundred thousand at a time."""
    names = column_names(settings)
    wanted = [*names.values(), *settings.extra]
    read_columns(file, settings)
    first = done = 2 if file.kind == "csv" else 0  # a CSV's first row of data is line 2
    for table in _tables(file, wanted, numeric=[*(names[name] for name in COLUMNS), *settings.extra]):
        rows = np.arange(done, done + table.num_rows)
        done += table.num_rows
        yield table_bars(table, settings, origin=file.name, rows=rows, symbol=file.stem)
    if done == first:
        raise BarError(f"{file.name}: holds no row; check the file")


def column_names(settings: FilesSettings) -> dict[str, str]:
    """Our name -> the table's name of the columns that are needed; no `symbol` where it stands in a file's name."""
    names = {name: getattr(settings.columns, name) for name in ("ts", "symbol", *COLUMNS)}
    if settings.symbol_from == "name":
        del names["symbol"]
    return names


def table_bars(table: pa.Table, settings: FilesSettings, *, origin: str, rows: Array, symbol: str = "") -> Bars:
    """A table's rows in the long schema; `rows` are their numbers in messages. Raises BarError: row and column."""
    names = column_names(settings)
    if "symbol" in names:
        codes, tickers = _symbols(table[names["symbol"]], origin, names["symbol"], rows)
    else:
        codes, tickers = np.zeros(table.num_rows, dtype=np.int32), (symbol,)
    ts = _times(table[names["ts"]], settings, origin, names["ts"], rows)
    values = {name: _numbers(table[names[name]], origin, names[name], rows) for name in COLUMNS}
    extras = {name: _numbers(table[name], origin, name, rows) for name in settings.extra}
    if settings.decimals is not None:
        values |= {name: np.round(values[name], settings.decimals) for name in COLUMNS if name != "volume"}
    return Bars(ts=ts, symbol=codes, symbols=tickers, extras=extras, row=rows, origin=origin, **values)


def read_columns(file: BarFile, settings: FilesSettings) -> list[str]:
    """The names of a file's columns. Raises BarError when one that the settings name is missing."""
    with _readable(file):
        if file.kind == "parquet":
            with pq.ParquetFile(file.open()) as parquet:
                present = list(parquet.schema_arrow.names)
        else:
            with _open_csv(file, None, {}) as reader:
                present = list(reader.schema.names)
    missing = [name for name in (*column_names(settings).values(), *settings.extra) if name not in present]
    if missing:
        raise BarError(
            f"{file.name}: no column {missing[0]!r}; it has {', '.join(present)}. "
            "Name your columns under data.source.columns"
        )
    return present


@contextlib.contextmanager
def _readable(file: BarFile) -> Iterator[None]:
    """Raise BarError for what pyarrow cannot read."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        if "Empty CSV file" in str(error):
            raise BarError(f"{file.name}: holds no row; check the file") from None
        raise BarError(f"{file.name}: cannot be read ({_first_line(error)}); it may be truncated") from None


def _tables(file: BarFile, wanted: list[str], numeric: list[str]) -> Iterator[pa.Table]:
    """The file's rows as tables of the wanted columns, a bounded number at a time."""
    with _readable(file):
        if file.kind == "parquet":
            with pq.ParquetFile(file.open()) as parquet:
                for batch in parquet.iter_batches(BATCH_ROWS, columns=wanted, use_threads=False):
                    yield pa.Table.from_batches([batch])
            return
        types = {name: pa.float64() if name in numeric else pa.string() for name in wanted}
        done = 0
        try:
            with _open_csv(file, wanted, types) as reader:
                for batch in reader:
                    yield pa.Table.from_batches([batch])
                    done += batch.num_rows
        except pa.ArrowInvalid:  # text in a number: read what is left as text, so that the row can be named
            with _open_csv(file, wanted, dict.fromkeys(wanted, pa.string())) as reader:
                for batch in reader:
                    skip = min(done, batch.num_rows)
                    done -= skip
                    if batch.num_rows > skip:
                        yield pa.Table.from_batches([batch.slice(skip)])


def _open_csv(file: BarFile, wanted: list[str] | None, types: dict[str, pa.DataType]) -> Any:
    options = pa_csv.ConvertOptions(column_types=types, include_columns=wanted or [], strings_can_be_null=True)
    source = file.open()
    if file.path.lower().endswith(".gz") or (file.member or "").lower().endswith(".gz"):
        source = pa.CompressedInputStream(pa.OSFile(source) if isinstance(source, str) else source, "gzip")
    return pa_csv.open_csv(
        source, read_options=pa_csv.ReadOptions(block_size=32 << 20, use_threads=False), convert_options=options
    )


def _symbols(column: pa.ChunkedArray, where: str, name: str, rows: Array) -> tuple[Array, tuple[str, ...]]:
    _no_nulls(column, where, name, rows)
    encoded = column.cast(pa.string()).combine_chunks().dictionary_encode()
    tickers = encoded.dictionary.to_pylist()
    order = np.argsort(tickers)
    rank = np.empty(len(tickers), dtype=np.int32)
    rank[order] = np.arange(len(tickers), dtype=np.int32)
    return rank[encoded.indices.to_numpy()], tuple(tickers[index] for index in order)


def _times(column: pa.ChunkedArray, settings: FilesSettings, where: str, name: str, rows: Array) -> Array:
    """`[R]` int64 UTC nanoseconds of the bars' starts."""
    _no_nulls(column, where, name, rows)
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        ns = _parse_times(column.cast(pa.string()), settings, where, name, rows)
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        if getattr(kind, "tz", None) is None:
            column = _localise(column.cast(pa.timestamp("ns")), settings, where, name)
        ns = _epoch(column)
    else:
        raise BarError(f"{where}: column {name!r} is {kind}, not a time; store times, or ISO 8601 text")
    return ns - settings.bar_minutes * MINUTE_NS if settings.label == "end" else ns


def _localise(column: pa.ChunkedArray, settings: FilesSettings, where: str, name: str) -> pa.ChunkedArray:
    try:
        return pc.assume_timezone(column, settings.timezone)
    except pa.ArrowInvalid as error:
        raise BarError(
            f"{where}: column {name!r} has times that do not exist or are ambiguous in {settings.timezone} "
            f"({_first_line(error)}); declare the right data.source.timezone"
        ) from None


def _parse_times(column: pa.ChunkedArray, settings: FilesSettings, where: str, name: str, rows: Array) -> Array:
    text = column.to_pandas()
    zoned = carries_zone(text)
    parsed = pd.to_datetime(text, format="ISO8601", errors="coerce", utc=zoned)
    _refuse(parsed.isna(), text, "no time like 2016-01-04 09:30", where, name, rows)
    if zoned:
        return np.asarray(parsed.dt.tz_convert(None).to_numpy().astype("datetime64[ns]").astype(np.int64))
    stamps = pa.chunked_array([pa.array(parsed.to_numpy().astype("datetime64[ns]"))])
    return _epoch(_localise(stamps, settings, where, name))


def carries_zone(times: pd.Series[Any]) -> bool:
    """Whether times as text end with an offset from UTC, going by the first."""
    return bool(times.head(1).astype(str).str.contains(r"(?:Z|[+-]\d\d:?\d\d)$").all())


def _epoch(column: pa.ChunkedArray) -> Array:
    """Zoned timestamps as int64 UTC nanoseconds."""
    return np.asarray(column.cast(pa.timestamp("ns", tz="UTC")).cast(pa.int64()).to_numpy())


def _numbers(column: pa.ChunkedArray, where: str, name: str, rows: Array) -> Array:
    _no_nulls(column, where, name, rows)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_dictionary(column.type):
        text = column.cast(pa.string()).to_pandas()
        numbers = pd.to_numeric(text, errors="coerce")
        _refuse(numbers.isna(), text, "no number", where, name, rows)
        return np.asarray(numbers, dtype=np.float64)
    try:
        return np.asarray(column.cast(pa.float64()).to_numpy())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BarError(f"{where}: column {name!r} is {column.type}, not numbers") from None


def _refuse(bad: pd.Series[bool], text: pd.Series[str], what: str, where: str, name: str, rows: Array) -> None:
    if bad.any():
        at = int(bad.to_numpy().argmax())
        raise BarError(
            f"{where}, row {rows[at]}, column {name!r}: {text.iloc[at]!r} is {what}; correct the row or remove it"
        )


def _no_nulls(column: pa.ChunkedArray, where: str, name: str, rows: Array) -> None:
    if column.null_count:
        bad = int(np.flatnonzero(pc.is_null(column).to_numpy())[0])
        raise BarError(f"{where}, row {rows[bad]}, column {name!r}: the cell is empty; fill it or remove the row")


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
