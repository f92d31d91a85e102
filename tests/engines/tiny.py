"""Vector environments of a few lines with known answers; torch tensors, SAME_STEP autoreset."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from fintrader.agents import AgentSettings
from fintrader.envs.observation import FlatLayout, Layout, ObservationLayout

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def agent_settings(algo: str, values: dict[str, Any]) -> Any:
    """An algorithm's settings as a configuration gives them."""
    return TypeAdapter(AgentSettings).validate_python({"algo": algo, **values})


class TinyEnv:
    """Base: `width` observation columns, `actions` action columns, a clock per account."""

    width = 1
    actions = 1
    limit = 8

    def __init__(self, num_envs: int = 16, seed: int = 0) -> None:
        self.num_envs = num_envs
        self.layout: Layout = FlatLayout(self.width, self.actions)
        self.generator = torch.Generator().manual_seed(seed)
        self.clock = torch.zeros(num_envs, dtype=torch.int64)
        self.obs = torch.zeros(num_envs, self.width)

    def draw(self) -> Tensor:
        return torch.zeros(self.num_envs, self.width)

    def reward(self, action: Tensor) -> Tensor:
        return torch.ones(self.num_envs)

    def reset(self, *, seed: int | None = None) -> tuple[Tensor, dict[str, Any]]:
        self.clock = torch.zeros(self.num_envs, dtype=torch.int64)
        self.obs = self.draw()
        return self.obs, {}

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        assert action.shape == (self.num_envs, self.actions)
        assert bool((action.abs() <= 1).all())
        reward = self.reward(action)
        self.clock = self.clock + 1
        truncated = self.clock >= self.limit
        self.clock = torch.where(truncated, 0, self.clock)
        self.obs = self.draw()
        info = {"final_obs": self.obs, "_final_obs": truncated}
        return self.obs, reward, torch.zeros_like(truncated), truncated, info

    def state_dict(self) -> dict[str, Tensor]:
        return {"clock": self.clock, "obs": self.obs, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.clock = state["clock"].clone()
        self.obs = state["obs"].clone()
        self.generator.set_state(state["generator"])


class ConstantReward(TinyEnv):
    """Reward 1 for ever; a clock cuts after `limit` steps. The true value is 1 / (1 - γ)."""


class ConstantRewardEnding(TinyEnv):
    """The same, with the clock's cut reported as an end."""

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        obs, reward, nothing, truncated, info = super().step(action)
        return obs, reward, truncated, nothing, info


class Identity(TinyEnv):
    """Show a number in [-1, 1], be rewarded for giving it back: reward -(a - s)²."""

    width = 2
    actions = 2
    limit = 8

    def draw(self) -> Tensor:
        return torch.rand(self.num_envs, self.actions, generator=self.generator) * 1.6 - 0.8

    def reward(self, action: Tensor) -> Tensor:
        return -((action - self.obs) ** 2).sum(dim=-1)


class IdentityMarket(Identity):
    """The same in a market's clothes and without end, for agents that differentiate: each asset
    shows its number."""

    width = 6
    limit = 2**62
    differentiable = True

    def __init__(self, num_envs: int = 16, seed: int = 0) -> None:
        super().__init__(num_envs, seed)
        self.layout = ObservationLayout(2, 1, 0, account_width=0)

    def draw(self) -> Tensor:
        self.shown = super().draw()
        return torch.cat(
            [torch.zeros_like(self.shown), self.shown, torch.ones_like(self.shown)], dim=1
        )

    def reward(self, action: Tensor) -> Tensor:
        return -((action - self.shown) ** 2).sum(dim=-1)
