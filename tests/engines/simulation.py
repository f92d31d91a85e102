"""Real lease, store, orchestrator and pods over a simulated store, one step at a time, in an order
that a seed picks.

Processes are threads of which one runs at a time. Before and after every call of the store, and
wherever the real code would wait, whoever runs may be paused for as long as the seed likes. A call
may be lost and tried again, done twice, done once more much later, or fail for good; a process may
be killed. Heads are superseded by the simulated clock. A head may be killed with its machine, or
alone: then its pods live on, and it is started again beside them.
"""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from fintrader.errors import FintraderError, StorageOfflineError
from fintrader.files import unseal
from fintrader.progress import SILENT
from fintrader.runs import RunFolder
from fintrader.storage import lease as leases
from fintrader.storage.mirror import Mirror
from fintrader.storage.objects import ObjectStore
from fintrader.tournament import at_work
from fintrader.tournament.generator import Generator
from fintrader.tournament.launchers import Launcher, PodFailure
from fintrader.tournament.lease import Lease
from fintrader.tournament.mirrored_store import MirroredStore
from fintrader.tournament.orchestrator import MonotonicClock, Orchestrator
from fintrader.tournament.pod import find_reason, run_pod
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.schedulers import Scheduler
from fintrader.tournament.settings import OperationsSettings, TournamentSettings
from fintrader.tournament.spec import PodResult, PodSpec
from tests.engines import stubs

STEPS = 20_000
"""Of one schedule; whoever needs more is stuck."""


class Killed(BaseException):
    """The process ends here."""


class World:
    """The store's content, the clock, and who runs."""

    def __init__(self, seed: int, *, faults: float = 0.1) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.content: dict[str, bytes] = {}
        self.late: list[Callable[[], object]] = []
        self.problems: list[str] = []
        self.acknowledged: list[str] = []
        """Pods that a holder has logged as applied while nobody had superseded it."""
        self.now = 0.0
        self.steps = 0
        self.outcomes: list[str] = []
        self.adopted = 0
        """Specs that the last head's log says were taken over from one who had lost the run."""
        self.taken_over = 0
        """Pods that a head has taken over from one that was killed alone."""
        self.training: list[tuple[str, str]] = []
        """Machines and the pods that are being trained there."""
        self.alone: set[str] = set()
        """Machines of heads that were killed alone."""
        self.lives: Counter[str] = Counter()
        """By machine: heads of it that were killed alone."""
        self.started = 0
        self._doomed: set[str] = set()
        self._sleeps: dict[str, int] = {}
        """Until which step a process is paused."""
        self._turns: dict[str, threading.Semaphore] = {}
        self._names = threading.local()
        self._over = threading.Event()

    # --- processes --------------------------------------------------------------------------------

    def start(self, name: str, work: Callable[[], None]) -> None:
        """A process more; it runs when its turn comes."""
        self._turns[name] = threading.Semaphore(0)

        def run() -> None:
            self._names.name = name
            self._turns[name].acquire()
            try:
                work()
            except Killed:
                self.outcomes.append(f"{self._names.name}: killed")
            except FintraderError as error:
                self.outcomes.append(f"{name}: {type(error).__name__}: {error}")
            except BaseException as error:  # a thread's own traceback would be lost
                self.problems.append(f"{name}: {type(error).__name__}: {error}")
            finally:
                del self._turns[self._names.name]
                self._next()

        threading.Thread(target=run, daemon=True).start()

    def run(self) -> None:
        """Until every process has ended."""
        self._over.clear()
        self._next()
        if not self._over.wait(60):
            raise AssertionError(f"a process waits for another one: {sorted(self._turns)}")

    def _next(self) -> None:
        if self._turns:
            awake = [name for name in self._turns if self._sleeps.get(name, 0) <= self.steps]
            self._turns[self.random.choice(sorted(awake or self._turns))].release()
        else:
            self._over.set()

    def pause(self, seconds: float = 0.0) -> None:
        """Others may run. Raises Killed."""
        name = self._names.name
        self.now += seconds
        self.steps += 1
        if self.late and self.random.random() < 0.1:
            self.late.pop(self.random.randrange(len(self.late)))()
        if (
            self.random.random() < self.faults / 5
        ):  # a pause of any length, as by a suspended machine
            self._sleeps[name] = self.steps + self.random.randrange(400)
        if len(self._turns) > 1 and (
            self._sleeps.get(name, 0) > self.steps or self.random.random() < 0.5
        ):
            self._next()
            self._turns[name].acquire()
        if name in self._doomed or self.steps > STEPS:
            if self.steps > STEPS:
                self.problems.append(f"{name} is stuck")
            raise Killed

    def rename(self, name: str) -> None:
        """The process that runs is called so from now on."""
        self._turns[name] = self._turns.pop(self._names.name)
        self._names.name = name

    def kill(self, machine: str, *, alone: bool) -> None:
        """Everything of a machine (or its head `alone`) ends at its next step."""
        named = {name for name in self._turns if name.split()[0] == machine}
        if alone and machine in named:
            self.alone.add(machine)
            for name in named - {machine}:  # trainings that outlast a takeover
                self._sleeps[name] = self.steps + self.random.randrange(1500)
        self._doomed |= named & {machine} if alone else named

    def revive(self, machine: str) -> None:
        """Go on as the head of a machine whose head was killed alone."""
        self.alone.discard(machine)
        self.lives[machine] += 1
        self._doomed.discard(machine)

    # --- the store --------------------------------------------------------------------------------

    def call(self, name: str, change: Callable[[], Any]) -> Any:
        """One call, as a network and a client that tries again make of it."""
        if (
            name.endswith("spec.json") and self.random.random() < 2 * self.faults
        ):  # where most depends on it
            self._sleeps[self._names.name] = self.steps + self.random.randrange(400)
        self.pause(self.random.random() * 0.2)
        luck = self.random.random() / max(self.faults, 1e-9)
        if luck < 0.1:  # tried for as long as patience lasts; it lands later, or never
            if self.random.random() < 0.5:
                self.late.append(change)
            raise StorageOfflineError(f"{name}: the store does not answer")
        if luck < 0.5:  # done, the answer is lost, and it is tried again
            change()
            self.pause(self.random.random() * 5)
        elif luck < 1.0:  # done now, and repeated by some proxy when nobody expects it
            self.late.append(change)
        answer = change()
        self.pause()
        return answer

    def put(self, name: str, data: bytes) -> None:
        old = self.content.get(name)
        if old is not None and old != data and name.endswith(("spec.json", "result.json")):
            self.problems.append(f"{name} was written over")
        self.content[name] = data

    def create(self, name: str, data: bytes) -> bool:
        if name in self.content:
            return False
        self.content[name] = data
        if name.startswith("events/"):
            self._acknowledge(name, data)
        return True

    def remove(self, name: str) -> None:
        if self.content.pop(name, None) is not None and name.endswith(("spec.json", "result.json")):
            self.problems.append(f"{name} was removed")

    def _acknowledge(self, name: str, data: bytes) -> None:
        token = int(name.split("/")[1].split("-")[0])
        if token == max(int(other[6:12]) for other in self.content if other.startswith("lease/")):
            lines = str(unseal(data, AssertionError(name))["text"]).splitlines()
            told = [event["pod"] for event in map(json.loads, lines) if event["event"] == "applied"]
            self.acknowledged += [pod for pod in told if pod not in self.acknowledged]


