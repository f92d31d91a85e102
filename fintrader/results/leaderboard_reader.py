"""A stored leaderboard, read from its SQLite index: the one place that knows the SQL of a reader.

`tournament/leaderboard.py` writes it. Readers may look while it is written, and in folders that
nobody may write to.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fintrader.errors import RunError
from fintrader.files import dump_json, refuse_unsafe_database
from fintrader.results.folders import DamagedFileError, NotThereError

_WALL_CLOCK = {"seconds", "started", "finished", "device", "attempts"}
_JSON = {"window_scores", "metrics", "hyper", "budget", "agent"}

# Columns by name: a file of another shape is refused, not shown half.
_LEADERBOARD = (
    "SELECT rank, pod, epoch, score, window_scores, metrics, status, parent, origin, generation,"
    " algo, hyper, budget, env_steps, lineage_env_steps, snapshot, policy, seed, data_hash,"
    " applied, seconds, finished, device, attempts FROM leaderboard ORDER BY rank"
)
_RACE = (
    "p.pod, p.idx, p.origin, p.parent, p.generation, p.algo, p.state, p.reason, p.device, p.hyper,"
    " e.score, e.env_steps, e.started, e.finished"
)
_RESULT = (
    "p.pod, p.idx, p.origin, p.parent, p.parent_snapshot, p.generation, p.seen, p.seed, p.algo,"
    " p.agent, p.hyper, p.budget, p.data_hash, p.state, p.attempts, p.reason, p.device, e.epoch,"
    " e.applied, e.status, e.score, e.window_scores, e.metrics, e.looks, e.snapshot, e.policy,"
    " e.env_steps, e.lineage_env_steps, e.updates, e.seconds, e.started, e.finished"
)

_BENCHMARK = (
    "SELECT benchmark_score FROM entries WHERE benchmark_score IS NOT NULL ORDER BY applied LIMIT 1"
)
READ_SECONDS = 20.0
"""Ten thousand pods are read in one."""
CELL_BYTES = 1 << 24
"""Of one cell: an agent's settings take a few thousand, and a foreign view may ask for as many as
there is memory."""
BENCHMARK = "benchmark"
"""Stands in the place of a pod's name where the benchmark portfolio stands among pods."""


def read_leaderboard(
    path: Path, *, most: int | None = None, benchmark: bool = False
) -> list[dict[str, Any]]:
    """Rows of the leaderboard, best first, at most `most`; JSON columns parsed.

    `benchmark`: with the benchmark portfolio in its place, which is no pod: it has a score and no
    rank, and is neither a trial nor anybody's parent.

    Raises NotThereError when there is none, DamagedFileError when it cannot be read or is of
    another version.
    """
    rows = _read(path, _LEADERBOARD, most)
    if not benchmark or not rows:
        return rows
    known = _read(path, _BENCHMARK, None)
    return with_benchmark(rows, known[0]["benchmark_score"]) if known else rows


def with_benchmark(rows: Sequence[dict[str, Any]], score: float) -> list[dict[str, Any]]:
    """The rows of pods, best first, and the benchmark portfolio before the first that scores no
    higher."""
    place = sum(row["score"] > score for row in rows)
    own = dict.fromkeys(rows[0]) | {"pod": BENCHMARK, "origin": BENCHMARK, "score": score}
    return [
        *rows[:place],
        own | {name: {} for name in ("hyper", "metrics") if name in own},
        *rows[place:],
    ]


def read_pods(path: Path, *, most: int | None = None, brief: bool = False) -> list[dict[str, Any]]:
    """Every pod with its state and, once it has one, its result, by number.

    `brief`: only what the race itself shows; of ten thousand pods the rest takes longer than the
    page. Raises as `read_leaderboard`.
    """
    columns = _RACE if brief else _RESULT
    return _read(
        path,
        f"SELECT {columns} FROM pods p LEFT JOIN entries e ON e.pod = p.pod ORDER BY p.idx",
        most,
    )


