"""Readers of files of bars: they yield `Bars` of up to some hundred thousand rows. Errors name the
file and, where possible, row and column."""

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
from fintrader.bars.sources.cells import Column, check_zones_alike, convert_table, first_line
from fintrader.bars.sources.layout import FilesSettings, column_names, split_sum
from fintrader.bars.sources.listing import BarFile, find_file_kind, list_bar_files
from fintrader.bars.sources.presets import SPELLINGS, plain
from fintrader.bars.sources.typed import INDEX, TableError, open_typed
from fintrader.errors import BarError
from fintrader.progress import shorten_list
from fintrader.storage.objects import open_file_system

log = logging.getLogger("fintrader.bars")

BATCH_ROWS = 500_000
"""Approximate maximum of rows read at once."""
_HEADER_BYTES = 1 << 16
_BLOCK_BYTES = 32 << 20
_COMPRESSIONS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4"}
_BOMS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_FOREIGN = ("gb18030", "cp949", "shift_jis", "cp950")
"""Encodings of Chinese, Korean and Japanese text."""
_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\f"))
"""Bytes that no text contains."""


@contextlib.contextmanager
def fold_warnings() -> Iterator[None]:
    """Hold back the warnings about bars, and log them at the end. Of messages that differ only in
    numbers or names, only the first is logged, with the number of the others."""
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
    """Read all rows of all files at a path, those of `symbols`, or all if it is empty. Raises
    BarError for a file that cannot be read, DataError if there is no file."""
    return read_rows(select_files(settings, path), settings, symbols)


def read_rows(
    files: Sequence[BarFile], settings: FilesSettings, symbols: tuple[str, ...] = ()
) -> Bars:
    """Read all rows of these files, of `symbols` only if there are any. Raises BarError for what
    cannot be read."""
    bars = concat(
        [
            batch
            for file in files
            for batch in iterate_batches(file, settings, is_alone=len(files) == 1)
        ]
    )
    if symbols:
        wanted = [code for code, name in enumerate(bars.symbols) if name in symbols]
        bars = bars.take(np.isin(bars.symbol, wanted)).drop_unused_symbols()
    return bars


def select_files(
    settings: FilesSettings, path: str, is_known: Callable[[BarFile], bool] = lambda _: False
) -> list[BarFile]:
    """List the files of `list_bar_files` that have the settings' columns; the log names the others.
    is_known: True for files that are known to have them, which are not opened."""
    files, left_out = split_by_layout(list_bar_files(settings, path), settings, is_known)
    if left_out:
        log.warning("%s: left out: %s", path, "; ".join(left_out))
    return files


def split_by_layout(
    files: Sequence[BarFile],
    settings: FilesSettings,
    is_known: Callable[[BarFile], bool] = lambda _: False,
) -> tuple[list[BarFile], list[str]]:
    """Return the files that have the settings' columns, and for each other file the reason why it
    is left out; if no file has the columns, return all files.

    A file that lacks a single column stays: it has the right layout with a fault, which an error
    names when the file is read. A file that cannot be read stays too, unless it is blank or no file
    of its kind has the columns. is_known: True for files that are known to have the columns.
    """
    if len(files) == 1:
        return list(files), []
    lacking = {}
    errors = {}
    for file in files:
        # unpacking a member takes long; with `header` the names are those of the settings anyway
        if is_known(file) or (settings.header and file.member):
            lacking[file] = 0
            continue
        try:
            lacking[file] = len(_list_missing(present_columns(file, settings), settings))
        except BarError as error:
            errors[file] = error
    kinds = {file.kind for file, count in lacking.items() if count < 2}
    if not kinds:  # reading the first file raises an error that names its fault
        return list(files), []
    shared = {file: file.kind in kinds and lacking.get(file, 0) < 2 for file in files}
    for file in errors:
        if file.kind == "csv" and _is_blank(file):
            shared[file] = False
    left_out = [
        str(errors[file]) if file in errors else f"{file.name} (other columns)"
        for file, is_shared in shared.items()
        if not is_shared
    ]
    selected = [file for file in files if shared[file]]
    # Files such as .txt and .dat are read only if there are no tables.
    tables = [file for file in selected if find_file_kind(file.place)]
    return tables or selected, left_out


