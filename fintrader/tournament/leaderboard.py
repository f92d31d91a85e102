"""The leaderboard in memory: entries sorted by score, and the updater that says whether and where a result enters it.

A leaderboard is a pure function of the sequence of results it was given, and its final rows do not even depend on their
order, since all results are compared by one total order: score (higher first), then age (earlier pod first).
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field
from typing import Any

from fintrader.tournament.spec import PodResult, PodSpec


@dataclass(frozen=True)
class Entry:
    """A pod's spec and result, together."""

    spec: PodSpec
    result: PodResult

    @property
    def key(self) -> tuple[str, int]:
        """What the updater knows a submission by."""
        return self.spec.pod, self.result.epoch

    @property
    def score(self) -> float:
        """The score, -inf where there is none."""
        return -math.inf if self.result.score is None else self.result.score

    @property
    def order(self) -> tuple[float, int, int]:
        """Sorts the better entry first."""
        return -self.score, self.spec.index, self.result.epoch

    @property
    def inheritable(self) -> bool:
        """Whether another pod can start from it."""
        return self.result.snapshot is not None and self.result.score is not None


@dataclass
class Leaderboard:
    """The leaderboard as the generator sees it: the best `size` entries, and all that was ever applied."""

    size: int
    rows: list[Entry] = field(default_factory=list)
    """Best first, at most `size`."""
    applied: list[Entry] = field(default_factory=list)
    """Every result, in the order in which they were applied."""
    keys: set[tuple[str, int]] = field(default_factory=set)
    failed: int = 0
    """How many of the applied have come to nothing."""
    rungs: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    """Scores that pods had on their way: (generation, share of the budget) -> one a pod, in order of application."""

    @property
    def parents(self) -> list[Entry]:
        """Rows that others can start from, best first."""
        return [entry for entry in self.rows if entry.inheritable]


@dataclass(frozen=True)
class Placement:
    """What became of a submission."""

    new: bool
    """False if this (pod, epoch) had been applied before; nothing changed then."""
    position: int | None = None
    """Its row on the leaderboard from 0, None if it did not make it."""
    evicted: str | None = None
    """The pod that lost its row."""


def submit(leaderboard: Leaderboard, entry: Entry) -> Placement:
    """Apply one result. Idempotent by (pod, epoch); ties go to the earlier pod; failed pods get no row."""
    if entry.key in leaderboard.keys:
        return Placement(new=False)
    leaderboard.keys.add(entry.key)
    leaderboard.applied.append(entry)
    leaderboard.failed += entry.result.status == "failed"
    for share, reached in entry.result.rung_scores.items():
        if reached is not None:
            leaderboard.rungs.setdefault((entry.spec.generation, share), []).append(reached)
    if entry.result.score is None:
        return Placement(new=True)
    position = bisect.bisect_left(leaderboard.rows, entry.order, key=lambda row: row.order)
    if position >= leaderboard.size:
        return Placement(new=True)
    leaderboard.rows.insert(position, entry)
    evicted = leaderboard.rows.pop().spec.pod if len(leaderboard.rows) > leaderboard.size else None
    return Placement(True, position, evicted)


def applied_event(entry: Entry, number: int, placement: Placement) -> dict[str, Any]:
    """The event that says that a result was applied, as number `number` in all, and where it stands."""
    return {
        "event": "applied",
        "pod": entry.spec.pod,
        "epoch": entry.result.epoch,
        "applied": number,
        "status": entry.result.status,
        "reason": entry.result.reason,
        "score": entry.result.score,
        "position": placement.position,
        "evicted": placement.evicted,
    }
