"""The context of a pod's body: paths, devices and a callback for progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fintrader.runs import RunFolder
from fintrader.storage.mirror import Mirror, open_mirror
from fintrader.tournament.messages import Host, PodTask
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.settings import OperationsSettings
from fintrader.tournament.spec import PodResult, PodSpec
from fintrader.tournament.store import RunStore

BODY = "fintrader.tournament.pod_training:train_and_evaluate"
WITHOUT_WAITING = OperationsSettings(takeover=False, store_seconds=0.0, outage_seconds=0.0)
"""Operations of a pod that runs in its caller's process."""


@dataclass
class PodContext:
    """Inputs of a pod that its spec lacks."""

    run: RunFolder
    market: Path
    mirror: Mirror | None = None
    """The run's copy in an object store, if it has one."""
    device: str = "cpu"
    """Torch device; several joined by `+` (threads of one process) or by `/` (one process each)."""
    token: int | None = None
    """The orchestrator's fencing token; once a higher token exists, the pod publishes nothing."""
    attempt: int = 1
    report: Callable[[float, int, str], None] = lambda share, env_steps, note: None
    """Share of the budget, env-steps, note. A pod that stays silent for too long is taken for
    hung."""
    folder: Path = Path()
    """The pod's own."""
    hosts: Sequence[Host] = ()
    """Machines of a pod that spans several, this one first; `device` then lists the devices of all,
    host by host."""
    operations: OperationsSettings = WITHOUT_WAITING
    slot: str = ""
    """Slot that the launcher gave the pod."""
    evaluate_elsewhere: bool = False
    """True if the body may leave the last evaluation to an evaluator, by returning a
    `TrainedPod`."""

    def open_store(self) -> RunStore:
        """Open the run's files."""
        return open_store(self.run, self.mirror)

    def build_task(self, spec: PodSpec, body: str = BODY, **more: Any) -> PodTask:
        """Build the message that sends a pod to another process; `from_task` reads it."""
        return PodTask(
            spec=spec,
            run=str(self.run.root.resolve()),
            market=str(self.market),
            mirror=None if self.mirror is None else self.mirror.address,
            token=self.token,
            operations=self.operations,
            body=body,
            **more,
        )

    @classmethod
    def from_task(cls, task: PodTask, **more: Any) -> Self:
        """Build the context in the process that was sent `task`."""
        run = Path(task.run)
        return cls(
            RunFolder(run),
            Path(task.market),
            open_mirror(run, task.mirror),
            device=task.device,
            token=task.token,
            attempt=task.attempt,
            operations=task.operations,
            slot=task.slot,
            evaluate_elsewhere=task.evaluate_elsewhere,
            **more,
        )


Body = Callable[[PodSpec, PodContext], PodResult]
"""Function that trains a pod, stores snapshot and policy, and returns a result or a
`TrainedPod`."""
