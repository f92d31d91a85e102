"""A cluster on a simulated clock, in front of the real orchestrator and all its parts.

Pods are events: they start, end, are lost, are preempted with their node, or publish after they
were given up. Every pod that ends writes its result to the real store; only the hours in between
are simulated. `scaling.py` and `search.py` run it at full size, the tests briefly.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
import queue
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fintrader.results.leaderboard_reader import read_leaderboard, read_pods
from fintrader.runs import RunFolder
from fintrader.tournament.ensemble import StoredEnsemble
from fintrader.tournament.launchers import Launcher, PodFailure, PodProgress
from fintrader.tournament.orchestrator import MonotonicClock, Orchestrator
from fintrader.tournament.settings import Range, TournamentSettings
from fintrader.tournament.spec import PodResult, PodSpec
from fintrader.tournament.store import RunStore
from tests.engines import stubs
from tests.engines.chaos import events_of
from tests.engines.races import STUBBORN, stub_race

SEARCH = {"learning_rate": Range(low=1e-5, high=1e-1, log=True)}
Score = Callable[[PodSpec, RunStore], tuple[float | None, bytes, int]]
"""spec, store -> score, snapshot and env-steps of the pod's training."""


@dataclass(frozen=True)
class World:
    """The cluster and its weather. Times in seconds."""

    gpus: int = 64
    gpus_per_node: int = 8
    pod: tuple[float, float] = (600.0, 600.0)
    """Training with evaluation: uniform between the two."""
    start: tuple[float, ...] = (0.0,)
    """Seconds of a pod before it trains: samples, drawn with replacement."""
    end: tuple[float, ...] = (0.0,)
    """Seconds of a pod to store its result: samples."""
    failure_rate: float = 0.0
    """Losses per second of a pod at work."""
    preemption_rate: float = 0.0
    """Preemptions per second of a node that is there."""
    away: float = 300.0
    """A preempted node comes back after so long."""
    zombies: float = 0.0
    """Share of lost pods that still publish their result, a moment after they were given up."""
    seed: int = 0


