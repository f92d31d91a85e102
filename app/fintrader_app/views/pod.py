"""Pod: the learning curves of one pod, compared with other pods, and its settings."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from fintrader.config import flatten_values
from fintrader.numerals import DASH, count, format_count, number, score
from fintrader.results.catalogue import CATALOGUE
from fintrader.results.folders import Folder, NotThereError, RunsFolder
from fintrader.results.formatting import duration, format_metric
from fintrader.results.strategy_metrics import StrategyMetrics
from fintrader_app import artifacts, charts, race, tables
from fintrader_app.shell import (
    choose,
    choose_several,
    draw_answer,
    follow,
    guarded,
    heading,
    human,
    line_up,
    page,
    pick_race,
    plain,
)
from fintrader_app.tables import numbers, table

AXES = {"env_steps": "Env-steps", "seconds": "Seconds", "update": "Updates"}
DEFAULT_CURVES = ("reward_mean", "entropy")
MOST_PODS = 6


def render(runs: RunsFolder, head: DeltaGenerator) -> None:
    run, main, folder = pick_race(runs, head)
    pods = artifacts.load_pods(folder)
    if pods.empty:
        raise NotThereError("no pod has been made yet")
    by_name = pods.set_index("pod", drop=False)
    order = artifacts.rank_pods(pods)
    answer = st.container()
    left, right = line_up(1, 2)
    with left:
        name = choose(
            "Pod, the best first",
            order,
            "pod",
            format_func=lambda pod: describe_pod(select_pod(by_name, pod)),
        )
    with right:
        rest = [pod for pod in order if pod != name]
        others = choose_several("Compare with", rest, "pods", [], MOST_PODS - 1)
    chosen = select_pod(by_name, name)
    with answer:
        place = f"number {order.index(name) + 1} of {format_count(len(order), 'pod')}"
        draw_answer(f"{describe_pod(chosen)}: {place}. {artifacts.describe_score(main)}")

    def draw() -> None:
        with guarded():
            show_looks(folder, [name, *others])
        show_cards(chosen)
        heading("Learning curves")
        show_curves(folder, [name, *others])

    follow(draw, live=run.status == "running")
    left, right = st.columns(2)
    with left, guarded():
        heading("Settings")
        show_settings(chosen, by_name)
    with right, guarded():
        heading("Validation metrics")
        show_validation(by_name.loc[[name, *others]])


def show_looks(folder: Folder, names: list[str]) -> None:
    """Show the scores that the pods had on the validation window while they trained."""
    if not race.draw_looks(folder, names, "pod"):
        raise NotThereError("no look at the validation window is stored for this pod yet")
    st.caption(
        "For display: unless the run stops pods early, only the last look, the score, counts."
    )


def select_pod(by_name: pd.DataFrame, pod: str) -> pd.Series[Any]:
    return pd.Series(by_name.loc[pod])


def describe_pod(pod: pd.Series[Any]) -> str:
    return f"{pod['pod']} · {score(pod['score']) if pd.notna(pod['score']) else pod['state']}"


def show_cards(pod: pd.Series[Any]) -> None:
    """Show score, state, origin and size of a pod."""
    parent = pod["parent"] if isinstance(pod["parent"], str) else None
    cells = {
        "Score": score(pod["score"]),
        "State": plain(str(pod["state"]) + (f" ({pod['reason']})" if pod["reason"] else "")),
        "Origin": plain(f"{pod['origin']} of {parent}" if parent else pod["origin"]),
        "Generation": count(int(pod["generation"])),
        "Env-steps": count(pod["env_steps"]),
        "With ancestors": count(pod["lineage_env_steps"]),
        "Took": duration(pod["seconds"]),
    }
    numbers(cells)


def smooth_values(values: np.ndarray[Any, Any], share: float) -> np.ndarray[Any, Any]:
    """Smooth by an exponential moving average: `share` 0 changes nothing, 0.9 keeps nine tenths of
    the past."""
    if share <= 0:
        return values
    return pd.Series(values).ewm(alpha=1 - share, ignore_na=True).mean().to_numpy()


def load_curves(folder: Folder, names: list[str]) -> dict[str, pd.DataFrame]:
    """Load the learning curves that are stored and not empty."""
    found = {}
    for name in names:
        with contextlib.suppress(NotThereError):
            found[name] = artifacts.load_learning(folder, name).dropna(axis=1, how="all")
    return {name: table for name, table in found.items() if len(table)}


def show_curves(folder: Folder, names: list[str]) -> None:
    found = load_curves(folder, names)
    if not found:
        raise NotThereError("no learning curve is stored for this pod yet")
    known = dict.fromkeys(column for table in found.values() for column in table.columns)
    metrics = [column for column in known if column not in AXES]
    axes = [axis for axis in AXES if all(axis in table for table in found.values())]
    if not metrics or not axes:
        raise NotThereError("the stored learning curve holds no numbers")
    left, middle, right = line_up(4, 2, 2)
    default = [name for name in DEFAULT_CURVES if name in metrics] or metrics[:4]
    shown = left.multiselect(
        "Curves", metrics, default=default, format_func=human, key="pod_curves"
    )
    axis = middle.segmented_control(
        "Over", axes, default=axes[0], format_func=AXES.__getitem__, key="pod_axis"
    )
    axis = axis or axes[0]
    share = right.slider("Smoothing", 0.0, 0.98, 0.6, 0.02, key="pod_smoothing")
    for position, metric in enumerate(shown):
        if position % 2 == 0:
            places = st.columns(2)
        with places[position % 2]:
            st.caption(plain(human(metric)))
            raw = {
                name: (table[axis], table[metric].to_numpy(float))
                for name, table in found.items()
                if metric in table
            }
            lines = {name: (x, smooth_values(y, share)) for name, (x, y) in raw.items()}
            faint = raw if share > 0 else None
            figure = charts.plot_lines(lines, faint=faint, x_title=AXES[axis], height=260)
            charts.show(figure, f"pod_{metric}")


def show_settings(pod: pd.Series[Any], by_name: pd.DataFrame) -> None:
    """Show all settings of the agent, next to the parent's values if it has a parent."""
    mine = flatten_values(pod["agent"] or {})
    parent = pod["parent"] if pod["parent"] in by_name.index else None
    theirs = flatten_values(by_name.loc[parent, "agent"]) if parent else {}
    searched = set(pod["hyper"] or {})
    rows = []
    for key, value in mine.items():
        row = {
            "Setting": human(key),
            "Value": format_value(value),
            "Searched": "✓" if key in searched else "",
        }
        if parent:
            row["Parent's"] = format_value(theirs.get(key))
            row["Changed"] = describe_change(value, theirs.get(key))
        rows.append(row)
    if parent:
        rows.sort(key=lambda row: not row["Changed"])
        changed = sum(bool(row["Changed"]) for row in rows)
        st.caption(f"Child of {plain(parent)}, with {format_count(changed, 'other value')}")
    else:
        st.caption("A founder: it started from fresh weights")
    table(rows, "pod_settings", height=360)


def format_value(value: Any) -> str:
    if value is None:
        return DASH
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:120]


def describe_change(now: Any, before: Any) -> str:
    if now == before:
        return ""
    if number(now) is None or not number(before):
        return "other"
    return f"× {now / before:.3g}"


def show_validation(rows: pd.DataFrame) -> None:
    """Show the stored metrics of the validation window, one column a pod."""
    columns = {
        str(pod): StrategyMetrics.of(values)
        for pod, values in zip(rows["pod"], rows["metrics"], strict=True)
        if values and "sessions" in values
    }
    if not columns:
        raise NotThereError("no validation metrics are stored for this pod")
    st.caption(
        "On the validation window, which the tournament looks at many times: in-sample, not a"
        " result"
    )
    listed = []
    for metric in CATALOGUE:
        each = {pod: format_metric(metric.key, values) for pod, values in columns.items()}
        listed.append({"Metric": tables.find_title(metric.key), **each})
    table(listed, "pod_metrics", right=columns, height=360)
    tables.explain_dashes(columns.values())


page("Pod", render)
