"""SIGKILL at random moments of a real `fintrader train`: what comes out is what an undisturbed process makes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from fintrader.agents.checkpoint import read_tensors
from fintrader.files import read_jsonl

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
        command = [sys.executable, "-m", "fintrader", "train", str(config), "--name", name]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )

    @property
    def lines(self) -> int:
        path = self.home / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def killed(self, rng: random.Random, updates: int) -> bool:
        """Kill it while it starts, or so many updates later; False when it ended before."""
        starting = rng.random() < 0.2
        deadline = time.monotonic() + rng.uniform(0.0, 3.0)
        target: int | None = None
        while self.process.poll() is None:
            if starting and time.monotonic() > deadline:
                break
            if not starting:
                # Its own first line, or the stored state's log cut back, says that training has begun.
                state = self.home / "state.safetensors"
                if target is None and state.exists() and time.time() - state.stat().st_mtime < 0.5:
                    target = self.lines + updates
                if target is not None and self.lines >= target:
                    break
            time.sleep(0.002)
        else:
            self.end()
            return False
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()
        return True

    def end(self) -> None:
        _, said = self.process.communicate()
        assert self.process.returncode == 0, said.decode()

    def losses(self) -> list[tuple[int, Any]]:
        return [(one["update"], one.get("policy_loss", one.get("objective"))) for one in read_jsonl(self.metrics)]

    @property
    def metrics(self) -> Path:
        return self.home / "metrics.jsonl"


def kill_and_compare(folder: Path, algo: str, kills: int, updates: int) -> int:
    config = configuration(folder, algo, updates)
    whole = Training(config, "whole")
    whole.end()
    rng, done = random.Random(kills), 0
    while done < kills:
        if not Training(config, "killed").killed(rng, rng.randint(0, 3 * updates // (4 * kills))):
            break
        done += 1
    killed = Training(config, "killed")
    killed.end()

    mine, _ = read_tensors(whole.home / "state.safetensors", "fintrader-training-1")
    theirs, _ = read_tensors(killed.home / "state.safetensors", "fintrader-training-1")
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name
    assert (whole.home / "policy.safetensors").read_bytes() == (killed.home / "policy.safetensors").read_bytes()
    assert whole.losses() == killed.losses()
    assert [update for update, _ in whole.losses()][-1] == len(whole.losses())
    validation = [json.loads((home / "validation.json").read_text()) for home in (whole.home, killed.home)]
    assert validation[0] == validation[1]
    return done


def test_a_killed_process_leaves_no_trace_in_the_result(tmp_path: Path) -> None:
    assert kill_and_compare(tmp_path, "sac", kills=3, updates=80) > 0


@pytest.mark.slow
@pytest.mark.skipif("FINTRADER_SLOW" not in os.environ, reason="ten minutes; set FINTRADER_SLOW=1")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("algo", sorted(AGENTS))
def test_fifty_kills_leave_no_trace_in_the_result(tmp_path: Path, algo: str) -> None:
    assert kill_and_compare(tmp_path, algo, kills=50, updates=400) == 50
