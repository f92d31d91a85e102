"""Soft actor-critic with a tuned temperature (https://arxiv.org/abs/1812.05905).

The actor gives a mean and a deviation for each latent; a latent is z = tanh(u), u ~ N(mean,
deviation²).

    critics:      y = Σ γ^k r_k + γ^n (min_k Q'_k(s', z') − α log π(z'|s')),  z' ~ π
    actor:        minimise α log π(z|s) − min_k Q_k(s, z),  z by reparametrisation
    temperature:  minimise −α (log π(z|s) + target entropy)

with log π(z|s) = log N(u) − Σ log(1 − tanh(u)²), appendix C. What differs from the paper: the
target entropy is −1.5 nats a latent instead of −1, which is too much noise where every change costs
money; log deviations are bounded to [−5, 1] by a sigmoid; noise lasts from one decision to the next
while acting, not while learning; replay and networks as in `ddpg.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fintrader.agents.off_policy import OffPolicyAgent, OffPolicySettings, Sample, combine
from fintrader.agents.on_policy import gaussian_log_prob
from fintrader.agents.trunks import Seen
from fintrader.envs.observation import Layout


class SACBase(OffPolicySettings):
    """What SAC and REDQ share."""

    alpha: float = Field(default=0.1, gt=0)
    """Temperature at the start: the price of a nat of entropy, in scaled rewards."""
    tune_alpha: bool = True
    """Move the temperature so that the entropy meets its target."""
    target_entropy: float = -1.5
    """Entropy aimed at, per latent, in nats; -1.5 is a deviation of about 0.05 around the middle of
    [-1, 1]."""
    initial_noise: float = Field(default=0.3, gt=0)
    """Deviation at the start."""


class SAC(SACBase):
    """Settings of soft actor-critic."""

    algo: Literal["sac"] = "sac"


class SACAgent(OffPolicyAgent):
    """Two critics and a stochastic actor that is paid for its entropy."""

    settings: SACBase
    members = 2
    outputs = 2

    def __init__(
        self, settings: SACBase, layout: Layout, *, device: torch.device | str, seed: int
    ) -> None:
        super().__init__(settings, layout, device=device, seed=seed)
        del self.modules["actor_target"]  # the next latent is drawn from the actor itself
        start = torch.tensor(math.log(settings.alpha))
        self.temperature = nn.ParameterDict({"log_alpha": start}).to(self.device)
        self.modules["temperature"] = self.temperature
        self.add_optimiser("temperature", self.temperature.parameters(), settings.learning_rate)

    def explore(self, obs: Seen) -> Tensor:
        """Latents drawn from the policy."""
        return self.draw_latent(obs, self.exploration_noise)[0]

    def draw_latent(
        self, obs: Seen, noise: Callable[[torch.Size], Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Latents `[R, L]` by reparametrisation, their log density `[R]`, and the means before
        tanh."""
        mean, raw = self.actor(obs)
        log_std = bounded_log_std(raw, self.settings.initial_noise)
        u = mean + log_std.exp() * (noise or self.randn)(mean.shape)
        # log(1 − tanh(u)²) = 2 (log 2 − u − softplus(−2u)), which does not overflow
        squash = 2 * (math.log(2) - u - nn.functional.softplus(-2 * u))
        return torch.tanh(u), gaussian_log_prob(u, mean, log_std) - squash.sum(dim=-1), mean

    def target_value(self, values: Tensor) -> Tensor:
        """`[K, R]` to `[R]`: the critics' value in the target."""
        return combine(values, "min")

    def policy_value(self, values: Tensor) -> Tensor:
        """`[K, R]` to `[R]`: the critics' value that the actor climbs."""
        return combine(values, "min")

    def learn(self, sample: Sample) -> dict[str, Tensor]:
        metrics = self.learn_critics(sample)
        return {**metrics, **self.learn_policy(sample)} if self.actor_moves() else metrics

    def learn_critics(self, sample: Sample) -> dict[str, Tensor]:
        """One step of the critics, then of their targets."""
        alpha = self.temperature["log_alpha"].exp().detach()
        with torch.no_grad():
            following, log_prob, _ = self.draw_latent(sample.next_obs)
            value = self.target_value(self.critic_target(sample.next_obs, following))
            target = sample.reward + sample.discount * (value - alpha * log_prob)
        metrics = self.fit_critics(sample, target)
        self.follow(self.critic_target, self.critic)
        return metrics

    def learn_policy(self, sample: Sample) -> dict[str, Tensor]:
        """One step of the actor, then of the temperature."""
        settings = self.settings
        log_alpha = self.temperature["log_alpha"]
        latent, log_prob, mean = self.draw_latent(sample.obs)
        value = self.policy_value(self.critic(sample.obs, latent))
        policy_loss = (log_alpha.exp().detach() * log_prob - value).mean()
        norm = self.descend("actor", policy_loss + settings.saturation_coef * mean.pow(2).mean())
        entropy = -log_prob.detach().mean()
        if settings.tune_alpha:
            self.descend(
                "temperature",
                log_alpha.exp() * (entropy - settings.target_entropy * self.head.latents),
            )
        return {
            "policy_loss": policy_loss.detach(),
            "entropy": entropy,
            "alpha": log_alpha.detach().exp(),
            "grad_norm": norm,
        }


def bounded_log_std(raw: Tensor, start: float) -> Tensor:
    """The actor's second output as a log deviation in [-5, 1]; `start` where the output is 0."""
    low = -5.0
    high = 1.0
    position = (math.log(start) - low) / (high - low)
    offset = math.log(position / (1 - position))
    return low + (high - low) * torch.sigmoid(raw + offset)
