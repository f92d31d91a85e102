"""RLlib: training, an environment runner's episodes, and exact bootstrapping at time limits."""

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from fintrader.envs.adapters.gymnasium import NumpyVectorEnv, SingleTradingEnv
from fintrader.envs.adapters.rllib import rllib_env
from fintrader.envs.settings import EnvSettings
from fintrader.errors import ConfigError
from tests.engines.oracle_mdp import GAMMA, oracle_market, oracle_settings, value
from tests.factories import make_market


@pytest.fixture
def local_ray(monkeypatch):
    """A Ray of this test's own, whatever cluster runs on this machine."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    pytest.importorskip(
        "ray.rllib", reason="RLlib is not installed here; `make test-adapters` runs this test"
    )
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    yield
    ray.shutdown()


def test_creator_makes_what_rllib_asks_for(tmp_path):
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


def configure(env, world, *, runners):
    from ray.rllib.algorithms.ppo import PPOConfig

    config = PPOConfig().environment(env, env_config=world)
    return config.env_runners(
        num_env_runners=runners,
        num_envs_per_env_runner=8,
        gym_env_vectorize_mode="vector_entry_point",
    )


def test_runner_episodes_equal_the_known_value():
    pytest.importorskip("ray.rllib")
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    world = {"market": oracle_market(), "settings": oracle_settings()}
    config = configure(rllib_env, world, runners=0).training(gamma=GAMMA)
    runner = SingleAgentEnvRunner(config=config)
    episodes = runner.sample(num_timesteps=4000, random_actions=True)
    steps = 0
    cuts = 0
    ruins = 0
    for episode in episodes:
        values = value(torch.as_tensor(np.stack(episode.get_observations()))).numpy()
        rewards = np.asarray(episode.get_rewards())
        assert len(values) == len(rewards) + 1
        successor = values[1:].copy()
        if episode.is_terminated:
            successor[-1] = 0.0
        np.testing.assert_allclose(rewards + GAMMA * successor, values[:-1], atol=2e-3)
        steps = steps + len(rewards)
        cuts = cuts + episode.is_truncated
        ruins = ruins + episode.is_terminated
        assert len(rewards) <= 5
    assert steps >= 4000
    assert cuts > 20
    assert ruins > 2  # about one in 130 steps, hence so many steps
    runner.stop()


@pytest.mark.ray
def test_two_rounds_of_training_with_a_registered_environment(tmp_path, local_ray):
    from ray.tune.registry import register_env

    make_market(200, 3).save(tmp_path / "market.safetensors")
    register_env("fintrader", rllib_env)
    world = {"market": tmp_path / "market.safetensors", "settings": EnvSettings(episode_bars=20)}
    config = configure("fintrader", world, runners=1).training(
        train_batch_size_per_learner=256, minibatch_size=64, num_epochs=2
    )
    algo = config.build_algo()
    before = {name: value.copy() for name, value in algo.get_module().get_state().items()}
    results = [algo.train(), algo.train()]
    after = algo.get_module().get_state()
    algo.stop()
    sampled = [result["env_runners"]["num_env_steps_sampled_lifetime"] for result in results]
    assert 256 <= sampled[0] < sampled[1]
    assert 0 < results[1]["env_runners"]["episode_len_mean"] <= 20.0
    assert any((after[name] != value).any() for name, value in before.items())
