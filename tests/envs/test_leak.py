"""A policy that is handed the future beats buy-and-hold by a wide margin; one bar later the same
feature is worthless.

Learning from a leak shows that actions reach the market and rewards reach the learner; learning
nothing from the shifted feature shows that the environment itself leaks nothing.
"""

import pytest
import torch

from fintrader.agents import PPO, Budget, NetworkSettings, make_agent, train
from fintrader.envs import EnvSettings, TradingEnv
from tests.factories import make_market, reprice

SETTINGS = EnvSettings(num_envs=64, cost_bps=0.0, episode_bars=60, reward_scale=100.0)


def market_with(leaked, *, seed):
    """A random walk that opens where it closed; the feature is the return of the next bar, or of
    this one."""
    market = make_market(1500, 4, 1, gaps=False, seed=seed, volatility=0.005)
    close = market.close
    opens = torch.cat((close[:1], close[:-1]))
    returns = torch.log(close / opens)
    known = torch.cat((returns[1:], returns[:1] * 0)) if leaked else returns
    return reprice(market, open=opens, features=(known / 0.005).unsqueeze(-1))


def growth(policy, market):
    """Last equity over first."""
    env = TradingEnv.evaluation(market, SETTINGS)
    obs, _ = env.reset()
    done = False
    while not done:
        action = policy(obs)
        obs, _, terminated, truncated, _ = env.step(action)
        done = bool(terminated | truncated)
    return float(env.equity) / SETTINGS.initial_cash_usd


def trained_growth(leaked):
    """Growth on unseen bars of PPO after a short training, and of buy-and-hold there."""
    env = TradingEnv(market_with(leaked, seed=1), SETTINGS, seed=1)
    agent = make_agent(PPO(network=NetworkSettings(kind="per_asset")), env.layout, seed=1)
    train(agent, env, Budget(env_steps=60_000))
    unseen = market_with(leaked, seed=2)
    with torch.no_grad():
        return growth(agent.policy, unseen), growth(lambda obs: torch.ones(1, 4), unseen)


@pytest.mark.slow
def test_the_future_is_worth_a_fortune_and_the_past_is_not():
    leaked, hold = trained_growth(leaked=True)
    assert leaked > 2.0 * hold
    shifted, hold = trained_growth(leaked=False)
    assert 0.7 * hold < shifted < 1.4 * hold
