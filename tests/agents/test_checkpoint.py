"""A stored state is a file that any reader of safetensors knows."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from fintrader.agents.checkpoint import read_tensors, write_tensors

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
