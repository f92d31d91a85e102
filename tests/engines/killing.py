"""Processes that SIGKILL ends just before a chosen file takes its place: a moment that no machine's speed moves."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

# A fresh process for every kill, which does not import everything again.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["fintrader.cli", "fintrader.pipeline", "exchange_calendars", "pyarrow.parquet"])


def _counted(work: Callable[[], Any], kill_at: int | None, writes: Any) -> None:
    real, done = os.replace, 0

    def replace(source: Any, target: Any) -> None:
        nonlocal done
        if done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1
        real(source, target)

    os.replace = replace
    work()
    writes.value = done


def writes_of(work: Callable[[], Any]) -> int:
    """Do `work` (which must be picklable) in a process of its own; how many files it put in their places."""
    writes = SERVER.Value("i", 0)
    assert _exit_code(work, None, writes) == 0
    return int(writes.value)


def killed_at(work: Callable[[], Any], number: int) -> bool:
    """The same, killed when `number` files are in their places; False when it ended before."""
    code = _exit_code(work, number, SERVER.Value("i", 0))
    assert code in (0, -signal.SIGKILL)
    return code != 0


def _exit_code(work: Callable[[], Any], kill_at: int | None, writes: Any) -> int | None:
    process = SERVER.Process(target=_counted, args=(work, kill_at, writes))
    process.start()
    process.join()
    return process.exitcode
