"""SIGKILL in the middle of a real `fintrader train`: what comes out is what an undisturbed process makes."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fintrader.cli import main
from fintrader.files import read_json
from tests.engines.killing import assert_same_training, killed_at, writes_of
from tests.engines.runs import write_config

AGENTS: dict[str, dict[str, Any]] = {
    "ppo": {"algo": "ppo", "num_steps": 8},
    "apg": {"algo": "apg", "num_steps": 8},
    # one line of metrics for every four steps of the environment
    "sac": {"algo": "sac", "learning_starts": 256, "batch_size": 64, "buffer_size": 2000, "report_every": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("algo", sorted(AGENTS))
def test_many_kills_leave_no_trace_in_the_result(tmp_path: Path, algo: str) -> None:
    """A training that stores its state after every update; one kill after another, at random files."""
    updates, kills = 100, 50 if "FINTRADER_SLOW" in os.environ else 5
    budget = {"env_steps": updates * 16 * (4 if algo == "sac" else 8)}
    env = {"num_envs": 16, "episode_bars": 100, "decision_interval": 5}
    how = {"agent": AGENTS[algo], "env": env, "checkpoint_seconds": 0, "tournament": {"budget": budget}}
    config = write_config(tmp_path, **how)
    whole, killed = (partial(main, ["train", str(config), "--name", name]) for name in ("whole", "killed"))
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
    assert set(judged) == {"policy", "buy_and_hold", "equal_weight", "benchmark"}
