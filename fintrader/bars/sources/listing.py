"""Files of bars at a local path, in a folder, by a glob pattern, in a zip archive, or at an fsspec
URL."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fintrader.bars.sources.layout import ENDINGS, KINDS, PACKINGS, FilesSettings
from fintrader.config import is_url, strip_folders
from fintrader.errors import BarError, DataError
from fintrader.storage.objects import open_file_system

_RACY_NS = 2_000_000_000
_PIECE = 4 << 20
# Chunks and manifests of `bars.chunks`, and what lies beside a built market: a folder called like
# 16 digits of a hash, and the names that only they have in it.
_OWN = re.compile(
    r".*/[0-9a-f]{16}/([^/]+/\d{4}-\d\d-[0-9a-f]{12}\.parquet|manifest(-[0-9a-f]{16})?\.json"
    r"|build\.json)|.*/fingerprints\.json"
)


def files_of(settings: FilesSettings, path: str) -> list[BarFile]:
    """The bar files that these settings name, sorted, with those that end with .txt where a
    pattern says how they are called. Raises DataError when there is none."""
    pattern = settings.name_pattern
    found = list_files(path, text=pattern is not None)
    if pattern is None:
        return found
    called = [file for file in found if settings.read_name(file.place) is not None]
    if not called:
        raise DataError(
            f"{path}: no file there is called like {pattern}; {found[0].place} is one that"
            " is not (data.source.name_pattern)"
        )
    return called


def list_files(path: str, *, text: bool = False) -> list[BarFile]:
    """The bar files that a path or URL names, sorted; with `text` also those that end with .txt.

    Raises DataError when there is none, or of an unknown kind.
    """
    fs, inside = open_file_system(path)
    try:
        if fs.isdir(inside):
            fs.ls(inside)  # `find` passes over what may not be read
            found = _select(fs.find(inside), text)
        elif any(mark in inside for mark in "*?["):
            found = _select(fs.glob(inside), text)
        else:
            found = [inside]
            fs.info(inside)  # `exists` says no of what may not be read
    except FileNotFoundError:
        found = []
    except PermissionError:
        raise DataError(
            f"{path} may not be read (Permission denied); ask for the right to read it"
        ) from None
    except (
        Exception
    ) as error:  # a cloud's client has its own exceptions, and their text may hold secrets
        raise DataError(
            f"{path}: {type(error).__name__}; check the URL, the network and the credentials"
        ) from None
    scheme = f"{path.partition('://')[0]}://" if is_url(path) else ""
    if not found:
        raise DataError(
            f"{path}: no bar file there; give a Parquet or CSV file, a folder or a pattern"
            " (--data.path)"
        )
    return [file for name in found for file in _open(name if is_url(name) else scheme + name, text)]


def _select(names: Iterable[str], text: bool) -> list[str]:
    """Files of a known kind, sorted; neither hidden ones nor those that fintrader wrote: stored
    bars, built markets and runs."""
    names = [name for name in names if not _OWN.fullmatch(name)]
    homes = [
        {name.rpartition("/")[0] for name in names if name.endswith(f"/{part}")}
        for part in ("manifest.json", "config.yaml")
    ]
    runs = tuple(f"{home}/" for home in homes[0] & homes[1])
    return sorted(
        name
        for name in names
        if kind_of(name, text)
        and not strip_folders(name).startswith(".")
        and not name.startswith(runs)
    )


def _open(path: str, text: bool) -> list[BarFile]:
    """The bar files in a path or URL: itself, or the members of a zip archive."""
    name = strip_folders(path)
    kind = kind_of(name, text)
    if kind is None:
        if name.lower().endswith(".xls"):
            raise DataError(
                f"{path}: a workbook of Excel before 2007; save it as .xlsx or as CSV, and name"
                " that file"
            )
        raise DataError(
            f"{path}: neither Parquet nor CSV nor another kind of table by its name; unpack it if"
            " it is an archive, rename it .csv if it is text, else convert it"
        )
    if kind != "zip":
        return [BarFile(name, kind, path)]
    try:
        with _archive(path) as archive:
            members = [
                name for name in _select(archive.namelist(), text) if kind_of(name, text) != "zip"
            ]
    except (zipfile.BadZipFile, OSError) as error:
        raise BarError(f"{name}: cannot be read ({error}); it may be truncated") from None
    if not members:
        raise BarError(f"{name}: holds no table; unpack it, and name the files in it")
    return [
        BarFile(f"{name}:{member}", str(kind_of(member, text)), path, member=member)
        for member in members
    ]


@contextlib.contextmanager
def _archive(path: str) -> Iterator[zipfile.ZipFile]:
    """A zip archive, local or at a URL (of which only the parts that are asked for are read)."""
    fs, inside = open_file_system(path)
    with fs.open(inside, "rb") as file, zipfile.ZipFile(file) as archive:
        yield archive


@dataclass(frozen=True)
class BarFile:
    """One file of bars, wherever it lies."""

    name: str
    """Name in messages."""
    kind: str
    """One of `layout.KINDS`, but zip."""
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
        """The name without folders and endings: the symbol, for files that hold one symbol each,
        like BRK.A.csv."""
        name = (self.member or self.path).rsplit("/", 1)[-1]
        return re.sub(rf"{ENDINGS}$", "", name, flags=re.IGNORECASE)

    @property
    def packing(self) -> str | None:
        """The ending that says how it is packed; None for a plain file."""
        found = re.search(rf"\.({PACKINGS})$", self.member or self.path, re.IGNORECASE)
        return found and found[1].lower()

    def open(self) -> Any:
        """The file for pyarrow: a path, or a file object. Raises DataError when it cannot be
        opened."""
        if self.member is not None:
            with _archive(self.path) as archive:
                return pa.BufferReader(archive.read(self.member))
        if is_url(self.path):
            fs, path = open_file_system(self.path)
            return fs.open(path, "rb")
        return self.path

    @property
    def appendable(self) -> bool:
        """True where rows are added by adding bytes at the file's end, and it can be read from
        there."""
        is_plain = self.member is None and self.path.lower().endswith(".csv")
        return is_plain and not is_url(self.path)

    def digest(self, prefix: int = 0) -> tuple[str, int, str | None]:
        """SHA-256 of its content, how many bytes that is, and the SHA-256 of the first `prefix` of
        them.

        The last is None where there are not so many, or they do not end with a line of text. Raises
        DataError when it cannot be read.
        """
        try:
            source = self.open()
            with Path(source).open("rb") if isinstance(source, str) else source as file:
                digest = hashlib.sha256()
                size = 0
                begins = None
                while True:
                    piece = file.read(min(_PIECE, prefix - size) if size < prefix else _PIECE)
                    if not piece:
                        break
                    digest.update(piece)
                    size += len(piece)
                    if size == prefix and bytes(piece[-1:]) == b"\n":
                        begins = digest.hexdigest()
        except OSError as error:
            raise DataError(
                f"{self.name}: cannot be read ({error.strerror or error}); check the file"
            ) from None
        return digest.hexdigest(), size, begins

    def version(self) -> str | None:
        """A cheap token that changes when the file does (size and times, or an object's ETag).

        None without one, and for a file that changed so lately that it may change again within the
        clock's grain.
        """
        if is_url(self.path):
            fs, path = open_file_system(self.path)
            details = fs.info(path)
            # `created` of a local file is when its inode last changed, which nobody can set back
            marks = [
                str(details.get(name))
                for name in ("ETag", "LastModified", "mtime", "created", "ino")
            ]
            return " ".join([str(details.get("size")), *marks]) if set(marks) != {"None"} else None
        status = Path(self.path).stat()
        # a copy may keep size and time of modification, but no program sets back when the inode
        # changed
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < _RACY_NS:
            return None
        return (
            f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
            f" {status.st_dev}:{status.st_ino}"
        )


def kind_of(name: str, text: bool = False) -> str | None:
    """A key of `layout.KINDS` by a file's name, None for anything else; with `text`, .txt,
    .dat and .asc are csv."""
    found = re.search(rf"\.(\w+?)(?:\.({PACKINGS}))?$", name, re.IGNORECASE)
    if found is None:
        return None
    word = found[1].lower()
    word = "csv" if text and word in ("txt", "dat", "asc") else word
    kind = next((kind for kind, words in KINDS.items() if word in words.split("|")), None)
    return kind if kind in ("csv", "json") or not found[2] else None
