"""Commands that build and check data, train, backtest, compare, show the ledger of looks, and keep
a runs folder in order."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import PositiveFloat

from fintrader.cli.options import (
    open_folder,
    parse,
    parse_argument,
    parse_config,
    parse_data_config,
    take_argument,
    take_options,
)
from fintrader.cli.terminal_tables import tabulate
from fintrader.config import Settings, is_url, load_object
from fintrader.errors import ConfigError
from fintrader.progress import shorten_list
from fintrader.results.folders import RunsFolder

if TYPE_CHECKING:
    from fintrader.pipeline.config import RunConfig


class SearchOptions(Settings):
    """An alternative to the configuration's algorithm and its settings."""

    search: bool = False
    """Let all algorithms race, with step size, discount and noise from wide ranges: for markets and
    rewards whose best settings are not known. The best go on (`tournament.order: halving`). The
    search has at least 25 pods, and six for each algorithm."""


def _run_verb(name: str, function: str, argv: list[str]) -> None:
    """Call a function of the pipeline (`module:name`) on a configuration; print the next steps."""
    config = _read_config(name, argv)
    home: Path = load_object(f"fintrader.pipeline.{function}")(config)
    report = home / "backtest" / "report.html"
    if report.is_file():
        _print_next_steps(config, report)


run = functools.partial(_run_verb, "run", "run_stages:run")
"""Run the whole pipeline."""
train = functools.partial(_run_verb, "train", "train:train_one")
"""Train one agent."""
tournament = functools.partial(_run_verb, "tournament", "run_stages:run_tournament")
"""Run data and tournament."""
walk_forward = functools.partial(_run_verb, "walkforward", "run_stages:walk_forward")
"""Run a tournament for each fold."""


def _read_config(name: str, argv: list[str]) -> RunConfig:
    """Read CONFIG, its overrides and `--search`."""
    options, words = take_options(SearchOptions(), argv, name)
    config = parse_config(name, words)
    return load_object("fintrader.pipeline.wide_search:widen")(config) if options.search else config


def _print_next_steps(config: RunConfig, report: Path) -> None:
    """Print the commands that show a finished run and run the user's own bars."""
    program = Path(sys.argv[0])
    found = shutil.which("fintrader")
    named = program.name == "fintrader" and (
        found is None or Path(found).resolve() != program.resolve()
    )
    command = shlex.quote(os.path.relpath(program)) if named else "fintrader"
    option = (
        ""
        if config.runs_dir == Path("runs")
        else f" --runs-dir {shlex.quote(str(config.runs_dir))}"
    )
    print(f"\nOpen {report} in a browser, or see all of the run in `{command} app{option}`.")
    if config.data.source.kind == "synthetic":
        print(
            f"These bars are synthetic. For your own file or folder: `{command} init FILE`, and"
            " run the configuration that it writes."
        )


class PlanOptions(Settings):
    """Prices of a machine like this one. You give them: they differ by provider, region, contract
    and day, so a stored list would soon be wrong."""

    on_demand_usd: PositiveFloat | None = None
    """USD an hour, on demand; unless it is set, no cost is printed."""
    spot_usd: PositiveFloat | None = None
    """USD an hour of a spot instance, which may be taken away; a run then resumes on another."""


def plan(argv: list[str]) -> None:
    """Print what a run will do."""
    prices, words = take_options(PlanOptions(), argv, "plan")
    config = _read_config("plan", words)
    from fintrader.pipeline.run_plan import plan_run  # after the settings: it loads torch

    print(plan_run(config, {"on demand": prices.on_demand_usd, "spot": prices.spot_usd}))


def submit(argv: list[str]) -> None:
    """Start a run on another machine."""
    from fintrader.pipeline.submission import SubmitOptions, submit

    options, words = take_options(SubmitOptions(), argv, "submit")
    print(submit(_read_config("submit", words), options))


class BuildOptions(Settings):
    """Other tasks than building a market."""

    dry_run: bool = False
    """Print which bars a build would read, and build nothing."""
    prune: bool = False
    """List the stored markets and bars that neither these configurations nor a run needs."""
    yes: bool = False
    """With --prune: remove them."""


def build_data(argv: list[str]) -> None:
    """Build a market file, print the bars it would read, or prune."""
    from fintrader.market import data_commands
    from fintrader.market.data_config import load_data_config

    options, words = take_options(BuildOptions(), argv, "data build")
    if options.prune:
        if not words or any(word.startswith("-") for word in words):
            raise ConfigError(
                "`fintrader data build --prune` needs CONFIG ..., and no other option but --yes"
            )
        configs = [load_data_config(word) for word in words]
        data_commands.collect_garbage(configs, remove=options.yes)
    elif options.yes:
        raise ConfigError("--yes goes with --prune: give both, or leave it out")
    else:
        config = parse_data_config("data build", words)
        if options.dry_run:
            data_commands.rehearse_data(config)
        else:
            data_commands.build_data(config)


def report_quality(argv: list[str]) -> None:
    """Report every hole and fault of the bars."""
    from fintrader.market import data_commands

    data_commands.report_quality(parse_data_config("data quality", argv))


def lookahead(argv: list[str]) -> None:
    """Search for look-ahead."""
    from fintrader.backtesting.settings import LookaheadSettings

    settings, words = take_options(LookaheadSettings(), argv, "lookahead")
    config = parse_config("lookahead", words)
    from fintrader.pipeline.data import check_lookahead  # after the settings: it loads torch

    report = check_lookahead(config, settings)
    if not report.clean:
        sys.exit(1 if report.leaks else 3)


