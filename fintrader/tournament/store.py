"""The run's store: specs, results and snapshots, each written once and never changed.

    runs/<name>/
      tournament.json          what this tournament was started with
      pods/<id>/spec.json      what to train
      pods/<id>/result.json    what came out, written last: a pod with a result is finished
      snapshots/<sha256>.safetensors   networks and optimiser, named by their content

Everything else (the SQLite leaderboard, the terminal view) can be made again from these files and the event log.

A run may be a working copy of one in an object store (`fintrader.storage.mirror`). Then whatever is written here is
there first, and what is missing here is fetched from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fintrader.errors import CheckpointError, StorageDamagedError, StorageError, TournamentError
from fintrader.files import file_sha256, publish, read_json, sync_folder, write_bytes, write_json
from fintrader.runs import RunFolder
from fintrader.storage.markets import Markets
from fintrader.storage.mirror import mirror_of
from fintrader.tournament.lease import current_token
from fintrader.tournament.spec import PodResult, PodSpec
from fintrader.tournament.state_sync import clear

POD_FILES = ("policy.safetensors", "metrics.jsonl")
"""Of a pod's folder, what a store keeps beside spec and result."""
_STATE = re.compile(r"(?P<pod>(?:[^/]+/)*pods/p\d+)/state(?:\.json|/.*)")


