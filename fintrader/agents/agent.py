"""`Agent`, what a training loop needs; the union of all agents' settings; and `make_agent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Protocol, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from fintrader.agents.a2c import A2C, A2CAgent
from fintrader.agents.apg import APG, APGAgent
from fintrader.agents.base import Metrics
from fintrader.agents.buffers import Transition
from fintrader.agents.ddpg import DDPG, DDPGAgent
from fintrader.agents.policy import ActorPolicy
from fintrader.agents.ppo import PPO, PPOAgent
from fintrader.agents.redq import REDQ, REDQAgent
from fintrader.agents.sac import SAC, SACAgent
from fintrader.agents.td3 import TD3, TD3Agent
from fintrader.envs.observation import Layout
from fintrader.errors import ConfigError


class Agent(Protocol):
    """Experience in, actions out."""

    settings: Any
    layout: Layout
    device: torch.device
    seed: int

    @property
    def policy(self) -> ActorPolicy:
        """The deterministic policy learned so far; shares its weights with the agent."""

    def act(self, obs: Tensor) -> Tensor:
        """Exploring actions `[B, N]` in [-1, 1] for raw observations `[B, D]`."""

    def observe(self, transition: Transition) -> None:
        """Take in the outcome of the last `act`."""

    def update(self) -> Metrics | None:
        """Learn if enough was observed; None otherwise. Empty metrics: nothing to learn yet, but the state is whole."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue bit-exactly; valid right after `update` returned metrics, and until `act`."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict()`. Raises CheckpointError."""

    def inherit(self, state: Mapping[str, Tensor]) -> None:
        """Networks, optimiser moments and normalisers of a parent. Raises CheckpointError."""


AgentSettings: TypeAlias = Annotated[
    PPO | A2C | DDPG | TD3 | SAC | REDQ | APG,
    Field(discriminator="algo"),
]


def make_agent(settings: Any, layout: Layout, *, device: torch.device | str = "cpu", seed: int = 0) -> Agent:
    """The agent that `settings` describe, with weights drawn from `seed`. Raises ConfigError for unknown settings."""
    match settings:
        case PPO():
            return PPOAgent(settings, layout, device=device, seed=seed)
        case A2C():
            return A2CAgent(settings, layout, device=device, seed=seed)
        case DDPG():
            return DDPGAgent(settings, layout, device=device, seed=seed)
        case TD3():
            return TD3Agent(settings, layout, device=device, seed=seed)
        case SAC():
            return SACAgent(settings, layout, device=device, seed=seed)
        case REDQ():
            return REDQAgent(settings, layout, device=device, seed=seed)
        case APG():
            return APGAgent(settings, layout, device=device, seed=seed)
        case _:
            known = "PPO, A2C, DDPG, TD3, SAC, REDQ and APG settings"
            raise ConfigError(f"no agent has settings of type {type(settings).__name__}; known: {known}")
