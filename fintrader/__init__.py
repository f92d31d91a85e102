"""fintrader: train trading agents in a tournament, and believe the result.

Five names are the Python door; everything else lies in the package that its floor is named after.

    load_market      a `MarketTensors` from a file, a configuration, or settings
    TradingEnv       thousands of accounts stepping at once, a gymnasium `VectorEnv` on torch tensors
    run_tournament   pods, a leaderboard, an ensemble: from a configuration to a finished run
    backtest         any policy on any window, net of costs, beside its baselines
    load_policy      a stored policy (or ensemble) as a callable from observation to action
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fintrader.registration import register

if TYPE_CHECKING:
    from fintrader.agents.policy import load_policy
    from fintrader.backtesting import backtest
    from fintrader.data.build import load_market
    from fintrader.envs.trading import TradingEnv
    from fintrader.pipeline import run_tournament

__version__ = "0.1.0"
__all__ = ["TradingEnv", "backtest", "load_market", "load_policy", "run_tournament"]

_HOMES = {
    "TradingEnv": "fintrader.envs.trading",
    "load_market": "fintrader.data.build",
    "load_policy": "fintrader.agents.policy",
    "run_tournament": "fintrader.pipeline",
}


register()


def __getattr__(name: str) -> Any:
    """Import on first use: `import fintrader` alone stays quick and loads no torch."""
    if name == "backtest":
        return import_module("fintrader.backtesting")  # a package that can be called
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fintrader' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
