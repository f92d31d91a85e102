"""Numbers and plots of a tournament: its pace, its scores, the time line of attempts, and the
lineage of pods."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from fintrader.numerals import count, number
from fintrader.results.figures.style import escape_label
from fintrader.results.folders import Folder, NotThereError
from fintrader.results.tournament_events import (
    DrainEvent,
    LaunchEvent,
    LossEvent,
    ResultEvent,
    ResumptionEvent,
    StartEvent,
    TournamentEvent,
)
from fintrader_app.artifacts import load_tournament, load_validation, to_numbers
from fintrader_app.charts import (
    GAIN,
    LOSS,
    frame_figure,
    pick_colour,
    scale_colours,
    scale_logs,
    show,
)
from fintrader_app.shell import heading, hide_secrets, human
from fintrader_app.tables import select_settings

MANY = 500
"""Number of pods above which their marks are small."""
ORIGINS = {"fresh": "#0b6e99", "exploit": "#d9730d", "survivor": "#9065b0"}
GREY = "#a0a8b0"
STATES = {"done": GAIN, "failed": LOSS, "lost": LOSS, "running": "#0b6e99", "waiting": GREY}
MOST_BARS = 1_000
MOST_PODS = 1_200


@dataclass(frozen=True)
class Pace:
    """Progress and speed of a race; None for a number that is not known yet."""

    planned: int | None
    done: int = 0
    """Pods that have ended, failed ones included."""
    failed: int = 0
    running: int = 0
    best: float | None = None
    elapsed_seconds: float | None = None
    steps_per_second: float | None = None
    """Env-steps of all ended pods over the wall-clock time in which pods were at work."""
    left_seconds: float | None = None
    """Mean wall-clock seconds that an ended pod took, times pods to come, over pods at work."""


def count_planned_pods(folder: Folder) -> int | None:
    """Count the pods that the run's configuration asks for."""
    pods = load_tournament(folder).get("pods")
    return pods if isinstance(pods, int) and not isinstance(pods, bool) and pods > 0 else None


def measure_pace(
    pods: pd.DataFrame,
    planned: int | None,
    launched: dict[str, float] | None = None,
    *,
    alive: bool,
    now: float | None = None,
) -> Pace:
    """Measure counts and rates of a race. `launched` (pods at work, and the times of their launch)
    and `now` matter only while it is alive."""
    now = time.time() if now is None else now
    if pods.empty:
        return Pace(planned)
    ended = pods[pods["finished"].notna()]
    running = (pods["state"] == "running").sum() if alive else 0
    begins = [*ended["started"].astype(float), *(launched or {}).values()]
    elapsed = rate = left = None
    last = ended["finished"].max()
    to_come = max(0, (len(pods) if planned is None else planned) - len(ended))
    if begins:
        over = not alive or (planned is not None and not to_come and not running)
        elapsed = max(0.0, (last if over else now) - min(begins))
    if len(ended):
        spans = ended[["started", "finished"]].astype(float).sort_values("started")
        reached = spans["finished"].cummax().shift(fill_value=-np.inf)
        busy = (spans["finished"] - spans["started"].clip(lower=reached)).clip(lower=0).sum()
        if busy > 0:
            rate = float(pd.to_numeric(ended["env_steps"], errors="coerce").sum()) / busy
        if running and to_come:
            left = float((ended["finished"] - ended["started"]).mean()) * to_come / running
    failed = (pods["state"] == "failed").sum()
    best = number(float(pd.to_numeric(pods["score"], errors="coerce").max()))
    return Pace(planned, len(ended), failed, running, best, elapsed, rate, left)


def plot_scores(pods: pd.DataFrame) -> go.Figure:
    """Plot the score of each pod over the time of its end, and the best so far."""
    shown = select_scored(pods).sort_values("finished")
    zero, size, unit = shift_to_start(shown, shown["finished"].max())
    x = (shown["finished"] - zero) / size
    best = shown["score"].cummax()
    turns = best.diff().ne(0.0)  # only rises are drawn, not the pods between them
    turns.iloc[-1] = True
    figure = go.Figure().add_scatter(
        x=x[turns],
        y=best[turns],
        mode="lines",
        line={"shape": "hv", "color": "#616e7c", "width": 1.5, "dash": "dot"},
        name="Best so far",
        hovertemplate="best %{y:.3f}<extra></extra>",
    )
    for origin, colour, rows in split_origins(shown):
        figure.add_scatter(
            x=x[rows],
            y=shown.loc[rows, "score"],
            mode="markers",
            name=human(origin),
            marker_size=9 if len(shown) <= MANY else 5,
            marker_color=colour,
            customdata=label_pods(shown[rows]),
            hovertemplate="%{customdata}: %{y:.3f} after %{x:.1f} " + unit + "<extra></extra>",
        )
    return frame_figure(
        figure, y_title="validation score", x_title=f"{unit} since the start", height=330
    )


