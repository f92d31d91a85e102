"""The whole pipeline: bars → market → tournament → backtest, each stage resumable; once or fold by
fold.

Every stage leaves a finished artifact behind and begins by looking for it, so starting and resuming
are one code path: after a kill the same command resumes.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from fintrader.agents.agent import refuse_idle
from fintrader.agents.environment import NO_GRADIENT, NO_OWN_GRADIENT
from fintrader.agents.heads import ActionHead
from fintrader.agents.network_kinds import resolve_network
from fintrader.backtesting.walk_forward import Fold, cut_fold, make_folds
from fintrader.config import dump_yaml
from fintrader.envs.benchmark import lay_out
from fintrader.envs.settings import CONVENTIONS, GymnasiumSettings
from fintrader.envs.trading import name_engine
from fintrader.errors import BacktestError, ConfigError, RunError
from fintrader.execution.executor import open_executor
from fintrader.files import hash_bytes, remove, write_text
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline import classic_stages, evaluation
from fintrader.pipeline.backtest_context import Repeat
from fintrader.pipeline.config import (
    RunConfig,
    changed_results,
    load_config,
    load_config_of_run,
)
from fintrader.pipeline.data import make_market
from fintrader.pipeline.session import hold_run, observing, open_run, watching
from fintrader.reproducible import code_paths
from fintrader.results.backtest_files import read_backtest
from fintrader.results.formatting import window_words
from fintrader.results.sections import BacktestView, present_baselines, present_verdict
from fintrader.results.tournament_events import FinishEvent
from fintrader.runs import Manifest, RunFolder
from fintrader.stages import LIVE, WHOLE
from fintrader.storage.mirror import Mirror
from fintrader.terminal_progress import reporter
from fintrader.tournament.launchers.local import keep_workers
from fintrader.tournament.run_tournament import list_changeable
from fintrader.tournament.run_tournament import run_tournament as run_race
from fintrader.tournament.store import RunStore
from fintrader.tournament.warm_start import WarmStart, WarmStartTarget, has_pods, inherit
from fintrader.verdict.looks import Ledger

POD_STAGES = ("tournament", "null_model", "backtest", "evaluation")
"""Stages whose results depend on the pods of a run."""


def run(config: RunConfig) -> Path:
    """Run all stages; print the table and the paths of the written files; return the run's folder.

    Raises RunError when the run's folder is in use, or was made with other settings.
    """
    with observing(config), hold_run(config) as mirror:
        manifest = claim(config, mirror=mirror)
        market = make_market(config, manifest)
        with keep_workers():
            _tournament_stage(config, manifest, market)
            null_model_stage(config, manifest, market)
        return backtest_stage(config, manifest, market)


def run_tournament(config: RunConfig) -> Path:
    """Run data and tournament; return the run's folder."""
    with observing(config), hold_run(config) as mirror:
        manifest = claim(config, mirror=mirror, plan=("data", "tournament"))
        _tournament_stage(config, manifest, make_market(config, manifest))
    return config.folder.root


def walk_forward(config: RunConfig) -> Path:
    """Run all folds in `runs/<name>/folds/`, and one backtest over all their test windows in
    `runs/<name>/backtest/`.

    After a kill the same call goes on with the interrupted fold. The trials of all folds are
    counted together. Raises BacktestError when not even one fold fits into the data.
    """
    evaluation.check_window(config)
    with observing(config), hold_run(config) as mirror:
        manifest = claim(
            config, "walkforward", mirror=mirror, plan=("data", "tournament", "backtest", "report")
        )
        path = make_market(config, manifest)
        if not (manifest.done("backtest") and evaluation.as_configured(config, "test")):
            with manifest.stage("tournament"), keep_workers():
                market = MarketTensors.load(path)
                _refuse_unfit_agents(config, market)
                folds = make_folds(market, config.walkforward, config.data.windows.embargo_sessions)
                trials = [_race_fold(config, manifest, market, fold, len(folds)) for fold in folds]
                manifest.update(trials=sum(trials) + _earlier_trials(manifest), best=None)
            with manifest.stage("backtest"):
                evaluation.evaluate_folds(config, manifest)
        manifest.finish()
        return conclude(config, manifest)


def _race_fold(
    config: RunConfig, manifest: Manifest, market: MarketTensors, fold: Fold, count: int
) -> int:
    """Run the fold's tournament (and its null model); return the trials of the tournament."""
    folder = _fold_folder(config, fold.number)
    start = _describe_start(config, manifest)
    if config.walkforward.warm_start and fold.number:
        # All bars that the fold before trained on or chose by precede this fold's test window.
        before = _fold_folder(config, fold.number - 1)
        start = Start(f"folds/{before.root.name}", lambda: before)
    path = folder.root / "market.safetensors"
    if not path.is_file():
        cut_fold(market, fold).save(path)
    number = f"fold {fold.number + 1} of {count}"
    print(number)
    result = search(config, folder, path, start=start, title=f"{number}, tournament")
    if config.backtest.null_model:
        shuffled = evaluation.information_free_market(
            path, config.seed, path.with_name("information_free.safetensors")
        )
        _search_without_information(config, folder, shuffled, start, f"{number}, null model")
    return result.trials


