"""The networks, and the head that turns what an actor says (a latent) into an action.

An MLP reads the whole observation; the per-asset network reads each asset's columns with the same weights and lets
assets see each other through the mean of their embeddings (https://arxiv.org/abs/1703.06114). Permuting the assets
permutes its outputs, its size does not depend on the number of assets, and what is learned on one asset holds for all.

Where observations show more than one bar (`env.lookback`), an encoder can sum up each asset's last bars (`mlp`: the
whole market's) in a few numbers, which then stand beside what the newest bar says. Without one, the bars before are
plain further inputs.

`batch_shape` is the shape of that many networks in one: `()` for one network, `(K,)` for K critics. Weights of many are
one tensor, and applying them is one batched matmul.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fintrader.config import Settings
from fintrader.envs.observation import (
    FlatLayout,
    Layout,
    holdings_of,
    market_widths,
    num_actions,
    split_columns,
    window_of,
)
from fintrader.errors import ConfigError

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU, "elu": nn.ELU}


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
    encoder: Literal["none", "gru", "attention"] = "none"
    """How the bars that `env.lookback` shows are summed up: a gated recurrent unit, attention, or not at all (then
    they are plain inputs)."""
    encoder_width: int = Field(default=16, ge=1)
    """Numbers the encoder makes of a window."""


class Dense(nn.Module):
    """A linear layer; orthogonal weights (https://arxiv.org/abs/1312.6120) times `gain`, biases of 0."""

    def __init__(
        self, width_in: int, width_out: int, *, batch_shape: tuple[int, ...] = (), gain: float = math.sqrt(2)
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*batch_shape, width_in, width_out))
        self.bias = nn.Parameter(torch.zeros(*batch_shape, *(1,) * bool(batch_shape), width_out))
        for matrix in self.weight.view(-1, width_in, width_out).unbind(0):
            nn.init.orthogonal_(matrix, gain)

    def forward(self, x: Tensor) -> Tensor:
        """`[(*batch_shape,) R, in]` to `[*batch_shape, R, out]`; without the batch shape, `x` is everyone's."""
        # The fused forms save a pass over the result, which counts in networks of this size.
        if self.weight.ndim == 2 and x.ndim == 2:
            return torch.addmm(self.bias, x, self.weight)
        if self.weight.ndim == 3 and x.ndim in (2, 3):
            return torch.baddbmm(self.bias, x.expand(self.weight.shape[0], -1, -1), self.weight)
        return x @ self.weight + self.bias


def hidden(width: int, settings: NetworkSettings) -> nn.Module:
    """Optional normalisation, then the non-linearity."""
    norm = [nn.LayerNorm(width, elementwise_affine=False)] if settings.layer_norm else []
    return nn.Sequential(*norm, ACTIVATIONS[settings.activation]())


def join(*parts: Tensor) -> Tensor:
    """Concatenate along the last dimension, the others broadcast."""
    shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))  # type: ignore[no-untyped-call]
    return torch.cat([part.expand(*shape, part.shape[-1]) for part in parts], dim=-1)


