"""A stored leaderboard, read from its SQLite index: all queries of readers are here.

`tournament/leaderboard.py` writes it. It can be read while it is written, and in read-only folders.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

from fintrader.errors import RunError
from fintrader.files import dump_json, refuse_unsafe_database
from fintrader.progress import shorten_list
from fintrader.records import JsonValue, RecordError, from_json
from fintrader.results.folders import DamagedFileError, NotThereError

_WALL_CLOCK = {"seconds", "started", "finished", "device", "attempts"}
_JSON = {"window_scores", "metrics", "hyper", "budget", "agent"}
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LeaderboardRow:
    """A pod on the leaderboard, or the benchmark portfolio, which has only a score."""

    rank: int | None = None
    pod: str
    epoch: int | None = None
    score: float
    window_scores: tuple[float | None, ...] = ()
    metrics: dict[str, float | None] = field(default_factory=dict)
    status: str | None = None
    parent: str | None = None
    origin: str
    generation: int | None = None
    algo: str | None = None
    hyper: dict[str, JsonValue] = field(default_factory=dict)
    budget: dict[str, float | None] = field(default_factory=dict)
    env_steps: int | None = None
    lineage_env_steps: int | None = None
    """Steps of the pod and of all its ancestors."""
    snapshot: str | None = None
    policy: str | None = None
    seed: int | None = None
    data_hash: str | None = None
    applied: int | None = None
    """Number of the result in the order of application, from 0."""
    seconds: float | None = None
    finished: float | None = None
    device: str | None = None
    attempts: int | None = None


@dataclass(frozen=True)
class RacingPod:
    """A pod with its state, and its score if it has one."""

    pod: str
    idx: int
    origin: str
    parent: str | None
    generation: int
    rung: int
    algo: str | None
    state: str
    reason: str
    device: str
    hyper: dict[str, JsonValue]
    score: float | None
    env_steps: int | None
    started: float | None
    finished: float | None


@dataclass(frozen=True)
class StoredPod(RacingPod):
    """A pod with its spec, its state, and its result if it has one."""

    parent_snapshot: str | None
    seen: int
    seed: int
    agent: dict[str, JsonValue]
    budget: dict[str, float | None]
    data_hash: str
    attempts: int
    epoch: int | None
    applied: int | None
    status: str | None
    window_scores: tuple[float | None, ...] | None
    metrics: dict[str, float | None] | None
    looks: int | None
    snapshot: str | None
    policy: str | None
    lineage_env_steps: int | None
    updates: int | None
    seconds: float | None


@dataclass(frozen=True)
class LineageStep:
    """A pod or an ancestor of it, with the changes from its parent."""

    pod: str
    origin: str
    parent: str | None = None
    generation: int | None = None
    algo: str | None = None
    score: float | None = None
    status: str | None = None
    env_steps: int = 0
    hyper: dict[str, JsonValue] = field(default_factory=dict)
    changed: dict[str, tuple[JsonValue, JsonValue]] = field(default_factory=dict)
    """Searched settings that differ from the parent's: (parent's, own)."""
    inherited: str | None = None
    """SHA-256 of the parent's snapshot."""
    snapshot: str | None = None


_OF_RESULT = {
    *("score", "env_steps", "started", "finished", "epoch", "applied", "status", "window_scores"),
    *("metrics", "looks", "snapshot", "policy", "lineage_env_steps", "updates", "seconds"),
}
"""Columns of the table `entries`; the others are those of `pods`."""
_BENCHMARK = (
    "SELECT benchmark_score FROM entries WHERE benchmark_score IS NOT NULL ORDER BY applied LIMIT 1"
)
READ_SECONDS = 20.0
"""Time limit of a query; reading ten thousand pods takes one second."""
CELL_BYTES = 1 << 24
"""Most bytes of one cell. An agent's settings take a few thousand; a manipulated view could ask for
all memory."""
BENCHMARK = "benchmark"
"""Name of the benchmark portfolio in a list of pods."""


def read_leaderboard(
    path: Path, *, most: int | None = None, benchmark: bool = False
) -> list[LeaderboardRow]:
    """Read the rows of the leaderboard, best first, at most `most` pods.

    `benchmark`: insert the benchmark portfolio above all pods that do not beat it; it has no rank,
    and is neither a trial nor a parent.

    Raises NotThereError when there is none, DamagedFileError when it cannot be read or is of
    another version.
    """
    names = ", ".join(one.name for one in fields(LeaderboardRow))
    query = f"SELECT {names} FROM leaderboard ORDER BY rank"
    rows = _read(path, query, LeaderboardRow, most)
    scores = read_cells(path, _BENCHMARK) if benchmark and rows else []
    if not scores:
        return rows
    score = scores[0]["benchmark_score"]
    place = next((k for k, row in enumerate(rows) if row.score <= score), len(rows))
    own = LeaderboardRow(pod=BENCHMARK, origin=BENCHMARK, score=score)
    return [*rows[:place], own, *rows[place:]]


def read_pods(path: Path, *, most: int | None = None) -> list[StoredPod]:
    """Read every pod with its spec, its state and its result, by number. Raises as
    `read_leaderboard`."""
    return _read_pods(path, StoredPod, most)


