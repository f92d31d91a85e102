"""`Run`: a stored run, opened; `Summary`: what any run's folder says about itself, also of one that
is damaged."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import plotly.graph_objects as go

from fintrader.config import read_yaml
from fintrader.errors import FintraderError, RunError
from fintrader.files import refuse_irregular
from fintrader.results import figures
from fintrader.results.backtest_files import (
    SEAL,
    StoredBacktest,
    changed_metrics,
    read_backtest,
    read_metrics,
    read_verdict,
)
from fintrader.results.folders import (
    FileCache,
    Folder,
    NotThereError,
    RunsFolder,
    Signature,
    is_locked,
)
from fintrader.results.formatting import (
    main_strategy,
    moment,
    number,
    when,
    window_words,
)
from fintrader.results.leaderboard_reader import (
    LeaderboardRow,
    lineage,
    read_leaderboard,
    read_pods,
)
from fintrader.results.notes import FILE as NOTES
from fintrader.results.notes import Notes, read_notes
from fintrader.results.strategy_metrics import NO_METRICS, StrategyMetrics
from fintrader.results.tournament_events import TournamentEvent, dropped_pods, read_events
from fintrader.runs import MANIFEST_FORMAT, Manifest, RunFolder
from fintrader.stages import LIVE, Stage, read_stages
from fintrader.verdict.verdict import Verdict

WINDOWS = ("test", "validation", "train")
_MARKS = ("manifest.json", "config.yaml", "tournament.json")
Status = Literal["running", "finished", "interrupted", "failed", "broken"]


class Run:
    """A stored run, read as it is asked for; nothing is written.

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
                f"{self.folder.root}: no run lies here (it would hold config.yaml and"
                " manifest.json)"
            )
        self._load_policy = load_policy
        self._cache = FileCache(summaries=1)

    @property
    def name(self) -> str:
        """Name of the run: that of its folder; of a walk-forward's fold, `name/folds/00`."""
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
        return ranked(read_leaderboard(self._leaderboard(), benchmark=True))

    @property
    def pods(self) -> pd.DataFrame:
        """Every pod by number, with its spec, its state and, once it has one, its result."""
        return frame_of(read_pods(self._leaderboard()))

    def lineage(self, pod: str) -> pd.DataFrame:
        """A pod and its ancestors, youngest first, with what changed on the way. Raises RunError
        for no such pod."""
        return frame_of(lineage(read_pods(self._leaderboard()), pod))

    @cached_property
    def folds(self) -> tuple[Run, ...]:
        """The tournaments of a walk-forward, one a fold, in order; empty for any other run."""
        found = sorted(
            path.parent for path in (self.folder.root / "folds").glob("*/tournament.json")
        )
        return tuple(Run(path, load_policy=self._load_policy) for path in found)

    @property
    def backtests(self) -> dict[str, StoredBacktest]:
        """Window (`test`, `validation`, `train`) -> its backtest, of the windows that have one."""
        places = {name: self._backtest_folder(name) for name in WINDOWS}
        return {
            name: read_backtest(place)
            for name, place in places.items()
            if (place / "metrics.json").is_file()
        }

    def backtest(self, window: str | None = None) -> StoredBacktest:
        """The backtest of a window: of the test window, or where there is none the first there is.

        Raises RunError for a window that has none.
        """
        if window is not None and window not in WINDOWS:
            raise RunError(f"{window!r} is no window; it is one of {', '.join(WINDOWS)}")
        found = self.backtests
        if not found or (window is not None and window not in found):
            what = "no backtest" if window is None else f"no backtest of its {window_words(window)}"
            raise NotThereError(
                f"{self.name} has {what} yet; make it with `fintrader backtest {self.folder.root}`"
            )
        return found[window] if window is not None else next(iter(found.values()))

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
        path = Path(Folder(home.root.resolve()).path(*within)) / "policy.safetensors"
        if path.is_file():
            return path
        if name in dropped_pods(read_events(home.events)):
            raise RunError(
                f"{path} was not kept (tournament.keep); choose a pod of the leaderboard"
            )
        raise RunError(
            f"{path} does not exist; `fintrader status {self.folder.root}` lists the pods that have"
            " ended"
        )

    def plot(self, window: str | None = None) -> go.Figure:
        """The wealth of every strategy of a backtest, the result first."""
        stored = self.backtest(window)
        return figures.equity_figure(stored.curve(), main=main_strategy(stored.strategies))

    def _backtest_folder(self, window: str) -> Path:
        return self.folder.backtest if window == "test" else self.folder.backtest / window

    def _leaderboard(self) -> Path:
        path = self.folder.leaderboard
        if not path.exists() and self.folds:
            raise NotThereError(
                f"{self.name} was walked forward: each of its .folds has a leaderboard of its own"
            )
        return path

    def _told(self) -> list[str]:
        """Describe the run in a few lines."""
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
            lines += [f"  {window_words(str(stored.context.window))}: {stored.conclusion}"]
        return lines

    def _readable(self) -> StoredBacktest | None:
        try:
            stored = self.backtest()
            _ = stored.context, stored.verdict
        except RunError:
            return None
        return stored

    def __repr__(self) -> str:
        lines = self._told()
        stored = self._readable()
        return "\n".join(lines if stored is None else [*lines, repr(stored)])

    def _repr_html_(self) -> str:
        told = "".join(f"<p>{html.escape(line.strip())}</p>" for line in self._told())
        stored = self._readable()
        return told if stored is None else told + stored._repr_html_()