def select_scored(pods: pd.DataFrame) -> pd.DataFrame:
    """Select the pods that have a score. Raises NotThereError before there is one."""
    found = pods[pd.to_numeric(pods["score"], errors="coerce").astype(float).abs() < np.inf]
    if found.empty:
        raise NotThereError("no pod has a score yet")
    return found


def split_origins(pods: pd.DataFrame) -> Iterator[tuple[str, str, pd.Series[bool]]]:
    """Yield the name, the colour and a mask of the pods of each origin that occurs."""
    for origin, colour in ORIGINS.items():
        rows = pods["origin"] == origin
        if rows.any():
            yield origin, colour, rows


def label_pods(pods: pd.DataFrame) -> list[str]:
    """Write the names of pods as charts show them."""
    return [escape_label(pod) for pod in pods["pod"]]


def plot_curves(looks: dict[str, pd.DataFrame], column: str) -> go.Figure:
    """Plot `column` (`score` or `return`) of each pod's looks at the validation window, from
    `artifacts.load_validation`.

    In K-fold validation the looks of each fold are a faint line. The pod's own line is their mean,
    and ends with the score over all folds.
    """
    title, form, ticks = _LOOKS[column]
    figure = go.Figure()
    for position, (pod, rows) in enumerate(looks.items()):
        colour = pick_colour(position)
        parts = rows[rows["fold"].notna()]
        for _, fold in parts.groupby("fold"):
            figure.add_scatter(
                x=fold["share"],
                y=fold[column],
                mode="lines+markers",
                marker_size=4,
                marker_color=colour,
                opacity=0.25,
                showlegend=False,
                line_color=colour,
                line_width=1,
                hoverinfo="skip",
            )
        whole = rows[rows["fold"].isna()]
        mean = parts.groupby("share", as_index=False)[column].mean()
        line = pd.concat([mean[~mean["share"].isin(whole["share"])], whole]).sort_values("share")
        name = escape_label(pod)
        figure.add_scatter(
            x=line["share"],
            y=line[column],
            mode="lines+markers",
            name=name,
            line_color=colour,
            line_width=2,
            hovertemplate=f"%{{y:{form}}}<extra>{name}</extra>",
        )
    frame_figure(figure, y_title=title, x_title="share of the pod's budget", hover="x unified")
    figure.update_layout(showlegend=True)
    figure.update_xaxes(tickformat=".0%", range=[0, 1.02])
    return figure.update_yaxes(tickformat=ticks)


_LOOKS = {"return": ("return", ".2%", ".1%"), "score": ("validation score", ".3f", None)}
"""Column of a validation -> title of the axis, format of a value, format of the ticks."""


def draw_looks(folder: Folder, names: Iterable[str], key: str) -> int:
    """Draw the scores and returns of pods in validation during training; return the number of pods
    that have any."""
    found = {name: rows for name in names if len(rows := load_validation(folder, name))}
    columns = [name for name in _LOOKS if any(rows[name].notna().any() for rows in found.values())]
    if columns:
        for place, column in zip(st.columns(len(columns)), columns, strict=True):
            with place:
                heading(f"{human(column)} in validation")
                show(plot_curves(found, column), f"{key}_validation_{column}")
    return len(found)


def select_numbers(pods: pd.DataFrame) -> pd.DataFrame:
    """Select the searched settings of pods that are numbers: `[pods, settings]`."""
    return to_numbers(select_settings(pods)).dropna(axis=1, how="all")


def plot_drift(pods: pd.DataFrame, values: pd.Series[float], name: str) -> go.Figure:
    """Plot one searched setting over the pods; colours show their scores."""
    shown = select_scored(pods[values.notna()])
    inside = values[shown.index]
    figure = go.Figure().add_scatter(
        x=shown["idx"],
        y=inside,
        mode="markers",
        showlegend=False,
        marker={"size": 10 if len(shown) <= MANY else 6, **scale_colours(shown["score"])},
        marker_line={"width": 1, "color": "rgba(128,138,148,0.6)"},
        customdata=label_pods(shown),
        hovertemplate="%{customdata}: %{y:.4g}, score %{marker.color:.3f}<extra></extra>",
    )
    frame_figure(figure, y_title=escape_label(human(name)), x_title="pod number", height=300)
    wide = bool(len(inside) and inside.min() > 0 and inside.max() / inside.min() > 8)
    return figure.update_yaxes(scale_logs(inside) if wide else {"tickformat": "~g"})


def find_launched(events: Iterable[TournamentEvent]) -> dict[str, float]:
    """Find the pods that are at work, and the time of each one's launch."""
    since: dict[str, float] = {}
    for event in events:
        match event:
            case StartEvent() | ResumptionEvent():
                since.clear()
            case LaunchEvent():
                since[event.pod] = event.time
            case ResultEvent() | LossEvent() | DrainEvent():
                since.pop(event.pod, None)
    return since


