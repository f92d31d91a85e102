"""Synchronous advantage actor-critic (https://arxiv.org/abs/1602.01783, without the asynchrony).

One update: collect `num_steps` steps of all accounts, estimate advantages with GAE, then take a
single Adam step on

    L = −E[log π(z|s) A] + vf_coef · E[(V − target)²] / 2 − ent_coef · H

It is PPO with one pass, one minibatch and no ratio (https://arxiv.org/abs/2205.09123); rollouts are
short, so there are many steps. Differences from the paper: GAE instead of n-step returns (λ = 1
gives those), Adam instead of RMSprop, PPO's exploration noise, and advantages normalised over the
rollout, since rewards of markets have no natural scale.
"""

from __future__ import annotations

import torch

from fintrader.agents.base import Loss
from fintrader.agents.on_policy import OnPolicyAgent, Rollout, log_prob_per_latent
from fintrader.agents.settings import A2C


class A2CAgent(OnPolicyAgent):
    """Plain policy gradient: one step on each rollout."""

    settings: A2C

    def loss(self, rollout: Rollout) -> Loss:
        """Compute L, and its parts as metrics."""
        mean = self.mean_latent(rollout.batch)
        noise = (rollout.latent - mean) * torch.exp(-self.log_std)
        log_prob = log_prob_per_latent(noise, self.log_std).sum(dim=-1)
        return self.add_value_loss(rollout, -(log_prob * rollout.advantage).mean())
