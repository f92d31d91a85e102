"""The other nodes of a pod that spans several: their ranks live below one Ray task a node, in the pod's group.

The task (`serve`) starts the ranks as processes of its node and streams what they say to the pod's own task, which is
its owner: when that process dies, Ray ends this one, and the kernel its ranks. Nothing but those words travels through
Ray; the ranks meet by themselves (`crew.py`), and each node has run and market from where all nodes have them.
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
from fintrader.storage.mirror import copies, working_copy
from fintrader.tournament.fusion.coordinator import GRACE_SECONDS, LocalHost
from fintrader.tournament.lease import current_token
from fintrader.tournament.pod import begin_pod, evaluate_pod, failure_reason
from fintrader.tournament.spec import Draft, Host, Message, OnMessage, PodContext, PodResult, PodSpec, Reason
from fintrader.tournament.state_sync import save_kept
from fintrader.tournament.store import RunStore


def run_of(task: Message) -> RunFolder:
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


def serve(task: Message, ranks: list[Message]) -> Iterator[Message]:
    """Run `ranks` on this node for the pod of `task`, and yield their words, each with its rank."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    run = run_of(task)
    spec = PodSpec.model_validate(task["spec"])
    folder = run.pod(spec.pod)
    folder.mkdir(parents=True, exist_ok=True)
    market = RunStore(run).market(spec.data_hash, Path(task["market"]))
    place = {"run": str(run.root), "market": str(market), "folder": str(folder)}
    said: queue.SimpleQueue[Message] = queue.SimpleQueue()
    host = LocalHost(address())
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


class RayHost:
    """One more node, as the pod's own task sees it."""

    def __init__(self, task: Message, group: Any, bundle: int, joined: Callable[[Message], None]) -> None:
        """`task`: the pod's; `joined` is told where the ranks have begun."""
        self.address = ""  # known to its ranks only: they go to the first host
        self._task, self._group, self._bundle, self._joined = task, group, bundle, joined
        self._stream: Any = None
        self._listener: threading.Thread | None = None

    def start(self, tasks: Sequence[Message], hear: OnMessage) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from fintrader.tournament.launchers.ray.cluster import as_task

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

    def _listen(self, ranks: set[int], hear: OnMessage) -> None:
        """Pass on what is said until the task has ended; ranks that did not say how they ended are lost with it."""
        import ray

        fate: tuple[Reason, str] = ("rank", "its task ended without a word")
        while True:
            try:
                word: Message = ray.get(next(self._stream))
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


LAST_WORDS = ("done", "trained", "failed")


LOOK_SECONDS = 3.0
"""Whether its node is about to go is looked at so often."""


REPORT_SECONDS = 0.5
"""Progress is told no more often."""


def words(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Do `task` in a thread and yield what it has to say; the last word is one of LAST_WORDS."""
    import ray

    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    node = ray.get_runtime_context().get_node_id()
    yield {"kind": "started", "node": node, "pid": os.getpid(), "host": socket.gethostname()}
    said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    hosts: list[Host] = []
    if task["nodes"] > 1:
        group = ray.util.get_current_placement_group()  # known to this thread only
        others = [RayHost(task, group, bundle, said.put) for bundle in range(1, task["nodes"])]
        hosts = [LocalHost(address()), *others]
    threading.Thread(target=_work, args=(task, said, hosts), daemon=True, name=task["spec"]["pod"]).start()
    over = threading.Event()
    if task["store"] is not None and task["store_seconds"]:
        threading.Thread(target=_watch, args=(node, over), daemon=True, name="node").start()
    try:
        while True:
            word = said.get()
            yield word
            if word["kind"] in LAST_WORDS:
                return
    finally:
        over.set()


def _watch(node: str, over: threading.Event) -> None:
    """While this node is about to go, store the pod's state as often as there is a new one.

    Not left to Ray's cancellation of the task, which does not always interrupt it.
    """
    from ray._private.state import state

    while not over.wait(LOOK_SECONDS):
        with suppress(Exception):  # the head does not answer: the launcher will see
            if node in state.get_draining_nodes():
                save_kept()


def _work(task: dict[str, Any], said: queue.SimpleQueue[dict[str, Any]], hosts: Sequence[Host] = ()) -> None:
    spec = PodSpec.model_validate(task["spec"])
    run = RunFolder(Path(task["run"]))
    told = 0.0

    def report(share: float, env_steps: int, note: str) -> None:
        nonlocal told
        if time.monotonic() - told >= REPORT_SECONDS:
            told = time.monotonic()
            said.put({"kind": "progress", "share": share, "env_steps": env_steps, "note": note})

    context = PodContext(
        run=run,
        market=Path(task["market"]),
        device=task["device"],
        token=task["token"],
        attempt=task["attempt"],
        report=report,
        hosts=hosts,
        store_seconds=task["store_seconds"],
        apart=task["apart"],
    )
    outcome: PodResult | Draft
    try:
        run = context.run = run_of(task)
        load_object(task["body"])
        if "torch" in sys.modules:  # one thread, as in a local worker, whatever Ray has set: results depend on it
            sys.modules["torch"].set_num_threads(1)
        report(0.0, 0, "ready")
        if task["draft"] is not None:
            outcome = evaluate_pod(spec, context, Draft.model_validate(task["draft"]))
        else:
            outcome = begin_pod(spec, context, task["body"])
    except BaseException as error:
        _log(run, spec.pod)
        detail = f"{type(error).__name__}: {error}"[:2000]
        said.put({"kind": "failed", "reason": failure_reason(error), "detail": detail})
        return
    kind = "trained" if isinstance(outcome, Draft) else "done"
    said.put({"kind": kind, "outcome": outcome.model_dump(mode="json")})


def _log(run: RunFolder, pod: str) -> None:
    """Where a local worker would have left it: in the run's folder."""
    with suppress(OSError):
        folder = run.root / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"ray-{pod}.log").open("a") as file:
            traceback.print_exc(file=file)
