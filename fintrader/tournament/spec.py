"""What flows between the parts of a tournament: a pod's spec and result, and the context it works
in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from pydantic import Field, ValidationError

from fintrader.config import Settings
from fintrader.errors import TournamentError
from fintrader.files import find_seal, read_bytes, seal, unseal
from fintrader.runs import RunFolder
from fintrader.storage.mirror import Mirror, open_mirror
from fintrader.tournament.settings import OperationsSettings

Message = dict[str, Any]
"""What processes of a pod send each other: one JSON object."""
OnMessage = Callable[[int, Message], None]
"""Takes a rank and its message; the last is of the kind `ended`, with its exit `code` or why it has
none."""


class Host(Protocol):
    """A machine on which ranks run."""

    address: str
    """Where the ranks of other machines reach it."""

    def start(self, tasks: Sequence[Message], on_message: OnMessage) -> None:
        """Start a rank for each task."""

    def stop(self) -> None:
        """Kill what is left, and return when it is gone."""


BODY = "fintrader.tournament.pod_training:train_and_evaluate"
WALL_CLOCK = ("started", "finished", "seconds", "device", "location", "attempts")
"""Fields of a result that no seed can fix."""
_Lost = Literal["killed", "rank", "node", "drained", "hung", "oom"]
_Raised = Literal["nan", "disk_full", "storage", "snapshot", "error", "fenced"]
Reason = Literal["", "stopped_early", _Lost, _Raised]


class _Record(Settings):
    """A settings-like record that lives in a sealed JSON file."""

    def to_json(self) -> str:
        """Equal records give equal bytes."""
        return seal(self.model_dump(mode="json"), indent=2).decode()

    @classmethod
    def from_json(cls, path: Path) -> Self:
        """Raises TournamentError when the file is missing, not as it was written, or of another
        version."""
        mend = (
            f"`fintrader verify {path.parents[2]} --repair` makes again what can be, and sets aside"
            " what cannot"
        )
        try:
            return cls.model_validate(
                unseal(read_bytes(path), TournamentError(f"{path} is damaged: {mend}"))
            )
        except FileNotFoundError:
            raise TournamentError(f"{path} does not exist: {mend}") from None
        except ValidationError as error:
            problem = str(error).splitlines()[0]
            raise TournamentError(f"{path} is of another version ({problem}): {mend}") from None
        except OSError as error:
            raise TournamentError(f"{path} cannot be read ({error.strerror}): {mend}") from None


class StopRule(Settings):
    """At `share` of the budget, stop when the score lies below `score` (what the peers had at that
    age)."""

    share: float
    score: float


class PodSpec(_Record):
    """What to train. A pure function of the root seed, the pod's number and the results seen before
    it."""

    pod: str
    """Identifier, `p0007`."""
    index: int
    seed: int
    origin: Literal["fresh", "exploit", "survivor"]
    parent: str | None = None
    """Pod whose networks and optimiser it starts from; `run:pod` where that is one of an earlier
    run."""
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
    looks: tuple[float, ...] = ()
    """Further such shares, where the best of all that were scored is what the pod publishes; empty:
    the last is."""
    folds: int = 0
    """Learners of K-fold validation, each scored on a block it has not seen; 0: one learner, the
    validation window."""
    replicas: int = 1
    """Learners that are fused (learner fusion); one is plain training."""
    fusions: int = 8
    """Times they are."""
    data_hash: str = ""

    @property
    def parent_here(self) -> str | None:
        """The parent, if it is a pod of the same run."""
        return None if self.parent is None or ":" in self.parent else self.parent

    @property
    def digest(self) -> str:
        """The seal of the record: a result names the spec it belongs to."""
        return find_seal(self.to_json().encode())


class PodResult(_Record):
    """What came out of a pod. The body fills in what it learned, the shell (`pod`) the rest.
    Written once, last."""

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
    looks: int = 1
    """Times that the validation window was looked at to choose what the pod publishes."""
    chosen_at: float = 1.0
    """Share of the budget after which what it publishes was learned."""
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """All of the validation window's metrics."""
    returns: tuple[float, ...] = ()
    """Daily returns on the validation window, or out of fold."""
    active_returns: tuple[float, ...] = ()
    """The same less those of the benchmark portfolio (`env.benchmark`), at costs."""
    benchmark_score: float | None = None
    """What the benchmark portfolio scores on the same sessions."""
    snapshot: str | None = None
    policy: str | None = None
    """SHA-256 of the pod's `policy.safetensors`."""
    env_steps: int = 0
    """Steps trained by this pod alone."""
    updates: int = 0
    started: float = 0.0
    finished: float = 0.0
    seconds: float = 0.0
    """Training and evaluation, resumed parts included where the body knows them; 0: let the shell
    take the time."""
    device: str = ""
    location: str = ""
    """Where it was trained: `process.describe_location`."""
    attempts: int = 1

    def select_reproducible(self) -> dict[str, Any]:
        """All that must be equal between two runs of one spec: everything but times and
        machines."""
        return self.model_dump(mode="json", exclude=set(WALL_CLOCK))


