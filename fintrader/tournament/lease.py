"""The fenced lease: at most one orchestrator acts on a run, and one that lost the run can no longer
change it.

    lease/<token>.json     the holder with the highest token is the one that counts; the name
                           says it, not the content

The lock belongs to the kernel, so it is free the moment its holder dies; there is no timeout to
wait for. Each holder claims the next token by creating its file, which only one of several can; its
pods carry the token and publish nothing once there is a higher one. A run with a store is held
there as well (`fintrader.storage.lease`), against other machines.

Some network file systems grant every lock to everybody. Where that shows, a run without a store is
refused; where it does not (each machine keeps its locks to itself), two orchestrators have two
tokens, and the earlier one stops.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from fintrader.errors import RunError, StorageError, TournamentError
from fintrader.files import make_folder, open_file
from fintrader.runs import RunFolder
from fintrader.storage.lease import StoreLease, claim, find_newest_token, hold, record_token
from fintrader.storage.lease import is_held as is_held_remotely
from fintrader.storage.mirror import Mirror
from fintrader.storage.objects import ObjectStore
from fintrader.system import is_locked, try_lock


@dataclass(frozen=True)
class Lease:
    """Held by one orchestrator."""

    run: RunFolder
    token: int
    remote: StoreLease | None = None
    """The same, in the run's store."""

    def check(self, *, ask_store: bool = False) -> None:
        """Raises TournamentError when another orchestrator has taken over. `ask_store`: as the run's
        store has it now."""
        if read_token(self.run) != self.token:
            raise TournamentError(
                f"{self.run.root}: another orchestrator has taken over; this one stops"
            )
        if self.remote is not None:
            try:
                self.remote.check(ask_store=ask_store)
            except RunError as error:
                raise TournamentError(str(error)) from None


@contextlib.contextmanager
def acquire(
    run: RunFolder, mirror: Mirror | None, *, patience_seconds: float = 2.0
) -> Iterator[Lease]:
    """Hold the run's tournament, here and in the run's store. Raises TournamentError when another
    process does, and for a run without a store where locks keep nobody out.

    `patience_seconds` bridges the moment in which a killed holder has not quite gone.
    """
    make_folder(run.root)
    path = run.root / ".tournament.lock"
    with open_file(path, "ab") as file:
        deadline = time.monotonic() + patience_seconds
        while not try_lock(file):
            if time.monotonic() >= deadline:
                raise TournamentError(
                    f"{run.root}: another process runs this tournament; wait for it or stop it"
                    " first"
                )
            time.sleep(0.05)
        if mirror is None:
            with open_file(path, "ab") as other:
                if try_lock(other):
                    raise TournamentError(
                        f"{run.root}: file locks keep nobody out here (a network file system?), and"
                        " two orchestrators would spoil one run; choose a local disk (--runs-dir),"
                        " or a store (`store: s3://...`)"
                    )
        with contextlib.ExitStack() as stack:
            try:
                remote = (
                    None
                    if mirror is None
                    else stack.enter_context(hold(mirror.objects, above=read_token(run)))
                )
            except RunError as error:
                raise TournamentError(str(error)) from None
            yield Lease(run, _claim_token(run, remote), remote)


def _claim_token(run: RunFolder, remote: StoreLease | None) -> int:
    """This folder's next token; that of the run's store where it has one."""
    try:
        if remote is None:
            return claim(_open_folder(run))
        record_token(_open_folder(run), remote.token)
    except StorageError as error:
        raise TournamentError(str(error)) from None
    return remote.token


def read_token(run: RunFolder) -> int:
    """The newest holder's token, 0 before the first."""
    return find_newest_token(_open_folder(run))


def _open_folder(run: RunFolder) -> ObjectStore:
    """The run's folder as a store of its own."""
    return ObjectStore(run.root.absolute())


def is_held(run: RunFolder, mirror: Mirror | None) -> bool:
    """Whether an orchestrator is at work, here or elsewhere (for `fintrader status`)."""
    path = run.root / ".tournament.lock"
    if path.exists():
        with open_file(path) as file:
            if is_locked(file):
                return True
    return mirror is not None and is_held_remotely(mirror.objects)
