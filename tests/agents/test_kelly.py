"""Kelly's weights are the best of the benchmark's market, and an agent that differentiates finds them."""

from __future__ import annotations

import pytest
import torch
from pydantic import TypeAdapter

from benchmarks.kelly import ASSETS, COVARIANCE, SETTINGS, WEIGHTS, KellyMarket, evaluate, expected_growth, growth
from fintrader.agents import AgentSettings, Budget, make_agent, train


def test_the_growth_rate_is_that_of_the_closed_form() -> None:
    # g = μ'w − w'Σw / 2, which is w'Σw / 2 at w = Σ⁻¹ μ; a bar is not an instant, hence the tolerance
    closed = float(WEIGHTS @ COVARIANCE @ WEIGHTS / 2)
    assert float(expected_growth(WEIGHTS.unsqueeze(0))) == pytest.approx(closed, rel=0.02)


def test_no_weights_nearby_grow_faster() -> None:
    best = expected_growth(WEIGHTS.unsqueeze(0))
    moved = WEIGHTS + 0.04 * torch.cat([torch.eye(ASSETS), -torch.eye(ASSETS)]).double()
    assert bool((expected_growth(moved) < best).all())
    assert float(expected_growth(2 * WEIGHTS.unsqueeze(0)) / best) == pytest.approx(0, abs=0.1)  # twice Kelly: nothing


def test_the_market_pays_the_growth_of_what_is_held() -> None:
    env = KellyMarket(20_000, seed=3)
    obs, _ = env.reset(seed=3)
    assert not obs[:, :ASSETS].any()
    weights = WEIGHTS.float().expand(20_000, -1)
    obs, reward, terminated, truncated, _ = env.step(weights)
    expected, deviation = float(expected_growth(WEIGHTS.unsqueeze(0))), float(WEIGHTS @ COVARIANCE @ WEIGHTS) ** 0.5
    assert float(reward.mean()) == pytest.approx(expected, abs=5 * deviation / 20_000**0.5)
    assert float(reward.std()) == pytest.approx(deviation, rel=0.05)
    assert not (terminated | truncated).any()
    # what is held moves with the prices: weights drift up where an asset beat the account
    gross = obs[:, :ASSETS] * reward.exp().unsqueeze(1) / weights
    torch.testing.assert_close(growth(weights, gross), reward, rtol=1e-3, atol=1e-5)


def test_shares_of_the_optimum_are_one_at_kelly_and_less_elsewhere() -> None:
    share, weights = evaluate(lambda obs: WEIGHTS.float().expand(len(obs), -1))
    assert share == pytest.approx(1.0, abs=1e-6)
    assert weights.tolist() == pytest.approx(WEIGHTS.tolist())
    assert evaluate(lambda obs: torch.full((len(obs), ASSETS), 0.2))[0] < 0.6


def test_analytic_gradients_find_the_weights() -> None:
    env = KellyMarket(256, seed=0)
    settings = TypeAdapter(AgentSettings).validate_python({"algo": "apg", **SETTINGS["apg"]})
    agent = make_agent(settings, env.layout, seed=0)
    assert evaluate(agent.policy)[0] < 0.9
    train(agent, env, Budget(env_steps=256 * 16 * 50))
    assert evaluate(agent.policy)[0] > 0.95
