"""Tasks of a Ray cluster: a pod or its evaluation (`run_task`), its ranks on further nodes, and
their readers.

A pod that spans several nodes has a further task on each other node (`serve_ranks`), in the pod's
placement group. The further task starts ranks as processes of its node and streams their
messages to the pod's task, its owner. When the owner's process dies, Ray ends the further task,
and the kernel ends its ranks. Only messages travel through Ray; ranks connect to each other
directly (`fusion/coordinator.py`). Each node gets run and market from the shared folder or the
store.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import ray
from ray import exceptions
from ray._private.state import state
from ray.util import get_node_ip_address, remove_placement_group

from fintrader import reproducible
from fintrader.config import load_object
from fintrader.errors import RunError, TournamentError
from fintrader.files import make_folder, open_file
from fintrader.runs import RunFolder
from fintrader.storage.mirror import Mirror, locate_cache, open_mirror, open_working_copy
from fintrader.system import start_thread
from fintrader.tournament.fusion.coordinator import GRACE_SECONDS, LocalHost
from fintrader.tournament.launchers import LEAVE_SECONDS
from fintrader.tournament.launchers.ray.cluster import wrap_remote
from fintrader.tournament.lease import read_token
from fintrader.tournament.messages import (
    EndMessage,
    FailureMessage,
    Host,
    Message,
    OnMessage,
    PodTask,
    ProgressMessage,
    RankMessage,
    RankTask,
    ResultMessage,
    StartMessage,
    TrainedMessage,
)
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.pod import begin_pod, describe_failure, evaluate_pod
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.spec import PodResult, Reason, TrainedPod
from fintrader.tournament.state_sync import save_all

WAIT_SECONDS = 0.2


def is_last(message: Message) -> bool:
    """Check that a pod's task sends nothing after this message."""
    return isinstance(message, ResultMessage | TrainedMessage | FailureMessage)


class Source(Protocol):
    """Stream of a pod's messages."""

    pending: Any
    """The object that `ray.wait` waits for."""

    def take(self) -> Sequence[Message]:
        """Take the arrived messages. Raises RayError for a failure, StopIteration at the end."""

    def kill(self) -> None:
        """End its process, without another call."""


@dataclass
class TaskSource:
    """Messages of a task, which yields them."""

    pending: Any

    def take(self) -> Sequence[Message]:
        return [ray.get(next(self.pending))]

    def kill(self) -> None:
        with suppress(Exception):
            ray.cancel(self.pending, force=True)


@dataclass(eq=False)
class Stream:
    """One task's messages, with the placement group that it lives in.

    After its last message a task is still returning. If its group were released then, or its stream
    no longer read, Ray would kill it and print an unhandled error.
    """

    source: Source
    on_message: Callable[[Any], None]
    on_end: Callable[[Exception | None], None]
    """Called once, at the end."""
    group: Any = None
    error: Exception | None = None
    is_stopped: bool = False
    """True once stopped: further messages are dropped."""
    deadline: float | None = None
    """Time by which the task must have ended (monotonic seconds); None: no deadline."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set once it has ended and its group is released."""

    def set_deadline(self) -> None:
        """Give the task LEAVE_SECONDS from now to end; an earlier deadline stays."""
        self.deadline = self.deadline or time.monotonic() + LEAVE_SECONDS

    def stop(self) -> None:
        """Kill the task's process. Its group is released when it is gone."""
        self.is_stopped = True
        self.set_deadline()
        self.source.kill()


class Streams:
    """The messages of many tasks, all read by one thread until each task has ended."""

    def __init__(self) -> None:
        self._streams: set[Stream] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = start_thread(self._read, name="ray streams")

    def add(self, stream: Stream) -> None:
        """Read a task from now on."""
        with self._lock:
            self._streams.add(stream)

    def close(self, *, wait: bool = True) -> None:
        """Wait for stopped tasks until their deadline; `wait` is False if the head is gone."""
        deadline = time.monotonic() + LEAVE_SECONDS / 2
        while wait and self._streams and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._closing.set()
        self._thread.join(timeout=2)

    def _read(self) -> None:
        while not self._closing.is_set():
            with self._lock:
                streams = {stream.source.pending: stream for stream in self._streams}
            if not streams:
                self._closing.wait(0.05)
                continue
            try:
                ready, _ = ray.wait(
                    list(streams), num_returns=1, timeout=WAIT_SECONDS, fetch_local=False
                )
                if ready:
                    ready, _ = ray.wait(
                        list(streams), num_returns=len(streams), timeout=0, fetch_local=False
                    )
            except Exception:  # disconnected, as `close` does
                self._closing.wait(WAIT_SECONDS)
                continue
            for one in ready:
                self._take_messages(streams[one])
            for stream in streams.values():
                if stream.deadline is not None and time.monotonic() > stream.deadline:
                    stream.source.kill()
                    self._end(stream)

    def _take_messages(self, stream: Stream) -> None:
        """Take the arrived messages. An error is not the end: another error may follow, and is read
        too."""
        try:
            messages = stream.source.take()
        except StopIteration:
            self._end(stream)
        except exceptions.RayError as error:
            stream.error = stream.error or error
            stream.set_deadline()
        else:
            for message in messages:
                if is_last(message):
                    stream.set_deadline()
                if not stream.is_stopped:
                    stream.on_message(message)

    def _end(self, stream: Stream) -> None:
        with self._lock:
            if stream not in self._streams:
                return
            self._streams.discard(stream)
        if stream.group is not None:
            with suppress(Exception):
                remove_placement_group(stream.group)
        if not stream.is_stopped:
            stream.on_end(stream.error)
        stream.over.set()


