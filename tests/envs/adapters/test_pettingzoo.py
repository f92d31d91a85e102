"""PettingZoo's own parallel API test, and agreement with the vectorised game."""

import warnings

import numpy as np
import pytest
import torch

from fintrader.envs import EnvSettings
from fintrader.envs.multi_agent import MultiTraderEnv
from fintrader.envs.settings import TraderSettings
from fintrader.errors import EnvError
from tests.engines.oracle_mdp import GAMMA, oracle_market, oracle_settings, value
from tests.factories import make_market

pytest.importorskip("pettingzoo")

from pettingzoo.test import parallel_api_test

from fintrader.envs.adapters.pettingzoo import TradersParallelEnv


def test_parallel_api():
    settings = EnvSettings(episode_bars=20, ruin_fraction=0.95)
    env = TradersParallelEnv(
        make_market(120, 3, volatility=0.05), settings, TraderSettings(teams=(1, 1, 1, 1))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(env, num_cycles=200)


def test_agrees_with_the_vectorised_game():
    market = make_market(60, 3)
    settings = EnvSettings(episode_bars=10)
    env = TradersParallelEnv(market, settings, seed=7)
    game = MultiTraderEnv(market, settings, seed=7)
    obs, _ = env.reset()
    expected, _ = game.reset()
    rng = np.random.default_rng(0)
    for step in range(10):
        for i, agent in enumerate(env.possible_agents):
            np.testing.assert_array_equal(obs[agent], expected[0, i].numpy())
        actions = {agent: rng.uniform(-1, 1, 3).astype(np.float32) for agent in env.agents}
        obs, rewards, _, cuts, _ = env.step(actions)
        batch = torch.tensor(np.stack([actions[agent] for agent in env.possible_agents]))[None]
        expected, reward, *_ = game.step(batch)
        assert list(rewards.values()) == reward[0].tolist()
        assert set(cuts.values()) == {step == 9}
    assert env.agents == []
    env.reset()
    with pytest.raises(EnvError, match="trader_1"):
        env.step({"trader_0": np.zeros(3, dtype=np.float32)})
    before = [one.clone() for one in env.env.account]
    good = np.zeros(3, dtype=np.float32)
    for bad, message in (
        (0.5, "shape"),
        (good[:2], "shape"),
        ("buy", "numbers"),
        (good + np.nan, "NaN"),
    ):
        with pytest.raises(EnvError, match=message):
            env.step({"trader_0": good, "trader_1": bad})
    assert all(torch.equal(one, kept) for one, kept in zip(env.env.account, before, strict=True))


@pytest.mark.slow
def test_every_temporal_difference_is_zero():
    env = TradersParallelEnv(
        oracle_market(), oracle_settings(), TraderSettings(teams=(1, 1, 1)), seed=2
    )
    rng = np.random.default_rng(0)
    cuts = 0
    ruins = 0
    for game in range(80):
        obs, _ = env.reset(seed=game)
        while env.agents:
            actions = {agent: rng.random(2, dtype=np.float32) for agent in env.agents}
            following, rewards, ends, limits, _ = env.step(actions)
            for agent, reward in rewards.items():
                after = 0.0 if ends[agent] else float(value(torch.as_tensor(following[agent])))
                assert reward + GAMMA * after == pytest.approx(
                    float(value(torch.as_tensor(obs[agent]))), abs=1e-3
                )
            cuts = cuts + sum(limits.values())
            ruins = ruins + sum(ends.values())
            obs = following
    assert cuts > 100
    assert ruins > 5
