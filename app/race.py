"""A tournament as tables and figures: who ran when, who descends from whom, where the settings drift."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import yaml

from app.charts import GAIN, LOSS, figures, framed
from app.folders import Folder
from app.wording import human, label, number
from fintrader.errors import FintraderError

STATES = {"done": GAIN, "stopped": "#d9730d", "failed": LOSS, "running": "#0b6e99", "waiting": "#a0a8b0"}
ORIGINS = {"fresh": "#0b6e99", "exploit": "#d9730d", "survivor": "#9065b0"}


@dataclass(frozen=True)
class Pace:
    """How fast the race goes. What cannot be known yet is None."""

    planned: int | None
    made: int
    done: int
    failed: int
    running: int
    best: float | None
    elapsed_seconds: float | None
    steps_per_second: float | None
    """Env-steps of all finished pods over the wall-clock time in which pods were at work."""
    left_seconds: float | None
    """Mean wall-clock seconds a finished pod took, times pods to come, over pods at work."""


def planned_pods(folder: Folder) -> int | None:
    """How many pods the run's configuration asks for."""
    try:
        value = yaml.safe_load(folder.text("config.yaml"))
        pods = value["tournament"]["pods"]
    except (FintraderError, yaml.YAMLError, KeyError, TypeError, RecursionError):
        return None
    return pods if isinstance(pods, int) and not isinstance(pods, bool) and pods > 0 else None


def pace(
    pods: pd.DataFrame,
    planned: int | None,
    launched: dict[str, float] | None = None,
    *,
    alive: bool,
    now: float | None = None,
) -> Pace:
    """Counts and rates of a race. `launched` (pods at work and since when) and `now` count only while it is alive."""
    now = time.time() if now is None else now
    if pods.empty:
        return Pace(planned, 0, 0, 0, 0, None, None, None, None)
    ended = pods[pods["finished"].notna()]
    running = int((pods["state"] == "running").sum()) if alive else 0
    scores = pd.to_numeric(pods["score"], errors="coerce")
    begins = [*ended["started"].astype(float), *(launched or {}).values()]
    elapsed = rate = left = None
    if begins:
        over = not alive or (planned is not None and len(ended) >= planned and not running)
        elapsed = (float(ended["finished"].max()) if over else now) - min(begins)
    if len(ended):
        span = float(ended["finished"].max() - ended["started"].min())
        rate = float(pd.to_numeric(ended["env_steps"], errors="coerce").sum()) / span if span > 0 else None
        to_come = max(0, (planned if planned is not None else len(pods)) - len(ended))
        left = float((ended["finished"] - ended["started"]).mean()) * to_come / running if running and to_come else None
    return Pace(
        planned=planned,
        made=len(pods),
        done=len(ended),
        failed=int((pods["state"] == "failed").sum()),
        running=running,
        best=number(float(scores.max())) if scores.notna().any() else None,
        elapsed_seconds=None if elapsed is None else max(0.0, elapsed),
        steps_per_second=rate,
        left_seconds=left,
    )


def since_start(pods: pd.DataFrame, end: float) -> tuple[float, float, str]:
    """Zero of the race's clock, seconds a unit, and the unit's name, for a race that lasts until `end`."""
    zero = float(pods["started"].min())
    for size, unit in ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if end - zero > 3 * size:
            return zero, size, unit
    return zero, 1.0, "seconds"


def score_figure(pods: pd.DataFrame) -> go.Figure:
    """Score of each pod when it ended, and the best so far."""
    shown = pods[pods["score"].notna()].sort_values("finished")
    zero, size, unit = since_start(shown, float(shown["finished"].max()))
    x = (shown["finished"] - zero) / size
    figure = go.Figure()
    best = shown["score"].cummax()
    figure.add_trace(
        go.Scatter(
            x=x,
            y=best,
            mode="lines",
            line={"shape": "hv", "color": "#616e7c", "width": 1.5, "dash": "dot"},
            name="Best so far",
            hovertemplate="best %{y:.3f}<extra></extra>",
        )
    )
    for origin, colour in ORIGINS.items():
        rows = shown[shown["origin"] == origin]
        if len(rows):
            figure.add_trace(
                go.Scatter(
                    x=x.loc[rows.index],
                    y=rows["score"],
                    mode="markers",
                    name=human(origin),
                    marker={"size": 9, "color": colour},
                    customdata=[label(pod) for pod in rows["pod"]],
                    hovertemplate="%{customdata}: %{y:.3f} after %{x:.1f} " + unit + "<extra></extra>",
                )
            )
    return framed(figure, y_title="validation score", x_title=f"{unit} since the start", hover="closest", height=330)


