"""Networks that read the market once per bar (`market_once`, the default), and their layers.

All accounts at a bar see the same market (`normalisation.Batch`). A trunk computes an embedding of
every asset from the market's row alone, with weights that all assets share; information passes
between assets through the mean of their embeddings (https://arxiv.org/abs/1703.06114). Heads turn
embeddings into coefficients: latents are linear in the account's columns, values quadratic. So an
account costs a few operations per asset; the trunk, with an encoder of any depth, runs once per
bar. Permuting the assets permutes the outputs; training on one asset changes the function for all.

`network_kinds` makes these networks and those of the other kinds.

`batch_shape` is `()` for one network, and `(K,)` for K networks in one module, whose weights are
one tensor, applied by one batched matmul.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, broadcast_shapes, nn

from fintrader.agents.fast import fast_on_cpu
from fintrader.agents.heads import EXTRA_LATENT_SCALE
from fintrader.agents.normalisation import Batch
from fintrader.agents.settings import ENCODER_WIDTH, NetworkSettings
from fintrader.envs.observation import ObservationLayout, split_market, stack_window


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """Compute `x @ weight + bias` of `x [R, in]`, then the activation (`none`, `relu`, `tanh`):
    `[R, out]`."""
    out = x @ weight if bias is None else torch.addmm(bias, x, weight)
    if activation == "relu":
        return out.relu()
    return tanh(out) if activation == "tanh" else out


@fast_on_cpu("activations")
def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return torch.tanh(x)


class Tanh(nn.Module):
    """`tanh` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return tanh(x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": Tanh,
    "relu": partial(nn.ReLU, inplace=True),
    "silu": nn.SiLU,
    "elu": nn.ELU,
}


class Dense(nn.Module):
    """A linear layer. It begins with orthogonal weights (https://arxiv.org/abs/1312.6120) times
    `gain`, and biases of 0."""

    def __init__(
        self,
        width_in: int,
        width_out: int,
        *,
        batch_shape: tuple[int, ...] = (),
        gain: float = math.sqrt(2),
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*batch_shape, width_in, width_out))
        self.bias = nn.Parameter(torch.zeros(*batch_shape, *(1,) * bool(batch_shape), width_out))
        for matrix in self.weight.view(-1, width_in, width_out).unbind(0):
            nn.init.orthogonal_(matrix, gain)

    def forward(self, x: Tensor) -> Tensor:
        """Map `[(*batch_shape,) R, in]` to `[*batch_shape, R, out]`; if `x` lacks the batch shape,
        all networks read the same `x`."""
        return self.apply_with(x, self.weight)

    def apply_with(self, x: Tensor, weight: Tensor) -> Tensor:
        """Apply the layer to some of its inputs; `weight`: its weights for these inputs."""
        # The fused forms save a pass over the result, which matters in networks of this size.
        if weight.ndim == 2 and x.ndim == 2:
            return linear(x, weight, self.bias)
        if weight.ndim == 3 and x.ndim in (2, 3):
            return torch.baddbmm(self.bias, x.expand(weight.shape[0], -1, -1), weight)
        return x @ weight + self.bias


class Hidden(nn.Sequential):
    """The part of a layer after the linear map: optional normalisation, then the non-linearity."""

    def __init__(self, width: int, settings: NetworkSettings) -> None:
        norm = [nn.LayerNorm(width, elementwise_affine=False)] if settings.layer_norm else []
        super().__init__(*norm, ACTIVATIONS[settings.activation]())
        can_fuse = settings.activation in ("relu", "tanh") and not settings.layer_norm
        self.fused = settings.activation if can_fuse else None
        """Activation that `linear` can apply instead of this module; else None."""


