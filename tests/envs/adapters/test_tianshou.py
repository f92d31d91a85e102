"""tianshou: returns over time limits and ruins, and the actions that it sends."""

import gymnasium
import numpy as np
import pytest
import torch

from fintrader.envs.adapters.gymnasium import SingleTradingEnv
from tests.engines.oracle_mdp import GAMMA, oracle_market, oracle_settings, value

pytest.importorskip("tianshou", reason="tianshou is not installed")

from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic
from torch.distributions import Independent, Normal


class Oracle(torch.nn.Module):
    """The known value, in place of a critic."""

    def forward(self, obs):
        return value(torch.as_tensor(obs)).unsqueeze(1)


class Watched(gymnasium.Wrapper):
    """Keep the actions that reach an environment."""

    def __init__(self, env):
        super().__init__(env)
        self.sent = []

    def step(self, action):
        self.sent.append(action)
        return super().step(action)


def test_its_returns_equal_the_known_value():
    torch.manual_seed(0)
    single = [
        Watched(SingleTradingEnv(oracle_market(), oracle_settings(), seed=seed))
        for seed in range(8)
    ]
    envs = DummyVectorEnv([lambda env=env: env for env in single])
    shape, space = envs.observation_space[0].shape, envs.action_space[0]
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=shape, hidden_sizes=[8]), action_shape=space.shape
    )
    policy = ProbabilisticActorPolicy(
        actor=actor, dist_fn=lambda parts: Independent(Normal(*parts), 1), action_space=space
    )
    adam = AdamOptimizerFactory(lr=1e-3)
    algorithm = PPO(policy=policy, critic=Oracle(), optim=adam, gamma=GAMMA, gae_lambda=0.95)
    buffer = VectorReplayBuffer(1024, 8)
    Collector(algorithm, envs, buffer).collect(n_step=512, reset_before_collect=True)
    batch, rows = buffer.sample(0)
    assert batch.truncated.sum() > 50
    assert batch.terminated.sum() > 2
    with torch.no_grad():
        batch = algorithm._preprocess_batch(batch, buffer, rows)
    known = value(torch.as_tensor(batch.obs))
    torch.testing.assert_close(batch.returns, known, atol=2e-3, rtol=0.0, check_dtype=False)
    # The environments do not reset themselves: a step from an end would not solve the equation.
    assert len(batch) == 512
    sent = np.concatenate([env.sent for env in single])
    acts = np.concatenate([buffer.buffers[k].act[:64] for k in range(8)])
    np.testing.assert_allclose(sent, np.clip(acts, -1, 1), atol=1e-6)
    assert np.abs(sent).max() == 1.0
