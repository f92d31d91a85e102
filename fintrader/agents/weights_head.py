"""The action head of weights that may be negative, with a trade rate for each asset."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fintrader.agents.heads import RATE_PER_LATENT, ActionHead
from fintrader.envs.observation import FlatLayout, MarketTable, holdings_of


class WeightsHead(ActionHead):
    """`ActionHead` of the kind `weights`: a = w + rate (aim - w), where w are the weights held,
    with a rate for each asset. The aim is clip(z, -1, 1). Without shorts it is
    clip((1 + z) / 2, 0, 1), because an aim that began at 0 would clip away half of the exploration,
    and soon all of it. Latents of 0 give the rate `trade_rate`."""

    def decode(self, obs: Tensor, latent: Tensor, table: MarketTable | None = None) -> Tensor:
        """Turn raw `obs` and latents `[B, 2 N]`, aims and rates, into an action `[B, N]`."""
        assert not isinstance(self.layout, FlatLayout)
        held = holdings_of(obs, self.layout)
        aim, pace = latent.chunk(2, dim=-1)
        start = math.log(self.settings.trade_rate / (1 - self.settings.trade_rate))
        rate = torch.sigmoid(start + RATE_PER_LATENT * pace)
        aim = clip_aim(aim)
        if not self.layout.short:
            aim = 0.5 + 0.5 * aim
        return (held + rate * (aim - held)).clamp(-1.0, 1.0)


def clip_aim(aim: Tensor) -> Tensor:
    """Clip to [-1, 1]. Outside this range only gradients that lead back inside are passed on:
    without them, a latent that noise moved outside would never return."""
    clipped = aim.clamp(-1.0, 1.0)
    if not aim.requires_grad:
        return clipped
    beyond = (aim - clipped).detach()
    passing = aim - beyond
    passing.register_hook(  # type: ignore[no-untyped-call]
        lambda grad: torch.where(grad * beyond < 0, 0.0, grad)
    )
    return passing
