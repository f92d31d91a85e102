"""Whole objects below one folder: put, get, create once, list. Local paths, `s3://`, `gs://`,
whatever fsspec reaches.

Everything that runs, markets and bars need of a store is here, and it is little: puts are atomic (a
reader sees a whole object or none), and `create` writes an object only where none stands. The
second is what nothing else can be built from: S3 has `If-None-Match`, Google's storage a
generation, a local disk a hard link.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import fcntl
import hashlib
import io
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

from fintrader.config import check_no_secret, is_url
from fintrader.errors import (
    DataError,
    FintraderError,
    StorageAccessError,
    StorageDamagedError,
    StorageError,
    StorageFullError,
    StorageOfflineError,
    UnsafePathError,
    install_command,
)
from fintrader.files import (
    atomic_file,
    make_folder,
    move,
    open_file,
    publish,
    read_bytes,
    refuse_irregular,
    remove,
    remove_tree,
    unseal,
    write_bytes,
)
from fintrader.storage.outages import under_way

T = TypeVar("T")
R = TypeVar("R")
EXCLUSIVE = frozenset({"file", "memory", "s3", "s3a", "gs", "gcs"})
"""Protocols whose `create` is one atomic operation (of an S3 server that knows `If-None-Match`)."""
PARALLEL = 16
"""Requests under way at once."""
PATIENCE_SECONDS = 30.0
"""How long a store that does not answer is tried again, beyond what its own client does."""
_OFFLINE_WORDS = (
    "connect",
    "timeout",
    "timed out",
    "closed",
    "slowdown",
    "serviceunavailable",
    "requestlimit",
)
_OFFLINE_ERRNO = {
    errno.EIO,
    errno.EBUSY,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    getattr(errno, "EREMOTEIO", errno.EIO),
}
_OFFLINE_ERRNO |= {errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH}
_memory = threading.Lock()


class Objects:
    """Objects below one folder, by relative name. Raises ConfigError for a URL that holds a
    secret."""

    def __init__(self, where: str | Path, *, patience: float | None = None) -> None:
        """`where`: a local path (also as `file:///…`), or a URL that fsspec knows.

        `patience`: seconds for which a store that does not answer is tried again; None:
        `PATIENCE_SECONDS`, or within `outages` as long as that says.
        """
        self.url = check_no_secret(str(where)).rstrip("/") or "/"
        self.patience = patience
        self.protocol = self.url.partition("://")[0] if is_url(self.url) else "file"
        self.exclusive = self.protocol in EXCLUSIVE
        """Whether `create` lets exactly one of several writers win."""
        self.private = self.protocol == "memory"
        """Whether only this process sees the objects."""
        self.local: Path | None = None
        self._seen = False
        """Whether a local folder has been there."""
        self._fs: Any = None
        self._root = ""
        if self.protocol == "file":
            self.local = Path(urlsplit(self.url).path if is_url(self.url) else self.url)
        else:
            self._fs, self._root = file_system(self.url)
            self._root = self._root.rstrip("/")

    def __str__(self) -> str:
        return self.url

    def expect(self) -> None:
        """From now on a local folder that is not there is one that does not answer, not an empty
        one."""
        self._seen = True

    def _look(self) -> None:
        """Raises OSError when a local folder that was there is gone: its disk, not what lay on it;
        nothing is to be written where it was mounted."""
        if self._seen and self.local is not None and not self.local.is_dir():
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), str(self.local))

    def below(self, name: str) -> Objects:
        """The objects below a folder of this one."""
        return Objects(f"{self.url}/{name}", patience=self.patience)

    def get(self, name: str) -> bytes | None:
        """An object's bytes, None when there is none; `""` is the object that the URL itself names.

        Raises StorageError.
        """

        def read() -> bytes | None:
            if self.local is not None:
                return read_bytes(self.local / name)
            # s3fs asks for the size first unless told that one request is enough; files of any size
            # go by `get_file`
            more = {"max_concurrency": 1} if self.protocol in ("s3", "s3a") else {}
            data: bytes = self._fs.cat_file(self._path(name), **more)
            return data

        return self._find(name, read)

    def get_sealed(self, name: str) -> dict[str, Any] | None:
        """What `files.seal` was given, None when there is no such object. Raises
        StorageDamagedError, StorageError."""
        data = self.get(name)
        return None if data is None else unseal(data, self.damaged(name))

    def damaged(self, name: str) -> StorageDamagedError:
        """The error that says that an object is not what it was."""
        return StorageDamagedError(
            f"{self.url}/{name} is not what was stored (half of it, or changed)"
        )

    def put(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Write an object whole, over whatever stood there. Raises StorageError.

        Without `sync` a local file may get lost with the machine (see `files.atomic_file`).
        """

        def write() -> None:
            if self.local is not None:
                write_bytes(self.local / name, data, sync=sync)
            else:
                self._fs.pipe_file(self._target(name), data)

        self._call(name, write)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object where none stands; True if it now holds `data`, False if something else
        stood there.

        An equal object counts as ours: the answer to an earlier, successful try may have been lost
        on the way. Exactly one of several writers of different data gets True where `exclusive`
        holds.
        """

        def write() -> bool:
            if self.local is not None:
                return publish(self.local / name, data)
            path = self._target(name)
            if self.private:
                with _memory:
                    if self._fs.exists(path):
                        return False
                    self._fs.pipe_file(path, data)
                return True
            if not self.exclusive and self._fs.exists(path):
                return False
            try:
                self._fs.pipe_file(path, data, **({"mode": "create"} if self.exclusive else {}))
            except FileExistsError:
                return False
            return True

        return self._call(name, write) or self.get(name) == data

    def exists(self, name: str) -> bool:
        """Whether the object is there."""

        def look() -> bool:
            if self.local is not None:
                return (self.local / name).is_file()
            self._fs.invalidate_cache()
            return bool(self._fs.info(self._path(name))["type"] == "file")

        return self._find(name, look) or False

    def remove(self, *names: str) -> None:
        """Remove objects; those that are not there count as removed."""

        def unlink(name: str) -> None:
            if self.local is not None:
                remove(self.local / name)
                return
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

        for name in names:
            self._call(name, lambda name=name: unlink(name))  # type: ignore[misc]

    def clear(self) -> None:
        """Remove all objects, and a local folder with them."""
        if self.local is not None:
            remove_tree(self.local)
            self._seen = False
        else:
            self.remove(*self.names())

    def put_file(self, name: str, path: Path) -> None:
        """Write a file of any size as an object. Raises StorageError."""

        def copy() -> None:
            if self.local is None:
                self._fs.put_file(str(path), self._target(name))
                return
            with open_file(path) as source, atomic_file(self.local / name) as target:
                shutil.copyfileobj(source, target, 1 << 20)

        self._call(name, copy)

    def get_file(self, name: str, path: Path, sha256: str) -> bool:
        """Write an object of any size to `path`, atomically and only if its content is what
        `sha256` says.

        False if there is none. Raises StorageDamagedError when the content is another,
        StorageError.
        """
        refuse_irregular(path)
        make_folder(path.parent)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
        try:

            def copy() -> bool:
                if self.local is not None:
                    refuse_irregular(self.local / name)
                    shutil.copyfile(self.local / name, temporary)
                elif self.private:  # fsspec's one file object has one position for all its readers
                    temporary.write_bytes(self._fs.cat_file(self._path(name)))
                else:
                    self._fs.get_file(self._path(name), str(temporary))
                return True

            if self._find(name, copy) is None:
                return False
            with temporary.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != sha256:
                raise self.damaged(name)
            move(temporary, path)
            return True
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFullError(
                    f"{path.parent}: the disk is full; free some space and try again"
                ) from None
            raise
        finally:
            temporary.unlink(missing_ok=True)

    def names(self, below: str = "") -> list[str]:
        """Names of all objects whose path begins with the folder `below`, sorted."""

        def find() -> list[str]:
            top = f"{self._root}/{below}".rstrip("/")
            if self.local is not None:
                home = self.local / below
                files = home.rglob("*") if home.is_dir() else iter(())
                return [str(file.relative_to(self.local)) for file in files if file.is_file()]
            self._fs.invalidate_cache()
            return [str(file)[len(self._root) :].lstrip("/") for file in self._fs.find(top)]

        found = self._find(below, find) or []
        return sorted(
            name for name in found if name and not PurePosixPath(name).name.startswith(".")
        )

    def folders(self) -> list[str]:
        """Names of the folders directly below, sorted."""

        def look() -> list[str]:
            if self.local is not None:
                return [entry.name for entry in self.local.iterdir() if entry.is_dir()]
            self._fs.invalidate_cache()
            found = self._fs.ls(self._root, detail=True)
            return [
                PurePosixPath(entry["name"]).name for entry in found if entry["type"] == "directory"
            ]

        return sorted(self._find("", look) or [])

    def gather(self, call: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """`call` of every item, several at once; the first error is raised."""
        todo: Sequence[T] = list(items)
        if len(todo) < 2:
            return [call(item) for item in todo]
        with ThreadPoolExecutor(max_workers=min(PARALLEL, len(todo))) as pool:
            return list(pool.map(call, todo))

    def reach(self) -> None:
        """Make sure that there is something to talk to. Raises StorageError: no bucket, no right,
        no answer."""

        def look() -> None:
            if self.local is not None:
                make_folder(self.local)
            elif not self.private:
                self._fs.invalidate_cache()
                self._fs.ls(self._root)

        self._find("", look)  # an empty folder of a bucket is as good as none

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Wait until no other process of this machine holds the folder (no lock where it is no
        local one)."""
        home = self.local
        if home is None:
            yield
            return

        def open_lock() -> BinaryIO:
            make_folder(home)
            return open_file(home / ".lock", "ab")

        with self._call("", open_lock) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def sweep(self, *, deep: bool = True) -> None:
        """Remove what a killed process left half-written here (and below); call it while holding
        the lock."""
        if self.local is not None:
            for file in self.local.rglob(".*.tmp") if deep else self.local.glob(".*.tmp"):
                remove(file)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _target(self, name: str) -> str:
        """Where to write an object; file servers need its folder first, object stores know none."""
        path = self._path(name)
        if not self.exclusive:
            self._fs.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        return path

    def _find(self, name: str, call: Callable[[], R]) -> R | None:
        """Do it; None where there is no such object."""
        try:
            return self._call(name, call)
        except FileNotFoundError:
            return None

    def _call(self, name: str, call: Callable[[], R]) -> R:
        """Do it; what the network swallowed is tried again for a while. FileNotFoundError passes
        through."""
        began = time.monotonic()
        pause = 0.1
        while True:
            try:
                self._look()
                answer = call()
                self._seen = self._seen or (self.local is not None and self.local.is_dir())
                return answer
            except FintraderError:
                raise
            except Exception as error:
                if isinstance(error, FileNotFoundError) and not _is_missing_bucket(error):
                    raise
                problem = self._problem(name, error)
                if (
                    not isinstance(problem, StorageOfflineError)
                    or time.monotonic() + pause > began + self._patient()
                ):
                    raise problem from None
            for outage in under_way():
                outage.waiting(problem)
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _patient(self) -> float:
        """Seconds for which to try again, as it is now: who leaves `outages` waits no longer."""
        if self.patience is not None:
            return self.patience
        return max((outage.seconds for outage in under_way()), default=PATIENCE_SECONDS)

    def _problem(self, name: str, error: Exception) -> StorageError:
        """The typed error to raise. A client's own text may quote the request, so only its kind is
        shown."""
        kind = type(error).__name__
        code = getattr(error, "errno", None)
        where = f"{self.url}/{name}" if name else self.url
        if isinstance(error, OSError) and code in (errno.ENOSPC, errno.EDQUOT):
            return StorageFullError(
                f"{where}: the store is full; free some space and run the same command again"
            )
        if isinstance(error, FileNotFoundError):
            return StorageAccessError(
                f"{where}: there is no such bucket; create it, or mend the URL"
            )
        if isinstance(error, PermissionError) and self.local is None:
            return StorageAccessError(
                f"{where}: access denied; check the credentials' rights on this bucket and path"
            )
        if "Credential" in kind or "Token" in kind:
            return StorageAccessError(
                f"{where}: no credentials ({kind}); set them in the environment "
                "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS)"
            )
        offline = isinstance(error, ConnectionError | TimeoutError) or code in _OFFLINE_ERRNO
        words = f"{kind} {error}".lower()
        if offline or (self.local is None and any(word in words for word in _OFFLINE_WORDS)):
            return StorageOfflineError(
                f"{where}: the store does not answer ({kind}); check the network and the URL"
            )
        if isinstance(error, OSError) and self.local is not None:
            return StorageAccessError(
                f"{where}: {error.strerror or kind}; check the path and its rights"
            )
        return StorageError(
            f"{where}: {kind} from the storage; check the URL, the network and the credentials"
        )


