"""Honesty: the evidence for a result, given all trials that it was chosen from."""

from __future__ import annotations

import shlex
from collections.abc import Hashable
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from fintrader.numerals import count, format_count, score
from fintrader.results import figures
from fintrader.results.folders import Folder, NotThereError, RunsFolder
from fintrader.results.sections import (
    BacktestView,
    present_data,
    present_evidence,
    present_origin,
    present_search,
    present_sensitivity,
    present_verdict,
)
from fintrader_app import artifacts, charts
from fintrader_app.sections import show
from fintrader_app.shell import guarded, heading, page, pick_run, plain
from fintrader_app.tables import table

MOST_ENTRIES = 200
"""Rows of a table of leaks or alarms."""


def render(runs: RunsFolder, head: DeltaGenerator) -> None:
    _, folder = pick_run(runs, head)
    view = BacktestView.of(artifacts.backtest(folder))
    version = artifacts.backtest_version(folder)
    show(present_verdict, view, version)
    for present in (present_evidence, present_search, present_sensitivity):
        with guarded():
            show(present, view, version)
    with guarded():
        show_lookahead(folder)
    with guarded():
        show_selection(folder, version)
    for present in (present_data, present_origin):
        with guarded():
            show(present, view, version)


def show_lookahead(folder: Folder) -> None:
    """Show the look-ahead check: whether values up to a bar depend on later bars."""
    heading("Look-ahead check")
    try:
        report = folder.json("lookahead.json")
    except NotThereError:
        st.info(
            "Not stored with this run. The check alters later bars and compares all values before"
            " them. Run:"
        )
        path = folder.root / "config.yaml"
        st.code(shlex.join(["fintrader", "lookahead", str(path)]), language="bash")
        return
    names = ("leaks", "alarms", "trusted", "untried", "unproved")
    leaks, alarms, trusted, untried, unproved = (list_entries(report.get(name)) for name in names)
    if leaks:
        st.error(
            f"The check found {format_count(len(leaks), 'look-ahead leak')}.",
            icon=":material/error:",
        )
        table({"Leak": leaks[:MOST_ENTRIES]}, "honesty_leaks")
    if alarms:
        st.warning(
            "These columns predict suspiciously well: check where they come from.",
            icon=":material/notification_important:",
        )
        table({"Alarm": alarms[:MOST_ENTRIES]}, "honesty_alarms")
    if isinstance(report.get("leaks"), list) and not leaks and not alarms:
        st.success("No look-ahead was found.", icon=":material/check_circle:")
    if untried:
        st.caption(
            f"Not proved, because these could not be built: {plain(', '.join(untried), 400)}."
        )
    if unproved:
        st.caption(f"Not proved, for lack of time: {plain(', '.join(unproved), 400)}.")
    if trusted:
        st.caption(
            "Taken on trust, because the check cannot recompute them:"
            f" {plain(', '.join(trusted), 400)}."
        )


def list_entries(values: Any) -> list[str]:
    """List entries of a file as text; none if they are no list."""
    return list(map(str, values)) if isinstance(values, list) else []


def show_selection(folder: Folder, version: Hashable) -> None:
    """Show all trials by their validation score; the winner was chosen from them."""
    try:
        pods = artifacts.load_pods(folder)
    except NotThereError:
        return
    scores = pd.to_numeric(pods["score"], errors="coerce").dropna().sort_values(ascending=False)
    if scores.empty:
        return
    heading("Scores of all trials")
    text = f"{count(len(scores))} trials with a score, of {count(len(pods))} pods."
    named = scores.set_axis(pods.loc[scores.index, "pod"].astype(str))
    contents = int(pd.util.hash_pandas_object(named).sum())
    charts.show(lambda: figures.trials_figure(named), "honesty_trials", version=(version, contents))
    if len(scores) > figures.MOST_BARS:
        best = f"{named.index[0]} with {score(scores.iloc[0])}"
        text += f" Grouped in {figures.BINS} bins; the line marks the best, {best}."
    st.caption(text)


page("Honesty", render)
