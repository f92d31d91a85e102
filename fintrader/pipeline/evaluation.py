"""Final stage: backtest the selected policies on the untouched test window, with baselines and
null models."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fintrader.agents.policy import PolicyModule, load_policy
from fintrader.backtesting import BacktestResult, simulate, simulate_all_baselines, write_backtest
from fintrader.backtesting.all_baselines import Baselines
from fintrader.backtesting.explain import Explainer, explain
from fintrader.backtesting.limits import LimitSettings
from fintrader.backtesting.look_record import look_at
from fintrader.backtesting.null_models import information_free
from fintrader.backtesting.result import Results, measured_against
from fintrader.backtesting.sensitivity import sensitivity
from fintrader.backtesting.shadow import shadow_backtest
from fintrader.backtesting.walk_forward import stitch
from fintrader.envs.benchmark import lay_out
from fintrader.envs.settings import EnvSettings
from fintrader.errors import BacktestError, ConfigError, RunError
from fintrader.files import hash_bytes, remove, write_bytes
from fintrader.market.planted import oracle_policy
from fintrader.market.tensors import Markets, MarketTensors, Split
from fintrader.pipeline.backtest_context import (
    Repeat,
    add_data,
    add_ensembles,
    describe_origin,
    settings_hash,
)
from fintrader.pipeline.config import RunConfig
from fintrader.pipeline.session import run_store
from fintrader.progress import Progress
from fintrader.report.html import write_report
from fintrader.report.tearsheet import FORMATS, why_no_tear_sheet, write_tear_sheet
from fintrader.results.analysis import Variation
from fintrader.results.backtest_files import (
    SEAL,
    StoredBacktest,
    hash_files,
    make_seal,
    read_record,
    read_seal,
)
from fintrader.results.context import FoldReturns, LimitedOutcome
from fintrader.results.folders import Folder
from fintrader.results.leaderboard_reader import best_score
from fintrader.results.stored_looks import CHOSEN
from fintrader.runs import Manifest, RunFolder
from fintrader.terminal_progress import reporter
from fintrader.tournament.ensemble import read_ensemble
from fintrader.tournament.store import RunStore
from fintrader.verdict.looks import Ledger, count_look
from fintrader.verdict.selection import SearchRecord
from fintrader.verdict.verdict import NullSearch


@dataclass(frozen=True)
class _Traded:
    """Policies that one search, or the search of each fold, chose, traded over their windows."""

    folders: Sequence[RunFolder]
    """The searches that the strategies were chosen in, one for each of `markets`."""
    markets: Markets
    results: Results
    free: BacktestResult | None
    """Result of the same searches on information-free features."""
    explainers: Sequence[Explainer]
    about: Mapping[str, Any]
    """Fields of the context that only this kind of backtest has."""
    title: str | None = None
    """Name of all windows of a walk-forward together; None for one window."""


def evaluate_chosen(
    config: RunConfig, manifest: Manifest, path: Path, window: str, repeat: Repeat | None
) -> None:
    """Backtest the ensemble, the best pod and baselines over one window, and write the results."""
    folder = config.folder
    windows = MarketTensors.load(path).split()
    market: MarketTensors = getattr(windows, window)

    def shuffled() -> Split:
        return MarketTensors.load(information_free_market(path, config.seed)).split()

    with reporter() as progress:
        best = str(manifest.values["best"])
        results, baselines, explainer = _simulate_chosen(
            config, folder, windows, window, shuffled, best, progress
        )
        free = results.pop("null_model", None)
        shares = _add_oracle(market, config.trading, results, progress)
    results = measured_against(results, baselines.portfolio)
    about = {"left_out": dict(baselines.left_out), "share_of_oracle": shares}
    traded = _Traded([folder], [market], results, free, [explainer], about)
    _write(config, manifest, path, window, traded, repeat)


def check_window(config: RunConfig) -> None:
    """Raise ConfigError if the settings name another window than the folds' test windows."""
    if config.backtest.window != ("test",):
        asked = " ".join(config.backtest.window)
        raise ConfigError(
            f"backtest.window: a walk-forward is judged over its folds' test windows, not {asked}"
        )


