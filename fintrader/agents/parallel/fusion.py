"""Learner parallelism: K learners of one agent on their own data, fused by averaging (ElegantRL-Podracer, section 4).

After every update the learners' parameters and optimiser moments are averaged, so that all continue from one point.
`LearnerTeam` keeps K learners in one process, each with its share of the accounts; `DistributedLearner` has one
learner in each process of a `torch.distributed` group (gloo on CPUs, NCCL on GPUs). Statistics of observations and
rewards are merged as moments, which averaging variances would not do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fintrader.agents.agent import Agent, make_agent
from fintrader.agents.base import BaseAgent, Metrics
from fintrader.agents.buffers import Transition
from fintrader.agents.checkpoint import below, prefixed
from fintrader.agents.policy import ActorPolicy
from fintrader.envs.observation import Layout
from fintrader.errors import ConfigError
from fintrader.seeding import derive


def learned_state(agent: BaseAgent) -> dict[str, Tensor]:
    """What is fused: everything a child would inherit, with variances as second moments."""
    state = agent.inheritable_state()
    for name in [name for name in state if name.endswith(".var")]:
        state[name] = state[name] + state[name.removesuffix("var") + "mean"] ** 2
    return state


def take_learned_state(agent: BaseAgent, state: Mapping[str, Tensor]) -> None:
    """Put a fused `learned_state` in place."""
    own = dict(state)
    for name in [name for name in own if name.endswith(".var")]:
        own[name] = (own[name] - own[name.removesuffix("var") + "mean"] ** 2).clamp_min(0.0)
    BaseAgent.inherit(agent, own)  # not a child's `inherit`: a learner goes on with its own experience


def fuse(agents: Sequence[BaseAgent]) -> None:
    """Average K learners of one process in place."""
    states = [learned_state(agent) for agent in agents]
    fused = {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in states[0]}
    for agent in agents:
        take_learned_state(agent, fused)


def fuse_distributed(agent: BaseAgent) -> None:
    """Average this process's learner with those of all processes of the default group, in place.

    One all-reduce of one flat tensor per data type. Raises ConfigError when no group was initialised.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        raise ConfigError("call torch.distributed.init_process_group first: there is nobody to fuse with")
    state = learned_state(agent)
    fused: dict[str, Tensor] = {}
    for dtype in sorted({tensor.dtype for tensor in state.values()}, key=str):
        names = [name for name, tensor in state.items() if tensor.dtype == dtype]
        flat = torch.cat([state[name].reshape(-1) for name in names])
        dist.all_reduce(flat)
        flat = flat / dist.get_world_size()
        for name, part in zip(names, torch.split(flat, [state[name].numel() for name in names]), strict=True):
            fused[name] = part.view_as(state[name])
    take_learned_state(agent, fused)


class DistributedLearner:
    """One learner of several processes: an agent that fuses after each of its updates.

    Give every process its own `seed`; the first fusion makes their weights one.
    """

    def __init__(self, agent: Agent) -> None:
        """Raises ConfigError when no process group was initialised or the agent cannot be fused."""
        if not isinstance(agent, BaseAgent):
            raise ConfigError(f"{type(agent).__name__} cannot be fused; use an agent of `make_agent`")
        self.agent = agent
        fuse_distributed(agent)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.agent, name)

    def update(self) -> Metrics | None:
        """The agent's update, then the average over all processes."""
        metrics: Metrics | None = self.agent.update()
        if metrics is not None:
            fuse_distributed(self.agent)
        return metrics


class LearnerTeam:
    """K learners in one process; an agent for an environment of `K · B` accounts, of which each learner has B."""

    def __init__(
        self, settings: Any, layout: Layout, *, learners: int, device: torch.device | str = "cpu", seed: int = 0
    ) -> None:
        """All learners begin with the weights of `seed`; their random streams differ."""
        if learners < 1:
            raise ConfigError(f"learners must be at least 1, got {learners}")
        agents = [
            make_agent(settings, layout, device=device, seed=derive(seed, "learner", number) if number else seed)
            for number in range(learners)
        ]
        self.learners: list[BaseAgent] = [agent for agent in agents if isinstance(agent, BaseAgent)]
        for learner in self.learners[1:]:
            take_learned_state(learner, learned_state(self.learners[0]))
        self.settings, self.layout, self.seed = settings, layout, seed
        self.device = torch.device(device)
        self.differentiable = self.learners[0].differentiable
        self.head = self._each(lambda agent: agent.head)[0]

    def _each(self, call: Callable[[Any], Any]) -> list[Any]:
        return [call(agent) for agent in self.learners]

    @property
    def policy(self) -> ActorPolicy:
        """The fused policy."""
        return self.learners[0].policy

    def anneal(self, fraction: float) -> None:
        """As every learner's own."""
        self._each(lambda agent: agent.anneal(fraction))

    def act(self, obs: Tensor) -> Tensor:
        """Each learner draws for its own accounts. Raises ConfigError when they cannot be shared out evenly."""
        count = len(self.learners)
        if obs.shape[0] % count:
            raise ConfigError(f"env.num_envs is {obs.shape[0]}; make it a multiple of the {count} learners")
        parts = zip(self.learners, obs.chunk(count), strict=True)
        return torch.cat([agent.act(rows) for agent, rows in parts])  # type: ignore[attr-defined]

    def observe(self, transition: Transition) -> None:
        """Share out one step."""
        columns = [tensor.chunk(len(self.learners)) for tensor in transition]
        for agent, part in zip(self.learners, zip(*columns, strict=True), strict=True):
            agent.observe(Transition(*part))  # type: ignore[attr-defined]

    def update(self) -> Metrics | None:
        """All learners' updates, then their average; metrics are means over the learners."""
        found: list[Metrics | None] = self._each(lambda agent: agent.update())
        metrics = [entry for entry in found if entry is not None]
        if not metrics:
            return None
        if metrics[0]:
            fuse(self.learners)
        return {name: sum(entry[name] for entry in metrics) / len(metrics) for name in metrics[0]}

    def state_dict(self) -> dict[str, Tensor]:
        """All learners' states."""
        state: dict[str, Tensor] = {}
        for number, agent in enumerate(self.learners):
            state |= prefixed(f"learner{number}", agent.state_dict())
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Raises CheckpointError when it is of another number of learners or another architecture."""
        for number, agent in enumerate(self.learners):
            agent.load_state_dict(below(f"learner{number}", state))

    def inherit(self, state: Mapping[str, Tensor]) -> None:
        """Every learner inherits from a parent, which may be a single agent or a team."""
        parent = below("learner0", state) or state
        for agent in self.learners:
            agent.inherit(parent)
