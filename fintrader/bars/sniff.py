"""Guess the layout of a file of bars from its first lines: delimiter, header, columns, and time
format."""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from fintrader.bars.bars import COLUMNS, PRICES
from fintrader.bars.sources.bar_files import csv_head, read_head
from fintrader.bars.sources.cells import (
    CLOCK_DIGITS,
    EMPTY,
    EXCEL,
    LOCAL,
    MINGUO,
    NET_TIME,
    SINCE,
    UNITS,
    ZONE_NAME,
    carries_zone,
    counts_per_day,
    find_zone,
    first_day,
    is_empty,
    parse_numbers,
)
from fintrader.bars.sources.listing import BarFile
from fintrader.bars.sources.presets import (
    ACTIONS,
    CLOCK_SPELLINGS,
    DATE_SPELLINGS,
    IN_BRACKETS,
    MONEY,
    SPELLINGS,
    ZONES,
    make_unique,
    plain,
    split_words,
)
from fintrader.bars.sources.typed import INDEX
from fintrader.errors import BarError

_HEAD_BYTES = 1 << 17
_ROWS = 2000
_EARLIEST = 473_385_600
"""Seconds from 1970 to 1985. Smaller numbers are not read as times since 1970, because no file's
bars are expected to end before 1985, and dates such as 20240131 are smaller, too."""
_DAY_COUNTS = (
    *("days since 1904-01-01", "days since 1960-01-01", "days since 1970-01-01"),
    *("days since -0001-12-31", "days since 0000-12-31"),
)
"""Time formats that count days, as used by old Excel workbooks (1904), SAS and Stata (1960), R
(1970), MATLAB (-0001-12-31), and `toordinal` of Python (0000-12-31)."""
_TICKS = "ticks since 0001-01-01"
_MOST_ABOVE = 12
"""Largest number of lines above a table, such as titles and remarks."""
_CLOCKS = "%H:%M|%H:%M:%S|%H:%M:%S.%f|%I:%M %p|%I:%M:%S %p|%I:%M%p|%I:%M:%S%p|%I-%p|%H.%M|%H.%M.%S"
_COUNTED = {
    6: "%d%m%y|%m%d%y|%y%m%d",
    7: "%Y%j",
    8: "%Y%m%d|%d%m%Y|%m%d%Y",
    12: "%Y%m%d%H%M",
    14: "%Y%m%d%H%M%S",
    17: "%Y%m%d%H%M%S%f",
}
"""Number of digits -> formats of dates and times without separators, joined by |."""
_ORDERS = ("Ymd", "dmY", "mdY", "Yj")
"""Usual orders of the parts of a date: Y is the year, m the month, d the day, and j the day of the
year."""
_ALIKE = str.maketrans("bBy", "mmY")
"""Letters of the names of months and of years of two digits -> their letters in `_ORDERS`."""
_UNUSUAL = r"%m\.|%y.*%[bB]"
"""Pattern of formats that are in a usual order, but that dates are not written in."""
_LEVELS = "', '"
"""Text between two levels of a pandas column in Parquet: `('Open', 'AAPL')`."""
_NO_TICKER = r"^[-+]?\d*[.,]\d|%|^(?:[Tt]rue|[Ff]alse)$"
_RARELY = {"T": r"[A-Z][A-Za-z0-9./-]*", "market": r"^(?:KRW|BTC|USDT|SGD|IDR|THB)-[A-Z0-9]+$"}
"""Name of a column that rarely contains the symbols -> pattern of the cells if it does."""
_FIELDS = {word for role in COLUMNS for word in SPELLINGS[role]}
_PRICE_KINDS = split_words("adj adjusted unadj raw bid ask mid time")
"""Words next to the name of a price that are not symbols, such as adj in `adj_close`."""

_VOLUME = (
    r"(?!.*(tweet|search|news|avg|average|mean|ma_?\d|std|ratio|ch(an)?g|pct))(.*[^e])?vol(?!at).*"
)
"""Pattern of the name of a volume that is not listed in `SPELLINGS`. Names of averages, changes,
ratios and volatility do not match."""
_ADJUSTED = r"adj\w*?_?close\w*|close_?adj\w*|adjcp|adjusted"
"""Pattern of the name of an adjusted close, which is used only if no other close exists."""
_PARTIAL = (
    r"(^|.*[_:. ])(bid|ask|buy|sell|short|pre|post|after|cum|accum|up|down|open_?int|oi)(?!date)"
)
"""Pattern of the beginning of a column name that is not the whole volume of one bar: a part of that
volume, a sum of several bars' volumes, or open interest."""
_NO_VOLUME = (
    r"cap$|tweet|sentiment|price|value|amount|turnover|interest|outstanding|trades|trans|.count"
    r"|num|\bn$|id$|avg|mean|average|ma_?\d|std|ratio|ch(an)?g|pct|volat|year|day|index"
)
"""Pattern of words in column names whose numbers are not volumes."""
_CLOSES_ALONE = "guess: closes alone; orders fill at them, too"
_IN_UTC = "counts from 1970 in UTC"
_MARKED_DATE = r"^\d{1,4}[-/.](?:\d{1,2}|[A-Za-z]{3})[-/.]\d{1,4}(?!\d)"
_WHOLE_DATE = _MARKED_DATE + r"|^\d{8}(?:T$| \d\d:?\d\d|\d*(?:\.0*)?$)"
"""Pattern of a cell that begins with a date, or is a number since 1970."""
_CLOCK = r"^\d{1,2}:\d\d"
_CLOCK_PARTS = split_words("hour hours hh minute minutes second seconds")
_CLOCK_CELL = r"\d{1,2}:\d\d(?::\d\d)?(?:\.\d+)?(?: ?[AaPp][Mm])?|(?:[01]\d|2[0-3])(?:[0-5]\d){2}"
_DIGIT_CLOCK = r"(?:[01]?\d|2[0-3])?[0-5]?\d|(?:[01]?\d|2[0-3])\.[0-5]\d"
"""Pattern of a clock time without a colon: 930, 0930, 09.30, or 5 for five minutes after
midnight."""
_DATED_CLOCK = r"^(.+?)(,? +|[TD_:-])(\d{1,2}:\d.*|\d{4,6}|\d{1,2}\.\d\d(?:\.\d\d)?|\d\d-[AP]M)$"
"""Pattern of a date, a separator and a time of day."""
_NAMESAKES = {
    **dict.fromkeys(PRICES, _MARKED_DATE),
    "symbol": rf"^ok$|{_MARKED_DATE}",
    "ts": r"^\d\.\d{0,5}E\+\d\d$",
}
"""Role -> pattern of the cells of a column that has a usual name of the role, but another content.
yfinance writes `Price` above the dates, a chart service writes ok in its column `s`, and Excel
rounds times since 1970 to 1.61093E+12."""

_OWN_TIMES = (
    "{}: each symbol has its own column of times next to the others, such as {}; save each"
    " symbol as a separate file"
)

_EACH = "{symbol}"
"""Value of --close for a table that has one column of closes for each symbol."""
_OR_EACH = f"; if each column holds the closes of a symbol: --close '{_EACH}'"

Known: TypeAlias = Mapping[str, Any]
"""Name of a setting that the user gave -> its value."""
Roles: TypeAlias = dict[str, Any]
"""Our name of a column, such as `ts` or `close`, -> the column in the file. A volume that the file
does not have is None."""


@dataclass
class Layout:
    """Layout of a file as settings of a `files` source, with the reasons for them."""

    name: str
    """Name of the file, for messages."""
    is_alone: bool = True
    """True if the source has no other file."""
    known: Known = field(default_factory=dict)
    """Settings that the user gave, which are not guessed. In a file without a header, columns are
    given as numbers, counted from 1."""
    values: dict[str, Any] = field(default_factory=dict)
    """Name of a setting -> its value. A setting that is not listed keeps its default."""
    notes: dict[str, str] = field(default_factory=dict)
    """Name of a setting -> reason for its value. The reason for a guess begins with `guess:`."""
    zoned: bool = False
    """True if each time contains its zone, or counts from 1970 in UTC."""
    example: str = ""
    """A time as it is written, if it contains its zone as text."""
    zone: str | None = None
    """Zone that the file names for times without an offset; None if it names no zone."""
    whole_days: bool = False
    """True if the times are dates without a time of day."""
    single: bool = False
    """True if neither a column nor the column names contain the symbols."""
    has_late_ends: bool = False
    """True if each time is the last second or millisecond of its bar."""
    actions: list[str] = field(default_factory=list)
    """Names of the columns of splits and dividends."""
    vendor: str | None = None
    """`lean` or `databento`, whose prices are whole numbers; None for any other vendor."""

    def note(self, setting: str, value: object, why: str) -> None:
        """Set the `setting` to `value`, and store the reason `why`."""
        self.values[setting] = value
        self.notes[setting] = why


def sniff(
    file: BarFile, date_in_name: bool, known: Known | None = None, *, is_alone: bool = True
) -> Layout:
    """Guess the layout of one `file`. `date_in_name`: True if the file's name contains a date;
    `known`: settings that the user gave; `is_alone`: True if there is no other file. Raises
    BarError if the file has no row, or if its layout cannot be found."""
    layout = Layout(file.name, is_alone, known or {})
    table = _read_csv_head(file, layout) if file.kind == "csv" else read_head(file, _ROWS)
    if table.empty:
        raise BarError(f"{file.name}: holds no row; check the file")
    if file.kind != "csv":
        _decide_decimal(table[:50].astype(str).fillna("").to_numpy().tolist(), layout)
    _refuse_melted(table, layout)
    if isinstance(table.columns, pd.RangeIndex):
        layout.note("header", [], "its columns have no names")
    given = _find_known_columns(table, layout)
    is_long = bool({"symbol", *COLUMNS} & {*given})
    columns = {} if is_long else _find_wide_roles(table, layout, given)
    columns = {**columns, **given} if columns else _find_roles(table, layout, given)
    _refuse_shared(columns, layout)
    if "header" in layout.values and "wide" not in layout.values:
        named = {column: role for role, column in columns.items() if column is not None}
        layout.values["header"] = [
            named.get(column, f"column_{number}") for number, column in enumerate(table.columns)
        ]
        columns = {role: named.get(column) for role, column in columns.items()}
        table = table.set_axis(layout.values["header"], axis=1)
    layout.single = "symbol" not in columns and "wide" not in layout.values
    layout.values["columns"] = {
        role: column if column is None else str(column) for role, column in columns.items()
    }
    _set_times(table, columns, layout, date_in_name)
    _recognise_vendor(file, table, layout)
    return layout


def _refuse_melted(table: pd.DataFrame, layout: Layout) -> None:
    """Raise BarError if the prices of a bar are in several rows: one column contains the names of
    the prices, and another column contains their values."""
    if {*PRICES} <= {*_find_spelt(table)}:
        return
    for column in table:
        cells = _clean(table[column]).str.lower()
        if cells.isin(COLUMNS).mean() > 0.5 and plain(column) not in SPELLINGS["symbol"]:
            raise BarError(
                f"{layout.name}: the prices of a bar stand in several rows, each with its name"
                f" ({cells.iloc[0]}); make a column of each, as pandas.DataFrame.pivot does"
            )


