"""What a pod's learners are made of: market, environment and agent out of its spec, and what it inherits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fintrader.agents import Agent, AgentSettings, make_agent
from fintrader.config import validate
from fintrader.data.tensors import MarketTensors, Split
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import CheckpointError, TournamentError
from fintrader.seeding import derive
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.spec import PodContext, PodSpec

CPU = torch.device("cpu")
State = Mapping[str, Tensor]
"""An agent's networks, optimisers and normalisers, by name."""
Make = Callable[[int, int, torch.device], tuple[Agent, Any]]
"""(replica, round, device) -> a new agent and its environment, seeded by replica and round."""


def agent_settings(spec: PodSpec) -> Any:
    """The agent's settings in the type of its algorithm. Raises TournamentError for a spec of another version."""
    try:
        return TypeAdapter(AgentSettings).validate_python(spec.agent)
    except ValidationError as error:
        raise TournamentError(f"{spec.pod}: its agent's settings are of another version ({error})") from None


def read_snapshot(context: PodContext, digest: str) -> dict[str, Tensor]:
    """A parent's state, verified against its name. Raises CheckpointError."""
    try:
        return load(open_store(context.run, context.mirror).get(digest))
    except SafetensorError as error:
        raise CheckpointError(f"snapshot {digest[:12]} holds no tensors ({error})") from None


def env_settings_of(spec: PodSpec) -> EnvSettings:
    """The environment's settings. Raises ConfigError for a spec of another version."""
    return validate(EnvSettings, spec.env, f"{spec.pod}: env")


def maker(spec: PodSpec, context: PodContext) -> Make:
    """What makes the pod's agents and environments: (replica, round, device) -> both, seeded by replica and round."""
    settings, env_settings = agent_settings(spec), env_settings_of(spec)
    split = load_windows(context.market)

    def make(replica: int, number: int, device: torch.device) -> tuple[Agent, TradingEnv]:
        seed = derive(spec.seed, "replica", replica, number) if spec.replicas > 1 else spec.seed
        market = split.train if device == CPU else split.train.to(device)
        env = TradingEnv(market, env_settings, device=device, seed=derive(seed, "env"))
        return make_agent(settings, env.layout, device=device, seed=seed), env

    return make


def parent_state(spec: PodSpec, context: PodContext) -> dict[str, Tensor] | None:
    """What the pod begins from. Raises CheckpointError."""
    return None if spec.snapshot is None else read_snapshot(context, spec.snapshot)


@lru_cache(maxsize=1)
def load_windows(path: Path) -> Split:
    """The windows, kept between the pods of one process."""
    return MarketTensors.load(path).split()
