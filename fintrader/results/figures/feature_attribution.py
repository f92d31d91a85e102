"""Charts of the inputs that moved a strategy's decisions."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from fintrader.results.explanation import Explanation
from fintrader.results.figures.returns import heat_map
from fintrader.results.figures.style import SINGLE, choose_colour, escape_label, layout
from fintrader.results.formatting import format_title

MOST_INPUTS = 15
"""Most bars of the importance chart; a note counts the inputs left out."""
MOST_COLUMNS = 10
"""Most inputs in the chart of one decision."""


def importance_figure(explanation: Explanation) -> go.Figure:
    """Draw the share of the account that each input moved, the mean of the examined decisions."""
    ranked = explanation.importance()
    shown = ranked if len(ranked) <= MOST_INPUTS else ranked[: MOST_INPUTS - 1]
    figure = go.Figure(
        go.Bar(
            x=shown.to_numpy()[::-1],
            y=[escape_label(format_title(str(name))) for name in shown.index][::-1],
            orientation="h",
            marker_color=choose_colour(explanation.strategy, 0),
            hovertemplate="%{y}: %{x:.2%} of the account<extra></extra>",
        )
    )
    x_title = "share of the account moved, mean"
    layout(figure, "", "", x_title, height=110 + 22 * len(shown), **SINGLE)
    figure.update_xaxes(tickformat=".1~%", rangemode="tozero", showgrid=True)
    figure.update_yaxes(automargin=True, showgrid=False)
    left = len(ranked) - len(shown)
    if left:
        note = (
            f"{left} more inputs moved {ranked.iloc[len(shown)]:.2%} of the account at most each."
        )
        figure.update_layout(meta={"note": note})
    return figure


def decision_figure(explanation: Explanation, k: int) -> go.Figure:
    """Draw by how many points of weight each input raised (blue) or lowered (red) each symbol in
    decision `k`."""
    decision = explanation.decisions[k]
    raised = np.array(decision.raised).reshape(len(decision.symbols), len(explanation.inputs))
    order = np.argsort(-np.abs(raised).sum(axis=0), kind="stable")[:MOST_COLUMNS]
    points = 100.0 * raised[:, order]
    names = [escape_label(format_title(explanation.inputs[column])) for column in order]
    named = zip(decision.symbols, decision.weights, strict=True)
    rows = [f"{escape_label(symbol)} ({weight:.1%})" for symbol, weight in named]
    hover = "%{x} moved %{y} by %{z:.2f} points of weight"
    figure = heat_map(points, names, rows, hover, texttemplate="%{z:.1f}")
    figure.data[0].colorbar.title = {"text": "points", "side": "right"}
    layout(
        figure,
        "Inputs that moved this decision",
        "",
        height=190 + 34 * len(rows),
        hovermode="closest",
    )
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    figure.update_xaxes(tickangle=-35, automargin=True)
    return figure