def frame_of(rows: Sequence[object]) -> pd.DataFrame:
    """Make a table of records, a column a field."""
    return pd.DataFrame(list(map(vars, rows)))


def ranked(rows: Sequence[LeaderboardRow]) -> pd.DataFrame:
    """Rows of a leaderboard, whole numbers whole although the benchmark portfolio has none."""
    frame = frame_of(rows)
    whole = [
        name
        for name in ("rank", "epoch", "generation", "env_steps", "lineage_env_steps")
        if name in frame
    ]
    return frame.astype(dict.fromkeys(whole, "Int64"))


# --- a line of the run list -----------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """One row of the run list; None stands for values that the manifest lacks or has in a wrong
    form."""

    name: str
    status: Status
    problem: str | None = None
    """Why it is broken, or why it failed, in words."""
    created: str | None = None
    finished: str | None = None
    seed: int | None = None
    device: str | None = None
    trials: int | None = None
    command: str | None = None
    market: str | None = None
    data_hash: str | None = None
    config_hash: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    plan: tuple[str, ...] = ()
    """The stages it is to have, in order; empty where it does not say."""
    failed_at: str | None = None
    """The stage that it failed in."""
    metrics: dict[str, StrategyMetrics] = field(default_factory=dict)
    """By strategy; empty before the backtest."""
    verdict: Verdict | None = None
    """Verdict on the held-out window; None before the backtest."""
    notes: Notes = field(default_factory=Notes)
    """The owner's notes; empty where the file is damaged."""

    @property
    def seconds(self) -> float | None:
        """Wall-clock seconds of all finished stages."""
        known = (number(stage.get("seconds")) for stage in self.stages.values())
        return sum(values) if (values := [value for value in known if value is not None]) else None

    @property
    def stage(self) -> str | None:
        """The stage that has begun and not ended."""
        return next(
            (name for name, stage in self.stages.items() if stage.get("done") is False), None
        )

    def headline(self) -> StrategyMetrics:
        """Metrics of the ensemble (or of the best pod where there is none)."""
        return self.metrics.get("ensemble") or self.metrics.get("best", NO_METRICS)


def summaries(runs: RunsFolder, cache: FileCache) -> list[Summary]:
    """All runs, the newest first."""
    found = [summary(folder, cache) for folder in runs.all()]
    return sorted(found, key=lambda run: (run.created or "", run.name), reverse=True)


def summary(folder: Folder, cache: FileCache) -> Summary:
    """One run. A damaged manifest makes it `broken`; raises nothing but UnsafePathError."""
    found = _summary(folder, cache)
    try:
        state = folder.signature(NOTES)
        notes = cache.get("summaries", (folder.root, NOTES), state, lambda _: read_notes(folder))
    except FintraderError:
        return found
    return replace(found, notes=notes)


