"""Plots of a tournament's search: the importance of each setting, the score over one setting, and
all settings at once."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from numpy.typing import NDArray

from fintrader.numerals import chance, count, number, percent
from fintrader.results.figures import PALETTE
from fintrader.results.figures.style import escape_label
from fintrader.results.folders import Folder
from fintrader.results.importance import ALGORITHM, Importance, importance, list_searched_settings
from fintrader_app.artifacts import load_tournament, select_part
from fintrader_app.charts import frame_figure, scale_colours, scale_logs
from fintrader_app.race import GREY, MANY, label_pods, select_scored, split_origins
from fintrader_app.shell import human

MOST_LINES = 500
MOST_AXES = 8


def find_log_settings(folder: Folder) -> frozenset[str]:
    """Find the searched settings whose logarithm is drawn uniformly."""
    ranges = select_part(load_tournament(folder), "search")
    return frozenset(name for name in ranges if select_part(ranges, name).get("log") is True)


def name_setting(setting: str) -> str:
    """Name a searched setting as readers see it."""
    return "Algorithm" if setting == ALGORITHM else human(setting)


@dataclass(frozen=True)
class Axis:
    """A setting's values as places on an axis."""

    places: NDArray[np.float64]
    log: bool = False
    """True for a logarithmic axis; `places` are the numbers, not their logarithms."""
    labels: tuple[str, ...] = ()
    """Values that are not numbers, in the order of their places 0, 1, 2 ..."""

    @property
    def ticks(self) -> list[int]:
        """Places of the labels."""
        return list(range(len(self.labels)))


def place_values(values: list[Any], log: bool) -> Axis:
    """Place numbers as they are, other values by their rank among the distinct ones."""
    if all(number(value) is not None for value in values):
        numbers = np.array(values, dtype=float)
        return Axis(numbers, log=log and bool((numbers > 0).all()))
    labels = tuple(sorted({str(value) for value in values}))
    return Axis(
        np.array([labels.index(str(value)) for value in values], dtype=float), labels=labels
    )


def list_varied(pods: pd.DataFrame) -> list[str]:
    """List the settings that all these pods have, and that differ between them."""
    rows = list_searched_settings(pods)
    shared = [name for name in (rows[0] if rows else {}) if all(name in row for row in rows)]
    return [name for name in shared if any(row[name] != rows[0][name] for row in rows)]


@st.cache_resource(max_entries=32, show_spinner=False)
def judge_settings(version: Hashable, _pods: pd.DataFrame) -> tuple[Importance, list[str]]:
    """Judge the importance of settings, and list those to draw, the most important first; computed
    once for each `version` of the pods."""
    found = importance(_pods)
    names = list_varied(select_scored(_pods))
    first = [one.setting for one in found.shares if one.setting in names]
    return found, [*first, *(name for name in names if name not in first)]


def plot_importance(found: Importance) -> go.Figure:
    """Plot a bar per setting, the largest on top; grey where luck explains it."""
    shares = found.shares[::-1]
    figure = go.Figure().add_bar(
        x=[max(0.0, one.share) for one in shares],
        y=[escape_label(name_setting(one.setting), 30) for one in shares],
        orientation="h",
        marker_color=[PALETTE[0] if one.important else GREY for one in shares],
        customdata=[chance(one.p_value) for one in shares],
        hovertemplate="%{y}: %{x:.1%} of the variance, p %{customdata}<extra></extra>",
        showlegend=False,
    )
    figure.add_vline(
        x=found.luck,
        line={"color": "#b42318", "dash": "dot", "width": 1.5},
        annotation={"text": "luck reaches up to here", "yanchor": "bottom", "xanchor": "right"},
    )
    height = 110 + 30 * max(3, len(shares))
    frame_figure(figure, x_title="share of the scores' variance", height=height)
    figure.update_xaxes(tickformat=".2~%", range=[0, 1.08 * max(found.luck, shares[-1].share)])
    return figure.update_layout(bargap=0.35)


