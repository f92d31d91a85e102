"""Charts on the screen: the figures of `fintrader.results.figures`, thinned out and coloured
for light and dark pages."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from numpy.typing import ArrayLike

from fintrader.numerals import count
from fintrader.results import figures
from fintrader.results.figures import downsample as decimation
from fintrader.results.figures.style import ON_DARK, escape_label
from fintrader_app.shell import plain

CONFIG = {
    "displaylogo": False,
    "displayModeBar": "hover",
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "scrollZoom": False,
}
DRESS_BYTES = 4_000
"""Bytes that styling may add."""
GAIN = "#2a9d8f"
LOSS = "#b42318"
_BARE = ("paper_bgcolor", "plot_bgcolor", "template", "title")


def show(
    figure: go.Figure | Callable[[], go.Figure],
    key: str,
    *,
    height: int | None = None,
    version: Hashable = None,
    is_titled: bool = False,
) -> None:
    """Draw a figure: at most 300 KB, on the page's own background, in colours that suit it.

    A function that makes the figure is called once for each `version`, for example of the files it
    reads. The note in `layout.meta["note"]`, about traces left out, is shown below the figure; with
    `is_titled` the title is shown above it.
    """
    dark = bool(st.context.theme.type == "dark")
    if callable(figure):
        drawn, weight = _build(key, version, dark, height, figure)
    else:
        drawn = apply_style(figure, dark=dark, height=height)
        weight = decimation.figure_bytes(drawn)
    if weight > decimation.MAX_CHART_BYTES:
        st.info(
            f"This chart would weigh {count(weight / 1000)} KB, more than the "
            f"{count(decimation.MAX_CHART_BYTES / 1000)} KB allowed; it is left out.",
            icon=":material/hide_image:",
        )
        return
    about = drawn.layout.meta or {}
    if is_titled and about.get("title"):
        st.markdown(f"**{plain(about['title'])}**")
    st.plotly_chart(drawn, key=key, config=CONFIG)
    if "note" in about:
        st.caption(plain(about["note"]))
    if "shown" in about:
        st.caption(
            f"{count(about['shown'][0])} of {count(about['shown'][1])} points shown, evenly chosen."
        )


@st.cache_resource(max_entries=64, show_spinner=False)
def _build(
    key: str, version: Hashable, dark: bool, height: int | None, _figure: Callable[[], go.Figure]
) -> tuple[go.Figure, int]:
    """Build a styled figure and count its bytes. Sessions share it: never change it."""
    drawn = apply_style(_figure(), dark=dark, height=height)
    return drawn, decimation.figure_bytes(drawn)


def apply_style(figure: go.Figure, *, dark: bool, height: int | None = None) -> go.Figure:
    """Drop a figure's colours of paper, grid and text, and pick line colours for the
    background."""
    decimation.fit(figure, decimation.MAX_CHART_BYTES - DRESS_BYTES)
    _spread_ticks(figure.layout.xaxis)
    plain_figure = figure.to_plotly_json()
    layout = plain_figure.get("layout", {})
    title = (layout.get("title") or {}).get("text")
    layout["meta"] = {**(layout.get("meta") or {}), "title": title}
    for name in _BARE:
        layout.pop(name, None)
    layout["font"] = {"size": 12}
    layout["margin"] = {"l": 56, "r": 12, "t": 28, "b": 36}
    layout["separators"] = ".,"
    if height is not None:
        layout["height"] = height
    for name, axis in layout.items():
        if name.startswith(("xaxis", "yaxis")) and isinstance(axis, dict):
            for colour in ("gridcolor", "linecolor", "tickcolor", "zerolinecolor", "tickfont"):
                axis.pop(colour, None)
            if isinstance(axis.get("title"), dict):
                axis["title"].pop("font", None)
            axis["automargin"] = True
    if dark:
        plain_figure = _replace_colour(plain_figure)
    return go.Figure(plain_figure, skip_invalid=True)


def _spread_ticks(axis: Any) -> None:
    """Drop labels of ticks closer than a seventh of the axis: a phone has no room for them."""
    if not axis.ticktext:
        return
    ticks = list(zip(map(float, axis.tickvals), axis.ticktext, strict=True))
    labels = ticks[:1]
    for place, text in ticks[1:]:
        if place - labels[-1][0] >= (ticks[-1][0] - ticks[0][0]) / 7:
            labels.append((place, text))
    axis.tickvals, axis.ticktext = zip(*labels, strict=True)


def _replace_colour(value: Any) -> Any:
    if isinstance(value, str):
        return ON_DARK.get(value, value)
    if isinstance(value, dict):
        return {name: _replace_colour(below) for name, below in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_colour(below) for below in value]
    return value


def plot_lines(
    series: dict[str, tuple[Any, Any]],
    *,
    faint: dict[str, tuple[Any, Any]] | None = None,
    **look: Any,
) -> go.Figure:
    """Draw named lines over any axis; `faint` lines are drawn behind them, in the same colours and
    without a legend entry.

    `look`: options of `frame_figure`.
    """
    figure = go.Figure()
    for position, (name, (x, y)) in enumerate(series.items()):
        colour = pick_colour(position)
        if faint and name in faint:
            behind_x, behind_y = faint[name]
            figure.add_scatter(
                x=behind_x,
                y=behind_y,
                mode="lines",
                line_color=colour,
                line_width=1,
                opacity=0.28,
                showlegend=False,
                hoverinfo="skip",
            )
        figure.add_scatter(
            x=x,
            y=y,
            name=escape_label(name),
            mode="lines+markers" if len(np.atleast_1d(y)) < 3 else "lines",
            line_color=colour,
            line_width=2,
        )
    return frame_figure(figure, hover="x unified", **look)


def pick_colour(position: int) -> str:
    """Pick the colour of a line by its place in the legend."""
    return figures.PALETTE[position % len(figures.PALETTE)]


def frame_figure(
    figure: go.Figure,
    *,
    y_title: str = "",
    x_title: str = "",
    height: int = 320,
    hover: str = "closest",
) -> go.Figure:
    """Set axes, legend and hover as in all charts here."""
    figure.update_layout(
        height=height,
        hovermode=hover,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        showlegend=sum(trace.showlegend is not False for trace in figure.data) > 1,
    )
    figure.update_yaxes(title_text=y_title)
    return figure.update_xaxes(title_text=x_title, showgrid=False)


def scale_logs(values: ArrayLike) -> dict[str, object]:
    """Set the ticks of a logarithmic axis: finer ones over few powers of ten."""
    decades = np.log10(np.max(values) / np.min(values))
    return {"type": "log", "tickformat": "~g", "dtick": "D2" if decades < 2.5 else 1}


def scale_colours(scores: pd.Series[float]) -> dict[str, object]:
    """Colour marks or lines by their scores, with a scale of colours."""
    return {
        "color": scores,
        "colorscale": "Viridis",
        "showscale": True,
        "colorbar": {"title": {"text": "score"}, "thickness": 10, "outlinewidth": 0},
    }
