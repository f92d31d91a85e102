"""Encoders: a window of bars summed up in a few numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fintrader.agents.networks import Dense, apply_flat
from fintrader.agents.settings import ENCODER_WIDTH, NetworkSettings
from fintrader.envs.observation import FlatLayout, Layout
from fintrader.errors import ConfigError


class GruEncoder(nn.Module):
    """A gated recurrent unit over a window (https://arxiv.org/abs/1406.1078): its state after the
    newest bar.

        r, z = σ(W x_t + U h + b),   n = tanh(W x_t + r ⊙ (U h + b)),   h ← (1 − z) ⊙ n + z ⊙ h

    The state starts at zero at the window's oldest bar, so decisions share no memory.
    """

    def __init__(
        self, width_in: int, width: int, bars: int, *, batch_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.bars = bars
        self.input = Dense(width_in, 3 * width, batch_shape=batch_shape, gain=1.0)
        self.recurrent = Dense(width, 3 * width, batch_shape=batch_shape, gain=1.0)

    def forward(self, window: Tensor) -> Tensor:
        """Encode `[..., S, L, P]` as `[*batch_shape, S, E]`."""
        inputs = apply_flat(self.input, window)
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

    e = softmax(q · k / √E) v,   q from the newest bar, k and v from every bar; k with its position
    """

    def __init__(
        self, width_in: int, width: int, bars: int, *, batch_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.bars = bars
        self.query, self.key, self.value = (
            Dense(width_in, width, batch_shape=batch_shape, gain=1.0) for _ in range(3)
        )
        self.position = nn.Parameter(
            torch.randn(*batch_shape, *(1,) * bool(batch_shape), bars, width) / math.sqrt(width)
        )

    def forward(self, window: Tensor) -> Tensor:
        """Encode `[..., S, L, P]` as `[*batch_shape, S, E]`."""
        query = self.query(window[..., -1, :]).unsqueeze(-2)
        key = apply_flat(self.key, window) + self.position
        weight = torch.softmax((query * key).sum(dim=-1) / math.sqrt(key.shape[-1]), dim=-1)
        return (weight.unsqueeze(-1) * apply_flat(self.value, window)).sum(dim=-2)


ENCODERS = {"gru": GruEncoder, "attention": AttentionEncoder}


def make_encoder(
    layout: Layout, settings: NetworkSettings, batch_shape: tuple[int, ...] = ()
) -> nn.Module | None:
    """Make the encoder that the settings name. Raises ConfigError when observations show one bar
    only."""
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
    width_in = layout.row_width if settings.kind == "mlp" else layout.num_features + 1
    return ENCODERS[settings.encoder](
        width_in, ENCODER_WIDTH, layout.lookback, batch_shape=batch_shape
    )
