"""Policies on other symbols than those they were trained on, and what has to hold for that.

What `market_once` and `per_asset` learn is one function for every asset, so their weights hold no
N. What does belong to a market is the standardisation of its rows, x = (raw - m) / s with the
statistics of its own training window. Of the other market's rows x' the policy must see (raw - m) /
s, too, which is a x' + b with a = s' / s and b = (m' - m) / s. Both are numbers of a column, shared
by its assets; so are the policy's own statistics, into which they are folded. A policy that travels
therefore costs and is stored like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fintrader.agents.normalisation import EPSILON
from fintrader.envs.observation import (
    FlatLayout,
    Layout,
    ObservationLayout,
    layout_from_json,
    layout_to_json,
    statistic_groups,
)
from fintrader.errors import CheckpointError

Identity = Mapping[str, Any]
"""What `policy.market_identity` says of a market."""
CONSTANT = 1e-12
"""A column whose variance in training is no larger did not vary there."""
SILENT = 1e30
"""As a variance: the column says nothing."""
_COLUMNS = {"features": "feature_names", "context": "context_names"}


def travel(
    description: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    here: Identity,
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
    """A stored policy's description, tensors and meta, as those of one for the market `here`.

    Raises CheckpointError where it cannot be done: see `check_travels`.
    """
    trained = meta.get("market")
    if trained is None:
        raise CheckpointError(
            "its file does not say on which market it was trained, so it cannot be brought to"
            " another one; store it with save_policy(..., market=market)"
        )
    moved = dict(tensors)
    description = _for_market(description, moved, trained, here, "")
    origin = meta.get("travels", {}).get("trained_on", trained["symbols"])
    travels = {"trained_on": list(origin), "traded_on": list(here["symbols"])}
    return description, moved, {**meta, "market": dict(here), "travels": travels}


def _for_market(
    description: Mapping[str, Any],
    tensors: dict[str, Tensor],
    trained: Identity,
    here: Identity,
    prefix: str,
) -> dict[str, Any]:
    """The description of one policy, and of an ensemble all of its members'; their statistics are
    moved in place."""
    if description["kind"] == "ensemble":
        members = [
            _for_market(member, tensors, trained, here, f"{prefix}members.{number}.")
            for number, member in enumerate(description["members"])
        ]
        return {**description, "members": members}
    layout = check_travels(
        layout_from_json(description["layout"]), description["network"]["kind"], trained, here
    )
    mean = f"{prefix}normaliser.mean"
    var = f"{prefix}normaliser.var"
    tensors[mean], tensors[var] = moved_statistics(
        tensors[mean], tensors[var], layout, trained, here
    )
    return {
        **description,
        "layout": layout_to_json(replace(layout, num_assets=len(here["symbols"]))),
    }


def check_travels(
    layout: Layout, kind: str, trained: Identity, here: Identity
) -> ObservationLayout:
    """The layout of a policy trained on the market `trained`, if it can trade the market `here`;
    `kind` is its network.

    Raises CheckpointError for a classic environment, a network that knows its symbols by their
    places (`mlp`), other columns or bars, and rows of which it is not known how they were
    standardised, or that are by other rules.
    """
    if isinstance(layout, FlatLayout):
        raise CheckpointError(
            "this policy was trained in a classic environment, which has no symbols to exchange"
        )
    if kind == "mlp" and trained["symbols"] != here["symbols"]:
        raise CheckpointError(
            "this policy's network (mlp) knows its symbols by their places in the row, so it cannot"
            " trade others; train with agent.network.kind market_once or per_asset"
        )
    for name in (*_COLUMNS.values(), "bar_minutes"):
        if trained[name] != here[name]:
            raise CheckpointError(
                f"this policy cannot trade this market: its {name.replace('_', ' ')} are"
                f" {_short(trained[name])} there and {_short(here[name])} here; build the market"
                " with the same data.features and data.bar_minutes"
            )
    there = trained.get("normalisation")
    own = here["normalisation"]
    if there is None or own is None:
        whose = "the policy's market" if there is None else "this market"
        raise CheckpointError(
            f"{whose} does not say how its rows were standardised (meta['normalisation']), so the"
            " policy cannot be given rows standardised as its own; build it with load_market"
        )
    for name in sorted({*there, *own} - set(_COLUMNS)):
        if there.get(name) != own.get(name):
            raise CheckpointError(
                "this policy cannot trade this market: rows were standardised by another rule"
                f" ({name}: {_short(there.get(name))} there, {_short(own.get(name))} here); build"
                " the market with the same data.features"
            )
    return layout


def moved_statistics(
    mean: Tensor, var: Tensor, layout: ObservationLayout, trained: Identity, here: Identity
) -> tuple[Tensor, Tensor]:
    """Statistics `[G]` of the columns of `layout`, so that rows of the market `here` are seen as
    those of `trained`.

    A weight, held or the benchmark's, counts as a multiple of an equal share, 1/N. A column of the
    market that did not vary in training says nothing: the weights that read it were never learned.
    """
    groups = statistic_groups(layout)
    parts = layout.slices
    factor = torch.ones_like(mean)
    offset = torch.zeros_like(mean)
    for part, names in _COLUMNS.items():
        for name, group in zip(trained[names], groups[parts[part]].tolist(), strict=False):
            there, own = (market["normalisation"][part][name] for market in (trained, here))
            factor[group] = own["std"] / there["std"]
            offset[group] = (own["mean"] - there["mean"]) / there["std"]
    for part in {"holdings", "benchmark"} & set(parts):
        factor[groups[parts[part]][0]] = len(here["symbols"]) / layout.num_assets
    of_market = torch.zeros_like(mean, dtype=torch.bool)
    of_market[groups[layout.private_width :]] = True
    silent = of_market & (var <= CONSTANT)
    # (a x + b - mean) / sqrt(var + eps), with the factor taken out of the root
    moved_mean = (mean - offset) / factor
    moved_var = (var + EPSILON) / factor**2 - EPSILON
    return torch.where(silent, 0.0, moved_mean), torch.where(silent, SILENT, moved_var)


def _short(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
