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
from fintrader.files import unseal
from fintrader.runs import RunFolder
from fintrader.storage import lease
from fintrader.storage.mirror import attach
from fintrader.storage.objects import ObjectStore
from tests.engines import chaos
from tests.engines.chaos import DONE, REFUSED
from tests.engines.races import STUBBORN, settings, stub_race


def results_in(url: str) -> dict[str, bytes]:
    """Results that are in the store at this moment, by pod."""
    store = ObjectStore(url)
    names = [name for name in store.list_names("pods") if name.endswith("result.json")]
    return {name.split("/")[1]: store.get(name) or b"" for name in names}


def shown(run: RunFolder) -> set[str]:
    """Pods whose result the database on the head's disk shows."""
    if not run.leaderboard.exists():
        return set()
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(run.leaderboard)) as connection:
        return {row[0] for row in connection.execute("SELECT pod FROM entries")}
    return set()


def lost_before(run: RunFolder, url: str) -> list[str]:
    """What the disk knows of and the store does not, at the moment of a kill."""
    lost = shown(run) - results_in(url).keys()
    return [f"{pod} was shown before it was stored" for pod in sorted(lost)]


def check(run: RunFolder, url: str, before: dict[str, bytes], expected: Any) -> list[str]:
    """What is wrong after the run was taken up on an empty disk: nothing, one hopes."""
    after = results_in(url)
    problems = chaos.check(run, before, expected, after)
    for pod, data in after.items():
        unseal(data, StorageDamagedError(pod))
    store = ObjectStore(url)
    for name in store.list_names("objects"):  # raises for one that is damaged
        store.get_file(name, run.root / ".scratch", name.removeprefix("objects/"))
    return problems


def strike_and_empty(run: RunFolder, url: str, pods: int, expected: Any, strike: Any) -> bool:
    """Strike once, empty the disk, run again, and compare; whether it was struck at all."""
    attach(run.root, url)
    outcome = strike(run)
    assert lost_before(run, url) == []
    before = results_in(url)
    shutil.rmtree(run.root)
    attach(run.root, url)
    assert chaos.forked(run, pods).status == DONE
    assert check(run, url, before, expected) == [], run.root.name
    return outcome.status != DONE


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
        stub_race(run, wanted, body="tests.engines.chaos:body", operations=operations)
    except FintraderError as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main(*sys.argv[1:])
