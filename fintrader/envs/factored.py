"""Policies on the factored observation: market rows are projected once for all accounts, and
gathered by their clocks.

A first layer maps a flat observation o = (p, m), private part and market row, to W o + b = (W_p p +
b) + W_m m. The second term is the same for every account at a bar, and m is by far the wider part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from fintrader.errors import EnvError

WORTH_SORTING = 0.875
"""Distinct rows per sample up to which projecting each only once is faster; see `factored_policy`
in the results of `benchmarks/env.py`."""


def project_market(project: Callable[[Tensor], Tensor], rows: Tensor, clock: Tensor) -> Tensor:
    """Compute `project(rows[clock])`, with one projection for each occurring row if that is less
    work.

    `rows` `[T, W]` are the market's rows, `clock` `[S]` the bar of each sample, `project` maps `[S,
    W]` to `[S, H]` row by row (a policy's first layer, without the private part). In a rollout of B
    accounts few rows occur many times; in a random minibatch nearly every sample has another row,
    and sorting the rows costs more than it saves.
    """
    occurring, place = torch.unique(clock, return_inverse=True)
    if occurring.numel() <= WORTH_SORTING * clock.numel():
        return project(rows.index_select(0, occurring)).index_select(0, place)
    return project(rows.index_select(0, clock))


class FactoredLinear(nn.Module):
    """A linear layer on flat observations `[..., D]` that takes factored ones, `{"private": [...,
    P], "clock": [...]}`.

    The result `[..., H]` and the gradients are the flat layer's up to rounding; the parameters are
    the flat layer's. `project_market` chooses whether rows are projected once each or for every
    sample.

    After `eval()` and without gradients, all T rows are projected once, after the first T samples:
    a rollout then only gathers. `train()`, `eval()` and a call with gradients discard these
    projections; nothing else may change the weights in between (torch's record of changes misses
    fused optimisers).
    """

    rows: Tensor

    def __init__(self, flat: nn.Linear, market_rows: Tensor) -> None:
        """Wrap `flat`, which reads D = P + L*W columns; `market_rows` `[T, L*W]` are
        `TradingEnv.market_rows`.

        Raises EnvError unless the layer is wider than the rows.
        """
        super().__init__()
        self.private_width = flat.in_features - market_rows.shape[1]
        if self.private_width < 1:
            raise EnvError(
                f"the layer reads {flat.in_features} columns, the market's rows alone have"
                f" {market_rows.shape[1]}; make it for the flat observation,"
                " nn.Linear(env.layout.width, ...)"
            )
        self.flat = flat
        self.register_buffer("rows", market_rows, persistent=False)
        self._forget()

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and discard the projections."""
        self._forget()
        return super().train(mode)

    def _forget(self) -> None:
        self._projected: Tensor | None = None
        self._samples = 0

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Map a factored observation to `[..., H]`."""
        private = obs["private"]
        clock = obs["clock"]
        weight = self.flat.weight
        own = functional.linear(
            private.to(weight.dtype), weight[:, : self.private_width], self.flat.bias
        )
        if torch.is_grad_enabled() and weight.requires_grad:
            self._forget()  # the weights are about to change
            shared = project_market(self._project, self.rows, clock.flatten())
        else:
            shared = self._gather(clock.flatten())
        return own + shared.view_as(own)

    def _project(self, rows: Tensor) -> Tensor:
        """Project market rows `[S, L*W]` to their part of the result `[S, H]`."""
        return functional.linear(
            rows.to(self.flat.weight.dtype), self.flat.weight[:, self.private_width :]
        )

    def _gather(self, clock: Tensor) -> Tensor:
        """Gather projections `[S, H]` without gradients. All rows are projected only after T
        samples, which cost as much."""
        self._samples += clock.numel()
        if self.training or (self._projected is None and self._samples < len(self.rows)):
            return project_market(self._project, self.rows, clock)
        if self._projected is None:
            self._projected = self._project(self.rows)
        return self._projected.index_select(0, clock)
