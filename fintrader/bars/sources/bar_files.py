"""The rows of files of bars, some hundred thousand at a time, in the long schema; what cannot be
read is named."""

from __future__ import annotations

import contextlib
import csv
import logging
import lzma
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from fintrader.bars.bars import COLUMNS, PRICES, Array, Bars, concat
from fintrader.bars.sources.cells import Column, first_line, one_kind, table_bars
from fintrader.bars.sources.layout import FilesSettings, column_names, split_sum
from fintrader.bars.sources.listing import BarFile, files_of, kind_of
from fintrader.bars.sources.presets import SPELLINGS, plain
from fintrader.bars.sources.typed import TableError, open_typed
from fintrader.errors import BarError
from fintrader.storage.objects import open_file_system

log = logging.getLogger("fintrader.bars")

BATCH_ROWS = 500_000
_HEADER_BYTES = 1 << 16
_BLOCK_BYTES = 32 << 20
_COMPRESSIONS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4"}
_BOMS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_FOREIGN = ("gb18030", "cp949", "shift_jis", "cp950")
"""Encodings of Chinese, Korean and Japanese text."""
_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\f"))
"""Bytes that no text holds."""
_FEW = 10
"""From so many lines on, equal decimals are no chance."""


@contextlib.contextmanager
def fold_warnings() -> Iterator[None]:
    """Log repeated warnings (of many files, or several readings of one) once, at the end, with the
    number of the others."""
    seen: dict[str, dict[str, None]] = {}

    def keep_back(record: logging.LogRecord) -> bool:
        seen.setdefault(str(record.msg), {})[record.getMessage()] = None
        return False

    log.addFilter(keep_back)
    try:
        yield
    finally:
        log.removeFilter(keep_back)
        for first, *others in seen.values():
            log.warning("%s%s", first, f" (and {len(others)} others like it)" if others else "")


def read_files(settings: FilesSettings, path: str, symbols: tuple[str, ...] = ()) -> Bars:
    """All rows of all files (of `symbols` only, when given). Raises BarError, see the module's
    docstring."""
    return read_rows(own_files(settings, path), settings, symbols)


def read_rows(
    files: Sequence[BarFile], settings: FilesSettings, symbols: tuple[str, ...] = ()
) -> Bars:
    """Read all rows of these files; else like `read_files`."""
    bars = concat(
        [batch for file in files for batch in iterate(file, settings, is_alone=len(files) == 1)]
    )
    if symbols:
        wanted = [code for code, name in enumerate(bars.symbols) if name in symbols]
        bars = bars.take(np.isin(bars.symbol, wanted)).without_unused()
    return bars


def own_files(
    settings: FilesSettings, path: str, is_known: Callable[[BarFile], bool] = lambda _: False
) -> list[BarFile]:
    """The files that `files_of` lists and that have the settings' columns; the log names the
    others. Files that `is_known` accepts have them, and are not opened."""
    files, left_out = share_layout(files_of(settings, path), settings, is_known)
    if left_out:
        log.warning("%s: left out: %s", path, "; ".join(left_out))
    return files


def share_layout(
    files: Sequence[BarFile],
    settings: FilesSettings,
    is_known: Callable[[BarFile], bool] = lambda _: False,
) -> tuple[list[BarFile], list[str]]:
    """The files that have the settings' columns, and why each of the others has not; all where
    none has.

    A file that lacks a single column is a faulty one of the same layout, and stays: its reading
    says so. So does one that cannot be read, unless it is blank or the only of its kind.
    """
    if len(files) == 1:
        return list(files), []
    lacking = {}
    errors = {}
    for file in files:
        # unpacking a member takes long, and no name can differ
        if is_known(file) or (settings.header and file.member):
            lacking[file] = 0
            continue
        try:
            lacking[file] = len(_missing(present_columns(file, settings), settings))
        except BarError as error:
            errors[file] = error
    kinds = {file.kind for file, count in lacking.items() if count < 2}
    if not kinds:  # reading the first one says what is wrong
        return list(files), []
    shared = {file: file.kind in kinds and lacking.get(file, 0) < 2 for file in files}
    for file in errors:
        if file.kind == "csv" and _is_blank(file):
            shared[file] = False
    left_out = [
        str(errors[file]) if file in errors else f"{file.name}, whose columns differ"
        for file, is_shared in shared.items()
        if not is_shared
    ]
    found = [file for file in files if shared[file]]
    tables = [file for file in found if kind_of(file.place)]  # a .txt is one where no other is
    return tables or found, left_out


