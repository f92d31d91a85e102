"""What an environment does without a seed, and with one."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch.nn.utils import parameters_to_vector

from fintrader.agents import PPO, Budget, make_agent, train
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.adapters.gymnasium import NumpyVectorEnv, SingleTradingEnv
from fintrader.envs.adapters.rllib import rllib_env
from fintrader.envs.classic import WorkerEnv
from fintrader.envs.joined import JoinedEnv
from fintrader.envs.multi_agent import MultiTraderEnv
from fintrader.envs.randomised import RandomisedEnv
from fintrader.errors import EnvError
from tests.factories import make_market

MARKET = make_market(4000, 2)
PIECES = [MARKET.window(0, 1900), MARKET.window(2000, 4000)]
SETTINGS = EnvSettings(num_envs=8, episode_bars=20)


def randomised(**seed):
    settings = EnvSettings(num_envs=8, episode_bars=20, randomise={"variants": 2, "delay_bars": 1})
    return RandomisedEnv(TradingEnv(MARKET, settings), **seed)


ENVIRONMENTS = {
    "tensors": lambda **seed: TradingEnv(MARKET, SETTINGS, **seed),
    "numpy": lambda **seed: NumpyVectorEnv(TradingEnv(MARKET, SETTINGS, **seed)),
    "single": lambda **seed: SingleTradingEnv(MARKET, SETTINGS, **seed),
    "rllib": lambda **seed: rllib_env({"market": MARKET, "settings": SETTINGS, **seed}),
    "pieces": lambda **seed: JoinedEnv(PIECES, SETTINGS, **seed),
    "variants": randomised,
    "traders": lambda **seed: MultiTraderEnv(MARKET, SETTINGS, num_games=8, **seed),
}


def first(env, **seed):
    """The first observation, as numpy."""
    return np.asarray(env.reset(**seed)[0])


def episodes(env):
    """The first observations of more episodes than two environments share by chance."""
    return np.stack([first(env) for _ in range(4)])


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_without_a_seed_two_environments_live_other_episodes(kind):
    make = ENVIRONMENTS[kind]
    one = make()
    other = make()
    assert one.np_random_seed != other.np_random_seed
    assert not np.array_equal(episodes(one), episodes(other))


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_equal_seeds_give_equal_episodes_at_construction_and_at_reset(kind):
    make = ENVIRONMENTS[kind]
    one = make(seed=5)
    other = make(seed=5)
    unseeded = make()
    seen = first(one)
    assert np.array_equal(seen, first(other))
    again = first(one)  # no seed: the streams go on
    assert not np.array_equal(again, seen)
    assert np.array_equal(again, first(other))
    if kind != "variants":  # whose variants are those of the seed at construction
        assert np.array_equal(first(unseeded, seed=9), first(one, seed=9))
        assert unseeded.np_random_seed == one.np_random_seed == 9
        assert np.array_equal(first(unseeded), first(one))


def test_the_drawn_seed_can_be_read_and_gives_the_same_episodes_again():
    env = TradingEnv(MARKET, SETTINGS)
    seen = first(env)
    again = TradingEnv(MARKET, SETTINGS, seed=env.np_random_seed)
    assert np.array_equal(first(again), seen)
    assert np.array_equal(first(TradingEnv(MARKET, SETTINGS), seed=env.np_random_seed), seen)
    cheaper = env.settings.model_copy(update={"cost_bps": 1.0})
    assert env.with_settings(cheaper).np_random_seed == env.np_random_seed


def test_a_list_seeds_each_account_and_an_unknown_seed_is_said_to_be():
    env = TradingEnv(MARKET, SETTINGS, num_envs=2, seed=[3, 4])
    assert env.np_random_seed == (3, 4)
    assert np.array_equal(first(env)[1:], first(TradingEnv(MARKET, SETTINGS, num_envs=1, seed=4)))
    other = TradingEnv(MARKET, SETTINGS, num_envs=2)
    other.load_state_dict(env.state_dict())
    assert other.np_random_seed == -1
    with pytest.raises(EnvError, match="2 seeds for 8 accounts"):
        TradingEnv(MARKET, SETTINGS, seed=[3, 4])


def test_eight_single_accounts_begin_at_eight_bars():
    """As `make_vec_env` of Stable-Baselines3 and gymnasium's own vector environments make them."""
    many = gymnasium.make_vec(
        "fintrader/Trading-v0",
        8,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        market=MARKET,
        settings=EnvSettings(episode_bars=5),
    )
    obs, _ = many.reset()
    for _ in range(3):
        assert len(np.unique(obs, axis=0)) > 5  # two may meet by chance
        for _ in range(5):
            obs, *_ = many.step(np.zeros((8, 2), np.float32))


class Noise(gymnasium.Env[Any, Any]):
    """Shows a random number."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(1, dtype=np.float32), {}

    def step(self, action):
        return self.np_random.random(1, dtype=np.float32), 0.0, False, True, {}


def test_classic_environments_draw_a_seed_and_go_on_without_one():
    def make(**seed):
        return WorkerEnv(SyncVectorEnv([Noise] * 3, autoreset_mode=AutoresetMode.SAME_STEP), **seed)

    one = make()
    other = make()
    assert one.seed != other.seed
    seen = first(one)
    assert len(np.unique(seen)) == 3
    assert not np.array_equal(seen, first(other))
    assert np.array_equal(first(make(seed=one.seed)), seen)
    assert not np.array_equal(first(one), seen)
    assert np.array_equal(first(one, seed=4), first(other, seed=4))


def test_a_training_depends_on_its_own_seed_alone():
    settings = PPO(num_steps=8, network={"hidden": [8]})
    weights = []
    for seed in (2, 2, 3):
        env = TradingEnv(MARKET, SETTINGS)
        agent = make_agent(settings, env.layout, seed=seed)
        train(agent, env, Budget(env_steps=128))
        weights.append(parameters_to_vector(agent.policy.parameters()))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