class RunStore:
    """Reads and writes the immutable files of one run."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.snapshots = run.root / "snapshots"
        self.identity_path = run.root / "tournament.json"
        self.mirror = mirror_of(run.root)
        self._sent: list[Future[None]] = []
        self._pool: ThreadPoolExecutor | None = None

    # --- the object store ------------------------------------------------------------------------------

    def pull(self) -> None:
        """Bring what the object store has and this folder lacks, and the other way round. The holder's to call."""
        if self.mirror is None:
            return
        if self.mirror.lease.listing is None:
            self.mirror.pull()
        listing = self.mirror.lease.listing or frozenset()
        here = [*self._of_all_pods("spec.json"), *self._of_all_pods("result.json")]
        prefix = self.mirror.prefix
        new = [path for path in here if f"{prefix}pods/{path.parent.name}/{path.name}" not in listing]
        self.mirror.objects.gather(self._push, new)
        over = {name.rpartition("/")[0] for name in listing if name.endswith("/result.json")}
        left = [name for name in listing if (match := _STATE.fullmatch(name)) and match["pod"] in over]
        self.mirror.objects.remove(*left)

    def _push(self, path: Path) -> None:
        """A spec or result that was written before the run had a store, or just before a kill."""
        assert self.mirror is not None
        pod, text = path.parent.name, path.read_text()
        try:
            files = {} if path.name == "spec.json" else self._keep_files(PodResult.from_json(path))
        except (TournamentError, CheckpointError):
            return  # damaged: whoever drives the tournament sets it aside
        self.mirror.create_pod_file(pod, path.name, text, files)

    def _keep_files(self, result: PodResult) -> dict[str, str]:
        """Store what a result rests on. Raises CheckpointError when that is damaged."""
        assert self.mirror is not None
        if result.snapshot is not None and not self.intact(result.snapshot):
            raise CheckpointError(f"{self.snapshot_path(result.snapshot)} is damaged")
        home = self.run.pod(result.pod)
        paths = [home / name for name in POD_FILES if (home / name).is_file()]
        return {path.name: self.mirror.put_file(path) for path in paths}

    def settle(self) -> None:
        """Return once every spec that was made is in the object store."""
        sent, self._sent = self._sent, []
        for future in sent:
            future.result()

    def publish(self) -> None:
        """Bring the object store's copy of all other files up to date."""
        if self.mirror is not None:
            self.mirror.publish()

    def superseded(self, token: int) -> bool:
        """Whether the holder with this token has lost the run."""
        if self.mirror is not None:
            return self.mirror.superseded(token)
        return current_token(self.run) != token

    def market(self, digest: str, path: Path) -> Path:
        """`path`, or where it does not exist here, the market of that content out of the object store.

        Raises CheckpointError when the store has none.
        """
        if path.exists() or self.mirror is None:
            return path
        folder = self.mirror.home / ".markets" / digest
        if not (folder / "market.safetensors").is_file() and not Markets(self.mirror.store).fetch(digest, folder):
            raise CheckpointError(f"{self.mirror.store} has no market {digest[:12]}; run the same command again")
        return folder / "market.safetensors"

    def own_market(self, path: Path) -> Path:
        """The same for the market that this tournament was begun with."""
        return path if path.exists() else self.market(str(read_json(self.identity_path)["data_hash"]), path)

    def keep_market(self, digest: str, path: Path) -> None:
        """Let pods on other machines have the market."""
        if self.mirror is not None and path.is_file():
            Markets(self.mirror.store).keep([digest], {"market.safetensors": path})

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
            ours = _plain(identity)
            named = [f"{name}{_differing(known.get(name), ours.get(name))}" for name in changed]
            raise TournamentError(
                f"{self.run.root} holds a tournament with other {', '.join(named)}; "
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
        if (
            not publish(self.spec_path(spec.pod), spec.to_json().encode(), sync=False)
            and self.read_spec(spec.pod) != spec
        ):
            raise TournamentError(f"{self.spec_path(spec.pod)} differs from the spec due now; the folder was edited")
        if self.mirror is not None:
            self._pool = self._pool or ThreadPoolExecutor(max_workers=8, thread_name_prefix="specs")
            self._sent.append(self._pool.submit(self._send_spec, spec))

    def _send_spec(self, spec: PodSpec) -> None:
        assert self.mirror is not None
        text = spec.to_json()
        if self.mirror.create_pod_file(spec.pod, "spec.json", text) != text:
            raise TournamentError(
                f"{self.mirror.objects} holds another spec of {spec.pod}, made by another orchestrator; "
                f"delete {self.run.pod(spec.pod)} and run the same command again"
            )

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
        if self.mirror is not None:
            files = self._keep_files(result)
            try:
                text = self.mirror.create_pod_file(result.pod, "result.json", result.to_json(), files)
            except StorageDamagedError:
                self.mirror.remove_pod_file(result.pod, "result.json")
                text = self.mirror.create_pod_file(result.pod, "result.json", result.to_json(), files)
            publish(self.result_path(result.pod), text.encode())
            with contextlib.suppress(StorageError):  # what remains of it is cleared away at the next start
                clear(self.mirror, result.pod)
            return self.read_result(result.pod)
        if publish(self.result_path(result.pod), result.to_json().encode()):
            return result
        return self.read_result(result.pod)

    def note(self, result: PodResult) -> PodResult:
        """Have a result here, too, that its pod has published on a machine that does not see this folder."""
        if self.mirror is not None:
            publish(self.result_path(result.pod), result.to_json().encode())
        return result

    def _recall(self, pod: str) -> bool:
        """Bring a pod's result from the object store, if it has one. A damaged one is taken away there."""
        if self.mirror is None:
            return False
        try:
            text = self.mirror.pod_file(pod, "result.json")
        except StorageDamagedError:
            self.mirror.remove_pod_file(pod, "result.json")
            return False
        if text is not None:
            publish(self.result_path(pod), text.encode())
        return text is not None

    def read_result(self, pod: str) -> PodResult:
        """Raises TournamentError when it is missing or damaged."""
        return PodResult.from_json(self.result_path(pod))

    def has_result(self, pod: str) -> bool:
        return self.result_path(pod).exists() or self._recall(pod)

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
                    if self.mirror is not None:
                        self.mirror.remove_pod_file(later.name, "spec.json")
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
        if self.mirror is not None:
            self.mirror.remove_pod_file(pod, "result.json")
        number = 1 + sum(1 for _ in path.parent.glob("result.damaged-*.json"))
        os.replace(path, path.with_name(f"result.damaged-{number}.json"))

    # --- snapshots -------------------------------------------------------------------------------------

    def snapshot_path(self, digest: str) -> Path:
        return self.snapshots / f"{digest}.safetensors"

    def policy_path(self, pod: str) -> Path:
        return self.run.pod(pod) / "policy.safetensors"

    def put(self, data: bytes) -> str:
        """Store `data` under its SHA-256; returns that. Equal data is stored once."""
        digest = hashlib.sha256(data).hexdigest()
        if self.mirror is not None:
            self.mirror.put_bytes(data)
        if not self._whole(self.snapshot_path(digest), digest):
            write_bytes(self.snapshot_path(digest), data)
        return digest

    def get(self, digest: str) -> bytes:
        """Stored data. Raises CheckpointError when it is missing or not what its name says."""
        path = self.snapshot_path(digest)
        if self.mirror is not None and not self._whole(path, digest):
            self._fetch(digest, path)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise CheckpointError(f"{path} does not exist; run the same command again to train its pod anew") from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise CheckpointError(f"{path} is truncated or foreign; run the same command again to train its pod anew")
        return data

    def intact(self, digest: str) -> bool:
        """Whether the snapshot is there, whole and its own; of an object store's, whether it is there."""
        return self._kept(digest, self.snapshot_path(digest))

    def has_policy(self, result: PodResult) -> bool:
        """The same of a result's policy."""
        return result.policy is None or self._kept(result.policy, self.policy_path(result.pod))

    def ensure_policy(self, result: PodResult) -> None:
        """Bring a result's policy here. Raises CheckpointError when it is missing or damaged."""
        path = self.policy_path(result.pod)
        if self.mirror is not None and result.policy is not None and not self._whole(path, result.policy):
            self._fetch(result.policy, path)

    def _whole(self, path: Path, digest: str) -> bool:
        return path.is_file() and file_sha256(path) == digest

    def _kept(self, digest: str, path: Path) -> bool:
        """Whether content is where it counts. What is whole here and missing there is stored there."""
        whole = self._whole(path, digest)
        if self.mirror is None:
            return whole
        if self.mirror.has(digest):
            return True
        if whole:
            self.mirror.put_file(path)
        return whole

    def _fetch(self, digest: str, path: Path) -> None:
        assert self.mirror is not None
        try:
            if self.mirror.fetch(digest, path):
                return
            state = "is missing"
        except StorageDamagedError:
            self.mirror.discard(digest)
            state = "is damaged"
        raise CheckpointError(
            f"{self.mirror.objects}/objects/{digest} {state}; run the same command again to train its pod anew"
        )

    def sweep(self) -> int:
        """Remove temporaries that killed writers left behind; returns how many."""
        swept = 0
        for folder in (self.run.root, self.snapshots, self.run.ensemble, *self.run.pods.glob("*")):
            for path in folder.glob(".*.tmp"):
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                    swept += 1
        return swept


def _plain(value: Any) -> Any:
    """`value` as it comes back from JSON (tuples as lists)."""
    return json.loads(json.dumps(value))


def _differing(there: Any, here: Any) -> str:
    """In which fields two groups of settings differ, a few of them: ` (order: submission there, arrival here)`."""
    if not (isinstance(there, dict) and isinstance(here, dict)):
        return ""
    names = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    return f" ({', '.join(f'{name}: {there.get(name)} there, {here.get(name)} here' for name in names[:3])})"
