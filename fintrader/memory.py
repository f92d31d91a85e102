"""Free memory, checked before large allocations, since an allocator's error names no remedy.

A host's free memory is the least of the kernel's figure (which counts caches as free) and of the
memory left in this process's control groups: a container's limit is far below the machine's memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fintrader.errors import ConfigError, FintraderError
from fintrader.system import measure_host_memory

HOST = torch.device("cpu")


class _Pickled:
    """A tensor on its way through a pickle, as an array."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.from_numpy, (self._tensor.numpy(),)


def pickle_by_value(value: Any) -> Any:
    """Prepare tensors on the host, also in tuples and dictionaries, for a pickle's state.

    `multiprocessing` would move them to shared memory, and the pointers that compiled kernels hold
    would be invalid.
    """
    if isinstance(value, dict):
        return {name: pickle_by_value(one) for name, one in value.items()}
    if isinstance(value, tuple):
        parts = map(pickle_by_value, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return _Pickled(value) if isinstance(value, Tensor) and value.is_cpu else value


def require_memory(
    needed: int,
    device: torch.device,
    purpose: str,
    remedy: str,
    error: type[FintraderError] = ConfigError,
) -> None:
    """Raise `error` when `device` has fewer than the `needed` free bytes.

    `purpose`: the subject of the message, e.g. `the replay buffer`; `remedy`: its last clause.
    """
    free = measure_free_memory(device)
    if free is not None and needed > free:
        raise error(
            f"{purpose} needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free on"
            f" {device}; {remedy}"
        )


def measure_free_memory(device: torch.device) -> int | None:
    """Measure the free bytes of `device`; None where unknown."""
    if device.type == "cuda":
        # torch reuses the memory that it reserves and does not use.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return measure_host_memory()
