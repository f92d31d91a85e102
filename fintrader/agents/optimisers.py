"""Adam, and its step size."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import unwrap

import torch
from torch import Tensor, nn


class Adam(torch.optim.Adam):
    """torch's Adam without the decorators that import torch's compiler: in a process that compiles
    nothing, that import takes longer than torch itself."""

    add_param_group = unwrap(torch.optim.Adam.add_param_group)
    zero_grad = unwrap(torch.optim.Adam.zero_grad)
    state_dict = unwrap(torch.optim.Adam.state_dict)
    load_state_dict = unwrap(torch.optim.Adam.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


def make_adam(
    parameters: Iterable[nn.Parameter], rate: float | Tensor, decay: float, eps: float
) -> Adam:
    """Make Adam, or AdamW where weights decay; on a GPU one that a CUDA graph can capture, with the
    step size in a tensor."""
    weights = list(parameters)
    on_gpu = weights[0].device.type == "cuda"
    if on_gpu:
        rate = torch.as_tensor(rate, dtype=torch.float32, device=weights[0].device)
    return Adam(
        weights,
        lr=rate,
        eps=eps,
        weight_decay=decay,
        decoupled_weight_decay=True,
        fused=True,
        capturable=on_gpu,
    )


def scale_rates(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Set step sizes to `factor` times their first values."""
    for group in optimiser.param_groups:
        if "first_lr" not in group:
            group["first_lr"] = float(group["lr"])
        rate = factor * group["first_lr"]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # CUDA graphs read it there
        else:
            group["lr"] = rate