# --- time line ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """One attempt at a pod, from its launch to its end, its loss or now. Seconds since 1970."""

    pod: str
    started: float
    finished: float
    state: str
    reason: str = ""
    hover: str = ""
    """Hover text below the name: score, device, the reason in full."""


def list_attempts(
    pods: pd.DataFrame, launched: dict[str, float], lost: list[Attempt], *, now: float
) -> tuple[list[Attempt], int]:
    """Choose the attempts to draw, in order of their start, and count all there are.

    `launched` holds the pods at work with the time of their launch.
    """
    ended = pods[pods["started"].notna()]
    at_work = pods[pods["pod"].isin(launched) & pods["started"].isna()]
    at_work = at_work.assign(started=at_work["pod"].map(launched), finished=now)
    latest = ended.sort_values(["started", "pod"]).tail(MOST_BARS)
    found = [_describe_attempt(row) for part in (latest, at_work) for row in part.itertuples()]
    drawn = sorted([*found, *lost], key=lambda one: (one.started, one.pod))[-MOST_BARS:]
    return drawn, len(ended) + len(at_work) + len(lost)


def _describe_attempt(row: Any) -> Attempt:
    score = number(row.score)
    hover = "" if score is None else f"<br>score {score:.3f}"
    hover += f"<br>on {escape_label(row.device)}" if row.device else ""
    reason = str(row.reason or "")
    return Attempt(row.pod, float(row.started), float(row.finished), str(row.state), reason, hover)


def list_lost_attempts(events: Iterable[TournamentEvent]) -> list[Attempt]:
    """List the lost attempts, each from its launch to its loss; a launch that is not in the log is
    drawn at the loss."""
    since = {}
    found = []
    for event in events:
        if isinstance(event, LaunchEvent):
            since[event.pod] = event.time
        elif isinstance(event, LossEvent):
            hover = f"<br>attempt {event.attempt}"
            if event.detail:
                hover += f"<br>{escape_label(hide_secrets(event.detail), 120)}"
            begin = min(since.pop(event.pod, event.time), event.time)
            found.append(Attempt(event.pod, begin, event.time, "lost", event.reason, hover))
    return found


