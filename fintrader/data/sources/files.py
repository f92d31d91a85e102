"""Bars from Parquet or CSV files, plain, zipped, in folders or anywhere fsspec reaches; long, or one file per symbol.

What is repaired and counted: order of rows, exact duplicates (see `fintrader.data.clean`). What is an error that
names file, row and column: a missing column, text where a number belongs, an empty cell, a time that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pydantic import Field, field_validator

from fintrader.config import Settings
from fintrader.data.bars import COLUMNS, MINUTE_NS, Array, Bars, concat
from fintrader.data.place import PathText
from fintrader.data.sources.barfile import BarFile, find_files
from fintrader.errors import BarError

BATCH_ROWS = 500_000


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


def list_files(settings: FilesSettings) -> list[BarFile]:
    """The files that would be read, sorted by path. Raises DataError when there is none, or one of an unknown kind."""
    return find_files(settings.path)


def read_files(settings: FilesSettings, symbols: tuple[str, ...] = ()) -> Bars:
    """All rows of all files (of `symbols` only, when given). Raises BarError, see the module's docstring."""
    parts = [batch for file in list_files(settings) for batch in iterate(file, settings)]
    bars = concat(parts)
    if symbols:
        wanted = [code for code, name in enumerate(bars.symbols) if name in symbols]
        bars = bars.take(np.isin(bars.symbol, wanted)).without_unused()
    return bars


def iterate(file: BarFile, settings: FilesSettings) -> Iterator[Bars]:
    """The rows of one file in file order, in the long schema, some hundred thousand at a time."""
    names = {name: getattr(settings.columns, name) for name in ("ts", "symbol", *COLUMNS)}
    if settings.symbol_from == "name":
        del names["symbol"]
    wanted = [*names.values(), *settings.extra]
    done = 2 if file.kind == "csv" else 0  # a CSV's first row of data is line 2
    first = done
    for table in _tables(file, wanted, numeric=[*(names[name] for name in COLUMNS), *settings.extra]):
        rows = np.arange(done, done + table.num_rows)
        done += table.num_rows
        if "symbol" in names:
            codes, tickers = _symbols(table[names["symbol"]], file.name, names["symbol"], rows)
        else:
            codes, tickers = np.zeros(table.num_rows, dtype=np.int32), (file.stem,)
        ts = _times(table[names["ts"]], settings, file.name, names["ts"], rows)
        values = {name: _numbers(table[names[name]], file.name, names[name], rows) for name in COLUMNS}
        extras = {name: _numbers(table[name], file.name, name, rows) for name in settings.extra}
        if settings.decimals is not None:
            values |= {name: np.round(values[name], settings.decimals) for name in COLUMNS if name != "volume"}
        yield Bars(ts=ts, symbol=codes, symbols=tickers, extras=extras, row=rows, origin=file.name, **values)
    if done == first:
        raise BarError(f"{file.name}: holds no row; check the file")


def read_columns(file: BarFile, settings: FilesSettings) -> list[str]:
    """The names of a file's columns. Raises BarError when one that the settings name is missing."""
    names = [getattr(settings.columns, name) for name in ("ts", *COLUMNS)]
    names += [settings.columns.symbol] if settings.symbol_from == "column" else []
    try:
        if file.kind == "parquet":
            with pq.ParquetFile(file.open()) as parquet:
                present = list(parquet.schema_arrow.names)
        else:
            with _open_csv(file, None, {}) as reader:
                present = list(reader.schema.names)
    except (pa.ArrowInvalid, OSError) as error:
        raise BarError(f"{file.name}: cannot be read ({_first_line(error)}); it may be truncated") from None
    _require(file, [*names, *settings.extra], present)
    return present


