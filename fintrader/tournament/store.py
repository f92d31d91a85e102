"""The run's store: specs, results and snapshots, each written once and never changed.

    runs/<name>/
      tournament.json          what this tournament was started with
      pods/<id>/spec.json      what to train
      pods/<id>/result.json    what came out, written last: a pod with a result is finished
      snapshots/<sha256>.safetensors   networks and optimiser, named by their content

Everything else (the SQLite leaderboard, the terminal view) can be made again from these files and the event log.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fintrader.errors import CheckpointError, TournamentError
from fintrader.runs import RunFolder, read_json, write_bytes, write_json
from fintrader.tournament.pod import PodResult, PodSpec


class RunStore:
    """Reads and writes the immutable files of one run."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.snapshots = run.root / "snapshots"
        self.identity_path = run.root / "tournament.json"

    # --- identity --------------------------------------------------------------------------------------

    def claim(
        self, identity: dict[str, Any], modern: Callable[[dict[str, Any]], dict[str, Any]] = lambda known: known
    ) -> None:
        """Note what this tournament is made of. Raises TournamentError when the folder holds another one.

        `modern` brings a stored identity up to date with settings that have been added since.
        """
        if not self.identity_path.exists():
            if any(self.run.pods.glob("*/spec.json")):
                raise TournamentError(f"{self.run.root} holds pods but no tournament.json; use another run name")
            write_json(self.identity_path, identity)
            return
        known = modern(read_json(self.identity_path))
        changed = sorted(name for name in {*known, *identity} if known.get(name) != _plain(identity.get(name)))
        if changed:
            raise TournamentError(
                f"{self.run.root} holds a tournament with other {', '.join(changed)}; "
                "use another run name, or the settings it was started with"
            )

    # --- specs and results -----------------------------------------------------------------------------

    def spec_path(self, pod: str) -> Path:
        return self.run.pod(pod) / "spec.json"

    def result_path(self, pod: str) -> Path:
        return self.run.pod(pod) / "result.json"

    def write_spec(self, spec: PodSpec) -> None:
        """Write it whole; an equal spec may stand there already. Raises TournamentError when another one does.

        Not synced: `keep_spec` does that where the pod runs. Until then a power cut may lose it, and nothing else.
        """
        if not publish(self.spec_path(spec.pod), spec.to_json(), sync=False) and self.read_spec(spec.pod) != spec:
            raise TournamentError(f"{self.spec_path(spec.pod)} differs from the spec due now; the folder was edited")

    def keep_spec(self, spec: PodSpec) -> None:
        """Make a spec durable, before its result is."""
        path = self.spec_path(spec.pod)
        if path.exists():
            with path.open("rb") as file:
                os.fsync(file.fileno())
            sync_folder(path.parent)
            sync_folder(self.run.pods)

    def read_spec(self, pod: str) -> PodSpec:
        """Raises TournamentError when it is missing or damaged."""
        return PodSpec.from_json(self.spec_path(pod))

    def write_result(self, result: PodResult) -> PodResult:
        """Durable and final: the first result of a pod stands. Returns the one that stands."""
        if publish(self.result_path(result.pod), result.to_json()):
            return result
        return self.read_result(result.pod)

    def read_result(self, pod: str) -> PodResult:
        """Raises TournamentError when it is missing or damaged."""
        return PodResult.from_json(self.result_path(pod))

    def has_result(self, pod: str) -> bool:
        return self.result_path(pod).exists()

    def specs(self) -> dict[str, PodSpec]:
        """All pods made so far, by id, in order."""
        return {path.parent.name: PodSpec.from_json(path) for path in self._of_all_pods("spec.json")}

    def unbroken_specs(self) -> list[PodSpec]:
        """All specs by number, for the orchestrator. One that a power cut damaged or swallowed is dropped, with any
        after it, as long as no result depends on it.

        Raises TournamentError when a pod that has a result, or one before it, has lost its spec.
        """
        specs: list[PodSpec] = []
        folders = sorted(self.run.pods.glob("p[0-9]*"), key=lambda folder: (len(folder.name), folder.name))
        for place, folder in enumerate(folders):
            try:
                spec = self.read_spec(folder.name)
                if spec.index != len(specs):
                    raise TournamentError(f"{self.run.pods}: the folder before {folder.name} is missing; restore it")
                specs.append(spec)
            except TournamentError:
                if any(self.has_result(later.name) for later in folders[place:]):
                    raise
                for later in folders[place:]:
                    self.spec_path(later.name).unlink(missing_ok=True)
                break
        return specs

    def results(self) -> dict[str, PodResult]:
        """All results, by pod, in order of the pods."""
        return {path.parent.name: PodResult.from_json(path) for path in self._of_all_pods("result.json")}

    def _of_all_pods(self, name: str) -> list[Path]:
        """That file of every pod that has it, by the pod's number (p9999 before p10000)."""
        paths = self.run.pods.glob(f"p[0-9]*/{name}")
        return sorted(paths, key=lambda path: (len(path.parent.name), path.parent.name))

    def set_aside(self, pod: str) -> None:
        """Move a result whose snapshot is gone or damaged out of the way, so that the pod runs again."""
        path = self.result_path(pod)
        number = 1 + sum(1 for _ in path.parent.glob("result.damaged-*.json"))
        os.replace(path, path.with_name(f"result.damaged-{number}.json"))

    # --- snapshots -------------------------------------------------------------------------------------

    def snapshot_path(self, digest: str) -> Path:
        return self.snapshots / f"{digest}.safetensors"

    def put(self, data: bytes) -> str:
        """Store `data` under its SHA-256; returns that. Equal data is stored once."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.snapshot_path(digest)
        if not self.intact(digest):
            write_bytes(path, data)
        return digest

    def get(self, digest: str) -> bytes:
        """Stored data. Raises CheckpointError when it is missing or not what its name says."""
        path = self.snapshot_path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise CheckpointError(f"{path} does not exist; run the same command again to train its pod anew") from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise CheckpointError(f"{path} is truncated or foreign; run the same command again to train its pod anew")
        return data

    def intact(self, digest: str) -> bool:
        """Whether the snapshot is there, whole and its own."""
        try:
            with self.snapshot_path(digest).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == digest
        except FileNotFoundError:
            return False

    def sweep(self) -> int:
        """Remove temporaries that killed writers left behind; returns how many."""
        swept = 0
        for folder in (self.run.root, self.snapshots, self.run.ensemble, *self.run.pods.glob("*")):
            for path in folder.glob(".*.tmp"):
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                    swept += 1
        return swept


def publish(path: Path, text: str, *, sync: bool = True) -> bool:
    """Write `path` whole unless it exists; True if this call wrote it. Never a half file, never a second version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return False
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        try:
            os.link(temporary, path)  # unlike a rename, a link fails where a file stands
        except FileExistsError:
            return False
        if sync:
            sync_folder(path.parent)
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def sync_folder(folder: Path) -> None:
    """Make a new directory entry durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _plain(value: Any) -> Any:
    """`value` as it comes back from JSON (tuples as lists)."""
    return json.loads(json.dumps(value))
