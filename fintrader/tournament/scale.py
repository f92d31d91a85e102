"""The request to scale: how many pods a running tournament is asked to keep at work."""

from __future__ import annotations

from pathlib import Path

from fintrader.config import validate
from fintrader.errors import RunError, TournamentError
from fintrader.files import read_json, read_jsonl, write_json
from fintrader.runs import RunFolder
from fintrader.storage.mirror import mirror_of
from fintrader.tournament import lease as leases
from fintrader.tournament.settings import TournamentSettings

FILE = "scale.json"
"""In the run's folder: `{"pods": n}`; null: what the settings say."""


class ScaleRequest:
    """Re-reads the request whenever its file changes; a damaged one is as good as none."""

    def __init__(self, run: RunFolder) -> None:
        self.path: Path = run.root / FILE
        self.pods: int | None = None
        self._seen: tuple[int, int] | None = None

    def changed(self) -> bool:
        """Look again; True if the request differs from before."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            stamp, pods = None, None
        else:
            stamp = (status.st_mtime_ns, status.st_ino)
            pods = self.pods if stamp == self._seen else self._read()
        self._seen = stamp
        before, self.pods = self.pods, pods
        return before != pods

    def _read(self) -> int | None:
        try:
            pods = read_json(self.path)["pods"]
            return int(pods) if pods is not None and int(pods) >= 1 else None
        except (RunError, KeyError, TypeError, ValueError):
            return None


def scale(run: RunFolder, pods: int | None) -> None:
    """Ask a tournament, running or to be resumed, to keep `pods` at work; None: what its settings say.

    Raises TournamentError for fewer than one pod and for a folder without a tournament.
    """
    if pods is not None and pods < 1:
        raise TournamentError(f"cannot keep {pods} pods at work; give at least 1, or stop the process to pause")
    if not (run.root / "tournament.json").exists():
        raise TournamentError(f"{run.root} holds no tournament; start one with `fintrader tournament CONFIG`")
    write_json(run.root / FILE, {"pods": pods})


def effect(run: RunFolder, pods: int | None) -> str:
    """What `scale(run, pods)` will do: a sentence for the terminal."""
    stored = run.root / "tournament.json"
    settings = validate(TournamentSettings, read_json(stored)["settings"], str(stored))
    requested = "as many pods as its settings say" if pods is None else f"{pods} pod{'s' if pods > 1 else ''}"
    bound = settings.at_once
    if bound is not None and (pods is None or pods > bound):
        why = f"`population: {bound}`" if settings.scheduler == "generational" else "`order: submission`"
        requested += f", but at most {bound}: {why} lets no more work at once"
    if leases.is_held(run, mirror_of(run.root)):
        return f"at work from the next reconcile on: {requested}"
    if any(event.get("event") == "finished" for event in read_jsonl(run.events)):
        return f"finished, so nothing is at work; once it is extended by a higher tournament.pods: {requested}"
    return f"nothing is at work now; once the run is resumed by its own command: {requested}"
