"""Conversion of a table's cells, as text or typed, to the numbers of bars. Errors name row and
column."""

from __future__ import annotations

import contextlib
import logging
import re
import zoneinfo
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fintrader.bars.bars import MINUTE_NS, PRICES, Array, Bars
from fintrader.bars.calendar import to_wall
from fintrader.bars.sources.layout import FilesSettings, column_names, split_sum
from fintrader.bars.sources.presets import MONEY, split_words
from fintrader.errors import BarError

log = logging.getLogger("fintrader.bars")

_ZONE = (
    r"(?:Z|(?::\d\d|[T ]\d{4}(?:\d\d)?)(?:[.,]\d+)?\s?(?:[AaPp][Mm]\s?)?[+-]\d\d(?::?\d\d)?"
    r"|[T ]\d\d[+-]\d\d:?\d\d)$"
)
"""Pattern of the end of a time, as text, that contains an offset from UTC after its clock; in
2014/12/23-13:45 the clock itself follows the sign."""
EMPTY = split_words(
    "null none nan nat na n/a #n/a #value! #ref! #div/0! #num! #name? #null! - -- ."
) + ("",)
"""Cells, in lower case, that count as empty in columns of numbers; in a column of tickers they are
valid tickers."""
_MARKS = "[,' \u00a0\u202f]"
"""Separators of thousands."""
_MONEY = f"(?:{MONEY})"
_EXPONENTS = dict(
    one.split("=")
    for one in split_words(
        "K=e3 TSD=e3 MIO=e6 M=e6 MRD=e9 B=e9 T=e12 L=e5 CR=e7 万=e4 萬=e4 만=e4 亿=e8 億=e8 억=e8"
    )
)
"""Unit of a formatted number, as also written in India, China and Korea -> its power of ten."""
_WRITTEN = re.compile(
    rf"(?P<sign>[+-]?){_MONEY}?\s?"
    rf"(?P<digits>\d{{1,3}}(?:{_MARKS}\d{{2,3}})*{_MARKS}\d{{3}}(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)"
    rf"\s?(?P<unit>(?:{'|'.join(_EXPONENTS)})?)[.,]?{_MONEY}?",
    re.IGNORECASE,
)
"""A formatted number: with separators of thousands, a currency, or a unit such as K or M."""
ZONE_NAME = (
    r"^(.*?(?:\d|[AaPp][Mm]))\s+((?:GMT|UTC)?[+-]\d\d:?\d\d"
    r"|(?![AaPp][Mm]\b)[A-Za-z][A-Za-z_/]+(?:[+-]\d[\d:]*)?)(?:\s[(A-Z].*)?$"
)
"""Pattern of a time and the name or offset of its zone; an offset may be followed by a name."""
_OFFSETS = dict(
    one.split("=")
    for one in split_words(
        "PST=-08:00 PDT=-07:00 MST=-07:00 MDT=-06:00 CST=-06:00 CDT=-05:00 EST=-05:00 EDT=-04:00"
        " CET=+01:00 BST=+01:00 CEST=+02:00 EET=+02:00 EEST=+03:00 IST=+05:30 HKT=+08:00 SGT=+08:00"
        " JST=+09:00 KST=+09:00 AEST=+10:00 AEDT=+11:00"
    )
)
CLOCK_DIGITS = {"%H%M": 4, "%H%M%S": 6, "%H%M%S%f": 9}
"""Format of a time of day without separators -> its number of digits. Shorter cells lack leading
zeros, as 930 for 9:30."""
LOCAL = "epoch_local"
"""Time format of numbers since 1970 in local time of the settings' zone, as MetaTrader writes
them."""
EXCEL = "excel"
"""Time format of Excel: days since 1899-12-30."""
SINCE = r"excel|(?:days|seconds|ticks) since -?\d+-\d\d-\d\d"
"""Pattern of the time formats that count days, seconds or ticks of 100 nanoseconds since a day."""
NET_TIME = r"^/Date\((-?\d+)(?:[+-]\d{4})?\)/$"
"""Pattern of a number of milliseconds since 1970 as .NET writes it into JSON; group 1 is the
number."""
MINGUO = "minguo"
"""Time format of dates like 113/01/02, whose years count from 1911, as in Taiwan."""
_MOST_CLOSES = 0.05
"""Largest share of rows with a close and not all other prices that are left out as days without
trade; more are an error."""
UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Unit of time -> its nanoseconds."""
_LATE = MINUTE_NS - UNITS["s"]
"""Nanoseconds from the start of a minute to its last second. Times in this second, such as
09:30:59.999, are the ends of bars."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{1,4}[./]\d{1,2}[./]\d{1,4}\b")
_LARGEST = np.array([10**10, 10**13, 10**16])
"""Numbers since 1970 below these bounds are seconds, milliseconds and microseconds; larger ones are
nanoseconds."""


