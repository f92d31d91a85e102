"""Recording of CUDA graphs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_RECORDING = threading.Lock()
"""torch records one graph per process at a time."""


@contextmanager
def capture(
    graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any = None
) -> Iterator[None]:
    """Record a block's launches in `graph`, on a `stream` of their device: torch's default stream
    belongs to the first device that recorded."""
    with (
        _RECORDING,
        torch.cuda.device(stream.device),
        # Other threads may use the GPU meanwhile, so the checks apply to this one only.
        torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
    ):
        yield
