"""What a result survives: other costs, fills, delays and starts, or a symbol less."""

from __future__ import annotations

from typing import Any

import streamlit as st

from fintrader.results import figures
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.formatting import number, percent, ratio
from fintrader_app import charts
from fintrader_app.shell import table
from fintrader_app.wording import human, label

KINDS = {
    "fill": "Where orders fill",
    "delay_bars": "Orders delayed, bars",
    "start_sessions": "Start shifted, sessions",
    "without": "Without a symbol",
}


def sensitivity(stored: StoredBacktest) -> None:
    """What the result survives: whole simulations with one choice changed, where they were run."""
    rows = stored.sensitivity
    swept = [(cost_of(row), number(row.get("cumulative_return")), row) for row in rows if row.get("kind") == "cost_bps"]
    points = [
        {"setting": x, "cumulative_return": y, "sharpe": number(row.get("sharpe")), "chosen": row.get("chosen") is True}
        for x, y, row in swept
        if x is not None and y is not None
    ]
    if len(points) < 2:
        costs(stored)
    else:
        st.subheader("Return at other costs", anchor=False)
        charts.show(figures.cost_figure(points), "honesty_sweep")
        st.caption("Return of the test window; every point is a whole simulation at that cost.")
    others = [row for row in rows if row.get("kind") in KINDS]
    if not others:
        return
    st.subheader("One choice changed at a time", anchor=False)
    shown = [
        {
            "Choice": KINDS[str(row["kind"])],
            "Setting": f"{row.get('setting')}" + (" (as run)" if row.get("chosen") is True else ""),
            "Return": percent(row.get("cumulative_return")),
            "Sharpe": ratio(row.get("sharpe")),
        }
        for row in others
    ]
    table(shown, "honesty_choices", right=("Return", "Sharpe"), height=300)


def cost_of(row: dict[str, Any]) -> float | None:
    try:
        return float(str(row.get("setting")))
    except ValueError:
        return None


def costs(stored: StoredBacktest) -> None:
    """How the result falls with costs, from the stored notional and costs."""
    st.subheader("Return at other costs", anchor=False)
    names = [name for name in stored.strategies if (stored.curve("turnover_usd")[name] > 0).any()]
    if not names:
        st.info("Nothing was traded.", icon=":material/inbox:")
        return
    columns = ("equity_usd", "cost_usd", "turnover_usd")
    tables = [stored.curve(column)[names].rename(columns=label) for column in columns]
    room = 18 * max(0, len(names) - 3)  # on a narrow screen the legend takes a line for each
    charts.show(figures.first_order_cost_figure(*tables), "honesty_costs", height=300 + room)
    even = ", ".join(
        f"{human(name)} {ratio(stored.metrics.get(name, {}).get('break_even_cost_bps'), 1)} bps" for name in names
    )
    st.caption(
        "First-order: the stored trades at another proportional cost, the money saved or lost not re-invested. "
        f"Break-even: {even}."
    )
