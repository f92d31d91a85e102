"""The look of all charts, and the drawing of curves over time.

Curves come as wide tables (index: start of the bar; one column a strategy). The horizontal axis
counts bars, so that nights and weekends take no room; ticks and hovers show the time, in the
index's own time zone. Long curves are thinned to what a screen can show, with the extremes of every
stretch kept exactly.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from fintrader.results.figures.downsample import keep
from fintrader.results.formatting import BASELINES, format_title, in_order

MOST_LINES = 8
"""Most curves in a chart: as many as there are distinct colours."""
POINTS = 2000
"""Most points of a drawn curve."""
INK = "#1f2933"
MUTED = "#616e7c"
GRID = "#e4e7eb"
ZERO = "#9aa5b1"
PALETTE = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#b35900", "#2f8f9d", "#7f6d5f")
COLOURS = {
    "ensemble": "#0b4f9e",
    "policy": "#0b4f9e",
    "best": "#2a9d8f",
    "buy_and_hold": "#d9730d",
    "equal_weight": "#9065b0",
    "benchmark": "#616e7c",
    "cash": "#a0a8b0",
    "inverse_volatility": "#b35900",
    "minimum_variance": "#7f6d5f",
    "momentum": "#c14c8a",
    "oracle": "#448361",
    "ridge": "#8f2d56",
    "vol_targeted": "#2f8f9d",
    "cap_weight": "#5b7f2b",
}
_TONES = """
  #0b4f9e #6cb2ff  #2a9d8f #4fd1c0  #d9730d #ffa657  #9065b0 #c9a1ec
  #c14c8a #f08abf  #616e7c #aab4c0
  #a0a8b0 #7f8994  #0b6e99 #63c3ec  #448361 #7cc79d  #b35900 #f0a35e
  #2f8f9d #6ed3e0  #7f6d5f #c7b5a6
  #b42318 #ff8f86  #6b8e23 #b5d56a  #b8860b #e6bd52  #4682b4 #86bce8
  #cd5c5c #f19a9a  #20b2aa #67dcd4
  #8b6f9c #c3a9d2  #708090 #aebac6  #1f2933 #e6eaef  #ffffff #161b22
  #c3cdd6 #5b6875  #e4e7eb #2b3440
  #9aa5b1 #5b6875  #eef4fb #1c2836  white #161b22
  rgba(11,79,158,0.10) rgba(108,178,255,0.14)
"""
ON_DARK = dict(zip(_TONES.split()[::2], _TONES.split()[1::2], strict=True))
"""Tone on a light background -> on a dark one."""
ZERO_LINE = {"color": ZERO, "width": 1}
SINGLE: dict[str, Any] = {"hovermode": "closest", "showlegend": False}
"""The look of a chart without curves: each mark has its own hover text, and there is no legend."""
DASHES = {"oracle": "dashdot"} | {
    name: "dot" if name in ("benchmark", "cash") else "dash" for name in BASELINES
}


def escape_label(text: object, limit: int = 60) -> str:
    """Make foreign text safe for plotly, which reads a little HTML in names and hover texts."""
    shown = "".join(char if char.isprintable() else " " for char in str(text))
    return html.escape(shown if len(shown) <= limit else shown[: limit - 1] + "…")


def choose_colour(strategy: str, position: int) -> str:
    """Choose a strategy's colour, which is the same in every chart."""
    return COLOURS.get(strategy, PALETTE[position % len(PALETTE)])


def layout(
    figure: go.Figure,
    title: str,
    y_title: str,
    x_title: str = "",
    *,
    percent: bool = False,
    **look: Any,
) -> go.Figure:
    """Set the titles, axes and margins common to all charts; `look` overrides them."""
    figure.update_layout(
        title={"text": title, "x": 0, "xanchor": "left", "font": {"size": 16, "color": INK}},
        font={"family": "Inter, 'Segoe UI', system-ui, sans-serif", "size": 12, "color": INK},
        margin={"l": 64, "r": 16, "t": 84, "b": 56 if x_title else 40},
        paper_bgcolor="white",
        plot_bgcolor="white",
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "font": {"size": 12}},
        **{"height": 380, "hovermode": "x unified", **look},
    )
    muted = {"color": MUTED}
    figure.update_xaxes(
        showgrid=False, linecolor=GRID, ticks="outside", tickcolor=GRID, tickfont=muted
    )
    figure.update_yaxes(
        gridcolor=GRID,
        zerolinecolor=ZERO,
        tickfont=muted,
        title={"text": y_title, "font": muted},
        tickformat=".1%" if percent else None,
    )
    return figure.update_xaxes(title={"text": x_title, "font": muted}) if x_title else figure