def iterate(
    file: BarFile,
    settings: FilesSettings,
    after: tuple[int, int] | None = None,
    *,
    is_alone: bool = False,
) -> Iterator[Bars]:
    """The rows of one file in file order, in the long schema, some hundred thousand at a time.

    `after`: leave out so many bytes, of a CSV (`BarFile.appendable`); the next row's number is the
    second. `is_alone`: there is no other file, so that a file without prices is refused.
    """
    if after is not None and _blank_from(file.path, after[0]):
        return
    names = column_names(settings)
    has_row = has_price = after is not None
    zoned: bool | None = None
    symbol, date = (
        settings.read_name(file.place) or ("", None) if settings.name_pattern else (file.stem, None)
    )
    with _open_table(file, settings, after) as (present, read):
        _refuse_lacking(file, present, settings)
        wide = wide_columns(settings, present)
        numeric = [column for one in wide.values() for column in one.values()] or [
            *(names[name] for name in PRICES),
            *split_sum(names.get("volume"), present),
        ]
        numeric += settings.extra
        texts = [column for role, column in names.items() if role not in COLUMNS]
        if present[-1] in (*texts, *numeric):
            _refuse_cut_off(file, settings)
        for rows, table in read(texts, numeric):
            if table[names["ts"]].null_count:
                rows, table = _drop_blank(rows, table)
            if settings.time_format is None:
                times = table[names["ts"]].slice(0, 1)
                zoned = one_kind(Column(times, names["ts"], file.name, rows[:1]), zoned)
            if wide:
                bars = _joined(table, wide, settings, file.name, rows, date)
            else:
                bars = table_bars(
                    table, settings, origin=file.name, rows=rows, symbol=symbol, date=date
                )
            has_row = True
            has_price = has_price or len(bars.without_empty()) > 0
            yield bars
    if not has_price:
        held = "no row has a price" if has_row else "holds no row"
        if is_alone:
            raise BarError(f"{file.name}: {held}; check the file")
        log.warning("%s: %s", file.name, held)


def _drop_blank(rows: Array, table: pa.Table) -> tuple[Array, pa.Table]:
    """Leave out rows without any cell, such as a last line of commas."""
    is_filled = np.any([~pc.is_null(column).to_numpy() for column in table.columns], axis=0)
    return rows[is_filled], table.filter(pa.array(is_filled))


def wide_columns(settings: FilesSettings, present: list[str]) -> dict[str, dict[str, str]]:
    """Symbol -> our name -> column, of a table with columns for each symbol; empty for a long
    one."""
    if settings.wide is None:
        return {}
    roles: dict[str, list[str]] = {}
    for name in [name for name in COLUMNS if name in settings.names]:
        roles.setdefault(settings.names[name], []).append(name)
    if "{field}" not in settings.wide:
        roles = {"": [*PRICES]}  # a close each
    body = (
        re.escape(settings.wide)
        .replace(r"\{symbol\}", "(?P<symbol>.+?)")
        .replace(r"\{field\}", f"(?P<field>{'|'.join(map(re.escape, roles))})")
    )
    found: dict[str, dict[str, str]] = {}
    for column in present:
        match = re.fullmatch(body, column)
        if match and column not in (settings.names.get("ts"), settings.names.get("date")):
            symbol = match["symbol"].upper() if settings.uppercase else match["symbol"]
            own = roles[match.groupdict().get("field", "")]
            found.setdefault(symbol, {}).update(dict.fromkeys(own, column))
    needed = sum(map(len, roles.values()))
    return {symbol: columns for symbol, columns in sorted(found.items()) if len(columns) == needed}


