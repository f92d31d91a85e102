"""Figures on skill and luck. All take parts of a `Verdict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from fintrader.numerals import p_equals
from fintrader.results.figures.style import (
    INK,
    SINGLE,
    ZERO_LINE,
    choose_colour,
    escape_label,
    histogram,
    layout,
)
from fintrader.results.formatting import format_title
from fintrader.verdict import LEVEL
from fintrader.verdict.verdict import (
    AlphaTest,
    Excess,
    OverfittingEstimate,
    RandomDraws,
    SelectedSharpe,
)

_OTHERS = "#c3cdd6"
_OURS = "#0b4f9e"
_WARN = "#b42318"
_OUR_MARK = {"size": 13, "color": _OURS}
_LUCK_MARK = {"size": 13, "color": _WARN, "symbol": "line-ns", "line": {"width": 3, "color": _WARN}}
MOST_BARS = 300
BINS = 60


def _add_point(
    figure: go.Figure,
    x: float,
    label: str,
    marker: Mapping[str, Any],
    hover: str,
    ends: tuple[float, float] | None = None,
) -> None:
    """Draw a marker in the row `label`, with its interval if it has one."""
    low, high = ends or (x, x)
    bars = {
        "type": "data",
        "symmetric": False,
        "array": [high - x],
        "arrayminus": [x - low],
        "thickness": 2,
    }
    hover = f"{hover}<extra></extra>"
    trace = go.Scatter(x=[x], y=[label], mode="markers", marker=marker, hovertemplate=hover)
    figure.add_trace(trace if ends is None else trace.update(error_x=bars))


def _lay_out_points(figure: go.Figure, title: str, height: int) -> go.Figure:
    """Finish a chart of points, the first one on top."""
    layout(figure, title, "", height=height, **SINGLE)
    return figure.update_yaxes(autorange="reversed", automargin=True)


def random_portfolios_figure(drawn: RandomDraws, returned: float | None) -> go.Figure:
    """Draw the returns of random static portfolios, and the result among them."""
    counts = np.array(drawn.histogram.counts)
    edges = np.array(drawn.histogram.edges)
    figure = go.Figure(histogram(counts, edges, "%{x:.2%}: %{y} portfolios", _OTHERS))
    if returned is not None:
        figure.add_vline(
            x=returned,
            line={"color": _OURS, "width": 2.5},
            # Above the bars, on the side where there is more room.
            annotation={
                "text": f"this result: {returned:.2%}",
                "font": {"color": _OURS},
                "yshift": 18,
            },
            annotation_position=(
                "top right" if returned < (edges[0] + edges[-1]) / 2 else "top left"
            ),
        )
    title = f"Return of {drawn.count:,} random static portfolios"
    layout(figure, title, "portfolios", height=300, bargap=0, **SINGLE)
    return figure.update_xaxes(tickformat=".1%")


def sharpe_figure(trial: SelectedSharpe) -> go.Figure:
    """Draw the chosen trial's Sharpe ratio in the selection window, and the best one expected from
    luck among as many trials."""
    figure = go.Figure()
    _add_point(figure, trial.sharpe, "the chosen trial", _OUR_MARK, "Sharpe %{x:.2f}")
    for label, expected in (
        ("luck, all trials", trial.expected_best),
        ("luck, effective trials", trial.expected_best_effective),
    ):
        _add_point(figure, expected, label, _LUCK_MARK, "expected Sharpe %{x:.2f}")
    figure.add_vline(x=0, line=ZERO_LINE)
    return _lay_out_points(figure, "Sharpe ratio in the selection window, against luck", 240)


def alpha_figure(alpha: AlphaTest, against: str) -> go.Figure:
    """Draw the information ratio with beta hedged, its interval, and the least ratio with 80 %
    power; `against`: the benchmark portfolio's name."""
    scale = alpha.ratio / alpha.alpha if alpha.alpha else 0.0
    figure = go.Figure()
    ends = alpha.low * scale, alpha.high * scale
    hover = "information ratio %{x:.2f}"
    _add_point(figure, alpha.ratio, "this result", _OUR_MARK, hover, ends)
    label = "least ratio seen<br>with 80 % power"
    hover = "80 % power at a true ratio of %{x:.2f}"
    _add_point(figure, alpha.visible, label, _LUCK_MARK, hover)
    figure.add_vline(x=0, line=ZERO_LINE)
    title = f"Information ratio against {format_title(against).lower()}, beta hedged, 95 % interval"
    return _lay_out_points(figure, title, 240)


