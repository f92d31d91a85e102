"""Learner fusion, the learner thread, and worker processes."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file

from fintrader.agents import PPO, AgentSettings, Budget, TrainProgress, make_agent, train
from fintrader.agents.buffers import Transition
from fintrader.agents.on_policy import Rollout
from fintrader.agents.parallel.fusion import DistributedLearner, LearnerTeam, fuse
from fintrader.agents.parallel.learners import BatchedTeam
from fintrader.agents.parallel.pipeline import PipelinedAgent
from fintrader.envs import ObservationLayout
from fintrader.envs.classic import GymnasiumSettings, WorkerEnv, episode_returns, mean_episode_return
from fintrader.errors import CheckpointError, ConfigError, EnvError
from tests.agents.tiny import Identity

SMALL: dict[str, Any] = {"num_steps": 8, "network": {"hidden": [8]}}
OFF: dict[str, Any] = {
    "network": {"hidden": [32]},
    "learning_starts": 256,
    "batch_size": 128,
    "report_every": 10,
    "gamma": 0.0,
    "learning_rate": 3e-3,
}


def ppo() -> PPO:
    return PPO.model_validate(SMALL)


def agent_settings(algo: str, values: dict[str, Any]) -> Any:
    return TypeAdapter(AgentSettings).validate_python({"algo": algo, **values})


# --- learners ------------------------------------------------------------------------------------------------


def trained(seed: int, steps: int = 512) -> Any:
    env = Identity(seed=seed)
    agent = make_agent(ppo(), env.layout, seed=seed)
    train(agent, env, Budget(env_steps=steps))
    return agent


def test_fusing_averages_parameters_moments_and_statistics() -> None:
    first, second = trained(1), trained(2)
    a, b = first.state_dict(), second.state_dict()
    fuse([first, second])
    fused = first.state_dict()
    for name, tensor in second.state_dict().items():
        if name.startswith(("modules.", "optimisers.")):
            assert torch.equal(tensor, fused[name]), name
            if not name.endswith(".var"):
                torch.testing.assert_close(tensor, (a[name] + b[name]) / 2, msg=name)
    moment = "optimisers.adam.0.exp_avg_sq"
    assert not torch.equal(a[moment], b[moment])
    mean, var = (f"modules.policy.normaliser.{name}" for name in ("mean", "var"))
    pooled = (a[var] + b[var]) / 2 + ((a[mean] - b[mean]) / 2) ** 2  # of two halves of equal size
    torch.testing.assert_close(fused[var], pooled)
    # what belongs to one learner stays
    assert torch.equal(first.state_dict()["generator"], a["generator"])
    assert not torch.equal(a["generator"], b["generator"])


def test_a_team_learns_and_stays_one() -> None:
    env = Identity(num_envs=16, seed=3)
    values = {"gamma": 0.0, "num_steps": 32, "update_epochs": 4, "noise": 0.3, "network": {"hidden": [32]}}
    team = LearnerTeam(agent_settings("ppo", values), env.layout, learners=2, seed=0)
    train(team, env, Budget(env_steps=30_000))
    one, other = (learner.inheritable_state() for learner in team.learners)
    assert all(torch.equal(one[name], other[name]) for name in one)
    shown = torch.linspace(-0.8, 0.8, 9).unsqueeze(1).expand(-1, 2)
    with torch.no_grad():
        assert float((team.policy(shown) - shown).abs().mean()) < 0.2


def test_learners_of_a_team_see_different_noise_and_their_own_accounts() -> None:
    env = Identity(num_envs=4)
    team = LearnerTeam(ppo(), env.layout, learners=2, seed=0)
    action = team.act(torch.zeros(4, 2))
    assert not torch.allclose(action[:2], action[2:])
    with pytest.raises(ConfigError, match="multiple of the 2 learners"):
        team.act(torch.zeros(3, 2))


def test_a_team_resumes_bit_exactly(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def run(folder: str, stop: int | None) -> dict[str, torch.Tensor]:
        def on_progress(progress: TrainProgress) -> None:
            if progress.updates == stop:
                raise Killed

        env = Identity(seed=3)
        team = LearnerTeam(ppo(), env.layout, learners=2, seed=0)
        train(
            team, env, Budget(env_steps=1024), folder=tmp_path / folder, on_progress=on_progress, checkpoint_seconds=0
        )
        return team.state_dict()

    whole = run("whole", None)
    with pytest.raises(Killed):
        run("killed", 3)
    killed = run("killed", None)
    assert all(torch.equal(tensor, killed[name]) for name, tensor in whole.items())


def _distributed_worker(rank: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    try:
        env = Identity(num_envs=4, seed=rank)
        learner = DistributedLearner(make_agent(ppo(), env.layout, seed=rank))
        save_file(learner.agent.inheritable_state(), f"{folder}/start{rank}")
        train(learner, env, Budget(env_steps=4 * 8 * 3))
        save_file(learner.agent.inheritable_state(), f"{folder}/end{rank}")
    finally:
        torch.distributed.destroy_process_group()


def test_learners_of_two_processes_become_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_distributed_worker, args=(port, str(tmp_path)), nprocs=2)  # type: ignore[no-untyped-call]
    for stage in ("start", "end"):
        one, other = (load_file(tmp_path / f"{stage}{rank}") for rank in (0, 1))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one), stage
    begun = load_file(tmp_path / "start0")
    moved = [name for name in begun if not torch.equal(begun[name], one[name])]
    assert moved
    # the start is the mean of what two seeds draw
    own = [make_agent(ppo(), Identity().layout, seed=rank).state_dict() for rank in (0, 1)]
    name = "modules.critic.mlp.layers.0.weight"
    torch.testing.assert_close(begun[name], (own[0][name] + own[1][name]) / 2)


def test_fusing_without_a_group_is_refused() -> None:
    with pytest.raises(ConfigError, match="init_process_group"):
        DistributedLearner(make_agent(ppo(), Identity().layout))


# --- pipeline ------------------------------------------------------------------------------------------------


def test_a_pipelined_agent_learns_with_bounded_lag() -> None:
    env = Identity(seed=3)
    reports: list[dict[str, float]] = []
    with PipelinedAgent(make_agent(agent_settings("td3", OFF), env.layout, seed=0), max_lag=3) as agent:
        train(agent, env, Budget(env_steps=10_000), on_progress=lambda progress: reports.append(progress.metrics))
        done = agent.learned
    shown = torch.linspace(-0.8, 0.8, 9).unsqueeze(1).expand(-1, 2)
    with torch.no_grad():
        assert float((agent.policy(shown) - shown).abs().mean()) < 0.15
    lags = [report["pipeline_lag_max"] for report in reports if "pipeline_lag_max" in report]
    assert len(lags) > 10
    assert min(lags) >= 0
    assert max(lags) <= 3
    # a report follows 10 steps: 10,080 env-steps are 630 vector steps, of which the first 15 only warm up
    assert 630 - 15 - 3 <= done <= 630 - 15 + 1


def test_an_error_in_the_learner_reaches_the_worker() -> None:
    env = Identity(seed=3)
    inner = make_agent(agent_settings("sac", OFF), env.layout, seed=0)

    def broken(sample: object) -> dict[str, torch.Tensor]:
        raise RuntimeError("the learner broke")

    inner.learn = broken  # type: ignore[attr-defined]
    with PipelinedAgent(inner) as agent, pytest.raises(RuntimeError, match="the learner broke"):
        train(agent, env, Budget(env_steps=10_000))


def test_a_pipelined_agent_can_be_stored_and_resumed() -> None:
    env = Identity(seed=3)
    settings = agent_settings("ddpg", OFF)
    with PipelinedAgent(make_agent(settings, env.layout, seed=0)) as agent:
        train(agent, env, Budget(env_steps=1_600))
        state = agent.state_dict()
    with PipelinedAgent(make_agent(settings, env.layout, seed=0)) as again:
        again.load_state_dict(state)
        assert again.learned == agent.learned > 0
        obs = torch.rand(4, 2)
        with torch.no_grad():
            assert torch.equal(again.policy(obs), agent.policy(obs))


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
        ),
    ],
)
def test_a_learner_in_its_own_stream_learns_what_one_after_another_learns(device: str) -> None:
    """With a ring that stands still, what is drawn does not depend on when: both must come to the same weights."""
    settings = agent_settings("td3", {**OFF, "updates_per_step": 40.0, "report_every": 10_000})
    layout = Identity().layout

    alone, learner = (make_agent(settings, layout, device=device, seed=seed) for seed in (3, 4))
    draw = torch.Generator().manual_seed(1)
    never = torch.zeros(16, dtype=torch.bool, device=device)
    while alone.warming_up:  # type: ignore[attr-defined]
        obs, after = torch.rand(2, 16, 2, generator=draw).to(device)
        action = alone.act(obs)
        alone.observe(Transition(obs, action, -obs.sum(dim=1), never, never, after))
    learner.load_state_dict(alone.state_dict())
    alone.update()
    with PipelinedAgent(learner, max_lag=40) as pipelined:
        pipelined.update()
        while pipelined.learned < 40:
            time.sleep(0.01)
        mine, theirs = pipelined.state_dict(), alone.state_dict()
        front = pipelined._front.actor.state_dict()
    for name, tensor in theirs.items():
        if name.startswith(("modules.", "optimisers.")):
            torch.testing.assert_close(mine[name], tensor, msg=name)
    for name, weights in front.items():
        assert torch.equal(weights, mine[f"modules.policy.actor.{name}"]), name


def test_pipelines_that_make_no_sense() -> None:
    layout = Identity().layout
    with pytest.raises(ConfigError, match="replay ring"):
        PipelinedAgent(make_agent(ppo(), layout))
    with pytest.raises(ConfigError, match="max_lag"):
        PipelinedAgent(make_agent(agent_settings("td3", OFF), layout), max_lag=0)


# --- workers -------------------------------------------------------------------------------------------------


class Counter(gymnasium.Env[Any, Any]):
    """Counts its steps, shows the count, ends after three; its reward is the action as it arrived."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,))
    action_space = gymnasium.spaces.Box(np.float32(2.0), np.float32(4.0), (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.array([self.np_random.random()], np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.array([self.count], np.float32), float(action[0]), False, self.count == 3, {}


def counter_env(num_envs: int = 2, seed: int = 0) -> WorkerEnv:
    return WorkerEnv(SyncVectorEnv([Counter] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP), seed=seed)


def test_workers_stretch_actions_and_report_the_true_final_observation() -> None:
    env = counter_env()
    first, _ = env.reset(seed=1)
    assert first[0] != first[1]  # workers' seeds differ
    assert torch.equal(first, env.reset(seed=1)[0])
    for k in range(1, 4):
        obs, reward, terminated, truncated, info = env.step(torch.tensor([[-1.0], [0.5]]))
        assert reward.tolist() == [2.0, 3.5]
        assert not terminated.any()
        assert truncated.tolist() == [k == 3] * 2
        assert info["final_obs"].flatten().tolist() == [k, k]
    assert bool((obs < 1).all())  # the next episode's first observation


def test_simulators_are_given_no_nan() -> None:
    env = counter_env()
    env.reset(seed=1)
    with pytest.raises(EnvError, match="NaN"):
        env.step(torch.tensor([[0.0], [torch.nan]]))


def test_pendulum_in_processes() -> None:
    env = WorkerEnv.make(GymnasiumSettings(num_envs=2), seed=4)
    try:
        agent = make_agent(ppo(), env.layout, seed=0)
        result = train(agent, env, Budget(env_steps=64))
        assert result.updates == 4
        score = mean_episode_return(env, agent.policy, 2, seed=1)
        assert -2500 < score < 0
    finally:
        env.close()


def test_environments_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="continuous Box"):
        WorkerEnv.make(GymnasiumSettings(id="CartPole-v1", workers="sync"))
    with pytest.raises(ConfigError, match="NoSuch"):
        WorkerEnv.make(GymnasiumSettings(id="NoSuch-v0"))
    with pytest.raises(ConfigError, match="SAME_STEP"):
        WorkerEnv(SyncVectorEnv([Counter]))


def test_resuming_a_classic_environment_begins_fresh_episodes(tmp_path: Path) -> None:
    agent = make_agent(ppo(), counter_env().layout, seed=0)
    train(agent, counter_env(), Budget(env_steps=32), folder=tmp_path)
    again = make_agent(ppo(), counter_env().layout, seed=0)
    result = train(again, counter_env(), Budget(env_steps=64), folder=tmp_path)
    assert (result.env_steps, result.updates) == (64, 4)


def test_a_team_of_another_size_cannot_resume() -> None:
    layout = Identity().layout
    small = LearnerTeam(ppo(), layout, learners=1)
    with pytest.raises(CheckpointError):
        LearnerTeam(ppo(), layout, learners=2).load_state_dict(small.state_dict())


class Uneven(Counter):
    """Copies that were seeded with an odd number play episodes of one step, the others of five; reward 1 a step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.length = 1 if seed % 2 else 5
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, *_ = super().step(action)
        return obs, 1.0, False, self.count == self.length, {}


def test_short_episodes_do_not_crowd_out_long_ones() -> None:
    env = WorkerEnv(SyncVectorEnv([Uneven] * 6, autoreset_mode=AutoresetMode.SAME_STEP))
    returns = episode_returns(env, lambda obs: torch.zeros(len(obs), 1), 12, seed=3)
    lengths = [copy.length for copy in env.env.envs]  # type: ignore[attr-defined]
    assert sorted(set(lengths)) == [1, 5]
    assert returns == [float(length) for length in lengths for _ in range(2)]
    assert mean_episode_return(env, lambda obs: torch.zeros(len(obs), 1), 12, seed=3) == pytest.approx(
        float(np.mean(lengths))
    )


# --- learners in a batch ---------------------------------------------------------------------------------------------


def rollout_of(rows: int, width: int, latents: int, seed: int) -> Rollout:
    draw = torch.Generator().manual_seed(seed)
    obs, latent = torch.randn(rows, width, generator=draw), 0.5 * torch.randn(rows, latents, generator=draw)
    log_prob, advantage, target = (torch.randn(rows, generator=draw) for _ in range(3))
    return Rollout(obs, latent, log_prob - 3.0, advantage, target)


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
@pytest.mark.parametrize("market", [True, False])
def test_learners_in_a_batch_are_the_learners_one_after_another(algo: str, market: bool) -> None:
    steps, accounts, learners = 4, 3, 3
    values: dict[str, Any] = {"num_steps": steps, "network": {"hidden": [8, 8]}, "learn_noise": True, "noise": 0.7}
    values |= {"num_minibatches": 2, "update_epochs": 3} if algo == "ppo" else {}
    settings = agent_settings(algo, values)
    layout = ObservationLayout(3, 2, 1) if market else Identity().layout
    team = BatchedTeam(settings, layout, learners=learners, seed=4)
    reference = LearnerTeam(settings, layout, learners=learners, seed=4)
    shared = torch.Generator().manual_seed(9)
    team.agent.generator.set_state(shared.get_state())
    for number in range(3):  # the second and third begin with moments
        whole = rollout_of(steps * learners * accounts, layout.width, team.head.latents, number)
        metrics = team.learn(whole)
        found = []
        for k, learner in enumerate(reference.learners):
            learner.generator = shared
            rows = torch.arange(steps * learners * accounts).view(steps, learners, accounts)[:, k].flatten()
            found.append(learner.learn(whole.take(rows)))  # type: ignore[attr-defined]
        fuse(reference.learners)
        mine, theirs = team.agent.inheritable_state(), reference.learners[0].inheritable_state()
        assert mine.keys() == theirs.keys()
        for name, tensor in mine.items():
            torch.testing.assert_close(tensor, theirs[name], atol=2e-6, rtol=2e-4, msg=f"{number}: {name}")
        for name, value in metrics.items():
            expected = torch.stack([entry[name].detach() for entry in found]).mean()
            torch.testing.assert_close(value, expected, atol=1e-5, rtol=1e-3, msg=name)


def test_a_batched_team_learns_and_resumes(tmp_path: Path) -> None:
    values = {"gamma": 0.0, "num_steps": 32, "update_epochs": 4, "noise": 0.3, "network": {"hidden": [32]}}

    def team() -> BatchedTeam:
        return BatchedTeam(agent_settings("ppo", values), Identity().layout, learners=2, seed=0)

    whole, first, second = team(), team(), team()
    train(whole, Identity(num_envs=16, seed=3), Budget(env_steps=30_000), folder=tmp_path / "whole")
    shown = torch.linspace(-0.8, 0.8, 9).unsqueeze(1).expand(-1, 2)
    with torch.no_grad():
        assert float((whole.policy(shown) - shown).abs().mean()) < 0.2
    train(first, Identity(num_envs=16, seed=3), Budget(env_steps=15_000), folder=tmp_path / "parts")
    train(second, Identity(num_envs=16, seed=5), Budget(env_steps=30_000), folder=tmp_path / "parts")
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


def test_batches_that_make_no_sense() -> None:
    layout = Identity().layout
    with pytest.raises(ConfigError, match="LearnerTeam"):
        BatchedTeam(agent_settings("sac", OFF), layout, learners=2)
    with pytest.raises(ConfigError, match="at least 1"):
        BatchedTeam(ppo(), layout, learners=0)
    with pytest.raises(ConfigError, match="multiple of the 2 learners"):
        BatchedTeam(ppo(), layout, learners=2).act(torch.zeros(3, 2))
