"""The networks: an MLP over the whole observation, and a per-asset network with shared weights.

The per-asset network reads each asset's columns with the same weights and lets assets see each other through the
mean of their embeddings (https://arxiv.org/abs/1703.06114). Permuting the assets permutes its outputs, its size
does not depend on the number of assets, and what is learned on one asset holds for all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fintrader.agents.layout import FlatLayout, Layout, market_widths, num_actions, split_columns
from fintrader.config import Settings

_ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "silu": nn.functional.silu, "elu": nn.functional.elu}


class NetworkSettings(Settings):
    """Shape of actor and critic."""

    kind: Literal["auto", "per_asset", "mlp"] = "auto"
    """`per_asset` shares weights across assets, `mlp` reads the flat observation; `auto`: the former on markets."""
    hidden: tuple[int, ...] = Field(default=(32, 32), min_length=1)
    """Widths of the hidden layers, at least one."""
    activation: Literal["tanh", "relu", "silu", "elu"] = "relu"
    """Non-linearity between layers."""
    account: bool = False
    """Per-asset networks read the account's columns (equity, drawdown, time left): needed by rewards that depend on
    them, such as a drawdown penalty; otherwise they only invite learning the training window by heart."""
    layer_norm: bool = False
    """Normalise each hidden layer (https://arxiv.org/abs/1607.06450); steadies off-policy critics."""


class Dense(nn.Module):
    """A linear layer of one network, or of `members` networks at once as one batched matmul."""

    def __init__(
        self, width_in: int, width_out: int, *, members: int | None = None, gain: float = math.sqrt(2)
    ) -> None:
        super().__init__()
        lead = () if members is None else (members,)
        self.weight = nn.Parameter(torch.empty(*lead, width_in, width_out))
        self.bias = nn.Parameter(torch.zeros(*lead, *(() if members is None else (1,)), width_out))
        for matrix in self.weight.unbind(0) if members is not None else (self.weight,):
            nn.init.orthogonal_(matrix, gain)

    def forward(self, x: Tensor) -> Tensor:
        """`[R, in]` (or `[K, R, in]`) to `[R, out]`, with members to `[K, R, out]`."""
        return x @ self.weight + self.bias


class _Hidden(nn.Module):
    """Optional normalisation, then the non-linearity."""

    def __init__(self, width: int, settings: NetworkSettings) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False) if settings.layer_norm else nn.Identity()
        self.activation = _ACTIVATIONS[settings.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.norm(x))


class Mlp(nn.Module):
    """`[R, in]` to `[(K,) R, out]`."""

    def __init__(
        self, width_in: int, width_out: int, settings: NetworkSettings, *, members: int | None, out_gain: float
    ) -> None:
        super().__init__()
        widths = [width_in, *settings.hidden]
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            layers += [Dense(a, b, members=members), _Hidden(b, settings)]
        self.layers = nn.Sequential(*layers, Dense(widths[-1], width_out, members=members, gain=out_gain))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class AssetTrunk(nn.Module):
    """Embeds every asset with the same weights: `[R, N, P]` and common columns `[R, G]` to `[(K,) R, N, H]`.

    Each layer is `h_i ← f(W h_i + V mean_j h_j)`; the first one sees the common columns in place of the mean.
    """

    def __init__(self, asset_width: int, common_width: int, settings: NetworkSettings, *, members: int | None) -> None:
        super().__init__()
        self.own = nn.ModuleList()
        self.common = nn.ModuleList()
        self.hidden = nn.ModuleList()
        width, shared = asset_width, common_width
        for size in settings.hidden:
            self.own.append(Dense(width, size, members=members))
            self.common.append(Dense(shared, size, members=members, gain=1.0))
            self.hidden.append(_Hidden(size, settings))
            width = shared = size

    def forward(self, assets: Tensor, common: Tensor) -> Tensor:
        count = assets.shape[-2]
        h, shared = assets, common
        for number, (own, other, hidden) in enumerate(zip(self.own, self.common, self.hidden, strict=True)):
            if number:
                shared = h.mean(dim=-2)
            # One wide matmul over all assets instead of one small one per account.
            rows = own(h.flatten(-3, -2)).unflatten(-2, (-1, count))
            h = hidden(rows + other(shared).unsqueeze(-2))
        return h


