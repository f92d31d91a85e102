"""The benchmark's closed form is the optimum of its market, and an agent that differentiates finds it."""

from __future__ import annotations

import pytest
import torch

from benchmarks.known_optimum import SETTINGS, TRUE_RATE, QuadraticMarket, evaluate, optimal_policy
from fintrader.agents import Budget, make_agent, train
from tests.engines.tiny import agent_settings


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
