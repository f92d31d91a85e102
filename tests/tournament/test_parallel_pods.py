from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from fintrader.agents import PPO, SAC, Budget, NetworkSettings, load_policy
from fintrader.agents.checkpoint import read_tensors
from fintrader.agents.on_policy import OnPolicyAgent
from fintrader.agents.parallel import BatchedLearners, PipelinedAgent
from fintrader.agents.training import FORMAT
from fintrader.cli import main
from fintrader.runs import RunFolder
from fintrader.tournament.fusion import learners
from fintrader.tournament.store import RunStore
from tests.engines.killing import Killed
from tests.engines.races import AGENT, first_spec, train_pod
from tests.pipeline.test_train import classic, evaluation

NETWORK = NetworkSettings(hidden=(8,))
LEARNERS = PPO(network=NETWORK, num_steps=8, num_minibatches=1, learners=2)
PIPELINE = SAC(network=NETWORK, learning_starts=32, batch_size=16, report_every=8, buffer_size=1000, pipeline=True)


@pytest.mark.parametrize("agent", [AGENT, LEARNERS, PIPELINE], ids=["plain", "learners", "pipeline"])
def test_a_killed_pod_resumes_bit_exactly_and_its_child_goes_on(
    agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, trained = learners.train, []

    def spy(learner: Any, *rest: Any, **named: Any) -> Any:
        trained.append((learner, learner.state_dict()))
        return train(learner, *rest, **{**named, "checkpoint_seconds": 0.0})

    monkeypatch.setattr(learners, "train", spy)

    def kill(share: float, env_steps: int, note: str) -> None:
        if share >= 0.5:
            raise Killed

    spec = first_spec(agent, budget=Budget(env_steps=256))
    whole, context = train_pod(tmp_path / "whole", spec)
    assert whole.env_steps == 256
    assert whole.score is not None
    with pytest.raises(Killed):
        train_pod(tmp_path / "killed", spec, report=kill)
    again, _ = train_pod(tmp_path / "killed", spec)
    assert again.snapshot == whole.snapshot
    assert (again.score, again.updates) == (whole.score, whole.updates)
    # it was this kind of agent, and what it stored is one policy
    made = trained[0][0]
    assert isinstance(made, PipelinedAgent) == (agent is PIPELINE)
    if isinstance(made, OnPolicyAgent):
        assert isinstance(getattr(made.learner, "__self__", None), BatchedLearners) == (agent is LEARNERS)
    stored = RunStore(context.run).get(str(whole.snapshot))
    state = load(stored)
    policy = load_policy(context.folder / "policy.safetensors").state_dict()
    assert all(torch.equal(tensor, state[f"modules.policy.{name}"]) for name, tensor in policy.items())
    # a child begins with its parent's networks and moments
    run_folder = tmp_path / "child"
    digest = RunStore(RunFolder(run_folder)).put(stored)
    train_pod(run_folder, spec.model_copy(update={"pod": "p0001", "seed": 9, "parent": spec.pod, "snapshot": digest}))
    began = trained[-1][1]
    inherited = [name for name in state if name.startswith(("modules.", "optimisers."))]
    assert any(name.startswith("optimisers.") for name in inherited)
    assert all(torch.equal(began[name], state[name]) for name in inherited)


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("--agent.algo a2c --agent.learners 2 --agent.num-steps 16", "learners", 2),
        ("--agent.algo td3 --agent.pipeline True --agent.learning-starts 32 --agent.batch-size 16", "pipeline", True),
    ],
)
def test_the_command_line_switches_them_on(words: str, key: str, value: object, tmp_path: Path) -> None:
    path = classic(tmp_path, agent={"network": {"hidden": [8]}}, tournament={"budget": {"env_steps": 256}})
    main(["train", str(path), *words.split()])
    assert evaluation(tmp_path)["env_steps"] >= 256
    home = tmp_path / "runs" / "classic" / "train"
    assert load_policy(home / "policy.safetensors").layout.width == 3
    tensors, header = read_tensors(home / "state.safetensors", FORMAT)
    assert header["identity"]["agent"][key] == value
    assert ("agent.pipeline.generator" in tensors) == (key == "pipeline")
