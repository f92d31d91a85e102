"""Compiled advantages of a rollout, because torch's operations for each step take longer to start
than to run."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fintrader.agents.fast.loops import njit_pass, to_arrays


# A step reads the advantages of the next one while they are in the nearest cache.
@njit_pass
def _estimate(columns: Any, discounts: Any, advantage: Any, target: Any) -> None:
    """Write the results of `buffers.gae` to `advantage` and `target`, `[T, B]`."""
    reward, value, next_value, terminated, truncated = columns
    gamma, gae_lambda = discounts
    steps, accounts = reward.shape
    for t in range(steps - 1, -1, -1):
        for b in range(accounts):
            trace = reward[t, b] - value[t, b]
            if not terminated[t, b]:
                trace += gamma * next_value[t, b]
                if t + 1 < steps and not truncated[t, b]:
                    trace += gamma * gae_lambda * advantage[t + 1, b]
            advantage[t, b] = trace
            target[t, b] = trace + value[t, b]


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Any:
    """Compute `buffers.gae`; return NotImplemented if a gradient is needed."""
    if rewards.requires_grad or values.requires_grad or next_values.requires_grad:
        return NotImplemented
    columns = to_arrays(rewards, values, next_values, terminated, truncated)
    to_type = columns[0].dtype.type
    estimates = rewards.new_empty(2, *rewards.shape)
    _estimate(tuple(columns), (to_type(gamma), to_type(gae_lambda)), *estimates.numpy())
    return estimates.unbind()
