"""A run's backtest and leaderboard as tables: read-only, checked, cached while their files do not change."""

from __future__ import annotations

import json
import sqlite3
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fintrader import metrics as m
from fintrader.results.folders import DamagedFileError, Folder, NotThereError, Signature, records_in

MAX_ROWS = 30_000_000
MAX_PODS = 20_000
_JSON_COLUMNS = {"window_scores", "metrics", "hyper", "budget", "agent"}


# --- backtest --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backtest:
    """A stored backtest. Curves are wide: index minute (UTC), one column a strategy, one row a bar."""

    metrics: dict[str, dict[str, Any]]
    context: dict[str, Any]
    curves: dict[str, pd.DataFrame] = field(repr=False)
    """`equity_usd`, `exposure`, `cost_usd`, `turnover_usd`, `cash_usd`."""
    session: np.ndarray[Any, Any] = field(repr=False)
    """`[T]` session number of each bar."""

    @property
    def equity(self) -> pd.DataFrame:
        return self.curves["equity_usd"]

    @property
    def strategies(self) -> list[str]:
        return list(self.equity.columns)

    @property
    def ends(self) -> np.ndarray[Any, Any]:
        """Row numbers of the sessions' last bars."""
        return np.asarray(m.session_ends(self.session))

    def daily(self, column: str = "equity_usd") -> pd.DataFrame:
        """The last bar of each session."""
        return self.curves[column].iloc[self.ends]

    def daily_equity_with_start(self) -> pd.DataFrame:
        """Starting capital, then the last equity of each session: what the daily drawdown is measured on."""
        return pd.concat([self.equity.iloc[:1], self.daily()])

    def daily_returns(self) -> pd.DataFrame:
        """Return of each session, the first one against the starting capital."""
        equity = self.equity
        return pd.DataFrame(
            {name: m.daily_returns(equity[name].to_numpy(), self.session) for name in equity.columns},
            index=equity.index[self.ends],
        )


def backtest(folder: Folder) -> Backtest:
    """The run's backtest. Raises NotThereError before it is whole, DamagedFileError when a file of it is not."""
    try:
        signature = folder.signature("backtest", "metrics.json")
    except NotThereError:
        raise NotThereError("this run has no backtest yet: it is written when the tournament has ended") from None
    return _backtest(folder.root, signature, folder.signature("backtest", "equity.parquet"))


@lru_cache(maxsize=12)
def _backtest(root: Path, metrics: Signature, equity: Signature) -> Backtest:
    folder = Folder(root)
    values = folder.json("backtest", "metrics.json")
    if not values or not all(isinstance(row, dict) for row in values.values()):
        raise DamagedFileError("backtest/metrics.json is not {strategy: metrics}; run `fintrader backtest` again")
    try:
        context = folder.json("backtest", "context.json")
    except NotThereError:
        context = {}
    columns = ("equity_usd", "cash_usd", "cost_usd", "turnover_usd", "exposure")
    table = parquet(folder, "backtest", "equity.parquet", columns=["strategy", "minute", "session", *columns])
    names, codes = _codes(table)
    rows = [np.flatnonzero(codes == code) for code in range(len(names))]
    minute = table["minute"].to_numpy()
    if not names or any(not np.array_equal(minute[row], minute[rows[0]]) for row in rows):
        raise DamagedFileError("backtest/equity.parquet: strategies cover different bars; backtest the run again")
    index = pd.DatetimeIndex(minute[rows[0]], name="minute")
    index = index.tz_localize("UTC") if index.tz is None else index
    session = table["session"].to_numpy()[rows[0]]
    if len(index) < 2 or not index.is_monotonic_increasing or (np.diff(session) < 0).any():
        raise DamagedFileError("backtest/equity.parquet: its bars are not in order; run `fintrader backtest` again")
    curves = {}
    for column in columns:
        data = np.asarray(table[column].to_numpy(), dtype=np.float64)
        curves[column] = pd.DataFrame({name: data[row] for name, row in zip(names, rows, strict=True)}, index=index)
    if not np.isfinite(curves["equity_usd"].to_numpy()).all():
        raise DamagedFileError("backtest/equity.parquet holds an equity that is no number; backtest it again")
    return Backtest(metrics=values, context=context, curves=curves, session=session)


def _codes(table: pa.Table) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Strategy names in order of appearance, and each row's number among them."""
    encoded = table["strategy"].combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    return [str(name) for name in encoded.dictionary.to_pylist()], encoded.indices.to_numpy(zero_copy_only=False)


def table_of(folder: Folder, name: str) -> pd.DataFrame:
    """`positions` or `trades` of the backtest. Raises NotThereError or DamagedFileError."""
    return _table(folder.root, name, folder.signature("backtest", f"{name}.parquet"))


@lru_cache(maxsize=16)
def _table(root: Path, name: str, signature: Signature) -> pd.DataFrame:
    needed = {
        "positions": ["strategy", "minute", "session", "symbol", "shares", "price_usd", "weight"],
        "trades": ["strategy", "fill_time", "symbol", "shares", "price_usd", "notional_usd", "cost_usd", "kind"],
    }[name]
    frame = parquet(Folder(root), "backtest", f"{name}.parquet", columns=needed).to_pandas()
    for column in ("strategy", "symbol"):
        frame[column] = frame[column].astype(str).astype("category")
    return frame


