"""The action head of weights that may be negative, with a trade rate for each asset."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fintrader.agents.heads import RATE_PER_LATENT, ActionHead
from fintrader.envs.observation import FlatLayout, MarketTable, holdings_of


class WeightsHead(ActionHead):
    """`ActionHead` of the kind `weights`: a = w + rate (clip(z, -1, 1) - w), with the weights held
    w, and a rate for each asset. Latents of 0 give the rate `trade_rate`."""

    def decode(self, obs: Tensor, latent: Tensor, table: MarketTable | None = None) -> Tensor:
        """Turn raw `obs` and latents `[B, 2 N]`, aims and rates, into an action `[B, N]`."""
        assert not isinstance(self.layout, FlatLayout)
        held = holdings_of(obs, self.layout)
        aim, pace = latent.chunk(2, dim=-1)
        start = math.log(self.settings.trade_rate / (1 - self.settings.trade_rate))
        rate = torch.sigmoid(start + RATE_PER_LATENT * pace)
        return (held + rate * (aim.clamp(-1.0, 1.0) - held)).clamp(-1.0, 1.0)
