"""What runs on the nodes of a Ray cluster: a pod or its evaluation (`run_task`), and its ranks on further nodes.

A pod that spans several nodes has one more task a node (`serve_ranks`), in the pod's placement group. It starts the
ranks as processes of its node and streams their messages to the pod's own task, which is its owner: when that process
dies, Ray ends this one, and the kernel its ranks. Nothing but those messages travels through Ray; the ranks meet by
themselves (`fusion/coordinator.py`), and each node has run and market from where all nodes have them.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fintrader.config import load_object
from fintrader.errors import TournamentError
from fintrader.runs import RunFolder
from fintrader.storage.mirror import Mirror, copies, mirror_at, working_copy
from fintrader.tournament.fusion.coordinator import GRACE_SECONDS, LocalHost
from fintrader.tournament.launchers.base import context_of
from fintrader.tournament.launchers.ray.cluster import remote
from fintrader.tournament.lease import current_token
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.pod import begin_pod, evaluate_pod, failure_reason
from fintrader.tournament.spec import Host, Message, OnMessage, PodSpec, Reason, TrainedPod
from fintrader.tournament.state_sync import save_all


def run_of(task: Message) -> tuple[RunFolder, Mirror | None]:
    """The run as this node has it: the folder itself, or a copy of its own of what lies in the store.

    Raises TournamentError when it has neither.
    """
    run = RunFolder(Path(task["run"]))
    if task["token"] is None or current_token(run) != 0:
        return run, mirror_at(run.root, task["mirror"])
    if task["mirror"] is None:
        raise TournamentError(
            f"{socket.gethostname()} does not see {run.root}; runs_dir and cache must lie where all nodes see them, "
            "or the run in a store"
        )
    copy = working_copy(task["mirror"]["url"], copies("pods")) / task["mirror"]["inside"]
    return RunFolder(copy), mirror_at(copy, task["mirror"])


def address() -> str:
    """Where other nodes of the cluster reach this one."""
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


def serve_ranks(task: Message, ranks: list[Message]) -> Iterator[Message]:
    """Run `ranks` on this node for the pod of `task`, and yield their messages, each with its rank."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    run, mirror = run_of(task)
    spec = PodSpec.model_validate(task["spec"])
    folder = run.pod(spec.pod)
    folder.mkdir(parents=True, exist_ok=True)
    market = open_store(run, mirror).market(spec.data_hash, Path(task["market"]))
    here = {"run": str(run.root), "market": str(market), "folder": str(folder)}
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    host = LocalHost(address())
    yield {"kind": "joined", "node": node, "host": socket.gethostname(), "pid": os.getpid()}
    try:
        host.start([{**rank, **here} for rank in ranks], lambda rank, message: messages.put({**message, "rank": rank}))
        ended = 0
        while ended < len(ranks):
            message = messages.get()
            ended += message["kind"] == "ended"
            yield message
    finally:
        host.stop()


class RayHost:
    """One more node, as the pod's own task sees it."""

    def __init__(self, task: Message, group: Any, bundle: int, joined: Callable[[Message], None]) -> None:
        """`task`: the pod's; `joined` is called with where the ranks have begun."""
        self.address = ""  # known to its ranks only: they go to the first host
        self._task, self._group, self._bundle, self._joined = task, group, bundle, joined
        self._stream: Any = None
        self._reader: threading.Thread | None = None

    def start(self, tasks: Sequence[Message], on_message: OnMessage) -> None:
        start = remote(
            serve_ranks,
            self._task["need"],
            f"{self._task['spec']['pod']} ranks",
            group=self._group,
            bundle=self._bundle,
        )
        self._stream = start(self._task, list(tasks))
        ranks = {task["rank"] for task in tasks}
        self._reader = threading.Thread(
            target=self._read, args=(ranks, on_message), daemon=True, name="ranks elsewhere"
        )
        self._reader.start()

    def _read(self, ranks: set[int], on_message: OnMessage) -> None:
        """Pass on the messages until the task has ended; ranks that did not send how they ended are lost with it."""
        import ray

        cause: tuple[Reason, str] = ("rank", "its task ended without a message")
        while True:
            try:
                message: Message = ray.get(next(self._stream))
            except StopIteration:
                break
            except ray.exceptions.RayError as error:
                cause = _cause(error)
                continue  # to the end of the stream
            except Exception as error:  # this process is being disconnected
                cause = ("rank", f"{type(error).__name__}: {error}")
                break
            if message["kind"] == "joined":
                self._joined(message)
                continue
            rank = message.pop("rank")
            if message["kind"] == "ended":
                ranks.discard(rank)
            on_message(rank, message)
        for rank in sorted(ranks):
            on_message(rank, {"kind": "ended", "code": None, "reason": cause[0], "detail": cause[1]})

    def stop(self) -> None:
        if self._reader is None:
            return
        self._reader.join(timeout=GRACE_SECONDS)  # its ranks have been ordered to end
        if self._reader.is_alive():
            import ray

            with suppress(Exception):
                ray.cancel(self._stream, force=True)
            self._reader.join(timeout=GRACE_SECONDS)


