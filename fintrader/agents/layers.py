"""What networks are made of: dense layers, encoders of an asset's last bars, and the trunk that
assets share.

`batch_shape` is the shape of that many networks in one: `()` for one network, `(K,)` for K critics.
Weights of many are one tensor, and applying them is one batched matmul.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from fintrader.agents.fast.onednn import Fused, Tanh, linear, on_cpu

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": Tanh,
    "relu": partial(nn.ReLU, inplace=True),
    "silu": nn.SiLU,
    "elu": nn.ELU,
}
FUSED: dict[str, Fused] = {"relu": "relu", "tanh": "tanh"}
"""Those that can be one pass with the layer before."""


class Dense(nn.Module):
    """A linear layer; orthogonal weights (https://arxiv.org/abs/1312.6120) times `gain`, biases of
    0."""

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
        """`[(*batch_shape,) R, in]` to `[*batch_shape, R, out]`; without the batch shape, `x` is
        everyone's."""
        return self.apply_with(x, self.weight)

    def apply_with(self, x: Tensor, weight: Tensor) -> Tensor:
        """As `forward`, with some rows of the weights in their place: for the inputs that these
        belong to."""
        # The fused forms save a pass over the result, which counts in networks of this size.
        if weight.ndim == 2 and x.ndim == 2:
            return linear(x, weight, self.bias)
        if weight.ndim == 3 and x.ndim in (2, 3):
            return torch.baddbmm(self.bias, x.expand(weight.shape[0], -1, -1), weight)
        return x @ weight + self.bias


class Hidden(nn.Sequential):
    """Optional normalisation, then the non-linearity."""

    def __init__(self, width: int, activation: str, *, layer_norm: bool) -> None:
        norm = [nn.LayerNorm(width, elementwise_affine=False)] if layer_norm else []
        super().__init__(*norm, ACTIVATIONS[activation]())
        self.fused: Fused | None = FUSED.get(activation) if not layer_norm else None

    def after(self, layer: Dense, x: Tensor) -> Tensor:
        """Of what `layer` makes of `x`."""
        if self.fused is not None and x.ndim == 2 and layer.weight.ndim == 2:
            return linear(x, layer.weight, layer.bias, self.fused)
        out: Tensor = self(layer(x))
        return out


def join(*parts: Tensor) -> Tensor:
    """Concatenate along the last dimension, the others broadcast."""
    shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))  # type: ignore[no-untyped-call]
    return torch.cat([part.expand(*shape, part.shape[-1]) for part in parts], dim=-1)


class GruEncoder(nn.Module):
    """A gated recurrent unit over a window (https://arxiv.org/abs/1406.1078): its state after the
    newest bar.

        r, z = σ(W x_t + U h + b),   n = tanh(W x_t + r ⊙ (U h + b)),   h ← (1 − z) ⊙ n + z ⊙ h

    It starts from zero at the window's oldest bar, so that nothing is carried from one decision to
    the next.
    """

    def __init__(
        self, width_in: int, width: int, bars: int, *, batch_shape: tuple[int, ...] = ()
    ) -> None:
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
    """Scaled dot-product attention (https://arxiv.org/abs/1706.03762, equation 1) of the newest bar
    to all bars.

    e = softmax(q · k / √E) v,   q from the newest bar, k and v from every bar; k knows its position
    """

    def __init__(
        self, width_in: int, width: int, bars: int, *, batch_shape: tuple[int, ...] = ()
    ) -> None:
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
        shape = window.shape[-3:-1]
        flat = window.flatten(-3, -2)
        query = self.query(window[..., -1, :]).unsqueeze(-2)
        key = self.key(flat).unflatten(-2, shape) + self.position
        weight = torch.softmax((query * key).sum(dim=-1) / math.sqrt(key.shape[-1]), dim=-1)
        value: Tensor = self.value(flat).unflatten(-2, shape)
        return (weight.unsqueeze(-1) * value).sum(dim=-2)


class AssetTrunk(nn.Module):
    """Embeds every asset with the same weights: `[R, N, P]` and common columns `[R, G]` to
    `[*batch_shape, R, N, H]`.

    Each layer is `h_i ← f(W h_i + V mean_j h_j)`; the first one sees the common columns in place of
    the mean.
    """

    def __init__(
        self,
        asset_width: int,
        common_width: int,
        widths: Sequence[int],
        activation: str,
        *,
        layer_norm: bool = False,
        batch_shape: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.own = nn.ModuleList()
        self.common = nn.ModuleList()
        self.hidden = nn.ModuleList()
        self.compiled = activation == "relu" and not layer_norm and not batch_shape
        width = asset_width
        shared = common_width
        for size in widths:
            self.own.append(Dense(width, size, batch_shape=batch_shape))
            self.common.append(Dense(shared, size, batch_shape=batch_shape, gain=1.0))
            self.hidden.append(Hidden(size, activation, layer_norm=layer_norm))
            width = shared = size

    def forward(self, assets: Tensor, common: Tensor) -> Tensor:
        """`[*batch_shape, R, N, H]`"""
        return self._layers(assets, common)[0]

    def pooled(self, assets: Tensor, common: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and its mean over the assets `[*batch_shape, R, H]`."""
        h, mean = self._layers(assets, common)
        return h, h.mean(dim=-2) if mean is None else mean

    def _layers(self, assets: Tensor, common: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.compiled and assets.ndim == 3 and on_cpu(assets):
            from fintrader.agents.fast.trunk import SharedLayer

            h = assets
            shared = common
            for own, other in zip(self.own, self.common, strict=True):
                h, shared = SharedLayer.apply(
                    h, shared, own.weight, own.bias, other.weight, other.bias
                )  # type: ignore[no-untyped-call]
            return h, shared
        return self.by_torch(assets, common), None

    def by_torch(self, assets: Tensor, common: Tensor) -> Tensor:
        """The same as torch's operations alone: for other devices, several networks in one, and to
        compare with."""
        count = assets.shape[-2]
        h = assets
        shared = common
        for number, (own, other, hidden) in enumerate(
            zip(self.own, self.common, self.hidden, strict=True)
        ):
            if number:
                shared = h.mean(dim=-2)
            # One wide product over all assets: thousands of small ones are up to nine times slower
            # to learn through.
            rows = own(h.flatten(-3, -2)).unflatten(-2, (-1, count))
            h = hidden(rows + other(shared).unsqueeze(-2))
        return h


ENCODERS: dict[str, type[GruEncoder | AttentionEncoder]] = {
    "gru": GruEncoder,
    "attention": AttentionEncoder,
}
