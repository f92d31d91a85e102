"""PettingZoo: several traders in one market as a `ParallelEnv`, in numpy.

    env = TradersParallelEnv(market, settings, TraderSettings(teams=(1, 1, 1, 1), cooperation=-1.0))
    observations, infos = env.reset(seed=1)
    actions = {agent: env.action_space(agent).sample() for agent in env.agents}
    observations, rewards, terminations, truncations, infos = env.step(actions)

For many games at once, on tensors, use `fintrader.envs.multi_agent.MultiTraderEnv` directly.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from fintrader.envs.adapters.gymnasium import to_batch
from fintrader.envs.multi_agent import MultiTraderEnv
from fintrader.envs.settings import EnvSettings, TraderSettings
from fintrader.errors import EnvError
from fintrader.market.tensors import MarketTensors

Rows = dict[str, NDArray[np.float32]]
"""A row for each trader."""
Infos = dict[str, dict[str, object]]
"""An info for each trader, empty here."""


class TradersParallelEnv(ParallelEnv):  # type: ignore[misc]
    """One game of K traders, `trader_0` to `trader_K-1`; ruined traders leave, the others go on."""

    metadata: dict[str, Any] = {"name": "fintrader_traders_v0", "render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        market: MarketTensors,
        settings: EnvSettings | None = None,
        traders: TraderSettings | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        self.env = MultiTraderEnv(market, settings, traders, num_games=1, seed=seed)
        self._places = {f"trader_{i}": i for i in range(self.env.num_traders)}
        self.possible_agents = list(self._places)
        self.agents: list[str] = []
        self.render_mode = None
        width = self.env.layout.width
        self.observation_spaces = {
            agent: gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)
            for agent in self.possible_agents
        }
        self.action_spaces = {
            agent: gymnasium.spaces.Box(-1.0, 1.0, (self.env.layout.num_actions,), np.float32)
            for agent in self.possible_agents
        }

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """Box `[D]`."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Box(-1, 1) `[A]`."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: object = None) -> tuple[Rows, Infos]:
        """Begin a game with all traders; there are no options."""
        obs, _ = self.env.reset(seed=seed)
        self.agents = list(self.possible_agents)
        return self._rows(obs[0]), {agent: {} for agent in self.agents}

    def step(
        self, actions: Rows
    ) -> tuple[Rows, dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Carry out one decision of every remaining trader. Raises EnvError for an action that is
        missing, misshapen or not finite."""
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise EnvError(f"no action for {missing[0]}; every agent in `agents` needs one")
        batch = torch.zeros((1, self.env.num_traders, self.env.layout.num_actions))
        for agent in self.agents:
            action = to_batch(actions[agent], torch.device("cpu"))
            if action.shape != batch.shape[2:]:
                raise EnvError(
                    f"the action of {agent} has shape {tuple(action.shape)}, expected"
                    f" {tuple(batch.shape[2:])}"
                )
            batch[0, self._places[agent]] = action
        _, reward, terminated, truncated, info = self.env.step(batch)
        places = {agent: self._places[agent] for agent in self.agents}
        observations = self._rows(info["final_obs"][0])
        rewards = {agent: float(reward[0, i]) for agent, i in places.items()}
        terminations = {agent: bool(terminated[0, i]) for agent, i in places.items()}
        truncations = {agent: bool(truncated[0, i]) for agent, i in places.items()}
        self.agents = [
            agent for agent in self.agents if not (terminations[agent] or truncations[agent])
        ]
        return observations, rewards, terminations, truncations, {agent: {} for agent in places}

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _rows(self, obs: torch.Tensor) -> Rows:
        rows = obs.cpu().numpy().copy()
        return {agent: rows[self._places[agent]] for agent in self.agents}
