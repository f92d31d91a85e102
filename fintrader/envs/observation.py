"""Observations: the layout of the flat observation, and functions that fill it and take it apart.

A market's layout is `ObservationLayout`; a classic environment has a `FlatLayout`. `Bfloat16Box` is
the space of bfloat16 observations, which numpy does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import batch_space
from torch import Tensor

from fintrader.errors import CheckpointError
from fintrader.market.tensors import MarketTensors

ResetReturn: TypeAlias = tuple[Any, dict[str, Any]]
"""Observations and info, as gymnasium's `reset` returns them."""
StepReturn: TypeAlias = tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]
"""Observations, reward, terminated, truncated and info, as gymnasium's `step` returns them."""


StateDict: TypeAlias = dict[str, Tensor]
"""Everything needed to continue, by name."""
Tensors: TypeAlias = Mapping[str, Tensor]
"""Tensors by name, such as a stored `StateDict`."""


class Bfloat16Box(gymnasium.spaces.Box):
    """The unbounded space of bfloat16 tensors of a shape, or of float32 arrays in numpy.

    `dtype` is numpy's and therefore float32; `tensor_dtype` is torch's.
    """

    tensor_dtype = torch.bfloat16

    def __init__(self, shape: tuple[int, ...], seed: Any = None) -> None:
        super().__init__(-np.inf, np.inf, shape, np.float32, seed)

    def contains(self, x: Any) -> bool:
        """Check that `x` is a bfloat16 tensor, or a float32 array, of this shape."""
        if isinstance(x, Tensor):
            return x.dtype == self.tensor_dtype and tuple(x.shape) == self.shape
        return super().contains(x)

    def __repr__(self) -> str:
        return f"Bfloat16Box({self.shape})"


@batch_space.register(Bfloat16Box)
def _batch(space: Bfloat16Box, n: int = 1) -> Bfloat16Box:
    return Bfloat16Box((n, *space.shape), seed=deepcopy(space.np_random))


@dataclass(frozen=True)
class FlatLayout:
    """An environment without assets: `width` observation columns (D) and `num_actions` action
    columns."""

    width: int
    num_actions: int
    row_width: ClassVar[int] = 0
    market_width: ClassVar[int] = 0
    num_assets: ClassVar[int] = 0
    """There is no market."""

    @property
    def private_width(self) -> int:
        """D: all columns are an account's own."""
        return self.width


Layout: TypeAlias = "ObservationLayout | FlatLayout"


class Columns(NamedTuple):
    """Rows of the market `[U, L*W]` taken apart."""

    history: Tensor
    """`[U, L - 1, W]`: the rows of earlier bars, oldest first."""
    features: Tensor
    """`[U, N, F]`"""
    tradable: Tensor
    """`[U, N]`"""
    member: Tensor
    """`[U, N]`, or `[U, 0]` without a benchmark."""
    benchmark: Tensor
    """`[U, N]`: the benchmark's weights, or `[U, 0]`."""
    context: Tensor
    """`[U, M]`"""


def market_widths(layout: ObservationLayout) -> list[int]:
    """List the widths of account, holdings, resting orders, history, features, tradable, member,
    benchmark and context, in the order of the columns."""
    assets = layout.num_assets
    history = (layout.lookback - 1) * layout.row_width
    judged = assets * layout.benchmark
    newest = [assets * layout.num_features, assets, judged, judged, layout.num_context]
    return [layout.account_width, assets, assets * layout.resting, history, *newest]


def split_market(rows: Tensor, layout: ObservationLayout) -> Columns:
    """Take rows `[U, L*W]` apart into named views."""
    history, features, *rest = torch.split(rows, market_widths(layout)[3:], dim=-1)
    features = features.reshape(*rows.shape[:-1], layout.num_assets, layout.num_features)
    history = history.reshape(*rows.shape[:-1], layout.lookback - 1, layout.row_width)
    return Columns(history, features, *rest)


def stack_window(part: Columns) -> Tensor:
    """Stack each asset's features and tradable flag, `[U, N, L, F + 1]`, oldest bar first."""
    assets, features = part.features.shape[-2:]
    past = part.history[..., : assets * features]
    past = past.reshape(*past.shape[:-1], assets, features).transpose(-2, -3)
    traded = part.history[..., assets * features : assets * (features + 1)].transpose(-1, -2)
    now = torch.cat([part.features, part.tradable.unsqueeze(-1)], dim=-1)
    return torch.cat([torch.cat([past, traded.unsqueeze(-1)], dim=-1), now.unsqueeze(-2)], dim=-2)


def select_holdings(obs: Tensor, layout: ObservationLayout) -> Tensor:
    """Select the weights held, `[B, N]`, from a raw observation."""
    start = layout.account_width
    return obs[..., start : start + layout.num_assets]


