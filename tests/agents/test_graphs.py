"""Gradient steps by CUDA graphs learn what their launches learn."""

import logging
from concurrent.futures import ThreadPoolExecutor

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


def learn(algo, tmp_path=None, *, replays=True, shares=(1.0,), device="cuda", change=None):
    """Train an agent briefly on the GPU; return its weights before and after, and its steps.
    `change` modifies the agent first."""
    for share in shares:
        env = TradingEnv(
            make_market(200, 6), EnvSettings(episode_bars=9), num_envs=64, seed=0, device=device
        )
        agent = make_agent(agent_settings(algo, ALGORITHMS[algo]), env.layout, device=device)
        if change is not None:
            change(agent)
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


def make_wait(agent):
    """Make the agent's gradient step wait for the device, after it has drawn noise."""
    descend = agent.descend

    def descend_and_wait(*args):
        agent.draw_normal(torch.Size([3]))
        norm = descend(*args)
        assert float(norm) >= 0
        return norm

    agent.descend = descend_and_wait


@pytest.mark.gpu
@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_training_goes_on_after_a_failed_recording(algo, caplog):
    first, launched, _ = learn(algo, replays=False, change=make_wait)
    stream = torch.cuda.current_stream()
    with caplog.at_level(logging.WARNING):
        _, trained, steps = learn(algo, change=make_wait)
    assert not steps.can_record
    assert caplog.text.count("without CUDA graphs") == 1
    assert torch.cuda.current_stream() == stream
    assert torch.dist(trained, launched) < 0.05 * torch.dist(launched, first)


@pytest.mark.gpu
def test_threads_record_side_by_side():
    cards = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    devices = (cards * 2)[: max(2, len(cards))]
    with ThreadPoolExecutor(len(devices)) as threads:
        results = list(threads.map(lambda device: learn("ppo", device=device), devices))
    first, single, _ = learn("ppo")
    for _, trained, steps in results:
        assert steps.can_record
        assert any(steps.recordings.values())
        assert torch.dist(trained.to("cuda"), single) < 0.05 * torch.dist(single, first)
