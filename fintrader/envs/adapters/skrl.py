"""skrl: `TradingEnv` as a `Wrapper`; tensors pass through without a copy (bfloat16 observations as
float32).

    env = SkrlEnv(TradingEnv(market, settings))
    agent = PPO(models=models, memory=memory, cfg=cfg, observation_space=env.observation_space, ...)
    env.bootstrap_with(agent)
    SequentialTrainer(env=env, agents=agent, cfg={"timesteps": 10_000}).train()

skrl bootstraps a truncated account from the observation that `step` returned. Under SAME_STEP that
is the next episode's first one, under NEXT_STEP a transition that never happened follows. So this
wrapper bootstraps itself, from the true last observation: r + gamma V(final) stands in for r, and
every end is reported as `terminated` (leave `time_limit_bootstrap` at its default, False, and
`rewards_shaper` at None: it would shape the value, too).
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.vector import AutoresetMode
from skrl.envs.wrappers.torch import Wrapper
from torch import Tensor

from fintrader.envs.trading import TradingEnv
from fintrader.errors import EnvError


class SkrlEnv(Wrapper):  # type: ignore[misc]
    """A SAME_STEP `TradingEnv` with flat observations. Raises EnvError for any other mode or
    observation."""

    def __init__(self, env: TradingEnv) -> None:
        if env.autoreset_mode is not AutoresetMode.SAME_STEP or env.settings.observation != "flat":
            raise EnvError("the skrl wrapper needs autoreset_mode=SAME_STEP and flat observations")
        super().__init__(env)
        self._agent: Any = None
        self._first: tuple[Tensor, dict[str, Any]] | None = None

    def bootstrap_with(self, agent: Any) -> None:
        """Value the true last observation of truncated accounts with this agent's value model and
        discount.

        Raises EnvError for an agent that bootstraps at time limits itself or shapes rewards.
        """
        if agent.cfg.time_limit_bootstrap:
            raise EnvError(
                "set time_limit_bootstrap to False: this wrapper bootstraps at time limits itself"
            )
        if agent.cfg.rewards_shaper is not None:
            raise EnvError(
                "set rewards_shaper to None: it would shape the bootstrapped value along with the"
                " reward; use env.reward_scale or a reward of your own"
            )
        self._agent = agent

    @property
    def observation_space(self) -> Any:
        return self._env.single_observation_space

    @property
    def action_space(self) -> Any:
        return self._env.single_action_space

    def reset(self) -> tuple[Tensor, dict[str, Any]]:
        """Accounts begin once; afterwards they are reset one by one as they end, and this returns
        where they stand."""
        if self._first is None:
            obs, info = self._env.reset()
            self._first = (obs.float(), info)
        return self._first

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """obs `[B, D]`; reward, terminated, truncated `[B, 1]`; `info["truncated"]` keeps the true
        flags `[B]`."""
        obs, reward, terminated, truncated, info = self._env.step(actions)
        obs = obs.float()
        info["truncated"] = truncated
        self._first = (obs, info)
        if self._agent is None:
            return obs, reward.unsqueeze(1), terminated.unsqueeze(1), truncated.unsqueeze(1), info
        reward = reward.unsqueeze(1) + self._value(info["final_obs"].float()) * truncated.unsqueeze(
            1
        )
        ended = (terminated | truncated).unsqueeze(1)
        return obs, reward, ended, torch.zeros_like(ended), info

    def _value(self, obs: Tensor) -> Tensor:
        """`[B, 1]`: gamma V(obs), in the reward's scale."""
        agent = self._agent
        with torch.no_grad():
            inputs = {"observations": agent._observation_preprocessor(obs), "states": None}
            value, _ = agent.value.act(inputs, role="value")
            discounted: Tensor = agent.cfg.discount_factor * agent._value_preprocessor(
                value, inverse=True
            )
        return discounted

    def state(self) -> None:
        """There is no state beside the observations."""
        return None

    def render(self, *args: Any, **kwargs: Any) -> None:
        """There is nothing to see."""

    def close(self) -> None:
        """Nothing is held that needs closing."""
