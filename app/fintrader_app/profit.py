"""Where a backtest's profit came from: by symbol, by month, and round trip by round trip. The
report shows the same."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import pandas as pd
import streamlit as st

from fintrader.results import figures
from fintrader.results.allocation import OTHER, pnl_by_month, pnl_table, symbol_pnl, trips
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.formatting import count, duration, usd
from fintrader.results.history import round_trips
from fintrader_app import charts
from fintrader_app.shell import human, plain
from fintrader_app.tables import table

MOST_LOTS = 2000
TALL = 12
"""Rows above which a table is scrolled."""
SYMBOLS = {
    "symbol": "Symbol",
    "profit_usd": "Profit, net",
    "cost_usd": "of which costs",
    "fills": "Fills",
}
MONTHS = {
    "month": "Month",
    "profit_usd": "Profit, net",
    "best": "Best symbol",
    "best_usd": "Its profit",
    "worst": "Worst symbol",
    "worst_usd": "Its profit or loss",
}
TRIPS = {
    "which": "Lots",
    "lots": "Number",
    "profit_usd": "Profit",
    "mean_usd": "Mean",
    "median_usd": "Median",
    "best_usd": "Best",
    "worst_usd": "Worst",
    "held": "Mean holding",
}
LOTS = {
    "symbol": "Symbol",
    "opened": "Opened",
    "closed": "Closed",
    "shares": "Shares",
    "profit_usd": "Profit, net",
    "held": "Held",
}


class Profit(NamedTuple):
    """What the page shows of one strategy."""

    made: pd.DataFrame
    """`[S, N + 1]` USD of each session and symbol, and OTHER."""
    symbols: pd.DataFrame
    months: pd.DataFrame
    trips: list[dict[str, Any]]
    lots: pd.DataFrame
    """The last MOST_LOTS closed ones, the newest first."""
    closed: int
    """How many there were."""


@st.cache_data(max_entries=8, show_spinner=False)
def load_profit(version: Hashable, main: str, timezone: str, _stored: StoredBacktest) -> Profit:
    """`version`: of the files of `_stored`, whose times are in `timezone`."""
    trades = _stored.trades[_stored.trades["strategy"] == main]
    made = symbol_pnl(_stored, main)
    closed = round_trips(trades)
    months = pnl_by_month(made, timezone)
    return Profit(
        made,
        pnl_table(made, trades),
        months,
        trips(trades),
        closed.iloc[: -MOST_LOTS - 1 : -1],
        len(closed),
    )


def show_profit(stored: StoredBacktest, version: Hashable, main: str) -> None:
    """Everything, of one strategy; a message for one that never traded."""
    if not (stored.trades["strategy"] == main).any():
        st.info(f"{human(main)} made no trade.", icon=":material/inbox:")
        return
    found = load_profit(version, main, stored.timezone, stored)
    show_symbols(found)
    show_closed_lots(found)


def show_symbols(found: Profit) -> None:
    made = found.made
    listed = found.symbols
    st.subheader("Profit so far by symbol, net of costs", anchor=False)
    charts.show(figures.pnl_figure(made), "profit_so_far", height=380)
    left, right = st.columns(2)
    with left:
        st.subheader("Symbols", anchor=False)
        show_money_table(listed.rename_axis("symbol").reset_index(), "profit_symbols", SYMBOLS)
        st.caption(
            f"{format_money(made.to_numpy().sum())} in all,"
            f" {OTHER} of {format_money(made[OTHER].sum())} among it,"
            f" after {format_money(listed['cost_usd'].sum())} costs of {count(listed['fills'].sum())}"
            " fills. A symbol's profit: what its position gained between session closes, less what"
            " was paid for it and the costs of its trades."
        )
    with right:
        st.subheader("Months", anchor=False)
        show_money_table(found.months.reset_index(), "profit_months", MONTHS)


def show_closed_lots(found: Profit) -> None:
    st.subheader("Round trips", anchor=False)
    if not found.trips:
        st.info("No position was ever closed.", icon=":material/inbox:")
        return
    rows = [{**row, "held": format_held(row["mean_minutes"])} for row in found.trips]
    show_money_table(pd.DataFrame(rows), "profit_trips", TRIPS)
    st.caption("First in, first out; net of both trades' costs; nights and weekends count as time.")
    times = {
        name: found.lots[name].dt.tz_localize(None) for name in ("opened", "closed")
    }  # as the clock shows them
    show_money_table(
        found.lots.assign(**times, held=found.lots["minutes"].map(format_held)), "profit_lots", LOTS
    )
    if found.closed > MOST_LOTS:
        st.caption(f"The last {count(MOST_LOTS)} of {count(found.closed)}.")


def format_held(minutes: float | None) -> str:
    """How long a position was held."""
    return duration(None if minutes is None else 60 * minutes)


def format_money(value: float) -> str:
    """An amount in a sentence; less than a cent is none."""
    return plain(usd(round(value, 2) + 0.0))


def show_money_table(rows: pd.DataFrame, key: str, named: dict[str, str]) -> None:
    """The columns `named` (what -> its title): those that end in `usd` as dollars, a long table
    scrolled."""
    first = next(iter(named))
    shown = rows[list(named)].astype({first: str})
    amounts = [what for what in named if what.endswith("usd")]
    shown[amounts] = shown[amounts].round(2) + 0.0  # no cent is no loss
    config: dict[str, Any] = {
        **named,
        first: st.column_config.TextColumn(named[first], pinned=True),
    }
    config |= {
        what: st.column_config.NumberColumn(named[what], format="dollar") for what in amounts
    }
    for what in {"opened", "closed"} & set(named):
        config[what] = st.column_config.DatetimeColumn(named[what], format="YYYY-MM-DD HH:mm")
    for what in {"lots", "fills"} & set(named):
        config[what] = st.column_config.NumberColumn(named[what], format="localized")
    height: Any = "content" if len(rows) <= TALL else 38 + 35 * TALL
    table(shown, key, column_config=config, height=height)
