"""The command that keeps a runs folder in order: a note on a run, and its deletion."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fintrader.cli.options import parse_argument
from fintrader.config import Settings, is_url
from fintrader.errors import ConfigError
from fintrader.results.folders import RunsFolder


class RunsOptions(Settings):
    """The note and tags of a run, and its deletion; a setting that is not given stays as it is."""

    note: str | None = None
    """Any text."""
    tags: tuple[str, ...] | None = None
    """Short words to find it by, in place of those it has."""
    archived: bool | None = None
    """Put aside: the app's list leaves it out unless asked."""
    delete: bool = False
    """Print what deleting the run would lose."""
    yes: bool = False
    """With --delete: delete it."""


def edit_run(argv: list[str]) -> None:
    """Show or write a run's note and tags, put it aside, or delete it."""
    from fintrader.results.notes import read_notes, write_notes

    word, options = parse_argument("runs", RunsOptions(), argv)
    changes = options.model_dump(include={"note", "tags", "archived"}, exclude_none=True)
    if options.delete and changes:
        raise ConfigError(f"--delete: cannot stand with --{next(iter(changes))}; give one of them")
    if options.yes and not options.delete:
        raise ConfigError("--yes: only --delete asks for it")
    if is_url(word):
        raise ConfigError(
            f"{word}: a run in a store has no notes and is not deleted from here; use the store's"
            " own tools"
        )
    path = Path(word).absolute()
    runs = RunsFolder.at(path.parent)
    name = path.name
    if options.delete:
        _delete(runs, name, confirmed=options.yes)
        return
    folder = runs.run(name)
    notes = read_notes(folder)
    if changes:
        notes = write_notes(folder, replace(notes, **changes))
    print(f"{name}{' (archived)' if notes.archived else ''}: {', '.join(notes.tags) or 'no tags'}")
    print(notes.note or "no note")


def _delete(runs: RunsFolder, name: str, *, confirmed: bool) -> None:
    from fintrader.results.deletion import delete_run, loss_of

    print(f"{name}: {loss_of(runs, name).sentence}")
    if not confirmed:
        print("Nothing was deleted; add --yes to delete the run.")
        return
    delete_run(runs, name)
    print("Deleted.")
