"""The fenced lease: at most one orchestrator acts on a run, and a former one can no longer change
it.

    lease/<token>.json     the holder with the highest token counts; the name alone is read

The kernel holds the lock, so it is free the moment its holder dies, without a timeout. Each holder
claims the next token by creating its file, which only one process can. Its pods carry the token and
publish nothing once there is a higher one. A run with a store is held there as well
(`fintrader.storage.lease`), against other machines.

Some network file systems grant every lock to everyone. If a test shows that, a run without a store
is refused. If each machine keeps its locks to itself, two orchestrators have two tokens, and the
earlier one stops.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from fintrader.errors import TournamentError
from fintrader.files import make_folder, open_file
from fintrader.runs import RunFolder
from fintrader.storage.lease import StoreLease, claim, find_newest_token, hold, record_token
from fintrader.storage.lease import is_held as is_held_remotely
from fintrader.storage.mirror import Mirror
from fintrader.storage.objects import ObjectStore
from fintrader.system import is_locked, try_lock, wait_for_lock


@dataclass(frozen=True)
class Lease:
    """Right of one orchestrator to drive the run."""

    run: RunFolder
    token: int
    remote: StoreLease | None = None
    """Lease in the run's store."""

    def check(self, *, ask_store: bool = False) -> None:
        """Raise TournamentError, or RunError from the run's store, when another orchestrator has
        taken over. `ask_store`: ask the store now."""
        if read_token(self.run) != self.token:
            raise TournamentError(
                f"{self.run.root}: another orchestrator has taken over; this one stops"
            )
        if self.remote is not None:
            self.remote.check(ask_store=ask_store)


@contextlib.contextmanager
def acquire(
    run: RunFolder, mirror: Mirror | None, *, patience_seconds: float = 2.0
) -> Iterator[Lease]:
    """Hold the run's tournament, here and in the run's store. Raises TournamentError when another
    process holds it here, RunError when one holds it in the store, and TournamentError for a run
    without a store on a file system whose locks exclude no one.

    `patience_seconds`: time that a killed holder has to end.
    """
    make_folder(run.root)
    path = run.root / ".tournament.lock"
    with open_file(path, "ab") as file:
        if not wait_for_lock(file, patience_seconds):
            raise TournamentError(
                f"{run.root}: another process runs this tournament; wait for it or stop it first"
            )
        if mirror is None:
            with open_file(path, "ab") as other:
                if try_lock(other):
                    raise TournamentError(
                        f"{run.root}: file locks exclude no process here (a network file system?),"
                        " and two orchestrators would corrupt one run; choose a local disk"
                        " (--runs-dir), or a store (`store: s3://...`)"
                    )
            yield Lease(run, claim(_open_folder(run)))
            return
        with hold(mirror.objects, above=read_token(run)) as remote:
            record_token(_open_folder(run), remote.token)
            yield Lease(run, remote.token, remote)


def read_token(run: RunFolder) -> int:
    """Read the newest holder's token, 0 before the first."""
    return find_newest_token(_open_folder(run))


def _open_folder(run: RunFolder) -> ObjectStore:
    """Open the run's folder as a store."""
    return ObjectStore(run.root.absolute())


def is_held(run: RunFolder, mirror: Mirror | None) -> bool:
    """Check for an orchestrator at work, here or elsewhere (for `fintrader status`)."""
    path = run.root / ".tournament.lock"
    if path.exists():
        with open_file(path) as file:
            if is_locked(file):
                return True
    return mirror is not None and is_held_remotely(mirror.objects)
