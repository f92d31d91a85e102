"""Policies bound to one market: networks of all kinds, laid out side by side for `forward`.

A backtest asks a policy about one observation at a time. Ten small networks then take hundreds of
tensor operations; compiled, they take one call, which can even trade many bars. Only encoders of
earlier bars stay in torch: they do not depend on the account, so many bars are encoded at once.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fintrader.agents.fast.forward import (
    Activation,
    Head,
    Layer,
    Networks,
    Number,
    Plan,
    run_networks,
    trade_networks,
)
from fintrader.agents.heads import EXTRA_LATENT_SCALE
from fintrader.agents.normalisation import to_shift_and_scale
from fintrader.envs.observation import StateDict, market_widths

Numbers = NDArray[np.float32]
NUMBERS_AT_ONCE = 1 << 22
"""Largest count of encoded numbers at once: a bound on memory."""


class BoundNetworks:
    """K actors, their weights in one vector with tables of offsets, and the market's rows."""

    def __init__(self, members: Sequence[Any], shares: Numbers, rows: Numbers) -> None:
        """Lay out K `ActorPolicy` over the market rows `[T, L*W]` of a window. `shares [K]` weigh
        their actions; without any the joint action is the median."""
        layout = members[0].layout
        count = len(members)
        account, assets, *_, context = market_widths(layout)
        flags = 1 + 2 * layout.benchmark
        self.encoders = {
            k: _Encoder(member)
            for k, member in enumerate(members)
            if layout.lookback > 1 and member.network.kind != "mlp"
        }
        self.columns = layout.num_features + 1 + flags
        """P: columns of an asset, its holdings included, without encoded ones."""
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
        networks = Networks(self.plan, self.layers, self.numbers, weights, shares)
        encoded = max((encoder.width for encoder in self.encoders.values()), default=0)
        self.encoded = np.zeros((0, count, encoded, assets), np.float32)
        self.last_bar = 0
        self.action = np.zeros((1, assets), np.float32)
        # The widest array of all: inputs or hidden units of a trunk, logits of an mlp.
        wide = max(self.widest, _round_up(self.columns + encoded))
        padded = _round_up(assets, 16)
        height = max(wide, -(-self.widest // padded))
        common = account + context
        shapes: list[Any] = [(height, padded), (height, padded), wide, max(wide, common, 1)]
        shapes += [(self.columns, padded), common, layout.width, (1 + count, 2 * assets + 2)]
        shapes += [(count, assets)]
        buffers = tuple(np.zeros(shape, np.float32) for shape in shapes)
        self._parts = (account, assets, layout.num_features, flags, context), networks, buffers
        self.watch(rows)

    def watch(self, rows: Numbers) -> None:
        """Read the market's rows `[T, L*W]` of another window from now on."""
        self.market = torch.from_numpy(rows)
        # With a lookback rows overlap; compiled code reads the memory that they share.
        stride = rows.strides[0] // rows.itemsize
        size = (len(rows) - 1) * stride + rows.shape[1]
        flat = np.lib.stride_tricks.as_strided(rows, (size,), (rows.itemsize,))
        self.bars = range(0)
        """The encoded bars."""
        sizes, networks, buffers = self._parts
        self.arguments = (flat, (*sizes, stride, rows.shape[1]), networks, buffers)

    def __call__(self, bar: int, private: Numbers) -> Numbers:
        """Act at `bar` on the private parts `[B, A + N]` of accounts: `[B, N]`, or `[1, N]` where
        these do not matter."""
        if bar not in self.bars:
            # Further bars are spaced like the last two requested ones.
            self._encode(bar, len(self.market), max(1, bar - self.last_bar))
        self.last_bar = bar
        encoded = self.encoded[self.bars.index(bar)]
        if (self.plan[:, Plan.SHARED] * (self.plan[:, Plan.DECODER] != Head.TILT)).all():
            private = private[:1]
        actions = np.empty((len(private), self.action.shape[1]), np.float32)
        run_networks(bar, private, encoded, self.arguments, actions)
        return actions

    def trade(self, bar: int, decisions: int, interval: int, account: tuple[Any, ...]) -> bool:
        """Make at most `decisions` from `bar` on for a packed account, an interval apart; return
        True if they ruined it. An action that is not finite ends the stretch before its order."""
        count = self._encode(bar, decisions, interval)
        return bool(trade_networks(count, self.encoded, self.arguments, account, self.action))

    @torch.no_grad()
    def _encode(self, bar: int, count: int, step: int) -> int:
        """Encode at most `count` bars from `bar` on, `step` apart; return their number."""
        shape = self.encoded.shape[1:]
        count = min(count, max(1, NUMBERS_AT_ONCE // max(1, math.prod(shape))))
        self.bars = range(bar, min(bar + count * step, len(self.market)), step)
        self.encoded = np.zeros((len(self.bars), *shape), np.float32)
        for k, encoder in self.encoders.items():
            encoded = encoder(self.market[bar : self.bars.stop : step]).transpose(1, 2)
            self.encoded[:, k, : encoder.width] = encoded.numpy()
        return len(self.bars)

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
        plan[Plan.DECODER] = Head[actor.head.kind.upper()]
        plan[Plan.LATENTS] = actor.head.latents
        plan[Plan.HAS_CASH] = not head.fully_invested
        plan[Plan.DEPTH] = len(network.hidden)
        # In the order of `Number`.
        self.numbers[k] = (
            *(head.scale, math.log(assets) + head.cash_logit, head.max_log_tilt, head.tilt_scale),
            *(head.max_active_tilt, math.log(head.trade_rate / (1 - head.trade_rate))),
            not actor.layout.short,
        )
        weights = actor.actor.state_dict()
        groups = actor.normaliser.groups
        plan[Plan.IS_MLP] = network.kind == "mlp"
        if plan[Plan.IS_MLP]:
            parts = [groups]
            self._add_mlp(k, actor, weights)
        else:
            # Groups are in this order: the account, holdings, the other columns of an asset, the
            # market's.
            account = actor.layout.account_width
            each = torch.arange(account, account + self.columns)
            parts = [torch.cat([groups[:account], groups.unique()[each.max() + 1 :]]), each]
            self._add_assets(k, actor, weights)
        plan[Plan.STATISTICS] = self.length
        for columns in parts:
            for statistic in statistics:
                self._place(statistic[columns])

    def _add_assets(self, k: int, actor: Any, weights: StateDict) -> None:
        plan = self.plan[k]
        network = actor.network
        features = actor.layout.num_features
        once = network.kind == "market_once"
        wide = 0
        for depth in range(len(network.hidden)):
            own = weights[f"trunk.layers.own.{depth}.weight"]
            common = weights[f"trunk.layers.common.{depth}.weight"]
            bias = (
                weights[f"trunk.layers.own.{depth}.bias"]
                + weights[f"trunk.layers.common.{depth}.bias"]
            )
            if depth == 0:  # holdings first; the trunk of `market_once` does not see them
                held = torch.zeros_like(own[:1]) if once else own[features : features + 1]
                own = torch.cat([held, own[:features], own[features + 1 - once :]])
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
            self.widest = max(self.widest, wide, rows)
        plan[Plan.SHARED] = once and not network.private
        plan[Plan.ACCOUNT] = network.reads_account and not once
        plan[Plan.SLOPE] = once and network.reads_holdings
        plan[Plan.LINEAR] = actor.layout.account_width * (once and network.reads_account)
        # Only the first of several outputs.
        columns = 1 + plan[Plan.SLOPE] + plan[Plan.LINEAR]
        plan[Plan.HEAD] = self._place(_pad(weights["head.weight"][:, :columns], wide, columns))
        plan[Plan.HEAD_BIAS] = self._place(weights["head.bias"][:columns])
        if actor.head.extra:
            every = (
                slice(actor.head.extra * (1 + plan[Plan.LINEAR]))
                if once
                else slice(None, None, actor.outputs)
            )
            extra = EXTRA_LATENT_SCALE * weights["extra_head.weight"][:, every]
            plan[Plan.EXTRA] = self._place(_pad(extra, wide, extra.shape[1]))
            bias = EXTRA_LATENT_SCALE * weights["extra_head.bias"][every]
            plan[Plan.EXTRA_BIAS] = self._place(bias)

    def _add_mlp(self, k: int, actor: Any, weights: StateDict) -> None:
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


class _Encoder:
    """The columns that an actor adds to each asset's newest ones: encoded or earlier bars.

    Computed in float64 and rounded once: they must not depend on how many bars are encoded
    together.
    """

    def __init__(self, actor: Any) -> None:
        self.normaliser = copy.deepcopy(actor.normaliser).double()
        self.inputs = copy.deepcopy(actor.actor.trunk.assets).double()
        newest = actor.layout.num_features + 1 + 2 * actor.layout.benchmark
        self.width = self.inputs.width - newest

    def __call__(self, rows: Tensor) -> Tensor:
        """Encode rows `[U, L*W]`: `[U, N, E]`."""
        own, _ = self.inputs(self.normaliser.normalise_rows(rows.double()))
        encoded: Tensor = own[..., -self.width :]
        return encoded


def _round_up(width: int, block: int = 4) -> int:
    """Round up to whole blocks; those of `simd.map_columns` have four rows."""
    return -(-width // block) * block


def _pad(matrix: Tensor, rows: int, columns: int) -> Tensor:
    padded = torch.zeros(rows, columns)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix.detach()
    return padded
