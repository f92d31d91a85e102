"""Tournament: the race, live while it runs."""

from __future__ import annotations

import time
from functools import partial

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from fintrader.numerals import DASH, count, format_count, score, short_count
from fintrader.records import to_json
from fintrader.results.folders import Folder, NotThereError, RunsFolder
from fintrader.results.formatting import duration
from fintrader.results.importance import ALGORITHM, list_searched_settings
from fintrader.results.run import Summary
from fintrader.results.tournament_events import LossEvent, TournamentEvent, select_events
from fintrader_app import artifacts, charts, race, search, tables
from fintrader_app.shell import (
    choose,
    draw_answer,
    follow,
    go,
    guarded,
    heading,
    hide_secrets,
    human,
    line_up,
    page,
    pick_race,
    plain,
    reload_running,
)
from fintrader_app.tables import show_board, table

ABOUT = {
    "Failed": "Lost more often than the limit of retries; the time line has the reasons",
    "Best score": "On the validation window, by the tournament's metric",
    "Env-steps": "Of all ended pods, over the time in which a pod was at work",
    "Time left": "Estimate: mean time of a pod x pods to come / pods at work",
}
MOST_EVENTS = 200
MOST_CURVES = 8
EVERY = "all algorithms"


def render(runs: RunsFolder, head: DeltaGenerator) -> None:
    run, folder, place = pick_race(runs, head)
    planned = race.count_planned_pods(folder)
    logs = search.find_log_settings(folder)
    live = run.status == "running"
    about = artifacts.describe_score(folder)
    follow(lambda: draw(reload_running(runs, run), place, planned, logs, about), live=live)


def draw(
    run: Summary, folder: Folder, planned: int | None, logs: frozenset[str], about: str
) -> None:
    """Draw everything below the header; `about`: the metric of the scores."""
    pods = artifacts.load_race(folder)
    version = (str(folder.root), *artifacts.identify_board(folder))
    alive = run.status == "running"
    try:
        events = artifacts.load_events(folder)
    except NotThereError:
        events = []
    launched = race.find_launched(events) if alive else {}
    pace = race.measure_pace(pods, planned, launched, alive=alive)
    if pods.empty:
        show_numbers(pace, alive)
        raise NotThereError("no pod has been made yet")
    draw_answer(f"{describe_leader(pods, pace)} {about}")
    left, right = st.columns([3, 2])
    with left, guarded():
        heading("Score over time")
        charts.show(partial(race.plot_scores, pods), "race_score", version=version)
    with right:
        heading("Leaderboard")
        show_board(artifacts.load_leaderboard(folder), "race_board", short=True)
        picker, opener = line_up(3, 2)
        with picker:
            order = artifacts.rank_pods(pods)
            pod = choose("Look at a pod", order, "pod", label_visibility="collapsed")
        if opener.button(f"Open {plain(pod)}", icon=":material/model_training:", width="stretch"):
            go("pod.py", pod=pod)
    show_numbers(pace, alive)
    with guarded():
        show_looks(folder, pods)
    heading("Pods on the time line")
    show_timeline(pods, events, launched, version)
    show_lost_pods(events)
    left, right = st.columns([3, 2])
    with left:
        heading("Lineage")
        charts.show(partial(race.plot_lineage, pods), "race_lineage", version=version)
    with right, guarded():
        heading("Drift of the searched settings")
        show_drift(pods, version)
    with guarded():
        show_search(pods, logs, version)
    with st.expander(f"Event log ({count(len(events))} events)", icon=":material/history:"):
        show_events(events)


def describe_leader(pods: pd.DataFrame, pace: race.Pace) -> str:
    """State which pod leads, its score, and how many pods are done."""
    planned = "" if pace.planned is None else f" of {count(pace.planned)}"
    done = f"{count(pace.done)}{planned} pods done"
    if pace.best is None:
        return f"No pod has a score yet; {done}."
    leader = artifacts.rank_pods(pods)[0]
    own = pods.set_index("pod")["score"][leader]
    return f"{leader} leads with a score of {score(own)}; {done}."


def show_numbers(pace: race.Pace, alive: bool) -> None:
    """Show the progress and speed of the race."""
    planned = f" / {count(pace.planned)}" if pace.planned is not None else ""
    rate = DASH if pace.steps_per_second is None else f"{short_count(pace.steps_per_second)}/s"
    cells = {
        "Pods done": f"{count(pace.done)}{planned}",
        "At work": count(pace.running),
        "Failed": count(pace.failed),
        "Best score": score(pace.best),
        "Env-steps": rate,
        "Elapsed": duration(pace.elapsed_seconds),
    }
    if alive:
        cells["Time left"] = duration(pace.left_seconds)
    tables.numbers(cells, ABOUT)
    if pace.planned:
        st.progress(min(1.0, pace.done / pace.planned))


