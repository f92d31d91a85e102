"""Atomic files, JSON, JSON lines, and the seal of stored JSON.

All functions that open, create, rename or delete refuse to follow a symbolic link inside a run's
folder, since it may lead into another run. The folder itself and those above it may be links.
Pipes, sockets and devices are refused in a file's place, because opening them could wait for ever.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

from fintrader import system
from fintrader.errors import RunError, UnsafePathError

_REMOVE = "remove it, and run the same command again"
_KINDS = ((stat.S_ISDIR, "folder"), (stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"))


def is_run_folder(folder: Path | str) -> bool:
    """Check by its files that a folder is a run's or a tournament's."""

    def has(name: str) -> bool:
        return os.path.lexists(os.path.join(folder, name))

    return (
        has("tournament.json") or has(".tournament.lock") or (has("manifest.json") and has(".lock"))
    )


def _is_inside_run(path: Path | str) -> bool:
    above = Path(os.path.realpath(os.path.dirname(path)))
    return any(map(is_run_folder, (above, *above.parents)))


def refuse_link(path: Path | str) -> None:
    """Raise UnsafePathError if `path` is or passes a symbolic link inside a run's folder."""
    place = os.fspath(path)
    while place != os.path.dirname(place):
        if os.path.islink(place) and _is_inside_run(place):
            raise UnsafePathError(
                f"{place} is a symbolic link inside a run's folder, where links are not followed; "
                "remove the link (its target stays), or move its target into its place"
            )
        place = os.path.dirname(place)


def refuse_irregular(path: Path | str) -> None:
    """Raise UnsafePathError if `refuse_link` does, or `path` is not a regular file.

    A folder is refused only inside a run's folder: elsewhere the system's own error is clear.
    """
    refuse_link(path)
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # missing or not readable: opening it raises the system's error
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "device")
        is_inside = _is_inside_run(path)
        if kind == "folder" and not is_inside:
            return
        remedy = _REMOVE if is_inside else "name a regular file instead"
        raise UnsafePathError(f"{path} is a {kind} where a file belongs; {remedy}")


def refuse_second_name(path: Path | str) -> None:
    """Raise UnsafePathError where a file inside a run's folder has a second name (a hard link).

    For files that are changed in place: the change would reach the second name, which may belong to
    another run.
    """
    with contextlib.suppress(FileNotFoundError):
        if os.lstat(path).st_nlink > 1 and _is_inside_run(path):
            raise UnsafePathError(
                f"{path} has a second name (a hard link), whose content a write would change;"
                f" replace it by a copy: cp -p '{path}' '{path}.copy' && mv '{path}.copy' '{path}'"
            )


def refuse_unsafe_database(path: Path | str, *, writes: bool) -> None:
    """Raise UnsafePathError where SQLite would follow a link inside a run, or wait for a pipe.

    SQLite itself checks neither the database nor its three companion files.
    """
    for ending in ("", "-wal", "-shm", "-journal"):
        refuse_irregular(f"{path}{ending}")
        if writes:
            refuse_second_name(f"{path}{ending}")


def open_file(path: Path, mode: Literal["rb", "rb+", "ab", "ab+"] = "rb") -> BinaryIO:
    """Open a regular file. Raises UnsafePathError as `refuse_irregular` does, OSError as `open`."""
    refuse_irregular(path)
    return path.open(mode)


def read_bytes(path: Path) -> bytes:
    """Read a regular file. Raises the errors of `open_file`."""
    with open_file(path) as file:
        return file.read()