@dataclass(frozen=True)
class Column:
    """The cells of a column, with their names for messages."""

    cells: pa.ChunkedArray
    """`[R]`."""
    name: str
    """The column's name in the file."""
    origin: str
    """The file's name in messages."""
    rows: Array
    """`[R]` int64: number of each row in the file."""

    @property
    def is_text(self) -> bool:
        """True if the cells are text, even if dictionary-encoded."""
        kind = self.cells.type
        return bool(
            pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_string_view(kind)
            or pa.types.is_dictionary(kind)
        )

    @property
    def holds_times(self) -> bool:
        """True if the cells are times or dates, or text whose first filled cell begins with a
        date."""
        kind = self.cells.type
        if not self.is_text:
            return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))
        filled = self.stripped[~is_empty(self.stripped)]
        return bool(len(filled) and _DATE.match(filled.iloc[0]))

    @property
    def text(self) -> pa.ChunkedArray:
        """The cells as text, without surrounding spaces."""
        kind = self.cells.type
        cells = self.cells
        if pa.types.is_dictionary(kind):
            cells = cells.cast(pa.dictionary(kind.index_type, pa.string()))
        return pc.utf8_trim_whitespace(cells.cast(pa.string()))

    @cached_property
    def stripped(self) -> pd.Series[Any]:
        """`text` as a pandas series."""
        text: pd.Series[Any] = self.text.to_pandas()
        return text

    def column_error(self, reason: str) -> BarError:
        """Return the BarError for a column that is wrong as a whole; `reason` completes the
        sentence that begins with the column."""
        return BarError(f"{self.origin}: column {self.name!r} {reason}")

    def cell_error(self, at: int, reason: str) -> BarError:
        """Return the BarError for the cell of row number `at` of the table; `reason` is its
        text."""
        return BarError(f"{self.origin}, row {self.rows[at]}, column {self.name!r}: {reason}")

    def empty_error(self, empty: Array) -> BarError:
        """Return the BarError for the empty cells that `empty` `[R]` marks."""
        count = int(np.count_nonzero(empty))
        more = f", as in {count - 1} more rows" * (count > 1)
        remedy = "fill it or remove the row"
        return self.cell_error(int(empty.argmax()), f"the cell is empty{more}; {remedy}")

    def refuse(self, bad: pd.Series[bool], fault: str) -> None:
        """Raise BarError for the first cell that `bad` `[R]` marks; `fault` completes `CELL is`."""
        if bad.any():
            at = int(bad.to_numpy().argmax())
            raise self.cell_error(
                at, f"{self.cells[at].as_py()!r} is {fault}; correct the row or remove it"
            )


