"""Checked reading of stored runs: no file outside a run's folder is read.

A name from the URL, from a file's contents or from a directory listing is never trusted: it must be
one plain path component, no part of a path may be a symbolic link, and every opened file must be a
regular one of bounded size.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from fintrader import system
from fintrader.errors import FintraderError, RunError, UnsafePathError
from fintrader.files import parse_jsonl, refuse_link
from fintrader.records import RecordError, abbreviate, from_json
from fintrader.runs import RunFolder

T = TypeVar("T")

COPY_MARK = ".store.json"
"""File that marks a run's folder as a copy of one in a store, which may hold snapshots and policies
that the copy lacks."""
MAX_JSON_BYTES = 32 << 20
MAX_TEXT_BYTES = 1 << 20
MAX_LOG_BYTES = 64 << 20


class NotThereError(RunError):
    """A file is missing: the run has not written it yet, or never will."""


class DamagedFileError(RunError):
    """A file is there, but its content is wrong."""


class ChangedFileError(RunError):
    """Files were rewritten while they were being read; open the run again."""


_NEVER_IN_A_NAME = re.compile(r"[\x00-\x1f\x7f/\\\ud800-\udfff]")

Signature = tuple[int, int, int]
"""Inode, size and modification time (ns): equal signatures mean an unchanged file."""


class FileCache:
    """Cache of values made from files, valid while the files are unchanged; the least recently used
    value is dropped first."""

    def __init__(self, **most: int) -> None:
        """`most`: largest number of values of each kind."""
        self._most = most
        self._entries: dict[str, OrderedDict[Hashable, tuple[Hashable, Any]]] = {
            kind: OrderedDict() for kind in most
        }
        self._lock = threading.Lock()

    def get(
        self, kind: str, key: Hashable, state: Hashable, make: Callable[[tuple[Any, Any] | None], T]
    ) -> T:
        """Return the cached value of `key` if its files are still in this `state` (their
        signatures); otherwise make it by `make(before)`.

        `before`: the last state and value, from which `make` may continue. Two threads may both
        make the value.
        """
        entries = self._entries[kind]
        with self._lock:
            before = entries.get(key)
            if before is not None and before[0] == state:
                entries.move_to_end(key)
                cached: T = before[1]
                return cached
        value = make(before)
        with self._lock:
            entries[key] = state, value
            entries.move_to_end(key)
            while len(entries) > self._most[kind]:
                entries.popitem(last=False)
        return value


def component(name: object) -> str:
    """Return `name` if it is one plain path component. Raises UnsafePathError otherwise."""
    if not isinstance(name, str) or not name or name in {".", ".."}:
        raise UnsafePathError(f"{abbreviate(name)} is no file name")
    if _NEVER_IN_A_NAME.search(name):
        raise UnsafePathError(
            f"{abbreviate(name)} holds a character that no file of a run has in its name"
        )
    if len(name.encode()) > 200:
        raise UnsafePathError(f"{abbreviate(name)} is too long for a file name")
    return name


@contextlib.contextmanager
def _naming(parts: Sequence[str]) -> Iterator[None]:
    """Convert the system's errors to ours, which name the file."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise NotThereError(f"{'/'.join(parts)} is not there") from None
    except OSError as error:
        raise DamagedFileError(f"{'/'.join(parts)} cannot be read ({error.strerror})") from None


def _link_error(parts: Sequence[str]) -> UnsafePathError:
    return UnsafePathError(f"{'/'.join(parts)} is or passes a symbolic link, which is refused")


