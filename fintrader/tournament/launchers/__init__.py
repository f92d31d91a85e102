"""Launchers: where pods run. A launcher takes a spec and returns a future of its result.

`local` uses processes of this machine, `ray` a cluster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from fintrader.tournament.messages import ProgressMessage
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.spec import PodResult, PodSpec, Reason

LEAVE_SECONDS = 10.0
"""Seconds that an ending pod has to store its state, and a failed task to end."""
START_SECONDS = 120.0
"""Seconds that a new process has for its imports."""


class PodFailure(Exception):
    """Failure of a pod; `reason` is one of `spec.Reason`."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason: Reason = reason
        self.detail = detail


@dataclass
class PodProgress:
    """Last sign of life of a pod at work."""

    share: float = 0.0
    env_steps: int = 0
    note: str = ""
    since: float = 0.0
    device: str = ""

    def update(self, message: ProgressMessage) -> None:
        """Copy the numbers from a pod's message."""
        self.share = message.share
        self.env_steps = message.env_steps
        self.note = message.note


class Launcher(ABC):
    """Base of the places where pods run: local processes, or a cluster."""

    is_elastic: bool = False
    """True if the launcher may have no room now and grow later; its `check_pods` raises
    TournamentError after too long a wait."""

    @abstractmethod
    def measure_capacity(self) -> int:
        """Count the pods that can work at once, at this moment."""

    @abstractmethod
    def resize(self, workers: int | None) -> None:
        """Set the number of pods at once; None: as many as the devices allow."""

    @abstractmethod
    def submit(self, spec: PodSpec, *, attempt: int = 1) -> Future[PodResult]:
        """Start a pod. The future raises PodFailure when the pod is lost."""

    @abstractmethod
    def report_progress(self) -> dict[str, PodProgress]:
        """Report the progress of each pod at work."""

    @abstractmethod
    def close(self) -> None:
        """Stop everything."""

    def check_pods(self) -> None:
        """Check for hung pods and changed devices; called at every reconcile."""
        return

    def list_orphans(self) -> frozenset[str]:
        """List pods at work that an earlier orchestrator started; `submit` takes one over."""
        return frozenset()

    def request(self, pods: int) -> None:
        """Request room for `pods` pods."""
        return


LauncherFactory = Callable[[TournamentSettings, PodContext], Launcher]
"""Function (settings, context of the run) -> launcher."""
