"""A stored backtest, read back: the one reader that the app, the report, notebooks and the command
line share.

The files are described where they are written, in `backtesting/writer.py`. Each is read when it is
first asked for.

    seal.json   the SHA-256 of every other file of the backtest; the ledger's line of its look
                (`verdict/looks.py`); and a hash over both. A later line notes the seal's hash
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fintrader import metrics as m
from fintrader.errors import RunError
from fintrader.files import hash_file, seal, unseal
from fintrader.metrics import Array
from fintrader.results.analysis import Analysis, Variation
from fintrader.results.context import BacktestContext
from fintrader.results.explanation import Explanation
from fintrader.results.folders import (
    ChangedFileError,
    DamagedFileError,
    Folder,
    NotThereError,
    Signature,
)
from fintrader.results.formatting import (
    Opening,
    choose_opening,
    find_timezone,
    in_order,
    main_strategy,
)
from fintrader.results.strategy_metrics import NO_METRICS, StrategyMetrics
from fintrader.results.table import Table, active_table, paper_table, render_notice
from fintrader.verdict.verdict import Verdict

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_ROWS = 30_000_000
SEAL = "seal.json"
SEAL_FORMAT = "fintrader-seal-1"
TRADE_COLUMNS: dict[str, str] = {
    "decision_bar": "int64",
    "fill_bar": "int64",
    "decision_time": "datetime64[ns, UTC]",
    "fill_time": "datetime64[ns, UTC]",
    "symbol": "str",
    "shares": "float64",
    "price_usd": "float64",
    "notional_usd": "float64",
    "cost_usd": "float64",
    "kind": "str",
}
"""One row per fill. `shares` is signed (bought > 0), `notional_usd` is not; `kind` is `order`,
`forced` (the symbol ended, or a margin call), `ruin` (the account was closed) or `split` (the
change that a split made, at no price)."""
TABLES = {
    "equity": (
        *("strategy", "bar", "minute", "session"),
        *("equity_usd", "cash_usd", "cost_usd", "turnover_usd", "exposure"),
    ),
    "positions": ("strategy", "minute", "session", "symbol", "shares", "price_usd", "weight"),
    "prices": ("minute", "session", "symbol", "close_usd"),
    "trades": ("strategy", *TRADE_COLUMNS),
}
"""Columns of the tables, each in a Parquet file."""
RECORDS: dict[str, tuple[Any, object]] = {
    "context": (BacktestContext, BacktestContext()),
    "verdict": (Verdict, None),
    "sensitivity": (tuple[Variation, ...], ()),
    "analysis": (Analysis, None),
    "explanation": (Explanation, None),
}
"""Types of the records, each in a JSON file, and the default of a missing one."""
FILES = (*(f"{name}.parquet" for name in TABLES), *(f"{name}.json" for name in RECORDS))
"""All but metrics.json and the seal, which are written last."""
_PARTS = {*TABLES, *RECORDS, "changed"}
_TIMES = ("minute", "decision_time", "fill_time")
_CATEGORIES = ("strategy", "symbol", "kind")
"""Columns of few different texts, read as categories: a million strings are slow and large."""


def empty_trades() -> pd.DataFrame:
    """A trade list without a trade, its columns of the right types."""
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in TRADE_COLUMNS.items()})


class TradeRows(NamedTuple):
    """Columns of some rows of the trade list."""

    kind: NDArray[np.object_]
    decided: NDArray[np.int64]
    filled: NDArray[np.int64]
    asset: NDArray[np.int64]
    shares: Array
    """Signed: bought > 0."""
    price: Array
    cost: Array

    @classmethod
    def of(
        cls, kind: str, decided: int, filled: int, traded: Array, price: Array, cost: Array
    ) -> TradeRows:
        """List the trades `[N]` of one moment, without those of 0 shares."""
        which = np.flatnonzero(traded)
        return cls(
            np.full(which.size, kind, dtype=object),
            np.full(which.size, decided),
            np.full(which.size, filled),
            which,
            traded[which],
            price[which],
            cost[which],
        )


def trade_frame(
    fills: TradeRows, symbols: Sequence[str], decided_ns: Any, filled_ns: Any
) -> pd.DataFrame:
    """Make rows of the trade list, decided and filled at these times (ns, UTC)."""
    frame = {
        "decision_bar": fills.decided,
        "fill_bar": fills.filled,
        "decision_time": pd.to_datetime(decided_ns, utc=True),
        "fill_time": pd.to_datetime(filled_ns, utc=True),
        "symbol": np.array(symbols, dtype=object)[fills.asset],
        "shares": fills.shares,
        "price_usd": fills.price,
        "notional_usd": np.abs(fills.shares * fills.price),
        "cost_usd": fills.cost,
        "kind": fills.kind,
    }
    return pd.DataFrame(frame).astype(TRADE_COLUMNS)


class StoredBacktest:
    """A backtest as tables; if it is stored in a folder, each table is read on first use.

    Any use may raise NotThereError (a table is missing), DamagedFileError, or ChangedFileError (the
    backtest was rewritten since it was opened), all RunErrors.
    """

    metrics: dict[str, StrategyMetrics]
    """By strategy."""
    parts: Mapping[str, Any]
    """The tables and JSON below, by name."""
    equity: pd.DataFrame
    """Long: every strategy at every bar."""
    positions: pd.DataFrame
    """Long table of the positions held at each session's close."""
    prices: pd.DataFrame
    """Long: the price of every symbol at each session's close."""
    trades: pd.DataFrame
    """`strategy` and the columns TRADE_COLUMNS."""
    context: BacktestContext
    """Origin of the backtest: window, trials, seed, hashes, command."""
    verdict: Verdict | None
    """Verdict on skill or luck; None where it was not assessed."""
    sensitivity: tuple[Variation, ...]
    """The result with one choice changed at a time; empty where not run."""
    changed: str
    """Warning of a file that was changed later, or of a missing seal; empty if neither."""
    analysis: Analysis | None
    """Attribution, execution and factors; None if the market was not available."""
    explanation: Explanation | None
    """Influence of the inputs on some decisions; None where none was examined."""
    timezone: str = "UTC"
    """Time zone of all times."""

    def __init__(
        self,
        metrics: dict[str, StrategyMetrics],
        parts: Mapping[str, Any],
        folder: Path | None = None,
    ) -> None:
        """`folder`: the backtest's folder, if it was read from one."""
        self.metrics = metrics
        self.parts = parts
        self.folder = folder

    def __getattr__(self, name: str) -> Any:
        if name not in _PARTS:
            raise AttributeError(f"a stored backtest has no {name!r}")
        part = self.parts[name]
        if name in TABLES and self.timezone != "UTC":
            times = part.select_dtypes("datetimetz")
            part = part.assign(**{key: part[key].dt.tz_convert(self.timezone) for key in times})
        return part

    def find_metrics(self, strategy: str) -> StrategyMetrics:
        """A strategy's metrics; all undefined for one that is not there."""
        return self.metrics.get(strategy, NO_METRICS)

    def on_clock(self, timezone: str) -> StoredBacktest:
        """Copy the backtest with its times written in `timezone`, an IANA name; reads no file."""
        shown = copy(self)
        vars(shown).pop("minutes", None)
        shown.timezone = timezone
        return shown

    @cached_property
    def _rows(self) -> dict[str, NDArray[np.intp]]:
        """Row numbers of each strategy in `equity`, in the table's order."""
        return _group_rows(self.equity)

    @cached_property
    def strategies(self) -> list[str]:
        """Names of the strategies, in the table's order."""
        return list(self._rows)

    @cached_property
    def _first(self) -> NDArray[np.intp]:
        return self._rows[self.strategies[0]]

    @cached_property
    def session(self) -> NDArray[np.int64]:
        """`[T]`: session number of each bar."""
        return np.asarray(self.equity["session"].to_numpy()[self._first])

    @cached_property
    def minutes(self) -> pd.DatetimeIndex:
        """`[T]`: start of each bar, in `timezone`."""
        return pd.DatetimeIndex(self.equity["minute"].iloc[self._first], name="minute")

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """`[S]`: numbers of the sessions' last bars."""
        return m.find_session_ends(self.session)

    def curve(self, column: str = "equity_usd") -> pd.DataFrame:
        """Wide: index `minute`, one column per strategy, at every bar."""
        values = self.equity[column].to_numpy()
        wide = pd.DataFrame(
            {name: values[rows] for name, rows in self._rows.items()}, index=self.minutes
        )
        return wide.rename_axis(columns="strategy")

    def plot(self) -> go.Figure:
        """The wealth of every strategy, the result first."""
        from fintrader.results.figures import equity_figure  # plotly takes a while

        return equity_figure(self.curve(), main=main_strategy(self.strategies), notice=self.notice)

    def daily(self, column: str = "equity_usd") -> pd.DataFrame:
        """Wide, the last bar of each session only."""
        return self.curve(column).iloc[self.ends]

    def daily_with_start(self) -> pd.DataFrame:
        """Starting capital, then the last equity of each session, as for the daily drawdown."""
        return self.curve().iloc[[0, *self.ends]]

    def daily_returns(self) -> pd.DataFrame:
        """Wide: return of each session, the first one against the starting capital."""
        returns = {
            name: m.daily_returns(wealth.to_numpy(), self.session)
            for name, wealth in self.curve().items()
        }
        return pd.DataFrame(returns, index=self.minutes[self.ends]).rename_axis(columns="strategy")

    @property
    def portfolio(self) -> str | None:
        """The strategy that active figures are relative to; None where the context cannot be read
        or names none."""
        try:
            return self.context.portfolio
        except RunError:
            return None

    @property
    def opening(self) -> Opening:
        """Opening words of every page about this backtest: the verdict's, or the warning of a
        change."""
        return choose_opening(None if self.changed else self.verdict, self.changed)

    @property
    def conclusion(self) -> str:
        """The warning of a change, the verdict's sentences, or `not assessed`."""
        return self.changed or ("not assessed" if self.verdict is None else self.verdict.text)

    @property
    def sessions_a_year(self) -> int:
        """Number of sessions by which annual figures are scaled."""
        return next(iter(self.metrics.values()), NO_METRICS).annual_sessions

    @property
    def market_timezone(self) -> str:
        """The market's own time zone."""
        return find_timezone(self.context.timezone)

    @property
    def notice(self) -> str:
        """Banner of a synthetic market; empty for real bars and a context that cannot be read."""
        try:
            return self.context.market.notice
        except RunError:
            return ""

    @property
    def summary(self) -> tuple[Table, Table]:
        """The paper's table, and the differences from the benchmark portfolio; results first."""
        metrics = {name: self.metrics[name] for name in in_order(self.metrics)}
        return paper_table(metrics), active_table(metrics, self.portfolio)

    def __repr__(self) -> str:
        return "\n".join(filter(None, [self.notice, *map(str, self.summary)]))

    def _repr_html_(self) -> str:
        tables = "".join(table._repr_html_() for table in self.summary)
        return render_notice(self.notice) + tables

    def select_trades(self, strategy: str) -> pd.DataFrame:
        """A strategy's rows of `trades`."""
        return self.trades[self.trades["strategy"] == strategy]

    def select_fills(self, strategy: str) -> pd.DataFrame:
        """A strategy's rows of `trades`, except splits."""
        own = self.select_trades(strategy)
        return own[own["kind"] != "split"]

    def weights(self, strategy: str) -> pd.DataFrame:
        """Wide: index `minute` of each session's last bar, one column per symbol ever held at a
        close; else 0."""
        rows = self.positions[self.positions["strategy"] == strategy].astype({"symbol": str})
        wide = rows.pivot(index="minute", columns="symbol", values="weight")
        return wide.reindex(self.minutes[self.ends]).fillna(0.0)


