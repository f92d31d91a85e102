"""Dense layers by oneDNN: product, bias and non-linearity in one pass over the result.

torch multiplies float32 matrices on the CPU by MKL. On AVX-512 processors that are not Intel's, MKL
leaves half of the vector width unused; each non-linearity takes another pass. oneDNN comes with
torch and generates code for the processor at hand. On Intel's, single products of both differ by at
most 12 % in time; on an EPYC with AVX2 MKL is ahead. The size of a product and the instruction set
choose between them: a choice by timing would make sums depend on the machine's load, and no run
would repeat bit by bit. A run `across_machines` disables oneDNN, because its sums must not depend
on the sizes of caches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_LINEAR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""`(x [R, in], weight [out, in], bias [out] or None, non-linearity, [], "")`."""
_HAS_WIDE_VECTORS = torch.backends.cpu.get_cpu_capability() == "AVX512"
_MIN_WIDTH = 64
_MIN_MULTIPLICATIONS = 1 << 17
"""Narrower or smaller products are faster by MKL: oneDNN prepares each new shape first."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Any:
    """Compute `networks.linear`; `NotImplemented` for small products."""
    is_large = (
        _HAS_WIDE_VECTORS
        and min(weight.shape) >= _MIN_WIDTH
        and x.shape[0] * weight.numel() >= _MIN_MULTIPLICATIONS
    )
    if not is_large or _LINEAR is None or not torch.backends.mkldnn.enabled:
        return NotImplemented
    needs_grad = any(one is not None and one.requires_grad for one in (x, weight, bias))
    if needs_grad and torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias, activation)  # type: ignore[no-untyped-call]
    return _multiply(x, weight.t(), bias, activation)


def tanh(x: Tensor) -> Any:
    """tanh x = 2 σ(2 x) − 1, within 2e-7: torch's own takes ten times as long on the CPU."""
    return _Tanh.apply(x)  # type: ignore[no-untyped-call]


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "none") -> Tensor:
    """Compute `activation(x weight + bias)` of `x [R, in]` and `weight [in, out]`."""
    out: Tensor = _LINEAR(x, weight, bias, activation, [], "")
    return out


class _Linear(torch.autograd.Function):
    """`linear` with its gradients, which are products by oneDNN, too."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str
    ) -> Tensor:
        out = _multiply(x, weight.t(), bias, activation)
        ctx.activation = activation
        ctx.save_for_backward(x, weight, *([] if activation == "none" else [out]))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *out = ctx.saved_tensors
        if ctx.activation == "relu":
            grad = torch.ops.aten.threshold_backward(grad, out[0], 0)
        elif ctx.activation == "tanh":
            grad = torch.ops.aten.tanh_backward(grad, out[0])
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        return (
            _multiply(grad, weight, None) if needs_x else None,
            _multiply(x.t(), grad.t(), None) if needs_weight else None,
            grad.sum(0) if needs_bias else None,
            None,
        )


class _Tanh(torch.autograd.Function):
    """`tanh` with its gradient, which needs only the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.sigmoid(x * 2).mul_(2).sub_(1)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad_x: Tensor = torch.ops.aten.tanh_backward(grad, *ctx.saved_tensors)
        return grad_x
