"""The algorithms, their training loop, and policies as files."""

from typing import TYPE_CHECKING

from fintrader.seams import import_on_use

if TYPE_CHECKING:
    from fintrader.agents.agent import Agent, make_agent
    from fintrader.agents.description import MarketIdentity
    from fintrader.agents.policy import EnsemblePolicy, load_policy, save_policy
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
    "TrainProgress",
    "TrainResult",
    "TrainingEnvironment",
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
    "TrainProgress": "agents.training",
    "TrainResult": "agents.training",
    "TrainingEnvironment": "agents.training",
    "MarketIdentity": "agents.description",
    "load_policy": "agents.policy",
    "make_agent": "agents.agent",
    "read_agent_state": "agents.training",
    "save_policy": "agents.policy",
    "train": "agents.training",
}
"""Modules of the names that need torch; all other names are settings."""

__getattr__, __dir__ = import_on_use(__name__, dict.fromkeys(__all__, "agents.settings") | _HOMES)