def _summary(folder: Folder, cache: FileCache) -> Summary:
    name = folder.root.name
    try:
        manifest = folder.signature("manifest.json")
    except NotThereError:
        if is_locked(folder):
            return Summary(name, "running")
        return Summary(
            name, "broken", "it has no manifest.json, so it is no run of this version, or lost it"
        )
    except FintraderError as error:
        return Summary(name, "broken", str(error))
    metrics = _signature(folder, "metrics.json")
    seal = _signature(folder, SEAL)
    state = manifest, metrics, seal
    found = cache.get(
        "summaries", folder.root, state, lambda _: _read(folder, backtested=metrics is not None)
    )
    if found.status in ("interrupted", "failed") and is_locked(folder):
        return replace(found, status="running", problem=None, failed_at=None)
    return found


def stages_now(folder: Folder, run: Summary) -> list[Stage]:
    """List the stages of a run with their progress; none for a folder without a manifest."""
    if run.created is None:
        return []
    try:
        live = folder.json(LIVE)
    except FintraderError:  # nothing is at work, or another has just taken its place
        live = {}
    failure = {} if run.failed_at is None else {"failure": {"stage": run.failed_at}}
    known: dict[str, Any] = {
        "stages": run.stages,
        "plan": list(run.plan),
        "finished": run.finished,
        **failure,
    }
    return read_stages(known, live, alive=run.status == "running")


def at_once(run: RunFolder) -> tuple[Summary, list[Stage]] | None:
    """A run's state and its stages, as of now; None for a folder without a manifest, such as a bare
    tournament's."""
    if not run.manifest.is_file():
        return None
    home = Folder(run.root.resolve())
    found = summary(home, FileCache(summaries=1))
    return found, stages_now(home, found)


def _signature(folder: Folder, name: str) -> Signature | None:
    """Return values that change with that file of the backtest; None where it is missing."""
    try:
        return folder.signature("backtest", name)
    except FintraderError:
        return None


def _read(folder: Folder, *, backtested: bool) -> Summary:
    """Both files' contents."""
    name = folder.root.name
    try:
        values = folder.json("manifest.json")
    except FintraderError as error:
        return Summary(name, "broken", str(error))
    if values.get("format") != MANIFEST_FORMAT:
        return Summary(name, "broken", "manifest.json is of another format or version")
    problem = None
    strategies: dict[str, StrategyMetrics] = {}
    verdict = None
    if backtested:
        try:
            backtest = Folder(folder.path("backtest"))
            strategies = read_metrics(backtest)
            verdict = read_verdict(backtest)
            problem = changed_metrics(backtest)
        except FintraderError as error:
            problem = str(error)
    finished = values.get("finished")
    failure = values.get("failure")
    done = isinstance(finished, str) and moment(finished) is not None
    mappings = {
        key: values[key] for key in ("versions", "stages") if isinstance(values.get(key), dict)
    }
    words = ("created", "finished", "device", "market", "data_hash", "config_hash")
    known: dict[str, Any] = {key: _text(values.get(key)) for key in words}
    known |= {key: _whole(values.get(key)) for key in ("seed", "trials")}
    failed = _text(failure.get("sentence")) if isinstance(failure, dict) and not done else None
    plan = values.get("plan")
    return Summary(
        name=name,
        status=(
            "broken" if problem else "finished" if done else "failed" if failed else "interrupted"
        ),
        problem=problem or failed,
        plan=(
            tuple(name for name in plan if isinstance(name, str)) if isinstance(plan, list) else ()
        ),
        failed_at=_text(failure.get("stage")) if isinstance(failure, dict) and failed else None,
        command=_command(values.get("command")),
        versions={str(k): str(v) for k, v in mappings.get("versions", {}).items()},
        stages={str(k): v for k, v in mappings.get("stages", {}).items() if isinstance(v, dict)},
        metrics=strategies,
        verdict=verdict,
        **known,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _command(value: Any) -> str | None:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value)
    return _text(value)
