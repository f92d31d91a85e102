"""fintrader: train trading agents in a tournament, and believe the result.

The names below are the Python door; everything else lies in the package that its subject is named
after, such as `fintrader.agents`.

    load_market      a market, from a configuration, a file, or bars in pandas
    MarketTensors    what it returns: prices, features and flags of N assets over T bars
    TradingEnv       thousands of accounts stepping at once, a gymnasium `VectorEnv` on torch
                     tensors
    EnvSettings      how accounts trade, what they pay, see, and are rewarded for
    train            one agent in an environment, for so many steps
    backtest         any policy on any window, net of costs, beside its baselines
    run              the whole pipeline, from a configuration to a finished run
    run_tournament   the same without the look at the test window
    open_run         a run that lies in a folder or a store
    load_policy      a stored policy (or ensemble) as a callable from observation to action

gymnasium knows the environment, too; the module before the colon is imported first:

    gymnasium.make_vec("fintrader:fintrader/Trading-v0", num_envs=64)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import gymnasium

if TYPE_CHECKING:
    from fintrader import agents as agents
    from fintrader import backtesting as backtesting
    from fintrader import bars as bars
    from fintrader import envs as envs
    from fintrader import errors as errors
    from fintrader import market as market
    from fintrader import metrics as metrics
    from fintrader import results as results
    from fintrader import verdict as verdict
    from fintrader.agents.policy import load_policy
    from fintrader.envs.settings import EnvSettings
    from fintrader.envs.trading import TradingEnv
    from fintrader.market.load import load_market
    from fintrader.market.tensors import MarketTensors
    from fintrader.pipeline.door import open_run, run, run_tournament, train
    from fintrader.report.backtests import backtest

__version__ = "0.1.0"
__all__ = [
    "EnvSettings",
    "MarketTensors",
    "TradingEnv",
    "backtest",
    "load_market",
    "load_policy",
    "open_run",
    "run",
    "run_tournament",
    "train",
]

_HOMES = {
    "EnvSettings": "envs.settings",
    "MarketTensors": "market.tensors",
    "TradingEnv": "envs.trading",
    "backtest": "report.backtests",
    "load_market": "market.load",
    "load_policy": "agents.policy",
    "open_run": "pipeline.door",
    "run": "pipeline.door",
    "run_tournament": "pipeline.door",
    "train": "pipeline.door",
}
_PACKAGES = (
    "agents",
    "backtesting",
    "bars",
    "envs",
    "errors",
    "market",
    "metrics",
    "results",
    "verdict",
)
"""Packages that are there without an import of their own, as in `fintrader.agents.PPO()`."""
_ENV_ID = "fintrader/Trading-v0"

if (
    _ENV_ID not in gymnasium.registry
):  # since version 1.0 gymnasium reads no entry points: somebody has to import us
    gymnasium.register(
        _ENV_ID,
        entry_point="fintrader.envs.adapters.gymnasium:SingleTradingEnv",
        vector_entry_point="fintrader.envs.adapters.gymnasium:make_trading_env",
        # its checks at every reset cost more than the step; the tests run it instead
        disable_env_checker=True,
    )


def __getattr__(name: str) -> Any:
    """Import on first use: `import fintrader` alone stays quick and loads no torch."""
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fintrader' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *_PACKAGES])
