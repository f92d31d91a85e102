"""Cells of a table, as text or typed, to the numbers that bars consist of; what is none is named by
row and column."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fintrader.bars.bars import COLUMNS, MINUTE_NS, PRICES, Array, Bars
from fintrader.bars.sources.layout import FilesSettings, column_names
from fintrader.errors import BarError

_ZONE = r"(?:Z|[+-]\d\d:?\d\d|:\d\d(?:\.\d+)?[+-]\d\d)$"
"""End of a time as text that carries an offset from UTC."""
_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Nanoseconds of what times count."""


def table_bars(
    table: pa.Table,
    settings: FilesSettings,
    *,
    origin: str,
    rows: Array,
    symbol: str = "",
    date: str | None = None,
) -> Bars:
    """A table's rows in the long schema; `rows` are their numbers in messages. Raises BarError: row
    and column.

    `symbol`: of all of them, where no column says it; `date`: of all of them, where times are those
    of a day.
    """
    names = column_names(settings)
    if "symbol" in names:
        codes, tickers = _symbols(table[names["symbol"]], origin, names["symbol"], rows)
    else:
        codes = np.zeros(table.num_rows, dtype=np.int32)
        tickers = (symbol,)
    if settings.uppercase:
        codes, tickers = _in_capitals(codes, tickers)
    days = table[names["date"]] if "date" in names else date
    ts = _times(table[names["ts"]], days, settings, origin, names["ts"], rows)
    values: dict[str, Any] = {
        name: _numbers(table[names[name]], settings, origin, names[name], rows) for name in COLUMNS
    }
    extras = {name: _numbers(table[name], settings, origin, name, rows) for name in settings.extra}
    if settings.price_divisor > 1:
        values |= {name: values[name] / settings.price_divisor for name in PRICES}
    if settings.decimals is not None:
        values |= {name: np.round(values[name], settings.decimals) for name in PRICES}
    return Bars(
        ts=ts, symbol=codes, symbols=tickers, extras=extras, row=rows, origin=origin, **values
    )


def one_kind(
    column: pa.ChunkedArray, zoned: bool | None, where: str, name: str, rows: Array
) -> bool | None:
    """True where times as text carry a zone: all like the first of them, or like those before
    (`zoned`).

    None where nothing tells. Raises BarError naming the first row that differs.
    """
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return None
    carries = pc.match_substring_regex(column.drop_null(), _ZONE).to_numpy()
    if len(carries) < len(rows):  # an empty cell is told elsewhere
        return zoned
    expected = bool(carries[0]) if zoned is None else zoned
    if (carries != expected).any():
        at = int((carries != expected).argmax())
        own, others = ("no", "do") if expected else ("a", "do not")
        raise BarError(
            f"{where}, row {rows[at]}, column {name!r}: {column[at].as_py()!r} carries {own} time"
            f" zone, and the rows before it {others}; write all times alike"
        )
    return expected


def _symbols(
    column: pa.ChunkedArray, where: str, name: str, rows: Array
) -> tuple[Array, tuple[str, ...]]:
    _no_nulls(column, where, name, rows)
    if not (pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)):
        column = column.cast(pa.string())
    encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
    codes = encoded.indices.to_numpy()
    named = encoded.dictionary.to_pylist()
    used: list[int] = (
        np.flatnonzero(np.bincount(codes, minlength=len(named))).tolist() if len(codes) else []
    )
    tickers = {code: named[code] for code in used}
    blank = [code for code, ticker in tickers.items() if not ticker.strip()]
    if blank:
        row = rows[np.flatnonzero(codes == blank[0])[0]]
        raise BarError(
            f"{where}, row {row}, column {name!r}: an empty text is no ticker; fill it or remove"
            " the row"
        )
    order = {ticker: rank for rank, ticker in enumerate(sorted({*tickers.values()}))}
    rank = np.array([order.get(ticker, -1) for ticker in named], dtype=np.int32)
    return rank[codes], tuple(order)


def _in_capitals(codes: Array, tickers: tuple[str, ...]) -> tuple[Array, tuple[str, ...]]:
    capitals = tuple(sorted({ticker.upper() for ticker in tickers}))
    place = np.array([capitals.index(ticker.upper()) for ticker in tickers], dtype=np.int32)
    return place[codes], capitals


def _times(
    column: pa.ChunkedArray,
    days: pa.ChunkedArray | str | None,
    settings: FilesSettings,
    where: str,
    name: str,
    rows: Array,
) -> Array:
    """`[R]` int64 UTC nanoseconds of the bars' starts. `days`: their dates, where `column` has the
    time of day only."""
    _no_nulls(column, where, name, rows)
    kind = column.type
    unit = _UNITS.get(settings.time_format or "")
    if unit is not None:
        ns = _count_times(column, unit, days, settings, where, name, rows)
    elif _is_text(kind) or days is not None:
        text = column.cast(pa.string())
        if days is not None:
            dates = days if isinstance(days, str) else _date_text(days, where, rows)
            text = pc.binary_join_element_wise(dates, text, " ")
        ns = _parse_times(text, settings, where, name, rows)
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        if getattr(kind, "tz", None) is None:
            column = _localise(column.cast(pa.timestamp("ns")), settings, where, name)
        ns = _epoch(column)
    else:
        raise BarError(
            f"{where}: column {name!r} is {kind}, not a time; store times, or ISO 8601 text, or say"
            " what it counts (data.source.time_format: s, ms, us or ns)"
        )
    return ns - settings.bar_minutes * MINUTE_NS if settings.label == "end" else ns


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)
    )


