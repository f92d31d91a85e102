"""What agents learn from: the latest rollout, or replayed steps, and the returns over them.

A *terminated* step has no future: nothing is bootstrapped beyond it. A *truncated* step was cut off
by a clock: its future is the value of the true final observation. Either ends the trace, because
the next stored step belongs to another episode (https://arxiv.org/abs/1712.00378).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fintrader.errors import CheckpointError
from fintrader.memory import HOST, require_memory


class Transition(NamedTuple):
    """One step of `B` accounts."""

    obs: Tensor
    """`[B, D]`, or `[B, A + N + 1]`: the private part and the bar's number (see
    `normalisation`)."""
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


class _Steps:
    """Memory for `num_steps` steps of `num_envs` accounts, time first."""

    def __init__(
        self, num_steps: int, num_envs: int, obs_width: int, latent_width: int, device: torch.device
    ) -> None:
        shape = (num_steps, num_envs)
        self.obs = torch.zeros(*shape, obs_width, device=device)
        self.latent = torch.zeros(*shape, latent_width, device=device)
        """`[T, B, L]`: what the policy's distribution drew, before it was turned into an action."""
        self.reward = torch.zeros(shape, device=device)
        self.terminated = torch.zeros(shape, dtype=torch.bool, device=device)
        self.truncated = torch.zeros(shape, dtype=torch.bool, device=device)
        self.num_steps = num_steps
        self.num_envs = num_envs

    def write(self, t: int, transition: Transition, latent: Tensor) -> None:
        """One step, as number `t`."""
        self.obs[t], self.latent[t], self.reward[t] = transition.obs, latent, transition.reward
        self.terminated[t], self.truncated[t] = transition.terminated, transition.truncated


class RolloutBuffer(_Steps):
    """`num_steps` consecutive steps of `num_envs` accounts."""

    def __init__(
        self, num_steps: int, num_envs: int, obs_width: int, latent_width: int, device: torch.device
    ) -> None:
        """Raises ConfigError when it, or learning from it, would take more memory than the device
        has free."""
        # Observations lie there three times while they are standardised: raw, between and as the
        # networks read them.
        needed = num_steps * num_envs * (4 * (3 * obs_width + 3 * latent_width + 6) + 2)
        what = f"a rollout of {num_steps:,} steps of {num_envs:,} accounts"
        require_memory(needed, device, what, "lower agent.num_steps or env.num_envs")
        super().__init__(num_steps, num_envs, obs_width, latent_width, device)
        self.final_value = torch.zeros((num_steps, num_envs), device=device)
        """`[T, B]`: value of the true final observation where an episode ended, anything
        elsewhere."""
        self.log_prob = torch.zeros_like(self.latent)
        """`[T, B, L]`: of each latent, under the policy that drew it."""
        self.step = 0

    @property
    def full(self) -> bool:
        return self.step == self.num_steps

    def add(
        self, transition: Transition, latent: Tensor, log_prob: Tensor, final_value: Tensor | None
    ) -> None:
        """Write one step; `final_value [B]` may be left out when no episode ended."""
        self.write(self.step, transition, latent)
        self.log_prob[self.step] = log_prob
        if final_value is not None:
            self.final_value[self.step] = final_value
        self.step += 1

    def clear(self) -> None:
        """Start over; the memory stays."""
        self.step = 0


class Batch(NamedTuple):
    """`R` sampled n-step transitions; observations are raw, rewards `[n, R]` belong to consecutive
    steps."""

    obs: Tensor
    """`[R, D]`"""
    latent: Tensor
    """`[R, L]`"""
    reward: Tensor
    """`[n, R]`"""
    terminated: Tensor
    """`[n, R]` bool"""
    truncated: Tensor
    """`[n, R]` bool"""
    next_obs: Tensor
    """`[n, R, D]`: where each of the n steps truly led."""


