"""DLPack: the environment driven with numpy arrays (and JAX's, where it is installed) that share
its memory."""

import numpy as np
import pytest
import torch

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.adapters.dlpack import DlpackEnv
from fintrader.errors import EnvError
from tests.factories import make_market


def test_numpy_shares_memory_and_agrees():
    market = make_market(60, 3)
    settings = EnvSettings(episode_bars=4)
    env = DlpackEnv(TradingEnv(market, settings, num_envs=3), np.from_dlpack)
    twin = TradingEnv(market, settings, num_envs=3)
    obs, _ = env.reset(seed=1)
    expected, _ = twin.reset(seed=1)
    assert isinstance(obs, np.ndarray)
    for _ in range(6):
        action = np.full((3, 3), 0.2, dtype=np.float32)
        obs, reward, terminated, truncated, info = env.step(action)
        expected, *_ = twin.step(torch.from_numpy(action))
        np.testing.assert_array_equal(obs, expected.numpy())
        assert {array.dtype for array in (terminated, truncated)} == {np.dtype(bool)}
        assert isinstance(info["final_obs"], np.ndarray)
        assert reward.shape == (3,)
    tensor = env.env.account.cash
    assert np.shares_memory(env.convert(tensor), tensor.numpy())
    with pytest.raises(EnvError, match="dlpack"):
        env.step([[0.0] * 3] * 3)


def test_jax():
    jax = pytest.importorskip("jax")
    env = DlpackEnv(TradingEnv(make_market(60, 3), num_envs=2), jax.dlpack.from_dlpack)
    obs, _ = env.reset(seed=1)
    obs, *_ = env.step(jax.numpy.zeros((2, 3)))
    assert isinstance(obs, jax.Array)
