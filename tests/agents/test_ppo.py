from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from fintrader.agents import PPO, ActionHeadSettings, Budget, FlatLayout, make_agent, train
from fintrader.agents.networks import NetworkSettings
from fintrader.agents.on_policy import Rollout
from fintrader.agents.ppo import PPOAgent, ppo_objective
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import ConfigError
from tests.engines.tiny import DEVICES, Identity
from tests.factories import make_market, planted_market


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient"),
    [(3.0, 1.0, 0.0), (3.0, -1.0, -1.0), (0.5, 1.0, 1.0), (0.5, -1.0, 0.0), (1.0, 2.0, 2.0)],
)
def test_gradient_of_the_clipped_objective(ratio: float, advantage: float, gradient: float) -> None:
    r = torch.tensor(ratio, requires_grad=True)
    ppo_objective(r, torch.tensor(advantage), 0.2).backward()
    assert r.grad.item() == gradient


@pytest.mark.parametrize(("steps", "accounts", "minibatches"), [(4, 3, 4), (5, 7, 4), (10, 1, 4), (3, 3, 5), (7, 1, 7)])
def test_every_pass_visits_every_transition_once(steps: int, accounts: int, minibatches: int) -> None:
    """The observations name their transitions; batches that do not divide the rollout lose none."""
    settings = PPO(num_steps=steps, num_minibatches=minibatches, update_epochs=3)
    agent = make_agent(settings, FlatLayout(1, 1), seed=1)
    visited: list[list[float]] = []
    loss = agent.loss

    def spy(batch: Rollout) -> Any:
        visited.append(batch.obs[:, 0].tolist())
        return loss(batch)

    agent.loss = spy  # type: ignore[method-assign]
    rows = steps * accounts
    names = torch.arange(rows, dtype=torch.float32).unsqueeze(1)
    log_prob, advantage, target = torch.randn(3, rows)
    agent.learn(Rollout(names, torch.randn(rows, 1), log_prob, advantage, target))
    assert len(visited) == 3 * minibatches
    passes = [list(chain(*visited[k : k + minibatches])) for k in range(0, len(visited), minibatches)]
    assert all(sorted(one) == list(range(rows)) for one in passes)
    assert passes[0] != passes[1]
    sizes = {len(batch) for batch in visited}
    assert max(sizes) - min(sizes) <= 1


def test_fixed_noise_stays_and_learned_noise_moves() -> None:
    for learn in (False, True):
        env = Identity(seed=5)
        agent = make_agent(PPO(num_steps=8, learn_noise=learn), env.layout, seed=0)
        before = agent.noise["log_std"].detach().clone()
        train(agent, env, Budget(env_steps=500))
        assert torch.equal(before, agent.noise["log_std"]) is not learn


def test_target_kl_stops_the_passes() -> None:
    env = Identity(seed=5)
    moved = []
    for target in (1e-8, None):
        agent = make_agent(PPO(num_steps=8, target_kl=target), env.layout, seed=0)
        before = torch.cat([p.flatten() for p in agent.policy.parameters()]).detach().clone()
        train(agent, env, Budget(env_steps=128))
        after = torch.cat([p.flatten() for p in agent.policy.parameters()]).detach()
        moved.append(float((after - before).abs().sum()))
    assert moved[0] < moved[1]


def test_aim_actions_are_refused_by_a_trade_environment() -> None:
    env = TradingEnv(planted_market(100, 2), EnvSettings(num_envs=4, action="trade"))
    with pytest.raises(ConfigError, match=r"env\.action"):
        train(make_agent(PPO(), env.layout), env, Budget(env_steps=10))
    direct = PPO(num_steps=2, head=ActionHeadSettings(kind="direct"))
    assert train(make_agent(direct, env.layout), env, Budget(env_steps=16)).updates == 2


UPDATES, STEPS, ACCOUNTS = 4, 5, 32


class Unwaiting(PPOAgent):
    """After the first update, which compiles and allocates, torch raises where the host would wait between updates."""

    updates = unwaited = 0

    def forbid(self, waiting: bool) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("error" if waiting else "default")

    def act(self, obs: Tensor) -> Tensor:
        self.unwaited += self.updates > 0
        return super().act(obs)

    def update(self) -> dict[str, float] | None:
        if self.buffer is None or not self.buffer.full:
            return super().update()
        self.forbid(False)
        metrics = super().update()
        self.updates += 1
        self.forbid(self.updates < UPDATES)
        return metrics


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("network", [{"kind": "mlp", "hidden": (256, 256)}, {}])
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_ppo_waits_for_the_device_only_to_update(device: str, network: dict[str, Any], engine: Any) -> None:
    """The same loop runs on the CPU, so that what a GPU is asked to do has been done once."""
    env = TradingEnv(make_market(60, 6), EnvSettings(episode_bars=7), num_envs=ACCOUNTS, device=device, engine=engine)
    settings = PPO(num_steps=STEPS, network=NetworkSettings(**network))
    agent = Unwaiting(settings, env.layout, device=device, seed=0)
    try:
        result = train(agent, env, Budget(env_steps=UPDATES * STEPS * ACCOUNTS))
    finally:
        agent.forbid(False)
    assert result.updates == UPDATES
    assert agent.unwaited == (UPDATES - 1) * STEPS
    assert {parameter.device.type for parameter in agent.modules.parameters()} == {device}