def _date_text(days: pa.ChunkedArray, where: str, rows: Array) -> pa.ChunkedArray:
    _no_nulls(days, where, "date", rows)
    if pa.types.is_timestamp(days.type) or pa.types.is_date(days.type):
        return pc.strftime(days, format="%Y-%m-%d")
    return days.cast(pa.string())


def _count_times(
    column: pa.ChunkedArray,
    unit: int,
    days: pa.ChunkedArray | str | None,
    settings: FilesSettings,
    where: str,
    name: str,
    rows: Array,
) -> Array:
    """Times that count units: since 1970 in UTC, or since midnight of their day in the settings'
    zone."""
    if pa.types.is_integer(column.type):
        counts = column.cast(pa.int64()).to_numpy()
    else:
        counts = np.round(_numbers(column, settings, where, name, rows)).astype(np.int64)
    if not _is_text(column.type) and not pa.types.is_integer(column.type) and unit == 1:
        raise BarError(
            f"{where}: column {name!r} is {column.type}, too coarse for nanoseconds; store whole"
            " numbers"
        )
    if _is_text(
        column.type
    ):  # as a number with a fraction, nanoseconds since 1970 would be rounded
        with contextlib.suppress(pa.ArrowInvalid):
            counts = column.cast(pa.string()).cast(pa.int64()).to_numpy()
    if days is None:
        if len(counts) and np.abs(counts).max() > 2**63 // (2 * unit):
            raise BarError(
                f"{where}: column {name!r}: {counts[0]} is no time in {settings.time_format} since"
                " 1970"
            )
        return np.asarray(counts * unit)
    dates: Any = (
        [days] * len(counts) if isinstance(days, str) else _date_text(days, where, rows).to_pylist()
    )
    known = {text: np.datetime64(pd.Timestamp(text), "ns").astype(np.int64) for text in set(dates)}
    midnight = np.array([known[text] for text in dates], dtype=np.int64)
    stamps = pa.chunked_array([pa.array((midnight + counts * unit).astype("datetime64[ns]"))])
    return _epoch(_localise(stamps, settings, where, name))


def _localise(
    column: pa.ChunkedArray, settings: FilesSettings, where: str, name: str
) -> pa.ChunkedArray:
    try:
        return pc.assume_timezone(column, settings.timezone)
    except pa.ArrowInvalid as error:
        raise BarError(
            f"{where}: column {name!r} has times that do not exist or are ambiguous in"
            f" {settings.timezone} ({first_line(error)}); declare the right data.source.timezone"
        ) from None


def _parse_times(
    column: pa.ChunkedArray, settings: FilesSettings, where: str, name: str, rows: Array
) -> Array:
    text = column.to_pandas()
    written = settings.time_format
    if written is None:
        zoned = bool(one_kind(column, None, where, name, rows))
    else:
        zoned = "%z" in written
    parsed = pd.to_datetime(text, format=written or "ISO8601", errors="coerce", utc=zoned)
    _refuse(parsed.isna(), text, f"no time like {written or '2016-01-04 09:30'}", where, name, rows)
    if zoned:
        return np.asarray(
            parsed.dt.tz_convert(None).to_numpy().astype("datetime64[ns]").astype(np.int64)
        )
    stamps = pa.chunked_array([pa.array(parsed.to_numpy().astype("datetime64[ns]"))])
    return _epoch(_localise(stamps, settings, where, name))


def carries_zone(times: pd.Series[Any]) -> bool:
    """True where times as text end with an offset from UTC, going by the first."""
    return bool(times.head(1).astype(str).str.contains(_ZONE).all())


def _epoch(column: pa.ChunkedArray) -> Array:
    """Zoned timestamps as int64 UTC nanoseconds."""
    return np.asarray(column.cast(pa.timestamp("ns", tz="UTC")).cast(pa.int64()).to_numpy())


def _numbers(
    column: pa.ChunkedArray, settings: FilesSettings, where: str, name: str, rows: Array
) -> Array:
    _no_nulls(column, where, name, rows)
    if (
        pa.types.is_string(column.type)
        or pa.types.is_large_string(column.type)
        or pa.types.is_dictionary(column.type)
    ):
        text = column.cast(pa.string()).to_pandas()
        plain = text.str.replace(",", ".", regex=False) if settings.decimal == "," else text
        numbers = pd.to_numeric(plain, errors="coerce")
        _refuse(numbers.isna(), text, "no number", where, name, rows)
        return np.asarray(numbers, dtype=np.float64)
    try:
        return np.asarray(column.cast(pa.float64()).to_numpy())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BarError(f"{where}: column {name!r} is {column.type}, not numbers") from None


def _refuse(
    bad: pd.Series[bool], text: pd.Series[str], what: str, where: str, name: str, rows: Array
) -> None:
    if bad.any():
        at = int(bad.to_numpy().argmax())
        raise BarError(
            f"{where}, row {rows[at]}, column {name!r}: {text.iloc[at]!r} is {what}; correct the"
            " row or remove it"
        )


def _no_nulls(column: pa.ChunkedArray, where: str, name: str, rows: Array) -> None:
    if column.null_count:
        bad = int(np.flatnonzero(pc.is_null(column).to_numpy())[0])
        raise BarError(
            f"{where}, row {rows[bad]}, column {name!r}: the cell is empty; fill it or remove"
            " the row"
        )


def first_line(error: BaseException) -> str:
    """First line of a library's error, without the file's text, which may be anything."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return re.sub(r"(got \d+): .*", r"\1", said)