def list_folds(folder: RunFolder) -> list[RunFolder]:
    """List the folders of a walk-forward's finished folds, in order; none for any other run."""
    return [fold for fold in folder.folds if (fold.ensemble / "ensemble.json").exists()]


def evaluate_folds(config: RunConfig, manifest: Manifest, repeat: Repeat | None = None) -> None:
    """Backtest every strategy over the test windows of all folds, joined into one backtest.

    Raises RunError when the run has no finished fold.
    """
    folders = list_folds(config.folder)
    if not folders:
        raise RunError(
            f"{config.folder.root}: no finished fold; run `fintrader walkforward` on its"
            " config.yaml first"
        )
    parts: dict[str, list[BacktestResult]] = {}
    folds = []
    tests = list[MarketTensors]()
    explainers = []
    left_out: dict[str, str] = {}
    with reporter() as progress:
        for folder in folders:
            windows = _own_windows(folder, folder.root / "market.safetensors")
            free_path = folder.root / "information_free.safetensors"
            shuffled = partial(_own_windows, folder.null_model, free_path)
            best = read_ensemble(folder).members[0]
            results, baselines, explainer = _simulate_chosen(
                config, folder, windows, "test", shuffled, best, progress, share=1 / len(folders)
            )
            explainers.append(explainer)
            left_out |= {
                name: f"fold {len(tests) + 1}: {why}" for name, why in baselines.left_out.items()
            }
            for name, result in results.items():
                parts.setdefault(name, []).append(result)
            tests.append(windows.test)
            days = [str(stamp)[:10] for stamp in windows.test.timestamps()[[0, -1]]]
            returned = {name: result.metrics.cumulative_return for name, result in results.items()}
            folds.append(FoldReturns(days[0], days[-1], returned))
    whole = {
        name: stitch(results, name=name)
        for name, results in parts.items()
        if len(results) == len(folders)
    }
    whole = measured_against(whole, whole[baselines.portfolio.name])
    free = whole.pop("null_model", None)
    about = {"left_out": left_out, "folds": tuple(folds)}
    title = f"walk-forward, {len(folders)} folds"
    traded = _Traded(folders, tests, whole, free, explainers, about, title)
    _write(config, manifest, Path(str(manifest.values["market"])), "test", traded, repeat)


def _within_limits(
    policies: Sequence[PolicyModule],
    markets: Markets,
    env: EnvSettings,
    progress: Progress,
) -> LimitedOutcome:
    """Simulate policies within a deployment's default limits, each in its own window."""
    limits = LimitSettings()
    growth = 1.0
    cut = Counter[str]()
    halted = ""
    for policy, market in zip(policies, markets, strict=True):
        result, noted = shadow_backtest(
            policy, market, env, limits, name="within limits", progress=progress
        )
        growth *= float(result.equity[-1] / result.equity[0])
        cut.update(noted.counts)
        halted = halted or noted.halted
    return LimitedOutcome(growth - 1.0, dict(cut), halted, limits.model_dump())


def _own_windows(search: RunFolder, path: Path) -> Split:
    """Load the windows of a search's market: from `path`, or from the run's store where that file
    is not on this machine."""
    return MarketTensors.load(run_store(search).fetch_own_market(path)).split()


