"""PPO's clipped surrogate and its gradients in one compiled pass over a minibatch.

As tensor operations it takes some twenty passes over `[R, L]` numbers, most of the time of an
update. Each row reads the mean of its bar and adds its gradients to the bar's: neither is copied
for every row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor

from fintrader.agents.fast.loops import HALF, ONE, ZERO, njit_pass, to_arrays

_MAX_EXPONENT = np.float32(20.0)
"""Bound of log ratios, so that no ratio overflows float32: e^20 is 5e8."""
CONSTANT = 0.5 * math.log(2 * math.pi)
"""The constant of the normal log density."""


def clipped_surrogate(
    mean: Tensor, row_index: Tensor | None, log_std: Tensor, rollout: Any, clip_coef: float
) -> Any:
    """Compute `ppo.clipped_surrogate`."""
    if row_index is None:
        row_index = torch.arange(len(mean))
    drawn = (rollout.latent, rollout.log_prob, rollout.advantage)
    arguments = (mean, log_std, row_index, *drawn, clip_coef)
    return ClippedSurrogate.apply(*arguments)  # type: ignore[no-untyped-call]


def exp(x: Any) -> Any:
    """Compute exp(x), in float32 with x clipped to ±20; the relative error is below 1e-5 where
    |x| < 10."""


@overload(exp, inline="always")
def _choose_exp(x: Any) -> Any:
    return _exp_by_squares if x is types.float32 else _exp_of_c


def _exp_of_c(x: Any) -> Any:
    return math.exp(x)


# The C library's exp cannot be vectorised; a polynomial of a 32nd of the argument, squared five
# times, can.
def _exp_by_squares(x: Any) -> Any:
    """exp(x) = exp(x / 32)³²"""
    x = min(max(x, -_MAX_EXPONENT), _MAX_EXPONENT) * np.float32(1 / 32)
    y = np.float32(1 / 120) + x * np.float32(1 / 720)
    y = np.float32(1 / 6) + x * (np.float32(1 / 24) + x * y)
    y = ONE + x * (ONE + x * (HALF + x * y))
    y *= y
    y *= y
    y *= y
    y *= y
    return y * y


# One pass: a latent's ratio, clipped objective, gradients and metrics need the same few numbers,
# which stay in registers.
@njit_pass(_nrt=True)
def add_rows(rows: Any, clip: Any, grad_mean: Any, grad_log_std: Any) -> Any:
    """Add gradients to `grad_mean [U, L]` and `grad_log_std [L]`; return the sums of the objective and
    of ρ - 1 - log ρ, and the number of ratios ρ out of the range.

    `rows`: `mean [U, L]`, the rows' numbers `order [M]` and bars `row_index [M]`, `latent [R, L]`,
    `log_prob [R, L]`, `advantage [M]` and `log_std [L]`.
    """
    mean, order, row_index, latent, log_prob, advantage, log_std = rows
    count = latent.shape[1]
    objective = np.float64(0.0)
    distance = np.float64(0.0)
    outside = 0
    high = ONE + clip
    low = ONE - clip
    scale = np.exp(-log_std)
    constant = log_std.dtype.type(CONSTANT)
    for r in range(len(order)):
        a = advantage[r]
        # A ratio is cut above for A > 0, below for A < 0.
        top = high if a > ZERO else np.float32(np.inf)
        bottom = low if a < ZERO else np.float32(-np.inf)
        means = mean[row_index[r]]
        slopes = grad_mean[row_index[r]]
        drawn = latent[order[r]]
        before = log_prob[order[r]]
        row_objective = ZERO
        row_distance = ZERO
        row_outside = 0
        for i in range(count):
            noise = (drawn[i] - means[i]) * scale[i]
            log_ratio = -HALF * noise * noise - log_std[i] - constant - before[i]
            ratio = exp(log_ratio)
            row_objective += min(max(ratio, bottom), top)
            row_distance += ratio - ONE - log_ratio
            row_outside += (ratio > high) | (ratio < low)
            slope = a * ratio if (ratio >= bottom) & (ratio <= top) else ZERO
            slopes[i] += slope * noise * scale[i]
            grad_log_std[i] += slope * (noise * noise - ONE)
        objective += a * row_objective
        distance += row_distance
        outside += row_outside
    return objective, distance, outside


class ClippedSurrogate(torch.autograd.Function):
    """`(mean [U, L], log_std [L], row_index [R], latent [R, L], log_prob [R, L], advantage [R],
    clip_coef)` to three numbers: objective, KL distance and clip fraction."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        row_index, latent, log_prob, advantage, clip_coef = rest
        grad_mean = torch.zeros_like(mean, memory_format=torch.contiguous_format)
        grad_log_std = torch.zeros_like(log_std)
        order = torch.arange(len(latent))
        tensors = (mean, order, row_index, latent, log_prob, advantage, log_std)
        objective, distance, outside = add_rows(
            tuple(to_arrays(*tensors)),
            np.float32(clip_coef),
            grad_mean.numpy(),
            grad_log_std.numpy(),
        )
        ctx.save_for_backward(grad_mean, grad_log_std)
        ctx.rows = len(latent)
        numbers = (objective / ctx.rows, distance / ctx.rows, outside / latent.numel())
        surrogate, kl, clip_fraction = (torch.tensor(x, dtype=mean.dtype) for x in numbers)
        ctx.mark_non_differentiable(kl, clip_fraction)
        return surrogate, kl, clip_fraction

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        grad_mean, grad_log_std = ctx.saved_tensors
        share = grad / ctx.rows
        return grad_mean * share, grad_log_std * share, None, None, None, None, None