def _joined(
    table: pa.Table,
    wide: dict[str, dict[str, str]],
    settings: FilesSettings,
    origin: str,
    rows: Array,
    date: str | None,
) -> Bars:
    """The bars of all symbols of a wide table, row by row; a symbol without any number in a row has
    no bar there."""
    names = column_names(settings)
    parts = []
    for symbol, columns in wide.items():
        own = {names[role]: table[names[role]] for role in names if role not in COLUMNS}
        own |= {names[name]: table[column] for name, column in columns.items()}
        there = np.zeros(table.num_rows, dtype=bool)
        for column in columns.values():
            there |= ~pc.is_null(table[column]).to_numpy()
        index = np.flatnonzero(there)
        part = pa.table(own).take(pa.array(index))
        if len(index):
            parts.append(
                table_bars(
                    part, settings, origin=origin, rows=rows[index], symbol=symbol, date=date
                )
            )
    bars = concat(parts)
    return bars.take(np.argsort(bars.row, kind="stable")) if bars.row is not None else bars


def _blank_from(path: str, offset: int) -> bool:
    """True where only empty lines follow."""
    with Path(path).open("rb") as file:
        file.seek(offset)
        return not file.read(_HEADER_BYTES).strip(b"\0\t\n\r\f ")


def _refuse_cut_off(file: BarFile, settings: FilesSettings) -> None:
    """Raise BarError for a CSV without an end to its last line, where its last number may be the
    half of one.

    What is packed knows its length, and is whole once it can be unpacked.
    """
    if file.kind != "csv" or file.member is not None or file.packing:
        return
    with readable(file):
        fs, inside = open_file_system(file.path)
        if fs.tail(inside, 2).strip(b"\0")[-1:] in (b"", b"\n", b"\r"):
            return
        encoding = _encoding(fs.head(inside, _HEADER_BYTES)) or "utf-8"
        lines = fs.tail(inside, _HEADER_BYTES).decode(encoding, errors="replace").splitlines()
    if lines and _is_prose(lines[-1], settings.delimiter):
        return
    fields = [
        line.rpartition(settings.delimiter)[2].strip() for line in lines[1 + settings.skip_rows :]
    ]
    last = fields[-1] if fields else ""
    if not fields or not _may_be_whole(last, fields[:-1], settings.decimal):
        raise BarError(
            f"{file.name}: the last line has no newline, and its last number may be cut off; fetch"
            " the file again, or add a newline where the number is whole"
        )
    if re.fullmatch(r"\d+\D?\d*", last):
        log.warning(
            "%s: the last line has no newline: is its last number %s whole?", file.name, last
        )


def _may_be_whole(last: str, others: list[str], decimal: str) -> bool:
    """True if a field is as long as others: its quotes are closed, it has as many decimals, or it
    is a text that is no prefix of another."""
    if last.startswith('"'):
        return len(last) > 1 and last.endswith('"')
    if not re.fullmatch(r"[-+\d.,eE]*", last):
        return last in others and not any(one != last and one.startswith(last) for one in others)
    if decimal in last:
        places = {len(field.partition(decimal)[2]) for field in others}
        return len(last.partition(decimal)[2]) in places - {0}
    whole = [len(field) for field in others if decimal not in field]
    is_zero = last == "0" and whole == [*map(len, others)]  # no whole number begins so
    return is_zero or (bool(last) and len(last) >= min(whole, default=len(last) + bool(others)))