def _recognise_vendor(file: BarFile, table: pd.DataFrame, layout: Layout) -> None:
    """Set `actions`, `vendor`, the zone and the time format if the names of the columns or of the
    file belong to a known vendor."""
    layout.actions = [name for name in map(str, table.columns) if plain(name) in ACTIONS]
    names = {*map(plain, table.columns)}
    if {"rtype", "publisher_id"} & names:
        layout.vendor = "databento"
    if "real_volume" in names and layout.notes.get("time_format") == _IN_UTC:
        layout.note("time_format", LOCAL, "MetaTrader counts from 1970 by its server's clock")
        layout.zoned = False
    if re.match(r"DAT_(ASCII|MT|MS|NT|XLSX)_", file.stem):
        layout.zone = "Etc/GMT+5"  # histdata.com uses Eastern standard time all year
    # Lean writes hourly and daily bars to aapl.csv, without a header, in aapl.zip.
    is_lean = layout.values.get("time_format") == "%Y%m%d %H:%M" and "header" in layout.values
    if is_lean and re.search(r"([^/]+)\.zip/\1\.csv$", file.place):
        layout.vendor = "lean"


def _find_known_columns(table: pd.DataFrame, layout: Layout) -> Roles:
    """Return our name -> column for the columns that the user gave; None for the volume `none`. If
    the given `symbol` is not a column, set it as the symbol of all bars. Raises BarError for any
    other column that the file does not have."""
    is_nameless = layout.values.get("header") == []
    there = {
        str(number if is_nameless else column): column
        for number, column in enumerate(table.columns, 1)
    }
    asked = dict(layout.known.get("columns", {}))
    if asked.get("close") == _EACH:
        del asked["close"]
    symbol = layout.known.get("symbol")
    if symbol in there:
        asked["symbol"] = symbol
    elif symbol is not None:
        layout.values["symbol"] = symbol
    for role, column in asked.items():
        if column not in there and (role, column) not in (("volume", "none"), ("volume", None)):
            counted = "columns without names, " if is_nameless else ""
            raise BarError(
                f"{layout.name}: no column {column!r}; it has {counted}{', '.join(there)}; correct"
                f" --{role}"
            )
    return {role: there.get(column) for role, column in asked.items()}


def _refuse_shared(columns: Roles, layout: Layout) -> None:
    """Raise BarError if one column has two roles, or if the user gave a symbol although the file
    contains symbols. One column may be used for all four prices."""
    is_nameless = layout.values.get("header") == []
    prices = [columns.get(role) for role in PRICES]
    roles: dict[Any, list[str]] = {}
    for role, column in columns.items():
        if column is not None and (role not in PRICES[:3] or len({*prices}) > 1):
            roles.setdefault(column, []).append(role)
    for both in roles.values():
        if len(both) > 1:
            raise BarError(
                f"{layout.name}: one column is taken for both {' and '.join(both)}; name the other:"
                f" {' or '.join(f'--{role}' for role in both)}"
            )
    if "symbol" in layout.values and ("symbol" in columns or "wide" in layout.values):
        own = "its columns' names"
        if "symbol" in columns:
            own = f"column {columns['symbol'] + 1 if is_nameless else repr(columns['symbol'])}"
        raise BarError(
            f"{layout.name}: the symbols are in {own}, and no column is called"
            f" {layout.values['symbol']!r}; omit --symbol, or name their column"
        )


def _read_csv_head(file: BarFile, layout: Layout) -> pd.DataFrame:
    """Return the first rows of a CSV file as text, and set the delimiter, the decimal sign, the
    lines to skip and the header. The columns have the names in the file, or numbers from 0 if no
    line names them. Raises BarError if no line contains the delimiter that the user gave."""
    numbered = [
        (number, line)
        for number, line in enumerate(csv_head(file, _HEAD_BYTES).splitlines())
        if line.strip()
    ][: _ROWS + 3]
    if not numbered:
        return pd.DataFrame()
    lines = [line for _, line in numbered]
    delimiter = layout.known.get("delimiter") or _find_delimiter(lines, file.name)
    if delimiter != "," or "delimiter" in layout.known:
        layout.note("delimiter", delimiter, "occurs equally often in every line")
    rows = list(csv.reader(lines, delimiter=delimiter))
    if "delimiter" in layout.known and not any(len(row) > 1 for row in rows):
        raise BarError(
            f"{file.name}: no line holds {delimiter!r}, such as {lines[-1][:60]!r}; correct"
            " --delimiter"
        )
    width = Counter(map(len, rows[-50:])).most_common(1)[0][0]
    above = next((number for number, row in enumerate(rows) if len(row) == width), 0)
    # A line of names may have more or fewer cells than the rows.
    if _names_fields(rows[above - 1], width) and above:
        above -= 1
    remarks = next((number for number, line in enumerate(lines) if line[0] != "#"), 0)
    decimal = _find_decimal(rows)
    above = max(above, remarks * (not _holds_numbers(rows[remarks], decimal)))
    above = max(above, _find_below_empty(rows, decimal))
    if 0 < above <= _MOST_ABOVE:
        # `skip_rows` includes empty lines, because readers count them, too.
        layout.note("skip_rows", numbered[above][0], f"the table begins below {lines[0][:40]!r}")
        rows = rows[above:]
    else:
        above = 0
    written = rows[0]
    rows[0] = _mend_names(written, rows[1:], width)
    decimal = _decide_decimal(rows, layout)
    names = next((number for number, row in enumerate(rows[:5]) if _holds_numbers(row, decimal)), 0)
    whole = [row for row in rows[names:] if len(row) == width and row not in rows[:names]]
    if not names:
        return pd.DataFrame(whole)
    header = _name_columns(rows[:names], layout)
    if header != written:
        layout.values |= {"header": header, "skip_rows": numbered[above + names][0]}
        layout.notes["header"] = "several lines of names, or two that are alike"
    return pd.DataFrame(whole, columns=header)


def _find_below_empty(rows: Sequence[list[str]], decimal: str) -> int:
    """Return the number of the row below the last row of empty cells above the names, 0 without
    one: spreadsheets write titles with as many cells as the table."""
    head = rows[: _MOST_ABOVE + 1]
    first = next((number for number, row in enumerate(head) if _holds_numbers(row, decimal)), 0)
    empty = (number for number, row in enumerate(head) if not any(map(str.strip, row)))
    below = max((number + 1 for number in empty if number + 1 < first), default=0)
    is_named = any(len(_FIELDS.intersection(map(plain, row))) > 1 for row in head[:below])
    return 0 if is_named else below


def _names_fields(row: Sequence[str], width: int) -> bool:
    """Report whether the first `width` cells of a line `row` name all fields, or at least three of
    them if all other cells are empty."""
    count = len(_FIELDS.intersection(map(plain, row[:width])))
    return count > (4 if any(row[width:]) else 2)


def _mend_names(names: list[str], rows: Sequence[list[str]], width: int) -> list[str]:
    """Return the line `names` with `width` cells, as many as the `rows` have. Missing names are
    added as empty names: in front, because R writes no name for its row numbers, or at the end if
    the last cell of each row is empty. If the rows begin with a date and a clock time, and only the
    date has a name, the clock time gets one. Surplus names are cut off."""
    lacking = [""] * (width - len(names))
    is_empty = not any(row[-1].strip() for row in rows)
    is_timed = (
        len(names) > 1
        and plain(names[0]) in SPELLINGS["ts"]
        and plain(names[1]) not in CLOCK_SPELLINGS
    )
    if is_timed and len(lacking) == 1 and not is_empty and re.match(_CLOCK, rows[0][1]):
        return [names[0], "time", *names[1:]]  # `Date` stands for date and time
    return ([*names, *lacking] if is_empty else [*lacking, *names])[:width]


def _decide_decimal(rows: Sequence[Sequence[str]], layout: Layout) -> str:
    """Return the decimal sign that the user gave, or that the `rows` show. Set it in the layout if
    the user gave it or if it is not a point."""
    decimal = layout.known.get("decimal") or _find_decimal(rows)
    if decimal != "." or "decimal" in layout.known:
        layout.note("decimal", decimal, f"numbers are written like 12{decimal}5")
    return str(decimal)


def _name_columns(lines: Sequence[list[str]], layout: Layout) -> list[str]:
    """Return unique column names from the `lines` of names above a table. A line with another
    number of cells than the first line is ignored. Raises BarError if a line names the times more
    than once, and there are several lines or the line also names a price more than once."""
    lines = [line for line in lines if len(line) == len(lines[0])]
    names = make_unique(_join_lines(lines) if len(lines) > 1 else lines[0])
    for line in lines:
        is_repeated = any(line.count(one) > 1 for one in line if plain(one) in SPELLINGS["close"])
        if len(lines) == 1 and not is_repeated:
            continue
        own = [
            name
            for name, cell in zip(names, line, strict=True)
            if plain(cell) in SPELLINGS["ts"] and line.count(cell) > 1
        ]
        if own:
            raise BarError(_OWN_TIMES.format(layout.name, repr(own[1])))
    return names


def _find_decimal(rows: Sequence[Sequence[str]]) -> str:
    """Return the decimal sign, point or comma, of the numbers in the `rows` below the first one."""
    stripped = ([cell.strip().rstrip("KMBT% ") for cell in row] for row in rows[1:500])
    columns = [*itertools.zip_longest(*stripped, fillvalue="")]
    body = [*itertools.chain.from_iterable(columns)]
    if any(re.fullmatch(r"-?\d{1,3}(,\d{2,3})+(,\d{3}|\.\d+)", cell) for cell in body):
        return "."
    is_comma = re.compile(r"-?\d+([.\s]\d{3})*,\d+").fullmatch
    commas = [cell for cell in body if is_comma(cell)]
    # The comma in 1,234 may separate thousands. It is a decimal sign if the same column also has
    # numbers like 12345, without a separator of thousands. Codes and clock times are no evidence.
    is_clear = any(not re.fullmatch(r"-?\d{1,3},\d{3}", cell) for cell in commas) or any(
        re.fullmatch(r"\d{4,7}", cell)
        for column in columns
        if any(map(is_comma, column))
        for cell in column
    )
    has_points = any(re.fullmatch(r"-?\d+\.(\d\d?|\d{4,})", cell) for cell in body)
    return "," if len(commas) > len(body) / (4 if has_points else 10) and is_clear else "."


def _holds_numbers(row: Sequence[str], decimal: str) -> bool:
    """Report whether a line `row` is a row of data. At least 40 % of its non-empty cells after the
    first cell must be numbers; if they are all empty, the first cell must begin with a date."""
    stripped = (cell.strip().rstrip("%") for cell in row[1:])
    cells = pd.Series([cell for cell in stripped if cell.lower() not in EMPTY], dtype=str)
    if not len(cells):
        return bool(re.match(_MARKED_DATE, row[0].strip()))
    return bool(parse_numbers(cells, decimal).notna().mean() >= 0.4)


