"""Events of a tournament: the lines of `events.jsonl`.

`tournament/events.py` writes them, sealed and numbered. `read_events` reads a log and leaves
out lines that are no event of this version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast

from fintrader.files import read_jsonl
from fintrader.records import JsonValue, RecordError, from_json

E = TypeVar("E")


@dataclass(frozen=True, kw_only=True)
class _Event:
    time: float = 0.0
    """Unix time, set by the log."""


@dataclass(frozen=True)
class _PodEvent(_Event):
    pod: str


@dataclass(frozen=True)
class _OrchestratorEvent(_Event):
    """An orchestrator began to drive the tournament."""

    token: int
    of: str
    """Seal of the `tournament.json` that the log belongs to."""
    pods: int
    """Number of results requested in total."""


@dataclass(frozen=True)
class StartEvent(_OrchestratorEvent):
    """The first orchestrator began."""

    seed: int
    event: Literal["started"] = "started"


@dataclass(frozen=True)
class ResumptionEvent(_OrchestratorEvent):
    """Another orchestrator began."""

    results: int
    """Results that were stored by then."""
    event: Literal["resumed"] = "resumed"


@dataclass(frozen=True)
class _SpecEvent(_PodEvent):
    origin: str
    parent: str | None
    seen: int
    """Number of results applied when the spec was made."""


@dataclass(frozen=True)
class ProposalEvent(_SpecEvent):
    """A spec was made."""

    event: Literal["proposed"] = "proposed"


@dataclass(frozen=True)
class AdoptionEvent(_SpecEvent):
    """A spec of an earlier orchestrator was taken over."""

    event: Literal["adopted"] = "adopted"


@dataclass(frozen=True)
class LaunchEvent(_PodEvent):
    """A pod was started."""

    attempt: int
    orphan: bool = False
    """An earlier orchestrator had started it, and it was taken over."""
    event: Literal["launched"] = "launched"


@dataclass(frozen=True)
class LossEvent(_PodEvent):
    """An attempt at a pod failed."""

    attempt: int
    reason: str
    detail: str
    event: Literal["lost"] = "lost"


@dataclass(frozen=True)
class DrainEvent(_PodEvent):
    """A pod was stopped to make room."""

    event: Literal["drained"] = "drained"


@dataclass(frozen=True)
class DamageEvent(_PodEvent):
    """A damaged result was moved aside."""

    detail: str
    event: Literal["damaged"] = "damaged"


@dataclass(frozen=True)
class ResultEvent(_PodEvent):
    """A result was applied to the leaderboard."""

    epoch: int
    applied: int
    """Number of the result, from 0."""
    status: str
    reason: str
    score: float | None
    position: int | None
    """Row of the leaderboard, from 0."""
    evicted: str | None
    """Pod that lost its row."""
    event: Literal["applied"] = "applied"


@dataclass(frozen=True)
class CapacityEvent(_Event):
    """The number of pods that can work at once changed."""

    pods: int
    at_once: int | None = None
    """Pods that the scheduler lets work at once; None: as many as there is room for."""
    event: Literal["capacity"] = "capacity"


@dataclass(frozen=True)
class NoCapacityEvent(_Event):
    """No device is left."""

    event: Literal["no_capacity"] = "no_capacity"


@dataclass(frozen=True)
class IndexDamageEvent(_Event):
    """The leaderboard's database was moved aside and made again."""

    event: Literal["leaderboard_damaged"] = "leaderboard_damaged"


@dataclass(frozen=True)
class DropEvent(_Event):
    """Pods were reduced to spec and result (`tournament.keep`)."""

    pods: tuple[str, ...]
    event: Literal["dropped"] = "dropped"


@dataclass(frozen=True)
class FinishEvent(_Event):
    """Every requested pod has a result, and the ensemble is stored."""

    trials: int
    best: str
    members: tuple[str, ...]
    event: Literal["finished"] = "finished"


@dataclass(frozen=True)
class RepairEvent(_Event):
    """The log was rewritten with the intact lines of a damaged log."""

    lines: tuple[int, ...]
    """Numbers of the damaged lines."""
    event: Literal["repaired"] = "repaired"


TournamentEvent = (
    StartEvent
    | ResumptionEvent
    | ProposalEvent
    | AdoptionEvent
    | LaunchEvent
    | LossEvent
    | DrainEvent
    | DamageEvent
    | ResultEvent
    | CapacityEvent
    | NoCapacityEvent
    | IndexDamageEvent
    | DropEvent
    | FinishEvent
    | RepairEvent
)


def parse_event(line: Mapping[str, JsonValue]) -> TournamentEvent:
    """Make an event from a line's values, its seal and number left out. Raises RecordError."""
    values = {name: value for name, value in line.items() if name not in ("sha256", "n")}
    return from_json(cast("type[TournamentEvent]", TournamentEvent), values)


def parse_events(lines: Iterable[Mapping[str, JsonValue]]) -> list[TournamentEvent]:
    """Make the events of a log's lines; lines that are no event of this version are left out."""
    events: list[TournamentEvent] = []
    for line in lines:
        with contextlib.suppress(RecordError):
            events.append(parse_event(line))
    return events


def read_events(path: Path) -> list[TournamentEvent]:
    """Read a log, oldest event first; none where there is no file."""
    return parse_events(read_jsonl(path))


def select_events(events: Iterable[TournamentEvent], kind: type[E]) -> list[E]:
    """Select the events of a kind, oldest first."""
    return [event for event in events if isinstance(event, kind)]


def find_last_start(events: Sequence[TournamentEvent]) -> StartEvent | ResumptionEvent | None:
    """Find the last start of an orchestrator; None without one."""
    starts = (one for one in reversed(events) if isinstance(one, StartEvent | ResumptionEvent))
    return next(starts, None)


def list_dropped_pods(events: Iterable[TournamentEvent]) -> set[str]:
    """List the pods of which only spec and result are left (`tournament.keep`)."""
    return {pod for event in select_events(events, DropEvent) for pod in event.pods}
