"""`fintrader/Trading-v0` in gymnasium's registry; `import fintrader` puts it there, and loads no torch for it.

    gymnasium.make_vec("fintrader:fintrader/Trading-v0", num_envs=64)   # the module before the colon is imported first

Since version 1.0 gymnasium reads no entry points of installed packages: somebody has to import the module.
"""

from __future__ import annotations

import gymnasium

ENV_ID = "fintrader/Trading-v0"


def register() -> None:
    """Enter the environment: one account with numpy (`make`), or a `TradingEnv` (`make_vec`). Idempotent."""
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(
            ENV_ID,
            entry_point="fintrader.envs.adapters.gymnasium:SingleTradingEnv",
            vector_entry_point="fintrader.envs.adapters.gymnasium:make_trading_env",
            disable_env_checker=True,  # its checks at every reset cost more than the step; the tests run it instead
        )