def _tables(file: BarFile, wanted: list[str], numeric: list[str]) -> Iterator[pa.Table]:
    """The file's rows as tables of the wanted columns, a bounded number at a time."""
    try:
        if file.kind == "parquet":
            with pq.ParquetFile(file.open()) as parquet:
                _require(file, wanted, parquet.schema_arrow.names)
                for batch in parquet.iter_batches(BATCH_ROWS, columns=wanted, use_threads=False):
                    yield pa.Table.from_batches([batch])
            return
        with _open_csv(file, None, {}) as reader:
            _require(file, wanted, reader.schema.names)
        others = {name: pa.string() for name in wanted if name not in numeric}
        done = 0
        try:
            with _open_csv(file, wanted, others | {name: pa.float64() for name in numeric}) as reader:
                for batch in reader:
                    yield pa.Table.from_batches([batch])
                    done += batch.num_rows
        except pa.ArrowInvalid:  # text in a number: read what is left as text, so that the row can be named
            with _open_csv(file, wanted, {name: pa.string() for name in wanted}) as reader:
                for batch in reader:
                    skip = min(done, batch.num_rows)
                    done -= skip
                    if batch.num_rows > skip:
                        yield pa.Table.from_batches([batch.slice(skip)])
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            raise BarError(f"{file.name}: holds no row; check the file") from None
        raise BarError(f"{file.name}: cannot be read ({_first_line(error)}); it may be truncated") from None
    except OSError as error:
        raise BarError(f"{file.name}: cannot be read ({_first_line(error)}); it may be truncated") from None


def _open_csv(file: BarFile, wanted: list[str] | None, types: dict[str, pa.DataType]) -> Any:
    options = pa_csv.ConvertOptions(column_types=types, include_columns=wanted or [], strings_can_be_null=True)
    source = file.open()
    if file.path.lower().endswith(".gz") or (file.member or "").lower().endswith(".gz"):
        source = pa.CompressedInputStream(pa.OSFile(source) if isinstance(source, str) else source, "gzip")
    return pa_csv.open_csv(
        source,
        read_options=pa_csv.ReadOptions(block_size=32 << 20, use_threads=False),
        convert_options=options,
    )


def _require(file: BarFile, wanted: list[str], present: list[str]) -> None:
    missing = [name for name in wanted if name not in present]
    if missing:
        raise BarError(
            f"{file.name}: no column {missing[0]!r}; it has {', '.join(present)}. "
            "Name your columns under data.source.columns"
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
    import pandas as pd

    text = column.to_pandas()
    zoned = bool(pd.Series(text.head(1)).str.contains(r"(?:Z|[+-]\d\d:?\d\d)$").all())
    parsed = pd.to_datetime(text, format="ISO8601", errors="coerce", utc=zoned)
    bad = np.flatnonzero(parsed.isna().to_numpy())
    if len(bad):
        raise BarError(
            f"{where}, row {rows[bad[0]]}, column {name!r}: {text.iloc[bad[0]]!r} is no time like 2016-01-04 09:30; "
            "correct the row or remove it"
        )
    if zoned:
        return np.asarray(parsed.dt.tz_convert(None).to_numpy().astype("datetime64[ns]").astype(np.int64))
    stamps = pa.chunked_array([pa.array(parsed.to_numpy().astype("datetime64[ns]"))])
    return _epoch(_localise(stamps, settings, where, name))


def _epoch(column: pa.ChunkedArray) -> Array:
    """Zoned timestamps as int64 UTC nanoseconds."""
    return np.asarray(column.cast(pa.timestamp("ns", tz="UTC")).cast(pa.int64()).to_numpy())


def _numbers(column: pa.ChunkedArray, where: str, name: str, rows: Array) -> Array:
    _no_nulls(column, where, name, rows)
    if pa.types.is_string(column.type) or pa.types.is_dictionary(column.type):
        import pandas as pd

        text = column.cast(pa.string()).to_pandas()
        numbers = pd.to_numeric(text, errors="coerce")
        bad = np.flatnonzero(numbers.isna().to_numpy())
        if len(bad):
            raise BarError(
                f"{where}, row {rows[bad[0]]}, column {name!r}: {text.iloc[bad[0]]!r} is no number; "
                "correct the row or remove it"
            )
        return np.asarray(numbers, dtype=np.float64)
    try:
        return np.asarray(column.cast(pa.float64()).to_numpy())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BarError(f"{where}: column {name!r} is {column.type}, not numbers") from None


def _no_nulls(column: pa.ChunkedArray, where: str, name: str, rows: Array) -> None:
    if column.null_count:
        bad = int(np.flatnonzero(pc.is_null(column).to_numpy())[0])
        raise BarError(f"{where}, row {rows[bad]}, column {name!r}: the cell is empty; fill it or remove the row")


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