class TrainedPod(PodResult):
    """A pod that is trained and stored but has no score yet: an evaluator elsewhere completes
    it."""

    evaluate: str
    """`package.module:function` that does so; it takes the spec, a context and this."""

    def add_evaluation(self, **fields: Any) -> PodResult:
        """The result, with what the evaluation came to."""
        return PodResult.model_validate({**self.model_dump(exclude={"evaluate"}), **fields})


WITHOUT_WAITING = OperationsSettings(takeover=False, store_seconds=0.0, outage_seconds=0.0)
"""Operations of a pod that runs in its caller's process."""


@dataclass
class PodContext:
    """What a body needs besides its spec: where things lie, and how to give a sign of life."""

    run: RunFolder
    market: Path
    mirror: Mirror | None = None
    """The run's side in an object store, if it has one."""
    device: str = "cpu"
    """Torch device; several joined by `+` (threads of one process) or by `/` (a process each)."""
    token: int | None = None
    """The orchestrator's fencing token; once the run has gone elsewhere, its pods publish
    nothing."""
    attempt: int = 1
    report: Callable[[float, int, str], None] = lambda share, env_steps, note: None
    """Share of the budget, env-steps, note. A pod that stays silent for too long is taken for
    hung."""
    folder: Path = Path()
    hosts: Sequence[Host] = ()
    """The machines of a pod that spans several, this one first; the devices are then theirs, one
    after another."""
    operations: OperationsSettings = WITHOUT_WAITING
    slot: str = ""
    """Where its launcher put it."""
    evaluate_elsewhere: bool = False
    """The body may leave the last evaluation to an evaluator, by returning a `TrainedPod`."""

    def build_task(self, spec: PodSpec, **more: Any) -> Message:
        """What another process is sent to work on a pod, as plain JSON; `from_task` reads it."""
        return {
            "spec": spec.model_dump(mode="json"),
            "run": str(self.run.root.resolve()),
            "market": str(self.market),
            "mirror": None if self.mirror is None else self.mirror.address,
            "token": self.token,
            "operations": self.operations.model_dump(mode="json"),
            **more,
        }

    @classmethod
    def from_task(cls, task: Message, **more: Any) -> Self:
        """The context in the process that was sent `task`."""
        run = Path(task["run"])
        given = ("device", "token", "attempt", "slot")
        more |= {name: task[name] for name in given if name in task}
        more["operations"] = OperationsSettings(**task["operations"])
        return cls(RunFolder(run), Path(task["market"]), open_mirror(run, task["mirror"]), **more)


class Fenced(TournamentError):
    """Another orchestrator has taken over; this process may no longer publish the pod's result."""

    reason = "fenced"


class OrphanLost(TournamentError):
    """A pod came to nothing while nobody listened; whoever took it over says so."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class RankLost(TournamentError):
    """One process of a pod that spans devices came to nothing; `reason` is what the pod fails
    by."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


Body = Callable[[PodSpec, PodContext], PodResult]
"""What trains a pod. It stores snapshot and policy, and returns what it learned: a result, or a
`TrainedPod`."""
