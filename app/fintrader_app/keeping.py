"""Notes on a run, and its deletion: the only parts of the app that write into the runs folder
itself."""

from __future__ import annotations

import streamlit as st

from fintrader.results.deletion import delete_run, loss_of
from fintrader.results.folders import RunsFolder
from fintrader.results.notes import (
    MOST_CHARACTERS,
    MOST_IN_A_TAG,
    Notes,
    check_writable,
    read_notes,
    write_notes,
)
from fintrader.results.run import Summary
from fintrader_app import jobs
from fintrader_app.shell import guarded, plain, remember


def show_done(message: str, *, gone: bool = False) -> None:
    """Redraw the page with a message; `gone`: the run is no longer in the list."""
    st.session_state["runs_message"] = message
    if gone:
        remember("run", None)
    st.rerun()


def draw_notes(runs: RunsFolder, run: Summary, tags: list[str]) -> None:
    """A form for note, tags and archive; `tags`: those that other runs have."""
    folder = runs.run(run.name)
    check_writable(folder)
    with guarded():
        read_notes(folder)  # reports damaged notes
    with st.form(f"notes:{run.name}:{hash(run.notes)}", border=False):
        note = st.text_area(
            "Note", run.notes.note, max_chars=MOST_CHARACTERS, placeholder="What is there to know?"
        )
        options = sorted({*tags, *run.notes.tags})
        chosen = st.multiselect(
            "Tags",
            options,
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
    """Draw the losses of a deletion and, once the run's name is typed, its button."""
    if not st.toggle("Delete this run …", key=f"delete:{run.name}"):
        return
    lost = loss_of(runs, run.name)
    st.warning(plain(lost.sentence, 600), icon=":material/delete_forever:")
    typed = st.text_input(f"Type {plain(run.name)} to confirm", key=f"confirm:{run.name}")
    if st.button(
        "Delete for good", icon=":material/delete_forever:", disabled=typed.strip() != run.name
    ):
        jobs.forget(runs, run.name)
        delete_run(runs, run.name)
        show_done(f"Deleted: {plain(run.name)}", gone=True)
