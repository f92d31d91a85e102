"""Randomised ensembled double Q-learning (https://arxiv.org/abs/2101.05982): SAC with K critics and
many updates.

    critics:  y = Σ γ^k r_k + γ^n (min_{j in M} Q'_j(s', z') − α log π(z'|s')),
              M drawn anew from the K critics
    actor:    minimise α log π(z|s) − mean_j Q_j(s, z)

`target = "mean"` and `"min"` use all K instead (the critic ensembles of the ElegantRL papers,
https://arxiv.org/abs/2112.05923). Differences from the paper: 5 critics and 2 updates a step
instead of 10 and 20, since many accounts step at once; the actor moves once in `policy_delay`
updates instead of once a step. The K critics are one network with batched matmuls.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fintrader.agents.sac import SACAgent
from fintrader.agents.settings import REDQ
from fintrader.envs.observation import Layout


class REDQAgent(SACAgent):
    """SAC with `num_critics` critics, a random few of which make each target."""

    settings: REDQ

    def __init__(
        self, settings: REDQ, layout: Layout, *, device: torch.device | str, seed: int
    ) -> None:
        self.members = settings.num_critics
        super().__init__(settings, layout, device=device, seed=seed)

    def combine_for_target(self, values: Tensor) -> Tensor:
        target = self.settings.target
        if target == "mean":
            return values.mean(dim=0)
        if target != "min":
            order = torch.randperm(self.members, generator=self.generator, device=self.device)
            values = values[order[:target]]
        return super().combine_for_target(values)

    def combine_for_policy(self, values: Tensor) -> Tensor:
        return values.mean(dim=0)
