"""Orders of a policy's decisions, worked over the bars that follow (`env.execution`).

A decision sets the shares to hold. The missing shares are ordered in parts at the next bars, with
limits: in equal parts, or as an executor decides (`fintrader.execution`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from fintrader.backtesting.account import BacktestAccount, Float32, RestingOrders
from fintrader.backtesting.policy_strategy import PolicyStrategy, Predictor, Watch
from fintrader.backtesting.result import Array
from fintrader.envs import EnvSettings, Policy
from fintrader.envs.account import ORDER_ROWS
from fintrader.seams import EXECUTORS, load_part

CROSSING_BPS = 100.0
"""An order that is to fill at once has a limit so far beyond the last close."""


class Executor(Protocol):
    """Decides the sizes and prices of the parts of orders."""

    meta: Mapping[str, Any]
    """As of a policy; `seen` lists the bars that it was trained on."""

    def place(
        self, features: Float32, sign: Array, left: Array, price: Array, bars_left: int
    ) -> tuple[Array, Array]:
        """Decide for K orders at a bar: features `[K, F]`, sign `[K]` 1 to buy and -1 to sell,
        the share of the order that is left `[K]`, and the price as a multiple of that at the
        decision `[K]`. Returns the share of the order to trade in the next bar `[K]`, and how far
        beyond the close its price lies, basis points `[K]`, negative for a price that is worse."""


class ParentOrder(NamedTuple):
    """A decision's orders, in shares of the present bar."""

    goal: Array
    """`[N]`: shares to reach."""
    start: Array
    """`[N]`: shares held at the decision."""
    price: Array
    """`[N]`: closes at the decision, USD; 0 for a symbol without a price."""
    seen: int
    """Start of the newest bar whose splits are in these numbers, ns."""

    def keep_up(self, account: BacktestAccount) -> ParentOrder:
        """Apply the splits of the bars since `seen`, up to the account's."""
        minutes = account.market.minutes.numpy()
        first = int(np.searchsorted(minutes, self.seen, side="right"))
        split = np.ones_like(self.goal)
        for bar in range(first, account.bar + 1):
            split *= account.splits_at(bar)
        return ParentOrder(
            self.goal * split, self.start * split, self.price / split, int(minutes[account.bar])
        )


class OrderWorker:
    """A strategy that works the orders of a policy's decisions."""

    def __init__(
        self,
        policy: Policy | Predictor,
        account: BacktestAccount,
        settings: EnvSettings,
        name: str,
        *,
        watch: Watch | None = None,
    ) -> None:
        """account: opened with `settings.for_working()`. settings: the policy's, with `execution`.
        watch: called with the account that the policy sees, before each of its decisions. Raises
        BacktestError for an executor that was trained on other features or bars."""
        assert settings.execution is not None
        account.decision_bars = self.interval = settings.decision_interval
        self._bars = settings.execution.bars
        self._settings = settings.at_once()
        self._shown = BacktestAccount(account.market, self._settings)
        """The account in the form that the policy sees."""
        self.strategy = PolicyStrategy(policy, self._shown, name, watch=watch)
        self.order: ParentOrder | None = None
        self.executor: Executor | None = None
        if settings.execution.policy != "twap":
            self.executor = load_part(EXECUTORS, "trained")(
                settings.execution.policy, account.market.feature_names, self._bars
            )

    def __call__(self, account: BacktestAccount) -> RestingOrders:
        """Order the next parts, in a backtest."""
        return self.work(account, account.bar % self.interval)

    def find_due(self, bar: int) -> int:
        """Find the bar after `bar` at which orders change."""
        elapsed = bar % self.interval
        return bar + (1 if elapsed < self._bars else self.interval - elapsed)

    def work(self, account: BacktestAccount, elapsed: int) -> RestingOrders:
        """Order the next parts; `elapsed`: bars since the decision, which is made at 0."""
        if elapsed == 0:
            self.order = self._decide(account)
        elif self.order is not None:
            self.order = self.order.keep_up(account)
        rows = np.zeros((ORDER_ROWS, len(account.held)))
        bars_left = self._bars - elapsed
        if self.order is None or bars_left <= 0:
            return RestingOrders(rows)
        close = account.prices
        left = np.where(close > 0, self.order.goal - account.held, 0.0)
        if self.executor is None or bars_left == 1:
            # Sales are a bar ahead, since they pay for purchases.
            parts = left / np.where(left < 0, max(bars_left - 1, 1), bars_left)
            beyond = np.full_like(left, -CROSSING_BPS)
        else:
            parts, beyond = self._ask(account, self.order, left, close, bars_left)
        if not account.settings.fractional:
            parts = np.trunc(parts)
        price = close * (1.0 - np.sign(parts) * beyond / 1e4)
        rows[:2] = np.where(parts != 0, (parts, price), 0.0)
        return RestingOrders(rows)

    def _decide(self, account: BacktestAccount) -> ParentOrder:
        """Ask the policy for the shares to hold."""
        shown = self._shown
        if shown.market is not account.market:
            shown.enter(account.market)
            self.strategy.move(shown)
        shown.set_books(
            bar=account.bar,
            cash=account.cash,
            equity=account.equity,
            capital=account.capital,
            shares=account.held,
        )
        goal = shown.holdings(self.strategy(shown))
        seen = int(account.market.minutes[account.bar])
        return ParentOrder(goal, account.held.copy(), account.prices, seen)

    def _ask(
        self,
        account: BacktestAccount,
        order: ParentOrder,
        left: Array,
        close: Array,
        bars_left: int,
    ) -> tuple[Array, Array]:
        """Ask the executor for signed shares and prices `[N]`."""
        assert self.executor is not None
        whole = order.goal - order.start
        parts = np.zeros_like(left)
        beyond = np.zeros_like(left)
        open_ = np.flatnonzero((left * whole > 0) & (order.price > 0))
        if len(open_):
            features = account.market.features[account.bar].numpy()[open_]
            share, beyond[open_] = self.executor.place(
                features,
                np.sign(whole[open_]),
                np.minimum(left[open_] / whole[open_], 1.0),
                close[open_] / order.price[open_],
                bars_left,
            )
            parts[open_] = share * whole[open_]
        return parts, beyond


def make_strategy(
    policy: Policy | Predictor, account: BacktestAccount, settings: EnvSettings, name: str
) -> PolicyStrategy | OrderWorker:
    """Make the strategy of a policy with these settings, for an account opened with
    `settings.for_working()`."""
    if settings.execution is None:
        return PolicyStrategy(policy, account, name)
    return OrderWorker(policy, account, settings, name)
