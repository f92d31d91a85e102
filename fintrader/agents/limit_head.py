"""Action heads for resting orders: weights, and a limit price for each."""

from __future__ import annotations

import torch
from torch import Tensor

from fintrader.agents.heads import ActionHead
from fintrader.agents.settings import ActionHeadSettings
from fintrader.agents.weights_head import WeightsHead
from fintrader.envs.observation import FlatLayout, Layout, MarketTable
from fintrader.errors import ConfigError


class LimitHead(ActionHead):
    """`ActionHead` for the environment's `limit` actions: the latents after those of the weights
    are limit prices, clipped to [-1, 1]."""

    def decode(self, obs: Tensor, latent: Tensor, table: MarketTable | None = None) -> Tensor:
        """Turn raw `obs` and `latent [B, L]` into an action `[B, A]`."""
        if self.kind == "direct":
            return super().decode(obs, latent)
        assert not isinstance(self.layout, FlatLayout)
        num_prices = self.layout.num_actions - self.layout.num_assets
        own, prices = latent.tensor_split([-num_prices], dim=-1)
        return torch.cat([super().decode(obs, own, table), prices.clamp(-1.0, 1.0)], dim=-1)


class LimitWeightsHead(LimitHead, WeightsHead):
    """`LimitHead` of the kind `weights`."""


def make_head(layout: Layout, settings: ActionHeadSettings) -> ActionHead:
    """Make the head that suits a layout. Raises ConfigError as `ActionHead` does, and for a head of
    weights where actions are only prices."""
    is_weights = settings.kind == "weights" and not isinstance(layout, FlatLayout)
    if isinstance(layout, FlatLayout) or not layout.resting:
        return (WeightsHead if is_weights else ActionHead)(layout, settings)
    if not layout.has_quotes:
        return (LimitWeightsHead if is_weights else LimitHead)(layout, settings)
    if settings.kind not in ("auto", "direct"):
        raise ConfigError(
            f"agent.head.kind {settings.kind} makes weights, and env.action quote takes prices; set"
            " agent.head.kind to auto or direct"
        )
    return ActionHead(layout, settings.model_copy(update={"kind": "direct"}))
