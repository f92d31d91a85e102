"""Stable-Baselines3: its environment checker, a PPO run, and exact bootstrapping at time limits."""

import warnings

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.adapters.gymnasium import SingleTradingEnv
from fintrader.errors import EnvError
from tests.engines.oracle_mdp import GAMMA, oracle_market, oracle_settings, value
from tests.factories import make_market

stable_baselines3 = pytest.importorskip("stable_baselines3")

from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.env_checker import check_env  # noqa: E402

from fintrader.envs.adapters.sb3 import Sb3VecEnv  # noqa: E402


def test_check_env_accepts_the_single_account():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(SingleTradingEnv(make_market(60, 4), EnvSettings(episode_bars=10)))


def test_arrays_are_copies_and_ends_are_told():
    settings = EnvSettings(episode_bars=3)
    env = Sb3VecEnv(TradingEnv(make_market(60, 3), settings, num_envs=2, seed=4))
    twin = TradingEnv(make_market(60, 3), settings, num_envs=2, seed=4)
    obs = env.reset()
    twin.reset()
    kept = obs.copy()
    for step in range(3):
        action = np.full((2, 3), 0.3, dtype=np.float32)
        new, reward, done, infos = env.step(action)
        expected = twin.step(action)
        assert not np.shares_memory(new, obs)
        np.testing.assert_array_equal(reward, expected[1].numpy())
        assert all(info["TimeLimit.truncated"] == (step == 2) for info in infos)
    np.testing.assert_array_equal(obs, kept)
    assert done.all()
    final = np.stack([info["terminal_observation"] for info in infos])
    np.testing.assert_array_equal(final, expected[4]["final_obs"].numpy())
    np.testing.assert_array_equal(new, expected[0].numpy())
    assert env.get_attr("num_envs") == [2, 2]
    with pytest.raises(EnvError, match="SameStep"):
        Sb3VecEnv(TradingEnv(make_market(60, 3), autoreset_mode=AutoresetMode.NEXT_STEP))


def test_ppo_returns_equal_the_known_value():
    env = Sb3VecEnv(TradingEnv(oracle_market(), oracle_settings(), num_envs=8, seed=3))
    model = PPO("MlpPolicy", env, n_steps=64, gamma=GAMMA, gae_lambda=0.95, seed=1, device="cpu")
    model._setup_learn(512)
    model.policy.predict_values = lambda obs: value(obs).unsqueeze(1)
    forward = model.policy.forward

    def known_value(obs, deterministic=False):
        action, _, log_prob = forward(obs, deterministic)
        return action, value(obs).unsqueeze(1), log_prob

    model.policy.forward = known_value
    _, callback = model._setup_learn(512)
    model.collect_rollouts(env, callback, model.rollout_buffer, 64)
    buffer = model.rollout_buffer
    assert buffer.episode_starts.sum() > 50
    np.testing.assert_allclose(
        buffer.returns, value(torch.as_tensor(buffer.observations)).numpy(), atol=2e-3
    )