def iterate_batches(
    file: BarFile,
    settings: FilesSettings,
    after: tuple[int, int] | None = None,
    *,
    is_alone: bool = False,
) -> Iterator[Bars]:
    """Yield the rows of one file in its order, up to some hundred thousand at a time.

    after: number of bytes to skip at the beginning of a CSV (`BarFile.appendable`), and the number
    of the row that follows. is_alone: True if there is no other file: a file without prices then
    raises BarError, otherwise the log names it. Raises BarError for a file that cannot be read.
    """
    if after is not None and _is_blank_from(file.path, after[0]):
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
            if not len(rows):
                continue
            if settings.time_format is None:
                times = table[names["ts"]].slice(0, 1)
                zoned = check_zones_alike(Column(times, names["ts"], file.name, rows[:1]), zoned)
            has_row = True
            if wide:
                converted = _convert_wide(table, wide, settings, file.name, rows, date)
                if converted is None:
                    continue
                bars = converted
            else:
                bars = convert_table(
                    table, settings, origin=file.name, rows=rows, symbol=symbol, date=date
                )
            has_price = has_price or len(bars.without_empty()) > 0
            yield bars
    if not has_price:
        _report_empty(file, has_row=has_row, is_alone=is_alone)


def _report_empty(file: BarFile, *, has_row: bool, is_alone: bool) -> None:
    """Log that a file has no prices; raise BarError if it is the only file."""
    held = "no row has a price" if has_row else "holds no row"
    if is_alone:
        raise BarError(f"{file.name}: {held}; check the file")
    log.warning("%s: %s", file.name, held)


def _drop_blank(rows: Array, table: pa.Table) -> tuple[Array, pa.Table]:
    """Drop rows in which all cells are empty, such as a last line of commas. Returns the numbers of
    the other rows, and the table."""
    is_filled = np.any([~pc.is_null(column).to_numpy() for column in table.columns], axis=0)
    return rows[is_filled], table.filter(pa.array(is_filled))


def wide_columns(settings: FilesSettings, present: list[str]) -> dict[str, dict[str, str]]:
    """Return symbol -> our name of a column -> its name in the file, for a table with columns for
    each symbol; empty for a table with one row per bar. Symbols that lack a column are left out."""
    if settings.wide is None:
        return {}
    roles: dict[str, list[str]] = {}
    for name in [name for name in COLUMNS if name in settings.names]:
        roles.setdefault(settings.names[name], []).append(name)
    if "{field}" not in settings.wide:
        roles = {"": [*PRICES]}  # the close counts as all four prices
    body = (
        re.escape(settings.wide)
        .replace(r"\{symbol\}", "(?P<symbol>.+?)")
        .replace(r"\{field\}", f"(?P<field>{'|'.join(map(re.escape, roles))})")
    )
    by_symbol: dict[str, dict[str, str]] = {}
    for column in present:
        match = re.fullmatch(body, column)
        if match and column not in (INDEX, settings.names.get("ts"), settings.names.get("date")):
            symbol = match["symbol"].upper() if settings.uppercase else match["symbol"]
            own = roles[match.groupdict().get("field", "")]
            by_symbol.setdefault(symbol, {}).update(dict.fromkeys(own, column))
    needed = sum(map(len, roles.values()))
    return {
        symbol: columns for symbol, columns in sorted(by_symbol.items()) if len(columns) == needed
    }


