"""Files that are whole or absent, written atomically; JSON and JSON lines; the seal that vouches
for stored JSON."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fintrader.errors import RunError


@contextlib.contextmanager
def atomic_file(path: Path, *, sync: bool = True, once: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary neighbour of `path` for writing; rename it over `path` once it is whole and
    on disk.

    Readers see the old file or the new one, never a half. The temporary is removed when the body
    raises. Without `sync` the file survives the death of the process but perhaps not that of the
    machine: for files whose hash is checked whenever they are read. With `once` it raises
    FileExistsError where a file stands.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        (os.link if once else os.replace)(
            temporary, path
        )  # unlike a rename, a link fails where a file stands
        if sync:
            sync_folder(path.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def sync_folder(folder: Path) -> None:
    """Make a rename durable: on POSIX the directory entry needs its own fsync."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish(path: Path, data: bytes, *, sync: bool = True) -> bool:
    """Write `path` whole unless it exists; True if this call wrote it. Never a half file, never a
    second version."""
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
    """JSON with sorted keys and no NaN, so that equal values give equal bytes."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON to `path` atomically; NaN raises ValueError (store None instead)."""
    write_text(path, dump_json(value))


def read_json(path: Path) -> Any:
    """Read JSON. Raises RunError naming the file when it is missing or damaged."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise RunError(f"{path} does not exist") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise RunError(
            f"{path} is not valid JSON ({error}); delete it and run the same command again"
        ) from None


SEAL_BYTES = 80
"""More than enough of a sealed file to read its seal."""
_SEAL = re.compile(rb'\{"sha256": "([0-9a-f]{64})", ')


def seal(body: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """`body` as one JSON object that begins with `sha256`, the hash of all that follows; `unseal`
    checks it.

    `body` is not empty and has no `sha256` of its own. NaN raises ValueError.
    """
    rest = (json.dumps(body, sort_keys=True, allow_nan=False, indent=indent)[1:] + "\n").encode()
    return b'{"sha256": "%s", ' % hashlib.sha256(rest).hexdigest().encode() + rest


def seal_of(data: bytes) -> str:
    """The hash that sealed data begins with; `unseal` says whether it is the right one."""
    claimed = _SEAL.match(data)
    return "" if claimed is None else claimed[1].decode()


def unseal(data: bytes, damaged: Exception) -> dict[str, Any]:
    """What `seal` was given. Raises `damaged` when a single bit of it is another."""
    claimed = _SEAL.match(data)
    if claimed is None or hashlib.sha256(data[claimed.end() :]).hexdigest() != claimed[1].decode():
        raise damaged from None
    try:
        body: dict[str, Any] = json.loads(data)
    except (ValueError, RecursionError):
        raise damaged from None
    del body["sha256"]
    return body


_SMALL = 1 << 20
"""Files below so many bytes are hashed in one piece, which is twice as fast: runs have thousands of
them."""


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        start = file.read(_SMALL)
        if len(start) < _SMALL:
            return hashlib.sha256(start).hexdigest()
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def append_jsonl(path: Path, record: dict[str, Any]) -> None:
    """Append one line. A kill can cut a line short: `read_jsonl` drops it, and the next one begins
    anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(record, sort_keys=True, allow_nan=False) + "\n").encode()
    with path.open("ab+") as file:
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            line = b"\n" + line
        file.write(line)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All whole records of a JSON-lines file (none if it does not exist); torn lines are left
    out."""
    return records_in(path.read_bytes()) if path.exists() else []


def records_in(data: bytes) -> list[dict[str, Any]]:
    """The whole records of JSON lines; torn lines are left out."""
    records = []
    for line in data.split(b"\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)
    return records
