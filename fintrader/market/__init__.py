"""Bars to `MarketTensors`: sources, cleaning, the exchange's grid, features, windows.

`planted_optimum` and `oracle_policy` give the best achievable result on a synthetic market.
"""

from typing import TYPE_CHECKING

from fintrader.seams import import_on_use

if TYPE_CHECKING:
    from fintrader.market.planted import oracle_policy, planted_optimum

__all__ = ["oracle_policy", "planted_optimum"]
__getattr__, __dir__ = import_on_use(__name__, dict.fromkeys(__all__, "market.planted"))
