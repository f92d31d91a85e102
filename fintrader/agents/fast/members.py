"""Networks of the kinds `per_asset` and `mlp`, laid out side by side for `forward.run_networks`.

`agents.bound` runs them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fintrader.agents.fast.forward import (
    Activation,
    Kind,
    Layer,
    Networks,
    Number,
    Plan,
    run_networks,
)
from fintrader.agents.heads import EXTRA_LATENT_SCALE
from fintrader.agents.normalisation import to_shift_and_scale
from fintrader.envs.observation import market_widths

Numbers = NDArray[np.float32]


class NumbaMembers:
    """K actors as one vector of weights with the tables of where they lie, and the market's
    rows."""

    def __init__(self, members: Sequence[Any], rows: Numbers) -> None:
        """Lay out K `ActorPolicy` over the market rows `[T, W]` of a window."""
        self.rows = np.ascontiguousarray(rows)
        layout = members[0].layout
        count = len(members)
        account, assets, *_, context = market_widths(layout)
        depth = 1 + max(len(member.network.hidden) for member in members)
        self.plan = np.zeros((count, len(Plan)), np.int64)
        self.layers = np.zeros((count, depth, len(Layer)), np.int64)
        self.numbers = np.zeros((count, len(Number)), np.float32)
        self.placed: list[Numbers] = []
        self.length = 0
        self.widest = 0
        for k, member in enumerate(members):
            self._add(k, member)
        weights = np.concatenate(self.placed)
        self.networks = Networks(self.plan, self.layers, self.numbers, weights)
        self.sizes = (account, assets, layout.num_features, context)
        # The widest array of all: inputs or hidden units of the per-asset network, logits of a flat
        # one.
        wide = max(self.widest, _round_up(layout.num_features + 2))
        height = max(wide, -(-self.widest // assets))
        square = [np.zeros((height, assets), np.float32) for _ in range(2)]
        lengths = (wide, max(wide, account + context, 1), layout.width, assets + 1, assets)
        self.buffers = (*square, *(np.zeros(length, np.float32) for length in lengths))
        self.answers = np.zeros((count, assets), np.float32)

    def act(self, bar: int, private: Numbers) -> Numbers:
        """Act on the private part `[A + N]` of an observation at `bar`: `[K, N]`, overwritten by
        the next call."""
        row = self.rows[bar]
        run_networks(private, row, self.sizes, self.networks, self.buffers, self.answers)
        return self.answers

    def _add(self, k: int, actor: Any) -> None:
        """Lay out actor number `k`."""
        plan = self.plan[k]
        network = actor.network
        head = actor.head.settings
        assets = actor.layout.num_assets
        statistics = to_shift_and_scale(actor.normaliser.mean, actor.normaliser.var)
        plan[Plan.ACTIVATION] = Activation[network.activation.upper()]
        plan[Plan.NORM] = network.layer_norm
        plan[Plan.SQUASH] = actor.squash
        plan[Plan.TARGETS] = actor.head.targets_weights
        plan[Plan.ACCOUNT] = network.reads_account
        plan[Plan.DEPTH] = len(network.hidden)
        columns = [numbers[actor.normaliser.groups] for numbers in statistics]
        plan[Plan.STATISTICS] = self._place(torch.cat(columns))
        plan[Plan.CASH] = -1
        plan[Plan.CASH_BIAS] = -1
        self.numbers[k, Number.SCALE] = head.scale
        self.numbers[k, Number.CASH_LOGIT] = math.log(assets) + head.cash_logit
        weights = actor.actor.state_dict()
        if actor.actor.kind == "per_asset":
            plan[Plan.KIND] = Kind.PER_ASSET
            self._add_per_asset(k, actor, weights)
        else:
            plan[Plan.KIND] = Kind.MLP
            self._add_mlp(k, actor, weights)

    def _add_per_asset(self, k: int, actor: Any, weights: dict[str, Tensor]) -> None:
        plan = self.plan[k]
        wide = 0
        for depth in range(len(actor.network.hidden)):
            own = weights[f"trunk.layers.own.{depth}.weight"]
            common = weights[f"trunk.layers.common.{depth}.weight"]
            bias = weights[f"trunk.layers.own.{depth}.bias"]
            bias = bias + weights[f"trunk.layers.common.{depth}.bias"]
            width = own.shape[1]
            wide = _round_up(width)
            rows = _round_up(own.shape[0])
            # From the second layer on the shared columns are the padded hidden units' means.
            columns = common.shape[0] if depth == 0 else rows
            placed = [
                self._place(_pad(part, height, wide))
                for part, height in ((own, rows), (common, columns), (bias[None], 1))
            ]
            # In the order of `Layer`.
            self.layers[k, depth] = (placed[0], rows, wide, placed[1], columns, placed[2], width)
            self.widest = max(self.widest, wide)
        plan[Plan.HEAD] = self._place(_pad(weights["head.weight"][:, :1], wide, 1))
        plan[Plan.HEAD_BIAS] = self._place(weights["head.bias"][:1])
        if actor.head.targets_weights:
            cash = EXTRA_LATENT_SCALE * weights["extra_head.weight"][:, :1]
            cash_bias = EXTRA_LATENT_SCALE * weights["extra_head.bias"][:1]
            plan[Plan.CASH] = self._place(_pad(cash, wide, 1))
            plan[Plan.CASH_BIAS] = self._place(cash_bias)

    def _add_mlp(self, k: int, actor: Any, weights: dict[str, Tensor]) -> None:
        last = len(actor.network.hidden)
        for depth in range(last + 1):  # every second layer of the Mlp is dense
            weight = weights[f"mlp.layers.{2 * depth}.weight"]
            bias = weights[f"mlp.layers.{2 * depth}.bias"]
            if depth == last:  # the first of `outputs` blocks of columns
                count = weight.shape[1] // actor.outputs
                weight = weight[:, :count]
                bias = bias[:count]
            rows, width = weight.shape
            # In the order of `Layer`; nothing is common.
            self.layers[k, depth] = (
                *(self._place(weight), rows, width),
                *(0, 0, self._place(bias), width),
            )
            self.widest = max(self.widest, width)

    def _place(self, values: Tensor) -> int:
        """Append numbers to the vector of weights; return where they begin."""
        start = self.length
        self.placed.append(values.detach().float().reshape(-1).numpy())
        self.length += values.numel()
        return start


def _round_up(width: int) -> int:
    """Round up to a multiple of four, the height of a block in `forward._multiply`."""
    return -(-width // 4) * 4


def _pad(matrix: Tensor, rows: int, columns: int) -> Tensor:
    padded = torch.zeros(rows, columns)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix.detach()
    return padded
