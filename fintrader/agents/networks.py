"""Actors and critics: they read the market once for each bar, and each account at that bar adds what it holds.

All accounts at a bar see the same market. Observations therefore come as `Seen`: what is private to each sample, the
rows of the market that occur, and which of them each sample sees. Three kinds of network read them:

`market_once`
    A trunk embeds every asset from the market's row alone, with weights that all assets share, and lets them see each
    other through the mean of their embeddings (https://arxiv.org/abs/1703.06114). From an embedding come coefficients:
    latents are linear in what the account shows, values quadratic. An account then costs a few numbers per asset, and
    the trunk, with an encoder of any depth, is paid for once a bar. Permuting the assets permutes the outputs, its size
    does not depend on their number, and what is learned on one asset holds for all.
`per_asset`
    The same trunk, but holdings enter it beside the features: it may do anything with them, once for every account.
`mlp`
    One row of numbers in. Its first layer is applied to market and account apart, to the former once a bar.

Where observations show more than one bar (`env.lookback`), an encoder can sum up each asset's last bars (`mlp`: the
whole market's) in a few numbers, which then stand beside what the newest bar says. Without one, the bars before are
plain further inputs.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Literal, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from fintrader.agents.layers import (
    ENCODERS,
    AssetTrunk,
    AttentionEncoder,
    Dense,
    GruEncoder,
    hidden,
    join,
)
from fintrader.config import Settings
from fintrader.envs.observation import (
    FlatLayout,
    Layout,
    ObservationLayout,
    num_actions,
    split_market,
    window_of,
)
from fintrader.errors import ConfigError

COMMON_PACE = 0.25
"""Latents that are no asset's move this much slower than the others. While nothing is known yet, exploration only costs
money, and to hold or trade less of everything is what pays: cash must not be all there is before it is known what else
to hold."""


class NetworkSettings(Settings):
    """Shape of actor and critic."""

    kind: Literal["auto", "market_once", "per_asset", "mlp"] = "auto"
    """`market_once` embeds the market once a bar, `per_asset` once for every account, `mlp` reads a row of numbers;
    `auto`: on markets `market_once` where latents are target weights and `per_asset` where they are orders, whose size
    depends on what is held; `mlp` elsewhere."""
    hidden: tuple[Annotated[int, Field(ge=1, le=65536)], ...] = Field(default=(32, 32), min_length=1)
    """Widths of the hidden layers, at least one."""
    activation: Literal["tanh", "relu", "silu", "elu"] = "relu"
    """Non-linearity between layers."""
    account: bool = False
    """Read the account's columns (cash, growth, drawdown, time left), which `mlp` always does: needed by rewards that
    depend on them, such as a drawdown penalty; otherwise they only invite learning the training window by heart. To be
    deployed, such a network needs `env.clock` session or none."""
    holdings: bool = False
    """`market_once`: let the actor, too, see what is held. It tells what the noise did of late, which costs money, and
    an actor of target weights learns to undo it."""
    layer_norm: bool = False
    """Normalise each hidden layer (https://arxiv.org/abs/1607.06450); steadies off-policy critics."""
    encoder: Literal["none", "gru", "attention"] = "none"
    """How the bars that `env.lookback` shows are summed up: a gated recurrent unit, attention, or not at all (then
    they are plain inputs)."""
    encoder_width: int = Field(default=16, ge=1)
    """Numbers the encoder makes of a window."""

    def resolved(self, layout: Layout, *, orders: bool = False) -> Self:
        """With what `auto` means there; `orders`: latents are orders, not target weights.

        Raises ConfigError for a network that cannot read the layout.
        """
        if isinstance(layout, FlatLayout):
            if self.kind not in ("auto", "mlp"):
                raise ConfigError(f"agent.network.kind {self.kind} reads a market's assets; set it to mlp or auto here")
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
    """Which of 0 ... count - 1 occur, in order, and for each of `numbers` `[R]` its place among these.

    How many occur, a GPU would have to be waited for to say: without `wait`, zeros fill up what may.
    """
    occurs = torch.zeros(count, dtype=torch.int64, device=numbers.device)
    occurs[numbers] = 1
    most = min(len(numbers), count)
    occurring = occurs.nonzero() if wait else torch.nonzero_static(occurs, size=most, fill_value=0)
    return occurring.squeeze(1), (occurs.cumsum(0) - 1).index_select(0, numbers)


class AssetInput(nn.Module):
    """What the market shows of each asset: rows `[U, L*W]` to `[U, N, P]`, and to common columns `[U, G]`."""

    def __init__(self, layout: ObservationLayout, settings: NetworkSettings, *, batch_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layout = layout
        self.encoder = make_encoder(layout, settings, layout.num_features + 1, batch_shape=batch_shape)
        past = (layout.lookback - 1) * (layout.num_features + 1)
        now = layout.num_features + 1 + 2 * layout.benchmark
        self.width = now + (past if self.encoder is None else settings.encoder_width)
        """P"""
        # One column at least: without any, the first layer would have no matrix.
        self.common_width = layout.num_context or 1
        """G"""

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        part = split_market(rows, self.layout)
        shown = (part.tradable, part.member, part.benchmark) if self.layout.benchmark else (part.tradable,)
        own = torch.cat([part.features, torch.stack(shown, dim=-1)], dim=-1)
        if self.encoder is not None:
            window = window_of(part)
            encoded = self.encoder(window.flatten(-4, -3)).unflatten(-2, window.shape[-4:-2])
            own = join(own, encoded)
        elif self.layout.lookback > 1:
            own = torch.cat([own, window_of(part)[..., :-1, :].flatten(-2)], dim=-1)
        return own, part.context if self.layout.num_context else torch.zeros_like(rows[..., :1])


class MarketTrunk(nn.Module):
    """Every asset's embedding, from the market alone: rows `[U, L*W]` to `[*batch_shape, U, N, H]`."""

    def __init__(self, layout: ObservationLayout, settings: NetworkSettings, *, batch_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.assets = AssetInput(layout, settings, batch_shape=batch_shape)
        self.layers = AssetTrunk(
            self.assets.width, self.assets.common_width, settings.hidden, settings.activation,
            layer_norm=settings.layer_norm, batch_shape=batch_shape,
        )  # fmt: skip

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.layers(*self.assets(rows))
        return out


class AccountTrunk(nn.Module):
    """Every asset's embedding for every account: `[*batch_shape, R, N, H]`. `latents` stand beside the holdings."""

    def __init__(
        self, layout: ObservationLayout, settings: NetworkSettings, *, latents: int = 0, batch_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.assets = AssetInput(layout, settings, batch_shape=batch_shape)
        self.num_assets, self.features = layout.num_assets, layout.num_features
        self.account = layout.account_width if settings.account else 0
        # Each asset sees its own latent; what is left over (cash) all of them see.
        own, common = (1, latents - layout.num_assets) if latents else (0, 0)
        self.layers = AssetTrunk(
            self.assets.width + 1 + own, self.assets.common_width + self.account + common, settings.hidden,
            settings.activation, layer_norm=settings.layer_norm, batch_shape=batch_shape,
        )  # fmt: skip

    def forward(self, seen: Seen, latent: Tensor | None = None) -> Tensor:
        own, common = self.assets(seen.rows)
        own, common = seen.spread(own, own.ndim - 3), seen.spread(common, common.ndim - 2)
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
        self, layout: Layout, width_out: int, settings: NetworkSettings, *, latents: int = 0,
        batch_shape: tuple[int, ...], out_gain: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.private, self.row = (
            (layout.width, 0) if isinstance(layout, FlatLayout) else (layout.private_width, layout.row_width)
        )
        self.encoder = make_encoder(layout, settings, self.row, batch_shape=batch_shape)
        market = 0 if isinstance(layout, FlatLayout) else layout.market_width
        self.market = market if self.encoder is None else self.row + settings.encoder_width
        widths = [self.private + self.market + latents, *settings.hidden]
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            layers += [
                Dense(a, b, batch_shape=batch_shape),
                hidden(b, settings.activation, layer_norm=settings.layer_norm),
            ]
        self.layers = nn.Sequential(*layers, Dense(widths[-1], width_out, batch_shape=batch_shape, gain=out_gain))

    def forward(self, seen: Seen, latent: Tensor | None = None) -> Tensor:
        first = self.layers[0]
        assert isinstance(first, Dense)
        # W [p, m, z] + b = (W_p p + b) + W_m m + W_z z, and m is by far the widest part.
        weights = torch.split(
            first.weight, [self.private, self.market, first.weight.shape[-2] - self.private - self.market], -2
        )
        h = first.apply_with(seen.private, weights[0])
        if self.market:
            rows = seen.rows
            if self.encoder is not None:
                window = rows.reshape(*rows.shape[:-1], -1, self.row)
                rows = join(window[..., -1, :], self.encoder(window))
            shared = rows @ weights[1]
            h = h + seen.spread(shared, shared.ndim - 2)
        if latent is not None:
            h = h + latent @ weights[2]
        for layer in itertools.islice(self.layers, 1, None):
            h = layer(h)
        return h


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
    return ENCODERS[settings.encoder](width_in, settings.encoder_width, layout.lookback, batch_shape=batch_shape)


class Coefficients(NamedTuple):
    """What U bars make of an account, for each of `outputs`: latent = constant + slope · held + account · columns."""

    constant: Tensor
    """`[outputs, U, N]`"""
    slope: Tensor | None
    """`[outputs, U, N]`; None where holdings are not read."""
    common: Tensor | None
    """`[outputs, U, C]`: latents that are no asset's; None where there are none."""
    account: Tensor
    """`[outputs, U, A, L]`, A = 0 for networks that do not read the account's columns."""


class Actor(nn.Module):
    """`Seen` of R samples to `outputs` numbers for each latent: a tuple of `outputs` `[R, L]`.

    `L` is the number of actions N and the `common` latents that are no asset's, which stand last (see `ActionHead`).
    """

    def __init__(
        self, layout: Layout, settings: NetworkSettings, *, common: int, outputs: int = 1, out_gain: float = 0.01
    ) -> None:
        super().__init__()
        settings = settings.resolved(layout)
        self.outputs, self.kind, width = outputs, settings.kind, settings.hidden[-1]
        if isinstance(layout, FlatLayout) or self.kind == "mlp":
            latents = num_actions(layout) + common
            self.mlp = Mlp(layout, latents * outputs, settings, batch_shape=(), out_gain=out_gain)
            return
        self.num_assets, self.common, self.account, self.holdings = layout.num_assets, common, 0, False
        if self.kind == "per_asset":
            self.trunk: nn.Module = AccountTrunk(layout, settings, batch_shape=())
        else:
            self.trunk = MarketTrunk(layout, settings, batch_shape=())
            self.account = layout.account_width if settings.account else 0
            self.holdings = settings.holdings
        # market_once: see `Coefficients`.
        self.head = Dense(width, outputs * (1 + self.holdings + self.account), gain=out_gain)
        self.common_head = Dense(width, outputs * (1 + self.account) * common, gain=out_gain) if common else None

    def first(self, seen: Seen) -> tuple[Tensor, Tensor | None]:
        """The first of the outputs `[R, L]`; where accounts at a bar share theirs, `[U, L]` and each one's place."""
        if self.kind != "market_once" or self.holdings or self.account:
            return self(seen)[0], None
        of = self.coefficients(seen.rows)
        latent = of.constant[0] if of.common is None else torch.cat([of.constant[0], of.common[0]], dim=-1)
        return latent, seen.place

    def forward(self, seen: Seen) -> tuple[Tensor, ...]:
        if self.kind == "mlp":
            out: Tensor = self.mlp(seen)
            return out.chunk(self.outputs, dim=-1)
        if self.kind == "market_once":
            return self.latents(seen, self.coefficients(seen.rows))
        h = self.trunk(seen)
        latent = self.head(h)
        if self.common_head is not None:
            common = COMMON_PACE * self.common_head(h.mean(dim=-2))
            latent = torch.cat([latent, common.unflatten(-1, (self.common, self.outputs))], dim=-2)
        parts: tuple[Tensor, ...] = latent.unbind(dim=-1)
        return parts

    def coefficients(self, rows: Tensor) -> Coefficients:
        """`market_once`: what the bars in `rows` `[U, L*W]` make latents of."""
        h = self.trunk(rows)
        own = self.head(h.flatten(0, 1)).view(*h.shape[:2], self.outputs, -1).permute(2, 3, 0, 1).contiguous()
        account, common = own[:, 1 + self.holdings :].transpose(1, 2), None
        if self.common_head is not None:
            both = COMMON_PACE * self.common_head(h.mean(dim=1))
            both = both.view(rows.shape[0], self.outputs, -1, self.common).permute(1, 2, 0, 3)
            common, account = both[:, 0], torch.cat([account, both[:, 1:].transpose(1, 2)], dim=-1)
        return Coefficients(own[:, 0], own[:, 1] if self.holdings else None, common, account)

    def latents(self, seen: Seen, of: Coefficients) -> tuple[Tensor, ...]:
        """`market_once`: a tuple of `outputs` `[R, L]`."""
        parts = []
        for k in range(self.outputs):
            # What accounts share is put together before it is handed out.
            latent = of.constant[k] if of.common is None else torch.cat([of.constant[k], of.common[k]], dim=-1)
            latent = seen.spread(latent)
            if of.slope is not None:
                own = seen.spread(of.slope[k]) * seen.private[..., -self.num_assets :]
                latent = latent + nn.functional.pad(own, (0, latent.shape[-1] - self.num_assets))
            if self.account:
                columns = seen.private[..., : self.account].unsqueeze(-2)
                latent = latent + (columns @ seen.spread(of.account[k])).squeeze(-2)
            parts.append(latent)
        return tuple(parts)


class Critic(nn.Module):
    """Value `[R]` (`[K, R]` with `members`) of what is `Seen`, or of that with a latent `[R, L]`.

    `market_once` without latents: V = c + Σ_j (d_j + e_j x_j) x_j + mean_i (a_i + b_i h_i) h_i with the holdings h and,
    with `account`, the account's columns x; all coefficients are the bar's. With latents, which act on what is held in
    ways that no square describes, embeddings of the bar pass one more layer with them.
    """

    def __init__(
        self, layout: Layout, settings: NetworkSettings, *, latents: int = 0, members: int | None = None
    ) -> None:
        super().__init__()
        settings = settings.resolved(layout)
        self.kind, width = settings.kind, settings.hidden[-1]
        batch_shape = () if members is None else (members,)
        if isinstance(layout, FlatLayout) or self.kind == "mlp":
            self.mlp = Mlp(layout, 1, settings, latents=latents, batch_shape=batch_shape, out_gain=1.0)
            return
        self.num_assets = layout.num_assets
        if self.kind == "per_asset":
            self.trunk: nn.Module = AccountTrunk(layout, settings, latents=latents, batch_shape=batch_shape)
            self.head = Dense(width, 1, batch_shape=batch_shape, gain=1.0)
            return
        self.trunk = MarketTrunk(layout, settings, batch_shape=batch_shape)
        self.account = layout.account_width if settings.account else 0
        self.judges = latents > 0
        if self.judges:
            own, common = 2, latents - layout.num_assets + self.account
            self.embedding = Dense(width, width, batch_shape=batch_shape)
            self.own = Dense(own, width, batch_shape=batch_shape)
            self.common = Dense(max(common, 1), width, batch_shape=batch_shape, gain=1.0)
            self.last = hidden(width, settings.activation, layer_norm=settings.layer_norm)
            self.head = Dense(width, 1, batch_shape=batch_shape, gain=1.0)
        else:
            self.head = Dense(width, 2, batch_shape=batch_shape, gain=1.0)
            self.top = Dense(width, 1 + 2 * self.account, batch_shape=batch_shape, gain=1.0)

    def forward(self, seen: Seen, latent: Tensor | None = None) -> Tensor:
        if self.kind == "mlp":
            value: Tensor = self.mlp(seen, latent)
            return value.squeeze(-1)
        if self.kind == "per_asset":
            out: Tensor = self.head(self.trunk(seen, latent).mean(dim=-2)).squeeze(-1)
            return out
        return self._square(seen) if latent is None else self._judge(seen, latent)

    def _square(self, seen: Seen) -> Tensor:
        count, h = self.num_assets, self.trunk(seen.rows)
        constant, slope = self.head(h.flatten(0, 1)).view(*h.shape[:2], 2).permute(2, 0, 1).contiguous().unbind(0)
        top, held = seen.spread(self.top(h.mean(dim=1))), seen.private[..., -count:]
        each = torch.addcmul(seen.spread(constant), seen.spread(slope), held)
        value: Tensor = top[..., 0] + torch.linalg.vecdot(each, held) / count
        if self.account:
            x = seen.private[..., : self.account]
            linear, square = top[..., 1:].chunk(2, dim=-1)
            value = value + ((linear + square * x) * x).sum(-1)
        return value

    def _judge(self, seen: Seen, latent: Tensor) -> Tensor:
        count, h = self.num_assets, self.embedding_of(seen.rows)
        h = seen.spread(h, h.ndim - 3)
        own = torch.stack([seen.private[..., -count:].expand_as(latent[..., :count]), latent[..., :count]], dim=-1)
        common = torch.cat([seen.private[..., : self.account], latent[..., count:]], dim=-1)
        common = common if common.shape[-1] else torch.zeros_like(latent[..., :1])
        moved = self.own(own.flatten(-3, -2)).unflatten(-2, own.shape[-3:-1])
        h = self.last(h + moved + self.common(common).unsqueeze(-2))
        value: Tensor = self.head(h.mean(dim=-2)).squeeze(-1)
        return value

    def embedding_of(self, rows: Tensor) -> Tensor:
        """`[*batch_shape, U, N, H]`: what the bar adds to the last hidden layer."""
        h = self.trunk(rows)
        out: Tensor = self.embedding(h.flatten(-3, -2)).unflatten(-2, h.shape[-3:-1])
        return out
