"""A pod's training state in the run's store, so that a machine with an empty disk can resume it.

    pods/<id>/state.json         the files of the state: name -> hash; written after them
    pods/<id>/state/<sha256>     the files

The files are those that `train` and learner fusion write into the pod's folder. They are read in an
order in which each file comes after those that it depends on: training states, then their logs,
then fused rounds and scores during training. Any attempt's state is as good as another's, since a
pod is a function of its spec; so the last writer counts, and when something is missing the pod
begins from its spec. A pod that has a result has no state there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from fintrader.errors import FintraderError, StorageDamagedError
from fintrader.files import (
    hash_bytes,
    hash_file,
    make_folder,
    move,
    read_bytes,
    refuse_irregular,
    remove,
    remove_tree,
    seal,
    unseal,
    write_text,
)
from fintrader.storage.mirror import Mirror
from fintrader.system import start_thread
from fintrader.tournament.spec import PodSpec

MARKER = ".stored.json"
"""File in a pod's folder with the hash of the `state.json` that was last written or read here."""
STATE = "state.safetensors"
LOG = "metrics.jsonl"
_TURNS = {STATE: 0, LOG: 1}
"""Names of the files to copy first, in this order; all other files depend on them."""
_LEFT_OUT = re.compile(
    r"(^|/)\.|\.(log|tmp)$|(^|/)(spec|result[^/]*)\.json$|(^|/)(policy|failed)\.safetensors$"
)
_ROUND = re.compile(r"round-(\d+)/")
log = logging.getLogger("fintrader.pod")
_active: set[TrainingState] = set()
"""States of the pods that this process trains: it stores them before it ends on request."""


class TrainingState:
    """The state of one pod, here and in the store."""

    def __init__(self, mirror: Mirror, pod: str, digest: str, folder: Path) -> None:
        """`digest`: hash of the pod's spec."""
        self.objects = mirror.objects
        self.digest = digest
        self.folder = folder
        self.name = f"{mirror.prefix}pods/{pod}/state"
        self._files: dict[str, str] = {}
        self._lock = threading.RLock()

    def restore(self) -> bool:
        """Fetch the stored state, unless this folder's state descends from it; return True if it
        was fetched."""
        with self._lock:
            data = self.objects.get(f"{self.name}.json")
            marker = self.folder / MARKER
            if data is None:
                return False
            if marker.is_file() and read_bytes(marker).decode() == hash_bytes(data):
                self._files = unseal(data, self.objects.build_damage_error(f"{self.name}.json"))[
                    "files"
                ]
                return False
            arrived = self.folder / ".arrived"
            remove_tree(arrived)
            try:
                files = self._fetch(data, arrived)
            except StorageDamagedError as error:
                log.warning(
                    "a pod's damaged stored state is dropped", extra={"fields": {"why": str(error)}}
                )
                self.objects.remove(f"{self.name}.json")
                files = {}
            if files:
                remove(marker)
                for path in self._list_files():
                    remove(path)
                for name in files:
                    make_folder((self.folder / name).parent)
                    move(arrived / name, self.folder / name)
                write_text(marker, hash_bytes(data))
                self._files = files
            remove_tree(arrived)
            return bool(files)

    def _fetch(self, data: bytes, to: Path) -> dict[str, str]:
        """Fetch all files of a state; return none for a state of another spec. Raises
        StorageDamagedError."""
        body = unseal(data, self.objects.build_damage_error(f"{self.name}.json"))
        if body["spec"] != self.digest:
            return {}
        files: dict[str, str] = body["files"]
        for name in files:
            if _LEFT_OUT.search(name) or ".." in Path(name).parts or Path(name).is_absolute():
                raise StorageDamagedError(
                    f"{self.objects}/{self.name}.json names {name!r}, which is not a pod's state"
                )

        def fetch_file(name: str) -> None:
            if not self.objects.get_file(f"{self.name}/{files[name]}", to / name, files[name]):
                raise StorageDamagedError(f"{self.objects}/{self.name}/{files[name]} is missing")

        self.objects.map(fetch_file, files)
        return files

    def save(self) -> bool:
        """Store the current state; return True if anything was new. Raises StorageError."""
        with self._lock:
            taken = self.folder / ".taken"
            try:
                files = self._take(taken)
                if not files or files == self._files:
                    return False
                known = set(self._files.values())
                new = {digest: name for name, digest in files.items() if digest not in known}
                self.objects.map(
                    lambda digest: self.objects.put_file(
                        f"{self.name}/{digest}", taken / new[digest]
                    ),
                    new,
                )
            except FileNotFoundError:
                return False  # the pod has just removed a file; the next save tries again
            finally:
                remove_tree(taken)
            data = seal({"spec": self.digest, "files": files})
            self.objects.put(f"{self.name}.json", data)
            write_text(self.folder / MARKER, hash_bytes(data))
            self._files = files
            self.objects.remove(
                *(f"{self.name}/{digest}" for digest in known - set(files.values()))
            )
            return True

    def _take(self, to: Path) -> dict[str, str]:
        """Link or copy the state's files into `to` while training goes on; return name -> hash."""
        remove_tree(to)
        files = {}
        done = {
            path.stem.removeprefix("fused-") for path in self.folder.glob("fused-*.safetensors")
        }
        for turn in range(3):  # files of a turn are listed after those of the turn before are taken
            for path in self._list_files():
                if _TURNS.get(path.name, 2) != turn:
                    continue
                name = path.relative_to(self.folder).as_posix()
                match = _ROUND.match(name)
                if match and match[1] in done:
                    continue  # fused: its replicas are not needed any more
                copy = to / name
                make_folder(copy.parent)
                _hold(path, copy)
                files[name] = hash_file(copy)
        return files

    def _list_files(self) -> list[Path]:
        """List the files of the state, sorted."""
        return [
            path
            for path in sorted(self.folder.rglob("*"))
            if not _LEFT_OUT.search(path.relative_to(self.folder).as_posix()) and path.is_file()
        ]


def _hold(path: Path, copy: Path) -> None:
    """Keep the current content of `path` as `copy`: by a hard link, or a copy for a growing log."""
    refuse_irregular(path)
    if path.suffix != ".jsonl":
        with contextlib.suppress(OSError):
            os.link(path, copy)
            return
    shutil.copyfile(path, copy)


@contextlib.contextmanager
def synchronise(mirror: Mirror, spec: PodSpec, folder: Path, seconds: float) -> Iterator[None]:
    """Begin with the pod's training state as the store has it, and store it every `seconds` from
    then on.

    Failed saves are only logged. Raises StorageError at the beginning.
    """
    state = TrainingState(mirror, spec.pod, spec.digest, folder)
    if state.restore():
        log.info("pod resumes from its stored state")
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(seconds):
            _try_save(state)

    _active.add(state)
    thread = start_thread(keep, name="training states")
    try:
        yield
    finally:
        _active.discard(state)
        ended.set()
        thread.join()


def save_all() -> None:
    """Store the state of every pod at work in this process, before the process ends."""
    for state in list(_active):
        _try_save(state)


def _try_save(state: TrainingState) -> None:
    try:
        if state.save():
            log.info("pod's state is stored")
    except (FintraderError, OSError) as error:
        log.warning(
            "a pod's state could not be stored",
            extra={"fields": {"why": f"{type(error).__name__}: {error}"}},
        )


def clear(mirror: Mirror, pod: str) -> None:
    """Remove a pod's stored state, if it has any."""
    name = f"{mirror.prefix}pods/{pod}/state"
    mirror.objects.remove(f"{name}.json", *mirror.objects.list_names(name))
