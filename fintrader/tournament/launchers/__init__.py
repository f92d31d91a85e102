"""Launchers: where pods run. A launcher takes a spec and gives a future of its result; nothing else
knows processes.

`local` runs them as processes of this machine, `ray` on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.spec import Message, PodContext, PodResult, PodSpec, Reason

LEAVE_SECONDS = 10.0
"""A pod that is asked to end has so long to store its state, a task that has failed to be gone."""
START_SECONDS = 120.0
"""A new process may take so long to import what it needs."""


class PodFailure(Exception):
    """A pod came to nothing; `reason` is one of `spec.Reason`."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason: Reason = reason
        self.detail = detail


@dataclass
class PodProgress:
    """The last sign of life of a pod at work."""

    share: float = 0.0
    env_steps: int = 0
    note: str = ""
    since: float = 0.0
    device: str = ""

    def update(self, message: Message) -> None:
        """Take over what the pod sent."""
        self.share = message["share"]
        self.env_steps = message["env_steps"]
        self.note = message["note"]


class Launcher(Protocol):
    """Local processes, or a cluster."""

    def measure_capacity(self) -> int:
        """Pods that can work at once, at this moment."""

    def resize(self, workers: int | None) -> None:
        """Requested number of pods at once; None: whatever the devices allow."""

    def submit(self, spec: PodSpec, *, attempt: int = 1) -> Future[PodResult]:
        """Start a pod. The future raises PodFailure when the pod is lost."""

    def report_progress(self) -> dict[str, PodProgress]:
        """Pods at work and how far they are."""

    def check_pods(self) -> None:
        """Called every so often: look for hung pods and for changed devices."""

    def close(self) -> None:
        """Stop everything."""


LauncherFactory = Callable[[TournamentSettings, PodContext], Launcher]
"""(settings, where pods find the run) -> what the pods run on."""


@runtime_checkable
class AdoptingLauncher(Launcher, Protocol):
    """One whose pods outlive an orchestrator that is killed."""

    def list_orphans(self) -> frozenset[str]:
        """Pods at work that an earlier orchestrator started: to `submit` one is to take it over."""


@runtime_checkable
class ElasticLauncher(Launcher, Protocol):
    """One that may be empty now and grow later. Its `tick` raises TournamentError when it has
    waited too long."""

    def request(self, pods: int) -> None:
        """So many pods could be at work if there were room."""
