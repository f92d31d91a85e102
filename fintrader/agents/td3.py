"""Twin delayed deep deterministic policy gradient (https://arxiv.org/abs/1802.09477).

DDPG with three changes: two critics, of which the smaller one makes the target; noise on the
target's latent, so that a critic's narrow peaks are not exploited; and an actor (with all targets)
that moves every `policy_delay` updates.

    y = Σ γ^k r_k + γ^n min_k Q'_k(s', clip(μ'(s') + clip(ε, ±c), ±1)),   ε ~ N(0, target_noise²)

The actor climbs the first critic. Differences from the paper: noise is that of latents, not of
actions; all else as in `ddpg.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fintrader.agents.off_policy import OffPolicyAgent, ReplaySample, combine_critics
from fintrader.agents.settings import TD3

TARGET_NOISE = 0.2
"""Standard deviation of the noise on the target's latents, as in the paper."""
NOISE_CLIP = 0.5
"""Largest absolute value of that noise, as in the paper."""


class TD3Agent(OffPolicyAgent):
    """Two critics, smoothed targets, and an actor that moves at every `policy_delay`-th update."""

    settings: TD3
    members = 2

    def learn(self, sample: ReplaySample) -> dict[str, Tensor]:
        settings = self.settings
        with torch.no_grad():
            following = torch.tanh(self.actor_target(sample.next_obs)[0])
            noise = self.draw_normal(following.shape) * TARGET_NOISE
            noise = noise.clamp(-NOISE_CLIP, NOISE_CLIP)
            following = (following + noise).clamp(-1.0, 1.0)
            value = combine_critics(self.critic_target(sample.next_obs, following), "min")
            target = sample.reward + sample.discount * value
        metrics = self.fit_critics(sample, target)

        if self.is_actor_due(settings.policy_delay):
            metrics |= self.improve_actor(sample)
        if (self.learned + 1) % settings.policy_delay == 0:
            self.update_target(self.critic_target, self.critic)
            self.update_target(self.actor_target, self.actor)
        return metrics
