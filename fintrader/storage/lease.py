"""The lease of a run in a store: at most one process, on whatever machine, drives the run.

    <run>/lease/<token>.json        the holder with the highest token is the one that counts

Taking the run over is the creation of the next token's object, which a store lets only one of
several succeed in. The holder beats: every few seconds it writes its object again and looks whether
a higher token stands there. A silent holder is taken for dead after `LAPSE_SECONDS` of the
*observer's* clock, so no two clocks are ever compared; one whose process is visibly gone from this
machine, at once. A holder that only slept finds the higher token and stops. What it wrote in the
meantime changes nothing: results are created once, and everything else carries the token it was
written under, of which readers take the highest.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fintrader.errors import RunError, StorageDamagedError, StorageError, StorageOfflineError
from fintrader.storage.objects import Objects

BEAT_SECONDS = 6.0
"""Between two signs of life."""
LEASE_SECONDS = 20.0
"""A holder that could not show one for so long asks the store before it acts again."""
LAPSE_SECONDS = 30.0
"""An observer waits so long, which is more, before it takes a silent holder for dead."""
_NAME = re.compile(r"lease/(\d{6,})\.json")
_held: dict[str, StoreLease] = {}
_lock = threading.Lock()


class StoreLease:
    """Held by this process; it beats by itself until it is released."""

    def __init__(self, objects: Objects, token: int) -> None:
        self.objects = objects
        self.token = token
        self.lost = False
        self.listing: frozenset[str] | None = None
        """What the store held when this process looked last."""
        self.index: dict[str, str] | None = None
        """The files of the run as they were published last: name -> hash."""
        self.counts: dict[str, int] = {}
        """Records written so far, by kind."""
        self._beats = 0
        self._confirmed = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="store lease")

    def start(self) -> None:
        self._thread.start()

    def check(self, *, sure: bool = False) -> None:
        """Raises RunError when another process has taken over, StorageOfflineError when nobody can
        say.

        `sure`: ask now, however lately it was asked.
        """
        if not self.lost and (sure or time.monotonic() - self._confirmed > LEASE_SECONDS):
            self.beat()
        if self.lost:
            raise RunError(
                f"{self.objects}: another process has taken this run over; this one stops"
            )

    def beat(self) -> None:
        """Show that this process lives, and see whether another one has taken over."""
        began = time.monotonic()
        if newest(self.objects) != self.token:
            self.lost = True
            return
        self._beats += 1
        self.objects.put(_name(self.token), _record(self.token, self._beats))
        self._confirmed = began

    def number(self, kind: str) -> int:
        """0, 1, 2, … for each kind of record written under this lease."""
        with _lock:
            count = self.counts.get(kind, 0)
            self.counts[kind] = count + 1
            return count

    def release(self) -> None:
        """Let the next one have it at once."""
        self._ended.set()
        self._thread.join()
        if not self.lost:
            with contextlib.suppress(StorageError):  # then it lapses
                self.objects.put(
                    _name(self.token), _record(self.token, self._beats + 1, released=True)
                )

    def _keep(self) -> None:
        while not self._ended.wait(BEAT_SECONDS) and not self.lost:
            with contextlib.suppress(StorageError):  # `check` asks again once it has been too long
                self.beat()


@contextlib.contextmanager
def hold(objects: Objects, *, above: int = 0) -> Iterator[StoreLease]:
    """Hold the run at `objects`. Within one process it may be held several times over; the token
    stays the same.

    The token is higher than `above`. Raises RunError when a living process, here or elsewhere,
    holds the run.
    """
    held = _held.get(objects.url)
    if held is not None:
        held.check()
        yield held
        return
    lease = StoreLease(objects, _take(objects, above))
    _held[objects.url] = lease
    lease.start()
    try:
        yield lease
    finally:
        _held.pop(objects.url, None)
        lease.release()


def held_here(objects: Objects) -> StoreLease | None:
    """The lease that this process holds, if any."""
    return _held.get(objects.url)


def newest(objects: Objects) -> int:
    """The highest token that anybody has taken, 0 before the first."""
    tokens = (_NAME.fullmatch(name) for name in objects.names("lease"))
    return max((int(match.group(1)) for match in tokens if match), default=0)


def is_held(objects: Objects) -> bool:
    """Whether somebody seems to be at work, going by the clocks (for `fintrader status`; nothing
    depends on it)."""
    token = newest(objects)
    record = _read(objects, token) if token else None
    return (
        record is not None
        and not record["released"]
        and abs(time.time() - record["time"]) < 2 * LAPSE_SECONDS
    )


# a forked child holds nothing: the lease, and the thread that keeps it, stayed with its parent
os.register_at_fork(after_in_child=lambda: _held.clear())


def note(objects: Objects, token: int) -> None:
    """Say here, too, which token counts elsewhere."""
    objects.put(_name(token), _record(token, 0))
    objects.remove(*(name for name in objects.names("lease") if name != _name(token)))


def claim(objects: Objects) -> int:
    """Take the next token, whoever holds the last one; nobody else has or gets the same."""
    while True:
        token = newest(objects) + 1
        if _claimed(objects, token):
            _sweep(objects, token)
            return token


def _claimed(objects: Objects, token: int) -> bool:
    if not objects.create(_name(token), _record(token, 0)):
        return False  # somebody else was faster
    # faster by far: that token may have been taken, superseded and swept away while this process
    # slept
    return newest(objects) == token


def _take(objects: Objects, above: int) -> int:
    while True:
        last = newest(objects)
        if last:
            _wait_for_its_end(objects, last)
        token = max(last, above) + 1
        if not _claimed(objects, token):
            continue
        if objects.exclusive and not objects.create(_name(token), b"{}"):
            _sweep(objects, token)
            return token
        # this store lets anybody write over anything: the best there is, is to see who wrote last
        objects.put(_name(token), _record(token, 0))
        print(
            f"fintrader: {objects}: this store cannot write conditionally, so nothing but you keeps"
            " two machines from driving one run at the same time",
            file=sys.stderr,
        )
        time.sleep(min(2.0, BEAT_SECONDS))
        record = _read(objects, token)
        if newest(objects) == token and record is not None and record["id"] == identity():
            _sweep(objects, token)
            return token


def _wait_for_its_end(objects: Objects, token: int) -> None:
    """Return once the holder of `token` has released it, is dead, or has shown no life for long
    enough."""
    seen: Any = None
    since = time.monotonic()
    warned = False
    while True:
        record = _read(objects, token)
        if record is None or record["released"] or _is_dead(record["id"]):
            return
        if seen is not None and record["beat"] != seen:
            raise RunError(
                f"{objects} is in use by process {record['id']['pid']} on {record['id']['host']}; "
                "wait for it or stop it first"
            )
        seen = record["beat"]
        if time.monotonic() - since > LAPSE_SECONDS:
            return
        if not warned and time.monotonic() - since > BEAT_SECONDS:
            warned = True
            print(
                f"{objects}: its last holder, on {record['id']['host']}, is silent; taking over in"
                f" {LAPSE_SECONDS:g} s",
                file=sys.stderr,
            )
        time.sleep(min(0.5, BEAT_SECONDS / 4))


def _sweep(objects: Objects, token: int) -> None:
    """Earlier holders' objects: the highest token is all that counts."""
    old = [
        name
        for name in objects.names("lease")
        if (match := _NAME.fullmatch(name)) and int(match.group(1)) < token
    ]
    with contextlib.suppress(StorageOfflineError):
        objects.remove(*old)