def backtest(argv: list[str]) -> None:
    """Backtest a run's stored policies again."""
    from fintrader.pipeline.config import load_config

    folder, rest = take_argument("backtest", "RUN_DIR", argv)
    home = open_folder(folder).root
    path = home / "config.yaml"
    if not path.is_file():
        raise ConfigError(
            f"{folder}: there is no run here (no config.yaml); give the folder of a run"
        )
    config = parse(load_config(path), rest, "backtest")
    from fintrader.pipeline.run_stages import backtest_run  # after the settings: it loads torch

    backtest_run(home, config, called=folder)


class ComparisonOptions(Settings):
    """Place of a page that compares backtests."""

    out: Path = Path("comparison.html")
    """File to write."""


def compare(argv: list[str]) -> None:
    """Write several backtests on one page."""
    from fintrader.report.run_comparison import labels, write_comparison

    options, words = take_options(ComparisonOptions(), argv, "compare")
    if not words or any(word.startswith("-") for word in words):
        raise ConfigError("`fintrader compare` needs RUN RUN ..., and has no option but --out FILE")
    if options.out.is_dir():
        raise ConfigError(f"--out: {options.out} is a folder; name the file to write")
    from fintrader.results.backtest_files import read_backtest
    from fintrader.results.stored_looks import note_shown
    from fintrader.verdict.looks import LedgerError

    backtests = {}
    for label, word in zip(labels(words), words, strict=True):
        home = open_folder(word).root
        backtests[label] = read_backtest(
            home if (home / "metrics.json").is_file() else home / "backtest"
        )
        if backtests[label].changed:
            print(f"{label}: {backtests[label].changed}")
    for stored in backtests.values():
        try:
            note_shown(stored, shlex.join(["fintrader", "compare", *words]))
        except LedgerError as error:
            print(f"not noted as a look: {error}")
    print(write_comparison(options.out, backtests))


class LooksOptions(Settings):
    """Runs whose looks are compared with the ledger."""

    runs_dir: str = "runs"
    """Folder that holds the runs."""


def looks(argv: list[str]) -> None:
    """Show the ledger of looks, and each window's next level."""
    from fintrader.numerals import significance
    from fintrader.results.stored_looks import find_missing_looks
    from fintrader.verdict.alpha import level_of_look
    from fintrader.verdict.claims import list_registrations
    from fintrader.verdict.looks import Ledger, LedgerError, summarise_windows
    from fintrader.verdict.verdict import ACTIVE_RETURN

    options = parse(LooksOptions(), argv, "looks")
    home = Path(options.runs_dir)
    if "runs_dir" in options.model_fields_set and not home.is_dir():
        raise ConfigError(f"{home}: no such folder; give the one that holds the runs (--runs-dir)")
    ledger = Ledger()
    try:
        lines = ledger.looks()
        claims = list_registrations()
        deleted, foreign = find_missing_looks(home) if home.is_dir() else ([], [])
    except LedgerError as error:
        print(error)
        sys.exit(1)
    rows = [
        {
            "window": f"{one.bars.first} to {one.bars.last}",
            "called": ", ".join(one.names),
            "universe": f"{len(one.bars.symbols)}: {shorten_list(one.bars.symbols)}",
            **({} if one.question == ACTIVE_RETURN else {"question": one.question}),
            "looks": one.looks,
            "next level": significance(level_of_look(one.looks + 1)),
            "runs": ", ".join(one.runs),
            "first": one.first[:16].replace("T", " "),
            "last": one.last[:16].replace("T", " "),
        }
        for one in summarise_windows(lines)
    ]
    if rows:
        print(tabulate(rows, *max(rows, key=len)))
    for claim in claims:
        print(f"Claim {claim.digest[:12]} of {claim.time[:10]}: {claim.claim.describe()}")
    for sentence in (*deleted, *foreign):
        print(sentence)
    print(f"{ledger.path}: {len(lines)} looks; its chain of hashes is unbroken")
    sys.exit(1 if deleted else 0)


class RunsOptions(Settings):
    """The note and tags of a run, and its deletion; a setting that is not given stays as it is."""

    note: str | None = None
    """Any text."""
    tags: tuple[str, ...] | None = None
    """Short words to find the run by; they replace its present tags."""
    archived: bool | None = None
    """Archive the run: the app's list leaves it out unless asked."""
    delete: bool = False
    """Print what deleting the run would lose."""
    yes: bool = False
    """With --delete: delete it."""


def edit_run(argv: list[str]) -> None:
    """Show or write a run's note and tags, archive it, or delete it."""
    from fintrader.results.notes import read_notes, write_notes

    word, options = parse_argument("runs", RunsOptions(), argv)
    changes = options.model_dump(include={"note", "tags", "archived"}, exclude_none=True)
    if options.delete and changes:
        raise ConfigError(f"--delete: cannot go with --{next(iter(changes))}; give one of them")
    if options.yes and not options.delete:
        raise ConfigError("--yes goes with --delete: give both, or leave it out")
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
    from fintrader.results.deletion import delete_run, describe_loss

    print(f"{name}: {describe_loss(runs, name)}")
    if not confirmed:
        print("Nothing was deleted; add --yes to delete the run.")
        return
    delete_run(runs, name)
    print("Deleted.")
