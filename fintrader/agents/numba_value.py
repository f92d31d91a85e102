"""Values that are quadratic in what accounts hold, for the CPU: one compiled pass forward and one back.

Every account reads its bar's coefficients where they lie. Written as tensor operations these are copied for each
account first, `[R, N]` numbers several times over, and their slopes are added up again.
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
def _forward(constant: Any, slope: Any, top: Any, place: Any, private: Any, value: Any) -> None:
    rows, assets = private.shape[0], constant.shape[1]
    first_asset = private.shape[1] - assets
    share = np.float32(1.0 / assets)
    for r in range(rows):
        bar, own = place[r], private[r, first_asset:]
        first, second, total = constant[bar], slope[bar], _ZERO
        for n in range(assets):
            total += (first[n] + second[n] * own[n]) * own[n]
        value[r] = top[bar] + share * total


@njit(fastmath=_FAST, error_model="numpy", nogil=True, cache=True)
def _backward(place: Any, private: Any, of_value: Any, of_constant: Any, of_slope: Any, of_top: Any) -> None:
    """Adds to the last three."""
    rows, assets = private.shape[0], of_constant.shape[1]
    first_asset = private.shape[1] - assets
    share = np.float32(1.0 / assets)
    for r in range(rows):
        bar, own = place[r], private[r, first_asset:]
        first, second, given = of_constant[bar], of_slope[bar], share * of_value[r]
        for n in range(assets):
            first[n] += given * own[n]
            second[n] += given * own[n] * own[n]
        of_top[bar] += of_value[r]


class Quadratic(torch.autograd.Function):
    """`(constant [U, N], slope [U, N], top [U], place [R], private [R, A + N])` to values `[R]`:
    V = top + mean_n (constant_n + slope_n h_n) h_n with the coefficients of each row's bar and the holdings h, which
    stand last in `private`, by which there are no slopes."""

    @staticmethod
    def forward(ctx: Any, constant: Tensor, slope: Tensor, top: Tensor, place: Tensor, private: Tensor) -> Tensor:
        private = private.contiguous()  # what is known to lie side by side is read eight at a time
        value = private.new_empty(len(private))
        given = (constant, slope, top, place, private)
        _forward(*(tensor.detach().numpy() for tensor in given), value.numpy())
        ctx.save_for_backward(place, private)
        ctx.shape = constant.shape
        return value

    @staticmethod
    def backward(ctx: Any, of_value: Tensor) -> tuple[Tensor | None, ...]:
        place, private = ctx.saved_tensors
        slopes = [private.new_zeros(ctx.shape) for _ in range(2)] + [private.new_zeros(ctx.shape[0])]
        given = (place, private, of_value.contiguous(), *slopes)
        _backward(*(tensor.detach().numpy() for tensor in given))
        return (*slopes, None, None)
