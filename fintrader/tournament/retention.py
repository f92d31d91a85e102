"""Retention: training states are deleted once a result stands, and with `tournament.keep` also
snapshot, policy and learning curve of pods that no other can start from.

Specs, results and the log always stay, so that every trial counts and every number can be
recomputed. A pod that leaves the kept set never comes back, so a pod that the log calls dropped may
be deleted at any time and repeatedly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from fintrader.errors import StorageError
from fintrader.results.tournament_events import DropEvent, dropped_pods
from fintrader.tournament.events import EventLog
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.spec import PodSpec
from fintrader.tournament.store import RunStore

EVERY = 64
"""Results between two searches for surplus pods, since each search reads every kept row."""


class Retention:
    """Decisions and deletions of one holder of the lease."""

    def __init__(self, settings: TournamentSettings, store: RunStore, log: EventLog) -> None:
        self.settings = settings
        self.store = store
        self.log = log
        self.dropped = dropped_pods(log.records)
        self._asked = 0
        """Number of applied results at the last search for surplus pods."""

    def drop_surplus(
        self, board: Leaderboard, specs: Sequence[PodSpec], *, now: bool = False
    ) -> None:
        """Drop surplus pods, every `EVERY` results or `now`. Call it when the results are on the
        log."""
        if self.settings.keep == "all" or (len(board.applied) - self._asked < EVERY and not now):
            return
        self._asked = len(board.applied)
        over = {entry.spec.pod: entry for entry in board.applied}
        kept = self._choose_kept(board, specs, over)
        gone = [pod for pod in over if pod not in kept and pod not in self.dropped]
        if gone:
            self.log.append(DropEvent(pods=tuple(gone)))  # durable before anything is deleted
            self.dropped |= set(gone)
            self._delete(gone, kept, over)

    def resume(self, board: Leaderboard, specs: Sequence[PodSpec]) -> None:
        """Delete the remains of pods that were dropped before a kill, except those needed again."""
        if self.dropped:
            over = {entry.spec.pod: entry for entry in board.applied}
            gone = self.dropped - self._choose_kept(board, specs, over)
            still = [
                pod for pod in over if pod in gone and self.store.has_leftovers(over[pod].result)
            ]
            self._delete(still, over.keys() - gone, over)

    def _delete(
        self, pods: Iterable[str], kept: Collection[str], over: Mapping[str, FinishedPod]
    ) -> None:
        """Delete all but spec and result of these pods, and no content that a kept pod shares."""
        whole = [over[pod].result for pod in kept if pod in over]
        shared = {str(digest) for one in whole for digest in (one.snapshot, one.policy)}
        for pod in pods:
            try:
                self.store.drop(over[pod].result, shared)
            except (OSError, StorageError):  # no loss: the next start deletes it
                return

    def _choose_kept(
        self, board: Leaderboard, specs: Sequence[PodSpec], over: dict[str, FinishedPod]
    ) -> set[str]:
        """Choose the pods to keep: rows, elites, unfinished pods and their parents, failed pods,
        the newest two generations (`order: generations`), and with `keep: lineage` all
        ancestors."""
        waiting = [spec for spec in specs if spec.pod not in over]
        kept = {row.spec.pod for row in (*board.rows, *board.elites)} | {
            spec.pod for spec in waiting
        }
        if self.settings.order == "generations":
            kept |= {spec.pod for spec in specs[-2 * self.settings.pool_size :]}
        parents = [spec.parent_here for spec in waiting]
        if self.settings.keep == "lineage":
            parents += [over[pod].spec.parent_here for pod in kept if pod in over]
        for parent in parents:
            while parent is not None and parent not in kept:
                kept.add(parent)
                parent = over[parent].spec.parent_here if self.settings.keep == "lineage" else None
        return kept | {pod for pod, entry in over.items() if entry.result.status == "failed"}


def list_needed(specs: Sequence[PodSpec], finished: Collection[str]) -> set[str]:
    """List the parents of pods without a result, which must be whole even if they were dropped."""
    return {
        spec.parent_here
        for spec in specs
        if spec.parent_here is not None and spec.pod not in finished
    }
