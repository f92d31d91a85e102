"""The commands that keep a runs folder in order: a note on a run, and its deletion."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fintrader.cli.options import positional, with_options
from fintrader.config import Settings, is_url
from fintrader.errors import ConfigError
from fintrader.results.folders import RunsFolder


class NoteOptions(Settings):
    """What is said of a run; what is not given stays as it is."""

    note: str | None = None
    """Any text."""
    tags: tuple[str, ...] | None = None
    """Short words to find it by, in place of those it has."""
    archived: bool | None = None
    """Put aside: the app's list leaves it out unless asked."""


def note(argv: list[str]) -> None:
    """RUN_DIR [--note TEXT] [--tags A B] [--archived]: say something of a run, tag it, put it
    aside; show it."""
    from fintrader.results.notes import read_notes, write_notes

    word, options = with_options("runs note", NoteOptions(), argv)
    runs, name = _place(word)
    folder = runs.run(name)
    notes = read_notes(folder)
    if given := {key: value for key, value in dict(options).items() if value is not None}:
        notes = write_notes(folder, replace(notes, **given))
    print(f"{name}{' (archived)' if notes.archived else ''}: {', '.join(notes.tags) or 'no tags'}")
    print(notes.note or "no note")


def delete(argv: list[str]) -> None:
    """RUN_DIR [--yes]: say what deleting a run would lose; with --yes, delete it."""
    from fintrader.results.deletion import delete_run, loss_of

    word, rest = positional("runs delete", "RUN_DIR", argv)
    if rest not in ([], ["--yes"]):
        raise ConfigError(
            "`fintrader runs delete` takes one RUN_DIR, and knows no option but --yes"
        )
    runs, name = _place(word)
    print(f"{name}: {loss_of(runs, name).sentence}")
    if not rest:
        print("Nothing was deleted; --yes does it.")
        return
    delete_run(runs, name)
    print("Deleted.")


def _place(word: str) -> tuple[RunsFolder, str]:
    if is_url(word):
        raise ConfigError(
            f"{word}: a run in a store has no notes and is not deleted from here; use the store's"
            " own tools"
        )
    path = Path(word).absolute()
    return RunsFolder.at(path.parent), path.name
