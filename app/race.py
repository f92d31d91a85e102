"""A tournament in numbers: how fast it goes, how scores rise, where the settings drift, and the leaderboard."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
import yaml

from fintrader.errors import FintraderError
from fintrader.results.folders import Folder
from fintrader.results.formatting import number
from fintrader_app.charts import framed
from fintrader_app.timeline import since_start
from fintrader_app.wording import human, label

MANY = 500
"""Beyond so many pods their marks are small."""
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


def score_figure(pods: pd.DataFrame) -> go.Figure:
    """Score of each pod when it ended, and the best so far."""
    shown = pods[pods["score"].notna()].sort_values("finished")
    zero, size, unit = since_start(shown, float(shown["finished"].max()))
    x = (shown["finished"] - zero) / size
    figure = go.Figure()
    best = shown["score"].cummax()
    turns = best.diff().ne(0.0)  # a step is drawn where it rises, however many pods lie between
    turns.iloc[-1] = True
    line = {"shape": "hv", "color": "#616e7c", "width": 1.5, "dash": "dot"}
    told = {"name": "Best so far", "hovertemplate": "best %{y:.3f}<extra></extra>"}
    figure.add_scatter(x=x[turns], y=best[turns], mode="lines", line=line, **told)
    for origin, colour in ORIGINS.items():
        rows = shown[shown["origin"] == origin]
        if len(rows):
            figure.add_scatter(
                x=x.loc[rows.index],
                y=rows["score"],
                mode="markers",
                name=human(origin),
                marker={"size": 9 if len(shown) <= MANY else 5, "color": colour},
                customdata=[label(pod) for pod in rows["pod"]],
                hovertemplate="%{customdata}: %{y:.3f} after %{x:.1f} " + unit + "<extra></extra>",
            )
    return framed(figure, y_title="validation score", x_title=f"{unit} since the start", hover="closest", height=330)


def hyper_table(pods: pd.DataFrame) -> pd.DataFrame:
    """`[pods, searched settings]`, numbers only."""
    rows = [row if isinstance(row, dict) else {} for row in pods["hyper"]]
    return pd.DataFrame(rows, index=pods.index).apply(pd.to_numeric, errors="coerce").dropna(axis=1, how="all")


def drift_figure(pods: pd.DataFrame, values: pd.Series[float], name: str) -> go.Figure:
    """One searched setting, pod by pod; the colour says the score."""
    scores = pd.to_numeric(pods["score"], errors="coerce")
    shown = scores.notna() & values.notna()
    bar = {"title": {"text": "score"}, "thickness": 10, "outlinewidth": 0}
    colours = {"color": scores[shown], "colorscale": "Viridis", "showscale": True, "colorbar": bar}
    line = {"width": 1, "color": "rgba(128,138,148,0.6)"}
    figure = go.Figure().add_scatter(
        x=pods.loc[shown, "idx"],
        y=values[shown],
        mode="markers",
        showlegend=False,
        marker={"size": 10 if shown.sum() <= MANY else 6, "line": line, **colours},
        customdata=[label(pod) for pod in pods.loc[shown, "pod"]],
        hovertemplate="%{customdata}: %{y:.4g}, score %{marker.color:.3f}<extra></extra>",
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


def board_table(board: pd.DataFrame, key: str, *, short: bool = False) -> None:
    """The leaderboard's rows, its searched settings as columns."""
    if board.empty:
        st.info("No pod has finished yet.", icon=":material/hourglass_empty:")
        return
    columns = ["rank", "pod", "score", "algo", "origin", "parent", "generation", "env_steps", "seconds"]
    frame = board[columns[:6] if short else columns].copy()
    hyper = pd.DataFrame([row if isinstance(row, dict) else {} for row in board["hyper"]], index=board.index)
    config = {
        "rank": st.column_config.NumberColumn("#", width=50),
        "pod": st.column_config.TextColumn("Pod", pinned=True),
        "score": st.column_config.NumberColumn("Score", format="%.3f"),
        "env_steps": st.column_config.NumberColumn("Env-steps", format="localized"),
        "seconds": st.column_config.NumberColumn("Seconds", format="%.1f"),
        "algo": "Algorithm",
        "origin": "Origin",
        "parent": "Parent",
        "generation": st.column_config.NumberColumn("Gen."),
    }
    for name in [] if short else hyper.columns[:6]:
        frame[str(name)] = hyper[name]
    height: Any = 38 + 35 * min(len(frame), 8) if short else "auto"
    st.dataframe(frame, hide_index=True, width="stretch", height=height, key=key, column_config=config, placeholder="–")
