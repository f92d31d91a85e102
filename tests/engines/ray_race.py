"""One tournament on a Ray cluster, in a process of its own: `python -m tests.engines.ray_race
PLAN`.

PLAN is JSON: `run`, `address`, `kind` (`stub` or `real`), and changes to the settings of both
tournament and Ray. At every reconcile it notes what it does in `<run>.note`, for those who disturb
it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from fintrader.errors import FintraderError
from fintrader.files import read_json, write_json
from fintrader.runs import RunFolder
from fintrader.storage.mirror import attach
from fintrader.tournament.launchers import Launcher, LauncherFactory
from fintrader.tournament.launchers.ray.launcher import run_on_ray
from fintrader.tournament.launchers.ray.settings import RaySettings
from fintrader.tournament.settings import OperationsSettings
from tests.engines import races
from tests.engines.ray_cluster import start_module
from tests.engines.waiting import PATIENCE_SECONDS

REFUSED = 7
ORPHAN_SECONDS = 30.0
"""Long enough to be taken over, and no cluster is left with pods of an earlier test for long."""


def generational(
    run: RunFolder, launcher: Launcher | LauncherFactory | None, kind: str, **changes: Any
) -> Any:
    """Two generations or more: `stub` pods, such that are `leaving` their evaluation to others, or
    `real` PPO pods."""
    own = {name: changes.pop(name) for name in OperationsSettings.model_fields if name in changes}
    how = {"launcher": launcher, "watch": changes.pop("watch", None)}
    how["operations"] = races.STUBBORN.model_copy(update=own)
    small = {
        "order": "generations",
        "pool_size": 4,
        "survivors": 2,
        "workers": None,
        **changes,
    }
    if kind == "real":
        return races.real_race(run, races.SETTINGS.model_copy(update=small), **how)
    return races.stub_race(run, races.settings(**small), **how)


def note_of(run: RunFolder) -> Path:
    return run.root.with_suffix(".note")


class Racer:
    """The asking half: a tournament under way in its own process."""

    def __init__(
        self,
        run: RunFolder,
        address: str,
        kind: str,
        ray: dict[str, Any] | None = None,
        *,
        store: str = "",
        **changes: Any,
    ) -> None:
        """`store`: URL of the run in a store, if it lies in one."""
        self.run = run
        note_of(run).unlink(missing_ok=True)
        changes = {"patience_seconds": ORPHAN_SECONDS, "takeover": True, **changes}
        plan = {
            "run": str(run.root),
            "address": address,
            "kind": kind,
            "ray": ray or {},
            "changes": changes,
        }
        if store:
            attach(run.root, store)
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        self.process = start_module("tests.engines.ray_race", json.dumps(plan), **pipes)

    def note(self) -> dict[str, Any]:
        """What it did at its last reconcile: `applied`, `pods` (pod -> [node, pid]), `nodes`."""
        if not note_of(self.run).exists():
            return {"applied": 0, "pods": {}, "nodes": {}}
        return dict(read_json(note_of(self.run)))

    def wait(self, timeout: float = PATIENCE_SECONDS) -> tuple[int, str]:
        """Its exit status and what it complained about."""
        _, said = self.process.communicate(timeout=timeout)
        return self.process.returncode, said

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()


def main() -> None:
    plan = json.loads(sys.argv[1])
    run = RunFolder(Path(plan["run"]))
    bodies = {
        "stub": "tests.engines.stubs:body",
        "leaving": "tests.engines.stubs:leaving_body",
        "real": "fintrader.tournament.pod_training:train_and_evaluate",
    }
    settings = RaySettings(address=plan["address"], **plan["ray"])

    def watch(orchestrator: Any) -> None:
        begun = {pod: at for pod, at in list(orchestrator.launcher._pods.items()) if at.node}
        note = {
            "applied": len(orchestrator.leaderboard.applied),
            "pods": {pod: (at.node, at.pid) for pod, at in begun.items()},
            "nodes": {pod: at.list_nodes() for pod, at in begun.items()},
        }
        write_json(note_of(run), note)

    try:
        launcher = run_on_ray(settings, body=bodies[plan["kind"]])
        generational(run, launcher, plan["kind"], watch=watch, **plan["changes"])
    except FintraderError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