def _write(
    config: RunConfig,
    manifest: Manifest,
    path: Path,
    window: str,
    traded: _Traded,
    repeat: Repeat | None,
) -> None:
    """Count the look at the window; then write and seal a backtest, its report and its tear sheet.

    `path` is the market file.
    """
    env = config.trading
    folders = traded.folders
    markets = traded.markets
    policies = [load_policy(_policy(folder)) for folder in folders]
    rows: list[Variation] = []
    with reporter() as progress:
        if config.backtest.sensitivity and traded.title:
            rows = sensitivity(policies, markets, env, progress=progress)
        elif config.backtest.sensitivity:
            rows = sensitivity(policies[0], markets[0], env, progress=progress)
        limited = _within_limits(policies, markets, env, progress)
    context = describe_origin(config, manifest, window, repeat, title=traded.title)
    context = replace(add_ensembles(context, folders), within_limits=limited, **traded.about)
    context = add_data(context, path, markets, traded.results)
    metric: str = config.tournament.metric
    kind = "backtest"
    if traded.title:
        metric += f", mean of {len(folders)} folds"
        kind = "walkforward"
    look = look_at(
        markets,
        traded.results,
        [name for name in CHOSEN if name in traded.results],
        kind="re-backtest" if repeat else kind,
        run=config.name,
        created=manifest.values["created"],
        folder=config.folder.root.name,
        seed=config.seed,
        window=window,
        trials=context.trials,
        command=context.command,
    )
    search = SearchRecord(
        returns=_list_trial_returns(folders, "returns"),
        active=_list_trial_returns(folders, "active_returns"),
        null_model=None if traded.free is None else _selection_scores(folders, metric),
    )
    home = config.folder.backtest_of(window)
    number, line = count_look(look)
    stored = write_backtest(
        home,
        traded.results,
        context=replace(
            context,
            null_model=None if traded.free is None else traded.free.metrics,
            window_key=look.bars.key,
            look=number if window == "test" else None,
        ),
        search=search,
        market=markets,
        settings=env,
        sensitivity=rows,
        explanation=explain("ensemble", traded.explainers),
        seed=config.seed,
    )
    with manifest.stage("report"):
        _draw(config, stored, home)
        sealed = make_seal(hash_files(home), line or {})
        if line is not None:
            Ledger().note_seal(config.name, window, line["line"], hash_bytes(sealed))
        write_bytes(home / SEAL, sealed)


def _selection_scores(folders: Sequence[RunFolder], metric: str) -> NullSearch:
    """Average over the folds the best validation scores of the searches with information, and of
    those without."""

    def mean_best(searches: Sequence[RunFolder]) -> float | None:
        best = [best_score(search.leaderboard) for search in searches]
        known = [score for score in best if score is not None]
        return sum(known) / len(known) if len(known) == len(folders) else None

    free = [folder.null_model for folder in folders]
    return NullSearch(free=mean_best(free), real=mean_best(folders), metric=metric)


def as_configured(config: RunConfig, window: str) -> bool:
    """Check that a window's backtest is complete, sealed with its report, and made with these
    settings."""
    home = config.folder.backtest_of(window)
    if not all((home / name).is_file() for name in ("metrics.json", "report.html")):
        return False
    try:
        place = Folder.locate(home)
        sealed = read_seal(place)
    except RunError:
        return False
    made_with = read_record(place, "context").settings_hash
    return "look" in sealed and made_with in (None, settings_hash(config, window))


def _policy(folder: RunFolder) -> Path:
    """Path of a finished tournament's ensemble."""
    return folder.ensemble / "policy.safetensors"


