"""Where files of bars lie: a local path, a folder, a glob pattern, the members of a zip archive, an fsspec URL."""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fintrader.data.place import base_name, file_system
from fintrader.errors import BarError, DataError
from fintrader.runs import file_sha256
from fintrader.storage.urls import is_url


def find_files(path: str) -> list[BarFile]:
    """The bar files that a path names (see the module), sorted. Raises DataError when there is none."""
    if is_url(path):
        found = _remote_files(path)
    else:
        found = [file for one in _local_paths(Path(path)) for file in _open(str(one))]
    if not found:
        raise DataError(f"{path}: no bar file there; give a Parquet or CSV file, a folder or a pattern (--data.path)")
    return found


def _local_paths(path: Path) -> list[Path]:
    if path.is_dir():
        return [file for file in sorted(path.rglob("*")) if file.is_file() and kind_of(file.name)]
    if any(mark in str(path) for mark in "*?["):
        root = Path(path.anchor) if path.is_absolute() else Path()
        return sorted(file for file in root.glob(str(path.relative_to(path.anchor))) if file.is_file())
    return [path] if path.exists() else []


def _open(path: str) -> list[BarFile]:
    """The bar files in a path or URL: itself, or the members of a zip archive."""
    name = base_name(path)
    kind = kind_of(name)
    if kind is None:
        raise DataError(
            f"{path}: neither Parquet nor CSV nor zip by its name; convert it, or point --data.path elsewhere"
        )
    if kind != "zip":
        return [BarFile(name, kind, path)]
    try:
        with _archive(path) as archive:
            members = [name for name in sorted(archive.namelist()) if kind_of(name) in ("csv", "parquet")]
    except (zipfile.BadZipFile, OSError) as error:
        raise BarError(f"{name}: cannot be read ({error}); it may be truncated") from None
    return [BarFile(f"{name}:{member}", str(kind_of(member)), path, member=member) for member in members]


@contextlib.contextmanager
def _archive(path: str) -> Iterator[zipfile.ZipFile]:
    """A zip archive, local or at a URL (of which only the parts that are asked for are read)."""
    if is_url(path):
        fs, inside = file_system(path)
        with fs.open(inside, "rb") as file, zipfile.ZipFile(file) as archive:
            yield archive
    else:
        with zipfile.ZipFile(path) as archive:
            yield archive


def _remote_files(url: str) -> list[BarFile]:
    fs, path = file_system(url)
    try:
        if any(mark in path for mark in "*?["):
            found = sorted(fs.glob(path))
        elif fs.isdir(path):
            found = sorted(fs.find(path))
        else:
            found = [path] if fs.exists(path) else []
    except Exception as error:  # a cloud's client has its own exceptions; only their kind is told
        raise DataError(f"{url}: {type(error).__name__}; check the URL, the network and the credentials") from None
    scheme = url.split("://")[0]
    return [file for name in map(str, found) if kind_of(name) for file in _open(f"{scheme}://{name.lstrip('/')}")]


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
    def stem(self) -> str:
        """The name without folders and endings: the symbol, for files that hold one symbol each."""
        return (self.member or self.path).rsplit("/", 1)[-1].split(".")[0]

    def open(self) -> Any:
        """The file for pyarrow: a path, or a file object. Raises DataError when it cannot be opened."""
        if self.member is not None:
            with _archive(self.path) as archive:
                return pa.BufferReader(archive.read(self.member))
        if is_url(self.path):
            fs, path = file_system(self.path)
            return fs.open(path, "rb")
        return self.path

    def sha256(self) -> str:
        """Of its content, in hex."""
        source = self.open()
        if isinstance(source, str):
            return file_sha256(Path(source))
        digest = hashlib.sha256()
        with source:
            while block := source.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()

    def version(self) -> str | None:
        """A cheap token that changes when the file does (size and times, or an object's ETag); None without one."""
        if is_url(self.path):
            fs, path = file_system(self.path)
            details = fs.info(path)
            tag = details.get("ETag") or details.get("mtime") or details.get("created")
            return f"{details.get('size')} {tag}" if tag else None
        status = Path(self.path).stat()
        return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


def kind_of(name: str) -> str | None:
    """parquet, csv or zip by a file's name, None for anything else."""
    for kind, endings in (("parquet", (".parquet", ".pq")), ("csv", (".csv", ".csv.gz")), ("zip", (".zip",))):
        if name.lower().endswith(endings):
            return kind
    return None
