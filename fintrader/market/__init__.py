"""Bars to `MarketTensors`: sources, cleaning, the exchange's grid, features, windows.

`planted_optimum` and `oracle_policy` say what the best of all agents would make of a synthetic
market.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fintrader.market.planted import oracle_policy, planted_optimum

__all__ = ["oracle_policy", "planted_optimum"]


def __getattr__(name: str) -> Any:
    """Import on first use: most of the package needs no torch."""
    if name in __all__:
        return getattr(import_module("fintrader.market.planted"), name)
    raise AttributeError(f"module 'fintrader.market' has no attribute {name!r}")