def convert_table(
    table: pa.Table,
    settings: FilesSettings,
    *,
    origin: str,
    rows: Array,
    symbol: str = "",
    date: str | None = None,
) -> Bars:
    """Convert a table to bars. A row without any price gets NaN in all of its numbers.

    origin: the file's name in messages; rows: `[R]` numbers of the rows there; symbol: that of all
    rows, if no column has it; date: that of all rows, if the times are times of day. Raises
    BarError, which names row and column.
    """

    def column(name: str) -> Column:
        result = Column(table[name], name, origin, rows)
        if result.cells.null_count:
            raise result.empty_error(pc.is_null(result.cells).to_numpy())
        return result

    names = column_names(settings)
    if "symbol" in names:
        codes, tickers = _read_symbols(column(names["symbol"]), settings.uppercase)
    else:
        codes = np.zeros(table.num_rows, dtype=np.int32)
        tickers = (symbol.upper() if settings.uppercase else symbol,)
    days = _read_dates(column(names["date"])) if "date" in names else date
    ts = _read_times(column(names["ts"]), days, settings)
    parts = split_sum(names.get("volume"), table.column_names)
    numeric = {name: name for name in settings.extra} | {name: names[name] for name in PRICES}
    numeric |= {f"volume {part}": part for part in parts}
    numbers = {role: Column(table[name], name, origin, rows) for role, name in numeric.items()}
    values: dict[str, Any] = _read_numbers(numbers, settings)
    if parts:
        values["volume"] = np.sum([values.pop(f"volume {part}") for part in parts], axis=0)
    extras = {name: values.pop(name) for name in settings.extra}
    if "volume" not in values:
        values["volume"] = np.where(np.isnan(values["close"]), np.nan, 0.0)
    if settings.price_divisor > 1:
        values |= {name: values[name] / settings.price_divisor for name in PRICES}
    return Bars(
        ts=ts, symbol=codes, symbols=tickers, extras=extras, row=rows, origin=origin, **values
    )


def check_zones_alike(column: Column, zoned: bool | None) -> bool | None:
    """Report whether times as text contain a zone: all must be like the first one, or as `zoned`
    says of the rows before.

    None if the times are not text; `zoned` if a cell is empty. Raises BarError, which names the
    first row that differs.
    """
    if not column.is_text:
        return None
    carries = pc.match_substring_regex(column.text.drop_null(), _ZONE).to_numpy()
    if len(carries) < len(column.rows):  # another check reports empty cells
        return zoned
    expected = bool(carries[0]) if zoned is None else zoned
    if (carries != expected).any():
        at = int((carries != expected).argmax())
        own, others = ("no", "do") if expected else ("a", "do not")
        raise column.cell_error(
            at,
            f"{column.cells[at].as_py()!r} carries {own} time zone, and the rows before it"
            f" {others}; write all times with a zone, or none",
        )
    return expected


def _read_symbols(column: Column, uppercase: bool) -> tuple[Array, tuple[str, ...]]:
    kind = column.cells.type
    encodes_text = pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type)
    cells = column.cells if encodes_text else column.text
    encoded = cells.dictionary_encode().unify_dictionaries().combine_chunks()
    codes = encoded.indices.to_numpy()
    named = encoded.dictionary.to_pylist()
    used = np.flatnonzero(np.bincount(codes, minlength=len(named))).tolist()
    tickers = {code: named[code].lstrip("'`").strip() for code in used}  # marks of Excel and kdb
    if uppercase:
        tickers = {code: name.upper() for code, name in tickers.items()}
    for code, ticker in tickers.items():
        if not ticker:
            blank = int((codes == code).argmax())
            raise column.cell_error(blank, "an empty text is no ticker; fill it or remove the row")
    order = {ticker: place for place, ticker in enumerate(sorted({*tickers.values()}))}
    rank = np.zeros(len(named), dtype=np.int32)
    rank[used] = [order[ticker] for ticker in tickers.values()]
    return rank[codes], tuple(order)


