"""Layout of a file of bars, guessed from its first lines: delimiter, header, columns, and the
format of times."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fintrader.bars.bars import COLUMNS, PRICES
from fintrader.bars.sources.bar_files import csv_head, readable
from fintrader.bars.sources.cells import carries_zone
from fintrader.bars.sources.listing import BarFile
from fintrader.bars.sources.presets import CLOCK_SPELLINGS, DATE_SPELLINGS, SPELLINGS, plain
from fintrader.errors import BarError

_HEAD_BYTES = 1 << 17
_ROWS = 2000
_DATES = (
    "%Y-%m-%d",
    "%m/%d/%Y",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%Y%m%d",
    "%Y.%m.%d",
    "%Y/%m/%d",
    "%m/%d/%y",
    "%d-%b-%Y",
)
_CLOCKS = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%H%M", "%H%M%S", "%I:%M %p", "%I:%M:%S %p")


@dataclass
class Layout:
    """Layout of a file as settings of a `files` source, and the reasons for them."""

    name: str
    """The file's, for messages."""
    values: dict[str, Any] = field(default_factory=dict)
    """Settings that differ from the defaults."""
    notes: dict[str, str] = field(default_factory=dict)
    """Setting -> why; those that were guessed begin with `guess:`."""
    zoned: bool = False
    """Times carry their zone, or count from 1970."""
    whole_days: bool = False
    """Times are dates."""
    single: bool = False
    """No column holds the symbol."""

    def note(self, setting: str, value: object, why: str) -> None:
        """Set a setting, and say why."""
        self.values[setting] = value
        self.notes[setting] = why


def sniff(file: BarFile, date_in_name: bool) -> Layout:
    """The layout of one file. `date_in_name`: the file's name says a date. Raises BarError when it
    cannot be read."""
    layout = Layout(file.name)
    table = _parquet_head(file) if file.kind == "parquet" else _csv_head(file, layout)
    if table.empty:
        raise BarError(f"{file.name}: holds no row; check the file")
    columns = _wide_roles(table, layout) or _roles(table, layout)
    if "header" in layout.values:
        named = {column: role for role, column in columns.items()}
        layout.values["header"] = [
            named.get(column, f"column_{number}") for number, column in enumerate(table.columns)
        ]
        columns = {role: role for role in columns}
        table = table.set_axis(layout.values["header"], axis=1)
    layout.single = "symbol" not in columns and "wide" not in layout.values
    layout.values["columns"] = {role: str(column) for role, column in columns.items()}
    _times(table, columns, layout, date_in_name)
    return layout


def _parquet_head(file: BarFile) -> pd.DataFrame:
    with readable(file), pq.ParquetFile(file.open()) as parquet:
        batch = next(parquet.iter_batches(_ROWS), None)
    return pd.DataFrame() if batch is None else pa.Table.from_batches([batch]).to_pandas()


def _csv_head(file: BarFile, layout: Layout) -> pd.DataFrame:
    """The first rows as text, under the names of the columns, or numbers where no line names
    them."""
    lines = [line for line in csv_head(file, _HEAD_BYTES).splitlines() if line.strip()][: _ROWS + 3]
    if not lines:
        return pd.DataFrame()
    delimiter = _delimiter(lines)
    if delimiter != ",":
        layout.note("delimiter", delimiter, "stands as often in every line")
    rows = list(csv.reader(lines, delimiter=delimiter))
    body = [cell for row in rows[1:50] for cell in row]
    if (
        delimiter != ","
        and sum(bool(re.fullmatch(r"-?\d+,\d+", cell)) for cell in body) > len(body) / 4
    ):
        layout.note("decimal", ",", "numbers are written like 12,5")
    if (
        len(rows) > 3 and rows[0][0].strip() == "Price" and rows[1][0].strip() == "Ticker"
    ):  # yfinance's three lines
        header = [
            rows[2][0],
            *(f"{one}_{ticker}" for one, ticker in zip(rows[0][1:], rows[1][1:], strict=True)),
        ]
        layout.values |= {"header": header, "skip_rows": 3}
        layout.notes["header"] = "three lines of names, as yfinance writes them"
        return pd.DataFrame(rows[3:], columns=header)
    number = r"-?\d+([.,]\d+)?([eE][+-]?\d+)?"
    is_named = not any(re.fullmatch(number, cell.strip()) for cell in rows[0])
    if not is_named:
        layout.note("header", [], "the first line holds numbers and no names")
    whole = [row for row in rows[is_named:] if len(row) == len(rows[0])]
    return pd.DataFrame(whole, columns=rows[0] if is_named else None)


