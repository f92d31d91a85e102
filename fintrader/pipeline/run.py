"""The whole way in one place: bars → market → tournament → backtest, each stage resumable.

Every stage leaves a finished artifact behind and begins by looking for it, so starting and resuming are one code
path: whatever is killed is picked up again by the same command.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fintrader.config import dump_yaml
from fintrader.data.tensors import MarketTensors
from fintrader.errors import BacktestError, RunError
from fintrader.files import write_text
from fintrader.pipeline.config import RunConfig, differences, load_config
from fintrader.pipeline.data import make_market
from fintrader.pipeline.evaluation import Repeat, as_configured, evaluate_chosen, information_free_market, window_folder
from fintrader.pipeline.session import observing, watching, workplace
from fintrader.progress import reporter
from fintrader.results.backtest_files import StoredBacktest, read_backtest
from fintrader.results.formatting import in_order, metrics_table, percent, window_words
from fintrader.runs import Manifest, RunFolder
from fintrader.storage.mirror import Mirror, mirror_of
from fintrader.tournament.run import CHANGEABLE, TournamentResult
from fintrader.tournament.run import run_tournament as run_race


@dataclass(frozen=True)
class RunOutcome:
    """What a run left behind."""

    folder: Path
    metrics: dict[str, dict[str, Any]]
    """Strategy -> metric -> value in the (first) window; the content of its `metrics.json`."""
    trials: int
    """Pods that were trained: what the winner was chosen from."""


def run(config: RunConfig) -> RunOutcome:
    """All stages; prints the table and the paths of what it wrote.

    Raises RunError when the run's folder is in use, or was made with other settings.
    """
    with observing(config), workplace(config) as mirror:
        manifest = claim(config, mirror=mirror)
        market = make_market(config, manifest)
        _tournament_stage(config, manifest, market)
        null_model_stage(config, manifest, market)
        return backtest_stage(config, manifest, market)


def run_tournament(config: RunConfig) -> Path:
    """Data and tournament; returns the run's folder."""
    with observing(config), workplace(config) as mirror:
        manifest = claim(config, mirror=mirror)
        _tournament_stage(config, manifest, make_market(config, manifest))
    return config.folder.root


def claim(config: RunConfig, verb: str = "run", *, mirror: Mirror | None = None) -> Manifest:
    """The run's manifest, new or as it stands. Raises RunError when the folder was made with other settings.

    A new one says that `fintrader <verb>` makes the run again.

    Settings that alter no pod that exists (how many pods, say) may change: the tournament then goes on with them, and
    what followed from it is made again.
    """
    if verb != "train":
        assert config.trading  # raises for an environment that is no market, before anything is built
    folder = config.folder
    text = dump_yaml(config)
    reopened: set[str] = set()
    if folder.config.is_file():
        # Through the model, so that a setting which this version added counts with its default.
        for field, (there, here) in differences(load_config(folder.config), config).items():
            if field.startswith("backtest."):
                reopened |= {"backtest"}
            elif field.removeprefix("tournament.").split(".")[0] in CHANGEABLE:
                reopened |= {"tournament", "null_model", "backtest"}
            else:
                raise RunError(
                    f"{folder.root} was made with other settings ({field}: {there} there, {here} here); "
                    "choose another --name, or remove the folder"
                )
    if folder.manifest.is_file():
        manifest = Manifest.load(folder.manifest)
        manifest.reopen(*reopened)
    else:
        manifest = Manifest.create(
            folder.manifest,
            name=config.name,
            seed=config.seed,
            device=config.resolved_device(),
            config_hash=hashlib.sha256(text.encode()).hexdigest(),
            command=f"fintrader {verb} {folder.config}",
        )
    if reopened or not folder.config.is_file():
        write_text(folder.config, text)
    if mirror is not None:
        manifest.saved = mirror.publish
        mirror.publish()
    return manifest


def _tournament_stage(config: RunConfig, manifest: Manifest, market: Path) -> None:
    if manifest.done("tournament"):
        return
    with manifest.stage("tournament"):
        result = search(config, config.folder, market, manifest.values["data_hash"])
        manifest.update(trials=result.trials, best=result.best)


