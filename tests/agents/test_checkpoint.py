"""What a stored state costs: no copy in memory, and a small share of the time."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file

from fintrader.agents import AgentSettings, Budget, make_agent, train
from fintrader.agents.checkpoint import read_tensors, write_tensors
from fintrader.agents.training import _Training, pause_between
from tests.agents.tiny import Identity

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


WRITE = """
import resource, sys
from pathlib import Path
import torch
from fintrader.agents import SAC, make_agent
from fintrader.agents.checkpoint import write_tensors
from fintrader.envs.observation import FlatLayout
from fintrader.agents.buffers import ReplayBuffer

agent = make_agent(SAC(), FlatLayout(128, 1))
agent.replay = ReplayBuffer(1000, 128, 128, 1, torch.device("cpu"))
agent.replay.written = 1000
for name in ("obs", "next_obs"):
    getattr(agent.replay, name).fill_(1.0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write_tensors(Path(sys.argv[1]), agent.state_dict(), {"format": "test"})
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_a_replay_buffer_is_stored_without_a_copy(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE, str(tmp_path / "state")]
    risen = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (tmp_path / "state").stat().st_size > 120 * 2**20
    assert risen < 30  # MiB


def test_saving_never_takes_more_than_a_tenth_of_the_time() -> None:
    assert pause_between(10.0, 0.1) == 10.0
    assert pause_between(10.0, 30.0) == 300.0
    assert pause_between(0.0, 30.0) == 0.0  # after every update


def test_slow_saves_become_rare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saves = []

    def slow(self: Any, name: str = "") -> None:
        self.fresh_since_save = False
        saves.append(self.updates)
        time.sleep(0.2)

    monkeypatch.setattr(_Training, "save", slow)
    values = {"algo": "a2c", "num_steps": 1, "network": {"hidden": [8]}}
    agent = make_agent(TypeAdapter(AgentSettings).validate_python(values), Identity().layout)
    train(agent, Identity(), Budget(seconds=1.0), folder=tmp_path, checkpoint_seconds=1e-6)
    assert len(saves) == 2  # the first, and at the end: the next was due two seconds after it