class ReplayBuffer(_Steps):
    """The last `num_steps` steps of `num_envs` accounts: preallocated, time first, oldest
    overwritten first."""

    def __init__(
        self, num_steps: int, num_envs: int, obs_width: int, latent_width: int, device: torch.device
    ) -> None:
        """Raises ConfigError when it, or storing it, would take more memory than there is."""
        needed = num_steps * num_envs * (4 * (2 * obs_width + latent_width + 1) + 2)
        what = f"agent.buffer_size of {num_steps * num_envs:,} steps"
        remedy = "lower agent.buffer_size"
        require_memory(needed, device, what, remedy)
        if (
            device != HOST
        ):  # on its way into a file it lies on the host once; one on the host is written as it is
            require_memory(needed, HOST, f"storing {what}", remedy)
        super().__init__(num_steps, num_envs, obs_width, latent_width, device)
        self.next_obs = torch.zeros_like(self.obs)
        self.written = 0
        """Steps ever added."""

    @property
    def filled(self) -> int:
        """Steps held, each of `num_envs` accounts."""
        return min(self.written, self.num_steps)

    def add(self, transition: Transition, latent: Tensor) -> None:
        """Write one step over the oldest."""
        t = self.written % self.num_steps
        self.write(t, transition, latent)
        self.next_obs[t] = transition.next_obs
        self.written += 1

    def sample(self, batch_size: int, n: int, generator: torch.Generator) -> Batch:
        """`batch_size` uniformly drawn runs of `n` consecutive steps of one account; needs `filled
        >= n`."""
        device = self.obs.device
        oldest = self.written - self.filled
        step = (
            torch.randint(self.filled - n + 1, (batch_size,), generator=generator, device=device)
            + oldest
        )
        account = torch.randint(self.num_envs, (batch_size,), generator=generator, device=device)
        rows = (step + torch.arange(n, device=device).unsqueeze(1)) % self.num_steps
        return Batch(
            self.obs[rows[0], account],
            self.latent[rows[0], account],
            self.reward[rows, account],
            self.terminated[rows, account],
            self.truncated[rows, account],
            self.next_obs[rows, account],
        )

    def state_dict(self) -> dict[str, Tensor]:
        """The steps held, in the order of the buffer's rows, as views of them, and how many were
        ever written."""
        names = ("obs", "next_obs", "latent", "reward", "terminated", "truncated")
        state = {name: getattr(self, name)[: self.filled] for name in names}
        return {**state, "written": torch.tensor(self.written)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Raises CheckpointError when the stored buffer is of another shape."""
        for name, tensor in state.items():
            if name == "written":
                continue
            own = getattr(self, name)
            if tensor.shape[1:] != own.shape[1:] or tensor.shape[0] > own.shape[0]:
                raise CheckpointError(
                    f"the stored replay buffer's {name} does not fit; resume with equal settings"
                )
            own[: tensor.shape[0]] = tensor
        self.written = int(state["written"])


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


def n_step(
    rewards: Tensor, terminated: Tensor, truncated: Tensor, gamma: float
) -> tuple[Tensor, Tensor, Tensor]:
    """n-step returns of the first of `n` consecutive steps, each input `[n, B]`.

    Returns `(reward, discount, last)`, each `[B]`: the discounted sum of rewards up to the first
    end of an episode, the factor of the value of the observation that followed step `last` (0 after
    a termination), and that step's number, int64 in [0, n).
    """
    steps, accounts = rewards.shape
    total = torch.zeros_like(rewards[0])
    discount = torch.ones_like(rewards[0])
    running = torch.ones_like(rewards[0])
    last = torch.zeros(accounts, dtype=torch.int64, device=rewards.device)
    for k in range(steps):
        total = total + running * gamma**k * rewards[k]
        last = torch.where(running > 0, k, last)
        discount = torch.where(
            running > 0, gamma ** (k + 1) * (~terminated[k]).to(rewards.dtype), discount
        )
        running = running * (~(terminated[k] | truncated[k])).to(rewards.dtype)
    return total, discount, last
