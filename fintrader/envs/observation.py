"""What an account sees: the layout of the flat observation, the functions that fill it, and those
that take it apart.

A market's layout is `ObservationLayout`; a classic environment has a `FlatLayout`. `Bfloat16Box` is
the space of observations in a format that numpy does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import batch_space
from torch import Tensor

from fintrader.errors import CheckpointError
from fintrader.market.tensors import MarketTensors


class Bfloat16Box(gymnasium.spaces.Box):
    """The unbounded space of bfloat16 tensors of a shape, and of the float32 arrays that numpy gets
    in their place.

    numpy has no bfloat16, so `dtype`, which is always one of numpy's, is float32; `tensor_dtype` is
    torch's.
    """

    tensor_dtype = torch.bfloat16

    def __init__(self, shape: tuple[int, ...], seed: Any = None) -> None:
        super().__init__(-np.inf, np.inf, shape, np.float32, seed)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a bfloat16 tensor, or a float32 array, of this shape."""
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


Layout: TypeAlias = "ObservationLayout | FlatLayout"


class Columns(NamedTuple):
    """Rows of the market `[U, L*W]` taken apart."""

    history: Tensor
    """`[U, L - 1, W]`: the rows of the bars before, oldest first."""
    features: Tensor
    """`[U, N, F]`"""
    tradable: Tensor
    """`[U, N]`"""
    member: Tensor
    """`[U, N]`, or `[U, 0]` without a benchmark."""
    benchmark: Tensor
    """`[U, N]`: its weights, or `[U, 0]`."""
    context: Tensor
    """`[U, M]`"""


def num_actions(layout: Layout) -> int:
    """N: width of the environment's action."""
    return layout.num_actions if isinstance(layout, FlatLayout) else layout.num_assets


def market_widths(layout: ObservationLayout) -> list[int]:
    """Widths of account, holdings, history, features, tradable, member, benchmark and context, as
    they lie."""
    assets = layout.num_assets
    features = layout.num_features
    context = layout.num_context
    history = (layout.lookback - 1) * layout.row_width
    judged = assets * layout.benchmark
    return [
        layout.account_width,
        assets,
        history,
        assets * features,
        assets,
        judged,
        judged,
        context,
    ]


def split_market(rows: Tensor, layout: ObservationLayout) -> Columns:
    """`rows [U, L*W]` as named views."""
    history, features, *others = torch.split(rows, market_widths(layout)[2:], dim=-1)
    features = features.reshape(*rows.shape[:-1], layout.num_assets, -1)
    history = history.reshape(*rows.shape[:-1], layout.lookback - 1, layout.row_width)
    return Columns(history, features, *others)


def window_of(part: Columns) -> Tensor:
    """`[U, N, L, F + 1]`: each asset's features and whether it trades, oldest bar first, the newest
    last."""
    assets, features = part.features.shape[-2:]
    past = part.history[..., : assets * features]
    past = past.reshape(*past.shape[:-1], assets, features).transpose(-2, -3)
    traded = part.history[..., assets * features : assets * (features + 1)].transpose(-1, -2)
    now = torch.cat([part.features, part.tradable.unsqueeze(-1)], dim=-1)
    return torch.cat([torch.cat([past, traded.unsqueeze(-1)], dim=-1), now.unsqueeze(-2)], dim=-2)


def holdings_of(obs: Tensor, layout: ObservationLayout) -> Tensor:
    """`[B, N]`: the portfolio weights held, from a raw observation."""
    start = layout.account_width
    return obs[..., start : start + layout.num_assets]


def benchmark_of(rows: Tensor, layout: ObservationLayout) -> Tensor:
    """`[U, N]`: the benchmark's weights, from raw rows of the market."""
    stop = rows.shape[-1] - layout.num_context
    return rows[..., stop - layout.num_assets : stop]


