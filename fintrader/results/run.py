"""`Run`: a stored run, opened. What it was made from, how the race went, and what came out of it."""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from fintrader.config import read_yaml
from fintrader.errors import RunError
from fintrader.files import read_jsonl
from fintrader.results import figures
from fintrader.results.backtest_files import StoredBacktest, read_backtest
from fintrader.results.folders import FileCache, Folder, NotThereError
from fintrader.results.formatting import table_html, table_text, when, window_words
from fintrader.results.leaderboard import lineage, read_leaderboard, read_pods
from fintrader.results.strategies import main_strategy
from fintrader.results.summary import Summary, summary
from fintrader.runs import Manifest, RunFolder

WINDOWS = ("test", "validation", "train")
_MARKS = ("manifest.json", "config.yaml", "tournament.json")


class Run:
    """A stored run, read as it is asked for; nothing is written.

    Raises RunError when the folder holds no run. Every part raises a RunError that says what to do when it is not
    there yet (NotThereError) or damaged (DamagedFileError).
    """

    def __init__(self, folder: Path | RunFolder, *, load_policy: Callable[[Path], Any] | None = None) -> None:
        """`load_policy` opens a stored policy (`fintrader.load_policy`, which needs torch)."""
        self.folder = folder if isinstance(folder, RunFolder) else RunFolder(Path(folder))
        if not any((self.folder.root / name).is_file() for name in _MARKS):
            raise RunError(f"{self.folder.root}: no run lies here (it would hold config.yaml and manifest.json)")
        self._load_policy = load_policy
        self._cache = FileCache(summaries=1)

    @property
    def name(self) -> str:
        """What the run is called: its folder's name; a walk-forward's fold is `name/folds/00`."""
        return RunFolder(self.folder.root.resolve()).label

    @property
    def summary(self) -> Summary:
        """Status, trials, headline numbers, as of now."""
        return summary(Folder(self.folder.root.resolve()), self._cache)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings the run was made from, as `config.yaml` has them."""
        return read_yaml(self.folder.config)

    @property
    def manifest(self) -> dict[str, Any]:
        """Versions, seed, device, hashes, stages, trials: `manifest.json`."""
        return Manifest.load(self.folder.manifest).values

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened in the tournament, oldest first."""
        return read_jsonl(self.folder.events)

    @property
    def leaderboard(self) -> pd.DataFrame:
        """The best pods, best first: rank, pod, score, algo, hyper, parent, origin, env_steps ..."""
        return pd.DataFrame(read_leaderboard(self._leaderboard()))

    @property
    def pods(self) -> pd.DataFrame:
        """Every pod by number, with its spec, its state and, once it has one, its result."""
        return pd.DataFrame(read_pods(self._leaderboard()))

    def lineage(self, pod: str) -> pd.DataFrame:
        """A pod and its ancestors, youngest first, with what changed on the way. Raises RunError for no such pod."""
        return pd.DataFrame(lineage(read_pods(self._leaderboard()), pod))

    @cached_property
    def folds(self) -> tuple[Run, ...]:
        """The tournaments of a walk-forward, one a fold, in order; empty for any other run."""
        found = sorted(path.parent for path in (self.folder.root / "folds").glob("*/tournament.json"))
        return tuple(Run(path, load_policy=self._load_policy) for path in found)

    @property
    def backtests(self) -> dict[str, StoredBacktest]:
        """Window (`test`, `validation`, `train`) -> its backtest, of the windows that have one."""
        places = {name: self._backtest_folder(name) for name in WINDOWS}
        return {name: read_backtest(place) for name, place in places.items() if (place / "metrics.json").is_file()}

    def backtest(self, window: str | None = None) -> StoredBacktest:
        """The backtest of a window: of the test window, or where there is none the first there is.

        Raises RunError for a window that has none.
        """
        if window is not None and window not in WINDOWS:
            raise RunError(f"{window!r} is no window; it is one of {', '.join(WINDOWS)}")
        found = self.backtests
        if not found or (window is not None and window not in found):
            what = "no backtest" if window is None else f"no backtest of its {window_words(window)}"
            raise NotThereError(f"{self.name} has {what} yet; make it with `fintrader backtest {self.folder.root}`")
        return found[window] if window is not None else next(iter(found.values()))

    @property
    def evidence(self) -> dict[str, Any]:
        """Whether the result can be told from luck: verdict, intervals, rivals, overfitting, null model."""
        return self.backtest().honesty

    def policy(self, name: str = "ensemble") -> Any:
        """A stored policy: `ensemble`, `best`, or a pod's name. Needs torch.

        Raises RunError when it is not there, or when the run was opened without a way to load policies.
        """
        if self._load_policy is None:
            raise RunError(f"{self.name} was opened for reading tables only; use `fintrader.open_run` to load policies")
        home = self.folder.ensemble
        if name == "best":
            best = self.manifest["best"]
            if not best:
                raise RunError(
                    f"{self.name} has no best pod yet; `fintrader status {self.folder.root}` says how far it is"
                )
            name = str(best)
        if name != "ensemble":
            home = Path(Folder(self.folder.root.resolve()).path("pods", name))
        path = home / "policy.safetensors"
        if not path.is_file():
            raise RunError(
                f"{path} does not exist; `fintrader status {self.folder.root}` lists the pods that have ended"
            )
        return self._load_policy(path)

    def plot(self, window: str | None = None) -> go.Figure:
        """The wealth of every strategy of a backtest, the result first."""
        stored = self.backtest(window)
        return figures.equity_figure(stored.curve(), main=main_strategy(stored.strategies))

    def _backtest_folder(self, window: str) -> Path:
        return self.folder.backtest if window == "test" else self.folder.backtest / window

    def _leaderboard(self) -> Path:
        path = self.folder.leaderboard
        if not path.exists() and self.folds:
            raise NotThereError(f"{self.name} was walked forward: each of its .folds has a leaderboard of its own")
        return path

    def _told(self) -> list[str]:
        """What the run is, in a few lines."""
        if not self.folder.manifest.is_file():
            return [f"Run {self.name}: a tournament"]
        found = self.summary
        facts: list[str] = [found.status]
        facts += [f"made {when(found.created)}"] if found.created else []
        facts += [f"{found.trials:,} trials"] if found.trials is not None else []
        facts += [f"seed {found.seed}"] if found.seed is not None else []
        lines = [f"Run {self.name}: {', '.join(facts)}"]
        lines += [f"  {found.problem}"] if found.problem else []
        stored = self._readable()
        if stored is not None:
            window = stored.context.get("window")
            lines += [f"  {window_words(str(window))}: {stored.honesty.get('verdict') or 'not assessed'}"]
        return lines

    def _readable(self) -> StoredBacktest | None:
        try:
            stored = self.backtest()
            _ = stored.context, stored.honesty
        except RunError:
            return None
        return stored

    def __repr__(self) -> str:
        lines = self._told()
        stored = self._readable()
        return "\n".join(lines if stored is None else [*lines, table_text(stored.metrics)])

    def _repr_html_(self) -> str:
        told = "".join(f"<p>{html.escape(line.strip())}</p>" for line in self._told())
        stored = self._readable()
        return told if stored is None else told + table_html(stored.metrics)