def timeline_figure(pods: pd.DataFrame, launched: dict[str, float], *, now: float | None = None) -> go.Figure:
    """One bar a pod, packed into as few lanes as were busy at once. `launched`: pods at work and since when."""
    rows = pods[pods["started"].notna()][["pod", "started", "finished", "state", "reason", "device", "score"]].copy()
    if launched and now is not None:
        live = pods[pods["pod"].isin(launched) & pods["started"].isna()][["pod", "state", "reason", "device", "score"]]
        live = live.assign(started=[launched[pod] for pod in live["pod"]], finished=now)
        rows = pd.concat([rows, live], ignore_index=True)
    rows = rows.sort_values(["started", "pod"])
    zero, size, unit = since_start(rows, float(rows["finished"].max()))
    free: list[float] = []
    lanes = []
    for begin, end in zip(rows["started"], rows["finished"], strict=True):
        lane = next((k for k, until in enumerate(free) if until <= begin + 1e-3), len(free))
        if lane == len(free):
            free.append(0.0)
        free[lane] = end
        lanes.append(lane + 1)
    rows["lane"] = lanes
    figure = go.Figure()
    for state, colour in STATES.items():
        part = rows[rows["state"] == state]
        if not len(part):
            continue
        told = [
            f"{label(row.pod)} · {state}"
            + (f" ({label(row.reason)})" if row.reason else "")
            + (f"<br>score {row.score:.3f}" if number(row.score) is not None else "")
            + (f"<br>on {label(row.device)}" if row.device else "")
            for row in part.itertuples()
        ]
        width = part["finished"] - part["started"]
        figure.add_trace(
            go.Bar(
                x=width / size,
                base=(part["started"] - zero) / size,
                y=part["lane"],
                orientation="h",
                width=0.72,
                name=human(state),
                marker={"color": colour, "line": {"width": 1, "color": "rgba(128,128,128,0.5)"}},
                text=[label(pod) if len(rows) <= 60 else "" for pod in part["pod"]],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                constraintext="inside",
                customdata=told,
                hovertemplate="%{customdata}<br>%{x:.2f} " + unit + "<extra></extra>",
            )
        )
    framed(figure, x_title=f"{unit} since the start", hover="closest", height=110 + 34 * max(2, len(free)))
    figure.update_layout(barmode="overlay", showlegend=True, bargap=0.1)
    figure.update_yaxes(
        title={"text": "lane"}, tickmode="array", tickvals=list(range(1, len(free) + 1)), autorange="reversed"
    )
    return figure