def _delimiter(lines: Sequence[str]) -> str:
    for mark in ("\t", ";", "|", ","):
        counts = {line.count(mark) for line in lines[:50]}
        if min(counts) >= 4 and (len(counts) == 1 or mark != ","):
            return mark
    return ","


def _wide_roles(table: pd.DataFrame, layout: Layout) -> dict[str, Any]:
    """Roles of a table with columns for each symbol; empty for a long one."""
    for mark, first in itertools.product((" ", "_", ".", "-", ":", "|"), (False, True)):
        found: dict[str, dict[str, str]] = {}
        for column in map(str, table.columns):
            left, _, right = column.partition(mark) if first else column.rpartition(mark)
            symbol, word = (right, left) if first else (left, right)
            role = next(
                (name for name in COLUMNS if symbol and plain(word) in SPELLINGS[name]), None
            )
            if role:
                found.setdefault(symbol, {})[role] = word
        whole = [words for words in found.values() if len(words) == len(COLUMNS)]
        if whole and all(words == whole[0] for words in whole):
            layout.note(
                "wide",
                (f"{{field}}{mark}{{symbol}}" if first else f"{{symbol}}{mark}{{field}}"),
                f"five columns for each of {len(whole)} symbols",
            )
            if "header" in layout.values:  # its names are used as they are
                layout.values["header"] = list(map(str, table.columns))
            others = [column for column in table.columns if plain(column) in SPELLINGS["ts"]]
            names = {"ts": others[0] if others else table.columns[0]}
            return names | whole[0]
    return {}


def _roles(table: pd.DataFrame, layout: Layout) -> dict[str, Any]:
    """Our name -> column."""
    if "header" in layout.values:
        return _roles_of_content(table, layout)
    found: dict[str, Any] = {}
    for role, words in SPELLINGS.items():
        spelt = [column for word in words for column in table.columns if plain(column) == word]
        if spelt:
            found[role] = spelt[0]
    dates = [column for column in table.columns if plain(column) in DATE_SPELLINGS]
    clocks = [column for column in table.columns if plain(column) in CLOCK_SPELLINGS]
    if dates and clocks:
        found |= {"date": dates[0], "ts": clocks[0]}
    elif dates and "ts" not in found:
        found["ts"] = dates[0]
    missing = [role for role in ("ts", *COLUMNS) if role not in found]
    if missing:
        raise BarError(
            f"{layout.name}: which column is the {'time' if missing[0] == 'ts' else missing[0]}? It"
            f" has {', '.join(map(str, table.columns))}; name it under data.source.columns"
        )
    layout.notes["columns"] = "by their names"
    return found


def _roles_of_content(table: pd.DataFrame, layout: Layout) -> dict[str, Any]:
    """Roles of columns without names: the four prices hold each other, times and dates look like
    such."""
    text = table.astype(str).map(str.strip)
    points = text.replace(",", ".", regex=True) if "decimal" in layout.values else text
    numbers = points.apply(pd.to_numeric, errors="coerce").dropna(axis=1)
    prices = _find_prices(numbers)
    if not prices:
        raise BarError(
            f"{layout.name}: no four columns next to each other look like prices; name the columns"
            " (source.header)"
        )
    found = _order_prices(prices, numbers[prices].to_numpy().T, layout)
    after = [column for column in numbers if column > prices[-1]]
    if not after:
        raise BarError(f"{layout.name}: no column of numbers after the prices could be the volume")
    found["volume"] = after[0]
    others = text.drop(columns=[*found.values()])
    found |= _find_times_and_symbols(others, numbers, table.columns[0])
    if "ts" not in found:
        raise BarError(
            f"{layout.name}: no column looks like a time; name the columns (data.source.header)"
        )
    layout.notes["columns"] = "by their content"
    return found