def _name(token: int) -> str:
    return f"lease/{token:06d}.json"


def _record(token: int, beat: int, *, released: bool = False) -> bytes:
    record = {
        "token": token,
        "beat": beat,
        "released": released,
        "time": time.time(),
        "id": identity(),
    }
    return (json.dumps(record, sort_keys=True) + "\n").encode()


def _read(objects: Objects, token: int) -> dict[str, Any] | None:
    data = objects.get(_name(token))
    if data is None:
        return None
    try:
        record = json.loads(data)
        if {"beat", "released", "time", "id"} <= set(record):
            return dict(record)
        if not record:  # the probe of a store without conditional writes stands there for a moment
            return {
                "beat": -1,
                "released": False,
                "time": time.time(),
                "id": identity() | {"kernel": ""},
            }
    except (ValueError, TypeError):
        pass
    raise StorageDamagedError(
        f"{objects}/{_name(token)} is damaged; delete it when nothing drives the run"
    )


def identity() -> dict[str, Any]:
    """This process, as no other of this or another machine is described."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "born": born(pid), "kernel": _kernel()}


def _kernel() -> str:
    """This boot of this machine, and which processes can be seen: what makes a process number mean
    something."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink(
            "/proc/self/ns/pid"
        )
    return ""


def born(pid: int) -> int:
    """Start of a living process in kernel ticks; 0 when there is none, and for a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def is_here(process: dict[str, Any]) -> bool:
    """Whether a process (its `identity`) ran where its number means something to this one."""
    kernel = _kernel()
    return kernel != "" and process["kernel"] == kernel


def _is_dead(process: dict[str, Any]) -> bool:
    """Whether that process ran here and is gone. False wherever that cannot be known."""
    return is_here(process) and born(int(process["pid"])) != process["born"]
