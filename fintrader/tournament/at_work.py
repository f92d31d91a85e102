"""Who is at work on a pod: the process that holds the lock of its folder, whoever started it.

    pods/<id>/.lock     held by the one process that trains or evaluates the pod
    pods/<id>/.sign     what that process said last

The kernel lets one process have it, and frees it when that process dies, however it dies: so no pod
is trained twice at once, and a pod outlives its orchestrator without anybody losing sight of it.
Taking such an orphan over is no more than starting its pod again: the new process waits for the
lock, passes on what the orphan says, and returns its result. When the orphan is lost, it has the
lock, and goes on from the checkpoint.

A sign is believed only while the lock is held. It names a process by its number,
its start and the machine's boot, so nobody else is ever sent a signal.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fintrader.errors import RunError, StorageError
from fintrader.files import make_folder, open_file, read_bytes
from fintrader.runs import RunFolder
from fintrader.storage.lease import describe_process, is_here
from fintrader.system import is_locked, signal_process, try_lock
from fintrader.tournament import lease as leases
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.spec import OrphanLost, PodContext, PodSpec, Reason
from fintrader.tournament.state_sync import save_all

LOCK = ".lock"
SIGN = ".sign"
LOOK_SECONDS = 0.2
"""Somebody who waits for the lock looks so often, and an orphan whether it has been taken over."""
SIGN_SECONDS = 1.0
"""Signs of life are written no more often."""
FENCE_SECONDS = 5.0
"""An orphan looks so often whether the run has gone to another machine."""
CHECKPOINT_SECONDS = 60.0
"""An orphan that is to end waits no longer for its next checkpoint."""


@dataclass(frozen=True)
class Sign:
    """What the process at work on a pod said last."""

    process: dict[str, Any]
    """The `storage.lease.describe_process` of it."""
    slot: str = ""
    """Where its launcher put it."""
    said: tuple[float, int, str] = (0.0, 0, "")
    """Share of the budget, env-steps, note."""
    lost: tuple[Reason, str] | None = None
    """What it came to, if it came to nothing."""


@contextlib.contextmanager
def lock_pod(
    spec: PodSpec, context: PodContext, reason_of: Callable[[BaseException], Reason]
) -> Iterator[None]:
    """Be the one process at work on a pod; until then wait, and report what the one before says.

    `reason_of` tells what an error is to the orchestrator. Raises OrphanLost when the one before
    came to nothing.
    """
    context.folder = context.run.pod(spec.pod)
    make_folder(context.folder)
    path = context.folder / SIGN
    report = context.report
    open_file(path, "ab").close()
    lock = open_file(context.folder / LOCK, "ab")
    with lock, path.open("r+b", buffering=0) as file:
        before: Sign | None = None
        while not try_lock(lock):
            before, known = _read_sign(path) or before, before
            if before is not None and before != known:
                report(*before.said)
            time.sleep(LOOK_SECONDS)
        last = None if before is None else _read_sign(path)
        if (
            last is not None and last.lost is not None and last.lost[0] != "fenced"
        ):  # that was a head before this one
            _write(file, None)
            raise OrphanLost(*last.lost)
        own = Sign(describe_process(), context.slot)
        written = 0.0
        _write(file, own)

        def tell(share: float, env_steps: int, note: str) -> None:
            nonlocal written
            if time.monotonic() - written >= SIGN_SECONDS:
                written = time.monotonic()
                _write(file, Sign(own.process, own.slot, (share, env_steps, note)))
            report(share, env_steps, note)

        context.report = tell
        try:
            yield
        except Exception as error:
            lost = (reason_of(error), f"{type(error).__name__}: {error}"[:2000])
            _write(file, Sign(own.process, own.slot, lost=lost))
            raise
        else:
            _write(
                file, None
            )  # this process lives on, and must not be taken for the next one at work here
        finally:
            context.report = report


def read_holder(folder: Path) -> Sign | None:
    """Who is at work in a pod's folder, if anybody is, and is known."""
    path = folder / LOCK
    if not path.is_file():
        return None
    with open_file(path) as file:
        if not is_locked(file):
            return None
    return _read_sign(folder / SIGN)


def list_at_work(run: RunFolder) -> dict[str, Sign]:
    """Pods of a tournament that processes are at work on, by whomever they were started."""
    found = {
        path.parent.name: read_holder(path.parent) for path in run.pods.glob(f"p[0-9]*/{LOCK}")
    }
    return {pod: sign for pod, sign in sorted(found.items()) if sign is not None}


def end(folder: Path, number: signal.Signals, *, but: int = 0) -> None:
    """Send a signal to whoever is at work in a pod's folder, if that is a process of this machine
    other than `but`."""
    sign = read_holder(folder)
    if (
        sign is None
        or sign.lost
        or not is_here(sign.process)
        or sign.process["pid"] in (os.getpid(), but)
    ):
        return
    signal_process(sign.process["pid"], sign.process["born"], number)


def wait_for_takeover(pod: str, context: PodContext) -> None:
    """Of a process whose orchestrator is gone: return when its pod has waited for another one long
    enough.

    That is `operations.orphan_seconds` without anybody who drives the run in this folder, then until
    the pod's next checkpoint; or at once when the run has gone to another machine, which trains the
    pod from its stored state.
    """
    store = open_store(context.run, context.mirror)
    alone = time.monotonic()
    asked = 0.0
    while context.operations.orphan_seconds and context.run.root.is_dir():
        if leases.is_held(context.run, None):
            alone = time.monotonic()
        elif time.monotonic() - alone >= context.operations.orphan_seconds:
            break
        elif time.monotonic() - asked > FENCE_SECONDS:
            asked = time.monotonic()
            with contextlib.suppress(StorageError):  # a store that does not answer is waited for
                if store.is_superseded(context.token or 0):
                    return
        time.sleep(LOOK_SECONDS)
    if context.operations.orphan_seconds:
        wait_for_checkpoint(context.run.pod(pod))


def wait_for_checkpoint(folder: Path) -> None:
    """Return when the pod of that folder has stored its training state once more, in the run's
    store as well."""
    before = _find_newest_state(folder)
    until = time.monotonic() + CHECKPOINT_SECONDS
    while _find_newest_state(folder) == before and time.monotonic() < until and folder.is_dir():
        time.sleep(LOOK_SECONDS)
    storing = threading.Thread(target=save_all, daemon=True, name="storing")
    storing.start()
    storing.join(CHECKPOINT_SECONDS)  # the store may be away; what is on this disk goes there later


def _find_newest_state(folder: Path) -> int:
    """When a training state was written in a pod's folder last."""
    times = [0]
    for path in folder.rglob("*.safetensors"):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime_ns)
    return max(times)


def _read_sign(path: Path) -> Sign | None:
    """What stands in a sign's file, None for half of it."""
    try:
        stored = json.loads(read_bytes(path))
        lost = stored["lost"]
        return Sign(
            stored["process"],
            stored["slot"],
            tuple(stored["said"]),
            None if lost is None else tuple(lost),
        )
    except (OSError, RunError, ValueError, KeyError, TypeError):
        return None


def _write(file: Any, sign: Sign | None) -> None:
    with contextlib.suppress(OSError):  # a full disk is told by what matters more
        file.seek(0)
        file.write(b"" if sign is None else json.dumps(vars(sign)).encode())
        file.truncate()
