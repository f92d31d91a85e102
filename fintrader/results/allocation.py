"""Profit by symbol and round trip, and distance of the holdings from the benchmark portfolio."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from fintrader.results.analysis import Variation
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.history import round_trips
from fintrader.results.periods import find_months

OTHER = "dividends and interest"
"""Payments without a trade, whose symbol is unknown."""


def symbol_pnl(stored: StoredBacktest, strategy: str) -> pd.DataFrame:
    """Profit in USD, net of the trades' costs, of each session (index: its last bar) and symbol,
    and OTHER.

    A symbol's profit is the change of its position's value between two session closes, less the
    amounts paid for it and its trades' costs. A row sums to the change of the equity, the whole
    table to the profit.
    """
    ends = stored.ends
    index = stored.minutes[ends]
    own = stored.positions[stored.positions["strategy"] == strategy].astype({"symbol": str})
    trades = stored.select_fills(strategy).astype({"symbol": str})
    value = own.assign(usd=own["shares"] * own["price_usd"]).pivot(
        index="minute", columns="symbol", values="usd"
    )
    paid = trades.assign(usd=trades["shares"] * trades["price_usd"] + trades["cost_usd"])
    place = np.searchsorted(ends, paid["fill_bar"].to_numpy())
    flows = paid.assign(minute=index[place]).pivot_table(
        index="minute", columns="symbol", values="usd", aggfunc="sum"
    )
    symbols = sorted({*value.columns, *flows.columns})
    value, flows = (
        part.reindex(index=index, columns=symbols).fillna(0.0) for part in (value, flows)
    )
    profit = value.diff().fillna(value.iloc[:1]) - flows
    wealth = stored.daily_with_start()[strategy].to_numpy()
    profit[OTHER] = np.diff(wealth) - profit.sum(axis=1).to_numpy()
    return profit.rename_axis(index="minute", columns=None)


def pnl_table(profit: pd.DataFrame, trades: pd.DataFrame) -> pd.DataFrame:
    """One row a symbol, the largest profit first: `profit_usd`, `cost_usd`, `fills`. `profit`: of
    `symbol_pnl`."""
    traded = trades[trades["kind"] != "split"].astype({"symbol": str}).groupby("symbol")
    gain = profit.drop(columns=OTHER).sum()
    columns = {"profit_usd": gain, "cost_usd": traded["cost_usd"].sum(), "fills": traded.size()}
    table = pd.DataFrame(columns, index=gain.index).fillna(0.0).astype({"fills": int})
    return table.sort_values("profit_usd", ascending=False, kind="stable")


def pnl_by_month(profit: pd.DataFrame, timezone: str) -> pd.DataFrame:
    """One row a calendar month (index: `2020-03`): `profit_usd`, and `best`, `best_usd`, `worst`,
    `worst_usd`: the symbols that made most and least in it. `profit`: of `symbol_pnl`."""
    months = find_months(profit.index, timezone)
    made = profit.drop(columns=OTHER).groupby(months).sum()
    return pd.DataFrame(
        {
            "profit_usd": profit.sum(axis=1).groupby(months).sum(),
            "best": made.idxmax(axis=1),
            "best_usd": made.max(axis=1),
            "worst": made.idxmin(axis=1),
            "worst_usd": made.min(axis=1),
        }
    )


def summarise_trips(trades: pd.DataFrame) -> pd.DataFrame:
    """Summarise the closed lots (first in, first out) of `trades`: all of them, those with a gain,
    and those without; empty where none was closed.

    Columns: `lots`; `sum`, `mean`, `median`, `max` and `min` of their profit in USD; `minutes`, the
    mean holding time. NaN for a group without lots.
    """
    closed = round_trips(trades)
    if closed.empty:
        return closed
    profit = closed["profit_usd"]
    groups = {"All": closed, "With a gain": closed[profit > 0], "Without": closed[profit <= 0]}
    rows = {
        name: {
            "lots": len(part),
            **part["profit_usd"].agg(["sum", "mean", "median", "max", "min"]),
            "minutes": part["minutes"].mean(),
        }
        for name, part in groups.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def active_shares(stored: StoredBacktest, strategy: str, portfolio: str | None) -> pd.DataFrame:
    """At each session's close: `invested` (Σ|w|), `names` held, `effective` names (1/Σ(w/Σ|w|)²),
    `active_share`.

    The active share is ½ Σ|w − b| over the symbols and cash, b being the portfolio's weights;
    without a portfolio, or one without positions, b is all cash.
    """
    own = stored.weights(strategy)
    theirs = stored.weights(portfolio) if portfolio is not None else own * 0.0
    symbols = sorted({*own.columns, *theirs.columns})
    own, theirs = (part.reindex(columns=symbols).fillna(0.0) for part in (own, theirs))
    gross = own.abs().sum(axis=1)
    square = np.square(own).sum(axis=1)
    apart = (own - theirs).abs().sum(axis=1) + (own.sum(axis=1) - theirs.sum(axis=1)).abs()
    return pd.DataFrame(
        {
            "invested": gross,
            "names": (own != 0).sum(axis=1),
            "effective": (gross**2 / square.where(square > 0)).fillna(0.0),
            "active_share": apart / 2,
        }
    )


def at_other_capital(variations: Iterable[Variation]) -> list[Variation]:
    """Select the simulations with other capital, the smallest first."""
    rows = [row for row in variations if row.kind == "capital_usd"]
    return sorted(rows, key=lambda row: row.number)