def _read_times(
    column: Column, days: pa.ChunkedArray | str | None, settings: FilesSettings
) -> Array:
    """Convert a column of times to the starts of bars, `[R]` int64 nanoseconds since 1970 UTC.
    days: dates of the rows, if the column has the time of day only."""
    kind = column.cells.type
    if re.fullmatch(SINCE, settings.time_format or ""):
        ns = _read_day_counts(column, settings)
    elif settings.time_format in ("epoch", LOCAL, *UNITS):
        ns = _read_counts(column, UNITS.get(settings.time_format), days, settings)
    elif column.is_text or days is not None:
        text = column.text
        if days is not None:
            clock = (settings.time_format or "").rpartition(" ")[2]
            text = pc.utf8_lpad(text, CLOCK_DIGITS.get(clock, 0), "0")
            text = pc.binary_join_element_wise(days, text, " ")
        ns = _parse_times(replace(column, cells=text), settings)
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        ns = _to_utc(column, column.cells, settings)
    else:
        raise column.column_error(
            f"is {kind}, not a time; store times, or ISO 8601 text, or say what it counts"
            " (data.source.time_format: epoch)"
        )
    if settings.label in ("day", "eve"):
        late = pd.Timedelta(hours=12 if settings.label == "eve" else 0)
        midnight = (to_wall(ns, settings.timezone) + late).normalize()
        ns = _to_utc(column, midnight, settings)
    return round_ends(ns) - settings.bar_minutes * MINUTE_NS if settings.label == "end" else ns


