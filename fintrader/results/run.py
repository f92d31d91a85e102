"""`Run`: an opened stored run; `Summary`: one row of the run list, also for a damaged run."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from fintrader.config import read_yaml
from fintrader.errors import FintraderError, RunError
from fintrader.files import refuse_irregular
from fintrader.numerals import number
from fintrader.records import JsonValue, RecordError, from_json, to_json
from fintrader.results.backtest_files import (
    SEAL,
    StoredBacktest,
    changed_metrics,
    find_signature,
    read_backtest,
    read_metrics,
    read_record,
)
from fintrader.results.folders import FileCache, Folder, NotThereError, RunsFolder, is_locked
from fintrader.results.formatting import moment, when, window_words
from fintrader.results.leaderboard_reader import (
    LeaderboardRow,
    lineage,
    read_leaderboard,
    read_pods,
)
from fintrader.results.notes import FILE as NOTES
from fintrader.results.notes import Notes, read_notes
from fintrader.results.strategy_metrics import NO_METRICS, StrategyMetrics
from fintrader.results.table import render_notice
from fintrader.results.tournament_events import TournamentEvent, list_dropped_pods, read_events
from fintrader.runs import MANIFEST_FORMAT, Manifest, RunFolder
from fintrader.stages import LIVE, Stage, read_stages
from fintrader.verdict.verdict import Verdict

if TYPE_CHECKING:
    import plotly.graph_objects as go

WINDOWS = ("test", "validation", "train")
_MARKS = ("manifest.json", "config.yaml", "tournament.json")
Status = Literal["running", "finished", "interrupted", "failed", "broken"]


class Run:
    """A stored run, each part read when it is asked for; nothing is written.

    Raises RunError when the folder holds no run. Every part raises a RunError that says what to do
    when it is not there yet (NotThereError) or damaged (DamagedFileError).
    """

    def __init__(
        self, folder: Path | RunFolder, *, load_policy: Callable[[Path], Any] | None = None
    ) -> None:
        """`load_policy` opens a stored policy (`fintrader.load_policy`, which needs torch)."""
        self.folder = folder if isinstance(folder, RunFolder) else RunFolder(Path(folder))
        if not any((self.folder.root / name).is_file() for name in _MARKS):
            raise RunError(
                f"{self.folder.root}: there is no run here (neither config.yaml nor manifest.json);"
                " give the folder of a run, such as runs/quickstart"
            )
        self._load_policy = load_policy
        self._cache = FileCache(summaries=1)

    @property
    def name(self) -> str:
        """Name of the run's folder; `name/folds/00` for a fold of a walk-forward."""
        return RunFolder(self.folder.root.resolve()).label

    @property
    def summary(self) -> Summary:
        """Status, trials, headline numbers, as of now."""
        return summary(Folder(self.folder.root.resolve()), self._cache)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings the run was made from, as `config.yaml` has them."""
        refuse_irregular(self.folder.config)
        return read_yaml(self.folder.config)

    @property
    def manifest(self) -> dict[str, Any]:
        """Versions, seed, device, hashes, stages, trials: `manifest.json`."""
        return Manifest.load(self.folder.manifest).values

    @property
    def events(self) -> list[TournamentEvent]:
        """Events of the tournament, oldest first."""
        return read_events(self.folder.events)

    @property
    def leaderboard(self) -> pd.DataFrame:
        """The best pods, best first: rank, pod, score, algo, hyper, parent, origin, env_steps ...

        Among them, without a rank, the benchmark portfolio.
        """
        return tabulate_leaderboard(read_leaderboard(self._leaderboard(), benchmark=True))

    @property
    def pods(self) -> pd.DataFrame:
        """Every pod by number, with its spec, its state and, once it has one, its result."""
        return build_frame(read_pods(self._leaderboard()))

    def lineage(self, pod: str) -> pd.DataFrame:
        """A pod and its ancestors, youngest first, with the changes between them. Raises RunError
        for no such pod."""
        return build_frame(lineage(read_pods(self._leaderboard()), pod))

    @cached_property
    def folds(self) -> tuple[Run, ...]:
        """The tournaments of a walk-forward in the order of its folds; empty for any other run."""
        return tuple(
            Run(fold.root, load_policy=self._load_policy)
            for fold in self.folder.folds
            if (fold.root / "tournament.json").exists()
        )

    @property
    def backtests(self) -> dict[str, StoredBacktest]:
        """Window (`test`, `validation`, `train`) -> its backtest, of the windows that have one."""
        places = {name: self.folder.backtest_of(name) for name in WINDOWS}
        return {
            name: read_backtest(place)
            for name, place in places.items()
            if (place / "metrics.json").is_file()
        }

    def backtest(self, window: str | None = None) -> StoredBacktest:
        """Return the backtest of a window; by default that of the test window, else the first
        stored.

        Raises RunError for a window that has none.
        """
        if window is not None and window not in WINDOWS:
            raise RunError(f"{window!r} is no window; it is one of {', '.join(WINDOWS)}")
        tests = self.backtests
        stored = next(iter(tests.values()), None) if window is None else tests.get(window)
        if stored is None:
            text = "no backtest"
            command = f"fintrader backtest {self.folder.root}"
            if window is not None:
                text += f" of its {window_words(window)}"
                command += f" --backtest.window {window}"
            raise NotThereError(f"{self.name} has {text} yet; make it with `{command}`")
        return stored

    @property
    def verdict(self) -> Verdict | None:
        """Verdict on skill or luck; None where the backtest was not assessed."""
        return self.backtest().verdict

    def policy(self, name: str = "ensemble") -> Any:
        """A stored policy: `ensemble`, `best`, or a pod's name. Needs torch.

        Raises RunError when it is not there, or when the run was opened without a way to load
        policies.
        """
        if self._load_policy is None:
            raise RunError(
                f"{self.name} was opened for reading tables only; use `fintrader.open_run` to load"
                " policies"
            )
        return self._load_policy(self.policy_path(name))

    def policy_path(self, name: str = "ensemble", search: RunFolder | None = None) -> Path:
        """The file of a policy: of the run's tournament, or of another `search` inside it, as a
        fold's.

        Raises RunError when it is not there.
        """
        home = search or self.folder
        if name == "best":
            rows = read_leaderboard(home.leaderboard, most=1) if search else []
            best = rows[0].pod if rows else None if search else self.manifest["best"]
            if not best:
                raise RunError(
                    f"{self.name} has no best pod yet; `fintrader status {self.folder.root}` says"
                    " how far it is"
                )
            name = str(best)
        within = ("ensemble",) if name == "ensemble" else ("pods", name)
        path = Folder(home.root.resolve()).path(*within) / "policy.safetensors"
        if path.is_file():
            return path
        if name in list_dropped_pods(read_events(home.events)):
            raise RunError(
                f"{path} was not kept (tournament.keep); choose a pod of the leaderboard"
            )
        raise RunError(
            f"{path} does not exist; `fintrader status {self.folder.root}` lists the pods that have"
            " ended"
        )

    def plot(self, window: str | None = None) -> go.Figure:
        """The wealth of every strategy of a backtest, the result first."""
        return self.backtest(window).plot()

    def _leaderboard(self) -> Path:
        path = self.folder.leaderboard
        if not path.exists() and self.folds:
            raise NotThereError(
                f"{self.name} is a walk-forward: each of its .folds has its own leaderboard"
            )
        return path

    def _describe(self) -> tuple[list[str], StoredBacktest | None]:
        """Describe the run in a few lines; return them with its backtest where that can be read."""
        if not self.folder.manifest.is_file():
            return [f"Run {self.name}: a tournament"], None
        state = self.summary
        facts = [
            state.status,
            f"made {when(state.created)}" if state.created else "",
            "" if state.trials is None else f"{state.trials:,} trials",
            "" if state.seed is None else f"seed {state.seed}",
        ]
        lines = [f"Run {self.name}: {', '.join(filter(None, facts))}"]
        lines += [f"  {state.problem}"] if state.problem else []
        try:
            stored = self.backtest()
            lines += [f"  {window_words(str(stored.context.window))}: {stored.conclusion}"]
        except RunError:
            return lines, None
        return lines, stored

    def __repr__(self) -> str:
        lines, stored = self._describe()
        if stored is None:
            return "\n".join(lines)
        return "\n".join(filter(None, [stored.notice, *lines, *map(str, stored.summary)]))

    def _repr_html_(self) -> str:
        lines, stored = self._describe()
        about = "".join(f"<p>{html.escape(line.strip())}</p>" for line in lines)
        if stored is None:
            return about
        tables = "".join(table._repr_html_() for table in stored.summary)
        return render_notice(stored.notice) + about + tables


def build_frame(rows: Sequence[object]) -> pd.DataFrame:
    """Make a table of records, one column per field."""
    return pd.DataFrame(list(map(vars, rows)))


def tabulate_leaderboard(rows: Sequence[LeaderboardRow]) -> pd.DataFrame:
    """Make a table of a leaderboard's rows. Whole numbers stay integers, although the benchmark
    portfolio's are missing."""
    frame = build_frame(rows)
    whole = [
        name
        for name in ("rank", "epoch", "generation", "env_steps", "lineage_env_steps")
        if name in frame
    ]
    return frame.astype(dict.fromkeys(whole, "Int64"))


