"""What a run says about itself: its manifest, its status, its headline numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fintrader.errors import FintraderError
from fintrader.results.folders import FileCache, Folder, NotThereError, RunsFolder, Signature, is_locked
from fintrader.results.formatting import moment, number
from fintrader.runs import MANIFEST_FORMAT

Status = Literal["running", "finished", "interrupted", "broken"]


@dataclass(frozen=True)
class Summary:
    """One row of the run list. What the manifest does not say (or says wrongly) is None."""

    name: str
    status: Status
    problem: str | None = None
    """Why it is broken, in words."""
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
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Strategy -> metric -> value, as `backtest/metrics.json` has it; empty before the backtest."""

    @property
    def seconds(self) -> float | None:
        """Wall-clock seconds of all finished stages."""
        known = [number(stage.get("seconds")) for stage in self.stages.values()]
        values = [value for value in known if value is not None]
        return sum(values) if values else None

    @property
    def stage(self) -> str | None:
        """The stage that has begun and not ended."""
        return next((name for name, stage in self.stages.items() if stage.get("done") is False), None)

    def headline(self) -> dict[str, Any]:
        """Metrics of the ensemble (or of the best pod where there is none)."""
        for strategy in ("ensemble", "best"):
            if strategy in self.metrics:
                return self.metrics[strategy]
        return {}


def summaries(runs: RunsFolder, cache: FileCache) -> list[Summary]:
    """All runs, the newest first."""
    found = [summary(runs.run(name), cache) for name in runs.names()]
    return sorted(found, key=lambda run: (run.created or "", run.name), reverse=True)


def summary(folder: Folder, cache: FileCache) -> Summary:
    """One run. A damaged manifest makes it `broken`; raises nothing but UnsafePathError."""
    name = folder.root.name
    try:
        manifest = folder.signature("manifest.json")
    except NotThereError:
        if is_locked(folder):
            return Summary(name, "running")
        return Summary(name, "broken", "it has no manifest.json, so it is no run of this version, or lost it")
    except FintraderError as error:
        return Summary(name, "broken", str(error))
    try:
        metrics: Signature | None = folder.signature("backtest", "metrics.json")
    except FintraderError:
        metrics = None
    state = manifest, metrics
    found = cache.get("summaries", folder.root, state, lambda _: _read(folder, backtested=metrics is not None))
    if found.status == "interrupted" and is_locked(folder):
        return replace(found, status="running")
    return found


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
    strategies: dict[str, dict[str, Any]] = {}
    if backtested:
        try:
            strategies = metric_table(folder)
        except FintraderError as error:
            problem = str(error)
    finished = values.get("finished")
    done = isinstance(finished, str) and moment(finished) is not None
    versions = values.get("versions")
    stages = values.get("stages")
    words = ("created", "finished", "device", "market", "data_hash", "config_hash")
    known: dict[str, Any] = {key: _text(values.get(key)) for key in words}
    known |= {key: _whole(values.get(key)) for key in ("seed", "trials")}
    return Summary(
        name=name,
        status="broken" if problem else "finished" if done else "interrupted",
        problem=problem,
        command=_command(values.get("command")),
        versions={str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {},
        stages=({str(k): v for k, v in stages.items() if isinstance(v, dict)} if isinstance(stages, dict) else {}),
        metrics=strategies,
        **known,
    )


def metric_table(folder: Folder) -> dict[str, dict[str, Any]]:
    """`backtest/metrics.json`. Raises NotThereError or DamagedFileError."""
    values = folder.json("backtest", "metrics.json")
    return {name: row for name, row in values.items() if isinstance(row, dict)}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _command(value: Any) -> str | None:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value)
    return _text(value)
