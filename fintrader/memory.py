"""Room in memory, asked for before it is taken: an allocator's error says not what to do.

On a host there is as much of it as the kernel calls available (it gives up caches for it) and as
the control groups of this process leave: a container's limit is far below what the machine has.
"""

from __future__ import annotations

import torch

from fintrader.errors import ConfigError, FintraderError
from fintrader.system import free_memory

HOST = torch.device("cpu")


def require_memory(
    needed: int,
    device: torch.device,
    what: str,
    remedy: str,
    error: type[FintraderError] = ConfigError,
) -> None:
    """Raises `error`, naming `what` and `remedy`, when `device` has fewer than `needed` bytes to
    give."""
    free = available_memory(device)
    if free is not None and needed > free:
        raise error(
            f"{what} needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free on {device};"
            f" {remedy}"
        )


def available_memory(device: torch.device) -> int | None:
    """Bytes that can still be taken on `device`; None where the system does not say."""
    if device.type == "cuda":
        # What torch holds and does not use is given to the next tensor.
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    return free_memory()
