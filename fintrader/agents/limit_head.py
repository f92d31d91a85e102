"""The action head where orders rest: weights, and a price for each."""

from __future__ import annotations

import torch
from torch import Tensor

from fintrader.agents.heads import ActionHead
from fintrader.agents.settings import ActionHeadSettings
from fintrader.envs.observation import FlatLayout, Layout, MarketTable


class LimitHead(ActionHead):
    """`ActionHead` for the environment's `limit` actions: the last N latents, clipped, are prices."""

    def decode(self, obs: Tensor, latent: Tensor, table: MarketTable | None = None) -> Tensor:
        """Turn raw `obs` and `latent [B, L]` into an action `[B, 2 N]`."""
        if self.kind == "direct":
            return super().decode(obs, latent)
        assert not isinstance(self.layout, FlatLayout)
        own, prices = latent.tensor_split([-self.layout.num_assets], dim=-1)
        return torch.cat([super().decode(obs, own, table), prices.clamp(-1.0, 1.0)], dim=-1)


def make_head(layout: Layout, settings: ActionHeadSettings) -> ActionHead:
    """Make the head that suits a layout. Raises ConfigError as `ActionHead` does."""
    rests = not isinstance(layout, FlatLayout) and layout.resting
    return (LimitHead if rests else ActionHead)(layout, settings)
