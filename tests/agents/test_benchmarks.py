"""Kelly's weights, which the benchmarks judge by, are the optimum of their market."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import time_to_return
from benchmarks.kelly import ASSETS, COVARIANCE, WEIGHTS, expected_growth
from fintrader.backtesting.account import make_account


def test_the_growth_of_kellys_weights_is_that_of_the_closed_form() -> None:
    # g = μ'w − w'Σw / 2, which is w'Σw / 2 at w = Σ⁻¹ μ; a bar is not an instant, hence the tolerance
    closed = float(WEIGHTS @ COVARIANCE @ WEIGHTS / 2)
    assert float(expected_growth(WEIGHTS.unsqueeze(0))) == pytest.approx(closed, rel=0.02)


def test_no_weights_near_kellys_grow_faster() -> None:
    best = expected_growth(WEIGHTS.unsqueeze(0))
    moved = WEIGHTS + 0.04 * torch.cat([torch.eye(ASSETS), -torch.eye(ASSETS)]).double()
    assert bool((expected_growth(moved) < best).all())
    assert float(expected_growth(2 * WEIGHTS.unsqueeze(0)) / best) == pytest.approx(0, abs=0.1)  # twice Kelly: nothing


def test_the_rule_earns_and_a_finrl_policy_sees_finrl_states() -> None:
    _, market = time_to_return.windows(1)
    assert market.num_bars == time_to_return.VALIDATION * time_to_return.SESSION
    window = market.window(0, 60)
    assert time_to_return.log_return(time_to_return.rule, market, time_to_return.OURS) > 0.1
    seen: list[np.ndarray] = []

    def act(state: np.ndarray) -> np.ndarray:
        seen.append(state)
        return np.where(np.arange(time_to_return.ASSETS) == 0, 1.0, 0.05)  # buys the first, below the band elsewhere

    policy = time_to_return.FinrlPolicy(act)
    account = make_account(window, time_to_return.THEIRS)
    account.act(policy(account))
    policy(account)
    first, second = seen
    count = time_to_return.ASSETS
    assert first.shape == (3 + 3 * count + count * (1 + time_to_return.NOISE_FEATURES),)
    assert first[0] == pytest.approx(1e6 * 2**-12)
    np.testing.assert_allclose(first[3 : 3 + count], window.close[0].numpy() * 2**-6, rtol=1e-6)
    held = second[3 + count : 3 + 2 * count] * 2**6
    assert held.tolist() == [100.0] + [0.0] * (count - 1)
    assert second[3 + 2 * count : 3 + 3 * count].tolist() == [0.0] + [1.0] * (count - 1)
    assert second[0] == pytest.approx((1e6 - 100 * float(window.close[1, 0]) * 1.001) * 2**-12, rel=1e-5)
