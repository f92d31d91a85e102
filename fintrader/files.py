"""Files that are whole or absent, written atomically; JSON and JSON lines; the seal of stored JSON.

Everything here that opens, makes, renames or deletes something refuses to do so through a symbolic
link that lies inside a run's folder: such a link may lead into another run. A run's folder itself,
and what lies above it, may be links. Pipes, sockets and devices are refused in a file's place, so
that nothing waits for them.
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
    """True of the folder of a run or of a tournament, by files that other folders do not have."""

    def has(name: str) -> bool:
        return os.path.lexists(os.path.join(folder, name))

    return (
        has("tournament.json") or has(".tournament.lock") or (has("manifest.json") and has(".lock"))
    )


def _is_inside_run(path: Path | str) -> bool:
    above = os.path.realpath(os.path.dirname(path))
    while not is_run_folder(above):
        if above == os.path.dirname(above):
            return False
        above = os.path.dirname(above)
    return True


def refuse_link(path: Path | str) -> None:
    """Raise UnsafePathError where `path` is or passes a symbolic link inside a run's folder."""
    place = os.fspath(path)
    while place != os.path.dirname(place):
        if os.path.islink(place) and _is_inside_run(place):
            raise UnsafePathError(
                f"{place} is a symbolic link inside a run's folder, where none is followed; "
                "remove it (what it leads to stays), or move what it leads to into its place"
            )
        place = os.path.dirname(place)


def refuse_irregular(path: Path | str) -> None:
    """Raise UnsafePathError where `refuse_link` does, and where `path` is something else than a
    file.

    A folder is refused inside a run's folder only: elsewhere the system's own error says all.
    """
    refuse_link(path)
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # not there, or not to be looked at: whoever opens it says why
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "device")
        ours = _is_inside_run(path)
        if kind == "folder" and not ours:
            return  # whoever opens it gets an OSError
        mend = _REMOVE if ours else "name a regular file instead"
        raise UnsafePathError(f"{path} is a {kind} where a file belongs; {mend}")


def refuse_second_name(path: Path | str) -> None:
    """Raise UnsafePathError where a file inside a run's folder has another name as well (a hard
    link).

    For files that are changed in place: the change would show under the other name, too, which may
    be another run's.
    """
    with contextlib.suppress(FileNotFoundError):
        if os.lstat(path).st_nlink > 1 and _is_inside_run(path):
            raise UnsafePathError(
                f"{path} has another name elsewhere (a hard link), so that writing here would"
                f" change that, too; put a copy into its place: cp -p '{path}' '{path}.copy' && mv"
                f" '{path}.copy' '{path}'"
            )


def refuse_unsafe_database(path: Path | str, *, writes: bool) -> None:
    """Raise UnsafePathError where SQLite would follow a link inside a run, or wait for a pipe.

    SQLite has no such guard: it opens whatever stands under the database's name and the three names
    beside it.
    """
    for ending in ("", "-wal", "-shm", "-journal"):
        refuse_irregular(f"{path}{ending}")
        if writes:
            refuse_second_name(f"{path}{ending}")


def open_file(path: Path, mode: Literal["rb", "rb+", "ab", "ab+"] = "rb") -> BinaryIO:
    """Open a regular file; `refuse_irregular` says what is refused. OSError as from `open`."""
    refuse_irregular(path)
    return path.open(mode)


def read_bytes(path: Path) -> bytes:
    """Read a regular file (see `open_file`)."""
    with open_file(path) as file:
        return file.read()


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, through no link inside a run's folder."""
    refuse_link(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        if not _is_inside_run(folder):
            strerror = os.strerror(errno.ENOTDIR)
            raise NotADirectoryError(errno.ENOTDIR, strerror, str(folder)) from None
        raise UnsafePathError(
            f"{error.filename} is no folder, and one belongs there; {_REMOVE}"
        ) from None


def move(path: Path, target: Path) -> None:
    """Rename over whatever stands at `target`. A link is renamed itself; none inside a run is
    passed."""
    refuse_link(path.parent)
    refuse_link(target.parent)
    os.replace(path, target)


def remove(path: Path) -> None:
    """Delete a file if it is there. A link is deleted itself; none inside a run is passed."""
    refuse_link(path.parent)
    path.unlink(missing_ok=True)


def remove_tree(folder: Path) -> None:
    """Delete a folder as far as possible; of links, in it or in its place, not what they lead
    to."""
    refuse_link(folder.parent)
    if folder.is_symlink():
        folder.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def atomic_file(path: Path, *, sync: bool = True, once: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary neighbour of `path` for writing; rename it over `path` once it is whole and
    on disk.

    Readers see the old file or the new one, never a half. The temporary is removed when the body
    raises. Without `sync` the file survives the death of the process but perhaps not that of the
    machine: for files whose hash is checked whenever they are read. With `once` it raises
    FileExistsError where a file stands.

    Raises UnsafePathError where something else than a file stands, or a link inside a run's folder.
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
        (os.link if once else os.replace)(
            temporary, path
        )  # unlike a rename, a link fails where a file stands
        if sync:
            system.sync(path.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def publish(path: Path, data: bytes, *, sync: bool = True) -> bool:
    """Write `path` whole unless it exists; True if this call wrote it. Never a half file, never a
    second version."""
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
    """JSON with sorted keys and no NaN, so that equal values give equal bytes."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON to `path` atomically; NaN raises ValueError (store None instead)."""
    write_text(path, dump_json(value))


def read_json(path: Path) -> Any:
    """Read JSON. Raises RunError naming the file when it is missing or damaged."""
    try:
        return json.loads(read_bytes(path).decode())
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
    refuse_irregular(path)
    with path.open("rb") as file:
        start = file.read(_SMALL)
        if len(start) < _SMALL:
            return hashlib.sha256(start).hexdigest()
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def append_jsonl(path: Path, record: dict[str, Any]) -> None:
    """Append one line. A kill can cut a line short: `read_jsonl` drops it, and the next one begins
    anew."""
    make_folder(path.parent)
    line = (json.dumps(record, sort_keys=True, allow_nan=False) + "\n").encode()
    with open_file(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line
        file.write(line)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All whole records of a JSON-lines file (none if it does not exist); torn lines are left
    out."""
    refuse_link(path)
    return records_in(read_bytes(path)) if path.exists() else []


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
