"""Marking an account bar by bar in plain Python floats: slow and obvious, for costs in proportion.

Every operation on money is the contract's own, in its order, so that results must agree to the last
bit. It reads the market as accounts do (`MarketView`), and shares no code with `envs.account`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Marked(NamedTuple):
    """An account after the interval's bars."""

    bars: list[int]
    equity: list[float]
    cash: float
    shares: list[float]
    cost: float


def usd(shares: float, price: float) -> float:
    """A product in whole units of money, halves to even."""
    return round(shares * price * 2.0**20) / 2.0**20


def split_slowly(shares: float, ratio: float, fractional: bool) -> float:
    if fractional:
        return shares * ratio
    if ratio == 1.0:
        return shares
    product = shares * ratio
    sign = (product > 0) - (product < 0)
    return float(math.trunc(product + sign * 2.0**-20))


class _Books:
    """One account's cash and shares, and the prices it is marked at."""

    def __init__(self, view: Any, settings: Any, cash: float, shares: list[float]) -> None:
        self.view = view
        self.settings = settings
        self.cash = cash
        self.shares = list(shares)
        self.cost = 0.0
        self.rate = (settings.cost_bps + settings.half_spread_bps) / 1e4

    def mark(self, n: int, bar: int) -> float:
        return float(self.view.mark[bar, n])

    def equity(self, bar: int) -> float:
        return self.cash + sum(usd(s, self.mark(n, bar)) for n, s in enumerate(self.shares))

    def ratios(self, bar: int) -> list[float]:
        ratios: list[float] = self.view.splits[self.view.event_row[bar]].tolist()
        return ratios

    def apply_events(self, bar: int) -> None:
        dividends = self.view.dividends[self.view.event_row[bar]].tolist()
        income = 0.0
        for n, ratio in enumerate(self.ratios(bar)):
            held = self.shares[n]
            self.shares[n] = split_slowly(held, ratio, self.settings.fractional)
            rest = held * ratio - self.shares[n]
            income += usd(held, dividends[n]) + usd(rest, self.mark(n, bar - 1) / ratio)
        self.cash = self.cash + income

    def pay_interest(self, bar: int) -> None:
        before = [self.mark(n, bar - 1) / ratio for n, ratio in enumerate(self.ratios(bar))]
        borrowed = sum(max(-usd(s, before[n]), 0.0) for n, s in enumerate(self.shares))
        borrowed += max(-self.cash, 0.0)
        interest = (
            borrowed * (self.settings.borrow_bps_per_year / 1e4) * float(self.view.years[bar])
        )
        self.cash = self.cash - interest
        self.cost = self.cost + interest

    def close(self, bar: int, symbols: list[int]) -> None:
        values = [usd(self.shares[n], self.mark(n, bar)) for n in symbols]
        cost = self.rate * sum(map(abs, values))
        self.cash = self.cash + (sum(values) - cost)
        self.cost = self.cost + cost
        for n in symbols:
            self.shares[n] = 0.0

    def is_called(self, bar: int) -> bool:
        exposure = sum(abs(usd(s, self.mark(n, bar))) for n, s in enumerate(self.shares))
        return self.equity(bar) < self.settings.maintenance_margin * exposure


def mark_slowly(
    view: Any, settings: Any, span: tuple[int, int], fill_bar: int, cash: float, shares: list[float]
) -> Marked:
    """Pass the bars after `span[0]`, at most up to `span[1]`, one by one."""
    books = _Books(view, settings, cash, shares)
    bar, end = span
    bars = []
    equity = []
    for _ in range(settings.decision_interval):
        if bar < end:
            bar += 1
            if bar > fill_bar:  # events of the fill's bar have come before the fill
                books.apply_events(bar)
            if settings.short and settings.borrow_bps_per_year > 0:
                books.pay_interest(bar)
            books.close(bar, [n for n, last in enumerate(view.last_bar.tolist()) if last == bar])
            if settings.maintenance_margin > 0 and books.is_called(bar):
                books.close(bar, [n for n, p in enumerate(view.fill[bar].tolist()) if p > 0])
        bars.append(bar)
        equity.append(books.equity(bar))
    return Marked(bars, equity, books.cash, books.shares, books.cost)