def plot_timeline(found: list[Attempt], total: int) -> go.Figure:
    """Plot one bar per attempt, packed into as few lanes as were busy at once; `total`: number of
    all attempts, drawn or not."""
    rows = pd.DataFrame([asdict(one) for one in found])
    zero, size, unit = shift_to_start(rows, rows["finished"].max())
    rows["lane"] = assign_lanes(rows)
    figure = go.Figure()
    for state, colour in STATES.items():
        part = rows[rows["state"] == state]
        if not len(part):
            continue
        figure.add_bar(
            x=(part["finished"] - part["started"]) / size,
            base=(part["started"] - zero) / size,
            y=part["lane"],
            orientation="h",
            width=0.36 if state == "lost" else 0.72,
            name=human(state),
            marker_color=colour,
            marker_line={"width": 1, "color": "rgba(128,128,128,0.5)"},
            text=label_pods(part) if len(rows) <= 60 else None,
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            constraintext="inside",
            customdata=[
                f"{escape_label(row['pod'])} · {state}"
                + (f" ({escape_label(row['reason'])})" if row["reason"] else "")
                + row["hover"]
                for row in part.to_dict("records")
            ],
            hovertemplate="%{customdata}<br>%{x:.2f} " + unit + "<extra></extra>",
        )
    if len(found) < total:
        figure.layout.meta = {"note": f"The last {count(len(found))} of {count(total)} attempts."}
    most = int(rows["lane"].max())
    height = min(1200, 110 + 34 * max(2, most))
    frame_figure(figure, x_title=f"{unit} since the start", y_title="lane", height=height)
    figure.update_layout(barmode="overlay", showlegend=True, bargap=0.1)
    ticks = list(range(1, most + 1, max(1, most // 40)))
    return figure.update_yaxes(tickmode="array", tickvals=ticks, autorange="reversed")


def assign_lanes(rows: pd.DataFrame) -> list[int]:
    """Assign each row, in order of their start, the lowest lane (from 1) that is free by then."""
    ends: list[float] = []
    chosen = []
    for begin, end in zip(rows["started"], rows["finished"], strict=True):
        lane = next((k for k, last in enumerate(ends) if last <= begin + 1e-3), len(ends))
        ends[lane : lane + 1] = [max(end, begin + 2e-3)]
        chosen.append(lane + 1)
    return chosen


def shift_to_start(rows: pd.DataFrame, end: float) -> tuple[float, float, str]:
    """Choose the time axis of a race that lasts until `end`: its zero, the seconds of a unit, and
    the unit's name."""
    zero = rows["started"].min()
    for size, unit in ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if end - zero > 3 * size:
            return zero, size, unit
    return zero, 1.0, "seconds"


# --- lineage --------------------------------------------------------------------------------------


def plot_lineage(pods: pd.DataFrame) -> go.Figure:
    """Plot founders at the left and children to the right; colours show scores, crosses failed
    pods.

    Pods without a score are grey. Of a large race the best pods are drawn, each with all its
    ancestors.
    """
    shown = select_best_lines(pods)
    place = assign_rows(shown)
    scores = pd.to_numeric(shown["score"], errors="coerce")
    known = scores.notna()
    few = len(shown) <= 40
    figure = go.Figure(_draw_edges(shown, place))
    symbols = np.where(shown.loc[~known, "state"] == "failed", "x", "circle-open").tolist()
    looks = ((~known, {"symbol": symbols, "color": GREY}), (known, scale_colours(scores[known])))
    for nodes, marker in looks:
        if nodes.any():
            figure.add_trace(_draw_nodes(shown[nodes], place, marker, few=few))
    rows = list(place.values())
    if len(shown) < len(pods):
        note = (
            f"{count(len(shown))} of {count(len(pods))} pods shown: the best ones with all their"
            " ancestors."
        )
        figure.layout.meta = {"note": note}
    frame_figure(figure, x_title="generation", height=min(900, max(280, 60 + 26 * len(set(rows)))))
    deepest = int(shown["generation"].max())
    figure.update_xaxes(dtick=max(1, deepest // 12), range=[-0.3, deepest + 0.7])
    return figure.update_yaxes(visible=False, range=[min(rows) - 0.7, max(rows) + 0.9])


def select_best_lines(pods: pd.DataFrame) -> pd.DataFrame:
    """Select the best pods with all their ancestors, at most MOST_PODS in all."""
    if len(pods) <= MOST_PODS:
        return pods
    parent = dict(zip(pods["pod"], pods["parent"], strict=True))
    kept: set[str] = set()
    for pod in pods.sort_values("score", ascending=False, kind="stable")["pod"]:
        line: dict[str, None] = {}
        above = pod
        while above in parent and above not in kept and above not in line:
            line[above] = None
            above = parent[above]
        if kept and len(kept) + len(line) > MOST_PODS:
            break
        kept.update(list(line)[:MOST_PODS])
    return pods[pods["pod"].isin(kept)]


def _draw_edges(pods: pd.DataFrame, place: dict[str, float]) -> go.Scatter:
    """Draw a segment from each parent to its child."""
    depth = dict(zip(pods["pod"], pods["generation"], strict=True))
    x = []
    y = []
    for pod, parent in zip(pods["pod"], pods["parent"], strict=True):
        if parent in place:
            x += [depth[parent], depth[pod], None]
            y += [place[parent], place[pod], None]
    line = {"color": "rgba(128,138,148,0.55)", "width": 1.2}
    return go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False)


def _draw_nodes(
    pods: pd.DataFrame, place: dict[str, float], marker: dict[str, object], *, few: bool
) -> go.Scatter:
    return go.Scatter(
        x=pods["generation"],
        y=[place[pod] for pod in pods["pod"]],
        mode="markers+text" if few else "markers",
        marker={"size": 13 if few else 9, **marker},
        marker_line={"width": 1, "color": "rgba(128,138,148,0.8)"},
        text=label_pods(pods) if few else None,
        textposition="top center",
        textfont_size=10,
        customdata=[
            f"{escape_label(row.pod)} · {escape_label(row.origin)} · {escape_label(row.state)}"
            + (f"<br>score {row.score:.3f}" if number(row.score) is not None else "")
            + (f"<br>child of {escape_label(row.parent)}" if isinstance(row.parent, str) else "")
            for row in pods.itertuples()
        ],
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
    )


def assign_rows(pods: pd.DataFrame) -> dict[str, float]:
    """Assign each pod its vertical place: leaves one below the other, parents in the middle of
    their children."""
    children: dict[str | None, list[str]] = {}
    known = set(pods["pod"])
    for pod, parent in zip(pods["pod"], pods["parent"], strict=True):
        children.setdefault(parent if parent in known and parent != pod else None, []).append(pod)
    order = []
    stack = children.get(None, [])[::-1]
    while stack:
        order.append(stack.pop())
        stack += children.get(order[-1], [])[::-1]
    leaves = [pod for pod in order if pod not in children]
    leaves += known - set(order)  # parents in a cycle, only in a damaged file
    place = {pod: float(-row) for row, pod in enumerate(leaves)}
    for pod in reversed(order):
        if pod in children:
            place[pod] = sum(place[child] for child in children[pod]) / len(children[pod])
    return place
