"""Dense layers on the CPU by oneDNN: product, bias and non-linearity in one pass over the result.

torch multiplies float32 matrices on the CPU by MKL, which on processors that are not Intel's leaves
half of the vector width unused, and takes a pass of its own for each non-linearity. oneDNN comes
with torch and generates its code for the processor it finds. Where it cannot be had (another device
or precision, several networks in one, an export, a run `across_machines`, whose sums must not
follow the sizes of caches), `linear` is what torch makes of it.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

Fused = Literal["none", "relu", "tanh"]
"""Non-linearities that can be part of the product."""
_LINEAR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""`(x [R, in], weight [out, in], bias [out] or None, non-linearity, [], "")`."""
_WIDE = 64
_LEAST = 1 << 17
"""Widths, and multiplications, from which a product is faster: it is prepared for each new
shape."""


def on_cpu(x: Tensor) -> bool:
    """Whether what is done to `x` may leave torch's own operations: float32 on the CPU, not while
    it is exported or transformed (`torch.func`)."""
    return (
        x.dtype is torch.float32
        and x.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, fused: Fused = "none") -> Tensor:
    """`x [R, in]`, `weight [in, out]`, `bias [out]` to `[R, out]`: the non-linearity of `x @ weight
    + bias`."""
    large = min(weight.shape) >= _WIDE and x.shape[0] * weight.numel() >= _LEAST
    if large and _LINEAR is not None and torch.backends.mkldnn.enabled and on_cpu(x):
        if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
            out: Tensor = _Linear.apply(x, weight, bias, fused)  # type: ignore[no-untyped-call]
            return out
        return _product(x, weight.t(), bias, fused)
    out = x @ weight if bias is None else torch.addmm(bias, x, weight)
    return out if fused == "none" else out.relu() if fused == "relu" else tanh(out)


def tanh(x: Tensor) -> Tensor:
    """tanh x = 2 σ(2 x) − 1, within 2e-7: torch's takes ten times as long on the CPU."""
    if not on_cpu(x):
        return torch.tanh(x)
    out: Tensor = _Tanh.apply(x)  # type: ignore[no-untyped-call]
    return out


class Tanh(nn.Module):
    """`tanh` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return tanh(x)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, fused: Fused = "none") -> Tensor:
    """`weight [out, in]`"""
    out: Tensor = _LINEAR(x, weight, bias, fused, [], "")
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, fused: Fused) -> Tensor:
        out = _product(x, weight.t(), bias, fused)
        ctx.fused = fused
        ctx.save_for_backward(x, weight, *([] if fused == "none" else [out]))
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *out = ctx.saved_tensors
        if ctx.fused == "relu":
            slope = torch.ops.aten.threshold_backward(slope, out[0], 0)
        elif ctx.fused == "tanh":
            slope = torch.ops.aten.tanh_backward(slope, out[0])
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        return (
            _product(slope, weight, None) if of_x else None,
            _product(x.t(), slope.t(), None) if of_weight else None,
            slope.sum(0) if of_bias else None,
            None,
        )


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.sigmoid(x * 2).mul_(2).sub_(1)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        of_x: Tensor = torch.ops.aten.tanh_backward(slope, *ctx.saved_tensors)
        return of_x
