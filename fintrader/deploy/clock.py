"""Clocks of deployments: this machine's clock, or a clock of recorded bars at any speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

SECOND_NS = 1_000_000_000
NAP_SECONDS = 0.5
"""Longest sleep between two looks: requests (halt, resume, flatten) act within two seconds."""


class Clock(Protocol):
    """A clock in nanoseconds since 1970 UTC."""

    live: bool
    """True where time passes by itself, so that a bar can be missed."""

    def now(self) -> int: ...

    def sleep_until(self, moment: int, look: Callable[[], bool]) -> None:
        """Return at `moment`, or earlier once `look()`, called repeatedly, answers True."""


class WallClock:
    """This machine's clock."""

    live = True

    def now(self) -> int:
        return time.time_ns()

    def sleep_until(self, moment: int, look: Callable[[], bool]) -> None:
        while not look() and self.now() < moment:
            time.sleep(min(max(moment - self.now(), 0) / SECOND_NS, NAP_SECONDS))


class ReplayClock:
    """The clock of recorded bars: `speed` times as fast as real time; at speed 0 it jumps to the
    next moment."""

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
        spent = 0.0
        while not look() and spent < left:
            time.sleep(min(left - spent, NAP_SECONDS))
            spent = time.monotonic() - began
            self._now = min(start + int(spent * self.speed * SECOND_NS), moment)
        self._now = max(self._now, moment)
