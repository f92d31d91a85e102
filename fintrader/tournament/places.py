"""Where a pod was, in words that mean something outside its process."""

from __future__ import annotations

import os
import socket


def place_of(device: str) -> str:
    """This machine and `device`; for GPUs also which of the machine's, since a process counts its own from 0."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "") if device.startswith("cuda") else ""
    return f"{socket.gethostname()} {device}" + (f" (GPU {seen})" if seen else "")
