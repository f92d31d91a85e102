"""Values that are quadratic in an account's holdings: one compiled pass forward and one back.

Every account reads its bar's coefficients in place. Tensor operations would copy them for each
account first, `[R, N]` numbers several times over, and then add up as many gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fintrader.agents.fast.loops import ZERO, njit_pass, to_arrays


def quadratic_value(each: Tensor, top: Tensor, batch: Any) -> Any:
    """Compute `networks.quadratic_value` if the holdings need no gradient."""
    if batch.private.ndim != 2 or batch.private.requires_grad:
        return NotImplemented
    row_index = batch.row_index
    if row_index is None:
        row_index = torch.arange(len(batch.private))
    given = (each, top, row_index, batch.private)
    return QuadraticValue.apply(*given)  # type: ignore[no-untyped-call]


# Every account looks its bar's coefficients up, so that they are never copied for each account.
@njit_pass
def _forward(each: Any, top: Any, row_index: Any, private: Any, value: Any) -> None:
    """Write the values of R accounts to `value [R]`."""
    rows = private.shape[0]
    assets = each.shape[2]
    first_asset = private.shape[1] - assets
    share = np.float32(1.0 / assets)
    for r in range(rows):
        bar = row_index[r]
        held = private[r, first_asset:]
        linear = each[0, bar]
        square = each[1, bar]
        total = ZERO
        for n in range(assets):
            total += (linear[n] + square[n] * held[n]) * held[n]
        value[r] = top[bar, 0] + share * total


# One pass over the accounts adds each one's gradients to those of its bar.
@njit_pass
def _backward(row_index: Any, private: Any, grad_value: Any, grad_each: Any, grad_top: Any) -> None:
    """Add the gradients of R accounts to `grad_each [2, U, N]` and `grad_top [U, K]`."""
    rows = private.shape[0]
    assets = grad_each.shape[2]
    first_asset = private.shape[1] - assets
    share = np.float32(1.0 / assets)
    for r in range(rows):
        bar = row_index[r]
        held = private[r, first_asset:]
        linear = grad_each[0, bar]
        square = grad_each[1, bar]
        grad = share * grad_value[r]
        for n in range(assets):
            linear[n] += grad * held[n]
            square[n] += grad * held[n] * held[n]
        grad_top[bar, 0] += grad_value[r]


class QuadraticValue(torch.autograd.Function):
    """`(each [2, U, N], top [U, K], row_index [R], private [R, A + N])` to values `[R]`; `private`
    gets no gradient."""

    @staticmethod
    def forward(ctx: Any, each: Tensor, top: Tensor, row_index: Tensor, private: Tensor) -> Tensor:
        private = private.contiguous()  # contiguous numbers are read eight at a time
        value = private.new_empty(len(private))
        _forward(*to_arrays(each, top, row_index, private), value.numpy())
        ctx.save_for_backward(row_index, private)
        ctx.shapes = (each.shape, top.shape)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        row_index, private = ctx.saved_tensors
        grad_each, grad_top = (private.new_zeros(shape) for shape in ctx.shapes)
        _backward(*to_arrays(row_index, private, grad, grad_each, grad_top))
        return grad_each, grad_top, None, None
