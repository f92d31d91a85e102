"""Advantages and n-step returns by their definitions: plain Python sums, one account at a time."""

from __future__ import annotations

from collections.abc import Sequence


def gae_by_definition(
    rewards: Sequence[float],
    values: Sequence[float],
    next_values: Sequence[float],
    terminated: Sequence[bool],
    truncated: Sequence[bool],
    gamma: float,
    gae_lambda: float,
) -> list[float]:
    """A_t = Σ_k (γλ)^k δ_{t+k}, the sum ending with the first step at which an episode ends."""
    advantages = []
    for t in range(len(rewards)):
        total, weight = 0.0, 1.0
        for k in range(t, len(rewards)):
            future = 0.0 if terminated[k] else next_values[k]
            total += weight * (rewards[k] + gamma * future - values[k])
            if terminated[k] or truncated[k]:
                break
            weight *= gamma * gae_lambda
        advantages.append(total)
    return advantages


def n_step_by_definition(
    rewards: Sequence[float], terminated: Sequence[bool], truncated: Sequence[bool], gamma: float
) -> tuple[float, float, int]:
    """Discounted sum up to the first end, factor of the value that follows, and number of the last step."""
    total = 0.0
    for k, reward in enumerate(rewards):
        total += gamma**k * reward
        if terminated[k]:
            return total, 0.0, k
        if truncated[k]:
            return total, gamma ** (k + 1), k
    return total, gamma ** len(rewards), len(rewards) - 1
