"""A pod's shell: it locks the pod's folder, calls the body that trains, and publishes its output,
the result last.

The shell is light on imports: training is done by a *body* named as `package.module:function`, by
default `fintrader.tournament.pod_training:train_and_evaluate`. Tests and benchmarks use a stub.

`python -m fintrader.tournament.pod` is a process for pods, started by `LocalLauncher`. It imports
the bodies' modules once and then runs one pod after another, each a JSON line on its standard
input; it answers by JSON lines on its original standard output. Prints of the body go to the
worker's log.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from fintrader import logs, reproducible
from fintrader.config import load_object
from fintrader.errors import FintraderError, StorageError
from fintrader.files import hash_file
from fintrader.records import from_json
from fintrader.storage.outages import allow_outages
from fintrader.system import start_thread
from fintrader.tournament.at_work import lock_pod, wait_for_takeover
from fintrader.tournament.messages import (
    FailureMessage,
    PodTask,
    ProgressMessage,
    ReadyMessage,
    ResultMessage,
    TrainedMessage,
)
from fintrader.tournament.pod_context import BODY, Body, PodContext
from fintrader.tournament.process import Channel, describe_location
from fintrader.tournament.spec import Fenced, OrphanLost, PodResult, PodSpec, Reason, TrainedPod
from fintrader.tournament.state_sync import save_all
from fintrader.tournament.store import RunStore

log = logging.getLogger("fintrader.pod")


def run_pod(spec: PodSpec, context: PodContext, body: str | Body = BODY) -> PodResult:
    """Train and evaluate one pod in its folder. Idempotent: a stored result is returned.

    Raises Fenced when another orchestrator took over, and any error of the body.
    """
    outcome = begin_pod(spec, context, body)
    return evaluate_pod(spec, context, outcome) if isinstance(outcome, TrainedPod) else outcome


def begin_pod(spec: PodSpec, context: PodContext, body: str | Body = BODY) -> PodResult:
    """Run a pod; with `evaluate_elsewhere` it may end with a `TrainedPod`, for
    `evaluate_pod`."""
    with _open_pod(spec, context, "pod") as store:
        if store.has_result(spec.pod):
            return store.read_result(spec.pod)
        unpublished = store.read_unpublished(spec)
        if unpublished is not None:  # an earlier attempt trained it and could not store it
            return _store_result(store, spec, context, unpublished)
        context.market = store.fetch_market(spec.data_hash, context.market)
        started = time.time()
        call = load_object(body) if isinstance(body, str) else body
        with store.keep_training(spec, context.folder, context.operations.store_seconds):
            learned = call(spec, context)
        outcome = replace(
            learned,
            started=started,
            device=context.device,
            location=describe_location(context.device),
            attempts=context.attempt,
        )
        return (
            outcome if isinstance(outcome, TrainedPod) else _publish(store, spec, context, outcome)
        )


def evaluate_pod(spec: PodSpec, context: PodContext, trained: TrainedPod) -> PodResult:
    """Evaluate a trained pod and publish its result, on any machine with access to the run's store.
    Idempotent.

    Raises CheckpointError when its snapshot is missing or damaged, and any error of `run_pod`.
    """
    with _open_pod(spec, context, "evaluation") as store:
        if store.has_result(spec.pod):
            return store.read_result(spec.pod)
        context.market = store.fetch_market(spec.data_hash, context.market)
        return _publish(store, spec, context, load_object(trained.evaluate)(spec, context, trained))


def _publish(store: RunStore, spec: PodSpec, context: PodContext, result: PodResult) -> PodResult:
    """Complete the result and store it after its files."""
    policy = context.folder / "policy.safetensors"
    finished = time.time()
    complete = replace(
        result,
        spec=spec.digest,
        policy=hash_file(policy) if policy.exists() else None,
        finished=finished,
        seconds=result.seconds or finished - result.started,
    )
    return _store_result(store, spec, context, complete)


def _store_result(
    store: RunStore, spec: PodSpec, context: PodContext, result: PodResult
) -> PodResult:
    """Store the result; return the stored one, which may be an earlier attempt's."""
    if store.is_replaced(spec):
        raise Fenced(f"{spec.pod}: {context.run.root} now contains another run")
    store.keep_unpublished(result)
    store.keep_spec(spec)
    if context.token is not None and store.is_superseded(context.token):
        raise Fenced(f"{spec.pod}: another orchestrator has taken over {context.run.root}")
    result = store.write_result(result)
    store.delete_training_state(spec.pod)
    fields = {
        "status": result.status,
        "score": result.score,
        "env_steps": result.env_steps,
        "seconds": round(result.seconds, 3),
    }
    log.info("pod is done", extra={"fields": fields})
    return result


