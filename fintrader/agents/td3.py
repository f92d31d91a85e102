"""Twin delayed deep deterministic policy gradient (https://arxiv.org/abs/1802.09477).

DDPG with three changes: two critics, of which the smaller one makes the target; noise on the
target's latent, so that a critic's narrow peaks are not exploited; and an actor (with all targets)
that moves every `policy_delay` updates.

    y = Σ γ^k r_k + γ^n min_k Q'_k(s', clip(μ'(s') + clip(ε, ±c), ±1)),   ε ~ N(0, target_noise²)

The actor climbs the first critic. What differs from the paper: noise is that of latents, not of
actions; all else as in `ddpg.py`.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fintrader.agents.off_policy import OffPolicyAgent, OffPolicySettings, Sample, combine


class TD3(OffPolicySettings):
    """Settings of twin delayed deep deterministic policy gradient."""

    algo: Literal["td3"] = "td3"
    policy_delay: int = Field(default=2, ge=1)
    """Critic updates for each actor update."""
    target_noise: float = Field(default=0.2, ge=0)
    """Standard deviation of the noise on the target's latents."""
    noise_clip: float = Field(default=0.5, ge=0)
    """That noise is cut to this size."""


class TD3Agent(OffPolicyAgent):
    """Two critics, smoothed targets, and an actor that moves at every `policy_delay`-th update."""

    settings: TD3
    members = 2

    def learn(self, sample: Sample) -> dict[str, Tensor]:
        settings = self.settings
        with torch.no_grad():
            following = torch.tanh(self.actor_target(sample.next_obs)[0])
            noise = self.randn(following.shape) * settings.target_noise
            following = (following + noise.clamp(-settings.noise_clip, settings.noise_clip)).clamp(
                -1.0, 1.0
            )
            target = sample.reward + sample.discount * combine(
                self.critic_target(sample.next_obs, following), "min"
            )
        metrics = self.fit_critics(sample, target)

        if self.actor_moves(settings.policy_delay):
            metrics |= self.climb(sample)
        if (self.learned + 1) % settings.policy_delay == 0:
            self.follow(self.critic_target, self.critic)
            self.follow(self.actor_target, self.actor)
        return metrics
