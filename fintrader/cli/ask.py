"""Commands that ask about a run, or steer it from outside: status, lineage, scale, replay, rebuild."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.console import Console
from rich.table import Table

from fintrader.cli.options import parse, positional
from fintrader.config import Settings, SettingsT, is_url
from fintrader.errors import ConfigError, TournamentError
from fintrader.runs import RunFolder


class ScaleOptions(Settings):
    """How many pods a tournament keeps at work; it re-reads this while it runs."""

    pods: int | None = Field(None, ge=1)
    """Pods at work at once; None: what the run's settings say. `order: submission` lets `pool_size` work, no more."""


class ReplayOptions(Settings):
    """Where a replay goes."""

    name: str | None = None
    """Name of the new run; the old one's with `-replay` unless set."""


class ExportOptions(Settings):
    """Where an export goes."""

    out: Path | None = None
    """Folder to write; `tensorboard` in the run's folder unless set. An earlier export there is replaced."""


def status(argv: list[str]) -> None:
    """RUN [--json]: pods by state, time left, leaderboard, what is at work, losses and their reasons."""
    from fintrader.results.formatting import count, duration
    from fintrader.tournament.status import status as ask

    as_json = "--json" in argv
    folder = _run_folder("status", [word for word in argv if word != "--json"])
    answer = ask(folder)
    if as_json:
        print(json.dumps(answer, indent=2, sort_keys=True))
        return
    console = Console()
    state = "finished" if answer["finished"] else "racing" if answer["active"] else "interrupted"
    counts = ", ".join(f"{pods} {name}" for name, pods in sorted(answer["states"].items()))
    done = f"{count(answer['trials'])} trials, {count(answer['env_steps'])} env-steps"
    console.print(f"{answer['run']}: {state}; {counts}; {done}")
    if answer["eta_seconds"] is not None:
        left = duration(answer["eta_seconds"])
        console.print(f"{answer['applied']} of {answer['requested_results']} results; about {left} left")
    if answer["losses"]:
        lost = ", ".join(f"{times} x {name}" for name, times in sorted(answer["losses"].items()))
        console.print(f"lost attempts: {lost}")
    console.print(_table(answer["leaderboard"], ("rank", "pod", "score", "algo", "origin", "parent", "env_steps")))
    for pod in answer["at_work"]:
        console.print("  at work: " + ", ".join(f"{key} {_show(value)}" for key, value in pod.items()))


def lineage(argv: list[str]) -> None:
    """RUN POD: a pod and its ancestors down to the founder, with what changed on the way."""
    from fintrader.results.leaderboard import lineage as ask
    from fintrader.results.leaderboard import read_pods

    if len(argv) != 2 and argv[:1] not in (["-h"], ["--help"]):
        raise ConfigError("`fintrader lineage` needs RUN_DIR and POD; `fintrader status RUN_DIR` lists the pods")
    folder, (pod,) = positional("lineage", "RUN_DIR POD", argv)
    rows = ask(read_pods(_folder(folder).leaderboard), pod)
    Console().print(_table(rows, ("pod", "origin", "score", "algo", "changed")))


def scale(argv: list[str]) -> None:
    """RUN_DIR --pods N: keep N pods at work from now on, while the tournament runs."""
    from fintrader.tournament.status import effect
    from fintrader.tournament.status import scale as ask

    folder, options = _with_options("scale", ScaleOptions(), argv)
    if is_url(folder):
        raise ConfigError("a tournament is scaled where its head runs: give its folder on that machine")
    run = _folder(folder)
    ask(run, options.pods)
    print(f"{folder}: {effect(run, options.pods)}")


def replay(argv: list[str]) -> None:
    """RUN_DIR [--name NAME]: race a finished run again from its event log and compare byte by byte."""
    from fintrader import pipeline

    folder, options = _with_options("replay", ReplayOptions(), argv)
    differences = pipeline.replay_run(_folder(folder).root, options.name)
    for line in differences:
        print(line)
    print("equal, byte for byte" if not differences else f"{len(differences)} differences")
    sys.exit(1 if differences else 0)


def rebuild(argv: list[str]) -> None:
    """RUN_DIR: make the leaderboard's database again from the stored results."""
    from fintrader.tournament.status import rebuild as ask

    folder = _run_folder("tournament rebuild", argv)
    print(f"{folder.leaderboard}: made again from {ask(folder)} results")


def export_tensorboard(argv: list[str]) -> None:
    """RUN_DIR [--out DIR]: the pods' training metrics and the scores as event files for TensorBoard."""
    from fintrader.tournament.tensorboard import export

    folder, options = _with_options("export tensorboard", ExportOptions(), argv)
    exported = export(_folder(folder), options.out)
    print(f"{exported.out}: {exported.pods} pods, {exported.scalars:,} values; tensorboard --logdir {exported.out}")


def _with_options(command: str, defaults: SettingsT, argv: list[str]) -> tuple[str, SettingsT]:
    """RUN_DIR and the options after it."""

    def options(words: list[str]) -> SettingsT:
        return parse(type(defaults), defaults, words, f"{command} RUN_DIR")

    folder, rest = positional(command, "RUN_DIR", argv, lambda: options(["--help"]))
    return folder, options(rest)


def _run_folder(command: str, argv: list[str]) -> RunFolder:
    name, rest = positional(command, "RUN_DIR", argv)
    if rest:
        raise ConfigError(f"{rest[0]!r}: `fintrader {command}` takes only RUN_DIR")
    return _folder(name)


def _folder(name: str) -> RunFolder:
    return RunFolder(run_path(name))


def run_path(name: str) -> Path:
    """The folder of a run given by its path or URL. Raises TournamentError when there is none."""
    if is_url(name):
        from fintrader.pipeline import open_run

        return open_run(name)
    path = Path(name)
    if not path.is_dir():
        raise TournamentError(f"{name}: no such folder; give the folder of a run")
    return path


def _table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> Table:
    from fintrader.results.formatting import score

    table = Table(pad_edge=False)
    present = [column for column in columns if any(column in row for row in rows)]
    for column in present:
        table.add_column(column)
    for row in rows:
        table.add_row(*[score(row[column]) if column == "score" else _show(row.get(column)) for column in present])
    return table


def _show(value: Any) -> str:
    from fintrader.results.formatting import DASH, count

    if value is None:
        return DASH
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_show(below)}" for key, below in value.items())
    return count(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)