def best_score(path: Path) -> float | None:
    """The best score on a leaderboard, None where nobody has one. Raises as `read_leaderboard`."""
    scores = [entry["score"] for entry in read_leaderboard(path)]
    return max((score for score in scores if score is not None), default=None)


def lineage(pods: Sequence[dict[str, Any]], pod: str) -> list[dict[str, Any]]:
    """A pod and its ancestors, youngest first, down to the founder: origin, score, settings and
    their change.

    Where the founder goes on from a pod of an earlier run, that one stands last, by its name alone
    (`run:pod`). `pods`: rows of `read_pods`. Raises RunError when there is no such pod.
    """
    by_name = {str(row["pod"]): row for row in pods}
    if pod not in by_name:
        raise RunError(
            f"there is no pod {pod!r}; there are {', '.join(list(by_name)[:5]) or 'none'} ..."
        )
    steps: list[dict[str, Any]] = []
    at: str | None = pod
    while at in by_name and len(steps) < len(by_name):
        row = by_name[at]
        parent = by_name.get(row["parent"])
        steps.append(
            {
                **{
                    name: row[name]
                    for name in ("pod", "origin", "parent", "generation", "algo", "score")
                },
                "status": row["status"] or "unfinished",
                "env_steps": row["env_steps"] or 0,
                "hyper": row["hyper"],
                "changed": {
                    name: [parent["hyper"].get(name), value]
                    for name, value in row["hyper"].items()
                    if parent is not None and parent["hyper"].get(name) != value
                },
                "inherited": row["parent_snapshot"],
                "snapshot": row["snapshot"],
            }
        )
        at = row["parent"]
    if at is not None and at not in by_name:
        unknown = dict.fromkeys(("parent", "generation", "algo", "score", "status", "inherited"))
        known = {"pod": at, "origin": "earlier run", "snapshot": steps[-1]["inherited"]}
        steps.append({**unknown, **known, "env_steps": 0, "hyper": {}, "changed": {}})
    return steps


def canonical(path: Path) -> str:
    """All content but times and places, as text: equal for two runs of equal seeds."""
    tables = {"leaderboard": read_leaderboard(path), "pods": read_pods(path)}
    kept = {
        name: [{k: v for k, v in row.items() if k not in _WALL_CLOCK} for row in rows]
        for name, rows in tables.items()
    }
    return dump_json(kept)


def _read(path: Path, query: str, most: int | None) -> list[dict[str, Any]]:
    refuse_unsafe_database(path, writes=False)
    if not path.exists():
        raise NotThereError(
            f"{path} does not exist; make it with `fintrader verify {path.parent} --repair`"
        )
    query = query if most is None else f"{query} LIMIT {most:d}"
    place = f"file:{quote(str(path))}?mode=ro"
    try:
        try:
            rows = _select(place, query)
        except sqlite3.OperationalError as error:
            if "unable to open" not in str(error) and "readonly" not in str(error):
                raise
            # A folder that may not be written to: without a writer, the file alone is the whole
            # truth.
            rows = _select(f"{place}&immutable=1", query)
    except sqlite3.Error as error:
        raise _damaged(path, error) from None
    try:
        for row in rows:
            for name in _JSON & set(row):
                row[name] = None if row[name] is None else json.loads(row[name])
    except (ValueError, TypeError, RecursionError):
        raise _damaged(path, "a cell is not valid JSON") from None
    return rows


def _damaged(path: Path, problem: object) -> DamagedFileError:
    again = f"make it again with `fintrader verify {path.parent} --repair`"
    return DamagedFileError(f"{path} is damaged ({problem}); {again}")


def _select(uri: str, query: str) -> list[dict[str, Any]]:
    connection = sqlite3.connect(uri, uri=True, timeout=10)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA trusted_schema = OFF")  # a foreign file's views call nothing
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, CELL_BYTES)
        connection.row_factory = sqlite3.Row
        deadline = time.monotonic() + READ_SECONDS  # a foreign file's view may never come to an end
        connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
        return [dict(row) for row in connection.execute(query)]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise sqlite3.DatabaseError(f"reading it took more than {READ_SECONDS:g} s") from None
        raise
    finally:
        connection.close()
