"""Runs: the list of all runs, their results, and the command that reproduces each."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.column_config import DatetimeColumn, ListColumn, NumberColumn, TextColumn
from streamlit.delta_generator import DeltaGenerator

from fintrader.numerals import DASH, count
from fintrader.results import figures
from fintrader.results.deletion import delete_run, describe_loss
from fintrader.results.episode_scores import FILE, FOLDER, EpisodeScores, present_episodes
from fintrader.results.figures.style import escape_label
from fintrader.results.folders import Folder, NotThereError, RunsFolder
from fintrader.results.formatting import duration, moment, verdict_words
from fintrader.results.notes import (
    MOST_CHARACTERS,
    MOST_IN_A_TAG,
    Notes,
    check_writable,
    read_notes,
    write_notes,
)
from fintrader.results.run import Summary
from fintrader.results.sections import BacktestView, present_baselines
from fintrader.results.strategy_metrics import NO_METRICS
from fintrader_app import artifacts, charts, jobs, tables
from fintrader_app.artifacts import load_summaries
from fintrader_app.sections import draw, draw_verdict
from fintrader_app.shell import (
    PAGES,
    STATUS,
    describe_error,
    draw_notice,
    go,
    guarded,
    hide_secrets,
    is_shown_above,
    line_up,
    link_choice,
    list_folds,
    page,
    plain,
    prefer_run,
    remember,
    show_stages,
)
from fintrader_app.tables import find_height, show_board, table

COLUMNS = {
    "status": TextColumn("Status", width=110),
    "name": TextColumn("Run", pinned=True),
    "verdict": TextColumn(
        "Verdict",
        help=(
            "Of the test window against the benchmark portfolio; the Honesty page has it in full"
        ),
    ),
    "return": NumberColumn("Return", format="percent", help="Ensemble, test window, net of costs"),
    "index": NumberColumn("Index", format="percent", help="The market's index over the same bars"),
    "market": TextColumn("Market", help="Synthetic, or with a planted signal"),
    "sharpe": NumberColumn("Sharpe", format="%.2f"),
    "drawdown": NumberColumn("Max drawdown", format="percent"),
    "created": DatetimeColumn("Created (UTC)", format="YYYY-MM-DD HH:mm"),
    "took": TextColumn("Took", alignment="right"),
    "trials": NumberColumn("Trials"),
    "tags": ListColumn("Tags"),
    "note": TextColumn("Note"),
}
ROWS = 5
"""Rows of the table that are visible without scrolling."""
DRAWN = ("ensemble", "best", "buy_and_hold", "equal_weight", "benchmark")
MARK = {
    "running": "◐ running",
    "finished": "● finished",
    "interrupted": "◌ interrupted",
    "failed": "✕ failed",
    "broken": "✕ broken",
}


def build_table(found: list[Summary]) -> pd.DataFrame:
    """Build one row for each run. A number that is not stored is missing, never zero."""
    rows = []
    for run in found:
        headline = run.headline()
        created = moment(run.created)
        rows.append(
            {
                "name": run.name,
                "status": MARK[run.status],
                "verdict": verdict_words(run.verdict.text if run.verdict else None),
                "return": headline.cumulative_return,
                "index": run.metrics.get("benchmark", NO_METRICS).cumulative_return,
                "market": run.notice.partition(":")[0],
                "sharpe": headline.sharpe,
                "drawdown": headline.max_drawdown,
                "created": None if created is None else created.replace(tzinfo=None),
                "took": duration(run.seconds),
                "trials": run.trials,
                "tags": list(run.notes.tags),
                "note": run.notes.note,
            }
        )
    frame = pd.DataFrame(rows).astype({"trials": "Int64"})
    unused = [name for name in ("market", "tags", "note") if not frame[name].map(len).any()]
    return frame.drop(columns=unused)


def render(runs: RunsFolder, head: DeltaGenerator) -> None:
    # Always drawn, even empty, so that the widgets below keep their places.
    place = st.container()
    message = st.session_state.pop("runs_message", None)
    if message:
        place.success(message, icon=":material/check:")
    found = load_summaries(runs)
    if not found:
        st.info(
            f"No runs in {plain(runs.root)} yet. Start one on the New run page, or type "
            "`fintrader run configs/quickstart.yaml`.",
            icon=":material/inbox:",
        )
        if st.button("New run", icon=":material/play_circle:", type="primary"):
            go("new_run.py")
        return
    with head:
        chosen = filter_runs(found)
    if not chosen:
        raise NotThereError("no run fits the filter")
    by_name = {run.name: run for run in chosen}
    first = st.container()
    if not is_shown_above("runs"):
        first.html(render_glance(chosen))
        return
    event = table(
        build_table(chosen),
        # A choice is a row number: another list of runs needs another key.
        f"runs_table_{hash(tuple(by_name))}",
        height=find_height(min(len(chosen), ROWS)),
        column_config=COLUMNS,
        on_select="rerun",
    )
    picked = [chosen[row].name for row in event.selection.rows if row < len(chosen)]
    widget = link_choice("run", list(by_name), prefer_run(chosen))
    name = picked[0] if picked else st.session_state[widget]
    remember("run", name)
    show_actions(runs, by_name[name], picked, list_tags(found))
    if is_shown_above("preview"):
        with guarded():
            show_preview(runs, by_name[name])


def render_glance(found: list[Summary]) -> str:
    """Write the first runs as HTML, for a browser that has not loaded the code of the table yet.
    Texts of runs are escaped."""
    shown = build_table(found[:ROWS])[["name", "status", "verdict", "return", "index"]]
    heads = "".join(f"<th>{head}</th>" for head in ("Run", "Status", "Verdict", "Return", "Index"))
    body = ""
    for *words, returned, index in shown.itertuples(index=False):
        numbers = [DASH if pd.isna(value) else f"{value:.2%}" for value in (returned, index)]
        cells = "".join(f"<td>{escape_label(cell)}</td>" for cell in (*words, *numbers))
        body += f"<tr>{cells}</tr>"
    return f'<table class="ft-runs"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'


def filter_runs(found: list[Summary]) -> list[Summary]:
    """Draw the filters (text, status, tags, archived), and select the runs that pass them."""
    left, right = line_up(2, 3)
    words = left.text_input(
        "Filter", placeholder="name or note", key="runs_filter", label_visibility="collapsed"
    )
    with_archived = st.session_state.get("runs_archived")
    counts: Counter[str] = Counter(
        run.status for run in found if with_archived or not run.notes.archived
    )
    states = right.pills(
        "Status",
        [status for status in STATUS if counts[status]],
        selection_mode="multi",
        format_func=lambda status: f"{status} {counts[status]}",
        key="runs_states",
        label_visibility="collapsed",
    )
    tags, archived = pick_tags(found)
    words = words.strip().lower()
    return [
        run
        for run in found
        if words in f"{run.name} {run.notes.note}".lower()
        and (not states or run.status in states)
        and set(tags) <= set(run.notes.tags)
        and (archived or not run.notes.archived or run.name == st.query_params.get("run"))
    ]


def pick_tags(found: list[Summary]) -> tuple[list[str], bool]:
    """Pick the tags that runs must have; also return True if archived runs are to be listed."""
    known = list_tags(found)
    aside = sum(run.notes.archived for run in found)
    tags = []
    archived = False
    with st.container(horizontal=True, vertical_alignment="center"):
        if known:
            tags = st.pills(
                "Tags",
                known,
                key="runs_tags",
                selection_mode="multi",
                label_visibility="collapsed",
                format_func=plain,
            )
        if aside:
            archived = st.toggle(f"Archived {count(aside)}", key="runs_archived")
    return tags, archived


def list_tags(found: list[Summary]) -> list[str]:
    """List all tags that runs have."""
    return sorted({tag for run in found for tag in run.notes.tags})


def show_actions(runs: RunsFolder, run: Summary, picked: list[str], tags: list[str]) -> None:
    """Draw the buttons that open a run on other pages, and its notes."""
    done = bool(run.metrics)
    several = 2 <= len(picked) <= 8
    first = "Backtest" if done else "Tournament"
    by_title = {entry.title: entry for entry in PAGES}
    with st.container(horizontal=True):
        for title in ("Backtest", "Tournament", "Honesty"):
            how: Any = {"type": "primary" if title == first else "secondary"}
            how["disabled"] = not done and title != first
            if st.button(title, icon=by_title[title].icon, **how):
                go(by_title[title].file, run=run.name)
        title = f"Compare {len(picked)}" if several else "Compare"
        if st.button(
            title, icon=":material/compare_arrows:", disabled=not several, help="Select 2 to 8 rows"
        ):
            go("compare.py", runs=",".join(picked))
        with (
            st.popover("Notes, delete", icon=":material/edit_note:", key=f"keep:{run.name}"),
            guarded(),
        ):
            draw_notes(runs, run, tags)
            draw_deletion(runs, run)


def show_preview(runs: RunsFolder, run: Summary) -> None:
    """Show the verdict, curves, leaderboard, settings and command of the chosen run."""
    if run.notes.note or run.notes.tags:
        badges = (f":gray-badge[{plain(tag)}]" for tag in run.notes.tags)
        st.markdown(" ".join([*badges, plain(run.notes.note, 1_000)]))
    if run.status != "finished":
        show_stages(runs, run)
    folder = runs.run(run.name)
    if folder.exists(FOLDER, FILE):
        scores = folder.record(EpisodeScores, FOLDER, FILE)
        draw(present_episodes(scores), (folder.root, scores.returns))
    try:
        stored = artifacts.backtest(folder)
    except NotThereError as waiting:
        if run.status not in ("broken", "failed"):
            st.info(describe_error(waiting), icon=":material/hourglass_empty:")
    else:
        view = BacktestView.of(stored)
        draw_notice(stored.notice)
        draw_verdict(view, run.name)
        drawn = [name for name in stored.strategies if name in DRAWN] or stored.strategies[:5]
        version = artifacts.backtest_version(folder)
        equity = stored.curve()[drawn]
        wealth = partial(figures.equity_figure, equity)
        drawdown = partial(figures.drawdown_figure, equity, session=stored.session)
        left, right = st.columns(2)
        with left:
            st.caption("Equity, USD")
            charts.show(wealth, "preview_equity", height=260, version=version)
        with right:
            st.caption("Drawdown, from session closes")
            charts.show(drawdown, "preview_drawdown", height=260, version=version)
        tables.show_cards(stored, stored.strategies[0])
        draw(present_baselines(view), version)
    with guarded():
        show_leaders(folder)
        st.caption(plain(artifacts.describe_score(folder)))
    if run.status == "finished":
        show_stages(runs, run)
    if run.command:
        st.caption("The command that reproduces this run, or continues it")
        st.code(hide_secrets(run.command), language="bash")
    settings = st.expander(
        "Settings", icon=":material/settings:", key="preview_settings", on_change="rerun"
    )
    if settings.open:
        with settings, guarded():
            tables.show_changed_settings(artifacts.load_config(folder), "preview_changed")
            st.code(hide_secrets(folder.text("config.yaml")), language=None, height=420)


def show_leaders(folder: Folder) -> None:
    """Show the leaderboard, or for a walk-forward a pointer to the leaderboards of its folds."""
    folds = [] if folder.exists("leaderboard.sqlite") else list_folds(folder)
    if folds:
        st.caption(
            f"Walked forward: {len(folds)} folds, each with its own leaderboard on the"
            " Tournament page"
        )
        return
    board = artifacts.load_leaderboard(folder)
    if len(board):
        st.caption(
            f"Leaderboard: the best {board['rank'].notna().sum()} pods by their validation score"
        )
    show_board(board, "preview_board")


# --- notes and deletion: the only parts of the app that write into the runs folder itself ---------


def show_done(message: str, *, gone: bool = False) -> None:
    """Redraw the page with a message; `gone`: the run is no longer in the list."""
    st.session_state["runs_message"] = message
    if gone:
        remember("run", None)
    st.rerun()


def draw_notes(runs: RunsFolder, run: Summary, tags: list[str]) -> None:
    """Draw a form for note, tags and archive; `tags`: the tags of all runs."""
    folder = runs.run(run.name)
    check_writable(folder)
    with guarded():
        read_notes(folder)  # reports damaged notes
    with st.form(f"notes:{run.name}:{hash(run.notes)}", border=False):
        note = st.text_area(
            "Note", run.notes.note, max_chars=MOST_CHARACTERS, placeholder="remarks on this run"
        )
        chosen = st.multiselect(
            "Tags",
            sorted({*tags, *run.notes.tags}),
            run.notes.tags,
            accept_new_options=True,
            placeholder="choose, or type a new one",
            help=f"At most {MOST_IN_A_TAG} characters each",
        )
        archived = st.toggle(
            "Archived", run.notes.archived, help="The list leaves it out unless asked"
        )
        save = st.form_submit_button("Save", icon=":material/save:", type="primary")
    if save:
        with guarded():
            write_notes(folder, Notes(note, tuple(chosen), archived))
            show_done(f"Saved: {plain(run.name)}", gone=archived and not run.notes.archived)


def draw_deletion(runs: RunsFolder, run: Summary) -> None:
    """Draw the losses of a deletion, and its button, which works once the run's name is typed."""
    if not st.toggle("Delete this run …", key=f"delete:{run.name}"):
        return
    st.warning(plain(describe_loss(runs, run.name), 600), icon=":material/delete_forever:")
    typed = st.text_input(f"Type {plain(run.name)} to confirm", key=f"confirm:{run.name}")
    if st.button(
        "Delete for good", icon=":material/delete_forever:", disabled=typed.strip() != run.name
    ):
        delete_run(runs, run.name)
        jobs.forget(runs, run.name)
        show_done(f"Deleted: {plain(run.name)}", gone=True)


page("Runs", render)
