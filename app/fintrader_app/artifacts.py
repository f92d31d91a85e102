"""Stored parts of runs, read through the checks of `results.folders` and cached while their files
are unchanged."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fintrader.errors import ConfigError, FintraderError
from fintrader.files import parse_jsonl
from fintrader.results import formatting
from fintrader.results import run as stored_runs
from fintrader.results.backtest_files import StoredBacktest, backtest_state, read_backtest
from fintrader.results.folders import (
    DamagedFileError,
    FileCache,
    Folder,
    NotThereError,
    RunsFolder,
    Signature,
)
from fintrader.results.leaderboard_reader import read_leaderboard, read_pods, read_race
from fintrader.results.run import Summary
from fintrader.results.tournament_events import TournamentEvent, parse_events
from fintrader.stages import Stage
from fintrader.yaml_text import parse_yaml

MAX_PODS = 20_000
MAX_RANKS = 1_000
MAX_EVENT_BYTES = 8 << 20

READ = FileCache(summaries=4096, backtests=12, rows=32, learning=256, events=16, configs=64)
"""Cache of stored files, shared by all sessions of the app."""


def load_summaries(runs: RunsFolder) -> list[Summary]:
    """Load all runs, the newest first, archived ones last."""
    return sorted(stored_runs.summaries(runs, READ), key=lambda run: run.notes.archived)


def load_summary(runs: RunsFolder, name: str) -> Summary:
    """Load one run; its status is `broken` if the manifest is damaged. Raises only UnsafePathError
    and NotThereError."""
    return stored_runs.summary(runs.run(name), READ)


def load_stages(runs: RunsFolder, run: Summary) -> list[Stage]:
    """Read the present progress of each stage of a run."""
    return stored_runs.stages_now(runs.run(run.name), run)


def load_config(folder: Folder) -> dict[str, Any]:
    """Load the settings that a run was made with, as its file has them. Raises NotThereError,
    DamagedFileError."""

    def read(_: Any) -> dict[str, Any]:
        try:
            values = parse_yaml(folder.text("config.yaml"), "config.yaml")
        except ConfigError as error:
            raise DamagedFileError(str(error)) from None
        return values if isinstance(values, dict) else {}

    return READ.get("configs", folder.root, folder.signature("config.yaml"), read)


def describe_score(folder: Folder) -> str:
    """Name the metric of a run's scores; empty where its settings cannot be read."""
    return formatting.describe_score(load_tournament(folder).get("metric"))


def load_tournament(folder: Folder) -> dict[str, Any]:
    """Load the settings of a run's tournament; empty where they cannot be read."""
    try:
        return select_part(load_config(folder), "tournament")
    except FintraderError:
        return {}


def backtest(folder: Folder) -> StoredBacktest:
    """Read the run's backtest. Raises NotThereError before it is complete and in a classic
    environment, DamagedFileError when a file of it is damaged."""
    if folder.exists("environment.json"):
        raise NotThereError("this run has no market; see its test episodes on the Runs page")
    home = Folder(folder.path("backtest"))
    return READ.get("backtests", home.root, backtest_state(home), lambda _: read_backtest(home))


def backtest_version(folder: Folder) -> Hashable:
    """Return values that change when the run's backtest does, different for any two runs."""
    return folder.root, backtest_state(Folder(folder.path("backtest")))


