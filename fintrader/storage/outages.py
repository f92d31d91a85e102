"""How long a store that does not answer is waited for, and who is told.

By default a request is tried again for half a minute (`objects.PATIENCE_SECONDS`). Whoever has
something to lose waits longer, for as long as a block lasts: a tournament waits an hour while its
pods train on.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fintrader.errors import StorageError
from fintrader.progress import Progress

SAID_SECONDS = 60.0
"""Between two outages; one that goes on is one."""


@dataclass(eq=False)
class Outage:
    """What somebody in this process is ready to sit out."""

    seconds: float
    waiting: Callable[[StorageError], None]


_outages: list[Outage] = []


def under_way() -> tuple[Outage, ...]:
    """Of all blocks that this process is in."""
    return tuple(_outages)


@contextlib.contextmanager
def outages(
    seconds: float, waiting: Callable[[StorageError], None] = lambda problem: None
) -> Iterator[None]:
    """Until the end of the block this process waits so long for a store that does not answer, and
    calls `waiting` with the problem before every further try."""
    outage = Outage(seconds, waiting)
    _outages.append(outage)
    try:
        yield
    finally:
        _outages.remove(outage)


class Waiting:
    """Says once an outage, and no more than once a minute, that the store is waited for."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._said = -math.inf

    def __call__(self, problem: StorageError) -> None:
        now = time.monotonic()
        if now - self._said > SAID_SECONDS:
            self.progress.event(
                {"event": "outage", "detail": str(problem)}, f"  waiting for the store: {problem}"
            )
        self._said = now
