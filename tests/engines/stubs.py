"""A pod that trains nothing: its score and its snapshot are arithmetic on its spec and its parent's
snapshot."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from fintrader.agents.settings import Budget
from fintrader.config import Settings
from fintrader.errors import TrainingError
from fintrader.files import write_bytes, write_json
from fintrader.records import to_json
from fintrader.runs import RunFolder
from fintrader.tournament.leaderboard import Leaderboard
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.spec import PodResult, PodSpec, TrainedPod

if TYPE_CHECKING:  # keeps torch out of the stub pods' processes
    from fintrader.tournament.ensemble import StoredEnsemble
    from fintrader.tournament.settings import TournamentSettings


GATE_VARIABLE = "STUB_GATE"
"""Path of a file outside the run; the pod of that name waits in the middle while it is there."""


class StubNetwork(Settings):
    width: int = Field(8, ge=1)


class StubAgent(Settings):
    algo: Literal["stub"] = "stub"
    learning_rate: float = Field(1e-3, gt=0)
    width: int = Field(8, ge=1)
    network: StubNetwork = StubNetwork()


class OtherAgent(Settings):
    algo: Literal["other"] = "other"
    learning_rate: float = Field(1e-2, gt=0)
    gamma: float = Field(0.9, ge=0, le=1)


def spec(index: int, **changes: Any) -> PodSpec:
    """The pod of that number; whatever a test does not care for is given."""
    usual = {"pod": f"p{index:04d}", "index": index, "seed": index, "origin": "fresh"}
    return PodSpec(
        **{**usual, "agent": StubAgent().model_dump(), "budget": Budget(env_steps=100), **changes}
    )


def body(spec: PodSpec, context: PodContext) -> PodResult:
    """Faults come from files in the run's folder: `faults/<pod>` holds {"kind": ..., "times": n}.
    `wait` is over when its file is gone (`release`)."""
    return evaluated(spec, context, _trained(spec, context))


def leaving_body(spec: PodSpec, context: PodContext) -> PodResult:
    """As `body`, but leaves the evaluation to others where it may; what comes out is the same."""
    trained = _trained(spec, context)
    return trained if context.evaluate_elsewhere else evaluated(spec, context, trained)


def _trained(spec: PodSpec, context: PodContext) -> TrainedPod:
    if context.operations.store_seconds:  # as if it had been trained for a while
        write_bytes(context.folder / "state.safetensors", b"half of " + spec.pod.encode())
    seconds = float(os.environ.get("STUB_SECONDS", "0"))
    for step in range(4):
        context.report(step / 4, step * 25, "working")
        _fault(context.run, spec.pod, step)
        time.sleep(seconds / 4)
    store = open_store(context.run, context.mirror)
    inherited = store.get(spec.snapshot) if spec.snapshot else b"founder"
    own = json.dumps([spec.seed, spec.agent], sort_keys=True).encode()
    snapshot = hashlib.sha256(inherited + own).digest()
    (context.folder / "metrics.jsonl").write_text('{"update": 1}\n')
    return TrainedPod(
        pod=spec.pod,
        status="done",
        evaluate="tests.engines.stubs:evaluated",
        snapshot=store.put(b"snapshot of " + snapshot),
        env_steps=100,
        updates=1,
    )


def evaluated(spec: PodSpec, context: PodContext, trained: TrainedPod) -> PodResult:
    """Complete a trained pod from its snapshot alone: its policy is stored, its score is
    arithmetic.

    Faults come from `faults/<pod>-evaluation`.
    """
    _fault(context.run, f"{spec.pod}-evaluation", 2)
    stored = open_store(context.run, context.mirror).get(str(trained.snapshot))
    snapshot = stored.removeprefix(b"snapshot of ")
    number = _number(snapshot)
    write_bytes(context.folder / "policy.safetensors", b"policy of " + snapshot)
    return trained.add_evaluation(
        score=round(number, 2),  # coarse, so that there are ties
        window_scores=(number,),
        metrics={"sharpe": number, "calmar": None},
        returns=tuple((byte - 127.5) / 10_000 for byte in snapshot),
    )


def _number(snapshot: bytes) -> float:
    return int.from_bytes(snapshot[:4], "big") / 2**32


def _fault(run: RunFolder, pod: str, step: int) -> None:
    path = run.root / "faults" / pod
    gate = Path(os.environ.get(GATE_VARIABLE, ""))
    if step == 2 and gate.name == pod:
        _wait(gate)
    if step != 2 or not path.exists():
        return
    fault = json.loads(path.read_text())
    if fault["kind"] == "wait":
        _wait(path)
        return
    if fault["times"] <= 0:
        return
    write_json(path, {**fault, "times": fault["times"] - 1})
    match fault["kind"]:
        case "kill":
            os.kill(os.getpid(), 9)
        case "exit":
            os._exit(3)
        case "hang":
            time.sleep(3600)
        case "nan":
            raise TrainingError("update 3: loss is no longer finite")
        case "oom":
            raise MemoryError("no memory left")
        case "linger":
            _linger(0.5)
        case _:
            raise ValueError("boom")


def _linger(seconds: float) -> None:
    """Have the Ray task of this pod go on for a while after its last message."""
    from fintrader.tournament.launchers.ray import tasks as task

    is_last = task.is_last

    def linger(message: Any) -> bool:
        if not is_last(message):
            return False
        task.is_last = is_last
        time.sleep(seconds)
        return True

    task.is_last = linger


def plant(run: RunFolder, pod: str, kind: str, times: int = 1) -> None:
    write_json(run.root / "faults" / pod, {"kind": kind, "times": times})


def _wait(gate: Path) -> None:
    """Until the file is gone; who waits is told beside it."""
    write_json(gate.with_suffix(".at"), os.getpid())
    while gate.exists():
        time.sleep(0.01)


def waiting(gate: Path) -> int | None:
    """The process that waits for a file to go, once it does."""
    path = gate.with_suffix(".at")
    return int(json.loads(path.read_text())) if path.exists() else None


def release(run: RunFolder, pods: Iterable[str]) -> None:
    """Let pods go on that wait, or would."""
    for pod in pods:
        (run.root / "faults" / pod).unlink(missing_ok=True)


def struck(run: RunFolder, pod: str) -> int:
    """How often a planted fault may still strike."""
    return int(json.loads((run.root / "faults" / pod).read_text())["times"])


def ensemble(run: RunFolder, board: Leaderboard, settings: TournamentSettings) -> StoredEnsemble:
    members = board.rows[: settings.ensemble_size]
    digests = [row.result.policy for row in members]
    write_bytes(run.ensemble / "policy.safetensors", json.dumps(digests).encode())
    from fintrader.tournament.ensemble import FILE, StoredEnsemble

    chosen = StoredEnsemble(tuple(row.spec.pod for row in members))
    write_json(run.ensemble / FILE, to_json(chosen))
    return chosen


def market(folder: Path) -> Path:
    path = folder / "market.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"not looked into")
    return path
