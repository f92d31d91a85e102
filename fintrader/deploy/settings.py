"""Settings of a deployment."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from fintrader.backtesting.limits import LimitSettings
from fintrader.config import Address, Settings


class AlertSettings(Settings):
    """Receivers of alerts; each kind of news is sent at most once a minute."""

    urls: tuple[str, ...] = ()
    """Addresses: https ones get the alert as JSON (text, kind, deployment); others are apprise's,
    such as mailtos://, tgram:// and ntfys://. Put secret addresses into FINTRADER_ALERT_URLS in the
    environment, separated by spaces."""
    heartbeat: str | None = None
    """A dead man's switch: an https address that is called once a minute while the loop lives;
    FINTRADER_ALERT_HEARTBEAT where it is a secret."""
    command: tuple[str, ...] = ()
    """A program and its arguments; the alert is its standard input."""


class PaperSettings(Settings):
    """Settings of `fintrader paper`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")] | None = None
    """Name of the deployment and its folder: letters, digits and _.-; the run's name unless set,
    with -shadow or -paper behind it for live bars."""
    policy: str = "ensemble"
    """`ensemble`, `best`, or a pod's name."""
    deployments_dir: str = "deployments"
    """Folder that holds the deployments."""
    feed: Literal["replay", "alpaca", "binance", "bitstamp", "coinbase", "kraken"] = "replay"
    """`replay`: the bars of the test window again; otherwise live bars, of Alpaca (keys from the
    environment) or of an exchange of cryptocurrencies."""
    broker: Literal["simulated", "alpaca", "binance"] = "simulated"
    """`simulated`: the environment's own ledger; `alpaca`: its paper account; `binance`: the spot
    account of its sandbox."""
    role: Literal["champion", "challenger"] = "champion"
    """A `challenger` trades the embedded broker next to a champion, whatever `broker` says: it
    never sends an order."""
    speed: Annotated[float, Field(ge=0.0)] = 0.0
    """Speed of a replay as a multiple of real time; 0: as fast as possible."""
    other_feed: bool = False
    """Trade bars of another source than those the policy was trained on."""
    adopt: bool = False
    """Take over positions and open orders that this deployment did not make; orders of another
    deployment are cancelled."""
    grace_seconds: PositiveFloat = 5.0
    """Time after a bar's close until its bars count as complete."""
    warm_up_sessions: Annotated[int, Field(ge=1)] | None = None
    """Sessions of bars that the features look back on; required for features that are functions of
    yours."""
    limits: LimitSettings = LimitSettings()
    alerts: AlertSettings = AlertSettings()
    metrics: Address = None
    """Address at which gauges are served to Prometheus, `PORT` (on 127.0.0.1) or `HOST:PORT`.
    `0.0.0.0:PORT` lets other machines read them, without a password."""
    endpoint: str | None = None
    """A server on this machine instead of the broker's, for tests. Keys are sent to no other
    host."""

    @property
    def suffix(self) -> str:
        """End of the deployment's name after the run's, so that replay, shadow and paper account
        have separate folders."""
        if self.feed == "replay":
            return ""
        return "-shadow" if self.ordered_at == "simulated" else "-paper"

    @property
    def ordered_at(self) -> str:
        """The broker that gets the orders: the embedded one for a challenger."""
        return "simulated" if self.role == "challenger" else self.broker


class LiveSettings(PaperSettings):
    """Settings of a deployment with real money: as on paper, with a limit on the amount."""

    cap_usd: float = 0.0
    """Most that it may hold, USD; typed again when you consent."""
