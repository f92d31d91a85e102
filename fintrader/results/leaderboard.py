"""A stored leaderboard, read from its SQLite index."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from fintrader.errors import TournamentError
from fintrader.files import dump_json

_WALL_CLOCK = {"seconds", "started", "finished", "device", "attempts"}
_JSON = {"window_scores", "metrics", "hyper", "budget", "agent"}


def read_leaderboard(path: Path) -> list[dict[str, Any]]:
    """Rows of the leaderboard, best first; JSON columns parsed. Raises TournamentError when it cannot be read."""
    return _read(path, "SELECT * FROM leaderboard ORDER BY rank")


def read_pods(path: Path) -> list[dict[str, Any]]:
    """Every pod with its state and, once it has one, its result, by number. Raises TournamentError."""
    return _read(
        path,
        "SELECT p.*, e.epoch, e.applied, e.status, e.score, e.window_scores, e.metrics, e.snapshot, e.policy, "
        "e.env_steps, e.lineage_env_steps, e.updates, e.seconds, e.started, e.finished "
        "FROM pods p LEFT JOIN entries e ON e.pod = p.pod ORDER BY p.idx",
    )


def canonical(path: Path) -> str:
    """All content but times and places, as text: equal for two runs of equal seeds."""
    tables = {"leaderboard": read_leaderboard(path), "pods": read_pods(path)}
    kept = {
        name: [{k: v for k, v in row.items() if k not in _WALL_CLOCK} for row in rows] for name, rows in tables.items()
    }
    return dump_json(kept)


def _read(path: Path, query: str) -> list[dict[str, Any]]:
    if not path.exists():
        raise TournamentError(f"{path} does not exist; make it with `fintrader tournament rebuild {path.parent}`")
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
        try:
            connection.row_factory = sqlite3.Row
            rows = [dict(row) for row in connection.execute(query)]
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise TournamentError(
            f"{path} is damaged ({error}); make it again with `fintrader tournament rebuild {path.parent}`"
        ) from None
    for row in rows:
        for name in _JSON & set(row):
            row[name] = None if row[name] is None else json.loads(row[name])
    return rows