def _to_numbers(cells: Any, layout: Layout) -> pd.Series[float]:
    """Convert the `cells` of a column to numbers; other text becomes NaN."""
    return parse_numbers(cells.astype(str).str.strip(), layout.values.get("decimal", "."))


def _list_others(table: pd.DataFrame, roles: Roles) -> list[Any]:
    """List the columns of a table that have no role in `roles`."""
    return [column for column in table.columns if column not in roles.values()]


def _join_lines(lines: Sequence[Sequence[str]]) -> list[str]:
    """Join several `lines` of names above a table into one name for each column, such as
    `Open_AAPL`. pandas writes such lines for columns of several levels.

    One line names the fields, another line names the symbols, and the last line may name only the
    index.
    """
    for line in reversed(lines):  # if the symbols have a column, no line has them
        words = [*map(plain, line)]
        if len(_FIELDS.intersection(words)) > 2 and not set(SPELLINGS["symbol"]).isdisjoint(words):
            return [*map(str.strip, line)]
    filled = []
    for line in lines:
        cells: list[str] = []
        # The first cell may name the columns after it, too.
        block = line[0].strip() if any(line[1:]) else ""
        # A name may be written only above the first of its columns.
        for cell in map(str.strip, line[1:]):
            cells.append(cell or (cells[-1] if cells else block))
        filled.append(cells)
    filled = [cells for cells in filled if any(cells)]
    named = [cells for cells in filled if len(_FIELDS.intersection(map(plain, cells))) > 2]
    # If two lines name the fields, as in two languages, only the last one is used.
    filled = [cells for cells in filled if cells not in named[:-1]]
    filled.sort(key=lambda cells: -sum(plain(cell) in _FIELDS for cell in cells))
    first = next((line[0].strip() for line in reversed(lines) if line[0].strip()), "") or "ts"
    return [
        first,
        *("_".join(part for part in parts if part) for parts in zip(*filled, strict=True)),
    ]


def _find_delimiter(lines: Sequence[str], name: str) -> str:
    """Return the tab, semicolon, bar sign or space that occurs equally often in nearly all `lines`:
    at least twice, or once if it is no space and commas are not more frequent; otherwise the comma.
    A space is considered only if no line contains a comma.
    Raises BarError, with the file's `name`, if several spaces separate the columns."""
    best = (1, ",")
    marks = "\t;|" if any("," in line for line in lines) else "\t;| "
    commas = Counter(line.count(",") for line in lines[:200]).most_common(1)[0][0]
    for mark in marks:
        count, lines_alike = Counter(line.count(mark) for line in lines[:200]).most_common(1)[0]
        # A comma once per line is the decimal sign where another mark stands once per line, too.
        is_only = commas <= count == 1 and mark != " "
        if (count > best[0] or is_only) and lines_alike >= 0.9 * min(len(lines), 200) - _MOST_ABOVE:
            best = (count, mark)
    is_parted = best[1] == " " or (best[0] == 1 and not any("," in line for line in lines))
    if is_parted and any("  " in line for line in lines):
        raise BarError(
            f"{name}: its columns are separated by several spaces or have fixed widths; read it"
            " with pandas.read_fwf, by the widths in its description, and save it with to_csv"
        )
    return best[1]


def _holds_plain_prices(table: pd.DataFrame) -> bool:
    """Report whether each of the four prices has a usual name that exactly one column has. If so, a
    column `Close_yes` is a second close, and `yes` is not a symbol."""
    # `Open (USD)` and `Open (EUR)` both count as `open`.
    count = Counter(map(plain, table.columns))
    return all(1 in map(count.get, SPELLINGS[role]) for role in PRICES)


def _is_shared(word: str) -> bool:
    """Report whether a `word` in the names of all prices is not a symbol, but a unit, a bar length
    or another usual word, as in `Open_1h`, `Open_USD` or `etl:adj_open`."""
    is_unit = re.fullmatch(rf"{IN_BRACKETS}|(.*\W)?({MONEY})", word, re.IGNORECASE)
    return bool(is_unit) or _is_noise(word) or re.split(r"\W", word)[-1] in _PRICE_KINDS


def _find_wide_roles(table: pd.DataFrame, layout: Layout, given: Roles) -> Roles:
    """Return our name -> column or field for a table that has its own columns for each symbol, and
    set `wide`. Return an empty dict for a table that has one column for each role. If a unit or a
    bar length is in the place of the symbol, return the columns without setting `wide`. `given`:
    columns that the user gave."""
    _refuse_units(table, layout)
    is_long = _holds_plain_prices(table)
    is_named = not _FIELDS.isdisjoint(map(plain, table.columns[1:]))
    for mark, first in itertools.product((" ", "_", ".", "-", ":", "|", _LEVELS), (False, True)):
        found = _group_fields(table, mark, first)
        needed = max(map(len, found.values()), default=0)
        whole = [words for words in found.values() if len(words) == needed]
        if not _share_fields(whole, is_named):
            continue
        _refuse_merged(found, layout)
        alone = _find_alone(found, needed)
        if _is_shared(alone) and not is_long:
            shared = f"{mark}{alone}" if first else f"{alone}{mark}"
            return _strip_columns(table, layout, shared, given)
        _refuse_own_times(table, mark, first, layout)
        if is_long:
            return {}
        if alone and "header" in layout.values and not layout.is_alone:
            # The header of each file names the symbol of that file.
            own = {role: word + mark + alone for role, word in whole[0].items()}
            return {"ts": table.columns[0], "volume": None} | own
        symbol = "({symbol})" if all(one[0] + one[-1] == "()" for one in found) else "{symbol}"
        pattern = f"{{field}}{mark}{symbol}" if first else f"{symbol}{mark}{{field}}"
        layout.note(
            "wide",
            f"('{pattern}')" if mark == _LEVELS else pattern,
            f"{'guess: ' * (needed < 4)}{needed} columns for each of {len(whole)} symbols",
        )
        if "header" in layout.values:  # the column names become the header
            layout.values["header"] = list(map(str, table.columns))
        closes = dict.fromkeys(PRICES, whole[0]["close"])  # closes replace missing prices
        return _find_wide_times(table) | closes | {"volume": None} | whole[0]
    return _find_closes(table, layout)


def _share_fields(symbols: Sequence[dict[str, str]], is_named: bool) -> bool:
    """Report whether all `symbols` have the same fields: four or more, or at least two symbols with
    closes and perhaps volumes. `symbols`: our name -> field for each symbol; `is_named`: True if
    another column has the name of a field, so that closes without other prices are not accepted."""
    if not symbols or any("close" not in words or words != symbols[0] for words in symbols):
        return False
    has_closes = symbols[0].keys() - {"volume"} == {"close"} and len(symbols) > 1
    return len(symbols[0]) >= len(PRICES) or (has_closes and not is_named)


def _refuse_units(table: pd.DataFrame, layout: Layout) -> None:
    """Raise BarError if there are closes in several units, as in `Close (USD)` and
    `Close (EUR)`."""
    closes = " ".join(str(one) for one in table if plain(one) in SPELLINGS["close"])
    units = [found[0] for found in re.finditer(IN_BRACKETS, closes, re.IGNORECASE)]
    if len({unit.lower() for unit in units}) > 1:
        raise BarError(
            f"{layout.name}: has prices in several units, {', '.join(units)}; name those of one:"
            " --open, --high, --low and --close COLUMN"
        )


def _find_alone(found: dict[str, dict[str, str]], needed: int) -> str:
    """Return the only symbol in `found`, or the unit of all prices if the volumes have another
    unit; otherwise an empty text. `found`: symbol -> our name -> field; `needed`: number of fields
    of a complete symbol."""
    named = [symbol for symbol, words in found.items() if len(words) == needed]
    is_alone = len(named) == 1 and (len(found) == 1 or _is_shared(named[0]))
    return named[0] if is_alone else ""


def _find_wide_times(table: pd.DataFrame) -> Roles:
    """Find the column of times (`ts`), and that of dates (`date`) if there is one, in a table with
    columns for each symbol; the first column if no name or content shows the times."""
    others = [column for column in table.columns if plain(column) in SPELLINGS["ts"]]
    named = {"ts": others[0]} if others else _find_named_times(table, {})
    return {"ts": table.columns[0]} | named


def _refuse_merged(found: dict[str, dict[str, str]], layout: Layout) -> None:
    """Raise BarError if the symbols of `found` are the endings that pandas.merge gives to columns
    of the same name."""
    if {"x", "y"} <= {*found}:
        raise BarError(
            f"{layout.name}: names of columns end with _x and _y, as pandas.merge writes them for"
            " two tables; call them by their symbols (suffixes=('_AAPL', '_MSFT')), or save each"
            " table as a separate file"
        )


def _refuse_own_times(table: pd.DataFrame, mark: str, first: bool, layout: Layout) -> None:
    """Raise BarError if several symbols have their own columns of times. `mark`: text between field
    and symbol in a column name; `first`: True if the field is before the symbol."""
    spelt = (*SPELLINGS["ts"], *DATE_SPELLINGS)
    place = 0 if first else -1
    own = [column for column in map(str, table) if plain(column.split(mark)[place]) in spelt]
    if len(own) > 1:
        raise BarError(_OWN_TIMES.format(layout.name, repr(own[1])))


def _group_fields(table: pd.DataFrame, mark: str, first: bool) -> dict[str, dict[str, str]]:
    """Split column names that consist of a field and a symbol. Returns symbol -> our name -> field.
    `mark`: text between field and symbol; `first`: True if the field is before the symbol."""
    found: dict[str, dict[str, str]] = {}
    for column in map(str, table.columns):
        if mark == _LEVELS:
            column = column.removeprefix("('").removesuffix("')")
        parts = column.split(mark)
        cuts = range(1, len(parts))
        halves = [(mark.join(parts[:cut]), mark.join(parts[cut:])) for cut in cuts]
        pairs = halves[::-1] if first else [half[::-1] for half in halves]
        # The longest field is used: PX_LAST rather than LAST.
        word, symbol = next((pair for pair in pairs if plain(pair[0]) in _FIELDS), ("", ""))
        role = next((name for name in COLUMNS if plain(word) in SPELLINGS[name]), None)
        if role and symbol.strip() and plain(symbol).strip("._ ()") not in _PRICE_KINDS:
            found.setdefault(symbol, {})[role] = word
    return found


def _strip_columns(table: pd.DataFrame, layout: Layout, shared: str, given: Roles) -> Roles:
    """Return our name -> column for columns whose names share the prefix or suffix `shared`, which
    is not a symbol, such as the bar length in `Open_1h`. `given`: columns that the user gave."""
    names = {column: str(column).removesuffix(shared).removeprefix(shared) for column in table}
    order = sorted(names, key=lambda column: names[column] == column)
    part = table[order].rename(columns=names)
    known = {role: names.get(column) for role, column in given.items()}
    own = {names[column]: column for column in reversed(order)}
    found = _find_roles(part.loc[:, ~part.columns.duplicated()], layout, known)
    return {role: own.get(name, name) for role, name in found.items()}


