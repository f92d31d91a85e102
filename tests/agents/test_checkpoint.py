"""A stored state is a file that any reader of safetensors knows, and costs a small share of the time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file

from fintrader.agents import AgentSettings, Budget, make_agent, train, training
from fintrader.agents.checkpoint import read_tensors, write_tensors
from fintrader.agents.training import _Training
from tests.engines.tiny import Identity

KINDS = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]


def test_files_are_what_the_library_reads(tmp_path: Path) -> None:
    tensors = {str(kind): torch.arange(7).to(kind) for kind in KINDS}
    tensors |= {"scalar": torch.tensor(3.0), "empty": torch.zeros(0, 4), "turned": torch.arange(6.0).view(2, 3).T}
    write_tensors(tmp_path / "file", tensors, {"format": "test", "é": 1})
    mine, header = read_tensors(tmp_path / "file", "test")
    theirs = load_file(tmp_path / "file")
    assert header == {"format": "test", "é": 1}
    assert mine.keys() == theirs.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(mine[name], tensor), name
        assert torch.equal(theirs[name], tensor), name
        assert mine[name].dtype == tensor.dtype


def test_slow_saves_become_rare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of the test's own: an update takes 10 ms, a save 200 ms."""
    now, saves = [0.0], []

    def slow(self: Any, name: str = "") -> None:
        self.fresh_since_save = False
        saves.append(self.updates)
        now[0] += 0.2

    def tick(_: Any) -> None:
        now[0] += 0.01

    monkeypatch.setattr(_Training, "save", slow)
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    values = {"algo": "a2c", "num_steps": 1, "network": {"hidden": [8]}}
    agent = make_agent(TypeAdapter(AgentSettings).validate_python(values), Identity().layout)
    budget = Budget(env_steps=16 * 150)
    train(agent, Identity(), budget, folder=tmp_path, checkpoint_seconds=1e-6, on_progress=tick)
    assert saves == [2, 150]  # as soon as time has passed, and at the end: the next was due two seconds after the first
