"""A layer of the trunk that assets share: its matrix products, and one compiled pass for the rest.

As tensor operations, bias, common part, non-linearity and mean would each be a pass over
`[U, N, H]` numbers, forward and backward; half of the passes read broadcast gradients, which torch
cannot vectorise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fintrader.agents.fast.loops import ZERO, njit_pass, to_arrays


def shared_layer(h: Tensor, shared: Tensor, own: Any, common: Any, hidden: Any) -> Any:
    """Compute `networks.shared_layer` for a single network with relu."""
    if hidden.fused != "relu" or own.weight.ndim != 2 or h.ndim != 3:
        return NotImplemented
    weights = (own.weight, own.bias, common.weight, common.bias)
    return SharedLayer.apply(h, shared, *weights)  # type: ignore[no-untyped-call]


# Sum, relu and the mean over assets share one pass: the layer's output is read while it is still in
# the processor's cache, instead of once for each of the three.
@njit_pass
def _forward(rows: Any, common: Any, mean: Any) -> None:
    """Replace `rows [U, N, H]` by max(rows + common, 0), and write their mean over N to
    `mean [U, H]`."""
    bars, assets, width = rows.shape
    share = np.float32(1.0 / assets)
    for u in range(bars):
        bar_rows = rows[u]
        bar_common = common[u]
        total = mean[u]
        for h in range(width):
            total[h] = ZERO
        for n in range(assets):
            row = bar_rows[n]
            for h in range(width):
                value = max(row[h] + bar_common[h], ZERO)
                row[h] = value
                total[h] += value
        for h in range(width):
            total[h] *= share


# The same pass backward: the gradients of output and mean add up at the non-linearity, and their
# sum over the assets is the gradient of the common part.
@njit_pass
def _backward(out: Any, grad_out: Any, grad_mean: Any, grad_in: Any, grad_common: Any) -> None:
    """Turn the gradients of `out [U, N, H]` and of its mean `[U, H]` into those of the
    non-linearity's argument, `grad_in [U, N, H]`, and their sums over N, `grad_common [U, H]`."""
    bars, assets, width = out.shape
    share = np.float32(1.0 / assets)
    for u in range(bars):
        of_mean = grad_mean[u]
        total = grad_common[u]
        for h in range(width):
            total[h] = ZERO
        for n in range(assets):
            value = out[u, n]
            of_value = grad_out[u, n]
            of_input = grad_in[u, n]
            for h in range(width):
                at_input = of_value[h] + share * of_mean[h] if value[h] > ZERO else ZERO
                of_input[h] = at_input
                total[h] += at_input


class SharedLayer(torch.autograd.Function):
    """`(h [U, N, P], shared [U, G], W [P, H], b [H], V [G, H], c [H])` to
    max(h W + b + shared V + c, 0) `[U, N, H]` and its mean over N `[U, H]`."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        shared: Tensor,
        weight: Tensor,
        bias: Tensor,
        shared_weight: Tensor,
        shared_bias: Tensor,
    ) -> tuple[Tensor, Tensor]:
        bars, assets = h.shape[:2]
        out = (h.reshape(bars * assets, -1) @ weight).view(bars, assets, -1)
        common = torch.addmm(bias + shared_bias, shared, shared_weight)
        mean = torch.empty_like(common)
        _forward(out.detach().numpy(), *to_arrays(common), mean.numpy())
        ctx.save_for_backward(h, shared, weight, shared_weight, out)
        # One of the two results is often unused: its gradient is then None, not a tensor of zeros.
        ctx.set_materialize_grads(False)
        return out, mean

    @staticmethod
    def backward(
        ctx: Any, grad_out: Tensor | None, grad_mean: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        h, shared, weight, shared_weight, out = ctx.saved_tensors
        bars, assets, width = out.shape
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        grad_mean = out.new_zeros(bars, width) if grad_mean is None else grad_mean
        grad_in = torch.empty_like(out)
        grad_common = out.new_empty(bars, width)
        _backward(*to_arrays(out, grad_out, grad_mean), grad_in.numpy(), grad_common.numpy())
        grad_in = grad_in.view(-1, width)
        needs_h, needs_shared = ctx.needs_input_grad[:2]
        grad_bias = grad_common.sum(0)
        return (
            (grad_in @ weight.t()).view_as(h) if needs_h else None,
            grad_common @ shared_weight.t() if needs_shared else None,
            h.reshape(bars * assets, -1).t() @ grad_in,
            grad_bias,
            shared.t() @ grad_common,
            grad_bias,
        )