@contextlib.contextmanager
def _open_pod(spec: PodSpec, context: PodContext, stage: str) -> Iterator[RunStore]:
    """Hold the pod, open its run's store, and write structured logs, if requested, with the names
    of run and pod on every line."""
    with (
        logs.use_format(),
        logs.bind(run=context.run.label, pod=spec.pod, attempt=context.attempt),
    ):
        log.info(
            f"{stage} begins", extra={"fields": {"device": context.device, "origin": spec.origin}}
        )
        try:
            with lock_pod(spec, context, find_reason), _wait_out_outages(context):
                yield context.open_store()
        except Exception:
            if logs.is_structured():
                log.exception("pod is lost")
            raise


@contextlib.contextmanager
def _wait_out_outages(context: PodContext) -> Iterator[None]:
    """Wait for a store that does not answer, with signs of life meanwhile."""
    report = context.report
    last = (0.0, 0, "")

    def record_report(share: float, env_steps: int, note: str) -> None:
        nonlocal last
        last = share, env_steps, note
        report(share, env_steps, note)

    if not context.operations.outage_seconds:
        yield
        return
    context.report = record_report
    try:
        with allow_outages(
            context.operations.outage_seconds, lambda _: report(*last[:2], "waiting for the store")
        ):
            yield
    finally:
        context.report = report


def describe_failure(error: BaseException, pod: str = "") -> FailureMessage:
    """Build the message that reports a pod's failure."""
    name = "" if isinstance(error, OrphanLost) else f"{type(error).__name__}: "
    reason = find_reason(error)
    is_last = reason in ("oom", "fenced") or not isinstance(error, Exception)
    return FailureMessage(reason, f"{name}{error}"[:2000], pod, is_last)


def find_reason(error: BaseException) -> Reason:
    """Find the reason of a loss: fintrader's errors name it, other errors are classified by
    type."""
    if isinstance(error, FintraderError):
        return cast(Reason, error.reason)
    if isinstance(error, MemoryError) or _is_out_of_gpu_memory(error):
        return "oom"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full"
    if type(error).__name__ == "SafetensorError" and f"os error {errno.ENOSPC}" in str(error):
        # safetensors wraps the system's error and keeps its number in the text alone
        return "disk_full"
    return "error"


def _is_out_of_gpu_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")  # not imported here: a stub pod's process does without it
    if torch is None or not isinstance(error, RuntimeError):
        return False
    # The driver's own refusal (cudaErrorMemoryAllocation) has no type in torch, only this text.
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()


# --- the process ----------------------------------------------------------------------------------


def main() -> None:
    """Serve pods until the launcher is gone, and the last pod for a while longer."""
    with logs.use_format():
        logs.print_as_records()
        serve()


def serve() -> None:
    """Import the pods' modules, then run one pod after another."""
    signal.signal(signal.SIGTERM, _save_and_end)
    channel = Channel(outlives=True)
    for module in sys.argv[2:]:
        load_object(module)
    reproducible.settle()
    channel.send(ReadyMessage())
    tasks: queue.SimpleQueue[PodTask | None] = queue.SimpleQueue()
    is_alone = threading.Event()

    def read_tasks() -> None:
        task = None
        for line in channel.inbox:
            task = from_json(PodTask, json.loads(line))
            tasks.put(task)
        is_alone.set()
        tasks.put(None)  # the launcher closed the pipe, or is gone: this pod is the last one
        if task is not None:
            wait_for_takeover(task.spec.pod, PodContext.from_task(task))
            os._exit(1)

    start_thread(read_tasks)
    for task in iter(tasks.get, None):
        if not _run_task(task, channel, is_alone):
            os._exit(1)
    os._exit(0)


def _save_and_end(*_: object) -> None:
    """Store unsaved training states, then end by SIGTERM."""
    save_all()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _run_task(task: PodTask, channel: Channel, is_alone: threading.Event) -> bool:
    """Train or evaluate one pod and answer; False if this process should not be used again.

    A pod that another process was to evaluate is evaluated here once the launcher is gone.
    """
    pod = task.spec.pod

    def report(share: float, env_steps: int, note: str) -> None:
        channel.send(ProgressMessage(pod, share, env_steps, note))

    try:
        context = PodContext.from_task(task, report=report)
        outcome = task.trained or begin_pod(task.spec, context, task.body)
        if isinstance(outcome, TrainedPod):
            if task.trained is None and task.evaluate_elsewhere and not is_alone.is_set():
                channel.send(TrainedMessage(outcome))
                return True
            outcome = evaluate_pod(task.spec, context, outcome)
    except BaseException as error:
        if isinstance(error, StorageError):
            print(error, file=sys.stderr)  # needs no traceback
        elif not logs.is_structured():  # structured logs have the traceback already
            traceback.print_exc(file=sys.stderr)
        failure = describe_failure(error, pod)
        channel.send(failure)
        return not failure.is_last
    channel.send(ResultMessage(outcome))
    return True


if __name__ == "__main__":
    main()