def read_columns(file: BarFile, settings: FilesSettings) -> list[str]:
    """The names of a file's columns. Raises BarError when one that the settings name is missing."""
    present = present_columns(file, settings)
    _refuse_lacking(file, present, settings)
    return present


def _refuse_lacking(file: BarFile, present: list[str], settings: FilesSettings) -> None:
    if settings.wide is not None and not wide_columns(settings, present):
        raise BarError(
            f"{file.name}: no columns called like {settings.wide}; it has {', '.join(present)}"
        )
    for role, name in _missing(present, settings).items():
        raise BarError(
            f"{file.name}: no column {name!r}; it has {', '.join(present)}. Name your"
            f" columns under data.source.columns (--data.source.columns.{role}), or let"
            " `fintrader init` find out"
        )
    lacking = [name for name in settings.extra if name not in present]
    if lacking:
        raise BarError(f"{file.name}: no column {lacking[0]!r}; it has {', '.join(present)}")


def _missing(present: list[str], settings: FilesSettings) -> dict[str, str]:
    """Our name -> the settings' name of each column that is not there."""
    is_wide = bool(wide_columns(settings, present))
    return {
        role: name
        for role, name in column_names(settings).items()
        if not {*split_sum(name, present)} <= {*present} and not (is_wide and role in COLUMNS)
    }


def present_columns(file: BarFile, settings: FilesSettings) -> list[str]:
    """The names of a file's columns, unchecked; of a CSV's first line, unless `header`
    names as many. Raises BarError when it cannot be read."""
    if file.kind != "csv":
        with readable(file), _open_typed(file, settings.header) as (names, _):
            return list(names)
    line = csv_line(file, settings.skip_rows)
    fields = next(csv.reader([line], delimiter=settings.delimiter))
    header = list(settings.header)
    return header if len(fields) == len(header) else fields


def read_head(file: BarFile, rows: int) -> pd.DataFrame:
    """The first rows of a typed file; columns without names have numbers. Raises BarError when it
    cannot be read."""
    with readable(file), _open_typed(file) as (names, read):
        first = next(read(names, rows), None)
        # A reader sees the index that pandas stored as a column.
        table = pd.DataFrame() if first is None else first.to_pandas(ignore_metadata=True)
    is_named = names != [str(number) for number in range(len(names))]
    return table if is_named else table.set_axis(range(table.shape[1]), axis=1)


def csv_line(file: BarFile, number: int = 0) -> str:
    """One of the first lines of a CSV, counted from 0. Raises BarError when there is none."""
    for line in filter(str.strip, csv_head(file, _HEADER_BYTES).splitlines()[number:]):
        return line
    raise BarError(f"{file.name}: holds no row; check the file")


def _is_blank(file: BarFile) -> bool:
    try:
        return not csv_head(file, _HEADER_BYTES).strip()
    except BarError:
        return False


def csv_head(file: BarFile, size: int) -> str:
    """The first lines of a CSV, of at most so many bytes, unpacked. Raises BarError when it is
    none."""
    head = b""
    with readable(file), _open_text(file) as stream:
        while len(head) < size:
            piece = bytes(stream.read(size - len(head)))
            head += piece
            if not piece:
                break
    if len(head.translate(None, _CONTROL)) < len(head):
        raise BarError(
            f"{file.name}: holds no text; unpack it, or export it as CSV (or Parquet, called"
            " .parquet)"
        )
    lines = head[: head.rfind(b"\n") + 1] if len(head) == size else head
    return (lines or head).decode("utf-8-sig", errors="replace")