def parquet(folder: Folder, *parts: str, columns: list[str]) -> pa.Table:
    """Columns of a Parquet file. Raises DamagedFileError when it is torn, too long, or lacks one of them."""
    place = "/".join(parts)
    with folder.open(*parts) as file:
        try:
            source = pq.ParquetFile(file)
            missing = [column for column in columns if column not in source.schema_arrow.names]
            if missing:
                raise DamagedFileError(f"{place} has no column {missing[0]!r}; it was written by another version")
            if source.metadata.num_rows > MAX_ROWS:
                raise DamagedFileError(f"{place} holds {source.metadata.num_rows:,} rows; the app reads {MAX_ROWS:,}")
            return source.read(columns=columns)
        except (pa.ArrowException, OSError, ValueError) as error:
            problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DamagedFileError(f"{place} is damaged ({problem}); run `fintrader backtest` again") from None


# --- leaderboard -----------------------------------------------------------------------------------------------

_BOARD = "SELECT * FROM leaderboard ORDER BY rank LIMIT 1000"
_PODS = (
    "SELECT p.*, e.epoch, e.applied, e.status, e.score, e.window_scores, e.metrics, e.env_steps, "
    "e.lineage_env_steps, e.updates, e.seconds, e.started, e.finished "
    f"FROM pods p LEFT JOIN entries e ON e.pod = p.pod ORDER BY p.idx LIMIT {MAX_PODS}"
)

_RACE = (
    "SELECT p.pod, p.idx, p.origin, p.parent, p.generation, p.state, p.reason, p.device, p.hyper, e.score, "
    "e.env_steps, e.started, e.finished "
    f"FROM pods p LEFT JOIN entries e ON e.pod = p.pod ORDER BY p.idx LIMIT {MAX_PODS}"
)


def leaderboard(folder: Folder) -> pd.DataFrame:
    """Rows of the leaderboard, best first. Raises NotThereError before there is one, DamagedFileError."""
    return _rows(folder, _BOARD)


def pods(folder: Folder) -> pd.DataFrame:
    """Every pod with its state and, once it has one, its result, by number."""
    return _rows(folder, _PODS)


def race(folder: Folder) -> pd.DataFrame:
    """As `pods`, with only what the race itself shows: of ten thousand pods, the rest takes longer than the page."""
    return _rows(folder, _RACE)


def board_version(folder: Folder) -> tuple[Signature, Signature | None]:
    """What changes when the leaderboard does. Raises NotThereError before there is one."""
    try:
        state = folder.signature("leaderboard.sqlite")
    except NotThereError:
        raise NotThereError("this run has no leaderboard yet: it appears when the tournament starts") from None
    try:
        wal: Signature | None = folder.signature("leaderboard.sqlite-wal")
    except NotThereError:
        wal = None
    folder.path("leaderboard.sqlite-shm")  # refuses a link, as the two above
    return state, wal


def _rows(folder: Folder, query: str) -> pd.DataFrame:
    return _query(folder.root, query, *board_version(folder))


@lru_cache(maxsize=32)
def _query(root: Path, query: str, state: Signature, wal: Signature | None) -> pd.DataFrame:
    path = root / "leaderboard.sqlite"
    try:
        records = _select(f"file:{quote(str(path))}?mode=ro", query)
    except sqlite3.OperationalError as error:
        if "unable to open" not in str(error) and "readonly" not in str(error):
            raise DamagedFileError(_damaged(error)) from None
        try:  # a folder that may not be written to: without a writer, the file alone is the whole truth
            records = _select(f"file:{quote(str(path))}?mode=ro&immutable=1", query)
        except sqlite3.Error as again:
            raise DamagedFileError(_damaged(again)) from None
    except sqlite3.Error as error:
        raise DamagedFileError(_damaged(error)) from None
    try:
        for record in records:
            for name in _JSON_COLUMNS & set(record):
                record[name] = None if record[name] is None else json.loads(record[name])
    except (ValueError, TypeError, RecursionError):
        raise DamagedFileError(_damaged("a cell is not valid JSON")) from None
    return pd.DataFrame(records)


def _damaged(problem: object) -> str:
    return f"leaderboard.sqlite is damaged ({problem}); make it again with `fintrader tournament rebuild`"


def _select(uri: str, query: str) -> list[dict[str, Any]]:
    connection = sqlite3.connect(uri, uri=True, timeout=2.0)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query)]
    finally:
        connection.close()


# --- pods ------------------------------------------------------------------------------------------------------


def learning(folder: Folder, pod: str) -> pd.DataFrame:
    """A pod's `metrics.jsonl`: one row an update. Raises NotThereError before there is one."""
    return _learning(folder.root, pod, folder.signature("pods", pod, "metrics.jsonl"))


@lru_cache(maxsize=64)
def _learning(root: Path, pod: str, signature: Signature) -> pd.DataFrame:
    records = Folder(root).jsonl("pods", pod, "metrics.jsonl")
    frame = pd.DataFrame.from_records(records)
    return frame.apply(pd.to_numeric, errors="coerce") if len(frame) else frame


_READ: dict[Path, tuple[Signature, int, list[dict[str, Any]]]] = {}
"""Event log -> its state when it was last read, how far, and the records up to there."""
_READING = threading.Lock()


def events(folder: Folder, limit: int = 8 << 20) -> list[dict[str, Any]]:
    """The run's event log, oldest first; of a very long one the end. Only what was added since is read again."""
    signature = folder.signature("events.jsonl")
    with _READING:
        before, offset, records = _READ.get(folder.root, ((0, 0, 0), 0, []))
        if before == signature:
            return records
        with folder.open("events.jsonl") as file:
            if before[0] != signature[0] or signature[1] <= before[1]:  # another file, or one that was written anew
                offset, records = max(0, signature[1] - limit), []
            file.seek(offset)
            added = file.read(signature[1] - offset)
        whole = added.rfind(b"\n") + 1  # a line that is still being written is read when it is whole
        records = [*records, *records_in(added[:whole])]
        while len(_READ) > 15:
            _READ.pop(next(iter(_READ)))
        _READ[folder.root] = signature, offset + whole, records
        return records
