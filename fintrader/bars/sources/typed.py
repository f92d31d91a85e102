"""Readers of files whose cells have types: Parquet, Arrow IPC (feather), JSON and Excel."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fintrader.bars.sources.presets import (
    BAR_LENGTHS,
    SPELLINGS,
    make_unique,
    plain,
    split_words,
)
from fintrader.errors import install_command

INDEX = "__index_level_0__"
"""Name that a column without a name gets, as pandas names its index in Parquet."""
_HEAD = 12
"""Number of rows at the top of a sheet, without blank ones, that must include the header."""
_WRAPPERS = split_words(
    "bars candle candles data day history historical ohlc ohlcv prices quotes results series values"
)
"""Keys of JSON whose value contains the rows. They are not symbols."""
_NAMES = split_words("columns column_names fields")
"""Keys of JSON whose value is the names of the columns."""
_SYMBOLS = split_words("symbol ticker instrument dataset_code pair")
"""Keys of JSON whose value is the symbol of the rows; earlier keys have precedence."""
_NO_SYMBOL = (
    r"(sheet|tabelle|feuil|hoja|planilha|foglio|лист|工作表|시트).*|(19|20)\d\d.*|q[1-4].*"
    r"|.*(?<![a-z])(year|month|week|day|daily|hour|min|raw|adj|train|test|valid|data|price|bar"
    r"|trade|bid|ask)(s|ly|ing|ation|usted|utes?)?(?![a-z]).*"
)
"""Pattern of the titles of sheets that are not symbols, such as Sheet1 (in several languages), 2024
or Daily."""
_TIMES = r"(19|20)\d\d-?\d\d-?\d\d([T ].*)?"
"""Pattern of keys of JSON that are dates or times. They are not symbols."""
_CLOCK = r"\d{1,2}:\d\d.*|\d{1,6}"
"""Pattern of times of day, which lack a date."""
_COUNTS = r"-?\d{9,}"
"""Pattern of keys that count from 1970, as pandas' `to_json` writes times."""
_NO_TABLE = "its JSON holds no table; write a list of objects, one for each bar"


class TableError(ValueError):
    """Error for a file whose table cannot be read; its message gives the reason and the remedy."""


@contextlib.contextmanager
def open_typed(
    kind: str,
    stream: Any,
    header: Sequence[str] = (),
) -> Iterator[tuple[list[str], Callable[[list[str], int], Iterator[pa.Table]]]]:
    """Open a file whose cells have types; yield the names of its columns, and a reader.

    `kind`: parquet, feather, json or excel; `stream`: the open file, which is closed at the end.
    The reader takes names of columns and the largest number of rows of a table, and yields tables.
    Columns without names get the names in `header` if it has as many, otherwise numbers from 0 on.

    Raises ValueError (such as TableError) or OSError if the file is not of this kind or contains no
    table.
    """
    with stream:
        if kind == "parquet":
            # with pre_buffer, pyarrow would keep the whole file in memory
            parquet = pq.ParquetFile(stream, pre_buffer=False)

            def read_parquet(columns: list[str], rows: int) -> Iterator[pa.Table]:
                batches = parquet.iter_batches(rows, columns=columns, use_threads=False)
                return (pa.Table.from_batches([batch]) for batch in batches)

            yield list(parquet.schema_arrow.names), read_parquet
            return
        names, whole = {"feather": _read_feather, "json": _read_json, "excel": _read_excel}[kind](
            stream
        )
        if names == [str(number) for number in range(len(header))]:
            names = list(header)

        def read(columns: list[str], rows: int) -> Iterator[pa.Table]:
            for batch in whole:
                table = pa.Table.from_batches([batch]).rename_columns(names).select(columns)
                for start in range(0, len(table), rows):
                    yield table.slice(start, rows)

        yield names, read


_Table = tuple[list[str], Iterable[pa.RecordBatch]]


def _read_feather(stream: Any) -> _Table:
    is_file = bytes(stream.read(6)) == b"ARROW1"
    stream.seek(0)
    if not is_file:
        reader = pa.ipc.open_stream(stream)
        return reader.schema.names, reader
    file = pa.ipc.open_file(stream)
    return file.schema.names, map(file.get_batch, range(file.num_record_batches))


