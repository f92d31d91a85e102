from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fintrader.agents.buffers import gae, n_step
from tests.factories import examples


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def flags(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


@pytest.mark.parametrize(
    ("terminated", "truncated", "first"),
    [
        (1, 0, -1.0),  # δ_0 = 1 − 2 = −1 (no future), and step 1 belongs to another episode
        (0, 1, 3.5),  # δ_0 = 1 + 0.5·9 − 2 = 3.5 with the value of the true final observation
    ],
)
def test_an_end_cuts_bootstrap_and_trace_and_a_time_limit_the_trace(terminated: int, truncated: int, first: float):
    ends = flags(terminated, 0), flags(truncated, 0)
    advantages, _ = gae(column(1, 2), column(2, 3), column(9, 4), *ends, 0.5, 0.5)
    assert advantages.flatten().tolist() == [first, 1.0]


@settings(max_examples=examples(40))
@given(st.integers(0, 10_000), st.integers(1, 12), st.floats(0, 1), st.floats(0, 1))
def test_gae_equals_its_definition(seed: int, steps: int, gamma: float, gae_lambda: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    rewards, values, following = torch.randn(3, steps, 2, generator=draw, dtype=torch.float64)
    terminated, truncated = torch.rand(2, steps, 2, generator=draw) < 0.25
    advantages, targets = gae(rewards, values, following, terminated, truncated, gamma, gae_lambda)
    for account in range(2):
        inputs = [x[:, account].tolist() for x in (rewards, values, following, terminated, truncated)]
        assert advantages[:, account].tolist() == pytest.approx(gae_by_definition(*inputs, gamma, gae_lambda))
    torch.testing.assert_close(targets, advantages + values)


@settings(max_examples=examples(40))
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_n_step_equals_its_definition(seed: int, steps: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    rewards = torch.randn(steps, 3, generator=draw, dtype=torch.float64)
    terminated, truncated = torch.rand(2, steps, 3, generator=draw) < 0.25
    total, discount, last = n_step(rewards, terminated, truncated, 0.9)
    for account in range(3):
        expected = n_step_by_definition(
            rewards[:, account].tolist(), terminated[:, account].tolist(), truncated[:, account].tolist(), 0.9
        )
        assert (total[account].item(), discount[account].item(), last[account].item()) == pytest.approx(expected)


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
