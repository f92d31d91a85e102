"""skrl: `TradingEnv` as a `Wrapper`; tensors pass through without a copy (bfloat16 observations as
float32).

    env = SkrlEnv(TradingEnv(market, settings))
    agent = PPO(models=models, memory=memory, cfg=cfg, observation_space=env.observation_space, ...)
    env.bootstrap_with(agent)
    SequentialTrainer(env=env, agents=agent, cfg={"timesteps": 10_000}).train()

skrl bootstraps a truncated account from the observation that `step` returned. Under SAME_STEP that
is the next episode's first one; under NEXT_STEP it would learn from a transition that never
happened. This wrapper therefore bootstraps from the true last observation: it replaces r by r +
gamma V(final) and reports every end as `terminated`. Leave `time_limit_bootstrap` at False and
`rewards_shaper` at None, which would shape the value, too.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.vector import AutoresetMode
from skrl.envs.wrappers.torch import Wrapper
from torch import Tensor

from fintrader.envs.adapters.gymnasium import require_flat
from fintrader.envs.observation import ResetReturn, StepReturn
from fintrader.envs.trading import TradingEnv
from fintrader.errors import EnvError


class SkrlEnv(Wrapper):  # type: ignore[misc]
    """A SAME_STEP `TradingEnv` with flat observations. Raises EnvError for any other mode or
    observation."""

    def __init__(self, env: TradingEnv) -> None:
        require_flat(env, AutoresetMode.SAME_STEP, "skrl")
        super().__init__(env)
        self._agent: Any = None
        self._first: ResetReturn | None = None

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

    def reset(self) -> ResetReturn:
        """Begin episodes once; later calls return the present observations, since accounts are
        reset one by one as they end."""
        if self._first is None:
            obs, info = self._env.reset()
            self._first = (obs.float(), info)
        return self._first

    def step(self, actions: Tensor) -> StepReturn:
        """Step: obs `[B, D]`; reward, terminated, truncated `[B, 1]`; `info["truncated"]` has the
        true flags `[B]`."""
        obs, reward, terminated, truncated, info = self._env.step(actions)
        obs = obs.float()
        info["truncated"] = truncated
        self._first = (obs, info)
        if self._agent is None:
            return obs, reward.unsqueeze(1), terminated.unsqueeze(1), truncated.unsqueeze(1), info
        ahead = self._value(info["final_obs"].float())
        # Rows of other accounts mean nothing, and may be NaN.
        reward = reward.unsqueeze(1) + torch.where(truncated.unsqueeze(1), ahead, 0.0)
        ended = (terminated | truncated).unsqueeze(1)
        return obs, reward, ended, torch.zeros_like(ended), info

    def _value(self, obs: Tensor) -> Tensor:
        """Compute gamma V(obs), `[B, 1]`, in the reward's scale."""
        agent = self._agent
        with torch.no_grad():
            inputs = {"observations": agent._observation_preprocessor(obs), "states": None}
            value, _ = agent.value.act(inputs, role="value")
            discounted: Tensor = agent.cfg.discount_factor * agent._value_preprocessor(
                value, inverse=True
            )
        return discounted

    def state(self) -> None:
        """Return None: the observations are the state."""

    def render(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is nothing to render."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
