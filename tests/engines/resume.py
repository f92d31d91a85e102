"""A kill that happens inside the process, and how two stored trainings are compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fintrader.agents import TrainProgress
from fintrader.agents.checkpoint import read_tensors
from fintrader.files import read_jsonl


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
    """Both folders hold the same state to the last bit, and the same log but for the clock's and memory's figures."""
    mine, header = read_tensors(one / "state.safetensors", "fintrader-training-1")
    theirs, other_header = read_tensors(other / "state.safetensors", "fintrader-training-1")
    assert header["updates"] == other_header["updates"]
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name
    assert learned(one) == learned(other)
    assert [record["update"] for record in learned(one)] == list(range(1, header["updates"] + 1))


def learned(folder: Path) -> list[dict[str, Any]]:
    """What was logged of each update, without what a machine's speed and memory decide."""
    measured = ("seconds", "steps_per_second", "memory")
    return [
        {name: value for name, value in record.items() if not name.startswith(measured)}
        for record in read_jsonl(folder / "metrics.jsonl")
    ]