def _convert_wide(
    table: pa.Table,
    wide: dict[str, dict[str, str]],
    settings: FilesSettings,
    origin: str,
    rows: Array,
    date: str | None,
) -> Bars | None:
    """Convert a wide table to the bars of all symbols, row by row; a symbol without any number in a
    row has no bar there. None if there is no bar. wide: see `wide_columns`."""
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
                convert_table(
                    part, settings, origin=origin, rows=rows[index], symbol=symbol, date=date
                )
            )
    if not parts:
        return None
    bars = concat(parts)
    return bars.take(np.argsort(bars.row, kind="stable")) if bars.row is not None else bars


def _is_blank_from(path: str, offset: int) -> bool:
    """Report whether a file has only empty lines from a byte on."""
    with Path(path).open("rb") as file:
        file.seek(offset)
        return not file.read(_HEADER_BYTES).strip(b"\0\t\n\r\f ")


def _refuse_cut_off(file: BarFile, settings: FilesSettings) -> None:
    """Raise BarError for a CSV whose last line has no newline, if its last number may be cut off.

    Compressed files are not checked: unpacking fails if they are cut off.
    """
    if file.kind != "csv" or file.member is not None or file.packing:
        return
    with explain_errors(file):
        fs, inside = open_file_system(file.path)
        if fs.tail(inside, 2).strip(b"\0")[-1:] in (b"", b"\n", b"\r"):
            return
        encoding = _guess_encoding(fs.head(inside, _HEADER_BYTES)) or "utf-8"
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
            " the file again, or add a newline if the number is complete"
        )
    if re.fullmatch(r"\d+\D?\d*", last):
        log.warning(
            "%s: the last line has no newline; check that its last number %s is complete",
            *(file.name, last),
        )


def _may_be_whole(last: str, others: list[str], decimal: str) -> bool:
    """Report whether the last field seems complete, compared with the `others` of its column: its
    quotes are closed, it has as many decimals or digits as others, or it is a text that occurs and
    begins no other."""
    if not last:
        return not any(others)
    if last.startswith('"'):
        return len(last) > 1 and last.endswith('"')
    if not re.fullmatch(r"[-+\d.,eE]*", last):
        return last in others and not any(one != last and one.startswith(last) for one in others)
    if decimal in last:
        places = {len(field.partition(decimal)[2]) for field in others}
        return len(last.partition(decimal)[2]) in places - {0}
    whole = [len(field) for field in others if decimal not in field]
    is_zero = last == "0" and whole == [*map(len, others)]  # longer ones do not begin with 0
    return is_zero or len(last) >= min(whole, default=len(last) + bool(others))


def read_columns(file: BarFile, settings: FilesSettings) -> list[str]:
    """Return the names of a file's columns. Raises BarError if one that the settings name is
    missing."""
    present = present_columns(file, settings)
    _refuse_lacking(file, present, settings)
    return present


def _refuse_lacking(file: BarFile, present: list[str], settings: FilesSettings) -> None:
    if settings.wide is not None and not wide_columns(settings, present):
        raise BarError(
            f"{file.name}: no column matches data.source.wide {settings.wide}; it has"
            f" {', '.join(present)}"
        )
    for role, name in _list_missing(present, settings).items():
        raise BarError(
            f"{file.name}: no column {name!r}; it has {', '.join(present)}. Name your"
            f" columns under data.source.columns (--data.source.columns.{role}), or let"
            " `fintrader init` find out"
        )
    lacking = [name for name in settings.extra if name not in present]
    if lacking:
        raise BarError(
            f"{file.name}: no column {lacking[0]!r} (data.source.extra); it has"
            f" {', '.join(present)}"
        )


def _list_missing(present: list[str], settings: FilesSettings) -> dict[str, str]:
    """Return our name -> the settings' name of each column that the file lacks."""
    is_wide = bool(wide_columns(settings, present))
    return {
        role: name
        for role, name in column_names(settings).items()
        if not {*split_sum(name, present)} <= {*present} and not (is_wide and role in COLUMNS)
    }


