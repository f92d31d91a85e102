"""Retention: delete snapshot, policy and learning curve of the pods that `tournament.keep` drops.

Specs, results and the log always stay, so that every trial counts and every number can be
recomputed. A dropped pod is needed again only as the parent of a pod that must be retrained;
otherwise deleting it is safe, also twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from fintrader.errors import StorageError
from fintrader.results.tournament_events import DropEvent, list_dropped_pods
from fintrader.tournament.events import EventLog
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.spec import PodSpec
from fintrader.tournament.store import RunStore

EVERY = 64
"""Results between two searches for surplus pods, since each search reads every kept row."""


class Retention:
    """Drops surplus pods on behalf of the lease's holder."""

    def __init__(self, settings: TournamentSettings, store: RunStore, log: EventLog) -> None:
        self.settings = settings
        self.store = store
        self.log = log
        self.dropped = list_dropped_pods(log.records)
        self._asked = 0
        """Number of applied results at the last search for surplus pods."""

    def drop_surplus(
        self, board: Leaderboard, specs: Sequence[PodSpec], *, now: bool = False
    ) -> None:
        """Drop surplus pods, each `EVERY` results or `now`; call it after results are logged."""
        if self.settings.keep == "all" or (len(board.applied) - self._asked < EVERY and not now):
            return
        self._asked = len(board.applied)
        finished = {entry.spec.pod: entry for entry in board.applied}
        kept = self._choose_kept(board, specs, finished)
        surplus = [pod for pod in finished if pod not in kept and pod not in self.dropped]
        if surplus:
            self.log.append(DropEvent(pods=tuple(surplus)))  # durable before anything is deleted
            self.dropped |= set(surplus)
            self._delete(surplus, kept, finished)

    def resume(self, board: Leaderboard, specs: Sequence[PodSpec]) -> None:
        """Delete the remains of pods that were dropped before a kill, except those needed again."""
        if self.dropped:
            finished = {entry.spec.pod: entry for entry in board.applied}
            surplus = self.dropped - self._choose_kept(board, specs, finished)
            leftovers = [
                pod
                for pod, entry in finished.items()
                if pod in surplus and self.store.has_leftovers(entry.result)
            ]
            self._delete(leftovers, finished.keys() - surplus, finished)

    def _delete(
        self, pods: Iterable[str], kept: Collection[str], finished: Mapping[str, FinishedPod]
    ) -> None:
        """Delete these pods, except spec, result and content that a kept pod shares."""
        results = [finished[pod].result for pod in kept if pod in finished]
        shared = {str(digest) for result in results for digest in (result.snapshot, result.policy)}
        for pod in pods:
            try:
                self.store.drop(finished[pod].result, shared)
            except (OSError, StorageError):  # no loss: the next start deletes it
                return

    def _choose_kept(
        self, board: Leaderboard, specs: Sequence[PodSpec], finished: dict[str, FinishedPod]
    ) -> set[str]:
        """Choose the pods to keep: rows, unfinished pods and their parents, failed pods, the newest
        two generations (or rungs), and with `keep: lineage` all ancestors."""
        waiting = [spec for spec in specs if spec.pod not in finished]
        kept = {row.spec.pod for row in board.rows} | {spec.pod for spec in waiting}
        if self.settings.order in ("generations", "halving") and specs:
            kept |= {one.pod for one in specs if one.generation >= specs[-1].generation - 1}
        is_lineage = self.settings.keep == "lineage"
        readers = waiting + [finished[pod].spec for pod in kept if is_lineage and pod in finished]
        sources = [pod for spec in readers for pod in spec.sources]
        while sources:
            pod = sources.pop()
            if pod not in kept:
                kept.add(pod)
                sources += finished[pod].spec.sources if is_lineage else ()
        return kept | {pod for pod, entry in finished.items() if entry.result.status == "failed"}
