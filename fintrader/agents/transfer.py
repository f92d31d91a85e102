"""Transfer of a policy to other symbols than those it was trained on, and its preconditions.

`market_once` and `per_asset` learn one function for all assets, so no weight depends on N. Only
the standardisation of rows belongs to a market: x = (raw - m) / s with the statistics of its own
training window. The other market's rows x' = (raw - m') / s' must reach the policy as
(raw - m) / s = a x' + b with a = s' / s and b = (m' - m) / s. All assets share the a and b of a
column, as they share the policy's own statistics, so a and b are folded into these. A transferred
policy therefore runs and is stored like any other.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fintrader.agents.checkpoint import Json
from fintrader.agents.description import MarketIdentity, PolicyDescription
from fintrader.agents.normalisation import EPSILON
from fintrader.envs.observation import (
    FlatLayout,
    Layout,
    ObservationLayout,
    StateDict,
    Tensors,
    layout_from_json,
    layout_to_json,
    statistic_groups,
)
from fintrader.errors import CheckpointError
from fintrader.yaml_text import shorten

CONSTANT_VARIANCE = 1e-12
"""Largest training variance of a column that counts as constant."""
SILENT_VARIANCE = 1e30
"""Variance so large that every value of a column is standardised to 0."""
_COLUMNS = {"features": "feature_names", "context": "context_names"}


def transfer(
    description: PolicyDescription,
    tensors: Tensors,
    meta: Json,
    here: MarketIdentity,
) -> tuple[PolicyDescription, StateDict, Json]:
    """Rewrite a stored policy's description, tensors and meta as those of a policy for the market
    `here`.

    Raises CheckpointError where that is impossible: see `check_transfer`.
    """
    if meta.get("market") is None:
        raise CheckpointError(
            "the file does not name the market that it was trained on, so the policy cannot move to"
            " another one; store it with save_policy(..., market=market)"
        )
    trained = MarketIdentity.from_json(meta["market"])
    moved = dict(tensors)
    description = _transfer_description(description, moved, trained, here, "")
    origin = meta.get("transfer", {}).get("trained_on", trained.symbols)
    symbols = {"trained_on": list(origin), "traded_on": list(here.symbols)}
    return description, moved, {**meta, "market": here.to_json(), "transfer": symbols}


def _transfer_description(
    description: PolicyDescription,
    tensors: StateDict,
    trained: MarketIdentity,
    here: MarketIdentity,
    prefix: str,
) -> PolicyDescription:
    """Rewrite the description of a policy, or of an ensemble with all its members; the statistics
    below `prefix` in `tensors` are replaced."""
    if description["kind"] == "ensemble":
        members = [
            _transfer_description(member, tensors, trained, here, f"{prefix}members.{number}.")
            for number, member in enumerate(description["members"])
        ]
        return {**description, "members": members}
    layout = check_transfer(
        layout_from_json(description["layout"]), description["network"]["kind"], trained, here
    )
    mean = f"{prefix}normaliser.mean"
    var = f"{prefix}normaliser.var"
    tensors[mean], tensors[var] = move_statistics(
        tensors[mean], tensors[var], layout, trained, here
    )
    layout = replace(layout, num_assets=len(here.symbols))
    return {**description, "layout": layout_to_json(layout)}


def check_transfer(
    layout: Layout, kind: str, trained: MarketIdentity, here: MarketIdentity
) -> ObservationLayout:
    """Check that a policy trained on the market `trained` can trade the market `here`, and return
    its layout; `kind` is its network.

    Raises CheckpointError for a classic environment, a network that knows its symbols by their
    places (`mlp`), other columns or bars, and rows that were standardised by unknown statistics or
    by other rules.
    """
    if isinstance(layout, FlatLayout):
        raise CheckpointError(
            "this policy was trained in a classic environment, which has no symbols to exchange"
        )
    if kind == "mlp" and trained.symbols != here.symbols:
        raise CheckpointError(
            "this policy's network (mlp) knows its symbols by their places in the row, so it cannot"
            " trade others; train with agent.network.kind market_once or per_asset"
        )
    for name in (*_COLUMNS.values(), "bar_minutes"):
        there = getattr(trained, name)
        own = getattr(here, name)
        if there != own:
            raise CheckpointError(
                f"this policy cannot trade this market: {name.replace('_', ' ')} were"
                f" {_truncate(there)} in training and are {_truncate(own)} here;"
                " build the market with the same data.features and data.bar_minutes"
            )
    there = trained.normalisation
    own = here.normalisation
    if there is None or own is None:
        owner = "the policy's market" if there is None else "this market"
        raise CheckpointError(
            f"{owner} does not say how its rows were standardised (normalisation), so rows"
            " cannot be converted between the two; build it with load_market"
        )
    for name in sorted({*there, *own} - set(_COLUMNS)):
        if there.get(name) != own.get(name):
            raise CheckpointError(
                "this policy cannot trade this market: rows were standardised by another rule"
                f" ({name}: {_truncate(there.get(name))}, here {_truncate(own.get(name))});"
                " build the market with the same data.features"
            )
    return layout


def move_statistics(
    mean: Tensor,
    var: Tensor,
    layout: ObservationLayout,
    trained: MarketIdentity,
    here: MarketIdentity,
) -> tuple[Tensor, Tensor]:
    """Change the statistics `[G]` of the columns of `layout` so that rows of the market `here` look
    like rows of `trained`.

    A weight, held or the benchmark's, counts as a multiple of an equal share, 1/N. A column of the
    market that did not vary in training is silenced: the weights that read it were never learned.
    """
    scales = trained.normalisation
    scales_here = here.normalisation
    assert scales is not None, "see check_transfer"
    assert scales_here is not None, "see check_transfer"
    groups = statistic_groups(layout)
    parts = layout.slices
    factor = torch.ones_like(mean)
    offset = torch.zeros_like(mean)
    for part, names in _COLUMNS.items():
        columns = zip(getattr(trained, names), groups[parts[part]].tolist(), strict=False)
        for name, group in columns:
            there = scales[part][name]
            own = scales_here[part][name]
            factor[group] = own["std"] / there["std"]
            offset[group] = (own["mean"] - there["mean"]) / there["std"]
    for part in {"holdings", "benchmark"} & set(parts):
        factor[groups[parts[part]][0]] = len(here.symbols) / layout.num_assets
    of_market = torch.zeros_like(mean, dtype=torch.bool)
    of_market[groups[layout.private_width :]] = True
    silent = of_market & (var <= CONSTANT_VARIANCE)
    # (a x + b - mean) / sqrt(var + eps), with the factor taken out of the root
    moved_mean = (mean - offset) / factor
    moved_var = (var + EPSILON) / factor**2 - EPSILON
    return torch.where(silent, 0.0, moved_mean), torch.where(silent, SILENT_VARIANCE, moved_var)


def _truncate(value: object) -> str:
    return shorten(", ".join(map(str, value)) if isinstance(value, list) else str(value))