def backtest_state(folder: Folder) -> tuple[Signature | None, ...]:
    """Return values that change with any file of the backtest in `folder`. Raises NotThereError
    before it is complete."""
    try:
        whole = folder.signature("metrics.json")
    except NotThereError:
        raise NotThereError(
            "there is no backtest yet: it is written when the tournament has ended"
        ) from None
    return whole, *(find_signature(folder, name) for name in (*FILES, SEAL))


def find_signature(folder: Folder, *parts: str) -> Signature | None:
    """The signature of a file; None where it is missing or may not be read."""
    try:
        return folder.signature(*parts)
    except RunError:  # reading it raises again
        return None


def read_backtest(folder: Path | str | Folder) -> StoredBacktest:
    """Open a backtest that `write_backtest` wrote; tables are read on first use.

    Raises NotThereError where there is no complete backtest, DamagedFileError when its metrics are
    damaged.
    """
    place = folder if isinstance(folder, Folder) else Folder.locate(folder)
    try:
        written = place.signature("metrics.json")
        metrics = read_metrics(place)
    except NotThereError:
        raise NotThereError(
            f"{place.root / 'metrics.json'} does not exist; run `fintrader backtest` on the run"
        ) from None
    return StoredBacktest(metrics, _Files(place, written), place.root)


