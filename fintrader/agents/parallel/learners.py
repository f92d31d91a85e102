"""K learners of one on-policy agent on one device, in one batch (`agent.learners`).

Each learner learns from the experience of its own share of the accounts, and after every update networks and optimiser
moments are averaged (ElegantRL-Podracer, section 4). The K copies of each weight are one tensor, and every gradient
step is taken for all of them at once (`torch.func`, batched matmuls): what K learners cost on one device is then hardly
more than what one costs on K times the data. Between updates the learners are one, so one network acts for all
accounts, and the statistics of observations and rewards are those of everybody's experience.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fintrader.agents.on_policy import OnPolicyAgent, Rollout

INHERITED = ("modules.", "optimisers.")
"""What an agent's `inherit` takes, hence what is averaged; random streams and counters stay each learner's own."""


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

    def __init__(self, agent: OnPolicyAgent) -> None:
        self.agent, self.count = agent, agent.settings.learners
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
        agent = self.agent
        own = agent.optimisers["adam"]
        single = {name: weight for name, weight in self.loss.named_parameters() if weight.requires_grad}
        self.weights = {name: nn.Parameter(self._copies(weight.detach())) for name, weight in single.items()}
        group = own.param_groups[0]
        self.adam = torch.optim.Adam(
            self.weights.values(), lr=group["lr"], eps=group["eps"], betas=group["betas"], fused=True
        )
        for name, weight in single.items():
            if moments := own.state.get(weight):
                self.adam.state[self.weights[name]] = {
                    key: self._copies(value) if value.ndim else value.clone() for key, value in moments.items()
                }
        drawn = [list(agent.passes(shares.obs.shape[1])) for _ in range(self.count)]
        together = ([torch.stack(rows) for rows in zip(*one, strict=True)] for one in zip(*drawn, strict=True))
        return agent.take_steps(together, lambda rows: self._step(shares, rows))

    def _copies(self, value: Tensor) -> Tensor:
        return value.expand(self.count, *value.shape).clone()

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


def average(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of every floating tensor that is inherited; all else is the first state's. On the first one's device.

    Sums run in float64 in the order of the states, so equal states give equal bytes wherever they come from.
    Variances of normalisers are merged as second moments: learners whose means differ have seen more than either.
    """
    fused = {}
    for name, first in states[0].items():
        if not (name.startswith(INHERITED) and first.is_floating_point()):
            fused[name] = first.contiguous()
            continue
        rows = _rows(states, name, first.device)
        centre = name.removesuffix("var") + "mean"
        if name.endswith(".var") and centre in states[0]:
            means = _rows(states, centre, first.device)
            rows = rows + (means - means.mean(dim=0)) ** 2
        fused[name] = rows.mean(dim=0).to(first.dtype).contiguous()
    return fused


def _rows(states: Sequence[Mapping[str, Tensor]], name: str, device: torch.device) -> Tensor:
    return torch.stack([state[name].to(device, torch.float64) for state in states])
