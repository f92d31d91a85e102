"""One pod: what to train (`PodSpec`), what came out (`PodResult`), and the shell that turns one into the other.

The shell is light on imports: what actually trains is a *body* named as `package.module:function`, by default
`fintrader.tournament.body:train_and_evaluate`. Tests and benchmarks put a stub in its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, ValidationError

from fintrader import logs
from fintrader.config import Settings, load_object
from fintrader.errors import StorageError, StorageFullError, TournamentError
from fintrader.runs import RunFolder, dump_json, file_sha256
from fintrader.tournament.places import place_of

if TYPE_CHECKING:
    from fintrader.tournament.crew import Host
    from fintrader.tournament.store import RunStore

log = logging.getLogger("fintrader.pod")
BODY = "fintrader.tournament.body:train_and_evaluate"
WALL_CLOCK = ("started", "finished", "seconds", "device", "place", "attempts")
"""Fields of a result that no seed can fix."""
Reason = Literal[
    "",
    "killed",
    "rank",
    "node",
    "drained",
    "hung",
    "oom",
    "nan",
    "disk_full",
    "storage",
    "snapshot",
    "error",
    "stopped_early",
    "fenced",
]


class _Record(Settings):
    """A settings-like record that lives in a JSON file."""

    def to_json(self) -> str:
        """Equal records give equal bytes."""
        return dump_json(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, path: Path) -> Self:
        """Raises TournamentError when the file is missing, damaged or of another version."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise TournamentError(f"{path} does not exist") from None
        except (ValidationError, ValueError) as error:
            problem = str(error).splitlines()[0]
            raise TournamentError(f"{path} is damaged or of another version ({problem}); remove its folder") from None


class StopRule(Settings):
    """At `share` of the budget, stop when the score lies below `score` (what the peers had at that age)."""

    share: float
    score: float


class PodSpec(_Record):
    """What to train. A pure function of the root seed, the pod's number and the results seen before it."""

    pod: str
    """Identifier, `p0007`."""
    index: int
    seed: int
    origin: Literal["fresh", "exploit", "survivor"]
    parent: str | None = None
    """Pod whose networks and optimiser it starts from."""
    snapshot: str | None = None
    """SHA-256 of that parent's snapshot."""
    seen: int = 0
    """Results that had been applied to the leaderboard when this spec was made."""
    generation: int = 0
    """Generation (generational scheduler), else distance from the founders."""
    agent: dict[str, Any]
    """Settings of the agent, complete."""
    hyper: dict[str, Any] = Field(default_factory=dict)
    """The searched settings among them, by dotted name."""
    env: dict[str, Any] = Field(default_factory=dict)
    """Settings of the environment, complete."""
    budget: dict[str, Any]
    evaluation: dict[str, Any] = Field(default_factory=dict)
    """Metric, windows and penalty of the evaluator."""
    stops: tuple[StopRule, ...] = ()
    """Successive halving; empty unless asked for."""
    rungs: tuple[float, ...] = ()
    """Shares of the budget at which the pod is scored on its way."""
    replicas: int = 1
    """Learners that are fused (learner fusion); one is plain training."""
    fusions: int = 8
    """Times they are."""
    data_hash: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of what the spec says beyond the defaults: a result names the spec it belongs to.

        Fields that a later version adds therefore leave the digests of earlier runs as they are.
        """
        said = self.model_dump(mode="json", exclude_defaults=True)
        return hashlib.sha256(dump_json(said).encode()).hexdigest()


class PodResult(_Record):
    """What came out of a pod. Written once, last."""

    pod: str
    epoch: int = 0
    """Counts a pod's submissions; (pod, epoch) is what the updater knows a result by."""
    status: Literal["done", "stopped", "failed"]
    reason: Reason = ""
    detail: str = ""
    spec: str = ""
    """Digest of the spec it belongs to."""
    score: float | None = None
    """What the leaderboard sorts by; None ranks last."""
    window_scores: tuple[float | None, ...] = ()
    rung_scores: dict[str, float | None] = Field(default_factory=dict)
    """Score on the way, by share of the budget."""
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """All of the validation window's metrics."""
    returns: tuple[float, ...] = ()
    """Daily returns on the validation window."""
    snapshot: str | None = None
    policy: str | None = None
    """SHA-256 of the pod's `policy.safetensors`."""
    env_steps: int = 0
    """Steps trained by this pod alone."""
    updates: int = 0
    started: float = 0.0
    finished: float = 0.0
    seconds: float = 0.0
    """Training and evaluation, resumed parts included where the body knows them."""
    device: str = ""
    place: str = ""
    """Where it was trained: `place_of`."""
    attempts: int = 1

    def reproducible(self) -> dict[str, Any]:
        """All that must be equal between two runs of one spec: everything but times and places."""
        return self.model_dump(mode="json", exclude=set(WALL_CLOCK))


