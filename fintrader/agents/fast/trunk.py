"""A layer of the trunk that assets share, for the CPU: its matrix products, and one compiled pass
for the rest.

Written as tensor operations, bias, common part, non-linearity and mean are a pass each over `[U, N,
H]` numbers forward and back, half of them through broadcast slopes, which torch goes through one
number at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

_FAST = {"reassoc", "contract", "nsz", "arcp"}
_ZERO = np.float32(0.0)


@njit(fastmath=_FAST, error_model="numpy", nogil=True, cache=True)
def _forward(rows: Any, common: Any, mean: Any) -> None:
    """`rows [U, N, H]` become max(rows + common, 0) in their place, `mean [U, H]` their mean over
    N."""
    bars, assets, width = rows.shape
    share = np.float32(1.0 / assets)
    for u in range(bars):
        of_bar = rows[u]
        shared = common[u]
        total = mean[u]
        for h in range(width):
            total[h] = _ZERO
        for n in range(assets):
            own = of_bar[n]
            for h in range(width):
                value = max(own[h] + shared[h], _ZERO)
                own[h] = value
                total[h] += value
        for h in range(width):
            total[h] *= share


@njit(fastmath=_FAST, error_model="numpy", nogil=True, cache=True)
def _backward(out: Any, of_out: Any, of_mean: Any, slope: Any, summed: Any) -> None:
    """Slopes of the loss by `out [U, N, H]` and by its mean `[U, H]` to those by what the
    non-linearity was given, `slope [U, N, H]`, and their sums over N, `summed [U, H]`."""
    bars, assets, width = out.shape
    share = np.float32(1.0 / assets)
    for u in range(bars):
        shared = of_mean[u]
        total = summed[u]
        for h in range(width):
            total[h] = _ZERO
        for n in range(assets):
            made = out[u, n]
            given = of_out[u, n]
            found = slope[u, n]
            for h in range(width):
                value = given[h] + share * shared[h] if made[h] > _ZERO else _ZERO
                found[h] = value
                total[h] += value


def _array(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


class SharedLayer(torch.autograd.Function):
    """`(h [U, N, P], shared [U, G], W [P, H], b [H], V [G, H], c [H])` to max(h W + b + shared V +
    c, 0) `[U, N, H]` and its mean over N `[U, H]`."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        shared: Tensor,
        weight: Tensor,
        bias: Tensor,
        of_shared: Tensor,
        bias_shared: Tensor,
    ) -> tuple[Tensor, Tensor]:
        bars, assets, width = *h.shape[:2], weight.shape[1]
        out = (h.reshape(bars * assets, -1) @ weight).view(bars, assets, width)
        common = torch.addmm(bias + bias_shared, shared, of_shared)
        mean = torch.empty_like(common)
        _forward(out.detach().numpy(), _array(common), mean.numpy())
        ctx.save_for_backward(h, shared, weight, of_shared, out)
        ctx.set_materialize_grads(False)
        return out, mean

    @staticmethod
    def backward(
        ctx: Any, of_out: Tensor | None, of_mean: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        h, shared, weight, of_shared, out = ctx.saved_tensors
        bars, assets, width = out.shape
        of_out = torch.zeros_like(out) if of_out is None else of_out
        of_mean = out.new_zeros(bars, width) if of_mean is None else of_mean
        slope = torch.empty_like(out)
        summed = out.new_empty(bars, width)
        _backward(_array(out), _array(of_out), _array(of_mean), slope.numpy(), summed.numpy())
        slope = slope.view(-1, width)
        by_h, by_shared = ctx.needs_input_grad[:2]
        total = summed.sum(0)
        return (
            (slope @ weight.t()).view_as(h) if by_h else None,
            summed @ of_shared.t() if by_shared else None,
            h.reshape(bars * assets, -1).t() @ slope,
            total,
            shared.t() @ summed,
            total,
        )