def _read_json(stream: Any) -> _Table:
    text = bytes(stream.read()).decode("utf-8-sig")
    try:
        content = json.loads(text)
    except json.JSONDecodeError:  # the file may have one JSON value on each line
        content = [json.loads(line) for line in text.splitlines() if line.strip()]
    try:
        table = _convert_json(content)
    except (AttributeError, KeyError, TypeError):  # for example a number instead of a table
        raise TableError(_NO_TABLE) from None
    cells = table.set_axis(make_unique([*map(str, table)]), axis=1)
    cells = cells.where(cells.notna(), None)
    return _build_table([*cells], (cells[name].tolist() for name in cells))


def _convert_json(content: Any) -> pd.DataFrame:
    """Turn parsed JSON into a table; columns without names get numbers.

    These forms are accepted:
    - a list of rows, where a row is an object (name -> cell) or a list of cells;
    - such a list under a key like `bars`, or one under each symbol or each day;
    - lists that are columns, of which some may be nested deeper than the times;
    - the output of pandas' `to_json` (orient columns, index or split).

    Raises ValueError (such as TableError) for any other form.
    """
    if isinstance(content, list):
        return _convert_rows(content)
    nested = {key: value for key, value in content.items() if isinstance(value, list | dict)}
    if not nested:
        return pd.DataFrame([content], dtype=object)
    frame = _convert_columns(nested)
    if frame is not None:
        return _add_symbol(_find_symbol(content), frame)
    symbol = next(filter(None, map(_find_symbol, (content, *nested.values()))), None)
    frame = _convert_leaves(content)
    if frame is not None:
        return _add_symbol(symbol, frame)
    tables = {key: value for key, value in nested.items() if not _is_flat(value)}
    for key, value in tables.items():
        if _is_wrapper(key, len(tables)):
            return _add_symbol(symbol, _convert_json(value))
    if not tables:
        raise TableError(_NO_TABLE)
    frames = {key: _convert_json(value) for key, value in tables.items()}
    return _join_tables(frames, symbol, content)


def _join_tables(frames: dict[str, pd.DataFrame], symbol: str | None, content: Any) -> pd.DataFrame:
    """Join the tables under the keys of `content`, which are symbols, days or lengths of bars.
    Raises TableError if they are several lengths."""
    # a second table may hold paging data; keep the tables with prices
    frames = {key: one for key, one in frames.items() if _is_header(map(str, one))} or frames
    key = next(iter(frames))
    lengths = [one for one in frames if re.fullmatch(rf"(.*[\W_])?({BAR_LENGTHS})", one, re.I)]
    if len(frames) == 1 and (symbol or lengths or not _is_symbol(key, content)):
        return _add_symbol(symbol, frames[key])
    if lengths == [*frames]:
        raise TableError(
            f"it has bars of several lengths ({', '.join(frames)}); save each length as a"
            " separate file"
        )
    add = _add_time if all(re.fullmatch(_TIMES, key) for key in frames) else _add_symbol
    parts = [add(key, frame) for key, frame in frames.items()]
    return pd.concat(parts, ignore_index=True)


def _is_symbol(key: str, content: Any) -> bool:
    """Report whether `key`, the key of the only table in `content`, is a symbol: it is written in
    capitals, or it is the only key and its value has no plain cells."""
    table = content[key]
    inside = table.values() if isinstance(table, dict) else []
    is_alone = len(content) == 1 and all(isinstance(one, list | dict) for one in inside)
    return is_alone or re.fullmatch(r"[A-Z0-9.^=/:_-]+", key) is not None


def _convert_rows(rows: list[Any]) -> pd.DataFrame:
    kinds = {*map(type, rows)}
    if not kinds <= {dict} and not kinds <= {list}:
        raise TableError(_NO_TABLE)
    if kinds == {list} and len({*map(len, rows)}) > 1:
        raise ValueError("its rows have several lengths")
    if kinds == {dict} and not _is_flat(rows[0]):
        lists = [cell for cell in rows[0].values() if isinstance(cell, list)]
        holds_table = not all(map(_is_flat, lists)) or _convert_leaves(rows[0]) is not None
        if len(rows) == 1 or holds_table:
            # each row contains the table of one symbol
            return pd.concat(map(_convert_json, rows), ignore_index=True)
        frame = pd.json_normalize(rows).astype(object)
        inner = [name for name, cell in rows[0].items() if isinstance(cell, dict)]
        prefix = f"{inner[0]}." if len(inner) == 1 else "mid."  # Oanda writes `mid.o`
        frame = frame.rename(columns=lambda name: name.removeprefix(prefix))
        return frame.loc[:, ~frame.columns.duplicated(keep="last")]
    return pd.DataFrame(rows, dtype=object)


