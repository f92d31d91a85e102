"""Tiny runs inside this process: commands without a new interpreter, and an end at any moment."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from fintrader.cli import main

TINY = {
    "seed": 1,
    "device": "cpu",
    "data": {"source": {"kind": "synthetic", "num_symbols": 4, "num_sessions": 12}},
    "env": {"num_envs": 8, "episode_bars": 120, "decision_interval": 5},
    "agent": {"algo": "ppo", "num_steps": 16},
    "tournament": {
        "pods": 3,
        "pool_size": 2,
        "workers": 1,
        "order": "submission",  # the same bytes whatever finishes first
        "budget": {"env_steps": 1024},
        "leaderboard_size": 3,
        "ensemble_size": 3,
        "fresh": 0.25,
        "search": {"learning_rate": {"low": 3e-5, "high": 3e-3, "log": True}},
    },
    "backtest": {"null_model": False, "sensitivity": False},
}


def write_config(folder: Path, **changes: object) -> Path:
    """`TINY` as a file whose runs and market lie beside it; whole sections may be replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    values = TINY | {"runs_dir": str(folder / "runs"), "cache": str(folder / "tensors")} | changes
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    status: int
    out: str
    err: str


def fintrader(*words: str) -> Done:
    """`fintrader WORDS` in this process: importing torch takes longer than most commands."""
    out = io.StringIO()
    err = io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(words))
        except SystemExit as ended:
            status = int(ended.code or 0)
    return Done(status, out.getvalue(), err.getvalue())


class Struck(BaseException):
    """The process ends here."""


@contextlib.contextmanager
def struck_when(appears: str) -> Iterator[None]:
    """Raise `Struck` in the main thread as soon as a file whose path matches the pattern has got
    its name.

    Every durable file is written beside its place and then linked or renamed to it; the strike
    comes right after.
    """
    due = threading.Event()

    def wrapped(call: Callable[..., None]) -> Callable[..., None]:
        def after(source: Any, target: Any, **named: Any) -> None:
            call(source, target, **named)
            if Path(os.fspath(target)).match(appears):
                due.set()
            if due.is_set() and threading.current_thread() is threading.main_thread():
                patch.undo()
                raise Struck

        return after

    with pytest.MonkeyPatch.context() as patch:
        for name in ("link", "replace"):
            patch.setattr(os, name, wrapped(getattr(os, name)))
        yield
