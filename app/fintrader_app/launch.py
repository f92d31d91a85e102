"""How the app is started: one command line, bound to loopback unless reported otherwise, with
nothing sent anywhere.

from fintrader_app.launch import serve
serve(runs_dir=Path("runs"), port=8501)

Of runs that lie in a store copies on this disk are shown, which a process of its own keeps up to
date: `python -m fintrader_app.launch --follow URL PARENT`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict, Unpack

from fintrader.config import is_url
from fintrader.errors import ConfigError, FintraderError, install_command
from fintrader_app.guard import TOKEN_VARIABLE, list_hosts, read_host, read_token

RUNS_DIR_VARIABLE = "FINTRADER_RUNS_DIR"
CACHE_VARIABLE = "FINTRADER_CACHE"
CONFIGS_VARIABLE = "FINTRADER_CONFIGS"
STORE_VARIABLE = "FINTRADER_STORE"
DEPLOYMENTS_DIR_VARIABLE = "FINTRADER_DEPLOYMENTS_DIR"
FOLLOW_SECONDS = 10.0

_OPTIONS = {
    "server.fileWatcherType": "none",
    "server.showEmailPrompt": "false",
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",
    # streamlit's greeting has no token, and asks a server elsewhere for this machine's address
    "logger.hideWelcomeMessage": "true",
    "runner.magicEnabled": "false",
    "theme.light.primaryColor": "#0f766e",
    "theme.light.backgroundColor": "#ffffff",
    "theme.light.secondaryBackgroundColor": "#f4f6f8",
    "theme.light.textColor": "#1c2430",
    "theme.dark.primaryColor": "#0d9488",
    "theme.dark.backgroundColor": "#0f141b",
    "theme.dark.secondaryBackgroundColor": "#19212b",
    "theme.dark.textColor": "#e6eaf0",
}


class ServerOptions(TypedDict, total=False):
    """Options of the app's server."""

    host: str
    headless: bool | None
    allow_hosts: Sequence[str]
    no_token: bool


def build_command(
    port: int,
    *,
    host: str = "127.0.0.1",
    headless: bool | None = None,
    allow_hosts: Sequence[str] = (),
    no_token: bool = False,
) -> list[str]:
    """The command that serves the app on `host`, to browsers that ask for it or for `allow_hosts`.

    The server makes a token and prints it, unless FINTRADER_APP_TOKEN holds one, and asks for none
    with `no_token`.
    Raises ConfigError when streamlit is not installed, and for hosts that are none.
    """
    if find_spec("streamlit") is None:
        raise ConfigError(f"the app needs streamlit; install it with `{install_command('app')}`")
    if not 1 <= port <= 65535:
        raise ConfigError(f"port: must lie in 1..65535, got {port}")
    list_hosts(host, allow_hosts)
    options = {"server.address": read_host(host, "--host"), "server.port": str(port), **_OPTIONS}
    if headless is not None:
        options["server.headless"] = str(headless).lower()
    script = str(Path(__file__).resolve().with_name("served.py"))
    flags = [f"--{name}={value}" for name, value in options.items()]
    own = [f"--allow-host={name}" for name in allow_hosts] + ["--no-token"] * no_token
    # -P: a folder called `app` where the reader happens to stand must not take this package's place
    command = [sys.executable, "-P", "-m", "streamlit", "run", script, *flags]
    return [*command, "--", *own] if own else command


def build_environment(runs_dir: Path | str) -> dict[str, str]:
    """The environment variables that tell the app where runs lie."""
    given = {RUNS_DIR_VARIABLE: str(Path(runs_dir).resolve())}
    return {"OMP_NUM_THREADS": "1", **os.environ, **given}


def main() -> None:
    """`python -m fintrader_app.launch`, which `fintrader app` starts; a mistake is one line and
    exit status 2."""
    parser = argparse.ArgumentParser(prog="fintrader app")
    parser.add_argument("--runs-dir", default="runs")
    parser.add_argument("--port", type=int, default=8501)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--allow-host", dest="allow_hosts", action="append", default=[])
    parser.add_argument("--no-token", action="store_true")
    parser.add_argument("--headless", action="store_true", default=None)
    parser.add_argument("--follow", nargs=2)
    asked = vars(parser.parse_args())
    copied = asked.pop("follow")
    if copied:
        follow(copied[0], int(copied[1]))
        return
    try:
        serve(asked.pop("runs_dir"), asked.pop("port"), **asked)
    except FintraderError as error:
        print(f"fintrader: {error}", file=sys.stderr)
        sys.exit(2)


def locate_copies(url: str) -> Path:
    """The folder of a store's copies, complete as of now; it is kept up to date until this process
    ends.

    Raises StorageError when the store cannot be read.
    """
    from fintrader.pipeline.session import open_store

    home = open_store(url)
    home.mkdir(parents=True, exist_ok=True)
    root = str(Path(__file__).resolve().parents[1])
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
    }
    variables.pop(TOKEN_VARIABLE, None)
    words = [sys.executable, "-P", "-m", "fintrader_app.launch", "--follow", url, str(os.getpid())]
    subprocess.Popen(words, stdin=subprocess.DEVNULL, env=variables)
    return home


def follow(url: str, parent: int) -> None:
    """Bring the copies up to date again and again, until the process that asked for it is gone."""
    from fintrader.pipeline.session import open_store

    reported = ""
    while os.getppid() == parent:
        try:
            open_store(url)
            reported = ""
        except FintraderError as error:
            if str(error) != reported:  # a store that is away stays away for a while: say so once
                reported = str(error)
                print(f"fintrader app: {reported}", file=sys.stderr)
        time.sleep(FOLLOW_SECONDS)


def serve(runs_dir: Path | str, port: int, **options: Unpack[ServerOptions]) -> None:
    """Replace this process by the app's server (Ctrl-C stops it; runs that it started go on).

    Of runs in a store (`s3://bucket/runs`) copies are shown, which a process beside the server
    keeps up to date. Raises ConfigError as `build_command` does, and for a token in the environment
    that is too weak.
    """
    arguments = build_command(port, **options)
    read_token(os.environ)
    variables = build_environment(locate_copies(str(runs_dir)) if is_url(runs_dir) else runs_dir)
    if is_url(runs_dir):
        variables[STORE_VARIABLE] = str(runs_dir)
    sys.stdout.flush()
    os.execve(arguments[0], arguments, variables)


if __name__ == "__main__":
    main()
