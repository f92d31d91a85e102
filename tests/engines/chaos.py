"""Kills, torn writes and full disks at every file and database operation of a tournament.

`install` wraps the operations themselves (`os.open`, `os.write`, `os.fsync`, `os.replace`,
`os.link`, `os.unlink`, `os.ftruncate`, and SQLite's statements and commits), so nothing in the
engine has to know about it, and an operation that is added later is covered without being listed.
Tests strike at some operations and moments; with `FINTRADER_EVERY_STRIKE` set they strike at all.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from fintrader.errors import FintraderError
from fintrader.files import read_jsonl
from fintrader.runs import RunFolder
from fintrader.storage.mirror import find_mirror
from tests.engines import stubs
from tests.engines.waiting import gone, until

WRAPPED = ("open", "write", "fsync", "replace", "link", "unlink", "ftruncate")
DONE = 0
REFUSED = 7
BROKEN = 9


def amount(some: int, every: int) -> int:
    """The number of strikes, or the stride between them: `every` of a whole campaign, else `some`.

    A whole campaign takes hours: FINTRADER_EVERY_STRIKE=1 pytest -k struck tests/tournament, and
    `-k kill_at_many tests/deploy`.
    """
    return every if os.environ.get("FINTRADER_EVERY_STRIKE") else some


def count_up(mark: Callable[[int], Path], stride: int) -> Iterator[int]:
    """Number operations until three in a row were not reached, which is to say left no mark."""
    at = 1
    missed = 0
    while missed < 3:
        yield at
        missed = 0 if mark(at).exists() else missed + 1
        at += stride


@dataclass
class Faults:
    """Counts operations of this process and strikes at the `at`-th, once per `mark` file."""

    mode: str
    """`kill`, `torn` (half of a write, then kill), `full` (ENOSPC) or `count`."""
    at: int
    mark: Path
    count: int = 0

    def strike(self) -> bool:
        """True if this is the moment, for the first time."""
        self.count += 1
        if self.count != self.at:
            return False
        try:
            _open(self.mark, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return False
        return True


_open = os.open
_write = os.write
_kill = os.kill


def install(faults: Faults) -> None:
    """Wrap this process's operations. There is no way back: call it in a process of its own."""

    def die() -> None:
        _kill(os.getpid(), signal.SIGKILL)

    def wrap(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            if faults.strike():
                if faults.mode == "full" and name in WRAPPED:
                    raise OSError(errno.ENOSPC, "No space left on device")
                if faults.mode == "full":
                    raise sqlite3.OperationalError("database or disk is full")
                if faults.mode == "torn" and name == "write":
                    _write(args[0], args[1][: len(args[1]) // 2])
                die()
            result = call(*args, **named)
            if faults.mode != "full" and faults.strike():
                die()
            return result

        return wrapped

    for name in WRAPPED:
        setattr(os, name, wrap(name, getattr(os, name)))

    class Connection(sqlite3.Connection):
        def execute(self, *args: Any) -> Any:
            return wrap("execute", super().execute)(*args)

        def executemany(self, *args: Any) -> Any:
            return wrap("executemany", super().executemany)(*args)

        def __exit__(self, *raised: Any) -> Any:
            leave = super().__exit__
            return (wrap("commit", leave) if raised[0] is None else leave)(*raised)

    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **named: connect(*args, **{"factory": Connection, **named})  # type: ignore[assignment]


body = stubs.body
if (
    "CHAOS_POD" in os.environ
):  # whoever takes the body from here strikes itself: the launcher passes its environment on
    _plan = json.loads(os.environ["CHAOS_POD"])
    install(Faults(_plan["mode"], _plan["at"], Path(_plan["mark"])))


# --- scenarios ------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a forked tournament came to."""

    status: int
    """Exit status, or minus the signal."""
    points: int = 0
    hits: int = 0
    """How often the fault truly struck: a run may end before its moment comes."""


def race(
    run: RunFolder,
    pods: int,
    *,
    processes: bool = False,
    launching: Callable[[], Any] | None = None,
    **how: Any,
) -> Any:
    """One tournament of stub pods: in threads, in processes, or by the launcher that `launching`
    makes beforehand."""
    from tests.engines.races import settings

    if processes or launching:
        how["launcher"] = launching() if launching else None
    wanted = settings(pods=pods, workers=2, fresh=0.2)
    return stub_race_of(run, wanted, body="tests.engines.chaos:body", **how)


def stub_race_of(run: RunFolder, wanted: Any, **how: Any) -> Any:
    """One tournament of stub pods in threads, with settings of one's own."""
    from tests.engines.races import STUBBORN, stub_race
    from tests.engines.thread_launcher import ThreadLauncher

    launcher = ThreadLauncher(run, run.root, stubs.body, workers=wanted.workers)
    return stub_race(run, wanted, **{"launcher": launcher, "operations": STUBBORN, **how})


def fork(work: Callable[[], Any]) -> int:
    """Do `work` in a fork of this process (its imports are paid for); the fork's number."""
    pid = os.fork()
    if pid == 0:
        status = BROKEN
        try:
            work()
            status = DONE
        except FintraderError as error:
            print(error, file=sys.stderr)
            status = REFUSED
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return pid


def forked(run: RunFolder, pods: int, *, faults: Faults | None = None, **how: Any) -> Outcome:
    """Run a tournament in a fork of this process and wait for its end."""
    note = run.root.parent / f"{run.root.name}.note"
    note.unlink(missing_ok=True)

    def work() -> None:
        if faults is not None:
            install(faults)
        race(run, pods, **how)
        note.write_text(str(faults.count if faults else 0))

    _, code = os.waitpid(fork(work), 0)
    outcome = Outcome(os.waitstatus_to_exitcode(code))
    if note.exists():
        outcome.points = int(note.read_text())
    outcome.hits = int(faults is not None and faults.mark.exists())
    return outcome


def events_of(run: RunFolder, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_jsonl(run.events) if event["event"] == kind]


def everything(run: RunFolder) -> Any:
    """All that must not depend on what happened on the way."""
    from fintrader.results.leaderboard_reader import dump_canonical
    from fintrader.tournament.mirrored_store import open_store

    store = open_store(run, find_mirror(run.root))
    for spec in store.read_specs().values():
        result = store.read_result(spec.pod)
        assert result.snapshot is not None
        assert store.has_snapshot(result.snapshot), f"{spec.pod}: half a snapshot"
        assert result.spec == spec.digest
    results = {pod: result.reproducible for pod, result in store.read_results().items()}
    return (
        dump_canonical(run.leaderboard),
        results,
        (run.ensemble / "policy.safetensors").read_bytes(),
    )


def acknowledged(run: RunFolder) -> dict[str, bytes]:
    """Results that are durable at this moment."""
    return {path.parent.name: path.read_bytes() for path in run.pods.glob("*/result.json")}


def check(
    run: RunFolder, before: dict[str, bytes], expected: Any, stored: dict[str, bytes] | None = None
) -> list[str]:
    """What is wrong after recovery: nothing, one hopes. `stored` are results that lie elsewhere."""
    problems = []
    after = acknowledged(run) if stored is None else stored
    problems += [
        f"result of {pod} lost or changed" for pod, data in before.items() if after.get(pod) != data
    ]
    applied = [event["pod"] for event in events_of(run, "applied")]
    if sorted(applied) != sorted(after):
        problems.append(f"applied {sorted(applied)}, stored {sorted(after)}")
    if everything(run) != expected:
        problems.append("differs from the undisturbed run")
    problems += [f"left behind: {path.name}" for path in run.root.rglob(".*.tmp")]
    return problems


def strike_and_recover(
    run: RunFolder, pods: int, expected: Any, strike: Callable[[RunFolder], Outcome]
) -> int:
    """Disturb a run, complete it by the same call, and compare; how often it truly was struck."""
    first = strike(run)
    assert first.status != BROKEN, f"{run.root.name}: not a typed error"
    before = acknowledged(run)
    assert forked(run, pods).status == DONE, run.root.name
    assert check(run, before, expected) == [], run.root.name
    shutil.rmtree(run.root)
    return first.hits


def count_points(folder: Path, pods: int) -> int:
    """Operations of an undisturbed run (threads; the order of two pods' operations may vary)."""
    run = RunFolder(folder / "count")
    outcome = forked(run, pods, faults=Faults("count", -1, folder / "never"))
    assert outcome.status == DONE
    return outcome.points


def kill_at_work(run: RunFolder, pods: int) -> Outcome:
    """Start a tournament of spawned pods and SIGKILL the orchestrator while pod 2 is in the
    middle."""
    gate = run.root.parent / f"{run.root.name}-gate" / "p0002"
    gate.parent.mkdir()
    gate.touch()
    with patch.dict(os.environ, {stubs.GATE_VARIABLE: str(gate)}):
        pid = fork(lambda: race(run, pods, processes=True))
    until(lambda: stubs.waiting(gate) is not None, "the pod that waits")
    children = psutil.Process(pid).children(recursive=True)
    os.kill(pid, signal.SIGKILL)
    _, code = os.waitpid(pid, 0)
    until(lambda: all(gone(child.pid) for child in children), "orphans to follow it")
    status = os.waitstatus_to_exitcode(code)
    return Outcome(status, hits=int(status == -signal.SIGKILL))
