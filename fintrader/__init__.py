"""fintrader: train trading agents in a tournament, and believe the result.

These names are the public interface; everything else is in the package of its subject, such as
`fintrader.agents`.

    load_market      load a market from a configuration, a file, or bars in pandas
    MarketTensors    a market: prices, features and flags of N assets over T bars
    TradingEnv       thousands of accounts stepping at once, a gymnasium `VectorEnv` on torch
                     tensors
    EnvSettings      settings of orders, costs, observations and rewards
    train            train one agent in an environment
    judge            test the returns of any strategy for skill
    backtest         backtest any policy on any window, net of costs, next to baselines
    lookahead        search the way from bars to equity for knowledge of the future
    walk_forward     train and test any agent fold by fold, as one backtest
    run              run the whole pipeline, from a configuration to a finished run
    run_tournament   run the pipeline without its look at the test window
    open_run         open a run in a folder or a store
    load_policy      load a stored policy or ensemble: a callable from observation to action
    save_policy      store a trained policy as one file

The environment is registered with gymnasium, which imports the module before the colon first:

    gymnasium.make_vec("fintrader:fintrader/Trading-v0", num_envs=64)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import gymnasium

from fintrader.errors import suggest

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
    from fintrader.agents.policy import load_policy, save_policy
    from fintrader.backtesting.lookahead.prover import lookahead
    from fintrader.envs.settings import EnvSettings
    from fintrader.envs.trading import TradingEnv
    from fintrader.market.load import load_market
    from fintrader.market.tensors import MarketTensors
    from fintrader.pipeline.door import open_run, run, run_tournament, train
    from fintrader.report.backtests import backtest, walk_forward
    from fintrader.report.judged import judge

__version__ = "0.1.0"
__all__ = [
    "EnvSettings",
    "MarketTensors",
    "TradingEnv",
    "backtest",
    "judge",
    "load_market",
    "load_policy",
    "lookahead",
    "open_run",
    "run",
    "run_tournament",
    "save_policy",
    "train",
    "walk_forward",
]

_HOMES = {
    "EnvSettings": "envs.settings",
    "MarketTensors": "market.tensors",
    "TradingEnv": "envs.trading",
    "backtest": "report.backtests",
    "judge": "report.judged",
    "load_market": "market.load",
    "load_policy": "agents.policy",
    "lookahead": "backtesting.lookahead.prover",
    "open_run": "pipeline.door",
    "run": "pipeline.door",
    "run_tournament": "pipeline.door",
    "save_policy": "agents.policy",
    "train": "pipeline.door",
    "walk_forward": "report.backtests",
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
"""Packages imported on first use, as in `fintrader.agents.PPO()`."""
_ENV_ID = "fintrader/Trading-v0"

# Since version 1.0 gymnasium reads no entry points: importing this package registers it.
if _ENV_ID not in gymnasium.registry:
    gymnasium.register(
        _ENV_ID,
        entry_point="fintrader.envs.adapters.gymnasium:SingleTradingEnv",
        vector_entry_point="fintrader.envs.adapters.gymnasium:make_trading_env",
        # The checks at every reset cost more than the step; the tests run them instead.
        disable_env_checker=True,
    )


def __getattr__(name: str) -> Any:
    """Import a package or name on first use, so that `import fintrader` is quick and loads no
    torch."""
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    hint = suggest(name, [*__all__, *_PACKAGES])
    homes = () if name.startswith("_") else _PACKAGES
    for package in homes:
        if name in getattr(import_module(f"{__name__}.{package}"), "__all__", ()):
            hint = f"it is fintrader.{package}.{name}"
    raise AttributeError(f"module 'fintrader' has no attribute {name!r}; {hint}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *_PACKAGES])