def show_looks(folder: Folder, pods: pd.DataFrame) -> None:
    """Show the validation scores of the pods at work, then those of the best."""
    at_work = pods.loc[pods["state"] == "running", "pod"]
    names = [*dict.fromkeys([*at_work, *artifacts.rank_pods(pods)])]
    drawn = race.draw_looks(folder, names[:MOST_CURVES], "race")
    if 0 < drawn < len(pods):
        st.caption(f"{count(drawn)} of {count(len(pods))} pods: those at work, then the best.")


def show_timeline(
    pods: pd.DataFrame,
    events: list[TournamentEvent],
    launched: dict[str, float],
    version: tuple[object, ...],
) -> None:
    """Draw the attempts over time; those of a race that has ended are drawn once."""
    found, total = race.list_attempts(
        pods, launched, race.list_lost_attempts(events), now=time.time()
    )
    if not found:
        return
    figure = partial(race.plot_timeline, found, total)
    if launched:  # its bars grow with the clock
        charts.show(figure(), "race_timeline")
    else:
        charts.show(figure, "race_timeline", version=(*version, len(events)))


def show_lost_pods(events: list[TournamentEvent]) -> None:
    """List the lost attempts with their reasons."""
    lost = select_events(events, LossEvent)
    rows = [
        {
            "Pod": event.pod,
            "Attempt": event.attempt,
            "Reason": event.reason,
            "Message": hide_secrets(event.detail),
        }
        for event in lost[-MOST_EVENTS:]
    ]
    if rows:
        st.caption(
            f"{format_count(len(lost), 'attempt')} lost; lost pods are started again within the"
            " limit of retries"
        )
        table(rows, "race_lost", height="content")


def show_drift(pods: pd.DataFrame, version: tuple[object, ...]) -> None:
    values = race.select_numbers(pods)
    if values.empty or not len(values.columns):
        raise NotThereError("this tournament searches no numeric setting")
    name = choose(
        "Setting", list(values.columns), "setting", label_visibility="collapsed", format_func=human
    )
    draw = partial(race.plot_drift, pods, values[name], name)
    charts.show(draw, "race_drift", version=(*version, name))


def show_search(pods: pd.DataFrame, logs: frozenset[str], version: tuple[object, ...]) -> None:
    """Show how settings relate to the score (importance, slices, parallel coordinates), for all
    algorithms or for one."""
    if not any(list_searched_settings(pods)):
        return
    heading("Settings and score")
    algos = sorted(pods[ALGORITHM].dropna().unique())
    if len(algos) > 1:
        algo = choose("Pods of", [EVERY, *algos], "algo")
        pods = pods if algo == EVERY else pods[pods[ALGORITHM] == algo]
        version = (*version, algo)
    found, names = search.judge_settings(version, pods)
    if not names:
        st.info(
            found.why or "The searched settings are the same in all pods.", icon=":material/tune:"
        )
        return
    left, right = st.columns([3, 2])
    with left:
        st.caption("Importance")
        if found.why:
            st.info(found.why, icon=":material/tune:")
        else:
            charts.show(lambda: search.plot_importance(found), "search_importance", version=version)
            st.caption(plain(search.describe_importance(found), 900))
    with right:
        name = choose("Score over", names, "slice", format_func=search.name_setting)
        show = partial(search.plot_slice, pods, name, log=name in logs)
        charts.show(show, "search_slice", version=(*version, name))
    st.caption(
        "Parallel coordinates: one line per pod, over its settings to its score; drag along an axis"
        " to pick some"
    )
    charts.show(lambda: search.plot_parallel(pods, names, logs), "search_parallel", version=version)


def show_events(events: list[TournamentEvent]) -> None:
    """List the last events, the newest first."""
    if not events:
        st.caption("No event yet.")
        return
    rows = []
    for event in reversed(events[-MOST_EVENTS:]):
        values = to_json(event)
        shown = {
            "Time (UTC)": pd.to_datetime(event.time, unit="s", errors="coerce"),
            "Event": values.pop("event"),
            "Pod": values.pop("pod", ""),
        }
        del values["time"]
        details = [f"{human(key)} {one}" for key, one in values.items() if one not in (None, "")]
        rows.append({**shown, "Details": hide_secrets(", ".join(details))[:300]})
    config = {"Time (UTC)": st.column_config.DatetimeColumn(format="HH:mm:ss")}
    table(rows, "race_events", height=320, column_config=config)


page("Tournament", render)
