"""Where a strategy's profit came from, and when: the report's tables, on the Backtest page."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from fintrader.results import figures, periods
from fintrader.results.allocation import OTHER, pnl_table, symbol_pnl, trips
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.formatting import DASH, count, percent, ratio, usd
from fintrader_app import charts
from fintrader_app.shell import human
from fintrader_app.tables import table

ROW, MOST = 35, 320
"""Pixels of a table's row, and of the whole of it."""


def calendar_tables(stored: StoredBacktest, shown: list[str]) -> None:
    """Years and months of the strategies on the page."""
    zone = figures.timezone_of(stored.context)
    daily = stored.daily_returns()[shown]
    for title, frame in (("Year", periods.yearly(daily, zone)), ("Month", periods.monthly(daily, zone))):
        st.subheader(f"{title}s", anchor=False)
        columns = {human(name): [percent(value) for value in frame[name]] for name in shown}
        rows = {title: frame.index.astype(str), **columns, "Sessions": [count(number) for number in frame["sessions"]]}
        table(rows, f"calendar_{title.lower()}", right=[*columns, "Sessions"], pinned=title, height=height(len(frame)))


def profit(stored: StoredBacktest, main: str) -> None:
    """By symbol, and lot by lot."""
    trades = stored.trades[stored.trades["strategy"] == main]
    if trades.empty:
        st.info(f"{human(main)} made no trade.", icon=":material/inbox:")
        return
    made = symbol_pnl(stored, main)
    st.subheader("Profit by symbol", anchor=False)
    charts.show(figures.pnl_figure(made), "profit_symbols")
    by_symbol = pnl_table(made, trades)
    lines = [
        {"Symbol": str(name), "Profit, net": row.profit_usd, "of which costs": row.cost_usd, "Fills": row.fills}
        for name, row in zip(by_symbol.index, by_symbol.itertuples(index=False), strict=True)
    ]
    rest = float(made[OTHER].sum())
    lines.append({"Symbol": human(OTHER), "Profit, net": rest, "of which costs": 0.0, "Fills": 0})
    rows = pd.DataFrame(lines)
    money = {name: st.column_config.NumberColumn(format="dollar") for name in ("Profit, net", "of which costs")}
    config = {"Symbol": st.column_config.TextColumn(pinned=True), **money}
    table(rows, "profit_table", column_config=config, height=height(len(rows)))
    st.caption(
        "What a position gained between session closes, less what was paid for it and the costs of its trades. All "
        f"rows together are the change of the account: {usd(float(made.to_numpy().sum()))}."
    )
    st.subheader("Round trips", anchor=False)
    found = trips(trades)
    if not found:
        st.info("No position was ever closed.", icon=":material/inbox:")
        return
    closed = [
        {
            "Lots": row["which"],
            "Number": count(row["lots"]),
            **{
                title: usd(row[key])
                for title, key in (
                    ("Profit", "profit_usd"),
                    ("Mean", "mean_usd"),
                    ("Median", "median_usd"),
                    ("Best", "best_usd"),
                    ("Worst", "worst_usd"),
                )
            },
            "Mean holding": held(row["mean_minutes"]),
        }
        for row in found
    ]
    right = ["Number", "Profit", "Mean", "Median", "Best", "Worst", "Mean holding"]
    table(closed, "profit_trips", right=right, pinned="Lots")
    st.caption("First in, first out; net of both trades' costs; nights and weekends count as time.")


def held(minutes: float | None) -> str:
    if minutes is None:
        return DASH
    return f"{ratio(minutes / 1440, 1)} days" if minutes >= 1440 else f"{count(minutes)} minutes"


def height(rows: int) -> int:
    return min(ROW * rows + 38, MOST)