def betting_figure(values: Sequence[float], days: pd.DatetimeIndex) -> go.Figure:
    """Draw the wealth of a bettor on alpha, who starts with 1, and the threshold of evidence at
    LEVEL."""
    figure = go.Figure(
        go.Scatter(
            x=days, y=np.maximum(values, 1e-4), mode="lines", line={"color": _OURS, "width": 2}
        )
    )
    figure.update_traces(hovertemplate="%{x|%d %b %Y}: %{y:.3g}<extra></extra>")
    figure.add_hline(y=1 / LEVEL, line={"color": _WARN, "width": 1.5, "dash": "dot"})
    figure.add_hline(y=1, line=ZERO_LINE)
    title = f"E-value: above {1 / LEVEL:g} is evidence at {LEVEL:.0%}, at any look"
    layout(figure, title, "wealth from 1", height=300, showlegend=False)
    decades = np.log10(max(1 / LEVEL, *values) / max(min(1.0, *values), 1e-4))
    return figure.update_yaxes(
        type="log", tickformat=".3~g", dtick="D2" if decades < 3 else None
    )  # D2: at 1, 2 and 5


def overfitting_figure(risk: OverfittingEstimate) -> go.Figure:
    """Logits of the in-sample best's out-of-sample rank; below 0: overfitted."""
    edges = np.array(risk.logits.edges)
    colours = np.where((edges[1:] + edges[:-1]) / 2 <= 0, _WARN, _OURS).tolist()
    hover = "logit %{x:.1f}: %{y} splits"
    figure = go.Figure(histogram(risk.logits.counts, edges, hover, colours, marker_opacity=0.8))
    figure.add_vline(x=0, line={"color": INK, "width": 1})
    title = (
        f"Probability of overfitting {risk.probability:.0%}: rank of the in-sample best,"
        " out-of-sample"
    )
    x_title = "worse ← logit of relative rank → better"
    return layout(figure, title, "splits", x_title, height=300, bargap=0, **SINGLE)


def excess_figure(
    rows: Mapping[str, Excess], scale: float = 1.0, over: str = "a year"
) -> go.Figure:
    """Excess over every baseline with its bootstrap interval; `scale`, `over`:
    `numerals.span`."""
    figure = go.Figure()
    for position, (name, row) in enumerate(rows.items()):
        marker = {"size": 11, "color": choose_colour(name, position)}
        hover = f"excess %{{x:+.1%}} {over}, {p_equals(row.p_value)}"
        ends = scale * row.low, scale * row.high
        _add_point(
            figure, scale * row.excess, escape_label(format_title(name)), marker, hover, ends
        )
    figure.add_vline(x=0, line={"color": INK, "width": 1})
    title = f"Excess return {over} over each baseline, 95 % interval"
    figure.update_xaxes(tickformat="+.0%")
    return _lay_out_points(figure, title, 110 + 28 * len(rows))


def trials_figure(scores: pd.Series) -> go.Figure:
    """Draw the validation scores of all trials, the best first.

    `scores`: by name of the trial. More than MOST_BARS are drawn as a histogram.
    """
    ranked = scores.sort_values(ascending=False, kind="stable")
    figure = go.Figure()
    title = "Validation score of every trial"
    look = {**SINGLE, "height": 280, "bargap": 0.1, "margin_b": 56}
    if len(ranked) <= MOST_BARS:
        figure.add_bar(
            x=[escape_label(name) for name in ranked.index],
            y=ranked.to_numpy(),
            marker={"color": [_OURS, *[_OTHERS] * (len(ranked) - 1)]},
            hovertemplate="%{x}: %{y:.3f}<extra></extra>",
        )
        layout(figure, title, "validation score", **look)
        figure.update_xaxes(type="category", showticklabels=len(ranked) <= 40)
    else:
        counts, edges = np.histogram(ranked, bins=BINS)
        figure.add_trace(histogram(counts, edges, "%{x:.3f}: %{y} trials", _OTHERS))
        figure.add_vline(x=float(ranked.iloc[0]), line={"width": 2, "color": _OURS})
        layout(figure, title, "trials", "validation score", **look)
    return figure