@contextlib.contextmanager
def readable(file: BarFile) -> Iterator[None]:
    """Raise BarError for what pyarrow cannot read."""
    try:
        yield
    except TableError as error:
        raise BarError(f"{file.name}: {error}") from None
    except (ValueError, OSError, EOFError, lzma.LZMAError, RecursionError) as error:
        if "Empty CSV file" in str(error):
            raise BarError(f"{file.name}: holds no row; check the file") from None
        if "invalid UTF8" in str(error) or isinstance(error, UnicodeError):
            raise BarError(f"{file.name}: its text is no UTF-8; save it as UTF-8") from None
        if isinstance(error, FileNotFoundError | PermissionError):
            raise BarError(
                f"{file.name}: cannot be read ({os.strerror(error.errno or 0)}); check the file"
            ) from None
        remedy = (
            "correct or remove the row, and any other table"
            if "Row #" in str(error)
            else "it may be truncated"
        )
        raise BarError(f"{file.name}: cannot be read ({first_line(error)}); {remedy}") from None


_Read = Callable[[list[str], list[str]], Iterator[tuple[Array, pa.Table]]]
"""Reads columns of text and of numbers as row numbers `[R]` and tables, of at most some hundred
thousand rows."""


@contextlib.contextmanager
def _open_table(
    file: BarFile, settings: FilesSettings, after: tuple[int, int] | None
) -> Iterator[tuple[list[str], _Read]]:
    """Open a file: the names of its columns, and their reader. `after`: bytes of a CSV to skip, and
    the number of its next row."""
    if file.kind == "csv":
        present = present_columns(file, settings)
        yield present, partial(_read_csv, file, settings, present if after else [], after)
        return
    with contextlib.ExitStack() as held:
        with readable(file):
            present, read = held.enter_context(_open_typed(file, settings.header))
        yield present, partial(_read_typed, file, read)


def _read_typed(
    file: BarFile, read: Any, texts: list[str], numeric: list[str]
) -> Iterator[tuple[Array, pa.Table]]:
    done = 0
    with readable(file):
        for table in read([*dict.fromkeys([*texts, *numeric])], BATCH_ROWS):
            yield np.arange(done, done + len(table)), table
            done += len(table)


def _read_csv(
    file: BarFile,
    settings: FilesSettings,
    names: list[str],
    after: tuple[int, int] | None,
    texts: list[str],
    numeric: list[str],
) -> Iterator[tuple[Array, pa.Table]]:
    """Read the rows of a CSV, without remarks and repeated headers, which the log names."""
    offset, first = after or (0, settings.skip_rows + (1 if settings.header else 2))
    left_out: dict[int, str] = {}
    again: dict[int, str] = {}

    def leave_out(row: Any) -> str:
        if not _is_prose(row.text, settings.delimiter):
            return "error"
        left_out[row.number + (first - 1 if after else 0)] = row.text
        return "skip"

    def read(types: dict[str, pa.DataType]) -> Iterator[pa.Table]:
        with _open_csv(file, settings, types, (offset, names), leave_out) as reader:
            yield from (pa.Table.from_batches([batch]) for batch in reader)

    def number(table: pa.Table) -> Array:
        rows = np.arange(first + done, first + done + len(table))
        for line in sorted(left_out):  # the reader skips them
            rows[rows >= line] += 1
        return rows

    types = dict.fromkeys(texts, pa.string()) | dict.fromkeys(numeric, pa.float64())
    done = 0
    with readable(file):
        try:
            for table in read(types):
                yield number(table), table
                done += len(table)
        except pa.ArrowInvalid:
            # text in a number: read the rest as text, so that the error can name the row
            seen = done
            for table in read(dict.fromkeys(types, pa.string())):
                fresh = table.slice(min(seen, len(table)))
                seen -= len(table) - len(fresh)
                rows = number(fresh)
                is_header = np.ones(len(fresh), dtype=bool)
                for name in types:
                    is_header &= pc.fill_null(pc.equal(fresh[name], name), False).to_numpy()
                again |= dict.fromkeys(rows[is_header].tolist(), "the header again")
                yield rows[~is_header], fresh.filter(pa.array(~is_header))
                done += len(fresh)
    left_out |= again
    if left_out:
        lines = [f"line {line} ({left_out[line].strip()[:40]})" for line in sorted(left_out)]
        log.warning("%s: left out: %s", file.name, ", ".join(lines[:5]))