def _convert_columns(nested: Mapping[str, Any]) -> pd.DataFrame | None:
    """Turn columns (name -> cells), or labelled rows (label -> row), into a table. Return None for
    anything else. Raises TableError if the columns have several lengths."""
    names = next((nested[name] for name in _NAMES if name in nested), None)
    if names and "data" in nested:
        names = [name["name"] if isinstance(name, dict) else name for name in names]
        return _add_index(pd.DataFrame(nested["data"], nested.get("index"), names, dtype=object))
    # symbols such as C, H, L and O are also names of columns, but their values are tables
    if not all(map(_is_flat, nested.values())) or len({*map(type, nested.values())}) > 1:
        return None
    rows = {
        label: row
        for label, row in nested.items()
        if isinstance(row, dict) and (_is_header(row) or re.fullmatch(f"{_TIMES}|{_COUNTS}", label))
    }
    if 2 * len(rows) > len(nested):  # the other values are metadata
        return _add_index(pd.DataFrame([*rows.values()], [*rows], dtype=object))
    is_dated = all(
        isinstance(cells, dict) and all(re.fullmatch(f"{_TIMES}|{_COUNTS}", key) for key in cells)
        for cells in nested.values()
    )
    if not _is_header(nested) and not is_dated:
        return None
    if len({*map(len, nested.values())}) > 1:
        raise TableError("its columns have several lengths; make them alike, or save it as CSV")
    return _add_index(pd.DataFrame(nested, dtype=object))


def _convert_leaves(content: Any) -> pd.DataFrame | None:
    """Turn columns into a table if some are nested deeper than others, as in Yahoo's charts.

    Every list of cells is a column if it is as long as the longest list directly in `content`.
    Return None if there are no columns of opens and closes, or if two columns have the same name.
    """
    size = max((len(cell) for cell in content.values() if isinstance(cell, list)), default=0)
    leaves: list[tuple[str, list[Any]]] = []
    below = [content]
    for table in below:
        for name, cell in table.items():
            if isinstance(cell, dict):
                below.append(cell)
            elif isinstance(cell, list) and len(cell) == 1 and isinstance(cell[0], dict):
                below.append(cell[0])
            elif isinstance(cell, list) and len(cell) == size > 1 and _is_flat(cell):
                leaves.append((name, cell))
    columns = dict(leaves)
    is_table = _is_header(columns) and len(columns) == len(leaves)
    return pd.DataFrame(columns, dtype=object) if is_table else None


def _is_flat(value: Any) -> bool:
    cells = value.values() if isinstance(value, dict) else value
    return not any(isinstance(cell, list | dict) for cell in cells)


def _is_header(names: Iterable[str]) -> bool:
    words = set(map(plain, names))
    return all(words.intersection(SPELLINGS[name]) for name in ("open", "close"))