def _cause(error: Exception) -> tuple[Reason, str]:
    """What became of the task on another node."""
    from ray import exceptions

    if isinstance(error, exceptions.NodeDiedError):
        return "node", "its node vanished"
    if isinstance(error, exceptions.OutOfMemoryError):
        return "oom", "killed by Ray, out of memory on its node; lower env.num_envs"
    lines = str(error).strip().splitlines() or [""]
    detail = f"{type(error).__name__}: {lines[-1]}"[:2000]
    if isinstance(error, exceptions.RayTaskError):  # raised by `serve_ranks` itself
        return "error", detail
    return "rank", f"its node, or the process above it, died ({detail})"


LAST_MESSAGES = ("done", "trained", "failed")
DRAIN_CHECK_SECONDS = 3.0
"""Whether its node is about to go is checked so often."""
REPORT_SECONDS = 0.5
"""Progress is sent no more often."""


def run_task(task: dict[str, Any]) -> Iterator[Message]:
    """Do `task` in a thread and yield its messages; the last one is one of LAST_MESSAGES."""
    import ray

    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    node = ray.get_runtime_context().get_node_id()
    yield {"kind": "started", "node": node, "pid": os.getpid(), "host": socket.gethostname()}
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    hosts: list[Host] = []
    if task["nodes"] > 1:
        group = ray.util.get_current_placement_group()  # known to this thread only
        others = [RayHost(task, group, bundle, messages.put) for bundle in range(1, task["nodes"])]
        hosts = [LocalHost(address()), *others]
    threading.Thread(target=_work, args=(task, messages, hosts), daemon=True, name=task["spec"]["pod"]).start()
    over = threading.Event()
    if task["mirror"] is not None and task["store_seconds"]:
        threading.Thread(target=_watch, args=(node, over), daemon=True, name="node").start()
    try:
        while True:
            message = messages.get()
            yield message
            if message["kind"] in LAST_MESSAGES:
                return
    finally:
        over.set()


def _watch(node: str, over: threading.Event) -> None:
    """While this node is about to go, store the pod's state as often as there is a new one.

    Not left to Ray's cancellation of the task, which does not always interrupt it.
    """
    from ray._private.state import state

    while not over.wait(DRAIN_CHECK_SECONDS):
        with suppress(Exception):  # the head does not answer: the launcher will see
            if node in state.get_draining_nodes():
                save_all()


def _work(task: Message, messages: queue.SimpleQueue[Message], hosts: Sequence[Host] = ()) -> None:
    """Train or evaluate the pod of `task`, and put its messages into the queue."""
    spec = PodSpec.model_validate(task["spec"])
    last_report = 0.0

    def report(share: float, env_steps: int, note: str) -> None:
        nonlocal last_report
        if time.monotonic() - last_report >= REPORT_SECONDS:
            last_report = time.monotonic()
            messages.put({"kind": "progress", "share": share, "env_steps": env_steps, "note": note})

    context = context_of(task, report=report, hosts=hosts, evaluate_elsewhere=task["evaluate_elsewhere"])
    try:
        context.run, context.mirror = run_of(task)
        load_object(task["body"])
        if "torch" in sys.modules:  # one thread, as in a local worker, whatever Ray has set: results depend on it
            sys.modules["torch"].set_num_threads(1)
        report(0.0, 0, "ready")
        if task["trained"] is not None:
            outcome = evaluate_pod(spec, context, TrainedPod.model_validate(task["trained"]))
        else:
            outcome = begin_pod(spec, context, task["body"])
    except BaseException as error:
        _log(context.run, spec.pod)
        detail = f"{type(error).__name__}: {error}"[:2000]
        messages.put({"kind": "failed", "reason": failure_reason(error), "detail": detail})
        return
    kind = "trained" if isinstance(outcome, TrainedPod) else "done"
    messages.put({"kind": kind, "outcome": outcome.model_dump(mode="json")})


def _log(run: RunFolder, pod: str) -> None:
    """Where a local worker would have left it: in the run's folder."""
    with suppress(OSError):
        folder = run.root / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"ray-{pod}.log").open("a") as file:
            traceback.print_exc(file=file)