def statistic_groups(layout: Layout) -> Tensor:
    """`[D]` int64: which columns share one mean and deviation. Assets and bars share theirs,
    feature by feature."""
    if isinstance(layout, FlatLayout):
        return torch.arange(layout.width)
    account, assets, *_, context = market_widths(layout)
    features = layout.num_features
    shown = 1 + 2 * layout.benchmark
    row = torch.cat(
        [
            (torch.arange(features) + account + 1).repeat(assets),
            *(torch.full((assets,), account + 1 + features + k) for k in range(shown)),
            torch.arange(context) + account + 1 + features + shown,
        ]
    )
    return torch.cat(
        [torch.arange(account), torch.full((assets,), account), row.repeat(layout.lookback)]
    )


def layout_to_json(layout: Layout) -> dict[str, Any]:
    """Plain JSON that `layout_from_json` reads."""
    if isinstance(layout, FlatLayout):
        return {"kind": "flat", "width": layout.width, "num_actions": layout.num_actions}
    return {"kind": "market", "layout": layout.to_json()}


MOST_COLUMNS = 2**24
"""Of a stored layout. What shares its weights among assets takes memory by the layout alone,
whatever was stored."""


def layout_from_json(value: dict[str, Any]) -> Layout:
    """Raises CheckpointError when `value` is no layout of this version, or wider than any that is
    trained."""
    try:
        if value["kind"] == "flat":
            layout: Layout = FlatLayout(int(value["width"]), int(value["num_actions"]))
        else:
            layout = ObservationLayout.from_json(value["layout"])
        columns = layout.width + num_actions(layout)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the stored observation layout cannot be read ({error}); train again"
        ) from None
    if columns > MOST_COLUMNS:
        raise CheckpointError(
            f"the stored observation layout has {columns:,} columns, which no market here has"
        )
    return layout


ACCOUNT_FEATURES = ("cash_weight", "growth", "drawdown", "time_left")
"""cash / equity; equity / first equity - 1; equity / peak - 1; share of the episode still ahead."""


@dataclass(frozen=True)
class ObservationLayout:
    """Where what stands in a flat observation of width D."""

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
    """1 where it is shown who is a member, and what the benchmark portfolio holds; else 0."""

    @classmethod
    def of(
        cls, market: MarketTensors, lookback: int = 1, *, benchmark: bool = False
    ) -> ObservationLayout:
        """The layout of observations of `market`."""
        sizes = (market.num_assets, market.num_features, market.num_context)
        return cls(*sizes, lookback=lookback, benchmark=int(benchmark))

    @property
    def width(self) -> int:
        """D."""
        return self.private_width + self.market_width

    @property
    def private_width(self) -> int:
        """A + N: what differs between accounts at the same bar."""
        return self.account_width + self.num_assets

    @property
    def row_width(self) -> int:
        """W = N*F + N + M, or N*F + 3*N + M with a benchmark: what one bar shows of the market."""
        return self.num_assets * (self.num_features + 1 + 2 * self.benchmark) + self.num_context

    @property
    def market_width(self) -> int:
        """L*W: what all accounts at the same bar share."""
        return self.lookback * self.row_width

    @property
    def slices(self) -> dict[str, slice]:
        """Part name -> columns, in order; `history`, `member` and `benchmark` only where there are
        any."""
        names = (
            "account",
            "holdings",
            "history",
            "features",
            "tradable",
            "member",
            "benchmark",
            "context",
        )
        absent = {
            "history": self.lookback == 1,
            "member": not self.benchmark,
            "benchmark": not self.benchmark,
        }
        slices = {}
        start = 0
        for name, width in zip(names, market_widths(self), strict=True):
            if not absent.get(name, False):
                slices[name] = slice(start, start + width)
            start += width
        return slices

    def split(self, obs: Tensor) -> dict[str, Tensor]:
        """Views of `obs` `[..., D]`: account `[..., A]`, holdings `[..., N]`, features `[..., N,
        F]`, tradable `[..., N]`, context `[..., M]`; with a lookback also history `[..., L - 1,
        W]`, oldest bar first; with a benchmark also member and benchmark `[..., N]`."""
        parts = {name: obs[..., columns] for name, columns in self.slices.items()}
        shape = (*obs.shape[:-1], self.num_assets, self.num_features)
        parts["features"] = parts["features"].reshape(shape)
        if "history" in parts:
            parts["history"] = parts["history"].reshape(
                *obs.shape[:-1], self.lookback - 1, self.row_width
            )
        return parts

    def assemble(self, private: Tensor, rows: Tensor) -> Tensor:
        """The flat observation `[..., D]` of a private part `[..., A + N]` and its market rows
        `[..., L*W]`."""
        return torch.cat((private, rows), dim=-1)

    def to_json(self) -> dict[str, int]:
        """Plain JSON that `from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ObservationLayout:
        """Raises CheckpointError when `value` is no layout."""
        try:
            return cls(**{name: int(value[name]) for name in cls.__dataclass_fields__})
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"not an observation layout ({error!r}); the file belongs to something else"
            ) from None


def observation_space(
    layout: ObservationLayout, dtype: torch.dtype, clocks: int
) -> gymnasium.Space[Any]:
    """One account's: flat, or factored where there are `clocks`, the numbers of so many bars."""

    def box(width: int) -> gymnasium.spaces.Box[Any]:
        if dtype == torch.bfloat16:
            return Bfloat16Box((width,))
        return gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)

    if not clocks:
        return box(layout.width)
    clock = gymnasium.spaces.Box(0, clocks - 1, (), np.int64)
    return gymnasium.spaces.Dict({"private": box(layout.private_width), "clock": clock})


