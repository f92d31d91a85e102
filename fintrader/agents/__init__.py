"""Experience to policy: the algorithms, their training loop, and policies as files."""

from fintrader.agents.a2c import A2C
from fintrader.agents.action_head import ActionHeadSettings
from fintrader.agents.agent import Agent, AgentSettings, make_agent
from fintrader.agents.apg import APG
from fintrader.agents.buffers import Transition
from fintrader.agents.ddpg import DDPG
from fintrader.agents.policy import (
    EnsemblePolicy,
    PolicyModule,
    load_policy,
    market_identity,
    save_policy,
)
from fintrader.agents.ppo import PPO
from fintrader.agents.redq import REDQ
from fintrader.agents.sac import SAC
from fintrader.agents.td3 import TD3
from fintrader.agents.training import (
    Budget,
    TrainingEnvironment,
    TrainProgress,
    TrainResult,
    read_agent_state,
    train,
)
from fintrader.agents.trunks import NetworkSettings
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
    "NetworkSettings",
    "PolicyModule",
    "TrainProgress",
    "TrainResult",
    "TrainingEnvironment",
    "Transition",
    "load_policy",
    "make_agent",
    "market_identity",
    "read_agent_state",
    "save_policy",
    "train",
]
