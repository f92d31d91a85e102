"""Files of returns or equity: tables, and the results of freqtrade and Lean.

    read_file("returns.csv")                                   CSV, Parquet or Feather
    read_file("backtest-result-2024-01-31_12-00-00.zip")       freqtrade, also its JSON
    read_file("1234567890.json")                               Lean

A pickle can run any code when opened, so it is opened only with `trust`.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fintrader.errors import ReturnsError
from fintrader.verdict.track_record import (
    CASH,
    Kind,
    TrackRecord,
    make_record,
    pick_column,
    read_dates,
    read_numbers,
    to_frame,
    to_returns,
)
from fintrader.verdict.weights_account import hold_weights

PICKLES = (".pkl", ".pickle", ".p", ".joblib")
MODELS = (".pt", ".pth", ".h5", ".hdf5", ".onnx", ".safetensors")
CLOSED_TRADES = "profits booked when trades close, {days:.1f} days after they open on average"
WINDOW = ("backtest_start", "backtest_end")
LONG_TRADES_DAYS = 1.0
"""Mean length of trades, in days, above which profits booked at the close hide earlier losses."""


@dataclass(frozen=True, eq=False)
class ReturnsFile:
    """Content of a file: values for `track_record.make_record`, and facts about them."""

    values: Any
    name: str
    kind: Kind | None = None
    benchmark: pd.Series | None = None
    notes: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()


def read_record(
    path: Path | str,
    *,
    benchmark: str | None = None,
    kind: Kind | None = None,
    column: str | None = None,
    sessions_a_year: int | None = None,
    trust: bool = False,
) -> TrackRecord:
    """Read a strategy's track record from a file.

    `benchmark`: a column of the file, another file, or `cash`; None for the file's own benchmark,
    else cash. `column`: the strategy, if there are several. `trust`: open a pickle. The other
    arguments are those of `make_record`. Raises ReturnsError.
    """
    content = read_file(path, column=column, trust=trust)
    rival: Any = content.benchmark
    if benchmark is not None:
        columns = content.values if isinstance(content.values, pd.DataFrame) else ()
        # A column takes precedence over a file.
        is_file = benchmark not in (CASH, *(str(name).strip() for name in columns))
        rival = read_benchmark(benchmark, path, trust) if is_file else benchmark
    record = make_record(
        content.values,
        name=Path(path).name,  # in errors
        benchmark=rival,
        kind=kind or content.kind,
        column=column if isinstance(content.values, pd.DataFrame) else None,
        sessions_a_year=sessions_a_year,
    )
    notes = content.notes + record.notes
    caveats = content.caveats + record.caveats
    return replace(record, name=content.name, notes=notes, caveats=caveats)


def read_weights(
    weights: Path | str,
    prices: Path | str,
    *,
    benchmark: str | None = None,
    cost_bps: float = 0.0,
    sessions_a_year: int | None = None,
    trust: bool = False,
) -> TrackRecord:
    """Read target weights and prices, one column per symbol, and trade them (`hold_weights`).

    `benchmark`: a column of the prices, a file, or `cash`; None for equal weights of all symbols
    with prices, rebalanced daily free of costs. `sessions_a_year`, `trust`: as of `read_record`.
    Raises ReturnsError.
    """
    targets, marks = (_read_matrix(path, trust) for path in (weights, prices))
    if (marks <= 0).any(axis=None):
        raise ReturnsError(
            f"{prices}: prices must exceed 0, not {marks.min().min():g}; leave unknown ones empty"
        )
    rival: Any = benchmark
    if benchmark is None:
        # A return over dates without a price counts at the next price.
        changes = marks.ffill().pct_change(fill_method=None).where(marks.notna())
        rival = changes.mean(axis=1).iloc[1:].rename("equal weight")
    elif benchmark in marks:
        rival, _ = to_returns(marks[benchmark].dropna(), "equity", benchmark, [])
    elif benchmark != CASH:
        rival = read_benchmark(benchmark, prices, trust)
    held = hold_weights(targets, marks, cost_bps)
    own = pd.Series(held.equity, pd.DatetimeIndex(held.dates)).pct_change().fillna(0.0).iloc[1:]
    record = make_record(
        own,
        name=Path(weights).stem,
        benchmark=rival,
        kind="returns",
        sessions_a_year=sessions_a_year,
    )
    missing = len(held.dates) - 1 - len(record.returns)
    if missing:
        raise ReturnsError(
            f"{record.benchmark_name} has no value on {missing} of the prices' dates; cut both"
            " files to their common dates"
        )
    note = f"Weights are traded at the next date's price, at a cost of {cost_bps:g} bps."
    free = () if cost_bps else ("trading free of costs",)
    return replace(record, holdings=held, notes=(note,), caveats=free + record.caveats)


def _read_matrix(path: Path | str, trust: bool) -> pd.DataFrame:
    frame, _ = to_frame(read_file(path, trust=trust).values, Path(path).name)

    def read(cells: pd.Series) -> pd.Series:
        numbers, is_percent = read_numbers(cells)
        return numbers / 100 if is_percent else numbers

    return frame.apply(read)


def read_benchmark(path: str, source: Path | str, trust: bool = False) -> pd.DataFrame:
    """Read a benchmark's file; a single column takes the file's name. Raises ReturnsError."""
    if not Path(path).is_file():
        raise ReturnsError(
            f"--benchmark {path}: neither a column of {Path(source).name} nor a file; give one of"
            " these, or cash"
        )
    content = read_file(path, trust=trust)
    frame, _ = to_frame(content.values, Path(path).name)
    return pick_column(frame, None, Path(path).name).to_frame(content.name)


def read_file(path: Path | str, *, column: str | None = None, trust: bool = False) -> ReturnsFile:
    """Read a file by its kind. `column`: the strategy of a freqtrade result with several. Raises
    ReturnsError."""
    path = Path(path)
    name = path.name.split(".")[0] or "strategy"
    kind = path.suffix.lower()
    if not path.is_file():
        raise ReturnsError(f"{path}: no such file; check the path")
    if kind in MODELS or _is_sb3(path):
        raise ReturnsError(
            f"{path.name} is a model, not returns; backtest it first (fintrader.backtest), and"
            " judge the result"
        )
    if kind in PICKLES and not trust:
        raise ReturnsError(
            f"{path.name} is a pickle, which can run any code when it is opened; save"
            " the returns as CSV or Parquet, or open it with --trust if you made it yourself"
        )
    try:
        if kind in PICKLES:
            return ReturnsFile(pd.read_pickle(path), name)  # noqa: S301  the user trusts it
        if kind in (".parquet", ".pq"):
            return ReturnsFile(pd.read_parquet(path), name)
        if kind in (".feather", ".arrow"):
            return ReturnsFile(pd.read_feather(path), name)
        if kind == ".json":
            return _read_json(path.read_bytes(), name, column)
        if kind == ".zip":
            return _read_zip(path, column)
        return ReturnsFile(read_table(path), name)
    except ReturnsError:
        raise
    except Exception as error:  # the parsers of foreign files raise errors of all kinds
        raise ReturnsError(
            f"{path.name} cannot be read as a table, a freqtrade or a Lean result"
            f" ({(str(error) or repr(error)).splitlines()[0]}); save dates"
            " and returns as CSV in UTF-8"
        ) from None


def read_table(path: Path | str) -> pd.DataFrame:
    """Read a table as text. Its separator is found in the header; decimal commas are allowed."""
    head = str(pd.read_csv(path, sep="\0", nrows=0, engine="python").columns[0])
    first = re.split("[\t;|,]", head)[0]
    # A first row that begins with a date is not a header.
    header = None if first.strip() and read_dates(pd.Series([first])) is not None else 0
    frame = pd.read_csv(path, sep=max("\t;|,", key=head.count), header=header)
    if not len(frame.columns) > 1:
        raise ReturnsError(
            f"{Path(path).name} has one column; give dates and values, in two columns"
        )
    return frame


def _is_sb3(path: Path) -> bool:
    if path.suffix.lower() != ".zip" or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return "policy.pth" in archive.namelist()


def _read_json(data: bytes, name: str, column: str | None) -> ReturnsFile:
    content = json.loads(data)
    if isinstance(_look_up(content, "strategy"), dict):
        return _read_freqtrade(content, column, {})
    charts = _look_up(content, "charts")
    if charts is None:
        raise ValueError(f"it holds {', '.join(map(str, content))}"[:80])
    equity = _read_chart(charts, "Strategy Equity", "Equity")
    if equity is None:
        raise ValueError("it has no chart `Strategy Equity` with a series `Equity`")
    return ReturnsFile(equity, name, "equity", _read_chart(charts, "Benchmark", "Benchmark"))


# --- freqtrade ------------------------------------------------------------------------------------


def _read_zip(path: Path, column: str | None) -> ReturnsFile:
    """Read freqtrade's archive: the result, and in newer versions the wallet and market by bar.
    Pickles and the strategy's code are not opened."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        results = [
            member
            for member in names
            if member.endswith(".json") and not member.endswith(("_config.json", ".meta.json"))
        ]
        for member in results:
            content = json.loads(archive.read(member))
            if isinstance(_look_up(content, "strategy"), dict):
                stem = member.removesuffix(".json") + "_"
                tables = {
                    other.removeprefix(stem): pd.read_feather(io.BytesIO(archive.read(other)))
                    for other in names
                    if other.endswith(("_wallet.feather", "_market_change.feather"))
                }
                return _read_freqtrade(content, column, tables)
    raise ValueError(f"it holds {', '.join(names[:6])}")