def _simulate_chosen(
    config: RunConfig,
    folder: RunFolder,
    windows: Split,
    window: str,
    shuffled: Callable[[], Split],
    best: str,
    progress: Progress,
    share: float = 1.0,
) -> tuple[dict[str, BacktestResult], Baselines, Explainer]:
    """Backtest a finished tournament's ensemble and best pod, and every baseline, over the same
    bars of one of its `windows`; explain decisions of the ensemble (`share`: of `Explainer`).

    The result `null_model` comes from the same search on the features of `shuffled()`, if that was
    made.
    """
    env = config.trading
    store = run_store(folder)
    market: MarketTensors = getattr(windows, window)
    store.ensure_policy(store.read_result(best))
    traded = {
        "ensemble": (_policy(folder), market),
        "best": (folder.pod(best) / "policy.safetensors", market),
    }
    if config.backtest.null_model and _policy(folder.null_model).is_file():
        traded["null_model"] = _policy(folder.null_model), getattr(shuffled(), window)
    policies = {name: load_policy(path) for name, (path, _) in traded.items()}
    explainer = Explainer(policies["ensemble"], market, env, share=share)
    results = {
        name: simulate(
            policies[name],
            bars,
            env,
            name=name,
            progress=progress,
            watch=explainer.look if name == "ensemble" else None,
        )
        for name, (_, bars) in traded.items()
    }
    # No baseline may be judged on bars that it was fitted to or chosen on.
    train = None if window == "train" else windows.train
    validation = windows.validation if window == "test" else None
    baselines = simulate_all_baselines(
        market, env, train=train, validation=validation, every=True, progress=progress
    )
    return baselines.join(results), baselines, explainer


def _draw(config: RunConfig, stored: StoredBacktest, home: Path) -> None:
    """Draw pyfolio's tear sheet of a written backtest, an earlier one removed, then the report,
    which links it and completes the backtest.

    `auto` draws a tear sheet where that is possible; `png` and `pdf` print a line where it is not.
    """
    wanted = config.backtest.tear_sheet
    for ending in FORMATS:
        remove(home / f"tear_sheet{ending}")
    sheet = ""
    if wanted != "none" and (wanted != "auto" or why_no_tear_sheet(stored) is None):
        try:
            name = f"tear_sheet.{'png' if wanted == 'auto' else wanted}"
            sheet = write_tear_sheet(home / name, stored).name
        except BacktestError as error:
            print(f"no tear sheet: {error}")
    write_report(home / "report.html", stored, sheet)


def _list_trial_returns(folders: Sequence[RunFolder], name: str) -> list[NDArray[np.float64]]:
    """List `[S, M]` for each folder that has any: `returns` or `active_returns` of every scored
    pod, in the order of the pods."""
    matrices = []
    for folder in folders:
        columns = [
            getattr(result, name)
            for result in RunStore(folder).read_results().values()
            if result.score is not None and getattr(result, name)
        ]
        if len(set(map(len, columns))) == 1:
            matrices.append(np.array(columns, dtype=np.float64).T)
    return matrices


def information_free_market(path: Path, seed: int, target: Path | None = None) -> Path:
    """Save the market with features of other days next to the true one, unless it exists."""
    target = target or path.with_name(f"information_free_{seed}.safetensors")
    if not target.is_file():
        information_free(MarketTensors.load(path), seed).save(target)
    return target


def _add_oracle(
    market: MarketTensors, env: EnvSettings, results: dict[str, BacktestResult], progress: Progress
) -> dict[str, float]:
    """Compute each strategy's share of the oracle's log growth in this window; empty on real bars.

    Adds the strategy `oracle`, which knows the planted states and trades them in the same
    environment to maximise expected wealth (not the Sharpe ratio).
    """
    if (
        market.provenance.planted_drift is None
        or env.action != "target"
        or any(env.half_spreads.values())
        or env.impact_bps
        or env.traders
    ):
        return {}
    layout = lay_out(market, env)
    at_once = env.model_copy(update={"trade_rate": 1.0})  # the oracle allows for costs itself
    results["oracle"] = simulate(
        oracle_policy(market, layout, env.cost_bps),
        market,
        at_once,
        name="oracle",
        progress=progress,
    )
    reached = {
        name: 1.0 + float(result.metrics.cumulative_return or 0.0)
        for name, result in results.items()
    }
    oracle = reached["oracle"]
    names = [name for name in ("ensemble", "best") if oracle > 1 and reached[name] > 0]
    return {name: math.log(reached[name]) / math.log(oracle) for name in names}
