"""Proximal policy optimisation (https://arxiv.org/abs/1707.06347).

One update: collect `num_steps` steps of all accounts, estimate advantages with GAE, then take
`update_epochs` passes of `num_minibatches` Adam steps on

    L = −E[Σ_i min(ρ_i A, clip(ρ_i, 1 ± ε) A)] + vf_coef · E[(V − target)²] / 2 − ent_coef · H
    ρ_i = π(z_i|s) / π_old(z_i|s)

The Gaussian policy draws *latents* z, which a head turns into an action (`ActionHead`); each of
them has a ratio of its own, as in https://arxiv.org/abs/1905.02363. The ratio of all together, the
paper's, leaves the clip's range after ever smaller steps the more assets there are: at the start,
where all are 1, the gradient is the same. Details follow "The 37 implementation details of PPO"
(https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/): orthogonal
initialisation, small last layer, Adam ε = 1e-5, advantages normalised in each minibatch, gradient
clipping, observation and reward normalisation. What differs from the paper: exploration noise
begins large and becomes less by a fixed rule (`noise_decay`) unless `learn_noise`, and lasts from
one decision to the next on markets (`noise_persistence`); the value is not clipped, which did not
help there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fintrader.agents.on_policy import OnPolicyAgent, OnPolicySettings, Rollout, each_log_prob
from fintrader.errors import ConfigError


class PPO(OnPolicySettings):
    """Settings of proximal policy optimisation."""

    algo: Literal["ppo"] = "ppo"
    num_steps: int = Field(default=8, ge=1)
    """Steps of every account between updates."""
    noise: float = Field(default=1.0, gt=0)
    """Standard deviation of the exploration noise on the latents (at the start, if learned)."""
    noise_decay: float = Field(default=0.02, ge=0, lt=1)
    """Share of the noise's deviation that goes with every update, down to `noise_least`; without
    effect on a learned one."""
    update_epochs: int = Field(default=3, ge=1)
    """Passes over each rollout."""
    num_minibatches: int = Field(default=2, ge=1)
    """Minibatches a pass is cut into."""
    clip_coef: float = Field(default=0.2, gt=0)
    """How far the ratio may move before its gradient is cut."""
    target_kl: float | None = Field(default=None, gt=0)
    """Stop an update's passes once the policy moved this far from the one that collected the
    data."""


def ppo_objective(ratio: Tensor, advantage: Tensor, clip_coef: float) -> Tensor:
    """`[R, L]` ratios and `[R]` advantages to the clipped surrogate `[R]` (to be maximised),
    equation 7, summed over the latents: Σ_i min(ρ_i A, clip(ρ_i, 1 − ε, 1 + ε) A). A ratio is cut
    above for A > 0, below for A < 0."""
    infinity = torch.full_like(advantage, torch.inf)
    low = torch.where(advantage < 0, 1 - clip_coef, -infinity)
    high = torch.where(advantage > 0, 1 + clip_coef, infinity)
    return ratio.clamp(low.unsqueeze(-1), high.unsqueeze(-1)).sum(dim=-1) * advantage


class PPOAgent(OnPolicyAgent):
    """Clipped policy gradient: several passes of minibatches over each rollout."""

    settings: PPO

    def passes(self, rows: int, place: Tensor | None) -> Iterator[list[Tensor]]:
        """`update_epochs` passes of `num_minibatches`, each over all `rows` rows in a random order
        of its own.

        Where rows share bars it is the bars that are put in order, so that hardly a minibatch
        embeds one that another embeds, too. Every row is in exactly one minibatch; where they do
        not divide evenly, the first ones hold one more.
        """
        for _ in range(self.settings.update_epochs):
            if place is None:
                order = torch.randperm(rows, generator=self.generator, device=self.device)
            else:
                bars = torch.randperm(
                    int(place.max()) + 1, generator=self.generator, device=self.device
                )
                order = torch.argsort(bars[place], stable=True)
            yield list(order.tensor_split(min(self.settings.num_minibatches, rows)))

    def moved_enough(self, step: Mapping[str, Tensor]) -> bool:
        """Whether the policy is further than `target_kl` from the one that collected the data."""
        return self.settings.target_kl is not None and bool(step["kl"] > self.settings.target_kl)

    def loss(self, batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """L on one minibatch, and its parts as metrics."""
        clip_coef = self.settings.clip_coef
        log_std = self.noise["log_std"]
        if self.device.type == "cpu" and not self.batched:
            from fintrader.agents.fast.surrogate import Surrogate

            mean, place = self.shared_mean(batch.seen)
            place = torch.arange(len(mean)) if place is None else place
            given = (place, batch.latent, batch.log_prob, batch.advantage, clip_coef)
            surrogate, kl, outside = Surrogate.apply(mean, log_std, *given)  # type: ignore[no-untyped-call]
            loss, parts = self.whole_loss(batch, -surrogate)
            return loss, parts | {"kl": kl, "clip_fraction": outside}
        noise = (batch.latent - self.mean_latent(batch.seen)) * torch.exp(-log_std)
        log_ratio = each_log_prob(noise, log_std) - batch.log_prob
        ratio = log_ratio.exp()
        objective = ppo_objective(ratio, batch.advantage, clip_coef)
        loss, parts = self.whole_loss(batch, -objective.mean())
        with torch.no_grad():
            outside = (ratio > 1 + clip_coef).sum() + (ratio < 1 - clip_coef).sum()
            return loss, parts | {
                # http://joschu.net/blog/kl-approx.html, the low-variance estimator: the mean of Σ
                # (ρ - 1 - log ρ)
                "kl": (ratio.sum() - log_ratio.sum()) / ratio.shape[0] - ratio.shape[1],
                "clip_fraction": outside / ratio.numel(),
            }

    def check_rollout(self, num_envs: int) -> None:
        """Raises ConfigError when a rollout is smaller than its number of minibatches."""
        steps = self.settings.num_steps * num_envs
        if steps < self.settings.num_minibatches:
            raise ConfigError(
                f"agent.num_minibatches is {self.settings.num_minibatches}, more than the {steps}"
                " steps of a rollout; raise num_steps or num_envs"
            )
