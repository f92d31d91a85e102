"""skrl: tensors without copies, and exact bootstrapping at time limits under its PPO."""

import pytest
import torch

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import EnvError
from tests.engines.oracle_mdp import GAMMA, oracle_market, oracle_settings, value
from tests.factories import make_market

pytest.importorskip("skrl")

from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from torch import nn

from fintrader.envs.adapters.skrl import SkrlEnv


def spaces(env):
    return {
        "observation_space": env.observation_space,
        "action_space": env.action_space,
        "device": env.device,
    }


class Actor(GaussianMixin, Model):
    def __init__(self, env):
        Model.__init__(self, **spaces(env))
        GaussianMixin.__init__(self)
        self.net = nn.Linear(self.num_observations, self.num_actions)
        self.log_std = nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs, role=""):
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Critic(DeterministicMixin, Model):
    """A linear value, or the oracle's."""

    def __init__(self, env, *, oracle):
        Model.__init__(self, **spaces(env))
        DeterministicMixin.__init__(self)
        self.net = nn.Linear(self.num_observations, 1)
        self.oracle = oracle

    def compute(self, inputs, role=""):
        obs = inputs["observations"]
        return (value(obs).unsqueeze(1) + 0 * self.net(obs) if self.oracle else self.net(obs)), {}


def make_agent(env, folder, rollouts, *, oracle=False):
    cfg = PPO_CFG()
    cfg.rollouts = rollouts
    cfg.learning_epochs = 1
    cfg.mini_batches = 2
    cfg.discount_factor = GAMMA
    cfg.gae_lambda = 0.95
    cfg.experiment.directory = str(folder)
    cfg.experiment.write_interval = 0
    cfg.experiment.checkpoint_interval = 0
    agent = PPO(
        models={"policy": Actor(env), "value": Critic(env, oracle=oracle)},
        memory=RandomMemory(memory_size=rollouts, num_envs=env.num_envs, device=env.device),
        **spaces(env),
        cfg=cfg,
    )
    env.bootstrap_with(agent)
    return agent


def test_nothing_is_copied():
    inner = TradingEnv(make_market(100, 3), EnvSettings(episode_bars=7), num_envs=6)
    env = SkrlEnv(inner)
    env.reset()
    seen = []
    original = inner.step
    inner.step = lambda actions: seen.append(original(actions)) or seen[-1]
    obs, *_ = env.step(torch.zeros(6, 3))
    assert obs.data_ptr() == seen[0][0].data_ptr()


def test_bfloat16_observations_reach_models_as_float32(tmp_path):
    settings = EnvSettings(episode_bars=5, observation_dtype="bfloat16")
    env = SkrlEnv(TradingEnv(make_market(100, 3), settings, num_envs=4))
    agent = make_agent(env, tmp_path, 8)
    obs, _ = env.reset()
    for _ in range(6):  # past an episode's end, where the last observation is valued, too
        action, _ = agent.policy.act({"observations": obs}, role="policy")
        obs, reward, *_ = env.step(action)
        assert obs.dtype == reward.dtype == torch.float32


def test_ppo_returns_equal_the_known_value(tmp_path):
    env = SkrlEnv(TradingEnv(oracle_market(), oracle_settings(), num_envs=8, seed=3))
    agent = make_agent(env, tmp_path, 60, oracle=True)
    SequentialTrainer(
        env=env,
        agents=agent,
        cfg={
            "timesteps": 60,
            "headless": True,
            "disable_progressbar": True,
            "close_environment_at_exit": False,
        },
    ).train()
    memory = agent.memory
    returns = memory.get_tensor_by_name("returns")
    obs = memory.get_tensor_by_name("observations")
    assert int(memory.get_tensor_by_name("terminated").sum()) > 60
    torch.testing.assert_close(returns.squeeze(-1), value(obs), atol=2e-3, rtol=0)


def test_a_second_bootstrap_is_refused(tmp_path):
    env = SkrlEnv(TradingEnv(make_market(100, 3), EnvSettings(), num_envs=2))
    agent = make_agent(env, tmp_path, 4)
    agent.cfg.time_limit_bootstrap = True
    with pytest.raises(EnvError, match="time_limit_bootstrap"):
        env.bootstrap_with(agent)
    agent.cfg.time_limit_bootstrap = False
    agent.cfg.rewards_shaper = lambda reward, *_: 0.1 * reward
    with pytest.raises(EnvError, match="rewards_shaper"):
        env.bootstrap_with(agent)
