"""Randomised ensembled double Q-learning (https://arxiv.org/abs/2101.05982): SAC with K critics and
many updates.

    critics:  y = Σ γ^k r_k + γ^n (min_{j in M} Q'_j(s', z') − α log π(z'|s')),  M drawn anew from the K critics
    actor:    minimise α log π(z|s) − mean_j Q_j(s, z)

`target = "mean"` and `"min"` use all K instead (the critic ensembles of the ElegantRL papers,
https://arxiv.org/abs/2112.05923). What differs from the paper: 5 critics and 2 updates a step
instead of 10 and 20, since many accounts step at once; the actor moves once in `policy_delay`
updates instead of once a step. The K critics are one network with batched matmuls.
"""

from __future__ import annotations

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fintrader.agents.off_policy import Sample, combine
from fintrader.agents.sac import SACAgent, SACBase
from fintrader.envs.observation import Layout


class REDQ(SACBase):
    """Settings of randomised ensembled double Q-learning."""

    algo: Literal["redq"] = "redq"
    num_critics: int = Field(default=5, ge=1)
    """K."""
    subset_size: int = Field(default=2, ge=1)
    """M: critics drawn for each target (`target: subset`)."""
    target: Literal["subset", "min", "mean"] = "subset"
    """How the target's value is made: minimum over a random subset, or minimum or mean over all
    critics."""
    updates_per_step: float = Field(default=2.0, gt=0)
    """Updates for each step of the vector environment."""
    policy_delay: int = Field(default=2, ge=1)
    """Critic updates for each actor update."""

    @model_validator(mode="after")
    def _subset_fits(self) -> Self:
        if self.subset_size > self.num_critics:
            raise ValueError("subset_size must not exceed num_critics")
        return self


class REDQAgent(SACAgent):
    """SAC with `num_critics` critics, a random few of which make each target."""

    settings: REDQ

    def __init__(
        self, settings: REDQ, layout: Layout, *, device: torch.device | str, seed: int
    ) -> None:
        self.members = settings.num_critics
        super().__init__(settings, layout, device=device, seed=seed)

    def target_value(self, values: Tensor) -> Tensor:
        """`[K, R]` to `[R]`."""
        match self.settings.target:
            case "subset":
                drawn = torch.randperm(self.members, generator=self.generator, device=self.device)
                return combine(values[drawn[: self.settings.subset_size]], "min")
            case how:
                return combine(values, how)

    def policy_value(self, values: Tensor) -> Tensor:
        """`[K, R]` to `[R]`."""
        return combine(values, "mean")

    def learn(self, sample: Sample) -> dict[str, Tensor]:
        metrics = self.learn_critics(sample)
        if self.actor_moves(self.settings.policy_delay):
            metrics |= self.learn_policy(sample)
        return metrics
