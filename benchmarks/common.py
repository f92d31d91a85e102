"""What every benchmark ends with: its figures as one JSON object on the last line, and on request
as a file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def machine() -> dict[str, Any]:
    """Processor, cores, memory and, if any, GPU."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else model
    found: dict[str, Any] = {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    import torch

    found["torch"] = torch.__version__
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def commit() -> str:
    """The checkout's commit, marked if files differ from it."""
    head = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    dirty = subprocess.run(
        ["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True
    )
    return (head.stdout.strip() or "unknown") + ("+changes" if dirty.stdout.strip() else "")


def finish(name: str, figures: dict[str, Any], *, seed: int, save: bool) -> None:
    """Print the last line; with `save` also write `benchmarks/results/<name>.json`."""
    record = {"benchmark": name, **figures, "machine": machine(), "commit": commit(), "seed": seed}
    if save:
        path = ROOT / "benchmarks" / "results" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record))
