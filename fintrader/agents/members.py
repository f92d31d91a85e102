"""Networks of the kinds `per_asset` and `mlp`, laid out side by side for `numba_forward.forward`
(see `bound`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fintrader.agents.networks import COMMON_PACE
from fintrader.agents.normalisation import shift_and_scale
from fintrader.envs.observation import market_widths

Numbers = NDArray[np.float32]


class NumbaMembers:
    """Weights of K actors in one vector, the tables that say where what lies (see `numba_forward`),
    and the rows."""

    def __init__(self, members: Sequence[Any], rows: Numbers) -> None:
        from fintrader.agents.fast import forward as numba_forward

        self.table = numba_forward
        self.rows = np.ascontiguousarray(rows)
        layout = members[0].layout
        count = len(members)
        account, assets, *_, context = market_widths(layout)
        depth = 1 + max(len(member.network.hidden) for member in members)
        self.plan = np.zeros((count, numba_forward.PLAN), np.int64)
        self.layers = np.zeros((count, depth, numba_forward.LAYER), np.int64)
        self.numbers = np.zeros((count, numba_forward.NUMBERS), np.float32)
        self.placed: list[Numbers] = []
        self.length = self.widest = 0
        for k, member in enumerate(members):
            self._add(k, member)
        self.weights = np.concatenate(self.placed)
        self.sizes = (account, assets, layout.num_features, context)
        # The widest anything gets: inputs or hidden units of the per-asset network, logits of a
        # flat one.
        wide = max(self.widest, -(-(layout.num_features + 2) // 4) * 4)
        square = [
            np.zeros((max(wide, -(-self.widest // assets)), assets), np.float32) for _ in range(2)
        ]
        lengths = (wide, max(wide, account + context, 1), layout.width, assets + 1, assets)
        self.buffers = (*square, *(np.zeros(length, np.float32) for length in lengths))
        self.answers = np.zeros((count, assets), np.float32)

    def actions(self, bar: int, private: Numbers) -> Numbers:
        """`[K, N]`, for the private part `[A + N]` of an observation at `bar`; overwritten by the
        next call."""
        tables = (self.plan, self.layers, self.numbers, self.weights)
        self.table.forward(private, self.rows[bar], self.sizes, *tables, self.buffers, self.answers)
        return self.answers

    def _add(self, k: int, actor: Any) -> None:
        """Lay out actor number `k`."""
        t = self.table
        plan = self.plan[k]
        network = actor.network
        head = actor.head.settings
        activations = {"relu": t.RELU, "tanh": t.TANH, "silu": t.SILU, "elu": t.ELU}
        plan[[t.ACTIVATION, t.NORM]] = activations[network.activation], network.layer_norm
        plan[[t.SQUASH, t.TARGETS]] = actor.squash, actor.head.targets_weights
        plan[[t.ACCOUNT, t.DEPTH]] = network.account, len(network.hidden)
        plan[t.STATISTICS] = self._place(
            torch.cat(shift_and_scale(actor.normaliser.mean, actor.normaliser.var))
        )
        assets = actor.layout.num_assets
        self.numbers[k] = head.scale, math.log(assets) + head.cash_logit, head.band / assets
        per_asset = actor.actor.kind == "per_asset"
        weights = actor.actor.state_dict()
        plan[t.KIND] = t.PER_ASSET if per_asset else t.MLP
        plan[[t.CASH, t.CASH_BIAS]] = -1
        (self._add_per_asset if per_asset else self._add_mlp)(k, actor, weights)

    def _add_per_asset(self, k: int, actor: Any, weights: dict[str, torch.Tensor]) -> None:
        t = self.table
        plan = self.plan[k]
        wide = 0
        for depth in range(len(actor.network.hidden)):
            own, common = (
                weights[f"trunk.layers.{part}.{depth}.weight"] for part in ("own", "common")
            )
            bias = (
                weights[f"trunk.layers.own.{depth}.bias"]
                + weights[f"trunk.layers.common.{depth}.bias"]
            )
            width = own.shape[1]
            wide = -(-width // 4) * 4
            self.layers[k, depth, [t.WIDTH, t.OWN_OUT]] = width, wide
            rows = -(-own.shape[0] // 4) * 4
            self.layers[k, depth, [t.OWN, t.OWN_IN]] = self._place(_padded(own, rows, wide)), rows
            # From the second layer on the shared columns are the padded hidden units' means.
            columns = common.shape[0] if depth == 0 else rows
            self.layers[k, depth, t.COMMON] = self._place(_padded(common, columns, wide))
            self.layers[k, depth, t.COMMON_IN] = columns
            self.layers[k, depth, t.BIAS] = self._place(_padded(bias[None], 1, wide))
            self.widest = max(self.widest, wide)
        plan[t.HEAD] = self._place(_padded(weights["head.weight"][:, :1], wide, 1))
        plan[t.HEAD_BIAS] = self._place(weights["head.bias"][:1])
        if actor.head.targets_weights:
            plan[t.CASH] = self._place(
                _padded(COMMON_PACE * weights["common_head.weight"][:, :1], wide, 1)
            )
            plan[t.CASH_BIAS] = self._place(COMMON_PACE * weights["common_head.bias"][:1])

    def _add_mlp(self, k: int, actor: Any, weights: dict[str, torch.Tensor]) -> None:
        t = self.table
        last = len(actor.network.hidden)
        for depth in range(last + 1):  # every second layer of the Mlp is dense
            weight, bias = (
                weights[f"mlp.layers.{2 * depth}.{part}"] for part in ("weight", "bias")
            )
            if depth == last:  # the first of `outputs` blocks of columns
                count = weight.shape[1] // actor.outputs
                weight = weight[:, :count]
                bias = bias[:count]
            rows, width = weight.shape
            self.layers[k, depth, [t.OWN, t.OWN_IN, t.OWN_OUT, t.WIDTH]] = (
                self._place(weight),
                rows,
                width,
                width,
            )
            self.layers[k, depth, t.BIAS] = self._place(bias)
            self.widest = max(self.widest, width)

    def _place(self, values: torch.Tensor) -> int:
        start = self.length
        self.placed.append(values.detach().float().reshape(-1).numpy())
        self.length += values.numel()
        return start


def _padded(matrix: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    padded = torch.zeros(rows, columns)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix.detach()
    return padded
