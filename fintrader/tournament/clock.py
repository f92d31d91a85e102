"""Time as the reconcile loop knows it: real, unless a simulation of a cluster puts its own in its place."""

from __future__ import annotations

import queue
import time
from typing import Any


class Clock:
    """The machine's monotonic clock and real waiting."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Do nothing for `seconds`."""
        time.sleep(seconds)

    def wait(self, inbox: queue.SimpleQueue[Any], seconds: float) -> Any | None:
        """The next of `inbox`, None if nothing comes within `seconds`."""
        try:
            return inbox.get(timeout=seconds)
        except queue.Empty:
            return None
