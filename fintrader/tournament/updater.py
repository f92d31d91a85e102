"""The updater: whether and where a pod's result enters the leaderboard.

A board is a pure function of the sequence of results it was given, and its final rows do not even depend on their
order, since all results are compared by one total order: score (higher first), then age (earlier pod first).
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field

from fintrader.tournament.pod import PodResult, PodSpec


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
    def breeds(self) -> bool:
        """Whether another pod can start from it."""
        return self.result.snapshot is not None and self.result.score is not None


@dataclass
class Board:
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

    def by_pod(self) -> dict[str, Entry]:
        """The newest entry of each pod."""
        return {entry.spec.pod: entry for entry in self.applied}

    @property
    def parents(self) -> list[Entry]:
        """Rows that others can start from, best first."""
        return [entry for entry in self.rows if entry.breeds]


@dataclass(frozen=True)
class Verdict:
    """What became of a submission."""

    new: bool
    """False if this (pod, epoch) had been applied before; nothing changed then."""
    position: int | None = None
    """Its place on the board from 0, None if it did not make it."""
    evicted: str | None = None
    """The pod that lost its place."""


def submit(board: Board, entry: Entry) -> Verdict:
    """Apply one result to `board`. Idempotent by (pod, epoch); ties go to the earlier pod; failed pods get no row."""
    if entry.key in board.keys:
        return Verdict(new=False)
    board.keys.add(entry.key)
    board.applied.append(entry)
    board.failed += entry.result.status == "failed"
    for share, reached in entry.result.rung_scores.items():
        if reached is not None:
            board.rungs.setdefault((entry.spec.generation, share), []).append(reached)
    if entry.result.score is None:
        return Verdict(new=True)
    position = bisect.bisect_left(board.rows, entry.order, key=lambda row: row.order)
    if position >= board.size:
        return Verdict(new=True)
    board.rows.insert(position, entry)
    evicted = board.rows.pop().spec.pod if len(board.rows) > board.size else None
    return Verdict(True, position, evicted)