def _fold_folder(config: RunConfig, number: int) -> RunFolder:
    return RunFolder(config.folder.root / "folds" / f"{number:02d}")


def backtest_run(folder: Path, config: RunConfig, *, called: str | None = None) -> Path:
    """Backtest a run's stored policies again, with the backtest and trading settings of `config`.

    A walk-forward is judged over all its folds. Every further look at a window is counted. The
    command in the report calls the run `called` (default: the folder). Raises ConfigError for a
    setting that the stored policies were trained with, RunError when the run's tournament has not
    finished or the ledger of looks is broken.
    """
    RunFolder(folder).refuse_unsafe()
    own = load_config_of_run(folder)
    repeat = Repeat(_command(called or str(folder), own, config), own.trading)
    config = config.model_copy(
        update={"name": folder.resolve().name, "runs_dir": folder.resolve().parent}
    )
    Ledger().lines()
    with hold_run(config.model_copy(update={"store": None})) as mirror:
        manifest = Manifest.load(config.folder.manifest)
        if mirror is not None:
            manifest.saved = mirror.publish
        rolling = bool(evaluation.list_folds(config.folder))
        if not manifest.done("tournament"):
            verb = "walkforward" if rolling else "run"
            raise RunError(
                f"{folder}: its tournament has not finished; run `fintrader {verb}"
                f" {folder}/config.yaml` first"
            )
        if not rolling:
            market = make_market(config, manifest)
            # The null model is the same search, so it trains in what the pods were trained in.
            null_model_stage(config.model_copy(update={"env": own.env}), manifest, market)
            return backtest_stage(config, manifest, market, repeat)
        evaluation.check_window(config)
        with manifest.stage("backtest"):
            evaluation.evaluate_folds(config, manifest, repeat)
        manifest.saved()
        manifest.finish()
        return conclude(config, manifest)


def _command(called: str, own: RunConfig, config: RunConfig) -> str:
    """Return the shell line with the settings in which `config` differs from the run's own. Raises
    ConfigError."""
    words = ["fintrader", "backtest", called]
    # Places change no result, but these three would be ignored silently: the folder fixes them.
    places = [
        name
        for name in ("name", "runs_dir", "store")
        if getattr(own, name) != getattr(config, name)
    ]
    changed = changed_results(own, config) | {
        name: (None, getattr(config, name)) for name in places
    }
    for field, (_, value) in changed.items():
        option = [
            f"--{field.replace('_', '-')}",
            *map(str, value if isinstance(value, list) else [value]),
        ]
        parts = field.split(".")
        if parts[0] == "backtest" or (parts[0] == "env" and parts[1] in CONVENTIONS):
            words += option
            continue
        if field in places:
            reason = "is fixed by the folder"
            other = ""
        else:
            reason = "decides how policies are trained, and these are trained already"
            other = f" --name {config.name}-2"
        raise ConfigError(
            f"{option[0]}: {reason}; a backtest takes --backtest.* and those of --env.* on the"
            " execution of orders (fill, decision-interval, costs, initial-cash-usd, limits). For"
            f" another run: `fintrader run {called}/config.yaml {shlex.join(option)}{other}`"
        )
    return shlex.join(words)


def claim(
    config: RunConfig,
    verb: str = "run",
    *,
    mirror: Mirror | None = None,
    plan: Sequence[str] | None = None,
) -> Manifest:
    """Open the run's manifest, or create it. Raises RunError when the folder was made with other
    settings.

    A new manifest names `fintrader <verb>` as the command that repeats the run. `plan` lists the
    stages to come, in order; by default all that the settings ask for. The recorded failure of an
    earlier attempt is removed.

    Settings that alter no existing pod (such as the number of pods) may change: the tournament then
    continues with them, and its later stages run again.
    """
    if verb == "walkforward":
        # Raises for an environment that is no market, before anything is built.
        assert config.trading
    worked = None if config.is_classic else config.trading.execution
    if worked is not None and worked.file is not None:
        open_executor(worked.file, bars=worked.bars)
    if verb != "train":
        Ledger().lines()  # raises if broken: no look could be counted at the end
    folder = config.folder
    text = dump_yaml(config)
    config_hash = hash_bytes(text.encode())
    if _is_unused(folder):
        remove(folder.config)
        remove(folder.manifest)
    reopened = find_stages_to_repeat(config)
    if folder.manifest.is_file():
        manifest = Manifest.load(folder.manifest)
        manifest.reopen(*reopened)
    else:
        manifest = Manifest.create(
            folder.manifest,
            name=config.name,
            seed=config.seed,
            device=config.resolved_device(),
            config_hash=config_hash,
            command=f"fintrader {verb} {folder.config}",
        )
    used = manifest.values.get("code_paths", [])
    here = code_paths()
    manifest.values.pop("failure", None)
    whole = classic_stages.STAGES if config.is_classic else WHOLE
    planned = plan or [name for name in whole if config.backtest.null_model or name != "null_model"]
    manifest.update(
        reproducible=config.reproducible,
        code_paths=used if here in used else [*used, here],
        plan=list(planned),
    )
    if not config.is_classic:
        engine = name_engine(config.trading, config.resolved_device())
        manifest.update(engine=engine)
        print(f"engine: {engine}")
    if reopened or not folder.config.is_file():
        manifest.update(
            config_hash=config_hash
        )  # first: the next start repairs a kill between the two
        write_text(folder.config, text)
    if mirror is not None:
        manifest.saved = mirror.publish
        mirror.publish()
    return manifest