def _find_prices(numbers: pd.DataFrame) -> list[Any]:
    """Find the first four columns of numbers next to each other that lie close together; empty
    without such."""
    for start in range(numbers.shape[1] - 3):
        four = numbers.iloc[:, start : start + 4]
        if (four > 0).all(axis=None) and np.ptp(np.log(four.median())) < 0.05:
            return list(four)
    return []


def _find_times_and_symbols(
    text: pd.DataFrame, numeric: pd.DataFrame, first: Any
) -> dict[str, Any]:
    """Find the columns of time, date and symbol among those that are neither prices nor volume."""
    found: dict[str, Any] = {}
    for column, cells in text.items():
        if cells.str.fullmatch(r"\d{1,2}:\d\d(:\d\d)?(\.\d+)?").all() and column != first:
            found.setdefault("ts", column)
        elif cells.str.contains(r"^\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}").all() or column in numeric:
            found.setdefault("date", column)
        elif not cells.str.contains(r"^\d").any():
            found.setdefault("symbol", column)
    if "ts" not in found and "date" in found:
        found["ts"] = found.pop("date")
    return found


def _order_prices(columns: list[Any], values: Any, layout: Layout) -> dict[str, Any]:
    """Tell open, high, low and close among four columns of prices."""
    slack = 1e-9 * values.max()
    high = [row for row in range(4) if (values[row] >= values.max(axis=0) - slack).mean() > 0.98]
    low = [row for row in range(4) if (values[row] <= values.min(axis=0) + slack).mean() > 0.98]
    if 1 in high and 2 in low:
        order = (0, 1, 2, 3)
    else:
        top = high[0] if high else 1
        bottom = next((row for row in low if row != top), 2)
        left, right = (row for row in range(4) if row not in (top, bottom))
        # the next bar opens near where this one closed
        ahead = np.median(np.abs(values[left][1:] - values[right][:-1]))
        back = np.median(np.abs(values[right][1:] - values[left][:-1]))
        order = (left, top, bottom, right) if ahead <= back else (right, top, bottom, left)
        layout.notes["columns"] = "guess: by which price holds which"
    return {name: columns[row] for name, row in zip(PRICES, order, strict=True)}


def _times(
    table: pd.DataFrame, columns: dict[str, Any], layout: Layout, date_in_name: bool
) -> None:
    """Set `time_format`, `zoned` and `whole_days`."""
    column = table[columns["ts"]]
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        layout.zoned = True
        return
    if pd.api.types.is_datetime64_any_dtype(column):
        layout.whole_days = "date" not in columns and bool((column.dt.normalize() == column).all())
        return
    cells = column.astype(str).str.strip()
    cells = cells[~cells.isin(["", "nan", "None"])]
    second: pd.Series[Any] | None = cells
    if "date" in columns:
        first = table[columns["date"]].astype(str).str.strip()[cells.index]
    elif cells.str.fullmatch(r"\d+").all():
        _counted(cells, layout, date_in_name)
        return
    elif carries_zone(cells) and cells.str.contains(":").all():
        layout.zoned = True
        return
    else:
        parts = cells.str.extract(r"^(\S+?)(?:[ T](.*))?$")
        first = parts[0]
        second = None if parts[1].isna().any() else parts[1]
    _set_formats(first, second, layout, cells)


def _set_formats(
    first: pd.Series[Any], second: pd.Series[Any] | None, layout: Layout, cells: pd.Series[Any]
) -> None:
    """Set `time_format` and `whole_days` by the dates (`first`) and the times of day (`second`) in
    the `cells` of the times."""
    example = cells.iloc[0]
    date_format, sure = _fitting(first, _DATES)
    clock_format = None if second is None else _fitting(second, _CLOCKS)[0]
    if date_format is None or (second is not None and clock_format is None):
        raise BarError(
            f"{layout.name}: times like {example!r} are unknown; say how they are written"
            " (source.time_format)"
        )
    layout.whole_days = second is None
    iso = date_format == "%Y-%m-%d" and clock_format in (None, "%H:%M", "%H:%M:%S", "%H:%M:%S.%f")
    if not iso:
        joint = "T" if second is not cells and "T" in example else " "
        written = date_format if clock_format is None else f"{date_format}{joint}{clock_format}"
        guess = "" if sure else "guess: month before day, "
        layout.note("time_format", written, f"{guess}like {example}")


