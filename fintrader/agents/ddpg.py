"""Deep deterministic policy gradient (https://arxiv.org/abs/1509.02971).

    critic:  minimise (Q(s, z) − y)²,  y = Σ γ^k r_k + γ^n Q'(s', μ'(s'))
    actor:   maximise Q(s, μ(s))
    targets: θ' ← θ' + τ (θ − θ')

with z = tanh(actor(s)) + noise while exploring, and sums cut at the first end of an episode:
nothing is bootstrapped after a termination. Differences from the paper: exploration is Gaussian,
since Ornstein-Uhlenbeck noise brought nothing in later comparisons
(https://arxiv.org/abs/1802.09477, section 6), and lasts from one decision to the next on markets;
targets may sum n steps (https://arxiv.org/abs/1804.08617); networks have LayerNorm
(https://arxiv.org/abs/2302.02948) instead of batch normalisation; large arguments of the tanh are
penalised (`saturation_coef`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fintrader.agents.off_policy import OffPolicyAgent, ReplaySample
from fintrader.agents.settings import DDPG


class DDPGAgent(OffPolicyAgent):
    """One critic, and an actor that climbs it."""

    settings: DDPG

    def learn(self, sample: ReplaySample) -> dict[str, Tensor]:
        with torch.no_grad():
            following = torch.tanh(self.actor_target(sample.next_obs)[0])
            value = self.critic_target(sample.next_obs, following)[0]
            target = sample.reward + sample.discount * value
        metrics = self.fit_critics(sample, target)

        if self.is_actor_due():
            metrics |= self.improve_actor(sample)

        self.update_target(self.critic_target, self.critic)
        self.update_target(self.actor_target, self.actor)
        return metrics
