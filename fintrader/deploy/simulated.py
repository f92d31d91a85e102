"""The embedded broker: a window of recorded bars, and the ledger that the backtest and the
environment step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fintrader.backtesting.account import BacktestAccount, Holdings
from fintrader.backtesting.result import BacktestResult
from fintrader.bars.bars import MINUTE_NS, Array
from fintrader.deploy.broker import BrokerAccount, Order, OrderReport
from fintrader.envs.settings import EnvSettings
from fintrader.errors import BrokerError
from fintrader.market.tensors import MarketTensors


class SimulatedBroker:
    """Orders of a decision fill together at the next bar, costs and all, as in a backtest; nothing
    else can happen.

    It knows the window's later bars, as a market does, and tells of an order only what has happened
    by `now()`.
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
        """market: the bars that are traded; the first decision may be taken at its first. One that
        `grows` knows no bar before `grow` says so, and its account begins there; `market` is then
        any of these symbols."""
        self.market = market
        self.env = env
        self._now = now
        self._account = BacktestAccount(market, env)
        self._minutes = market.minutes.numpy()
        self._length = market.bar_minutes * MINUTE_NS
        self._column = {symbol: column for column, symbol in enumerate(market.symbols)}
        self._baskets: dict[int, dict[str, Order]] = {}
        self._reports: dict[str, OrderReport] = {}
        self._decided: dict[str, int] = {}
        self._over = False
        self._known = 0 if grows else None
        """Bars of the market that have been received; None: all of them, as in a replay."""
        self._begun = not grows

    def grow(self, market: MarketTensors, bars: int) -> None:
        """Go on in a newer market, of which so many bars have been received: that is where orders
        fill from now on."""
        minutes = market.minutes.numpy()
        if not self._begun:  # the account begins with the newest bar
            cash = self.env.initial_cash_usd
            nothing = np.zeros(market.num_assets)
            self._account = BacktestAccount.resume(
                market,
                self.env,
                bar=bars - 1,
                cash=cash,
                equity=cash,
                capital=(cash, cash),
                shares=nothing,
            )
            self.market = market
            self._minutes = minutes
            self._known = bars
            self._begun = True
            return
        last = int(self._minutes[self._account.bar])
        account = self._account
        bar = int(np.searchsorted(minutes, last))
        if bar >= len(minutes) or minutes[bar] != last:
            raise BrokerError(
                "the bars received no longer hold the account's last one; give the feed a longer"
                " history"
            )
        moved = {bar + old - account.bar: basket for old, basket in self._baskets.items()}
        self._account = BacktestAccount.resume(
            market,
            self.env,
            bar=bar,
            cash=account.cash,
            equity=account.equity,
            capital=account.capital,
            shares=account.held,
        )
        self.market = market
        self._minutes = minutes
        self._baskets = moved
        self._known = bars

    def restore(
        self,
        minute: int,
        cash: float,
        equity: float,
        peak: float,
        first: float,
        shares: Array,
        orders: Sequence[Order],
    ) -> None:
        """Stand where a journal says the account stood when it decided at the bar that began at
        `minute`, with the orders of that decision and of later ones."""
        self._minutes = self.market.minutes.numpy()
        self._begun = True
        bar = int(np.searchsorted(self._minutes, minute))
        self._account = BacktestAccount.resume(
            self.market,
            self.env,
            bar=bar,
            cash=cash,
            equity=equity,
            capital=(peak, first),
            shares=shares,
        )
        self._baskets = {}
        for order in orders:
            self._baskets.setdefault(self._bar_of(order.decision), {})[order.symbol] = order
            self._decided[order.id] = self._now()
            self._reports[order.id] = OrderReport(
                order.id, order.symbol, "accepted", order.shares, broker_id=order.id
            )

    def submit(self, order: Order) -> OrderReport:
        """Raises BrokerError for a symbol that the market has not, and for an order whose bar is
        over."""
        self._advance()
        if order.id in self._reports:
            return self._reports[order.id]
        bar = self._bar_of(order.decision)
        if order.symbol not in self._column or bar != self._account.bar:
            raise BrokerError(f"{order.id}: there is no such symbol, or its bar is over")
        self._baskets.setdefault(bar, {})[order.symbol] = order
        self._decided[order.id] = self._now()
        self._reports[order.id] = OrderReport(
            order.id, order.symbol, "accepted", order.shares, broker_id=order.id
        )
        return self._reports[order.id]

    def cancel(self, report: OrderReport) -> None:
        """Nothing is open between two bars."""
        self._advance()

    def order(self, order_id: str) -> OrderReport | None:
        self._advance()
        return self._reports.get(order_id)

    def orders(self, since: int) -> Sequence[OrderReport]:
        self._advance()
        return [
            report for order_id, report in self._reports.items() if self._decided[order_id] >= since
        ]

    def account(self) -> BrokerAccount:
        self._advance()
        bar = self._seen()
        held = (
            self._account.held if bar == self._account.bar else self._account.trade_log.shares[bar]
        )
        if bar == self._account.bar:
            cash = self._account.cash
        else:
            mark = np.nan_to_num(self._account.trade_log.mark[bar].astype(np.float64))
            cash = float(self._account.trade_log.equity[bar] - held @ mark)
        shares = {
            symbol: float(held[column])
            for symbol, column in self._column.items()
            if held[column] != 0.0
        }
        return BrokerAccount("simulated", cash, shares)

    def time(self) -> int | None:
        return None

    @property
    def state(self) -> tuple[float, float, float, float]:
        """Cash, equity, highest equity and first equity, USD, at the newest decision: exactly what
        the ledger has."""
        self._advance()
        return self._account.cash, self._account.equity, *self._account.capital

    @property
    def equity(self) -> float:
        """USD at the newest bar that has closed."""
        self._advance()
        bar = self._seen()
        return (
            self._account.equity
            if bar == self._account.bar
            else float(self._account.trade_log.equity[bar])
        )

    @property
    def over(self) -> bool:
        """Whether the window's last bar has closed, or the account is ruined."""
        self._advance()
        return self._over

    def result(self, name: str) -> BacktestResult:
        """The account so far as a backtest of the window. Only once it is over."""
        return self._account.trade_log.result(name, "")

    def _bar_of(self, close: int) -> int:
        return int(np.searchsorted(self._minutes, close - self._length))

    def _seen(self) -> int:
        """The newest bar that has closed."""
        return int(np.searchsorted(self._minutes + self._length, self._now(), side="right")) - 1

    def _advance(self) -> None:
        """Carry out every decision whose bar has come."""
        account = self._account
        while not self._over and self._has_come(account.bar):
            bar = account.bar
            num_trades = account.num_trades
            basket = self._baskets.pop(bar, {})
            want: Holdings | None = None
            if basket:
                goal = account.held.copy()
                for order in basket.values():
                    goal[self._column[order.symbol]] += order.shares
                want = Holdings(goal)
            self._over = account.act(want) and self._known is None
            self._report(basket, bar, num_trades)

    def _has_come(self, bar: int) -> bool:
        """Whether what follows a decision at this bar can be told."""
        if self._known is not None:  # every bar until the next decision must have been received
            return bar + self.env.decision_interval < self._known
        return bar + 1 < len(self._minutes) and bool(
            self._minutes[bar + 1] + self._length <= self._now()
        )

    def _report(self, basket: dict[str, Order], bar: int, first: int) -> None:
        """Report the orders by the account's trades from number `first` on."""
        kind, decided, _, asset, shares, price, cost = self._account.list_trades(first)
        mine = (kind == 0) & (decided == bar)
        fills = {
            int(n): (s, p, c)
            for n, s, p, c in zip(*(x[mine] for x in (asset, shares, price, cost)), strict=True)
        }
        for symbol, order in basket.items():
            filled, paid, fee = (
                float(value) for value in fills.get(self._column[symbol], (0.0, 0.0, 0.0))
            )
            whole = abs(filled) >= abs(order.shares) * (1 - 1e-12)
            self._reports[order.id] = OrderReport(
                order.id,
                symbol,
                "filled" if whole else "cancelled",
                order.shares,
                filled,
                paid,
                fee,
                order.id,
                "" if whole else "more than the bar's volume, the cash or the limits let it have",
            )
