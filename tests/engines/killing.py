"""Kills at moments that no machine's speed moves: of a process before a chosen file, and inside the
process itself."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from fintrader.agents import TrainProgress
from fintrader.agents.checkpoint import read_tensors
from fintrader.files import read_jsonl
from tests.engines.twins import assert_same

# A fresh process for every kill, which does not import everything again.
SERVER = multiprocessing.get_context("forkserver")
FORK = multiprocessing.get_context("fork")
"""For work without torch's gradients: its processes have all that this one has imported."""
SERVER.set_forkserver_preload(
    ["fintrader.cli", "fintrader.pipeline", "exchange_calendars", "pyarrow.parquet"]
)


def _counted(work: Callable[[], Any], kill_at: int | None, writes: Any) -> None:
    real = os.replace
    done = 0

    def replace(source: Any, target: Any) -> None:
        nonlocal done
        if done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1
        real(source, target)

    os.replace = replace
    work()
    writes.value = done


def writes_of(work: Callable[[], Any], context: Any = SERVER) -> int:
    """Do `work` (which must be picklable) in a process of its own; how many files it put in their
    places."""
    writes = context.Value("i", 0)
    assert _exit_code(work, None, writes, context) == 0
    return int(writes.value)


def killed_at(work: Callable[[], Any], number: int, context: Any = SERVER) -> bool:
    """The same, killed when `number` files are in their places; False when it ended before."""
    code = _exit_code(work, number, context.Value("i", 0), context)
    assert code in (0, -signal.SIGKILL)
    return code != 0


def _exit_code(
    work: Callable[[], Any], kill_at: int | None, writes: Any, context: Any
) -> int | None:
    process = context.Process(target=_counted, args=(work, kill_at, writes))
    # The child runs the file of `__main__` again, which a test of the app may have replaced.
    with mock.patch.dict(sys.modules, {"__main__": types.ModuleType("__main__")}):
        process.start()
    process.join()
    return process.exitcode


class Killed(Exception):
    """Stands for SIGKILL: nothing below `train` catches it."""


def dies_at(number: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, but its so-manyeth time is a Ctrl-C."""
    count = itertools.count(1)

    def dying(*args: Any, **named: Any) -> Any:
        if next(count) == number:
            raise KeyboardInterrupt
        return call(*args, **named)

    return dying


def killed_after(updates: int) -> Callable[[TrainProgress], None]:
    """An `on_progress` that dies after so many updates."""

    def on_progress(progress: TrainProgress) -> None:
        if progress.updates >= updates:
            raise Killed

    return on_progress


def assert_same_training(one: Path, other: Path) -> None:
    """Both folders hold the same state to the last bit, and the same log but for the clock's and
    memory's figures."""
    mine, header = read_tensors(one / "state.safetensors", "fintrader-training-1")
    theirs, other_header = read_tensors(other / "state.safetensors", "fintrader-training-1")
    assert header["updates"] == other_header["updates"]
    assert_same(mine, theirs)
    assert learned(one) == learned(other)
    assert [record["update"] for record in learned(one)] == list(range(1, header["updates"] + 1))


def learned(folder: Path) -> list[dict[str, Any]]:
    """What was logged of each update, without what a machine's speed and memory decide."""
    measured = ("seconds", "steps_per_second", "memory")
    return [
        {name: value for name, value in record.items() if not name.startswith(measured)}
        for record in read_jsonl(folder / "metrics.jsonl")
    ]
