"""Local launcher: runs pods as processes of this machine, one per slot (a core, a GPU, or a part of
a GPU), and evaluators as further processes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path

from fintrader.errors import ConfigError, RunError, TournamentError
from fintrader.files import make_folder, read_bytes
from fintrader.system import (
    CARD_SECONDS,
    KILL,
    SENT_BY_OTHERS,
    count_cards,
    count_oom_kills,
    count_usable_cores,
    start_thread,
)
from fintrader.tournament.at_work import end, list_at_work, read_holder
from fintrader.tournament.launchers import (
    LEAVE_SECONDS,
    START_SECONDS,
    Launcher,
    PodFailure,
    PodProgress,
)
from fintrader.tournament.messages import (
    FailureMessage,
    Message,
    PodTask,
    ProgressMessage,
    ReadyMessage,
    ResultMessage,
    TrainedMessage,
)
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.process import read_messages, send_task, spawn
from fintrader.tournament.spec import PodResult, PodSpec, Reason

FEW_SLOTS = 2
"""Slots up to which pods score themselves, unless the settings say otherwise."""
SLOTS_OF_AN_EVALUATOR = 8
"""Slots per evaluator, which is busy for seconds where a pod trains for minutes."""


@dataclass(frozen=True)
class Slot:
    """Room for one pod: its device, and the cards that its process sees."""

    name: str
    device: str = "cpu"
    cards: str = ""
    """`CUDA_VISIBLE_DEVICES` of the process."""


@dataclass
class _PodAtWork:
    """A pod that a worker trains or scores, or that waits for an evaluator."""

    task: PodTask
    future: Future[PodResult]
    progress: PodProgress


@dataclass(eq=False)
class _Worker:
    """One child process, kept between pods so that the imports are paid once."""

    launcher: LocalLauncher
    slot: Slot
    process: subprocess.Popen[str]
    log: Path
    is_evaluator: bool = False
    work: _PodAtWork | None = None
    last_message: float = field(default_factory=time.monotonic)
    lost_by: tuple[Reason, str] | None = None
    """Reason and detail of the loss, if this launcher ends the worker."""
    oom_kills: int = 0
    """The machine's count of kills for lack of memory when this process began."""
    leaves: float | None = None
    """Deadline (monotonic seconds) of a worker that was asked to end."""
    is_retired: bool = False
    is_ready: bool = False

    @property
    def spec(self) -> PodSpec | None:
        """The pod at work."""
        return None if self.work is None else self.work.task.spec

    @property
    def is_usable(self) -> bool:
        """True if alive, idle, and not about to end."""
        return (
            self.work is None
            and not self.is_retired
            and self.leaves is None
            and self.process.poll() is None
        )


