from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fintrader.agents import Budget, buffers, make_agent, train
from fintrader.agents.buffers import HOST, ReplayBuffer, RolloutBuffer, available_memory
from fintrader.errors import ConfigError
from tests.engines.tiny import Identity, IdentityMarket, agent_settings

MIB = 2**20


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 1 GiB available of which 10 MiB are free, and no control group."""
    monkeypatch.setattr(buffers, "PROC", tmp_path / "proc")
    monkeypatch.setattr(buffers, "CGROUPS", tmp_path / "cgroup")
    text = "MemTotal: 8388608 kB\nMemFree: 10240 kB\nMemAvailable: 1048576 kB\n"
    write(tmp_path / "proc" / "meminfo", text)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def group(folder: Path, limit: str, used: int, cache: int, version: int = 2) -> None:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    write(folder / names[0], f"{limit}\n")
    write(folder / names[1], f"{used}\n")
    write(folder / "memory.stat", f"anon 5\n{'' if version == 2 else 'total_'}inactive_file {cache}\n")


def test_the_tightest_control_group_counts(machine: Path) -> None:
    write(machine / "proc" / "self" / "cgroup", "0::/pods/one\n")
    group(machine / "cgroup" / "pods" / "one", "max", 400 * MIB, 0)
    assert available_memory(HOST) == 1024 * MIB
    group(machine / "cgroup" / "pods", str(500 * MIB), 400 * MIB, 50 * MIB)
    assert available_memory(HOST) == 150 * MIB
    group(machine / "cgroup" / "pods" / "one", str(401 * MIB), 400 * MIB, 0)
    assert available_memory(HOST) == MIB


def test_groups_of_the_first_version(machine: Path) -> None:
    write(machine / "proc" / "self" / "cgroup", "7:blkio:/job\n4:cpu,memory:/job\n1:name=systemd:/job\n")
    group(machine / "cgroup" / "memory" / "job", str(300 * MIB), 290 * MIB, 20 * MIB, version=1)
    group(machine / "cgroup" / "memory", str(2**63 - 4096), 400 * MIB, 0, version=1)
    assert available_memory(HOST) == 30 * MIB


def test_a_replay_buffer_fits_a_container_or_not(machine: Path) -> None:
    write(machine / "proc" / "self" / "cgroup", "0::/\n")
    group(machine / "cgroup", str(100 * MIB), 90 * MIB, 0)
    ReplayBuffer(1000, 10, 100, 1, HOST)  # 7.7 MiB
    with pytest.raises(ConfigError, match=r"agent\.buffer_size of 20,000 steps.* lower agent\.buffer_size"):
        ReplayBuffer(2000, 10, 100, 1, HOST)
    with pytest.raises(ConfigError, match=r"a rollout of 1,000 steps of 10 accounts needs"):
        RolloutBuffer(1000, 10, 100, 1, HOST)  # which is standardised whole


@pytest.mark.parametrize("algo", ["ppo", "a2c", "apg"])
def test_rollouts_and_horizons_larger_than_memory(algo: str) -> None:
    env: Any = IdentityMarket() if algo == "apg" else Identity()
    agent = make_agent(agent_settings(algo, {"num_steps": 10**9, "network": {"hidden": [8]}}), env.layout)
    with pytest.raises(ConfigError, match=r"1,000,000,000 steps of 16 accounts needs .*GiB.*lower agent\.num_steps"):
        train(agent, env, Budget(env_steps=64))


def test_a_replay_buffer_on_a_gpu_is_stored_through_the_host(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(machine / "proc" / "meminfo", "MemAvailable: 1024 kB\n")
    real = buffers.available_memory
    monkeypatch.setattr(buffers, "available_memory", lambda device: 2**40 if device != HOST else real(device))
    with pytest.raises(ConfigError, match=r"storing agent\.buffer_size of 20,000 steps needs .* free on cpu"):
        ReplayBuffer(2000, 10, 100, 1, torch.device("meta"))
