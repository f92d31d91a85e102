"""Results that are stored but not yet applied, and which of them is due: one look-up, however many wait."""

from __future__ import annotations

from fintrader.tournament.generational import Scheduler
from fintrader.tournament.pod import PodResult


class Arrivals:
    """Where the scheduler prescribes an order results wait for their place in it, elsewhere they go as they came."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._queue: dict[str, PodResult] = {}
        self._places: dict[int, PodResult] = {}

    def __len__(self) -> int:
        """Results that wait."""
        return len(self._queue) + len(self._places)

    def add(self, result: PodResult) -> None:
        """A result that has arrived; of several of one pod the last one counts."""
        place = self._scheduler.position(int(result.pod[1:]))
        if place is None:
            self._queue[result.pod] = result
        else:
            self._places[place] = result

    def due(self, place: int) -> PodResult | None:
        """Take the result to be applied as number `place`, if it is there."""
        if place in self._places:
            return self._places.pop(place)
        first = next(iter(self._queue), None)
        return None if first is None else self._queue.pop(first)
