"""Progress as rich bars at a terminal: a separate module, because importing rich takes 0.1 s, and
workers never need it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.progress import TaskID as RichTaskID
from rich.text import Text

from fintrader import logs
from fintrader.progress import (
    LineProgress,
    LogProgress,
    Observer,
    Progress,
    Task,
    current_observer,
)


class _Bars(RichProgress):
    """Rich bars, below a line about the whole run and above an extra drawing."""

    observer: Observer | None = None
    extra: Callable[[], RenderableType] | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.observer is not None:
            yield Text(self.observer.strip(), style="dim")
        yield from super().get_renderables()
        if self.extra is not None:
            yield self.extra()


class TerminalProgress(Progress):
    """Rich bars: share, count, rate, time left, note. A task that ends leaves one line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = _Bars(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("[progress.data.speed]{task.fields[speed]}"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            console=console,
            transient=True,
        )
        self._bars.observer = (
            current_observer.get()
        )  # read here, because another thread draws the bars
        self._ids: dict[Task, RichTaskID] = {}

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bars.stop()

    def print_line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def show(self, render: Callable[[], RenderableType] | None) -> None:
        self._bars.extra = render

    def task(self, name: str, total: float | None = None, unit: str = "") -> Task:
        task = super().task(name, total, unit)
        self._ids[task] = self._bars.add_task(name, total=total, speed="", note="")
        return task

    def changed(self, task: Task) -> None:
        if task not in self._ids:
            return
        if task.finished:
            self._bars.remove_task(self._ids.pop(task))
            self.print_line(task.describe())
        else:
            self._bars.update(
                self._ids[task], completed=task.done, speed=task.speed, note=task.note
            )


def reporter(stream: TextIO | None = None) -> Progress:
    """Make the progress that suits `stream` (stderr by default): bars at a terminal, else lines.

    Without a stream and with structured logs (`logs.use_format`), it writes records.
    """
    if stream is None and logs.is_structured():
        return LogProgress(sys.stderr)
    console = Console(file=stream or sys.stderr)
    return TerminalProgress(console) if console.is_terminal else LineProgress(stream or sys.stderr)