def find_run(task: PodTask) -> tuple[RunFolder, Mirror | None]:
    """Find the run on this node: its folder, or a working copy of the run in the store.

    Raises TournamentError when there is neither.
    """
    run = RunFolder(Path(task.run))
    if task.token is None or read_token(run) != 0:
        return run, open_mirror(run.root, task.mirror)
    if task.mirror is None:
        raise TournamentError(
            f"{socket.gethostname()} does not see {run.root}; runs_dir and cache must be where all"
            " nodes see them, or the run must be in a store"
        )
    copy = open_working_copy(task.mirror["url"], locate_cache("pods")) / task.mirror["inside"]
    return RunFolder(copy), open_mirror(copy, task.mirror)


def describe_start(*, joined: bool = False) -> StartMessage:
    """Describe the place of this task, which has started."""
    node = ray.get_runtime_context().get_node_id()
    return StartMessage(node, socket.gethostname(), os.getpid(), joined)


def find_address() -> str:
    """Find the address at which other nodes of the cluster reach this one."""
    return str(get_node_ip_address())


def serve_ranks(task: PodTask, ranks: list[RankTask]) -> Iterator[StartMessage | RankMessage]:
    """Run `ranks` on this node for the pod of `task`, and yield their messages, each with its
    rank."""
    run, mirror = find_run(task)
    folder = run.pod(task.spec.pod)
    make_folder(folder)
    market = open_store(run, mirror).fetch_market(task.spec.data_hash, Path(task.market))
    messages: queue.SimpleQueue[RankMessage] = queue.SimpleQueue()
    host = LocalHost(find_address())
    yield describe_start(joined=True)
    try:
        host.start(
            [
                replace(
                    rank,
                    pod=replace(rank.pod, run=str(run.root), market=str(market)),
                    folder=str(folder),
                )
                for rank in ranks
            ],
            lambda rank, message: messages.put((rank, message)),
        )
        ended = 0
        while ended < len(ranks):
            rank, message = messages.get()
            ended += isinstance(message, EndMessage)
            yield rank, message
    finally:
        host.stop()


@dataclass
class RayHost:
    """Another node, as the pod's task sees it."""

    task: PodTask
    """Task of the pod whose ranks run there."""
    group: Any
    bundle: int
    streams: Streams
    on_join: Callable[[StartMessage], None]
    """Called with the place where the ranks have started."""
    address: str = ""
    """Always empty: ranks connect to the first host, and a `RayHost` is never the first."""
    stream: Stream | None = None

    def start(self, tasks: Sequence[RankTask], on_message: OnMessage) -> None:
        name = f"{self.task.spec.pod} ranks"
        serve = wrap_remote(serve_ranks, self.task.need, name, group=self.group, bundle=self.bundle)
        ranks = {task.rank for task in tasks}

        def receive(news: StartMessage | RankMessage) -> None:
            if isinstance(news, StartMessage):
                self.on_join(news)
                return
            rank, message = news
            if isinstance(message, EndMessage):
                ranks.discard(rank)
            on_message(rank, message)

        def on_end(error: Exception | None) -> None:
            """Report ranks that did not send their end as lost with their task."""
            reason, detail = (
                explain_error(error)
                if error is not None
                else ("rank", "its task ended without a message")
            )
            own = isinstance(error, exceptions.RayTaskError)  # raised by `serve_ranks` itself
            if error is not None and not own and reason not in ("oom", "node"):
                reason = "rank"
                detail = f"its node or its parent process died ({detail})"
            for rank in sorted(ranks):
                on_message(rank, EndMessage(None, "", reason, detail))

        self.stream = Stream(TaskSource(serve(self.task, list(tasks))), receive, on_end)
        self.streams.add(self.stream)

    def stop(self) -> None:
        # Its ranks were ordered to end.
        if self.stream is not None and not self.stream.over.wait(GRACE_SECONDS):
            self.stream.stop()
            self.stream.over.wait(GRACE_SECONDS)


