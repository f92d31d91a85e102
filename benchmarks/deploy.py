"""The pace of a deployment: replayed decisions a minute, and the time from a bar's bars to the last
order.

    python -m benchmarks.deploy [--save]

`quickstart`: the configuration's own market, a decision every 25 minutes, eight symbols, the
embedded broker; the policy's weights are random, which costs the same. The time is
that of the whole loop: receive, journal, rows, policy, limits, orders, ledger. `hundred`: a hundred
symbols of minute bars with the features of the real configurations, which look back on twenty
sessions, and six decisions in each of seven. Bars come minute by minute, as to a live loop; the
time of each decision from its newest bars to its last journalled order, on one core. Both as processor time too, which other
work on the machine changes less.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._bench import ROOT, Values, finish, read_arguments
from fintrader.backtesting import simulate
from fintrader.config import merge_values, read_yaml
from fintrader.deploy.clock import ReplayClock
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.feed import ReplayFeed
from fintrader.deploy.journal import Journal
from fintrader.deploy.runner import Connections, Runner
from fintrader.deploy.settings import PaperSettings
from fintrader.deploy.simulated import SimulatedBroker
from fintrader.market.settings import read_settings
from tests.engines.deployments import FREE, LiveClock, equities, frozen

HUNDRED = {
    "source": {"kind": "synthetic", "seed": 1, "num_symbols": 100, "num_sessions": 60},
    "features": {
        "names": [
            *("return_30", "return_390", "return_1950", "return_7800", "intraday", "gap", "gap_5"),
            *("volatility_390", "volatility_7800", "beta_7800", "relative_volume_390"),
        ],
        "scaling": "zscore",
        "clip": 3,
        "context": [],
    },
    "windows": {"fractions": [0.5, 0.15, 0.35], "embargo_sessions": 1},
}


class Timed(Runner):
    """Notes the seconds of each decision, by the clock and of the processor."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.seconds: list[float] = []
        self.cpu: list[float] = []

    def _process_bar(self, bar: int) -> None:
        began = time.perf_counter()
        cpu = time.process_time()
        super()._process_bar(bar)
        if self._is_due(bar):
            self.seconds.append(time.perf_counter() - began)
            self.cpu.append(time.process_time() - cpu)


def measure(data: Values, env: Values, *, live: bool) -> Values:
    """Replay a window; the time of its decisions, and whether the account is the backtest's."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        bundle, market = frozen(home, read_settings(data), **env)
        last = 7 * 390 if live else market.num_bars - 1
        clock = (LiveClock if live else ReplayClock)(int(market.minutes[0]))
        feed = ReplayFeed(bundle.data, bundle.symbols)
        with Journal(home / JOURNAL, durable=live) as journal:
            runner = Timed(
                bundle,
                PaperSettings(limits=FREE),
                Connections(clock, feed, SimulatedBroker(market, bundle.env, clock.now), journal),
                window=(int(market.minutes[0]), int(market.minutes[last])),
            )
            began = time.perf_counter()
            runner.run()
            wall = time.perf_counter() - began
            decided = equities(journal)
            orders = len(journal.orders())
        expected = simulate(bundle.policy, market, bundle.env).equity
    at = np.searchsorted(market.minutes.numpy(), list(decided))
    later = runner.seconds[1:]
    return {
        "symbols": market.num_assets,
        "decisions": len(decided),
        "orders": orders,
        "decisions_a_minute": 60 * len(decided) / wall,
        "p50_seconds": np.quantile(later, 0.5),
        "p99_seconds": np.quantile(later, 0.99),
        "p50_cpu_seconds": np.quantile(runner.cpu[1:], 0.5),
        "equal_to_the_backtest": bool((np.array(list(decided.values())) == expected[at]).all()),
    }


def main() -> None:
    """Measure the small and the large market."""
    options = read_arguments(__doc__)
    torch.set_num_threads(1)
    values = read_yaml(ROOT / "configs" / "quickstart.yaml")
    env = {name: values["env"][name] for name in ("decision_interval", "trade_rate", "cost_bps")}
    found = {"quickstart": measure(merge_values(values["data"], {}), env, live=False)}
    rules = {"decision_interval": 65, "trade_rate": 1.0, "benchmark": "equal_weight"}
    found["hundred"] = measure(HUNDRED, rules, live=True)
    finish("deploy", found, options)


if __name__ == "__main__":
    main()