def make_folder(folder: Path) -> None:
    """Create a folder and its parents. Raises UnsafePathError for a link inside a run's folder."""
    refuse_link(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        if not _is_inside_run(folder):
            strerror = os.strerror(errno.ENOTDIR)
            raise NotADirectoryError(errno.ENOTDIR, strerror, str(folder)) from None
        raise UnsafePathError(
            f"{error.filename} is not a folder, but a folder belongs there; {_REMOVE}"
        ) from None


def move(path: Path, target: Path) -> None:
    """Rename `path`, replacing `target`. A link at `path` is renamed itself; a link above either,
    inside a run, is refused."""
    refuse_link(path.parent)
    refuse_link(target.parent)
    os.replace(path, target)


def remove(path: Path) -> None:
    """Delete a file if it exists. A link is deleted itself; a link above it, inside a run, is
    refused."""
    refuse_link(path.parent)
    path.unlink(missing_ok=True)


def remove_tree(folder: Path) -> None:
    """Delete a folder as far as possible. Links are deleted, their targets stay."""
    refuse_link(folder.parent)
    if folder.is_symlink():
        folder.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def refuse_foreign(folder: Path, mark: str) -> None:
    """Raise UnsafePathError for a folder that no export made: one without the file `mark`."""
    if folder.exists() and not (folder / mark).is_file():
        raise UnsafePathError(f"{folder} exists and is no export of a run; choose another --out")


@contextlib.contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to fill, which replaces `folder` if the block raises nothing."""
    make_folder(folder.parent)
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        yield new
        new.chmod(0o755)
        old = new.with_name(new.name + ".old")
        if folder.exists():
            move(folder, old)
        move(new, folder)
        remove_tree(old)
    finally:
        remove_tree(new)


@contextlib.contextmanager
def atomic_file(path: Path, *, sync: bool = True, once: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file next to `path` for writing; rename it to `path` once it is complete and
    on disk.

    Readers see the old file or the new one, never a part. The temporary file is removed when the
    body raises. Without `sync` the file survives a kill but perhaps not a power cut: for files
    whose hash is checked at every reading. With `once` an existing file raises FileExistsError.

    Raises UnsafePathError as `refuse_irregular` does.
    """
    refuse_irregular(path)
    make_folder(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        put_in_place = os.link if once else os.replace  # a hard link fails where a file exists
        put_in_place(temporary, path)
        if sync:
            system.sync(path.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def publish(path: Path, data: bytes, *, sync: bool = True) -> bool:
    """Write `path` atomically unless it exists; True if this call wrote it."""
    refuse_irregular(path)
    if path.exists():
        return False
    try:
        with atomic_file(path, sync=sync, once=True) as file:
            file.write(data)
    except FileExistsError:
        return False
    return True


def write_bytes(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write `data` to `path` atomically (`sync`: see `atomic_file`)."""
    with atomic_file(path, sync=sync) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 `text` to `path` atomically."""
    write_bytes(path, text.encode())


def dump_json(value: Any) -> str:
    """Write a value as JSON with sorted keys and no NaN: equal values give equal bytes."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON to `path` atomically. Raises ValueError for NaN; store None instead."""
    write_text(path, dump_json(value))


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises RunError, which names the file, when it is missing or damaged."""
    try:
        return json.loads(read_bytes(path).decode())
    except FileNotFoundError:
        raise RunError(f"{path} does not exist") from None
    except (ValueError, RecursionError) as error:
        raise RunError(
            f"{path} is not valid JSON ({error}); delete it and run the same command again"
        ) from None


SEAL_BYTES = 80
"""Bytes at the start of a sealed file that hold its seal."""
_SEAL = re.compile(rb'\{"sha256": "([0-9a-f]{64})", ')


def seal(body: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """Write `body` as one JSON object that begins with `sha256`, the hash of all that follows;
    `unseal` checks it.

    `body` is not empty and has no key `sha256`. Raises ValueError for NaN.
    """
    rest = (json.dumps(body, sort_keys=True, allow_nan=False, indent=indent)[1:] + "\n").encode()
    return b'{"sha256": "%s", ' % hash_bytes(rest).encode() + rest


def find_seal(data: bytes) -> str:
    """Read the hash at the start of sealed data without checking it; empty for unsealed data."""
    claimed = _SEAL.match(data)
    return "" if claimed is None else claimed[1].decode()


def unseal(data: bytes, damaged: Exception) -> dict[str, Any]:
    """Read sealed data back. Raises `damaged` when its hash does not match."""
    claimed = _SEAL.match(data)
    if claimed is None or hash_bytes(data[claimed.end() :]) != claimed[1].decode():
        raise damaged from None
    try:
        body: dict[str, Any] = json.loads(data)
    except (ValueError, RecursionError):
        raise damaged from None
    del body["sha256"]
    return body


_SMALL = 1 << 20
"""Files below this many bytes are hashed in one piece, twice as fast; runs have thousands of
them."""


def hash_bytes(data: bytes) -> str:
    """SHA-256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    refuse_irregular(path)
    with path.open("rb") as file:
        start = file.read(_SMALL)
        if len(start) < _SMALL:
            return hash_bytes(start)
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def append_jsonl(path: Path, record: dict[str, Any]) -> None:
    """Append a record as one line, on a new line if a kill cut the last one short."""
    make_folder(path.parent)
    line = (json.dumps(record, sort_keys=True, allow_nan=False) + "\n").encode()
    with open_file(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line
        file.write(line)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read the complete records of a JSON-lines file; none if it does not exist."""
    refuse_link(path)
    return parse_jsonl(read_bytes(path)) if path.exists() else []


def parse_jsonl(data: bytes) -> list[dict[str, Any]]:
    """Parse JSON lines, without incomplete ones."""
    records = []
    for line in data.split(b"\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)
    return records
