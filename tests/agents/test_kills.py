"""SIGKILL at random moments of a real `fintrader train`: what comes out is what an undisturbed process makes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from fintrader.cli import main
from tests.engines.resume import assert_same_training

AGENTS: dict[str, dict[str, Any]] = {
    "ppo": {"algo": "ppo", "num_steps": 8},
    "apg": {"algo": "apg", "num_steps": 8},
    # one line of metrics for every four steps of the environment
    "sac": {"algo": "sac", "learning_starts": 256, "batch_size": 64, "buffer_size": 2000, "report_every": 4},
}


def configuration(folder: Path, algo: str, updates: int) -> Path:
    steps = updates * 16 * (4 if algo == "sac" else 8)
    values = {
        "runs_dir": str(folder / "runs"),
        "cache": str(folder / "cache"),
        "device": "cpu",
        "checkpoint_seconds": 0.05,
        "data": {"source": {"kind": "synthetic", "num_symbols": 3, "num_sessions": 20}},
        "env": {"num_envs": 16, "episode_bars": 100, "decision_interval": 5},
        "agent": AGENTS[algo],
        "tournament": {"budget": {"env_steps": steps}},
    }
    path = folder / f"{algo}.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


class Training:
    """A process, and what it has left behind so far."""

    def __init__(self, config: Path, name: str) -> None:
        self.home = config.parent / "runs" / name / "train"
        self.found = self.written()
        command = [sys.executable, "-m", "fintrader", "train", str(config), "--name", name]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )

    def written(self) -> tuple[int, int]:
        """When its log was last written (ns), and how many lines that has."""
        path = self.home / "metrics.jsonl"
        return (path.stat().st_mtime_ns, path.read_bytes().count(b"\n")) if path.exists() else (0, 0)

    def killed(self, rng: random.Random, updates: int) -> bool:
        """Kill it while it starts, or so many updates after it went on; False when it ended before."""
        if rng.random() < 0.2:
            time.sleep(rng.uniform(0.0, 3.0))
        else:
            target: int | None = None
            while self.process.poll() is None:
                moment, lines = self.written()
                if target is None and moment != self.found[0]:  # it has cut its log back to the stored state
                    target = lines + updates
                if target is not None and lines >= target:
                    break
                time.sleep(0.002)
        alive = self.process.poll() is None
        self.process.send_signal(signal.SIGKILL)
        _, said = self.process.communicate()
        assert alive or self.process.returncode == 0, said.decode()
        return alive


def train(config: Path, name: str) -> Path:
    """The same training to its end, in this process."""
    main(["train", str(config), "--name", name])
    return config.parent / "runs" / name / "train"


def kill_and_compare(folder: Path, algo: str, kills: int, updates: int) -> int:
    """Kill so many processes, let the last one end; returns how many were alive when they were killed."""
    config = configuration(folder, algo, updates)
    whole = train(config, "whole")
    rng, done = random.Random(kills), 0
    for _ in range(kills):
        done += Training(config, "killed").killed(rng, rng.randint(0, 3 * updates // (4 * kills)))
    killed = train(config, "killed")
    assert_same_training(whole, killed)
    for name in ("policy.safetensors", "validation.json"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes()
    return done


def test_a_killed_process_leaves_no_trace_in_the_result(tmp_path: Path) -> None:
    assert kill_and_compare(tmp_path, "sac", kills=1, updates=40) == 1


@pytest.mark.slow
@pytest.mark.parametrize("algo", sorted(AGENTS))
def test_many_kills_leave_no_trace_in_the_result(tmp_path: Path, algo: str) -> None:
    assert kill_and_compare(tmp_path, algo, kills=50 if "FINTRADER_SLOW" in os.environ else 3, updates=400) > 0
