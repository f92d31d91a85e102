"""Where files of bars lie: a local path, a folder, a glob pattern, the members of a zip archive, an fsspec URL."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from fintrader.config import base_name, is_url
from fintrader.data.bars import COLUMNS, Array, Bars, concat
from fintrader.data.sources.cells import first_line, one_kind, table_bars
from fintrader.data.sources.layout import FilesSettings, column_names
from fintrader.errors import BarError, DataError
from fintrader.storage.objects import file_system


def files_of(settings: FilesSettings) -> list[BarFile]:
    """The bar files that these settings name, sorted. Raises DataError when there is none."""
    pattern = settings.name_pattern
    found = list_files(settings.path, text=pattern is not None)
    if pattern is None:
        return found
    called = [file for file in found if settings.read_name(file.place) is not None]
    if not called:
        raise DataError(
            f"{settings.path}: no file there is called like {pattern}; {found[0].place} is one that is not "
            "(data.source.name_pattern)"
        )
    return called


def list_files(path: str, *, text: bool = False) -> list[BarFile]:
    """The bar files that a path or URL names, sorted; with `text` also those that end with .txt.

    Raises DataError when there is none, or of an unknown kind.
    """
    fs, inside = file_system(path)
    try:
        if fs.isdir(inside):
            fs.ls(inside)  # `find` passes over what may not be read
            found = [name for name in sorted(fs.find(inside)) if kind_of(name, text)]
        elif any(mark in inside for mark in "*?["):
            found = [name for name in sorted(fs.glob(inside)) if kind_of(name, text)]
        else:
            found = [inside]
            fs.info(inside)  # `exists` says no of what may not be read
    except FileNotFoundError:
        found = []
    except PermissionError:
        raise DataError(f"{path} may not be read (Permission denied); ask for the right to read it") from None
    except Exception as error:  # a cloud's client has its own exceptions, and their text may hold secrets
        raise DataError(f"{path}: {type(error).__name__}; check the URL, the network and the credentials") from None
    scheme = f"{path.partition('://')[0]}://" if is_url(path) else ""
    if not found:
        raise DataError(f"{path}: no bar file there; give a Parquet or CSV file, a folder or a pattern (--data.path)")
    return [file for name in found for file in _open(name if is_url(name) else scheme + name, text)]


def _open(path: str, text: bool) -> list[BarFile]:
    """The bar files in a path or URL: itself, or the members of a zip archive."""
    name = base_name(path)
    kind = kind_of(name, text)
    if kind is None:
        raise DataError(
            f"{path}: neither Parquet nor CSV nor zip by its name; convert it, or point --data.path elsewhere"
        )
    if kind != "zip":
        return [BarFile(name, kind, path)]
    try:
        with _archive(path) as archive:
            members = [name for name in sorted(archive.namelist()) if kind_of(name, text) in ("csv", "parquet")]
    except (zipfile.BadZipFile, OSError) as error:
        raise BarError(f"{name}: cannot be read ({error}); it may be truncated") from None
    return [BarFile(f"{name}:{member}", str(kind_of(member, text)), path, member=member) for member in members]


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
    def place(self) -> str:
        """Path and name, that of the archive and within it."""
        return self.path if self.member is None else f"{self.path}/{self.member}"

    @property
    def stem(self) -> str:
        """The name without folders and endings: the symbol, for files that hold one symbol each, like BRK.A.csv."""
        name = (self.member or self.path).rsplit("/", 1)[-1]
        return re.sub(r"\.(csv|csv\.gz|txt|parquet|pq)$", "", name, flags=re.IGNORECASE)

    def open(self) -> Any:
        """The file for pyarrow: a path, or a file object. Raises DataError when it cannot be opened."""
        if self.member is not None:
            with _archive(self.path) as archive:
                return pa.BufferReader(archive.read(self.member))
        if is_url(self.path):
            fs, path = file_system(self.path)
            return fs.open(path, "rb")
        return self.path

    @property
    def appendable(self) -> bool:
        """Whether rows are added to it by adding bytes at its end, and it can be read from there."""
        return (
            self.kind == "csv" and self.member is None and self.path.lower().endswith(".csv") and not is_url(self.path)
        )

    def sha256(self) -> str:
        """Of its content, in hex."""
        return self.digest()[0]

    def digest(self, prefix: int = 0) -> tuple[str, int, str | None]:
        """SHA-256 of its content, how many bytes that is, and the SHA-256 of the first `prefix` of them.

        The last is None where there are not so many, or they do not end with a line of text. Raises DataError when it
        cannot be read.
        """
        try:
            source = self.open()
            with Path(source).open("rb") if isinstance(source, str) else source as file:
                digest, size, begins = hashlib.sha256(), 0, None
                while piece := file.read(min(_PIECE, prefix - size) if size < prefix else _PIECE):
                    digest.update(piece)
                    size += len(piece)
                    if size == prefix and bytes(piece[-1:]) == b"\n":
                        begins = digest.hexdigest()
        except OSError as error:
            raise DataError(f"{self.name}: cannot be read ({error.strerror or error}); check the file") from None
        return digest.hexdigest(), size, begins

    def version(self) -> str | None:
        """A cheap token that changes when the file does (size and times, or an object's ETag).

        None without one, and for a file that changed so lately that it may change again within the clock's grain.
        """
        if is_url(self.path):
            fs, path = file_system(self.path)
            details = fs.info(path)
            # `created` of a local file is when its inode last changed, which nobody can set back
            marks = [str(details.get(name)) for name in ("ETag", "LastModified", "mtime", "created", "ino")]
            return " ".join([str(details.get("size")), *marks]) if set(marks) != {"None"} else None
        status = Path(self.path).stat()
        # a copy may keep size and time of modification, but no program sets back when the inode changed
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < _RACY_NS:
            return None
        return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_dev}:{status.st_ino}"


def kind_of(name: str, text: bool = False) -> str | None:
    """parquet, csv or zip by a file's name, None for anything else; with `text`, .txt is csv."""
    if text and name.lower().endswith((".txt", ".txt.gz")):
        return "csv"
    for kind, endings in (("parquet", (".parquet", ".pq")), ("csv", (".csv", ".csv.gz")), ("zip", (".zip",))):
        if name.lower().endswith(endings):
            return kind
    return None


BATCH_ROWS = 500_000
_HEADER_BYTES = 1 << 16
_RACY_NS = 2_000_000_000
_PIECE = 4 << 20


def read_files(settings: FilesSettings, symbols: tuple[str, ...] = ()) -> Bars:
    """All rows of all files (of `symbols` only, when given). Raises BarError, see the module's docstring."""
    bars = concat([batch for file in files_of(settings) for batch in iterate(file, settings)])
    if symbols:
        wanted = [code for code, name in enumerate(bars.symbols) if name in symbols]
        bars = bars.take(np.isin(bars.symbol, wanted)).without_unused()
    return bars


def iterate(file: BarFile, settings: FilesSettings, after: tuple[int, int] | None = None) -> Iterator[Bars]:
    """The rows of one file in file order, in the long schema, some hundred thousand at a time.

    `after`: leave out so many bytes, of a CSV (`BarFile.appendable`); the next row's number is the second.
    """
    names = column_names(settings)
    present, tail = read_columns(file, settings), None
    wide = wide_columns(settings, present)
    prices = [column for one in wide.values() for column in one.values()] or [names[name] for name in COLUMNS]
    wanted = [column for role, column in names.items() if not (wide and role in COLUMNS)]
    wanted = [*dict.fromkeys([*wanted, *prices, *settings.extra])]
    _refuse_cut_off(file)
    # a CSV's first row of data is line 2, where line 1 has the names
    first = done = (settings.skip_rows + (1 if settings.header else 2)) if file.kind == "csv" else 0
    zoned: bool | None = None
    if after is not None:
        if _blank_from(file.path, after[0]):
            return
        tail, first, done = (after[0], present), after[1], after[1]
    symbol, date = settings.read_name(file.place) or ("", None) if settings.name_pattern else (file.stem, None)
    if settings.uppercase:
        symbol = symbol.upper()
    for table in _tables(file, settings, wanted, [*prices, *settings.extra], tail):
        rows = np.arange(done, done + table.num_rows)
        done += table.num_rows
        if settings.time_format is None:
            zoned = one_kind(table[names["ts"]].slice(0, 1), zoned, file.name, names["ts"], rows[:1])
        if wide:
            yield _joined(table, wide, settings, file.name, rows, date)
        else:
            yield table_bars(table, settings, origin=file.name, rows=rows, symbol=symbol, date=date)
    if done == first:
        raise BarError(f"{file.name}: holds no row; check the file")


def wide_columns(settings: FilesSettings, present: list[str]) -> dict[str, dict[str, str]]:
    """Symbol -> our name -> column, of a table with columns for each symbol; empty for a long one."""
    if settings.wide is None:
        return {}
    fields = {getattr(settings.columns, name): name for name in COLUMNS}
    choice = "|".join(re.escape(field) for field in fields)
    body = (
        re.escape(settings.wide).replace(r"\{symbol\}", "(?P<symbol>.+?)").replace(r"\{field\}", f"(?P<field>{choice})")
    )
    found: dict[str, dict[str, str]] = {}
    for column in present:
        if match := re.fullmatch(body, column):
            symbol = match["symbol"].upper() if settings.uppercase else match["symbol"]
            found.setdefault(symbol, {})[fields[match["field"]]] = column
    return {symbol: columns for symbol, columns in sorted(found.items()) if len(columns) == len(COLUMNS)}


def _joined(
    table: pa.Table,
    wide: dict[str, dict[str, str]],
    settings: FilesSettings,
    origin: str,
    rows: Array,
    date: str | None,
) -> Bars:
    """The bars of all symbols of a wide table, row by row; a symbol without any number in a row has no bar there."""
    names, parts = column_names(settings), []
    for symbol, columns in wide.items():
        own = {names[role]: table[names[role]] for role in names if role not in COLUMNS}
        own |= {names[name]: table[column] for name, column in columns.items()}
        there = np.zeros(table.num_rows, dtype=bool)
        for column in columns.values():
            there |= ~pc.is_null(table[column]).to_numpy()
        index = np.flatnonzero(there)
        part = pa.table(own).take(pa.array(index))
        if len(index):
            parts.append(table_bars(part, settings, origin=origin, rows=rows[index], symbol=symbol, date=date))
    bars = concat(parts)
    return bars.take(np.argsort(bars.row, kind="stable")) if bars.row is not None else bars


def _blank_from(path: str, offset: int) -> bool:
    """Whether only empty lines follow."""
    with Path(path).open("rb") as file:
        file.seek(offset)
        return not file.read(_HEADER_BYTES).strip()


def _refuse_cut_off(file: BarFile) -> None:
    """Raise BarError for a CSV without an end to its last line: its last number may be the half of one.

    What is packed knows its length, and is whole once it can be unpacked.
    """
    if file.kind != "csv" or file.member is not None or file.path.lower().endswith(".gz"):
        return
    with _readable(file):
        fs, inside = file_system(file.path)
        if fs.tail(inside, 1) not in (b"", b"\n", b"\r"):
            raise BarError(
                f"{file.name}: the last line has no end, so its last number may be cut off; fetch the file again, or "
                "end the line where it is whole"
            )


def read_columns(file: BarFile, settings: FilesSettings) -> list[str]:
    """The names of a file's columns. Raises BarError when one that the settings name is missing."""
    present = present_columns(file, settings)
    names = column_names(settings)
    if settings.wide is not None:
        names = {role: column for role, column in names.items() if role not in COLUMNS}
        if not wide_columns(settings, present):
            raise BarError(f"{file.name}: no columns called like {settings.wide}; it has {', '.join(present)}")
    missing = [(role, name) for role, name in names.items() if name not in present]
    if missing:
        raise BarError(
            f"{file.name}: no column {missing[0][1]!r}; it has {', '.join(present)}. "
            f"Name your columns under data.source.columns (--data.source.columns.{missing[0][0]}), or let "
            "`fintrader init` find out"
        )
    if lacking := [name for name in settings.extra if name not in present]:
        raise BarError(f"{file.name}: no column {lacking[0]!r}; it has {', '.join(present)}")
    return present


def present_columns(file: BarFile, settings: FilesSettings) -> list[str]:
    """The names of a file's columns, whatever they are. Raises BarError when it cannot be read."""
    with _readable(file):
        if file.kind == "parquet":
            with pq.ParquetFile(file.open()) as parquet:
                return list(parquet.schema_arrow.names)
        with _open_csv(file, settings, None, {}, block_bytes=_HEADER_BYTES) as reader:
            return list(reader.schema.names)


@contextlib.contextmanager
def _readable(file: BarFile) -> Iterator[None]:
    """Raise BarError for what pyarrow cannot read."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        if "Empty CSV file" in str(error):
            raise BarError(f"{file.name}: holds no row; check the file") from None
        raise BarError(f"{file.name}: cannot be read ({first_line(error)}); it may be truncated") from None


def _tables(
    file: BarFile, settings: FilesSettings, wanted: list[str], numeric: list[str], tail: tuple[int, list[str]] | None
) -> Iterator[pa.Table]:
    """The file's rows as tables of the wanted columns, a bounded number at a time; of a CSV's `tail` (bytes to leave
    out, names of the columns) only those."""
    with _readable(file):
        if file.kind == "parquet":
            with pq.ParquetFile(file.open()) as parquet:
                for batch in parquet.iter_batches(BATCH_ROWS, columns=wanted, use_threads=False):
                    yield pa.Table.from_batches([batch])
            return
        types = {name: pa.float64() if name in numeric else pa.string() for name in wanted}
        done = 0
        try:
            with _open_csv(file, settings, wanted, types, tail) as reader:
                for batch in reader:
                    yield pa.Table.from_batches([batch])
                    done += batch.num_rows
        except pa.ArrowInvalid:  # text in a number: read what is left as text, so that the row can be named
            with _open_csv(file, settings, wanted, dict.fromkeys(wanted, pa.string()), tail) as reader:
                for batch in reader:
                    skip = min(done, batch.num_rows)
                    done -= skip
                    if batch.num_rows > skip:
                        yield pa.Table.from_batches([batch.slice(skip)])


def _open_csv(
    file: BarFile,
    settings: FilesSettings,
    wanted: list[str] | None,
    types: dict[str, pa.DataType],
    tail: tuple[int, list[str]] | None = None,
    block_bytes: int = 32 << 20,
) -> Any:
    # NA, TRUE and nan are tickers; only an empty cell is none
    options = pa_csv.ConvertOptions(
        column_types=types,
        include_columns=wanted or [],
        strings_can_be_null=True,
        null_values=[""],
        decimal_point=settings.decimal,
    )
    source = file.open()
    if tail is not None:
        source = pa.OSFile(source)
        source.seek(tail[0])
    if file.path.lower().endswith(".gz") or (file.member or "").lower().endswith(".gz"):
        source = pa.CompressedInputStream(pa.OSFile(source) if isinstance(source, str) else source, "gzip")
    reading = pa_csv.ReadOptions(
        block_size=block_bytes,
        use_threads=False,
        column_names=tail[1] if tail else settings.header or None,
        skip_rows=0 if tail else settings.skip_rows,
    )
    parsing = pa_csv.ParseOptions(delimiter=settings.delimiter)
    return pa_csv.open_csv(source, read_options=reading, convert_options=options, parse_options=parsing)
