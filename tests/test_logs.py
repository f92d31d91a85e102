import io
import json
import logging
import math
import subprocess
import sys
import warnings

import pytest
from rich.console import Console

from fintrader import logs
from fintrader.progress import SILENT, LineProgress, LogProgress
from fintrader.terminal_progress import TerminalProgress, reporter
from tests.engines.runs import fintrader


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setenv(logs.FORMAT_VARIABLE, "json")


def test_a_record_carries_what_is_bound_and_what_came_with_it(capsys, asked):
    with logs.use_format(), logs.bind(run="r"), logs.bind(pod="p0001"):
        logging.getLogger("x").info(
            "%s steps", 5, extra={"fields": {"score": math.nan, "time": 3, "deep": [math.inf]}}
        )
    (record,) = lines(capsys)
    assert (record["run"], record["pod"], record["message"], record["level"]) == (
        "r",
        "p0001",
        "5 steps",
        "info",
    )
    assert (record["score"], record["deep"], record["time_"]) == ("nan", ["inf"], 3)
    assert str(record["time"]).endswith("+00:00")


def test_warnings_and_prints_of_pods_become_records(capsys, monkeypatch, asked):
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    with logs.use_format(), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("careful", stacklevel=1)
        logs.print_as_records()
        print("a word")
        print("no end", end="")
    messages = [str(record["message"]) for record in lines(capsys)]
    assert "careful" in messages[0]
    assert messages[1:] == ["a word"]


def test_plain_stays_as_it_was(capsys, monkeypatch):
    handlers = logging.getLogger().handlers[:]
    level = logging.getLogger().level
    with logs.use_format():
        assert not logs.is_structured()
        assert not isinstance(reporter(), LogProgress)
    monkeypatch.setenv(logs.FORMAT_VARIABLE, "json")
    with logs.use_format():
        assert logs.is_structured()
        assert isinstance(reporter(), LogProgress)
        with logs.use_format():
            pass
        assert logs.is_structured(), "the inner block changed nothing"
    assert (logging.getLogger().handlers, logging.getLogger().level) == (handlers, level)
    assert capsys.readouterr().err == ""


def test_progress_is_told_with_its_numbers(capsys, asked):
    with logs.use_format(), reporter() as progress:
        with progress.task("train", total=10, unit="steps") as task:
            task.update(10)
        progress.print_line("  a line")
        progress.event({"event": "lost", "pod": "p0001", "time": 1.0}, "")
    done, said, lost = lines(capsys)
    assert (done["task"], done["done"], done["total"], done["finished"]) == ("train", 10, 10, True)
    assert said["message"] == "a line"
    assert (lost["level"], lost["message"], lost["pod"]) == ("warning", "lost", "p0001")


def test_mistakes_are_records_too(asked):
    done = fintrader("run", "nowhere.yaml")
    assert done.status == 2
    record = json.loads(done.err)
    assert record["level"] == "error"
    assert "nowhere.yaml does not exist" in record["message"]


@pytest.mark.parametrize(("signal", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_drained_container_stops_at_once_and_says_how_to_go_on(signal, status):
    """A container's first process ignores SIGTERM unless it handles it."""
    stop = f"lambda argv: signal.raise_signal(signal.{signal})"
    code = f"import signal, fintrader.cli as c; c.dispatch = {stop}; c.main(['run'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "run the same command again to resume" in done.stderr


def test_a_bug_is_a_record_with_its_trace(asked):
    code = "import fintrader.cli as c; c.dispatch = lambda argv: 1 / 0; c.main(['run'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    record = json.loads(done.stderr)
    assert record["level"] == "critical"
    assert "ZeroDivisionError" in record["exception"]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_lines_are_sparse_and_give_rate_and_time_left():
    clock = Clock()
    stream = io.StringIO()
    progress = LineProgress(stream, seconds=10, clock=clock)
    task = progress.task("train", total=1000, unit="steps")
    for _ in range(4):
        clock.now += 4
        task.advance(100, note="x")
    assert stream.getvalue() == "train: 300/1,000 steps (30 %)  25 steps/s  28 s left  x\n"
    clock.now += 4
    task.close()
    task.close()
    assert stream.getvalue().splitlines()[1:] == [
        "train: 400/1,000 steps (40 %)  20 steps/s  in 20 s  x"
    ]


def test_a_line_is_not_repeated_while_nothing_changes():
    clock = Clock()
    stream = io.StringIO()
    task = LineProgress(stream, seconds=10, clock=clock).task("train", total=2, unit="pods")
    for done, note in [(0, "2 at work"), (0, "2 at work"), (0, "1 at work"), (1, "1 at work")]:
        clock.now += 20
        task.update(done, note=note)
    task.close()
    lines = [line.replace("  ", " ").split(" pods")[0] for line in stream.getvalue().splitlines()]
    assert lines == ["train: 0/2", "train: 0/2", "train: 1/2", "train: 1/2"]
    assert [line[-9:] for line in stream.getvalue().splitlines()] == [
        "2 at work",
        *["1 at work"] * 3,
    ]


def test_what_an_earlier_run_did_is_kept_out_of_the_rate():
    clock = Clock()
    task = LineProgress(io.StringIO(), clock=clock).task("pods", total=10)
    task.resume_at(5)
    clock.now = 2
    task.advance()
    assert task.rate == 0.5
    assert task.seconds_left == 8


def test_a_slow_task_has_a_rate_an_hour_and_no_estimate_that_means_nothing():
    clock = Clock()
    task = LineProgress(io.StringIO(), clock=clock).task("tournament", total=2, unit="pods")
    clock.now = 30
    task.update(0.01, note="2 at work")  # most of the time went into compiling
    assert task.seconds_left is None
    assert task.describe() == "tournament: 0.01/2 pods (0 %)  1.20 pods/h  2 at work"
    clock.now = 250
    task.update(1)
    assert task.describe().split("  ")[1:3] == ["14.40 pods/h", "4 min 10 s left"]
    task.update(2)
    assert "left" not in task.describe()


def test_pipes_get_lines_and_silence_is_silent():
    assert isinstance(reporter(io.StringIO()), LineProgress)
    with SILENT.task("nothing", total=1) as task:
        task.advance()


def test_terminal_bars_leave_one_line():
    stream = io.StringIO()
    with TerminalProgress(Console(file=stream, force_terminal=True, width=100)) as progress:
        task = progress.task("train", total=10, unit="steps")
        task.advance(10)
        progress.print_line("[not markup]")
        task.close()
    text = stream.getvalue()
    assert "[not markup]" in text
    assert "train: 10/10 steps (100 %)" in text