class LocalLauncher(Launcher):
    """Launcher with one spawned process per slot, each with one thread and its
    `CUDA_VISIBLE_DEVICES`.

    A worker outlives its pods. When it dies, only its current pod is lost, and the next pod of that
    slot gets a new worker. When this process is killed, workers finish their pods
    (`at_work.wait_for_takeover`); a later launcher takes such a pod over by starting it again. In
    all other cases the end of this process ends all pods.
    """

    def __init__(
        self,
        access: PodContext,
        *,
        body: str,
        slots: Callable[[], list[Slot]],
        workers: int | None = None,
    ) -> None:
        """Raises ConfigError when the run's store exists in this process only."""
        if access.mirror is not None and access.mirror.objects.is_private:
            raise ConfigError(
                f"store: {access.mirror.objects} exists in this process only, and pods are other"
                " processes; name a store that they reach"
            )
        self.access = access
        self.body = body
        self._slots = slots
        self._limit = workers
        self._hang = access.operations.patience_seconds
        self._stores_state = access.operations.store_seconds > 0 and access.mirror is not None
        self._farewell = signal.SIGTERM if self._stores_state else KILL
        self._workers: dict[str, _Worker] = {}
        self._lock = threading.RLock()
        self._trained: deque[_PodAtWork] = deque()
        self._is_closed = False

    def measure_capacity(self) -> int:
        """Count the slots and the pods under evaluation; pods that wait for an evaluator take room
        from new pods."""
        with self._lock:
            busy = [one for one in self._workers.values() if one.is_evaluator and one.work]
        return len(self.list_slots()) + len(busy)

    def list_orphans(self) -> frozenset[str]:
        mine = self.report_progress()
        return frozenset(list_at_work(self.access.run).keys() - mine.keys())

    def list_slots(self) -> list[Slot]:
        """List the slots in use: the machine's, cut or repeated to the requested number of
        workers."""
        slots = self._slots()
        if self._limit is None or not slots:
            return slots
        rounds = range(-(-self._limit // len(slots)))
        named = [s if r == 0 else replace(s, name=f"{s.name}.{r}") for r in rounds for s in slots]
        return named[: self._limit]

    def resize(self, workers: int | None) -> None:
        """Set the number of workers; None: one per slot."""
        self._limit = workers

    def submit(self, spec: PodSpec, *, attempt: int = 1) -> Future[PodResult]:
        orphan = read_holder(self.access.run.pod(spec.pod))
        with self._lock:
            worker = self._find_free_worker(prefers=orphan.slot if orphan else "")
            task = self.access.build_task(
                spec,
                self.body,
                attempt=attempt,
                device=worker.slot.device,
                slot=worker.slot.name,
                evaluate_elsewhere=self._evaluates_apart(),
            )
            if task.evaluate_elsewhere:  # started now, to import while the pod trains
                self._start_evaluator()
            future: Future[PodResult] = Future()
            self._assign(worker, _PodAtWork(task, future, PodProgress(since=time.time())))
            return future

    def _evaluates_apart(self) -> bool:
        asked = self.access.operations.evaluators
        return len(self.list_slots()) > FEW_SLOTS if asked is None else asked

    def _assign(self, worker: _Worker, work: _PodAtWork) -> None:
        """Send a pod's task to an idle worker."""
        worker.work = work
        worker.lost_by = None
        worker.last_message = time.monotonic()
        work.progress.device = worker.slot.name
        send_task(worker.process, work.task)

    def _evaluate(self) -> None:
        """Give trained pods to idle evaluators, or to new ones while there are few; a closed
        launcher gives them up."""
        while self._is_closed and self._trained:
            gone = self._trained.popleft()
            gone.future.set_exception(PodFailure("drained", "stopped on request"))
        most = -(-max(1, len(self.list_slots())) // SLOTS_OF_AN_EVALUATOR)
        for number in range(most):
            if not self._trained:
                return
            worker = self._start_evaluator(number)
            if worker.is_usable:
                self._assign(worker, self._trained.popleft())

    def _start_evaluator(self, number: int = 0) -> _Worker:
        """Start the evaluator of that number, unless there is one."""
        slot = Slot(f"evaluator-{number}")
        worker = self._workers.get(slot.name)
        if worker is None or (worker.work is None and not worker.is_usable):
            worker = self._workers[slot.name] = self._spawn(slot, is_evaluator=True)
        return worker

    def report_progress(self) -> dict[str, PodProgress]:
        with self._lock:
            works = [worker.work for worker in self._workers.values()]
            return {one.task.spec.pod: one.progress for one in (*self._trained, *works) if one}

    def check_pods(self) -> None:
        now = time.monotonic()
        with self._lock:
            names = {slot.name for slot in self.list_slots()}
            for name, worker in list(self._workers.items()):
                patience = self._hang if worker.is_ready else max(self._hang, START_SECONDS)
                if worker.leaves is not None and now > worker.leaves:
                    worker.process.kill()
                elif worker.spec is not None and now - worker.last_message > patience:
                    self._kill(worker, "hung", f"no sign of life for {self._hang:g} s")
                elif name not in names and not (worker.is_evaluator or worker.is_retired):
                    worker.is_retired = True
                    self._ask_to_leave(worker)

    def close(self) -> None:
        with self._lock:
            spare = _spare.get()
            if spare is not None:
                spare += [worker for worker in self._workers.values() if worker.is_usable]
            workers = [worker for worker in self._workers.values() if worker not in (spare or ())]
            for worker in workers:
                self._ask_to_leave(worker)
            self._is_closed = True
            self._evaluate()
        for pod in self.list_orphans():
            end(self.access.run.pod(pod), self._farewell)
        deadline = time.monotonic() + LEAVE_SECONDS
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            worker.process.kill()
            worker.process.wait()
        while (left := self.list_orphans()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pod in left:
            end(self.access.run.pod(pod), KILL)

    def _find_free_worker(self, prefers: str) -> _Worker:
        """Find a worker for the slot named `prefers` if it is free, else an idle or a new one."""

        def is_usable(slot: Slot) -> bool:
            return slot.name in self._workers and self._workers[slot.name].is_usable

        for slot in sorted(
            self.list_slots(), key=lambda slot: (slot.name != prefers, not is_usable(slot))
        ):
            worker = self._workers.get(slot.name)
            if worker is None or worker.spec is None:
                if not is_usable(slot):
                    self._workers[slot.name] = self._spawn(slot)
                return self._workers[slot.name]
        raise TournamentError("no free slot; submit no more pods than measure_capacity() allows")

    def _spawn(self, slot: Slot, *, is_evaluator: bool = False) -> _Worker:
        """Take over a kept worker, or start one."""
        kept = _spare.get() or []
        for worker in kept:
            if worker.is_usable and (worker.launcher.body, worker.slot) == (self.body, slot):
                kept.remove(worker)
                worker.launcher = self
                return worker
        log = self.access.run.root / "logs" / f"worker-{slot.name}.log"
        make_folder(log.parent)
        cards = {"CUDA_VISIBLE_DEVICES": slot.cards}
        process = spawn("fintrader.tournament.pod", self.body, log=log, variables=cards)
        worker = _Worker(self, slot, process, log, is_evaluator, oom_kills=count_oom_kills())
        start_thread(_read, worker, name=f"reader {slot.name}")
        return worker

    def _ask_to_leave(self, worker: _Worker) -> None:
        """Stop a worker; with a store, its pod's state is stored first."""
        detail = "stopped on request"
        if not self._stores_state or worker.spec is None:
            self._kill(worker, "drained", detail)
            return
        worker.lost_by = worker.lost_by or ("drained", detail)
        worker.leaves = worker.leaves or time.monotonic() + LEAVE_SECONDS
        end(self.access.run.pod(worker.spec.pod), self._farewell, spared_pid=worker.process.pid)
        with suppress(ProcessLookupError):
            worker.process.terminate()

    def _kill(self, worker: _Worker, reason: Reason, detail: str) -> None:
        worker.lost_by = worker.lost_by or (reason, detail)
        if worker.spec is not None:
            end(self.access.run.pod(worker.spec.pod), KILL)
        with suppress(ProcessLookupError):
            worker.process.kill()

    def _lose(self, worker: _Worker, code: int) -> None:
        """Drop a worker that ended with this exit status, and fail its pod."""
        with self._lock:
            work = worker.work
            worker.work = None
            if self._workers.get(worker.slot.name) is worker:
                del self._workers[worker.slot.name]
        if work is not None:
            reason, detail = worker.lost_by or _explain_exit(
                code, worker.log, count_oom_kills() > worker.oom_kills
            )
            work.future.set_exception(PodFailure(reason, detail))
        with self._lock:
            self._evaluate()

    def _receive(self, worker: _Worker, message: Message) -> None:
        with self._lock:
            worker.last_message = time.monotonic()
            work = worker.work
            pod = "" if work is None else work.task.spec.pod
            match message:
                case ReadyMessage():
                    worker.is_ready = True
                case ProgressMessage() if work and message.pod == pod:
                    work.progress.update(message)
                case TrainedMessage() if work and message.trained.pod == pod:
                    work.task = replace(work.task, trained=message.trained, device="cpu")
                    work.progress.note = "waiting for an evaluator"
                    worker.work = None
                    self._trained.append(work)
                case ResultMessage() if work and message.result.pod == pod:
                    worker.work = None
                    work.future.set_result(message.result)
                case FailureMessage() if work and message.pod == pod:
                    worker.is_retired = worker.is_retired or message.is_last
                    worker.work = None
                    work.future.set_exception(PodFailure(message.reason, message.detail))
            self._evaluate()


_spare: ContextVar[list[_Worker] | None] = ContextVar("fintrader_spare_workers", default=None)


@contextmanager
def keep_workers() -> Iterator[None]:
    """Inside the block, let a launcher take over the idle workers of launchers closed before, since
    a worker takes seconds to start."""
    spare: list[_Worker] = []
    token = _spare.set(spare)
    try:
        yield
    finally:
        _spare.reset(token)
        for worker in spare:
            worker.process.kill()
            worker.process.wait()


def _read(worker: _Worker) -> None:
    """Read a worker's messages until it ends."""
    for message in read_messages(worker.process):
        worker.launcher._receive(worker, message)
    worker.launcher._lose(worker, worker.process.wait())


def _explain_exit(code: int, log: Path, out_of_memory: bool) -> tuple[Reason, str]:
    """Translate an exit status; `out_of_memory`: the kernel has killed for lack of memory
    meanwhile."""
    tail = ""
    with suppress(OSError, RunError):
        tail = " | ".join(read_bytes(log).decode(errors="replace").splitlines()[-3:])[-500:]
    if code == -9 and out_of_memory:
        return (
            "oom",
            "killed by the kernel, out of memory; lower env.num_envs or tournament.workers",
        )
    if -code in SENT_BY_OTHERS:
        return "killed", f"killed by signal {-code}"
    if code < 0:
        return "error", f"died of signal {-code}; {tail}"
    return "error", f"exited with status {code}; {tail}"


def list_cuda_devices() -> list[str]:
    """List the CUDA devices that a new process would find, by their names in
    `CUDA_VISIBLE_DEVICES`, or without it by number, like `["0", "1"]`.

    torch asks the driver's library, so a container counts its own cards only, and no CUDA context
    is created.
    """
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if count:
        there = count_cards(visible, int(time.monotonic() // CARD_SECONDS))
        count = count if there is None else min(count, there)
    names = map(str, range(count)) if visible is None else visible.split(",")
    # CUDA stops at the first name that is no device.
    return [name.strip() for name in names][:count]


def find_slots(devices: Sequence[str]) -> list[Slot]:
    """Make a slot for each device named, and one per core for `cpu`; `auto` means CUDA if there is
    any, else the CPU. A device that is named twice gets twice the slots."""
    found = list_cuda_devices()
    slots: list[Slot] = []
    for place, device in enumerate(devices):
        number = devices[:place].count(device)
        if device == "cpu" or (device == "auto" and not found):
            first = len(slots)
            slots += [Slot(f"cpu-{first + core}") for core in range(count_usable_cores())]
        elif device in ("auto", "cuda"):
            slots += [_build_cuda_slot([name], number) for name in found]
        elif set(device.split("/")) == {"cpu"}:
            slots.append(Slot(f"cpu-ranks-{len(slots)}", device))
        elif device.startswith("cuda:"):
            join = "/" if "/" in device else "+"
            names = device.removeprefix("cuda:").split(join)
            if set(names) <= set(found):
                slots.append(_build_cuda_slot(names, number, join))
        else:
            raise ConfigError(
                f"tournament.devices: {device!r} is none of auto, cpu, cpu/cpu, cuda, cuda:0,"
                " cuda:0+1, cuda:0/1"
            )
    return slots


def _build_cuda_slot(names: Sequence[str], number: int, join: str = "+") -> Slot:
    inside = [f"cuda:{card}" for card in range(len(names))] if len(names) > 1 else ["cuda"]
    return Slot(f"cuda-{'+'.join(names)}-{number}", join.join(inside), ",".join(names))
