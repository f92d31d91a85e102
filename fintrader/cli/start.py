"""The command that starts the app."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from pydantic import Field

from fintrader.cli.options import parse
from fintrader.config import Settings
from fintrader.errors import ConfigError


class AppSettings(Settings):
    """Folder and address of the app."""

    runs_dir: str = "runs"
    """Folder that holds the runs, or the URL of a store (`s3://bucket/runs`), of which copies are
    shown."""
    port: int = Field(8501, ge=1, le=65535)
    """Port to listen on."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every one of this machine, and needs --allow-host too."""
    allow_host: tuple[str, ...] = ()
    """A further name or address by which browsers reach the app; may be given several times."""
    no_token: bool = False
    """Let everybody in who reaches the port, without the token of the printed address."""
    headless: bool = False
    """Do not open a browser."""


def app(argv: list[str]) -> None:
    """Become the process that serves the app."""
    settings = parse(AppSettings(), argv, "app")
    found = find_spec("fintrader_app")
    if found is None or found.origin is None:
        raise ConfigError(
            "the app is not part of this installation; install fintrader from its source tree"
        )
    root = str(Path(found.origin).parents[1])
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
    }
    # -P: a folder called `fintrader_app` in the working directory must not shadow this package
    words = [sys.executable, "-P", "-m", "fintrader_app.launch", "--runs-dir", settings.runs_dir]
    words += ["--port", str(settings.port), "--host", settings.host]
    words += [f"--allow-host={host}" for host in settings.allow_host]
    if settings.no_token:
        words.append("--no-token")
    if settings.headless:
        words.append("--headless")
    sys.stdout.flush()
    os.execve(sys.executable, words, variables)