class GruEncoder(nn.Module):
    """A gated recurrent unit over a window (https://arxiv.org/abs/1406.1078): its state after the newest bar.

        r, z = σ(W x_t + U h + b),   n = tanh(W x_t + r ⊙ (U h + b)),   h ← (1 − z) ⊙ n + z ⊙ h

    It starts from zero at the window's oldest bar, so that nothing is carried from one decision to the next.
    """

    def __init__(self, width_in: int, width: int, bars: int, *, batch_shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.bars = bars
        self.input = Dense(width_in, 3 * width, batch_shape=batch_shape, gain=1.0)
        self.recurrent = Dense(width, 3 * width, batch_shape=batch_shape, gain=1.0)

    def forward(self, window: Tensor) -> Tensor:
        """`[..., S, L, P]` to `[*batch_shape, S, E]`."""
        shape = window.shape[-3:-1]
        inputs = self.input(window.flatten(-3, -2)).unflatten(-2, shape)
        h = torch.zeros_like(inputs[..., 0, : inputs.shape[-1] // 3])
        for bar in range(self.bars):
            reset_in, update_in, new_in = inputs[..., bar, :].chunk(3, dim=-1)
            reset, update, new = self.recurrent(h).chunk(3, dim=-1)
            gate = torch.sigmoid(update_in + update)
            h = (1 - gate) * torch.tanh(new_in + torch.sigmoid(reset_in + reset) * new) + gate * h
        return h


class AttentionEncoder(nn.Module):
    """Scaled dot-product attention (https://arxiv.org/abs/1706.03762, equation 1) of the newest bar to all bars.

    e = softmax(q · k / √E) v,   q from the newest bar, k and v from every bar; k knows its position
    """

    def __init__(self, width_in: int, width: int, bars: int, *, batch_shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.bars = bars
        self.query = Dense(width_in, width, batch_shape=batch_shape, gain=1.0)
        self.key = Dense(width_in, width, batch_shape=batch_shape, gain=1.0)
        self.value = Dense(width_in, width, batch_shape=batch_shape, gain=1.0)
        self.position = nn.Parameter(
            torch.randn(*batch_shape, *(1,) * bool(batch_shape), bars, width) / math.sqrt(width)
        )

    def forward(self, window: Tensor) -> Tensor:
        """`[..., S, L, P]` to `[*batch_shape, S, E]`."""
        shape, flat = window.shape[-3:-1], window.flatten(-3, -2)
        query = self.query(window[..., -1, :]).unsqueeze(-2)
        key = self.key(flat).unflatten(-2, shape) + self.position
        weight = torch.softmax((query * key).sum(dim=-1) / math.sqrt(key.shape[-1]), dim=-1)
        value: Tensor = self.value(flat).unflatten(-2, shape)
        return (weight.unsqueeze(-1) * value).sum(dim=-2)


class Mlp(nn.Module):
    """`[R, in]` to `[*batch_shape, R, out]`."""

    def __init__(
        self, width_in: int, width_out: int, settings: NetworkSettings, *, batch_shape: tuple[int, ...], out_gain: float
    ) -> None:
        super().__init__()
        widths = [width_in, *settings.hidden]
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            layers += [Dense(a, b, batch_shape=batch_shape), hidden(b, settings)]
        self.layers = nn.Sequential(*layers, Dense(widths[-1], width_out, batch_shape=batch_shape, gain=out_gain))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class AssetTrunk(nn.Module):
    """Embeds every asset with the same weights: `[R, N, P]` and common columns `[R, G]` to `[*batch_shape, R, N, H]`.

    Each layer is `h_i ← f(W h_i + V mean_j h_j)`; the first one sees the common columns in place of the mean.
    """

    def __init__(
        self, asset_width: int, common_width: int, settings: NetworkSettings, *, batch_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.own = nn.ModuleList()
        self.common = nn.ModuleList()
        self.hidden = nn.ModuleList()
        width, shared = asset_width, common_width
        for size in settings.hidden:
            self.own.append(Dense(width, size, batch_shape=batch_shape))
            self.common.append(Dense(shared, size, batch_shape=batch_shape, gain=1.0))
            self.hidden.append(hidden(size, settings))
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


class AssetInput(nn.Module):
    """Standardised `obs [R, D]` as per-asset columns `[R, N, P]` and common columns `[R, G]`."""

    def __init__(self, layout: Layout, settings: NetworkSettings, *, batch_shape: tuple[int, ...]) -> None:
        super().__init__()
        assert not isinstance(layout, FlatLayout)
        self.layout, self.account = layout, settings.account
        self.encoder = make_encoder(layout, settings, layout.num_features + 1, batch_shape=batch_shape)
        past = (layout.lookback - 1) * (layout.num_features + 1)
        self.width = layout.num_features + 2 + (past if self.encoder is None else settings.encoder_width)
        """P"""
        # One column at least: without any, the first layer would have no matrix.
        account, *_, context = market_widths(layout)
        self.common_width = (account if self.account else 0) + context or 1
        """G"""

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        part = split_columns(obs, self.layout)
        own = torch.cat([part.features, part.holdings.unsqueeze(-1), part.tradable.unsqueeze(-1)], dim=-1)
        if self.encoder is not None:
            window = window_of(part)
            encoded = self.encoder(window.flatten(-4, -3)).unflatten(-2, window.shape[-4:-2])
            own = join(own, encoded)
        elif self.layout.lookback > 1:
            own = torch.cat([own, window_of(part)[..., :-1, :].flatten(-2)], dim=-1)
        common = torch.cat([part.account, part.context], dim=-1) if self.account else part.context
        return own, common if common.shape[-1] else torch.zeros_like(obs[..., :1])


class FlatInput(nn.Module):
    """Standardised `obs [R, D]` as one row each `[R, P]`."""

    def __init__(self, layout: Layout, settings: NetworkSettings, *, batch_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layout, self.width = layout, layout.width
        row = 0 if isinstance(layout, FlatLayout) else layout.row_width
        self.encoder = make_encoder(layout, settings, row, batch_shape=batch_shape)
        if self.encoder is not None and not isinstance(layout, FlatLayout):
            self.width += settings.encoder_width - (layout.lookback - 1) * row

    def forward(self, obs: Tensor) -> Tensor:
        if self.encoder is None or isinstance(self.layout, FlatLayout):
            return obs
        private, rows = obs[..., : self.layout.private_width], obs[..., self.layout.private_width :]
        window = rows.reshape(*rows.shape[:-1], self.layout.lookback, self.layout.row_width)
        return join(private, window[..., -1, :], self.encoder(window))


def make_encoder(
    layout: Layout, settings: NetworkSettings, width_in: int, *, batch_shape: tuple[int, ...]
) -> GruEncoder | AttentionEncoder | None:
    """The encoder that the settings ask for. Raises ConfigError when observations show but one bar."""
    if settings.encoder == "none":
        return None
    if isinstance(layout, FlatLayout):
        raise ConfigError(f"agent.network.encoder {settings.encoder} reads a market's last bars; set it to none here")
    if layout.lookback < 2:
        raise ConfigError(
            f"agent.network.encoder {settings.encoder} needs bars to read: set env.lookback to 2 or more, e.g. 30"
        )
    kind = GruEncoder if settings.encoder == "gru" else AttentionEncoder
    return kind(width_in, settings.encoder_width, layout.lookback, batch_shape=batch_shape)


class Actor(nn.Module):
    """Standardised observation `[R, D]` to `outputs` numbers for each latent: a tuple of `outputs` `[R, L]`.

    `L` is the number of actions N, or N + 1 with a cash logit (`cash=True`), which stands last.
    """

    def __init__(
        self, layout: Layout, settings: NetworkSettings, *, cash: bool, outputs: int = 1, out_gain: float = 0.01
    ) -> None:
        super().__init__()
        self.outputs = outputs
        self.per_asset = uses_assets(layout, settings)
        if self.per_asset:
            self.assets = AssetInput(layout, settings, batch_shape=())
            self.trunk = AssetTrunk(self.assets.width, self.assets.common_width, settings, batch_shape=())
            self.head = Dense(settings.hidden[-1], outputs, gain=out_gain)
            self.cash_head = Dense(settings.hidden[-1], outputs, gain=out_gain) if cash else None
        else:
            self.input = FlatInput(layout, settings, batch_shape=())
            latents = num_actions(layout) + cash
            self.mlp = Mlp(self.input.width, latents * outputs, settings, batch_shape=(), out_gain=out_gain)

    def forward(self, obs: Tensor) -> tuple[Tensor, ...]:
        if not self.per_asset:
            out: Tensor = self.mlp(self.input(obs))
            return out.chunk(self.outputs, dim=-1)
        h = self.trunk(*self.assets(obs))
        latent = self.head(h)
        if self.cash_head is not None:
            latent = torch.cat([latent, self.cash_head(h.mean(dim=-2)).unsqueeze(-2)], dim=-2)
        parts: tuple[Tensor, ...] = latent.unbind(dim=-1)
        return parts


class Critic(nn.Module):
    """Value `[R]` (`[K, R]` with `members`) of a standardised observation, or of one with a latent `[R, L]`."""

    def __init__(
        self, layout: Layout, settings: NetworkSettings, *, latents: int = 0, members: int | None = None
    ) -> None:
        super().__init__()
        self.per_asset = uses_assets(layout, settings)
        batch_shape = () if members is None else (members,)
        if self.per_asset:
            # Each asset sees its own latent; what is left over (cash) all of them see.
            extra = latents - num_actions(layout) if latents else 0
            self.assets = AssetInput(layout, settings, batch_shape=batch_shape)
            own = self.assets.width + (1 if latents else 0)
            self.trunk = AssetTrunk(own, self.assets.common_width + extra, settings, batch_shape=batch_shape)
            self.head = Dense(settings.hidden[-1], 1, batch_shape=batch_shape, gain=1.0)
        else:
            self.input = FlatInput(layout, settings, batch_shape=batch_shape)
            self.mlp = Mlp(self.input.width + latents, 1, settings, batch_shape=batch_shape, out_gain=1.0)

    def forward(self, obs: Tensor, latent: Tensor | None = None) -> Tensor:
        if not self.per_asset:
            x = self.input(obs)
            value: Tensor = self.mlp(x if latent is None else join(x, latent))
            return value.squeeze(-1)
        own, common = self.assets(obs)
        if latent is not None:
            count = own.shape[-2]
            own = join(own, latent[..., :count].unsqueeze(-1))
            common = join(common, latent[..., count:])
        h = self.trunk(own, common)
        out: Tensor = self.head(h.mean(dim=-2)).squeeze(-1)
        return out


class ActionHeadSettings(Settings):
    """How latents become actions."""

    kind: Literal["auto", "direct", "aim"] = "auto"
    """`aim` suits the environment's `target` actions, `direct` everything; `auto`: `aim` on markets."""
    scale: float = Field(default=4.0, gt=0)
    """Logits per unit of latent (`aim`): at 4, latents of ±1 concentrate almost all weight."""
    cash_logit: float = -1.0
    """Cash's logit at the start relative to all assets together (`aim`): -1 leaves about a quarter in cash."""
    band: float = Field(default=0.0, ge=0)
    """Gaps below `band / N` of equity are left alone (`aim`): the no-trade region of proportional costs."""


class ActionHead:
    """`decode(obs, latent) -> action` in [-1, 1]; differentiable in both.

    `direct`
        `a = clip(z, -1, 1)`. For classic environments and for the environment's `trade` actions.
    `aim`
        For target weights. The latents are logits of an *aim* portfolio with cash in it, and the action is the aim, or
        the edge of a no-trade region around it: `a = w + shrink(softmax(scale · z) − w, band)` with the weights held
        w. How much of the way there is traded at each decision is the environment's to say (`env.trade_rate`); below
        1, exploration noise moves the account slowly instead of paying costs every bar.
    """

    def __init__(self, layout: Layout, settings: ActionHeadSettings) -> None:
        self.layout, self.settings = layout, settings
        self.targets_weights = settings.kind != "direct" and not isinstance(layout, FlatLayout)
        self.latents = num_actions(layout) + self.targets_weights
        """L: width of the latent."""

    def decode(self, obs: Tensor, latent: Tensor) -> Tensor:
        """Raw `obs [B, D]` and `latent [B, L]` to an action `[B, N]`."""
        if not self.targets_weights:
            return latent.clamp(-1.0, 1.0)
        assert not isinstance(self.layout, FlatLayout)
        settings, assets = self.settings, self.layout.num_assets
        # Without log N, cash would weigh less the more assets there are.
        bias = torch.zeros(assets + 1, dtype=latent.dtype, device=latent.device)
        bias[assets] = math.log(assets) + settings.cash_logit
        aim = torch.softmax(settings.scale * latent + bias, dim=-1)[..., :assets]
        if settings.band == 0:
            return aim
        held = holdings_of(obs, self.layout)
        return (held + torch.nn.functional.softshrink(aim - held, settings.band / assets)).clamp(0.0, 1.0)
