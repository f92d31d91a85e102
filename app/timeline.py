"""Pods on a time line: who ran when and where, and who was lost."""

from __future__ import annotations

import heapq
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from fintrader.results.formatting import count, number
from fintrader_app.charts import GAIN, LOSS, framed
from fintrader_app.wording import human, label, without_secrets

STATES = {"done": GAIN, "stopped": "#d9730d", "failed": LOSS, "lost": LOSS, "running": "#0b6e99", "waiting": "#a0a8b0"}
MOST_BARS = 1_000


@dataclass(frozen=True)
class Attempt:
    """A pod at work once, from its launch until it ended, was lost, or now. Seconds since 1970."""

    pod: str
    started: float
    finished: float
    state: str
    reason: str = ""
    told: str = ""
    """What hovering says below the name: score, place, the reason in full."""


def attempts(
    pods: pd.DataFrame, launched: dict[str, float], lost: list[Attempt], *, now: float | None = None
) -> tuple[list[Attempt], int]:
    """What is drawn on the time line, in order of its start, and how much there is in all.

    `launched`: pods at work, since when.
    """
    ended = pods[pods["started"].notna()]
    latest = ended.sort_values(["started", "pod"]).tail(MOST_BARS)
    found = [_of(row, float(row.started), float(row.finished)) for row in latest.itertuples()]
    at_work = pods[pods["pod"].isin(launched) & pods["started"].isna()] if now is not None else pods[:0]
    found += [_of(row, launched[row.pod], now or 0.0) for row in at_work.itertuples()]
    drawn = sorted([*found, *lost], key=lambda one: (one.started, one.pod))[-MOST_BARS:]
    return drawn, len(ended) + len(at_work) + len(lost)


def _of(row: Any, started: float, finished: float) -> Attempt:
    score, device = number(row.score), row.device
    told = (f"<br>score {score:.3f}" if score is not None else "") + (f"<br>on {label(device)}" if device else "")
    return Attempt(str(row.pod), started, finished, str(row.state), str(row.reason or ""), told)


def lost_attempts(events: list[dict[str, Any]]) -> list[Attempt]:
    """Attempts that came to nothing: from the launch to the loss, with the reason; from the loss alone if need be."""
    since: dict[str, float] = {}
    found = []
    for event in events:
        pod, moment = event.get("pod"), number(event.get("time"))
        if not isinstance(pod, str) or moment is None:
            continue
        if event.get("event") == "launched":
            since[pod] = moment
        elif event.get("event") == "lost":
            told = f"<br>attempt {label(event.get('attempt', ''))}"
            for key in ("host", "slot"):
                told += f"<br>{key} {label(event[key])}" if event.get(key) else ""
            if detail := event.get("detail"):
                told += f"<br>{label(without_secrets(str(detail)), 120)}"
            begin = min(since.pop(pod, moment), moment)
            found.append(Attempt(pod, begin, moment, "lost", str(event.get("reason") or ""), told))
    return found


def timeline_figure(found: list[Attempt], total: int = 0) -> go.Figure:
    """One bar an attempt, packed into as few lanes as were busy at once; `total`: how many there are in all."""
    rows = pd.DataFrame([asdict(one) for one in found])
    zero, size, unit = since_start(rows, float(rows["finished"].max()))
    rows["lane"] = lanes(rows)
    figure = go.Figure()
    for state, colour in STATES.items():
        part = rows[rows["state"] == state]
        if not len(part):
            continue
        told = [
            f"{label(row.pod)} · {state}" + (f" ({label(row.reason)})" if row.reason else "") + row.told
            for row in part.itertuples()
        ]
        inside = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0, "constraintext": "inside"}
        figure.add_bar(
            x=(part["finished"] - part["started"]) / size,
            base=(part["started"] - zero) / size,
            y=part["lane"],
            orientation="h",
            width=0.36 if state == "lost" else 0.72,
            name=human(state),
            marker={"color": colour, "line": {"width": 1, "color": "rgba(128,128,128,0.5)"}},
            text=[label(pod) for pod in part["pod"]] if len(rows) <= 60 else None,
            **inside,
            customdata=told,
            hovertemplate="%{customdata}<br>%{x:.2f} " + unit + "<extra></extra>",
        )
    if len(found) < total:
        figure.layout.meta = {"note": f"The last {count(len(found))} of {count(total)} attempts."}
    most = int(rows["lane"].max())
    framed(figure, x_title=f"{unit} since the start", hover="closest", height=min(1200, 110 + 34 * max(2, most)))
    figure.update_layout(barmode="overlay", showlegend=True, bargap=0.1)
    ticks = list(range(1, most + 1, max(1, most // 40)))
    figure.update_yaxes(title={"text": "lane"}, tickmode="array", tickvals=ticks, autorange="reversed")
    return figure


def lanes(rows: pd.DataFrame) -> list[int]:
    """A lane from 1 for each row, rows in order of their start: the lowest one that is free by then."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    chosen = []
    for begin, end in zip(rows["started"], rows["finished"], strict=True):
        while busy and busy[0][0] <= begin + 1e-3:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (max(end, begin + 2e-3), lane))
        chosen.append(lane)
    return chosen


def since_start(rows: pd.DataFrame, end: float) -> tuple[float, float, str]:
    """Zero of the race's clock, seconds a unit, and the unit's name, for a race that lasts until `end`."""
    zero = float(rows["started"].min())
    for size, unit in ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if end - zero > 3 * size:
            return zero, size, unit
    return zero, 1.0, "seconds"