def describe_importance(found: Importance) -> str:
    """Describe the bars and their meaning. The text holds names that users chose: escape it before
    it is shown."""
    text = (
        f"From {count(found.pods)} pods that began from fresh weights, children left out. If no"
        f" setting mattered, the largest bar would stay below {percent(found.luck, 1)} in 19 of 20"
        " tournaments; grey bars are below it. A setting may matter and not show: settings are"
        " tested one by one, not together."
    )
    if found.constant:
        text += (
            " Not tested, because all these pods have the same value, or some have none:"
            f" {', '.join(map(name_setting, found.constant))}."
        )
    return text


def plot_slice(pods: pd.DataFrame, name: str, *, log: bool) -> go.Figure:
    """Plot the score of each pod over one of its settings."""
    shown = select_scored(pods)
    axis = place_values([row[name] for row in list_searched_settings(shown)], log)
    x = axis.places
    if axis.labels:  # points of the same label must not cover each other
        x = x + 0.5 * (np.arange(len(shown)) * 0.618 % 1 - 0.5)
    figure = go.Figure()
    for origin, colour, rows in split_origins(shown):
        values = [escape_label(row[name]) for row in list_searched_settings(shown[rows])]
        figure.add_scatter(
            x=x[rows],
            y=shown.loc[rows, "score"],
            mode="markers",
            name=human(origin),
            marker_size=8 if len(shown) <= MANY else 4,
            marker_color=colour if origin == "fresh" else "rgba(0,0,0,0)",
            marker_line={"width": 1, "color": colour},
            customdata=list(zip(label_pods(shown[rows]), values, strict=True)),
            hovertemplate="%{customdata[0]}: score %{y:.3f} at %{customdata[1]}<extra></extra>",
        )
    frame_figure(
        figure, y_title="validation score", x_title=escape_label(name_setting(name)), height=300
    )
    if axis.labels:
        figure.update_xaxes(tickvals=axis.ticks, ticktext=list(map(escape_label, axis.labels)))
    elif axis.log:
        figure.update_xaxes(scale_logs(axis.places))
    return figure


def plot_parallel(pods: pd.DataFrame, names: list[str], logs: frozenset[str]) -> go.Figure:
    """Draw a line for each pod, across its settings to its score. Of many pods, a sample from the
    best to the worst is drawn."""
    ordered = select_scored(pods).sort_values("score", kind="stable")
    shown = ordered.iloc[
        np.unique(np.linspace(0, len(ordered) - 1, min(MOST_LINES, len(ordered))).astype(int))
    ]
    rows = list_searched_settings(shown)
    axes = [
        _describe_dimension(name, place_values([row[name] for row in rows], name in logs))
        for name in names[:MOST_AXES]
    ]
    figure = go.Figure().add_parcoords(
        dimensions=[*axes, {"label": "score", "values": shown["score"]}],
        line=scale_colours(shown["score"]),
        labelfont_size=12,
        labelangle=-20,
        domain={"x": [0.02, 1], "y": [0, 0.84]},
        tickfont_size=11,
        rangefont={"size": 1, "color": "rgba(0,0,0,0)"},
    )
    notes = []
    if len(shown) < len(ordered):
        notes.append(
            f"{count(len(shown))} of {count(len(ordered))} pods, from the best to the worst."
        )
    if len(names) > MOST_AXES:
        notes.append(f"{MOST_AXES} of {len(names)} settings, the most important ones.")
    if notes:
        figure.layout.meta = {"note": " ".join(notes)}
    return figure.update_layout(height=360)


def _describe_dimension(name: str, axis: Axis) -> dict[str, Any]:
    title = escape_label(name_setting(name), 24)
    if axis.labels:
        return {
            "label": title,
            "values": axis.places,
            "tickvals": axis.ticks,
            "ticktext": [escape_label(one, 16) for one in axis.labels],
            "range": [-0.2, len(axis.labels) - 0.8],
        }
    if not axis.log:
        return {"label": title, "values": axis.places}
    values = np.log10(axis.places)
    low = float(values.min())
    high = float(values.max())
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    whole = range(math.floor(low), math.ceil(high) + 1)
    places = [e + math.log10(step) for e in whole for step in steps]
    ticks = [place for place in places if low <= place <= high] or [low, high]
    texts = [f"{10**place:.3g}" for place in ticks]
    return {"label": title, "values": values, "tickvals": ticks, "ticktext": texts}
