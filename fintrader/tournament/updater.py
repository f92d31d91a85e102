"""The updater: whether and where a pod's result enters the leaderboard.

A board is a pure function of the sequence of results it was given, and its final rows do not even depend on their
order, since all results are compared by one total order: score (higher first), then age (earlier pod first).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from fintrader.tournament.leaderboard import Entry, Leaderboard


@dataclass(frozen=True)
class Placement:
    """What became of a submission."""

    new: bool
    """False if this (pod, epoch) had been applied before; nothing changed then."""
    position: int | None = None
    """Its place on the board from 0, None if it did not make it."""
    evicted: str | None = None
    """The pod that lost its place."""


def submit(board: Leaderboard, entry: Entry) -> Placement:
    """Apply one result to `board`. Idempotent by (pod, epoch); ties go to the earlier pod; failed pods get no row."""
    if entry.key in board.keys:
        return Placement(new=False)
    board.keys.add(entry.key)
    board.applied.append(entry)
    board.failed += entry.result.status == "failed"
    for share, reached in entry.result.rung_scores.items():
        if reached is not None:
            board.rungs.setdefault((entry.spec.generation, share), []).append(reached)
    if entry.result.score is None:
        return Placement(new=True)
    position = bisect.bisect_left(board.rows, entry.order, key=lambda row: row.order)
    if position >= board.size:
        return Placement(new=True)
    board.rows.insert(position, entry)
    evicted = board.rows.pop().spec.pod if len(board.rows) > board.size else None
    return Placement(True, position, evicted)