# --- a line of the run list -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    """Fields of a run's manifest; None or empty until the manifest has them."""

    created: str | None = None
    finished: str | None = None
    seed: int | None = None
    device: str | None = None
    trials: int | None = None
    command: str | None = None
    market: str | None = None
    data_hash: str | None = None
    notice: str = ""
    """Banner of a synthetic market."""
    config_hash: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    stages: dict[str, dict[str, JsonValue]] = field(default_factory=dict)
    plan: tuple[str, ...] = ()
    """The planned stages, in order; empty where unknown."""
    failure: dict[str, str] | None = None
    """The `stage` that it failed in, and the `sentence` that says why."""


@dataclass(frozen=True, kw_only=True)
class Summary(_Manifest):
    """One row of the run list."""

    name: str
    status: Status
    problem: str | None = None
    """Why the run is broken, or why it failed, in words."""
    metrics: dict[str, StrategyMetrics] = field(default_factory=dict)
    """By strategy; empty before the backtest."""
    verdict: Verdict | None = None
    """Verdict on the held-out window; None before the backtest."""
    notes: Notes = field(default_factory=Notes)
    """The owner's notes; empty where the file is damaged."""

    @property
    def seconds(self) -> float | None:
        """Wall-clock seconds of all finished stages."""
        known = [number(stage.get("seconds")) for stage in self.stages.values()]
        values = [value for value in known if value is not None]
        return sum(values) if values else None

    @property
    def stage(self) -> str | None:
        """The stage that has begun but not ended."""
        return next(
            (name for name, stage in self.stages.items() if stage.get("done") is False), None
        )

    def headline(self) -> StrategyMetrics:
        """Metrics of the ensemble (or of the best pod where there is none)."""
        return self.metrics.get("ensemble") or self.metrics.get("best", NO_METRICS)


