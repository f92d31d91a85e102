"""A process that outlives the loop of a deployment. It sends the loop's alerts, calls a dead man's
switch while the loop lives, and alerts when the loop has died or stands still, with the positions.

It imports no torch and no pandas. It starts nothing again: that is for systemd or Kubernetes
(`deploy.service`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fintrader.deploy.alerts import SUPERVISOR, Alerts, check_address, fetch
from fintrader.deploy.control import HEARTBEAT, JOURNAL, SILENT_SECONDS
from fintrader.deploy.entries import Alert, DeploymentStart
from fintrader.deploy.journal import Journal
from fintrader.deploy.reconcile import expect_holdings
from fintrader.deploy.settings import AlertSettings
from fintrader.errors import FintraderError
from fintrader.files import read_json
from fintrader.system import KILL, SENT_BY_OTHERS

HEARTBEAT_VARIABLE = "FINTRADER_ALERT_HEARTBEAT"
LOOK_SECONDS = 5.0
PING_SECONDS = 60.0
START_SECONDS = 600.0
"""Most time before a loop's first sign of life: it reads weeks of bars."""
_BY_HAND = 130
"""Exit status of a command that a person interrupted."""


class _Watch:
    """A supervisor's knowledge of its loop."""

    def __init__(self, alerts: Alerts, switch: str) -> None:
        self.alerts = alerts
        self.switch = switch
        """Address of a dead man's switch; empty without one."""
        self.home: Path | None = None
        """The deployment's folder, once the loop has it."""
        self.is_end_sent = False
        """True once the loop itself has sent the alert of its end."""
        self._began = time.time()
        self._pinged = -PING_SECONDS
        self._is_silent = False
        self._rest = b""

    def receive(self, text: bytes) -> bool:
        """Take in the loop's messages, one JSON object a line; False at their end."""
        *lines, self._rest = (self._rest + text).split(b"\n")
        for line in lines:
            news = json.loads(line)
            if "home" in news:
                self.home = Path(news["home"])
                self.alerts.deployment = self.home.name
            else:
                self.is_end_sent |= news["kind"] == "ended"
                self.alerts.deliver(news)
        return bool(text)

    def look(self) -> None:
        """Call the switch while the loop lives; send one alert when it stands still."""
        beat = self._began + START_SECONDS - SILENT_SECONDS
        with contextlib.suppress(FintraderError, OSError, TypeError, KeyError):
            if self.home is not None:
                beat = max(beat, read_json(self.home / HEARTBEAT)["time"] / 1e9)
        age = time.time() - beat
        if age < SILENT_SECONDS:
            self._is_silent = False
            self._ping()
        elif not self._is_silent:
            self._is_silent = True
            rest = describe_rest(self.home)
            self.alerts.send(
                Alert("silent", f"the trading loop has not responded for {age:.0f} s{rest}")
            )

    def report_end(self, status: int) -> None:
        """Send an alert of the loop's end, unless it has sent one or a person ended it."""
        how = f"the process ended with status {status}"
        if status < 0:
            how = f"the process was ended by {signal.Signals(-status).name}"
        if self.home is not None and not self.is_end_sent and status not in (0, _BY_HAND):
            text = f"{how}{describe_rest(self.home)}. Run the same command again to resume"
            self.alerts.send(Alert("ended", text))

    def _ping(self) -> None:
        if self.switch and time.monotonic() - self._pinged >= PING_SECONDS:
            self._pinged = time.monotonic()
            with contextlib.suppress(OSError, ValueError):
                fetch(self.switch)  # the owner of the switch learns of a failure by its silence


def supervise(command: Sequence[str], settings: AlertSettings, name: str) -> int:
    """Run the command of a deployment, watch it, and return its exit status; signals reach it.

    Raises ConfigError for an address that cannot be used.
    """
    switch = settings.heartbeat or os.environ.get(HEARTBEAT_VARIABLE, "")
    if switch:
        check_address(switch, f"alerts.heartbeat (or {HEARTBEAT_VARIABLE})")
    watch = _Watch(Alerts(settings, name), switch)
    reader, writer = os.pipe()
    variables = {**os.environ, SUPERVISOR: f"{writer}:{os.getpid()}"}
    # In a new session, Ctrl-C reaches the loop once: through this process.
    child = subprocess.Popen(command, env=variables, pass_fds=(writer,), start_new_session=True)
    os.close(writer)
    for number in SENT_BY_OTHERS:
        if number != KILL and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda sent, _: child.send_signal(sent))
    while child.poll() is None:
        is_ready = select.select([reader], [], [], LOOK_SECONDS)[0]
        if is_ready and not watch.receive(os.read(reader, 65536)):
            child.wait()
        watch.look()
    while select.select([reader], [], [], 0.0)[0] and watch.receive(os.read(reader, 65536)):
        pass  # its last output
    watch.report_end(child.returncode)
    watch.alerts.finish()
    return child.returncode


def describe_rest(home: Path | None) -> str:
    """Describe the positions and the flatten that a deployment with an account leaves behind."""
    if home is None:
        return ""
    try:
        with Journal(home / JOURNAL, reading=True) as journal:
            started = journal.last(DeploymentStart)
            held: Mapping[str, float] = {}
            if started is not None and started.body.broker != "simulated":
                held = expect_holdings(journal).shares
            flatten = "; a flatten has not ended" if journal.is_flattening() else ""
    except FintraderError as error:
        return f"; its positions cannot be read: {error}"
    shares = f"; open positions that no process manages now: {format_shares(held)}" if held else ""
    return shares + flatten


def format_shares(shares: Mapping[str, float]) -> str:
    """Format shares by symbol."""
    return ", ".join(f"{count:.9g} {symbol}" for symbol, count in sorted(shares.items()))
