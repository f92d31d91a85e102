"""Commands that make something: data, tournaments, backtests; and the app and the benchmarks."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field

from fintrader.cli.ask import run_path
from fintrader.cli.options import help_config, parse, parse_config, positional
from fintrader.config import Settings
from fintrader.errors import ConfigError


class AppSettings(Settings):
    """Where the app looks and listens."""

    runs_dir: str = "runs"
    """Folder that holds the runs, or the URL of a store (`s3://bucket/runs`), of which copies are shown."""
    port: int = Field(8501, ge=1, le=65535)
    """Port to listen on."""
    host: str = "127.0.0.1"
    """Address to listen on; the app has no users and no passwords, so anything but loopback needs a guard before it."""
    headless: bool = False
    """Do not open a browser."""


def pipeline_verb(name: str, verb: str, about: str, **how: Any) -> Callable[[list[str]], None]:
    """The command that calls `pipeline.<verb>` on a configuration; exit status 1 where that answers False."""

    def command(argv: list[str]) -> None:
        from fintrader import pipeline

        if getattr(pipeline, verb)(parse_config(name, argv), **how) is False:
            sys.exit(1)

    command.__doc__ = f"CONFIG [--overrides]: {about}"
    return command


def backtest(argv: list[str]) -> None:
    """RUN [--overrides]: backtest a run's ensemble and best pod again, from the stored policies."""
    from fintrader import pipeline

    folder, rest = positional("backtest", "RUN_DIR", argv, lambda: help_config("backtest RUN_DIR"))
    home = pipeline.open_run(folder)
    path = home / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{folder}: no run lies here (it would hold config.yaml); give the folder of a run")
    config = parse(pipeline.RunConfig, pipeline.load_config(path), rest, "backtest RUN_DIR")
    pipeline.backtest_run(home, config, called=folder)


def compare(argv: list[str]) -> None:
    """RUN RUN ... [--out FILE]: several backtests in one page; RUN/backtest/WINDOW is one of another window."""
    from fintrader.report.compare import labels, write_comparison

    words, out = list(argv), Path("comparison.html")
    if "--out" in words[:-1]:
        place = words.index("--out")
        out = Path(words[place + 1])
        del words[place : place + 2]
    if not words or any(word.startswith("-") for word in words):
        print("usage: fintrader compare RUN_DIR RUN_DIR ... [--out FILE]")
        return
    from fintrader.results.backtest_files import read_backtest

    found = {}
    for label, word in zip(labels(words), words, strict=True):
        home = run_path(word)
        found[label] = read_backtest(home if (home / "metrics.json").is_file() else home / "backtest")
    print(write_comparison(out, found))


def app(argv: list[str]) -> None:
    """[--runs-dir DIR_OR_URL] [--port N]: open the Streamlit app, on loopback unless told otherwise."""
    settings = parse(AppSettings, AppSettings(), argv, "app")
    found = find_spec("fintrader_app")
    if found is None or found.origin is None:
        raise ConfigError("the app is not part of this installation; install fintrader from its source tree")
    root = str(Path(found.origin).parents[1])
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    # -P: a folder called `fintrader_app` where the reader happens to stand must not take this package's place
    words = [sys.executable, "-P", "-m", "fintrader_app.launch", "--runs-dir", settings.runs_dir]
    words += ["--port", str(settings.port), "--host", settings.host, *["--headless"][: settings.headless]]
    sys.stdout.flush()
    os.execve(sys.executable, words, variables)


def bench(argv: list[str]) -> None:
    """NAME [arguments]: run benchmarks/NAME.py; its last line of output is one JSON object."""
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    names = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    if not names:
        raise ConfigError(
            "benchmarks come with the source tree: clone the repository and install it with `make install`"
        )
    usage = "usage: fintrader bench NAME [arguments]\n\nbenchmarks: " + ", ".join(names)
    name, rest = positional("bench", f"NAME ({', '.join(names)})", argv, lambda: print(usage))
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(names)}"
        raise ConfigError(f"{name!r} is no benchmark; {hint}")
    sys.exit(subprocess.call([sys.executable, str(folder / f"{name}.py"), *rest]))
