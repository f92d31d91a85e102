"""A tournament whose run lies in a store: strike its head, empty its disk, and look for what is
missing.

`python -m tests.engines.emptied RUN URL MACHINE` is such a head, in a process.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from fintrader.errors import FintraderError, StorageDamagedError
from fintrader.files import read_jsonl, unseal
from fintrader.runs import RunFolder
from fintrader.storage import lease
from fintrader.storage.mirror import attach, find_mirror
from fintrader.storage.objects import ObjectStore
from tests.engines import chaos
from tests.engines.chaos import DONE, REFUSED, everything
from tests.engines.races import STUBBORN, settings, stub_race


def results_in(url: str) -> dict[str, bytes]:
    """Results that are in the store at this moment, by object."""
    store = ObjectStore(url)
    return {
        name: store.get(name) or b""
        for name in store.list_names("pods")
        if name.endswith("result.json")
    }


def shown(run: RunFolder) -> set[str]:
    """Pods whose result the database on the head's disk shows."""
    if not run.leaderboard.exists():
        return set()
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(run.leaderboard)) as connection:
        return {row[0] for row in connection.execute("SELECT pod FROM entries")}
    return set()


def lost_before(run: RunFolder, url: str) -> list[str]:
    """What the disk knows of and the store does not, at the moment of a kill."""
    there = {name.split("/")[1] for name in results_in(url)}
    return [f"{pod} was shown before it was stored" for pod in sorted(shown(run) - there)]


def check(
    run: RunFolder, url: str, before: dict[str, bytes], expected: Any, pods: int
) -> list[str]:
    """What is wrong after the run was taken up on an empty disk: nothing, one hopes."""
    problems = []
    after = results_in(url)
    if any(after.get(name) != data for name, data in before.items()):
        problems.append("a result that was stored is lost or changed")
    if len(after) != pods:
        problems.append(f"{len(after)} results of {pods} pods")
    applied = [event["pod"] for event in read_jsonl(run.events) if event["event"] == "applied"]
    if len(applied) != len(set(applied)) or len(applied) != pods:
        problems.append(f"applied {applied}")
    store = ObjectStore(url)
    for name, data in after.items():
        try:
            unseal(data, StorageDamagedError(name))
        except StorageDamagedError as error:
            problems.append(str(error))
    for name in store.list_names("objects"):  # raises for one that is damaged
        store.get_file(name, run.root / ".scratch", name.removeprefix("objects/"))
    mirror = find_mirror(run.root)
    if mirror is None or everything(run) != expected:
        problems.append("the outcome differs from an undisturbed run's")
    return problems


def strike_and_empty(
    run: RunFolder, url: str, pods: int, expected: Any, strike: Any, **how: Any
) -> tuple[bool, list]:
    """Strike once, empty the disk, run again; whether it was struck at all, and what is wrong."""
    attach(run.root, url)
    outcome = strike(run)
    problems = lost_before(run, url)
    before = results_in(url)
    shutil.rmtree(run.root)
    attach(run.root, url)
    again = chaos.forked(run, pods, **how)
    if again.status != DONE:
        return True, [*problems, f"the second run ended with {again.status}"]
    return outcome.status != DONE, problems + check(run, url, before, expected, pods)


def place(home: Path, name: str) -> tuple[RunFolder, str]:
    """A run's folder and its URL in a store on the same disk."""
    (home / "machine").mkdir(exist_ok=True)
    return RunFolder(home / "machine" / name), f"file://{home}/store/{name}"


def start(run: RunFolder, url: str, pods: int, machine: str = "") -> subprocess.Popen[bytes]:
    """Start a head with pods in processes, on a `machine` of that name or on this one."""
    words = ["-m", "tests.engines.emptied", str(run.root), url, str(pods), machine]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    quiet = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, *words], env=variables, stdout=quiet, stderr=quiet)


def main(root: str, url: str, pods: str, machine: str) -> None:
    """Run the tournament; on a named machine with the patience that a real one has."""
    run = RunFolder(Path(root))
    attach(run.root, url)
    takeover = bool(machine)
    if machine:
        lease.name_process_space = lambda: machine  # type: ignore[assignment]
    wanted = settings(pods=int(pods), workers=2, fresh=0.2)
    operations = STUBBORN.model_copy(update={"takeover": takeover})
    try:
        stub_race(
            run, wanted, body="tests.engines.chaos:body", data_hash="data", operations=operations
        )
    except FintraderError as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main(*sys.argv[1:])
