"""Synchronous advantage actor-critic (https://arxiv.org/abs/1602.01783, without the asynchrony).

One update: collect `num_steps` steps of all accounts, estimate advantages with GAE, then take a single Adam step on

    L = −E[log π(z|s) A] + vf_coef · E[(V − target)²] / 2 − ent_coef · H

It is PPO with one pass, one minibatch and no ratio (https://arxiv.org/abs/2205.09123); rollouts are short, so that
steps are many. What differs from the paper: GAE instead of n-step returns (λ = 1 gives those), Adam instead of RMSprop,
exploration noise as PPO's, and advantages normalised over the rollout, since rewards of markets have no natural scale.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from fintrader.agents.on_policy import OnPolicyAgent, OnPolicySettings, Rollout, gaussian_entropy, gaussian_log_prob


class A2C(OnPolicySettings):
    """Settings of synchronous advantage actor-critic."""

    algo: Literal["a2c"] = "a2c"


class A2CAgent(OnPolicyAgent):
    """Plain policy gradient: one step on each rollout."""

    settings: A2C

    def learn(self, rollout: Rollout) -> dict[str, Tensor]:
        """One Adam step on the whole rollout."""
        loss, metrics = self.loss(rollout)
        self.optimisers["adam"].zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        metrics["grad_norm"] = nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm)
        self.optimisers["adam"].step()
        return metrics

    def loss(self, batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """L, and its parts as metrics."""
        settings, log_std = self.settings, self.noise["log_std"]
        advantage = batch.advantage
        if advantage.numel() > 1:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        (mean,) = self.actor(batch.obs)
        policy_loss = -(gaussian_log_prob(batch.latent, mean, log_std) * advantage).mean()
        value_loss = 0.5 * (self.critic(batch.obs) - batch.target).pow(2).mean()
        entropy = gaussian_entropy(log_std)
        loss = policy_loss + settings.vf_coef * value_loss - settings.ent_coef * entropy
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
