"""The tear sheet that quants know, drawn by pyfolio from a stored backtest (extra `report`)."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import textwrap
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fintrader.errors import BacktestError, install_command
from fintrader.files import atomic_file
from fintrader.results import figures
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.formatting import main_strategy

FORMATS = (".png", ".pdf")
LEAST_SESSIONS = 22
"""pyfolio resamples to months; below one month there is nothing to draw."""


def tear_sheet_inputs(
    stored: StoredBacktest, strategy: str
) -> tuple[pd.Series, pd.DataFrame, pd.DataFrame, pd.Series | None]:
    """Prepare pyfolio's inputs, on the market's clock: daily returns, positions (USD, cash
    included), transactions and benchmark returns."""
    stored = stored.on_clock(stored.market_timezone)
    returns = stored.daily_returns()
    days = pd.DatetimeIndex(returns.index).normalize()
    held = stored.positions[stored.positions["strategy"] == strategy]
    value = held.assign(value=held["shares"] * held["price_usd"])
    positions = value.pivot(index="minute", columns="symbol", values="value")
    ends = pd.DatetimeIndex(stored.daily().index)
    positions = positions.reindex(ends).fillna(0.0)
    positions["cash"] = stored.daily("cash_usd")[strategy].to_numpy()
    positions.index = days
    trades = stored.select_fills(strategy)
    named = {"shares": "amount", "price_usd": "price"}
    transactions = trades.set_index("fill_time")[["symbol", *named]].rename(columns=named)
    transactions["txn_dollars"] = -transactions["amount"] * transactions["price"]
    has_benchmark = "benchmark" in returns.columns and strategy != "benchmark"
    benchmark = returns["benchmark"].set_axis(days).rename("Index") if has_benchmark else None
    return returns[strategy].set_axis(days), positions, transactions, benchmark


def why_no_tear_sheet(stored: StoredBacktest) -> str | None:
    """Explain why no tear sheet can be drawn of this backtest here; None if one can."""
    sessions = len(stored.daily())
    if sessions < LEAST_SESSIONS:
        return f"pyfolio needs {LEAST_SESSIONS} sessions, and there are {sessions}"
    if importlib.util.find_spec("pyfolio") is None:
        return f"a tear sheet needs pyfolio; install it with `{install_command('report')}`"
    return None


def explain_absence(stored: StoredBacktest) -> str:
    """Explain how a run's backtest gets the tear sheet that it lacks."""
    why = why_no_tear_sheet(stored)
    if why is not None:
        return f"There is no tear sheet: {why}."
    command = re.sub(r" --backtest.tear.sheet[ =]\w+", "", stored.context.command or "")
    if not command.startswith("fintrader backtest"):
        command = f"fintrader backtest runs/{stored.context.run}"
    return f"There is no tear sheet: `{command} --backtest.tear-sheet png` draws pyfolio's."


def write_tear_sheet(path: Path, stored: StoredBacktest) -> Path:
    """Draw the tear sheet of the main strategy as PNG or PDF.

    Raises BacktestError when pyfolio is not installed, the file's ending is not of `FORMATS`, or
    the window is too short.
    """
    if path.suffix not in FORMATS:
        raise BacktestError(f"{path}: a tear sheet is a .png or a .pdf file")
    why = why_no_tear_sheet(stored)
    if why is not None:
        raise BacktestError(why)
    with (
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")  # pyfolio warns often, and prints tables
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        figure = tear_sheet(stored, main_strategy(stored.strategies))
        # No time of writing, so that equal results give equal files.
        timeless = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
        with atomic_file(path) as file:
            figure.savefig(file, format=path.suffix[1:], dpi=80, metadata=timeless)
        plt.close("all")
    return path


def tear_sheet(stored: StoredBacktest, strategy: str) -> Any:
    """pyfolio's panels of returns, positions and transactions as one matplotlib figure.

    pyfolio's own sheets look back six months for rolling figures, and are empty below that; here
    the windows are those of the report (`figures.rolling_sessions`). Panels without data are left
    out.
    """
    import matplotlib.pyplot as plt
    from pyfolio import plotting, pos, timeseries

    returns, positions, transactions, benchmark = tear_sheet_inputs(stored, strategy)
    window = figures.rolling_sessions(len(returns)) or LEAST_SESSIONS
    rolling = f"({window} sessions)"
    zone = stored.market_timezone
    panels: dict[str, partial[Any]] = {}

    def add(title: str, name: str, *given: Any, **options: Any) -> None:
        panels[title] = partial(getattr(plotting, f"plot_{name}"), *given, **options)

    add("Cumulative returns", "rolling_returns", returns, factor_returns=benchmark)
    add("Returns", "returns", returns)
    if benchmark is not None and benchmark.std() > 0:
        beta = timeseries.rolling_beta(returns, benchmark, rolling_window=window)
        panels[f"Rolling beta to the index {rolling}"] = partial(
            beta.plot, ylabel="Beta", xlabel=""
        )
    add(f"Rolling Sharpe ratio {rolling}", "rolling_sharpe", returns, rolling_window=window)
    add("Top 5 drawdown periods", "drawdown_periods", returns, top=5)
    add("Underwater plot", "drawdown_underwater", returns)
    add("Return quantiles", "return_quantiles", returns)
    if positions.drop(columns="cash").to_numpy().any():
        alloc = pos.get_percent_alloc(positions)
        add("Exposure", "exposures", returns, positions)
        panels["Top 10 positions"] = partial(
            plotting.show_and_plot_top_positions, returns, alloc, show_and_plot=0
        )
        add("Position concentration", "max_median_position_concentration", positions)
        add("Holdings", "holdings", returns, positions)
    if len(transactions):
        add("Daily turnover", "turnover", returns, transactions, positions)
        add("Daily trading volume", "daily_volume", returns, transactions)
        add(f"Transactions by time of day, {zone}", "txn_time_hist", transactions, tz=zone)
    rows = len(panels)
    add("Monthly returns (%)", "monthly_returns_heatmap", returns)
    add("Annual returns", "annual_returns", returns)
    add("Distribution of monthly returns", "monthly_returns_dist", returns)
    figure = plt.figure(figsize=(14, 5 * (rows + 1)))
    # Margins are set here: a tight box would draw everything once more to measure it.
    inches = figure.get_figheight()
    edges = {"left": 0.08, "right": 0.96, "bottom": 0.8 / inches, "top": 1 - 1.2 / inches}
    grid = figure.add_gridspec(rows + 1, 3, wspace=0.5, hspace=0.5, **edges)
    if stored.notice:
        words = textwrap.fill(stored.notice, 120)
        figure.text(
            0.5, 1 - 0.7 / inches, words, ha="center", color="#b42318", fontsize=14, weight="bold"
        )
    for place, (title, plot) in enumerate(panels.items()):
        wide = place < rows
        ax = figure.add_subplot(grid[place, :] if wide else grid[rows, place - rows])
        plot(ax=ax)
        ax.set_title(title)
    return figure
