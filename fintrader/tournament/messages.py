"""Messages between the processes of a tournament: tasks to the workers, and their reports.

Over a pipe each message is a line of JSON (`fintrader.records`); Ray sends them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from fintrader.tournament.settings import OperationsSettings
from fintrader.tournament.spec import PodResult, PodSpec, Reason, TrainedPod


@dataclass(frozen=True, kw_only=True)
class PodTask:
    """A pod for another process to train or evaluate."""

    spec: PodSpec
    run: str
    """The run's folder."""
    market: str
    mirror: dict[str, str] | None
    """Address of the run's folder in an object store."""
    token: int | None
    """The orchestrator's fencing token."""
    operations: OperationsSettings
    body: str
    """Function that trains the pod, as `module:name`."""
    attempt: int = 1
    device: str = "cpu"
    slot: str = ""
    nodes: int = 1
    """Nodes of a cluster that the pod spans."""
    need: dict[str, float] = field(default_factory=dict)
    """Resources that the pod takes on each node of a cluster."""
    evaluate_elsewhere: bool = False
    trained: TrainedPod | None = None
    """Pod to evaluate; None: train."""


@dataclass(frozen=True)
class RankTask:
    """One rank of a pod that spans devices. `pod.device` is the rank's own."""

    pod: PodTask
    folder: str
    rank: int
    world: int
    rendezvous: str
    backend: str
    patience_seconds: float


@dataclass(frozen=True)
class ReadyMessage:
    """The process has done its imports; from now on it must send heartbeats."""

    kind: Literal["ready"] = "ready"


@dataclass(frozen=True)
class StartMessage:
    """A task has started on a cluster; with `joined`, ranks have started on a further node."""

    node: str
    host: str
    pid: int
    joined: bool = False
    kind: Literal["started"] = "started"


@dataclass(frozen=True)
class ProgressMessage:
    """A pod's heartbeat, with its progress."""

    pod: str
    share: float
    env_steps: int
    note: str
    kind: Literal["progress"] = "progress"


@dataclass(frozen=True)
class TrainedMessage:
    """A pod is trained, and another process is to evaluate it."""

    trained: TrainedPod
    kind: Literal["trained"] = "trained"


@dataclass(frozen=True)
class ResultMessage:
    """A pod has its result."""

    result: PodResult
    kind: Literal["done"] = "done"


@dataclass(frozen=True)
class FailureMessage:
    """A pod, or one of its ranks, failed."""

    reason: Reason
    detail: str
    pod: str = ""
    is_last: bool = False
    """The process should not be used again."""
    kind: Literal["failed"] = "failed"


@dataclass(frozen=True)
class RankProgressMessage:
    """A rank's heartbeat, with its progress."""

    share: float
    env_steps: int
    steps_per_second: float
    kind: Literal["rank_progress"] = "rank_progress"


@dataclass(frozen=True)
class RoundMessage:
    """A rank has finished this number of rounds."""

    rounds: int
    kind: Literal["round"] = "round"


@dataclass(frozen=True)
class EndMessage:
    """A rank's process has ended: with an exit status (negative: by this signal), or a reason."""

    code: int | None
    log: str = ""
    reason: Reason = ""
    detail: str = ""
    kind: Literal["ended"] = "ended"


Message: TypeAlias = (
    ReadyMessage
    | StartMessage
    | ProgressMessage
    | TrainedMessage
    | ResultMessage
    | FailureMessage
    | RankProgressMessage
    | RoundMessage
    | EndMessage
)
RankMessage: TypeAlias = tuple[int, Message]
"""A rank and its message; the last is an `EndMessage`."""
OnMessage: TypeAlias = Callable[[int, Message], None]
"""Takes a rank and its message."""


class Host(Protocol):
    """A machine on which ranks run."""

    address: str
    """Address at which the ranks of other machines reach it."""

    def start(self, tasks: Sequence[RankTask], on_message: OnMessage) -> None:
        """Start a rank for each task."""

    def stop(self) -> None:
        """Kill all remaining processes; return once they have ended."""
