"""Whole units of money and of weight, so that sums are exact in any order.

Every amount is counted in units of 2^-20 USD before amounts are added up: sums up to 8.6 billion
USD are exact, and neither the order of tickers nor the engine that adds them can matter. This bound
also applies to a step's orders before they are scaled to the cash: above it, engines may differ in
the last bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fintrader.envs.settings import EnvSettings

# Powers of two, so that scaling by them never rounds. Float64 is exact up to 2^53 units: 2^33 USD
# of money, and any number of weights, which are at most 1.
USD_GRID = float(1 << 20)
"""Units of money in a USD."""
WEIGHT_GRID = float(1 << 24)
"""Units of weight in a whole account; as fine as a float32 weight near 1."""

LEAST_CHANGE = 2.0**-22
"""A target this close to the holding, as a share of equity, orders nothing: a float32 weight cannot
express less."""
EQUITY_FLOOR = 1e-6
"""Equity of a ruined account in logarithms and weights, as a share of its first equity: keeps its
last reward and observation finite."""
DUST_USD = 0.01
"""Notionals up to a cent are rounding of fractional shares, not orders: they owe no minimum
commission."""
SPLIT_NUDGE = 2.0**-20
"""Fraction of a share added before split holdings are truncated: 3 shares times a ratio such as 1/3
may give slightly less than 1."""


def to_grid(value: Tensor, units: float) -> Tensor:
    """Round to 1/`units`, halves to even; return `value` itself where a gradient is wanted, since
    rounding has none."""
    return value if value.requires_grad else torch.round(value * units) * (1.0 / units)


def in_usd(shares: Tensor, price: Tensor) -> Tensor:
    """Multiply shares by prices: float64 USD in whole units of money."""
    return to_grid(shares * price.double(), USD_GRID)


def round_to_zero(shares: Tensor, settings: EnvSettings) -> Tensor:
    """Round towards zero to whole shares, unless fractions trade."""
    return shares if settings.fractional else torch.trunc(shares)
