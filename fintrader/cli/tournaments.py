"""Commands that show or steer a run or a deployment, or export policies and curves."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat

from fintrader.cli import deployments
from fintrader.cli.options import open_folder, parse_argument
from fintrader.cli.terminal_tables import format_cell, tabulate
from fintrader.config import Settings, is_url, read_yaml
from fintrader.errors import ConfigError
from fintrader.records import to_json
from fintrader.runs import RunFolder
from fintrader.seams import OBSERVERS, load_part


class StatusOptions(Settings):
    """Parts of a run or a deployment to show, and changes to it while it works."""

    as_json: bool = False
    """Print JSON."""
    lineage: str | None = None
    """A run: name of a pod; print it and its ancestors, with the changes between them."""
    workers: Annotated[int, Field(ge=1)] | Literal["settings"] | None = None
    """A run: keep this number of pods at work from now on; `settings`: the number in the run's
    settings. At most `pool_size` work, unless `order: arrival` or `halving`."""
    drift: bool = False
    """A deployment: report again how far it drifted from its backtest (drift.html, drift.json)."""
    promote: bool = False
    """A deployment: make it the champion; the champion before it becomes the challenger."""
    deployments_dir: str = "deployments"
    """Folder that holds the deployments."""


class ExportOptions(Settings):
    """Format and place of an export."""

    format: Literal["onnx", "html", "tensorboard", "mlflow"] = "onnx"
    """`onnx`: a policy for programs without PyTorch, checked against the original; `html`: the run
    as static pages for any web host; `tensorboard`: the pods' training metrics and scores as event
    files; `mlflow`: the same as an experiment, on the server at MLFLOW_TRACKING_URI if it is
    set."""
    policy: str | None = None
    """`onnx`: `ensemble` (the default), `best`, or a pod's name."""
    out: Path | None = None
    """File (onnx, mlflow: SQLite) or folder (html, tensorboard) to write or replace; default:
    `policy.onnx` or NAME-site here, or mlflow.db or `tensorboard` in the run's folder."""


class TargetOptions(Settings):
    """Targets, and the form of the output."""

    at: tuple[PositiveFloat, ...] = ()
    """Equity at the end of the test window over the initial capital: 1.7 is +70 %."""
    as_json: bool = False
    """Print JSON."""


def status(argv: list[str]) -> None:
    """Show the state of a run or a deployment, or steer it."""
    place, options = parse_argument("status", StatusOptions(), argv, "RUN|NAME")
    if options.drift or options.promote:
        if options.promote:
            deployments.promote(place, options.deployments_dir)
        if options.drift:
            deployments.report_drift(place, options.deployments_dir)
    elif options.lineage is not None:
        from fintrader.results.leaderboard_reader import lineage, read_pods

        rows = lineage(read_pods(open_folder(place).leaderboard), options.lineage)
        print(tabulate([*map(vars, rows)], "pod", "origin", "score", "algo", "changed"))
    elif options.workers is not None:
        _scale(place, None if options.workers == "settings" else options.workers)
    elif not deployments.show_deployment(place, options.deployments_dir, as_json=options.as_json):
        _print_status(open_folder(place), as_json=options.as_json)


def _print_status(folder: RunFolder, *, as_json: bool) -> None:
    from fintrader.numerals import count
    from fintrader.results.formatting import describe_score, duration
    from fintrader.results.run import read_state
    from fintrader.stages import strip
    from fintrader.tournament.status import read_status

    whole = read_state(folder)
    raced = whole is None or (folder.root / "tournament.json").exists()
    race = read_status(folder) if raced else None
    if as_json:
        answer: dict[str, Any] = {"run": folder.root.name} if race is None else to_json(race)
        if whole is not None:
            answer |= {"status": whole[0].status, "problem": whole[0].problem}
            answer["stages"] = [asdict(stage) | {"about": stage.about} for stage in whole[1]]
        print(json.dumps(answer, indent=2, sort_keys=True))
        return
    if whole is not None:
        state = f"{whole[0].name}: {whole[0].status}; {strip(whole[1])}"
        print(*filter(None, [whole[0].notice, state]), sep="\n")
        if whole[0].problem:
            print(f"  {whole[0].problem}")
    if race is None:
        return
    state = "finished" if race.finished else "racing" if race.active else "interrupted"
    counts = ", ".join(f"{pods} {name}" for name, pods in sorted(race.states.items()))
    done = f"{count(race.trials)} trials, {count(race.env_steps)} env-steps"
    name = race.run if whole is None else "tournament"
    print(f"{name}: {state}; {counts}; {done}")
    if race.eta_seconds is not None:
        left = duration(race.eta_seconds)
        print(f"{race.applied} of {race.requested_results} results; about {left} left")
    if race.losses:
        lost = ", ".join(f"{times} x {name}" for name, times in sorted(race.losses.items()))
        print(f"lost attempts: {lost}")
    columns = ("rank", "pod", "score", "standard_error", "algo", "origin", "parent", "env_steps")
    print(tabulate([*map(_merge_metrics, race.leaderboard)], *columns))
    if folder.config.is_file():
        print(describe_score(read_yaml(folder.config).get("tournament", {}).get("metric")))
    for pod in race.at_work:
        facts = ", ".join(f"{key} {format_cell(value)}" for key, value in vars(pod).items())
        print(f"  at work: {facts}")


