"""The other nodes of a pod that spans several: their ranks live below one Ray task a node, in the pod's group.

The task (`serve`) starts the ranks as processes of its node and streams what they say to the pod's own task, which is
its owner: when that process dies, Ray ends this one, and the kernel its ranks. Nothing but those words travels through
Ray; the ranks meet by themselves (`crew.py`), and each node has run and market from where all nodes have them.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fintrader.errors import TournamentError
from fintrader.runs import RunFolder
from fintrader.storage.mirror import copies, working_copy
from fintrader.tournament.crew import GRACE_SECONDS, Hear, Here, Word
from fintrader.tournament.lease import current_token
from fintrader.tournament.pod import PodSpec, Reason
from fintrader.tournament.store import RunStore


def run_of(task: Word) -> RunFolder:
    """The run as this node has it: the folder itself, or a copy of its own of what lies in the store.

    Raises TournamentError when it has neither.
    """
    run = RunFolder(Path(task["run"]))
    if task["token"] is None or current_token(run) != 0:
        return run
    if task["store"] is None:
        raise TournamentError(
            f"{socket.gethostname()} does not see {run.root}; runs_dir and cache must lie where all nodes see them, "
            "or the run in a store"
        )
    return RunFolder(working_copy(task["store"], copies("pods")) / task["inside"])


def address() -> str:
    """Where other nodes of the cluster reach this one."""
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


def serve(task: Word, ranks: list[Word]) -> Iterator[Word]:
    """Run `ranks` on this node for the pod of `task`, and yield their words, each with its rank."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    run = run_of(task)
    spec = PodSpec.model_validate(task["spec"])
    folder = run.pod(spec.pod)
    folder.mkdir(parents=True, exist_ok=True)
    market = RunStore(run).market(spec.data_hash, Path(task["market"]))
    place = {"run": str(run.root), "market": str(market), "folder": str(folder)}
    said: queue.SimpleQueue[Word] = queue.SimpleQueue()
    host = Here(address())
    yield {"kind": "joined", "node": node, "host": socket.gethostname(), "pid": os.getpid()}
    try:
        host.start([{**rank, **place} for rank in ranks], lambda rank, word: said.put({**word, "rank": rank}))
        ended = 0
        while ended < len(ranks):
            word = said.get()
            ended += word["kind"] == "ended"
            yield word
    finally:
        host.stop()


class NodeOf:
    """One more node, as the pod's own task sees it."""

    def __init__(self, task: Word, group: Any, bundle: int, joined: Callable[[Word], None]) -> None:
        """`task`: the pod's; `joined` is told where the ranks have begun."""
        self.address = ""  # known to its ranks only: they go to the first host
        self._task, self._group, self._bundle, self._joined = task, group, bundle, joined
        self._stream: Any = None
        self._listener: threading.Thread | None = None

    def start(self, tasks: Sequence[Word], hear: Hear) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from fintrader.tournament.launchers.cluster import as_task

        need = self._task["need"]
        options: dict[str, Any] = {
            "num_cpus": need["CPU"],
            "num_gpus": need.get("GPU", 0.0),
            "resources": {name: amount for name, amount in need.items() if name not in ("CPU", "GPU")},
            "num_returns": "streaming",
            "max_retries": 0,
            "name": f"{self._task['spec']['pod']} ranks",
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=self._bundle
            ),
        }
        self._stream = as_task(serve, need).options(**options).remote(self._task, list(tasks))
        ranks = {task["rank"] for task in tasks}
        self._listener = threading.Thread(target=self._listen, args=(ranks, hear), daemon=True, name="ranks elsewhere")
        self._listener.start()

    def _listen(self, ranks: set[int], hear: Hear) -> None:
        """Pass on what is said until the task has ended; ranks that did not say how they ended are lost with it."""
        import ray

        fate: tuple[Reason, str] = ("rank", "its task ended without a word")
        while True:
            try:
                word: Word = ray.get(next(self._stream))
            except StopIteration:
                break
            except ray.exceptions.RayError as error:
                fate = _fate(error)
                continue  # to the end of the stream
            except Exception as error:  # this process is being disconnected
                fate = ("rank", f"{type(error).__name__}: {error}")
                break
            if word["kind"] == "joined":
                self._joined(word)
                continue
            rank = word.pop("rank")
            if word["kind"] == "ended":
                ranks.discard(rank)
            hear(rank, word)
        for rank in sorted(ranks):
            hear(rank, {"kind": "ended", "code": None, "reason": fate[0], "detail": fate[1]})

    def stop(self) -> None:
        if self._listener is None:
            return
        self._listener.join(timeout=GRACE_SECONDS)  # its ranks have been told to end
        if self._listener.is_alive():
            import ray

            with suppress(Exception):
                ray.cancel(self._stream, force=True)
            self._listener.join(timeout=GRACE_SECONDS)


def _fate(error: Exception) -> tuple[Reason, str]:
    """What became of the task on another node."""
    from ray import exceptions

    if isinstance(error, exceptions.NodeDiedError):
        return "node", "its node vanished"
    if isinstance(error, exceptions.OutOfMemoryError):
        return "oom", "killed by Ray for want of memory on its node; lower env.num_envs"
    lines = str(error).strip().splitlines() or [""]
    detail = f"{type(error).__name__}: {lines[-1]}"[:2000]
    if isinstance(error, exceptions.RayTaskError):  # raised by `serve` itself
        return "error", detail
    return "rank", f"its node, or the process above it, died ({detail})"
