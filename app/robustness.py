"""What a result survives: other costs, fills, delays and starts, or a symbol less."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.formatting import number, percent, ratio
from fintrader_app import charts
from fintrader_app.wording import human

KINDS = {
    "fill": "Where orders fill",
    "delay_bars": "Orders delayed, bars",
    "start_sessions": "Start shifted, sessions",
    "without": "Without a symbol",
}


def sensitivity(stored: StoredBacktest) -> None:
    """What the result survives: whole simulations with one choice changed, where they were run."""
    rows = stored.sensitivity
    swept = [(cost_of(row), number(row.get("cumulative_return"))) for row in rows if row.get("kind") == "cost_bps"]
    points = sorted((x, y) for x, y in swept if x is not None and y is not None)
    if len(points) < 2:
        costs(stored)
    else:
        st.subheader("Costs", anchor=False)
        line = (np.array([x for x, _ in points]), np.array([y for _, y in points]))
        figure = charts.lines({"result": line}, x_title="proportional cost, bps of notional", percent=True, height=300)
        figure.update_traces(mode="lines+markers")
        figure.add_hline(y=0, line={"width": 1, "color": "rgba(128,138,148,0.7)"})
        charts.show(figure, "honesty_sweep")
        st.caption("Return of the test window; every point is a whole simulation at that cost.")
    others = [row for row in rows if row.get("kind") in KINDS]
    if not others:
        return
    st.subheader("One choice changed at a time", anchor=False)
    table = [
        {
            "Choice": KINDS[str(row["kind"])],
            "Setting": f"{row.get('setting')}" + (" (as run)" if row.get("chosen") is True else ""),
            "Return": percent(row.get("cumulative_return")),
            "Sharpe": ratio(row.get("sharpe")),
        }
        for row in others
    ]
    config = {name: st.column_config.TextColumn(alignment="right") for name in ("Return", "Sharpe")}
    frame = pd.DataFrame(table)
    st.dataframe(frame, hide_index=True, width="stretch", height=300, key="honesty_choices", column_config=config)


def cost_of(row: dict[str, Any]) -> float | None:
    try:
        return float(str(row.get("setting")))
    except ValueError:
        return None


def costs(stored: StoredBacktest) -> None:
    """How the result falls with costs, from the stored notional and costs."""
    st.subheader("Costs", anchor=False)
    names = [name for name in stored.strategies if (stored.curve("turnover_usd")[name] > 0).any()]
    if not names:
        st.info("Nothing was traded.", icon=":material/inbox:")
        return
    steps = np.linspace(0, 50, 26)
    lines = {}
    for name in names:
        equity = stored.curve()[name].to_numpy()
        paid, traded = float(stored.curve("cost_usd")[name].sum()), float(stored.curve("turnover_usd")[name].sum())
        profit = equity[-1] - equity[0] + paid
        lines[human(name)] = (steps, (profit - traded * steps / 1e4) / equity[0])
    room = 18 * max(0, len(lines) - 3)  # on a narrow screen the legend takes a line for each
    figure = charts.lines(lines, x_title="proportional cost, bps of notional", percent=True, height=300 + room)
    for trace, name in zip(figure.data, names, strict=True):
        trace.line.color = charts.figures.colour_of(name, stored.strategies.index(name))
        trace.line.dash = charts.figures.DASHES.get(name, "solid")
    figure.add_hline(y=0, line={"width": 1, "color": "rgba(128,138,148,0.7)"})
    charts.show(figure, "honesty_costs")
    even = ", ".join(
        f"{human(name)} {ratio(stored.metrics.get(name, {}).get('break_even_cost_bps'), 1)} bps" for name in names
    )
    st.caption(
        "First-order: the stored trades at another proportional cost, the money saved or lost not re-invested. "
        f"Break-even: {even}."
    )
