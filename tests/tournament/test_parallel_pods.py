"""Learners and the pipeline switched on in a configuration: in pods, and in `fintrader train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load

from fintrader.agents import PPO, SAC, Budget, NetworkSettings, load_policy
from fintrader.agents.checkpoint import read_tensors
from fintrader.agents.on_policy import OnPolicyAgent
from fintrader.agents.parallel.learners import BatchedLearners
from fintrader.agents.parallel.pipeline import PipelinedAgent
from fintrader.agents.training import FORMAT
from fintrader.cli import main
from fintrader.runs import RunFolder
from fintrader.tournament import pod_training as bodies
from fintrader.tournament.generator import Generator
from fintrader.tournament.leaderboard import Leaderboard
from fintrader.tournament.spec import PodContext, PodOutput, PodSpec
from fintrader.tournament.store import RunStore
from tests.tournament.test_real_pods import ENV, SETTINGS, market_file

NETWORK = NetworkSettings(hidden=(8,))
LEARNERS = PPO(network=NETWORK, num_steps=8, num_minibatches=1, learners=2)
PIPELINE = SAC(network=NETWORK, learning_starts=32, batch_size=16, report_every=8, buffer_size=1000, pipeline=True)


class Killed(Exception):
    """The pod's process ends here."""


def spec_of(agent: Any) -> PodSpec:
    settings = SETTINGS.model_copy(update={"budget": Budget(env_steps=256)})
    return Generator(settings, (agent,), ENV.model_dump(mode="json"), seed=5, data_hash="").fresh(0, Leaderboard(4))


def run(folder: Path, spec: PodSpec, kill_at: float | None = None) -> tuple[PodOutput, PodContext]:
    def report(share: float, env_steps: int, note: str) -> None:
        if kill_at is not None and share >= kill_at:
            raise Killed

    context = PodContext(RunFolder(folder), market_file(folder), report=report)
    context.folder = context.run.pod(spec.pod)
    context.folder.mkdir(parents=True, exist_ok=True)
    return bodies.train_and_evaluate(spec, context), context


@pytest.mark.parametrize("agent", [LEARNERS, PIPELINE], ids=["learners", "pipeline"])
def test_a_killed_pod_resumes_bit_exactly_and_its_child_goes_on(
    agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, trained = bodies.train, []

    def spy(learner: Any, *rest: Any, **named: Any) -> Any:
        trained.append((learner, learner.state_dict()))
        return train(learner, *rest, **{**named, "checkpoint_seconds": 0.0})

    monkeypatch.setattr(bodies, "train", spy)
    spec = spec_of(agent)
    whole, context = run(tmp_path / "whole", spec)
    assert whole.env_steps == 256
    assert whole.score is not None
    with pytest.raises(Killed):
        run(tmp_path / "killed", spec, kill_at=0.5)
    again, _ = run(tmp_path / "killed", spec)
    assert again.snapshot == whole.snapshot
    assert (again.score, again.updates) == (whole.score, whole.updates)
    # it was this kind of agent, and what it stored is one policy
    made = trained[0][0]
    if agent is LEARNERS:
        assert isinstance(made, OnPolicyAgent)
        assert isinstance(getattr(made.learner, "__self__", None), BatchedLearners)
    else:
        assert isinstance(made, PipelinedAgent)
    state = load(whole.snapshot)
    policy = load_policy(context.folder / "policy.safetensors").state_dict()
    assert all(torch.equal(tensor, state[f"modules.policy.{name}"]) for name, tensor in policy.items())
    # a child begins with its parent's networks and moments
    run_folder = tmp_path / "child"
    digest = RunStore(RunFolder(run_folder)).put(whole.snapshot)
    run(run_folder, spec.model_copy(update={"pod": "p0001", "seed": 9, "parent": spec.pod, "snapshot": digest}))
    began = trained[-1][1]
    inherited = [name for name in state if name.startswith(("modules.", "optimisers."))]
    assert any(name.startswith("optimisers.") for name in inherited)
    assert all(torch.equal(began[name], state[name]) for name in inherited)


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("--agent.algo a2c --agent.learners 2 --agent.num-steps 16", "learners", 2),
        ("--agent.algo td3 --agent.pipeline true --agent.learning-starts 32 --agent.batch-size 16", "pipeline", True),
    ],
)
def test_the_command_line_switches_them_on(words: str, key: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    values = {
        "runs_dir": str(tmp_path / "runs"),
        "device": "cpu",
        "env": {"kind": "gymnasium", "id": "Pendulum-v1", "num_envs": 2, "workers": "sync", "evaluation_episodes": 1},
        "agent": {"network": {"hidden": [8]}},
        "tournament": {"budget": {"env_steps": 256}},
    }
    path.write_text(yaml.safe_dump(values))
    main(["train", str(path), *words.split()])
    home = tmp_path / "runs" / "small" / "train"
    assert json.loads((home / "evaluation.json").read_text())["env_steps"] >= 256
    assert load_policy(home / "policy.safetensors").layout.width == 3
    tensors, header = read_tensors(home / "state.safetensors", FORMAT)
    assert header["identity"]["agent"][key] == value
    assert ("agent.pipeline.generator" in tensors) == (key == "pipeline")
