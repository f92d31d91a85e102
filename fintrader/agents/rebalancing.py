"""Weights that move from those held part of the way to an aim: the action heads `tilt` and
`weights`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fintrader.agents.settings import ActionHeadSettings

FOLLOWING_SHARE = 0.005
"""Active share of an aim (`tilt`) below which the account trades to it almost at once, whatever the
learned rate, so that it reaches the benchmark instead of only approaching it."""
RATE_PER_LATENT = 2.0
"""Logits of the trade rate per unit of latent (`tilt`): latents of -1 and 1 turn a rate of 0.2
into 0.03 and 0.65."""


def tilt(benchmark: Tensor, held: Tensor, latent: Tensor, settings: ActionHeadSettings) -> Tensor:
    """Compute the `tilt` head's action `[B, N]` from the benchmark's weights and the weights
    held, both `[B, N]`, and latents `[B, L]`."""
    assets = benchmark.shape[-1]
    z = latent[..., :assets]
    z = (z - (benchmark * z).sum(-1, keepdim=True)) / settings.max_log_tilt
    tilted = benchmark * torch.exp(settings.max_log_tilt * torch.tanh(z))
    active = settings.tilt_scale * (_normalise(tilted) - benchmark)
    if settings.tilt_scale > 1:
        active = _normalise((benchmark + active).clamp_min(0.0)) - benchmark
    active_share = 0.5 * active.abs().sum(-1, keepdim=True)
    limit = settings.max_active_tilt
    active = active * (limit / active_share.clamp_min(limit))
    aim = benchmark + active
    if not settings.fully_invested:
        aim = aim * (1 - latent[..., assets + 1 :].clamp(0.0, 1.0))

    rate = decode_rate(latent[..., assets : assets + 1], settings)
    rate = rate + (1 - rate) * torch.exp(-active_share / FOLLOWING_SHARE)

    held = torch.where(benchmark > 0, held, 0.0)
    idle = aim.sum(-1, keepdim=True) - held.sum(-1, keepdim=True)
    held = held + idle * _normalise(aim)
    return (held + rate * (aim - held)).clamp(0.0, 1.0)


def approach(held: Tensor, latent: Tensor, settings: ActionHeadSettings, *, short: int) -> Tensor:
    """Compute the `weights` head's action `[B, N]` from the weights held `[B, N]` and latents
    `[B, 2 N]`, aims and rates; `short` as in the layout."""
    aim, pace = latent.chunk(2, dim=-1)
    rate = decode_rate(pace, settings)
    aim = clip_aim(aim)
    if not short:
        aim = 0.5 + 0.5 * aim
    return (held + rate * (aim - held)).clamp(-1.0, 1.0)


def decode_rate(latent: Tensor, settings: ActionHeadSettings) -> Tensor:
    """Turn latents into trade rates; 0 gives `trade_rate`."""
    start = math.log(settings.trade_rate / (1 - settings.trade_rate))
    return torch.sigmoid(start + RATE_PER_LATENT * latent)


def clip_aim(aim: Tensor) -> Tensor:
    """Clip to [-1, 1]. Outside this range only gradients that lead back inside are passed on:
    without them, a latent that noise moved outside would never return."""
    clipped = aim.clamp(-1.0, 1.0)
    if not aim.requires_grad:
        return clipped
    beyond = (aim - clipped).detach()
    passing = aim - beyond
    passing.register_hook(  # type: ignore[no-untyped-call]
        lambda grad: torch.where(grad * beyond < 0, 0.0, grad)
    )
    return passing


def _normalise(weights: Tensor) -> Tensor:
    """Scale `weights [B, N]` to sum 1; all zero stays all zero."""
    return weights / weights.sum(-1, keepdim=True).clamp_min(1e-12)
