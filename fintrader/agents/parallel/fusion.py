"""The mean of networks: what learner fusion is made of, between learners of one agent, devices and processes.

Learners go on from the average of what each has learned, as in local SGD (https://arxiv.org/abs/1805.09767; the
learner parallelism of ElegantRL-Podracer, section 4). `average` serves `agent.learners` and a tournament's `replicas`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

INHERITED = ("modules.", "optimisers.")
"""What an agent's `inherit` takes, hence what is averaged; random streams and counters stay each learner's own."""


def average(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of every floating tensor that is inherited; all else is the first state's. On the first one's device.

    Sums run in float64 in the order of the states, so equal states give equal bytes wherever they come from.
    Variances of normalisers are merged as second moments: learners whose means differ have seen more than either.
    """
    fused = {}
    for name, first in states[0].items():
        if not (name.startswith(INHERITED) and first.is_floating_point()):
            fused[name] = first.contiguous()
            continue
        rows = _rows(states, name, first.device)
        centre = name.removesuffix("var") + "mean"
        if name.endswith(".var") and centre in states[0]:
            means = _rows(states, centre, first.device)
            rows = rows + (means - means.mean(dim=0)) ** 2
        fused[name] = rows.mean(dim=0).to(first.dtype).contiguous()
    return fused


def _rows(states: Sequence[Mapping[str, Tensor]], name: str, device: torch.device) -> Tensor:
    return torch.stack([state[name].to(device, torch.float64) for state in states])
