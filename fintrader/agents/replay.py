"""A ring of past steps, for agents that learn from any of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fintrader.agents.buffers import Transition
from fintrader.agents.memory import HOST, require_memory
from fintrader.errors import CheckpointError


class Batch(NamedTuple):
    """`R` sampled n-step transitions; observations are raw, rewards `[n, R]` belong to consecutive steps."""

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


class ReplayRing:
    """The last `num_steps` steps of `num_envs` accounts: preallocated, time first, oldest overwritten first."""

    def __init__(self, num_steps: int, num_envs: int, obs_width: int, latent_width: int, device: torch.device) -> None:
        """Raises ConfigError when it, or storing it, would take more memory than there is."""
        needed = num_steps * num_envs * (4 * (2 * obs_width + latent_width + 1) + 2)
        what, remedy = f"agent.buffer_size of {num_steps * num_envs:,} steps", "lower agent.buffer_size"
        require_memory(needed, device, what, remedy)
        if device != HOST:  # on its way into a file it lies on the host once; a ring on the host is written as it is
            require_memory(needed, HOST, f"storing {what}", remedy)
        shape = (num_steps, num_envs)
        self.obs = torch.zeros(*shape, obs_width, device=device)
        self.next_obs = torch.zeros(*shape, obs_width, device=device)
        self.latent = torch.zeros(*shape, latent_width, device=device)
        self.reward = torch.zeros(shape, device=device)
        self.terminated = torch.zeros(shape, dtype=torch.bool, device=device)
        self.truncated = torch.zeros(shape, dtype=torch.bool, device=device)
        self.num_steps, self.num_envs = num_steps, num_envs
        self.written = 0
        """Steps ever added."""

    @property
    def filled(self) -> int:
        """Steps held, each of `num_envs` accounts."""
        return min(self.written, self.num_steps)

    def add(self, transition: Transition, latent: Tensor) -> None:
        """Write one step over the oldest."""
        t = self.written % self.num_steps
        self.obs[t] = transition.obs
        self.next_obs[t] = transition.next_obs
        self.latent[t] = latent
        self.reward[t] = transition.reward
        self.terminated[t] = transition.terminated
        self.truncated[t] = transition.truncated
        self.written += 1

    def sample(self, batch_size: int, n: int, generator: torch.Generator) -> Batch:
        """`batch_size` uniformly drawn runs of `n` consecutive steps of one account; needs `filled >= n`."""
        device = self.obs.device
        oldest = self.written - self.filled
        step = torch.randint(self.filled - n + 1, (batch_size,), generator=generator, device=device) + oldest
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
        """The steps held, in the order of the ring's rows, as views of them, and how many were ever written."""
        names = ("obs", "next_obs", "latent", "reward", "terminated", "truncated")
        state = {name: getattr(self, name)[: self.filled] for name in names}
        return {**state, "written": torch.tensor(self.written)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Raises CheckpointError when the stored ring is of another shape."""
        for name, tensor in state.items():
            if name == "written":
                continue
            own = getattr(self, name)
            if tensor.shape[1:] != own.shape[1:] or tensor.shape[0] > own.shape[0]:
                raise CheckpointError(f"the stored replay ring's {name} does not fit; resume with equal settings")
            own[: tensor.shape[0]] = tensor
        self.written = int(state["written"])