@dataclass(frozen=True)
class Folder:
    """A folder whose files may be read; nothing below it may lead out of it."""

    root: Path
    """Absolute and without symbolic links."""

    @classmethod
    def locate(cls, path: Path | str) -> Folder:
        """Resolve the links that lead to a folder. Raises UnsafePathError for a link inside a
        run."""
        refuse_link(path)
        return cls(Path(path).resolve())

    def path(self, *parts: str) -> Path:
        """Return a path below the folder, which need not exist. Raises UnsafePathError for a path
        that leads out."""
        return Path(self._inside(*parts))

    def _inside(self, *parts: str) -> str:
        path = str(self.root)  # a str, because a list of a thousand runs needs ten thousand paths
        for part in parts:
            path = f"{path}/{component(part)}"
            if os.path.islink(path):
                raise _link_error(parts)
        return path

    def exists(self, *parts: str) -> bool:
        return os.path.exists(self._inside(*parts))

    def signature(self, *parts: str) -> Signature:
        """Return values that change with the file. Raises NotThereError where it is missing."""
        path = "/".join([self._inside(*parts[:-1]), *map(component, parts[-1:])])
        with _naming(parts):
            state = os.lstat(path)
        if stat.S_ISLNK(state.st_mode):
            raise _link_error(parts)
        if not stat.S_ISREG(state.st_mode):
            raise DamagedFileError(f"{'/'.join(parts)} is no regular file")
        return state.st_ino, state.st_size, state.st_mtime_ns

    def open(self, *parts: str) -> BufferedReader:
        """Open a regular file for reading; never a link, a pipe or a device.

        Raises NotThereError, DamagedFileError or UnsafePathError.
        """
        path = self._inside(*parts)
        with _naming(parts):
            handle = system.open_plain(path)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise DamagedFileError(f"{'/'.join(parts)} is no regular file")
        return os.fdopen(handle, "rb")

    def read(self, *parts: str, limit: int = MAX_TEXT_BYTES) -> bytes:
        """A file's bytes. Raises DamagedFileError when it holds more than `limit`."""
        with self.open(*parts) as file:
            data = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
        if len(data) > limit:
            raise DamagedFileError(
                f"{'/'.join(parts)} holds more than {limit >> 20} MiB, too much to read"
            )
        return data

    def tail(self, *parts: str, limit: int) -> bytes:
        """The last `limit` bytes of a file."""
        with self.open(*parts) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            return file.read(limit)

    def text(self, *parts: str, limit: int = MAX_TEXT_BYTES) -> str:
        """Read a text file. Raises DamagedFileError if it is not UTF-8."""
        try:
            return self.read(*parts, limit=limit).decode()
        except UnicodeDecodeError:
            raise DamagedFileError(f"{'/'.join(parts)} is not UTF-8 text") from None

    def any_json(self, *parts: str) -> Any:
        """A JSON value. Raises DamagedFileError for anything else."""
        try:
            return json.loads(self.text(*parts, limit=MAX_JSON_BYTES))
        except (ValueError, RecursionError):
            raise DamagedFileError(
                f"{'/'.join(parts)} is not valid JSON; delete it and run again"
            ) from None

    def json(self, *parts: str) -> dict[str, Any]:
        """A JSON object. Raises DamagedFileError for anything else."""
        value = self.any_json(*parts)
        if not isinstance(value, dict):
            raise DamagedFileError(
                f"{'/'.join(parts)} holds {type(value).__name__}, expected an object"
            )
        return value

    def record(self, kind: type[T], *parts: str) -> T:
        """Read a stored record. Raises DamagedFileError, which names the wrong field."""
        try:
            return from_json(kind, self.any_json(*parts))
        except RecordError as error:
            raise DamagedFileError(
                f"{'/'.join(parts)}: {error}; it was changed, or written by another version: make"
                " it again"
            ) from None

    def jsonl(self, *parts: str) -> list[dict[str, Any]]:
        """Read the complete records in the last MAX_LOG_BYTES of a JSON-lines file; torn lines are
        left out."""
        return parse_jsonl(self.tail(*parts, limit=MAX_LOG_BYTES))

    def folders(self, *parts: str) -> list[str]:
        """Names of the folders inside, sorted; links are left out."""
        try:
            with os.scandir(self.path(*parts)) as entries:
                return sorted(
                    entry.name for entry in entries if entry.is_dir(follow_symlinks=False)
                )
        except OSError:
            return []


class RunsFolder(Folder):
    """The folder that holds all runs."""

    @classmethod
    def at(cls, path: Path | str) -> RunsFolder:
        """The runs folder at `path`, which need not exist yet."""
        return cls(Path(path).resolve())

    def names(self) -> list[str]:
        """Folder names that are valid names of runs, sorted."""
        return [name for name in self.folders() if _plain(name)]

    def all(self) -> list[Folder]:
        """List every folder with a valid name, from one listing, without further checks."""
        return [Folder(self.root / name) for name in self.names()]

    def run(self, name: object) -> Folder:
        """The folder of the run called `name`. Raises UnsafePathError or NotThereError."""
        text = component(name)
        if not _plain(text):
            raise UnsafePathError(
                f"{abbreviate(text)} is not a run's name; use letters, digits, '.', '_' and '-'"
            )
        path = self.path(text)
        if not path.is_dir():
            raise NotThereError(f"there is no run called {text!r}; the Runs page lists all runs")
        return Folder(path)


@lru_cache(maxsize=4096)
def _plain(name: str) -> bool:
    try:
        RunFolder.named(name, Path())
    except FintraderError:
        return False
    return True


def is_locked(folder: Folder) -> bool:
    """Check that a living process holds the run; the kernel drops the lock of a dead one.

    For a copy of a run in a store: check that the run was held there a minute ago or less.
    """
    with contextlib.suppress(RunError):
        if time.time() - folder.signature(".held")[2] / 1e9 < 60.0:
            return True
    return is_file_locked(folder, ".lock")


def is_file_locked(folder: Folder, *parts: str) -> bool:
    """Check that a living process holds the lock of a file in a folder."""
    try:
        with folder.open(*parts) as file:
            return system.is_locked(file)
    except (RunError, OSError):
        return False
