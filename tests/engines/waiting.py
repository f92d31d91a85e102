"""Waiting for a condition, on a machine that may be busy with other things."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Callable

import psutil

PATIENCE_SECONDS = 300.0
"""Whatever an idle machine does in a second, a busy one has done by then."""


def until(condition: Callable[[], bool], what: str = "a condition") -> None:
    """Return as soon as `condition` holds; fail, naming `what` was waited for, when it never
    does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether a process does nothing any more."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Whether a server is there and says something."""
    try:
        return bool(urllib.request.urlopen(url, timeout=PATIENCE_SECONDS).read())
    except OSError:
        return False
