"""The journal of a deployment: everything that was received, decided, ordered and answered, in the
order it happened.

One SQLite file in write-ahead mode, append-only, with one writer (who holds the deployment's
lease); the app and `fintrader status` read beside it. Nothing is changed or deleted in it: an
order's state is what was written of it last.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fintrader.bars.corporate_actions import Action
from fintrader.deploy.broker import OrderReport, as_json
from fintrader.errors import DeployError

FORMAT = 1
_SCHEMA = """
CREATE TABLE entries (seq INTEGER PRIMARY KEY, time INTEGER NOT NULL, kind TEXT NOT NULL,
                      key TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX by_kind ON entries (kind, key, seq);
CREATE TABLE bars (ts INTEGER NOT NULL, symbol TEXT NOT NULL, open REAL NOT NULL,
                   high REAL NOT NULL, low REAL NOT NULL, close REAL NOT NULL,
                   volume REAL NOT NULL, extras TEXT NOT NULL, received INTEGER NOT NULL,
                   PRIMARY KEY (ts, symbol)) WITHOUT ROWID;
CREATE TRIGGER entries_stay BEFORE DELETE ON entries
  BEGIN SELECT RAISE(ABORT, 'a journal is only written on'); END;
CREATE TRIGGER entries_hold BEFORE UPDATE ON entries
  BEGIN SELECT RAISE(ABORT, 'a journal is only written on'); END;
CREATE TRIGGER bars_stay BEFORE DELETE ON bars
  BEGIN SELECT RAISE(ABORT, 'a journal is only written on'); END;
CREATE TRIGGER bars_hold BEFORE UPDATE ON bars
  BEGIN SELECT RAISE(ABORT, 'a journal is only written on'); END;
"""


@dataclass(frozen=True)
class Entry:
    """One line of the journal."""

    seq: int
    """1, 2, 3 … in the order of writing."""
    time: int
    """When it happened by the deployment's clock, nanoseconds since 1970 UTC."""
    kind: str
    """start, decision, order, account, halt, resume, flatten, flat, alert, late, corrected …"""
    key: str
    """Which one: an order's id, an alert's kind; empty where there is nothing to tell apart."""
    body: Mapping[str, Any]


class Journal:
    """Open for writing (`Journal(path)`, made where it is not there) or for reading alone.

    Raises DeployError for a file that is no journal, is damaged, or cannot be written to.
    """

    def __init__(self, path: Path, *, reading: bool = False, durable: bool = True) -> None:
        """`durable`: what was committed survives a loss of power. False: of this process only, and
        far faster, which is enough where the broker lives in it."""
        self.path = Path(path)
        self._durable = durable
        try:
            if reading:
                self._base = sqlite3.connect(
                    f"{self.path.resolve().as_uri()}?mode=ro", uri=True, timeout=20.0
                )
            else:
                self._base = sqlite3.connect(self.path, timeout=20.0, isolation_level=None)
                self._prepare()
            version = self._base.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.Error as error:
            raise self._describe_damage(error) from None
        if version != FORMAT:
            raise DeployError(
                f"{self.path} is no journal of this version; move it away to begin a new one"
            )

    def close(self) -> None:
        self._base.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is written within stands on the disk whole, once this has ended, or not at all."""
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

    def write(self, kind: str, key: str = "", /, *, at: int, **body: Any) -> None:
        """Append one entry; it is on the disk when this returns, unless within `together`."""
        with self.together(), self._translate_errors():
            text = json.dumps(body, sort_keys=True, allow_nan=False)
            self._base.execute(
                "INSERT INTO entries (time, kind, key, body) VALUES (?, ?, ?, ?)",
                (at, kind, key, text),
            )

    def write_order(self, report: OrderReport, *, at: int, **more: Any) -> None:
        """Append what is known of an order now; `more` is kept beside it."""
        self.write("order", report.id, at=at, **as_json(report), **more)

    def orders(self) -> dict[str, OrderReport]:
        """Every order by id as it was known last, in the order in which they were first written."""
        rows = self._select_rows(
            "SELECT key, body FROM entries JOIN (SELECT max(seq) AS last, min(seq) AS first FROM"
            " entries WHERE kind = 'order' GROUP BY key) ON seq = last ORDER BY first"
        )
        return {key: _report(key, json.loads(body)) for key, body in rows}

    def actions(self) -> list[Action]:
        """Splits and dividends that were announced, each once."""
        found = {entry.seq: Action.model_validate(entry.body) for entry in self.entries("action")}
        return [*dict.fromkeys(found.values())]

    def is_flattening(self) -> bool:
        """Say whether a flatten was asked for that has not ended."""
        asked = self.last("flatten")
        ended = self.last("flat")
        return asked is not None and (ended is None or ended.seq < asked.seq)

    def entries(
        self, kind: str | None = None, *, key: str | None = None, after: int = 0
    ) -> list[Entry]:
        """Entries of a kind (and key), oldest first, from the one after number `after`."""
        where, values = ["seq > ?"], [after]  # type: list[str], list[Any]
        for column, value in (("kind", kind), ("key", key)):
            if value is not None:
                where.append(f"{column} = ?")
                values.append(value)
        return [
            _parse_entry(row)
            for row in self._select_rows(
                f"{_ENTRY} WHERE {' AND '.join(where)} ORDER BY seq", values
            )
        ]

    def last(self, kind: str, key: str | None = None) -> Entry | None:
        """The newest entry of a kind (and key)."""
        condition, values = ("", [kind]) if key is None else (" AND key = ?", [kind, key])
        rows = self._select_rows(
            f"{_ENTRY} WHERE kind = ?{condition} ORDER BY seq DESC LIMIT 1", values
        )
        return _parse_entry(rows[0]) if rows else None

    def tail(self, count: int) -> list[Entry]:
        """The newest entries, newest first."""
        return [
            _parse_entry(row)
            for row in self._select_rows(f"{_ENTRY} ORDER BY seq DESC LIMIT ?", [count])
        ]

    def keep_bars(self, rows: Iterable[Sequence[Any]]) -> None:
        """Append bars: ts, symbol, open, high, low, close, volume, extras (JSON), received. One
        that is there stays."""
        with self.together(), self._translate_errors():
            self._base.executemany(
                "INSERT OR IGNORE INTO bars VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
            )

    def bars(self, since: int = 0, until: int | None = None) -> list[tuple[Any, ...]]:
        """Bars that begin in `[since, until)`, as `keep_bars` has them, by symbol and time."""
        end = (1 << 63) - 1 if until is None else until
        return self._select_rows(
            "SELECT * FROM bars WHERE ts >= ? AND ts < ? ORDER BY symbol, ts", [since, end]
        )

    def _prepare(self) -> None:
        self._base.execute("PRAGMA journal_mode = WAL")
        self._base.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'OFF'}")
        if self._base.execute("PRAGMA user_version").fetchone()[0] == 0:
            names = self._base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if names == 0:
                self._base.executescript(
                    f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;"
                )

    def _select_rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._translate_errors():
            return self._base.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if "full" in str(error) or "readonly" in str(error) or "I/O" in str(error):
                raise DeployError(
                    f"{self.path} cannot be written ({error}); free space or rights there"
                ) from None
            raise self._describe_damage(error) from None
        except sqlite3.Error as error:
            raise self._describe_damage(error) from None

    def _describe_damage(self, error: Exception) -> DeployError:
        return DeployError(
            f"{self.path} cannot be read as a journal ({error}); see whether it is the right file"
        )


_ENTRY = "SELECT seq, time, kind, key, body FROM entries"


def _parse_entry(row: Sequence[Any]) -> Entry:
    seq, time, kind, key, body = row
    return Entry(seq, time, kind, key, json.loads(body))


def _report(order_id: str, body: Mapping[str, Any]) -> OrderReport:
    known = {name: body[name] for name in OrderReport.__dataclass_fields__ if name in body}
    return OrderReport(id=order_id, **known)