def select_benchmark(rows: Tensor, layout: ObservationLayout) -> Tensor:
    """Select the benchmark's weights, `[U, N]`, from raw rows of the market."""
    stop = rows.shape[-1] - layout.num_context
    return rows[..., stop - layout.num_assets : stop]


def statistic_groups(layout: Layout) -> Tensor:
    """Number the groups `[D]` int64 of columns that share one mean and deviation: each feature is
    one group for all assets and bars."""
    if isinstance(layout, FlatLayout):
        return torch.arange(layout.width)
    account, assets, *_, context = market_widths(layout)
    features = layout.num_features
    shown = 1 + 2 * layout.benchmark
    own = account + 1 + layout.resting
    row = torch.cat(
        [
            (torch.arange(features) + own).repeat(assets),
            *(torch.full((assets,), own + features + k) for k in range(shown)),
            torch.arange(context) + own + features + shown,
        ]
    )
    each = torch.arange(account, own).repeat_interleave(assets)
    return torch.cat([torch.arange(account), each, row.repeat(layout.lookback)])


def layout_to_json(layout: Layout) -> dict[str, Any]:
    """Return a layout as plain JSON that `layout_from_json` reads."""
    if isinstance(layout, FlatLayout):
        return {"kind": "flat", **asdict(layout)}
    return {"kind": "market", "layout": asdict(layout)}


MOST_COLUMNS = 2**24
"""Largest width of a stored layout. Networks that share weights among assets take memory by the
layout, not by the size of the file."""


def layout_from_json(value: dict[str, Any]) -> Layout:
    """Read a layout. Raises CheckpointError if `value` is not of this version, or wider than any
    market's."""
    try:
        if value["kind"] == "flat":
            layout: Layout = FlatLayout(int(value["width"]), int(value["num_actions"]))
        else:
            names = ObservationLayout.__dataclass_fields__
            stored = {"resting": 0, "short": 1, **value["layout"]}  # older policies lack these
            layout = ObservationLayout(**{name: int(stored[name]) for name in names})
        columns = layout.width + layout.num_actions
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the stored observation layout cannot be read ({error}); train again"
        ) from None
    if columns > MOST_COLUMNS:
        raise CheckpointError(
            f"the stored observation layout has {columns:,} columns, too many: train again"
        )
    return layout


ACCOUNT_FEATURES = ("cash_weight", "growth", "drawdown", "time_left")
"""cash / equity; equity / first equity - 1; equity / peak - 1; share of the episode still ahead.
Where an option is sold there is a fifth: price / strike - 1, in standard deviations of its whole
life, and 0 after its expiry."""
PARTS = (
    *("account", "holdings", "resting", "history", "features"),
    *("tradable", "member", "benchmark", "context"),
)
"""Parts of a flat observation, in order."""


@dataclass(frozen=True)
class ObservationLayout:
    """The places of all parts in a flat observation of width D."""

    num_assets: int
    """N"""
    num_features: int
    """F"""
    num_context: int
    """M"""
    account_width: int = len(ACCOUNT_FEATURES)
    """A"""
    lookback: int = 1
    """L: bars shown, the newest included."""
    benchmark: int = 0
    """1 if observations contain membership and the benchmark portfolio's weights, else 0."""
    resting: int = 0
    """R: columns of each asset's orders that rest. For each order its unfilled part as a share of
    equity, its price / close - 1, and its age / its time; for a stop its price / close - 1."""
    short: int = field(default=1, compare=False)
    """0 where weights are never negative (`env.short`)."""

    @classmethod
    def of(
        cls, market: MarketTensors, lookback: int = 1, *, benchmark: bool = False
    ) -> ObservationLayout:
        """Lay out observations of `market`."""
        sizes = (market.num_assets, market.num_features, market.num_context)
        return cls(*sizes, lookback=lookback, benchmark=int(benchmark))

    @property
    def num_actions(self) -> int:
        """Width of the environment's action: N, or 2 N where orders rest, 3 N with stops."""
        return self.num_assets * (1 + bool(self.resting) + self.has_stops)

    @property
    def has_quotes(self) -> bool:
        """True where a bid and an ask may rest in an asset."""
        return self.resting > 4

    @property
    def has_stops(self) -> bool:
        """True where positions may have a stop."""
        return self.resting % 3 == 1

    @property
    def width(self) -> int:
        """D."""
        return self.private_width + self.market_width

    @property
    def private_width(self) -> int:
        """P: columns that differ between accounts at the same bar, A + (1 + R) N."""
        return self.account_width + self.num_assets * (1 + self.resting)

    @property
    def row_width(self) -> int:
        """W = N*F + N + M, or N*F + 3*N + M with a benchmark: columns of the market at one bar."""
        return self.num_assets * (self.num_features + 1 + 2 * self.benchmark) + self.num_context

    @property
    def market_width(self) -> int:
        """L*W: columns that all accounts at the same bar share."""
        return self.lookback * self.row_width

    @property
    def slices(self) -> dict[str, slice]:
        """Columns of each part, in order; `resting`, `history`, `member` and `benchmark` are left
        out if they are absent."""
        absent = {"history"} if self.lookback == 1 else set()
        if not self.resting:
            absent |= {"resting"}
        if not self.benchmark:
            absent |= {"member", "benchmark"}
        slices = {}
        start = 0
        for name, width in zip(PARTS, market_widths(self), strict=True):
            if name not in absent:
                slices[name] = slice(start, start + width)
            start += width
        return slices

    def split(self, obs: Tensor) -> dict[str, Tensor]:
        """Take `obs` `[..., D]` apart into views: account `[..., A]`, holdings `[..., N]`, features
        `[..., N, F]`, tradable `[..., N]`, context `[..., M]`; with a lookback also history
        `[..., L - 1, W]`, oldest bar first; with a benchmark also member and benchmark
        `[..., N]`; where orders rest also resting `[..., R, N]`."""
        parts = split_market(obs[..., self.private_width :], self)._asdict()
        resting = obs[..., self.account_width + self.num_assets : self.private_width]
        parts |= {
            "account": obs[..., : self.account_width],
            "holdings": select_holdings(obs, self),
            "resting": resting.reshape(*obs.shape[:-1], self.resting, self.num_assets),
        }
        return {name: parts[name] for name in self.slices}

    def assemble(self, private: Tensor, rows: Tensor) -> Tensor:
        """Join a private part `[..., P]` and market rows `[..., L*W]` to the flat observation
        `[..., D]`."""
        return torch.cat((private, rows), dim=-1)