def read_metrics(folder: Folder) -> dict[str, StrategyMetrics]:
    """The metrics of a backtest's folder by strategy. Raises NotThereError, DamagedFileError."""
    metrics = folder.record(dict[str, StrategyMetrics], "metrics.json")
    if not metrics:
        raise DamagedFileError(
            f"{folder.root / 'metrics.json'} has no strategy; run `fintrader backtest` again"
        )
    return metrics


class _Files(dict[str, Any]):
    """The parts of a stored backtest, read on first use, all from the same `write_backtest`.

    `write_backtest` removes metrics.json first and writes it last: while the signature of
    metrics.json equals `written`, no part has been replaced.
    """

    def __init__(self, folder: Folder, written: Signature) -> None:
        super().__init__()
        self._folder = folder
        self._written = written

    def __missing__(self, name: str) -> Any:
        part: Any
        if name in TABLES:
            part = _read_table(self._folder, name)
        elif name == "changed":
            part = _describe_change(self._folder)
        else:
            part = read_record(self._folder, name)
        if find_signature(self._folder, "metrics.json") != self._written:
            raise ChangedFileError(
                f"{self._folder.root}: this backtest was rewritten meanwhile; open it again"
            )
        self[name] = part
        return part


# --- the seal -------------------------------------------------------------------------------------


