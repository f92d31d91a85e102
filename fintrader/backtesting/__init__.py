"""Any policy over any window, beside its baselines: simulation, metrics, files and the report.

The package itself can be called, because `fintrader.backtesting(policy, market)` is one of the names of the Python door
and Python binds a package's name to the package as soon as anything in it is imported.
"""

from __future__ import annotations

import sys
from types import ModuleType

from fintrader.backtesting.baselines import simulate_baselines
from fintrader.backtesting.result import BacktestResult
from fintrader.backtesting.simulate import simulate
from fintrader.backtesting.writer import write_backtest
from fintrader.data.tensors import MarketTensors
from fintrader.envs import EnvSettings, Policy
from fintrader.results.backtest_files import StoredBacktest, read_backtest
from fintrader.results.formatting import metrics_table

__all__ = [
    "BacktestResult",
    "StoredBacktest",
    "backtest",
    "metrics_table",
    "read_backtest",
    "simulate",
    "simulate_baselines",
    "write_backtest",
]


def backtest(
    policy: Policy, market: MarketTensors, settings: EnvSettings | None = None, *, name: str = "policy"
) -> dict[str, BacktestResult]:
    """`policy` over the whole of `market`, and its baselines over the same bars at the same costs.

    The keys are `name`, `buy_and_hold`, `equal_weight` and `benchmark`. Raises BacktestError for a window of fewer
    than two bars or an output that cannot be traded.
    """
    settings = settings or EnvSettings()
    return {name: simulate(policy, market, settings, name=name), **simulate_baselines(market, settings)}


class _Callable(ModuleType):
    def __call__(
        self, policy: Policy, market: MarketTensors, settings: EnvSettings | None = None, *, name: str = "policy"
    ) -> dict[str, BacktestResult]:
        return backtest(policy, market, settings, name=name)


sys.modules[__name__].__class__ = _Callable