def select_part(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Select a group of stored values; empty where there is none."""
    found = values.get(key)
    return found if isinstance(found, dict) else {}


# --- leaderboard ----------------------------------------------------------------------------------


def load_leaderboard(folder: Folder) -> pd.DataFrame:
    """Load the rows of the leaderboard, best first, with the benchmark portfolio.

    Raises NotThereError before there is one, DamagedFileError.
    """
    return _load_rows(
        folder,
        "leaderboard",
        lambda path: stored_runs.tabulate_leaderboard(
            read_leaderboard(path, most=MAX_RANKS, benchmark=True)
        ),
    )


def load_pods(folder: Folder) -> pd.DataFrame:
    """Load every pod by number, with its state and, once it has one, its result."""
    return _load_rows(
        folder, "pods", lambda path: stored_runs.build_frame(read_pods(path, most=MAX_PODS))
    )


def load_race(folder: Folder) -> pd.DataFrame:
    """Load the columns of `pods` that the page of a race shows."""
    return _load_rows(
        folder, "race", lambda path: stored_runs.build_frame(read_race(path, most=MAX_PODS))
    )


def _load_rows(folder: Folder, table: str, read: Callable[[Path], pd.DataFrame]) -> pd.DataFrame:
    path = folder.path("leaderboard.sqlite")
    return READ.get("rows", (path, table), identify_board(folder), lambda _: read(path))


def rank_pods(pods: pd.DataFrame) -> list[str]:
    """List the names of pods by rung and score, the best first, those without a score last."""
    ranked = pods.assign(has_score=pods["score"].notna())
    return ranked.sort_values(["has_score", "rung", "score"], ascending=False)["pod"].tolist()


def identify_board(folder: Folder) -> tuple[Signature, Signature | None]:
    """Return values that change whenever the leaderboard does. Raises NotThereError before there is
    one."""
    try:
        state = folder.signature("leaderboard.sqlite")
    except NotThereError:
        raise NotThereError("this run has no leaderboard: no tournament has begun") from None
    try:
        wal = folder.signature("leaderboard.sqlite-wal")
    except NotThereError:
        wal = None
    folder.path("leaderboard.sqlite-shm")  # refuses a link, as `signature` does
    return state, wal


# --- logs -----------------------------------------------------------------------------------------


def load_learning(folder: Folder, pod: str) -> pd.DataFrame:
    """Load a pod's `metrics.jsonl`: one row an update. Raises NotThereError before it exists."""
    parts = "pods", pod, "metrics.jsonl"

    def read(_: Any) -> pd.DataFrame:
        return to_numbers(pd.DataFrame.from_records(folder.jsonl(*parts)))

    return READ.get("learning", (folder.root, pod), folder.signature(*parts), read)


def to_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with every cell a number, NaN where it was none."""
    return pd.DataFrame(frame.apply(pd.to_numeric, errors="coerce"))


def load_validation(folder: Folder, pod: str) -> pd.DataFrame:
    """Load a pod's `validation.jsonl`, a row a look: `share` (of its budget), `env_steps`, `fold`,
    `score`, `return`.

    Empty where the pod has none: it has only begun, or an earlier version trained it.
    """
    parts = "pods", pod, "validation.jsonl"
    columns = ["share", "env_steps", "fold", "score", "return"]

    def read(_: Any) -> pd.DataFrame:
        frame = pd.DataFrame.from_records(folder.jsonl(*parts)).reindex(columns=columns)
        return to_numbers(frame).dropna(subset=["share", "env_steps"])

    try:
        state = folder.signature(*parts)
    except NotThereError:
        return pd.DataFrame(columns=columns)
    return READ.get("learning", (folder.root, pod, "validation"), state, read)


def load_events(folder: Folder) -> list[TournamentEvent]:
    """Load a tournament's events, oldest first, or the last MAX_EVENT_BYTES of a longer log. Only
    lines added since the last call are read."""
    state = folder.signature("events.jsonl")

    def read(
        before: tuple[Signature, tuple[int, list[TournamentEvent]]] | None,
    ) -> tuple[int, list[TournamentEvent]]:
        earlier, (offset, records) = before or ((0, 0, 0), (0, []))
        if earlier[0] != state[0] or state[1] <= earlier[1]:  # another file, or a file written anew
            offset = max(0, state[1] - MAX_EVENT_BYTES)
            records = []
        with folder.open("events.jsonl") as file:
            file.seek(offset)
            added = file.read(state[1] - offset)
        whole = (
            added.rfind(b"\n") + 1
        )  # a line that is still being written is read when it is whole
        return offset + whole, [*records, *parse_events(parse_jsonl(added[:whole]))]

    return READ.get("events", folder.root, state, read)[1]
