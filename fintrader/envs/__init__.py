"""The trading environment: `TradingEnv` and its parts.

`import fintrader` registers `fintrader/Trading-v0` with gymnasium, for `gymnasium.make` (one
account, numpy) and `gymnasium.make_vec` (`TradingEnv`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fintrader.envs.account import Account
    from fintrader.envs.factored import FactoredLinear, project_market
    from fintrader.envs.observation import ObservationLayout
    from fintrader.envs.randomised import RandomisedEnv
    from fintrader.envs.settings import EnvSettings, RandomiseSettings
    from fintrader.envs.trading import Policy, TradingEnv

__all__ = [
    "Account",
    "EnvSettings",
    "FactoredLinear",
    "ObservationLayout",
    "Policy",
    "RandomiseSettings",
    "RandomisedEnv",
    "TradingEnv",
    "project_market",
]

_HOMES = {
    "Account": "envs.account",
    "EnvSettings": "envs.settings",
    "FactoredLinear": "envs.factored",
    "ObservationLayout": "envs.observation",
    "Policy": "envs.trading",
    "RandomiseSettings": "envs.settings",
    "RandomisedEnv": "envs.randomised",
    "TradingEnv": "envs.trading",
    "project_market": "envs.factored",
}


def __getattr__(name: str) -> Any:
    """Import on first use: settings alone load no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fintrader.envs' has no attribute {name!r}")
    return getattr(import_module(f"fintrader.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
