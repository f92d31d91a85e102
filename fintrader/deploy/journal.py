"""The journal of a deployment: all bars, decisions, orders and answers, in the order they happened.

One SQLite file in write-ahead mode, append-only, with one writer, which holds the deployment's
lease; the app and `fintrader status` read it meanwhile. No entry is changed or deleted: an order's
state is its last entry. Counts of entries and the account's curve are updated with every entry, so
that reading them costs the same after a year as after a day.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from fintrader.bars.corporate_actions import Action
from fintrader.deploy.broker import OrderReport
from fintrader.deploy.entries import (
    KEYS,
    NAMES,
    FlattenEnd,
    Flattening,
    Halt,
    Resumption,
    decode,
    encode,
)
from fintrader.errors import DeployError
from fintrader.records import RecordError

T = TypeVar("T")
Bar = tuple[int, str, float, float, float, float, float, str, int]
"""Start (ns), symbol, open, high, low, close, volume, further columns (JSON), received (ns)."""

FORMAT = 1
_REMEDY = "go on with the version of fintrader that wrote it, or flatten with that one"
_DAY_NS = 86_400_000_000_000
_SCHEMA = """
CREATE TABLE entries (seq INTEGER PRIMARY KEY, time INTEGER NOT NULL, kind TEXT NOT NULL,
                      key TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX by_kind ON entries (kind, key, seq);
CREATE TABLE bars (ts INTEGER NOT NULL, symbol TEXT NOT NULL, open REAL NOT NULL,
                   high REAL NOT NULL, low REAL NOT NULL, close REAL NOT NULL,
                   volume REAL NOT NULL, extras TEXT NOT NULL, received INTEGER NOT NULL,
                   PRIMARY KEY (ts, symbol)) WITHOUT ROWID;
CREATE TRIGGER entries_stay BEFORE DELETE ON entries
  BEGIN SELECT RAISE(ABORT, 'a journal is append-only'); END;
CREATE TRIGGER entries_hold BEFORE UPDATE ON entries
  BEGIN SELECT RAISE(ABORT, 'a journal is append-only'); END;
CREATE TRIGGER bars_stay BEFORE DELETE ON bars
  BEGIN SELECT RAISE(ABORT, 'a journal is append-only'); END;
CREATE TRIGGER bars_hold BEFORE UPDATE ON bars
  BEGIN SELECT RAISE(ABORT, 'a journal is append-only'); END;
"""
_NAME = """CASE {0}kind WHEN 'order' THEN json_extract({0}body, '$.state')
  WHEN 'alert' THEN {0}key ELSE '' END"""
_SUMMARY = f"""
CREATE {{temp}} TABLE tallies (kind TEXT, name TEXT, count INTEGER, PRIMARY KEY (kind, name));
CREATE {{temp}} TABLE curve (bar INTEGER PRIMARY KEY, equity REAL NOT NULL) WITHOUT ROWID;
INSERT INTO tallies SELECT kind, {_NAME.format("")} AS name, count(*) FROM entries
  WHERE kind != 'order' OR seq IN (SELECT max(seq) FROM entries WHERE kind = 'order' GROUP BY key)
  GROUP BY 1, 2;
INSERT OR IGNORE INTO curve SELECT json_extract(body, '$.bar'), json_extract(body, '$.equity')
  FROM entries WHERE kind IN ('mark', 'decision') ORDER BY kind, seq DESC;
"""
_UPKEEP = f"""
CREATE INDEX by_seq ON entries (kind, seq);
CREATE TRIGGER entries_counted AFTER INSERT ON entries BEGIN
  UPDATE tallies SET count = count - 1 WHERE NEW.kind = 'order' AND kind = 'order' AND name =
    (SELECT json_extract(body, '$.state') FROM entries
     WHERE kind = 'order' AND key = NEW.key AND seq < NEW.seq ORDER BY seq DESC LIMIT 1);
  INSERT INTO tallies VALUES (NEW.kind, {_NAME.format("NEW.")}, 1)
    ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER entries_drawn AFTER INSERT ON entries WHEN NEW.kind IN ('mark', 'decision') BEGIN
  DELETE FROM curve WHERE NEW.kind = 'decision' AND bar = json_extract(NEW.body, '$.bar');
  INSERT OR IGNORE INTO curve
    VALUES (json_extract(NEW.body, '$.bar'), json_extract(NEW.body, '$.equity'));
END;
"""


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One line of the journal."""

    seq: int
    """1, 2, 3 … in the order of writing."""
    time: int
    """When it happened by the deployment's clock, nanoseconds since 1970 UTC."""
    kind: str
    """Name of the body's type (`entries.KINDS`)."""
    key: str
    """The order's id, the alert's kind or the like (`entries.KEYS`); empty for other kinds."""
    body: T


class Journal(contextlib.AbstractContextManager["Journal"]):
    """A journal, open for writing (`Journal(path)` creates a missing one) or only for reading.

    A journal of an earlier version of this format is completed in one transaction. Raises
    DeployError for a file that is no journal, is damaged, of another version, or cannot be written
    to.
    """

    def __init__(self, path: Path, *, reading: bool = False, durable: bool = True) -> None:
        """`durable`: commits survive a loss of power. False: they survive the end of this process,
        which is far faster and enough where the broker lives in it."""
        self.path = Path(path)
        self._durable = durable
        try:
            if reading:
                self._base = sqlite3.connect(self._address_to_read(), uri=True, timeout=20.0)
            else:
                self._base = sqlite3.connect(self.path, timeout=20.0, isolation_level=None)
                self._prepare()
            (version,) = self._base.execute("PRAGMA user_version").fetchone()
            if version == FORMAT:
                self._summarise(reading)
            elif not self._base.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise DeployError(
                    f"{self.path} holds nothing yet; try again once its deployment has started"
                )
        except sqlite3.Error as error:
            raise self._describe_damage(error) from None
        if version != FORMAT:
            raise DeployError(
                f"{self.path} is no journal of this version (format {version}, not {FORMAT});"
                f" {_REMEDY}"
            )
        # Read before anything is decided, to refuse another version: the newest entry of each kind,
        # which is the one that counts.
        self._read_entries(
            "WHERE seq IN (SELECT (SELECT max(seq) FROM entries AS e WHERE e.kind = t.kind)"
            " FROM tallies AS t)"
        )

    def close(self) -> None:
        self._base.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Write all entries of the block to the disk at its end, or none of them."""
        if self._base.in_transaction:
            yield
            return
        with self._translate_errors():
            self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._base.execute("ROLLBACK")
            raise
        with self._translate_errors():
            self._base.execute("COMMIT")

    def write(self, *records: object, at: int) -> None:
        """Append entries; they are on the disk when this returns, unless within `together`."""
        rows = [(at, *encode(record)) for record in records]
        with self.together(), self._translate_errors():
            self._base.executemany(
                "INSERT INTO entries (time, kind, key, body) VALUES (?, ?, ?, ?)", rows
            )

    def orders(self) -> dict[str, OrderReport]:
        """Read the last report of every order by id, in the order in which they were first
        written."""
        rows = self._read_entries(
            "JOIN (SELECT max(seq) AS last, min(seq) AS first FROM entries WHERE kind = 'order'"
            " GROUP BY key) ON seq = last ORDER BY first"
        )
        return {entry.key: entry.body for entry in rows}

    def actions(self) -> list[Action]:
        """Read the announced splits and dividends, each once."""
        return [*dict.fromkeys(entry.body for entry in self.entries(Action))]

    def is_flattening(self) -> bool:
        """Check for a flatten that has not ended."""
        last = self._find_last(Flattening, FlattenEnd)
        return last is not None and isinstance(last.body, Flattening)

    def find_halt(self) -> Halt | None:
        """Find the halt that no resumption followed."""
        last = self._find_last(Halt, Resumption)
        return last.body if last is not None and isinstance(last.body, Halt) else None

    def read_curve(self, newest: int = 1 << 62) -> list[tuple[int, float]]:
        """Read the start of each bar at whose close the account is known (ns), and its equity, USD.

        Before the `newest` bars only the first of all and the last of each day (UTC).
        """
        rows = self._select_rows("SELECT * FROM curve ORDER BY bar DESC LIMIT ?", [newest])
        if len(rows) == newest:
            rows += self._select_rows(
                "WITH RECURSIVE last (bar) AS (SELECT ?1 UNION ALL SELECT"
                " (SELECT max(bar) FROM curve WHERE bar < min(?1, last.bar / ?2 * ?2))"
                " FROM last WHERE last.bar IS NOT NULL)"
                " SELECT * FROM curve WHERE bar < ?1 AND bar IN"
                " (SELECT bar FROM last UNION SELECT min(bar) FROM curve)",
                [rows[-1][0], _DAY_NS],
            )
        return sorted(rows)

    def count(self, kind: type) -> dict[str, int]:
        """Count the entries of a kind, alerts by their kind, orders by their state."""
        rows = self._select_rows(
            "SELECT name, count FROM tallies WHERE kind = ? AND count > 0", [NAMES[kind]]
        )
        return dict(rows)

    def read_newest(self, kind: type[T], count: int) -> list[Entry[T]]:
        """Read the newest entries of a kind, newest first."""
        return self._read_entries("WHERE kind = ? ORDER BY seq DESC LIMIT ?", [NAMES[kind], count])

    def entries(self, kind: type[T], *, key: str | None = None, after: int = 0) -> list[Entry[T]]:
        """Read entries of a kind (and key) with numbers above `after`, oldest first."""
        condition, values = _select(kind, key)
        # Few entries of any kind follow `after`, so search by number: `+` keeps SQLite from the
        # index of kinds.
        newest = "+" if after and len(values) == 1 else ""
        return self._read_entries(
            f"WHERE {newest}{condition} AND seq > ? ORDER BY seq", [*values, after]
        )

    def last(self, kind: type[T], key: str | None = None) -> Entry[T] | None:
        """Find the newest entry of a kind (and key)."""
        condition, values = _select(kind, key)
        entries = self._read_entries(f"WHERE {condition} ORDER BY seq DESC LIMIT 1", values)
        return entries[0] if entries else None

    def tail(self, count: int) -> list[Entry[Any]]:
        """Read the newest entries of all kinds, newest first."""
        return self._read_entries("ORDER BY seq DESC LIMIT ?", [count])

    def _find_last(self, *kinds: type) -> Entry[Any] | None:
        """Find the newest entry of several kinds."""
        newest: list[Entry[Any] | None] = [self.last(kind) for kind in kinds]
        return max(filter(None, newest), key=lambda entry: entry.seq, default=None)

    def keep_bars(self, rows: Iterable[Bar]) -> None:
        """Append bars; a stored bar is not replaced."""
        with self.together(), self._translate_errors():
            self._base.executemany(
                "INSERT OR IGNORE INTO bars VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
            )

    def bars(self, since: int = 0, until: int | None = None) -> list[Bar]:
        """Read the bars that begin in `[since, until)`, by symbol and time."""
        end = (1 << 63) - 1 if until is None else until
        return self._select_rows(
            "SELECT * FROM bars WHERE ts >= ? AND ts < ? ORDER BY symbol, ts", [since, end]
        )

    def _address_to_read(self) -> str:
        """Return the address of a connection that only reads.

        SQLite writes a file next to a journal that it reads. In a read-only folder without a
        writer's log, the address therefore declares the journal immutable.
        """
        path = self.path.resolve()
        is_still = not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists()
        return f"{path.as_uri()}?mode=ro{'&immutable=1' if is_still else ''}"

    def _prepare(self) -> None:
        self._base.execute("PRAGMA journal_mode = WAL")
        self._base.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'OFF'}")
        (version,) = self._base.execute("PRAGMA user_version").fetchone()
        (names,) = self._base.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version == names == 0:
            self._base.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;"
            )

    def _summarise(self, reading: bool) -> None:
        """Add counts and curve to a journal of an earlier version; when reading, only for this
        connection."""
        named = self._base.execute("SELECT name FROM sqlite_master").fetchall()
        if ("entries_drawn",) not in named:
            script = _SUMMARY.format(temp="TEMP" if reading else "")
            upkeep = "" if reading else _UPKEEP
            self._base.executescript(f"BEGIN IMMEDIATE; {script} {upkeep} COMMIT;")

    def _read_entries(self, clause: str, values: Sequence[int | str] = ()) -> list[Entry[Any]]:
        rows = self._select_rows(f"SELECT seq, time, kind, key, body FROM entries {clause}", values)
        entries: list[Entry[Any]] = []
        for seq, time, kind, key, body in rows:
            try:
                entries.append(Entry(seq, time, kind, key, decode(kind, key, body)))
            except (RecordError, ValueError) as error:
                raise DeployError(
                    f"{self.path}: entry {seq} ({kind}) is of another version ({error}); {_REMEDY}"
                ) from None
        return entries

    def _select_rows(self, query: str, values: Sequence[int | str] = ()) -> list[Any]:
        with self._translate_errors():
            return self._base.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if any(word in str(error) for word in ("full", "readonly", "I/O")):
                raise DeployError(
                    f"{self.path} cannot be written ({error}); free space or fix permissions there"
                ) from None
            raise self._describe_damage(error) from None

    def _describe_damage(self, error: Exception) -> DeployError:
        if "locked" in str(error):
            return DeployError(f"{self.path} is locked by another process; try again, or stop that")
        return DeployError(
            f"{self.path} cannot be read as a journal ({error}); check that it is the right file"
        )


def _select(kind: type, key: str | None) -> tuple[str, list[int | str]]:
    """Return the condition for entries of a kind (and key), and its values. The index holds kind,
    key and number: with a known key, no other entries are read."""
    name = NAMES[kind]
    if key is None and name in KEYS:
        return "kind = ?", [name]
    return "kind = ? AND key = ?", [name, key or ""]