def _fitting(cells: pd.Series[Any], formats: Sequence[str]) -> tuple[str | None, bool]:
    """The first format that all cells have, and whether no other one does; of two, the one with
    fewer weekends."""
    weekends: dict[str, int] = {}
    distinct = pd.Series(cells.unique())
    for written in formats:
        parsed = pd.to_datetime(distinct, format=written, errors="coerce")
        is_clock = written in _CLOCKS
        if parsed.notna().all() and (is_clock or parsed.dt.year.between(1970, 2100).all()):
            weekends[written] = 0 if is_clock else int((parsed.dt.day_of_week >= 5).sum())
    best = min(weekends, key=lambda written: weekends[written], default=None)
    alike = [count for count in weekends.values() if count == weekends.get(best or "")]
    return best, len(alike) <= 1


def _counted(cells: pd.Series[Any], layout: Layout, date_in_name: bool) -> None:
    """Whole numbers: since midnight, since 1970, or a date without marks."""
    digits = set(cells.str.len())
    most = int(cells.astype("int64").max())
    if date_in_name and most < 86_400_000:
        layout.note(
            "time_format",
            "s" if most < 86_400 else "ms",
            "counts from midnight; the date stands in the file's name",
        )
        return
    dated = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
    written = dated.get(*digits) if len(digits) == 1 else None
    if written is not None and cells.str.match(r"(19|20)\d\d[01]\d[0-3]\d").all():
        layout.values["time_format"] = written
        layout.whole_days = digits == {8}
        layout.notes["time_format"] = f"like {cells.iloc[0]}"
        return
    unit = next(
        (unit for unit, limit in (("s", 10**11), ("ms", 10**14), ("us", 10**17)) if most < limit),
        "ns",
    )
    layout.values["time_format"] = unit
    layout.zoned = True
    layout.notes["time_format"] = "counts from 1970 in UTC"


_WORDS = {
    "minute",
    "min",
    "1min",
    "5min",
    "trade",
    "trades",
    "full",
    "daily",
    "day",
    "unadj",
    "adj",
    "bars",
    "ohlcv",
}


def name_pattern(files: Sequence[BarFile], needs_date: bool) -> str:
    """Pattern of the places of symbol and date in files' names; the date only where times are those
    of a day."""
    stems = [file.stem for file in files]
    tokens = [
        re.split(r"[_\s-]", re.sub(r"(\d{4})-(\d\d)-(\d\d)", r"\1\2\3", stem)) for stem in stems
    ]
    if needs_date and all(re.fullmatch(r"\d{8}", stem) for stem in stems):
        return "{symbol}/{date}"
    if len(tokens[0]) > 1 and all(len(one) == len(tokens[0]) for one in tokens):
        words = [_token(place, tokens, needs_date) for place in range(len(tokens[0]))]
        if words.count("{symbol}") == 1:
            return re.sub(r"(_\*)+$", "_*", "_".join(words))
    return "{symbol}"


def _token(place: int, tokens: list[list[str]], needs_date: bool) -> str:
    """Placeholder for one part of the files' names."""
    words = {one[place] for one in tokens}
    if all(re.fullmatch(r"(19|20)\d\d[01]\d[0-3]\d", word) for word in words):
        return "{date}" if needs_date else "*"
    plain = {word.lower() for word in words} & _WORDS or any(
        re.fullmatch(r"\d+\w*", word) for word in words
    )
    earlier = any(
        not ({one[before].lower() for one in tokens} & _WORDS)
        for before in range(place)
        if not all(re.fullmatch(r"\d{8}", one[before]) for one in tokens)
    )
    return "*" if plain or earlier else "{symbol}"
