"""Values that are quadratic in what accounts hold, for the CPU: one compiled pass forward and one
back.

Every account reads its bar's coefficients where they lie. Written as tensor operations these are
copied for each account first, `[R, N]` numbers several times over, and their slopes are added up
again.
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
def _forward(each: Any, top: Any, place: Any, private: Any, value: Any) -> None:
    rows = private.shape[0]
    assets = each.shape[2]
    first_asset = private.shape[1] - assets
    share = np.float32(1.0 / assets)
    for r in range(rows):
        bar = place[r]
        own = private[r, first_asset:]
        first = each[0, bar]
        second = each[1, bar]
        total = _ZERO
        for n in range(assets):
            total += (first[n] + second[n] * own[n]) * own[n]
        value[r] = top[bar, 0] + share * total


@njit(fastmath=_FAST, error_model="numpy", nogil=True, cache=True)
def _backward(place: Any, private: Any, of_value: Any, of_each: Any, of_top: Any) -> None:
    """Adds to the last two."""
    rows = private.shape[0]
    assets = of_each.shape[2]
    first_asset = private.shape[1] - assets
    share = np.float32(1.0 / assets)
    for r in range(rows):
        bar = place[r]
        own = private[r, first_asset:]
        first = of_each[0, bar]
        second = of_each[1, bar]
        given = share * of_value[r]
        for n in range(assets):
            first[n] += given * own[n]
            second[n] += given * own[n] * own[n]
        of_top[bar, 0] += of_value[r]


class Quadratic(torch.autograd.Function):
    """`(each [2, U, N], top [U, K], place [R], private [R, A + N])` to values `[R]`: V = top_0 +
    mean_n (each_0n + each_1n h_n) h_n with the coefficients of each row's bar and the holdings h,
    which stand last in `private`, by which there are no slopes."""

    @staticmethod
    def forward(ctx: Any, each: Tensor, top: Tensor, place: Tensor, private: Tensor) -> Tensor:
        private = private.contiguous()  # what is known to lie side by side is read eight at a time
        value = private.new_empty(len(private))
        _forward(
            *(tensor.detach().contiguous().numpy() for tensor in (each, top, place, private)),
            value.numpy(),
        )
        ctx.save_for_backward(place, private)
        ctx.shapes = each.shape, top.shape
        return value

    @staticmethod
    def backward(ctx: Any, of_value: Tensor) -> tuple[Tensor | None, ...]:
        place, private = ctx.saved_tensors
        of_each, of_top = (private.new_zeros(shape) for shape in ctx.shapes)
        given = (place, private, of_value.contiguous(), of_each, of_top)
        _backward(*(tensor.detach().numpy() for tensor in given))
        return of_each, of_top, None, None