def _find_closes(table: pd.DataFrame, layout: Layout) -> Roles:
    """Return the column of times, and set `wide`, if each other column contains the closes of one
    symbol; return an empty dict for any other table. Raises BarError if another column has
    numbers of rows."""
    counter = ""
    if INDEX in table and _counts_rows(table[INDEX]):  # pandas stores an index as the last column
        table = table.drop(columns=INDEX)
    if _counts_rows(table.iloc[:, 0]):
        counter = str(table.columns[0])  # reading ignores a column without a name
        table = table.iloc[:, 1:]
    table = table.loc[:, [len(_clean(table[column])) > 0 for column in table]]
    table = table[sorted(table, key=lambda column: plain(column) not in DATE_SPELLINGS)]
    is_asked = layout.known.get("columns", {}).get("close") == _EACH
    symbols = [str(column) for column in table.columns[1:]]
    tickers = [re.fullmatch(r"[\^.A-Z0-9][A-Z0-9.=/^&-]{0,14}", symbol) for symbol in symbols]
    if (
        plain(table.columns[0]) in _FIELDS
        or "header" in layout.values
        or not (all(tickers) or is_asked)
        or len(symbols) < 2
    ):
        return {}
    numbers = table.iloc[:, 1:].apply(_to_numbers, layout=layout)
    if not ((numbers > 0).sum() > 100 * (numbers <= 0).sum()).all():
        return {}
    is_field = not _FIELDS.isdisjoint(map(plain, symbols))
    if is_field and not (is_asked or _are_tickers(numbers)):
        return {}
    if counter:
        raise BarError(
            f"{layout.name}: column {counter!r} counts rows, but next to closes each column is a"
            " symbol; remove it"
        )
    layout.note("wide", "{symbol}", f"guess: closes of {len(symbols)} symbols, a column each")
    return {"ts": table.columns[0], "volume": None}


def _are_tickers(numbers: pd.DataFrame) -> bool:
    """Report whether all columns of `numbers` are closes, although some of them have the name of a
    field, such as C, V or LOW, which is also a ticker. No column may change as much as volumes do,
    and no column with the name of a field may be near another column."""
    fields = [name for name in numbers if plain(name) in _FIELDS]
    others = [name for name in numbers if name not in fields]
    is_near = (
        ((numbers[one] / numbers[other] - 1).abs() < 0.1).mean() > 0.95
        for one in fields
        for other in numbers
        if one != other
    )
    is_price = numbers.pct_change(fill_method=None).abs().median() < 0.05
    return (
        {*map(plain, fields)} <= {*"ohlcv", "open", "high", "low", "size"}
        and len(others) > 0
        and bool(is_price.all())
        and not any(is_near)
    )


def _find_roles(table: pd.DataFrame, layout: Layout, given: Roles) -> Roles:
    """Return our name -> column for a table that has one column for each role. `given`: columns
    that the user gave. Raises BarError if a required column is not found."""
    if layout.values.get("header") == []:
        return _find_roles_by_content(table, layout, given)
    named = [one for role, one in given.items() if one is not None and role not in ("ts", "date")]
    rest = table.drop(columns=named)
    found = _find_spelt(rest)
    if "bid" in plain(found.get("close")):
        layout.notes["columns"] = "guess: bids; --open, --high, --low and --close name others"
    if "volume" not in given:
        found["volume"] = _find_volume(table, found | given, layout)
    found |= _find_named_times(rest, found)
    if "ts" in given:
        found.pop("date", None)
    found |= given
    found |= _find_only_closes(table, found, given, layout)
    missing = _list_missing(table, found, layout)
    if missing:
        raise _ask_for(missing, table, layout)
    _refuse_parted_dates(table, found, layout)
    layout.zone = _read_zone(str(found["ts"]))
    if "volume" not in given and found["volume"] is None:
        _refuse_unnamed_volume(table, found, layout)
    layout.notes.setdefault("columns", "by their names")
    return found


def _find_only_closes(table: pd.DataFrame, found: Roles, given: Roles, layout: Layout) -> Roles:
    """Find closes that have no usual name: adjusted closes, or the only column of numbers of the
    only file. If no other prices belong to the closes, or if the user gave the closes and a price
    is missing, they stand for all prices. Returns our name -> column."""
    closes = [found["close"]] if "close" in found else []
    closes = closes or [one for one in table if re.fullmatch(_ADJUSTED, plain(one))]
    if not closes and layout.is_alone and "ts" in found:
        others = _list_others(table, found)
        closes = [one for one in others if _to_numbers(table[one], layout).notna().any()]
        closes = closes * (len(closes) == 1)
    missing = [role for role in PRICES[:3] if role not in found]
    if not closes or not missing:
        return dict(zip(["close"], closes, strict=False))
    roles = found | {"close": closes[0]}
    if len(missing) == 3:
        is_alone = "close" in given or not _has_other_prices(table, roles, layout)
    else:  # ask for the missing prices if another column may have them
        others = [_to_numbers(table[one], layout) for one in _list_others(table, roles)]
        is_alone = "close" in given and not any(numbers.notna().any() for numbers in others)
    if is_alone:
        layout.notes["columns"] = _CLOSES_ALONE
        return dict.fromkeys(PRICES, closes[0]) | given
    return {"close": closes[0]}


def _find_spelt(table: pd.DataFrame) -> Roles:
    """Return our name -> column for the columns that have a usual name of `SPELLINGS`."""
    found: Roles = {}
    # A name in lower case comes first: `t` before `T`.
    columns = sorted(table.columns, key=lambda column: column != plain(column))
    for role, words in SPELLINGS.items():
        spelt = [column for word in words for column in columns if plain(column) == word]
        spelt = [one for one in spelt if plain(one) != "d" or _hold_any_dates(_clean(table[one]))]
        if role in _NAMESAKES:
            spelt = [column for column in spelt if not _holds_all(table[column], _NAMESAKES[role])]
        if spelt:
            found[role] = spelt[0]
    if plain(found.get("symbol")) == "name":
        cells: Any = table[found["symbol"]]
        names = {*_clean(cells)}
        if len(names) == 1 and re.search(rf"(?i)^\d|\s|^({MONEY})$", *names):
            del found["symbol"]
    for column in ["T"] * ("t" in columns) + ["market"]:  # as in daily bars of Massive, and Upbit
        if column in columns and _holds_all(table[column], _RARELY[column]):
            found.setdefault("symbol", column)
    return found


def _read_zone(column: str) -> str | None:
    """Return the zone in the name of a `column` of times, such as `Time (EET)` or `time_utc`; None
    if it has none."""
    words = "|".join(ZONES)
    found = re.search(rf"(?:^|[\W_])({words})(?:[\W_]time)?[\W_]*$", column.lower())
    return found and ZONES[found[1]]


def _refuse_unnamed_volume(table: pd.DataFrame, found: Roles, layout: Layout) -> None:
    """Raise BarError if a column without a role may be the volume: its name is that of a part of
    the volume, or its numbers look like volumes."""
    for column in _list_others(table, found):
        name = plain(column)
        is_part = re.match(_PARTIAL, name) and re.fullmatch(_VOLUME, name)
        if is_part or (
            _are_counts(_to_numbers(table[column], layout)) and not re.search(_NO_VOLUME, name)
        ):
            raise _ask_for(["volume"], table, layout)


def _are_counts(numbers: pd.Series[float]) -> bool:
    """Report whether the `numbers` of a column, NaN for other cells, look like volumes. More than
    80 % of them must be whole numbers of 100 or more, and they must both rise and fall."""
    size = len(numbers)
    numbers = numbers.dropna()
    if len(numbers) < size / 2 or numbers.is_monotonic_increasing:
        return False
    is_large = (numbers >= 100) & (numbers % 1 == 0)
    return bool(is_large.mean() > 0.8 and not numbers.is_monotonic_decreasing)


def _refuse_parted_dates(table: pd.DataFrame, found: Roles, layout: Layout) -> None:
    """Raise BarError if each time is divided into several columns, such as year, month and day,
    hour and minute, or AM and PM."""
    parts = [str(column) for column in table.columns if _holds_all(table[column], "^[AaPp][Mm]$")]
    names = {plain(column): str(column) for column in table.columns}
    if {"year", "month"} <= names.keys() and plain(found.get("date", found["ts"])) == "day":
        parts += [names["year"], names["month"], names["day"]]
    keys = [found[role] for role in ("ts", "symbol") if role in found]
    if "date" not in found and table.duplicated(keys).mean() > 0.5:
        parts += [names[part] for part in _CLOCK_PARTS if part in names]
    if parts:
        raise BarError(
            f"{layout.name}: its times are split into columns ({', '.join(parts)}); join them into"
            " one column, like 2024-01-31 or 2024-01-31 09:30"
        )


def _ask_for(missing: Sequence[str], table: pd.DataFrame, layout: Layout) -> BarError:
    asked = ", ".join("time" if role == "ts" else role for role in missing)
    are = ("column is", "it") if len(missing) == 1 else ("columns are", "them")
    return BarError(
        f"{layout.name}: which {are[0]} the {asked}? It has"
        f" {', '.join(map(str, table.columns))}; name {are[1]}:"
        f" {' '.join(f'--{role} COLUMN' for role in missing)}"
        f"{', or --close alone where there are no others' if {*PRICES} & {*missing} else ''}"
        f"{', or --volume none' * ('volume' in missing)}"
        f"{', or write the time of each bar into a column' * ('ts' in missing)}"
        f"{_OR_EACH * ('close' in missing)}"
    )


def _list_missing(table: pd.DataFrame, found: Roles, layout: Layout) -> list[str]:
    """List the required roles that have no column. If all four prices are missing, and fewer than
    four columns of numbers are left, only the close is listed, not the other prices. Otherwise the
    volume is also listed if prices are missing and more columns of numbers are left than prices are
    missing."""
    missing = [role for role in ("ts", *PRICES) if role not in found]
    cells = [_to_numbers(table[column], layout) for column in _list_others(table, found)]
    count = sum(numbers.notna().mean() > 0.5 for numbers in cells)
    prices = [role for role in missing if role != "ts"]
    if count < len(PRICES) == len(prices):
        return [role for role in missing if role in ("ts", "close")]
    is_spare = count > len(prices) > 0
    return [*missing, "volume"] if is_spare and found.get("volume") is None else missing


def _has_other_prices(table: pd.DataFrame, found: Roles, layout: Layout) -> bool:
    """Report whether columns without a role have the words high and low in their names, or at least
    three have a median between half and twice the median of the closes."""
    others = _list_others(table, found)
    names = re.split(r"[\W_]+", " ".join(map(plain, others)))
    close = _to_numbers(table[found["close"]], layout).median()
    medians = [_to_numbers(table[one], layout).median() for one in others]
    is_near = sum(0.5 <= median / close <= 2 for median in medians) >= 3
    return is_near or {"high", "low"} <= {*names}


