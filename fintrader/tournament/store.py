"""The run's store: specs, results and snapshots, each written once and never changed.

    runs/<name>/
      tournament.json          market, environment, agents and settings of the tournament
      pods/<id>/spec.json      training of the pod
      pods/<id>/result.json    its result, written last: a pod with a result is finished
      snapshots/<sha256>.safetensors   networks and optimiser, named by their content
      events.jsonl             events in their order (`events.py`)

Everything else (the SQLite leaderboard, the terminal view) can be made again from these files.

A run may be a working copy of one in an object store. Then `mirrored_store.open_store` opens a
`MirroredStore` instead of a `RunStore`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from fintrader.config import compare_values, describe_differences
from fintrader.errors import CheckpointError, TournamentError
from fintrader.files import (
    SEAL_BYTES,
    find_seal,
    hash_bytes,
    hash_file,
    move,
    open_file,
    publish,
    read_bytes,
    refuse_irregular,
    refuse_link,
    remove,
    remove_tree,
    write_bytes,
)
from fintrader.runs import RunFolder
from fintrader.system import sync
from fintrader.tournament.spec import PodResult, PodSpec, TournamentIdentity

POD_FILES = ("policy.safetensors", "metrics.jsonl", "validation.jsonl")
"""Files of a pod besides spec and result: an object store keeps them, too, and `drop` deletes
them."""
_KEPT_TENSORS = ("policy.safetensors", "failed.safetensors")
"""Tensors of a pod that are kept: its policy, and the networks with which its training failed."""


class RunStore:
    """Reads and writes the immutable files of one run, all of them in its folder."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self._pods = run.pods
        self.snapshots = run.snapshots
        self.identity_path = run.root / "tournament.json"

    # --- for a run in an object store only --------------------------------------------------------

    def pull(self) -> None:
        """Copy files missing here from the object store, and files missing there to it. For the
        holder of the lease only."""

    def publish(self) -> None:
        """Bring the object store's copy of all other files up to date."""

    def keep_events(self, lines: str, everything: Callable[[], str]) -> None:
        """Store new lines of the event log (or `everything` so far) before they are written
        here."""

    def keep_market(self, digest: str, path: Path) -> None:
        """Let pods on other machines have the market."""

    def keep_training(
        self, spec: PodSpec, folder: Path, seconds: float
    ) -> AbstractContextManager[None]:
        """Begin with the object store's copy of the pod's training state, and update the copy every
        `seconds`."""
        return nullcontext()

    def fetch_market(self, digest: str, path: Path) -> Path:
        """Return `path` if it exists; else fetch the market with hash `digest` from the object
        store.

        Raises CheckpointError when the store has none.
        """
        return path

    def fetch_own_market(self, path: Path) -> Path:
        """Return `path` if it exists; else fetch the market with which this tournament began."""
        return path if path.exists() else self.fetch_market(self.read_identity().data_hash, path)

    def is_superseded(self, token: int) -> bool:
        """True once an orchestrator with another folder has taken the run over from the holder of
        `token`. An orchestrator with this folder does not count: it takes over the pods at work.
        """
        return False

    def copy_result(self, result: PodResult) -> PodResult:
        """Copy a result here that its pod published on a machine without this folder."""
        return result

    def keep_unpublished(self, result: PodResult) -> None:
        """Keep a result on this disk until it is stored, so that no outage costs its training."""

    def read_unpublished(self, spec: PodSpec) -> PodResult | None:
        """Read a result of that spec which an earlier attempt on this disk could not store."""
        return None

    def ensure_policy(self, result: PodResult) -> None:
        """Bring a result's policy here. Raises CheckpointError when it is missing or damaged."""

    def _forget(self, pod: str, name: str) -> None:
        """Remove every other copy of a pod's damaged file."""

    # --- identity ---------------------------------------------------------------------------------

    def read_identity(self) -> TournamentIdentity:
        """Read the inputs of the tournament in this folder. Raises TournamentError when they are
        missing or damaged."""
        return TournamentIdentity.from_json(self.identity_path)

    def read_identity_digest(self) -> str:
        """Read the seal of `tournament.json`, which the log names; empty where there is none."""
        try:
            return find_seal(read_bytes(self.identity_path)[:SEAL_BYTES])
        except OSError:
            return ""

    def claim(self, identity: TournamentIdentity, follow: Callable[[], bool]) -> None:
        """Record the inputs of this tournament. Raises TournamentError when the folder holds
        another one.

        `follow`: returns True if the pods in this folder follow from `identity`; called only when
        `tournament.json` is missing or damaged.
        """
        try:
            known = self.read_identity()
        except TournamentError:
            if any(self.run.pods.glob("*/spec.json")) and not follow():
                raise TournamentError(
                    f"{self.run.root} holds pods without an intact tournament.json, and these"
                    " settings make other pods; use the settings that it was started with, or"
                    " another run name"
                ) from None
            if self.identity_path.exists():
                move_aside(self.identity_path)
            write_bytes(self.identity_path, identity.to_json().encode())
            return
        sides = (
            vars(one) | {"agents": dict(enumerate(one.agents)), "inherited": one.inherited or None}
            for one in (known, identity)
        )
        odd = compare_values(*sides)
        if odd:
            raise TournamentError(
                f"{self.run.root} holds another tournament ({describe_differences(odd)}); use"
                " another run name, or the settings it was started with"
            )

    # --- specs and results ------------------------------------------------------------------------

    def locate_spec(self, pod: str) -> Path:
        return self._pods / f"{pod}/spec.json"

    def locate_result(self, pod: str) -> Path:
        return self._pods / f"{pod}/result.json"

    def write_specs(self, specs: Sequence[PodSpec]) -> list[PodSpec]:
        """Write each spec atomically and only once; return the specs that are stored.

        A spec of the same pod by an earlier orchestrator is kept, because that pod may be at work
        or done.
        """
        return [self.write_spec(spec) for spec in specs]

    def write_spec(self, spec: PodSpec) -> PodSpec:
        """Write one spec as `write_specs` does. A power cut may lose it until `keep_spec` syncs it
        where the pod runs."""
        path = self.locate_spec(spec.pod)
        data = spec.to_json().encode()
        if publish(path, data, sync=False):
            return spec
        try:
            return self.read_spec(spec.pod)
        except TournamentError:  # cut short by a power cut
            move_aside(path)
            publish(path, data, sync=False)
            return spec

    def keep_spec(self, spec: PodSpec) -> None:
        """Make a spec durable, before its result is."""
        path = self.locate_spec(spec.pod)
        if path.exists():
            refuse_irregular(path)
            for each in (path, path.parent, self.run.pods):
                sync(each)

    def read_spec(self, pod: str) -> PodSpec:
        """Read a pod's spec. Raises TournamentError when it is missing or damaged."""
        return PodSpec.from_json(self.locate_spec(pod))

    def read_spec_digest(self, pod: str) -> str:
        """Read the seal of a pod's stored spec, by which results name it; only `read_spec` checks
        that it is right."""
        with open_file(self.locate_spec(pod)) as file:
            return find_seal(file.read(SEAL_BYTES))

    def is_replaced(self, spec: PodSpec) -> bool:
        """Check whether this folder now holds another spec of that pod, because another run has
        replaced this one."""
        try:
            return self.read_spec_digest(spec.pod) != spec.digest
        except OSError:
            return False  # a machine may train a pod without its spec in this folder

    def write_result(self, result: PodResult) -> PodResult:
        """Store a pod's result durably, unless it has one already; return the stored result."""
        if publish(self.locate_result(result.pod), result.to_json().encode()):
            return result
        return self.read_result(result.pod)

    def read_result(self, pod: str) -> PodResult:
        """Read a pod's result. Raises TournamentError when it is missing or damaged."""
        return PodResult.from_json(self.locate_result(pod))

    def has_result(self, pod: str) -> bool:
        return self.locate_result(pod).exists()

    def read_specs(self) -> dict[str, PodSpec]:
        """Read the specs of all pods made so far, by id, in order."""
        return {
            path.parent.name: PodSpec.from_json(path)
            for path in self._list_files_of_pods("spec.json")
        }

    def read_unbroken_specs(self) -> list[PodSpec]:
        """Read the specs in order, up to the first that a power cut damaged or lost: the
        orchestrator makes that spec again, and adopts any after it (`write_specs`).

        Raises TournamentError when a pod that has a result, or one before it, has lost its spec.
        """
        specs: list[PodSpec] = []
        folders = {folder.name for folder in self.run.pods.glob("p[0-9]*")}
        while True:
            pod = f"p{len(specs):04d}"
            try:
                specs.append(self.read_spec(pod))
            except TournamentError:
                later = folders - {spec.pod for spec in specs}
                if any(self.has_result(one) for one in sorted(later)):
                    raise
                return specs

    def read_results(self) -> dict[str, PodResult]:
        """Read all results, by pod, in order of the pods."""
        return {
            path.parent.name: PodResult.from_json(path)
            for path in self._list_files_of_pods("result.json")
        }

    def _list_files_of_pods(self, name: str) -> list[Path]:
        """List this file of every pod that has it, by the pod's number (p9999 before p10000)."""
        paths = self.run.pods.glob(f"p[0-9]*/{name}")
        return sorted(paths, key=lambda path: (len(path.parent.name), path.parent.name))

    def set_aside(self, pod: str, name: str = "result.json") -> bool:
        """Move a pod's result (so that it runs again), or its spec, out of the way; False where it
        has none."""
        self._forget(pod, name)
        path = self._pods / pod / name
        exists = path.exists()
        if exists:
            move_aside(path)
        return exists

    # --- snapshots --------------------------------------------------------------------------------

    def locate_snapshot(self, digest: str) -> Path:
        return self.snapshots / f"{digest}.safetensors"

    def locate_policy(self, pod: str) -> Path:
        return self._pods / f"{pod}/policy.safetensors"

    def put(self, data: bytes) -> str:
        """Store `data` under its SHA-256, and return that hash. Equal data is stored once."""
        digest = hash_bytes(data)
        path = self.locate_snapshot(digest)
        if not is_whole(digest, path):
            write_bytes(path, data)
        return digest

    def get(self, digest: str) -> bytes:
        """Read stored data. Raises CheckpointError when it is missing or its hash is not its
        name."""
        path = self.locate_snapshot(digest)
        try:
            data = read_bytes(path)
        except FileNotFoundError:
            raise CheckpointError(
                f"{path} does not exist; run the same command again to train its pod anew"
            ) from None
        if hash_bytes(data) != digest:
            raise CheckpointError(
                f"{path} is truncated or foreign; run the same command again to train its pod anew"
            )
        return data

    def has_snapshot(self, digest: str) -> bool:
        """Check that the snapshot is stored and intact; in an object store, that it is stored."""
        return self._is_stored(digest, self.locate_snapshot(digest))

    def has_policy(self, result: PodResult) -> bool:
        """Check that a result's policy is stored and intact."""
        return result.policy is None or self._is_stored(
            result.policy, self.locate_policy(result.pod)
        )

    def find_damage(self, result: PodResult) -> str:
        """Describe the missing or damaged files of a result; empty where all are whole."""
        if result.snapshot is not None and not self.has_snapshot(result.snapshot):
            return f"its snapshot {result.snapshot[:12]} is missing or damaged"
        return "" if self.has_policy(result) else "its policy is missing or damaged"

    def has_leftovers(self, result: PodResult) -> bool:
        """Check whether anything is left that `drop` deletes."""
        return any(path.exists() for path in self._list_leftovers(result))

    def drop(self, result: PodResult, shared: Collection[str] = ()) -> None:
        """Delete a pod's policy, curves and log, and its snapshot unless it is in `shared`."""
        for path in self._list_leftovers(result, shared):
            remove(path)

    def _list_leftovers(self, result: PodResult, shared: Collection[str] = ()) -> list[Path]:
        paths = [self._pods / result.pod / name for name in POD_FILES]
        paths.append(self.run.root / "logs" / f"ray-{result.pod}.log")
        if result.snapshot and result.snapshot not in shared:
            paths.append(self.locate_snapshot(result.snapshot))
        return paths

    def delete_training_state(self, pod: str) -> None:
        """Delete the state of a training whose result is stored: checkpoints, replay buffers,
        learners' folders."""
        folder = self._pods / pod
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_dir():
                remove_tree(path)
            elif (
                path.suffix == ".safetensors"
                and path.name not in _KEPT_TENSORS
                and ".damaged-" not in path.name
            ):
                remove(path)

    def _is_stored(self, digest: str, path: Path) -> bool:
        """Check that content is stored and intact; overridden for object stores."""
        return is_whole(digest, path)

    def sweep(self) -> None:
        """Remove the remains of killed writers: temporaries, and the state of trainings that have a
        result. Move misplaced files and folders aside.

        Raises UnsafePathError for a symbolic link, which may be there on purpose.
        """
        for path in self.run.list_misplaced():
            refuse_link(path)
            move_aside(path)
        for folder in (self.run.root, self.snapshots, self.run.ensemble, *self.run.pods.glob("*")):
            if folder.is_symlink():
                continue  # a link that was set aside
            for path in folder.glob(".*.tmp"):
                remove(path)
            if folder.parent == self.run.pods and (folder / "result.json").exists():
                self.delete_training_state(folder.name)


def is_whole(digest: str, path: Path) -> bool:
    """Check that a file exists and has this hash."""
    return path.is_file() and hash_file(path) == digest


def move_aside(path: Path) -> Path:
    """Rename a damaged file, so that it can be made again and still be inspected; return its new
    path.

    A name without a suffix (a pod's folder) gets `damaged-N` in front, so that it is not taken for
    a pod.
    """
    before, after = (f"{path.stem}.", path.suffix) if path.suffix else ("", f".{path.name}")
    number = 1 + sum(1 for _ in path.parent.glob(f"{before}damaged-*{after}"))
    target = path.with_name(f"{before}damaged-{number}{after}")
    move(path, target)
    return target
