"""Networks of the kind `per_asset`: the trunk of `market_once` also reads the holdings, and
therefore runs once for every account."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fintrader.agents.heads import EXTRA_LATENT_SCALE
from fintrader.agents.networks import (
    Actor,
    AssetInput,
    AssetTrunk,
    Blueprint,
    Dense,
    join,
)
from fintrader.agents.normalisation import Batch
from fintrader.envs.observation import ObservationLayout


class AccountTrunk(nn.Module):
    """Embed every asset for every account: `[*batch_shape, R, N, H]`. With `latents`, each asset's
    latent is a further input."""

    def __init__(
        self,
        layout: ObservationLayout,
        plan: Blueprint,
        *,
        latents: int = 0,
    ) -> None:
        super().__init__()
        self.assets = AssetInput(layout, plan.encoder)
        self.num_assets = layout.num_assets
        self.features = layout.num_features
        self.account = plan.count_account_columns(layout)
        # Each asset sees its own latent; all of them see the extra ones (cash).
        own, common = (1, latents - layout.num_assets) if latents else (0, 0)
        own += self.assets.width + 1
        common += self.assets.common_width + self.account
        self.layers = AssetTrunk(own, common, plan.settings, batch_shape=plan.batch_shape)

    def forward(self, batch: Batch, latent: Tensor | None = None) -> Tensor:
        own, common = self.assets(batch.rows)
        own = batch.expand(own, own.ndim - 3)
        common = batch.expand(common, common.ndim - 2)
        held = batch.private[..., -self.num_assets :].unsqueeze(-1)
        own = join(own[..., : self.features], held, own[..., self.features :])
        common = torch.cat([batch.private[..., : self.account], common], dim=-1)
        if latent is not None:
            own = join(own, latent[..., : self.num_assets].unsqueeze(-1))
            common = join(common, latent[..., self.num_assets :])
        embeddings: Tensor = self.layers(own, common)[0]
        return embeddings


class PerAssetActor(Actor):
    """Computes each asset's latent from its embedding, and the extra latents from their mean."""

    def __init__(
        self,
        layout: ObservationLayout,
        plan: Blueprint,
        *,
        extra: int,
        outputs: int,
        out_gain: float,
    ) -> None:
        super().__init__()
        self.outputs = outputs
        self.extra = extra
        self.trunk = AccountTrunk(layout, plan)
        self.head = Dense(plan.width, outputs, gain=out_gain)
        self.extra_head = Dense(plan.width, outputs * extra, gain=out_gain) if extra else None

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        h = self.trunk(batch)
        latent = self.head(h)
        if self.extra_head is not None:
            extra = EXTRA_LATENT_SCALE * self.extra_head(h.mean(dim=-2))
            latent = torch.cat([latent, extra.unflatten(-1, (self.extra, self.outputs))], dim=-2)
        parts: tuple[Tensor, ...] = latent.unbind(dim=-1)
        return parts


class PerAssetCritic(nn.Module):
    """Value `[*batch_shape, R]` of a batch, or of a batch and latents `[R, L]`, from the mean of
    the assets' embeddings."""

    def __init__(self, layout: ObservationLayout, plan: Blueprint, *, latents: int) -> None:
        super().__init__()
        self.trunk = AccountTrunk(layout, plan, latents=latents)
        self.head = Dense(plan.width, 1, batch_shape=plan.batch_shape, gain=1.0)

    def forward(self, batch: Batch, latent: Tensor | None = None) -> Tensor:
        value: Tensor = self.head(self.trunk(batch, latent).mean(dim=-2)).squeeze(-1)
        return value