class SimulatedClock(MonotonicClock):
    """Jumps from event to event; the real CPU seconds of a turn, times `charge`, pass as well."""

    def __init__(self, charge: float = 0.0) -> None:
        self.time = 0.0
        self.charge = charge
        self.cpu = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._mark = time.process_time()

    def now(self) -> float:
        return self.time

    def at(self, moment: float, call: Callable[[], None]) -> None:
        """`call` when the clock reaches `moment`."""
        heapq.heappush(self._events, (moment, next(self._count), call))

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass, with their events."""
        self._until(self.time + seconds)
        self._mark = time.process_time()

    def wait(self, inbox: queue.SimpleQueue[Any], seconds: float) -> Any | None:
        spent = time.process_time() - self._mark
        self.cpu += spent
        end = self.time + seconds
        self._until(self.time + spent * self.charge)
        while inbox.empty() and self._events and self._events[0][0] <= end:
            self._until(self._events[0][0])
        if inbox.empty():
            self._until(end)
        self._mark = time.process_time()
        return None if inbox.empty() else inbox.get()

    def _until(self, moment: float) -> None:
        while self._events and self._events[0][0] <= moment:
            due, _, call = heapq.heappop(self._events)
            self.time = max(self.time, due)
            call()
        self.time = max(self.time, moment)


@dataclass
class _Work:
    """One attempt of one pod."""

    spec: PodSpec
    attempt: int
    place: int
    future: Future[PodResult]
    began: float
    alive: bool = True


class SimulatedCluster(Launcher):
    """A launcher whose pods are events, and a record for the checks afterwards."""

    def __init__(self, run: RunFolder, clock: SimulatedClock, world: World, score: Score) -> None:
        self.clock = clock
        self.world = world
        self.score = score
        self.store = RunStore(run)
        self.random = np.random.default_rng(world.seed)
        self.free = set(range(world.gpus))
        self.gone: set[int] = set()
        self.work: dict[str, _Work] = {}
        self.left: dict[str, float] = {}
        """Seconds of training that a lost pod, which has its checkpoints, still needs."""
        self.vacant_since: dict[int, float] = dict.fromkeys(self.free, 0.0)
        self.idle: list[float] = []
        """Seconds a GPU stood empty before a pod that was new."""
        self.busy = 0.0
        """GPU seconds that went into pods, lost ones included."""
        self.ended: dict[str, float] = {}
        """When each pod's attempt ended well."""
        self.attempts: Counter[str] = Counter()
        self.losses: Counter[str] = Counter()
        self.problems: list[str] = []
        for node in range(math.ceil(world.gpus / world.gpus_per_node)):
            self._await_preemption(node)

    # --- Launcher ---------------------------------------------------------------------------------

    def measure_capacity(self) -> int:
        return self.world.gpus - len(self.gone)

    def resize(self, workers: int | None) -> None:
        """The cluster is as large as it is."""

    def submit(self, spec: PodSpec, *, attempt: int = 1) -> Future[PodResult]:
        if not self.free:
            self.problems.append(
                f"{spec.pod} launched at {self.clock.time:.1f} s without a free GPU"
            )
        if spec.pod in self.work:
            self.problems.append(f"{spec.pod} launched twice at once")
        place = min(self.free)
        self.free.discard(place)
        # Later attempts may find a cluster that has run out of work.
        if not self.attempts[spec.pod]:
            self.idle.append(self.clock.time - self.vacant_since[place])
        world = self.world
        random = self.random
        training = self.left.get(spec.pod) or float(random.uniform(*world.pod))
        # `run_pod` returns the result of an attempt that was given up at once.
        if self.store.has_result(spec.pod):
            training = 0.0
        starting = float(random.choice(world.start))
        seconds = starting + training + float(random.choice(world.end))
        future = Future()
        work = self.work[spec.pod] = _Work(spec, attempt, place, future, self.clock.time)
        self.attempts[spec.pod] += 1
        failure = (
            float(random.exponential(1 / world.failure_rate)) if world.failure_rate else math.inf
        )
        if failure < seconds:
            self.left[spec.pod] = max(training - max(failure - starting, 0.0), 1e-3)
            zombie = float(random.uniform()) < world.zombies
            self.clock.at(self.clock.time + failure, lambda: self._lose(work, "killed", zombie))
        else:
            self.clock.at(self.clock.time + seconds, lambda: self._finish(work))
        return future

    def report_progress(self) -> dict[str, PodProgress]:
        return {}

    def check_pods(self) -> None:
        """Events come by themselves."""

    def close(self) -> None:
        """What still runs comes to nothing."""

    # --- events -----------------------------------------------------------------------------------

    def _finish(self, work: _Work) -> None:
        if not work.alive:
            return
        result = self._publish(work)
        self.ended[work.spec.pod] = self.clock.time
        self._leave(work)
        work.future.set_result(result)

    def _lose(self, work: _Work, reason: Any, zombie: bool) -> None:
        if not work.alive:
            return
        self.losses[reason] += 1
        self._leave(work)
        work.future.set_exception(PodFailure(reason, "simulated"))
        if zombie:  # given up, but its last write was under way
            self.clock.at(
                self.clock.time + float(self.random.uniform(0, 2)), lambda: self._publish(work)
            )

    def _leave(self, work: _Work) -> None:
        work.alive = False
        self.busy += self.clock.time - work.began
        del self.work[work.spec.pod]
        if work.place not in self.gone:
            self.free.add(work.place)
        self.vacant_since[work.place] = self.clock.time

    def _publish(self, work: _Work) -> PodResult:
        score, data, env_steps = self.score(work.spec, self.store)
        return self.store.write_result(
            PodResult(
                pod=work.spec.pod,
                status="done",
                spec=work.spec.digest,
                score=score,
                snapshot=self.store.put(data) if data else None,
                returns=(0.01,) * 20,
                env_steps=env_steps,
                started=work.began,
                finished=self.clock.time,
                seconds=self.clock.time - work.began,
                attempts=work.attempt,
            )
        )

    def _await_preemption(self, node: int) -> None:
        if self.world.preemption_rate:
            after = float(self.random.exponential(1 / self.world.preemption_rate))
            self.clock.at(self.clock.time + after, lambda: self._preempt(node))

    def _preempt(self, node: int) -> None:
        places = set(range(node * self.world.gpus_per_node, (node + 1) * self.world.gpus_per_node))
        places &= set(range(self.world.gpus))
        self.gone |= places
        self.free -= places
        for work in [work for work in self.work.values() if work.place in places]:
            self._lose(work, "drained", False)
        self.clock.at(self.clock.time + self.world.away, lambda: self._return(node, places))

    def _return(self, node: int, places: set[int]) -> None:
        self.gone -= places
        self.free |= places
        self.vacant_since.update(dict.fromkeys(places, self.clock.time))
        self._await_preemption(node)


