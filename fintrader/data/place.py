"""A folder that may lie anywhere fsspec reaches: a local path, s3://, gs://, memory://.

Local files are written atomically; object stores put whole objects, which is atomic by itself.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from fintrader.errors import ConfigError, DataError
from fintrader.files import write_bytes
from fintrader.storage.urls import check_no_secret, is_url


def _without_secret(path: str) -> str:
    try:
        return check_no_secret(path)
    except ConfigError as error:
        raise ValueError(str(error)) from None


PathText = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value),
    AfterValidator(_without_secret),
]
"""A local path or an fsspec URL without credentials; a `pathlib.Path` is taken too."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # pathlib makes one slash of two; C:/ is a drive


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL and the path within it. Raises DataError saying what to install or set."""
    import fsspec  # type: ignore[import-untyped]

    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise DataError(f"{url}: {error}; install the package it names") from None
    except ValueError as error:
        raise DataError(f"{url}: {error}") from None
    return fs, str(path)


def read_whole(path: str, setting: str) -> bytes:
    """A small file's bytes, by local path or URL. Raises DataError naming the setting when there is none to read."""
    folder, _, name = path.rpartition("/")
    data = Place(f"{folder}/").read(name) if is_url(path) else _read_local(Path(path), setting)
    if data is None:
        raise DataError(f"{path}: no such file; see {setting}")
    return data


def read_csv(path: str, setting: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and row of a small CSV file with a header. Raises DataError when it cannot be read."""
    try:
        text = read_whole(path, setting).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path}: cannot be read (no UTF-8 text); see {setting}") from None
    yield from enumerate(csv.DictReader(io.StringIO(text, newline="")), start=2)


def base_name(path: str) -> str:
    """What to call a file in a message: its name without folders."""
    return path.rstrip("/").rpartition("/")[2]


def _read_local(path: Path, setting: str) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); see {setting}") from None


def refuse_url(path: Path | str, setting: str) -> None:
    """Raise DataError when a folder that must be local is a URL: as a path it would make a folder called `s3:`."""
    if _SCHEME.match(str(path)):
        raise DataError(
            f"{setting}: {path} is a URL, and this folder must be a local one; bars may lie at a URL (data.store), and "
            "so may runs and markets (store)"
        )


class Place:
    """Files below one folder, by their relative names."""

    def __init__(self, root: str | Path) -> None:
        self.root = str(root)
        self.local = None if is_url(root) else Path(root)
        self._fs: Any = None
        self._path = ""
        if self.local is None:
            self._fs, self._path = file_system(self.root)

    def __str__(self) -> str:
        return self.root

    def below(self, name: str) -> Place:
        """A folder below this one."""
        return Place(self.local / name if self.local is not None else f"{self.root.rstrip('/')}/{name}")

    def read(self, name: str) -> bytes | None:
        """A file's bytes, None when there is no such file. Raises DataError when it cannot be read."""
        with self._errors(name):
            try:
                if self.local is not None:
                    return (self.local / name).read_bytes()
                data: bytes = self._fs.cat_file(self._name(name))
                return data
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file whole or not at all. Raises DataError when it cannot be written (a full disk, no right).

        What is not `durable` survives the death of the process but perhaps not that of the machine: for files whose
        hash is checked whenever they are read.
        """
        with self._errors(name):
            if self.local is not None and durable:
                write_bytes(self.local / name, data)
            elif self.local is not None:
                _replace(self.local / name, data)
            else:
                self._fs.makedirs(str(PurePosixPath(self._name(name)).parent), exist_ok=True)
                self._fs.pipe_file(self._name(name), data)

    def names(self, suffix: str = "") -> list[str]:
        """Relative names of all files that end in `suffix`, sorted."""
        with self._errors(""):
            if self.local is not None:
                found = self.local.rglob(f"*{suffix}") if self.local.is_dir() else iter(())
                return sorted(str(file.relative_to(self.local)) for file in found if file.is_file())
            base = self._path.rstrip("/")
            try:
                files = self._fs.find(base)
            except FileNotFoundError:
                return []
            return sorted(str(file)[len(base) :].lstrip("/") for file in files if str(file).endswith(suffix))

    def sweep(self, *, deep: bool = True) -> None:
        """Remove what a killed process left half-written here (and below); call it while holding the lock."""
        if self.local is not None:
            for file in self.local.rglob(".*.tmp") if deep else self.local.glob(".*.tmp"):
                file.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        with self._errors(""):
            if self.local is not None:
                shutil.rmtree(self.local, ignore_errors=True)
            elif self._fs.exists(self._path):
                self._fs.rm(self._path, recursive=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Wait until no other process of this machine holds the folder (object stores: no lock, equal bytes anyway)."""
        if self.local is None:
            yield
            return
        with self._errors(".lock"):
            self.local.mkdir(parents=True, exist_ok=True)
            file = (self.local / ".lock").open("a")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _name(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise DataError(
                f"{self.root}/{name}: {reason}; free space or rights there, or choose another place"
            ) from None
        except Exception as error:
            if self.local is not None or isinstance(error, DataError):
                raise
            # a cloud's client has its own exceptions; their text may quote the request, so only the kind is told
            raise DataError(
                f"{self.root}: {type(error).__name__} from the storage; check the URL, the network and the credentials"
            ) from None


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
