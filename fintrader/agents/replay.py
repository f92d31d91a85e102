"""The replay buffer of off-policy agents, and n-step returns."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fintrader.agents.buffers import StepBuffer, Transition
from fintrader.envs.observation import StateDict, Tensors
from fintrader.errors import CheckpointError
from fintrader.memory import HOST, require_memory


class NStepBatch(NamedTuple):
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
    """`[n, R, D]`: observation after each of the n steps."""


class ReplayBuffer(StepBuffer):
    """The last `num_steps` steps of `num_envs` accounts: preallocated, time first, oldest
    overwritten first."""

    def __post_init__(self) -> None:
        """Allocate the buffer. Raises ConfigError when holding or storing it needs more memory than
        there is."""
        steps = self.num_steps * self.num_envs
        needed = steps * (4 * (2 * self.obs_width + self.latent_width + 1) + 2)
        subject = f"agent.buffer_size of {steps:,} steps"
        remedy = "lower agent.buffer_size"
        require_memory(needed, self.device, subject, remedy)
        # Storing a buffer on a GPU takes a copy on the host; one on the host is written directly.
        if self.device != HOST:
            require_memory(needed, HOST, f"storing {subject}", remedy)
        super().__post_init__()
        self.written = 0
        """Steps ever added."""

    @property
    def filled(self) -> int:
        """Steps held, each of `num_envs` accounts."""
        return min(self.written, self.num_steps)

    def add(self, transition: Transition, latent: Tensor) -> None:
        """Write one step over the oldest."""
        self.write(self.written % self.num_steps, transition, latent)
        self.written += 1

    def sample(self, batch_size: int, n: int, generator: torch.Generator) -> NStepBatch:
        """Draw `batch_size` runs of `n` consecutive steps of one account uniformly; needs
        `filled >= n`."""
        device = self.obs.device
        oldest = self.written - self.filled
        step = oldest + torch.randint(
            self.filled - n + 1, (batch_size,), generator=generator, device=device
        )
        account = torch.randint(self.num_envs, (batch_size,), generator=generator, device=device)
        rows = (step + torch.arange(n, device=device).unsqueeze(1)) % self.num_steps
        return NStepBatch(
            self.obs[rows[0], account],
            self.latent[rows[0], account],
            self.reward[rows, account],
            self.terminated[rows, account],
            self.truncated[rows, account],
            self.next_obs[rows, account],
        )

    def state_dict(self) -> StateDict:
        """Return views of the rows held, in the buffer's order, and the number of steps ever
        written."""
        names = ("obs", "next_obs", "latent", "reward", "terminated", "truncated")
        state = {name: getattr(self, name)[: self.filled] for name in names}
        return {**state, "written": torch.tensor(self.written)}

    def load_state_dict(self, state: Tensors) -> None:
        """Restore a `state_dict()`. Raises CheckpointError when the stored shapes differ."""
        filled = min(int(state["written"]), self.num_steps)
        for name, tensor in state.items():
            if name == "written":
                continue
            own = getattr(self, name)
            if tensor.shape != (filled, *own.shape[1:]):
                raise CheckpointError(
                    f"the stored replay buffer's {name} does not fit; resume with equal settings"
                )
            own[:filled] = tensor
        self.written = int(state["written"])


def sum_n_steps(
    rewards: Tensor, terminated: Tensor, truncated: Tensor, gamma: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the n-step return of `n` consecutive steps `[n, B]`, from the first one on.

    Returns `(reward, discount, last)`, each `[B]`. `last`, int64 in [0, n): the step at which an
    episode first ends, else the last one; `reward`: the discounted sum of rewards up to it;
    `discount`: the factor of the value of the observation after it, 0 after a termination.
    """
    total = torch.zeros_like(rewards[0])
    discount = running = torch.ones_like(rewards[0])
    last = torch.zeros_like(total, dtype=torch.int64)
    for k in range(len(rewards)):
        total = total + running * gamma**k * rewards[k]
        last = torch.where(running > 0, k, last)
        discount = torch.where(
            running > 0, gamma ** (k + 1) * (~terminated[k]).to(rewards.dtype), discount
        )
        running = running * (~(terminated[k] | truncated[k])).to(rewards.dtype)
    return total, discount, last
