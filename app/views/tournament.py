"""Tournament: the race, live while it runs."""

from __future__ import annotations

import time

import pandas as pd
import streamlit as st

from app import artifacts, charts, race
from app.board import board_table
from app.folders import Folder, NotThereError, RunsFolder
from app.shell import choose, go, guarded, page, pick_race, pick_run
from app.summary import Summary, summary
from app.wording import count, duration, human, plain, ratio, short_count

REFRESH_SECONDS = 2
LOST = {"pod": "Pod", "attempt": "Attempt", "reason": "Reason", "detail": "What it said"}


def render(runs: RunsFolder) -> None:
    run, folder = pick_run(runs)
    place = pick_race(folder)
    planned = race.planned_pods(folder)
    live = run.status == "running"

    @st.fragment(run_every=REFRESH_SECONDS if live else None)
    def race_of() -> None:
        with guarded():
            now = summary(runs, run.name)
            if live and now.status != "running":
                st.rerun()  # the whole page once more: status, and no more refreshing
            draw(now, place, planned)

    race_of()


def draw(run: Summary, folder: Folder, planned: int | None) -> None:
    """Everything below the header."""
    pods = artifacts.pods(folder)
    alive = run.status == "running"
    try:
        events = artifacts.events(folder)
    except NotThereError:
        events = []
    launched = race.at_work(events) if alive else {}
    numbers(race.pace(pods, planned, launched, alive=alive), alive)
    if pods.empty:
        st.info("No pod has been made yet.", icon=":material/hourglass_empty:")
        return
    left, right = st.columns([3, 2])
    with left:
        st.subheader("Score over time", anchor=False)
        if pods["score"].notna().any():
            charts.show(race.score_figure(pods), "race_score")
        else:
            st.info("No pod has a score yet.", icon=":material/hourglass_empty:")
    with right:
        st.subheader("Leaderboard", anchor=False)
        board_table(artifacts.leaderboard(folder), "race_board", short=True)
        place, beside = st.columns([3, 2], vertical_alignment="bottom")
        with place:
            order = pods.sort_values("score", ascending=False, na_position="last")["pod"].tolist()
            pod = choose("Look at a pod", order, "pod", label_visibility="collapsed")
        with beside:
            if st.button(f"Open {plain(pod)}", icon=":material/model_training:", width="stretch"):
                go("pod.py", pod=pod)
    st.subheader("Pods on the time line", anchor=False)
    if pods["started"].notna().any() or launched:
        charts.show(race.timeline_figure(pods, launched, now=time.time()), "race_timeline")
    lost_pods(pods, events)
    left, right = st.columns([3, 2])
    with left:
        st.subheader("Lineage", anchor=False)
        charts.show(race.lineage_figure(pods), "race_lineage")
    with right:
        st.subheader("Drift of the searched settings", anchor=False)
        drift(pods)
    with st.expander(f"Event log ({count(len(events))} events)", icon=":material/history:"):
        event_table(events)


def numbers(pace: race.Pace, alive: bool) -> None:
    """The head line of figures."""
    planned = f" / {count(pace.planned)}" if pace.planned is not None else ""
    rate = f"{short_count(pace.steps_per_second)}/s" if pace.steps_per_second is not None else "–"
    cells = [
        ("Pods done", f"{count(pace.done)}{planned}", None),
        ("At work", count(pace.running), None),
        ("Failed", count(pace.failed), "Lost more often than retried; the time line says why"),
        ("Best score", ratio(pace.best, 3), "On the validation window, by the tournament's metric"),
        ("Env-steps", rate, "Of all finished pods, over the time from the first start to the last end"),
        ("Elapsed", duration(pace.elapsed_seconds), None),
    ]
    if alive:
        cells.append(
            ("Time left", duration(pace.left_seconds), "Estimate: mean time of a pod x pods to come / pods at work")
        )
    with st.container(horizontal=True, gap="small"):
        for title, value, note in cells:
            st.metric(title, value, help=note, border=True, width="stretch")
    if pace.planned:
        st.progress(min(1.0, pace.done / pace.planned))


def lost_pods(pods: pd.DataFrame, events: list[dict[str, object]]) -> None:
    """Who died and why."""
    rows = [
        {title: str(event.get(key, "")) for key, title in LOST.items()}
        for event in events
        if event.get("event") == "lost"
    ]
    if rows:
        st.caption(f"{len(rows)} time(s) a pod was lost; lost pods are started again within the limit of retries")
        st.dataframe(
            pd.DataFrame(rows).astype(str), hide_index=True, width="stretch", key="race_lost", height="content"
        )


def drift(pods: pd.DataFrame) -> None:
    values = race.hyper_table(pods)
    if values.empty or not len(values.columns):
        st.info("This tournament searches no numeric setting.", icon=":material/tune:")
        return
    name = choose("Setting", list(values.columns), "setting", label_visibility="collapsed", format_func=human)
    if pods["score"].notna().any():
        charts.show(race.drift_figure(pods, values[name], name), "race_drift")
    else:
        st.info("No pod has a score yet.", icon=":material/hourglass_empty:")


def event_table(events: list[dict[str, object]]) -> None:
    """The last events, the newest first."""
    if not events:
        st.caption("No event yet.")
        return
    rows = []
    for event in reversed(events[-200:]):
        rest = {
            key: value
            for key, value in event.items()
            if key not in {"time", "event", "pod"} and value not in (None, "")
        }
        told = ", ".join(f"{human(key)} {value}" for key, value in rest.items())
        stamp = event.get("time")
        rows.append(
            {
                "Time (UTC)": pd.to_datetime(stamp, unit="s") if isinstance(stamp, int | float) else None,
                "Event": str(event.get("event", "")),
                "Pod": str(event.get("pod") or ""),
                "Details": told[:300],
            }
        )
    config = {"Time (UTC)": st.column_config.DatetimeColumn(format="HH:mm:ss")}
    st.dataframe(
        pd.DataFrame(rows), hide_index=True, width="stretch", height=320, key="race_events", column_config=config
    )


page("Tournament", render)