def score_by_seed(spec: PodSpec, store: RunStore) -> tuple[float | None, bytes, int]:
    """A score from the spec's seed alone, with ties; one pod in fifty diverges and has none."""
    value = int.from_bytes(hashlib.sha256(str(spec.seed).encode()).digest()[:4], "big") / 2**32
    return (None if spec.seed % 50 == 7 else round(value, 3)), spec.pod.encode(), 100


@dataclass
class Simulated:
    """The outcome of a simulated tournament."""

    run: RunFolder
    cluster: SimulatedCluster
    clock: SimulatedClock
    applied: dict[str, float] = field(default_factory=dict)
    """When each pod's result was applied."""
    restarts: int = 0

    @property
    def makespan(self) -> float:
        return max(self.applied.values())


class _Killed(Exception):
    """The orchestrator's process ends here."""


def simulate(
    folder: Path,
    settings: TournamentSettings,
    world: World,
    *,
    score: Score = score_by_seed,
    charge: float = 0.0,
    kill_after: tuple[int, ...] = (),
    agent: Any = None,
    stop: Callable[[Orchestrator, float], bool] | None = None,
) -> Simulated:
    """Run the tournament. The orchestrator dies, with its pods, after each number of applied
    results in `kill_after`, and comes back. `stop` ends the simulation early."""
    run = RunFolder(folder)
    clock = SimulatedClock(charge)
    cluster = SimulatedCluster(run, clock, world, score)
    outcome = Simulated(run, cluster, clock)
    pending = list(kill_after)

    def watch(orchestrator: Orchestrator) -> None:
        applied = orchestrator.leaderboard.applied
        for entry in applied[len(outcome.applied) :]:
            outcome.applied.setdefault(entry.spec.pod, clock.time)
        if len(orchestrator.running) > world.gpus:
            cluster.problems.append(
                f"{len(orchestrator.running)} pods at work on {world.gpus} GPUs"
            )
        if pending and len(applied) >= pending[0]:
            pending.pop(0)
            raise _Killed
        if stop is not None and stop(orchestrator, clock.time):
            raise StopIteration

    while True:
        try:
            stub_race(
                run,
                settings,
                agents=(agent or stubs.StubAgent(),),
                seed=world.seed,
                launcher=cluster,
                ensemble=lambda *_: StoredEnsemble(()),
                watch=watch,
                clock=clock,
                operations=STUBBORN,
            )
        except _Killed:
            outcome.restarts += 1
            for work in list(cluster.work.values()):
                work.alive = False
                cluster.free.add(work.place)
                cluster.vacant_since[work.place] = clock.time
            cluster.work.clear()
            continue
        except StopIteration:
            pass
        return outcome


def make_settings(pods: int, gpus: int, **changes: Any) -> TournamentSettings:
    """A tournament by arrival over that many pods."""
    values = {
        "fresh": 0.25,
        "order": "arrival",
        "pool_size": gpus,
        "founders": min(8, pods),
        "leaderboard_size": 64,
        "search": SEARCH,
        **changes,
    }
    return TournamentSettings(pods=pods, **values)


def check(outcome: Simulated, settings: TournamentSettings) -> None:
    """Assert that nothing is lost or doubled, that capacity was honoured, and that the board
    follows from its pods' results."""
    cluster = outcome.cluster
    run = outcome.run
    assert not cluster.problems, cluster.problems[:5]
    names = [f"p{index:04d}" for index in range(settings.pods)]
    events = [str(event["pod"]) for event in events_of(run, "applied")]
    assert sorted(events) == sorted(names), "every pod is applied once"
    store = RunStore(run)
    specs = store.read_specs()
    results = store.read_results()
    assert list(results) == names
    rows = read_pods(run.leaderboard)
    assert [row.pod for row in rows] == names
    assert sorted(row.applied for row in rows) == list(range(settings.pods))
    for row in rows:
        result = results[row.pod]
        assert (row.score, row.status, row.snapshot) == (
            result.score,
            result.status,
            result.snapshot,
        )
        assert result.spec == specs[row.pod].digest
        if row.parent:
            assert row.parent_snapshot == results[row.parent].snapshot
    scored = [pod for pod in names if results[pod].score is not None]
    best = sorted(scored, key=lambda pod: (-float(results[pod].score or 0.0), specs[pod].index))
    assert [row.pod for row in read_leaderboard(run.leaderboard)] == best[
        : settings.leaderboard_size
    ]
