"""What runs on a node of a Ray cluster: one pod, or the evaluation of one, as a stream of words to the launcher.

The words are those of a local worker (`worker.py`): `started`, `progress`, then `done`, `trained` or `failed`. They
carry no networks: a snapshot goes to the run's store, and only its hash comes back.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fintrader.config import load_object
from fintrader.runs import RunFolder
from fintrader.tournament.checkpoint import save_kept
from fintrader.tournament.crew import Here, Host
from fintrader.tournament.launchers.nodes import NodeOf, address, run_of
from fintrader.tournament.pod import Draft, PodContext, PodResult, PodSpec, begin_pod, evaluate_pod, failure_reason

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
        others = [NodeOf(task, group, bundle, said.put) for bundle in range(1, task["nodes"])]
        hosts = [Here(address()), *others]
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