def _is_missing_bucket(error: Exception) -> bool:
    answer = getattr(error.__cause__, "response", None) or {}
    return (
        answer.get("Error", {}).get("Code") == "NoSuchBucket"
        or "bucket does not exist" in str(error).lower()
    )


_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL and the path within it. Raises StorageError saying what to
    install or set."""
    import fsspec  # type: ignore[import-untyped]

    protocol = url.partition("://")[0]
    try:
        options = {} if protocol == "memory" else {"use_listings_cache": False}
        fs, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        if protocol in _EXTRAS:
            raise StorageError(
                f"{url}: it needs another package: {install_command(_EXTRAS[protocol])}"
            ) from None
        raise StorageError(f"{url}: {error}; install the package it names") from None
    except ValueError as error:
        raise StorageError(f"{url}: {error}") from None
    return fs, str(path)


def read_whole(path: str, setting: str) -> bytes:
    """A small file's bytes, by local path or URL. Raises DataError naming the setting when there is
    none to read."""
    try:
        data = Objects(path).get("")
    except (StorageError, UnsafePathError) as error:
        raise DataError(f"{error}; see {setting}") from None
    if data is None:
        raise DataError(f"{path}: no such file; see {setting}")
    return data


def read_csv(path: str, setting: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and row of a small CSV file with a header. Raises DataError when it cannot be
    read."""
    try:
        text = read_whole(path, setting).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path}: cannot be read (no UTF-8 text); see {setting}") from None
    yield from enumerate(csv.DictReader(io.StringIO(text, newline="")), start=2)
