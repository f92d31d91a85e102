"""Policies bound to one market: the same action as the networks give, a hundredth of the time for one account.

A backtest asks a policy one observation at a time, and ten small networks are then three hundred tensor operations on
a few thousand numbers. `bind` takes what a policy file holds (its description and its tensors), lays the weights of all
members out side by side and runs `numba_forward.forward` on them. Actions agree with the networks' own to float32
rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fintrader.agents.checkpoint import below
from fintrader.agents.networks import ActionHead, ActionHeadSettings, NetworkSettings, uses_assets
from fintrader.agents.normalisation import shift_and_scale
from fintrader.envs.observation import FlatLayout, ObservationLayout, layout_from_json, market_widths

Numbers = NDArray[np.float32]

Bound = Callable[[int, Numbers], Numbers]
"""`bound(bar, private [A + N]) -> action [N]`: what `bind` returns. The action is overwritten by the next call."""


def bind(description: Mapping[str, Any], tensors: Mapping[str, Tensor], rows: Numbers) -> Bound | None:
    """A policy over the market rows `[T, N*F + N + M]` of a window; None where only the networks themselves will do:
    off the CPU, on a classic environment, with observations of several bars, in ensembles of ensembles,
    or with weights that are not finite (which the networks then show).

    `description` and `tensors` are the policy's `describe()` and `state_dict()`.
    """
    if not all(_usable(tensor) for tensor in tensors.values()):
        return None
    mode, shares = "mean", np.ones(1, np.float32)
    described, states = [description], [tensors]
    if description["kind"] == "ensemble":
        mode, shares = description["mode"], tensors["weights"].numpy().astype(np.float32)
        described = description["members"]
        states = [below(f"members.{number}", tensors) for number in range(len(described))]
    if any(member["kind"] != "actor" for member in described):
        return None
    layout = layout_from_json(described[0]["layout"])
    if isinstance(layout, FlatLayout) or layout.lookback > 1 or layout.market_width != rows.shape[1]:
        return None
    actors = [_Actor(layout, member, state) for member, state in zip(described, states, strict=True)]
    return _Bound(layout, actors, rows, mode, shares)


def _usable(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and bool(tensor.isfinite().all())


class _Actor:
    """One member: its settings, and its weights by name."""

    def __init__(
        self, layout: ObservationLayout, description: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> None:
        self.network = NetworkSettings.model_validate(description["network"])
        self.head = ActionHead(layout, ActionHeadSettings.model_validate(description["head"]))
        self.outputs, self.squash = int(description["outputs"]), bool(description["squash"])
        self.per_asset = uses_assets(layout, self.network)
        self.weights = below("actor", tensors)
        self.statistics = torch.cat(shift_and_scale(tensors["normaliser.mean"], tensors["normaliser.var"]))


class _Bound:
    """K actors over the rows of one market."""

    def __init__(
        self, layout: ObservationLayout, actors: list[_Actor], rows: Numbers, mode: str, shares: Numbers
    ) -> None:
        from fintrader.agents import numba_forward

        account, assets, *_, context = market_widths(layout)
        pack = _Pack(layout, len(actors), 1 + max(len(actor.network.hidden) for actor in actors))
        for k, actor in enumerate(actors):
            pack.add(k, actor)
        # The widest anything gets: inputs or hidden units of the per-asset network, logits of a flat one.
        wide = max(pack.widest, -(-(layout.num_features + 2) // 4) * 4)
        shared = max(wide, account + context, 1)
        self._forward, self._rows = numba_forward.forward, np.ascontiguousarray(rows)
        self._mode, self._shares = mode, shares
        self._sizes = (account, assets, layout.num_features, context)
        self._tables = (pack.plan, pack.layers, pack.numbers, np.concatenate(pack.weights))
        lengths = (wide, shared, layout.width, assets + 1, assets)
        square = [np.zeros((max(wide, -(-pack.widest // assets)), assets), np.float32) for _ in range(2)]
        self._buffers = (*square, *(np.zeros(length, np.float32) for length in lengths))
        self._actions = np.zeros((len(actors), assets), np.float32)

    def __call__(self, bar: int, private: Numbers) -> Numbers:
        actions = self._actions
        self._forward(private, self._rows[bar], self._sizes, *self._tables, self._buffers, actions)
        if len(actions) == 1:
            only: Numbers = actions[0]
            return only
        if self._mode == "vote":
            # As torch.quantile: the lower of the middle two plus half their distance.
            ordered, middle = np.sort(actions, axis=0), (len(actions) - 1) // 2
            upper = ordered[len(actions) // 2]
            median: Numbers = ordered[middle] + np.float32(0.5) * (upper - ordered[middle])
            return median
        mean: Numbers = self._shares @ actions
        return mean


class _Pack:
    """Weights of several actors in one vector, and the tables that say where what lies (see `forward`)."""

    def __init__(self, layout: ObservationLayout, count: int, depth: int) -> None:
        from fintrader.agents import numba_forward

        self.layout, self.table = layout, numba_forward
        self.plan = np.zeros((count, numba_forward.PLAN), np.int64)
        self.layers = np.zeros((count, depth, numba_forward.LAYER), np.int64)
        self.numbers = np.zeros((count, numba_forward.NUMBERS), np.float32)
        self.weights: list[Numbers] = []
        self.widest = 0
        self._length = 0

    def add(self, k: int, actor: _Actor) -> None:
        """Lay out actor number `k`."""
        t, plan, settings = self.table, self.plan[k], actor.network
        activations = {"relu": t.RELU, "tanh": t.TANH, "silu": t.SILU, "elu": t.ELU}
        plan[[t.ACTIVATION, t.NORM]] = activations[settings.activation], settings.layer_norm
        plan[[t.SQUASH, t.TARGETS]] = actor.squash, actor.head.targets_weights
        plan[[t.ACCOUNT, t.DEPTH]] = settings.account, len(settings.hidden)
        plan[t.STATISTICS] = self._place(actor.statistics)
        head, assets = actor.head.settings, self.layout.num_assets
        logit = math.log(assets) + head.cash_logit
        self.numbers[k] = head.scale, logit, head.rate, head.band / assets
        plan[t.KIND] = t.PER_ASSET if actor.per_asset else t.MLP
        plan[[t.CASH, t.CASH_BIAS]] = -1
        (self._add_per_asset if actor.per_asset else self._add_mlp)(k, actor)

    def _add_per_asset(self, k: int, actor: _Actor) -> None:
        t, plan, weights = self.table, self.plan[k], actor.weights
        wide = 0
        for depth in range(len(actor.network.hidden)):
            own, common = (weights[f"trunk.{part}.{depth}.weight"] for part in ("own", "common"))
            bias = weights[f"trunk.own.{depth}.bias"] + weights[f"trunk.common.{depth}.bias"]
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
            plan[t.CASH] = self._place(_padded(weights["cash_head.weight"][:, :1], wide, 1))
            plan[t.CASH_BIAS] = self._place(weights["cash_head.bias"][:1])

    def _add_mlp(self, k: int, actor: _Actor) -> None:
        t, last = self.table, len(actor.network.hidden)
        for depth in range(last + 1):  # every second layer of the Mlp is dense
            weight, bias = (actor.weights[f"mlp.layers.{2 * depth}.{part}"] for part in ("weight", "bias"))
            if depth == last:  # the first of `outputs` blocks of columns
                count = weight.shape[1] // actor.outputs
                weight, bias = weight[:, :count], bias[:count]
            rows, width = weight.shape
            self.layers[k, depth, [t.OWN, t.OWN_IN, t.OWN_OUT, t.WIDTH]] = self._place(weight), rows, width, width
            self.layers[k, depth, t.BIAS] = self._place(bias)
            self.widest = max(self.widest, width)

    def _place(self, values: torch.Tensor) -> int:
        start = self._length
        self.weights.append(values.detach().float().reshape(-1).numpy())
        self._length += values.numel()
        return start


def _padded(matrix: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    padded = torch.zeros(rows, columns)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix.detach()
    return padded
