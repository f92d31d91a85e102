"""RLlib (new API stack): `TradingEnv` behind its environment runners, as one vector environment
with numpy arrays.

    register_env("fintrader", rllib_env)  # of ray.tune
    config = (
        PPOConfig()
        .environment(
            "fintrader",
            env_config={"market": "market.safetensors", "settings": {"episode_bars": 390}},
        )
        .env_runners(num_envs_per_env_runner=64, gym_env_vectorize_mode="vector_entry_point")
    )

RLlib assumes gymnasium's NEXT_STEP autoreset: the step after an episode's end only begins the next
one, and RLlib leaves it out of its episodes. `env_config` takes the market (a path is sent to
remote runners faster than tensors), `settings` (an `EnvSettings` or its fields) and an optional
`seed`, from which each runner derives its own. Without it each runner draws one from the system's
entropy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.vector import AutoresetMode

from fintrader.config import validate
from fintrader.envs.adapters.gymnasium import NumpyVectorEnv, SingleTradingEnv
from fintrader.envs.settings import EnvSettings
from fintrader.envs.trading import TradingEnv
from fintrader.seeding import derive


def rllib_env(config: Mapping[str, Any]) -> NumpyVectorEnv | SingleTradingEnv:
    """Make the environment of RLlib's `EnvContext`: `num_envs` accounts if it has them, else one.

    Raises ConfigError for settings that do not exist.
    """
    settings = config.get("settings") or {}
    if not isinstance(settings, EnvSettings):
        settings = validate(EnvSettings, settings, "env_config.settings")
    root = config.get("seed")
    # Runners must not all play the same episodes.
    seed = None if root is None else derive(int(root), "rllib", getattr(config, "worker_index", 0))
    if "num_envs" not in config:
        return SingleTradingEnv(config["market"], settings, seed=seed)
    mode = AutoresetMode.NEXT_STEP
    env = TradingEnv(
        config["market"], settings, num_envs=int(config["num_envs"]), seed=seed, autoreset_mode=mode
    )
    return NumpyVectorEnv(env)
