"""Steps of experience, the rollout buffer, and generalised advantage estimation.

A *terminated* step has no future: nothing is bootstrapped beyond it. A *truncated* step was cut off
by a clock: its future is the value of the true final observation. Either ends the trace, because
the next stored step belongs to another episode (https://arxiv.org/abs/1712.00378).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fintrader.agents.fast import fast_on_cpu
from fintrader.memory import require_memory


class Transition(NamedTuple):
    """One step of `B` accounts."""

    obs: Tensor
    """`[B, D]`, or `[B, P + 1]`: the private part, P columns, and the bar's number (see
    `normalisation`)."""
    action: Tensor
    """`[B, N]`: as given to the environment."""
    reward: Tensor
    """`[B]`"""
    terminated: Tensor
    """`[B]` bool"""
    truncated: Tensor
    """`[B]` bool"""
    next_obs: Tensor
    """`[B, D]`: observation after the step; the final one where an episode ended."""


@dataclass(eq=False)
class StepBuffer:
    """Memory for `num_steps` steps of `num_envs` accounts, time first."""

    num_steps: int
    num_envs: int
    obs_width: int
    latent_width: int
    device: torch.device
    overlaps = False
    """True if the observation after a step is stored only as the next step's `obs`."""

    def __post_init__(self) -> None:
        shape = (self.num_steps, self.num_envs)
        device = self.device
        rows = self.num_steps + (1 if self.overlaps else self.num_steps)
        self.shown = torch.zeros(rows, self.num_envs, self.obs_width, device=device)
        self.obs = self.shown[: self.num_steps]
        self.next_obs = self.shown[-self.num_steps :]
        self.latent = torch.zeros(*shape, self.latent_width, device=device)
        """`[T, B, L]`: drawn from the policy's distribution, before the head made it an action."""
        self.reward = torch.zeros(shape, device=device)
        self.terminated = torch.zeros(shape, dtype=torch.bool, device=device)
        self.truncated = torch.zeros(shape, dtype=torch.bool, device=device)
        ends = (self.terminated, self.truncated)
        self.columns = [self.obs, self.reward, *ends, self.next_obs, self.latent]

    def write(self, t: int, transition: Transition, *latent: Tensor) -> None:
        """Write one step as row `t`; `latent`: its latent, and further columns."""
        obs, _, *rest = transition
        torch._foreach_copy_([column[t] for column in self.columns], [obs, *rest, *latent])


class RolloutBuffer(StepBuffer):
    """`num_steps` consecutive steps of `num_envs` accounts."""

    def __post_init__(self) -> None:
        """Allocate the buffer. Raises ConfigError when the buffer, or learning from it, needs more
        memory than the device has free."""
        # Overlapping must know which episodes ended; on a GPU that would wait for the device.
        self.overlaps = self.device.type == "cpu"
        # Observations are stored raw, scaled and as the networks' input; on a GPU the next
        # observations, too, and one more copy in the graph of a gradient step.
        size = 4 * ((3 if self.overlaps else 7) * self.obs_width + 3 * self.latent_width + 6) + 2
        needed = self.num_steps * self.num_envs * size
        subject = f"a rollout of {self.num_steps:,} steps of {self.num_envs:,} accounts"
        require_memory(needed, self.device, subject, "lower agent.num_steps or env.num_envs")
        super().__post_init__()
        self.final_value = torch.zeros_like(self.reward)
        """`[T, B]`: value of the true final observation where an episode ended, undefined
        elsewhere."""
        self.log_prob = torch.zeros_like(self.latent)
        """`[T, B, L]`: log density of each latent under the policy that drew it."""
        self.columns.append(self.log_prob)
        self.step = 0

    @property
    def is_full(self) -> bool:
        return self.step == self.num_steps

    def add(self, transition: Transition, latent: Tensor, log_prob: Tensor) -> None:
        """Write one step, but not its `final_value`."""
        self.write(self.step, transition, latent, log_prob)
        self.step += 1

    def clear(self) -> None:
        """Start over; the memory stays."""
        self.step = 0


@fast_on_cpu("rollout")
def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (https://arxiv.org/abs/1506.02438, equations 11 and 16).

    All inputs are `[T, B]`, time first; `next_values[t]` is the value of the observation that step
    `t` truly led to (the final one where the episode ended, never the first one of the next
    episode). Returns advantages and the value targets `advantages + values`, both `[T, B]`.
    """
    alive = (~terminated).to(rewards.dtype)
    going_on = (~(terminated | truncated)).to(rewards.dtype)
    # δ_t = r_t + γ (1 − terminated_t) V(s_{t+1}) − V(s_t)
    deltas = rewards + gamma * alive * next_values - values
    # A_t = δ_t + γ λ (1 − terminated_t)(1 − truncated_t) A_{t+1}
    decay = gamma * gae_lambda * going_on
    advantages = torch.empty_like(rewards)
    trace = torch.zeros_like(rewards[0])
    for t in range(rewards.shape[0] - 1, -1, -1):
        trace = deltas[t] + decay[t] * trace
        advantages[t] = trace
    return advantages, advantages + values
