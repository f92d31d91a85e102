"""Deep deterministic policy gradient (https://arxiv.org/abs/1509.02971).

    critic:  minimise (Q(s, z) − y)²,  y = Σ γ^k r_k + γ^n Q'(s', μ'(s'))
    actor:   maximise Q(s, μ(s))
    targets: θ' ← θ' + τ (θ − θ')

with z = tanh(actor(s)) + noise while exploring, and sums cut at the first end of an episode:
nothing is bootstrapped after a termination. Differences from the paper: exploration noise is
Gaussian (Ornstein-Uhlenbeck noise brought nothing in https://arxiv.org/abs/1802.09477, section 6)
and, on markets, correlated from one decision to the next; targets may sum n steps
(https://arxiv.org/abs/1804.08617); networks have LayerNorm (https://arxiv.org/abs/2302.02948)
instead of batch normalisation; large arguments of the tanh are penalised (`saturation_coef`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fintrader.agents.base import Parts
from fintrader.agents.fast.graphs import Scalars
from fintrader.agents.normalisation import Batch
from fintrader.agents.off_policy import OffPolicyAgent, ReplaySample


class DDPGAgent(OffPolicyAgent):
    """One critic, and an actor that maximises its value."""

    def choose_following(self, batch: Batch) -> Tensor:
        """Choose the latents `[R, L]` at which target critics judge the next observations."""
        return torch.tanh(self.actor_target(batch)[0])

    def learn(self, sample: ReplaySample) -> Scalars:
        with torch.no_grad():
            following = self.choose_following(sample.next_obs)
            value = self.judge_following(sample.next_obs, following).min(dim=0).values
            target = sample.reward + sample.discount * value
        metrics = self.fit_critics(sample, target)
        if self.is_actor_due:
            metrics |= self.improve_actor(sample)
            self.update_target(self.critic_target, self.critic)
            self.update_target(self.actor_target, self.actor)
        return metrics

    def improve_actor(self, sample: ReplaySample) -> Scalars:
        """Take one step of the actor that raises the first critic's value."""

        def iterate_parts() -> Parts:
            for share, obs in self.split_batch(sample.obs):
                (raw,) = self.actor(obs)
                policy_loss = -self.critic(obs, torch.tanh(raw))[0].mean()
                saturation = self.settings.saturation_coef * raw.pow(2).mean()
                yield share, policy_loss + saturation, {"policy_loss": policy_loss}

        return self.descend("actor", iterate_parts())
