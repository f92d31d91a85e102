"""The account with which a strategy trades in a backtest, and its log.

Compiled functions of the environment (`envs.fast`) move it on, in one call for each decision or,
for a policy that is followed, for many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fintrader.backtesting.trade_log import TradeLog
from fintrader.envs import EnvSettings
from fintrader.envs.account import LEFT, ORDER_ROWS
from fintrader.envs.benchmark import lay_out
from fintrader.envs.episodes import begin
from fintrader.envs.fast import single_account as kernel
from fintrader.envs.fast.account import ORDER, count_cancelled
from fintrader.envs.fast.buffers import AccountLog, Buffers, Generation, Prices, Rules, State
from fintrader.envs.market_view import LARGEST, build_market_view
from fintrader.envs.state import initial_shares
from fintrader.errors import BacktestError
from fintrader.market.tensors import MarketTensors
from fintrader.metrics import Array
from fintrader.results.backtest_files import TradeRows
from fintrader.results.history import OrderCounts

Float32 = NDArray[np.float32]
"""Inputs and outputs of networks."""
Action = Tensor | Float32
"""`[1, N]` from a policy, `[N]` from a bound policy."""


class Holdings(NamedTuple):
    """Holdings to reach, which a rule-based strategy may return instead of an action."""

    shares: Array
    """`[N]` shares."""


class RestingOrders(NamedTuple):
    """Orders that rest from now on, which a strategy may return where `env.action` is limit."""

    rows: Array
    """`[R, N]` (`envs.account.Account.resting`)."""


def flatten_action(action: Action) -> Float32:
    """Convert an action to a row `[N]`."""
    values = action.detach().cpu().numpy() if isinstance(action, Tensor) else action
    return np.ascontiguousarray(values, dtype=np.float32).reshape(-1)


KINDS = np.array(["order", "forced", "split"], dtype=object)
"""Names of `envs.fast.account.ORDER`, `FORCED` and `SPLIT`."""
_COLUMN_NAMES = AccountLog._fields[5:12]
"""Kind, decision bar, fill bar, asset, shares, price, cost."""
_COLUMNS = (*[np.int64] * 4, *[np.float64] * 3)
"""Types of `_COLUMN_NAMES`."""
_NO_ACTION = np.zeros((0, 0), np.float32)


class BacktestAccount:
    """An account at a decision: a strategy reads it and gives the next order (`act`)."""

    def __init__(self, market: MarketTensors, settings: EnvSettings) -> None:
        settings = settings.model_copy(update={"start": "first", "episode_bars": None})
        self.settings = settings
        self.layout = lay_out(market, settings)
        self._rules = Rules.from_settings(settings)
        buffers = Buffers.empty(
            1, market.num_assets, torch.device("cpu"), rows=settings.resting_rows
        )
        for part in buffers:
            part.zero_()
        self._buffers = tuple(part.numpy() for part in buffers)
        *rows, shares, resting = self._buffers
        self._state = State._make([*(row for part in rows for row in part), shares, resting])
        self.decision_bars = 1
        """Bars between the decisions that fills belong to, where orders are worked at every
        bar."""
        self._seen = np.zeros(self.layout.private_width, np.float32)
        """The private part of the observation at bar `_seen_at`."""
        self._want = np.zeros(market.num_assets)
        self.enter(market)
        log = self.trade_log
        first = torch.zeros(1, dtype=torch.int64)
        cash = torch.tensor([settings.initial_cash_usd], dtype=torch.float64)
        owned = initial_shares(settings, market.symbols).unsqueeze(0)
        account = begin(self.view, first, first, cash, owned, first, settings, start=first)
        Generation(buffers, account.memory).copy_from(account)
        log.shares[0] = self.held
        log.equity[0] = self.equity
        if self.held.any():
            opening = ("opening", 0, 0, self.held.copy(), log.mark[0], np.zeros(market.num_assets))
            log.fills.append(TradeRows.of(*opening))

    def enter(self, market: MarketTensors) -> None:
        """Go on in another market of the same layout, with an empty log and without resting
        orders; `set_books` then gives the bar and the books."""
        settings = self.settings
        self._device = market.device  # the policy's device, for observations
        market = market.to("cpu")
        self.market = market
        self.view = build_market_view(market, settings, getattr(torch, settings.observation_dtype))
        self.trade_log = log = TradeLog(market, settings, self.view)
        self._end = market.num_bars - 1
        self._prices = Prices.from_view(self.view)
        columns = [np.zeros(8 * market.num_assets, kind) for kind in _COLUMNS]
        curves = (log.shares, log.equity, log.costs, log.turnover, log.income)
        filled = np.zeros((2, market.num_assets))
        self._log = AccountLog._make(
            [*curves, *columns, np.zeros(1, np.int64), filled, np.zeros(4)]
        )
        self.resting[:] = 0.0
        self._state.end_bar[0] = self._end
        self._seen_at = -1

    def set_books(
        self, *, bar: int, cash: float, equity: float, capital: tuple[float, float], shares: Array
    ) -> None:
        """Go on at the close of `bar` with other books. cash, equity: USD; capital: highest and
        first equity, USD; shares: `[N]`."""
        state = self._state
        state.bar[0] = bar
        state.cash[0] = cash
        state.equity[0] = equity
        state.peak_equity[0], state.first_equity[0] = capital
        state.shares[0] = shares
        self._seen_at = -1

    def expect_bars(self) -> None:
        """Let orders rest beyond the market's last bar, because a newer market will continue it."""
        self._state.end_bar[0] = self._end + 1

    @property
    def bar(self) -> int:
        """The present bar; the account decides at its close."""
        return int(self._state.bar[0])

    @property
    def equity(self) -> float:
        """Equity in USD."""
        return float(self._state.equity[0])

    @property
    def held(self) -> Array:
        """Shares held `[N]`; do not write to them."""
        held: Array = self._state.shares[0]
        return held

    @property
    def wanted(self) -> Array:
        """Shares `[N]` that the last decision asked for; do not write to them."""
        return self._want

    @property
    def rows(self) -> Float32 | None:
        """The market's part of the observation at each bar, `[T, L*W]`; None unless observations
        are flat float32 rows."""
        plain = self.settings.observation == "flat" and self.view.table.dtype == torch.float32
        return self.view.rows.numpy() if plain else None

    def private(self) -> Float32:
        """Return the private part of the observation, `[A + N]` (`envs.episodes.observe_private`),
        in an array that the next order overwrites."""
        if self._seen_at != self.bar:
            kernel.observe_account(self._buffers, self._prices, self._rules, self._seen)
            self._seen_at = self.bar
        return self._seen

    def observe(self) -> Any:
        """Return the observation as the environment gives it: `[1, D]`, or a dict of parts if
        observations are factored."""
        return self.show(self.bar, self.private()[None])

    def show(self, bar: int, private: Float32) -> Any:
        """Make the observations, at one bar, of B accounts with the private parts `[B, A + N]`."""
        own = torch.from_numpy(private).to(self.view.table.dtype)
        if self.settings.observation == "factored":
            clock = torch.full((len(own),), bar, device=self._device)
            return {"private": own.clone().to(self._device), "clock": clock}
        row = self.view.rows[bar].expand(len(own), -1)
        return torch.cat((own, row), 1).to(self._device)

    @property
    def cash(self) -> float:
        """Cash in USD."""
        return float(self._state.cash[0])

    @property
    def capital(self) -> tuple[float, float]:
        """Highest equity so far and first equity, in USD."""
        return float(self._state.peak_equity[0]), float(self._state.first_equity[0])

    @property
    def prices(self) -> Array:
        """Closes of the present bar, `[N]` USD; 0 where a symbol has no price."""
        close = self.market.close[self.bar].numpy().astype(np.float64)
        return np.where(np.isnan(close), 0.0, close)

    @property
    def num_trades(self) -> int:
        """Number of trades so far, forced ones and splits included."""
        return int(self._log.size[0])

    def list_trades(self, first: int = 0) -> list[NDArray[Any]]:
        """List the trades from number `first` on, as columns: kind (a number of `KINDS`), bar of
        the decision, bar of the fill, asset, shares, price and cost in USD."""
        return [getattr(self._log, name)[first : self.num_trades] for name in _COLUMN_NAMES]

    def holdings(self, action: Action, *, exact: bool = False) -> Array:
        """Return the holdings `[N]` that an action asks for, before volume and cash limit them;
        `exact`: not rounded to whole shares."""
        want = np.zeros((1, self.held.size))
        row = self._lay_out(action)
        rules = self._rules._replace(is_whole=False) if exact else self._rules
        kernel.size_desired(row, self._buffers, self._prices, rules, want)
        asked: Array = want[0]
        return asked

    @property
    def resting(self) -> Array:
        """Orders that rest `[R, N]` (`envs.account.Account.resting`); do not write to them."""
        rows: Array = self._state.resting[0]
        return rows

    def set_resting_orders(self, action: Action) -> Array:
        """Return the resting orders `[R, N]` that an action would give, without placing them."""
        before = self.resting.copy()
        row = self._lay_out(action)
        kernel.set_resting_orders(row, self._buffers, self._prices, self._rules)
        orders = self.resting.copy()
        self.resting[:] = before
        return orders

    def replace_orders(self, orders: Array) -> None:
        """Replace all resting orders by `orders` `[R, N]`; the log does not count them."""
        self.resting[:] = orders

    def takes_orders(self, asset: int) -> bool:
        """Report whether an asset takes orders: not before its first bar, nor from the bar that
        reaches its stop until its position is closed."""
        return bool(self.prices[asset] > 0 and abs(self.resting[-1, asset]) < LARGEST)

    def splits_at(self, bar: int) -> Array:
        """Return the numbers of new shares `[N]` for one old share at a bar; 1 without a split."""
        splits: Array = self._prices.splits[self._prices.event_row[bar]]
        return splits

    def place(self, asset: int, side: int, shares: float, price: float) -> bool:
        """Replace an asset's bid (side 0) or ask (side 1) by an order for signed shares at a price
        in USD. Returns False and changes nothing if the asset takes no orders."""
        if not self.takes_orders(asset):
            return False
        self._count_cancelled(asset, side)
        order = slice(side * ORDER_ROWS, (side + 1) * ORDER_ROWS)
        self.resting[order, asset] = shares, price, 0.0
        self._log.counts[ORDER] += 1
        return True

    def protect(self, asset: int, stop: float) -> bool:
        """Set an asset's stop, USD, negative for a short position. Returns False and changes
        nothing if the asset takes no orders."""
        if not self.takes_orders(asset):
            return False
        self.resting[-1, asset] = stop
        return True

    def cancel(self, asset: int) -> None:
        """Cancel an asset's orders and its stop, if the asset takes orders."""
        if self.takes_orders(asset):
            for side in range(self.settings.num_sides):
                self._count_cancelled(asset, side)
            self.resting[:, asset] = 0.0

    def _count_cancelled(self, asset: int, side: int) -> None:
        left = self.resting[side * ORDER_ROWS + LEFT, asset]
        count_cancelled.py_func(self.bar, side, asset, left, self._prices, self._log)
        self._log.filled[side, asset] = 0.0

    def _lay_out(self, action: Action) -> Float32:
        """Lay an action out as a row `[1, A]`. Raises BacktestError for one of another length,
        which compiled code would read past its end."""
        row = flatten_action(action)[None]
        if row.shape[1] != self.layout.num_actions:
            raise BacktestError(
                f"an action has {self.layout.num_actions} numbers here, not {row.shape[1]}"
            )
        return row

    def act(
        self, action: Action | Holdings | RestingOrders | None, bars: int | None = None
    ) -> bool:
        """Give an order (None: no order), wait for `bars` (default: the decision interval), and
        return True if the account has reached its end.

        If `bars` exceeds the interval, the account is still checked for ruin after each interval.
        """
        row = _NO_ACTION
        want = self._want
        if isinstance(action, RestingOrders):
            self.resting[:] = action.rows
            self._log.counts[ORDER] += int((action.rows[LEFT] != 0).sum())
            action = None
        if action is None:
            want = want[:0]
        elif isinstance(action, Holdings):
            want[:] = action.shares
        else:
            row = self._lay_out(action)
        wait = self.settings.decision_interval if bars is None else bars
        stop = min(self.bar + wait, self._end)
        self._make_room(1, stop - self.bar)
        return self._close(kernel.decide_and_wait(stop, row, want, *self._packed()))

    def follow(self, policy: Any, bars: int) -> bool:
        """Let a bound policy (`PolicyModule.bind`) trade for `bars`, rounded up to whole decision
        intervals, in one compiled call; return True if the account has reached its end. An action
        that is not finite ends the call before its order."""
        interval = self.settings.decision_interval
        decisions = -(-min(bars, self._end - self.bar) // interval)
        self._make_room(decisions, decisions * interval)
        self.private()
        is_ruined = policy.trade(self.bar, decisions, interval, (self._want, *self._packed()))
        return self._close(is_ruined)

    def leave_out_each(self, decide: Callable[[int, Any], Float32]) -> Array:
        """Trade with N copies of this account, each of which never buys one of the symbols; return
        the copies' equity `[N, T]`. decide: maps a bar and the private parts `[N, A + N]` to
        actions `[N, N]`, or to one row `[1, N]` for all copies."""
        count = self.market.num_assets
        accounts = tuple(np.repeat(part[None], count, axis=0) for part in self._buffers)
        seen = np.repeat(self.private()[None], count, axis=0)
        equity = np.full((count, self.market.num_bars), self.equity)
        # Only equity is logged.
        log = AccountLog._make(part[:0] for part in self._log)._replace(equity=self._log.equity)
        interval = self.settings.decision_interval
        for bar in range(self.bar, self._end, interval):
            stop = min(bar + interval, self._end)
            actions = decide(bar, seen)[:, None]
            shared = (self._prices, self._rules, log)
            kernel.decide_each(stop, actions, self._want, accounts, shared, seen, equity)
        return equity

    def _make_room(self, decisions: int, bars: int) -> None:
        """Make room in the log for the trades of some decisions and bars."""
        # A decision's orders fill at most N times, or, if they rest, at each bar; a symbol ends at
        # most once, and splits or is closed by a margin call at most once per bar.
        has_events = self._rules.maintenance_margin > 0.0 or self.view.has_events
        per_bar = 2 * has_events + self.settings.orders_rest * self.settings.num_sides
        room = self.num_trades + self.held.size * (1 + decisions + per_bar * bars)
        log = self._log
        if room > len(log.kind):
            more = room + len(log.kind)
            columns = {name: np.resize(getattr(log, name), more) for name in _COLUMN_NAMES}
            self._log = log._replace(**columns)

    def _packed(self) -> tuple[Any, ...]:
        """Return the account's arrays as `kernel.decide_and_wait` takes them."""
        return (self._buffers, self._prices, self._rules, self._log, self._seen)

    def _close(self, is_ruined: bool) -> bool:
        """Return True if the account is ruined or at its end; the log is then complete."""
        self._seen_at = self.bar
        is_over = is_ruined or self.bar >= self._end
        if is_over:
            kinds, decided, *others = self.list_trades()
            decided = decided - decided % self.decision_bars
            self.trade_log.fills.append(TradeRows(KINDS[kinds], decided, *others))
            orders, capped, unfilled, cancelled = self._log.counts.tolist()
            self.trade_log.orders = OrderCounts(int(orders), int(capped), int(unfilled), cancelled)
        if is_ruined:
            self.trade_log.ruin(self.bar)
        return is_over
