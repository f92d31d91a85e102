"""RLlib (new API stack): `TradingEnv` behind its environment runners, as one vector environment with numpy arrays.

    config = (
        PPOConfig()
        .environment(rllib_env, env_config={"market": "market.safetensors", "settings": {"episode_bars": 390}})
        .env_runners(num_envs_per_env_runner=64, gym_env_vectorize_mode="vector_entry_point")
    )

RLlib assumes gymnasium's NEXT_STEP autoreset: the step after an episode's end only begins the next one, and RLlib
leaves it out of its episodes. `env_config` takes the market (a path travels better to remote runners than tensors),
`settings` (an `EnvSettings` or its fields) and, if wanted, `seed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from fintrader.config import validate
from fintrader.envs.adapters.gymnasium import SingleTradingEnv, to_numpy
from fintrader.envs.settings import EnvSettings
from fintrader.envs.trading import TradingEnv
from fintrader.seeding import derive


class NumpyVectorEnv(VectorEnv[Any, Any, Any]):
    """A `TradingEnv` with numpy in and out, for anything written against gymnasium's vector environments."""

    def __init__(self, env: TradingEnv) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.metadata = env.metadata
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.render_mode = None

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """As `TradingEnv.reset`, in numpy."""
        obs, info = self.env.reset(seed=seed, options=options)
        return to_numpy(obs), to_numpy(info)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As `TradingEnv.step`, in numpy."""
        batch = torch.as_tensor(np.asarray(actions, dtype=np.float32), device=self.env.device)
        obs, reward, terminated, truncated, info = self.env.step(batch)
        return to_numpy(obs), to_numpy(reward), to_numpy(terminated), to_numpy(truncated), to_numpy(info)


def rllib_env(config: Mapping[str, Any]) -> NumpyVectorEnv | SingleTradingEnv:
    """What RLlib calls with its `EnvContext`: `num_envs` accounts where it asks for them, else a single one.

    Raises ConfigError for settings that do not exist.
    """
    settings = config.get("settings") or {}
    if not isinstance(settings, EnvSettings):
        settings = validate(EnvSettings, settings, "env_config.settings")
    # Runners must not all live the same episodes.
    seed = derive(int(config.get("seed", 0)), "rllib", getattr(config, "worker_index", 0))
    if "num_envs" not in config:
        return SingleTradingEnv(config["market"], settings, seed=seed)
    mode = AutoresetMode.NEXT_STEP
    env = TradingEnv(config["market"], settings, num_envs=int(config["num_envs"]), seed=seed, autoreset_mode=mode)
    return NumpyVectorEnv(env)