def _is_prose(line: str, delimiter: str) -> bool:
    """Report whether a line with another number of fields is a remark (words, and no number or
    date) or blank."""
    fields = [field.strip(' "') for field in line.split(delimiter)]
    has_numbers = any(re.fullmatch(r"[-+.:/\d]+", field) for field in fields)
    return not has_numbers and re.match(r'["#\s]*([^\W\d]+[ :：]|$)', line) is not None


def _unpack(file: BarFile) -> Any:
    """A file's bytes as pyarrow reads them, unpacked."""
    source = file.open()
    stream = pa.OSFile(source) if isinstance(source, str) else source
    if file.packing == "xz":
        return pa.PythonFile(lzma.open(stream), "r")
    if file.packing:
        return pa.CompressedInputStream(stream, _COMPRESSIONS[file.packing])
    return stream


def _open_typed(file: BarFile, header: Sequence[str] = ()) -> Any:
    stream = _open_text(file) if file.kind == "json" else _unpack(file)
    return open_typed(file.kind, stream, header)


def _encoding(head: bytes) -> str | None:
    """Encoding of a text by its first bytes, None for UTF-8."""
    if head[:2] in _BOMS:
        return _BOMS[head[:2]]
    for place, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if 3 * head[place::2].count(0) > len(head) and not head[1 - place :: 2].count(0):
            return encoding
    try:
        head.decode()
    except UnicodeDecodeError as error:
        is_cut = error.reason == "unexpected end of data"
        is_text = len(head.translate(None, _CONTROL)) == len(head)
        return _old_encoding(head) if is_text and not is_cut else None
    return None


def _old_encoding(head: bytes) -> str:
    """Find the encoding in which the column names are known ones, cp1252 by default."""
    known = {word for words in SPELLINGS.values() for word in words if not word.isascii()}
    lines = b",".join(head.splitlines()[:3])  # a line of symbols may stand above
    for encoding in _FOREIGN:
        words = re.split(r"[,;|\t]", lines.decode(encoding, errors="replace"))
        if known.intersection(map(plain, words)):
            return encoding
    return "cp1252"


def _open_text(file: BarFile, after: int = 0) -> Any:
    """A text's bytes, `after` so many, unpacked and in UTF-8."""
    stream = _unpack(file)
    head = bytes(stream.read(_HEADER_BYTES))
    encoding = _encoding(head)
    if file.packing:
        stream = _unpack(file)
    else:
        stream.seek(after)
    if encoding is None:
        return stream
    if not after and head[:2] in _BOMS:
        stream.read(2)
    native = stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, "r")
    return pa.transcoding_input_stream(native, encoding, "utf-8")


def _open_csv(
    file: BarFile,
    settings: FilesSettings,
    types: dict[str, pa.DataType],
    tail: tuple[int, list[str]],
    leave_out: Callable[[Any], str],
) -> Any:
    """Open a reader of a CSV's columns in `types`. `tail`: bytes to skip, and the names of the
    columns. `leave_out` judges lines with another number of fields."""
    # NA, TRUE and nan are tickers; only an empty cell is none
    options = pa_csv.ConvertOptions(
        column_types=types,
        include_columns=list(types),
        strings_can_be_null=True,
        null_values=[""],
        decimal_point=settings.decimal,
    )
    source = _open_text(file, tail[0])
    reading = pa_csv.ReadOptions(
        block_size=_BLOCK_BYTES,
        use_threads=False,
        column_names=tail[1] or settings.header or None,
        skip_rows=0 if tail[0] else settings.skip_rows,
    )
    parsing = pa_csv.ParseOptions(delimiter=settings.delimiter, invalid_row_handler=leave_out)
    return pa_csv.open_csv(
        source, read_options=reading, convert_options=options, parse_options=parsing
    )
