"""A critic of the kind `market_once` that judges latents, for agents with a replay buffer."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from fintrader.agents.networks import Blueprint, Dense, Hidden, MarketTrunk, apply_flat
from fintrader.agents.normalisation import Batch
from fintrader.envs.observation import ObservationLayout


class MarketOnceLatentCritic(nn.Module):
    """Value `[*batch_shape, R]` of a batch and latents `[R, L]`.

    The value is not quadratic in latents and holdings, so one more layer reads both and the bar's
    embeddings.
    """

    def __init__(self, layout: ObservationLayout, plan: Blueprint, *, latents: int) -> None:
        super().__init__()
        self.num_assets = layout.num_assets
        self.account = plan.count_account_columns(layout)
        width = plan.width
        common = latents - layout.num_assets + self.account
        self.trunk = MarketTrunk(layout, plan)
        dense = partial(Dense, batch_shape=plan.batch_shape)
        self.embedding = dense(width, width)
        self.own = dense(2, width)
        self.common = dense(max(common, 1), width, gain=1.0)
        self.last = Hidden(width, plan.settings)
        self.head = dense(width, 1, gain=1.0)

    def forward(self, batch: Batch, latent: Tensor) -> Tensor:
        assets = self.num_assets
        h, _ = self.trunk(batch.rows)
        h = apply_flat(self.embedding, h)
        h = batch.expand(h, h.ndim - 3)
        held = batch.private[..., -assets:].expand_as(latent[..., :assets])
        own = torch.stack([held, latent[..., :assets]], dim=-1)
        common = torch.cat([batch.private[..., : self.account], latent[..., assets:]], dim=-1)
        if not common.shape[-1]:
            common = torch.zeros_like(latent[..., :1])
        h = self.last(h + apply_flat(self.own, own) + self.common(common).unsqueeze(-2))
        value: Tensor = self.head(h.mean(dim=-2)).squeeze(-1)
        return value
