"""The folder of a run, as a command is given it."""

from __future__ import annotations

from pathlib import Path

from fintrader.cli.options import positional
from fintrader.config import is_url
from fintrader.errors import ConfigError, TournamentError
from fintrader.runs import RunFolder


def run_folder(command: str, argv: list[str]) -> RunFolder:
    name, rest = positional(command, "RUN_DIR", argv)
    if rest:
        raise ConfigError(f"{rest[0]!r}: `fintrader {command}` takes only RUN_DIR")
    return folder_of(name)


def folder_of(name: str) -> RunFolder:
    return RunFolder(run_path(name))


def run_path(name: str) -> Path:
    """The folder of a run given by its path or URL. Raises TournamentError when there is none."""
    if is_url(name):
        from fintrader.pipeline import open_run

        return open_run(name)
    path = Path(name)
    if not path.is_dir():
        what = "a file" if path.is_file() else "no such folder"
        raise TournamentError(f"{name}: {what}; give the folder of a run")
    return path