def find_stages_to_repeat(config: RunConfig) -> set[str]:
    """Find the stages to run again, given the settings that changed since the run was made.

    Raises RunError when a changed setting may not change within a run.
    """
    folder = config.folder
    reopened = set[str]()
    if not folder.config.is_file() or _is_unused(folder):
        return reopened
    # Loaded through the model: a setting that this version added then has its default.
    changeable = list_changeable(config.tournament)
    for field, (there, here) in changed_results(load_config(folder.config), config).items():
        if field.startswith("backtest."):
            reopened |= {"backtest"}
        elif field.removeprefix("tournament.").split(".")[0] in changeable:
            reopened |= set(POD_STAGES)
        elif field == "from_run" and not any(folder.root.rglob("tournament.json")):
            reopened |= {
                "tournament"
            }  # no pod has started from the other run, which may have been a slip
        else:
            raise RunError(
                f"{folder.root} was made with other settings ({field}: {there!s:.60} stored,"
                f" {here!s:.60} requested); choose another --name, or remove the folder"
            )
    return reopened


def _is_unused(folder: RunFolder) -> bool:
    """True if the run was refused before a market was built, so that its name is free again."""
    if not (folder.config.is_file() and folder.manifest.is_file()):
        return False
    made = {path.name for path in folder.root.iterdir() if not path.name.startswith(".")}
    if made - {LIVE} != {folder.config.name, folder.manifest.name}:
        return False
    values = Manifest.load(folder.manifest).values
    return values["data_hash"] is None and not any(
        stage.get("done") for stage in values["stages"].values()
    )


def _tournament_stage(config: RunConfig, manifest: Manifest, market: Path) -> None:
    if manifest.done("tournament"):
        return
    with manifest.stage("tournament"):
        if not config.is_classic:
            _refuse_unfit_agents(config, MarketTensors.load(market))
        result = search(config, config.folder, market, start=_describe_start(config, manifest))
        manifest.update(trials=result.trials + _earlier_trials(manifest), best=result.best)


def null_model_stage(config: RunConfig, manifest: Manifest, market: Path) -> None:
    """Search on features that hold no information: a strategy found there is luck by
    construction."""
    if config.is_classic or not config.backtest.null_model or manifest.done("null_model"):
        return
    try:
        shuffled = evaluation.information_free_market(market, config.seed)
    except BacktestError as error:
        print(f"no null model: {error}")
        manifest.update(
            plan=[name for name in manifest.values.get("plan", []) if name != "null_model"]
        )
        return
    with manifest.stage("null_model"):
        start = _describe_start(config, manifest)
        _search_without_information(config, config.folder, shuffled, start, "null model")


def _search_without_information(
    config: RunConfig, folder: RunFolder, shuffled: Path, start: Start | None, title: str
) -> None:
    """Repeat the search of `folder` on the market `shuffled`.

    It may start from the null model of the earlier run. Without one it starts from new weights:
    weights that learned from information would spoil it.
    """
    null_model = folder.null_model
    if start is not None:
        find = start.find
        begun = (null_model.root / "tournament.json").is_file()
        if WarmStart.read(null_model) is None and (begun or not has_pods(find().null_model)):
            start = None
        else:
            start = Start(f"{start.address}/null_model", lambda: find().null_model)
    search(config, null_model, shuffled, start=start, title=title)


@dataclass(frozen=True)
class Start:
    """The earlier run that a tournament's first pods start from."""

    address: str
    find: Callable[[], RunFolder]
    """Find its folder; called only until its pods have been taken over."""
    on_takeover: Callable[[WarmStart], None] = lambda found: None
    """Called with the pods that were taken over."""