def summaries(runs: RunsFolder, cache: FileCache) -> list[Summary]:
    """Summarise all runs, the newest first."""
    rows = [summary(folder, cache) for folder in runs.all()]
    return sorted(rows, key=lambda run: (run.created or "", run.name), reverse=True)


def summary(folder: Folder, cache: FileCache) -> Summary:
    """Summarise a run. A damaged manifest makes it `broken`; raises only UnsafePathError."""
    row = _summary(folder, cache)
    try:
        state = folder.signature(NOTES)
        notes = cache.get("summaries", (folder.root, NOTES), state, lambda _: read_notes(folder))
    except FintraderError:
        return row
    return replace(row, notes=notes)


def _summary(folder: Folder, cache: FileCache) -> Summary:
    try:
        manifest = folder.signature("manifest.json")
    except NotThereError:
        if is_locked(folder):
            return Summary(name=folder.root.name, status="running")
        return _call_broken(
            folder, "it has no manifest.json: another version made it, or the file was lost"
        )
    except FintraderError as error:
        return _call_broken(folder, error)
    metrics = find_signature(folder, "backtest", "metrics.json")
    state = manifest, metrics, find_signature(folder, "backtest", SEAL)
    row = cache.get(
        "summaries", folder.root, state, lambda _: _read(folder, backtested=metrics is not None)
    )
    if row.status in ("interrupted", "failed") and is_locked(folder):
        return replace(row, status="running", problem=None, failure=None)
    return row


def _call_broken(folder: Folder, problem: object) -> Summary:
    return Summary(name=folder.root.name, status="broken", problem=str(problem))


def stages_now(folder: Folder, run: Summary) -> list[Stage]:
    """List the stages of a run with their progress; none for a folder without a manifest."""
    if run.created is None:
        return []
    try:
        live = folder.json(LIVE)
    except FintraderError:  # no stage is at work, or the file was just replaced
        live = {}
    known = {**vars(run), "plan": list(run.plan)}
    return read_stages(known, live, alive=run.status == "running")


def read_state(run: RunFolder) -> tuple[Summary, list[Stage]] | None:
    """Read a run's state and its stages, as of now; None for a folder without a manifest, such as a
    bare tournament's."""
    if not run.manifest.is_file():
        return None
    home = Folder(run.root.resolve())
    row = summary(home, FileCache(summaries=1))
    return row, stages_now(home, row)


def _read(folder: Folder, *, backtested: bool) -> Summary:
    """Read the summary from `manifest.json` and, if `backtested`, from the backtest."""
    try:
        values = folder.json("manifest.json")
        if values.get("format") != MANIFEST_FORMAT:
            return _call_broken(folder, "manifest.json is of another format or version")
        fields = to_json(_Manifest())
        fields |= {name: values[name] for name in fields.keys() & values.keys()}
        manifest = from_json(_Manifest, fields)
    except RecordError as error:
        return _call_broken(folder, f"manifest.json: {error}; restore it, or delete the run")
    except FintraderError as error:
        return _call_broken(folder, error)
    problem = None
    strategies = {}
    verdict = None
    if backtested:
        try:
            backtest = Folder(folder.path("backtest"))
            strategies = read_metrics(backtest)
            verdict = read_record(backtest, "verdict")
            problem = changed_metrics(backtest)
        except FintraderError as error:
            problem = str(error)
    planned = [manifest.stages.get(name, {}).get("done") is True for name in manifest.plan]
    # A bare tournament or training has no `finished` time: it is done when its planned stages are.
    is_done = moment(manifest.finished) is not None or (bool(planned) and all(planned))
    sentence = None if is_done else (manifest.failure or {}).get("sentence")
    failure = manifest.failure if isinstance(sentence, str) else None
    status: Status = "finished" if is_done else "failed" if failure else "interrupted"
    return Summary(
        name=folder.root.name,
        status="broken" if problem else status,
        problem=problem or (None if failure is None else str(sentence)),
        metrics=strategies,
        verdict=verdict,
        **{**vars(manifest), "failure": failure},
    )
