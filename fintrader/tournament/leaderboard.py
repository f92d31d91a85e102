"""The leaderboard: in memory for the generator, and as an SQLite index for readers.

One orchestrator writes the index over the run's immutable files; WAL mode lets readers (the app,
`fintrader status`) read meanwhile. The database is derived from the files: if damaged or missing,
it is rebuilt from the store (`fintrader verify RUN --repair`).
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fintrader.files import make_folder, refuse_link, refuse_unsafe_database, remove
from fintrader.records import to_json
from fintrader.tournament.spec import PodResult, PodSpec
from fintrader.tournament.store import move_aside


@dataclass(frozen=True)
class FinishedPod:
    """A pod's spec and result, together."""

    spec: PodSpec
    result: PodResult

    @property
    def key(self) -> tuple[str, int]:
        """Identity of a submission in the updater."""
        return self.spec.pod, self.result.epoch

    @property
    def score(self) -> float:
        """The score, -inf where there is none."""
        return -math.inf if self.result.score is None else self.result.score

    @property
    def order(self) -> tuple[int, float, int, int]:
        """Sort key: the better entry first."""
        return -self.spec.rung, -self.score, self.spec.index, self.result.epoch

    def __lt__(self, other: FinishedPod) -> bool:
        """True if this entry ranks before the other."""
        return self.order < other.order

    @property
    def is_inheritable(self) -> bool:
        """True if another pod can start from it."""
        return self.result.snapshot is not None and self.result.score is not None


def rank_inheritable(entries: Iterable[FinishedPod]) -> list[FinishedPod]:
    """Rank the entries that another pod can start from, best first."""
    return sorted(entry for entry in entries if entry.is_inheritable)


@dataclass
class Leaderboard:
    """The leaderboard in memory: the best `size` entries, and all that were ever applied."""

    size: int
    rows: list[FinishedPod] = field(default_factory=list)
    """Best first, at most `size`."""
    applied: list[FinishedPod] = field(default_factory=list)
    """Every result, in the order in which they were applied."""
    keys: set[tuple[str, int]] = field(default_factory=set)
    failed: int = 0
    """Number of applied pods that failed."""
    founders: dict[str, str] = field(default_factory=dict)
    """Pod -> its ancestor without a parent."""

    @property
    def parents(self) -> list[FinishedPod]:
        """Rows that other pods can start from, best first."""
        return [row for row in self.rows if row.is_inheritable]

    @property
    def trials(self) -> int:
        """Number of trials that the winner was chosen from: looks at the validation window, summed
        over pods with a score (one per pod, unless training stops early)."""
        return sum(entry.result.looks for entry in self.applied if entry.result.score is not None)

    @property
    def benchmark_score(self) -> float | None:
        """Score of the benchmark portfolio on the pods' validation sessions; None before the first
        result."""
        scores = (entry.result.benchmark_score for entry in self.applied)
        return next((score for score in scores if score is not None), None)


POD_COLUMNS = """pod TEXT PRIMARY KEY, idx INTEGER NOT NULL UNIQUE, origin TEXT NOT NULL,
  parent TEXT,
  parent_snapshot TEXT, generation INTEGER NOT NULL, rung INTEGER NOT NULL,
  seen INTEGER NOT NULL, seed INTEGER NOT NULL,
  algo TEXT,
  agent TEXT NOT NULL, hyper TEXT NOT NULL, budget TEXT NOT NULL, data_hash TEXT NOT NULL"""
"""Columns of the table `pods` from the spec; its further columns change while the pod is at
work."""
RESULT_COLUMNS = """pod TEXT NOT NULL REFERENCES pods(pod), epoch INTEGER NOT NULL,
  status TEXT NOT NULL,
  reason TEXT NOT NULL, score REAL, window_scores TEXT NOT NULL, metrics TEXT NOT NULL,
  looks INTEGER NOT NULL, benchmark_score REAL,
  snapshot TEXT, policy TEXT, env_steps INTEGER NOT NULL, updates INTEGER NOT NULL,
  seconds REAL NOT NULL,
  started REAL NOT NULL, finished REAL NOT NULL, device TEXT NOT NULL, attempts INTEGER NOT NULL"""
