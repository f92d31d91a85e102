"""The targets of the walk-forwards on real minutes, carried out in four ways.

    python -m benchmarks.execution --bars FOLDER [--set us14 n100] [--seeds 1] [--save]

The ensembles of `benchmarks/real.py` trade their test windows again: at the next open; in equal
parts over an hour (TWAP); and by executors, which decide the sizes of the parts (`market`) or sizes
and prices (`limit`). The executors are trained on the first fold's training window, which lies
before every test. A limit order fills where the market trades a basis point beyond its price: bars
have no quotes, so this is an assumption.

The first session of each fold is left out of all figures. In it the accounts buy from cash, which is
most of what they trade, so that the prices of a few mornings would decide.

`slippage_bps` is the mean distance of a fill from the close at the decision, weighted by notional;
positive is dearer. `less_next_open` is the mean of the daily returns less those at the next open,
a year, with 95 % by a paired block bootstrap. These test windows were used before, and the first
sessions were left out after a look at the figures. Runs are kept in `runs/execution` and gone on with.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks._bench import ROOT, Values, finish, list_seeds, read_arguments
from benchmarks.real import bootstrap_interval, read_configuration
from fintrader import metrics as m
from fintrader.agents.policy import load_policy
from fintrader.backtesting import simulate
from fintrader.backtesting.execution import measure_execution
from fintrader.backtesting.result import BacktestResult
from fintrader.backtesting.walk_forward import stitch
from fintrader.envs.settings import EnvSettings, ExecutionSettings
from fintrader.execution import train_executor
from fintrader.market.tensors import MarketTensors, Split
from fintrader.pipeline.evaluation import list_folds
from fintrader.pipeline.run_stages import walk_forward
from fintrader.runs import RunFolder

BARS = 60
"""An hour."""
MARGIN_BPS = 1.0
NEXT_OPEN = "next open"


def list_ways(env: EnvSettings, window: MarketTensors, home: Path, seed: int) -> dict[str, str]:
    """Map each way to `execution.policy`; train the executors that `home` lacks."""
    ways = {NEXT_OPEN: "", "TWAP": "twap"}
    for form in ("market", "limit"):
        path = home / f"executor-{form}.safetensors"
        if not path.is_file():
            train_executor(window, env, form=form, seed=seed).save(path)
        ways[f"executor, {form}"] = str(path)
    return ways


def load_windows(fold: RunFolder) -> Split:
    """Load a fold's windows."""
    return MarketTensors.load(fold.root / "market.safetensors").split()


def carry_out(folds: list[RunFolder], env: EnvSettings, policy: str) -> BacktestResult:
    """Trade each fold's test window with its ensemble; the orders are worked by `policy`."""
    worked = ExecutionSettings(policy=policy, bars=BARS) if policy else None
    settings = env.model_copy(update={"execution": worked})
    return stitch(
        [
            simulate(
                load_policy(fold.ensemble / "policy.safetensors"), load_windows(fold).test, settings
            )
            for fold in folds
        ]
    )


def measure(name: str, folder: Path, seed: int) -> Values:
    """Walk a set forward, then trade its targets in every way."""
    config = read_configuration(name, folder, ROOT / "runs" / "execution", seed)
    plain = config.backtest.model_copy(update={"null_model": False, "sensitivity": False})
    home = walk_forward(config.model_copy(update={"backtest": plain}))
    folds = list_folds(RunFolder(home))
    tests = [load_windows(fold).test for fold in folds]
    terms = {"limit_margin_bps": MARGIN_BPS, "execution": ExecutionSettings(bars=BARS)}
    env = config.trading.model_copy(update=terms)
    ways = list_ways(env, load_windows(folds[0]).train, home, seed)
    found: Values = {}
    first = np.zeros(0)
    bars = np.concatenate([test.session.numpy() == int(test.session[0]) for test in tests])
    sessions = np.cumsum([0, *(len(test.session.unique()) for test in tests)])[:-1]
    for way, policy in ways.items():
        result = carry_out(folds, env, policy)
        days = np.delete(np.asarray(result.daily_returns, np.float64), sessions)
        first = days if way == NEXT_OPEN else first
        later = result.trades[~bars[result.trades["decision_bar"].to_numpy()]]
        orders = measure_execution(replace(result, trades=later), tests)
        found[way] = {
            "annual_return": m.annual_return(days),
            "sharpe": m.sharpe(days),
            "less_next_open": m.TRADING_DAYS * (days - first).mean(),
            "interval": bootstrap_interval(days - first),
            "slippage_bps": orders and orders.total.slippage_bps,
            "cost_bps": orders and orders.total.cost_bps,
            "fills": orders and orders.total.fills,
            "notional_usd": orders and orders.total.notional_usd,
        }
        print(name, way, found[way])
    return {"sessions": len(first), "ways": found}


def main() -> None:
    """Every set with every seed."""
    options = read_arguments(__doc__, seed=0, bars=Path, set=["us14", "n100"], seeds=1)
    torch.set_num_threads(1)
    rows = {
        f"{name}/{seed}": measure(name, options.bars, seed)
        for name in options.set
        for seed in list_seeds(options)
    }
    finish("execution", {"sets": rows}, options)


if __name__ == "__main__":
    main()
