"""Requests to a running deployment: `fintrader halt`, `resume`, `flatten`. Files, so that they outlive both sides."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal, get_args

from fintrader.deploy.bundle import BUNDLE
from fintrader.errors import DeployError
from fintrader.files import publish

Request = Literal["halt", "resume", "flatten"]


def ask(folder: Path, request: Request) -> None:
    """Leave a request for whoever runs the deployment in `folder`, now or next. Raises DeployError where none lies."""
    if not (folder / "bundle" / BUNDLE).is_file():
        raise DeployError(f"{folder} holds no deployment; see --deployments-dir")
    home = folder / "requests"
    home.mkdir(parents=True, exist_ok=True)
    while not publish(home / f"{time.time_ns():020d}-{request}", b""):
        pass  # two in one nanosecond


def waiting(folder: Path) -> list[tuple[Path, Request]]:
    """Requests that nobody has carried out yet, oldest first."""
    try:
        found = sorted(path for path in (folder / "requests").iterdir() if "-" in path.name)
    except FileNotFoundError:
        return []
    kinds: tuple[Request, ...] = get_args(Request)
    named = [(path, path.name.rpartition("-")[2]) for path in found]
    return [(path, kind) for path, name in named for kind in kinds if name == kind]
