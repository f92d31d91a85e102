"""Commands that start the app and the server for assistants."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from pydantic import Field, NonNegativeInt

from fintrader.cli.options import parse
from fintrader.config import Settings
from fintrader.errors import ConfigError
from fintrader.seams import SERVERS, load_part


class AppSettings(Settings):
    """Folder and address of the app."""

    runs_dir: str = "runs"
    """Folder that holds the runs, or the URL of a store (`s3://bucket/runs`), whose runs are
    copied to this disk."""
    port: int = Field(8501, ge=1, le=65535)
    """Port to listen on."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 means all addresses of this machine, and needs --allow-host."""
    allow_host: tuple[str, ...] = ()
    """A further name or address by which browsers reach the app; may be given several times."""
    no_token: bool = False
    """Serve everyone who reaches the port, without asking for the token of the printed address."""
    headless: bool = False
    """Do not open a browser."""


class McpSettings(Settings):
    """Folder of the server, and permissions of an assistant."""

    folder: Path = Path()
    """Folder of the files, configurations and runs that the server may use."""
    runs_dir: str = "runs"
    """Folder of the runs, inside that folder."""
    looks: NonNegativeInt = 0
    """Looks at held-out windows that assistants may spend in this folder, restarts included; each
    judgement and each backtest is one. With 0 nothing is judged or backtested."""
    train: bool = False
    """Let an assistant start tournaments, in the background."""


def build_variables(root: Path) -> dict[str, str]:
    """Return this process's environment, with the source tree of the app to import from."""
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def app(argv: list[str]) -> None:
    """Replace this process by the app's server."""
    parse(AppSettings(), argv, "app")  # reports wrong options before this process is replaced
    found = find_spec("fintrader_app")
    if found is None or found.origin is None:
        raise ConfigError(
            "the app is not part of this installation; install fintrader from its source tree"
        )
    # -P: a folder called `fintrader_app` in the working directory must not shadow this package
    command = [sys.executable, "-P", "-m", "fintrader_app.launch", *argv]
    sys.stdout.flush()
    os.execve(sys.executable, command, build_variables(Path(found.origin).parents[1]))


def mcp(argv: list[str]) -> None:
    """Serve an assistant over standard input and output."""
    options = parse(McpSettings(), argv, "mcp")
    if not options.folder.is_dir():
        raise ConfigError(f"--folder {options.folder}: there is no such folder")
    serve = load_part(SERVERS, "mcp")
    serve(options.folder, options.runs_dir, looks=options.looks, train=options.train)
