"""How long a backtest takes: simulation, overfitting, assessment, report.

    python benchmarks/backtest.py [--bars 98700] [--assets 100] [--members 10] [--save]

One account over `bars` minutes of `assets` stocks, traded by an ensemble of `members` networks of
the default shape, deciding every minute, and every 30 minutes (as configs/nasdaq100_2016.yaml
does). Over the first bars the same ensemble is asked through its networks and `TradingEnv` itself:
the ledgers must agree to the last bit on the same actions, and the actions to float32 rounding.
CSCV runs over 16 blocks of 100 strategies by `bars` returns. The report is that of the half-hourly
simulation and all baselines, assessment and files included.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import finish

from fintrader.agents import ActionHeadSettings, NetworkSettings
from fintrader.agents.policy import ActorPolicy, EnsemblePolicy
from fintrader.backtesting import simulate, simulate_baselines, write_backtest
from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.simulation import ask
from fintrader.envs import EnvSettings, ObservationLayout
from fintrader.market.tensors import MarketTensors
from fintrader.report.html import write_report
from fintrader.seeding import generator
from fintrader.verdict.sharpe import backtest_overfitting
from tests.oracles.env_account import EnvAccount, simulate_in_environment

SESSION = 390


def make_market(bars: int, assets: int, features: int, seed: int) -> MarketTensors:
    """Random walks on whole sessions."""
    draw = generator(seed, "benchmark-market")
    steps = 0.0006 * torch.randn(bars, assets, generator=draw)
    close = 50 * torch.exp(steps.cumsum(0))
    session = torch.arange(bars) // SESSION
    day = 86_400_000_000_000
    minutes = (
        1_577_975_400_000_000_000 + session * day + (torch.arange(bars) % SESSION) * 60_000_000_000
    )
    return MarketTensors(
        open=torch.cat([close[:1], close[:-1]]),
        close=close,
        volume=torch.full_like(close, 1e9),
        features=torch.randn(bars, assets, features, generator=draw),
        context=torch.randn(bars, 4, generator=draw),
        tradable=torch.ones(bars, assets, dtype=torch.bool),
        member=torch.ones(bars, assets, dtype=torch.bool),
        session=session,
        minutes=minutes,
        benchmark=close.double().mean(1),
        symbols=tuple(f"S{n:03d}" for n in range(assets)),
        feature_names=tuple(f"f{k}" for k in range(features)),
        context_names=("c0", "c1", "c2", "c3"),
    )


def compare(
    ensemble: EnsemblePolicy, market: MarketTensors, settings: EnvSettings
) -> tuple[int, float]:
    """Run both ways side by side on the bound ensemble's actions: decisions made, and the largest
    difference between an action and the networks' own. Exits when an equity differs in its last
    bit."""
    fast = BacktestAccount(market, settings)
    slow = EnvAccount(market, settings)
    decide = ask(ensemble, fast, "bound")
    over = False
    count = 0
    gap = 0.0
    while not over:
        given = np.array(decide(fast))
        gap = max(gap, float(np.abs(given - ensemble(slow.observe())[0].numpy()).max()))
        count = count + 1
        over = fast.act(given)
        slow.act(given)
        if fast.equity != slow.equity:
            raise SystemExit(f"the two ledgers differ at bar {fast.bar}")
    return count, gap


def timed(what: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall seconds, processor seconds (what the work takes when nobody else computes), result."""
    start = time.perf_counter()
    used = time.process_time()
    result = what()
    return time.perf_counter() - start, time.process_time() - used, result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bars", type=int, default=98_700)
    parser.add_argument("--assets", type=int, default=100)
    parser.add_argument("--features", type=int, default=10)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()

    market = make_market(options.bars, options.assets, options.features, options.seed)
    layout = ObservationLayout(options.assets, options.features, 4)
    torch.manual_seed(options.seed)
    members = [
        ActorPolicy(layout, NetworkSettings(), ActionHeadSettings()) for _ in range(options.members)
    ]
    ensemble = EnsemblePolicy(members).eval().requires_grad_(False)
    half_hour = EnvSettings(decision_interval=30, cost_bps=2.0)
    minute = half_hour.model_copy(update={"decision_interval": 1})

    start = market.window(0, min(5 * SESSION, options.bars))
    simulate(ensemble, market.window(0, 60), minute)  # compiles, or loads what was compiled
    _, fast_cpu, fast = timed(lambda: simulate(ensemble, start, minute))
    _, exact_cpu, exact = timed(lambda: simulate_in_environment(ensemble, start, minute))
    actions, gap = compare(ensemble, start, minute)
    if gap > 1e-5:
        raise SystemExit(f"the bound ensemble's actions differ from the networks' by {gap}")

    minute_seconds, minute_cpu, by_minute = timed(
        lambda: simulate(ensemble, market, minute, name="ensemble")
    )
    simulation_seconds, simulation_cpu, result = timed(
        lambda: simulate(ensemble, market, half_hour, name="ensemble")
    )
    metrics_seconds, _, _ = timed(lambda: result.metrics)
    baseline_seconds, baseline_cpu, baselines = timed(
        lambda: simulate_baselines(market, half_hour, every=True)
    )
    noise = np.random.default_rng(options.seed).normal(size=(options.bars, 100))
    cscv_seconds, cscv_cpu, overfit = timed(lambda: backtest_overfitting(noise, blocks=16))
    daily = np.random.default_rng(options.seed).normal(0, 0.01, (60, 80))
    with tempfile.TemporaryDirectory() as folder:
        report_seconds, report_cpu, _ = timed(
            lambda: write_report(
                Path(folder) / "report.html",
                write_backtest(
                    Path(folder),
                    {"ensemble": result, **baselines},
                    context={"trials": 80},
                    trial_returns=daily,
                    market=market,
                    settings=half_hour,
                ),
            )
        )
        report_bytes = (Path(folder) / "report.html").stat().st_size
    figures = {
        "bars": options.bars,
        "assets": options.assets,
        "members": options.members,
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 1),
        "minute_simulation_seconds": round(minute_seconds, 2),
        "minute_simulation_cpu_seconds": round(minute_cpu, 2),
        "half_hourly_simulation_seconds": round(simulation_seconds, 2),
        "half_hourly_simulation_cpu_seconds": round(simulation_cpu, 2),
        "minute_fills": len(by_minute.trades),
        "decisions_compared": actions,
        "largest_action_difference": gap,
        "speedup_over_environment_and_networks": round(exact_cpu / fast_cpu, 1),
        "equal_trajectory": bool((fast.equity == exact.equity).all()),
        "metrics_seconds": round(metrics_seconds, 2),
        "baselines_seconds": round(baseline_seconds, 2),
        "baselines_cpu_seconds": round(baseline_cpu, 2),
        "cscv_seconds": round(cscv_seconds, 2),
        "cscv_cpu_seconds": round(cscv_cpu, 2),
        "cscv_probability": overfit.probability,
        "report_seconds": round(report_seconds, 2),
        "report_cpu_seconds": round(report_cpu, 2),
        "report_mib": round(report_bytes / 2**20, 2),
    }
    for name, value in figures.items():
        print(f"{name:32s} {value}")
    finish("backtest", figures, seed=options.seed, save=options.save)


if __name__ == "__main__":
    main()
