"""Train, choose, test, roll on: every fold is a tournament of its own, and their test windows make one result."""

from __future__ import annotations

from typing import Any

from fintrader.agents.policy import load_policy
from fintrader.backtest import BacktestResult, simulate, write_backtest
from fintrader.backtest.controls import information_free
from fintrader.backtest.walkforward import Fold, fold_market, make_folds, stitch
from fintrader.data.tensors import MarketTensors
from fintrader.pipeline.configuration import RunConfig
from fintrader.pipeline.judgement import backtest_settings, provenance, simulate_chosen
from fintrader.pipeline.observation import observing
from fintrader.pipeline.stages import RunOutcome, claim, conclude, make_market, search
from fintrader.progress import reporter
from fintrader.runs import Manifest, RunFolder, read_json


def walk_forward(config: RunConfig) -> RunOutcome:
    """All folds below `runs/<name>/folds/`, and one backtest over all their test windows in `runs/<name>/backtest/`.

    Killed anywhere, the same call goes on with the fold it was at. The trials of all folds are counted together.
    Raises BacktestError when not even one fold fits into the data.
    """
    with observing(config), config.folder.lock():
        manifest = claim(config, "walkforward")
        path = make_market(config, manifest)
        if not manifest.done("backtest"):
            with manifest.stage("tournament"):
                market = MarketTensors.load(path)
                folds = make_folds(market, config.walkforward)
                finished = [_race_fold(config, market, fold, len(folds)) for fold in folds]
                manifest.update(trials=sum(trials for _, trials in finished), best=None)
            with manifest.stage("backtest"):
                _judge(config, manifest, market, [folder for folder, _ in finished])
        manifest.finish()
        return conclude(config, manifest)


def _race_fold(config: RunConfig, market: MarketTensors, fold: Fold, count: int) -> tuple[RunFolder, int]:
    """The fold's tournament (and the same search without information): its folder and how many trials it took."""
    folder = RunFolder(config.folder.root / "folds" / f"{fold.number:02d}")
    path = folder.root / "market.safetensors"
    if not path.is_file():
        fold_market(market, fold).save(path)
    print(f"fold {fold.number + 1} of {count}")
    result = search(config, folder, path, MarketTensors.stored_hash(path))
    if config.backtest.control:
        shuffled = path.with_name("information_free.safetensors")
        if not shuffled.is_file():
            information_free(MarketTensors.load(path), config.seed).save(shuffled)
        search(config, RunFolder(folder.control), shuffled, MarketTensors.stored_hash(shuffled))
    return folder, result.trials


def _judge(config: RunConfig, manifest: Manifest, market: MarketTensors, folders: list[RunFolder]) -> None:
    """Every strategy over all test windows, one after another, as one backtest."""
    env = backtest_settings(config)
    parts: dict[str, list[BacktestResult]] = {}
    folds = []
    with reporter() as progress:
        for folder in folders:
            test = MarketTensors.load(folder.root / "market.safetensors").split().test
            best = read_json(folder.ensemble / "ensemble.json")["members"][0]
            results = simulate_chosen(folder, test, env, best, progress)
            if config.backtest.control:
                shuffled = MarketTensors.load(folder.root / "information_free.safetensors").split().test
                policy = load_policy(RunFolder(folder.control).ensemble / "policy.safetensors")
                results["control"] = simulate(policy, shuffled, env, name="control", progress=progress)
            for name, result in results.items():
                parts.setdefault(name, []).append(result)
            folds.append({name: result.metrics["cumulative_return"] for name, result in results.items()})
    whole = {name: stitch(results, env, name=name) for name, results in parts.items()}
    control: dict[str, Any] | None = None
    if "control" in whole:
        control = {"metrics": dict(whole.pop("control").metrics)}
    context = provenance(config, manifest, f"walk-forward, {len(folders)} folds")
    write_backtest(
        config.folder.backtest,
        whole,
        context=context | {"folds": folds},
        settings=env,
        control=control,
        seed=config.seed,
    )