def _describe_start(config: RunConfig, manifest: Manifest) -> Start | None:
    """Describe the run that the configuration starts from; the manifest records the takeover."""
    address = config.from_run
    if address is None:
        return None

    def on_takeover(warm_start: WarmStart) -> None:
        origin = {
            name: getattr(warm_start, name) for name in ("address", "run", "policies", "trials")
        }
        if manifest.values.get("inherited") != origin:
            manifest.update(inherited=origin)

    return Start(address, lambda: RunFolder(open_run(address).resolve()), on_takeover)


def _earlier_trials(manifest: Manifest) -> int:
    """Return the number of earlier trials from which the run's first pods were chosen."""
    return int(manifest.values.get("inherited", {}).get("trials", 0))


def search(
    config: RunConfig,
    folder: RunFolder,
    market: Path,
    race: Callable[..., FinishEvent] = run_race,
    start: Start | None = None,
    title: str = "tournament",
) -> FinishEvent:
    """Run or resume the configured tournament on a market, in a folder; return at once when it is
    over.

    `race` is called like `tournament.run_tournament.run_tournament`; `title` names the search in
    its progress.
    """
    how = {}
    if start is not None:
        target = WarmStartTarget(config.tournament, config.agents, config.trading, market)

        def take_over(store: RunStore) -> WarmStart:
            warm_start = inherit(store, start.address, start.find, target)
            start.on_takeover(warm_start)
            return warm_start

        how["inherit"] = take_over
    with watching(config, folder) as watch, reporter() as progress:
        return race(
            config.tournament,
            folder=folder,
            market=market,
            data_hash=classic_stages.hash_market(market),
            env=config.env if isinstance(config.env, GymnasiumSettings) else config.trading,
            agents=config.agents,
            seed=config.seed,
            device=config.resolved_device(),
            launcher=config.make_launcher(),
            operations=config.operations,
            progress=progress,
            watch=watch,
            title=title,
            **how,
        )


def _refuse_unfit_agents(config: RunConfig, market: MarketTensors) -> None:
    """Raise ConfigError, before training, for an agent that cannot act in this market or cannot
    learn with these orders or traders; BacktestError for an executor of another market."""
    worked = config.trading.execution
    if worked is not None and worked.file is not None:
        open_executor(worked.file, market.feature_names, worked.bars)
    layout = lay_out(market, config.trading)
    for agent in config.agents:
        head = ActionHead(layout, agent.head)
        if market.num_assets == 1:
            refuse_idle(head)
        resolve_network(agent.network, layout, head)
        if layout.resting and agent.algo == "apg":
            raise ConfigError(NO_GRADIENT)
        if config.trading.num_traders > 1 and agent.algo == "apg":
            raise ConfigError(NO_OWN_GRADIENT)


def backtest_stage(
    config: RunConfig, manifest: Manifest, market: Path, repeat: Repeat | None = None
) -> Path:
    """Backtest every configured window, except stored ones whose settings have not changed; in a
    classic environment, play the test episodes."""
    if isinstance(config.env, GymnasiumSettings):
        return classic_stages.run_evaluation(config.folder, config.env, manifest)
    fresh = repeat is None and manifest.done("backtest")
    windows = [
        window
        for window in config.backtest.window
        if not (fresh and evaluation.as_configured(config, window))
    ]
    if windows:
        with manifest.stage("backtest"):
            for window in windows:
                evaluation.evaluate_chosen(config, manifest, market, window, repeat)
        manifest.saved()  # a stage that was done before does not save
    manifest.finish()
    return conclude(config, manifest)


def conclude(config: RunConfig, manifest: Manifest) -> Path:
    """Print the results of a finished run in every window; return its folder."""
    for window in config.backtest.window:
        _print_outcome(config, manifest, config.folder.backtest_of(window))
    for path in (config.folder.leaderboard, config.folder.root):
        if path.exists():
            Console(soft_wrap=True).print(f"  {path}", highlight=False)
    return config.folder.root


def _print_outcome(config: RunConfig, manifest: Manifest, folder: Path) -> None:
    """Print the paper's table, the verdict, and the places of a backtest's files."""
    stored = read_backtest(folder)
    context = stored.context
    view = BacktestView.of(stored)
    title = f"{config.name}: {window_words(str(context.window))}, net of {context.costs}"
    verdict = present_verdict(view)
    # The banner comes before the first number.
    parts = (verdict.warning, title, *present_baselines(view).tables, replace(verdict, warning=""))
    print(*filter(None, map(str, parts)), sep="\n")
    for name, change in context.changed.items():
        print(f"Not as trained: {name.replace('_', ' ')} {change}.")
    print(
        f"Chosen from {manifest.values['trials']} trials by their validation"
        f" {config.tournament.metric}."
    )
    for name in ("report.html", "tear_sheet.png", "tear_sheet.pdf", "metrics.json"):
        if (folder / name).exists():
            print(f"  {folder / name}")