def apply_flat(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer to the last axis of `[..., R, N, P]` by one wide product: thousands of small
    ones make learning up to nine times slower."""
    out: Tensor = layer(x.flatten(-3, -2)).unflatten(-2, (-1, x.shape[-2]))
    return out


def join(*parts: Tensor) -> Tensor:
    """Concatenate along the last dimension; the other dimensions are broadcast."""
    shape = broadcast_shapes(*(part.shape[:-1] for part in parts))  # type: ignore[no-untyped-call]
    return torch.cat([part.expand(*shape, part.shape[-1]) for part in parts], dim=-1)


class AssetTrunk(nn.Module):
    """Embeds every asset with the same weights: `[R, N, P]` and common columns `[R, G]` to
    `[*batch_shape, R, N, H]` and their mean over the assets.

    Each layer is `h_i ← f(W h_i + V mean_j h_j)`; the first one reads the common columns instead of
    the mean.
    """

    def __init__(
        self,
        asset_width: int,
        common_width: int,
        settings: NetworkSettings,
        *,
        batch_shape: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.own = nn.ModuleList()
        self.common = nn.ModuleList()
        self.hidden = nn.ModuleList()
        width = asset_width
        shared = common_width
        for size in settings.hidden:
            self.own.append(Dense(width, size, batch_shape=batch_shape))
            self.common.append(Dense(shared, size, batch_shape=batch_shape, gain=1.0))
            self.hidden.append(Hidden(size, settings))
            width = shared = size

    def forward(self, assets: Tensor, common: Tensor) -> tuple[Tensor, Tensor]:
        h = assets
        mean = common
        layers: Iterable[Any] = zip(self.own, self.common, self.hidden, strict=True)
        for own, other, hidden in layers:
            h = hidden(apply_flat(own, h) + other(mean).unsqueeze(-2))
            mean = h.mean(dim=-2)
        return h, mean


class Blueprint(NamedTuple):
    """Plan of a network, without the layout of its input and the width of its output."""

    settings: NetworkSettings
    encoder: nn.Module | None
    batch_shape: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Width of the last hidden layer."""
        return self.settings.hidden[-1]

    def count_account_columns(self, layout: ObservationLayout) -> int:
        """Count the account's columns that the network reads."""
        return layout.account_width if self.settings.reads_account else 0


class AssetInput(nn.Module):
    """Splits market rows `[U, L*W]` into each asset's columns `[U, N, P]` and common ones
    `[U, G]`."""

    def __init__(self, layout: ObservationLayout, encoder: nn.Module | None) -> None:
        super().__init__()
        self.layout = layout
        self.encoder = encoder
        past = (layout.lookback - 1) * (layout.num_features + 1)
        now = layout.num_features + 1 + 2 * layout.benchmark
        self.width = now + (past if encoder is None else ENCODER_WIDTH)
        """P: columns of an asset."""
        # At least one column, since the first layer needs a matrix.
        self.common_width = layout.num_context or 1
        """G: common columns."""

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        part = split_market(rows, self.layout)
        flags = [part.tradable]
        if self.layout.benchmark:
            flags += [part.member, part.benchmark]
        own = torch.cat([part.features, torch.stack(flags, dim=-1)], dim=-1)
        if self.encoder is not None:
            window = stack_window(part)
            encoded = self.encoder(window.flatten(-4, -3)).unflatten(-2, window.shape[-4:-2])
            own = join(own, encoded)
        elif self.layout.lookback > 1:
            own = torch.cat([own, stack_window(part)[..., :-1, :].flatten(-2)], dim=-1)
        common = part.context if self.layout.num_context else torch.zeros_like(rows[..., :1])
        return own, common


class MarketTrunk(nn.Module):
    """Every asset's embedding, from the market alone: rows `[U, L*W]` to `[*batch_shape, U, N, H]`
    and their mean over the assets, `[*batch_shape, U, H]`."""

    def __init__(self, layout: ObservationLayout, plan: Blueprint) -> None:
        super().__init__()
        self.assets = AssetInput(layout, plan.encoder)
        widths = (self.assets.width, self.assets.common_width)
        self.layers = AssetTrunk(*widths, plan.settings, batch_shape=plan.batch_shape)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        embeddings, mean = self.layers(*self.assets(rows))
        return embeddings, mean


class Actor(nn.Module):
    """Maps a batch of R samples to a tuple of `outputs` tensors `[R, L]`.

    `L` is N + `extra`: a latent for each action, then those that belong to no asset (see
    `ActionHead`).
    """

    outputs: int
    shares_bars: bool = False
    """True if accounts at a bar share their outputs."""

    def mean_by_bar(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Compute the first output: `[R, L]` and None or, if accounts at a bar share it, `[U, L]`
        and each sample's row in it."""
        return self(batch)[0], None


@fast_on_cpu("market_once")
def run_market_once(
    rows: Tensor, trunk: MarketTrunk, head: Dense, top: Dense | None
) -> tuple[Tensor, Tensor | None]:
    """Apply a trunk to market rows `[U, L*W]`, a head of K outputs to each asset's embedding,
    `[K, U, N]`, and, unless it is None, the head `top` of E outputs to their mean, `[U, E]`."""
    h, mean = trunk(rows)
    # The same as `head(h)`, but with each output contiguous in memory.
    each = torch.addmm(head.bias.unsqueeze(1), head.weight.t(), h.flatten(0, 1).t())
    return each.view(-1, *h.shape[:2]), None if top is None else top(mean)


class Coefficients(NamedTuple):
    """Coefficients of latents that are linear in the account, at U bars and for each of `outputs`:
    latent = constant + slope · held + account · columns."""

    constant: Tensor
    """`[outputs, U, N]`"""
    slope: Tensor | None
    """`[outputs, U, N]`; None where holdings are not read."""
    extra: Tensor | None
    """`[outputs, U, C]`: C latents that belong to no asset; None where there are none."""
    account: Tensor
    """`[outputs, U, A, L]`, A = 0 for networks that do not read the account's columns."""

    def join_constants(self, k: int) -> Tensor:
        """Return the part of output `k` that does not depend on the account, `[U, L]`."""
        constant = self.constant[k]
        return constant if self.extra is None else torch.cat([constant, self.extra[k]], dim=-1)


class MarketOnceActor(Actor):
    """Latents that are linear in the account, with coefficients from the market's row alone."""

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
        self.num_assets = layout.num_assets
        self.extra = extra
        self.account = plan.count_account_columns(layout)
        self.holdings = plan.settings.reads_holdings
        self.shares_bars = not self.holdings and not self.account
        self.trunk = MarketTrunk(layout, plan)
        width = plan.width
        # For each output, in this order: constant, slope, the account's columns.
        self.head = Dense(width, outputs * (1 + self.holdings + self.account), gain=out_gain)
        self.extra_head = (
            Dense(width, outputs * (1 + self.account) * extra, gain=out_gain) if extra else None
        )

    def mean_by_bar(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        if not self.shares_bars:
            return self(batch)[0], None
        return self.predict_coefficients(batch.rows).join_constants(0), batch.row_index

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        coefficients = self.predict_coefficients(batch.rows)
        return tuple(self._combine(batch, coefficients, k) for k in range(self.outputs))

    def predict_coefficients(self, rows: Tensor) -> Coefficients:
        """Compute the coefficients of latents at the bars in `rows` `[U, L*W]`."""
        each, top = run_market_once(rows, self.trunk, self.head, self.extra_head)
        own = each.view(self.outputs, -1, *each.shape[1:])
        account = own[:, 1 + self.holdings :].transpose(1, 2)
        extra = None
        if top is not None:
            columns = EXTRA_LATENT_SCALE * top
            columns = columns.view(rows.shape[0], self.outputs, -1, self.extra).permute(1, 2, 0, 3)
            extra = columns[:, 0]
            account = torch.cat([account, columns[:, 1:].transpose(1, 2)], dim=-1)
        return Coefficients(own[:, 0], own[:, 1] if self.holdings else None, extra, account)

    def _combine(self, batch: Batch, coefficients: Coefficients, k: int) -> Tensor:
        """Compute output number `k`, `[R, L]`, from coefficients and accounts."""
        latent = batch.expand(coefficients.join_constants(k))
        if coefficients.slope is not None:
            held = batch.private[..., -self.num_assets :]
            own = batch.expand(coefficients.slope[k]) * held
            latent = latent + nn.functional.pad(own, (0, self.extra))
        if self.account:
            columns = batch.private[..., : self.account].unsqueeze(-2)
            latent = latent + (columns @ batch.expand(coefficients.account[k])).squeeze(-2)
        return latent


@fast_on_cpu("market_once")
def quadratic_value(each: Tensor, top: Tensor, batch: Batch) -> Tensor:
    """Compute top_0 + mean_n (each_0n + each_1n h_n) h_n, `[R]`, with the coefficients
    `each [2, U, N]` and `top [U, K]` of each row's bar and the holdings h, the last columns of the
    private part."""
    assets = each.shape[-1]
    held = batch.private[..., -assets:]
    by_held = torch.addcmul(batch.expand(each[0]), batch.expand(each[1]), held)
    mean: Tensor = torch.linalg.vecdot(by_held, held) / assets
    return batch.expand(top[..., 0]) + mean


class MarketOnceCritic(nn.Module):
    """Value `[R]` of a batch, quadratic in the account with coefficients of its bar.

    V = c + Σ_j (d_j + e_j x_j) x_j + mean_i (a_i + b_i h_i) h_i with the holdings h and, with
    `account`, the account's columns x.
    """

    def __init__(self, layout: ObservationLayout, plan: Blueprint) -> None:
        super().__init__()
        self.account = plan.count_account_columns(layout)
        self.trunk = MarketTrunk(layout, plan)
        self.head = Dense(plan.width, 2, gain=1.0)
        self.top = Dense(plan.width, 1 + 2 * self.account, gain=1.0)

    def forward(self, batch: Batch) -> Tensor:
        each, top = run_market_once(batch.rows, self.trunk, self.head, self.top)
        assert top is not None
        value: Tensor = quadratic_value(each, top, batch)
        if self.account:
            x = batch.private[..., : self.account]
            linear_part, square_part = batch.expand(top[..., 1:]).chunk(2, dim=-1)
            value = value + ((linear_part + square_part * x) * x).sum(-1)
        return value
