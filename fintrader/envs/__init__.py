"""The trading environment: `TradingEnv` and what it is made of.

`import fintrader` registers `fintrader/Trading-v0` with gymnasium, for `gymnasium.make` (one
account, numpy) and `gymnasium.make_vec` (`TradingEnv`).
"""

from __future__ import annotations

from fintrader.envs.factored import FactoredLinear, project_market
from fintrader.envs.ledger import Account
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
