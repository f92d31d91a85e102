"""Alerts: news that need a person, sent to the log and to a webhook or a program, at most once a
minute for each kind."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Sequence

from fintrader.deploy.entries import Alert
from fintrader.deploy.settings import AlertSettings
from fintrader.errors import ConfigError
from fintrader.records import to_json

log = logging.getLogger("fintrader.deploy")
VARIABLE = "FINTRADER_ALERT_WEBHOOK"
PAUSE_SECONDS = 60.0
PATIENCE_SECONDS = 10.0
_LOOPBACK = ("http://127.0.0.1", "http://localhost", "http://[::1]")


class Alerts:
    """The ways to a person. Raises ConfigError for a webhook neither https nor on this machine."""

    def __init__(self, settings: AlertSettings, deployment: str) -> None:
        self.deployment = deployment
        self.command = list(settings.command)
        self.webhook = settings.webhook or os.environ.get(VARIABLE)
        if self.webhook and not self.webhook.startswith(("https://", *_LOOPBACK)):
            raise ConfigError(f"alerts.webhook (or {VARIABLE}) must begin with https://")
        self._sent: dict[str, float] = {}
        self._under_way: list[threading.Thread] = []

    def send(self, alert: Alert) -> bool:
        """Send an alert unless one of its kind was sent within a minute; True if it was sent."""
        now = time.monotonic()
        if now - self._sent.get(alert.kind, -PAUSE_SECONDS) < PAUSE_SECONDS:
            return False
        self._sent[alert.kind] = now
        log.warning("%s: %s", self.deployment, alert.text)
        body = json.dumps({"deployment": self.deployment, **to_json(alert)}).encode()
        if self.webhook or self.command:  # in a thread: a slow listener must not hold up an order
            news = (self.webhook, self.command, body)
            thread = threading.Thread(target=_deliver, args=news, daemon=True)
            thread.start()
            self._under_way = [one for one in self._under_way if one.is_alive()] + [thread]
        return True

    def finish(self) -> None:
        """Wait for the alerts under way, which the end of the process would cut short."""
        for thread in self._under_way:
            thread.join(3 * PATIENCE_SECONDS)


def _deliver(webhook: str | None, command: Sequence[str], body: bytes) -> None:
    if webhook:
        try:
            request = urllib.request.Request(webhook, body, {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=PATIENCE_SECONDS).close()
        except (OSError, ValueError) as error:  # the address may be a secret
            log.warning("the alert's webhook did not take it (%s)", type(error).__name__)
    if command:
        try:
            subprocess.run(
                command, input=body, timeout=PATIENCE_SECONDS, check=True, capture_output=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("the alert's program failed (%s)", type(error).__name__)
