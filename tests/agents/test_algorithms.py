"""Every algorithm on tasks whose answer is known, and what all of them must keep: seeds, resume, inheritance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from fintrader.agents import (
    AgentSettings,
    Budget,
    TrainProgress,
    Transition,
    load_policy,
    make_agent,
    save_policy,
    train,
)
from fintrader.agents.checkpoint import read_tensors
from fintrader.agents.off_policy import OffPolicyAgent
from fintrader.envs.observation import holdings_of
from fintrader.envs.trading import EnvSettings, TradingEnv
from fintrader.errors import ConfigError
from tests.agents.planted import planted_market
from tests.agents.tiny import ConstantReward, ConstantRewardEnding, Identity, IdentityMarket, TinyEnv

ON = {"network": {"hidden": [32]}}
OFF = {"network": {"hidden": [32]}, "learning_starts": 256, "batch_size": 128, "report_every": 10}
IDENTITY: dict[str, dict[str, Any]] = {
    "a2c": {**ON, "gamma": 0.0, "noise": 0.3, "num_steps": 8, "learning_rate": 0.01},
    "ddpg": {**OFF, "gamma": 0.0, "learning_rate": 3e-3},
    "td3": {**OFF, "gamma": 0.0, "learning_rate": 3e-3},
    "sac": {**OFF, "gamma": 0.0, "learning_rate": 3e-3},
    "redq": {**OFF, "gamma": 0.0, "learning_rate": 3e-3, "num_critics": 3, "updates_per_step": 1.0},
}
MARKET: dict[str, dict[str, Any]] = {
    "ppo": {"num_steps": 16},
    "a2c": {},
    "apg": {"num_steps": 16},
    **{name: {**OFF, "updates_per_step": 2.0} for name in ("ddpg", "td3", "sac", "redq")},
}


def agent_settings(algo: str, values: dict[str, Any]) -> Any:
    return TypeAdapter(AgentSettings).validate_python({"algo": algo, **values})


@pytest.mark.parametrize("algo", sorted(IDENTITY))
def test_learns_the_identity(algo: str) -> None:
    env = Identity(seed=3)
    agent = make_agent(agent_settings(algo, IDENTITY[algo]), env.layout, seed=0)
    train(agent, env, Budget(env_steps=24_000 if algo == "a2c" else 10_000))
    shown = torch.linspace(-0.8, 0.8, 9).unsqueeze(1).expand(-1, 2)
    with torch.no_grad():
        assert float((agent.policy(shown) - shown).abs().mean()) < 0.15


def test_apg_learns_the_identity() -> None:
    env = IdentityMarket(seed=3)
    given = {"head": {"kind": "direct"}, "gamma": 0.0, "bootstrap": False, "num_steps": 4}
    agent = make_agent(agent_settings("apg", given), env.layout, seed=0)
    train(agent, env, Budget(env_steps=16 * 4 * 150))
    obs = env.observation()
    with torch.no_grad():
        assert float((agent.policy(obs) - env.shown).abs().mean()) < 0.1


def rising_market_env(num_envs: int = 16) -> TradingEnv:
    """Two assets; the second always rises, the first always falls."""
    market = planted_market(600, 2, drift=1e-3, volatility=5e-4, regime_bars=10**9, noise_features=0, seed=0)
    assert market.close[-1, 1] > market.close[0, 1]
    assert market.close[-1, 0] < market.close[0, 0]
    return TradingEnv(market, EnvSettings(num_envs=num_envs, episode_bars=60), seed=0)


@pytest.mark.parametrize("algo", sorted(set(MARKET) - {"ppo"}))
def test_finds_the_asset_that_always_rises(algo: str) -> None:
    env = rising_market_env()
    agent = make_agent(agent_settings(algo, MARKET[algo]), env.layout, seed=0)
    train(agent, env, Budget(env_steps=12_000 if algo in ("a2c", "td3") else 6_000))
    obs, _ = env.reset(seed=9)
    with torch.no_grad():
        for _ in range(30):
            obs, *_ = env.step(agent.policy(obs))
    held = holdings_of(obs, env.layout).mean(dim=0)
    assert held[1] > 0.7
    assert held[0] < 0.15


@pytest.mark.parametrize("algo", ["ddpg", "sac"])
@pytest.mark.parametrize(("env", "value"), [(ConstantReward, 5.0), (ConstantRewardEnding, 2.75)])
def test_critics_keep_time_limits_and_ends_apart(algo: str, env: type[TinyEnv], value: float) -> None:
    # γ = 0.8: 1 / (1 − γ) = 5 under a clock; seen at a random of eight steps to an end, mean of (1 − 0.8^k) / 0.2
    expected = value if env is ConstantReward else sum((1 - 0.8**k) / 0.2 for k in range(1, 9)) / 8
    given = {**OFF, "gamma": 0.8, "normalise_rewards": False, "tau": 0.1, "learning_rate": 3e-3, "n_steps": 3}
    if algo == "sac":
        given |= {"alpha": 1e-6, "tune_alpha": False}
    world = env()
    agent = make_agent(agent_settings(algo, given), world.layout, seed=0)
    train(agent, world, Budget(env_steps=12_000))
    assert isinstance(agent, OffPolicyAgent)
    with torch.no_grad():
        learned = float(agent.critic(agent.normaliser(torch.zeros(1, 1)), torch.zeros(1, 1)).mean())
    assert learned == pytest.approx(expected, rel=0.12)


class Killed(Exception):
    """Stands for SIGKILL."""


@pytest.mark.parametrize("algo", sorted(MARKET))
def test_same_seed_same_weights_with_and_without_a_kill(algo: str, tmp_path: Path) -> None:
    settings = agent_settings(algo, {**MARKET[algo], "network": {"hidden": [8]}})
    budget = Budget(env_steps=16 * 60)

    def run(folder: str, stop_at: int | None = None) -> None:
        def on_progress(progress: TrainProgress) -> None:
            if progress.updates == stop_at:
                raise Killed

        env = rising_market_env()
        agent = make_agent(settings, env.layout, seed=3)
        train(agent, env, budget, folder=tmp_path / folder, on_progress=on_progress, checkpoint_seconds=0.0)

    run("whole")
    with pytest.raises(Killed):
        run("killed", stop_at=2)
    run("killed")
    whole, header = read_tensors(tmp_path / "whole" / "state.safetensors", "fintrader-training-1")
    killed, _ = read_tensors(tmp_path / "killed" / "state.safetensors", "fintrader-training-1")
    assert header["updates"] > 2
    assert whole.keys() == killed.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, killed[name]), name


@pytest.mark.parametrize("algo", sorted(MARKET))
def test_another_seed_gives_other_weights_and_other_noise(algo: str) -> None:
    settings = agent_settings(algo, {**MARKET[algo], "network": {"hidden": [8]}})
    env = rising_market_env(4)
    obs, _ = env.reset(seed=1)
    agents = [make_agent(settings, env.layout, seed=seed) for seed in (3, 3, 4)]
    weights = [torch.cat([p.flatten() for p in agent.policy.parameters()]).detach() for agent in agents]
    actions = [agent.act(obs).detach() for agent in agents]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(actions[0], actions[1])
    assert not torch.equal(weights[0], weights[2])
    assert not torch.equal(actions[0], actions[2])


@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac", "redq"])
def test_the_critics_lead_leaves_the_actor_alone(algo: str) -> None:
    given = {**OFF, "network": {"hidden": [8]}, "learning_starts": 16, "critic_lead": 20, "normalise_rewards": False}
    if algo == "redq":
        given["updates_per_step"] = 1.0
    env = Identity(seed=3)
    agent = make_agent(agent_settings(algo, given), env.layout, seed=0)
    assert isinstance(agent, OffPolicyAgent)
    actor, target = agent.actor.mlp.layers[0].weight, agent.critic_target.mlp.layers[0].weight
    before = actor.detach().clone(), target.detach().clone()
    obs, _ = env.reset()
    for _ in range(20):
        action = agent.act(obs)
        following, reward, terminated, truncated, _ = env.step(action)
        agent.observe(Transition(obs, action, reward, terminated, truncated, following))
        agent.update()
        obs = following
    assert agent.learned == 20
    assert torch.equal(actor, before[0])
    assert not torch.equal(target, before[1])
    for _ in range(2):
        agent.learn_once()
    assert not torch.equal(actor, before[0])


@pytest.mark.parametrize("algo", sorted(MARKET))
def test_children_and_policy_files(algo: str, tmp_path: Path) -> None:
    env = rising_market_env(4)
    settings = agent_settings(algo, {**MARKET[algo], "network": {"hidden": [8]}})
    parent = make_agent(settings, env.layout, seed=1)
    steps = 4 * 90
    train(parent, env, Budget(env_steps=steps))
    child = make_agent(settings.model_copy(update={"learning_rate": 0.5}), env.layout, seed=2)
    child.inherit(parent.state_dict())
    theirs = parent.state_dict()
    for name, tensor in child.state_dict().items():
        if name.startswith(("modules.", "optimisers.")):
            assert torch.equal(tensor, theirs[name]), name
    save_policy(tmp_path / "p", child)
    obs, _ = env.reset(seed=5)
    with torch.no_grad():
        assert torch.equal(load_policy(tmp_path / "p")(obs), parent.policy(obs))
    assert train(child, env, Budget(env_steps=steps)).updates > 0


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match="REDQ"):
        make_agent(EnvSettings(), Identity().layout)


def test_apg_needs_an_environment_that_can_be_differentiated() -> None:
    with pytest.raises(ConfigError, match="apg"):
        make_agent(agent_settings("apg", {}), Identity().layout)


def test_apg_gradient_is_that_of_finite_differences() -> None:
    env = rising_market_env(4)
    settings = agent_settings(
        "apg",
        {
            "noise": 0.0,
            "num_steps": 5,
            "bootstrap": False,
            "normalise_rewards": False,
            "normalise_observations": False,
            "gamma": 0.9,
            "head": {"rate": 0.5},
        },
    )

    def objective(shift: float) -> tuple[torch.Tensor, Any]:
        agent = make_agent(settings, env.layout, seed=0)
        bias = agent.actor.head.bias  # type: ignore[attr-defined]
        with torch.no_grad():
            bias.add_(shift)
        world = agent.training_env(env)  # type: ignore[attr-defined]
        assert world.settings.fractional
        obs, _ = world.reset(seed=4)
        total = torch.zeros(4)
        for k in range(5):
            obs, reward, *_ = world.step(agent.act(obs))
            total = total + 0.9**k * reward
        return total.mean(), bias

    value, bias = objective(0.0)
    value.backward()
    step = 0.02
    numeric = (objective(step)[0] - objective(-step)[0]).item() / (2 * step)
    assert bias.grad.item() == pytest.approx(numeric, rel=0.02)
    assert abs(numeric) > 1e-5


def test_a_replay_buffer_larger_than_memory_is_refused() -> None:
    env = Identity()
    agent = make_agent(agent_settings("sac", {"buffer_size": 10**12}), env.layout)
    with pytest.raises(ConfigError, match="buffer_size"):
        train(agent, env, Budget(env_steps=100))