def lineage_figure(pods: pd.DataFrame) -> go.Figure:
    """Founders at the left, children to the right; the colour says the score, a cross that a pod failed."""
    height = _tree_rows(pods)
    depth = pods.set_index("pod")["generation"].to_dict()
    edge_x: list[float | None] = []
    edge_y: list[float | None] = []
    for pod, parent in zip(pods["pod"], pods["parent"], strict=True):
        if parent in height:
            edge_x += [depth[parent], depth[pod], None]
            edge_y += [height[parent], height[pod], None]
    figure = go.Figure(
        go.Scatter(
            x=edge_x,
            y=edge_y,
            mode="lines",
            line={"color": "rgba(128,138,148,0.55)", "width": 1.2},
            hoverinfo="skip",
            showlegend=False,
        )
    )
    scores = pd.to_numeric(pods["score"], errors="coerce")
    known = scores.notna()
    said = [
        f"{label(row.pod)} · {label(row.origin)} · {label(row.state)}"
        + (f"<br>score {row.score:.3f}" if number(row.score) is not None else "")
        + (f"<br>child of {label(row.parent)}" if row.parent else "")
        for row in pods.itertuples()
    ]
    y = [height[pod] for pod in pods["pod"]]
    failed = pods["state"] == "failed"
    symbols = np.where(known, "circle", np.where(failed, "x", "circle-open")).tolist()
    shade = scores.where(known, float(scores.median()) if known.any() else 0.0)
    few = len(pods) <= 40
    figure.add_trace(
        go.Scatter(
            x=pods["generation"],
            y=y,
            mode="markers+text" if few else "markers",
            marker={
                "size": 13 if few else 9,
                "symbol": symbols,
                "color": shade,
                "colorscale": "Viridis",
                "showscale": bool(known.any()),
                "colorbar": {"title": {"text": "score"}, "thickness": 10, "len": 0.9, "outlinewidth": 0},
                "line": {"width": 1, "color": "rgba(128,138,148,0.8)"},
            },
            text=[label(pod) for pod in pods["pod"]] if few else None,
            textposition="top center",
            textfont={"size": 10},
            customdata=said,
            hovertemplate="%{customdata}<extra></extra>",
            showlegend=False,
        )
    )
    framed(figure, x_title="generation", hover="closest", height=min(900, max(280, 60 + 26 * len(set(y)))))
    deepest = int(pods["generation"].max())
    figure.update_xaxes(dtick=max(1, deepest // 12), range=[-0.3, deepest + 0.7])
    figure.update_yaxes(visible=False, range=[min(y) - 0.7, max(y) + 0.9])
    return figure


def _tree_rows(pods: pd.DataFrame) -> dict[str, float]:
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
            place[pod] = float(np.mean([place[child] for child in below]))
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


def hyper_table(pods: pd.DataFrame) -> pd.DataFrame:
    """`[pods, searched settings]`, numbers only."""
    rows = [row if isinstance(row, dict) else {} for row in pods["hyper"]]
    return pd.DataFrame(rows, index=pods.index).apply(pd.to_numeric, errors="coerce").dropna(axis=1, how="all")


def drift_figure(pods: pd.DataFrame, values: pd.Series[float], name: str) -> go.Figure:
    """One searched setting, pod by pod; the colour says the score."""
    scores = pd.to_numeric(pods["score"], errors="coerce")
    shown = scores.notna() & values.notna()
    figure = go.Figure(
        go.Scatter(
            x=pods.loc[shown, "idx"],
            y=values[shown],
            mode="markers",
            showlegend=False,
            marker={
                "size": 10,
                "color": scores[shown],
                "colorscale": "Viridis",
                "showscale": True,
                "colorbar": {"title": {"text": "score"}, "thickness": 10, "outlinewidth": 0},
                "line": {"width": 1, "color": "rgba(128,138,148,0.6)"},
            },
            customdata=[label(pod) for pod in pods.loc[shown, "pod"]],
            hovertemplate="%{customdata}: %{y:.4g}, score %{marker.color:.3f}<extra></extra>",
        )
    )
    inside = values[shown]
    wide = bool(len(inside) and inside.min() > 0 and inside.max() / inside.min() > 8)
    framed(figure, y_title=label(human(name)), x_title="pod number", log_y=wide, hover="closest", height=300)
    figure.update_yaxes(tickformat="~g", dtick=("D2" if inside.max() / inside.min() < 1000 else 1) if wide else None)
    return figure


def at_work(events: list[dict[str, Any]]) -> dict[str, float]:
    """Pods that were launched and have not come back, and when they were launched."""
    since: dict[str, float] = {}
    for event in events:
        kind, pod, moment = event.get("event"), event.get("pod"), number(event.get("time"))
        if not isinstance(pod, str):
            if kind in {"resumed", "started"}:
                since.clear()
            continue
        if kind == "launched" and moment is not None:
            since[pod] = moment
        elif kind in {"applied", "lost", "drained"}:
            since.pop(pod, None)
    return since


def colour(position: int) -> str:
    return str(figures.PALETTE[position % len(figures.PALETTE)])
