"""Stable-Baselines3: `TradingEnv` as a `VecEnv`.

    from stable_baselines3 import PPO
    model = PPO("MlpPolicy", Sb3VecEnv(TradingEnv(market, settings)))
    model.learn(100_000)

SB3 expects gymnasium's SAME_STEP: a finished account is reset at once, its last observation is
`infos[i]["terminal_observation"]`, and `infos[i]["TimeLimit.truncated"]` is true if SB3 should
bootstrap from it. Every array is a copy, because SB3 keeps arrays in its buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env.base_vec_env import (
    VecEnv,
    VecEnvIndices,
    VecEnvObs,
    VecEnvStepReturn,
)

from fintrader.envs.adapters.gymnasium import require_flat, to_batch, to_numpy
from fintrader.envs.trading import TradingEnv
from fintrader.errors import EnvError

_Array = np.ndarray[Any, Any]


class Sb3VecEnv(VecEnv):  # type: ignore[misc, unused-ignore]
    """A SAME_STEP `TradingEnv` with flat observations. Raises EnvError for any other mode or
    observation."""

    def __init__(self, env: TradingEnv) -> None:
        require_flat(env, AutoresetMode.SAME_STEP, "Stable-Baselines3")
        self.env = env
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self._actions: _Array | None = None

    def reset(self) -> VecEnvObs:
        """Begin episodes: observations `[B, D]` float32; a seed of `seed()` is used once."""
        seeded = any(seed is not None for seed in self._seeds)
        seeds = [int(seed or 0) for seed in self._seeds]
        options = self._options[0] or None
        obs, _ = self.env.reset(seed=seeds if seeded else None, options=options)
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return _copy(obs)

    def step_async(self, actions: _Array) -> None:
        """Keep the actions `[B, N]` for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Step: obs `[B, D]`, reward `[B]`, done `[B]`, a list of B infos."""
        obs, reward, terminated, truncated, info = self.env.step(
            to_batch(self._actions, self.env.device)
        )
        done = _copy(terminated | truncated)
        cut = _copy(truncated)
        infos = [{"TimeLimit.truncated": flag} for flag in cut.tolist()]
        ended = np.flatnonzero(done)
        if ended.size:
            final = _copy(info["final_obs"][torch.as_tensor(ended, device=self.env.device)])
            for row, account in enumerate(ended):
                infos[account]["terminal_observation"] = final[row]
        return _copy(obs), _copy(reward), done, infos

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Repeat the environment's attribute for every account in `indices`."""
        value = getattr(self.env, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the environment. Raises EnvError for a subset of accounts, because
        all share it."""
        if len(list(self._get_indices(indices))) != self.num_envs:
            raise EnvError("all accounts share one environment: set the attribute for all of them")
        setattr(self.env, attr_name, value)

    def env_method(
        self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of the environment once, and repeat its result for every account in
        `indices`."""
        result = getattr(self.env, method_name)(*args, **kwargs)
        return [result for _ in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: VecEnvIndices = None) -> list[bool]:
        """Report that no account has a gymnasium wrapper."""
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[_Array | None]:
        """Return no images: there is nothing to render."""
        return [None] * self.num_envs


def _copy(value: torch.Tensor) -> _Array:
    return np.array(to_numpy(value), copy=True)
