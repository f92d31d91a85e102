"""Bars from Parquet or CSV files in long format (one row a symbol and bar).

What is repaired and counted: order of rows, exact duplicates (see `fintrader.data.clean`). What is an error that
names file, row and column: a missing column, text where a number belongs, an empty cell, a time that cannot be read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pydantic import Field, field_validator

from fintrader.config import Settings
from fintrader.data.bars import COLUMNS, MINUTE_NS, Array, Bars, concat
from fintrader.errors import BarError, DataError
from fintrader.runs import file_sha256


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
    path: Path = Path("data/bars")
    """A Parquet or CSV file, a folder of such files, or a glob pattern."""
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


def list_files(settings: FilesSettings) -> list[Path]:
    """The files that would be read, sorted. Raises DataError when there is none or one is of an unknown kind."""
    path = settings.path
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and _kind(file)]
    elif any(mark in str(path) for mark in "*?["):
        root = Path(path.anchor) if path.is_absolute() else Path()
        files = sorted(file for file in root.glob(str(path.relative_to(path.anchor))) if file.is_file())
    else:
        files = [path] if path.exists() else []
    if not files:
        raise DataError(f"{path}: no bar file there; give a Parquet or CSV file, a folder or a pattern (--data.path)")
    for file in files:
        if not _kind(file):
            raise DataError(f"{file}: neither Parquet nor CSV by its name; convert it, or point --data.path elsewhere")
    return files


def fingerprint(settings: FilesSettings) -> dict[str, Any]:
    """What identifies the files' content: name and SHA-256 of each."""
    return {"files": [{"name": file.name, "sha256": file_sha256(file)} for file in list_files(settings)]}


def read_files(settings: FilesSettings, symbols: tuple[str, ...] = ()) -> Bars:
    """All rows of all files (of `symbols` only, when given). Raises BarError, see the module's docstring."""
    return concat([read_file(file, settings, symbols) for file in list_files(settings)])


def read_file(file: Path, settings: FilesSettings, symbols: tuple[str, ...] = ()) -> Bars:
    """The rows of one file in file order, in the long schema."""
    names = {name: getattr(settings.columns, name) for name in ("ts", "symbol", *COLUMNS)}
    wanted = [*names.values(), *settings.extra]
    table = _read_table(file, wanted, numeric=[*(names[name] for name in COLUMNS), *settings.extra])
    rows = np.arange(table.num_rows) + (2 if _kind(file) == "csv" else 0)  # a CSV's first row of data is line 2
    if symbols:
        keep = pc.is_in(table[names["symbol"]].cast(pa.string()), pa.array(symbols))
        table, rows = table.filter(keep), rows[keep.to_numpy()]
    if table.num_rows == 0:
        raise BarError(f"{file.name}: holds no row{' of the chosen symbols' if symbols else ''}; check the file")
    where = f"{file.name}"
    codes, tickers = _symbols(table[names["symbol"]], where, names["symbol"], rows)
    ts = _times(table[names["ts"]], settings, where, names["ts"], rows)
    values = {name: _numbers(table[names[name]], where, names[name], rows) for name in COLUMNS}
    extras = {name: _numbers(table[name], where, name, rows) for name in settings.extra}
    if settings.decimals is not None:
        values |= {name: np.round(values[name], settings.decimals) for name in COLUMNS if name != "volume"}
    return Bars(ts=ts, symbol=codes, symbols=tickers, extras=extras, row=rows, origin=where, **values)


def _kind(file: Path) -> str | None:
    if file.suffix in (".parquet", ".pq"):
        return "parquet"
    return "csv" if file.name.endswith((".csv", ".csv.gz")) else None


def _read_table(file: Path, wanted: list[str], numeric: list[str]) -> pa.Table:
    try:
        if _kind(file) == "parquet":
            present = pq.read_schema(file).names
            _require(file, wanted, present)
            return pq.read_table(file, columns=wanted)
        with pa_csv.open_csv(file) as reader:
            present = reader.schema.names
        _require(file, wanted, present)
        others = {name: pa.string() for name in wanted if name not in numeric}
        try:
            return _read_csv(file, wanted, others | {name: pa.float64() for name in numeric})
        except pa.ArrowInvalid:  # text in a number: read as text, so that the row can be named
            return _read_csv(file, wanted, {name: pa.string() for name in wanted})
    except pa.ArrowInvalid as error:
        raise BarError(f"{file.name}: cannot be read ({_first_line(error)}); it may be truncated") from None
    except OSError as error:
        raise BarError(f"{file.name}: cannot be read ({_first_line(error)})") from None


def _read_csv(file: Path, wanted: list[str], types: dict[str, pa.DataType]) -> pa.Table:
    options = pa_csv.ConvertOptions(column_types=types, include_columns=wanted, strings_can_be_null=True)
    return pa_csv.read_csv(file, convert_options=options)


def _require(file: Path, wanted: list[str], present: list[str]) -> None:
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