def add_curve(
    figure: go.Figure, x: ArrayLike, y: ArrayLike, name: str, hover: str, **look: Any
) -> None:
    """Draw one curve, with its name in the legend and next to the hover text."""
    label = escape_label(name)
    hover = f"{hover}<extra>{label}</extra>"
    figure.add_scatter(x=x, y=y, name=label, mode="lines", hovertemplate=hover, **look)


def histogram(
    counts: ArrayLike, edges: NDArray[np.float64], hover: str, color: object, **look: Any
) -> go.Bar:
    """Bars over `edges` `[N + 1]`, as high as `counts` `[N]`."""
    hover = f"{hover}<extra>{look.get('name', '')}</extra>"
    middle = (edges[1:] + edges[:-1]) / 2
    width = np.diff(edges) * (0.96 if "name" in look else 1)
    return go.Bar(x=middle, y=counts, width=width, marker_color=color, hovertemplate=hover, **look)


def time_axis(figure: go.Figure, times: pd.DatetimeIndex) -> None:
    """Ticks at about seven bars, labelled with their day (and time, inside a few days)."""
    span = times[-1] - times[0]
    pattern = "%d %b<br>%Y" if span.days > 4 else "%d %b %H:%M"
    # The first bar of each of seven equal stretches: a label at the very end would be cut off.
    where = np.unique(
        np.linspace(0, len(times) - 1, min(7, len(times)) + 1)[:-1].round().astype(int)
    )
    figure.update_xaxes(
        tickmode="array",
        tickvals=where,
        ticktext=[times[k].strftime(pattern) for k in where],
        tickangle=0,
    )


def stamps(times: pd.DatetimeIndex) -> list[str]:
    """`2020-01-08 09:30 EST`: in the index's own time zone, which is named."""
    return list(times.strftime("%Y-%m-%d %H:%M %Z"))


def note_left_out(figure: go.Figure, names: Sequence[str], kept: Sequence[str]) -> None:
    """Note in `layout.meta["note"]` what a chart does not draw."""
    missing = [format_title(str(name)) for name in names if name not in kept]
    if missing:
        note = (
            f"{len(kept)} of {len(names)} are drawn; left out, but in the tables:"
            f" {', '.join(missing)}."
        )
        figure.update_layout(meta={**(figure.layout.meta or {}), "note": note})


def draw_lines(
    curves: pd.DataFrame, hover: str, main: str | None = None, wealth: pd.DataFrame | None = None
) -> go.Figure:
    """Draw at most MOST_LINES columns as lines: `main` (by default the first column), the thickest,
    then the two whose `wealth` grew most (one may be an oracle), then those that tables rank
    highest. The figure's note names the columns left out. Baselines are dashed or dotted."""
    figure = go.Figure()
    names = [str(name) for name in curves.columns]
    main = main or names[0]
    # Cash, a flat line, comes last.
    best = () if wealth is None else (wealth.iloc[-1] / wealth.iloc[0]).nlargest(2).index
    ranked = sorted(
        in_order(names), key=lambda name: (name != main, name not in best, name == "cash")
    )
    kept = [name for name in names if name in ranked[:MOST_LINES]]
    note_left_out(figure, names, kept)
    times = pd.DatetimeIndex(curves.index)
    hover += "  %{customdata}"
    for position, name in enumerate(kept):
        values = curves[name].to_numpy(dtype=np.float64)
        at = keep(values, POINTS)
        look = {
            "color": choose_colour(name, position),
            "width": 2.4 if name == main else 1.5,
            "dash": DASHES.get(name, "solid"),
        }
        seen = stamps(times[at])
        add_curve(figure, at, values[at], format_title(name), hover, line=look, customdata=seen)
    time_axis(figure, times)
    return figure
