"""Soft actor-critic with a tuned temperature (https://arxiv.org/abs/1812.05905).

The actor outputs a mean and a deviation for each latent; a latent is z = tanh(u), u ~ N(mean,
deviation²).

    critics:      y = Σ γ^k r_k + γ^n (min_k Q'_k(s', z') − α log π(z'|s')),  z' ~ π
    actor:        minimise α log π(z|s) − min_k Q_k(s, z),  z by reparametrisation
    temperature:  minimise −α (log π(z|s) + target entropy)

with log π(z|s) = log N(u) − Σ log(1 − tanh(u)²), appendix C. Differences from the paper: the target
entropy is −1.5 nats a latent instead of −1, which is too much noise where every change costs money;
log deviations are bounded to [−5, 1] by a sigmoid; noise is correlated from one decision to the
next while acting, not while learning; replay and networks as in `ddpg.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fintrader.agents.base import Parts
from fintrader.agents.fast.graphs import Scalars
from fintrader.agents.normalisation import Batch
from fintrader.agents.off_policy import OffPolicyAgent, ReplaySample
from fintrader.agents.on_policy import log_prob_per_latent
from fintrader.agents.settings import SACBase

FIRST_ALPHA = 0.1
"""Temperature at which `alpha: auto` begins: small, since scaled rewards are of order 1."""


class SACAgent(OffPolicyAgent):
    """Two critics and a stochastic actor that is paid for its entropy."""

    settings: SACBase
    members = 2
    outputs = 2

    def add_parts(self) -> None:
        super().add_parts()
        settings = self.settings
        del self.modules["actor_target"]  # the next latent is drawn from the actor itself
        alpha = FIRST_ALPHA if settings.alpha == "auto" else settings.alpha
        start = torch.tensor(math.log(alpha))
        self.temperature = nn.ParameterDict({"log_alpha": start}).to(self.device)
        self.modules["temperature"] = self.temperature
        self.add_optimiser("temperature", self.temperature.parameters(), settings.learning_rate)

    def explore(self, batch: Batch) -> Tensor:
        """Draw latents from the policy."""
        shape = torch.Size((len(batch.private), self.head.latents))
        return self.draw_latent(batch, self.draw_exploration_noise(shape))[0]

    def draw_latent(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw latents `[R, L]` by reparametrisation of `noise` `[R, L]`; also returns their log
        density `[R]` and the means before tanh."""
        mean, raw = self.actor(batch)
        log_std = bound_log_std(raw, self.settings.noise)
        u = mean + log_std.exp() * noise
        # log(1 − tanh(u)²) = 2 (log 2 − u − softplus(−2u)), which does not overflow
        squash = 2 * (math.log(2) - u - nn.functional.softplus(-2 * u))
        log_prob = log_prob_per_latent((u - mean) * torch.exp(-log_std), log_std)
        return torch.tanh(u), log_prob.sum(dim=-1) - squash.sum(dim=-1), mean

    def combine_for_target(self, values: Tensor) -> Tensor:
        """Combine the critics' values `[K, R]` into the target's, `[R]`."""
        return values.min(dim=0).values

    def combine_for_policy(self, values: Tensor) -> Tensor:
        """Combine the critics' values `[K, R]` into those that the actor maximises, `[R]`."""
        return values.min(dim=0).values

    def learn(self, sample: ReplaySample) -> Scalars:
        alpha = self.temperature["log_alpha"].exp().detach()
        with torch.no_grad():
            noise = self.draw_normal(sample.latent.shape)
            following, log_prob, _ = self.draw_latent(sample.next_obs, noise)
            value = self.combine_for_target(self.judge_following(sample.next_obs, following))
            target = sample.reward + sample.discount * (value - alpha * log_prob)
        metrics = self.fit_critics(sample, target)
        self.update_target(self.critic_target, self.critic)
        return metrics | self.learn_policy(sample) if self.is_actor_due else metrics

    def learn_policy(self, sample: ReplaySample) -> Scalars:
        """Take one step of the actor, then of the temperature."""
        settings = self.settings
        log_alpha = self.temperature["log_alpha"]

        noise = self.draw_normal(sample.latent.shape)

        def iterate_parts() -> Parts:
            for share, obs, drawn in self.split_batch(sample.obs, noise):
                latent, log_prob, mean = self.draw_latent(obs, drawn)
                value = self.combine_for_policy(self.critic(obs, latent))
                policy_loss = (log_alpha.exp().detach() * log_prob - value).mean()
                loss = policy_loss + settings.saturation_coef * mean.pow(2).mean()
                yield share, loss, {"policy_loss": policy_loss, "entropy": -log_prob.mean()}

        metrics = self.descend("actor", iterate_parts())
        if settings.alpha == "auto":
            surplus = metrics["entropy"] - settings.target_entropy * self.head.latents
            self.descend("temperature", [(1.0, log_alpha.exp() * surplus, {})])
        return {**metrics, "alpha": log_alpha.detach().exp()}


def bound_log_std(raw: Tensor, start: float) -> Tensor:
    """Map the actor's second output to a log deviation in [-5, 1]; an output of 0 gives log
    `start`."""
    low = -5.0
    high = 1.0
    position = min(max((math.log(start) - low) / (high - low), 1e-3), 1 - 1e-3)
    offset = math.log(position / (1 - position))
    return low + (high - low) * torch.sigmoid(raw + offset)
