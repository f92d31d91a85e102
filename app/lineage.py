"""Who descends from whom: the tree of a tournament's pods."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from fintrader.results.formatting import count, number
from fintrader_app.charts import framed
from fintrader_app.wording import label

MOST_PODS = 1_200
GREY = "#a0a8b0"


def lineage_figure(pods: pd.DataFrame) -> go.Figure:
    """Founders at the left, children to the right; the colour says the score, a cross that a pod failed.

    Pods without a score are grey. Of a large race the best pods are drawn, each with all its ancestors.
    """
    shown = best_lines(pods)
    place = tree_rows(shown)
    scores = pd.to_numeric(shown["score"], errors="coerce")
    known = scores.notna()
    few = len(shown) <= 40
    figure = go.Figure(_edges(shown, place))
    if not known.all():
        symbols = np.where(shown.loc[~known, "state"] == "failed", "x", "circle-open").tolist()
        figure.add_trace(_nodes(shown[~known], place, {"symbol": symbols, "color": GREY}, few=few))
    if known.any():
        bar = {"title": {"text": "score"}, "thickness": 10, "len": 0.9, "outlinewidth": 0}
        scale = {"color": scores[known], "colorscale": "Viridis", "showscale": True, "colorbar": bar}
        figure.add_trace(_nodes(shown[known], place, scale, few=few))
    rows = list(place.values())
    if len(shown) < len(pods):
        told = f"{count(len(shown))} of {count(len(pods))} pods shown: the best ones with all their ancestors."
        figure.layout.meta = {"note": told}
    framed(figure, x_title="generation", hover="closest", height=min(900, max(280, 60 + 26 * len(set(rows)))))
    deepest = int(shown["generation"].max())
    figure.update_xaxes(dtick=max(1, deepest // 12), range=[-0.3, deepest + 0.7])
    figure.update_yaxes(visible=False, range=[min(rows) - 0.7, max(rows) + 0.9])
    return figure


def best_lines(pods: pd.DataFrame, most: int = MOST_PODS) -> pd.DataFrame:
    """The best pods with all their ancestors, `most` in all; every pod where there are no more."""
    if len(pods) <= most:
        return pods
    parent = dict(zip(pods["pod"], pods["parent"], strict=True))
    kept: set[str] = set()
    for pod in pods.sort_values("score", ascending=False, na_position="last", kind="stable")["pod"]:
        line: dict[str, None] = {}
        above: str | None = pod
        while above in parent and above not in kept and above not in line:
            line[above] = None
            above = parent[above]
        if kept and len(kept) + len(line) > most:
            break
        kept.update(list(line)[:most])
    return pods[pods["pod"].isin(kept)]


def _edges(pods: pd.DataFrame, place: dict[str, float]) -> go.Scatter:
    """One segment from each parent to its child."""
    depth = dict(zip(pods["pod"], pods["generation"], strict=True))
    x: list[float | None] = []
    y: list[float | None] = []
    for pod, parent in zip(pods["pod"], pods["parent"], strict=True):
        if parent in place:
            x += [depth[parent], depth[pod], None]
            y += [place[parent], place[pod], None]
    line = {"color": "rgba(128,138,148,0.55)", "width": 1.2}
    return go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False)


def _nodes(pods: pd.DataFrame, place: dict[str, float], marker: dict[str, object], *, few: bool) -> go.Scatter:
    told = [
        f"{label(row.pod)} · {label(row.origin)} · {label(row.state)}"
        + (f"<br>score {row.score:.3f}" if number(row.score) is not None else "")
        + (f"<br>child of {label(row.parent)}" if isinstance(row.parent, str) else "")
        for row in pods.itertuples()
    ]
    return go.Scatter(
        x=pods["generation"],
        y=[place[pod] for pod in pods["pod"]],
        mode="markers+text" if few else "markers",
        marker={"size": 13 if few else 9, "line": {"width": 1, "color": "rgba(128,138,148,0.8)"}, **marker},
        text=[label(pod) for pod in pods["pod"]] if few else None,
        textposition="top center",
        textfont={"size": 10},
        customdata=told,
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
    )


def tree_rows(pods: pd.DataFrame) -> dict[str, float]:
    """Vertical place of each pod: leaves one below the other, parents in the middle of their children."""
    children: dict[str | None, list[str]] = {}
    known = set(pods["pod"])
    for pod, parent in zip(pods["pod"], pods["parent"], strict=True):
        children.setdefault(parent if parent in known and parent != pod else None, []).append(pod)
    place: dict[str, float] = {}
    row = 0
    stack = [(pod, False) for pod in reversed(children.get(None, []))]
    while stack:
        pod, back = stack.pop()
        below = children.get(pod, [])
        if back:
            place[pod] = sum(place[child] for child in below) / len(below)
        elif below:
            stack.append((pod, True))
            stack += [(child, False) for child in reversed(below)]
        else:
            place[pod] = float(-row)
            row += 1
    for pod in known - set(place):  # a circle of parents, which no generator makes
        place[pod] = float(-row)
        row += 1
    return place
