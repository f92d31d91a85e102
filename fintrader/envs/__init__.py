"""The trading environment: `TradingEnv` and what it is made of.

Importing this module registers `fintrader/Trading-v0` with gymnasium, for `gymnasium.make` (one account, numpy) and
for `gymnasium.make_vec(..., vectorization_mode="vector_entry_point")` (`TradingEnv`).
"""

from __future__ import annotations

import gymnasium

from fintrader.envs.factored import FactoredLinear, project_market
from fintrader.envs.ledger import Account
from fintrader.envs.observation import ObservationLayout
from fintrader.envs.settings import EnvSettings
from fintrader.envs.trading import Policy, TradingEnv

__all__ = [
    "ENV_ID",
    "Account",
    "EnvSettings",
    "FactoredLinear",
    "ObservationLayout",
    "Policy",
    "TradingEnv",
    "project_market",
]

ENV_ID = "fintrader/Trading-v0"

if ENV_ID not in gymnasium.registry:
    gymnasium.register(
        ENV_ID,
        entry_point="fintrader.envs.adapters.gymnasium:SingleTradingEnv",
        vector_entry_point="fintrader.envs.trading:TradingEnv",
        disable_env_checker=True,  # its checks at every reset cost more than the step; the tests run it instead
    )
