"""Trades on the price, and how the result depends on one choice at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from fintrader.results.figures.style import INK, MUTED, colour_of, layout, time_axis

BUY, SELL = "#0b6e99", "#b42318"


MOST_MARKS = 600


def trades_figure(closes: pd.Series, trades: pd.DataFrame, *, symbol: str) -> go.Figure:
    """A symbol's session closes with the fills on them. `closes`: index the session's last bar, UTC.

    Fills stand between the sessions' closes at their own time; beyond MOST_MARKS only the largest are drawn.
    """
    times = pd.DatetimeIndex(closes.index)
    x = np.arange(len(times), dtype=np.float64)
    figure = go.Figure(
        go.Scatter(
            x=x,
            y=closes.to_numpy(),
            name="session close",
            mode="lines",
            line={"color": MUTED, "width": 1.4},
            customdata=list(times.strftime("%d %b %Y")),
            hovertemplate="%{customdata}: %{y:,.2f} USD<extra></extra>",
        )
    )
    own = trades[trades["symbol"] == symbol]
    cut = len(own) > MOST_MARKS
    if cut:
        own = own.nlargest(MOST_MARKS, "notional_usd", keep="all")[:MOST_MARKS].sort_values("fill_bar", kind="stable")
    ends = times.as_unit("ns").asi8
    for label, rows, colour, mark in (
        ("bought", own[own["shares"] > 0], BUY, "triangle-up"),
        ("sold", own[own["shares"] < 0], SELL, "triangle-down"),
    ):
        filled = pd.DatetimeIndex(rows["fill_time"])
        at = np.interp(filled.as_unit("ns").asi8, ends, x) if len(ends) > 1 else np.zeros(len(rows))
        figure.add_trace(
            go.Scatter(
                x=at,
                y=rows["price_usd"].to_numpy(),
                name=label,
                mode="markers",
                marker={"color": colour, "symbol": mark, "size": 8, "line": {"color": "white", "width": 0.5}},
                customdata=[
                    (time.strftime("%Y-%m-%d %H:%M UTC"), f"{shares:+,.6g}")
                    for time, shares in zip(filled, rows["shares"], strict=True)
                ],
                hovertemplate="%{customdata[0]}: %{customdata[1]} at %{y:,.2f}<extra></extra>",
            )
        )
    time_axis(figure, times)
    title = f"{symbol}: fills on its price" + (f" (the {MOST_MARKS} largest)" if cut else "")
    return layout(figure, title, "USD", height=360).update_layout(hovermode="closest")


def cost_figure(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Return at every proportional cost. `rows`: the `cost_bps` rows of `sensitivity`."""
    x = [float(row["setting"]) for row in rows]
    figure = go.Figure(
        go.Scatter(
            x=x,
            y=[row["cumulative_return"] for row in rows],
            customdata=[[row["sharpe"]] for row in rows],
            mode="lines+markers",
            line={"color": colour_of("ensemble", 0), "width": 2},
            marker={"size": [11 if row["chosen"] else 7 for row in rows]},
            hovertemplate="%{x} bps: %{y:.2%}, Sharpe %{customdata[0]:.2f}<extra></extra>",
        )
    )
    figure.add_hline(y=0, line={"color": "#9aa5b1", "width": 1})
    for row in rows:
        if row["chosen"] and row["cumulative_return"] is not None:
            figure.add_annotation(
                x=float(row["setting"]), y=row["cumulative_return"], text="as traded", yshift=18, showarrow=False
            )
    figure = layout(figure, "Return at other costs", "cumulative return", percent=True, height=320)
    figure.update_xaxes(title={"text": "cost, basis points of every trade's notional", "font": {"color": MUTED}})
    return figure.update_layout(hovermode="closest", showlegend=False, margin_b=56)


def without_figure(rows: Sequence[Mapping[str, Any]], returned: float | None, *, most: int = 20) -> go.Figure:
    """What the result loses (or gains) without each symbol, the `most` that matter. `rows`: the `without` rows."""
    base = returned or 0.0
    outcomes = [(str(row["setting"]), row["cumulative_return"]) for row in rows]
    known = [(symbol, value - base) for symbol, value in outcomes if value is not None]
    ranked = sorted(known, key=lambda pair: (-abs(pair[1]), pair[0]))[:most]
    ranked.sort(key=lambda pair: (pair[1], pair[0]))
    figure = go.Figure(
        go.Bar(
            x=[pair[1] for pair in ranked],
            y=[pair[0] for pair in ranked],
            orientation="h",
            marker={"color": [SELL if pair[1] < 0 else BUY for pair in ranked]},
            hovertemplate="without %{y}: %{x:+.2%}<extra></extra>",
        )
    )
    title = "Change of the return without one symbol"
    figure = layout(figure, title, "", height=max(220, 90 + 22 * len(ranked)))
    figure.update_xaxes(tickformat="+.1%", zeroline=True, zerolinecolor=INK)
    figure.update_yaxes(tickformat=None)
    return figure.update_layout(hovermode="closest", showlegend=False)