def present_columns(file: BarFile, settings: FilesSettings) -> list[str]:
    """Return the names of a file's columns, unchecked. For a CSV they are its first line, unless
    `header` of the settings has as many names. Raises BarError when the file cannot be read."""
    if file.kind != "csv":
        with explain_errors(file), _open_typed(file, settings.header) as (names, _):
            return list(names)
    line = csv_line(file, settings.skip_rows)
    fields = next(csv.reader([line], delimiter=settings.delimiter))
    header = list(settings.header)
    return header if len(fields) == len(header) else fields


def read_head(file: BarFile, rows: int) -> pd.DataFrame:
    """Read the first rows of a file that is no CSV; columns without names get numbers. Raises
    BarError when it cannot be read."""
    with explain_errors(file), _open_typed(file) as (names, read):
        first = next(read(names, rows), None)
        if first and any(map(pa.types.is_fixed_size_binary, first.schema.types)):
            raise TableError("it has columns of bytes; write them as numbers and text")
        # the index that pandas stored stays a column, as other readers see it
        table = pd.DataFrame() if first is None else first.to_pandas(ignore_metadata=True)
    is_named = names != [str(number) for number in range(len(names))]
    return table if is_named else table.set_axis(range(table.shape[1]), axis=1)


def csv_line(file: BarFile, number: int = 0) -> str:
    """Return the first line of a CSV that is not blank, from line `number` on (counted from 0).
    Raises BarError when there is none."""
    for line in filter(str.strip, csv_head(file, _HEADER_BYTES).splitlines()[number:]):
        return line
    raise BarError(f"{file.name}: holds no row; check the file")


def _is_blank(file: BarFile) -> bool:
    try:
        return not csv_head(file, _HEADER_BYTES).strip()
    except BarError:
        return False


def csv_head(file: BarFile, size: int) -> str:
    """Return the first lines of a CSV as text, at most `size` bytes, without compression. Raises
    BarError when the file is no text."""
    head = b""
    with explain_errors(file), _open_text(file) as stream:
        while len(head) < size:
            piece = bytes(stream.read(size - len(head)))
            head += piece
            if not piece:
                break
    if len(head.translate(None, _CONTROL)) < len(head):
        raise BarError(
            f"{file.name}: is not a text file; unpack it, or export it as CSV (or as Parquet, with"
            " a name that ends with .parquet)"
        )
    lines = head[: head.rfind(b"\n") + 1] if len(head) == size else head
    return (lines or head).decode("utf-8-sig", errors="replace")


@contextlib.contextmanager
def explain_errors(file: BarFile) -> Iterator[None]:
    """Turn the errors of readers into BarError, which names the file and a remedy."""
    try:
        yield
    except TableError as error:
        raise BarError(f"{file.name}: {error}") from None
    except (ValueError, OSError, EOFError, lzma.LZMAError, RecursionError) as error:
        if "Empty CSV file" in str(error):
            raise BarError(f"{file.name}: holds no row; check the file") from None
        if "invalid UTF8" in str(error) or isinstance(error, UnicodeError):
            raise BarError(f"{file.name}: its text is not UTF-8; save it as UTF-8") from None
        if isinstance(error, FileNotFoundError | PermissionError):
            raise BarError(
                f"{file.name}: cannot be read ({os.strerror(error.errno or 0)}); check the file"
            ) from None
        remedy = (
            "correct or remove this row; a file may hold one table only"
            if "Row #" in str(error)
            else "it may be truncated"
        )
        raise BarError(f"{file.name}: cannot be read ({first_line(error)}); {remedy}") from None


_Read = Callable[[list[str], list[str]], Iterator[tuple[Array, pa.Table]]]
"""Reader of a file: (names of columns of text, names of columns of numbers) -> pairs of row numbers
`[R]` and a table, of up to some hundred thousand rows."""


