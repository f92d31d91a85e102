"""K learners of one on-policy agent on one device, in one batch.

As `fusion.LearnerTeam`, each learner learns from the experience of its own share of the accounts, and after every
update parameters and optimiser moments are averaged. Here the K copies of each weight are one tensor, and every
gradient step is taken for all of them at once (`torch.func`, batched matmuls): what K learners cost on one device is
then hardly more than what one costs on K times the data. Between updates the learners are one, so one network acts for
all accounts, and the statistics of observations and rewards are those of everybody's experience.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fintrader.agents.a2c import A2CAgent
from fintrader.agents.agent import make_agent
from fintrader.agents.base import Metrics
from fintrader.agents.buffers import Transition
from fintrader.agents.on_policy import OnPolicyAgent, Rollout
from fintrader.agents.policy import ActorPolicy
from fintrader.agents.ppo import PPOAgent
from fintrader.envs.observation import Layout
from fintrader.errors import ConfigError


class BatchedTeam:
    """K learners of PPO or A2C; an agent for an environment of `K · B` accounts, of which each learner has B."""

    differentiable = False

    def __init__(
        self, settings: Any, layout: Layout, *, learners: int, device: torch.device | str = "cpu", seed: int = 0
    ) -> None:
        """Raises ConfigError for an agent that is not on-policy: its learners differ between updates."""
        if learners < 1:
            raise ConfigError(f"learners must be at least 1, got {learners}")
        agent = make_agent(settings, layout, device=device, seed=seed)
        if not isinstance(agent, PPOAgent | A2CAgent):
            raise ConfigError(f"agent.algo {settings.algo}: only ppo and a2c learn in a batch; use LearnerTeam")
        self.agent, self.count = agent, learners
        agent.learn = self.learn  # type: ignore[method-assign]
        self.settings, self.layout, self.seed, self.device = settings, layout, seed, agent.device
        self.head = agent.head
        self._batched = _Batched(agent, learners)

    @property
    def policy(self) -> ActorPolicy:
        """The fused policy."""
        return self.agent.policy

    def act(self, obs: Tensor) -> Tensor:
        """Actions for everybody. Raises ConfigError when the accounts cannot be shared out evenly."""
        if obs.shape[0] % self.count:
            raise ConfigError(f"env.num_envs is {obs.shape[0]}; make it a multiple of the {self.count} learners")
        return self.agent.act(obs)

    def observe(self, transition: Transition) -> None:
        """Store one step."""
        self.agent.observe(transition)

    def anneal(self, fraction: float) -> None:
        """As the agent's."""
        self.agent.anneal(fraction)

    def update(self) -> Metrics | None:
        """Learn from a full rollout, and fuse; metrics are means over the learners."""
        return self.agent.update()

    def learn(self, rollout: Rollout) -> dict[str, Tensor]:
        """All learners' gradient steps on their accounts' rows of one rollout, then the average."""
        agent, count = self.agent, self.count
        # Rows lie time first, then account; learner k has the k-th block of accounts.
        steps = agent.settings.num_steps

        def own(rows: Tensor) -> Tensor:
            """`[R, ...]` to `[K, R / K, ...]`."""
            return rows.reshape(steps, count, -1, *rows.shape[1:]).transpose(0, 1).flatten(1, 2)

        shares = Rollout(*(own(column) for column in rollout))
        metrics = self._batched.learn(shares)
        self._batched.fuse()
        return metrics

    def state_dict(self) -> dict[str, Tensor]:
        """The agent's: after an update all learners are one."""
        return self.agent.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict()`. Raises CheckpointError."""
        self.agent.load_state_dict(state)

    def inherit(self, state: Mapping[str, Tensor]) -> None:
        """Every learner inherits from a parent. Raises CheckpointError."""
        self.agent.inherit(state)


class _Loss(nn.Module):
    """The agent's loss as a module, so that its weights can be given from outside."""

    def __init__(self, agent: OnPolicyAgent) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"actor": agent.actor, "critic": agent.critic, "noise": agent.noise})
        self._agent = agent

    def forward(self, batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        return self._agent.loss(batch)


class _Batched:
    """K copies of an agent's weights and moments."""

    def __init__(self, agent: OnPolicyAgent, count: int) -> None:
        self.agent, self.count = agent, count
        self.loss = _Loss(agent)
        self.slope = vmap(grad_and_value(self._value, has_aux=True), in_dims=(0, 0))

    def _value(self, weights: dict[str, Tensor], batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        found: tuple[Tensor, dict[str, Tensor]] = functional_call(self.loss, weights, (batch,))
        return found

    def learn(self, shares: Rollout) -> dict[str, Tensor]:
        """Gradient steps on `[K, R, ...]` rows; leaves the K results in `self.weights`."""
        agent, settings = self.agent, self.agent.settings
        own = agent.optimisers["adam"]
        names = [name for name, parameter in self.loss.named_parameters() if parameter.requires_grad]
        single = dict(self.loss.named_parameters())
        self.weights = {
            name: nn.Parameter(single[name].detach().expand(self.count, *single[name].shape).clone()) for name in names
        }
        group = own.param_groups[0]
        self.adam = torch.optim.Adam(
            self.weights.values(), lr=group["lr"], eps=group["eps"], betas=group["betas"], fused=True
        )
        for name in names:
            if moments := own.state.get(single[name]):
                self.adam.state[self.weights[name]] = {
                    key: value.clone() if value.ndim == 0 else value.expand(self.count, *value.shape).clone()
                    for key, value in moments.items()
                }
        sums: dict[str, Tensor] = {}
        taken = 0
        target_kl = getattr(settings, "target_kl", None)
        for rows in zip(*self._passes(shares.obs.shape[1]), strict=True):
            for batch in zip(*rows, strict=True):
                step = self._step(shares, torch.stack(batch))
                sums = {name: sums.get(name, 0.0) + value for name, value in step.items()}
                taken += 1
            if target_kl is not None and bool(step["kl"] > target_kl):
                break
        return {name: total / taken for name, total in sums.items()}

    def _passes(self, rows: int) -> list[list[list[Tensor]]]:
        """For each learner its passes, each a list of minibatches; drawn learner by learner."""
        agent = self.agent
        if isinstance(agent, PPOAgent):
            return [[agent.minibatches(rows) for _ in range(agent.settings.update_epochs)] for _ in range(self.count)]
        return [[[torch.arange(rows, device=agent.device)]]] * self.count

    def _step(self, shares: Rollout, rows: Tensor) -> dict[str, Tensor]:
        """One gradient step of every learner; `rows [K, S]` are its minibatch."""
        learner = torch.arange(self.count, device=rows.device).unsqueeze(1)
        batch = Rollout(*(column[learner, rows] for column in shares))
        weights = {name: parameter.detach() for name, parameter in self.weights.items()}
        slopes, (_, step) = self.slope(weights, batch)
        norm = torch.stack([slope.flatten(1).pow(2).sum(1) for slope in slopes.values()]).sum(0).sqrt()
        # As nn.utils.clip_grad_norm_, each learner by its own norm.
        factor = (self.agent.settings.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        for name, parameter in self.weights.items():
            parameter.grad = slopes[name] * factor.view(-1, *[1] * (parameter.ndim - 1))
        self.adam.step()
        return {name: value.detach().mean() for name, value in {**step, "grad_norm": norm}.items()}

    @torch.no_grad()
    def fuse(self) -> None:
        """The mean of the K copies becomes the agent's."""
        own, single = self.agent.optimisers["adam"], dict(self.loss.named_parameters())
        for name, parameter in self.weights.items():
            single[name].copy_(parameter.mean(0))
            own.state[single[name]] = {
                key: value.clone() if value.ndim == 0 else value.mean(0)
                for key, value in self.adam.state[parameter].items()
            }