def uses_assets(layout: Layout, settings: NetworkSettings) -> bool:
    """True when the network shares weights across assets."""
    return settings.kind != "mlp" and not isinstance(layout, FlatLayout)


def _common_width(layout: Layout, settings: NetworkSettings) -> int:
    assert not isinstance(layout, FlatLayout)
    account, _, _, _, context = market_widths(layout)
    # One column at least: without any, the first layer would have no matrix.
    return (account if settings.account else 0) + context or 1


def _columns(obs: Tensor, layout: Layout, account: bool) -> tuple[Tensor, Tensor]:
    """Standardised `obs [R, D]` as per-asset columns `[R, N, F + 2]` and common columns `[R, G]`."""
    assert not isinstance(layout, FlatLayout)
    part = split_columns(obs, layout)
    own = torch.cat([part.features, part.holdings.unsqueeze(-1), part.tradable.unsqueeze(-1)], dim=-1)
    common = torch.cat([part.account, part.context], dim=-1) if account else part.context
    return own, common if common.shape[-1] else torch.zeros_like(obs[..., :1])


class Actor(nn.Module):
    """Standardised observation `[R, D]` to `outputs` numbers for each latent: a tuple of `outputs` `[R, L]`.

    `L` is the number of actions N, or N + 1 with a cash logit (`cash=True`), which stands last.
    """

    def __init__(
        self, layout: Layout, settings: NetworkSettings, *, cash: bool, outputs: int = 1, out_gain: float = 0.01
    ) -> None:
        super().__init__()
        self.layout, self.outputs, self.cash, self.account = layout, outputs, cash, settings.account
        latents = num_actions(layout) + cash
        self.per_asset = uses_assets(layout, settings)
        if self.per_asset and not isinstance(layout, FlatLayout):
            self.trunk = AssetTrunk(layout.num_features + 2, _common_width(layout, settings), settings, members=None)
            self.head = Dense(settings.hidden[-1], outputs, gain=out_gain)
            self.cash_head = Dense(settings.hidden[-1], outputs, gain=out_gain) if cash else None
        else:
            self.mlp = Mlp(layout.width, latents * outputs, settings, members=None, out_gain=out_gain)

    def forward(self, obs: Tensor) -> tuple[Tensor, ...]:
        if not self.per_asset:
            out: Tensor = self.mlp(obs)
            return out.chunk(self.outputs, dim=-1)
        h = self.trunk(*_columns(obs, self.layout, self.account))
        latent = self.head(h)
        if self.cash_head is not None:
            latent = torch.cat([latent, self.cash_head(h.mean(dim=-2)).unsqueeze(-2)], dim=-2)
        parts: tuple[Tensor, ...] = latent.unbind(dim=-1)
        return parts


class Critic(nn.Module):
    """Value `[R]` (`[K, R]` with `members`) of a standardised observation, or of one with a latent `[R, L]`."""

    def __init__(
        self,
        layout: Layout,
        settings: NetworkSettings,
        *,
        latents: int = 0,
        members: int | None = None,
        out_gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.layout, self.latents, self.account = layout, latents, settings.account
        self.per_asset = uses_assets(layout, settings)
        if self.per_asset and not isinstance(layout, FlatLayout):
            extra = latents - layout.num_assets if latents else 0
            own = layout.num_features + 2 + (1 if latents else 0)
            self.trunk = AssetTrunk(own, _common_width(layout, settings) + extra, settings, members=members)
            self.head = Dense(settings.hidden[-1], 1, members=members, gain=out_gain)
        else:
            self.mlp = Mlp(layout.width + latents, 1, settings, members=members, out_gain=out_gain)

    def forward(self, obs: Tensor, latent: Tensor | None = None) -> Tensor:
        if not self.per_asset:
            x = obs if latent is None else torch.cat([obs, latent], dim=-1)
            value: Tensor = self.mlp(x)
            return value.squeeze(-1)
        own, common = _columns(obs, self.layout, self.account)
        if latent is not None:
            count = own.shape[-2]
            own = torch.cat([own, latent[..., :count].unsqueeze(-1)], dim=-1)
            common = torch.cat([common, latent[..., count:]], dim=-1)
        h = self.trunk(own, common)
        out: Tensor = self.head(h.mean(dim=-2)).squeeze(-1)
        return out


def parameters_of(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    """All parameters of several modules, in order."""
    return [parameter for module in modules for parameter in module.parameters()]
