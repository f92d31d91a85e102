"""Whole objects below one folder: put, get, create once, list; on local paths, `s3://`, `gs://` and
all other stores that fsspec reaches.

Runs, markets and bars need two guarantees of a store: a put is atomic (a reader sees a whole object
or none), and `create` writes an object only where none exists. For the second guarantee S3 offers
`If-None-Match`, Google's storage a generation, a local disk a hard link.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
    hash_file,
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
from fintrader.storage.outages import list_budgets
from fintrader.system import wait_for_lock

T = TypeVar("T")
R = TypeVar("R")
EXCLUSIVE = frozenset({"file", "memory", "s3", "s3a", "gs", "gcs"})
"""Protocols whose `create` is one atomic operation (on S3, if the server knows `If-None-Match`)."""
PARALLEL = 16
"""Largest number of requests at once."""
PATIENCE_SECONDS = 30.0
"""Seconds for which an unreachable store is retried, on top of its client's own retries."""
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


class ObjectStore:
    """The objects below one folder, by relative name. Raises ConfigError for a URL that holds a
    secret."""

    def __init__(self, where: str | Path, *, patience: float | None = None) -> None:
        """Open the folder `where`: a local path (also as `file:///…`), or a URL that fsspec knows.

        `patience`: seconds for which an unreachable store is retried; None: `PATIENCE_SECONDS`, or
        the budget of the enclosing `allow_outages` block.
        """
        self.url = check_no_secret(str(where)).rstrip("/") or "/"
        self.patience = patience
        self.protocol = self.url.partition("://")[0] if is_url(self.url) else "file"
        self.is_exclusive = self.protocol in EXCLUSIVE
        """True if `create` lets exactly one of several writers win."""
        self.is_private = self.protocol == "memory"
        """True if only this process sees the objects."""
        self.local: Path | None = None
        self._was_there = False
        """True once a local folder has been seen."""
        self._fs: Any = None
        self._root = ""
        if self.protocol == "file":
            self.local = Path(urlsplit(self.url).path if is_url(self.url) else self.url)
        else:
            self._fs, self._root = open_file_system(self.url)
            self._root = self._root.rstrip("/")

    def __str__(self) -> str:
        return self.url

    def expect_folder(self) -> None:
        """From now on treat a missing local folder as an unreachable store, not as an empty one."""
        self._was_there = True

    def _check_mounted(self) -> None:
        """Raise OSError when a local folder has vanished: its disk was unmounted, and a write would
        land in the empty mount point."""
        if self._was_there and self.local is not None and not self.local.is_dir():
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), str(self.local))

    def open_below(self, name: str) -> ObjectStore:
        """Open a folder below this one as a store."""
        return ObjectStore(f"{self.url}/{name}", patience=self.patience)

    def get(self, name: str) -> bytes | None:
        """Read an object; None when it does not exist. The name `""` means the object at the URL
        itself.

        Raises StorageError.
        """

        def read() -> bytes | None:
            if self.local is not None:
                return read_bytes(self.local / name)
            # With more than one request s3fs asks for the size first. Large files use `get_file`.
            more = {"max_concurrency": 1} if self.protocol in ("s3", "s3a") else {}
            data: bytes = self._fs.cat_file(self._path(name), **more)
            return data

        return self._find_or_none(name, read)

    def read_sealed(self, name: str) -> dict[str, Any] | None:
        """Read the dictionary that `files.seal` sealed; None when the object does not exist. Raises
        StorageDamagedError, StorageError."""
        data = self.get(name)
        return None if data is None else unseal(data, self.build_damage_error(name))

    def build_damage_error(self, name: str) -> StorageDamagedError:
        """Build the error for an object whose content has changed."""
        return StorageDamagedError(
            f"{self.url}/{name} was truncated or changed after it was stored"
        )

    def put(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Write an object atomically, replacing any earlier one. Raises StorageError.

        Without `sync` a local file may be lost in a power cut (see `files.atomic_file`).
        """

        def write() -> None:
            if self.local is not None:
                write_bytes(self.local / name, data, sync=sync)
            else:
                self._fs.pipe_file(self._prepare_path(name), data)

        self._call(name, write)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless it exists; True if it now holds `data`, False if it held other
        data before.

        An equal object counts as written, since the answer to an earlier, successful try may have
        been lost. With `is_exclusive` exactly one of several writers of different data gets True.
        """

        def write() -> bool:
            if self.local is not None:
                return publish(self.local / name, data)
            path = self._prepare_path(name)
            has_condition = self.is_exclusive and not self.is_private
            with _memory if self.is_private else contextlib.nullcontext():
                if not has_condition and self._fs.exists(path):
                    return False
                try:
                    self._fs.pipe_file(path, data, **({"mode": "create"} if has_condition else {}))
                except FileExistsError:
                    return False
            return True

        return self._call(name, write) or self.get(name) == data

    def exists(self, name: str) -> bool:
        """Check whether the object exists."""

        def look() -> bool:
            if self.local is not None:
                return (self.local / name).is_file()
            self._fs.invalidate_cache()
            return bool(self._fs.info(self._path(name))["type"] == "file")

        return self._find_or_none(name, look) or False

    def remove(self, *names: str) -> None:
        """Remove objects; missing ones count as removed."""

        def unlink(name: str) -> None:
            if self.local is not None:
                remove(self.local / name)
                return
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

        for name in names:
            self._call(name, partial(unlink, name))

    def clear(self) -> None:
        """Remove all objects, and a local folder with them."""
        if self.local is not None:
            remove_tree(self.local)
            self._was_there = False
        else:
            self.remove(*self.list_names())

    def put_file(self, name: str, path: Path) -> None:
        """Write a file of any size as an object. Raises StorageError."""

        def copy() -> None:
            if self.local is None:
                self._fs.put_file(str(path), self._prepare_path(name))
                return
            with open_file(path) as source, atomic_file(self.local / name) as target:
                shutil.copyfileobj(source, target, 1 << 20)

        self._call(name, copy)

    def get_file(self, name: str, path: Path, sha256: str) -> bool:
        """Copy an object of any size to `path`, atomically, and check its hash; False if it does
        not exist.

        Raises StorageDamagedError when the content has another hash than `sha256`, StorageError.
        """
        refuse_irregular(path)
        make_folder(path.parent)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
        try:
            temporary.touch()  # a folder without rights is no fault of the store

            def copy() -> bool:
                if self.local is not None:
                    refuse_irregular(self.local / name)
                    shutil.copyfile(self.local / name, temporary)
                elif self.is_private:  # in memory all readers share one file position: read at once
                    temporary.write_bytes(self._fs.cat_file(self._path(name)))
                else:
                    self._fs.get_file(self._path(name), str(temporary))
                return True

            if self._find_or_none(name, copy) is None:
                return False
            if hash_file(temporary) != sha256:
                raise self.build_damage_error(name)
            move(temporary, path)
            return True
        except (StorageFullError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # Nothing was written to the store: it is this disk that is full.
            raise StorageFullError(
                f"{path.parent}: the disk is full; free some space and try again"
            ) from None
        finally:
            temporary.unlink(missing_ok=True)

    def list_names(self, below: str = "") -> list[str]:
        """List the names of all objects below the folder `below`, sorted."""

        def find() -> list[str]:
            top = f"{self._root}/{below}".rstrip("/")
            if self.local is not None:
                home = self.local / below
                files = home.rglob("*") if home.is_dir() else iter(())
                return [file.relative_to(self.local).as_posix() for file in files if file.is_file()]
            self._fs.invalidate_cache()
            return [str(file)[len(self._root) :].lstrip("/") for file in self._fs.find(top)]

        found = self._find_or_none(below, find) or []
        return sorted(
            name for name in found if name and not PurePosixPath(name).name.startswith(".")
        )

    def list_folders(self) -> list[str]:
        """List the names of the folders directly below, sorted."""

        def look() -> list[str]:
            if self.local is not None:
                return [entry.name for entry in self.local.iterdir() if entry.is_dir()]
            self._fs.invalidate_cache()
            found = self._fs.ls(self._root, detail=True)
            return [
                PurePosixPath(entry["name"]).name for entry in found if entry["type"] == "directory"
            ]

        return sorted(self._find_or_none("", look) or [])

    def map(self, call: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call `call` with every item, up to `PARALLEL` at once. Raises the first error."""
        with ThreadPoolExecutor(PARALLEL) as pool:
            return list(pool.map(call, items))

    def check_access(self) -> None:
        """Check that the store can be used. Raises StorageError if the bucket is missing, access is
        denied or the store does not answer."""

        def look() -> None:
            if self.local is not None:
                make_folder(self.local)
            elif not self.is_private:
                self._fs.invalidate_cache()
                self._fs.ls(self._root)

        self._find_or_none("", look)  # a bucket has no empty folders: a missing one is fine

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock a local folder against other processes of this machine; elsewhere do nothing."""
        home = self.local
        if home is None:
            yield
            return

        def open_lock() -> BinaryIO:
            make_folder(home)
            return open_file(home / ".lock", "ab")

        with self._call("", open_lock) as file:
            wait_for_lock(file)
            yield

    def remove_temporaries(self, *, deep: bool = True) -> None:
        """Remove the temporary files of killed processes here and, with `deep`, in folders below.
        The caller holds the lock."""
        if self.local is not None:
            for file in self.local.rglob(".*.tmp") if deep else self.local.glob(".*.tmp"):
                remove(file)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _prepare_path(self, name: str) -> str:
        """Return the path to write an object to. File servers need its folder first."""
        path = self._path(name)
        if not self.is_exclusive:
            self._fs.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        return path

    def _find_or_none(self, name: str, call: Callable[[], R]) -> R | None:
        """Run `call` as `_call` does; None where the object does not exist."""
        try:
            return self._call(name, call)
        except FileNotFoundError:
            return None

    def _call(self, name: str, call: Callable[[], R]) -> R:
        """Run `call`, and retry while the store does not answer. Raises StorageError, and
        FileNotFoundError for a missing object."""
        began = time.monotonic()
        pause = 0.1
        while True:
            try:
                self._check_mounted()
                answer = call()
                self._was_there = self._was_there or (
                    self.local is not None and self.local.is_dir()
                )
                return answer
            except FintraderError:
                raise
            except Exception as error:
                if isinstance(error, FileNotFoundError) and not _is_missing_bucket(error):
                    raise
                problem = self._translate_error(name, error)
                if (
                    not isinstance(problem, StorageOfflineError)
                    or time.monotonic() + pause > began + self._measure_patience()
                ):
                    raise problem from None
            for budget in list_budgets():
                budget.notify(problem)
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _measure_patience(self) -> float:
        """Return the seconds for which to retry; read anew at each try, since an `allow_outages`
        block may end."""
        if self.patience is not None:
            return self.patience
        return max((budget.seconds for budget in list_budgets()), default=PATIENCE_SECONDS)

    def _translate_error(self, name: str, error: Exception) -> StorageError:
        """Translate a client's error into a typed one. The client's text may quote the request with
        its credentials, so only the error's class is shown."""
        kind = type(error).__name__
        code = getattr(error, "errno", None)
        where = f"{self.url}/{name}" if name else self.url
        if isinstance(error, OSError) and code in (errno.ENOSPC, errno.EDQUOT):
            return StorageFullError(
                f"{where}: the store is full; free some space and run the same command again"
            )
        if isinstance(error, FileNotFoundError):
            return StorageAccessError(
                f"{where}: the bucket does not exist; create it, or correct the URL"
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
        is_offline = isinstance(error, ConnectionError | TimeoutError) or code in _OFFLINE_ERRNO
        # An URL in the text may contain such a word.
        words = f"{kind} {error}".replace(self.url, "").lower()
        if is_offline or (self.local is None and any(word in words for word in _OFFLINE_WORDS)):
            return StorageOfflineError(
                f"{where}: the store does not answer ({kind}); "
                + ("check the network and the URL" if self.local is None else "mount its disk")
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


def open_file_system(url: str) -> tuple[Any, str]:
    """Open the fsspec file system of a URL; returns it and the path within it. Raises StorageError
    that names the package to install or the setting to correct."""
    import fsspec  # type: ignore[import-untyped]

    protocol = url.partition("://")[0]
    try:
        options = {} if protocol == "memory" else {"use_listings_cache": False}
        fs, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        if protocol in _EXTRAS:
            raise StorageError(
                f"{url}: install its package first: {install_command(_EXTRAS[protocol])}"
            ) from None
        raise StorageError(f"{url}: {error}; install the package it names") from None
    except (OSError, ValueError) as error:
        raise StorageError(f"{url}: {error}; check the URL and the network") from None
    return fs, str(path)


def read_whole(path: str, setting: str) -> bytes:
    """Read a small file, by local path or URL. Raises DataError, which names the `setting`, when it
    cannot be read."""
    try:
        data = ObjectStore(path).get("")
    except (StorageError, UnsafePathError) as error:
        raise DataError(f"{error}; see {setting}") from None
    if data is None:
        raise DataError(f"{path} does not exist; see {setting}")
    return data


def read_csv(path: str, setting: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Read a small CSV file with a header; yields line numbers and rows. Raises DataError, which
    names the `setting`, when it cannot be read."""
    try:
        text = read_whole(path, setting).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text; see {setting}") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}; see {setting}") from None
