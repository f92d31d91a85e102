"""Charts as `plotly.graph_objects.Figure`: pure functions of tables, shared by the report, the app and notebooks.

Curves come as wide tables (index: start of the bar, UTC; one column a strategy). The horizontal axis counts bars,
so that nights and weekends take no room; ticks and hovers show the time. Long curves are thinned to what a screen
can show, with the extremes of every stretch kept exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

POINTS = 2000
"""Most points of a drawn curve."""

INK, MUTED, GRID = "#1f2933", "#616e7c", "#e4e7eb"
PALETTE = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#b35900", "#2f8f9d", "#7f6d5f")
COLOURS = {
    "ensemble": "#0b4f9e",
    "policy": "#0b4f9e",
    "best": "#2a9d8f",
    "buy_and_hold": "#d9730d",
    "equal_weight": "#9065b0",
    "benchmark": "#616e7c",
    "cash": "#a0a8b0",
}
DASHES = {"benchmark": "dot", "buy_and_hold": "dash", "equal_weight": "dash", "cash": "dot"}


def title_of(strategy: str) -> str:
    """`equal_weight` as people read it: `Equal weight`."""
    return strategy.replace("_", " ").capitalize()


def colour_of(strategy: str, position: int) -> str:
    """The same strategy has the same colour in every chart."""
    return COLOURS.get(strategy, PALETTE[position % len(PALETTE)])


def thin(values: NDArray[np.float64], points: int = POINTS) -> NDArray[np.int64]:
    """Indices to draw: first, last, and the smallest and largest of each stretch; all when there are few."""
    size = len(values)
    if size <= points:
        return np.arange(size)
    stretch = -(-size // max(1, (points - 2) // 2))
    padded = np.pad(values, (0, -size % stretch), mode="edge").reshape(-1, stretch)
    starts = np.arange(len(padded)) * stretch
    kept = np.concatenate([[0], starts + padded.argmin(axis=1), starts + padded.argmax(axis=1), [size - 1]])
    return np.unique(np.minimum(kept, size - 1))


def _layout(figure: go.Figure, title: str, y_title: str, *, percent: bool = False, height: int = 380) -> go.Figure:
    figure.update_layout(
        title={"text": title, "x": 0, "xanchor": "left", "font": {"size": 16, "color": INK}},
        font={"family": "Inter, 'Segoe UI', system-ui, sans-serif", "size": 12, "color": INK},
        height=height,
        margin={"l": 64, "r": 16, "t": 84, "b": 40},
        paper_bgcolor="white",
        plot_bgcolor="white",
        hovermode="x unified",
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "font": {"size": 12}},
    )
    figure.update_xaxes(showgrid=False, linecolor=GRID, ticks="outside", tickcolor=GRID, tickfont={"color": MUTED})
    figure.update_yaxes(gridcolor=GRID, zerolinecolor="#9aa5b1", tickfont={"color": MUTED})
    figure.update_yaxes(title={"text": y_title, "font": {"color": MUTED}}, tickformat=".1%" if percent else None)
    return figure


def _time_axis(figure: go.Figure, times: pd.DatetimeIndex) -> None:
    """Ticks at about seven bars, labelled with their day (and time, inside a few days)."""
    span = times[-1] - times[0]
    pattern = "%d %b<br>%Y" if span.days > 4 else "%d %b %H:%M"
    # The first tick of each of six equal stretches: a label at the very end would be cut off.
    where = np.unique(np.linspace(0, len(times) - 1, min(7, len(times)) + 1)[:-1].round().astype(int))
    figure.update_xaxes(tickmode="array", tickvals=where, ticktext=[times[k].strftime(pattern) for k in where])
    figure.update_xaxes(tickangle=0)


def _stamp(times: pd.DatetimeIndex) -> list[str]:
    return list(times.strftime("%Y-%m-%d %H:%M UTC"))


def _lines(figure: go.Figure, curves: pd.DataFrame, hover: str, main: str | None = None) -> None:
    times = pd.DatetimeIndex(curves.index)
    for position, name in enumerate(curves.columns):
        values = curves[name].to_numpy(dtype=np.float64)
        at = thin(values)
        figure.add_trace(
            go.Scatter(
                x=at,
                y=values[at],
                name=title_of(str(name)),
                mode="lines",
                line={
                    "color": colour_of(str(name), position),
                    "width": 2.4 if name == main else 1.5,
                    "dash": DASHES.get(str(name), "solid"),
                },
                customdata=_stamp(times[at]),
                hovertemplate=f"{hover}  %{{customdata}}<extra>{title_of(str(name))}</extra>",
            )
        )
    _time_axis(figure, times)


def equity_figure(curves: pd.DataFrame, *, main: str | None = None) -> go.Figure:
    """Wealth of every strategy, USD. `curves`: wide equity."""
    figure = go.Figure()
    _lines(figure, curves, "%{y:$,.0f}", main or str(curves.columns[0]))
    return _layout(figure, "Equity", "USD", height=420)


def drawdown_figure(curves: pd.DataFrame, *, main: str | None = None) -> go.Figure:
    """Distance of every strategy below its running peak. `curves`: wide equity."""
    peak = curves.cummax()
    below = (curves / peak.where(peak > 0) - 1).fillna(0.0)
    figure = go.Figure()
    _lines(figure, below, "%{y:.2%}", main or str(curves.columns[0]))
    figure.data[0].update(fill="tozeroy", fillcolor="rgba(11,79,158,0.10)")
    return _layout(figure, "Drawdown", "below peak", percent=True, height=320)


def weights_figure(
    weights: pd.DataFrame, *, title: str = "Weights at each session's close", top: int = 12
) -> go.Figure:
    """Stacked weights over time: the `top` symbols by mean weight, the others together, the rest is cash."""
    order = weights.abs().mean().sort_values(ascending=False, kind="stable").index
    shown = weights[order[:top]].copy()
    if len(order) > top:
        shown[f"{len(order) - top} others"] = weights[order[top:]].sum(axis=1)
    figure = go.Figure()
    times = pd.DatetimeIndex(weights.index)
    steps = np.arange(len(shown))
    mixed = bool((weights < 0).any().any())
    for position, name in enumerate(shown.columns):
        figure.add_trace(
            go.Scatter(
                x=steps,
                y=shown[name].to_numpy(),
                name=str(name),
                mode="lines",
                line={"width": 1.2 if mixed else 0.4, "color": _shade(position)},
                stackgroup=None if mixed else "weights",
                hovertemplate="%{y:.1%}<extra>" + str(name) + "</extra>",
            )
        )
    if len(shown):
        _time_axis(figure, times)
    figure = _layout(figure, title, "share of equity", percent=True, height=400)
    if not mixed:
        figure.update_yaxes(range=[0, 1.0])
    return figure


def _shade(position: int) -> str:
    shades = (
        "#0b4f9e", "#2a9d8f", "#d9730d", "#9065b0", "#c14c8a", "#6b8e23", "#b8860b",
        "#4682b4", "#cd5c5c", "#20b2aa", "#8b6f9c", "#708090", "#a9a9a9",
    )  # fmt: skip
    return shades[position % len(shades)]


def to_plain(figure: go.Figure) -> dict[str, Any]:
    """A figure as plain JSON."""
    return dict(figure.to_plotly_json())
