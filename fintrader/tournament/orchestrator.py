"""The orchestrator: a loop that collects results, applies those that are due, makes specs, and
starts and stops pods.

Its state follows from the store (`recover`), so it may be killed at any time. Time is real,
unless a simulation of a cluster brings its own clock.
"""

from __future__ import annotations

import bisect
import errno
import queue
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from itertools import islice
from typing import Any

from rich.console import RenderableType

from fintrader.errors import TournamentError
from fintrader.progress import Progress
from fintrader.records import to_json
from fintrader.results.tournament_events import (
    AdoptionEvent,
    CapacityEvent,
    DamageEvent,
    DrainEvent,
    IndexDamageEvent,
    LaunchEvent,
    LossEvent,
    NoCapacityEvent,
    ProposalEvent,
    ResultEvent,
    ResumptionEvent,
    StartEvent,
    TournamentEvent,
    select_events,
)
from fintrader.tournament import lease as leases
from fintrader.tournament import terminal
from fintrader.tournament.events import EventLog, list_applied
from fintrader.tournament.generator import Generator
from fintrader.tournament.launchers import Launcher, PodFailure
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard, PodState, open_or_replace
from fintrader.tournament.retention import Retention
from fintrader.tournament.schedulers import PendingResults, Scheduler
from fintrader.tournament.settings import OperationsSettings
from fintrader.tournament.spec import PodResult, PodSpec
from fintrader.tournament.status import read_requested_pods
from fintrader.tournament.store import RunStore
from fintrader.tournament.updater import build_result_event, submit


class MonotonicClock:
    """The machine's monotonic clock and real waiting."""

    now = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def wait(self, inbox: queue.SimpleQueue[Any], seconds: float) -> Any | None:
        """Wait for the next item of `inbox`; None if none comes within `seconds`."""
        try:
            return inbox.get(timeout=seconds)
        except queue.Empty:
            return None


FAILURES_ALLOWED = 3
"""Pods that may fail before any succeeds, beyond those run in parallel."""
FROM_OUTSIDE = ("killed", "node")
"""Reasons that are not a pod's fault: the pod is retried without limit."""
LAUNCHES = 32
"""Most pods started in one turn, so that turns stay short; the next turn follows at once."""
MOST_PODS_LISTED = 100
"""Largest tournament that prints a line for each result."""
PACE_SECONDS = 0.05
"""Least seconds between turns; results that arrive meanwhile are made durable together."""


def _build_spec_event(
    kind: type[ProposalEvent] | type[AdoptionEvent], spec: PodSpec
) -> ProposalEvent | AdoptionEvent:
    return kind(pod=spec.pod, origin=spec.origin, parent=spec.parent, seen=spec.seen)


