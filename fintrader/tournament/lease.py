"""The fenced lease: at most one orchestrator acts on a run, and one that lost the run can no longer change it.

The lock belongs to the kernel, so it is free the moment its holder dies; there is no timeout to wait for. Each
holder raises a token in `lease.json`; its pods carry the token and publish nothing once it is no longer current.
A run with a store is held there as well (`fintrader.storage.lease`), against other machines.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from fintrader.errors import RunError, TournamentError
from fintrader.files import read_json, write_json
from fintrader.runs import RunFolder
from fintrader.storage.lease import StoreLease, hold
from fintrader.storage.lease import is_held as is_held_remotely
from fintrader.storage.mirror import Mirror


@dataclass(frozen=True)
class Lease:
    """Held by one orchestrator."""

    run: RunFolder
    token: int
    remote: StoreLease | None = None
    """The same, in the run's store."""

    def check(self, *, sure: bool = False) -> None:
        """Raises TournamentError when another orchestrator has taken over. `sure`: as the run's store has it now."""
        if current_token(self.run) != self.token:
            raise TournamentError(f"{self.run.root}: another orchestrator has taken over; this one stops")
        if self.remote is not None:
            try:
                self.remote.check(sure=sure)
            except RunError as error:
                raise TournamentError(str(error)) from None


@contextlib.contextmanager
def acquire(run: RunFolder, mirror: Mirror | None, *, patience_seconds: float = 2.0) -> Iterator[Lease]:
    """Hold the run's tournament, here and in the run's store. Raises TournamentError when another process does.

    `patience_seconds` bridges the moment in which a killed holder has not quite gone.
    """
    run.root.mkdir(parents=True, exist_ok=True)
    with (run.root / ".tournament.lock").open("a") as file:
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TournamentError(
                        f"{run.root}: another process runs this tournament; wait for it or stop it first"
                    ) from None
                time.sleep(0.05)
        with contextlib.ExitStack() as stack:
            try:
                remote = None if mirror is None else stack.enter_context(hold(mirror.objects, above=current_token(run)))
            except RunError as error:
                raise TournamentError(str(error)) from None
            token = current_token(run) + 1 if remote is None else remote.token
            holder = {"token": token, "pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
            write_json(run.root / "lease.json", holder)
            yield Lease(run, token, remote)


def current_token(run: RunFolder) -> int:
    """The newest holder's token, 0 before the first."""
    path = run.root / "lease.json"
    if not path.exists():
        return 0
    try:
        return int(read_json(path)["token"])
    except (RunError, KeyError, TypeError, ValueError):
        raise TournamentError(f"{path} is damaged; delete it when nothing runs in {run.root}") from None


def is_held(run: RunFolder, mirror: Mirror | None) -> bool:
    """Whether an orchestrator is at work, here or elsewhere (for `fintrader status`)."""
    path = run.root / ".tournament.lock"
    if path.exists():
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return mirror is not None and is_held_remotely(mirror.objects)
