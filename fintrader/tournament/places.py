"""Where pods are: their place in words that mean something outside its process, and the environment of that process."""

from __future__ import annotations

import os
import socket


def place_of(device: str) -> str:
    """This machine and `device`; for GPUs also which of the machine's, since a process counts its own from 0."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "") if device.startswith("cuda") else ""
    return f"{socket.gethostname()} {device}" + (f" (GPU {seen})" if seen else "")


def worker_environment() -> dict[str, str]:
    """This process's environment with one thread a pod: pods share the cores, libraries must not fight over them."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONUNBUFFERED": "1"}