def read_race(path: Path, *, most: int | None) -> list[RacingPod]:
    """Read the columns that the page of a race shows, one row per pod by number. Reading all
    columns of ten thousand pods would take longer than drawing the page. Raises as
    `read_leaderboard`."""
    return _read_pods(path, RacingPod, most)


def _read_pods(path: Path, kind: type[T], most: int | None) -> list[T]:
    names = (one.name for one in fields(cast(Any, kind)))
    columns = ", ".join(f"{'e' if name in _OF_RESULT else 'p'}.{name}" for name in names)
    tables = "pods p LEFT JOIN entries e ON e.pod = p.pod ORDER BY p.idx"
    return _read(path, f"SELECT {columns} FROM {tables}", kind, most)


def best_score(path: Path) -> float | None:
    """Read the score of a leaderboard's first row; None for an empty one. Raises as
    `read_leaderboard`."""
    return next((row.score for row in read_leaderboard(path, most=1)), None)


def lineage(pods: Sequence[StoredPod], pod: str) -> list[LineageStep]:
    """List a pod and its ancestors, youngest first, down to the founder.

    If the founder continues a pod of an earlier run, that pod comes last, by its name alone
    (`run:pod`). Raises RunError when there is no such pod.
    """
    by_name = {row.pod: row for row in pods}
    if pod not in by_name:
        raise RunError(
            f"there is no pod {pod!r}; the first pods are {shorten_list(by_name) or 'none'}"
        )
    steps: list[LineageStep] = []
    at: str | None = pod
    while at in by_name and len(steps) < len(by_name):
        row = by_name[at]
        parent = by_name.get(row.parent or "")
        before = row.hyper if parent is None else parent.hyper
        steps.append(
            LineageStep(
                pod=row.pod,
                origin=row.origin,
                parent=row.parent,
                generation=row.generation,
                algo=row.algo,
                score=row.score,
                status=row.status or "unfinished",
                env_steps=row.env_steps or 0,
                hyper=row.hyper,
                changed={
                    name: (before.get(name), value)
                    for name, value in row.hyper.items()
                    if before.get(name) != value
                },
                inherited=row.parent_snapshot,
                snapshot=row.snapshot,
            )
        )
        at = row.parent
    if at is not None and at not in by_name:
        steps.append(LineageStep(at, "earlier run", snapshot=steps[-1].inherited))
    return steps


def dump_canonical(path: Path) -> str:
    """Format all content except times, devices and attempts as text: equal for two runs of equal
    seeds."""
    tables: dict[str, Sequence[LeaderboardRow | StoredPod]] = {
        "leaderboard": read_leaderboard(path),
        "pods": read_pods(path),
    }
    kept = {
        name: [{k: v for k, v in vars(row).items() if k not in _WALL_CLOCK} for row in rows]
        for name, rows in tables.items()
    }
    return dump_json(kept)


def _read(path: Path, query: str, kind: type[T], most: int | None) -> list[T]:
    rows = read_cells(path, query if most is None else f"{query} LIMIT {most:d}")
    try:
        for row in rows:
            for name in _JSON & row.keys():
                row[name] = None if row[name] is None else json.loads(row[name])
        return [from_json(kind, row) for row in rows]
    except (ValueError, TypeError, RecursionError):
        raise _build_damage_error(path, "a cell is not valid JSON") from None
    except RecordError as error:
        raise _build_damage_error(path, f"another version wrote it: {error}") from None


def read_cells(path: Path, query: str) -> list[dict[str, Any]]:
    """Read the rows of a query as dictionaries. Raises as `read_leaderboard`."""
    refuse_unsafe_database(path, writes=False)
    if not path.exists():
        raise NotThereError(
            f"{path} does not exist; rebuild it with `fintrader verify {path.parent} --repair`"
        )
    place = f"file:{quote(str(path))}?mode=ro"
    try:
        try:
            return _select(place, query)
        except sqlite3.OperationalError as error:
            if "unable to open" not in str(error) and "readonly" not in str(error):
                raise
            # The folder is read-only, so there is no writer: the database file alone is complete.
            return _select(f"{place}&immutable=1", query)
    except sqlite3.Error as error:
        raise _build_damage_error(path, error) from None


def _build_damage_error(path: Path, problem: object) -> DamagedFileError:
    again = f"rebuild it with `fintrader verify {path.parent} --repair`"
    return DamagedFileError(f"{path} is damaged ({problem}); {again}")


def _select(uri: str, query: str) -> list[dict[str, Any]]:
    connection = sqlite3.connect(uri, uri=True, timeout=10)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute(
            "PRAGMA trusted_schema = OFF"
        )  # bars unsafe functions in a foreign file's views
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, CELL_BYTES)
        connection.row_factory = sqlite3.Row
        deadline = time.monotonic() + READ_SECONDS  # a foreign file's view may never end
        connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
        return [dict(row) for row in connection.execute(query)]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise sqlite3.DatabaseError(f"reading it took more than {READ_SECONDS:g} s") from None
        raise
    finally:
        connection.close()
