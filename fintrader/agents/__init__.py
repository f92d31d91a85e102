"""Experience to policy: the algorithms, their training loop, and policies as files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fintrader.agents.agent import Agent, make_agent
    from fintrader.agents.buffers import Transition
    from fintrader.agents.description import MarketIdentity
    from fintrader.agents.policy import EnsemblePolicy, PolicyModule, load_policy, save_policy
    from fintrader.agents.settings import (
        A2C,
        APG,
        DDPG,
        PPO,
        REDQ,
        SAC,
        TD3,
        ActionHeadSettings,
        AgentSettings,
        Budget,
        NetworkSettings,
    )
    from fintrader.agents.training import (
        TrainingEnvironment,
        TrainProgress,
        TrainResult,
        read_agent_state,
        train,
    )
    from fintrader.envs.observation import FlatLayout

__all__ = [
    "A2C",
    "APG",
    "DDPG",
    "PPO",
    "REDQ",
    "SAC",
    "TD3",
    "ActionHeadSettings",
    "Agent",
    "AgentSettings",
    "Budget",
    "EnsemblePolicy",
    "FlatLayout",
    "MarketIdentity",
    "NetworkSettings",
    "PolicyModule",
    "TrainProgress",
    "TrainResult",
    "TrainingEnvironment",
    "Transition",
    "load_policy",
    "make_agent",
    "read_agent_state",
    "save_policy",
    "train",
]

_HOMES = {
    "Agent": "agents.agent",
    "EnsemblePolicy": "agents.policy",
    "FlatLayout": "envs.observation",
    "PolicyModule": "agents.policy",
    "TrainProgress": "agents.training",
    "TrainResult": "agents.training",
    "TrainingEnvironment": "agents.training",
    "Transition": "agents.buffers",
    "MarketIdentity": "agents.description",
    "load_policy": "agents.policy",
    "make_agent": "agents.agent",
    "read_agent_state": "agents.training",
    "save_policy": "agents.policy",
    "train": "agents.training",
}
"""Modules of the names that need torch; all other names are settings."""


def __getattr__(name: str) -> Any:
    """Import on first use: settings alone load no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'fintrader.agents' has no attribute {name!r}")
    home = _HOMES.get(name, "agents.settings")
    return getattr(import_module(f"fintrader.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