def _find_symbol(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    named = {plain(key): cell for key, cell in value.items() if isinstance(cell, str)}
    return next((named[word] for word in _SYMBOLS if word in named), None)


def _add_symbol(symbol: str | None, table: pd.DataFrame) -> pd.DataFrame:
    is_named = not isinstance(table.columns, pd.RangeIndex)
    is_there = not {*_SYMBOLS}.isdisjoint(map(plain, table))
    if symbol is None or is_there or table.attrs.get("has_symbol"):
        return table
    table.insert(0, "symbol", symbol)
    table.attrs["has_symbol"] = True
    return table if is_named else table.set_axis(range(table.shape[1]), axis=1)


def _add_time(time: str, table: pd.DataFrame) -> pd.DataFrame:
    """Add the date `time` of a table's rows as a column, unless their own times contain a date. The
    labels of these rows become the column `symbol`."""
    table = table.rename(columns={INDEX: "symbol"})
    named = [name for name in table if plain(name) in SPELLINGS["ts"]]
    if all(re.fullmatch(_CLOCK, str(cell)) for name in named for cell in table[name]):
        table.insert(0, "date", time)
    return table


def _add_index(table: pd.DataFrame) -> pd.DataFrame:
    """Add the labels of the rows as the first column, unless they are the numbers of the rows."""
    labels = list(map(str, table.index))
    if labels != list(map(str, range(len(labels)))):
        table.insert(0, INDEX, labels)
    return table


def _read_excel(stream: Any) -> _Table:
    """Read the only sheet that contains a table, or several sheets with the same columns, each with
    the bars of the symbol in its title. Raises TableError for other sheets or if openpyxl is not
    installed, and ValueError if the file is not a workbook."""
    try:
        import openpyxl
    except ImportError:
        raise TableError(
            f"a workbook needs openpyxl: {install_command('excel')}; or save its sheet as CSV"
        ) from None
    try:
        book = openpyxl.load_workbook(stream, read_only=True, data_only=True)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(error) from None
    found = _find_tables(book)
    layouts = [_name_places(head) for head, _ in found.values()] or [{}]
    places = layouts[0]
    names = [*places.values()]
    if len(found) > 1:
        # the symbol, unless another column has a more usual name for it
        names = make_unique([*names, "tic"])
        is_other = any(re.fullmatch(_NO_SYMBOL, title, re.IGNORECASE) for title in found)
        if is_other or any(one != places or not _is_header(names) for one in layouts):
            raise TableError(
                f"it has tables in several sheets ({', '.join(found)}); save each as a file of its"
                " own, or let all have the same columns and the name of a symbol"
            )

    def build() -> Iterator[pa.RecordBatch]:
        for title, (head, rows) in found.items():
            columns = list(itertools.zip_longest(*head, *rows))
            cells = [columns[at][1:] for at in places]
            titles = (title,) * (len(columns[0]) - 1)
            yield from _build_table(names, [*cells, titles][: len(names)])[1]

    return names, build()


def _is_wrapper(key: str, count: int) -> bool:
    """Report whether a key, one of `count`, wraps a table. Symbols instead: DAY, and keys in
    capital letters among several."""
    is_symbol = key.isupper() and (count > 1 or key == "DAY")
    return key.lower() in _WRAPPERS and not is_symbol


def _find_tables(book: Any) -> dict[Any, Any]:
    """Find the sheets of bars, or all sheets with a table if none has bars. Return a mapping: title
    of a sheet -> its first rows from the header on, and an iterator over the rows below them."""
    found = {}
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # the size of a sheet that the file states may be wrong
        below = _skip_remarks(sheet.iter_rows(values_only=True))
        head = list(itertools.islice(below, _HEAD))
        filled = [sum(cell is not None for cell in row) for row in head]
        while filled and 2 * filled[0] < filled[-1]:  # drop lines above the table
            del head[0], filled[0]
        if len(head) > 1 and filled[0] > 1:
            found[sheet.title] = head, below
    named = {title: one for title, one in found.items() if _is_header(map(str, one[0][0]))}
    return named or found


def _skip_remarks(rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Leave out blank rows, and those of one cell before the first row that has more and after the
    last: they are titles and remarks."""
    held: list[Sequence[Any]] = []
    has_begun = False
    for row in rows:
        filled = len(row) - row.count(None)
        if filled > 1:
            yield from held
            held = []
            has_begun = True
            yield row
        elif filled and has_begun:
            held.append(row)


def _name_places(head: Sequence[Sequence[Any]]) -> dict[int, str]:
    """Return the names of a sheet's columns: number of a column, from 0 on -> unique name. `head`:
    first rows of the sheet; a column without a cell in its first two rows is left out."""
    named = {
        at: INDEX if cells[0] is None else str(cells[0])
        for at, cells in enumerate(itertools.zip_longest(*head[:2]))
        if {*cells} != {None}
    }
    return dict(zip(named, make_unique([*named.values()]), strict=True))


def _build_table(names: Sequence[str], columns: Iterable[Sequence[Any]]) -> _Table:
    table = pa.table(dict(zip(names, map(_to_array, columns), strict=True)))
    return table.schema.names, table.to_batches()


def _to_array(cells: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(cells)
    except (pa.ArrowException, OverflowError):  # cells of several types become text
        return pa.array([None if cell is None else str(cell) for cell in cells])