class Orchestrator:
    """One holder of the lease. `run` drives it to the end; `reconcile` is one turn."""

    def __init__(
        self,
        operations: OperationsSettings,
        store: RunStore,
        lease: leases.Lease,
        scheduler: Scheduler,
        generator: Generator,
        launcher: Launcher,
        clock: MonotonicClock | None = None,
    ) -> None:
        self.settings = settings = generator.settings
        self.operations = operations
        self.store = store
        self.lease = lease
        self.scheduler = scheduler
        self.generator = generator
        self.launcher = launcher
        self.clock = clock or MonotonicClock()
        self.log = EventLog(store.run.events, store.keep_events)
        self.retention = Retention(settings, store, self.log)
        self.index, replaced = open_or_replace(store.run.leaderboard)
        self.requested: int | None = None
        self.leaderboard = Leaderboard(settings.leaderboard_size)
        self.specs: list[PodSpec] = []
        self.pending = PendingResults(scheduler)
        self.waiting: list[PodSpec] = []
        self._drafts: list[PodSpec] = []
        """Specs that are not stored yet, and so not trained."""
        self.orphans: frozenset[str] = frozenset()
        """Pods that an earlier orchestrator left at work."""
        self.running: dict[str, Future[PodResult]] = {}
        self.lost: Counter[str] = Counter()
        """Lost attempts of each pod."""
        self.failed: Counter[str] = Counter()
        """Lost attempts of each pod that count against `retries` (not `FROM_OUTSIDE`)."""
        self.reconciles = 0
        self.turn_seconds = 0.0
        """Duration of the last turn."""
        self._pods: dict[Future[PodResult], str] = {}
        """Pods of the futures that have not been collected."""
        self._inbox: queue.SimpleQueue[Future[PodResult]] = queue.SimpleQueue()
        self._ended: list[Future[PodResult]] = []
        self._events: list[TournamentEvent] = []
        self._states: dict[str, PodState] = {}
        self._indexed = (0, 0)
        """Specs and applied results that the index has."""
        self._announced: set[str] = set()
        self._idle_since: float | None = None
        self._turn_began = 0.0
        self._more_to_start = False
        if replaced:
            self._events.append(IndexDamageEvent())

    def recover(self) -> None:
        """Derive the state from the store, and always rebuild the index."""
        self.store.sweep()
        owner = self.store.read_identity_digest()
        self.log.check_owner(owner)
        self.specs = self.store.read_unbroken_specs()
        for loss in select_events(self.log.records, LossEvent):
            self._count(loss.pod, loss.reason)
        results = self._read_whole_results()
        applied = list_applied(self.log.records)
        self._announced = set(applied)
        pods = self.settings.pods
        # A lost result of a pod that is no longer wanted keeps no position.
        logged = [pod for pod in applied if pod in results or int(pod[1:]) < pods]
        self.pending = PendingResults(self.scheduler, logged)
        for pod in self.log.order(results):
            self.pending.add(results[pod])
        self.orphans = self.launcher.list_orphans()
        waiting = [spec for spec in self.specs[:pods] if spec.pod not in results]
        # Orphans first.
        self.waiting = sorted(waiting, key=lambda spec: spec.pod not in self.orphans)
        known = {
            event.pod
            for event in self.log.records
            if isinstance(event, ProposalEvent | AdoptionEvent)
        }
        self._events += [
            _build_spec_event(AdoptionEvent, spec) for spec in self.specs if spec.pod not in known
        ]
        made = len(self.specs)
        self._advance()
        self.index.rebuild(
            self.settings.leaderboard_size, self.specs[:made], self.leaderboard.applied
        )
        self._indexed = made, len(self.leaderboard.applied)
        token = self.lease.token
        self._events.append(
            ResumptionEvent(token=token, of=owner, pods=pods, results=len(results))
            if made
            else StartEvent(token=token, of=owner, pods=pods, seed=self.generator.seed)
        )
        self._flush()
        self.retention.resume(self.leaderboard, self.specs)

    def _read_whole_results(self) -> dict[str, PodResult]:
        """Read the results whose spec, snapshot and policy match; set others aside, so that their
        pods run again.

        Snapshot and policy of a dropped pod may be gone, unless another pod starts from it.
        """
        whole = {}
        found = [spec for spec in self.specs if self.store.has_result(spec.pod)]
        # Parents and rivals of pods without a result: needed in full, even if they were dropped.
        ended = {spec.pod for spec in found}
        needed = {pod for spec in self.specs if spec.pod not in ended for pod in spec.sources}
        for spec in reversed(found):  # children first: a damaged child needs its parent's files
            try:
                result = whole[spec.pod] = self.store.read_result(spec.pod)
                if result.spec != self.store.read_spec_digest(spec.pod):
                    raise TournamentError("belongs to another spec")
                if spec.pod in self.retention.dropped and spec.pod not in needed:
                    continue
                damage = self.store.find_damage(result)
                if damage:
                    raise TournamentError(damage)
            except TournamentError as error:
                whole.pop(spec.pod, None)
                needed |= set(spec.sources)
                self.store.set_aside(spec.pod)
                self._events.append(DamageEvent(pod=spec.pod, detail=str(error)))
        return whole

    @property
    def finished(self) -> bool:
        """True when every requested pod has been applied."""
        return len(self.specs) >= self.settings.pods and not (self.waiting or self.running)

    def run(
        self,
        progress: Progress,
        watch: Callable[[Orchestrator], None] | None = None,
        title: str = "tournament",
    ) -> None:
        """Reconcile until all pods have a result; `title` names the search in its progress."""
        reported = len(self.log.records)
        self.recover()
        if not (self.finished or self._has_room()):
            raise TournamentError(
                "no capacity: this machine has none of tournament.devices; name others, or `cpu`"
            )
        for event in self.log.records[reported:]:
            progress.event(to_json(event), "")
        reported = len(self.log.records)
        # `pods` may have been lowered since
        total = max(self.settings.pods, len(self.leaderboard.applied))
        with progress.task(title, total=total, unit="pods") as task:
            progress.show(self._render)
            task.resume_at(len(self.leaderboard.applied))
            while not self.finished:
                self.reconcile()
                if watch is not None:
                    watch(self)
                reported = self._report(progress, reported)
                task.update(self._measure_done(), note=self._note())
                self._wait(0.5)
            progress.show(None)

    def reconcile(self) -> None:
        """Run one turn: collect results, apply those that are due, make specs, start and stop
        pods."""
        self.reconciles += 1
        self._turn_began = self.clock.now()
        self.lease.check()
        self._rescale()
        self.launcher.check_pods()
        self._collect()
        self._advance()
        self._start_pods()
        self._flush()
        self.retention.drop_surplus(self.leaderboard, self.specs)
        self.turn_seconds = time.monotonic() - self._turn_began
        self._check_hopeless()

    def _wait(self, seconds: float) -> None:
        """Sleep until a pod ends, at most `seconds`; PACE_SECONDS if pods are to start."""
        if self.finished:
            return
        ended = self.clock.wait(self._inbox, 0.001 if self._more_to_start else seconds)
        if ended is not None:
            self._ended.append(ended)
        self.clock.sleep(max(0.0, self._turn_began + PACE_SECONDS - self.clock.now()))

    def _rescale(self) -> None:
        requested = read_requested_pods(self.store.run)
        if requested != self.requested:
            self.requested = requested
            self.launcher.resize(requested or self.settings.workers)
            pods = self.launcher.measure_capacity()
            self._events.append(CapacityEvent(pods=pods, at_once=self.settings.at_once))

    def _collect(self) -> None:
        """Collect the futures that ended since the last turn."""
        while not self._inbox.empty():
            self._ended.append(self._inbox.get())
        ended = self._ended
        self._ended = []
        for future in ended:
            pod = self._pods.pop(future)
            self.running.pop(pod, None)
            error = future.exception()
            if error is None:
                self.pending.add(self.store.copy_result(future.result()))
            elif isinstance(error, PodFailure):
                self._record_loss(pod, error)
            else:
                raise error

    def _record_loss(self, pod: str, failure: PodFailure) -> None:
        """Retry a lost pod, or record it as failed."""
        spec = self.specs[int(pod[1:])]
        if self.store.has_result(pod):  # it had published before it died
            self.pending.add(self.store.read_result(pod))
            return
        if failure.reason == "fenced":
            raise TournamentError(failure.detail)
        if failure.reason == "disk_full":
            raise OSError(errno.ENOSPC, failure.detail)
        if failure.reason == "drained":
            self._put_back(spec)
            self._events.append(DrainEvent(pod=pod))
            return
        if failure.reason == "snapshot":
            read = {one.pod: one.snapshot for one in spec.rivals}
            read |= {str(spec.parent): spec.snapshot} if spec.snapshot else {}
            for source, snapshot in read.items():
                if not self.store.has_snapshot(snapshot):
                    remedy = f"trains {source}" if source in spec.sources else "copies it"
                    raise TournamentError(
                        f"{pod}: the snapshot of {source}, which it needs, is damaged; run the same"
                        f" command again, which {remedy} anew"
                    )
        self._count(pod, failure.reason)
        lost = self.lost[pod]
        self._events.append(
            LossEvent(pod=pod, attempt=lost, reason=failure.reason, detail=failure.detail)
        )
        if self.failed[pod] <= self.operations.retries:
            self._put_back(spec, failure.reason)
            return
        self.lease.check(ask_store=True)  # a failure is final: the lease must still be held
        now = time.time()
        result = PodResult(
            pod=pod,
            status="failed",
            reason=failure.reason,
            detail=failure.detail,
            spec=spec.digest,
            started=now,
            finished=now,
            attempts=lost,
        )
        self.pending.add(self.store.write_result(result))
        self.store.delete_training_state(pod)

    def _count(self, pod: str, reason: str) -> None:
        """Count one more loss of a pod, and whether it counts against `retries`."""
        self.lost[pod] += 1
        self.failed[pod] += reason not in FROM_OUTSIDE

    def _put_back(self, spec: PodSpec, reason: str = "") -> None:
        bisect.insort(self.waiting, spec, key=lambda one: one.index)
        self._states[spec.pod] = (spec.pod, "waiting", self.lost[spec.pod], reason)

    def _advance(self) -> None:
        """Apply results and make specs that are due, step by step, each spec after exactly the
        results it needs."""
        self._make_due_specs()
        while True:
            result = self.pending.take(len(self.leaderboard.applied))
            if result is None:
                break
            entry = FinishedPod(self.specs[int(result.pod[1:])], result)
            number = len(self.leaderboard.applied)
            placement = submit(self.leaderboard, entry)
            # A restart logs no result twice.
            if placement.new and entry.spec.pod not in self._announced:
                self._announced.add(entry.spec.pod)
                self._events.append(build_result_event(entry, number, placement))
            self._make_due_specs()

    def _make_due_specs(self) -> None:
        """Make the specs that are due now."""
        while len(self.specs) < self.settings.pods:
            needs = self.scheduler.count_needed(len(self.specs))
            if needs is None or needs > len(self.leaderboard.applied):
                return
            self._make_spec()

    def _make_spec(self) -> None:
        spec = self.scheduler.make(len(self.specs), self.leaderboard, self.generator)
        self.specs.append(spec)
        self._drafts.append(spec)

    def _store_specs(self) -> None:
        """Store the new specs. An earlier orchestrator's spec of a pod takes precedence."""
        made = self._drafts
        self._drafts = []
        for draft, spec in zip(made, self.store.write_specs(made), strict=True):
            self.specs[spec.index] = spec
            self.waiting.append(spec)
            kind = ProposalEvent if spec == draft else AdoptionEvent
            self._events.append(_build_spec_event(kind, spec))

    def _start_pods(self) -> None:
        """Start pods if there is room. `order: arrival` makes specs only now, from the newest
        leaderboard."""
        self._store_specs()
        self.launcher.request(len(self.running) + len(self.waiting) + self._count_unmade())
        vacant = self.launcher.measure_capacity() - len(self.running)
        room = max(0, min(vacant, LAUNCHES))
        for _ in range(min(room - len(self.waiting), self._count_unmade())):
            self._make_spec()
        self._store_specs()
        # The results of parent and rivals must exist: a damaged pod is being trained again.
        able = (
            spec
            for spec in self.waiting
            if all(self.store.locate_result(pod).exists() for pod in spec.sources)
        )
        ready = list(islice(able, room))
        for spec in ready:
            attempt = self.lost[spec.pod] + 1
            future = self.launcher.submit(spec, attempt=attempt)
            self.running[spec.pod] = future
            self._pods[future] = spec.pod
            future.add_done_callback(self._inbox.put)
            is_orphan = spec.pod in self.orphans
            self.orphans -= {spec.pod}
            self._events.append(LaunchEvent(pod=spec.pod, attempt=attempt, orphan=is_orphan))
            self._states[spec.pod] = (spec.pod, "running", attempt, "")
        if ready:
            self.waiting = [spec for spec in self.waiting if spec.pod not in self.running]
        self._more_to_start = vacant > LAUNCHES and len(ready) == LAUNCHES

    def _count_unmade(self) -> int:
        """Count the specs that could be made now: none while a pod on the log is trained again,
        whose result they must see."""
        index = len(self.specs)
        if self.scheduler.count_needed(index) is not None or not self._announced.isdisjoint(
            (*self.running, *(spec.pod for spec in self.waiting))
        ):
            return 0
        return max(0, self.settings.pods - index)

    def _flush(self) -> None:
        """Make this turn durable by one sync of the log, and visible by one transaction of the
        index."""
        self._store_specs()
        self.log.append(*self._events)
        specs, entries = self._indexed
        applied = self.leaderboard.applied
        self.index.write_turn(self.specs[specs:], applied[entries:], entries, self._states.values())
        self._indexed = len(self.specs), len(applied)
        self._events = []
        self._states = {}

    def _check_hopeless(self) -> None:
        """Raise TournamentError when no pod can succeed."""
        applied = self.leaderboard.applied
        failed = self.leaderboard.failed
        under_way = max(
            self.launcher.measure_capacity(), len(self.running), self.settings.at_once or 0
        )
        is_hopeless = failed >= under_way + FAILURES_ALLOWED and not self.pending
        if 0 < failed == len(applied) and (self.finished or is_hopeless):
            last = applied[-1].result
            raise TournamentError(
                f"all {failed} pods failed, the last one by {last.reason}: {last.detail} (see"
                f" {self.store.run.root / 'logs'}); fix the cause and delete {self.store.run.root}"
                " to try again"
            )
        if self.running or self.finished or self._has_room():
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self.clock.now()
            self.log.append(NoCapacityEvent())
        elif self.clock.now() - self._idle_since > self.operations.patience_seconds:
            raise TournamentError(
                "no capacity: the devices have disappeared; run the same command when they are back"
            )

    def _has_room(self) -> bool:
        return self.launcher.is_elastic or self.launcher.measure_capacity() > 0

    def _report(self, progress: Progress, reported: int) -> int:
        """Print a line for each mishap since `reported`, and for each result of a small tournament;
        all events go to the log."""
        for event in self.log.records[reported:]:
            is_small = self.settings.pods <= MOST_PODS_LISTED and isinstance(event, ResultEvent)
            is_printed = is_small or isinstance(
                event, LossEvent | DamageEvent | CapacityEvent | NoCapacityEvent
            )
            progress.event(to_json(event), f"  {terminal.describe(event)}" if is_printed else "")
        return len(self.log.records)

    def _render(self) -> RenderableType:
        progress = self.launcher.report_progress()
        origins = {pod: self.specs[int(pod[1:])].origin for pod in progress}
        return terminal.render(
            self.leaderboard, self.settings.metric, progress, origins, self.log.records
        )

    def _measure_done(self) -> float:
        """Count the pods with a result, applied or not, and the trained shares of those at work."""
        at_work = self.launcher.report_progress().values()
        results = len(self.leaderboard.applied) + len(self.pending)
        # A trained pod is still to be scored, so it is not done.
        return min(self.settings.pods, results + sum(min(0.95, at.share) for at in at_work))

    def _note(self) -> str:
        rows = self.leaderboard.rows
        best = f", best {rows[0].score:.3f} ({rows[0].spec.pod})" if rows else ""
        return f"{len(self.running)} at work{best}"