def _find_volume(table: pd.DataFrame, roles: Roles, layout: Layout) -> Any:
    """Find the column of volumes by its name; None if there is none. If that column is the turnover
    of another column, return the other one; if all its cells are 0, return the tick volumes,
    if any. `roles`: our name -> known column."""
    by_name = {plain(column): column for column in table.columns}
    found: Any = roles.get("volume")
    if found is None:
        if {"up", "down"} <= by_name.keys():  # volumes at rising and at falling prices
            return f"{by_name['up']} + {by_name['down']}"
        spelt = [
            name
            for name in by_name
            if re.fullmatch(_VOLUME, name) or name.rpartition(":")[2] in SPELLINGS["volume"]
        ]
        whole = [name for name in spelt if not re.match(_PARTIAL, name)]
        if not whole:
            return None
        found = by_name[min(whole, key=lambda name: not name.startswith(("total", "vol")))]
        if len(spelt) > 1:
            layout.notes["columns"] = "guess: one of several volumes; --volume names another"
    if "close" in roles:  # `volume` may be the turnover of `quoteVolume`
        close, own = (_to_numbers(table[one], layout) for one in (roles["close"], found))
        for column in _list_others(table, {**roles, "volume": found}):
            if _is_turnover(own, close, _to_numbers(table[column], layout)):
                return column
    cells = {*_clean(table[found])}
    if layout.is_alone and cells and cells <= {"-1", "-1.0"}:  # -1 means no volume
        return None
    ticks = by_name.get("tickvol", by_name.get("tick_volume"))
    if ticks is not None and cells and cells <= {"0", "0.0"}:
        layout.notes["columns"] = "by their names; the other volume is 0"
        return ticks
    return found


def _is_turnover(own: pd.Series[float], close: pd.Series[float], pieces: pd.Series[float]) -> bool:
    """Report whether a column `own` is the turnover of `pieces`: `own / pieces` moves as the price
    `close` does. All three are `[R]` numbers of the same rows."""
    ratio = np.log((own / pieces)[own * pieces > 0])
    rest = ratio - np.log(close.where(close > 0))
    return bool(len(ratio) > max(9, 0.8 * (own > 0).sum()) and rest.std() < 0.5 * ratio.std())


def _find_named_times(table: pd.DataFrame, found: Roles) -> Roles:
    """Find the columns of date and time of day, or one column of times, first by their names, then
    by their cells. Returns our name (`ts`, `date`) -> column; empty if no column fits, or if
    `found` already has the times and there is no pair of date and time of day. `found`: our name ->
    known column."""
    dates = [
        column
        for column in table.columns
        if plain(column) in DATE_SPELLINGS and not _holds_all(table[column], r"^\D+$")
    ]
    clocks = [
        column
        for column in table.columns
        if plain(column) in CLOCK_SPELLINGS
        or (
            plain(column) in (*SPELLINGS["ts"], *_CLOCK_PARTS) and _holds_all(table[column], _CLOCK)
        )
    ]
    short = {} if dates else _find_short_times(table, found.get("ts"))
    if short:
        return short
    if dates and clocks:
        # The cells of the column of times may include the dates.
        whole = _clean(table[clocks[0]]).str.contains(r"^\d{10,}$|" + _MARKED_DATE).any()
        return {"ts": clocks[0]} if whole else {"date": dates[0], "ts": clocks[0]}
    if "ts" in found:
        return {}
    indices = _list_indices(table)
    names = dict.fromkeys(one for one in indices if _holds_all(table[one], r"^\D+$"))
    dated = [one for one in _list_others(table, found) if _holds_all(table[one], _MARKED_DATE)]
    times = [one for one in dates + indices if one not in names]
    if times and (times[0] in dates + dated or not dated):
        return dict(zip(["ts", "symbol"], [times[0], *names], strict=False)) | found
    return _find_times_by_cells(table, found, dated)


def _find_short_times(table: pd.DataFrame, time: Any) -> Roles:
    """Return the roles of columns `d` and `t` with dates and times of day; empty without them.
    `time`: the column found so far for the times."""
    dates = [one for one in table if plain(one) == "d" and _hold_any_dates(_clean(table[one]))]
    is_clock = plain(time) == "t" and _holds_all(
        table[time], rf"^(?:{_CLOCK_CELL}|{_DIGIT_CLOCK})$"
    )
    return {"date": dates[0], "ts": time} if dates and is_clock else {}


def _find_times_by_cells(table: pd.DataFrame, found: Roles, dated: list[Any]) -> Roles:
    """Find the columns of times by their cells: our name (`ts`, `date`) -> column. `dated`: columns
    of dates."""
    clocked = [one for one in _list_others(table, found) if _holds_all(table[one], _CLOCK)]
    if len(dated) != 1 or len(clocked) > 1:
        is_time = "id" in table and _holds_all(table["id"], r"^1\d{9}$")  # as in bars of Huobi
        return {"ts": "id"} if is_time else {}
    return {"date": dated[0], "ts": clocked[0]} if clocked else {"ts": dated[0]}


def _list_indices(table: pd.DataFrame) -> list[Any]:
    """List the columns that are levels of an index in pandas, without empty ones and row
    numbers."""
    nameless = r"|1|index|unnamed: [01]|level_[01]|__index_level_[01]__"
    return [
        column
        for column in table.columns
        if re.fullmatch(nameless, str(column).strip().lower())
        and not _counts_rows(table[column])
        and len(_clean(table[column]))
        and not _holds_all(table[column], r"^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*$")
    ]


def _holds_all(column: pd.Series[Any], pattern: str) -> bool:
    """Report whether a `column` has non-empty cells, each with a match of `pattern`."""
    cells = _clean(column)
    return len(cells) > 0 and bool(cells.str.contains(pattern).all())


def _counts_rows(column: pd.Series[Any]) -> bool:
    """Report whether the cells of a `column` are row numbers: 0 or 1 first, then one more in each
    row. Several symbols may have the same numbers, one symbol after the other or in turn."""
    numbers = pd.to_numeric(column, errors="coerce").to_numpy()
    is_next = np.isin(np.diff(numbers), (0, 1)) | (numbers[1:] == numbers[:1])
    is_strict = (np.diff(numbers) == 1).all()
    # Codes 1, 2, 3 of symbols are no row numbers.
    is_various = len(np.unique(numbers)) > max(60, len(numbers) / 20)
    return bool(numbers[:1] in (0, 1) and (is_strict or (is_next.all() and is_various)))


