"""How long a backtest takes: simulation, overfitting, assessment, report.

    python -m benchmarks.backtest [--bars 98700] [--assets 100] [--features 10]
    [--members 10] [--save]

One account over `bars` minutes of `assets` stocks, traded by an ensemble of `members` networks of
the default shape, deciding every minute, and every 30 minutes (as configs/nasdaq100_2016.yaml
does). Over the first bars the same ensemble is asked through its networks and `TradingEnv` itself:
the ledgers must agree to the last bit on the same actions, and the actions to float32 rounding.
CSCV runs over 16 blocks of 100 strategies by `bars` returns. The report is that of the half-hourly
simulation and all baselines, assessment and files included.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._bench import Values, finish, read_arguments
from benchmarks._learning import SESSION, make_random_market
from fintrader.agents import ActionHeadSettings, NetworkSettings
from fintrader.agents.policy import ActorPolicy, EnsemblePolicy
from fintrader.backtesting import simulate, simulate_baselines, write_backtest
from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.policy_strategy import PolicyStrategy
from fintrader.envs import EnvSettings, ObservationLayout
from fintrader.market.tensors import MarketTensors
from fintrader.report.html import write_report
from fintrader.results.context import BacktestContext
from fintrader.verdict.selection import SearchRecord
from fintrader.verdict.sharpe import backtest_overfitting
from tests.oracles.env_account import EnvAccount, simulate_in_environment


def compare(
    ensemble: EnsemblePolicy, market: MarketTensors, settings: EnvSettings
) -> tuple[int, float]:
    """Run both ways on the bound ensemble's actions: decisions made, and the largest difference
    between an action and the networks' own. Exits when an equity differs in its last bit."""
    fast = BacktestAccount(market, settings)
    slow = EnvAccount(market, settings)
    decide = PolicyStrategy(ensemble, fast, "bound")
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


class Stopwatch:
    """Wall and CPU seconds of each part, by name."""

    def __init__(self) -> None:
        self.figures: Values = {}

    def measure(self, name: str, work: Callable[[], Any]) -> Any:
        """Do the work and note what it took; CPU seconds are those of an idle machine."""
        start = time.perf_counter()
        used = time.process_time()
        result = work()
        self.figures[f"{name}_seconds"] = time.perf_counter() - start
        self.figures[f"{name}_cpu_seconds"] = time.process_time() - used
        return result


def main() -> None:
    """Measure each part."""
    options = read_arguments(__doc__, seed=0, bars=98_700, assets=100, features=10, members=10)
    market = make_random_market(
        options.bars,
        options.assets,
        options.features,
        seed=options.seed,
        volatility=6e-4,
        context=4,
    )
    layout = ObservationLayout(options.assets, options.features, 4)
    torch.manual_seed(options.seed)
    members = [
        ActorPolicy(layout, NetworkSettings(), ActionHeadSettings()) for _ in range(options.members)
    ]
    ensemble = EnsemblePolicy(members).eval().requires_grad_(False)
    half_hour = EnvSettings(decision_interval=30, cost_bps=2.0)
    minute = half_hour.model_copy(update={"decision_interval": 1})
    random = np.random.default_rng(options.seed)
    watch = Stopwatch()

    start = market.window(0, min(5 * SESSION, options.bars))
    simulate(ensemble, market.window(0, 60), minute)  # compiles, or loads what was compiled
    watch.measure("five_sessions", lambda: simulate(ensemble, start, minute))
    watch.measure(
        "five_sessions_environment", lambda: simulate_in_environment(ensemble, start, minute)
    )
    decisions, gap = compare(ensemble, start, minute)
    if gap > 1e-5:
        raise SystemExit(f"the bound ensemble's actions differ from the networks' by {gap}")
    watch.measure("minute_simulation", lambda: simulate(ensemble, market, minute))
    result = watch.measure("half_hourly_simulation", lambda: simulate(ensemble, market, half_hour))
    baselines = watch.measure(
        "baselines", lambda: simulate_baselines(market, half_hour, every=True)
    )
    noise = random.normal(size=(options.bars, 100))
    watch.measure("cscv", lambda: backtest_overfitting(noise, blocks=16))
    with tempfile.TemporaryDirectory() as folder:

        def report() -> None:
            stored = write_backtest(
                Path(folder),
                {"ensemble": result, **baselines},
                context=BacktestContext(trials=80),
                search=SearchRecord(random.normal(0, 0.01, (60, 80))),
                market=market,
                settings=half_hour,
            )
            write_report(Path(folder) / "report.html", stored)

        watch.measure("report", report)
        size = (Path(folder) / "report.html").stat().st_size
    sizes = {name: getattr(options, name) for name in ("bars", "assets", "members")}
    figures = {**sizes, **watch.figures, "report_mib": size / 2**20}
    figures |= {"decisions_compared": decisions, "largest_action_difference": gap}
    figures |= {"threads": torch.get_num_threads(), "load_average": os.getloadavg()[0]}
    finish("backtest", figures, options)


if __name__ == "__main__":
    main()
