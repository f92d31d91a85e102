"""Room in memory, asked for before it is taken: an allocator's error says not what to do.

On a host there is as much of it as the kernel calls available (it gives up caches for it) and as
the control groups of this process leave: a container's limit is far below what the machine has.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from fintrader.errors import ConfigError, FintraderError

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
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


def oom_kills() -> int:
    """Processes that this machine's kernel has killed so far because memory ran out; 0 where it
    does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / "vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def available_memory(device: torch.device) -> int | None:
    """Bytes that can still be taken on `device`; None where the system does not say."""
    if device.type == "cuda":
        # What torch holds and does not use is given to the next tensor.
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    rooms = [*_of_machine(), *_of_groups()]
    return max(min(rooms), 0) if rooms else None


def keep_freed_memory() -> None:
    """See that this process keeps large blocks that it frees for the next ones (GNU C library;
    nothing elsewhere).

    Otherwise each tensor of a few MiB is mapped anew by the kernel, page by page, at every step:
    with thousands of accounts that is a third of the time of a training.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def _of_machine() -> Iterator[int]:
    """MemAvailable; all memory there is on systems without it."""
    with contextlib.suppress(OSError, StopIteration, ValueError, IndexError):
        lines = (PROC / "meminfo").read_text().splitlines()
        yield next(
            int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")
        )
        return
    with contextlib.suppress(ValueError, OSError):
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_groups() -> Iterator[int]:
    """Limit less use of every control group that this process is in, cgroup v2 and v1."""
    try:
        lines = (PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:  # `0::/path` (v2), `4:memory:/path` (v1)
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            top = CGROUPS
            limit = "memory.max"
            used = "memory.current"
            cache = "inactive_file"
        elif "memory" in controllers.split(","):
            top = CGROUPS / "memory"
            limit = "memory.limit_in_bytes"
            used = "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        # Inside a container the path may be the host's: what is not there is passed over, the top
        # always is.
        here = top / path.lstrip("/")
        for group in (here, *here.parents):
            if group != top and top not in group.parents:
                break
            with contextlib.suppress(OSError, ValueError):  # without a limit it says `max`
                left = int((group / limit).read_text()) - int((group / used).read_text())
                rows = dict(
                    line.split() for line in (group / "memory.stat").read_text().splitlines()
                )
                yield left + int(rows.get(cache, 0))  # file caches can be given up
