"""Progress of long work: rich bars at a terminal, a quiet line now and then anywhere else.

    with reporter() as progress:
        task = progress.task("train", total=200_000, unit="steps")
        task.advance(4_096, note="reward 0.12")

Everything that takes long accepts a `progress: Progress`; the default is `SILENT`. Feeds of bars
accept None for it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType


class Observer(Protocol):
    """Observer of the tasks of a larger work."""

    def tell(self, task: Task) -> None:
        """Note progress of a task."""

    def resume(self) -> None:
        """Go on after another observer's block inside this one's."""

    def strip(self) -> str:
        """Describe the whole work in one line."""


current_observer: ContextVar[Observer | None] = ContextVar("fintrader_observer", default=None)
"""Observer of the tasks that begin in this context."""


@contextlib.contextmanager
def observe_tasks(observer: Observer) -> Iterator[Observer | None]:
    """Inside the block, notify `observer` of the progress of tasks that begin there, and show its
    `strip()` above a terminal's bars. Yields the enclosing block's observer."""
    outer = current_observer.get()
    token = current_observer.set(observer)
    try:
        yield outer
    finally:
        current_observer.reset(token)


class Task:
    """One piece of work with `total` units (None where unknown). Safe to call from several
    threads."""

    def __init__(self, owner: Progress, name: str, total: float | None, unit: str) -> None:
        self.name = name
        self.total = total
        self.unit = unit
        self.note = ""
        self.done = self.first = 0.0
        self.started = self.reported = owner.clock()
        self.finished = False
        self.shown = (-1.0, "")
        """Units done and note of the last line."""
        self._owner = owner
        self._observer = current_observer.get()
        self._tell()

    def _tell(self) -> None:
        if self._observer is not None:
            self._observer.tell(self)

    def advance(self, amount: float = 1.0, *, note: str | None = None) -> None:
        """Count `amount` more units as done."""
        self.update(self.done + amount, note=note)

    def update(self, done: float, *, note: str | None = None) -> None:
        """Set the units done so far; `note` is a short text shown next to them."""
        self.done = done
        self.note = self.note if note is None else note
        self._owner.changed(self)
        self._tell()

    def resume_at(self, done: float) -> None:
        """Count work of an earlier run as done, but keep it out of the rate."""
        self.first = done
        self.update(done)

    def close(self) -> None:
        """End the work, and print its last line."""
        if not self.finished:
            self.finished = True
            self._owner.changed(self)
            self._tell()

    def __enter__(self) -> Task:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def rate(self) -> float | None:
        """Units a second since the start, None before the first."""
        elapsed = self._owner.clock() - self.started
        done = self.done - self.first
        return done / elapsed if elapsed > 0 and done > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds to go, None where total or rate are unknown and in the first 2 %, which
        include compiling."""
        rate = self.rate
        if self.total is None or rate is None:
            return None
        if self.done - self.first < 0.02 * (self.total - self.first):
            return None
        return max(0.0, self.total - self.done) / rate

    @property
    def speed(self) -> str:
        """The rate with its unit, `12,400 steps/s`, or an hour if slow; empty before the first."""
        if self.rate is None:
            return ""
        rate, time_unit = (self.rate, "s") if self.rate >= 0.1 else (self.rate * 3600, "h")
        return f"{_format_number(rate)}{self._unit}/{time_unit}"

    @property
    def _unit(self) -> str:
        return f" {self.unit}" if self.unit else ""

    def describe(self) -> str:
        """Describe the task in one line: name, done of total, share, rate, time left, note."""
        done = f"{self.name}: {_format_number(self.done)}"
        if self.total is not None:
            share = 100.0 if self.total <= 0 else 100.0 * self.done / self.total
            done += f"/{_format_number(self.total)}{self._unit} ({share:.0f} %)"
        else:
            done += self._unit
        time_text = ""
        if self.finished:
            time_text = f"in {format_duration(self._owner.clock() - self.started)}"
        elif self.seconds_left:
            time_text = f"{format_duration(self.seconds_left)} left"
        return "  ".join(part for part in (done, self.speed, time_text, self.note) if part)


class Progress:
    """Silent progress, and the base of the kinds that show it."""

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def task(self, name: str, total: float | None = None, unit: str = "") -> Task:
        """Begin a piece of work."""
        return Task(self, name, total, unit)

    def print_line(self, text: str) -> None:
        """Print one line that stays, above the tasks in progress."""

    def event(self, record: dict[str, Any], text: str) -> None:
        """Report an event: `text` for people (empty: not worth a line), `record` for a structured
        log."""
        if text:
            self.print_line(text)

    def show(self, render: Callable[[], RenderableType] | None) -> None:
        """Draw `render()` below a terminal's bars at each refresh; None ends that."""

    def changed(self, task: Task) -> None:
        """Show progress or the end of a task."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *raised: object) -> None:
        """Leave the terminal tidy."""


SILENT = Progress()


class LineProgress(Progress):
    """Lines for logs and pipes: for each task one every `seconds` if something changed, and one at
    its end."""

    def __init__(
        self, stream: TextIO, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._seconds = seconds
        self.clock = clock
        self._lock = threading.Lock()

    def print_line(self, text: str) -> None:
        with self._lock:
            print(text, file=self._stream, flush=True)

    def tell(self, task: Task) -> None:
        """Print a task's progress."""
        self.print_line(task.describe())

    def changed(self, task: Task) -> None:
        now = self.clock()
        state = task.done, task.note
        if task.finished or (now - task.reported >= self._seconds and state != task.shown):
            task.reported = now
            task.shown = state
            self.tell(task)


class LogProgress(LineProgress):
    """Records of a structured log: the lines of `LineProgress`, with their numbers as fields."""

    _log = logging.getLogger("fintrader.progress")

    def print_line(self, text: str) -> None:
        self._log.info(text.strip())

    def event(self, record: dict[str, Any], text: str) -> None:
        level = logging.WARNING if record["event"] in _MISHAPS else logging.INFO
        fields = {key: value for key, value in record.items() if key != "time"}
        self._log.log(level, text.strip() or str(record["event"]), extra={"fields": fields})

    def tell(self, task: Task) -> None:
        fields = {
            "task": task.name,
            "done": task.done,
            "total": task.total,
            "unit": task.unit,
            "rate": task.rate,
        }
        self._log.info(task.describe(), extra={"fields": {**fields, "finished": task.finished}})


_MISHAPS = frozenset({"lost", "damaged", "leaderboard_damaged", "no_capacity"})


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.2f}"


def format_duration(seconds: float) -> str:
    """Format seconds: 75 as `1 min 15 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def shorten_list(items: Iterable[object], separator: str = ", ", most: int = 5) -> str:
    """List the first `most` items, and count the others."""
    texts = [*map(str, items)]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more
