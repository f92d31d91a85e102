"""News that need a person: to the log, and to a webhook or a program, at most once a minute for
each kind."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Sequence

from fintrader.deploy.settings import AlertSettings
from fintrader.errors import ConfigError

log = logging.getLogger("fintrader.deploy")
VARIABLE = "FINTRADER_ALERT_WEBHOOK"
PAUSE_SECONDS = 60.0
PATIENCE_SECONDS = 10.0
_LOOPBACK = ("http://127.0.0.1", "http://localhost", "http://[::1]")


class Alerts:
    """Raises ConfigError for a webhook that is neither https nor on this machine."""

    def __init__(self, settings: AlertSettings, deployment: str) -> None:
        self.deployment = deployment
        self.command = list(settings.command)
        self.webhook = settings.webhook or os.environ.get(VARIABLE)
        if self.webhook and not self.webhook.startswith(("https://", *_LOOPBACK)):
            raise ConfigError(f"alerts.webhook (or {VARIABLE}) must begin with https://")
        self._told: dict[str, float] = {}
        self._under_way: list[threading.Thread] = []

    def tell(self, kind: str, text: str) -> bool:
        """Whether it was passed on: news of a kind that was told within a minute is left to the
        journal."""
        now = time.monotonic()
        if now - self._told.get(kind, -PAUSE_SECONDS) < PAUSE_SECONDS:
            return False
        self._told[kind] = now
        log.warning("%s: %s", self.deployment, text)
        body = json.dumps({"deployment": self.deployment, "kind": kind, "text": text}).encode()
        if self.webhook or self.command:  # whoever is slow to listen must not hold up an order
            news = (self.webhook, self.command, body)
            thread = threading.Thread(target=_send, args=news, daemon=True)
            thread.start()
            self._under_way = [one for one in self._under_way if one.is_alive()] + [thread]
        return True

    def finish(self) -> None:
        """Wait until the news under way is passed on; the end of a process would cut it short."""
        for thread in self._under_way:
            thread.join(3 * PATIENCE_SECONDS)


def _send(webhook: str | None, command: Sequence[str], body: bytes) -> None:
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
