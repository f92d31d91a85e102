"""Train, choose, test, roll on: every fold is a tournament of its own, and their test windows make one result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fintrader.agents.policy import load_policy
from fintrader.backtesting import BacktestResult, simulate, write_backtest
from fintrader.backtesting.folds import Fold, fold_market, make_folds, stitch
from fintrader.backtesting.null_models import information_free
from fintrader.backtesting.sensitivity import rolling_sensitivity
from fintrader.data.tensors import MarketTensors
from fintrader.errors import ConfigError, RunError
from fintrader.files import read_json
from fintrader.pipeline import evaluation
from fintrader.pipeline.config import RunConfig
from fintrader.pipeline.data import make_market
from fintrader.pipeline.run import RunOutcome, claim, conclude, search
from fintrader.pipeline.session import observing, run_store, workplace
from fintrader.progress import reporter
from fintrader.results.leaderboard import best_score
from fintrader.runs import Manifest, RunFolder


def walk_forward(config: RunConfig) -> RunOutcome:
    """All folds below `runs/<name>/folds/`, and one backtest over all their test windows in `runs/<name>/backtest/`.

    Killed anywhere, the same call goes on with the fold it was at. The trials of all folds are counted together.
    Raises BacktestError when not even one fold fits into the data.
    """
    check_window(config)
    with observing(config), workplace(config) as mirror:
        manifest = claim(config, "walkforward", mirror=mirror)
        path = make_market(config, manifest)
        if not (manifest.done("backtest") and evaluation.as_configured(config, "test")):
            with manifest.stage("tournament"):
                market = MarketTensors.load(path)
                folds = make_folds(market, config.walkforward)
                trials = [_race_fold(config, market, fold, len(folds)) for fold in folds]
                manifest.update(trials=sum(trials), best=None)
            with manifest.stage("backtest"):
                evaluate_folds(config, manifest)
        manifest.finish()
        return conclude(config, manifest)


def _race_fold(config: RunConfig, market: MarketTensors, fold: Fold, count: int) -> int:
    """The fold's tournament (and the same search without information): how many trials it took."""
    folder = RunFolder(config.folder.root / "folds" / f"{fold.number:02d}")
    path = folder.root / "market.safetensors"
    if not path.is_file():
        fold_market(market, fold).save(path)
    print(f"fold {fold.number + 1} of {count}")
    result = search(config, folder, path, MarketTensors.stored_hash(path))
    if config.backtest.null_model:
        shuffled = path.with_name("information_free.safetensors")
        if not shuffled.is_file():
            information_free(MarketTensors.load(path), config.seed).save(shuffled)
        search(config, RunFolder(folder.null_model), shuffled, MarketTensors.stored_hash(shuffled))
    return result.trials


def check_window(config: RunConfig) -> None:
    """Raises ConfigError when another window than the folds' test windows is asked for."""
    if config.backtest.window != ("test",):
        asked = " ".join(config.backtest.window)
        raise ConfigError(f"backtest.window: a walk-forward is judged over its folds' test windows, not {asked}")


def evaluate_folds(config: RunConfig, manifest: Manifest, repeat: evaluation.Repeat | None = None) -> None:
    """Every strategy over all test windows, one after another, as one backtest.

    Raises RunError when the run has no finished fold.
    """
    folders = folds_of(config.folder)
    if not folders:
        raise RunError(f"{config.folder.root}: no finished fold; run `fintrader walkforward` on its config.yaml first")
    env = evaluation.backtest_settings(config)
    parts: dict[str, list[BacktestResult]] = {}
    folds, tests, policies = [], [], []
    with reporter() as progress:
        for folder in folders:
            test = MarketTensors.load(run_store(folder).own_market(folder.root / "market.safetensors")).split().test
            best = read_json(folder.ensemble / "ensemble.json")["members"][0]
            results = evaluation.simulate_chosen(folder, test, env, best, progress)
            policy = RunFolder(folder.null_model).ensemble / "policy.safetensors"
            if config.backtest.null_model and policy.is_file():
                path = run_store(RunFolder(folder.null_model)).own_market(folder.root / "information_free.safetensors")
                shuffled = MarketTensors.load(path).split().test
                results["null_model"] = simulate(
                    load_policy(policy), shuffled, env, name="null_model", progress=progress
                )
            for name, result in results.items():
                parts.setdefault(name, []).append(result)
            tests.append(test)
            policies.append(load_policy(folder.ensemble / "policy.safetensors"))
            folds.append({name: result.metrics["cumulative_return"] for name, result in results.items()})
        rows = rolling_sensitivity(policies, tests, env, progress=progress) if config.backtest.sensitivity else []
    whole = {name: stitch(results, env, name=name) for name, results in parts.items() if len(results) == len(folders)}
    null_model: dict[str, Any] | None = None
    if "null_model" in whole:
        null_model = {"metrics": dict(whole.pop("null_model").metrics), **_selection_scores(config, folders)}
    context = evaluation.provenance(config, manifest, "test", repeat, title=f"walk-forward, {len(folders)} folds")
    context |= evaluation.data_summary(Path(str(manifest.values["market"])), tests)
    chosen_from = [evaluation.trial_returns(folder) for folder in folders]
    context |= {"folds": folds, "fold_windows": [_days(test) for test in tests]}
    trial_returns = [matrix for matrix in chosen_from if matrix is not None]
    judged_by: dict[str, Any] = {"trial_returns": trial_returns, "null_model": null_model, "sensitivity": rows}
    stored = write_backtest(
        config.folder.backtest, whole, context=context, market=tests, settings=env, seed=config.seed, **judged_by
    )
    evaluation.count_look(manifest, "test")
    evaluation.draw(config, stored, config.folder.backtest)


def _days(window: MarketTensors) -> list[str]:
    """First and last day, as text."""
    return [str(window.timestamps()[k])[:10] for k in (0, -1)]


def folds_of(folder: RunFolder) -> list[RunFolder]:
    """The folders of a walk-forward's finished folds, in order; none for any other run."""
    found = sorted((folder.root / "folds").glob("*/ensemble/ensemble.json"))
    return [RunFolder(path.parent.parent) for path in found]


def _selection_scores(config: RunConfig, folders: list[RunFolder]) -> dict[str, Any]:
    """The best score each search found while selecting, with information and without, as means over the folds."""
    boards = {
        "best_selection_score": [RunFolder(folder.null_model).leaderboard for folder in folders],
        "real_best_selection_score": [folder.leaderboard for folder in folders],
    }
    scores: dict[str, Any] = {"selection_metric": f"{config.tournament.metric}, mean of {len(folders)} folds"}
    for name, paths in boards.items():
        best = [best_score(path) for path in paths]
        known = [score for score in best if score is not None]
        scores[name] = sum(known) / len(known) if len(known) == len(folders) else None
    return scores
