"""The tear sheet that quants know, drawn by pyfolio from a stored backtest (extra `report`)."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fintrader.errors import BacktestError
from fintrader.files import atomic_file
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.formatting import main_strategy

FORMATS = (".png", ".pdf")
LEAST_SESSIONS = 22
"""pyfolio resamples to months; below one month there is nothing to draw."""


def tear_sheet_inputs(stored: StoredBacktest, strategy: str) -> dict[str, Any]:
    """What pyfolio asks for: daily returns, positions (USD, cash included), transactions and benchmark returns."""
    returns = stored.daily_returns()
    days = pd.DatetimeIndex(returns.index).normalize()
    daily = returns[strategy].set_axis(days)
    held = stored.positions[stored.positions["strategy"] == strategy]
    value = held.assign(value=held["shares"] * held["price_usd"])
    positions = value.pivot(index="minute", columns="symbol", values="value")
    ends = pd.DatetimeIndex(stored.daily().index)
    positions = positions.reindex(ends).fillna(0.0)
    positions["cash"] = stored.daily("cash_usd")[strategy].to_numpy()
    positions.index = days
    trades = stored.trades[(stored.trades["strategy"] == strategy) & (stored.trades["kind"] != "split")]
    named = {"amount": "shares", "price": "price_usd", "symbol": "symbol"}
    columns = {name: trades[column].to_numpy() for name, column in named.items()}
    columns["txn_dollars"] = -(trades["shares"] * trades["price_usd"]).to_numpy()
    transactions = pd.DataFrame(columns, index=pd.DatetimeIndex(trades["fill_time"]))
    benchmark = returns["benchmark"].set_axis(days) if "benchmark" in returns.columns else None
    return {"returns": daily, "positions": positions, "transactions": transactions, "benchmark_rets": benchmark}


def why_no_tear_sheet(stored: StoredBacktest) -> str | None:
    """Why none can be drawn of this backtest here, or None if one can."""
    sessions = len(stored.daily())
    if sessions < LEAST_SESSIONS:
        return f"{sessions} sessions are too few for a tear sheet; it needs {LEAST_SESSIONS}"
    if importlib.util.find_spec("pyfolio") is None:
        return "a tear sheet needs pyfolio; install it with `pip install fintrader[report]`"
    return None


def write_tear_sheet(path: Path, stored: StoredBacktest, *, strategy: str | None = None) -> Path:
    """Draw the tear sheet of a strategy (the report's by default) as PNG or PDF.

    Raises BacktestError when pyfolio is not installed, the ending is another, or the window is too short.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise BacktestError(f"{path}: a tear sheet is a .png or a .pdf file")
    strategy = strategy or main_strategy(stored.strategies)
    if strategy not in stored.strategies:
        raise BacktestError(f"no strategy {strategy!r} in this backtest; known: {', '.join(stored.strategies)}")
    why = why_no_tear_sheet(stored)
    if why is not None:
        raise BacktestError(why)
    inputs = tear_sheet_inputs(stored, strategy)
    inputs.pop("transactions")  # hundreds of thousands of minute fills: turnover is in our own report
    with warnings.catch_warnings(), np.errstate(all="ignore"), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # pyfolio imports and draws with many, and prints its tables as objects
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        import pyfolio

        positions = inputs.pop("positions")
        figure = pyfolio.create_returns_tear_sheet(**inputs, positions=positions, return_fig=True)
        # No time of writing, so that equal results give equal files.
        timeless = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
        with atomic_file(path) as file:
            figure.savefig(file, format=path.suffix[1:], dpi=80, bbox_inches="tight", metadata=timeless)
        plt.close("all")
    return path
