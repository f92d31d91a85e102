"""One pod: what to train (`PodSpec`), what came out (`PodResult`), and the shell that turns one into the other.

The shell is light on imports: what actually trains is a *body* named as `package.module:function`, by default
`fintrader.tournament.pod_training:train_and_evaluate`. Tests and benchmarks put a stub in its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fintrader import logs
from fintrader.config import load_object
from fintrader.errors import StorageError, StorageFullError
from fintrader.files import file_sha256
from fintrader.tournament.process import place_of
from fintrader.tournament.spec import (
    BODY,
    Body,
    Draft,
    Fenced,
    PodContext,
    PodOutput,
    PodResult,
    PodSpec,
    RankLost,
    Reason,
)

if TYPE_CHECKING:
    from fintrader.tournament.store import RunStore


log = logging.getLogger("fintrader.pod")


def run_pod(spec: PodSpec, context: PodContext, body: str | Body = BODY) -> PodResult:
    """Train and evaluate one pod in its folder; the body's process calls this. Idempotent: a stored result is returned.

    Raises Fenced when another orchestrator took over, and whatever the body raises.
    """
    outcome = begin_pod(spec, context, body)
    return outcome if isinstance(outcome, PodResult) else evaluate_pod(spec, context, outcome)


def begin_pod(spec: PodSpec, context: PodContext, body: str | Body = BODY) -> PodResult | Draft:
    """As `run_pod`; with `context.apart` a body may stop before the evaluation, which is `evaluate_pod`'s then."""
    from fintrader.tournament.state_sync import checkpointed
    from fintrader.tournament.store import RunStore

    store = RunStore(context.run)
    with _logged(spec, context, "pod"), _at_work(spec, context):
        if store.has_result(spec.pod):
            return store.read_result(spec.pod)
        context.market = store.market(spec.data_hash, context.market)
        started = time.time()
        context.place = place_of(context.device)
        call: Body = load_object(body) if isinstance(body, str) else body
        with checkpointed(store.mirror, spec, context):
            output = call(spec, context)
        if output.rest:
            return Draft(
                pod=spec.pod,
                rest=output.rest,
                snapshot=store.put(output.snapshot),
                rung_scores=output.rung_scores,
                env_steps=output.env_steps,
                updates=output.updates,
                started=started,
                seconds=output.seconds,
                device=context.device,
                place=context.place,
                attempts=context.attempt,
            )
        return _publish(store, spec, context, output, started)


def evaluate_pod(spec: PodSpec, context: PodContext, draft: Draft) -> PodResult:
    """Evaluate a trained pod and publish its result, on any machine that sees the run's store. Idempotent.

    Raises CheckpointError when its snapshot is missing or damaged, and what `run_pod` raises.
    """
    from fintrader.tournament.store import RunStore

    store = RunStore(context.run)
    with _logged(spec, context, "evaluation"), _at_work(spec, context):
        if store.has_result(spec.pod):
            return store.read_result(spec.pod)
        context.market = store.market(spec.data_hash, context.market)
        trained = PodOutput(
            score=None,
            snapshot=store.get(draft.snapshot),
            rung_scores=draft.rung_scores,
            env_steps=draft.env_steps,
            updates=draft.updates,
            seconds=draft.seconds,
        )
        output: PodOutput = load_object(draft.rest)(spec, context, trained)
        # A result tells where the training was.
        context.device, context.place, context.attempt = draft.device, draft.place, draft.attempts
        return _publish(store, spec, context, output, draft.started)


def _publish(store: RunStore, spec: PodSpec, context: PodContext, output: PodOutput, started: float) -> PodResult:
    """Everything into the store, the result last."""
    snapshot = store.put(output.snapshot) if output.snapshot else None
    stored = context.folder / "policy.safetensors"
    policy = file_sha256(stored) if stored.exists() else None
    finished = time.time()
    store.keep_spec(spec)
    if context.token is not None and store.superseded(context.token):
        raise Fenced(f"{spec.pod}: another orchestrator has taken over {context.run.root}")
    result = store.write_result(
        PodResult(
            pod=spec.pod,
            status=output.status,
            reason="stopped_early" if output.status == "stopped" else "",
            spec=spec.digest,
            score=output.score,
            window_scores=output.window_scores,
            rung_scores=output.rung_scores,
            metrics=output.metrics,
            returns=output.returns,
            snapshot=snapshot,
            policy=policy,
            env_steps=output.env_steps,
            updates=output.updates,
            started=started,
            finished=finished,
            seconds=finished - started if output.seconds is None else output.seconds,
            device=context.device,
            place=context.place,
            attempts=context.attempt,
        )
    )
    fields = {"status": result.status, "score": result.score, "env_steps": result.env_steps}
    log.info("pod is done", extra={"fields": {**fields, "seconds": round(result.seconds, 3)}})
    return result


@contextlib.contextmanager
def _logged(spec: PodSpec, context: PodContext, what: str) -> Iterator[None]:
    """Structured logs, where they are asked for, with the names of run and pod on every line."""
    with (
        logs.written(logs.from_environment()),
        logs.bound(run=context.run.label, pod=spec.pod, attempt=context.attempt),
    ):
        log.info(f"{what} begins", extra={"fields": {"device": context.device, "origin": spec.origin}})
        try:
            yield
        except Exception:
            if logs.structured():
                log.exception("pod is lost")
            raise


@contextlib.contextmanager
def _at_work(spec: PodSpec, context: PodContext) -> Iterator[None]:
    """The pod's folder, for nobody else at the same time."""
    context.folder = context.run.pod(spec.pod)
    context.folder.mkdir(parents=True, exist_ok=True)
    with _alone(context.folder / ".lock"):
        yield


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process works in this pod's folder; the kernel frees the lock of a dead one."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def failure_reason(error: BaseException) -> Reason:
    """A short word for what went wrong."""
    import errno

    name, text = type(error).__name__, str(error).lower()
    if isinstance(error, Fenced):
        return "fenced"
    if isinstance(error, RankLost):
        return error.reason
    if isinstance(error, MemoryError) or "OutOfMemory" in name or "out of memory" in text:
        return "oom"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full"
    if name == "TrainingError" and ("finite" in text or "nan" in text):
        return "nan"
    if isinstance(error, StorageFullError):
        return "disk_full"
    if isinstance(error, StorageError):
        return "storage"
    if name == "CheckpointError":
        return "snapshot"
    if name == "SafetensorError" and f"os error {errno.ENOSPC}" in text:
        return "disk_full"
    return "error"
