"""The embedded broker: it fills orders in recorded or received bars, by the backtest's ledger."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fintrader.backtesting.account import BacktestAccount, Holdings
from fintrader.bars.bars import MINUTE_NS, Array
from fintrader.deploy.broker import Activity, Broker, BrokerAccount, Order, OrderReport
from fintrader.deploy.resting_orders import lay_out_orders, trace_order
from fintrader.envs.settings import EnvSettings
from fintrader.errors import BrokerError
from fintrader.market.tensors import MarketTensors


class AccountState(NamedTuple):
    """An account's USD at a decision, and its resting orders."""

    cash: float
    equity: float
    peak: float
    """Highest equity so far."""
    first: float
    """Equity at the first decision."""
    resting: Array | None = None
    """Orders that rest `[R, N]`; None without any."""

    def enter(
        self, account: BacktestAccount, market: MarketTensors, bar: int, shares: Array
    ) -> None:
        """Bring an account to this state, with these shares `[N]`, at a bar of a market."""
        account.enter(market)
        account.set_books(
            bar=bar,
            cash=self.cash,
            equity=self.equity,
            capital=(self.peak, self.first),
            shares=shares,
        )
        if self.resting is not None and self.resting.size:
            account.replace_orders(self.resting)


class SimulatedBroker(Broker):
    """A broker as in a backtest: a decision's market orders fill together at the next bar, with
    costs; resting ones fill until the next decision, which replaces them.

    It knows the window's later bars, but reports only events up to `now()`.
    """

    kind = "simulated"
    real_money = False
    takes_baskets = True

    def __init__(
        self,
        market: MarketTensors,
        env: EnvSettings,
        now: Callable[[], int],
        *,
        grows: bool = False,
    ) -> None:
        """market: the bars to trade, from that of the first decision on. With `grows`, bars come
        only by `grow`, and the account begins at the newest one of its first call; `market` may
        then be any market of these symbols."""
        self.market = market
        self.env = env.for_working()
        self._now = now
        self._account = BacktestAccount(market, self.env)
        self._minutes = market.minutes.numpy()
        self._length = market.bar_minutes * MINUTE_NS
        self._column = {symbol: column for column, symbol in enumerate(market.symbols)}
        self._baskets: dict[int, dict[str, Order]] = {}
        self._reports: dict[str, OrderReport] = {}
        self._courses: dict[str, list[tuple[int, OrderReport]]] = {}
        """Reports of orders after each bar (`resting_orders.trace_order`)."""
        self._decision_times: dict[str, int] = {}
        self._is_over = False
        self._received = 0 if grows else None
        """Number of bars received; None: all, as in a replay."""
        self._has_begun = not grows

    def grow(self, market: MarketTensors, bars: int) -> None:
        """Go on in a newer market, whose first `bars` bars have been received."""
        minutes = market.minutes.numpy()
        bar = bars - 1
        account = self._account
        usd = self.env.initial_cash_usd
        state = AccountState(usd, usd, usd, usd)
        held: Array = np.zeros(market.num_assets)
        if self._has_begun:
            state = self.state  # first, because it carries out orders of earlier bars
            last = self._minutes[account.bar]
            bar = int(np.searchsorted(minutes, last))
            if last not in minutes[bar : bar + 1]:
                raise BrokerError(
                    "the bars received no longer contain that of the last decision; begin a new"
                    " deployment"
                )
            held = account.held.copy()
            self._baskets = {bar + old - account.bar: own for old, own in self._baskets.items()}
        state.enter(account, market, bar, held)
        if self.env.orders_rest:
            account.expect_bars()
        self.market = market
        self._minutes = minutes
        self._received = bars
        self._has_begun = True

    def restore(
        self, minute: int, state: AccountState, shares: Array, orders: Sequence[Order]
    ) -> None:
        """Restore the account of a decision at the bar that began at `minute`, and the orders of
        that decision and of later ones."""
        self._minutes = self.market.minutes.numpy()
        self._has_begun = True
        bar = int(np.searchsorted(self._minutes, minute))
        state.enter(self._account, self.market, bar, shares)
        self._baskets = {}
        for order in orders:
            self._accept(order)

    def submit(self, order: Order) -> OrderReport:
        """Accept an order. Raises BrokerError for a symbol that the market lacks, and for an order
        whose bar is over."""
        self._advance()
        if order.id in self._reports:
            return self._find_report(order.id)
        bar = self._find_bar(order.decision)
        if order.symbol not in self._column or bar != self._account.bar:
            raise BrokerError(
                f"{order.id}: {order.symbol} is unknown, or its bar is not the newest"
            )
        return self._accept(order)

    def _accept(self, order: Order) -> OrderReport:
        self._baskets.setdefault(self._find_bar(order.decision), {})[order.id] = order
        self._decision_times[order.id] = self._now()
        report = order.report("accepted", broker_id=order.id)
        self._reports[order.id] = report
        return report

    def cancel(self, report: OrderReport) -> None:
        """Cancel nothing: an order ends with its bar, or at the next decision."""
        self._advance()

    def order(self, order_id: str) -> OrderReport | None:
        self._advance()
        return self._find_report(order_id) if order_id in self._reports else None

    def orders(self, since: int) -> Sequence[OrderReport]:
        self._advance()
        recent = itertools.takewhile(
            lambda order_id: self._decision_times[order_id] >= since, reversed(self._reports)
        )
        return [self._find_report(order_id) for order_id in recent][::-1]

    def account(self) -> BrokerAccount:
        self._advance()
        bar = self._find_newest_bar()
        held = self._account.held
        cash = self._account.cash
        if bar != self._account.bar:
            log = self._account.trade_log
            held = log.shares[bar]
            cash = float(log.equity[bar] - held @ np.nan_to_num(log.mark[bar].astype(np.float64)))
        shares = {name: float(n) for name, n in zip(self._column, held, strict=True) if n}
        return BrokerAccount("simulated", cash, shares)

    def activities(self, since: int) -> Sequence[Activity]:
        return ()

    def time(self) -> int | None:
        return None

    @property
    def state(self) -> AccountState:
        """The account at the newest decision, with the ledger's own numbers."""
        self._advance()
        account = self._account
        resting = account.resting.copy()
        return AccountState(account.cash, account.equity, *account.capital, resting)

    @property
    def since(self) -> int:
        """Start of the newest decision's bar, ns; 0 before any."""
        return int(self._minutes[self._account.bar]) if self._has_begun else 0

    @property
    def equity(self) -> float:
        """USD at the newest bar that has closed."""
        self._advance()
        bar = self._find_newest_bar()
        if bar == self._account.bar:
            return self._account.equity
        return float(self._account.trade_log.equity[bar])

    def measure(self, bar: int) -> float:
        """Measure the equity, USD, at the close of the live bar `bar`: carry out the newest
        decision's orders on a copy of the account."""
        state = self.state
        account = self._account
        if bar <= account.bar:
            return account.equity
        copy = BacktestAccount(self.market, self.env)
        state.enter(copy, self.market, account.bar, account.held)
        if self.env.orders_rest:
            copy.expect_bars()
        self._trade(copy, self._baskets.get(account.bar, {}), bar - account.bar)
        return copy.equity

    def _trade(
        self, account: BacktestAccount, basket: Mapping[str, Order], bars: int | None = None
    ) -> bool:
        """Give the orders of a decision to an account, and wait for its next decision or `bars`;
        return True if it has reached its end."""
        want: Holdings | None = None
        if self.env.orders_rest:
            # No order rests beyond the next decision, even a missed one.
            account.replace_orders(lay_out_orders(basket.values(), self._column, self.env))
        elif basket:
            goal = account.held.copy()
            for order in basket.values():
                goal[self._column[order.symbol]] += order.shares
            want = Holdings(goal)
        return account.act(want, bars)

    def _find_bar(self, close: int) -> int:
        return int(np.searchsorted(self._minutes, close - self._length))

    def _find_newest_bar(self) -> int:
        """Find the newest bar that has closed, as far as the account has come: a live feed may
        return after the next bar's close."""
        closed = np.searchsorted(self._minutes, self._now() - self._length, side="right")
        return min(int(closed) - 1, self._account.bar)

    def _advance(self) -> None:
        """Carry out every decision whose bar has come."""
        account = self._account
        while not self._is_over and self._has_come(account.bar):
            bar = account.bar
            before = account.num_trades
            basket = self._baskets.pop(bar, {})
            self._is_over = self._trade(account, basket) and self._received is None
            stops = {
                one.symbol: one.stop_usd for one in basket.values() if one.stop_usd is not None
            }
            columns = (column.tolist() for column in account.list_trades(before))
            trades = [*zip(*columns, strict=True)]
            for order in basket.values():
                place = (self._column[order.symbol], bar)
                stop = stops.get(order.symbol)
                report = self._reports[order.id]
                self._courses[order.id] = trace_order(account, report, place, trades, stop)

    def _has_come(self, bar: int) -> bool:
        """Check that the bars after a decision at this bar have come."""
        if self._received is not None:  # every bar until the next decision must have been received
            return bar + self.env.decision_interval < self._received
        return bar + 1 < len(self._minutes) and bool(
            self._minutes[bar + 1] + self._length <= self._now()
        )

    def _find_report(self, order_id: str) -> OrderReport:
        """Find the report of an order, with what happened up to now."""
        seen = self._now() - self._length
        known = [report for start, report in self._courses.get(order_id, ()) if start <= seen]
        return known[-1] if known else self._reports[order_id]
