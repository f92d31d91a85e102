"""The updater: applies the result of a pod to the leaderboard.

A leaderboard is a pure function of the sequence of its results. Its final rows do not even depend
on their order, since all results are compared by one total order: rung of halving, then score
(higher first), then age (earlier pod first).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from fintrader.results.tournament_events import ResultEvent
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard


@dataclass(frozen=True)
class Placement:
    """Outcome of a submission."""

    new: bool
    """False if this (pod, epoch) had been applied before; nothing changed then."""
    position: int | None = None
    """Its row on the leaderboard from 0; None if it got no row."""
    evicted: str | None = None
    """The pod that lost its row."""


def submit(leaderboard: Leaderboard, entry: FinishedPod) -> Placement:
    """Apply one result. Idempotent by (pod, epoch); ties go to the earlier pod; pods without a
    score get no row."""
    if entry.key in leaderboard.keys:
        return Placement(new=False)
    leaderboard.keys.add(entry.key)
    leaderboard.applied.append(entry)
    leaderboard.failed += entry.result.status == "failed"
    spec = entry.spec
    leaderboard.founders[spec.pod] = (
        leaderboard.founders.get(spec.parent, spec.parent) if spec.parent else spec.pod
    )
    if entry.result.score is None:
        return Placement(new=True)
    rows = leaderboard.rows
    position = bisect.bisect_left(rows, entry)
    if position >= leaderboard.size:
        return Placement(new=True)
    rows.insert(position, entry)
    evicted = rows.pop() if len(rows) > leaderboard.size else None
    return Placement(True, position, evicted.spec.pod if evicted else None)


def build_result_event(entry: FinishedPod, number: int, placement: Placement) -> ResultEvent:
    """Build the event of a result. `number`: number of results applied before it."""
    return ResultEvent(
        pod=entry.spec.pod,
        epoch=entry.result.epoch,
        applied=number,
        status=entry.result.status,
        reason=entry.result.reason,
        score=entry.result.score,
        position=placement.position,
        evicted=placement.evicted,
    )
