"""A stub pod that tells who trains it, for pods whose orchestrator is killed. Light on imports:
workers load it."""

from __future__ import annotations

import os
import time

from fintrader.errors import TrainingError
from fintrader.files import write_bytes
from fintrader.runs import RunFolder
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.spec import PodResult, PodSpec
from tests.engines import stubs


def body(spec: PodSpec, context: PodContext) -> PodResult:
    """A stub pod that notes who trains it, and may break down once it goes on (`breaks`) or count
    (`counts`)."""
    with (context.run.root / "trainings").open("a") as file:
        file.write(f"{spec.pod} {os.getpid()}\n")
    if spec.hyper.get("counts"):
        _count(context)
    # The pod leaves its evaluation to others where it may.
    result = stubs.leaving_body(spec, context)
    if spec.hyper.get("breaks"):
        raise TrainingError("loss is no longer finite")
    return result


def _count(context: PodContext) -> None:
    """Counts for ever, a checkpoint after each number; every number is noted when it is counted."""
    state = context.folder / "state.safetensors"
    number = int(state.read_bytes()) if state.exists() else 0
    while not (context.run.root / "enough").exists():
        number += 1
        with (context.run.root / "counted").open("a") as file:
            file.write(f"{number}\n")
        write_bytes(state, str(number).encode())
        context.report(0.5, number, "counting")
        time.sleep(0.01)


def trainings(run: RunFolder) -> list[tuple[str, int]]:
    """Pods and the processes that began to train them, in order."""
    path = run.root / "trainings"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(pod, int(pid)) for pod, pid in map(str.split, lines)]
