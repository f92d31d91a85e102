"""What the benchmarks judge by is the optimum of its market."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import time_to_return
from benchmarks.kelly import ASSETS, COVARIANCE, WEIGHTS, expected_growth
from benchmarks.known_optimum import SETTINGS, TRUE_RATE, QuadraticMarket, evaluate, optimal_policy
from fintrader.agents import Budget, make_agent, train
from fintrader.backtesting.account import BacktestAccount
from tests.engines.tiny import agent_settings


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
    account = BacktestAccount(window, time_to_return.THEIRS)
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


def test_nothing_near_the_closed_form_is_better() -> None:
    best, slope = evaluate(optimal_policy, steps=300)
    assert slope == pytest.approx(TRUE_RATE, rel=1e-4)
    for factor in (0.7, 1.4):
        assert evaluate(lambda obs, f=factor: optimal_policy(obs, TRUE_RATE * f), steps=300)[0] < best
    for tilt in (0.8, 1.2):

        def tilted(obs: torch.Tensor, tilt: float = tilt) -> torch.Tensor:
            held, factor, ones = obs.chunk(3, dim=1)
            return optimal_policy(torch.cat([held, tilt * factor, ones], dim=1))

        assert evaluate(tilted, steps=300)[0] < best
    half = evaluate(lambda obs: optimal_policy(obs, TRUE_RATE / 2), steps=300)[0]
    assert half / best == pytest.approx(0.964, abs=0.01)


def test_analytic_gradients_come_near_the_optimum() -> None:
    env = QuadraticMarket(256, realised=True, seed=0)
    settings = agent_settings("apg", SETTINGS["apg"])
    agent = make_agent(settings, env.layout, seed=0)
    best, _ = evaluate(optimal_policy)
    assert evaluate(agent.policy)[0] < 0.2 * best
    train(agent, env, Budget(env_steps=256 * settings.num_steps * 25))
    assert evaluate(agent.policy)[0] > 0.9 * best
