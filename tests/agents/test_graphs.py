"""Gradient steps by CUDA graphs learn what their launches learn."""

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from fintrader.agents import Budget, make_agent, train
from fintrader.envs import EnvSettings, TradingEnv
from tests.engines.tiny import agent_settings
from tests.factories import make_market

ALGORITHMS = {
    "ppo": {"num_steps": 5, "anneal": True},
    "a2c": {"num_steps": 5},
    "sac": {"learning_starts": 128, "buffer_size": 4096, "batch_size": 64},
    "td3": {"learning_starts": 128, "buffer_size": 4096, "batch_size": 64},
    "redq": {"learning_starts": 128, "buffer_size": 4096, "batch_size": 64, "num_critics": 4},
}


def learn(algo, tmp_path=None, *, replays=True, shares=(1.0,)):
    """The agent's weights before and after a short training on the GPU, and its steps."""
    for share in shares:
        env = TradingEnv(
            make_market(200, 6), EnvSettings(episode_bars=9), num_envs=64, seed=0, device="cuda"
        )
        agent = make_agent(agent_settings(algo, ALGORITHMS[algo]), env.layout, device="cuda")
        first = parameters_to_vector(agent.modules.parameters()).detach().clone()
        agent.replayed.can_record = replays
        steps = 64 * (20 if algo in ("ppo", "a2c") else 100)
        train(agent, env, Budget(env_steps=steps), folder=tmp_path, share=share)
    return first, parameters_to_vector(agent.modules.parameters()).detach(), agent.replayed


@pytest.mark.gpu
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_replayed_steps_learn_what_launched_ones_learn(algo):
    first, launched, _ = learn(algo, replays=False)
    _, replayed, steps = learn(algo)
    assert steps.can_record  # no recording failed
    assert any(steps.recordings.values())
    # Gradients are added up in any order.
    assert torch.dist(replayed, launched) < 0.05 * torch.dist(launched, first)


@pytest.mark.gpu
@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_training_on_a_gpu_goes_on_where_it_stopped(algo, tmp_path):
    first, whole, _ = learn(algo)
    _, resumed, _ = learn(algo, tmp_path, shares=(0.5, 1.0))
    assert torch.dist(resumed, whole) < 0.05 * torch.dist(whole, first)