def _clean(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return the non-empty cells of a `column` as text without spaces at both ends."""
    cells = column.astype(str).str.strip()
    return cells[~is_empty(cells)]


def _drop_later_clocks(text: pd.DataFrame, numeric: pd.DataFrame) -> pd.DataFrame:
    """Drop all but the earliest of several columns that count time since 1970, such as a bar's
    start, end and publication."""

    def counts(numbers: pd.Series[float]) -> bool:
        is_sorted = numbers.is_monotonic_increasing or numbers.is_monotonic_decreasing
        return bool(is_sorted and numbers.min() > 3e8)

    clocks = [one for one in text if one in numeric and counts(numeric[one])]
    clocks.sort(key=lambda one: numeric[one].iloc[0])
    return text.drop(columns=clocks[1:])


def _find_roles_by_content(table: pd.DataFrame, layout: Layout, given: Roles) -> Roles:
    """Return our name -> column for columns without names, by their cells: four adjacent columns
    look like prices, and others look like times, dates or symbols. `given`: columns that the user
    gave. Raises BarError if prices or times are not found."""
    text = table.astype(str).fillna("").apply(lambda column: column.str.strip())
    text = text[[one for one in text if not _counts_rows(text[one])]]
    numbers = text.apply(_to_numbers, layout=layout)
    is_read = (numbers.notna() | text.apply(is_empty)).mean() >= 0.9
    numbers = numbers.loc[:, is_read & (numbers.notna().mean() > 0.5)]
    found = _find_prices_by_content(text, numbers, layout, given)
    all_columns = list(table.columns)
    last = max(all_columns.index(found[name]) for name in PRICES)
    after = [column for column in all_columns[last + 1 :] if column in numbers]
    if "volume" not in found:
        before = all_columns[: min(all_columns.index(found[name]) for name in PRICES)]
        counts = _list_counts(before, text, numbers)
        found["volume"] = _find_traded(numbers, [*after, *counts], found, layout)
    others = text.drop(columns=[column for column in found.values() if column is not None])
    dated = [column for column in table.columns if _holds_all(table[column], _MARKED_DATE)]
    if len(dated) > 2:  # two may be the start and end of each bar
        raise BarError(_OWN_TIMES.format(layout.name, list(table.columns).index(dated[1]) + 1))
    times = _find_times_and_symbols(others, numbers, text.columns[0])
    if "ts" in given:
        times.pop("date", None)
    found = times | found
    if "ts" not in found:
        raise BarError(
            f"{layout.name}: no column looks like a time; give its number, counted from 1: --ts"
        )
    layout.notes.setdefault("columns", "by their content")
    return found


def _find_prices_by_content(
    text: pd.DataFrame, numbers: pd.DataFrame, layout: Layout, given: Roles
) -> Roles:
    """Return our name -> column for the prices and the columns that the user gave. `text`: all
    columns as text; `numbers`: the columns of numbers. Raises BarError if there are no prices."""
    prices = _find_prices(numbers)
    alone: Any = given.get("close", next(iter(numbers), None))
    if {*PRICES} <= {*given}:
        found = dict(given)
    elif not prices and ("close" in given or numbers.shape[1] == 1):
        found = dict.fromkeys(PRICES, alone) | given
        layout.notes["columns"] = _CLOSES_ALONE
    elif not prices:
        raise BarError(
            f"{layout.name}: no four adjacent columns look like prices; give their numbers, counted"
            f" from 1: {', '.join(f'--{name}' for name in PRICES)}, or --close alone; or write each"
            " price into a column of its kind, as a decimal number"
        )
    else:
        clock = numbers.get(text.columns[0], pd.Series(dtype=float))
        falls = clock.is_monotonic_decreasing
        is_timed = falls != clock.is_monotonic_increasing
        step = -1 if is_timed and falls else 1  # reversed if the newest row is first
        values = numbers[prices].dropna().to_numpy()[::step].T
        found = {**_order_prices(prices, values, layout, is_timed), **given}
    for role in PRICES:
        if found[role] not in numbers:
            raise BarError(
                f"{layout.name}: no numbers in the column of --{role}, but"
                f" {text[found[role]].iloc[-1]!r}; name another one, or write numbers"
            )
    return found


def _find_traded(numbers: pd.DataFrame, after: list[Any], found: Roles, layout: Layout) -> Any:
    """Find the volume among the columns `after`, usually those after the prices; None if none is
    left. Prices, adjusted closes, turnovers and numbers below 0 are left out. If several
    columns are left, return the first one, or, if the first one contains whole numbers, the column
    of counts with the largest median."""
    close: Any = numbers[found["close"]]
    left = [
        column
        for column in after
        if ((numbers[column] / close - 1).abs() < 0.1).mean() < 0.95
        and (numbers[column].replace(-1, 0) < 0).mean() <= 0.05
        and not _is_adjusted(numbers[column] / close)
    ]
    left = [
        column
        for column in left
        if not any(_is_turnover(numbers[column], close, numbers[one]) for one in left)
    ]
    # Counts that hardly change are open interest or shares outstanding.
    moving = [one for one in left if numbers[one].pct_change().abs().median() > 0.05]
    left = moving or left
    if len(left) < 2:
        return next(iter(left), None)
    layout.notes["columns"] = "guess: one of several counts; --volume names another"
    counts = [one for one in left if _are_counts(numbers[one])]
    is_count = (numbers[left[0]] % 1 == 0).mean() > 0.98
    return max(counts, key=lambda one: numbers[one].median()) if counts and is_count else left[0]


def _is_adjusted(factor: pd.Series[float]) -> bool:
    """Report whether a column is an adjusted close. `factor`: the column divided by the close; it
    must be between 0.01 and 2 and change in less than 10 % of the rows."""
    changes = factor.pct_change().abs() > 1e-4
    return bool(changes.mean() < 0.1 and factor.between(0.01, 2).all())


def _find_prices(numbers: pd.DataFrame) -> list[Any]:
    """Find the first four adjacent columns of `numbers` that look like prices; empty without
    any. One of the four must be the highest in nearly all rows, one must be the lowest,
    and their medians must be close together."""
    for start in range(numbers.shape[1] - 3):
        four = numbers.iloc[:, start : start + 4]
        four = four[(four > 0).all(axis=1)]
        if len(four) < len(numbers) / 2:  # a row with zeros is a day without trade
            continue
        is_low, is_high = (
            float(four.eq(edge, axis=0).mean().max()) > 0.98
            for edge in (four.min(axis=1), four.max(axis=1))
        )
        if is_low and is_high and np.ptp(np.log(four.median())) < 0.5:
            return list(four)
    return []


def _find_times_and_symbols(text: pd.DataFrame, numeric: pd.DataFrame, first: Any) -> Roles:
    """Find the columns of time, date and symbol. `text`: the columns that are neither prices nor
    volume, as text; `numeric`: all columns of numbers; `first`: the first column of the file."""
    found: Roles = {}
    names: list[Any] = []
    text = _drop_later_clocks(text, numeric)
    for column, cells in text.items():
        is_clock = cells.str.fullmatch(_CLOCK_CELL).all() and not _are_dates_of_digits(cells)
        if is_clock and column != first:
            found.setdefault("ts", column)
        elif _hold_dates(cells) and _moves_like_times(numeric.get(column)):
            found.setdefault("date", column)
        elif (cells != "").mean() > 0.9 and not cells.str.contains(_NO_TICKER).any():
            names.append(column)
    found |= _find_times_of_digits(text[[one for one in text if one in numeric]], text, found)
    names = [one for one in names if one not in found.values()]
    # A column that contains only one usual word, such as NASDAQ, has no symbols.
    names = [one for one in names if text[one].nunique() > 1 or not _is_noise(text[one].iloc[0])]
    keys = [*found.values()]
    repeats = text.duplicated(keys or None).sum()
    # A column of exchanges may precede the symbols, and symbols may be numbers.
    names.sort(key=lambda one: (-text[one].nunique(), _is_noise(str(text[one].iloc[0]))))
    for column in names:
        if column not in numeric or text.duplicated([column, *keys]).sum() == 0 < repeats:
            found.setdefault("symbol", column)
    if "ts" not in found and "date" in found:
        found["ts"] = found.pop("date")
    return found


def _hold_dates(cells: pd.Series[Any]) -> bool:
    """Report whether each of the `cells` begins with a date or counts time since 1970."""
    if cells.str.contains(_WHOLE_DATE).all():
        return True
    if cells.str.fullmatch(r"[-\d.,]*").any():
        return False  # numbers
    dates = cells.str.extract(_DATED_CLOCK)[0]
    return bool(_list_date_formats(cells) or (dates.notna().all() and _list_date_formats(dates)))


def _find_times_of_digits(numbers: pd.DataFrame, text: pd.DataFrame, known: Roles) -> Roles:
    """Find columns of dates such as 240131, and next to dates of clock times such as 0930. If no
    column is a time, the first number is the date, such as a count of days. `numbers`: the columns
    of numbers in `text`; `known`: columns of times found so far."""
    found: Roles = {}
    if "date" not in known:
        dates = (one for one in numbers if _are_dates_of_digits(text[one], "ts" in known))
        found |= {"date": next(dates, None if known else next(iter(numbers), None))}
    dated: Any = known.get("date", found.get("date"))
    if dated is not None and "ts" not in known:
        clocks = (one for one in text if _count_minutes(text[one], text[dated]))
        found |= {"ts": next(clocks, None)}
    return {role: column for role, column in found.items() if column is not None}


def _list_counts(columns: Sequence[Any], text: pd.DataFrame, numbers: pd.DataFrame) -> list[Any]:
    """List those of the `columns` that have counts that are neither dates nor clock times."""
    clock = f"{_DIGIT_CLOCK}|{_CLOCK_CELL}"
    return [
        one
        for one in columns
        if one in numbers
        and _are_counts(numbers[one])
        and not _are_dates_of_digits(text[one])
        and not (_hold_dates(text[one]) and _moves_like_times(numbers[one]))
        and not text[one].str.fullmatch(clock).all()
    ]


def _moves_like_times(numbers: pd.Series[float] | None) -> bool:
    """Report whether the numbers of a column change little from row to row, as a count of time
    does, and a turnover does not; True for None, a column of text."""
    return numbers is None or bool(numbers.pct_change().abs().median() < 0.01)


def _hold_any_dates(cells: pd.Series[Any]) -> bool:
    """Report whether the cells are dates, with separators or without."""
    return len(cells) > 0 and (_hold_dates(cells) or _are_dates_of_digits(cells))


def _are_dates_of_digits(cells: pd.Series[Any], is_timed: bool = False) -> bool:
    """Report whether the cells are dates without separators, such as 240131: several dates, if the
    file is not known to have times of day (`is_timed`)."""
    size = int(cells.str.len().max())
    is_known = size in _COUNTED and (is_timed or cells.nunique() > 1)
    return is_known and bool(_list_fitting(cells.str.zfill(size), _COUNTED[size]))


def _count_minutes(cells: pd.Series[Any], dates: pd.Series[Any]) -> bool:
    """Report whether cells such as 930 or 0930 are clock times: they span an hour or more on most
    dates, and most of them are the same number of minutes after the cell before on their date."""
    if not cells.str.fullmatch(_DIGIT_CLOCK).all():
        return False
    number = cells.str.replace(".", "").astype(int)
    minutes = (number // 100 * 60 + number % 100).groupby(dates.to_numpy())
    steps = minutes.diff().dropna()
    spans = minutes.max() - minutes.min()
    return bool((steps == steps.median()).mean() > 0.5 and spans.median() >= 60)


def _order_prices(columns: list[Any], values: Any, layout: Layout, is_timed: bool) -> Roles:
    """Find which of four `columns` of prices are open, high, low and close. `values`: their prices,
    `[4, R]`; `is_timed`: True if the rows are in order of time."""
    highest = (values >= values.max(axis=0)).mean(axis=1)
    lowest = (values <= values.min(axis=0)).mean(axis=1)
    top = 1
    bottom = 2
    is_usual = min(highest[1], lowest[2]) > 0.98
    if not is_usual:
        top = int(highest.argmax())
        lowest[top] = -1
        bottom = int(lowest.argmax())
    left, right = (row for row in range(4) if row not in (top, bottom))
    # A bar usually opens near the close of the bar before it.
    ahead = np.median(np.abs(values[left][1:] - values[right][:-1]))
    back = np.median(np.abs(values[right][1:] - values[left][:-1]))
    if back < ahead / 2 and is_timed if is_usual else back < ahead:
        left, right = right, left
    order = (left, top, bottom, right)
    if order != (0, 1, 2, 3):
        layout.notes["columns"] = "guess: from the highest and lowest of each bar"
    return {name: columns[row] for name, row in zip(PRICES, order, strict=True)}


def _set_times(
    table: pd.DataFrame, columns: dict[str, Any], layout: Layout, date_in_name: bool
) -> None:
    """Set `time_format`, `zoned` and `whole_days` from the column of times. `columns`: our name ->
    column; `date_in_name`: True if the file's name contains a date. Raises BarError if the format
    of the times is unknown."""
    column = table[columns["ts"]]
    if "time_format" in layout.known:
        _set_known_format(column, layout, "date" in columns, date_in_name)
        return
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        layout.zoned = True
        return
    if pd.api.types.is_datetime64_any_dtype(column):
        layout.whole_days = "date" not in columns and bool((column.dt.normalize() == column).all())
        return
    if pd.api.types.is_float_dtype(column) and (column.dropna() % 1 == 0).all():
        column = column.dropna().astype("int64")  # text of a float has .0 or an exponent
    cells = _clean(column).str.replace(NET_TIME, r"\1", regex=True)
    # Some dates of a column may end with 00:00:00.
    days = cells.str.removesuffix(" 00:00:00") if cells.str.len().nunique() > 1 else cells
    parts = cells.str.extract(ZONE_NAME)
    if len(cells) and parts.notna().all(axis=None):
        cells = _split_zones(parts, layout)
    if "date" in columns:
        _set_formats(table[columns["date"]].astype(str).str.strip()[cells.index], cells, layout)
    elif not date_in_name and _recognise_counted_days(cells, layout):
        pass
    elif cells.str.fullmatch(r"\d+").all():
        _set_counted_format(cells, layout, date_in_name)
    elif cells.str.fullmatch(r"\d{9,}(?:\.\d+)?|\d\.\d+e\+(09|1[0-8])").all():
        _count_epoch(layout)
    elif carries_zone(cells):
        layout.zoned = True
        layout.example = str(next(iter(cells), ""))
    elif _list_date_formats(cells) or _list_fitting(days, "%Y-%m-%d"):
        _set_formats(days, None, layout)
    else:
        parts = cells.str.extract(_DATED_CLOCK)
        is_whole = parts.notna().all(axis=1)
        _refuse_odd(cells, is_whole, layout)
        if is_whole.all():
            _set_formats(parts[0], parts[2], layout, re.sub(" +", " ", parts[1].iloc[0]))
        else:
            _set_formats(cells, None, layout)


def _refuse_odd(cells: pd.Series[Any], fits: pd.Series[bool], layout: Layout) -> None:
    """Raise BarError for the first of the `cells` that does not fit, if more than 90 % of the cells
    fit. `fits`: for each cell, True if it fits."""
    if 0.9 < fits.mean() < 1:
        raise BarError(
            f"{layout.name}: {cells[~fits].iloc[0]!r} stands among times like"
            f" {cells[fits].iloc[0]!r}; remove its row, or write a time there"
        )


def _split_zones(parts: pd.DataFrame, layout: Layout) -> pd.Series[Any]:
    """Return the times without the names of their zones, and set `zoned`. `parts`: one row for each
    cell, with the time and the name of its zone. Raises BarError for an unknown zone."""
    for name in parts[1].unique():
        if find_zone(name) is None:
            raise BarError(
                f"{layout.name}: its times end with {name!r}, which is no known zone; write it into"
                f" their format and name the zone: --time-format '%Y-%m-%d %H:%M:%S {name}' --zone"
            )
    layout.zoned = True
    return parts[0]


def _recognise_counted_days(cells: pd.Series[Any], layout: Layout) -> bool:
    """Report whether the `cells` count days from a usual first day, and set the time format if they
    do. The last day must be between 1985 and tomorrow, and the median gap at most 5 days. The
    format is the first for which bars are on all five weekdays and no weekend; otherwise it is
    Excel's."""
    if not cells.str.fullmatch(r"(\d{5}|7\d{5})([.,]\d+)?").all():
        return False
    counts = _to_numbers(cells, layout)
    days = np.unique(np.floor(counts))
    today = pd.Timestamp.now().timestamp() / 86_400
    is_clear = {}
    for system in (EXCEL, *_DAY_COUNTS):
        since = days + first_day(system)
        if _EARLIEST / 86_400 < since[-1] < today + 2:
            is_clear[system] = {*((since + 3) % 7)} == {*range(5)}
    best = max(is_clear, key=is_clear.__getitem__, default="")
    if len(days) < 2 or np.median(np.diff(days)) > 5 or not (is_clear.get(best) or best == EXCEL):
        return False
    layout.whole_days = bool((counts % 1 == 0).all())
    why = f"{'guess: --time-format decides; ' * (not is_clear[best])}counts days"
    layout.note("time_format", best, why)
    return True


def _set_known_format(
    column: pd.Series[Any], layout: Layout, has_date: bool, date_in_name: bool
) -> None:
    """Set the `time_format` that the user gave, and derive `zoned` and `whole_days` from it.
    `has_date`: True if a separate column contains the dates; `date_in_name`: True if the file's
    name contains a date."""
    written = layout.known["time_format"]
    layout.note("time_format", written, "")
    if re.fullmatch(SINCE, written):
        layout.whole_days = not (_to_numbers(column, layout) % counts_per_day(written)).any()
    elif written in UNITS:
        a_day = 86_400 * UNITS["s"] // UNITS[written]
        is_clock = has_date or (date_in_name and pd.to_numeric(column).max() < a_day)
        layout.zoned = not is_clock
    else:
        layout.zoned = written == "epoch" or "%z" in written
        is_dated = layout.zoned or has_date or re.search(r"%[HIMSfpsTXcR]|local", written)
        layout.whole_days = not is_dated


def _set_formats(
    dates: pd.Series[Any], clocks: pd.Series[Any] | None, layout: Layout, joint: str = " "
) -> None:
    """Set `time_format` and `whole_days` from the `dates` and the times of day `clocks` (None
    without any). `joint`: text between date and time of day. Raises BarError if the
    format is unknown."""
    example = joint.join(filter(None, (dates.iloc[0], "" if clocks is None else clocks.iloc[0])))
    if (
        clocks is None
        and dates.str.fullmatch(r"[01]?\d\d/\d\d/\d\d").all()
        and dates.str.len().max() == 9
    ):
        layout.whole_days = True
        layout.note("time_format", MINGUO, f"counts years from 1911, like {example}")
        return
    fits = _list_date_formats(dates)
    clock_format = None if clocks is None else _fit_clock(clocks)
    marks = dates.str.replace(r"[^/.-]", "", regex=True)
    other = dates[marks != marks.iloc[0]]
    if len(other) and _list_date_formats(dates.str.replace(r"[/.]", "-", regex=True)):
        raise BarError(
            f"{layout.name}: dates like {dates.iloc[0]!r} and {other.iloc[0]!r} are written in two"
            " ways; write them alike"
        )
    if not fits or (clocks is not None and clock_format is None):
        for usual in _list_date_formats(dates[:1])[:1]:
            parsed = pd.to_datetime(dates, format=usual, errors="coerce")
            _refuse_odd(dates, parsed.notna(), layout)
        problem = f"times like {example!r} are unknown"
        raise BarError(f"{layout.name}: {problem}; {_suggest_format(dates)}")
    layout.whole_days = clocks is None
    date_format, why = _choose_date_format(dates, fits)
    iso = date_format == "%Y-%m-%d" and joint in ("T", " ")
    whole = dates if clocks is None else dates + joint + clocks
    iso = iso and bool(_list_fitting(whole, "ISO8601"))  # 9:5 is not ISO 8601
    if not iso or layout.zoned:
        written = date_format if clock_format is None else f"{date_format}{joint}{clock_format}"
        written += " %Z" if layout.zoned else ""
        layout.note("time_format", written, f"{why}like {example}")


def _suggest_format(dates: pd.Series[Any]) -> str:
    """Return advice to the user for `dates` that no known format fits."""
    if dates.str.contains(r"(?<!\d)2[456]\d\d(?:\d{4})?(?!\d)").all():
        return "its years are Buddhist: subtract 543 from them"
    if dates.str.contains(r"^1[34]\d\d\D").all():
        return "its years are Persian: write dates of the Gregorian calendar"
    remedy = (
        "say how they are written (--time-format, like '%d.%m.%Y %H:%M'), or begin each row with"
        " the start of its bar, like 2024-01-31 09:30"
    )
    if re.search(r"[^\W\d_]", dates.iloc[0]):
        remedy += "; months and weekdays in another language than English: write numbers"
    return remedy


def _fit_clock(clocks: pd.Series[Any]) -> str | None:
    """Return the format that fits all times of day `clocks`; None if no format fits. Times without
    separators may lack a leading zero, as 930 for 9:30."""
    if (clocks == "0").all():
        return "%H"
    if clocks.str.fullmatch(r"\d+").all():
        size = int(clocks.str.len().max())
        written = next((one for one, digits in CLOCK_DIGITS.items() if 0 <= digits - size < 2), "")
        clocks = clocks.str.zfill(CLOCK_DIGITS.get(written, 0))
        return next(iter(_list_fitting(clocks, written)), None) if written else None
    return next(iter(_list_fitting(clocks, _CLOCKS)), None)


def _list_date_formats(cells: pd.Series[Any]) -> list[str]:
    """List the formats that fit all `cells`: the separators of the first cell, with the year, month
    and day, and perhaps the weekday, in every usual order."""
    first = str(next(iter(cells), ""))
    numbers = "%m|%d|%y" if "/" in first else "%y|%d|%m"
    sizes = {1: numbers, 2: numbers, 4: "%Y"} | _COUNTED
    # Excel's sheets have dates such as 20240131.0.
    choices = [
        (sizes.get(len(part), part) if part.isdecimal() else part).split("|")
        if len(part) < 3 or not part.isalpha()
        else ["%b", "%B", "%a", "%A"]
        for part in re.findall(r"\.0$|\d+|[^\W\d_]+|[\W_]", first)
    ]
    usual = []
    for parts in itertools.islice(itertools.product(*choices), 1000):
        written = "".join(parts)
        order = "".join(re.findall("%([dmbBjyY])", written)).translate(_ALIKE)
        if order in _ORDERS and not re.match(_UNUSUAL, written):
            usual.append(written)
    return _list_fitting(cells, "|".join(usual)) if usual else []


def _list_fitting(cells: pd.Series[Any], formats: str) -> list[str]:
    """List the formats that fit all `cells`. `formats`: the formats to try, joined by |."""
    distinct = pd.Series(cells.unique())
    found = []
    for written in formats.split("|"):
        how: Any = {"format": written, "errors": "coerce", "utc": "%z" in written}
        if len(distinct) and pd.isna(pd.to_datetime(distinct[0], **how)):
            continue  # one cell costs a fifth of a column
        # pandas puts times of day into 1900, and cells that do not fit have no year.
        if pd.to_datetime(distinct, **how).dt.year.between(1900, 2100).all():
            found.append(written)
    return found


def _choose_date_format(cells: pd.Series[Any], fits: list[str]) -> tuple[str, str]:
    """Choose one of the formats `fits`. Returns the format, and the beginning of a note: empty, or
    `guess:` with a reason. The right format gives dates with fewer changes of direction and a
    shorter range than a format that exchanges day and month."""
    if len(fits) == 1:
        return fits[0], ""
    scores = {}
    for written in fits:
        days = pd.to_datetime(cells, format=written).to_numpy().astype("datetime64[D]").astype(int)
        steps = np.diff(days)
        ways = int(np.count_nonzero(np.diff(np.sign(steps[steps != 0]))))
        scores[written] = (ways, int(np.ptp(days)))
    orders = [re.sub("[^YymdbB]", "", written) for written in fits]
    best, *others = sorted(fits, key=lambda written: scores[written])
    (ways, reach), (other_ways, other_reach) = scores[best], scores[others[0]]
    if scores[best] == scores[others[0]] and len({*orders}) > 1:
        return best, f"guess: {others[0]} fits as well; --time-format decides; "
    is_clear = other_ways > 2 * ways + 2 or 2 * reach < other_reach or reach == other_reach
    return best, "" if is_clear else f"guess: fits better than {others[0]}, "


def _set_counted_format(cells: pd.Series[Any], layout: Layout, date_in_name: bool) -> None:
    """Set the time format of `cells` that are whole numbers: times since midnight, times since
    1970, or dates without separators. Raises BarError for any other numbers."""
    digits = set(cells.str.len())
    size = digits.pop() if len(digits) == 1 else 0
    fits = _list_fitting(cells, _COUNTED.get(size, "%Y%m%d"))
    most = int(cells.astype("int64").max())
    if date_in_name and most < 86_400_000 and "%Y%m%d" not in fits:
        layout.note(
            "time_format",
            "s" if most < 86_400 else "ms",
            "counts from midnight; the date is in the file's name",
        )
        if "header" in layout.values and most >= 86_400:
            layout.vendor = "lean"
        return
    if fits:
        written, why = _choose_date_format(cells, fits)
        layout.note("time_format", written, f"{why}like {cells.iloc[0]}")
        layout.whole_days = size <= 8
        return
    if 6 * 10**17 < most < 7 * 10**17:  # would be nanoseconds of 1989 to 1992
        layout.note("time_format", _TICKS, "counts ticks of .NET")
        layout.whole_days = not (cells.astype("int64") % counts_per_day(_TICKS)).any()
        return
    # Other numbers that would be nanoseconds before 1989 are dates with other digits.
    if most < _EARLIEST or 10**16 <= most <= 6 * 10**17:
        raise BarError(
            f"{layout.name}: times like {cells.iloc[0]} are neither dates nor times since 1970;"
            " name the column of the dates, if they count from midnight (--date), or another one of"
            " times (--ts), or state how they are written (--time-format 'days since"
            " 1970-01-01', or 1960-01-01 as in Stata and SAS)"
        )
    _count_epoch(layout)


def _count_epoch(layout: Layout) -> None:
    layout.note("time_format", "epoch", _IN_UTC)
    layout.zoned = True


_WORDS = re.compile(
    "adj|adjusted|downloaded|merged|amex|arca|ascii|ask|bar|barchart|barchartdotcom|bars|"
    "alpaca|alphavantage|nymex|dly|huobi|htx|upbit|bithumb|deribit|gateio|bitget|poloniex|"
    "ytd|quote|equity|eq|from|to|wkn|historic|historicalprices|bats|bid|binance|bitfinex|bitmex|"
    "bitstamp|bybit|candle|candles|"
    "candlestick|coinbase|crypto|daily|dat|data|day|days|download|dukascopy|eod|etf|etfs|export|"
    "finance|"
    "历史数据|scid|bardata|forex|"
    "full|intra|futures|fx|fxcm|gemini|historical|history|hour|hourly|intraday|kline|klines|kraken|"
    "nse|bse|szse|datos|históricos|données|historiques|historische|daten|dati|storici|dados|px|"
    "kucoin|last|metatrader|mexc|mid|min|minute|minutes|mt4|mt5|nasdaq|nyse|oanda|ohlc|ohlcv|"
    "okx|polygon|price|prices|quandl|quotes|raw|spot|stock|stocks|stooq|tiingo|trade|trades|"
    "tradingview|unadj|volume|weekly|wiki|yahoo|yahoofinance|us|xnas|xnys|xlon|xetr|xpar|xams|xtse|"
    "xhkg|xtks|xkrx|xshg|xshe|xbom|xnse|xasx|eurex|historicaldata|coinmarketcap|marketwatch|nasdaq|"
    "quotemedia|stockprices|history_data|chart|table|results|max|candlesticks|comex|hkex",
    re.IGNORECASE,
)
"""Pattern of words in file names that are not symbols."""
_DATE = r"(?:19|20)\d\d-?[01]\d-?[0-3]\d"
_NOISE = re.compile(
    rf"{_DATE}|\d\d\.\d\d\.(?:19|20)\d\d|(?:19|20)\d\d(?:-?(?:0[1-9]|1[0-2]))?"
    r"|\d{1,4}|\d{10,}|\d+ ?"
    r"(?:m|min|mins|minute|minutes|h|hour|d|day|w|s|t|mo|y|yrs?|years?|months?)|[mhdw]\d{0,3}"
    r"|tick"
    r"|PT?\d+[MHDW]|(?:minute|hour|day)s?_\d+",
    re.IGNORECASE,
)
"""Pattern of dates, other numbers and bar lengths in file names that are not symbols."""
_YEAR = r"(?:19|20)\d\d"
_DATED = rf"(?:{_DATE}|\d\d\.\d\d\.{_YEAR}|{_YEAR}(?:-?(?:0[1-9]|1[0-2]))?)"
_PART = (
    rf"(?:(?:{_YEAR})?(?:q[1-4]|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|"
    rf"aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)(?:{_YEAR})?|"
    r"part\d*|train(?:ing)?|valid(?:ation)?|test|copy|\(\d+\))"
)
"""Pattern of words in file names that mark one part of a symbol's bars, such as a month."""
# MAR and DEC are also symbols. A word marks a part of the bars only if the words of all
# files in the same place do.
_IS_PART = re.compile(_PART, re.IGNORECASE)
_PERIOD = rf"(?:{_DATED}|{_PART}|\d+ ?(?:m|min|minute|h|hour|d|day)|(?:{_WORDS.pattern}))"
_PERIODS = rf"{_PERIOD}(?:[_\s,-]+{_PERIOD})*"
_DAY_FOLDER = r"(?:(?:19|20)\d\d(?:-\d\d)*|[01]\d)"
_IN_FOLDER = re.compile(
    rf"/(?!{_DAY_FOLDER}/|(?:{_WORDS.pattern})/)[^/]+(?<!\.zip)(?<!:)"
    rf"((?:/{_DAY_FOLDER})+/(?:[0-3]?\d|{_PERIODS})|(?:/{_PERIODS}(?:\.\w+)?\.zip)?/{_PERIODS})"
    r"(?:\.\w+)*$",
    re.IGNORECASE,
)
"""Pattern of the path of a file that has the name of a period and is in the folder of its symbol;
folders of years and months, or an archive with such a name, may be between them."""
_ENDING = re.compile(rf"(?:[_\s,-]+(?:{_DATED}|{_PART})|\(\d+\))+$", re.IGNORECASE)
_TICKER_DIGITS = re.compile(rf"(?!(?:{_DATED}|1|5|15|30|60|240|1440)$)\d{{1,9}}")
"""Pattern of a number that may be a symbol: it is neither a date nor a bar length."""
_WHOLE_YEAR = r"(?<![^_\s,-])(?:19|20)\d\d"
_DASH = rf"(?:(?<={_WHOLE_YEAR})|(?<={_WHOLE_YEAR}-\d\d))-\d\d(?![^_\s,-])"
"""Pattern of a dash within a date such as 2024-01-05 or 2024-01."""
_EXPIRY = r"(?: \d\d|(?<= \d\d))-\d\d\.(?:ask|bid|last)$"
"""Pattern of the space or the dash in the expiry of a contract, such as ES 03-24.Last."""
_MARKS = re.compile(
    rf"((?<=^DAT)_M[ST]_|(?!{_DASH}|{_EXPIRY})[_\s,-]+|(?<![_\s,-])(?=\(\d+\)$)"
    r"|\.(?=(?:ask|bid|last|mid|dly|scid_bardata)$)|(?=历史数据$)"
    r"|(?<=[A-Z]{6})(?=(?:[hmd]\d{1,2}|1|5|15|30|60|240|1440)$))",
    re.IGNORECASE,
)
"""Pattern of the separators between the parts of a file name."""


def name_pattern(files: Sequence[BarFile], needs_date: bool) -> str:
    """Return the pattern of the names of `files`, with the place of the symbol and, if
    `needs_date`, of the date. `needs_date`: True if the files contain only times of day, so that
    the date must be read from the name.

    The symbol is the part that differs between the files; dates, bar lengths and usual words are
    ignored. If there is one file, or if no other part differs, the symbol is the first group of
    adjacent parts that are not ignored; if there is no such part, it is a number. If several files
    have names of periods, the symbol is the name of their folder. Raises BarError if no pattern
    gives the symbols.
    """
    folders = [re.search(r"(symbol|ticker)=[^/]+((?:/[^/]+)+)$", file.place) for file in files]
    if folders[0] and all(folders):
        return f"{folders[0][1]}={{symbol}}{'/*' * folders[0][2].count('/')}"
    stems = [file.stem for file in files]
    if needs_date and all(re.fullmatch(_DATE, stem) for stem in stems):
        return "{symbol}/{date}"
    depth = _find_folder(files)
    if depth:
        return "{symbol}" + "/*" * depth
    # Each list has the parts of a name at even places and the separators at odd places.
    split = [_MARKS.split(stem) for stem in stems]
    if len({(len(parts), *parts[1::2]) for parts in split}) > 1:
        return _join_uneven(stems) or f"{{symbol}}{_share_ending(split, needs_date)}"
    columns = [{parts[place] for parts in split} for place in range(len(split[0]))]
    first, last = _find_symbol(columns)
    before, after = (
        "".join(_placeholder(words, needs_date) for words in part)
        for part in (columns[:first], columns[last + 1 :])
    )
    names = {"".join(parts[first : last + 1]) for parts in split}
    if len(names) == 1 <= last - first and "*" in after:
        # {symbol} would match only up to the first separator.
        return "{1}{0}{2}{{symbol={0}}}".format(*names, before, after)
    return f"{before}{{symbol}}{after}"


def _find_folder(files: Sequence[BarFile]) -> int:
    """Return the number of path levels between the symbols' folders and the `files`, the file name
    included; 0 if the files are not in folders of symbols."""
    found = [_IN_FOLDER.search(file.place) for file in files]
    depths = {match[1].count("/") if match else 0 for match in found}
    return min(depths) if len(files) > 1 == len(depths) else 0


def _join_uneven(stems: list[str]) -> str | None:
    """Return the pattern of the file names `stems` if they have one symbol, but different numbers
    of parts; None if they have different symbols. Raises BarError if there are several symbols, and
    a symbol has several files."""
    bases = {_ENDING.sub("", stem) for stem in stems}
    if len(bases) == 1:
        return "{0}*{{symbol={0}}}".format(*bases)
    if len(bases) < len({*stems}):
        raise BarError(
            f"{stems[0]}: several files have the same symbol in their names, but no pattern gives"
            " the symbols of all; call all files alike, such as AAPL_part1 and AAPL_part2 with as"
            " many _ in each, or join the files of each symbol"
        )
    return None


def _share_ending(split: list[list[str]], needs_date: bool) -> str:
    """Return the pattern of the ending that all file names share, without any symbol. `split`: for
    each name, its parts at even places and the separators at odd places."""
    ending = ""
    while len(ends := {tuple(parts[-2:]) for parts in split}) == 1 and min(map(len, split)) > 2:
        mark, word = ends.pop()
        if not _is_noise(word):
            break
        ending = mark + _placeholder({word}, needs_date) + ending
        split = [parts[:-2] for parts in split]
    return ending


def _find_symbol(columns: list[set[str]]) -> tuple[int, int]:
    """Return the first and the last place of the symbol in the file names; the first and the last
    place of the whole name if no part may be a symbol. `columns`: for each place, the words of all
    files. Raises BarError if the name is a usual name of a download, without a symbol."""
    even = range(0, len(columns), 2)
    words = [place for place in even if not all(map(_is_noise, columns[place]))]
    own = [at for at in words if not all(map(_IS_PART.fullmatch, columns[at]))]
    places = own or words or _list_digits(columns)
    differing = [place for place in places if len(columns[place]) > 1]
    first_ones = [place for at, place in enumerate(places) if place == places[0] + 2 * at]
    chosen = differing or first_ones or [0, len(columns) - 1]
    before = places.index(chosen[0]) - 1 if chosen[0] in places else -1
    if before >= 0 and all(re.fullmatch(MONEY, word, re.I) for word in columns[chosen[0]]):
        chosen = [places[before], *chosen]  # as in BTC-USD and BTC-EUR
    code = -1 if differing else chosen[0] - 2
    if code in even and all(re.fullmatch(r"(?!19|20|1440)\d{4}", word) for word in columns[code]):
        chosen = [code, *chosen]  # as in 2330_TW
    called = "".join(itertools.chain.from_iterable(columns))
    if not places and re.search(r"(?i)\d{10}|^(downloads?|export|table|chart|results)$", called):
        raise BarError(
            f"{called}: neither a column nor the file's name gives the symbol; give it: --symbol"
        )
    return chosen[0], chosen[-1]


def _list_digits(columns: list[set[str]]) -> list[int]:
    """List the places of numbers that may be symbols. Months and days after a year are listed only
    if there is no other number."""
    even = range(0, len(columns), 2)
    year = next((at for at in even if all(re.fullmatch(_YEAR, one) for one in columns[at])), 99)
    digits = [at for at in even if any(map(_TICKER_DIGITS.fullmatch, columns[at]))]
    days = {at for at in digits if all(re.fullmatch(r"[0-3]\d", one) for one in columns[at])}
    return [at for at in digits if at < year or at not in days] or digits


def _is_noise(word: str) -> bool:
    return bool(_WORDS.fullmatch(word) or _NOISE.fullmatch(word))


def _placeholder(words: set[str], needs_date: bool) -> str:
    """Return the pattern of one part of the file names: `{date}`, `*` or the word itself. `words`:
    the words of all files in this part."""
    if all(re.fullmatch(_DATE, word) for word in words):
        return "{date}" if needs_date else "*"
    word = next(iter(words))
    return "*" if len(words) > 1 or re.search(r"\d{4}", word.replace("1440", "")) else word
