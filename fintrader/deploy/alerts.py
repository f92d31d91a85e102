"""Alerts: news for a person, sent to the log, to addresses and to a program, at most once a minute
for each kind.

A process that has a supervisor (`deploy.supervisor`) passes its alerts to the supervisor, which
outlives it; any other process sends them itself.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fintrader.deploy.entries import Alert
from fintrader.deploy.settings import AlertSettings
from fintrader.errors import ConfigError, RunError, install_command

log = logging.getLogger("fintrader.deploy")
VARIABLE = "FINTRADER_ALERT_URLS"
SUPERVISOR = "FINTRADER_SUPERVISOR"
"""Environment variable of a supervised process: descriptor of the pipe to its supervisor, a colon,
and the supervisor's process id."""
PAUSE_SECONDS = 60.0
PATIENCE_SECONDS = 10.0
_LOOPBACK = ("http://127.0.0.1", "http://localhost", "http://[::1]")


class Alerts:
    """Receivers of alerts. Raises ConfigError for an address that cannot be used."""

    def __init__(self, settings: AlertSettings, deployment: str) -> None:
        self.deployment = deployment
        self._has_supervisor = is_supervised()
        self._receivers: dict[str, Callable[[Mapping[str, str]], None]] = {}
        """Name for the log, without secrets -> function that sends news."""
        urls = [*settings.urls, *os.environ.get(VARIABLE, "").split()]
        for number, url in enumerate(urls, 1):
            check_address(url, f"address {number} of alerts.urls and {VARIABLE}")
            self._receivers[f"alert address {number}"] = partial(_post, url)
        if settings.command:
            self._receivers["the alert's program"] = partial(_run, settings.command)
        self._sent: dict[str, float] = {}
        self._waiting: dict[str, Alert] = {}
        self._newest: dict[str, threading.Thread] = {}
        """Newest delivery to each receiver."""

    def send(self, alert: Alert) -> bool:
        """Send an alert and return True. If another of its kind was sent less than a minute ago,
        keep it for later, in place of one that waits already, and return False."""
        now = time.monotonic()
        if now - self._sent.get(alert.kind, -PAUSE_SECONDS) < PAUSE_SECONDS:
            self._waiting[alert.kind] = alert
            return False
        self._waiting.pop(alert.kind, None)
        self._sent[alert.kind] = now
        log.warning("%s: %s", self.deployment, alert.text)
        news = {"deployment": self.deployment, "kind": alert.kind, "text": alert.text}
        if not tell_supervisor(news):
            self.deliver(news)
        return True

    def drop(self, kind: str) -> None:
        """Drop an alert that waits and is no longer true."""
        self._waiting.pop(kind, None)

    def deliver(self, news: Mapping[str, str]) -> None:
        """Deliver news to each receiver in a thread of its own, so that a slow receiver delays
        neither orders nor another receiver. Each receiver gets its news in order."""
        for name, send in self._receivers.items():
            parts = (name, send, news, self._newest.get(name))
            thread = threading.Thread(target=_deliver, args=parts, daemon=True)
            thread.start()
            self._newest[name] = thread

    def look(self) -> None:
        """Send the alerts that have waited for a minute. Raises RunError if the supervisor has
        died, because nothing would then report the end of this process."""
        for alert in list(self._waiting.values()):
            self.send(alert)
        if self._has_supervisor and not is_supervised():
            raise RunError("the process that supervised it was killed")

    def finish(self) -> None:
        """Send the alerts that wait, and wait for all deliveries; call it before the process
        ends."""
        self._sent.clear()
        for alert in list(self._waiting.values()):
            self.send(alert)
        for thread in self._newest.values():
            thread.join(6 * PATIENCE_SECONDS)


def is_supervised() -> bool:
    """Check that a supervisor started this process and is alive."""
    return os.environ.get(SUPERVISOR, "").endswith(f":{os.getppid()}")


def tell_supervisor(news: Mapping[str, str]) -> bool:
    """Write news to the supervisor as one line of JSON; return False if there is no supervisor."""
    if not is_supervised():
        return False
    try:
        os.write(int(os.environ[SUPERVISOR].split(":")[0]), json.dumps(news).encode() + b"\n")
    except OSError:
        return False
    return True


def check_address(url: str, setting: str) -> None:
    """Raise ConfigError for an address that is neither https, nor on this machine, nor known to
    apprise. setting: name of the address for the message, which does not show it, since it may be a
    secret."""
    if url.startswith(("http://", "https://")):
        if not url.startswith(("https://", *_LOOPBACK)):
            raise ConfigError(f"{setting} must begin with https://")
    elif not _open_apprise().add(url):
        raise ConfigError(
            f"{setting} is unknown to apprise; give one such as ntfys://ntfy.sh/TOPIC"
        )


def _open_apprise() -> Any:
    try:
        import apprise
    except ImportError:
        raise ConfigError(
            f"addresses other than https need apprise; `{install_command('alerts')}`"
        ) from None
    logging.getLogger("apprise").setLevel(logging.CRITICAL)  # it logs addresses
    return apprise.Apprise()


def fetch(url: str, body: bytes | None = None) -> None:
    """Send a request and ignore the answer's content. Raises OSError or ValueError."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=PATIENCE_SECONDS).close()


def _deliver(
    name: str,
    send: Callable[[Mapping[str, str]], None],
    news: Mapping[str, str],
    before: threading.Thread | None,
) -> None:
    if before is not None:
        before.join(3 * PATIENCE_SECONDS)
    try:
        send(news)
    except (ConfigError, OSError, ValueError, subprocess.SubprocessError) as error:
        # the error's text may contain secrets
        log.warning("%s did not accept an alert (%s)", name, type(error).__name__)


def _post(url: str, news: Mapping[str, str]) -> None:
    """Send news to an address. Raises ConfigError, OSError or ValueError."""
    if url.startswith("http"):
        fetch(url, json.dumps(news).encode())
        return
    service = _open_apprise()
    title = f"{news['deployment']}: {news['kind']}"
    if not (service.add(url) and service.notify(title=title, body=news["text"])):
        raise OSError


def _run(command: Sequence[str], news: Mapping[str, str]) -> None:
    """Run a program with the news, as JSON, on its standard input. Raises OSError or
    SubprocessError."""
    text = json.dumps(news).encode()
    subprocess.run(command, input=text, timeout=PATIENCE_SECONDS, check=True, capture_output=True)
