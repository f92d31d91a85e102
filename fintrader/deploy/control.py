"""Which deployment is the champion, and requests to a running one: `fintrader halt`, `resume`,
`flatten`.

Requests are files, so that they outlive both sides.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal, get_args

from fintrader.errors import DeployError
from fintrader.files import publish, read_json, write_json

BUNDLE = "bundle.json"
Request = Literal["halt", "resume", "flatten"]


def ask(folder: Path, request: Request) -> None:
    """Leave a request for whoever runs the deployment in `folder`, now or next. Raises DeployError
    where none lies."""
    if not (folder / "bundle" / BUNDLE).is_file():
        raise DeployError(f"{folder} holds no deployment; see --deployments-dir")
    home = folder / "requests"
    home.mkdir(parents=True, exist_ok=True)
    while not publish(home / f"{time.time_ns():020d}-{request}", b""):
        pass  # two in one nanosecond


ALIASES = "aliases.json"
"""Beside the deployments: champion and challenger, by name."""


def list_aliases(deployments: Path) -> dict[str, str]:
    """Alias -> name of the deployment."""
    path = deployments / ALIASES
    return dict(read_json(path)) if path.is_file() else {}


def promote(folder: Path) -> str:
    """Make the deployment in `folder` the champion; returns the name of the one before, now the
    challenger."""
    named = list_aliases(folder.parent)
    before = named.get("champion", "")
    if before != folder.name:
        write_json(
            folder.parent / ALIASES,
            {"champion": folder.name, **({"challenger": before} if before else {})},
        )
    return before if before != folder.name else named.get("challenger", "")


def list_requests(folder: Path) -> list[tuple[Path, Request]]:
    """Requests that nobody has carried out yet, oldest first."""
    try:
        found = sorted(path for path in (folder / "requests").iterdir() if "-" in path.name)
    except FileNotFoundError:
        return []
    kinds: tuple[Request, ...] = get_args(Request)
    named = [(path, path.name.rpartition("-")[2]) for path in found]
    return [(path, kind) for path, name in named for kind in kinds if name == kind]
