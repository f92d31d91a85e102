"""What flows between the parts of a tournament: a pod's spec and result, and the context it works in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from pydantic import Field, ValidationError

from fintrader.config import Settings
from fintrader.errors import TournamentError
from fintrader.files import dump_json
from fintrader.runs import RunFolder

Message = dict[str, Any]
"""What processes of a pod tell each other: one JSON object."""
OnMessage = Callable[[int, Message], None]
"""Takes a rank and its message; the last is of the kind `ended`, with its exit `code` or why it has none."""


class Host(Protocol):
    """A machine on which ranks run."""

    address: str
    """Where the ranks of other machines reach it."""

    def start(self, tasks: Sequence[Message], on_message: OnMessage) -> None:
        """Start a rank for each task."""

    def stop(self) -> None:
        """Kill what is left, and return when it is gone."""


BODY = "fintrader.tournament.pod_training:train_and_evaluate"


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