def market_rows(parts: Sequence[Tensor], dtype: torch.dtype, lookback: int = 1) -> Tensor:
    """`[T, L*W]`: the market's part of every observation, laid out once, from features, tradable,
    (member, benchmark,) context, `[T, ...]` each.

    Row t shows bars t - L + 1 to t; before the first bar, that one is repeated. With a lookback the
    rows overlap in memory: each bar is stored once, whatever L. Do not write to them.
    """
    rows = torch.cat([part.flatten(1).to(dtype) for part in parts], dim=1).contiguous()
    if lookback == 1:
        return rows
    bars, width = rows.shape
    padded = torch.cat((rows[:1].expand(lookback - 1, width), rows)).contiguous()
    return padded.as_strided((bars, lookback * width), (width, 1))


def private_part(
    cash: Tensor,
    shares: Tensor,
    mark: Tensor,
    equity: Tensor,
    peak: Tensor,
    first_equity: Tensor,
    time_left: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """`[B, A + N]`: account features and holdings weights; all arguments `[B]` but shares and mark
    `[B, N]`."""
    # An account at or below zero is over: the guard keeps its last observation finite.
    safe = torch.maximum(equity, 1e-6 * first_equity)
    account = torch.stack(
        (cash / safe, safe / first_equity - 1.0, equity / peak - 1.0, time_left), dim=1
    )
    weights = shares * mark.to(torch.float64) * (1.0 / safe).unsqueeze(1)
    return torch.cat((account.to(dtype), weights.to(dtype)), dim=1)


def session_clock(session: Tensor, clock: Literal["episode", "session", "none"]) -> Tensor:
    """`[T]` float64: what `time_left` shows at each bar's close, -1 where that is for the episode
    to say.

    session `[T]`: of the bars of a session, the share that is to come.
    """
    none = torch.zeros(len(session), dtype=torch.float64, device=session.device)
    if clock != "session":
        return none if clock == "none" else none - 1.0
    number = torch.unique_consecutive(session, return_inverse=True)[1]
    length = torch.bincount(number)
    first = length.cumsum(0) - length
    inside = torch.arange(len(session), device=session.device) - first[number]
    return (length[number] - 1 - inside).to(torch.float64) / length[number]
