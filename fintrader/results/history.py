"""`AccountHistory`: the curve, positions, trades and orders of a strategy, from which a backtest's
numbers are computed."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fintrader import metrics as m
from fintrader.metrics import Array
from fintrader.verdict.bootstrap import intervals
from fintrader.verdict.verdict import Interval


class OrderCounts(NamedTuple):
    """Outcomes of a strategy's orders; an order given again at the next bar counts again."""

    given: int = 0
    capped: int = 0
    """Orders for more than their share of the bar's volume."""
    unfilled: int = 0
    """Orders without a fill: no trade in the bar, no volume, or no money."""
    cancelled_usd: float = 0.0
    """Value of the unfilled parts of all orders, at the close of the bar."""
    improved_usd: float = math.nan
    """Value by which fills were better than the last close before their order, without costs; NaN
    where it is unknown."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AccountHistory:
    """History of one strategy over T bars and N assets."""

    minutes: NDArray[np.int64]
    """`[T]`: start of each bar, nanoseconds since 1970 UTC."""
    session: NDArray[np.int64]
    """`[T]`: number of the trading session."""
    equity: Array
    """`[T]` USD at each bar's close; `equity[0]` is the starting capital, nothing has been traded
    by then."""
    benchmark: Array
    """`[T]`: level of the index."""
    shares: Array
    """`[T, N]` held at each bar's close, before the orders decided at that close."""
    mark: Array
    """`[T, N]` USD: the price each position is marked at; 0 before a symbol's first bar."""
    costs_usd: Array
    """`[T]` fees, spread, impact and interest, at the bar whose equity they first reduce."""
    turnover_usd: Array
    """`[T]` notional bought and sold, at the same bars."""
    income_usd: Array
    """`[T]` dividends, and cash for fractions of a share that splits left, at the bar that begins
    with them."""
    trades: pd.DataFrame
    """One row per fill (columns: `backtest_files.TRADE_COLUMNS`): `shares` is signed (bought > 0),
    `notional_usd` is not; `kind` is `order`, `forced` (the symbol ended, or a margin call), `ruin`
    (the account was closed) or `split` (the change that a split made, at no price)."""
    orders: OrderCounts = field(default_factory=OrderCounts)
    has_positions: bool = True
    """False for a curve that was not traded here (the index): it has no positions, no turnover and
    no costs."""
    sessions_a_year: int = m.TRADING_DAYS
    """Sessions a year, to annualise rates: 252, or 365 for markets open every day."""
    bar_minutes: int = 1
    timezone: str = "UTC"
    """The exchange's time zone (an IANA name), for dates, weekdays and times of day."""
    portfolio: Array | None = None
    """`[T]` USD: equity of the benchmark portfolio (named by `env.benchmark`, traded at the same
    costs) at the same bars; None if unknown. `benchmark`, in contrast, is the index's level,
    without costs."""

    @property
    def dates(self) -> pd.DatetimeIndex:
        """`[S]`: each session's date at the exchange, that of the middle of its last bar: a daily
        bar may start on the evening before."""
        starts = pd.to_datetime(self.minutes[m.find_session_ends(self.session)], utc=True)
        middles = starts + pd.Timedelta(minutes=self.bar_minutes / 2)
        return middles.tz_convert(self.timezone).normalize().tz_localize(None)