class Draft(_Record):
    """A trained pod that nobody has evaluated yet: what an evaluator elsewhere needs to complete its result."""

    pod: str
    rest: str
    """`package.module:function` that evaluates it."""
    snapshot: str
    """SHA-256 of the agent's state."""
    rung_scores: dict[str, float | None] = Field(default_factory=dict)
    env_steps: int = 0
    updates: int = 0
    started: float = 0.0
    seconds: float | None = None
    device: str = ""
    place: str = ""
    attempts: int = 1


@dataclass
class PodOutput:
    """What a body returns; the shell stores it. A policy is already in the pod's folder, as `policy.safetensors`."""

    score: float | None
    snapshot: bytes = b""
    """Safetensors of the agent's state; empty when there is nothing to inherit."""
    status: Literal["done", "stopped"] = "done"
    window_scores: tuple[float | None, ...] = ()
    rung_scores: dict[str, float | None] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)
    returns: tuple[float, ...] = ()
    env_steps: int = 0
    updates: int = 0
    seconds: float | None = None
    rest: str = ""
    """`package.module:function` that evaluates it; only where `PodContext.apart` allows a body to leave that."""


@dataclass
class PodContext:
    """What a body needs besides its spec: where things lie, and how to give a sign of life."""

    run: RunFolder
    market: Path
    device: str = "cpu"
    """Torch device; several joined by `+` (threads of one process) or by `/` (a process each)."""
    place: str = ""
    token: int | None = None
    """The orchestrator's fencing token; a pod of a superseded orchestrator publishes nothing."""
    attempt: int = 1
    report: Callable[[float, int, str], None] = lambda share, env_steps, note: None
    """Share of the budget, env-steps, note. A pod that stays silent for too long is taken for hung."""
    folder: Path = Path()
    hosts: Sequence[Host] = ()
    """The machines of a pod that spans several, this one first; the devices are then theirs, one after another."""
    store_seconds: float = 0.0
    """Where the run lies in a store, the pod's training state goes there so often; 0: never."""
    apart: bool = False
    """A body may leave the last evaluation to an evaluator elsewhere, see `PodOutput.rest`."""


class Fenced(TournamentError):
    """Another orchestrator has taken over; this pod's result is not wanted from here."""


class RankLost(TournamentError):
    """One process of a pod that spans devices came to nothing; `reason` is what the pod fails by."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason


Body = Callable[[PodSpec, PodContext], PodOutput]


def run_pod(spec: PodSpec, context: PodContext, body: str | Body = BODY) -> PodResult:
    """Train and evaluate one pod in its folder; the body's process calls this. Idempotent: a stored result is returned.

    Raises Fenced when another orchestrator took over, and whatever the body raises.
    """
    outcome = begin_pod(spec, context, body)
    return outcome if isinstance(outcome, PodResult) else evaluate_pod(spec, context, outcome)


def begin_pod(spec: PodSpec, context: PodContext, body: str | Body = BODY) -> PodResult | Draft:
    """As `run_pod`; with `context.apart` a body may stop before the evaluation, which is `evaluate_pod`'s then."""
    from fintrader.tournament.checkpoint import checkpointed
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