def _read_freqtrade(
    content: Mapping[str, Any], column: str | None, tables: Mapping[str, pd.DataFrame]
) -> ReturnsFile:
    strategies = content["strategy"]
    if column not in strategies and (column or len(strategies) > 1):
        raise ReturnsError(
            f"the result holds {len(strategies)} strategies: {', '.join(strategies)}; choose one"
            f" (--column NAME), and say how many were tried: --trials {len(strategies)} or more"
        )
    name = str(column if column in strategies else next(iter(strategies)))
    result = strategies[name]
    market = tables.get("market_change.feather")
    wallet = tables.get(f"{name}_wallet.feather")
    benchmark = None
    if market is not None:
        steps = market["rel_mean"].diff().fillna(0.0)  # rel_mean sums each bar's mean return
        benchmark = pd.Series(steps.to_numpy(), pd.DatetimeIndex(market["date"]), name="its pairs")
    if wallet is not None:
        equity = wallet.groupby("date")["total_quote"].sum()
        return ReturnsFile(equity.rename("equity"), name, "equity", benchmark)
    trades = pd.DataFrame(result["trades"])
    if trades.empty:
        raise ReturnsError(f"{name} made no trade: there is nothing to judge")
    days = float(trades["trade_duration"].mean()) / 1440
    closed = pd.to_datetime(trades["close_date"], utc=True).dt.tz_localize(None).dt.normalize()
    stated = [pd.Timestamp(result[key]) for key in WINDOW if result.get(key)]
    edges = [closed.min(), closed.max(), *(time.tz_localize(None).normalize() for time in stated)]
    every = pd.date_range(min(edges), max(edges))
    profit = trades["profit_abs"].groupby(closed).sum().reindex(every, fill_value=0.0)
    wealth = float(result["starting_balance"]) + profit.cumsum()
    return ReturnsFile(
        (profit / (wealth - profit)).rename("returns"),
        name,
        "returns",
        benchmark,
        notes=("Its profits are booked when its trades close.",),
        caveats=(CLOSED_TRADES.format(days=days),) if days >= LONG_TRADES_DAYS else (),
    )


# --- Lean -----------------------------------------------------------------------------------------


def _read_chart(charts: Mapping[str, Any], chart: str, series: str) -> pd.Series | None:
    """Read a chart's series: points `{x, y}`, `[time, value]` or `[time, open, high, low, close]`,
    times in seconds since 1970."""
    lines = _look_up(_look_up(charts, chart) or {}, "series") or {}
    points = _look_up(_look_up(lines, series) or {}, "values")
    if not points:
        return None
    pairs = [
        (point["x"], point["y"]) if isinstance(point, dict) else (point[0], point[-1])
        for point in points
    ]
    by_time = {time: value for time, value in pairs if value is not None}
    # A day's point is stamped at the following midnight in New York.
    times = pd.to_datetime(np.array(list(by_time), dtype=np.int64) - 1, unit="s", utc=True)
    index = times.tz_convert("America/New_York")
    return pd.Series(np.array(list(by_time.values()), dtype=np.float64), index, name=series.lower())


def _look_up(mapping: Any, name: str) -> Any:
    """Find a value by its name in upper or lower case, as versions of Lean differ."""
    if not isinstance(mapping, dict):
        return None
    return next((value for key, value in mapping.items() if key.lower() == name.lower()), None)
