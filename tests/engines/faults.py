"""Faults of a disk and of a hand, in any file of a run: bytes, lines, whole files, and the database
from inside."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

LEFT_OUT = (".lock", ".tournament.lock")
"""Files without content."""
SQL = (
    "DELETE FROM entries WHERE applied = 1",
    "UPDATE entries SET score = score + 100 WHERE applied = 1",
    "ALTER TABLE entries DROP COLUMN seconds",
    "ALTER TABLE pods ADD COLUMN foreign_one TEXT",
    "CREATE VIEW foreign_view AS SELECT 1",
    "CREATE TRIGGER foreign_trigger AFTER INSERT ON entries BEGIN DELETE FROM pods; END",
    "CREATE TRIGGER foreign_trigger AFTER INSERT ON meta BEGIN DELETE FROM meta; END",
    "DROP VIEW leaderboard; CREATE TABLE leaderboard (rank)",
    "DROP TABLE entries",
    "UPDATE meta SET value = 'many'",
)


def strike(root: Path, seed: int) -> str:
    """One fault in the folder `root`; what it was."""
    choose = random.Random(seed)
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.name not in LEFT_OUT)
    if choose.random() < 0.1:
        statement = choose.choice(SQL)
        with (
            closing(sqlite3.connect(root / "leaderboard.sqlite")) as connection,
            suppress(sqlite3.DatabaseError),
        ):
            connection.executescript(statement)
        return statement
    if choose.random() < 0.05:
        folder = choose.choice([path for path in root.rglob("*") if path.is_dir()])
        shutil.rmtree(folder)
        return f"{folder.relative_to(root)} is gone"
    path = choose.choice(files)
    if choose.random() < 0.3:  # where most is written
        path = root / "events.jsonl"
    if choose.random() < 0.1 and path.parent.name != "lease":
        return f"{path.parent.name}/{misplace(path, choose.choice(PLACED))}"
    data = path.read_bytes()
    kind = choose.choice([_flip, _cut, _insert, _line, _line, _line, _other, _none])
    changed = kind(data, choose, files)
    if changed is None:
        path.unlink()
    else:
        path.write_bytes(changed)
    return f"{path.relative_to(root)}: {kind.__name__[1:]}"


PLACED = ("folder", "file", "nowhere", "loop")


def misplace(path: Path, what: str) -> str:
    """Have a folder, a file, a link to nowhere or one to itself where something of a run lies; what
    it was."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    match what:
        case "folder":
            path.mkdir()
        case "file":
            path.write_bytes(b"x")
        case "nowhere":
            path.symlink_to("/nowhere/at/all")
        case _:
            path.symlink_to(path.name)
    return f"{path.name}: a {what}"


def _flip(data: bytes, choose: random.Random, _: list[Path]) -> bytes:
    at = choose.randrange(max(1, len(data)))
    return (
        data[:at] + bytes([(data[at] if data else 0) ^ (1 << choose.randrange(8))]) + data[at + 1 :]
    )


def _cut(data: bytes, choose: random.Random, _: list[Path]) -> bytes:
    return data[: choose.randrange(max(1, len(data)))]


def _insert(data: bytes, choose: random.Random, _: list[Path]) -> bytes:
    at = choose.randrange(len(data) + 1)
    return data[:at] + choose.randbytes(choose.randrange(1, 40)) + data[at:]


def _line(data: bytes, choose: random.Random, _: list[Path]) -> bytes:
    """One line is gone, twice there, elsewhere, or another one."""
    lines = data.splitlines(keepends=True) or [b""]
    at = choose.randrange(len(lines))
    to = choose.randrange(len(lines))
    what: list[Callable[[], None]] = [
        lambda: lines.__setitem__(at, b""),
        lambda: lines.insert(to, lines[at]),
        lambda: lines.insert(to, lines.pop(at)),
        lambda: lines.__setitem__(
            at, choose.choice([b"123\n", b"[]\n", b"{}\n", b"null\n", b'"\xff"\n', b"\n"])
        ),
        lambda: lines.__setitem__(at, lines[at].replace(b"1", b"2")),
    ]
    choose.choice(what)()
    return b"".join(lines)


def _other(_: bytes, choose: random.Random, files: list[Path]) -> bytes:
    return choose.choice(files).read_bytes()


def _none(_: bytes, __: random.Random, ___: list[Path]) -> None:
    return None