def explain_error(error: Exception) -> tuple[Reason, str]:
    """Translate the error of a task to a reason and a detail."""
    if isinstance(error, exceptions.OutOfMemoryError) or (
        isinstance(error, exceptions.RayActorError) and "out of memory" in str(error).lower()
    ):
        return "oom", "killed by Ray, out of memory on its node; lower env.num_envs"
    if isinstance(error, exceptions.NodeDiedError):
        return "node", "its node vanished"
    if isinstance(error, exceptions.WorkerCrashedError | exceptions.RayActorError):
        return "killed", "its process died"
    if isinstance(error, exceptions.TaskCancelledError):
        return "drained", "cancelled from outside"
    lines = str(error).strip().splitlines() or [""]
    return "error", f"{type(error).__name__}: {lines[-1]}"[:2000]


DRAIN_CHECK_SECONDS = 3.0
"""Seconds between checks for a node that is about to leave."""
REPORT_SECONDS = 0.5
"""Least seconds between two reports of progress."""


def run_task(task: PodTask) -> Iterator[Message]:
    """Run `task` in a thread and yield its messages, until one `is_last`."""
    os.environ.update(reproducible.ONE_THREAD)
    start = describe_start()
    yield start
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    hosts = []
    streams = Streams() if task.nodes > 1 else None
    if streams is not None:
        group = ray.util.get_current_placement_group()  # known to this thread only
        others = [
            RayHost(task, group, bundle, streams, messages.put) for bundle in range(1, task.nodes)
        ]
        hosts = [LocalHost(find_address()), *others]

    def work(context: PodContext) -> Message:
        outcome = train_or_evaluate(task, context)
        return (
            TrainedMessage(outcome) if isinstance(outcome, TrainedPod) else ResultMessage(outcome)
        )

    start_thread(work_on_pod, task, messages.put, work, hosts, name=task.spec.pod)
    over = threading.Event()
    if task.mirror is not None and task.operations.store_seconds:
        start_thread(follow_node, start.node, over, name="node")
    try:
        while True:
            message = messages.get()
            yield message
            if is_last(message):
                return
    finally:
        over.set()
        if streams is not None:
            streams.close(wait=False)


def follow_node(node: str, over: threading.Event) -> None:
    """Store the pod's state repeatedly while this node is about to leave.

    Ray's cancellation of the task is no substitute, since it does not always interrupt.
    """
    while not over.wait(DRAIN_CHECK_SECONDS):
        with suppress(Exception):  # the head does not answer; the launcher handles that
            if node in state.get_draining_nodes():
                save_all()


def work_on_pod(
    task: PodTask,
    send: Callable[[Message], None],
    work: Callable[[PodContext], Message | None],
    hosts: Sequence[Host] = (),
) -> None:
    """Do `work` on the pod of `task`; send its signs of life, at most one every REPORT_SECONDS, and
    then the message that it returns.

    The body is imported and the threads are set before, as in a local worker, since results depend
    on the number of threads. A failure is sent, too; its traceback goes to the run's logs.
    """
    last_report = 0.0

    def report(share: float, env_steps: int, note: str) -> None:
        nonlocal last_report
        if time.monotonic() - last_report >= REPORT_SECONDS:
            last_report = time.monotonic()
            send(ProgressMessage(task.spec.pod, share, env_steps, note))

    context = PodContext.from_task(task, report=report, hosts=hosts)
    try:
        context.run, context.mirror = find_run(task)
        load_object(task.body)
        reproducible.settle()
        report(0.0, 0, "ready")
        last = work(context)
    except BaseException as error:
        _log_traceback(context.run, task.spec.pod)
        last = describe_failure(error)
    if last is not None:
        send(last)


def train_or_evaluate(task: PodTask, context: PodContext) -> PodResult:
    """Train a pod, or evaluate a trained pod."""
    if task.trained is not None:
        return evaluate_pod(task.spec, context, task.trained)
    return begin_pod(task.spec, context, task.body)


def _log_traceback(run: RunFolder, pod: str) -> None:
    """Write the traceback to the run's folder, as a local worker does."""
    with suppress(OSError, RunError):
        folder = run.root / "logs"
        make_folder(folder)
        with open_file(folder / f"ray-{pod}.log", "ab") as file:
            file.write(traceback.format_exc().encode())
