"""Twin delayed deep deterministic policy gradient (https://arxiv.org/abs/1802.09477).

DDPG with three changes: two critics, whose smaller value makes the target; noise on the target's
latent, so that a critic's narrow peaks are not exploited; and an actor (with all targets) that
moves every `policy_delay` updates.

    y = Σ γ^k r_k + γ^n min_k Q'_k(s', clip(μ'(s') + clip(ε, ±c), ±1)),   ε ~ N(0, target_noise²)

The actor maximises the first critic's value. Differences from the paper: noise is added to latents,
not to actions; all else as in `ddpg.py`.
"""

from __future__ import annotations

from torch import Tensor

from fintrader.agents.ddpg import DDPGAgent
from fintrader.agents.normalisation import Batch

TARGET_NOISE = 0.2
"""Standard deviation of the noise on the target's latents, as in the paper."""
NOISE_CLIP = 0.5
"""Largest absolute value of that noise, as in the paper."""


class TD3Agent(DDPGAgent):
    """Two critics, smoothed targets, and an actor that moves at every `policy_delay`-th update."""

    members = 2

    def choose_following(self, batch: Batch) -> Tensor:
        following = super().choose_following(batch)
        noise = self.draw_normal(following.shape) * TARGET_NOISE
        return (following + noise.clamp(-NOISE_CLIP, NOISE_CLIP)).clamp(-1.0, 1.0)
