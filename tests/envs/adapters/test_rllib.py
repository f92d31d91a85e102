"""RLlib: an environment runner's episodes, and exact bootstrapping at time limits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from fintrader.envs.adapters.gymnasium import SingleTradingEnv
from fintrader.envs.adapters.rllib import NumpyVectorEnv, rllib_env
from fintrader.errors import ConfigError
from tests.engines.oracle_mdp import GAMMA, oracle_market, oracle_settings, value
from tests.factories import make_market


def test_creator_makes_what_rllib_asks_for(tmp_path: Path) -> None:
    path = tmp_path / "market.safetensors"
    make_market(60, 3).save(path)
    vector = rllib_env({"market": path, "num_envs": 5, "settings": {"episode_bars": 4}})
    assert isinstance(vector, NumpyVectorEnv)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    obs, _ = vector.reset(seed=1)
    obs, reward, *_ = vector.step(vector.action_space.sample())
    assert isinstance(obs, np.ndarray)
    assert reward.shape == (5,)
    assert isinstance(rllib_env({"market": path}), SingleTradingEnv)
    with pytest.raises(ConfigError, match="episode_bars"):
        rllib_env({"market": path, "settings": {"episode_bar": 4}})


def test_runner_episodes_equal_the_known_value() -> None:
    pytest.importorskip("ray.rllib")
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    config = (
        PPOConfig()
        .environment(rllib_env, env_config={"market": oracle_market(), "settings": oracle_settings()})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=8, gym_env_vectorize_mode="vector_entry_point")
        .training(gamma=GAMMA)
    )
    runner = SingleAgentEnvRunner(config=config)
    episodes = runner.sample(num_timesteps=4000, random_actions=True)
    steps, cuts, ruins = 0, 0, 0
    for episode in episodes:
        values = value(torch.as_tensor(np.stack(episode.get_observations()))).numpy()
        rewards = np.asarray(episode.get_rewards())
        assert len(values) == len(rewards) + 1
        successor = values[1:].copy()
        if episode.is_terminated:
            successor[-1] = 0.0
        np.testing.assert_allclose(rewards + GAMMA * successor, values[:-1], atol=2e-3)
        steps, cuts, ruins = steps + len(rewards), cuts + episode.is_truncated, ruins + episode.is_terminated
        assert len(rewards) <= 5
    assert steps >= 4000
    assert cuts > 20
    assert ruins > 2  # about one in 130 steps, hence so many steps
    runner.stop()
