"""The trading environment: `TradingEnv` and its parts.

`import fintrader` registers `fintrader/Trading-v0` with gymnasium, for `gymnasium.make` (one
account, numpy) and `gymnasium.make_vec` (`TradingEnv`).
"""

from typing import TYPE_CHECKING

from fintrader.seams import import_on_use

if TYPE_CHECKING:
    from fintrader.envs.factored import FactoredLinear
    from fintrader.envs.observation import ObservationLayout
    from fintrader.envs.randomised import RandomisedEnv
    from fintrader.envs.settings import EnvSettings
    from fintrader.envs.trading import Policy, TradingEnv

__all__ = [
    "EnvSettings",
    "FactoredLinear",
    "ObservationLayout",
    "Policy",
    "RandomisedEnv",
    "TradingEnv",
]

_HOMES = {
    "EnvSettings": "envs.settings",
    "FactoredLinear": "envs.factored",
    "ObservationLayout": "envs.observation",
    "Policy": "envs.trading",
    "RandomisedEnv": "envs.randomised",
    "TradingEnv": "envs.trading",
}

__getattr__, __dir__ = import_on_use(__name__, _HOMES)
