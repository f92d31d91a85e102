"""Policies bound to one market: the same action as the networks give, a hundredth of the time for one account.

A backtest asks a policy one observation at a time, and ten small networks are then three hundred tensor operations on
a few thousand numbers. `bind(policy, rows)` lays the weights of all members out side by side and runs
`numba_forward.forward` on them. Actions agree with the policy's own to float32 rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fintrader.agents.networks import Actor
from fintrader.envs.observation import FlatLayout, market_widths

if TYPE_CHECKING:
    from fintrader.agents.policy import ActorPolicy, PolicyModule


Numbers = NDArray[np.float32]


Bound = Callable[[int, Numbers], Numbers]
"""`bound(bar, private [A + N]) -> action [N]`: what `bind` returns. The action is overwritten by the next call."""


def bind(policy: PolicyModule, rows: Numbers) -> Bound | None:
    """`policy` over the market rows `[T, N*F + N + M]` of a window; None where only the networks themselves will do:
    off the CPU, on a classic environment, with observations of several bars, in ensembles of ensembles,
    or with weights that are not finite (which the networks then show)."""
    from fintrader.agents.policy import ActorPolicy, EnsemblePolicy

    members = list(policy.members) if isinstance(policy, EnsemblePolicy) else [policy]
    actors = [member for member in members if type(member) is ActorPolicy and _usable(member)]
    if len(actors) < len(members) or isinstance(policy.layout, FlatLayout):
        return None
    if policy.layout.lookback > 1 or policy.layout.market_width != rows.shape[1]:
        return None
    mode, shares = "mean", np.ones(1)
    if isinstance(policy, EnsemblePolicy):
        mode, shares = policy.mode, policy.weights.numpy()
    return _Bound(actors, rows, mode, shares.astype(np.float32))


def _usable(policy: ActorPolicy) -> bool:
    tensors = list(policy.state_dict().values())
    return all(tensor.device.type == "cpu" and bool(tensor.isfinite().all()) for tensor in tensors)


class _Bound:
    """K actors over the rows of one market."""

    def __init__(self, actors: list[ActorPolicy], rows: Numbers, mode: str, shares: Numbers) -> None:
        from fintrader.agents import numba_forward

        layout = actors[0].layout
        assert not isinstance(layout, FlatLayout)
        account, assets, *_, context = market_widths(layout)
        pack = _Pack(len(actors), 1 + max(len(actor.network.hidden) for actor in actors))
        for k, actor in enumerate(actors):
            pack.add(k, actor)
        # The widest anything gets: inputs or hidden units of the per-asset network, logits of a flat one.
        wide = max(pack.widest, -(-(layout.num_features + 2) // 4) * 4)
        plain = max(layout.width, wide, account + context, 1)
        self._forward, self._rows, self._mode, self._shares = (
            numba_forward.forward,
            np.ascontiguousarray(rows),
            mode,
            shares,
        )
        self._sizes = (account, assets, layout.num_features, context)
        self._tables = (pack.plan, pack.layers, pack.numbers, np.concatenate(pack.weights))
        lengths = (wide, plain, assets + 1, assets)
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

    def __init__(self, count: int, depth: int) -> None:
        from fintrader.agents import numba_forward

        self.table = numba_forward
        self.plan = np.zeros((count, numba_forward.PLAN), np.int64)
        self.layers = np.zeros((count, depth, numba_forward.LAYER), np.int64)
        self.numbers = np.zeros((count, numba_forward.NUMBERS), np.float32)
        self.weights: list[Numbers] = []
        self.widest = 0
        self._length = 0

    def add(self, k: int, policy: ActorPolicy) -> None:
        """Lay out actor number `k`."""
        t, plan, settings = self.table, self.plan[k], policy.network
        activations = {"relu": t.RELU, "tanh": t.TANH, "silu": t.SILU, "elu": t.ELU}
        plan[[t.ACTIVATION, t.NORM]] = activations[settings.activation], settings.layer_norm
        plan[[t.SQUASH, t.AIMS]] = policy.squash, policy.head.targets_weights
        plan[[t.ACCOUNT, t.DEPTH]] = settings.account, len(settings.hidden)
        plan[t.STATISTICS] = self._place(torch.cat(policy.normaliser.statistics()))
        layout, head = policy.layout, policy.head.settings
        assert not isinstance(layout, FlatLayout)
        logit = math.log(layout.num_assets) + head.cash_logit
        self.numbers[k] = head.scale, logit, head.rate, head.band / layout.num_assets
        plan[t.KIND] = t.PER_ASSET if policy.actor.per_asset else t.MLP
        plan[[t.CASH, t.CASH_BIAS]] = -1
        (self._add_per_asset if policy.actor.per_asset else self._add_mlp)(k, policy.actor)

    def _add_per_asset(self, k: int, actor: Actor) -> None:
        t, plan, trunk = self.table, self.plan[k], actor.trunk
        wide = 0
        pairs: list[tuple[Any, Any]] = list(zip(trunk.own, trunk.common, strict=True))  # Dense, both
        for depth, (own, common) in enumerate(pairs):
            width = own.weight.shape[1]
            wide = -(-width // 4) * 4
            self.layers[k, depth, [t.WIDTH, t.OWN_OUT]] = width, wide
            rows = -(-own.weight.shape[0] // 4) * 4
            self.layers[k, depth, [t.OWN, t.OWN_IN]] = self._place(_padded(own.weight, rows, wide)), rows
            # From the second layer on the shared columns are the padded hidden units' means.
            columns = common.weight.shape[0] if depth == 0 else rows
            self.layers[k, depth, t.COMMON] = self._place(_padded(common.weight, columns, wide))
            self.layers[k, depth, t.COMMON_IN] = columns
            self.layers[k, depth, t.BIAS] = self._place(_padded((own.bias + common.bias)[None], 1, wide))
            self.widest = max(self.widest, wide)
        plan[t.HEAD] = self._place(_padded(actor.head.weight[:, :1], wide, 1))
        plan[t.HEAD_BIAS] = self._place(actor.head.bias[:1])
        if actor.cash_head is not None:
            plan[t.CASH] = self._place(_padded(actor.cash_head.weight[:, :1], wide, 1))
            plan[t.CASH_BIAS] = self._place(actor.cash_head.bias[:1])

    def _add_mlp(self, k: int, actor: Actor) -> None:
        t = self.table
        dense: list[Any] = list(actor.mlp.layers)[::2]
        for depth, layer in enumerate(dense):
            weight, bias = layer.weight, layer.bias
            if depth == len(dense) - 1:  # the first of `outputs` blocks of columns
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
