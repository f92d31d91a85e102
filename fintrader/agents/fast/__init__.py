"""The seam between readable agents and their fast passes on the CPU.

A function decorated with `@fast_on_cpu("module")` is the readable reference. For float32 tensors on
the CPU the function of the same name in that module of `agents/fast` takes its place, with the same
arguments and results; it returns `NotImplemented` for a case that it does not cover. Everywhere
else (on a GPU, in another precision, in an export, under `torch.func`) the decorated function runs.
Its `__wrapped__` is the reference alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def fast_on_cpu(module: str) -> Callable[[FunctionT], FunctionT]:
    """Decorate a function whose first argument is a tensor and which has a fast version in
    `agents/fast/<module>.py`."""

    def decorate(reference: FunctionT) -> FunctionT:
        @functools.cache
        def load() -> Callable[..., Any]:
            fast: Callable[..., Any] = getattr(
                import_module(f"{__name__}.{module}"), reference.__name__
            )
            return fast

        @functools.wraps(reference)
        def choose(*args: Any, **kwargs: Any) -> Any:
            if is_plain_cpu(args[0]):
                result = load()(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            return reference(*args, **kwargs)

        return cast(FunctionT, choose)

    return decorate


def is_plain_cpu(x: Tensor) -> bool:
    """Report whether `x` may leave torch's own operations: float32 on the CPU, outside exports and
    `torch.func`, which trace those operations alone."""
    return (
        x.dtype is torch.float32
        and x.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )
