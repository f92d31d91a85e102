"""Classic environments: worker processes, resets, bounds, and what a policy earns in them."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from fintrader.agents import PPO, Budget, NetworkSettings, make_agent, train
from fintrader.envs.classic import WorkerEnv, episode_returns
from fintrader.envs.settings import GymnasiumSettings
from fintrader.errors import ConfigError, EnvError


def ppo():
    return PPO(num_steps=8, network=NetworkSettings(hidden=(8,)))


class Counter(gymnasium.Env[Any, Any]):
    """Counts its steps, shows the count, ends after three; its reward is the action as it
    arrived."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,))
    action_space = gymnasium.spaces.Box(np.float32(2.0), np.float32(4.0), (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.array([self.np_random.random()], np.float32), {}

    def step(self, action):
        self.count += 1
        return np.array([self.count], np.float32), float(action[0]), False, self.count == 3, {}


def counter_env(num_envs=2, seed=0):
    return WorkerEnv(
        SyncVectorEnv([Counter] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP), seed=seed
    )


def test_workers_stretch_actions_and_report_the_true_final_observation():
    env = counter_env()
    first, _ = env.reset(seed=1)
    assert first[0] != first[1]  # workers' seeds differ
    assert torch.equal(first, env.reset(seed=1)[0])
    for k in range(1, 4):
        obs, reward, terminated, truncated, info = env.step(torch.tensor([[-1.0], [0.5]]))
        assert reward.tolist() == [2.0, 3.5]
        assert not terminated.any()
        assert truncated.tolist() == [k == 3] * 2
        assert info["final_obs"].flatten().tolist() == [k, k]
    assert bool((obs < 1).all())  # the next episode's first observation


def test_simulators_are_given_no_nan():
    env = counter_env()
    env.reset(seed=1)
    with pytest.raises(EnvError, match="NaN"):
        env.step(torch.tensor([[0.0], [torch.nan]]))


@pytest.mark.slow
def test_pendulum_in_processes():
    env = WorkerEnv.make(GymnasiumSettings(num_envs=2), seed=4)
    try:
        agent = make_agent(ppo(), env.layout, seed=0)
        result = train(agent, env, Budget(env_steps=64))
        assert result.updates == 4
        returns = episode_returns(env, agent.policy, 2, seed=1)
        assert all(-2500 < value < 0 for value in returns)
    finally:
        env.close()


def test_environments_that_do_not_fit():
    with pytest.raises(ConfigError, match="continuous Box"):
        WorkerEnv.make(GymnasiumSettings(id="CartPole-v1", workers="sync"))
    with pytest.raises(ConfigError, match="NoSuch"):
        WorkerEnv.make(GymnasiumSettings(id="NoSuch-v0"))
    with pytest.raises(ConfigError, match="SAME_STEP"):
        WorkerEnv(SyncVectorEnv([Counter]))


def test_resuming_a_classic_environment_begins_fresh_episodes(tmp_path):
    agent = make_agent(ppo(), counter_env().layout, seed=0)
    train(agent, counter_env(), Budget(env_steps=32), folder=tmp_path)
    again = make_agent(ppo(), counter_env().layout, seed=0)
    result = train(again, counter_env(), Budget(env_steps=64), folder=tmp_path)
    assert (result.env_steps, result.updates) == (64, 4)


class Uneven(Counter):
    """Copies that were seeded with an odd number play episodes of one step, the others of five;
    reward 1 a step."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.length = 1 if seed % 2 else 5
        return super().reset(seed=seed)

    def step(self, action):
        obs, *_ = super().step(action)
        return obs, 1.0, False, self.count == self.length, {}


def test_short_episodes_do_not_crowd_out_long_ones():
    env = WorkerEnv(SyncVectorEnv([Uneven] * 6, autoreset_mode=AutoresetMode.SAME_STEP))
    returns = episode_returns(env, lambda obs: torch.zeros(len(obs), 1), 12, seed=3)
    lengths = [copy.length for copy in env.env.envs]
    assert sorted(set(lengths)) == [1, 5]
    assert returns == [float(length) for length in lengths for _ in range(2)]


class Endless(Counter):
    def step(self, action):
        return super().step(action)[0], 1.0, False, False, {}


def test_an_episode_without_an_end_is_an_error(monkeypatch):
    monkeypatch.setattr("fintrader.envs.classic.MOST_STEPS", 50)
    env = WorkerEnv(SyncVectorEnv([Endless] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    with pytest.raises(EnvError, match="with max_episode_steps"):
        episode_returns(env, lambda obs: torch.zeros(len(obs), 1), 2, seed=1)
