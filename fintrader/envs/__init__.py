"""The trading environment: `TradingEnv` and what it is made of."""

from __future__ import annotations

from fintrader.envs.ledger import Account
from fintrader.envs.observation import ObservationLayout
from fintrader.envs.settings import EnvSettings
from fintrader.envs.trading import Policy, TradingEnv

__all__ = ["Account", "EnvSettings", "ObservationLayout", "Policy", "TradingEnv"]