"""Columns of the table `entries` that equal fields of a result."""
_POD_NAMES, _RESULT_NAMES = (
    [column.split()[0] for column in columns.split(",")]
    for columns in (POD_COLUMNS, RESULT_COLUMNS)
)
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS pods ({POD_COLUMNS},
  state TEXT NOT NULL DEFAULT 'waiting', attempts INTEGER NOT NULL DEFAULT 0,
  reason TEXT NOT NULL DEFAULT '',
  device TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS entries ({RESULT_COLUMNS},
  applied INTEGER NOT NULL UNIQUE, lineage_env_steps INTEGER NOT NULL, PRIMARY KEY (pod, epoch));
CREATE VIEW IF NOT EXISTS leaderboard AS
  SELECT row_number() OVER (ORDER BY p.rung DESC, e.score DESC, p.idx, e.epoch) AS rank, e.pod,
    e.epoch, e.score, e.window_scores,
    e.metrics, e.status, p.parent, p.origin, p.generation, p.algo, p.hyper, p.budget, e.env_steps,
    e.lineage_env_steps,
    e.snapshot, e.policy, p.seed, p.data_hash, e.applied, e.seconds, e.finished, e.device,
    e.attempts
  FROM entries e JOIN pods p ON p.pod = e.pod
  WHERE e.score IS NOT NULL
  ORDER BY rank LIMIT (SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'size');
"""

_SET_STATE = "UPDATE pods SET state = ?, attempts = ?, reason = ?, device = ? WHERE pod = ?"
PodState = tuple[str, str, int, str]
"""Pod, state, attempts, and the reason of the last loss."""


class LeaderboardIndex:
    """Connection of the one writer. Each write method is one transaction."""

    def __init__(self, path: Path) -> None:
        refuse_unsafe_database(path, writes=True)
        make_folder(path.parent)
        self.connection = sqlite3.connect(
            path, timeout=30, isolation_level=None, check_same_thread=False
        )
        self.connection.execute("PRAGMA journal_mode = WAL")
        # A power cut may cost the last transactions, never consistency; every start rebuilds the
        # index from the store, whose files and log are synced.
        self.connection.execute("PRAGMA synchronous = NORMAL")
        with self.connection:
            self.connection.executescript(_SCHEMA)

    def close(self) -> None:
        self.connection.close()

    def rebuild(self, size: int, specs: Iterable[PodSpec], entries: Sequence[FinishedPod]) -> None:
        """Rebuild every row from the store."""
        with self.connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            # Drop the tables instead of emptying them: those of another version have other columns,
            # and foreign tables must go, too.
            found = connection.execute(
                "SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
            )
            for kind, name in sorted(
                found, key=lambda one: ("trigger", "view", "index", "table").index(one[0])
            ):
                quoted = name.replace('"', '""')
                connection.execute(f'DROP {kind} IF EXISTS "{quoted}"')
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES ('size', ?)", (str(size),))
            self._insert_pods(specs)
            self._insert_entries(entries, 0)

    def write_turn(
        self,
        specs: Sequence[PodSpec],
        entries: Sequence[FinishedPod],
        first: int,
        states: Collection[PodState],
    ) -> None:
        """Write new pods, changed states, and results, of which the first was applied as number
        `first`.

        Known pods and results are skipped.
        """
        if not (specs or entries or states):
            return
        with self.connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            self._insert_pods(specs)
            connection.executemany(_SET_STATE, ((*state, "", pod) for pod, *state in states))
            self._insert_entries(entries, first)

    def _insert_pods(self, specs: Iterable[PodSpec]) -> None:
        for spec in specs:
            values = {
                **to_json(spec),
                "idx": spec.index,
                "parent_snapshot": spec.snapshot,
                "algo": spec.agent.get("algo"),
            }
            self._insert("pods", {name: values[name] for name in _POD_NAMES})

    def _insert_entries(self, entries: Sequence[FinishedPod], first: int) -> None:
        for applied, entry in enumerate(entries, first):
            spec = entry.spec
            result = entry.result
            parent = self.connection.execute(
                "SELECT lineage_env_steps FROM entries WHERE pod = ? ORDER BY epoch DESC LIMIT 1",
                (spec.parent,),
            ).fetchone()
            row = {name: getattr(result, name) for name in _RESULT_NAMES}
            lineage = result.env_steps + (parent[0] if parent else 0)
            self._insert("entries", {**row, "applied": applied, "lineage_env_steps": lineage})
            device = result.location or result.device
            state = result.status, result.attempts, result.reason, device, spec.pod
            self.connection.execute(_SET_STATE, state)

    def _insert(self, table: str, row: Mapping[str, Any]) -> None:
        """Insert a row unless it exists. Lists and mappings become JSON."""
        self.connection.execute(
            f"INSERT OR IGNORE INTO {table} ({', '.join(row)}) VALUES"
            f" ({', '.join('?' * len(row))})",
            [
                (
                    json.dumps(value, sort_keys=True, allow_nan=False)
                    if isinstance(value, dict | tuple)
                    else value
                )
                for value in row.values()
            ],
        )


_SIDE_FILES = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite writes next to a database."""


def open_or_replace(path: Path) -> tuple[LeaderboardIndex, bool]:
    """Open the leaderboard at `path`; move it aside first if it is damaged or cannot be written.
    Returns True if it was moved.

    Raises UnsafePathError if one of its files is a link.
    """
    for ending in ("", *_SIDE_FILES):
        place = Path(f"{path}{ending}")
        refuse_link(place)
        if place.exists() and not place.is_file():
            move_aside(place)
    try:
        index = LeaderboardIndex(path)
        if index.connection.execute("PRAGMA quick_check").fetchone()[0] == "ok":
            index.connection.executescript("BEGIN IMMEDIATE; ROLLBACK")
            return index, False
        index.close()
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "full" in str(error):
            raise
    for ending in _SIDE_FILES:
        remove(Path(f"{path}{ending}"))
    move_aside(path)
    return LeaderboardIndex(path), True
