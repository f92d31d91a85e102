"""Isaac Gym's contract, for libraries made for GPU simulators: rl_games, ElegantRL, and rsl_rl with
its dictionaries of observations. Tensors pass through without a copy.

    env = RslRlEnv(TradingEnv(market, settings))
    runner = OnPolicyRunner(env, config)
    env.bootstrap_with(lambda obs: runner.alg.critic(env.pack(obs)), config["algorithm"]["gamma"])
    runner.learn(100)

An account is reset in the step that ends its episode. rl_games and rsl_rl then bootstrap from the
state before the last step (`time_outs`), and ElegantRL treats a time limit as a termination. After
`bootstrap_with` the wrapper adds gamma V(final) of the true last observation to the reward instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gymnasium import Space
from gymnasium.vector import AutoresetMode
from torch import Tensor

from fintrader.envs.adapters.gymnasium import require_flat
from fintrader.envs.trading import TradingEnv


class IsaacVecEnv:
    """A SAME_STEP `TradingEnv` with flat observations, under the names that these libraries read.
    Raises EnvError for any other mode or observation."""

    if_discrete = False

    def __init__(self, env: TradingEnv) -> None:
        require_flat(env, AutoresetMode.SAME_STEP, "Isaac Gym's contract")
        self.env = env
        self.env_name = "fintrader"
        self.cfg: dict[str, object] = {}
        self.device = env.device
        self.num_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.state_dim = env.layout.width
        self.action_dim = self.num_actions = env.layout.num_actions
        bars = env.settings.episode_bars or env.market.num_bars - 1
        self.max_step = self.max_episode_length = -(-bars // env.settings.decision_interval)
        self._lengths = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self._value: Callable[[Tensor], Tensor] | None = None
        self._gamma = 0.0
        self._obs: Tensor | None = None

    def bootstrap_with(self, value: Callable[[Tensor], Tensor], gamma: float) -> None:
        """Add gamma V(final observation) to the reward of truncated accounts, and report no
        `time_outs`; `value` maps observations `[B, D]` to `[B]` or `[B, 1]`, divided by the factor
        by which the library multiplies rewards."""
        self._value = value
        self._gamma = gamma

    @property
    def episode_length_buf(self) -> Tensor:
        """`[B]` int64: decisions since each episode began. It cannot be set: accounts begin at
        random bars, so that `init_at_random_ep_len` has nothing to do."""
        return self._lengths

    def pack(self, obs: Tensor) -> Any:
        """Give observations `[B, D]` the library's form."""
        return obs

    def get_env_info(self) -> dict[str, Space[Any]]:
        """Describe the spaces, for rl_games."""
        return {"observation_space": self.observation_space, "action_space": self.action_space}

    def get_observations(self) -> Any:
        """Return the present observations; begin episodes at the first call."""
        if self._obs is None:
            self._obs = self.env.reset()[0].float()
        return self.pack(self._obs)

    reset = get_observations
    """Accounts are reset one by one as they end."""

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, dict[str, Tensor]]:
        """Step: observations, reward `[B]`, done `[B]`, and `time_outs` `[B]`, if the library is
        to bootstrap."""
        obs, reward, terminated, truncated, info = self.env.step(actions)
        done = terminated | truncated
        self._obs = obs.float()
        self._lengths = torch.where(done, 0, self._lengths + 1)
        if self._value is None:
            return self.pack(self._obs), reward, done, {"time_outs": truncated}
        with torch.no_grad():
            ahead = self._value(info["final_obs"].float()).reshape(-1)
        # Rows of other accounts mean nothing, and may be NaN.
        reward = reward + torch.where(truncated, self._gamma * ahead, 0.0)
        return self.pack(self._obs), reward, done, {}


class RslRlEnv(IsaacVecEnv):
    """As rsl_rl reads it: observations in a TensorDict, under `policy`."""

    def pack(self, obs: Tensor) -> Any:
        """Give observations `[B, D]` the form of rsl_rl."""
        from tensordict import TensorDict

        return TensorDict({"policy": obs}, batch_size=[len(obs)], device=obs.device)
