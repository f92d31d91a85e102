"""Retry budget for an unreachable store, and how its outages are reported.

By default a request is retried for half a minute (`objects.PATIENCE_SECONDS`). Within
`allow_outages` it is retried longer: a tournament waits an hour while its pods train on.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fintrader.errors import StorageError
from fintrader.progress import Progress

REPORT_SECONDS = 60.0
"""Failed requests less than this many seconds apart belong to one outage, reported once."""


@dataclass(eq=False)
class RetryBudget:
    """Seconds for which requests are retried, and the callback before each further try."""

    seconds: float
    notify: Callable[[StorageError], None]


_budgets: list[RetryBudget] = []


def list_budgets() -> tuple[RetryBudget, ...]:
    """List the budgets of all `allow_outages` blocks that this process is in."""
    return tuple(_budgets)


@contextlib.contextmanager
def allow_outages(
    seconds: float, notify: Callable[[StorageError], None] = lambda problem: None
) -> Iterator[None]:
    """Within the block, retry requests to an unreachable store for `seconds`, and call `notify`
    with the problem before every further try."""
    budget = RetryBudget(seconds, notify)
    _budgets.append(budget)
    try:
        yield
    finally:
        _budgets.remove(budget)


@dataclass
class OutageReporter:
    """Callback that reports each outage of a store once."""

    progress: Progress
    _last_problem: float = -math.inf

    def __call__(self, problem: StorageError) -> None:
        now = time.monotonic()
        if now - self._last_problem > REPORT_SECONDS:
            self.progress.event(
                {"event": "outage", "detail": str(problem)}, f"  waiting for the store: {problem}"
            )
        self._last_problem = now
