"""Processes of a tournament: their environment, their channel of JSON lines, and their end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from fintrader.files import open_file
from fintrader.records import RecordError, from_json, to_json
from fintrader.reproducible import ONE_THREAD
from fintrader.system import end_with_parent
from fintrader.tournament.messages import Message, PodTask, RankTask


def describe_location(device: str) -> str:
    """Name this machine and `device`; for GPUs also their number on the machine, since each process
    counts from 0."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "") if device.startswith("cuda") else ""
    return f"{socket.gethostname()} {device}" + (f" (GPU {seen})" if seen else "")


def build_environment() -> dict[str, str]:
    """Copy this process's environment, with one thread a pod so that libraries do not compete for
    cores."""
    return {**os.environ, **ONE_THREAD, "PYTHONUNBUFFERED": "1"}


def spawn(
    module: str, *words: str, log: Path, variables: Mapping[str, str]
) -> subprocess.Popen[str]:
    """Start `python -m module PARENT words` with a channel of JSON lines; its standard error goes
    to `log`."""
    path = os.pathsep.join(part or "." for part in sys.path)
    command = [sys.executable, "-P", "-m", module, str(os.getpid()), *words]
    with open_file(log, "ab") as errors:
        environment = {**build_environment(), **variables, "PYTHONPATH": path}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=environment
        )


def send_task(process: subprocess.Popen[str], task: PodTask | RankTask) -> None:
    """Send a spawned process a task."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # the process has just died, which its reader reports
        process.stdin.write(json.dumps(to_json(task)) + "\n")
        process.stdin.flush()


def read_messages(process: subprocess.Popen[str]) -> Iterator[Message]:
    """Read a spawned process's messages until it ends."""
    assert process.stdout is not None
    for line in process.stdout:
        # Half a message: the process was killed in the middle of it.
        with suppress(ValueError, RecordError):
            yield from_json(Message, json.loads(line))  # type: ignore[arg-type]


class Channel:
    """A spawned process's end of the pipe. Other output goes to its standard error, and so to its
    log."""

    def __init__(self, *, outlives: bool = False) -> None:
        """Take the pipe over; from now on this process ends with its parent, and ignores Ctrl-C.

        With `outlives`, it continues after the parent's death, which it notices as the end of its
        `inbox`.
        """
        if not outlives:
            end_with_parent(int(sys.argv[1]))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the orchestrator's to handle
        self.inbox: TextIO = os.fdopen(os.dup(0), "r")
        self._stream = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._lock = threading.Lock()
        self._is_connected = True

    def send(self, message: Message) -> None:
        """Send a message; dropped when the parent is gone."""
        with self._lock:
            if not self._is_connected:
                return
            try:
                self._stream.write(json.dumps(to_json(message)) + "\n")
                self._stream.flush()
            except BrokenPipeError:
                self._is_connected = False
