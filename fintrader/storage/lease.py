"""The lease of a run in a store: at most one process, on any machine, drives the run.

    <run>/lease/<token>.json        the holder with the highest token counts

A process takes a run over by creating the object of the next token; the store lets only one of
several creators succeed. Every few seconds the holder renews its lease: it writes its object again
and looks for a higher token. A holder that stops renewing is presumed dead after `LAPSE_SECONDS` of
the *observer's* clock, and no two clocks are compared; a process that has visibly ended on this
machine is presumed dead at once. A holder that was only suspended finds the higher token and stops.
Its late writes change nothing: results are created once, everything else carries the token under
which it was written, and readers take the highest token.
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
from dataclasses import dataclass, field, replace

from fintrader.errors import RunError, StorageDamagedError, StorageError, StorageOfflineError
from fintrader.records import RecordError, from_json, to_json
from fintrader.storage.objects import ObjectStore
from fintrader.system import call_after_fork, name_process_space, read_process_start, start_thread

BEAT_SECONDS = 6.0
"""Seconds between two renewals."""
LEASE_SECONDS = 20.0
"""Age of the last renewal, in seconds, from which a holder asks the store before it acts again."""
LAPSE_SECONDS = 30.0
"""Silence, in seconds, after which an observer presumes a holder dead. It exceeds `LEASE_SECONDS`,
so that the holder stops before its successor starts."""
_NAME = re.compile(r"lease/(\d{6,})\.json")
_held: dict[str, StoreLease] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, unique among all processes of all machines."""

    host: str
    pid: int
    born: int
    """Start of the process, as `system.read_process_start` returns it."""
    kernel: str
    """Boot and process namespace, within which `pid` is unique; empty where unknown."""

    @property
    def is_here(self) -> bool:
        """True where the process shares this machine and process namespace."""
        space = name_process_space()
        return space != "" and self.kernel == space

    @property
    def is_dead(self) -> bool:
        """True where the process ran here and has ended; False where that cannot be known."""
        return self.is_here and read_process_start(self.pid) != self.born


def describe_process() -> ProcessIdentity:
    """Describe this process."""
    pid = os.getpid()
    return ProcessIdentity(socket.gethostname(), pid, read_process_start(pid), name_process_space())


@dataclass(frozen=True)
class LeaseRecord:
    """The object of one token, as its holder last wrote it."""

    token: int
    beat: int = 0
    """Number of renewals."""
    released: bool = False
    time: float = field(default_factory=time.time)
    """Unix time of the holder's clock: for display only."""
    id: ProcessIdentity = field(default_factory=describe_process)

    def encode(self) -> bytes:
        """Write the record as it is stored."""
        return (json.dumps(to_json(self), sort_keys=True) + "\n").encode()


class StoreLease:
    """A lease that this process holds; a thread renews it until it is released."""

    def __init__(self, objects: ObjectStore, token: int) -> None:
        self.objects = objects
        self.token = token
        self.is_lost = False
        self.listing: frozenset[str] | None = None
        """Names of the run's objects when this process last listed them."""
        self.index: dict[str, str] | None = None
        """The run's files as last published: name -> hash."""
        self.counts: dict[str, int] = {}
        """Number of records written under this lease, by kind."""
        self._beats = 0
        self._confirmed = time.monotonic()
        self._ended = threading.Event()

    def start(self) -> None:
        """Start the thread that renews the lease."""
        self._thread = start_thread(self._run, name="store lease")

    def check(self, *, ask_store: bool = False) -> None:
        """Raise RunError when another process has taken over, StorageOfflineError when the store
        does not answer.

        `ask_store`: ask the store now, even if the last renewal is recent.
        """
        is_stale = time.monotonic() - self._confirmed > LEASE_SECONDS
        if not self.is_lost and (ask_store or is_stale):
            self.renew()
        if self.is_lost:
            raise RunError(
                f"{self.objects}: another process has taken this run over; this one stops"
            )

    def renew(self) -> None:
        """Show that this process lives, and check that no other one has taken over."""
        began = time.monotonic()
        if find_newest_token(self.objects) != self.token:
            self.is_lost = True
            return
        self._beats += 1
        self.objects.put(_name_record(self.token), LeaseRecord(self.token, self._beats).encode())
        self._confirmed = began

    def take_number(self, kind: str) -> int:
        """Return the next number (0, 1, 2, …) of a kind of record written under this lease."""
        with _lock:
            count = self.counts.get(kind, 0)
            self.counts[kind] = count + 1
            return count

    def release(self) -> None:
        """Stop renewing, and let the next process have the run at once."""
        self._ended.set()
        self._thread.join()
        if not self.is_lost:
            with contextlib.suppress(StorageError):  # an unreachable store lets the lease lapse
                record = LeaseRecord(self.token, self._beats + 1, released=True)
                self.objects.put(_name_record(self.token), record.encode())

    def _run(self) -> None:
        while not self._ended.wait(BEAT_SECONDS) and not self.is_lost:
            with contextlib.suppress(StorageError):  # `check` asks again when the lease is stale
                self.renew()


