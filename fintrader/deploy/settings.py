"""What a deployment is asked to do."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fintrader.backtesting.limits import LimitSettings
from fintrader.config import Settings

Positive = Annotated[float, Field(gt=0.0)]


class AlertSettings(Settings):
    """Who is told that something needs a person; at most once a minute for each kind of news."""

    webhook: str | None = None
    """An https address that gets the alert as JSON (text, kind, deployment).
    FINTRADER_ALERT_WEBHOOK in the environment is used where this is not set, for an address that is
    a secret."""
    command: tuple[str, ...] = ()
    """A program and its arguments; the alert is its standard input."""


class PaperSettings(Settings):
    """How a run trades on."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")] | None = None
    """Of the deployment and its folder: letters, digits and _.-; the run's own unless set, for live
    bars with -shadow or -paper behind it."""
    policy: str = "ensemble"
    """`ensemble`, `best`, or a pod's name."""
    deployments_dir: str = "deployments"
    """Folder that holds the deployments."""
    feed: Literal["replay", "alpaca"] = "replay"
    """`replay`: the bars of the test window again; `alpaca`: bars as they are made (keys from the
    environment)."""
    broker: Literal["simulated", "alpaca"] = "simulated"
    """`simulated`: the environment's own ledger; `alpaca`: its paper account."""
    role: Literal["champion", "challenger"] = "champion"
    """A `challenger` trades the embedded broker beside a champion, whatever `broker` says: it never
    sends an order."""
    speed: Annotated[float, Field(ge=0.0)] = 0.0
    """A replay runs so many times as fast as time; 0: as fast as it can."""
    other_feed: bool = False
    """Trade bars of another source than those the policy was trained on."""
    adopt: bool = False
    """Take over positions and open orders that this deployment did not make."""
    grace_seconds: Positive = 5.0
    """After a bar's close until its bars are taken as all there are."""
    warm_up_sessions: Annotated[int, Field(ge=1)] | None = None
    """Sessions of bars that the features look back on; they say so themselves, but for functions of
    one's own."""
    limits: LimitSettings = LimitSettings()
    alerts: AlertSettings = AlertSettings()
    metrics_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Serve gauges to Prometheus on this port of the loopback interface."""
    endpoint: str | None = None
    """A server on this machine in the place of Alpaca's paper account, for tests. Keys are sent
    to no other host."""

    @property
    def suffix(self) -> str:
        """What is added to the run's name, so that its replay, its shadow and its paper account lie
        apart."""
        if self.feed == "replay":
            return ""
        return "-shadow" if self.broker == "simulated" or self.role == "challenger" else "-paper"


class LiveSettings(PaperSettings):
    """How a deployment trades real money: as on paper, with a limit on the amount."""

    cap_usd: float = 0.0
    """Most that it may hold, USD; typed again when you consent."""
