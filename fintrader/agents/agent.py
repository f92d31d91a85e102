"""`Agent`, the protocol of the training loop, and `make_agent`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from fintrader.agents.a2c import A2CAgent
from fintrader.agents.apg import APGAgent
from fintrader.agents.base import Metrics
from fintrader.agents.buffers import Transition
from fintrader.agents.ddpg import DDPGAgent
from fintrader.agents.heads import ActionHead
from fintrader.agents.off_policy import OffPolicyAgent
from fintrader.agents.on_policy import OnPolicyAgent
from fintrader.agents.parallel import BatchedLearners, PipelinedAgent
from fintrader.agents.policy import ActorPolicy
from fintrader.agents.ppo import PPOAgent
from fintrader.agents.redq import REDQAgent
from fintrader.agents.sac import SACAgent
from fintrader.agents.settings import A2C, APG, DDPG, PPO, REDQ, SAC, TD3
from fintrader.agents.td3 import TD3Agent
from fintrader.config import Settings
from fintrader.envs.observation import Layout, StateDict, Tensors
from fintrader.errors import ConfigError, suggest


class Agent(Protocol):
    """Everything that `train` needs of an agent."""

    settings: Any
    layout: Layout
    device: torch.device
    seed: int
    head: ActionHead
    """Turns the agent's latents into actions."""
    differentiable: bool
    """True if the agent differentiates through the environment; its graph is then cut after every
    update."""

    @property
    def policy(self) -> ActorPolicy:
        """The deterministic policy learned so far; shares its weights with the agent."""

    def prepare_env(self, env: Any) -> Any:
        """Turn `env` into the environment that the agent trains in. Raises ConfigError when the
        agent cannot learn in it."""

    def anneal(self, fraction: float) -> None:
        """Set the step sizes for the time when `fraction` of the budget is used."""

    def act(self, obs: Tensor) -> Tensor:
        """Choose exploring actions `[B, N]` in [-1, 1] for raw observations `[B, D]`."""

    def observe(self, transition: Transition) -> None:
        """Store the outcome of the last `act`."""

    def update(self) -> Metrics | None:
        """Learn if enough was observed. Return metrics (empty if there was nothing to learn yet)
        when the agent is ready to be stored, else None."""

    def pause(self) -> Metrics | None:
        """Make the agent ready to be stored where `update` returned None, and return its metrics so
        far; None if it cannot be stored now."""

    def state_dict(self) -> StateDict:
        """Collect everything needed to continue bit-exactly; valid right after `update` or `pause`
        returned metrics, and until `act`."""

    def load_state_dict(self, state: Tensors) -> None:
        """Continue from a `state_dict()`. Raises CheckpointError."""

    def inherit(self, state: Tensors) -> None:
        """Take networks, optimiser moments and normalisers of a parent. Raises CheckpointError."""


_AGENTS: dict[type[Settings], Callable[..., OnPolicyAgent | OffPolicyAgent | APGAgent]] = {
    PPO: PPOAgent,
    A2C: A2CAgent,
    DDPG: DDPGAgent,
    TD3: TD3Agent,
    SAC: SACAgent,
    REDQ: REDQAgent,
    APG: APGAgent,
}


def make_agent(
    settings: Any, layout: Layout, *, device: torch.device | str = "cpu", seed: int = 0
) -> Agent:
    """Make the agent that `settings` describe, with weights drawn from `seed`. Raises ConfigError
    for unknown settings, and a head that cannot act."""
    if type(settings) not in _AGENTS:
        known = "PPO, A2C, DDPG, TD3, SAC, REDQ and APG of fintrader.agents"
        raise ConfigError(
            f"no agent has settings of type {type(settings).__name__}; known: {known}"
        )
    agent = _AGENTS[type(settings)](settings, layout, device=device, seed=seed)
    refuse_idle(agent.head)
    if isinstance(agent, OnPolicyAgent) and settings.learners > 1:
        agent.make_learners = BatchedLearners
    if isinstance(agent, OffPolicyAgent) and settings.pipeline:
        return PipelinedAgent(agent)
    return agent


def choose_agent(agent: Any) -> Any:
    """Return the default settings of an algorithm, given by name (`ppo`) or class; return anything
    else unchanged. Raises ConfigError for an unknown name."""
    by_name = {kind.__name__.lower(): kind for kind in _AGENTS}
    if isinstance(agent, str) and agent.lower() not in by_name:
        raise ConfigError(f"{agent!r} is no algorithm; {suggest(agent, by_name)}")
    kind = by_name[agent.lower()] if isinstance(agent, str) else agent
    return kind() if kind in by_name.values() else agent


def refuse_idle(head: ActionHead) -> None:
    """Raise ConfigError for a head whose action does not depend on latents: a fully invested tilt
    of one symbol."""
    if head.kind == "tilt" and head.settings.fully_invested and head.layout.num_assets == 1:
        raise ConfigError(
            "agent.head.kind tilt of a single symbol without cash always holds it, whatever the"
            " agent learns: set agent.head.kind to aim (or agent.head.fully_invested to false)"
        )
