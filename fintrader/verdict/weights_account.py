"""`WeightedAccount`: the account of a strategy given as weights, marked at given prices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fintrader.errors import ReturnsError
from fintrader.metrics import Array
from fintrader.progress import shorten_list

CAPITAL_USD = 1_000_000.0
MOST_LEVERAGE = 20.0
"""Largest sum of absolute weights; a larger sum means that the weights are in per cent."""
GONE_AFTER = 20
"""Dates in a row without a price after which a symbol is traded at its last one, as if delisted."""


@dataclass(frozen=True, eq=False)
class WeightedAccount:
    """An account of N symbols at T dates."""

    symbols: tuple[str, ...]
    dates: NDArray[np.datetime64]
    """`[T]`, days."""
    shares: Array
    """`[T, N]` held after the trades at each date's price."""
    prices: Array
    """`[T, N]` USD; 0 where there is none."""
    equity: Array
    """`[T]` USD after costs; nothing is traded at the first date."""
    costs_usd: Array
    """`[T]`."""

    @property
    def changes(self) -> Array:
        """`[T, N]`: shares bought, or sold (< 0)."""
        return np.diff(self.shares, axis=0, prepend=0.0)


def hold_weights(weights: pd.DataFrame, prices: pd.DataFrame, cost_bps: float) -> WeightedAccount:
    """Trade target weights at prices; both have one column per symbol and one row per date.

    The weights of a day are known at its close and traded at the price of the next date, but never
    of the first, at `cost_bps` of turnover. A symbol without a price at that date is marked at its
    last one and traded at its next, or at its last after `GONE_AFTER` dates. Until then its
    position counts, and the absolute weights of all exceed neither their targets' sum, nor what is
    held, nor 1. Between dates positions drift, and cash earns nothing. An account without equity is
    closed. Raises ReturnsError for a symbol without prices, a weight before its first price, dates
    with several prices or too few, and weights in per cent.
    """
    absent = [str(symbol) for symbol in weights if symbol not in prices]
    if absent:
        raise ReturnsError(f"there are no prices of {shorten_list(absent)}; add columns for them")
    if not (weights.abs().sum(axis=1) <= MOST_LEVERAGE).all():
        raise ReturnsError(
            f"absolute weights of a date sum to more than {MOST_LEVERAGE:g}; write 0.5 for 50 % of"
            " the equity"
        )
    symbols = [*weights]
    days = pd.DatetimeIndex(prices.index).normalize()
    known = pd.DatetimeIndex(weights.index).normalize()
    first = max(days.searchsorted(known[0], side="right") - 1, 0)
    days = days[first:]
    if days.has_duplicates:
        raise ReturnsError(
            f"prices have several rows on {days[days.duplicated()][0]:%Y-%m-%d}; keep one, such as"
            " the close"
        )
    every = prices[symbols].astype(np.float64)
    if len(days) < 3:
        raise ReturnsError(
            "prices need at least three dates from the first weights on; add later ones"
        )
    marks = every.ffill().iloc[first:].to_numpy()
    is_gone = every.isna().rolling(GONE_AFTER).sum() == GONE_AFTER
    is_priced = (every.notna() | is_gone).iloc[first:].to_numpy()
    due = np.maximum(days.searchsorted(known, side="right"), 1).tolist()
    orders = dict(zip(due, weights.fillna(0.0).to_numpy(np.float64), strict=True))
    size = len(days)
    shares = np.zeros((size, len(symbols)))
    equity = np.zeros(size)
    equity[0] = CAPITAL_USD
    costs = np.zeros(size)
    waiting = np.full(len(symbols), np.nan)  # target weights that are not traded yet
    for row in range(1, size):
        held = shares[row - 1]
        gain = np.where(held != 0, held * (marks[row] - marks[row - 1]), 0.0).sum()
        equity[row] = max(equity[row - 1] + gain, 0.0)
        if not equity[row]:
            break
        shares[row] = held
        waiting = orders.get(row, waiting)
        unknown = (np.nan_to_num(waiting) != 0) & ~(marks[row] > 0)
        if unknown.any():
            symbol = symbols[int(unknown.argmax())]
            raise ReturnsError(f"{symbol} has a weight, but no price by {days[row]:%Y-%m-%d}")
        is_asked = ~np.isnan(waiting)
        is_due = is_priced[row] & is_asked
        worth = np.abs(np.where(held != 0, held * marks[row], 0.0)) / equity[row]
        locked = worth[is_asked & ~is_due].sum()
        target = np.where(is_due, waiting, 0.0)
        room = max(np.nansum(np.abs(waiting)), worth.sum(), 1.0) - locked
        share = np.clip(room / max(np.abs(target).sum(), 1e-12), 0.0, 1.0)
        target *= share
        goal = np.where(target != 0, target * equity[row] / np.where(target, marks[row], 1.0), 0.0)
        traded = np.abs(np.where(is_due & (goal != held), (goal - held) * marks[row], 0.0)).sum()
        costs[row] = min(cost_bps / 1e4 * traded, equity[row])
        # Costs reduce all traded positions in proportion.
        shares[row] = np.where(is_due, goal * (1 - costs[row] / equity[row]), held)
        equity[row] -= costs[row]
        waiting = np.where(is_due & (share == 1), np.nan, waiting)
    dates = days.to_numpy().astype("datetime64[D]")
    return WeightedAccount(
        tuple(map(str, symbols)), dates, shares, np.nan_to_num(marks), equity, costs
    )
