"""`fintrader init` in a page: choose a file or folder of bars, detect how to read it, and write a
configuration.

Browsing stays inside the folder that the app was started in and follows no link; a path of this
machine may be typed instead. Uploaded files are kept below `uploads`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from fintrader.bars.detect import Detection, detect
from fintrader.bars.sources.listing import find_file_kind
from fintrader.cli.detect_bars import COLUMNS, SETTINGS, InitOptions
from fintrader.config import is_url, validate
from fintrader.errors import ConfigError, DataError
from fintrader.files import write_bytes
from fintrader.market.config_path import choose_config_path
from fintrader.numerals import format_count
from fintrader.progress import shorten_list
from fintrader.results.folders import Folder
from fintrader_app.forms import Draft, draw_pairs, read_schema
from fintrader_app.shell import go, guarded, line_up, list_config_folders, plain
from fintrader_app.tables import table

MOST_ENTRIES = 2_000
LONGEST_NAME = 200
"""Bytes of an uploaded file's name: file systems take 255, and temporary files have longer ones."""
UP = ".."
HERE = "this whole folder"
ANSWERS = (*COLUMNS, *SETTINGS)
"""Options of `fintrader init` that replace a guess."""
SURE = {"given": "◆ given", "sure": "● sure", "likely": "◐ likely", "assumed": "○ assumed"}


def list_entries(folder: Folder) -> list[str]:
    """List folders (with a slash) and files that may hold bars, at most MOST_ENTRIES, without links
    and hidden ones."""
    try:
        found = sorted(
            one
            for one in folder.root.iterdir()
            if not one.name.startswith(".") and not one.is_symlink()
        )
        folders = [f"{one.name}/" for one in found if one.is_dir()]
        files = [one.name for one in found if one.is_file()]
    except OSError as error:
        raise DataError(
            f"{folder.root.name}/ cannot be read ({error.strerror}); choose another folder"
        ) from None
    return [*folders, *(name for name in files if find_file_kind(name, text=True))][:MOST_ENTRIES]


def render() -> None:
    """Draw the picker, the detected settings, and the button that writes the configuration."""
    path = ""
    with guarded():
        path = browse()
    files = st.file_uploader("Upload files of bars", accept_multiple_files=True, key="own_uploads")
    schema = read_schema(InitOptions)
    answers = st.session_state.setdefault("own_answers", {})
    draw_pairs(schema, ("preset", "calendar"), answers, "own", "detected")
    with st.expander("Columns, zone and format, where a guess is wrong"):
        draw_pairs(schema, ANSWERS, answers, "own", "detected")
    asked = st.button(
        "Detect how to read it",
        icon=":material/search:",
        key="own_detect",
        disabled=not path and not files,
        width="stretch",
    )
    asked_for = path, [file.file_id for file in files], dict(answers)
    with guarded():
        if asked:
            st.session_state.pop("own_found", None)
            with st.spinner("Reading a part of the bars"):
                if path and files:
                    raise ConfigError("remove the uploaded files, or the path: one of them is read")
                found = detect_bars(keep_uploads(files) if files else path, answers)
                st.session_state["own_found"] = asked_for, found
        # Other answers, or another file, need another look.
        was_asked_for, found = st.session_state.get("own_found", (None, None))
        if was_asked_for == asked_for:
            show_findings(found)


def browse() -> str:
    """Draw the picker; return the path, typed or chosen by opening folders."""
    state = st.session_state
    home = Path.cwd().resolve()
    inside = state.get("own_inside", ())
    folder = Folder(Folder(home).path(*inside)) if inside else Folder(home)
    here = "/".join(inside)

    def open_entry() -> None:
        chosen = state.pop(f"own_open:{here}", None) or ""
        if chosen == UP:
            state["own_inside"] = inside[:-1]
        elif chosen == HERE:
            state["own_path"] = here
        elif chosen.endswith("/"):
            state["own_inside"] = (*inside, chosen[:-1])
        elif chosen:
            state["own_path"] = "/".join((*inside, chosen))

    try:
        listed = list_entries(folder)
    except DataError:
        state["own_inside"] = inside[:-1]
        raise
    left, right = line_up(1, 1)
    left.selectbox(
        f"Browse {plain(home.name)}/{plain(here)}",
        [*([UP, HERE] if inside else []), *listed],
        index=None,
        key=f"own_open:{here}",
        on_change=open_entry,
        placeholder=(
            "open a folder, or choose a file of bars"
            if listed
            else "no folder and no file of bars here"
        ),
    )
    return right.text_input(
        "File or folder of bars", key="own_path", placeholder="a path on this machine"
    ).strip()


def keep_uploads(files: Sequence[UploadedFile]) -> str:
    """Write uploaded files into a new folder below `uploads`, once, and return its path."""
    uploads = [file.file_id for file in files]
    kept, folder = st.session_state.get("own_kept", (None, ""))
    if kept != uploads or not Path(folder).is_dir():
        # A folder's name with signs such as [ or * would be a pattern.
        name = re.sub(r"[^\w-]", "", Path(files[0].name).stem)[:60]
        folder = find_unused(Path(f"uploads/{name or 'bars'}"))
        for file in files:
            write_bytes(find_unused(folder / clean_name(file.name)), file.getvalue())
        st.session_state["own_kept"] = uploads, folder
    return str(folder)


def clean_name(name: str) -> str:
    """Return an uploaded file's name, which may hold a symbol, without folders, leading dots and
    control characters. Raises ConfigError for a long one."""
    name = re.sub(r"(?s)^(.*/)?[. \x00-\x1f]*|[\x00-\x1f]", "", name)
    if not 0 < len(os.fsencode(name)) <= LONGEST_NAME:
        raise ConfigError(f"{name[:30]!r}: give the file a name of 1 to {LONGEST_NAME} bytes")
    return name


def detect_bars(path: str, answers: Draft) -> Detection:
    """Detect how to read these bars; `answers`: options of `fintrader init`. Raises
    FintraderError."""
    if is_url(path):
        raise DataError("a URL is not read from here; use `fintrader init URL` in a terminal")
    options = validate(InitOptions, answers, "init")
    return detect(path, preset=options.preset, calendar=options.calendar, known=options.source())


def show_findings(found: Detection) -> None:
    """Show the detected settings, their certainty, and the next step."""
    from fintrader.market.starter import write_config  # it imports torch

    st.markdown(
        f"**{format_count(len(found.symbols), 'symbol')}** ({plain(shorten_list(found.symbols))}),"
        f" {found.first} to {found.last}, {len(found.sessions):,} sessions"
    )
    rows = [
        {"Setting": one.setting, "Found": one.value, "How sure": SURE[one.sure], "Why": one.why}
        for one in found.findings
    ]
    table(rows, "own_findings", height="content")
    if found.waivers:
        st.warning(
            "A build stops at faults in these bars. The configuration lists them in comments, so"
            " that you can allow them.",
            icon=":material/rule:",
        )
    target = find_unused(list_config_folders()[0] / choose_config_path(found.path).name)
    if st.button(
        f"Write {plain(target.name)} and start from it", key="own_write", icon=":material/note_add:"
    ):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_config(found, target)
        st.session_state.pop("own_found", None)
        go("new_run.py", source=f"configs/{target.name}", section="data")


def find_unused(path: Path) -> Path:
    """Find a path that does not exist yet: this one, or `name-2.yaml` and so on."""
    more = (path.with_name(f"{path.stem}-{k}{path.suffix}") for k in count(2))
    return next(tried for tried in chain([path], more) if not tried.exists())
