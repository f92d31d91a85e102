from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fintrader.agents import Budget, make_agent, read_agent_state, train
from fintrader.agents.buffers import Transition
from fintrader.agents.parallel.pipeline import PipelinedAgent
from fintrader.config import validate
from fintrader.errors import CheckpointError, ConfigError
from fintrader.pipeline.config import RunConfig
from tests.engines.killing import Killed, assert_same_training, killed_after
from tests.engines.tiny import DEVICES, Identity, agent_settings

OFF: dict[str, Any] = {
    "network": {"hidden": [32]},
    "learning_starts": 256,
    "batch_size": 128,
    "report_every": 10,
    "gamma": 0.0,
    "learning_rate": 3e-3,
    "pipeline": True,
}


def pipelined(algo: str, values: dict[str, Any] | None = None, seed: int = 0) -> PipelinedAgent:
    agent = make_agent(agent_settings(algo, {**OFF, **(values or {})}), Identity().layout, seed=seed)
    assert isinstance(agent, PipelinedAgent)
    return agent


@pytest.mark.parametrize("values", [{}, {"updates_per_step": 0.3}, {"updates_per_step": 3.0, "noise_persistence": 0.8}])
@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac", "redq"])
def test_it_resumes_bit_exactly(algo: str, values: dict[str, Any], tmp_path: Path) -> None:
    def run(folder: str, on_progress: Any = None) -> int:
        agent, budget = pipelined(algo, values), Budget(env_steps=16 * 60)
        train(agent, Identity(seed=3), budget, folder=tmp_path / folder, on_progress=on_progress, checkpoint_seconds=0)
        return agent.agent.learned

    assert run("whole") > 0
    with pytest.raises(Killed):
        run("killed", killed_after(3))
    run("killed")
    assert_same_training(tmp_path / "whole", tmp_path / "killed")


def test_accounts_trade_on_while_an_update_runs() -> None:
    """The update waits for the next step of the accounts: in turns, neither would ever end."""
    agent = pipelined("ddpg", {"report_every": 10_000})
    inner, learn = agent.agent, agent.agent.learn
    acted = threading.Event()

    def learn_after_the_accounts_acted(sample: Any) -> dict[str, torch.Tensor]:
        assert acted.wait(timeout=600)
        return learn(sample)

    inner.learn = learn_after_the_accounts_acted  # type: ignore[method-assign]
    never = torch.zeros(16, dtype=torch.bool)
    obs = torch.rand(16, 2)
    while agent._updates is None:
        agent.observe(Transition(obs, agent.act(obs), -obs.sum(dim=1), never, never, obs))
        agent.update()
    before = agent.act(obs)
    assert before.shape == (16, 2)
    assert inner.learned == 0
    acted.set()
    agent._take_over()
    assert inner.learned == 1


def test_an_error_in_the_thread_reaches_the_loop() -> None:
    agent = pipelined("sac")

    def broken(sample: object) -> dict[str, torch.Tensor]:
        raise RuntimeError("the learner broke")

    agent.agent.learn = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the learner broke"):
        train(agent, Identity(seed=3), Budget(env_steps=10_000))


@pytest.mark.parametrize("device", DEVICES)
def test_the_thread_learns_what_the_agent_alone_learns(device: str) -> None:
    """From one replay buffer and one random stream both must come to the same weights."""
    values = {**OFF, "updates_per_step": 40.0, "report_every": 10_000}
    layout = Identity().layout
    alone, ahead = (
        make_agent(agent_settings("td3", {**values, "pipeline": on}), layout, device=device, seed=3)
        for on in (False, True)
    )
    draw = torch.Generator().manual_seed(1)
    never = torch.zeros(16, dtype=torch.bool, device=device)
    while alone.warming_up:
        obs, after = torch.rand(2, 16, 2, generator=draw).to(device)
        action = alone.act(obs)
        ahead._front.latent = alone.latent
        for agent in (alone, ahead):
            agent.observe(Transition(obs, action, -obs.sum(dim=1), never, never, after))
    ahead.agent.generator.set_state(alone.generator.get_state())
    alone.update()
    ahead.update()
    mine, theirs = ahead.state_dict(), alone.state_dict()
    assert ahead.agent.learned == alone.learned == 40
    for name, tensor in theirs.items():
        if name.startswith(("modules.", "optimisers.")):
            torch.testing.assert_close(mine[name], tensor, msg=name)
    for name, weights in ahead._front.actor.state_dict().items():
        assert torch.equal(weights, mine[f"modules.policy.actor.{name}"]), name


def test_parents_and_children_may_be_pipelined_or_not(tmp_path: Path) -> None:
    parent = pipelined("sac", seed=1)
    train(parent, Identity(seed=3), Budget(env_steps=1_600), folder=tmp_path)
    theirs = read_agent_state(tmp_path)
    plain = make_agent(agent_settings("sac", {**OFF, "pipeline": False}), Identity().layout, seed=5)
    child = pipelined("sac", seed=5)
    for agent in (plain, child):
        agent.inherit(theirs)
        mine = agent.state_dict()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine if name.startswith(("modules", "optimisers")))
    # it acts with what it inherited at once, as the plain child does
    obs = torch.rand(4, 2)
    with torch.no_grad():
        assert torch.equal(child._front.actor(obs)[0], child.agent.actor(obs)[0])
    assert child._front.has_parent
    with pytest.raises(CheckpointError, match="without a pipeline"):
        pipelined("sac").load_state_dict(plain.state_dict())


@pytest.mark.parametrize("algo", ["ppo", "a2c", "apg"])
def test_pipelines_that_make_no_sense(algo: str) -> None:
    with pytest.raises(ConfigError, match="replay buffer"):
        validate(RunConfig, {"agent": {"algo": algo, "pipeline": True}}, "test.yaml")