@contextlib.contextmanager
def hold(objects: ObjectStore, *, above: int = 0) -> Iterator[StoreLease]:
    """Hold the run at `objects`, under a token higher than `above`.

    The process that holds it may hold it again, under the same token. Raises RunError when another
    living process, here or elsewhere, holds the run.
    """
    held = _held.get(objects.url)
    if held is not None:
        held.check()
        yield held
        return
    lease = StoreLease(objects, _acquire_token(objects, above))
    _held[objects.url] = lease
    lease.start()
    try:
        yield lease
    finally:
        _held.pop(objects.url, None)
        lease.release()


def find_lease(objects: ObjectStore) -> StoreLease | None:
    """Find the lease that this process holds; None without one."""
    return _held.get(objects.url)


def find_newest_token(objects: ObjectStore) -> int:
    """Find the highest token taken; 0 before the first."""
    return max(_list_tokens(objects), default=0)


def _list_tokens(objects: ObjectStore) -> list[int]:
    matches = map(_NAME.fullmatch, objects.list_names("lease"))
    return [int(match[1]) for match in matches if match]


def is_held(objects: ObjectStore) -> bool:
    """Check whether a process seems to hold the run, by comparing clocks: for display only."""
    token = find_newest_token(objects)
    record = _read_record(objects, token) if token else None
    return (
        record is not None
        and not record.released
        and abs(time.time() - record.time) < 2 * LAPSE_SECONDS
    )


# A forked child holds nothing: the lease and the thread that renews it stay with the parent.
call_after_fork(_held.clear)


def record_token(objects: ObjectStore, token: int) -> None:
    """Record the token of a lease held elsewhere, and remove all other tokens here."""
    objects.put(_name_record(token), LeaseRecord(token).encode())
    objects.remove(*(_name_record(known) for known in _list_tokens(objects) if known != token))


def claim(objects: ObjectStore) -> int:
    """Take the next token, even from a living holder. No other process ever holds the same."""
    while True:
        token = find_newest_token(objects) + 1
        if _try_claim(objects, token):
            _remove_older(objects, token)
            return token


def _try_claim(objects: ObjectStore, token: int) -> bool:
    if not objects.create(_name_record(token), LeaseRecord(token).encode()):
        return False  # another process was faster
    # While this process slept the token may have been taken, superseded and removed by others.
    return find_newest_token(objects) == token


def _acquire_token(objects: ObjectStore, above: int) -> int:
    while True:
        last = find_newest_token(objects)
        if last:
            _wait_for_end(objects, last)
        token = max(last, above) + 1
        if not _try_claim(objects, token):
            continue
        if objects.is_exclusive and not objects.create(_name_record(token), b"{}"):
            _remove_older(objects, token)
            return token
        # Any writer may overwrite an object of this store: write, wait, and see whose record stays.
        objects.put(_name_record(token), LeaseRecord(token).encode())
        print(
            f"fintrader: {objects}: this store has no conditional writes and cannot keep two"
            " machines from driving one run; start the run on one machine only",
            file=sys.stderr,
        )
        time.sleep(min(2.0, BEAT_SECONDS))
        record = _read_record(objects, token)
        if (
            find_newest_token(objects) == token
            and record is not None
            and record.id == describe_process()
        ):
            _remove_older(objects, token)
            return token


def _wait_for_end(objects: ObjectStore, token: int) -> None:
    """Return once the holder of `token` has released it, is dead, or has not renewed it for
    `LAPSE_SECONDS`. Raises RunError as soon as it renews."""
    last_beat: int | None = None
    since = time.monotonic()
    has_warned = False
    while True:
        record = _read_record(objects, token)
        if record is None or record.released or record.id.is_dead:
            return
        if last_beat is not None and record.beat != last_beat:
            raise RunError(
                f"{objects} is in use by process {record.id.pid} on {record.id.host}; "
                "wait for it or stop it first"
            )
        last_beat = record.beat
        silence = time.monotonic() - since
        if silence > LAPSE_SECONDS:
            return
        if not has_warned and silence > BEAT_SECONDS:
            has_warned = True
            print(
                f"{objects}: its last holder, on {record.id.host}, is silent; taking over"
                f" after {LAPSE_SECONDS:g} s of silence",
                file=sys.stderr,
            )
        time.sleep(min(0.5, BEAT_SECONDS / 4))


def _remove_older(objects: ObjectStore, token: int) -> None:
    """Remove the records of holders before `token`."""
    older = [known for known in _list_tokens(objects) if known < token]
    with contextlib.suppress(StorageOfflineError):
        objects.remove(*map(_name_record, older))


def _name_record(token: int) -> str:
    return f"lease/{token:06d}.json"


def _read_record(objects: ObjectStore, token: int) -> LeaseRecord | None:
    data = objects.get(_name_record(token))
    if data is None:
        return None
    try:
        value = json.loads(data)
        if value == {}:  # for a moment, the probe for conditional writes replaces the record
            return LeaseRecord(token, beat=-1, id=replace(describe_process(), kernel=""))
        return from_json(LeaseRecord, value)
    except (ValueError, RecordError):
        pass
    raise StorageDamagedError(
        f"{objects}/{_name_record(token)} is damaged; delete it when no process drives the run"
    )
