"""Time as a deployment has it: this machine's, or that of recorded bars, at any speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

SECOND_NS = 1_000_000_000
NAP_SECONDS = 0.5
"""A sleeper looks up so often: requests (halt, resume, flatten) act within two seconds."""


class Clock(Protocol):
    """Nanoseconds since 1970 UTC."""

    live: bool
    """Whether moments pass by themselves, so that one can be missed."""

    def now(self) -> int: ...

    def sleep_until(self, moment: int, look: Callable[[], bool]) -> None:
        """Return at `moment`, or earlier once `look()`, called every now and then, answers True."""


class WallClock:
    """This machine's clock."""

    live = True

    def now(self) -> int:
        return time.time_ns()

    def sleep_until(self, moment: int, look: Callable[[], bool]) -> None:
        while not look() and (left := moment - self.now()) > 0:
            time.sleep(min(left / SECOND_NS, NAP_SECONDS))


class ReplayClock:
    """The clock of recorded bars: it jumps to the next moment (`speed` 0), or runs so many times as
    fast as time."""

    live = False

    def __init__(self, start: int, speed: float = 0.0) -> None:
        self._now = start
        self.speed = speed

    def now(self) -> int:
        return self._now

    def sleep_until(self, moment: int, look: Callable[[], bool]) -> None:
        left = max(moment - self._now, 0) / SECOND_NS / self.speed if self.speed else 0.0
        began = time.monotonic()
        start = self._now
        while not look() and (spent := time.monotonic() - began) < left:
            time.sleep(min(left - spent, NAP_SECONDS))
            self._now = min(
                start + int((time.monotonic() - began) * self.speed * SECOND_NS), moment
            )
        self._now = max(self._now, moment)
