"""Returns and advantages, with termination and truncation apart.

A *terminated* step has no future: nothing is bootstrapped beyond it. A *truncated* step was cut off by a clock:
its future is the value of the true final observation. Either ends the trace, because the next stored step
belongs to another episode (https://arxiv.org/abs/1712.00378).
"""

from __future__ import annotations

import torch
from torch import Tensor


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

    All inputs are `[T, B]`, time first; `next_values[t]` is the value of the observation that step `t` truly led
    to (the final one where the episode ended, never the first one of the next episode). Returns advantages and
    the value targets `advantages + values`, both `[T, B]`.
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


def n_step(rewards: Tensor, terminated: Tensor, truncated: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """n-step returns of the first of `n` consecutive steps, each input `[n, B]`.

    Returns `(reward, discount, last)`, each `[B]`: the discounted sum of rewards up to the first end of an
    episode, the factor of the value of the observation that followed step `last` (0 after a termination), and
    that step's number, int64 in [0, n).
    """
    steps, accounts = rewards.shape
    total = torch.zeros_like(rewards[0])
    discount = torch.ones_like(rewards[0])
    running = torch.ones_like(rewards[0])
    last = torch.zeros(accounts, dtype=torch.int64, device=rewards.device)
    for k in range(steps):
        total = total + running * gamma**k * rewards[k]
        last = torch.where(running > 0, k, last)
        discount = torch.where(running > 0, gamma ** (k + 1) * (~terminated[k]).to(rewards.dtype), discount)
        running = running * (~(terminated[k] | truncated[k])).to(rewards.dtype)
    return total, discount, last
