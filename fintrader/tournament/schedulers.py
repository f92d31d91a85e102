"""Schedulers: when the next pod may be made, the order in which results count, and the parent's
choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fintrader.tournament.generator import Generator
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard, rank_inheritable
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.spec import PodResult, PodSpec


class Scheduler:
    """Order of specs and results in a tournament. This base class keeps the order of arrival: a
    free slot gets a pod made from the leaderboard of that moment."""

    def count_needed(self, index: int) -> int | None:
        """Count the results that pod `index` sees, exactly; None: those that have arrived when a
        slot is free."""
        return None

    def find_position(self, pod_index: int) -> int | None:
        """Find the position of this pod's result in the order of application; None: in order of
        arrival."""
        return None

    def make(self, index: int, leaderboard: Leaderboard, generator: Generator) -> PodSpec:
        """Make the spec of pod `index`."""
        return generator.propose(index, leaderboard)


@dataclass
class Submission(Scheduler):
    """Reproducible order: pod k waits for, and sees, the results of pods <= k - pool_size."""

    pool_size: int

    def count_needed(self, index: int) -> int | None:
        return max(0, index - self.pool_size + 1)

    def find_position(self, pod_index: int) -> int | None:
        return pod_index


@dataclass
class Generational(Submission):
    """Synchronous generations of `pool_size` pods: each waits for the whole generation before
    it."""

    survivors: int
    _best: tuple[Leaderboard | None, int, list[FinishedPod]] = (None, -1, [])

    def count_needed(self, index: int) -> int | None:
        return index // self.pool_size * self.pool_size

    def make(self, index: int, leaderboard: Leaderboard, generator: Generator) -> PodSpec:
        """Continue the best pods unchanged; derive each other pod from one of them, with perturbed
        settings."""
        generation, number = divmod(index, self.pool_size)
        best = self._choose_best(leaderboard, generation - 1) if generation else []
        if not best:
            return generator.propose_founder(index, leaderboard, generation)
        parent = best[number % len(best)]
        return generator.derive_child(
            index, leaderboard, parent, generation=generation, explore=number >= len(best)
        )

    def _choose_best(self, leaderboard: Leaderboard, generation: int) -> list[FinishedPod]:
        """Choose the survivors of a complete generation, once for all of its children."""
        if self._best[0] is not leaderboard or self._best[1] != generation:
            first = generation * self.pool_size
            last = leaderboard.applied[first : first + self.pool_size]
            self._best = (leaderboard, generation, rank_inheritable(last)[: self.survivors])
        return self._best[2]


RUNGS = ((0.64, 4 / 15), (0.24, 1 / 5), (0.08, 1 / 5), (0.04, 1 / 3))
"""Rungs of halving: share of all pods, and share of all training. The last one is a single pod."""


class Halving(Scheduler):
    """Successive halving (Jamieson and Talwalkar, 2016, https://arxiv.org/abs/1502.07943), whose
    last pod has falling step sizes. A rung waits for the whole rung before it.

    Of four schedules with rungs and ten without, this one came closest to the optimum
    (docs/results.md).
    """

    def __init__(self, pods: int) -> None:
        counts = [round(share * pods) for share, _ in RUNGS[1:-1]]
        counts = [max(pods - sum(counts) - 1, 0), *counts, 1]
        # The training of rungs without pods goes to the others.
        rungs = [(count, part) for count, (_, part) in zip(counts, RUNGS, strict=True) if count]
        total = sum(part for _, part in rungs)
        self.rungs: list[tuple[int, float]] = []
        """Number of each rung's first pod, and each of its pods' training, as a multiple of the
        budget."""
        first = 0
        for count, part in rungs:
            self.rungs.append((first, part / total * pods / count))
            first += count

    def find_rung(self, index: int) -> int:
        """Find the rung of pod `index`."""
        return sum(first <= index for first, _ in self.rungs) - 1

    def count_needed(self, index: int) -> int | None:
        return self.rungs[self.find_rung(index)][0]

    def find_position(self, pod_index: int) -> int | None:
        return pod_index

    def make(self, index: int, leaderboard: Leaderboard, generator: Generator) -> PodSpec:
        """Continue the pod that has this pod's rank in the rung before; start a new pod if there is
        none."""
        rung = self.find_rung(index)
        first, times = self.rungs[rung]
        before = leaderboard.applied[self.rungs[rung - 1][0] : first] if rung else []
        able = rank_inheritable(before)[index - first :]
        if able:
            spec = generator.derive_child(
                index, leaderboard, able[0], generation=rung, explore=False
            )
        else:
            spec = generator.propose_founder(index, leaderboard, rung)
        anneal = {"anneal": first == self.rungs[-1][0]} if "anneal" in spec.agent else {}
        return replace(
            spec, rung=rung, budget=spec.budget.scale(times), agent={**spec.agent, **anneal}
        )


class Replay(Scheduler):
    """Order of another run: the results that each pod had seen, and their order of application.

    `adopted_specs`: specs that the run adopted from an earlier orchestrator, by number, whose seen
    results are not on its log.
    """

    def __init__(
        self,
        seen: Sequence[int],
        applied: Sequence[int],
        inner: Scheduler,
        adopted_specs: Mapping[int, PodSpec],
    ) -> None:
        self.inner = inner
        self.adopted_specs = adopted_specs
        self.positions = {index: position for position, index in enumerate(applied)}
        self.seen = list(seen)
        # An adopted pod may have seen more results than this order applies before it. It saw no
        # result of itself or of a later pod.
        for index in adopted_specs:
            after = (position for pod, position in self.positions.items() if pod >= index)
            self.seen[index] = min(self.seen[index], *after, len(applied))

    def count_needed(self, index: int) -> int | None:
        return self.seen[index] if index < len(self.seen) else None

    def find_position(self, pod_index: int) -> int | None:
        return self.positions.get(pod_index, pod_index)

    def make(self, index: int, leaderboard: Leaderboard, generator: Generator) -> PodSpec:
        return self.adopted_specs.get(index) or self.inner.make(index, leaderboard, generator)


def make_scheduler(settings: TournamentSettings) -> Scheduler:
    """Make the scheduler of the settings."""
    if settings.order == "generations":
        return Generational(settings.pool_size, settings.survivors)
    if settings.order == "halving":
        return Halving(settings.pods)
    return Submission(settings.pool_size) if settings.order == "submission" else Scheduler()


class PendingResults:
    """Results that are not applied yet, in the scheduler's order, or else in order of arrival.

    `logged`: pods in the order in which their results were applied before. In order of arrival
    they keep it, and others come after them.
    """

    def __init__(self, scheduler: Scheduler, logged: Sequence[str] = ()) -> None:
        self._scheduler = scheduler
        self._logged = {pod: position for position, pod in enumerate(logged)}
        self._queue: dict[str, PodResult] = {}
        self._by_position: dict[int, PodResult] = {}

    def __len__(self) -> int:
        """Number of waiting results."""
        return len(self._queue) + len(self._by_position)

    def add(self, result: PodResult) -> None:
        """Add a result; it replaces an earlier result of the same pod."""
        position = self._scheduler.find_position(int(result.pod[1:]))
        if position is None:
            position = self._logged.get(result.pod)
        if position is None:
            self._queue[result.pod] = result
        else:
            self._by_position[position] = result

    def take(self, position: int) -> PodResult | None:
        """Take the result to be applied as number `position`, if it is here."""
        if position in self._by_position:
            return self._by_position.pop(position)
        if position < len(self._logged):
            return None
        first = next(iter(self._queue), None)
        return None if first is None else self._queue.pop(first)
