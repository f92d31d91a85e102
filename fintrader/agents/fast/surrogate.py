"""PPO's clipped surrogate and its slopes in one pass over a minibatch, compiled for the CPU.

Written as tensor operations it is some twenty passes over `[R, L]` numbers, and most of the time of
an update. What a row's mean is, it looks up among its bar's, and what it changes is added up there:
neither is made for every row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

_FAST = {"reassoc", "contract", "nsz", "arcp"}
_ONE = np.float32(1.0)
_HALF = np.float32(0.5)
_ZERO = np.float32(0.0)
_MOST = np.float32(20.0)
_CONSTANT = np.float32(0.5 * math.log(2 * math.pi))


@njit(inline="always")
def _exp(x: Any) -> Any:
    """exp(x) = exp(x / 32)³² for |x| up to 20, within 1e-5 of it for |x| < 10; vectorisable, unlike
    the C library's."""
    x = min(max(x, -_MOST), _MOST) * np.float32(1 / 32)
    y = np.float32(1 / 120) + x * np.float32(1 / 720)
    y = np.float32(1 / 6) + x * (np.float32(1 / 24) + x * y)
    y = _ONE + x * (_ONE + x * (_HALF + x * y))
    y *= y
    y *= y
    y *= y
    y *= y
    return y * y


@njit(fastmath=_FAST, error_model="numpy", nogil=True, cache=True)
def _pass(
    mean: Any,
    place: Any,
    latent: Any,
    log_prob: Any,
    advantage: Any,
    log_std: Any,
    clip: Any,
    of_mean: Any,
    of_std: Any,
) -> Any:
    """Adds slopes to `of_mean [U, L]` and `of_std [L]`; the sums of objective and Σ(ρ - 1 - log ρ),
    and how many ratios are out of the range."""
    rows, count = latent.shape
    objective = np.float64(0.0)
    distance = np.float64(0.0)
    outside = 0
    high = _ONE + clip
    low = _ONE - clip
    scale = np.exp(-log_std)
    for r in range(rows):
        a = advantage[r]
        # A ratio is cut above for A > 0, below for A < 0.
        top = high if a > _ZERO else np.float32(np.inf)
        bottom = low if a < _ZERO else np.float32(-np.inf)
        means = mean[place[r]]
        slopes = of_mean[place[r]]
        drawn = latent[r]
        before = log_prob[r]
        total = _ZERO
        far = _ZERO
        out = 0
        for i in range(count):
            noise = (drawn[i] - means[i]) * scale[i]
            log_ratio = -_HALF * noise * noise - log_std[i] - _CONSTANT - before[i]
            ratio = _exp(log_ratio)
            total += min(max(ratio, bottom), top)
            far += ratio - _ONE - log_ratio
            out += (ratio > high) | (ratio < low)
            slope = a * ratio if (ratio >= bottom) & (ratio <= top) else _ZERO
            slopes[i] += slope * noise * scale[i]
            of_std[i] += slope * (noise * noise - _ONE)
        objective += a * total
        distance += far
        outside += out
    return objective, distance, outside


class Surrogate(torch.autograd.Function):
    """`(mean [U, L], log_std [L], place [R], latent [R, L], log_prob [R, L], advantage [R], clip)`
    to the mean over rows of `ppo.ppo_objective`, of the distance from the policy that drew them,
    and the share of ratios outside."""

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        log_std: Tensor,
        place: Tensor,
        latent: Tensor,
        log_prob: Tensor,
        advantage: Tensor,
        clip: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        slopes = (
            torch.zeros_like(mean, memory_format=torch.contiguous_format),
            torch.zeros_like(log_std),
        )
        given = (mean, place, latent, log_prob, advantage, log_std)
        arrays = [tensor.detach().contiguous().numpy() for tensor in given]
        objective, distance, outside = _pass(
            *arrays, np.float32(clip), slopes[0].numpy(), slopes[1].numpy()
        )
        ctx.save_for_backward(*slopes)
        ctx.rows = rows = len(latent)
        found = (objective / rows, distance / rows, outside / latent.numel())
        surrogate, kl, share = (torch.tensor(value, dtype=mean.dtype) for value in found)
        ctx.mark_non_differentiable(kl, share)
        return surrogate, kl, share

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        of_mean, of_std = ctx.saved_tensors
        share = slope / ctx.rows
        return of_mean * share, of_std * share, None, None, None, None, None
