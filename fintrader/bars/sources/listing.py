"""Lists of the files of bars at a local path, in a folder, by a glob pattern, in a zip archive, or
at an fsspec URL."""

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
"""A file that changed within this time may change again without another time stamp."""
_PIECE = 4 << 20
"""Bytes that are read at once."""
# Files that fintrader wrote itself: the chunks and manifests of `bars.chunks`, and the records of
# built markets. Their folder is named by 16 digits of a hash.
_OWN = re.compile(
    r".*/[0-9a-f]{16}/([^/]+/\d{4}-\d\d-[0-9a-f]{12}\.parquet|manifest(-[0-9a-f]{16})?\.json"
    r"|build\.json)|.*/fingerprints\.json"
)


def list_bar_files(settings: FilesSettings, path: str) -> list[BarFile]:
    """List the bar files at a path whose names match the settings' `name_pattern`, sorted; text
    files (.txt, .dat, .asc) are included if it is set. Raises DataError when there is none."""
    pattern = settings.name_pattern
    files = list_files(path, text=pattern is not None)
    if pattern is None:
        return files
    called = [file for file in files if settings.read_name(file.place) is not None]
    if not called:
        raise DataError(
            f"{path}: no file there matches {pattern} (data.source.name_pattern); correct"
            f" the pattern: the first file is {files[0].place}"
        )
    return called


def list_files(path: str, *, text: bool = False) -> list[BarFile]:
    """List the bar files at a path, folder, glob pattern or URL, sorted; with `text` also text
    files (.txt, .dat, .asc).

    Raises DataError when there is none, a named file is of an unknown kind, or the path cannot be
    read.
    """
    fs, inside = open_file_system(path)
    try:
        if fs.isdir(inside):
            fs.ls(inside)  # `find` would skip a folder that may not be read
            names = _select(fs.find(inside), text)
        elif any(mark in inside for mark in "*?[") and not fs.isfile(inside):
            names = _select(fs.glob(inside), text)
        else:
            names = [inside]
            fs.info(inside)  # `exists` would be False for a file that may not be read
    except FileNotFoundError:
        names = []
    except PermissionError:
        raise DataError(f"{path} cannot be read (Permission denied); ask for permission") from None
    except Exception as error:  # cloud clients raise their own; their text may contain secrets
        raise DataError(
            f"{path}: {type(error).__name__}; check the URL, the network and the credentials"
        ) from None
    scheme = f"{path.partition('://')[0]}://" if is_url(path) else ""
    if not names:
        raise DataError(
            f"{path}: no bar file there; give a Parquet or CSV file, a folder or a pattern"
            " (--data.path)"
        )
    return [
        file
        for name in names
        for file in _list_bar_files(name if is_url(name) else scheme + name, text)
    ]


def _select(names: Iterable[str], text: bool) -> list[str]:
    """Select the files of a known kind, sorted, without hidden files and those that fintrader
    wrote: stored bars, built markets and runs."""
    names = [name for name in names if not _OWN.fullmatch(name)]
    homes = [
        {name.rpartition("/")[0] for name in names if name.endswith(f"/{part}")}
        for part in ("manifest.json", "config.yaml")
    ]
    runs = tuple(f"{home}/" for home in homes[0] & homes[1])
    return sorted(
        name
        for name in names
        if find_file_kind(name, text)
        and not strip_folders(name).startswith(".")
        and not name.startswith(runs)
    )


def _list_bar_files(path: str, text: bool) -> list[BarFile]:
    """Return the bar files of one path or URL: the file itself, or the members of a zip archive.
    Raises DataError for an unknown kind, BarError for an archive that cannot be read or has no
    table."""
    name = strip_folders(path)
    kind = find_file_kind(name, text)
    if kind is None:
        if name.lower().endswith(".xls"):
            raise DataError(
                f"{path}: a workbook of Excel before 2007; save it as .xlsx or as CSV, and give"
                " that file instead"
            )
        raise DataError(
            f"{path}: the ending of its name is not that of Parquet, CSV or another kind of table;"
            " unpack it if it is an archive, rename it .csv if it is text, else convert it"
        )
    if kind != "zip":
        return [BarFile(name, kind, path)]
    try:
        with _open_archive(path) as archive:
            members = [
                name
                for name in _select(archive.namelist(), text)
                if find_file_kind(name, text) != "zip"
            ]
    except (zipfile.BadZipFile, OSError) as error:
        raise BarError(
            f"{name}: cannot be read ({error}); it may be truncated: fetch it again"
        ) from None
    if not members:
        raise BarError(f"{name}: contains no file of bars; unpack it, and give the files in it")
    return [
        BarFile(f"{name}:{member}", str(find_file_kind(member, text)), path, member=member)
        for member in members
    ]


