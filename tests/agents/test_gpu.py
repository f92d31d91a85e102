"""Training on a GPU: between two updates nothing waits for the device.

The same loop runs on the CPU in small, so that what a GPU is asked to do has been done once.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fintrader.agents import PPO, Budget, train
from fintrader.agents.networks import NetworkSettings
from fintrader.agents.ppo import PPOAgent
from fintrader.envs import EnvSettings, TradingEnv
from tests.engines.tiny import DEVICES
from tests.factories import make_market

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
