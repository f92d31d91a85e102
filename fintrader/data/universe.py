"""Which symbols a market holds, chosen from what was known when training ended."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from fintrader.config import Settings
from fintrader.data.bars import Array, Bars
from fintrader.errors import DataError


class UniverseSettings(Settings):
    """Filters are computed on the training window only: to choose by later data would be to look ahead."""

    symbols: tuple[str, ...] = ()
    """Exactly these (all that the source has, when empty)."""
    min_coverage: float = Field(0.0, ge=0, le=1)
    """Keep symbols that traded in at least this share of the training window's bars."""
    max_symbols: int | None = Field(None, ge=1)
    """Keep so many symbols at most: those with the highest turnover in the training window."""


def choose(settings: UniverseSettings, merged: Bars, train: tuple[int, int]) -> tuple[list[int], dict[str, str]]:
    """Codes of the chosen symbols (sorted by name), and why each other one was left out.

    merged: sorted bars whose `ts` is the number of the grid's bar; train: the training window.
    Raises DataError when an explicit symbol has no bars, or nothing is left.
    """
    present = set(np.unique(merged.symbol).tolist())
    names = {name: code for code, name in enumerate(merged.symbols) if code in present}
    missing = [name for name in settings.symbols if name not in names]
    if missing:
        raise DataError(f"no bars of {', '.join(missing)}; remove them from data.universe.symbols or add their bars")
    chosen = sorted(settings.symbols or names)
    left_out: dict[str, str] = {}
    inside = (merged.ts >= train[0]) & (merged.ts < train[1])
    bars = np.bincount(merged.symbol[inside], minlength=len(merged.symbols))
    if settings.min_coverage > 0:
        share = bars / (train[1] - train[0])
        for name in chosen:
            if share[names[name]] < settings.min_coverage:
                left_out[name] = f"traded in {share[names[name]]:.1%} of the training bars"
    if settings.max_symbols is not None:
        turnover = _turnover(merged, inside)
        kept = [name for name in chosen if name not in left_out]
        for name in sorted(kept, key=lambda name: (-turnover[names[name]], name))[settings.max_symbols :]:
            left_out[name] = "turnover in the training window too small"
    kept = [name for name in chosen if name not in left_out]
    if not kept:
        raise DataError(f"no symbol is left of {len(chosen)}; lower data.universe.min_coverage")
    return [names[name] for name in kept], left_out


def _turnover(merged: Bars, inside: Array) -> Array:
    value = merged.close[inside] * merged.volume[inside]
    return np.bincount(merged.symbol[inside], weights=value, minlength=len(merged.symbols))