def null_model_stage(config: RunConfig, manifest: Manifest, market: Path) -> None:
    """The same search on features that hold no information: what it finds there is luck by construction."""
    if not config.backtest.null_model or manifest.done("null_model"):
        return
    try:
        shuffled = information_free_market(market, config.seed)
    except BacktestError as error:
        print(f"no null model: {error}")
        return
    with manifest.stage("null_model"):
        search(config, RunFolder(config.folder.null_model), shuffled, MarketTensors.stored_hash(shuffled))


def search(
    config: RunConfig, folder: RunFolder, market: Path, data_hash: str, race: Callable[..., TournamentResult] = run_race
) -> TournamentResult:
    """The configured tournament on a market, in a folder; resumes, or returns at once when it is over.

    `race` is called as `tournament.run.run_tournament` is.
    """
    trained = {"env": config.trading, "agent": config.agents or config.agent, "seed": config.seed}
    where = {"folder": folder, "mirror": mirror_of(folder.root), "market": market, "data_hash": data_hash}
    machines = {"device": config.resolved_device(), "launcher": config.make_launcher()}
    with watching(config, folder) as watch, reporter() as progress:
        return race(config.tournament, **where, **trained, **machines, progress=progress, watch=watch)


def backtest_stage(config: RunConfig, manifest: Manifest, market: Path, *, repeat: Repeat | None = None) -> RunOutcome:
    """Judge every window; where nothing was changed, those that lie there are left as they are."""
    fresh = repeat is None and manifest.done("backtest")
    windows = [window for window in config.backtest.window if not (fresh and as_configured(config, window))]
    if windows:
        with manifest.stage("backtest"):
            for window in windows:
                evaluate_chosen(config, manifest, market, window, repeat)
        manifest.saved()  # the stage itself says nothing when it had been done before
    manifest.finish()
    return conclude(config, manifest)


def conclude(config: RunConfig, manifest: Manifest) -> RunOutcome:
    """Print what a finished run found in every window, and return it."""
    found = []
    for window in config.backtest.window:
        stored = read_backtest(window_folder(config.folder, window))
        found.append({name: stored.metrics[name] for name in in_order(stored.metrics)})
        _print_outcome(config, manifest, window, stored)
    for path in (config.folder.leaderboard, config.folder.root):
        if path.exists():
            Console(soft_wrap=True).print(f"  {path}", highlight=False)
    return RunOutcome(config.folder.root, found[0], int(manifest.values["trials"]))


def _print_outcome(config: RunConfig, manifest: Manifest, window: str, stored: StoredBacktest) -> None:
    """The paper's table, what it was chosen from, and where everything lies."""
    folder, console = window_folder(config.folder, window), Console()
    if not console.is_terminal:
        console = Console(width=120)  # a log file has room; a table cut to 80 columns hides its figures
    context = stored.context
    title = f"{config.name}: {window_words(context['window'])}, net of {context['cost_bps']:g} bps a trade"
    console.print(metrics_table({name: stored.metrics[name] for name in in_order(stored.metrics)}, title=title))
    for name, said in context.get("changed", {}).items():
        console.print(f"Not as trained: {name.replace('_', ' ')} {said}.", highlight=False)
    console.print(f"Chosen from {manifest.values['trials']} trials by their validation {config.tournament.metric}.")
    if planted := context.get("planted"):
        expected = planted["share_of_expected"]["ensemble"]
        oracle = planted["share_of_oracle"].get("ensemble")
        console.print(
            f"Planted signal: the ensemble reached {percent(expected, 0)} of the best expected log growth"
            + (f", {percent(oracle, 0)} of what the oracle made of this window." if oracle is not None else ".")
        )
    console.print(stored.honesty["verdict"])
    for name in ("report.html", "tear_sheet.png", "tear_sheet.pdf", "metrics.json"):
        if (folder / name).exists():
            console.print(f"  {folder / name}", highlight=False)
