"""The folder of a run that a command line names."""

from __future__ import annotations

from pathlib import Path

from fintrader.config import is_url
from fintrader.errors import TournamentError
from fintrader.runs import RunFolder


def folder_of(name: str) -> RunFolder:
    """Open the folder of a run given by its path or URL. Raises TournamentError when there is
    none."""
    if is_url(name):
        from fintrader.pipeline.session import open_run

        return RunFolder(open_run(name))
    path = Path(name)
    if not path.is_dir():
        problem = "a file" if path.is_file() else "no such folder"
        raise TournamentError(f"{name}: {problem}; give the folder of a run")
    return RunFolder(path)
