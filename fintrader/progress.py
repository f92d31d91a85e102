"""How far long work has come: rich bars at a terminal, a quiet line now and then anywhere else.

    with reporter() as progress:
        task = progress.task("train", total=200_000, unit="steps")
        task.advance(4_096, note="reward 0.12")

Everything that takes long accepts `progress: Progress | None`; `None` stands for silence (`SILENT`).
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.progress import Task as RichTask
from rich.progress import TaskID as RichTaskID
from rich.text import Text

from fintrader import logs


class Task:
    """One piece of work with `total` units (None where nobody knows). Safe to call from several threads."""

    def __init__(self, owner: Progress, name: str, total: float | None, unit: str) -> None:
        self.name = name
        self.total = total
        self.unit = unit
        self.done = 0.0
        self.note = ""
        self.started = owner.clock()
        self.first = 0.0
        self.finished = False
        self._owner = owner

    def advance(self, amount: float = 1.0, *, note: str | None = None) -> None:
        """Count `amount` more units as done."""
        self.update(self.done + amount, note=note)

    def update(self, done: float, *, note: str | None = None, total: float | None = None) -> None:
        """Set the units done so far; `note` is a short text shown beside them."""
        self.done = done
        self.note = self.note if note is None else note
        self.total = self.total if total is None else total
        self._owner.changed(self)

    def resume_at(self, done: float) -> None:
        """Work that an earlier run had done already: counted, but kept out of the rate."""
        self.first = self.done = done
        self._owner.changed(self)

    def close(self) -> None:
        """The work is over; prints its last line."""
        if not self.finished:
            self.finished = True
            self._owner.changed(self)

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
        """Estimated seconds to go, None where total or rate are unknown."""
        rate = self.rate
        return None if self.total is None or rate is None else max(0.0, self.total - self.done) / rate

    def line(self) -> str:
        """The task as one plain line: name, done of total, share, rate, time left, note."""
        unit = f" {self.unit}" if self.unit else ""
        if self.total is None:
            parts = [f"{self.name}: {_number(self.done)}{unit}"]
        else:
            share = 100.0 if self.total <= 0 else 100.0 * self.done / self.total
            parts = [f"{self.name}: {_number(self.done)}/{_number(self.total)}{unit} ({share:.0f} %)"]
        if self.rate is not None:
            parts.append(f"{_number(self.rate)}{unit}/s")
        if self.finished:
            parts.append(f"in {_duration(self._owner.clock() - self.started)}")
        elif self.seconds_left is not None:
            parts.append(f"{_duration(self.seconds_left)} left")
        return "  ".join([*parts, *([self.note] if self.note else [])])


class Progress:
    """Silence, and the base of the two kinds that speak."""

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def task(self, name: str, total: float | None = None, unit: str = "") -> Task:
        """Begin a piece of work."""
        task = Task(self, name, total, unit)
        self.begun(task)
        return task

    def say(self, text: str) -> None:
        """One line worth keeping, whatever is in progress."""

    def event(self, record: dict[str, Any], text: str) -> None:
        """Something happened: `text` is for people (empty: not worth a line), `record` for a structured log."""
        if text:
            self.say(text)

    def show(self, render: Callable[[], RenderableType] | None) -> None:
        """At a terminal: draw `render()` below the bars at each refresh; None: no more."""

    def begun(self, task: Task) -> None:
        """A task begins."""

    def changed(self, task: Task) -> None:
        """A task moved or ended."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *raised: object) -> None:
        """Leave the terminal tidy."""


SILENT = Progress()
"""Says nothing; what `progress=None` means."""


class LineProgress(Progress):
    """For logs and pipes: at most one line per task every `seconds`, and one when it ends."""

    def __init__(self, stream: TextIO, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._seconds = seconds
        self.clock = clock
        self._last: dict[Task, float] = {}
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        with self._lock:
            print(text, file=self._stream, flush=True)

    def begun(self, task: Task) -> None:
        self._last[task] = self.clock()

    def tell(self, task: Task) -> None:
        """Write where a task stands."""
        self.say(task.line())

    def changed(self, task: Task) -> None:
        now = self.clock()
        if task.finished or now - self._last.get(task, now) >= self._seconds:
            self._last[task] = now
            self.tell(task)
        if task.finished:
            self._last.pop(task, None)


class LogProgress(LineProgress):
    """The same lines as records of a structured log, with their numbers as fields."""

    def __init__(self, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(sys.stderr, seconds, clock)
        self._log = logging.getLogger("fintrader.progress")

    def say(self, text: str) -> None:
        self._log.info(text.strip())

    def event(self, record: dict[str, Any], text: str) -> None:
        level = logging.WARNING if record["event"] in _MISHAPS else logging.INFO
        fields = {key: value for key, value in record.items() if key != "time"}
        self._log.log(level, text.strip() or str(record["event"]), extra={"fields": fields})

    def tell(self, task: Task) -> None:
        fields = {"task": task.name, "done": task.done, "total": task.total, "unit": task.unit, "rate": task.rate}
        self._log.info(task.line(), extra={"fields": {**fields, "finished": task.finished}})


_MISHAPS = frozenset({"lost", "damaged", "leaderboard_damaged", "no_capacity"})


class _Rate(TaskProgressColumn):
    """Units a second, e.g. `12,400 steps/s`."""

    def render(self, task: RichTask) -> Text:
        if not task.speed:
            return Text("")
        return Text(f"{_number(task.speed)} {task.fields.get('unit', '')}/s", style="progress.data.speed")


class _Bars(RichProgress):
    """Bars, and below them whatever is to be shown."""

    extra: Callable[[], RenderableType] | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.extra is not None:
            yield self.extra()


class TerminalProgress(Progress):
    """Rich bars: share, count, rate, time left, note. Tasks vanish when they end, leaving one line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = _Bars(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            console=console,
            transient=True,
        )
        self._ids: dict[Task, RichTaskID] = {}

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def show(self, render: Callable[[], RenderableType] | None) -> None:
        self._bars.extra = render

    def begun(self, task: Task) -> None:
        self._ids[task] = self._bars.add_task(task.name, total=task.total, unit=task.unit, note="")

    def changed(self, task: Task) -> None:
        bar = self._ids.get(task)
        if bar is None:
            return
        if task.finished:
            self._bars.remove_task(bar)
            del self._ids[task]
            self.say(task.line())
        else:
            self._bars.update(bar, completed=task.done, total=task.total, note=task.note)


def reporter(stream: TextIO | None = None, *, quiet: bool = False, seconds: float = 10.0) -> Progress:
    """What suits `stream` (stderr by default): bars at a terminal, sparse lines elsewhere, nothing when `quiet`.

    Where logs are structured (`logs.written("json")`), records instead.
    """
    if quiet:
        return SILENT
    if stream is None and logs.structured():
        return LogProgress(seconds)
    stream = sys.stderr if stream is None else stream
    console = Console(file=stream)
    return TerminalProgress(console) if console.is_terminal else LineProgress(stream, seconds)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.2f}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours} h {rest // 60:02d} min" if hours else f"{rest // 60} min {rest % 60:02d} s"