@contextlib.contextmanager
def _open_table(
    file: BarFile, settings: FilesSettings, after: tuple[int, int] | None
) -> Iterator[tuple[list[str], _Read]]:
    """Open a file; yield the names of its columns, and their reader. after: number of bytes of a
    CSV to skip, and the number of the row that follows."""
    if file.kind == "csv":
        present = present_columns(file, settings)
        yield present, partial(_read_csv, file, settings, present if after else [], after)
        return
    with contextlib.ExitStack() as held:
        with explain_errors(file):
            present, read = held.enter_context(_open_typed(file, settings.header))
        yield present, partial(_read_typed, file, read)


def _read_typed(
    file: BarFile, read: Any, texts: list[str], numeric: list[str]
) -> Iterator[tuple[Array, pa.Table]]:
    done = 0
    with explain_errors(file):
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
    """Read the rows of a CSV; remarks and repeated headers are left out and named in the log."""
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
        for line in sorted(left_out):  # the reader does not count the lines that it skips
            rows[rows >= line] += 1
        return rows

    types = dict.fromkeys(texts, pa.string()) | dict.fromkeys(numeric, pa.float64())
    done = 0
    with explain_errors(file):
        try:
            for table in read(types):
                yield number(table), table
                done += len(table)
        except pa.ArrowInvalid:
            # a cell is no number: read the rest as text, so that the error can name its row
            seen = done
            for table in read(dict.fromkeys(types, pa.string())):
                fresh = table.slice(min(seen, len(table)))
                seen -= len(table) - len(fresh)
                rows = number(fresh)
                is_header = np.ones(len(fresh), dtype=bool)
                for name in types:
                    is_header &= pc.fill_null(pc.equal(fresh[name], name), False).to_numpy()
                again |= dict.fromkeys(rows[is_header].tolist(), "a repeated header")
                yield rows[~is_header], fresh.filter(pa.array(~is_header))
                done += len(fresh)
    left_out |= again
    if left_out:
        lines = [f"line {line} ({left_out[line].strip()[:40]})" for line in sorted(left_out)]
        log.warning("%s: left out: %s", file.name, shorten_list(lines))


def _is_prose(line: str, delimiter: str) -> bool:
    """Report whether a line is blank or a remark: it begins with a word or #, and no field is a
    number or date."""
    fields = [field.strip(' "') for field in line.split(delimiter)]
    has_numbers = any(re.fullmatch(r"[-+.:/\d]+", field) for field in fields)
    return not has_numbers and re.match(r'\s*#|["\s]*([^\W\d]+[ :：、]|$)', line) is not None


def _unpack(file: BarFile) -> Any:
    """Open a file as a stream of its bytes for pyarrow, without compression."""
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


def _guess_encoding(head: bytes) -> str | None:
    """Guess the encoding of a text from its first bytes; None for UTF-8."""
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
        return _guess_old_encoding(head) if is_text and not is_cut else None
    return None


def _guess_old_encoding(head: bytes) -> str:
    """Return the encoding in which the first lines contain a known name of a column; cp1252 if none
    does."""
    known = {word for words in SPELLINGS.values() for word in words if not word.isascii()}
    lines = b",".join(head.splitlines()[:3])  # a line of symbols may stand above
    for encoding in _FOREIGN:
        words = re.split(r"[,;|\t]", lines.decode(encoding, errors="replace"))
        if known.intersection(map(plain, words)):
            return encoding
    return "cp1252"


def _open_text(file: BarFile, after: int = 0) -> Any:
    """Open a text as a stream of UTF-8 without compression; `after`: number of bytes to skip."""
    stream = _unpack(file)
    head = bytes(stream.read(_HEADER_BYTES))
    encoding = _guess_encoding(head)
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
    """Open a reader of the columns `types` (name -> type) of a CSV. tail: number of bytes to skip,
    and then the names of the columns. leave_out: decides if a line with another number of fields is
    skipped."""
    # only an empty cell is missing, since NA, TRUE and nan may be tickers
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
