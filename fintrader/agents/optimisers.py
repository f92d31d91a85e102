"""Adam, and its step size."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def make_adam(
    parameters: Iterable[nn.Parameter], rate: float | Tensor, decay: float, eps: float
) -> torch.optim.Adam:
    """Make Adam, or AdamW where weights decay; on a GPU one that a CUDA graph can hold, with the
    step size in a tensor."""
    kind = torch.optim.AdamW if decay else torch.optim.Adam
    weights = list(parameters)
    on_gpu = weights[0].device.type == "cuda"
    if on_gpu:
        rate = torch.as_tensor(rate, dtype=torch.float32, device=weights[0].device)
    return kind(weights, lr=rate, eps=eps, weight_decay=decay, fused=True, capturable=on_gpu)


def scale_rates(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Set step sizes to `factor` times the first ones."""
    for group in optimiser.param_groups:
        if "first_lr" not in group:
            group["first_lr"] = float(group["lr"])
        rate = factor * group["first_lr"]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # CUDA graphs read it there
        else:
            group["lr"] = rate
