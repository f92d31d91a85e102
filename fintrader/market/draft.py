"""A market before its big arrays are laid out: they come in blocks of bars, into a file or into
memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fintrader.bars.bars import PRICES, Array
from fintrader.market.columns import CELLS, ColumnStore
from fintrader.market.market_file import (
    ARRAYS,
    EVENT,
    EVENTS,
    StoredArray,
    header_text,
    refuse_bad_cells,
    write_market,
)
from fintrader.market.scaling import apply_scale, cross_section
from fintrader.results.market_description import MarketDescription

if TYPE_CHECKING:
    from fintrader.market.features import FeatureSettings
    from fintrader.market.tensors import MarketTensors


@dataclass(frozen=True, eq=False)
class Scaling:
    """Scaling of the features."""

    settings: FeatureSettings
    relative: int
    """Number of the first features that are made relative to the members."""
    scaled: Array
    """`[F]` bool: the features that are standardised; `mean` and `spread` `[F]` are 0 and 1 of the
    others."""
    mean: Array
    spread: Array

    def apply(self, block: Array, member: Array) -> None:
        """Put `[B, N, F]` on the scale, in place."""
        how = self.settings.cross_sectional
        clip = self.settings.clip
        if how != "none":
            cross_section(block, member, range(self.relative), how, clip)
        apply_scale(block, self.mean, self.spread, self.scaled, clip)


@dataclass(frozen=True, eq=False)
class Draft:
    """A market before it is laid out; `columns` hold its symbols."""

    description: MarketDescription
    whole: Mapping[str, Array]
    """The arrays common to all symbols (context, session, minutes, benchmark)."""
    events: list[tuple[int, int, float, float]]
    """Bar, asset, split and dividend, in order."""
    columns: ColumnStore
    days: Array
    """`[S, N]` bool: members of each day."""
    shares: Array | None
    """`[S, N]` float32: shares outstanding, None without a file of them."""
    scaling: Scaling

    def write(self, path: Path) -> str:
        """Write the market file, atomically; returns its content hash. Raises MarketError."""
        values = list(zip(*self.events, strict=True)) or [()] * len(EVENTS)
        events = {
            EVENT + name: np.array(column, dtype=kind)
            for column, (name, kind) in zip(values, EVENTS.items(), strict=True)
        }
        bars = len(self.columns)
        assets = len(self.columns.slots)
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
            (*PRICES, "volume", "tradable", "member"), (bars, assets)
        )
        shapes["features"] = bars, assets, self.columns.features
        if self.shares is not None:
            shapes["shares_outstanding"] = bars, assets
        shapes |= {name: one.shape for name, one in (*self.whole.items(), *events.items())}
        kinds = {**ARRAYS, **{EVENT + name: kind for name, kind in EVENTS.items()}}
        entries = [
            StoredArray(name, kind, shapes[name]) for name, kind in kinds.items() if name in shapes
        ]
        return write_market(
            path, header_text(self.description), entries, {**self.whole, **events}, self.blocks()
        )

    def tensors(self) -> MarketTensors:
        """Lay the market out in memory. Raises MarketError."""
        import torch  # a market that goes into a file needs none

        from fintrader.market.tensors import Events, MarketTensors

        bars = len(self.columns)
        arrays: dict[str, Array] = dict(self.whole)
        for first, rows in self.blocks():
            for name, values in rows.items():
                if name not in arrays:
                    arrays[name] = np.empty((bars, *values.shape[1:]), dtype=values.dtype)
                arrays[name][first : first + len(values)] = values
        tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
        return MarketTensors.of(self.description, tensors, Events.of(self.events))

    def blocks(self) -> Iterator[tuple[int, dict[str, Array]]]:
        """The arrays `[T, N]` and `[T, N, F]` in blocks of bars: the first bar and, by name, the
        rows from there on.

        Call it once: blocks are freed after they are yielded.
        """
        columns = self.columns
        session = self.whole["session"]
        size = self.columns.block()
        for first in range(0, len(columns), size):
            stop = min(first + size, len(columns))
            today = session[first:stop]
            rows = {name: columns.rows(name, first, stop) for name in CELLS}
            rows["member"] = self.days[today]
            self.scaling.apply(rows["features"], rows["member"])
            refuse_bad_cells(rows)
            if self.shares is not None:
                rows["shares_outstanding"] = self.shares[today]
            yield first, rows
            columns.forget(stop)
