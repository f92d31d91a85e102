"""A deployment's files, its role, and requests to it: `fintrader halt`, `resume`, `accept`,
`flatten`.

Requests are files, so that they outlive the processes that write and read them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from fintrader.deploy.entries import DeploymentEnd
from fintrader.deploy.journal import Journal
from fintrader.errors import DeployError, FintraderError
from fintrader.files import publish, read_json, write_json

BUNDLE = "bundle.json"
JOURNAL = "journal.sqlite"
HEARTBEAT = "heartbeat.json"
REPORT = "drift.json"
"""Files of a deployment's folder; the first is in its folder `bundle`."""
SILENT_SECONDS = 120.0
"""Age at which a heartbeat counts as missing. A live loop writes one every ten seconds, but a
broker may delay it."""
Request = Literal["halt", "resume", "accept", "flatten"]


@dataclass(frozen=True)
class Heartbeat:
    """The sign of life of a deployment's loop (`HEARTBEAT`), nanoseconds since 1970 UTC."""

    time: int
    next_decision: int


def ask(folder: Path, request: Request) -> None:
    """Leave a request for the present or next process of the deployment in `folder`. Raises
    DeployError for a folder without one, and for a deployment that has ended."""
    if not (folder / "bundle" / BUNDLE).is_file():
        raise DeployError(f"{folder} holds no deployment; see --deployments-dir")
    if has_ended(folder):
        raise DeployError(
            f"{folder.name} has ended, so no process would carry this out; positions that it left"
            " at a broker are sold there"
        )
    home = folder / "requests"
    try:
        home.mkdir(parents=True, exist_ok=True)
        while not publish(home / f"{time.time_ns():020d}-{request}", b""):
            pass  # another request has the name of this nanosecond
    except OSError as error:
        raise DeployError(
            f"{home} cannot be written ({error}); free space or fix permissions there"
        ) from None


def ask_all(homes: Iterable[Path], request: Request) -> tuple[list[str], list[str]]:
    """Leave a request for each deployment that has not ended. Return the names of those that were
    asked, and the faults of the others: one does not stop the rest."""
    asked = []
    faults = []
    for home in homes:
        try:
            if not has_ended(home):
                ask(home, request)
                asked.append(home.name)
        except (FintraderError, OSError) as error:
            faults.append(f"{home.name}: {error}")
    return asked, faults


def has_ended(folder: Path) -> bool:
    """Check whether a deployment has ended for good, as a replay does. Its journal may be damaged:
    a request is then left for the process that repairs it."""
    with contextlib.suppress(DeployError), Journal(folder / JOURNAL, reading=True) as journal:
        return journal.last(DeploymentEnd) is not None
    return False


ALIASES = "aliases.json"
"""File next to the deployments with champion and challenger, by name."""


def list_aliases(deployments: Path) -> dict[str, str]:
    """Read the aliases: alias -> name of the deployment."""
    path = deployments / ALIASES
    aliases = read_json(path) if path.is_file() else {}
    if not isinstance(aliases, dict):
        raise DeployError(f"{path} is damaged; remove it, and name the champion again")
    return aliases


def promote(folder: Path) -> str:
    """Make the deployment in `folder` the champion; return the name of the challenger, which was
    the champion before."""
    named = list_aliases(folder.parent)
    if named.get("champion") != folder.name:
        before = {"challenger": named["champion"]} if "champion" in named else {}
        named = {"champion": folder.name, **before}
        write_json(folder.parent / ALIASES, named)
    return named.get("challenger", "")


def list_requests(folder: Path) -> list[tuple[Path, Request]]:
    """List the requests that are not carried out yet, oldest first."""
    kinds: tuple[Request, ...] = get_args(Request)
    paths = sorted((folder / "requests").glob("*-*"))
    return [(path, kind) for path in paths for kind in kinds if path.name.endswith(f"-{kind}")]
