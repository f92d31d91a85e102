"""Where experience waits until it is learned from: preallocated, time first, on the agent's device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fintrader.agents.memory import require_memory


class Transition(NamedTuple):
    """One step of `B` accounts."""

    obs: Tensor
    """`[B, D]`"""
    action: Tensor
    """`[B, N]`: what the environment was given."""
    reward: Tensor
    """`[B]`"""
    terminated: Tensor
    """`[B]` bool"""
    truncated: Tensor
    """`[B]` bool"""
    next_obs: Tensor
    """`[B, D]`: where the step truly led; the final observation where an episode ended."""


class RolloutBuffer:
    """`num_steps` consecutive steps of `num_envs` accounts."""

    def __init__(self, num_steps: int, num_envs: int, obs_width: int, latent_width: int, device: torch.device) -> None:
        """Raises ConfigError when it, or learning from it, would take more memory than the device has free."""
        # Observations lie there three times while they are standardised: raw, between and as the networks read them.
        needed = num_steps * num_envs * (4 * (3 * obs_width + 2 * latent_width + 6) + 2)
        what = f"a rollout of {num_steps:,} steps of {num_envs:,} accounts"
        require_memory(needed, device, what, "lower agent.num_steps or env.num_envs")
        shape = (num_steps, num_envs)
        self.obs = torch.zeros(*shape, obs_width, device=device)
        self.latent = torch.zeros(*shape, latent_width, device=device)
        """`[T, B, L]`: what the policy's distribution drew, before it was turned into an action."""
        self.reward = torch.zeros(shape, device=device)
        self.terminated = torch.zeros(shape, dtype=torch.bool, device=device)
        self.truncated = torch.zeros(shape, dtype=torch.bool, device=device)
        self.final_value = torch.zeros(shape, device=device)
        """`[T, B]`: value of the true final observation where an episode ended, anything elsewhere."""
        self.num_steps, self.num_envs = num_steps, num_envs
        self.step = 0

    @property
    def full(self) -> bool:
        return self.step == self.num_steps

    def add(self, transition: Transition, latent: Tensor, final_value: Tensor | None) -> None:
        """Write one step; `final_value [B]` may be left out when no episode ended."""
        t = self.step
        self.obs[t] = transition.obs
        self.latent[t] = latent
        self.reward[t] = transition.reward
        self.terminated[t] = transition.terminated
        self.truncated[t] = transition.truncated
        if final_value is not None:
            self.final_value[t] = final_value
        self.step += 1

    def clear(self) -> None:
        """Start over; the memory stays."""
        self.step = 0
