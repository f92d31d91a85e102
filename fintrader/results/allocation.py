"""Profit by symbol and round trip, and the distance of the holdings from the benchmark portfolio."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fintrader.results.analysis import Variation
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.history import round_trips

OTHER = "dividends and interest"
"""Payments without a trade, whose symbol the trade list does not name."""


def symbol_pnl(stored: StoredBacktest, strategy: str) -> pd.DataFrame:
    """Profit in USD, net of the trades' costs, of each session (index: its last bar) and symbol,
    and OTHER.

    That of a symbol is what its position gained between two session closes, less what was paid for
    it and its trades' costs. A row sums to the change of the equity, the whole table to the profit.
    """
    ends = stored.ends
    index = stored.minutes[ends]
    own = stored.positions[stored.positions["strategy"] == strategy].astype({"symbol": str})
    trades = stored.trades[
        (stored.trades["strategy"] == strategy) & (stored.trades["kind"] != "split")
    ]
    trades = trades.astype({"symbol": str})
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
    table = pd.DataFrame({"profit_usd": profit.drop(columns=OTHER).sum()})
    table["cost_usd"] = traded["cost_usd"].sum().reindex(table.index).fillna(0.0)
    table["fills"] = traded.size().reindex(table.index).fillna(0).astype(int)
    return table.sort_values("profit_usd", ascending=False, kind="stable")


def pnl_by_month(profit: pd.DataFrame, timezone: str) -> pd.DataFrame:
    """One row a calendar month (index: `2020-03`): `profit_usd`, and `best`, `best_usd`, `worst`,
    `worst_usd`: the symbols that made most and least in it. `profit`: of `symbol_pnl`."""
    months = pd.DatetimeIndex(profit.index).tz_convert(timezone).strftime("%Y-%m")
    made = profit.drop(columns=OTHER).groupby(months).sum()
    table = pd.DataFrame({"profit_usd": profit.sum(axis=1).groupby(months).sum()}).rename_axis(
        index="month"
    )
    return table.assign(
        best=made.idxmax(axis=1),
        best_usd=made.max(axis=1),
        worst=made.idxmin(axis=1),
        worst_usd=made.min(axis=1),
    )


@dataclass(frozen=True)
class TripSummary:
    """Closed lots of one kind."""

    name: str
    lots: int
    profit_usd: float
    mean_usd: float | None
    median_usd: float | None
    best_usd: float | None
    worst_usd: float | None
    mean_minutes: float | None
    longs: int


def summarise_trips(trades: pd.DataFrame) -> list[TripSummary]:
    """Summarise the closed lots (first in, first out) of `trades`: all of them, those with a gain,
    and those without; empty where none was closed."""
    closed = round_trips(trades)
    profit = closed["profit_usd"]
    groups = {"All": closed, "With a gain": closed[profit > 0], "Without": closed[profit <= 0]}
    return [_summarise(name, part) for name, part in groups.items()] if len(closed) else []


def _summarise(name: str, closed: pd.DataFrame) -> TripSummary:
    profit = closed["profit_usd"]
    has_lots = len(closed) > 0
    return TripSummary(
        name=name,
        lots=len(closed),
        profit_usd=float(profit.sum()),
        mean_usd=float(profit.mean()) if has_lots else None,
        median_usd=float(profit.median()) if has_lots else None,
        best_usd=float(profit.max()) if has_lots else None,
        worst_usd=float(profit.min()) if has_lots else None,
        mean_minutes=float(closed["minutes"].mean()) if has_lots else None,
        longs=int((closed["shares"] > 0).sum()),
    )


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
