"""An owner's notes on a run: text, tags, and whether it is archived.

    runs/<name>/notes.json

A separate file that no hash, seal or audit covers, so notes do not change a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from fintrader.errors import RunError
from fintrader.files import write_json
from fintrader.records import RecordError, from_json
from fintrader.results.folders import COPY_MARK, DamagedFileError, Folder, NotThereError

FILE = "notes.json"
MOST_CHARACTERS = 4_000
MOST_TAGS = 12
MOST_IN_A_TAG = 30


@dataclass(frozen=True)
class Notes:
    """Content of the file; empty for a run without one."""

    note: str = ""
    tags: tuple[str, ...] = ()
    archived: bool = False
    """True if lists leave the run out unless asked."""


def read_notes(folder: Folder) -> Notes:
    """Read the notes of a run. Raises DamagedFileError."""
    try:
        notes = from_json(Notes, folder.json(FILE))
    except NotThereError:
        return Notes()
    except RecordError as error:
        raise DamagedFileError(f"{FILE}: {error}; save the note again, or delete it") from None
    return Notes(notes.note[:MOST_CHARACTERS], _plain(notes.tags), notes.archived)


def write_notes(folder: Folder, notes: Notes) -> Notes:
    """Replace the notes of a run; return them as stored (tags stripped, each once).

    Raises RunError for a copy of a run in a store, a folder that cannot be written to, and notes
    that are too long.
    """
    check_writable(folder)
    notes = Notes(notes.note.strip(), _plain(notes.tags), notes.archived)
    if len(notes.note) > MOST_CHARACTERS or len(notes.tags) > MOST_TAGS:
        raise RunError(
            f"a note has at most {MOST_CHARACTERS:,} characters, and a run {MOST_TAGS} tags;"
            " shorten it"
        )
    try:
        write_json(folder.path(FILE), asdict(notes))
    except OSError as error:
        raise RunError(
            f"{folder.root.name}: {FILE} cannot be written ({error.strerror}); free space"
            " or fix permissions"
        ) from None
    return notes


def check_writable(folder: Folder) -> None:
    """Raise RunError, which says why, if a run's folder must not be changed here."""
    if folder.exists(COPY_MARK):
        raise RunError(
            f"{folder.root.name} is a copy of a run in a store, which has no notes and is not"
            " deleted from here: use the store's own tools"
        )
    if not os.access(folder.root, os.W_OK):
        raise RunError(
            f"{folder.root} is read-only; notes and deletion need permission to write there"
        )


def _plain(tags: Iterable[str]) -> tuple[str, ...]:
    cut = (" ".join(tag.replace(",", " ").split())[:MOST_IN_A_TAG].strip() for tag in tags)
    return tuple(dict.fromkeys(tag for tag in cut if tag))
