import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fintrader import memory, system
from fintrader.agents import Budget, make_agent, train
from fintrader.agents.buffers import RolloutBuffer, Transition, gae
from fintrader.agents.replay import ReplayBuffer, sum_n_steps
from fintrader.errors import CheckpointError, ConfigError
from fintrader.memory import HOST, measure_free_memory
from tests.engines.tiny import Identity, IdentityMarket, agent_settings
from tests.factories import examples


def step(t, envs=2):
    """A transition whose numbers say `100 t + account`."""
    name = 100.0 * t + torch.arange(envs)
    return Transition(
        obs=name.unsqueeze(1).repeat(1, 3),
        action=name.unsqueeze(1),
        reward=name,
        terminated=torch.tensor([t % 3 == 0] * envs),
        truncated=torch.tensor([t % 4 == 0] * envs),
        next_obs=name.unsqueeze(1).repeat(1, 3) + 0.5,
    )


def buffer_after(steps, size=5):
    buffer = ReplayBuffer(size, 2, 3, 1, torch.device("cpu"))
    for t in range(steps):
        transition = step(t)
        buffer.add(transition, transition.action)
    return buffer


@pytest.mark.parametrize("steps", [3, 5, 13])
@pytest.mark.parametrize("n", [1, 3])
def test_samples_are_consecutive_steps_of_one_account_among_the_newest(steps, n):
    batch = buffer_after(steps).sample(400, n, torch.Generator().manual_seed(0))
    first = (batch.reward[0] / 100).floor()
    account = batch.reward[0] % 100
    for k in range(n):
        torch.testing.assert_close(batch.reward[k], 100 * (first + k) + account)
        torch.testing.assert_close(batch.next_obs[k, :, 0], batch.reward[k] + 0.5)
        assert torch.equal(batch.terminated[k], (first + k) % 3 == 0)
        assert torch.equal(batch.truncated[k], (first + k) % 4 == 0)
    torch.testing.assert_close(batch.obs[:, 2], batch.reward[0])
    torch.testing.assert_close(batch.latent[:, 0], batch.reward[0])
    oldest = max(steps - 5, 0)
    assert set(first.tolist()) == set(range(oldest, steps - n + 1))
    assert set(account.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("steps", [3, 13])
def test_a_stored_buffer_samples_and_continues_alike(steps):
    buffer = buffer_after(steps)
    copy = buffer_after(0)
    for name in ("obs", "next_obs", "latent"):  # what is large is stored from where it lies
        assert buffer.state_dict()[name].data_ptr() == getattr(buffer, name).data_ptr()
    copy.load_state_dict({name: tensor.clone() for name, tensor in buffer.state_dict().items()})
    for t in range(steps, steps + 4):
        for each in (buffer, copy):
            each.add(step(t), step(t).action)
        a, b = (each.sample(50, 2, torch.Generator().manual_seed(t)) for each in (buffer, copy))
        for name, tensor in a._asdict().items():
            assert torch.equal(tensor, getattr(b, name)), name


@pytest.mark.parametrize("size", [3, 20])
def test_a_buffer_of_another_size_is_refused(size):
    """A larger one would sample rows that were never restored."""
    with pytest.raises(CheckpointError, match="replay buffer"):
        buffer_after(0, size=size).load_state_dict(buffer_after(13).state_dict())


def test_a_rollout_keeps_time_first():
    buffer = RolloutBuffer(2, 2, 3, 1, torch.device("cpu"))
    buffer.add(step(0), step(0).action, -step(0).action)
    assert not buffer.is_full
    buffer.add(step(1), step(1).action, -step(1).action)
    assert buffer.is_full
    # Where no episode ends, the observation after a step is that of the next one.
    assert buffer.shown[:, 0, 0].tolist() == [0, 100, 100.5]
    assert buffer.next_obs[:, 0, 0].tolist() == [100, 100.5]
    assert buffer.reward.tolist() == [[0, 1], [100, 101]]
    assert buffer.obs[1, :, 2].tolist() == [100, 101]
    assert (
        buffer.latent[..., 0].tolist()
        == (-buffer.log_prob[..., 0]).tolist()
        == [[0, 1], [100, 101]]
    )
    assert buffer.terminated.tolist() == [[True, True], [False, False]]
    buffer.clear()
    assert not buffer.is_full


@settings(max_examples=examples(40))
@given(st.integers(0, 10_000), st.integers(1, 12), st.floats(0, 1), st.floats(0, 1))
def test_gae_equals_its_definition(seed, steps, gamma, gae_lambda):
    draw = torch.Generator().manual_seed(seed)
    rewards, values, following = torch.randn(3, steps, 2, generator=draw, dtype=torch.float64)
    terminated, truncated = torch.rand(2, steps, 2, generator=draw) < 0.25
    advantages, targets = gae(rewards, values, following, terminated, truncated, gamma, gae_lambda)
    for account in range(2):
        inputs = [
            x[:, account].tolist() for x in (rewards, values, following, terminated, truncated)
        ]
        assert advantages[:, account].tolist() == pytest.approx(
            gae_by_definition(*inputs, gamma, gae_lambda)
        )
    torch.testing.assert_close(targets, advantages + values)


@settings(max_examples=examples(40))
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_n_step_equals_its_definition(seed, steps):
    draw = torch.Generator().manual_seed(seed)
    rewards = torch.randn(steps, 3, generator=draw, dtype=torch.float64)
    terminated, truncated = torch.rand(2, steps, 3, generator=draw) < 0.25
    total, discount, last = sum_n_steps(rewards, terminated, truncated, 0.9)
    for account in range(3):
        expected = n_step_by_definition(
            rewards[:, account].tolist(),
            terminated[:, account].tolist(),
            truncated[:, account].tolist(),
            0.9,
        )
        assert (
            total[account].item(),
            discount[account].item(),
            last[account].item(),
        ) == pytest.approx(expected)


def gae_by_definition(
    rewards,
    values,
    next_values,
    terminated,
    truncated,
    gamma,
    gae_lambda,
):
    """A_t = Σ_k (γλ)^k δ_{t+k}, the sum ending with the first step at which an episode ends."""
    advantages = []
    for t in range(len(rewards)):
        total = 0.0
        weight = 1.0
        for k in range(t, len(rewards)):
            future = 0.0 if terminated[k] else next_values[k]
            total += weight * (rewards[k] + gamma * future - values[k])
            if terminated[k] or truncated[k]:
                break
            weight *= gamma * gae_lambda
        advantages.append(total)
    return advantages


def n_step_by_definition(rewards, terminated, truncated, gamma):
    """Discounted sum up to the first end, factor of the value that follows, and number of the last
    step."""
    total = 0.0
    for k, reward in enumerate(rewards):
        total += gamma**k * reward
        if terminated[k]:
            return total, 0.0, k
        if truncated[k]:
            return total, gamma ** (k + 1), k
    return total, gamma ** len(rewards), len(rewards) - 1


MIB = 2**20


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 1 GiB available of which 10 MiB are free, and no control group."""
    monkeypatch.setattr(system, "PROC", tmp_path / "proc")
    monkeypatch.setattr(system, "CGROUPS", tmp_path / "cgroup")
    text = "MemTotal: 8388608 kB\nMemFree: 10240 kB\nMemAvailable: 1048576 kB\n"
    write(tmp_path / "proc" / "meminfo", text)
    return tmp_path


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def group(folder, limit, used, cache, version=2):
    names = (
        ("memory.max", "memory.current")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    write(folder / names[0], f"{limit}\n")
    write(folder / names[1], f"{used}\n")
    write(
        folder / "memory.stat", f"anon 5\n{'' if version == 2 else 'total_'}inactive_file {cache}\n"
    )


def test_the_tightest_control_group_counts(machine):
    write(machine / "proc" / "self" / "cgroup", "0::/pods/one\n")
    group(machine / "cgroup" / "pods" / "one", "max", 400 * MIB, 0)
    assert measure_free_memory(HOST) == 1024 * MIB
    group(machine / "cgroup" / "pods", str(500 * MIB), 400 * MIB, 50 * MIB)
    assert measure_free_memory(HOST) == 150 * MIB
    group(machine / "cgroup" / "pods" / "one", str(401 * MIB), 400 * MIB, 0)
    assert measure_free_memory(HOST) == MIB


def test_groups_of_the_first_version(machine):
    write(
        machine / "proc" / "self" / "cgroup",
        "7:blkio:/job\n4:cpu,memory:/job\n1:name=systemd:/job\n",
    )
    group(machine / "cgroup" / "memory" / "job", str(300 * MIB), 290 * MIB, 20 * MIB, version=1)
    group(machine / "cgroup" / "memory", str(2**63 - 4096), 400 * MIB, 0, version=1)
    assert measure_free_memory(HOST) == 30 * MIB


def test_a_replay_buffer_fits_a_container_or_not(machine):
    write(machine / "proc" / "self" / "cgroup", "0::/\n")
    group(machine / "cgroup", str(100 * MIB), 90 * MIB, 0)
    ReplayBuffer(1000, 10, 100, 1, HOST)  # 7.7 MiB
    with pytest.raises(
        ConfigError, match=r"agent\.buffer_size of 20,000 steps.* lower agent\.buffer_size"
    ):
        ReplayBuffer(2000, 10, 100, 1, HOST)
    with pytest.raises(ConfigError, match=r"a rollout of 1,000 steps of 10 accounts needs"):
        RolloutBuffer(1000, 10, 100, 1, HOST)  # which is standardised whole


@pytest.mark.parametrize("algo", ["ppo", "a2c", "apg"])
def test_rollouts_and_horizons_larger_than_memory(algo):
    env = IdentityMarket() if algo == "apg" else Identity()
    agent = make_agent(
        agent_settings(algo, {"num_steps": 10**9, "network": {"hidden": [8]}}), env.layout
    )
    with pytest.raises(
        ConfigError, match=r"1,000,000,000 steps of 16 accounts needs .*GiB.*lower agent\.num_steps"
    ):
        train(agent, env, Budget(env_steps=64))


def test_a_replay_buffer_on_a_gpu_is_stored_through_the_host(machine, monkeypatch):
    write(machine / "proc" / "meminfo", "MemAvailable: 1024 kB\n")
    real = memory.measure_free_memory
    monkeypatch.setattr(
        memory, "measure_free_memory", lambda device: 2**40 if device != HOST else real(device)
    )
    with pytest.raises(
        ConfigError, match=r"storing agent\.buffer_size of 20,000 steps needs .* free on cpu"
    ):
        ReplayBuffer(2000, 10, 100, 1, torch.device("meta"))
