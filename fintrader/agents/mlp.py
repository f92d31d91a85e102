"""Networks of the kind `mlp`, which read a row of numbers. The first layer reads market and account
separately, the market once a bar."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from fintrader.agents.networks import Actor, Blueprint, Dense, Hidden, join, linear
from fintrader.agents.normalisation import Batch
from fintrader.agents.settings import ENCODER_WIDTH
from fintrader.envs.observation import Layout


class Mlp(nn.Module):
    """Maps a batch (and latents `[R, L]`, if any) to `[*batch_shape, R, out]`."""

    def __init__(
        self,
        layout: Layout,
        plan: Blueprint,
        width_out: int,
        *,
        latents: int = 0,
        out_gain: float,
    ) -> None:
        super().__init__()
        settings, encoder, batch_shape = plan
        self.private = layout.private_width
        self.row = layout.row_width
        self.encoder = encoder
        self.market = layout.market_width if encoder is None else self.row + ENCODER_WIDTH
        widths = [self.private + self.market + latents, *settings.hidden]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers.append(Dense(before, after, batch_shape=batch_shape))
            layers.append(Hidden(after, settings))
        last = Dense(widths[-1], width_out, batch_shape=batch_shape, gain=out_gain)
        self.layers = nn.Sequential(*layers, last)

    def forward(self, batch: Batch, latent: Tensor | None = None) -> Tensor:
        first = self.layers[0]
        assert isinstance(first, Dense)
        # W [p, m, z] + b = (W_p p + b) + W_m m + W_z z, and m is by far the widest part.
        latents = first.weight.shape[-2] - self.private - self.market
        weights = torch.split(first.weight, [self.private, self.market, latents], -2)
        h = first.apply_with(batch.private, weights[0])
        if self.market:
            h = h + self._apply_to_market(batch, weights[1])
        if latent is not None:
            h = h + latent @ weights[2]
        h = self.layers[1](h)
        for number in range(2, len(self.layers) - 1, 2):
            layer = self.layers[number]
            hidden = self.layers[number + 1]
            assert isinstance(layer, Dense)
            assert isinstance(hidden, Hidden)
            if hidden.fused is not None and h.ndim == 2 and layer.weight.ndim == 2:
                h = linear(h, layer.weight, layer.bias, hidden.fused)
            else:
                h = hidden(layer(h))
        out: Tensor = self.layers[-1](h)
        return out

    def _apply_to_market(self, batch: Batch, weight: Tensor) -> Tensor:
        """Compute the market's part of the first layer once a bar; repeat it for the samples."""
        rows = batch.rows
        if self.encoder is not None:
            window = rows.reshape(*rows.shape[:-1], -1, self.row)
            rows = join(window[..., -1, :], self.encoder(window))
        shared = linear(rows, weight) if rows.ndim == 2 == weight.ndim else rows @ weight
        return batch.expand(shared, shared.ndim - 2)


class MlpActor(Actor):
    """Maps one row of numbers to all latents."""

    def __init__(
        self,
        layout: Layout,
        plan: Blueprint,
        *,
        extra: int,
        outputs: int,
        out_gain: float,
    ) -> None:
        super().__init__()
        self.outputs = outputs
        latents = layout.num_actions + extra
        self.mlp = Mlp(layout, plan, latents * outputs, out_gain=out_gain)

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        out: Tensor = self.mlp(batch)
        return out.chunk(self.outputs, dim=-1)


class MlpCritic(nn.Module):
    """Value `[*batch_shape, R]` of a batch, or of a batch and latents `[R, L]`."""

    def __init__(self, layout: Layout, plan: Blueprint, *, latents: int) -> None:
        super().__init__()
        self.mlp = Mlp(layout, plan, 1, latents=latents, out_gain=1.0)

    def forward(self, batch: Batch, latent: Tensor | None = None) -> Tensor:
        value: Tensor = self.mlp(batch, latent)
        return value.squeeze(-1)
