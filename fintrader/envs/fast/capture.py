"""Recording of CUDA graphs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_RECORDING = threading.Lock()
"""torch records one graph of a process at a time."""


@contextmanager
def capture(
    graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any = None
) -> Iterator[None]:
    """Record a block's launches in `graph`, in a `stream` of their device: torch's own stream
    belongs to the first device that recorded."""
    with (
        _RECORDING,
        torch.cuda.device(stream.device),
        # Another thread may use the GPU meanwhile, so only this one is held to the rules.
        torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
    ):
        yield