def observation_space(
    layout: ObservationLayout, dtype: torch.dtype, clocks: int
) -> gymnasium.Space[Any]:
    """Make the space of one account's observations: flat, or factored with clocks below `clocks`,
    if that is not 0."""

    def box(width: int) -> gymnasium.spaces.Box[Any]:
        if dtype == torch.bfloat16:
            return Bfloat16Box((width,))
        return gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)

    if not clocks:
        return box(layout.width)
    clock = gymnasium.spaces.Box(0, clocks - 1, (), np.int64)
    return gymnasium.spaces.Dict({"private": box(layout.private_width), "clock": clock})


class MarketTable:
    """The market's part of all observations, `[T, L*W]`: rows are assembled only when they are
    read, so that the features, the largest part of a market, are not copied.

    Row t shows bars t - L + 1 to t; bars before the first repeat it. With several pieces of a
    market, `first` `[T]` is the first bar of each bar's piece.
    """

    def __init__(
        self,
        parts: Sequence[Tensor],
        dtype: torch.dtype = torch.float32,
        lookback: int = 1,
        first: Tensor | None = None,
    ) -> None:
        """`parts`: features, tradable, (member, benchmark,) context, `[T, ...]` each."""
        self.parts = [part.flatten(1) for part in parts]
        self.dtype = dtype
        self.lookback = lookback
        self.first = first

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, bars: Tensor) -> Tensor:
        """Lay out the rows `[U, L*W]` of the bars with these numbers `[U]`."""
        if self.lookback == 1:
            return self.show_bars(bars)
        back = torch.arange(self.lookback - 1, -1, -1, device=bars.device)
        shown = bars.unsqueeze(1) - back
        first = 0 if self.first is None else self.first[bars].unsqueeze(1)
        return self.show_bars(shown.clamp(min=first).flatten()).view(len(bars), -1)

    def show_bars(self, bars: Tensor) -> Tensor:
        """Lay out the newest bar alone of the rows with these numbers, `[U, W]`."""
        return torch.cat([part.index_select(0, bars).to(self.dtype) for part in self.parts], dim=1)

    @cached_property
    def whole(self) -> Tensor:
        """All rows; do not write to them. With a lookback, rows of one piece overlap in memory, so
        that each bar is stored once."""
        if self.lookback > 1 and self.first is not None:
            return self[torch.arange(len(self), device=self.first.device)]
        rows = torch.cat([part.to(self.dtype) for part in self.parts], dim=1)
        if self.lookback == 1:
            return rows
        bars, width = rows.shape
        padded = torch.cat((rows[:1].expand(self.lookback - 1, width), rows))
        return padded.as_strided((bars, self.lookback * width), (width, 1))


def session_clock(session: Tensor, clock: Literal["episode", "session", "none"]) -> Tensor:
    """Compute `time_left` at each bar's close, `[T]` float64: the share of the session's bars still
    ahead, 0 for `none`, and -1 if the episode decides."""
    none = torch.zeros(len(session), dtype=torch.float64, device=session.device)
    if clock != "session":
        return none if clock == "none" else none - 1.0
    number = torch.unique_consecutive(session, return_inverse=True)[1]
    length = torch.bincount(number)
    first = length.cumsum(0) - length
    inside = torch.arange(len(session), device=session.device) - first[number]
    return (length[number] - 1 - inside).double() / length[number]
