"""The commands that start something else: the app and the benchmarks."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from pydantic import Field

from fintrader.cli.options import parse, positional
from fintrader.config import Settings
from fintrader.errors import ConfigError


class AppSettings(Settings):
    """Where the app looks and listens."""

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
    """[--runs-dir DIR_OR_URL] [--port N]: serve the app, on loopback unless --host is given, and
    print its address, which has a token in it."""
    hosts, rest = _take_hosts(argv)
    settings = parse(AppSettings(), rest, "app")
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
    # -P: a folder called `fintrader_app` where the reader happens to stand must not take this package's place
    words = [sys.executable, "-P", "-m", "fintrader_app.launch", "--runs-dir", settings.runs_dir]
    words += ["--port", str(settings.port), "--host", settings.host]
    words += [f"--allow-host={host}" for host in hosts]
    if settings.no_token:
        words.append("--no-token")
    if settings.headless:
        words.append("--headless")
    sys.stdout.flush()
    os.execve(sys.executable, words, variables)


def _take_hosts(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split off the values of `--allow-host`, which may be given several times.

    Raises ConfigError where it stands without one.
    """
    hosts: list[str] = []
    rest: list[str] = []
    words = list(argv)
    while words:
        word, equals, value = words.pop(0).partition("=")
        if word.replace("_", "-") != "--allow-host":
            rest.append(word + equals + value)
            continue
        found = [value] if equals else []
        while not equals and words and not words[0].startswith("--"):
            found.append(words.pop(0))
        if not found:
            example = "a name or an address, like app.example.com"
            raise ConfigError(f"--allow-host needs a value: {example}")
        hosts += found
    return hosts, rest


def bench(argv: list[str]) -> None:
    """NAME [arguments]: run benchmarks/NAME.py; its last line of output is one JSON object."""
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    names = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    if not names:
        raise ConfigError(
            "benchmarks come with the source tree: clone the repository and install it with `make"
            " install`"
        )
    name, rest = positional("bench", f"NAME ({', '.join(names)})", argv)
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(names)}"
        raise ConfigError(f"{name!r} is no benchmark; {hint}")
    sys.exit(subprocess.call([sys.executable, str(folder / f"{name}.py"), *rest]))