class MetricInputs:
    """Intermediate series of a history that several metrics use, each computed once."""

    def __init__(self, history: AccountHistory) -> None:
        self.history = history
        self.daily = m.daily_returns(history.equity, history.session)
        self.index = m.drop_rounding_differences(
            self.daily, m.daily_returns(history.benchmark, history.session)
        )
        self.portfolio: Array | None = None
        if history.portfolio is not None:
            returns = m.daily_returns(history.portfolio, history.session)
            self.portfolio = m.drop_rounding_differences(self.daily, returns)
        self.sessions = len(self.daily)

    @cached_property
    def sharpe_interval(self) -> Interval:
        """The Sharpe ratio's interval, of daily returns."""
        return intervals(self.daily, sessions_a_year=self.history.sessions_a_year).sharpe

    @cached_property
    def information_ratio_interval(self) -> Interval:
        """The information ratio's interval, of daily returns less the portfolio's; empty
        where it is undefined."""
        active = self.daily[:0] if self.portfolio is None else self.daily - self.portfolio
        return intervals(active, sessions_a_year=self.history.sessions_a_year).sharpe

    @cached_property
    def monthly(self) -> Array:
        """Return of each calendar month of the exchange; the ends may be partial."""
        ends = m.find_session_ends(self.history.session)
        months = self.history.dates.to_numpy().astype("datetime64[M]").astype(np.int64)
        return m.daily_returns(self.history.equity[ends], months, start=self.history.equity[0])

    @cached_property
    def minute(self) -> Array:
        """Return of each bar."""
        return m.simple_returns(self.history.equity)

    @cached_property
    def exposure(self) -> Array:
        """`[T]`: gross value of the positions over equity."""
        return gross_exposure(self.history.shares, self.history.mark, self.history.equity)

    @cached_property
    def closing_weights(self) -> Array:
        """`[S, N]`: weights at each session's close."""
        ends = m.find_session_ends(self.history.session)
        return weights(
            self.history.shares[ends], self.history.mark[ends], self.history.equity[ends]
        )

    @cached_property
    def traded_usd(self) -> float:
        return float(self.history.turnover_usd.sum())

    @cached_property
    def cost(self) -> float:
        return float(self.history.costs_usd.sum())

    @cached_property
    def round_trips(self) -> pd.DataFrame:
        """Profit and holding time of every closed lot (first in, first out): `profit_usd`,
        `minutes`."""
        return round_trips(self.history.trades)


def weights(shares: Array, mark: Array, equity: Array) -> Array:
    """`[T, N]`: value of each position over equity `[T]` (0 once the equity is gone)."""
    return m.divide(shares * mark, equity[:, None])


def gross_exposure(shares: Array, mark: Array, equity: Array) -> Array:
    """`[T]`: gross value of the positions over equity (0 once the equity is gone)."""
    return m.divide(np.abs(shares * mark).sum(axis=1), equity)


def round_trips(trades: pd.DataFrame) -> pd.DataFrame:
    """Match every reduction of a position with the oldest lots that opened it (FIFO), each with its
    share of costs.

    Returns one row per closed lot: symbol, shares, profit_usd (net of both costs), minutes held,
    and when it was `opened` and `closed`, in the time zone of `trades`.
    """
    # Each symbol's open lots, oldest first, as shares, price, cost of a share and time.
    open_lots: dict[str, deque[list[float]]] = defaultdict(deque)
    closed: list[tuple[Any, ...]] = []
    filled = pd.DatetimeIndex(trades["fill_time"]).as_unit("ns")
    columns = (
        trades[name].tolist() for name in ("symbol", "shares", "price_usd", "cost_usd", "kind")
    )
    for time, symbol, shares, price, cost, kind in zip(filled.asi8.tolist(), *columns, strict=True):
        lots = open_lots[symbol]
        if kind == "split":
            # A reverse split may turn a few shares into none, paid out in cash.
            ratio = 1.0 + shares / sum(lot[0] for lot in lots)
            if ratio <= 0.0:
                lots.clear()
            for lot in lots:
                lot[:3] = lot[0] * ratio, lot[1] / ratio, lot[2] / ratio
            continue
        left = shares
        fee_per_share = cost / abs(shares)
        while lots and left * lots[0][0] < 0:
            held, paid, fee, since = lots[0]
            # Signed as the lot.
            part = held if abs(held) < abs(left) else -left
            profit = part * (price - paid) - abs(part) * (fee_per_share + fee)
            closed.append((symbol, part, profit, (time - since) / 60e9, since, time))
            left += part
            lots[0][0] = held - part
            if abs(held - part) <= 1e-12 * abs(held):
                lots.popleft()
        if abs(left) > 1e-12 * abs(shares):
            lots.append([left, price, fee_per_share, time])
    table = pd.DataFrame(
        closed, columns=["symbol", "shares", "profit_usd", "minutes", "opened", "closed"]
    )
    for name in ("opened", "closed"):
        table[name] = pd.to_datetime(table[name], utc=True).dt.tz_convert(filled.tz)
    return table
