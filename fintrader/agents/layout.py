"""What an agent must know about an observation: which columns belong to which asset.

A market's layout is `fintrader.envs.observation.ObservationLayout`; a classic environment has a `FlatLayout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fintrader.errors import CheckpointError

if TYPE_CHECKING:
    from fintrader.envs.observation import ObservationLayout


@dataclass(frozen=True)
class FlatLayout:
    """An environment without assets: `width` observation columns (D) and `num_actions` action columns."""

    width: int
    num_actions: int


Layout: TypeAlias = "ObservationLayout | FlatLayout"


class Columns(NamedTuple):
    """A market observation `[B, D]` taken apart."""

    account: Tensor
    """`[B, A]`"""
    holdings: Tensor
    """`[B, N]` current portfolio weights (raw observations) or their standardised values."""
    history: Tensor
    """`[B, L - 1, W]`: the market's rows of the bars before, oldest first."""
    features: Tensor
    """`[B, N, F]`"""
    tradable: Tensor
    """`[B, N]`"""
    context: Tensor
    """`[B, M]`"""


def is_market(layout: Layout) -> bool:
    """True for an `ObservationLayout`."""
    return not isinstance(layout, FlatLayout)


def num_actions(layout: Layout) -> int:
    """N: width of the environment's action."""
    return layout.num_actions if isinstance(layout, FlatLayout) else layout.num_assets


def market_widths(layout: ObservationLayout) -> list[int]:
    """Widths of account, holdings, history, features, tradable and context, in the order in which they lie."""
    assets, features, context = layout.num_assets, layout.num_features, layout.num_context
    history = (layout.lookback - 1) * layout.row_width
    return [layout.account_width, assets, history, assets * features, assets, context]


def split_columns(obs: Tensor, layout: ObservationLayout) -> Columns:
    """`obs [B, D]` as named views."""
    account, holdings, history, features, tradable, context = torch.split(obs, market_widths(layout), dim=-1)
    features = features.reshape(*obs.shape[:-1], layout.num_assets, -1)
    history = history.reshape(*obs.shape[:-1], layout.lookback - 1, layout.row_width)
    return Columns(account, holdings, history, features, tradable, context)


def window_of(part: Columns) -> Tensor:
    """`[B, N, L, F + 1]`: each asset's features and whether it trades, oldest bar first, the newest last."""
    assets, features = part.features.shape[-2:]
    past = part.history[..., : assets * features]
    past = past.reshape(*past.shape[:-1], assets, features).transpose(-2, -3)
    traded = part.history[..., assets * features : assets * (features + 1)].transpose(-1, -2)
    now = torch.cat([part.features, part.tradable.unsqueeze(-1)], dim=-1)
    return torch.cat([torch.cat([past, traded.unsqueeze(-1)], dim=-1), now.unsqueeze(-2)], dim=-2)


def holdings_of(obs: Tensor, layout: ObservationLayout) -> Tensor:
    """`[B, N]`: the portfolio weights held, from a raw observation."""
    start = market_widths(layout)[0]
    return obs[..., start : start + layout.num_assets]


def statistic_groups(layout: Layout) -> Tensor:
    """`[D]` int64: which columns share one mean and deviation. Assets and bars share theirs, feature by feature."""
    if isinstance(layout, FlatLayout):
        return torch.arange(layout.width)
    account, assets, *_, context = market_widths(layout)
    features = layout.num_features
    row = torch.cat(
        [
            (torch.arange(features) + account + 1).repeat(assets),
            torch.full((assets,), account + 1 + features),
            torch.arange(context) + account + 2 + features,
        ]
    )
    return torch.cat([torch.arange(account), torch.full((assets,), account), row.repeat(layout.lookback)])


def layout_to_json(layout: Layout) -> dict[str, Any]:
    """Plain JSON that `layout_from_json` reads."""
    if isinstance(layout, FlatLayout):
        return {"kind": "flat", "width": layout.width, "num_actions": layout.num_actions}
    return {"kind": "market", "layout": layout.to_json()}


def layout_from_json(value: dict[str, Any]) -> Layout:
    """Raises CheckpointError when `value` is no layout of this version."""
    try:
        if value["kind"] == "flat":
            return FlatLayout(int(value["width"]), int(value["num_actions"]))
        from fintrader.envs.observation import ObservationLayout

        return ObservationLayout.from_json(value["layout"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the stored observation layout cannot be read ({error}); train again") from None