@contextlib.contextmanager
def _open_archive(path: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive, local or at a URL; only the needed parts are read."""
    fs, inside = open_file_system(path)
    with fs.open(inside, "rb") as file, zipfile.ZipFile(file) as archive:
        yield archive


@dataclass(frozen=True)
class BarFile:
    """One file of bars: local, at a URL, or in a zip archive."""

    name: str
    """Name in messages."""
    kind: str
    """One of `layout.KINDS`, except zip."""
    path: str
    """Local path or URL of the file, or of the zip archive that contains it."""
    member: str | None = None
    """Name within the zip archive."""

    @property
    def place(self) -> str:
        """Path or URL of the file; for a member of an archive, followed by its name there."""
        return self.path if self.member is None else f"{self.path}/{self.member}"

    @property
    def stem(self) -> str:
        """The name without folders and endings, which is the symbol of a file with one symbol:
        BRK.A for BRK.A.csv."""
        name = (self.member or self.path).rsplit("/", 1)[-1]
        return re.sub(rf"{ENDINGS}$", "", name, flags=re.IGNORECASE)

    @property
    def packing(self) -> str | None:
        """The ending that names the compression, such as gz; None without compression."""
        match = re.search(rf"\.({PACKINGS})$", self.member or self.path, re.IGNORECASE)
        return match and match[1].lower()

    def open(self) -> Any:
        """Return the file as pyarrow takes it: a local path, or a file object. Raises OSError when
        it cannot be opened, StorageError for a URL that cannot be used."""
        if self.member is not None:
            with _open_archive(self.path) as archive:
                return pa.BufferReader(archive.read(self.member))
        if is_url(self.path):
            fs, path = open_file_system(self.path)
            return fs.open(path, "rb")
        return self.path

    @property
    def appendable(self) -> bool:
        """True if the file may grow by rows at its end and can be read from there: a local CSV
        without compression."""
        is_plain = self.member is None and self.path.lower().endswith(".csv")
        return is_plain and not is_url(self.path)

    def digest(self, prefix: int = 0) -> tuple[str, int, str | None]:
        """Return the SHA-256 of the content, its size in bytes, and the SHA-256 of its first
        `prefix` bytes.

        The last is None if the content is shorter, or if these bytes do not end with a newline.
        Raises DataError when the file cannot be read.
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
        """Return a token that changes when the file changes, without reading it: its size and
        times, or an object's ETag.

        None if there is no such token, or if the file changed so recently that a further change
        might not show in its times.
        """
        if is_url(self.path):
            fs, path = open_file_system(self.path)
            details = fs.info(path)
            # `created` of a local file is the time of its inode's last change, which no program
            # can set back
            marks = [
                str(details.get(name))
                for name in ("ETag", "LastModified", "mtime", "created", "ino")
            ]
            return " ".join([str(details.get("size")), *marks]) if set(marks) != {"None"} else None
        status = Path(self.path).stat()
        # a copy may keep size and time of modification, but no program can set back the time of
        # the inode's last change
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < _RACY_NS:
            return None
        return (
            f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
            f" {status.st_dev}:{status.st_ino}"
        )


def find_file_kind(name: str, text: bool = False) -> str | None:
    """Return the kind of a file, a key of `layout.KINDS`, by the ending of its name; None for
    anything else. With `text`, .txt, .dat and .asc count as csv."""
    match = re.search(rf"\.(\w+?)(?:\.({PACKINGS}))?$", name, re.IGNORECASE)
    if match is None:
        return None
    word = match[1].lower()
    word = "csv" if text and word in ("txt", "dat", "asc") else word
    kind = next((kind for kind, words in KINDS.items() if word in words.split("|")), None)
    return kind if kind in ("csv", "json") or not match[2] else None