def _merge_metrics(row: Any) -> Any:
    """Merge a row with its metrics, of which `standard_error` is a column."""
    return row.metrics | vars(row)


def _scale(place: str, pods: int | None) -> None:
    """Keep a number of pods at work; None: the number in the run's settings."""
    from fintrader.tournament.status import describe_effect, scale

    if is_url(place):
        raise ConfigError(
            "a tournament is scaled where its head runs: give its folder on that machine"
        )
    run = open_folder(place)
    scale(run, pods)
    print(f"{place}: {describe_effect(run, pods)}")


def targets(argv: list[str]) -> None:
    """Print when a run's best pod so far first earned each target on the test window."""
    place, options = parse_argument("targets", TargetOptions(), argv)
    if not options.at:
        raise ConfigError(
            "`fintrader targets` needs --at and one or more targets, e.g. --at 1.7 1.8 (equity over"
            " initial capital, net of costs)"
        )
    from fintrader.pipeline.targets import play_leaders
    from fintrader.results.formatting import duration, format_title

    race = play_leaders(open_folder(place).root)
    reached = {target: race.find_first(target) for target in options.at}
    if options.as_json:
        times = {
            str(target): None if leader is None else leader.seconds
            for target, leader in reached.items()
        }
        print(json.dumps(to_json(race) | {"seconds_to": times}, indent=2))
        return
    rows = [vars(leader) | {"time": duration(leader.seconds)} for leader in race.leaders]
    print(tabulate(rows, "time", "pod", "score", "growth"))
    for target, leader in reached.items():
        when = "not reached"
        if leader is not None:
            when = f"reached by {leader.pod} after {duration(leader.seconds)}"
        print(f"{target:g} times the capital: {when}")
    print(f"benchmark, {format_title(race.portfolio)}: {race.benchmark:.3f} times the capital")
    if race.looks is not None:
        print(f"look {race.looks} at this window, which counts in every later verdict on it")


def export(argv: list[str]) -> None:
    """Export a policy, or the training curves, for other programs."""
    place, options = parse_argument("export", ExportOptions(), argv)
    if options.format == "onnx":
        _export_onnx(place, options.policy or "ensemble", options.out or Path("policy.onnx"))
        return
    if options.policy is not None:
        raise ConfigError(f"--policy: an option of --format onnx; {options.format} has all pods")
    if options.format == "html":
        from fintrader.report.site import write_site
        from fintrader.results.run import Run

        run = Run(open_folder(place))
        index = write_site(run, options.out or Path(f"{run.folder.root.name}-site"))
        print(f"{index}: copy {index.parent} to any web host")
        return
    exported = load_part(OBSERVERS, options.format)(open_folder(place), options.out)
    print(
        f"{exported.out}: {exported.pods} pods, {exported.scalars:,} values; `{exported.view}`"
        " shows them"
    )


def _export_onnx(place: str, name: str, out: Path) -> None:
    from fintrader.agents.policy import export_onnx, load_policy
    from fintrader.pipeline.session import open_run
    from fintrader.results.run import Run

    if out.is_dir():
        raise ConfigError(f"{out} is a folder; --out names the file to write")
    policy = Run(open_run(place), load_policy=load_policy).policy(name)
    worst = export_onnx(policy, out)
    print(f"{out}: actions differ by at most {worst:.1e} from the policy's")
