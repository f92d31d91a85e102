"""The store of a run in an object store; the folder is a working copy of it
(`fintrader.storage.mirror`).

Everything is written to the object store first, and fetched from there when it is missing here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from fintrader.errors import CheckpointError, StorageDamagedError, StorageError, TournamentError
from fintrader.files import publish, read_bytes, remove, write_text
from fintrader.runs import RunFolder
from fintrader.storage.lease import find_newest_token
from fintrader.storage.mirror import Markets, Mirror
from fintrader.tournament.lease import read_token
from fintrader.tournament.spec import PodResult, PodSpec
from fintrader.tournament.state_sync import clear, synchronise
from fintrader.tournament.store import POD_FILES, RunStore, is_whole, move_aside


def open_store(run: RunFolder, mirror: Mirror | None) -> RunStore:
    """Open the run's files: those of its folder, or with a `mirror` those of the object store."""
    return RunStore(run) if mirror is None else MirroredStore(run, mirror)


class MirroredStore(RunStore):
    """A `RunStore` whose files in the object store take precedence."""

    def __init__(self, run: RunFolder, mirror: Mirror) -> None:
        super().__init__(run)
        self.mirror = mirror

    def pull(self) -> None:
        if self.mirror.lease.listing is None:
            self.mirror.pull()
        listing = self.mirror.lease.listing or frozenset()
        here = [*self._list_files_of_pods("spec.json"), *self._list_files_of_pods("result.json")]
        prefix = self.mirror.prefix
        new = [
            path for path in here if f"{prefix}pods/{path.parent.name}/{path.name}" not in listing
        ]
        self.mirror.objects.map(self._push, new)
        over = {name.rpartition("/")[0] for name in listing if name.endswith("/result.json")}
        states = (name for name in listing if "/state" in name)
        self.mirror.objects.remove(
            *(name for name in states if name.partition("/state")[0] in over)
        )

    def _push(self, path: Path) -> None:
        """Push a spec or result that was written before the run had a store, or just before a
        kill."""
        pod = path.parent.name
        text = read_bytes(path).decode()
        try:
            files = {} if path.name == "spec.json" else self._keep_files(PodResult.from_json(path))
        except (TournamentError, CheckpointError):
            return  # damaged: the orchestrator sets it aside
        self._write_copy(path, self.mirror.create_pod_file(pod, path.name, text, files))

    def _keep_files(self, result: PodResult) -> dict[str, str]:
        """Store the files of a result. Raises CheckpointError when one is damaged."""
        if result.snapshot is not None and not self.has_snapshot(result.snapshot):
            raise CheckpointError(f"{self.locate_snapshot(result.snapshot)} is damaged")
        home = self.run.pod(result.pod)
        paths = [home / name for name in POD_FILES if (home / name).is_file()]
        return {path.name: self.mirror.put_file(path) for path in paths}

    def publish(self) -> None:
        self.mirror.publish()

    def keep_events(self, lines: str, everything: Callable[[], str]) -> None:
        self.mirror.append_events(lines, everything)

    def is_superseded(self, token: int) -> bool:
        return find_newest_token(self.mirror.objects) > max(token, read_token(self.run))

    def fetch_market(self, digest: str, path: Path) -> Path:
        if path.exists():
            return path
        fetched = self.mirror.home / ".markets" / digest / "market.safetensors"
        url = self.mirror.store_url
        if not (fetched.is_file() or Markets(url).fetch(digest, fetched.parent)):
            raise CheckpointError(f"{url} has no market {digest[:12]}; run the same command again")
        return fetched

    def keep_market(self, digest: str, path: Path) -> None:
        if path.is_file():
            Markets(self.mirror.store_url).keep([digest], {"market.safetensors": path})

    def keep_training(
        self, spec: PodSpec, folder: Path, seconds: float
    ) -> AbstractContextManager[None]:
        return synchronise(self.mirror, spec, folder, seconds) if seconds else nullcontext()

    def write_specs(self, specs: Sequence[PodSpec]) -> list[PodSpec]:
        return self.mirror.objects.map(self.write_spec, specs)

    def write_spec(self, spec: PodSpec) -> PodSpec:
        """Write the spec to the object store, and copy the version that it then holds here."""
        self._write_copy(
            self.locate_spec(spec.pod),
            self.mirror.create_pod_file(spec.pod, "spec.json", spec.to_json()),
        )
        return super().read_spec(spec.pod)

    def read_spec(self, pod: str) -> PodSpec:
        try:
            return super().read_spec(pod)
        except TournamentError:
            text = self.mirror.read_pod_file(pod, "spec.json")
            if text is None:
                raise
            self._write_copy(self.locate_spec(pod), text)
            return super().read_spec(pod)

    def _write_copy(self, path: Path, text: str) -> None:
        """Write the object store's version here."""
        if not publish(path, text.encode(), sync=False) and read_bytes(path) != text.encode():
            move_aside(path)
            publish(path, text.encode(), sync=False)

    def _locate_unpublished(self, pod: str) -> Path:
        return self.run.pod(pod) / ".unpublished.json"

    def keep_unpublished(self, result: PodResult) -> None:
        write_text(self._locate_unpublished(result.pod), result.to_json())

    def read_unpublished(self, spec: PodSpec) -> PodResult | None:
        try:
            result = PodResult.from_json(self._locate_unpublished(spec.pod))
        except TournamentError:
            return None
        damage = RunStore(self.run).find_damage(result)
        return result if result.spec == spec.digest and not damage else None

    def write_result(self, result: PodResult) -> PodResult:
        pod = result.pod
        own = result.to_json()
        files = self._keep_files(result)
        try:
            text = self.mirror.create_pod_file(pod, "result.json", own, files)
        except StorageDamagedError:
            self._forget(pod, "result.json")
            text = self.mirror.create_pod_file(pod, "result.json", own, files)
        publish(self.locate_result(pod), text.encode())
        remove(self._locate_unpublished(pod))
        # the next start clears away the rest
        with contextlib.suppress(StorageError):
            clear(self.mirror, pod)
        return self.read_result(pod)

    def copy_result(self, result: PodResult) -> PodResult:
        publish(self.locate_result(result.pod), result.to_json().encode())
        return result

    def has_result(self, pod: str) -> bool:
        """Fetch a pod's result from the object store, if it has one; a damaged result is set aside
        there."""
        if super().has_result(pod):
            return True
        try:
            text = self.mirror.read_pod_file(pod, "result.json")
        except StorageDamagedError:
            self._forget(pod, "result.json")
            return False
        if text is not None:
            publish(self.locate_result(pod), text.encode())
        return text is not None

    def _forget(self, pod: str, name: str) -> None:
        self.mirror.set_pod_file_aside(pod, name)

    def put(self, data: bytes) -> str:
        self.mirror.put_bytes(data)
        return super().put(data)

    def get(self, digest: str) -> bytes:
        self._fetch_unless_whole(digest, self.locate_snapshot(digest))
        return super().get(digest)

    def ensure_policy(self, result: PodResult) -> None:
        if result.policy is not None:
            self._fetch_unless_whole(result.policy, self.locate_policy(result.pod))

    def has_leftovers(self, result: PodResult) -> bool:
        stored = self.mirror.lease.listing or ()
        return super().has_leftovers(result) or f"objects/{result.policy}" in stored

    def drop(self, result: PodResult, shared: Collection[str] = ()) -> None:
        """Drop from the object store first, the policy last: `has_leftovers` finds what remains."""
        names = []
        with contextlib.suppress(StorageDamagedError):
            names = self.mirror.list_hashes_of_files(result.pod)
        others = [digest for digest in (result.snapshot, *names) if digest != result.policy]
        for digest in (*others, result.policy):
            if digest is not None and digest not in shared:
                self.mirror.discard(digest)
        super().drop(result, shared)

    def _is_stored(self, digest: str, path: Path) -> bool:
        """Check that content is in the object store; store it there if it is whole here."""
        if self.mirror.has(digest):
            return True
        whole = is_whole(digest, path)
        if whole:
            self.mirror.put_file(path)
        return whole

    def _fetch_unless_whole(self, digest: str, path: Path) -> None:
        if is_whole(digest, path):
            return
        try:
            if self.mirror.fetch(digest, path):
                return
            state = "is missing"
        except StorageDamagedError:
            self.mirror.discard(digest)
            state = "is damaged"
        raise CheckpointError(
            f"{self.mirror.objects}/objects/{digest} {state}; run the same command again to train"
            " its pod anew"
        )
