"""Start the app's server, bound to loopback unless `--host` is set; it sends nothing anywhere.

    from fintrader_app.launch import serve
    serve(AppSettings(runs_dir="runs", port=8501))

For runs in an object store the app shows copies on this disk. A second process, `python -m
fintrader_app.launch --follow URL PARENT`, keeps them up to date.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from fintrader.cli.options import parse
from fintrader.cli.start import AppSettings, build_variables
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
    # streamlit's greeting omits the token, and asks an outside server for this machine's address
    "logger.hideWelcomeMessage": "true",
    "runner.magicEnabled": "false",
    "theme.light.primaryColor": "#0f766e",
    "theme.light.backgroundColor": "#ffffff",
    "theme.light.secondaryBackgroundColor": "#f4f6f8",
    "theme.light.textColor": "#1c2430",
    "theme.dark.primaryColor": "#2dd4bf",
    "theme.dark.backgroundColor": "#0f141b",
    "theme.dark.secondaryBackgroundColor": "#19212b",
    "theme.dark.textColor": "#e6eaf0",
}


def build_command(settings: AppSettings) -> list[str]:
    """Build the command that serves the app.

    The server makes a token and prints it, unless FINTRADER_APP_TOKEN holds one. Raises ConfigError
    when streamlit is not installed, and for an invalid host.
    """
    if find_spec("streamlit") is None:
        raise ConfigError(f"the app needs streamlit; install it with `{install_command('app')}`")
    list_hosts(settings.host, settings.allow_host)
    options = {"server.address": read_host(settings.host, "--host"), **_OPTIONS}
    options["server.port"] = str(settings.port)
    if settings.headless:
        options["server.headless"] = "true"
    script = str(Path(__file__).resolve().with_name("served.py"))
    flags = [f"--{name}={value}" for name, value in options.items()]
    ours = [f"--allow-host={name}" for name in settings.allow_host]
    ours += ["--no-token"] * settings.no_token
    # -P: import nothing from the working directory.
    command = [sys.executable, "-P", "-m", "streamlit", "run", script, *flags]
    return [*command, "--", *ours] if ours else command


def build_environment(runs_dir: Path | str) -> dict[str, str]:
    """Build the environment of the app's server, with the folder of the runs."""
    runs = str(Path(runs_dir).resolve())
    return {"OMP_NUM_THREADS": "1", **os.environ, RUNS_DIR_VARIABLE: runs}


def main() -> None:
    """Run `python -m fintrader_app.launch`, which `fintrader app` starts. Prints an error in one
    line and exits with status 2."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--follow"]:
        follow(arguments[1], int(arguments[2]))
        return
    try:
        serve(parse(AppSettings(), arguments, "app"))
    except FintraderError as error:
        print(f"fintrader: {error}", file=sys.stderr)
        sys.exit(2)


def start_copying(url: str) -> Path:
    """Update a store's copies, and start a process that keeps them up to date until this one ends;
    return their folder.

    Raises StorageError when the store cannot be read.
    """
    from fintrader.pipeline.session import copy_store

    home = copy_store(url)
    home.mkdir(parents=True, exist_ok=True)
    variables = build_variables(Path(__file__).resolve().parents[1])
    variables.pop(TOKEN_VARIABLE, None)
    words = "-P", "-m", "fintrader_app.launch", "--follow", url, str(os.getpid())
    subprocess.Popen([sys.executable, *words], stdin=subprocess.DEVNULL, env=variables)
    return home


def follow(url: str, parent: int) -> None:
    """Update the copies every `FOLLOW_SECONDS`, until the process `parent` has ended."""
    from fintrader.pipeline.session import copy_store

    reported = ""
    while os.getppid() == parent:
        try:
            copy_store(url)
            reported = ""
        except FintraderError as error:
            if str(error) != reported:  # an unreachable store is reported once, not every time
                reported = str(error)
                print(f"fintrader app: {reported}", file=sys.stderr)
        time.sleep(FOLLOW_SECONDS)


def serve(settings: AppSettings) -> None:
    """Replace this process by the app's server (Ctrl-C stops it; runs that it started go on).

    Runs in a store (`s3://bucket/runs`) are shown as copies, which another process keeps up to
    date. Raises ConfigError as `build_command` does, and for a weak token in the environment;
    StorageError when the store cannot be read.
    """
    arguments = build_command(settings)
    read_token(os.environ)
    home = settings.runs_dir
    variables = build_environment(start_copying(home) if is_url(home) else home)
    if is_url(home):
        variables[STORE_VARIABLE] = home
    sys.stdout.flush()
    os.execve(arguments[0], arguments, variables)


if __name__ == "__main__":
    main()
