"""What networks read, and the first part of them: settings, observations as networks see them, and
trunks.

See `networks` for what stands on top.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Literal, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from fintrader.agents.fast.onednn import linear
from fintrader.agents.layers import (
    ENCODERS,
    AssetTrunk,
    AttentionEncoder,
    Dense,
    GruEncoder,
    Hidden,
    join,
)
from fintrader.config import Settings
from fintrader.envs.observation import (
    FlatLayout,
    Layout,
    ObservationLayout,
    split_market,
    window_of,
)
from fintrader.errors import ConfigError


class NetworkSettings(Settings):
    """Shape of actor and critic."""

    kind: Literal["auto", "market_once", "per_asset", "mlp"] = "auto"
    """`market_once` embeds the market once a bar, `per_asset` once for every account, `mlp` reads a
    row of numbers; `auto`: on markets `market_once` where latents are target weights and
    `per_asset` where they are orders, whose size depends on what is held; `mlp` elsewhere."""
    hidden: tuple[Annotated[int, Field(ge=1, le=65536)], ...] = Field(
        default=(32, 32), min_length=1
    )
    """Widths of the hidden layers, at least one."""
    activation: Literal["tanh", "relu", "silu", "elu"] = "relu"
    """Non-linearity between layers."""
    account: bool = False
    """Read the account's columns (cash, growth, drawdown, time left), which `mlp` always does:
    needed by rewards that depend on them, such as a drawdown penalty; otherwise they only invite
    learning the training window by heart. To be deployed, such a network needs `env.clock` session
    or none."""
    holdings: bool = False
    """`market_once`: let the actor, too, see what is held. It tells what the noise did of late,
    which costs money, and an actor of target weights learns to undo it."""
    layer_norm: bool = False
    """Normalise each hidden layer (https://arxiv.org/abs/1607.06450); steadies off-policy
    critics."""
    encoder: Literal["none", "gru", "attention"] = "none"
    """How the bars that `env.lookback` shows are summed up: a gated recurrent unit, attention, or
    not at all (then they are plain inputs)."""
    encoder_width: int = Field(default=16, ge=1)
    """Numbers the encoder makes of a window."""

    def resolved(self, layout: Layout, *, orders: bool = False) -> Self:
        """With what `auto` means there; `orders`: latents are orders, not target weights.

        Raises ConfigError for a network that cannot read the layout.
        """
        if isinstance(layout, FlatLayout):
            if self.kind not in ("auto", "mlp"):
                raise ConfigError(
                    f"agent.network.kind {self.kind} reads a market's assets; set it to mlp or auto"
                    " here"
                )
            return self.model_copy(update={"kind": "mlp"})
        meant = "per_asset" if orders else "market_once"
        return self.model_copy(update={"kind": meant}) if self.kind == "auto" else self


class Seen(NamedTuple):
    """Standardised observations of R samples."""

    private: Tensor
    """`[R, A + N]`: account and holdings; of a classic environment everything, `[R, D]`."""
    rows: Tensor
    """`[U, L*W]`: rows of the market; of a classic environment `[U, 0]`."""
    place: Tensor | None
    """`[R]` int64: the row that each sample sees; None: row i is sample i's."""

    def take(self, samples: Tensor) -> Self:
        """The samples with these numbers, with the rows that occur among them."""
        private = self.private.index_select(0, samples)
        if self.place is None:
            return type(self)(private, self.rows.index_select(0, samples), None)
        occurring, place = numbered_anew(self.place.index_select(0, samples), len(self.rows))
        return type(self)(private, self.rows.index_select(0, occurring), place)

    def spread(self, of_rows: Tensor, dim: int = 0) -> Tensor:
        """What was made of each row, for each sample: `dim` has U entries and gets R."""
        return of_rows if self.place is None else of_rows.index_select(dim, self.place)


def numbered_anew(numbers: Tensor, count: int, *, wait: bool = True) -> tuple[Tensor, Tensor]:
    """Which of 0 ... count - 1 occur, in order, and for each of `numbers` `[R]` its place among
    these.

    How many occur, a GPU would have to be waited for to say: without `wait`, zeros fill up what
    may.
    """
    occurs = torch.zeros(count, dtype=torch.int64, device=numbers.device)
    occurs[numbers] = 1
    most = min(len(numbers), count)
    occurring = occurs.nonzero() if wait else torch.nonzero_static(occurs, size=most, fill_value=0)
    return occurring.squeeze(1), (occurs.cumsum(0) - 1).index_select(0, numbers)


class AssetInput(nn.Module):
    """What the market shows of each asset: rows `[U, L*W]` to `[U, N, P]`, and to common columns
    `[U, G]`."""

    def __init__(
        self, layout: ObservationLayout, settings: NetworkSettings, *, batch_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.layout = layout
        self.encoder = make_encoder(
            layout, settings, layout.num_features + 1, batch_shape=batch_shape
        )
        past = (layout.lookback - 1) * (layout.num_features + 1)
        now = layout.num_features + 1 + 2 * layout.benchmark
        self.width = now + (past if self.encoder is None else settings.encoder_width)
        """P"""
        # One column at least: without any, the first layer would have no matrix.
        self.common_width = layout.num_context or 1
        """G"""

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        part = split_market(rows, self.layout)
        shown = (
            (part.tradable, part.member, part.benchmark)
            if self.layout.benchmark
            else (part.tradable,)
        )
        own = torch.cat([part.features, torch.stack(shown, dim=-1)], dim=-1)
        if self.encoder is not None:
            window = window_of(part)
            encoded = self.encoder(window.flatten(-4, -3)).unflatten(-2, window.shape[-4:-2])
            own = join(own, encoded)
        elif self.layout.lookback > 1:
            own = torch.cat([own, window_of(part)[..., :-1, :].flatten(-2)], dim=-1)
        return own, part.context if self.layout.num_context else torch.zeros_like(rows[..., :1])


class MarketTrunk(nn.Module):
    """Every asset's embedding, from the market alone: rows `[U, L*W]` to `[*batch_shape, U, N,
    H]`."""

    def __init__(
        self, layout: ObservationLayout, settings: NetworkSettings, *, batch_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.assets = AssetInput(layout, settings, batch_shape=batch_shape)
        self.layers = AssetTrunk(
            self.assets.width,
            self.assets.common_width,
            settings.hidden,
            settings.activation,
            layer_norm=settings.layer_norm,
            batch_shape=batch_shape,
        )

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.layers(*self.assets(rows))
        return out

    def pooled(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and its mean over the assets `[*batch_shape, U, H]`."""
        return self.layers.pooled(*self.assets(rows))


class AccountTrunk(nn.Module):
    """Every asset's embedding for every account: `[*batch_shape, R, N, H]`. `latents` stand beside
    the holdings."""

    def __init__(
        self,
        layout: ObservationLayout,
        settings: NetworkSettings,
        *,
        latents: int = 0,
        batch_shape: tuple[int, ...],
    ) -> None:
        super().__init__()
        self.assets = AssetInput(layout, settings, batch_shape=batch_shape)
        self.num_assets = layout.num_assets
        self.features = layout.num_features
        self.account = layout.account_width if settings.account else 0
        # Each asset sees its own latent; what is left over (cash) all of them see.
        own, common = (1, latents - layout.num_assets) if latents else (0, 0)
        self.layers = AssetTrunk(
            self.assets.width + 1 + own,
            self.assets.common_width + self.account + common,
            settings.hidden,
            settings.activation,
            layer_norm=settings.layer_norm,
            batch_shape=batch_shape,
        )

    def forward(self, seen: Seen, latent: Tensor | None = None) -> Tensor:
        own, common = self.assets(seen.rows)
        own = seen.spread(own, own.ndim - 3)
        common = seen.spread(common, common.ndim - 2)
        held = seen.private[..., -self.num_assets :].unsqueeze(-1)
        own = join(own[..., : self.features], held, own[..., self.features :])
        common = torch.cat([seen.private[..., : self.account], common], dim=-1)
        if latent is not None:
            own = join(own, latent[..., : self.num_assets].unsqueeze(-1))
            common = join(common, latent[..., self.num_assets :])
        out: Tensor = self.layers(own, common)
        return out


class Mlp(nn.Module):
    """`Seen` (and latents `[R, L]`, if any) to `[*batch_shape, R, out]`."""

    def __init__(
        self,
        layout: Layout,
        width_out: int,
        settings: NetworkSettings,
        *,
        latents: int = 0,
        batch_shape: tuple[int, ...],
        out_gain: float,
    ) -> None:
        super().__init__()
        self.private, self.row = (
            (layout.width, 0)
            if isinstance(layout, FlatLayout)
            else (layout.private_width, layout.row_width)
        )
        self.encoder = make_encoder(layout, settings, self.row, batch_shape=batch_shape)
        market = 0 if isinstance(layout, FlatLayout) else layout.market_width
        self.market = market if self.encoder is None else self.row + settings.encoder_width
        widths = [self.private + self.market + latents, *settings.hidden]
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            layers += [
                Dense(a, b, batch_shape=batch_shape),
                Hidden(b, settings.activation, layer_norm=settings.layer_norm),
            ]
        self.layers = nn.Sequential(
            *layers, Dense(widths[-1], width_out, batch_shape=batch_shape, gain=out_gain)
        )

    def forward(self, seen: Seen, latent: Tensor | None = None) -> Tensor:
        first = self.layers[0]
        assert isinstance(first, Dense)
        # W [p, m, z] + b = (W_p p + b) + W_m m + W_z z, and m is by far the widest part.
        weights = torch.split(
            first.weight,
            [self.private, self.market, first.weight.shape[-2] - self.private - self.market],
            -2,
        )
        h = first.apply_with(seen.private, weights[0])
        if self.market:
            rows = seen.rows
            if self.encoder is not None:
                window = rows.reshape(*rows.shape[:-1], -1, self.row)
                rows = join(window[..., -1, :], self.encoder(window))
            shared = (
                linear(rows, weights[1]) if rows.ndim == 2 == weights[1].ndim else rows @ weights[1]
            )
            h = h + seen.spread(shared, shared.ndim - 2)
        if latent is not None:
            h = h + latent @ weights[2]
        h = self.layers[1](h)
        for number in range(2, len(self.layers) - 1, 2):
            layer = self.layers[number]
            hidden = self.layers[number + 1]
            assert isinstance(layer, Dense)
            assert isinstance(hidden, Hidden)
            h = hidden.after(layer, h)
        out: Tensor = self.layers[-1](h)
        return out


def make_encoder(
    layout: Layout, settings: NetworkSettings, width_in: int, *, batch_shape: tuple[int, ...]
) -> GruEncoder | AttentionEncoder | None:
    """The encoder that the settings ask for. Raises ConfigError when observations show but one
    bar."""
    if settings.encoder == "none":
        return None
    if isinstance(layout, FlatLayout):
        raise ConfigError(
            f"agent.network.encoder {settings.encoder} reads a market's last bars; set it to none"
            " here"
        )
    if layout.lookback < 2:
        raise ConfigError(
            f"agent.network.encoder {settings.encoder} needs bars to read: set env.lookback to 2 or"
            " more, e.g. 30"
        )
    return ENCODERS[settings.encoder](
        width_in, settings.encoder_width, layout.lookback, batch_shape=batch_shape
    )