class SimulatedObjects(ObjectStore):
    """What one machine sees of the store."""

    def __init__(self, world: World, machine: str) -> None:
        super().__init__(f"memory://{machine}/run")
        self.world = world

    def get(self, name: str) -> bytes | None:
        return self.world.call(name, lambda: self.world.content.get(name))

    def put(self, name: str, data: bytes, *, sync: bool = True) -> None:
        self.world.call(name, lambda: self.world.put(name, data))

    def create(self, name: str, data: bytes) -> bool:
        return (
            self.world.call(name, lambda: self.world.create(name, data)) or self.get(name) == data
        )

    def exists(self, name: str) -> bool:
        return self.world.call(name, lambda: name in self.world.content)

    def remove(self, *names: str) -> None:
        for name in names:
            self.world.call(name, lambda name=name: self.world.remove(name))

    def list_names(self, below: str = "") -> list[str]:
        prefix = f"{below}/" if below else ""
        return self.world.call(
            below, lambda: sorted(one for one in self.world.content if one.startswith(prefix))
        )

    def put_file(self, name: str, path: Path) -> None:
        self.put(name, path.read_bytes())

    def get_file(self, name: str, path: Path, sha256: str) -> bool:
        data = self.get(name)
        if data is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return data is not None

    def map(self, call: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """In any order, as several requests at once would land."""
        todo = list(enumerate(items))
        self.world.random.shuffle(todo)
        return [
            answer
            for _, answer in sorted(
                [(number, call(item)) for number, item in todo], key=lambda one: one[0]
            )
        ]


class _Time(MonotonicClock):
    def __init__(self, world: World) -> None:
        self.world = world

    def now(self) -> float:
        return self.world.now

    def sleep(self, seconds: float) -> None:
        self.world.pause(seconds)

    def wait(self, inbox: Any, seconds: float) -> Any | None:
        self.world.pause(seconds)
        return super().wait(inbox, 0) if not inbox.empty() else None


class _Pods(Launcher):
    """A launcher whose pods are processes of the simulated world."""

    def __init__(self, world: World, machine: str, access: PodContext, slots: int) -> None:
        self.world = world
        self.machine = machine
        self.access = access
        self.slots = slots

    def measure_capacity(self) -> int:
        return self.slots

    def resize(self, workers: int | None) -> None:
        """Keep the slots: the world decides."""

    def close(self) -> None:
        """Leave the pods to the world."""

    def check_pods(self) -> None:
        self.world.pause()

    def report_progress(self) -> dict[str, Any]:
        return {}

    def list_orphans(self) -> frozenset[str]:
        found = frozenset(at_work.list_at_work(self.access.run))
        self.world.taken_over += len(found)
        return found

    def submit(self, spec: PodSpec, *, attempt: int = 1) -> Future[PodResult]:
        future = Future()
        access = self.access
        context = PodContext(
            access.run, access.market, mirror=access.mirror, token=access.token, attempt=attempt
        )

        def work() -> None:
            try:
                result = run_pod(spec, context, self._body)
            except FintraderError as error:
                future.set_exception(PodFailure(find_reason(error), str(error)))
            else:
                future.set_result(result)

        self.world.started += 1
        self.world.start(f"{self.machine} {spec.pod} {self.world.started}", work)
        return future

    def _body(self, spec: PodSpec, context: PodContext) -> PodResult:
        here = self.machine, spec.pod
        if here in self.world.training:
            self.world.problems.append(f"{spec.pod} is trained twice at once on {self.machine}")
        self.world.training.append(here)
        try:
            return stubs.body(spec, context)
        finally:
            self.world.training.remove(here)


def head(
    world: World, home: Path, number: int, wanted: TournamentSettings, slots: int
) -> Callable[[], None]:
    """A head on a machine of its own, which drives the run to its end; real code but for time,
    transport and pods."""
    machine = f"machine{number}"

    def work() -> None:
        world.rename(machine)
        objects = SimulatedObjects(world, machine)
        held = leases.StoreLease(objects, leases._acquire_token(objects, 0))
        leases._held[objects.url] = held
        run = RunFolder(home / machine)
        run.root.mkdir(exist_ok=True)
        leases.record_token(ObjectStore(run.root), held.token)
        stubs.market(home)
        mirror = Mirror(run.root, objects)
        store = MirroredStore(run, mirror)
        lease = _SimulatedLease(run, held.token, held)
        store.pull()
        agents = (stubs.StubAgent(),)
        generator = Generator(settings=wanted, agents=agents, env={}, seed=5, data_hash="data")
        access = PodContext(run, home / "market.safetensors", mirror=mirror, token=held.token)
        pods = _Pods(world, machine, access, slots)
        orchestrator = Orchestrator(
            OperationsSettings(), store, lease, Scheduler(), generator, pods, _Time(world)
        )

        def watch(_: Orchestrator) -> None:
            if world.random.random() < 0.3:  # what the lease's own thread does
                held.renew()

        try:
            orchestrator.run(SILENT, watch)
        finally:
            orchestrator.index.close()
        world.outcomes.append(f"{machine}: done")

    return work


class _SimulatedLease(Lease):
    """The run's store is all that fences: every machine has its own disk."""

    def check(self, *, ask_store: bool = False) -> None:
        assert self.remote is not None
        self.remote.check(ask_store=ask_store)


@contextlib.contextmanager
def simulated(world: World) -> Iterator[None]:
    """Time and machine of the lease are the world's."""
    with contextlib.ExitStack() as stack:
        time = SimpleNamespace(
            monotonic=lambda: world.now, sleep=world.pause, time=lambda: world.now
        )
        stack.enter_context(patch.object(leases, "time", time))
        stack.enter_context(patch.object(at_work, "time", time))
        stack.enter_context(
            patch.object(leases, "name_process_space", lambda: world._names.name.split()[0])
        )
        stack.enter_context(
            patch.object(
                leases, "read_process_start", lambda _: world.lives[world._names.name.split()[0]]
            )
        )
        stack.enter_context(patch.object(leases, "print", lambda *_, **__: None, create=True))
        stack.enter_context(patch("os.fsync", lambda _: None))
        connect = sqlite3.connect  # the index is no part of the protocol
        stack.enter_context(patch("sqlite3.connect", lambda _, **how: connect(":memory:", **how)))
        yield
