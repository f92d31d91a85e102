import json
import os
import random
from functools import partial
from importlib import import_module

import gymnasium
import pytest
import yaml

from fintrader.agents import load_policy, off_policy, train
from fintrader.cli import main
from fintrader.config import validate
from fintrader.envs.settings import TradingSettings
from fintrader.errors import CheckpointError, ConfigError, RunError
from fintrader.files import read_json
from fintrader.pipeline.config import RunConfig, load_config
from fintrader.pipeline.train import EVALUATION_EPISODES, train_one
from tests import ROOT
from tests.cli.test_commands import complaint
from tests.engines.killing import assert_same_training, killed_at, writes_of
from tests.engines.runs import write_config


def classic(folder, **changes):
    """A small training in Pendulum as a file; dotted names in `changes` with `__`."""
    values = {
        "runs_dir": str(folder / "runs"),
        "device": "cpu",
        "env": {
            "kind": "gymnasium",
            "id": "Pendulum-v1",
            "num_envs": 2,
            "workers": "sync",
        },
        "agent": {"algo": "ppo", "num_steps": 16, "network": {"hidden": [8]}},
        "tournament": {"budget": {"env_steps": 128}},
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        values[section] = {**values[section], key: value} if key else value
    path = folder / "classic.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def evaluation(folder):
    return dict(json.loads((folder / "runs" / "classic" / "train" / "evaluation.json").read_text()))


def test_the_trading_environment_is_the_default_kind():
    assert isinstance(validate(RunConfig, {}, "here").env, TradingSettings)
    assert validate(RunConfig, {"env": {"num_envs": 3}}, "here").trading.num_envs == 3
    classics = ("hopper", "pendulum")
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        config = load_config(path)
        assert config.name == path.stem
        assert isinstance(config.env, TradingSettings) == (path.stem not in classics), path
    with pytest.raises(ConfigError, match=r"env.observation: unknown setting"):
        validate(RunConfig, {"env": {"observation": "factored"}}, "here")
    with pytest.raises(ConfigError, match=r"env.*gymnasium"):
        validate(RunConfig, {"env": {"kind": "chess"}}, "here")


@pytest.mark.slow
def test_a_classic_environment_is_trained_and_judged(tmp_path):
    path = classic(tmp_path)
    main(["train", str(path)])
    found = evaluation(tmp_path)
    assert found["env_steps"] == 128
    assert len(found["returns"]) == EVALUATION_EPISODES
    assert found["mean_return"] == pytest.approx(sum(found["returns"]) / EVALUATION_EPISODES)
    assert -2500 < found["mean_return"] < 0
    assert (
        load_policy(tmp_path / "runs" / "classic" / "train" / "policy.safetensors").layout.width
        == 3
    )
    state = tmp_path / "runs" / "classic" / "train" / "state.safetensors"
    before = state.read_bytes()
    main(["train", str(path)])  # over already: nothing is trained, the judgement is the same
    assert evaluation(tmp_path) == found
    assert state.read_bytes() == before
    with pytest.raises(RunError, match=r"agent\.gamma"):
        train_one(load_config(classic(tmp_path, agent__gamma=0.5)))
    state.write_bytes(before[: len(before) // 2])
    with pytest.raises(CheckpointError, match=r"state\.safetensors.* truncated or damaged"):
        train_one(load_config(classic(tmp_path)))
    assert state.read_bytes() == before[: len(before) // 2]


def test_the_command_line_chooses_the_environment(tmp_path):
    path = tmp_path / "classic.yaml"
    path.write_text(
        yaml.safe_dump({"runs_dir": str(tmp_path / "runs"), "env": {"num_envs": 2, "cost_bps": 5}})
    )
    words = "--env.kind gymnasium --env.workers sync --tournament.budget.env-steps 32"
    main(["train", str(path), *words.split(), "--agent.num-steps", "16"])
    assert evaluation(tmp_path)["environment"] == "Pendulum-v1"


SIMULATOR = """
import gymnasium
import numpy as np

class Drift(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=1)
        return self.place.astype(np.float32), {}

    def step(self, action):
        self.place = self.place + 0.2 * action
        return self.place.astype(np.float32), -float(abs(self.place[0])), False, False, {}

gymnasium.register("Drift-v0", entry_point=Drift, max_episode_steps=10)
"""


@pytest.mark.parametrize("workers", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_a_simulator_of_ones_own_is_imported_by_its_name(tmp_path, workers, monkeypatch):
    (tmp_path / f"{workers}_simulator.py").write_text(SIMULATOR)
    path = classic(tmp_path, env__id=f"{workers}_simulator:Drift-v0", env__workers=workers)
    with pytest.raises(ConfigError, match=f"{workers}_simulator.*PYTHONPATH"):
        train_one(load_config(path))
    monkeypatch.syspath_prepend(tmp_path)
    main(["train", str(path)])
    assert evaluation(tmp_path)["env_steps"] == 128
    assert -90 < evaluation(tmp_path)["mean_return"] < 0


def test_a_classic_environment_is_not_walked_forward(tmp_path):
    assert "is no market" in complaint("walkforward", str(classic(tmp_path)))
    assert not (tmp_path / "runs" / "classic" / "config.yaml").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env__id": "CartPole-v1"}, r"Discrete\(2\).*continuous"),
        ({"env__id": "Pendulm-v1"}, "Did you mean: `Pendulum`"),
        ({"agent": {"algo": "apg"}}, "apg needs the trading environment"),
        (
            {"agent": {"algo": "ddpg", "buffer_size": 10**13}},
            r"buffer_size of 10,000,000,000,000 steps needs .* GiB",
        ),
        ({"env__id": "Reacher-v5"}, r"pip install .gymnasium\[classic-control,mujoco\]"),
    ],
)
def test_what_cannot_be_trained(tmp_path, changes, said, monkeypatch):
    real = gymnasium.make

    def make(name):
        if name == "Reacher-v5":  # as on a machine without the extra
            raise gymnasium.error.DependencyNotInstalled("MuJoCo is not installed")
        return real(name)

    monkeypatch.setattr(gymnasium, "make", make)
    with pytest.raises(ConfigError, match=said):
        train_one(load_config(classic(tmp_path, **changes)))


@pytest.mark.slow
def test_locomotion_trains(tmp_path):
    pytest.importorskip("mujoco", reason="mujoco is missing: pip install '.[classic]'")
    sac = {
        "algo": "sac",
        "learning_starts": 32,
        "batch_size": 16,
        "network": {"hidden": [8]},
    }
    path = classic(tmp_path, env__id="Hopper-v5", agent=sac)
    main(["train", str(path), "--tournament.budget.env-steps", "96"])
    assert evaluation(tmp_path)["mean_return"] > 0


AGENTS = {
    "ppo": {"algo": "ppo", "num_steps": 8},
    "apg": {"algo": "apg", "num_steps": 8},
    "sac": {
        "algo": "sac",
        "learning_starts": 256,
        "batch_size": 64,
        "buffer_size": 2000,
    },
}


def train_storing_each_update(config, name):
    """`fintrader train`, which stores its state after every update instead of every ten seconds."""
    trainer = import_module("fintrader.pipeline.train")
    trainer.train = partial(train, checkpoint_seconds=0.0)
    off_policy.REPORT_STEPS = 4  # in a process of its own
    main(["train", str(config), "--name", name])


@pytest.mark.slow
@pytest.mark.parametrize("algo", sorted(AGENTS))
def test_many_kills_leave_no_trace_in_the_result(tmp_path, algo):
    """SIGKILL after SIGKILL, at random files, of a `fintrader train` that stores its state after
    every update."""
    updates = 100
    kills = 50 if "FINTRADER_SLOW" in os.environ else 5
    budget = {"env_steps": updates * 16 * (4 if algo == "sac" else 8)}
    env = {"num_envs": 16, "episode_bars": 100, "decision_interval": 5}
    how = {
        "agent": AGENTS[algo],
        "env": env,
        "tournament": {"budget": budget},
    }
    config = write_config(tmp_path, **how)
    whole, killed = (
        partial(train_storing_each_update, config, name) for name in ("whole", "killed")
    )
    writes = writes_of(whole)
    assert writes > updates
    assert killed_at(killed, writes // (2 * kills))
    rng = random.Random(kills)
    for _ in range(kills - 1):
        killed_at(killed, rng.randint(0, 2 * writes // kills))
    assert writes_of(killed) > 0
    one, other = (tmp_path / "runs" / name / "train" for name in ("whole", "killed"))
    assert_same_training(one, other)
    for name in ("policy.safetensors", "validation.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    judged = read_json(one / "validation.json")["metrics"]
    assert set(judged) == {"policy", "ridge", "buy_and_hold", "equal_weight", "benchmark"}
