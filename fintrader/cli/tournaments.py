"""The commands that ask about a tournament, or steer it from outside."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.console import Console

from fintrader.cli.deployments import show_deployment
from fintrader.cli.options import positional, with_options
from fintrader.cli.run_arguments import folder_of, run_folder
from fintrader.cli.terminal_tables import shown, table_of
from fintrader.config import Settings, is_url
from fintrader.errors import ConfigError
from fintrader.seams import OBSERVERS, load_part


class ScaleOptions(Settings):
    """How many pods a tournament keeps at work; it re-reads this while it runs."""

    pods: int | None = Field(None, ge=1)
    """Pods at work at once; None: what the run's settings say. `order: submission` lets `pool_size`
    work, no more."""


class ExportOptions(Settings):
    """Where an export goes."""

    out: Path | None = None
    """Folder to write; `tensorboard` in the run's folder unless set. An earlier export there is
    replaced."""


def status(argv: list[str]) -> None:
    """RUN|NAME [--json]: pods by state, time left, leaderboard, losses and why; of a deployment
    what it does."""
    from fintrader.results.formatting import count, duration
    from fintrader.results.run import at_once
    from fintrader.stages import strip
    from fintrader.tournament.status import status as ask

    if show_deployment(argv):
        return
    as_json = "--json" in argv
    folder = run_folder("status", [word for word in argv if word != "--json"])
    whole = at_once(folder)
    raced = whole is None or (folder.root / "tournament.json").exists()
    answer: dict[str, Any] = ask(folder) if raced else {"run": folder.root.name}
    if whole is not None:
        answer |= {"status": whole[0].status, "problem": whole[0].problem}
        answer["stages"] = [asdict(stage) | {"about": stage.about} for stage in whole[1]]
    if as_json:
        print(json.dumps(answer, indent=2, sort_keys=True))
        return
    console = Console()
    plainly: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
    if whole is not None:
        console.print(f"{whole[0].name}: {whole[0].status}; {strip(whole[1])}", **plainly)
        if whole[0].problem:
            console.print(f"  {whole[0].problem}", **plainly)
    if not raced:
        return
    state = "finished" if answer["finished"] else "racing" if answer["active"] else "interrupted"
    counts = ", ".join(f"{pods} {name}" for name, pods in sorted(answer["states"].items()))
    done = f"{count(answer['trials'])} trials, {count(answer['env_steps'])} env-steps"
    name = answer["run"] if whole is None else "tournament"
    console.print(f"{name}: {state}; {counts}; {done}")
    if answer["eta_seconds"] is not None:
        left = duration(answer["eta_seconds"])
        console.print(
            f"{answer['applied']} of {answer['requested_results']} results; about {left} left"
        )
    if answer["losses"]:
        lost = ", ".join(f"{times} x {name}" for name, times in sorted(answer["losses"].items()))
        console.print(f"lost attempts: {lost}")
    console.print(
        table_of(
            answer["leaderboard"], ("rank", "pod", "score", "algo", "origin", "parent", "env_steps")
        )
    )
    for pod in answer["at_work"]:
        console.print(
            "  at work: " + ", ".join(f"{key} {shown(value)}" for key, value in pod.items())
        )


def lineage(argv: list[str]) -> None:
    """RUN POD: a pod and its ancestors down to the founder, with what changed on the way."""
    from fintrader.results.leaderboard_reader import lineage as ask
    from fintrader.results.leaderboard_reader import read_pods

    if len(argv) != 2:
        raise ConfigError(
            "`fintrader lineage` needs RUN_DIR and POD; `fintrader status RUN_DIR` lists the pods"
        )
    folder, (pod,) = positional("lineage", "RUN_DIR POD", argv)
    rows = ask(read_pods(folder_of(folder).leaderboard), pod)
    Console().print(table_of(rows, ("pod", "origin", "score", "algo", "changed")))


def scale(argv: list[str]) -> None:
    """RUN_DIR --pods N: keep N pods at work from now on, while the tournament runs."""
    from fintrader.tournament.status import effect
    from fintrader.tournament.status import scale as ask

    folder, options = with_options("scale", ScaleOptions(), argv)
    if is_url(folder):
        raise ConfigError(
            "a tournament is scaled where its head runs: give its folder on that machine"
        )
    run = folder_of(folder)
    ask(run, options.pods)
    print(f"{folder}: {effect(run, options.pods)}")


def export_tensorboard(argv: list[str]) -> None:
    """RUN_DIR [--out DIR]: the pods' training metrics and the scores as event files for
    TensorBoard."""
    folder, options = with_options("export tensorboard", ExportOptions(), argv)
    exported = load_part(OBSERVERS, "tensorboard")(folder_of(folder), options.out)
    print(
        f"{exported.out}: {exported.pods} pods, {exported.scalars:,} values; tensorboard --logdir"
        f" {exported.out}"
    )
