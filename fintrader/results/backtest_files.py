"""A stored backtest, read back."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from fintrader import metrics as m
from fintrader.errors import RunError
from fintrader.files import read_json

EQUITY_COLUMNS = (
    "strategy",
    "bar",
    "minute",
    "session",
    "equity_usd",
    "cash_usd",
    "cost_usd",
    "turnover_usd",
    "exposure",
)


PRICE_COLUMNS = ("minute", "session", "symbol", "close_usd")


POSITION_COLUMNS = ("strategy", "minute", "session", "symbol", "shares", "price_usd", "weight")


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


def empty_trades() -> pd.DataFrame:
    """A trade list without a trade, its columns of the right types."""
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in TRADE_COLUMNS.items()})


@dataclass(frozen=True, eq=False)
class StoredBacktest:
    """A backtest as tables: what the app, the notebooks and the report read."""

    metrics: dict[str, dict[str, float | None]]
    equity: pd.DataFrame = field(repr=False)
    """Columns EQUITY_COLUMNS."""
    positions: pd.DataFrame = field(repr=False)
    """Columns POSITION_COLUMNS."""
    trades: pd.DataFrame = field(repr=False)
    """`strategy` and the columns of `result.TRADE_COLUMNS`."""
    context: dict[str, Any] = field(default_factory=dict)
    honesty: dict[str, Any] = field(default_factory=dict)
    """What `honesty.assess` said."""
    prices: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(PRICE_COLUMNS)), repr=False)
    """Columns PRICE_COLUMNS."""
    sensitivity: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """Rows of `sensitivity.sensitivity`."""

    @cached_property
    def strategies(self) -> list[str]:
        """In the order in which they were given."""
        return [str(name) for name in self.equity["strategy"].unique()]

    def curve(self, column: str = "equity_usd") -> pd.DataFrame:
        """Wide: index `minute` (UTC), one column a strategy, at every bar."""
        return self._wide(self.equity, column)

    def daily(self, column: str = "equity_usd") -> pd.DataFrame:
        """Wide, the last bar of each session only."""
        ends = self.equity.groupby(["strategy", "session"], sort=False).tail(1)
        return self._wide(ends, column)

    def daily_returns(self) -> pd.DataFrame:
        """Wide: return of each session, the first one against the starting capital."""
        first = self.equity.groupby("strategy", sort=False)["equity_usd"].first()
        daily = self.daily()
        return pd.DataFrame(
            {name: m.returns_of(daily[name].to_numpy(), start=first[name]) for name in daily.columns}, index=daily.index
        )

    def weights(self, strategy: str) -> pd.DataFrame:
        """Wide: index `minute` of each session's last bar, one column a symbol ever held at a close; 0 where not."""
        rows = self.positions[self.positions["strategy"] == strategy]
        wide = rows.pivot(index="minute", columns="symbol", values="weight")
        sessions = self.daily().index
        return wide.reindex(sessions).fillna(0.0)

    def _wide(self, rows: pd.DataFrame, column: str) -> pd.DataFrame:
        wide = rows.pivot(index="minute", columns="strategy", values=column)
        return wide[self.strategies]


def read_backtest(folder: Path | str) -> StoredBacktest:
    """Read what `write_backtest` wrote. Raises RunError when a file is missing or damaged, naming it."""
    folder = Path(folder)
    metrics = read_json(folder / "metrics.json")
    frames = {}
    tables = {
        "equity": EQUITY_COLUMNS,
        "positions": POSITION_COLUMNS,
        "prices": PRICE_COLUMNS,
        "trades": ("strategy", *TRADE_COLUMNS),
    }
    for name, columns in tables.items():
        path = folder / f"{name}.parquet"
        try:
            frames[name] = pd.read_parquet(path)
        except FileNotFoundError:
            raise RunError(f"{path} does not exist; run `fintrader backtest` on the run again") from None
        except (OSError, pa.ArrowException) as error:
            raise RunError(f"{path} is damaged ({error}); delete it and run `fintrader backtest` again") from None
        missing = [column for column in columns if column not in frames[name].columns]
        if missing:
            raise RunError(f"{path} has no column {missing[0]!r}; it was written by another version")
    if not isinstance(metrics, dict) or not all(isinstance(value, dict) for value in metrics.values()):
        raise RunError(f"{folder / 'metrics.json'} is not {{strategy: metrics}}; run `fintrader backtest` again")
    return StoredBacktest(
        metrics=metrics,
        context=read_json(folder / "context.json"),
        honesty=read_json(folder / "honesty.json"),
        sensitivity=read_json(folder / "sensitivity.json"),
        **frames,
    )
