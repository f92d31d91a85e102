"""K learners of one on-policy agent on one device, in one batch (`agent.learners`).

Each learner learns from the experience of its own share of the accounts, and after every update networks and optimiser
moments are averaged (ElegantRL-Podracer, section 4). The K copies of each weight are one tensor, and every gradient
step is taken for all of them at once (`torch.func`, batched matmuls): what K learners cost on one device is then hardly
more than what one costs on K times the data. Between updates the learners are one, so one network acts for all
accounts, and the statistics of observations and rewards are those of everybody's experience.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fintrader.agents.on_policy import OnPolicyAgent, Rollout
from fintrader.agents.parallel.fusion import average
from fintrader.agents.ppo import PPOAgent


def batch_learners(agent: OnPolicyAgent) -> OnPolicyAgent:
    """`agent`, whose updates are those of `settings.learners` learners from now on."""
    if agent.settings.learners > 1:
        agent.learner = BatchedLearners(agent, agent.settings.learners).learn
    return agent


class _Loss(nn.Module):
    """The agent's loss as a module, so that its weights can be given from outside."""

    def __init__(self, agent: OnPolicyAgent) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"actor": agent.actor, "critic": agent.critic, "noise": agent.noise})
        self._agent = agent

    def forward(self, batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        return self._agent.loss(batch)


class BatchedLearners:
    """K copies of an agent's weights and moments, for as long as one update takes."""

    def __init__(self, agent: OnPolicyAgent, count: int) -> None:
        self.agent, self.count = agent, count
        self.loss = _Loss(agent)
        self.slope = vmap(grad_and_value(self._value, has_aux=True), in_dims=(0, 0))

    def learn(self, rollout: Rollout) -> dict[str, Tensor]:
        """All learners' gradient steps on their accounts' rows of one rollout, then the average.

        Rows lie time first, then account; learner k has the k-th block of accounts. Metrics are means over the
        learners.
        """

        def own(rows: Tensor) -> Tensor:
            """`[R, ...]` to `[K, R / K, ...]`."""
            shares = rows.reshape(self.agent.settings.num_steps, self.count, -1, *rows.shape[1:])
            return shares.transpose(0, 1).flatten(1, 2)

        metrics = self._descend(Rollout(*(own(column) for column in rollout)))
        self._fuse()
        return metrics

    def _value(self, weights: dict[str, Tensor], batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        found: tuple[Tensor, dict[str, Tensor]] = functional_call(self.loss, weights, (batch,))
        return found

    def _descend(self, shares: Rollout) -> dict[str, Tensor]:
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
    def _fuse(self) -> None:
        """The mean of the K copies becomes the agent's."""
        own, single = self.agent.optimisers["adam"], dict(self.loss.named_parameters())
        moments = {name: self.adam.state[parameter] for name, parameter in self.weights.items()}
        copies = [
            {f"modules.{name}": parameter[k] for name, parameter in self.weights.items()}
            | {
                f"optimisers.{name}.{key}": value if value.ndim == 0 else value[k]
                for name, values in moments.items()
                for key, value in values.items()
            }
            for k in range(self.count)
        ]
        fused = average(copies)
        for name, values in moments.items():
            single[name].copy_(fused[f"modules.{name}"])
            own.state[single[name]] = {key: fused[f"optimisers.{name}.{key}"] for key in values}
