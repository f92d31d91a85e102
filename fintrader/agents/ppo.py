"""Proximal policy optimisation (https://arxiv.org/abs/1707.06347).

One update: collect `num_steps` steps of all accounts, estimate advantages with GAE, then take
`update_epochs` passes of `num_minibatches` Adam steps on

    L = −E[Σ_i min(ρ_i A, clip(ρ_i, 1 ± ε) A)] + vf_coef · E[(V − target)²] / 2 − ent_coef · H
    ρ_i = π(z_i|s) / π_old(z_i|s)

The Gaussian policy draws *latents* z, which a head turns into an action (`ActionHead`); each of
them has its own ratio, as in https://arxiv.org/abs/1905.02363. The paper's single ratio, their
product, leaves the clip's range sooner with more assets. At the start, where all ratios are 1, both
have the same gradient. Details follow "The 37 implementation details of PPO"
(https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/): orthogonal
initialisation, small last layer, Adam ε = 1e-5, advantages normalised in each minibatch, gradient
clipping, observation and reward normalisation. Differences from the paper: exploration noise begins
large and decays by a fixed rule (`noise_decay`) unless it is learned, and is correlated from one
decision to the next on markets (`noise_persistence`); the value is not clipped, which did not help
there.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fintrader.agents.base import Loss
from fintrader.agents.fast import fast_on_cpu
from fintrader.agents.fast.graphs import Scalars
from fintrader.agents.on_policy import OnPolicyAgent, Rollout, log_prob_per_latent
from fintrader.agents.settings import PPO
from fintrader.errors import ConfigError


def ppo_objective(ratio: Tensor, advantage: Tensor, clip_coef: float) -> Tensor:
    """Clipped surrogate `[R]` (to be maximised) of `[R, L]` ratios and `[R]` advantages, equation
    7, summed over the latents: Σ_i min(ρ_i A, clip(ρ_i, 1 − ε, 1 + ε) A). A ratio is cut above for
    A > 0, below for A < 0."""
    infinity = torch.full_like(advantage, torch.inf)
    low = torch.where(advantage < 0, 1 - clip_coef, -infinity)
    high = torch.where(advantage > 0, 1 + clip_coef, infinity)
    return ratio.clamp(low.unsqueeze(-1), high.unsqueeze(-1)).sum(dim=-1) * advantage


@fast_on_cpu("surrogate")
def clipped_surrogate(
    mean: Tensor, row_index: Tensor | None, log_std: Tensor, rollout: Rollout, clip_coef: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the mean objective over a rollout's rows, KL distance from the policy that drew them,
    and share of ratios outside the clip's range.

    `mean` is the policy's, `[R, L]`, or `[U, L]` with each row's number in it, `row_index [R]`.
    """
    if row_index is not None:
        mean = mean.index_select(0, row_index)
    noise = (rollout.latent - mean) * torch.exp(-log_std)
    log_ratio = log_prob_per_latent(noise, log_std) - rollout.log_prob
    ratio = log_ratio.exp()
    objective = ppo_objective(ratio, rollout.advantage, clip_coef).mean()
    with torch.no_grad():
        # The low-variance estimator of http://joschu.net/blog/kl-approx.html:
        # mean of Σ (ρ - 1 - log ρ)
        kl = (ratio.sum() - log_ratio.sum()) / ratio.shape[0] - ratio.shape[1]
        outside = (ratio > 1 + clip_coef).sum() + (ratio < 1 - clip_coef).sum()
        clip_fraction = outside.to(ratio.dtype) / ratio.numel()
    return objective, kl, clip_fraction


class PPOAgent(OnPolicyAgent):
    """Clipped policy gradient: several passes of minibatches over each rollout."""

    settings: PPO
    has_compiled_steps = True  # by fast/descent.py; a subclass may have another loss

    def draw_passes(self, rows: int, row_index: Tensor | None, bars: int) -> Iterator[list[Tensor]]:
        """Draw `update_epochs` passes of `num_minibatches`, each over all `rows` rows in another
        random order.

        Where rows share bars, the bars are shuffled and the rows of a bar stay together, so that
        few bars are embedded in two minibatches. Every row is in exactly one minibatch; if rows do
        not divide evenly, the first minibatches hold one more.
        """
        for _ in range(self.settings.update_epochs):
            if row_index is None:
                order = self._shuffle(rows)
            else:
                order = torch.argsort(self._shuffle(bars)[row_index], stable=True)
            yield list(order.tensor_split(min(self.settings.num_minibatches, rows)))

    def _shuffle(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator, device=self.device)

    def loss(self, rollout: Rollout) -> Loss:
        """Compute L on one minibatch, and its parts as metrics."""
        mean, row_index = self.mean_by_bar(rollout.batch)
        objective, kl, clip_fraction = clipped_surrogate(
            mean, row_index, self.log_std, rollout, self.settings.clip_coef
        )
        loss, parts = self.add_value_loss(rollout, -objective)
        return loss, {**parts, "kl": kl, "clip_fraction": clip_fraction}

    def has_moved_enough(self, step: Scalars) -> bool:
        """Report whether the policy is further than `target_kl` from the one that collected the
        data."""
        return self.settings.target_kl is not None and bool(step["kl"] > self.settings.target_kl)

    def check_rollout(self, num_envs: int) -> None:
        """Raises ConfigError when a rollout is smaller than its number of minibatches."""
        steps = self.settings.num_steps * num_envs
        if steps < self.settings.num_minibatches:
            raise ConfigError(
                f"agent.num_minibatches is {self.settings.num_minibatches}, more than the {steps}"
                " steps of a rollout; raise num_steps or num_envs"
            )