def round_ends(ns: Array) -> Array:
    """Round times `[R]` in the last second of a minute up to the next minute, since some sources
    end bars a second or a millisecond early."""
    return np.where(ns % MINUTE_NS >= _LATE, -(-ns // MINUTE_NS) * MINUTE_NS, ns)


def _read_moments(column: Column, settings: FilesSettings) -> Array:
    """Convert an extra column of times to `[R]` float64 nanoseconds since 1970 UTC, NaN for empty
    cells. A date without a time of day becomes the end of that day."""
    is_filled = ~pd.isna(column.cells.to_pandas())
    if column.is_text:
        is_filled = ~is_empty(column.stripped)
    filled = is_filled.to_numpy()
    moments = np.full(len(filled), np.nan)
    column = replace(column, cells=column.cells.filter(pa.array(filled)), rows=column.rows[filled])
    ns = _read_times(
        column, None, settings.model_copy(update={"label": "start", "time_format": None})
    )
    wall = to_wall(ns, settings.timezone)
    is_date = wall == wall.normalize()
    if not is_date.all():  # among times a midnight is a time, and only text can show a mere date
        is_date = (column.stripped.str.len() == 10).to_numpy()
    moments[filled] = ns + is_date * 1440 * MINUTE_NS
    return moments


def _read_day_counts(column: Column, settings: FilesSettings) -> Array:
    """Read times of a format like `SINCE`, in local time of the settings' zone. Returns `[R]` int64
    nanoseconds since 1970 UTC."""
    written = str(settings.time_format)
    days = _read_column(column, settings) / counts_per_day(written)
    days += first_day(written)
    column.refuse(pd.Series(~(np.abs(days) < 100_000)), f"not a time in {written}")
    seconds = np.round(days * 86_400).astype("datetime64[s]")  # fractions of a day are inexact
    return _to_utc(column, seconds.astype("datetime64[ns]"), settings)


def counts_per_day(written: str) -> int:
    """Return the number of counts of a day in a format like `SINCE`."""
    return {"seconds": 86_400, "ticks": 864_000_000_000}.get(written.partition(" ")[0], 1)


def first_day(written: str) -> int:
    """Return the day from which a format like `SINCE` counts, as the number of days since 1970;
    negative before."""
    day = written.partition(" since ")[2] or "1899-12-30"
    return int(np.datetime64(day, "D").astype(int))


def _read_dates(days: Column) -> pa.ChunkedArray:
    kind = days.cells.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pc.strftime(days.cells, format="%Y-%m-%d")
    return days.text


def _read_counts(
    column: Column, unit: int | None, days: pa.ChunkedArray | str | None, settings: FilesSettings
) -> Array:
    """Read times that are counts: since 1970 UTC, or since midnight of their day in the settings'
    zone. Returns `[R]` int64 nanoseconds since 1970 UTC.

    unit: nanoseconds of a count. If None, the size of each number reveals its unit, which is
    unambiguous from May 1970 to 2286.
    """
    kind = column.cells.type
    if column.is_text:
        cells = pc.replace_substring_regex(column.text, NET_TIME, r"\1")
        column = replace(column, cells=cells)
    is_exact = column.is_text or pa.types.is_integer(kind)
    if unit == 1 and not is_exact:
        raise column.column_error(f"is {kind}, too coarse for nanoseconds; store whole numbers")
    counts = None
    if is_exact:  # a float could not represent nanoseconds since 1970 exactly
        with contextlib.suppress(pa.ArrowInvalid):
            counts = column.cells.cast(pa.int64()).to_numpy()
    if counts is None:
        numbers = _read_column(column, settings)
        column.refuse(pd.Series(numbers).isna(), "no number")
        counts = np.round(numbers).astype(np.int64)
        if unit is None and (counts != numbers).any():  # seconds with a fraction
            counts = np.round(numbers * 1e3).astype(np.int64)
    if unit is None or days is None:
        scale = unit or np.array(list(UNITS.values()))[np.searchsorted(_LARGEST, np.abs(counts))]
        remedy = "set data.source.time_format to its unit"
        far = pd.Series(np.abs(counts) > 2**62 // scale, dtype=bool)
        column.refuse(far, f"out of range in {settings.time_format}; {remedy}")
        times = counts * scale
        is_local = settings.time_format == LOCAL
        return _to_utc(column, times.astype("datetime64[ns]"), settings) if is_local else times
    dates = [days] * len(counts) if isinstance(days, str) else days.to_pylist()
    known = {text: np.datetime64(pd.Timestamp(text), "ns") for text in set(dates)}
    midnight = np.array([known[text] for text in dates], dtype="datetime64[ns]")
    return _to_utc(column, midnight + counts * np.timedelta64(unit, "ns"), settings)


def _parse_times(column: Column, settings: FilesSettings) -> Array:
    text = column.cells.to_pandas()
    written = settings.time_format
    if written is not None and written.endswith(" %Z"):
        return _parse_named_zones(column, settings)
    if written == MINGUO:
        text = text.str.replace(r"^\d+", lambda year: str(1911 + int(year[0])), regex=True)
        written = "%Y/%m/%d"
    zoned = bool(check_zones_alike(column, None)) if written is None else "%z" in written
    try:
        parsed = pd.to_datetime(text, format=written or "ISO8601", errors="coerce", utc=zoned)
    except (ValueError, re.error) as error:
        raise column.column_error(
            f"has no times in {written!r}; correct data.source.time_format"
        ) from error
    column.refuse(parsed.isna(), f"no time like {written or '2016-01-04 09:30'}")
    return _to_utc(column, parsed, settings)


def _parse_named_zones(column: Column, settings: FilesSettings) -> Array:
    """Read times that each end with the name of their zone. Returns `[R]` int64 nanoseconds since
    1970 UTC."""
    parts = column.stripped.str.extract(ZONE_NAME)
    column.refuse(parts[1].isna(), "not a time that ends with the name of its zone")
    written = str(settings.time_format).removesuffix(" %Z").removesuffix(" %z")
    ns = np.zeros(len(parts), dtype=np.int64)
    for name, rows in parts.groupby(1).indices.items():
        zone = find_zone(str(name)) or ""
        column.refuse((parts[1] == name) & (not zone), f"of an unknown zone {name!r}")
        own = {"time_format": written, "timezone": zone}
        times = parts[0][rows]
        if zone[0] in "+-":
            times += zone
            own = {"time_format": f"{written}%z"}
        cells = pa.chunked_array([pa.array(times, pa.string())])
        part = replace(column, cells=cells, rows=column.rows[rows])
        ns[rows] = _parse_times(part, settings.model_copy(update=own))
    return ns


def find_zone(name: str) -> str | None:
    """Return the IANA zone or the offset of a name such as EST, US/Eastern or GMT+2; None for an
    unknown name."""
    offset = re.fullmatch(r"(?:GMT|UTC)?([+-])(\d{1,2}):?(\d\d)?", name)
    if offset:
        return f"{offset[1]}{offset[2]:0>2}:{offset[3] or '00'}"
    try:
        return _OFFSETS.get(name) or zoneinfo.ZoneInfo(name).key
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None


def carries_zone(times: pd.Series[Any]) -> bool:
    """Report whether all times, as text, end with an offset from UTC. Dates like 03-01-2022 do
    not."""
    text = times.astype(str).str
    return bool((text.contains(_ZONE) & text.contains(r":|\dT\d")).all())


def _to_utc(column: Column, stamps: Any, settings: FilesSettings) -> Array:
    """Convert timestamps to `[R]` int64 nanoseconds since 1970 UTC; those without a zone are in the
    settings' zone."""
    try:
        if not isinstance(stamps, pa.ChunkedArray):
            stamps = pa.chunked_array([pa.array(stamps)])
        if getattr(stamps.type, "tz", None) is None:
            stamps = pc.assume_timezone(stamps.cast(pa.timestamp("ns")), settings.timezone)
        return np.asarray(stamps.cast(pa.timestamp("ns", tz="UTC")).cast(pa.int64()).to_numpy())
    except pa.ArrowInvalid as error:
        if "out of bounds" in str(error):
            raise column.column_error(
                "has times outside of the years 1678 to 2261; correct them"
            ) from None
        raise column.column_error(
            f"has times that do not exist or are ambiguous in {settings.timezone}"
            f" ({first_line(error)}); correct data.source.timezone"
        ) from None


def _read_numbers(columns: dict[str, Column], settings: FilesSettings) -> dict[str, Array]:
    """Read the numbers of each column: our name of the column -> `[R]` float64.

    Rows without a trade get NaN in all columns. An empty volume counts as 0, and an empty cell of
    an extra column is NaN. A few rows with a close alone count as untraded. Raises BarError for
    other empty cells, also of a factor.
    """
    _refuse_ambiguous(columns, settings)
    factor = settings.columns.get("factor")
    values = {name: _read_column(column, settings) for name, column in columns.items()}
    untraded = np.zeros(len(values["close"]), dtype=bool)
    volumes = [np.nan_to_num(values[name]) for name in values if name.startswith("volume")]
    if volumes:  # some sources write days without trade as zeros and the last close
        volume = sum(volumes)
        traded = volume + sum(np.nan_to_num(values[name]) for name in PRICES[:3])
        untraded = np.asarray(traded) == 0
        for name in PRICES[:3]:  # others write 0 for a missing price
            is_zero = (values[name] == 0) & ((volume == 0) | (values["low"] > 0))
            values[name] = np.where(is_zero, np.nan, values[name])
    is_close = ~np.isnan(values["close"])
    lacks = [np.isnan(values[name]) for name in PRICES[:3]]
    empty = np.logical_and.reduce(lacks) & ~is_close
    closes = np.logical_or.reduce(lacks) & is_close & ~untraded
    if closes.any() and closes.mean() <= _MOST_CLOSES:
        first = columns["close"]
        log.warning(
            "%s: row %d and %d others have a close, but not all prices; they are left out",
            *(first.origin, first.rows[closes][0], closes.sum() - 1),
        )
        empty |= closes
    empty |= untraded
    for name, column in columns.items():
        lacking = np.isnan(values[name]) & ~empty
        if name.startswith("volume") and lacking.any():
            log.warning(
                "%s: row %d and %d others have prices and no %s, which counts as 0",
                *(column.origin, column.rows[lacking][0], lacking.sum() - 1, column.name),
            )
            values[name] = np.where(lacking, 0.0, values[name])
        elif lacking.any() and (name not in settings.extra or name == factor):
            raise column.empty_error(lacking)
        if empty.any():
            values[name] = np.where(empty, np.nan, values[name])
    return values


def _read_column(column: Column, settings: FilesSettings) -> Array:
    """Read a column as `[R]` float64, NaN for empty cells; times become nanoseconds
    (`_read_moments`)."""
    if column.holds_times:
        return _read_moments(column, settings)
    if not column.is_text:
        cells = column.cells
        if cells.type == pa.float32():  # by way of text, or 1.10235 would become 1.1023499...
            cells = cells.cast(pa.string())
        try:
            return np.asarray(cells.cast(pa.float64()).to_numpy())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise column.column_error(f"is {cells.type}, not numbers") from None
    numbers = parse_numbers(column.stripped, settings.decimal)
    column.refuse(numbers.isna() & ~is_empty(column.stripped), "no number")
    return np.asarray(numbers)


def parse_numbers(text: pd.Series[Any], decimal: str = ".") -> pd.Series[float]:
    """Parse stripped cells as plain or formatted numbers, such as 1,234.50, $131.96 or 32.48M; NaN
    for anything else."""
    if decimal == ",":
        text = text.str.translate(str.maketrans(",.", ".,"))
    numbers = pd.to_numeric(text, errors="coerce").astype(np.float64)
    others = text[numbers.isna() & ~is_empty(text)]
    parts = others.str.extract(rf"^{_WRITTEN.pattern}$", flags=re.IGNORECASE).dropna()
    digits = parts["digits"].str.replace(_MARKS, "", regex=True)
    written = parts["sign"] + digits + parts["unit"].str.upper().map({"": ""} | _EXPONENTS)
    numbers[parts.index] = written.astype(np.float64)
    return numbers


def is_empty(text: pd.Series[Any]) -> pd.Series[bool]:
    """Mark the stripped cells that are empty, or one of `EMPTY`."""
    return text.isna() | text.str.lower().isin(EMPTY)


def _refuse_ambiguous(columns: dict[str, Column], settings: FilesSettings) -> None:
    """Raise BarError for prices in 32nds, and for a column that has only numbers like 1,234 if no
    cell of the table shows whether its comma separates thousands or decimals."""
    for name in [name for name in PRICES if columns[name].is_text]:
        cells = columns[name].stripped[~is_empty(columns[name].stripped)]
        if len(cells) and cells.str.fullmatch(r"\d+'([0-2]\d|3[01])[0257+]").all():
            raise columns[name].column_error(
                f"has prices in 32nds, like {cells.iloc[0]}; write decimals"
            )
    if "decimal" in settings.model_fields_set:
        return
    texts = {name: column.stripped for name, column in columns.items() if column.is_text}
    # 1,234,567 and 1,234.5 show that the comma separates thousands; 1.25 shows a decimal point
    shown = r",\d{3}[,.]|^[^\d\s]?\d+\.(?:\d{1,2}|\d{4,}|\d+ ?[KMBkmb])$"
    if any(text.str.contains(shown, na=False).any() for text in texts.values()):
        return
    for name, text in texts.items():
        cells = text[~is_empty(text)]
        if len(cells) and cells.str.fullmatch(r"\d{1,3},\d{3}").all():
            raise columns[name].column_error(
                f"has only numbers like {cells.iloc[0]}, and nothing shows whether the comma is the"
                " decimal sign: name the sign, a comma or a point (data.source.decimal)"
            )


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error, without the text that it quotes from the file."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return re.sub(r"(got \d+): .*", r"\1", reason)
