"""Lock and sign of life that the process at work on a pod keeps in the pod's folder.

    pods/<id>/.lock     held by the one process that trains or evaluates the pod
    pods/<id>/.sign     the last sign of life of that process

The kernel gives the lock to one process and frees it when that process dies. So no pod is trained
twice at once, and a pod's process may outlive its orchestrator, as an *orphan*. The next
orchestrator takes it over by starting the pod again: the new process waits for the lock, forwards
the orphan's reports, and returns the orphan's result. If the orphan is lost, the new process gets
the lock and continues from the checkpoint.

A sign counts only while the lock is held. It names a process by its number, its start and the
machine's boot, so that no other process is ever sent a signal.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fintrader.errors import RunError, StorageError
from fintrader.files import make_folder, open_file, read_bytes, remove_tree
from fintrader.records import from_json, to_json
from fintrader.runs import RunFolder
from fintrader.storage.lease import ProcessIdentity, describe_process
from fintrader.system import is_locked, signal_process, start_thread, try_lock
from fintrader.tournament import lease as leases
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.spec import OrphanLost, PodSpec, Reason
from fintrader.tournament.state_sync import save_all

LOCK = ".lock"
SIGN = ".sign"
LOOK_SECONDS = 0.2
"""Seconds between two checks of an awaited lock, or of an orphan for a new orchestrator."""
SIGN_SECONDS = 1.0
"""Minimum time between two signs of life."""
FENCE_SECONDS = 5.0
"""Seconds between an orphan's checks that the run has not moved to another machine."""
CHECKPOINT_SECONDS = 60.0
"""Longest time for which an orphan that is to end waits for its next checkpoint."""


@dataclass(frozen=True)
class Sign:
    """Last sign of life of the process at work on a pod."""

    process: ProcessIdentity
    slot: str = ""
    """Slot that the launcher gave the pod."""
    progress: tuple[float, int, str] = (0.0, 0, "")
    """Share of the budget, env-steps, note."""
    failure: tuple[Reason, str] | None = None
    """Reason and detail of the pod's failure; None while it works."""


@contextlib.contextmanager
def lock_pod(
    spec: PodSpec, context: PodContext, reason_of: Callable[[BaseException], Reason]
) -> Iterator[None]:
    """Wait for the pod's lock, forwarding its holder's reports; then hold it for the `with` block.

    `reason_of` classifies an error for the orchestrator. Raises OrphanLost when the earlier holder
    failed.
    """
    context.folder = context.run.pod(spec.pod)
    make_folder(context.folder)
    path = context.folder / SIGN
    report = context.report
    if path.is_dir():  # a damaged run folder; a sign holds nothing that is missed
        remove_tree(path)
    open_file(path, "ab").close()
    lock = open_file(context.folder / LOCK, "ab")
    with lock, path.open("r+b", buffering=0) as file:
        before = None
        while not try_lock(lock):
            known = before
            before = _read_sign(path) or known
            if before is not None and before != known:
                report(*before.progress)
            time.sleep(LOOK_SECONDS)
        last = None if before is None else _read_sign(path)
        # `fenced`: the earlier orchestrator lost the run; the pod did not fail
        if last is not None and last.failure is not None and last.failure[0] != "fenced":
            _write(file, None)
            raise OrphanLost(*last.failure)
        own = Sign(describe_process(), context.slot)
        written = 0.0
        _write(file, own)

        def sign_and_report(share: float, env_steps: int, note: str) -> None:
            nonlocal written
            if time.monotonic() - written >= SIGN_SECONDS:
                written = time.monotonic()
                _write(file, replace(own, progress=(share, env_steps, note)))
            report(share, env_steps, note)

        context.report = sign_and_report
        try:
            yield
        except Exception as error:
            failure = reason_of(error), f"{type(error).__name__}: {error}"[:2000]
            _write(file, replace(own, failure=failure))
            raise
        else:
            # this process may live on; its sign must not count for the next lock holder
            _write(file, None)
        finally:
            context.report = report


def read_holder(folder: Path) -> Sign | None:
    """Read the sign of the process at work in a pod's folder; None if there is none."""
    path = folder / LOCK
    if not path.is_file():
        return None
    with open_file(path) as file:
        if not is_locked(file):
            return None
    return _read_sign(folder / SIGN)


def list_at_work(run: RunFolder) -> dict[str, Sign]:
    """List the pods of a tournament on which a process is at work, each with its sign."""
    signs = {
        path.parent.name: read_holder(path.parent) for path in run.pods.glob(f"p[0-9]*/{LOCK}")
    }
    return {pod: sign for pod, sign in sorted(signs.items()) if sign is not None}


def end(folder: Path, signal_number: signal.Signals, *, spared_pid: int = 0) -> None:
    """Send a signal to the process at work in a pod's folder, if it runs here and is not spared."""
    sign = read_holder(folder)
    if (
        sign is None
        or sign.failure
        or not sign.process.is_here
        or sign.process.pid in (os.getpid(), spared_pid)
    ):
        return
    signal_process(sign.process.pid, sign.process.born, signal_number)


def wait_for_takeover(pod: str, context: PodContext) -> None:
    """Wait, in an orphan, until its pod should end.

    The orphan waits `operations.orphan_seconds` for another orchestrator in this folder, then for
    the pod's next checkpoint. It stops waiting when the run has moved to another machine, which
    trains the pod from its stored state.
    """
    store = context.open_store()
    patience = context.operations.orphan_seconds
    alone_since = time.monotonic()
    last_check = 0.0
    while patience and context.run.root.is_dir():
        if leases.is_held(context.run, None):
            alone_since = time.monotonic()
        elif time.monotonic() - alone_since >= patience:
            break
        elif time.monotonic() - last_check > FENCE_SECONDS:
            last_check = time.monotonic()
            with contextlib.suppress(StorageError):  # ask an unreachable store again later
                if store.is_superseded(context.token or 0):
                    return
        time.sleep(LOOK_SECONDS)
    if patience:
        wait_for_checkpoint(context.run.pod(pod))


def wait_for_checkpoint(folder: Path) -> None:
    """Wait until the pod of that folder has stored its training state once more, also in the run's
    store."""
    before = _find_last_write(folder)
    until = time.monotonic() + CHECKPOINT_SECONDS
    while _find_last_write(folder) == before and time.monotonic() < until and folder.is_dir():
        time.sleep(LOOK_SECONDS)
    storing = start_thread(save_all, name="storing")
    storing.join(CHECKPOINT_SECONDS)  # an unreachable store gets this disk's files later


def _find_last_write(folder: Path) -> int:
    """Find the time at which a training state was last written in a pod's folder."""
    times = [0]
    for path in folder.rglob("*.safetensors"):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime_ns)
    return max(times)


def _read_sign(path: Path) -> Sign | None:
    """Read a sign; None for an empty or an unreadable file."""
    try:
        return from_json(Sign, json.loads(read_bytes(path)))
    except (OSError, RunError, ValueError):
        return None


def _write(file: Any, sign: Sign | None) -> None:
    with contextlib.suppress(OSError):  # a full disk is reported by more important writes
        file.seek(0)
        file.write(b"" if sign is None else json.dumps(to_json(sign)).encode())
        file.truncate()