def make_seal(hashes: Mapping[str, str], look: Mapping[str, Any] | None = None) -> bytes:
    """Make `seal.json` for files (name -> SHA-256). `look`: values of the look's ledger line; empty
    if it could not be written."""
    body = {"format": SEAL_FORMAT, "files": hashes}
    return seal(body if look is None else {**body, "look": look})


def hash_files(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of the backtest in `folder`, by name, the seal's own left out."""
    return {
        path.name: hash_file(path)
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != SEAL and not path.name.startswith(".")
    }


def read_seal(folder: Folder) -> dict[str, Any]:
    """`format`, `files` and, where a look was noted, `look`. Raises NotThereError,
    DamagedFileError."""
    changed = DamagedFileError(f"{folder.root / SEAL} was changed, or written by another version")
    body = unseal(folder.read(SEAL), changed)
    if body.get("format") != SEAL_FORMAT or not isinstance(body.get("files"), dict):
        raise changed
    return body


def describe_seal_problems(folder: Folder) -> str:
    """Describe the files of a backtest that differ from its seal, as the end of a sentence; empty
    if none does."""
    try:
        sealed = read_seal(folder)["files"]
    except NotThereError:
        return f"it has no {SEAL}: that was removed, or an earlier version wrote the result"
    except RunError as error:
        return str(error)
    problems = []
    for name, digest in sorted(sealed.items()):
        try:
            if _hash(folder, name) != digest:
                problems.append(f"{name} differs from its seal")
        except NotThereError:
            problems.append(f"{name} is missing")
        except RunError as error:
            problems.append(str(error))
    return ", ".join(problems)


def changed_metrics(folder: Folder) -> str | None:
    """Describe a change of metrics.json since it was sealed; None without one. For lists of runs,
    which read no other file."""
    try:
        sealed = read_seal(folder)["files"].get("metrics.json")
        if sealed == _hash(folder, "metrics.json"):
            return None
    except RunError:
        return None  # reported where the backtest is opened
    return "its result was changed after it was written: metrics.json differs from its seal"


def _hash(folder: Folder, name: str) -> str:
    with folder.open(name) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _describe_change(folder: Folder) -> str:
    problem = describe_seal_problems(folder)
    again = "`fintrader backtest` on the run makes it again"
    if not problem or problem.startswith("it has no"):
        return problem and f"This result cannot be checked: {problem}; {again}."
    return f"This result was changed after it was written: {problem}; {again}."


# --- the parts ------------------------------------------------------------------------------------


def read_record(folder: Folder, name: str) -> Any:
    """Read a record of a backtest's folder, one of RECORDS. Raises DamagedFileError."""
    kind, absent = RECORDS[name]
    file = f"{name}.json"
    return folder.record(kind | None, file) or absent if folder.exists(file) else absent


def _group_rows(table: pd.DataFrame) -> dict[str, NDArray[np.intp]]:
    """Row numbers of each strategy, in the table's order."""
    codes, names = pd.factorize(table["strategy"])
    return {str(name): np.flatnonzero(codes == code) for code, name in enumerate(names)}


def _check_equity(table: pd.DataFrame, path: Path) -> None:
    """Check that all strategies cover the same bars, in order, and that every equity is a
    number."""
    minute = pd.DatetimeIndex(table["minute"]).asi8
    session = table["session"].to_numpy()
    rows = list(_group_rows(table).values())
    if not rows or any(not np.array_equal(minute[row], minute[rows[0]]) for row in rows):
        raise DamagedFileError(
            f"{path}: strategies cover different bars; run `fintrader backtest` again"
        )
    first = rows[0]
    if len(first) < 2 or (np.diff(minute[first]) <= 0).any() or (np.diff(session[first]) < 0).any():
        raise DamagedFileError(f"{path}: its bars are not in order; run `fintrader backtest` again")
    if not np.isfinite(table["equity_usd"].to_numpy()).all():
        raise DamagedFileError(
            f"{path} holds an equity that is no number; run `fintrader backtest` again"
        )


def _read_table(folder: Folder, name: str) -> pd.DataFrame:
    """A Parquet file. Raises NotThereError, DamagedFileError when it is torn, too long, or lacks a
    column."""
    columns = TABLES[name]
    path = folder.root / f"{name}.parquet"
    if not folder.exists(path.name):
        raise NotThereError(f"{path} does not exist; run `fintrader backtest` on the run again")
    with folder.open(path.name) as file:
        try:
            source = pq.ParquetFile(
                file, read_dictionary=[column for column in _CATEGORIES if column in columns]
            )
            missing = [column for column in columns if column not in source.schema_arrow.names]
            if missing:
                raise DamagedFileError(
                    f"{path} has no column {missing[0]!r}; it was written by another version"
                )
            if source.metadata.num_rows > MAX_ROWS:
                raise DamagedFileError(
                    f"{path} holds {source.metadata.num_rows:,} rows, more than {MAX_ROWS:,}"
                )
            frame: pd.DataFrame = source.read(columns=list(columns)).to_pandas()
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DamagedFileError(
                f"{path} is damaged ({problem}); run `fintrader backtest` again"
            ) from None
    for column in frame.columns if len(frame) else ():
        kind = frame[column].dtype
        fits = (
            isinstance(kind, pd.DatetimeTZDtype)
            if column in _TIMES
            else pd.api.types.is_numeric_dtype(kind)
        )
        if not fits and column not in _CATEGORIES:
            raise DamagedFileError(f"{path}: {column} holds {kind}; run `fintrader backtest` again")
    if name == "equity":
        _check_equity(frame, path)
    return frame
