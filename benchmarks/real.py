"""Agents on real bars, walking forward: beside the benchmark they may tilt away from, ridge, and
chance.

    python -m benchmarks.real --bars FOLDER [--set daily ...] [--seeds 1] [--runs FOLDER] [--save]
    python -m benchmarks.real --bars FOLDER --noise [--seeds 1] [--save]

FOLDER holds the bars of the shipped configurations (`configs/walkforward_daily.yaml`,
`walkforward_us14.yaml`, `nasdaq100_2016.yaml`) and the index's membership. Every set is walked
forward as shipped: pods of a learner for each block of sessions that it does not see, judged there,
shrunk by what that says, tested once on what follows.

daily, us14, n100      real bars
planted_15, planted_05 the daily bars with a feature of known information coefficient (`data.source.kind: planted_in`)
noise                  the daily bars with nothing but noise for features, other noise for each seed

A figure is of the daily returns beyond those of the benchmark portfolio, net of costs on both
sides: a year's, its information ratio, the interval of 95 % by a paired block bootstrap, and how
many folds it was not below. *Within* is the share of folds that ended within 10 basis points of the
benchmark. *Without information* is the same search on the features of other days.
`ensemble` is shrunk towards the benchmark by its evidence, `best` is a pod as it is; with each set
stands the verdict on its ensemble. Runs are kept in `--runs` and gone on with.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._bench import ROOT, Values, finish, read_arguments
from fintrader import metrics as m
from fintrader.config import merge_values, read_yaml
from fintrader.pipeline.config import RunConfig
from fintrader.pipeline.run_stages import walk_forward
from fintrader.results.backtest_files import StoredBacktest, read_backtest

Array = NDArray[np.float64]
MEMBERS = "n100_membership_20151012_20210601.csv"
SETS = read_yaml(Path(__file__).with_suffix(".yaml"))
BLOCK = 10
DRAWS = 4000
"""Sessions of a bootstrap block, and samples."""
NEAR = 1e-3
"""Of the benchmark: 10 basis points over a fold."""


def read_configuration(name: str, bars: Path, runs: Path, seed: int) -> RunConfig:
    """The shipped configuration of a set, over the bars in `bars`."""
    chosen = SETS[name]
    values = read_yaml(ROOT / "configs" / f"{chosen['config']}.yaml")
    data = values["data"]
    data["path"] = str(bars / f"{chosen['bars']}.parquet")
    data["source"] |= chosen.get("source", {})
    if name == "noise":
        data["source"]["seed"] = seed
    if "members" in data.get("universe", {}):
        data["universe"]["members"] = str(bars / MEMBERS)
    own = {"name": f"{name}-{seed}", "runs_dir": str(runs), "seed": seed}
    return RunConfig.model_validate(merge_values(values, chosen["changes"]) | own)


def list_active_returns(stored: StoredBacktest, strategy: str, against: str) -> list[Array]:
    """Daily returns beyond the benchmark's, a fold each."""
    returns = stored.daily_returns()
    days = (returns[strategy] - returns[against]).to_numpy()
    dates = returns.index.strftime("%Y-%m-%d")
    return [days[(dates >= fold.first) & (dates <= fold.last)] for fold in stored.context.folds]


def bootstrap_interval(days: Array, seed: int = 0) -> list[float]:
    """95 % of a year's mean, by a circular block bootstrap."""
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, len(days), (DRAWS, -(-len(days) // BLOCK)))
    drawn = days[(starts[..., None] + np.arange(BLOCK)) % len(days)].reshape(DRAWS, -1)[
        :, : len(days)
    ]
    return list(m.TRADING_DAYS * np.quantile(drawn.mean(1), (0.025, 0.975)))


def describe(folds: list[Array], stored: StoredBacktest, strategy: str) -> Values:
    """Figures of a strategy over its folds."""
    days = np.concatenate(folds)
    growth = np.array([np.prod(1 + fold) - 1 for fold in folds])
    deviation = days.std(ddof=1)
    known = stored.metrics[strategy]
    return {
        "sessions": len(days),
        "active_return": m.TRADING_DAYS * days.mean(),
        "interval": bootstrap_interval(days),
        "information_ratio": (
            days.mean() / deviation * m.TRADING_DAYS**0.5 if deviation > 0 else 0.0
        ),
        "folds_not_below": f"{int((growth >= 0).sum())} of {len(folds)}",
        "within_10_bps": (np.abs(growth) <= NEAR).mean(),
        "sharpe": known["sharpe"],
        "cumulative_return": known["cumulative_return"],
        "invested_share": known["invested_share"],
    }


def walk(name: str, bars: Path, runs: Path, seed: int) -> Values:
    """Walk a set forward with one seed; print and return its figures."""
    began = time.monotonic()
    stored = read_backtest(walk_forward(read_configuration(name, bars, runs, seed)) / "backtest")
    found = {
        strategy: describe(list_active_returns(stored, strategy, "equal_weight"), stored, strategy)
        for strategy in ("ensemble", "best", "ridge", "vol_targeted", "buy_and_hold")
        if strategy in stored.strategies
    }
    free = stored.context.null_model
    verdict = stored.conclusion
    active = {name: f"{value['active_return']:+.2%}" for name, value in found.items()}
    print(f"{name}/{seed} active a year {active}, {verdict}")
    return {
        **found,
        "without_information": None if free is None else free.by_key(),
        "equal_weight": stored.metrics["equal_weight"].by_key(),
        "verdict": verdict,
        "seconds": time.monotonic() - began,
    }


def main() -> None:
    """Every set with every seed."""
    runs = ROOT / "runs" / "real"
    sets = [name for name in SETS if name != "noise"]
    options = read_arguments(__doc__, bars=Path, set=sets, noise=False, seeds=1, runs=runs)
    rows = {
        f"{name}/{seed}": walk(name, options.bars, options.runs, seed)
        for name in (["noise"] if options.noise else options.set)
        for seed in range(options.seeds)
    }
    finish("real_noise" if options.noise else "real", {"sets": rows}, options)


if __name__ == "__main__":
    main()
