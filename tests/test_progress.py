from __future__ import annotations

import io

from rich.console import Console

from fintrader.progress import SILENT, LineProgress, TerminalProgress, reporter


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_are_sparse_and_give_rate_and_time_left() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, seconds=10, clock=clock)
    task = progress.task("train", total=1000, unit="steps")
    for _ in range(4):
        clock.now += 4
        task.advance(100, note="x")
    assert stream.getvalue() == "train: 300/1,000 steps (30 %)  25 steps/s  28 s left  x\n"
    clock.now += 4
    task.close()
    task.close()
    assert stream.getvalue().splitlines()[1:] == ["train: 400/1,000 steps (40 %)  20 steps/s  in 20 s  x"]


def test_what_an_earlier_run_did_is_kept_out_of_the_rate() -> None:
    clock = Clock()
    task = LineProgress(io.StringIO(), clock=clock).task("pods", total=10)
    task.resume_at(5)
    clock.now = 2
    task.advance()
    assert task.rate == 0.5
    assert task.seconds_left == 8


def test_pipes_get_lines_and_silence_is_silent() -> None:
    assert isinstance(reporter(io.StringIO()), LineProgress)
    with SILENT.task("nothing", total=1) as task:
        task.advance()


def test_terminal_bars_leave_one_line() -> None:
    stream = io.StringIO()
    with TerminalProgress(Console(file=stream, force_terminal=True, width=100)) as progress:
        task = progress.task("train", total=10, unit="steps")
        task.advance(10)
        progress.say("[not markup]")
        task.close()
    text = stream.getvalue()
    assert "[not markup]" in text
    assert "train: 10/10 steps (100 %)" in text
