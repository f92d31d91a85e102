"""Decisions under limits: a policy's orders cut to the limits, and a backtest of them.

A deployment and its shadow backtest decide by the same function, so that they differ only by the
market.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fintrader.backtesting.account import BacktestAccount, Float32, Holdings, RestingOrders
from fintrader.backtesting.limits import Limits, LimitSettings
from fintrader.backtesting.order_worker import make_strategy
from fintrader.backtesting.result import Array, BacktestResult
from fintrader.backtesting.simulation import open_account, trade
from fintrader.envs.account import LEFT, ORDER_ROWS, PRICE
from fintrader.envs.benchmark import benchmark_kind, benchmark_weights
from fintrader.envs.market_view import LARGEST
from fintrader.envs.money import SPLIT_NUDGE
from fintrader.envs.settings import EnvSettings
from fintrader.envs.trading import Policy
from fintrader.market.tensors import MarketTensors
from fintrader.progress import SILENT, Progress

RECENT_MINUTES = 3
"""Minutes in which members must have had a bar (`LimitSettings.symbols_with_bars`)."""


@dataclass(frozen=True)
class Decision:
    """A policy's decision at a bar, cut to the limits."""

    orders: Array | None
    """`[N]` signed shares; None if no order is due, or none allowed (`why`)."""
    weights: Array | None = None
    """`[N]`: target weights, after the limits."""
    why: str = ""
    halted: bool = False
    """True if the halt lasts until the deployment is resumed."""
    clipped_by: tuple[str, ...] = ()
    rounded: Array | None = None
    """`[N]`: fractions of shares lost by rounding to whole ones."""
    resting: Array | None = None
    """`[R, N]`: the orders that rest from now on (`envs.account.Account.resting`); None unless
    orders rest."""


def decide(
    account: BacktestAccount, action: Float32 | RestingOrders | None, limits: Limits
) -> Decision:
    """Decide on an account's orders; `action` None: no decision is due, only watch for losses.

    Orders that rest are cut as if all purchases filled and no sale did. If no decision is due or
    allowed, they end and stops stay. Unfilled shares of replaced orders do not count as turnover.
    """
    stops = _keep_stops(account) if account.settings.orders_rest else None
    market = account.market
    bar = account.bar
    held = account.held
    price = account.prices
    equity = account.equity
    session = market.session[: bar + 1].numpy()
    opened = int((session != session[bar]).sum())
    why = limits.watch(int(market.minutes[opened]), equity)
    if account.settings.orders_rest:
        unfilled = _list_free_orders(account.resting, account.settings.num_sides)
        limits.discount(float((np.abs(unfilled).sum(0) * price).sum()))
    if why:
        return Decision(None, why=why, halted=True, resting=stops)
    if action is None:
        return Decision(None, resting=stops)
    recent = max(opened, bar + 1 - -(-RECENT_MINUTES // market.bar_minutes))
    member = market.member[bar].numpy()
    if not limits.has_enough_bars(market.tradable[recent : bar + 1].numpy(), member & (price > 0)):
        why = f"fewer than {limits.settings.symbols_with_bars:.0%} of the members have bars"
        return Decision(None, why=why, resting=stops)
    kind = benchmark_kind(market, account.settings.benchmark)
    benchmark: Array = np.zeros(len(held))
    if kind != "cash":
        benchmark = benchmark_weights(market.window(opened, bar + 1), kind)[-1].numpy()
    if isinstance(action, RestingOrders):
        return _cut_resting(account, action.rows, limits, benchmark)
    if account.settings.orders_rest:
        return _cut_resting(account, account.set_resting_orders(action), limits, benchmark)
    wanted = account.holdings(action)
    orders = wanted - held
    if limits.whole:
        # A split may leave fractions at a broker; orders then miss whole numbers by a rounding
        # error.
        whole = np.rint(orders)
        orders = np.where(np.abs(orders - whole) < SPLIT_NUDGE, whole, orders)
    clipped = limits.clip(orders, held, price, equity, benchmark)
    limits.count(clipped.by)
    weights = (held + clipped.orders) * price / max(equity, 1e-9)
    rounded = account.holdings(action, exact=True) - wanted
    return Decision(clipped.orders, weights, clipped_by=clipped.by, rounded=rounded)


def _cut_resting(
    account: BacktestAccount, resting: Array, limits: Limits, benchmark: Array
) -> Decision:
    """Cut orders `[R, N]` to the limits, all but the sales of stops that were reached."""
    end = account.settings.num_sides * ORDER_ROWS
    left = resting[LEFT:end:ORDER_ROWS]
    limit = resting[PRICE:end:ORDER_ROWS]
    held = account.held
    price = account.prices
    equity = account.equity
    free = _list_free_orders(resting, account.settings.num_sides)
    bids = np.maximum(free, 0.0)
    asks = np.minimum(free, 0.0)
    sold = limits.clip(asks.sum(0), held, price, equity, benchmark)
    # A bid may cost more than the close; only one that buys back a short position has no limit.
    highest_bid = np.where((bids > 0) & (limit < LARGEST), limit, 0.0).max(0)
    bought = limits.clip(bids.sum(0), held, np.maximum(price, highest_bid), equity, benchmark)
    left[:] = np.where(bids > 0, bought.orders, np.where(asks < 0, sold.orders, left)) + 0.0
    limit[:] = np.where(left != 0, limit, 0.0)
    # Drop stops where nothing is held or bought.
    resting[-1] = np.where((held != 0) | (bought.orders != 0), resting[-1], 0.0)
    orders = left.sum(0)
    weights = (held + orders) * price / max(equity, 1e-9)
    by = tuple(dict.fromkeys((*sold.by, *bought.by)))
    limits.count(by)
    return Decision(orders, weights, clipped_by=by, resting=resting)


def _list_free_orders(resting: Array, num_sides: int) -> Array:
    """List the shares `[sides, N]` of orders `[R, N]`; 0 for the sale of a reached stop."""
    left = resting[LEFT : num_sides * ORDER_ROWS : ORDER_ROWS]
    return np.where(np.abs(resting[-1]) < LARGEST, left, 0.0)


def _keep_stops(account: BacktestAccount) -> Array:
    """Lay out orders `[R, N]` that keep an account's stops, and the sales of stops that were
    reached."""
    resting = account.resting.copy()
    end = account.settings.num_sides * ORDER_ROWS
    resting[:end] = np.where(np.abs(resting[-1]) == LARGEST, resting[:end], 0.0)
    resting[end:] = np.where(account.held != 0, resting[end:], 0.0)
    return resting


def shadow_backtest(
    policy: Policy,
    market: MarketTensors,
    env: EnvSettings,
    settings: LimitSettings,
    *,
    name: str = "twin",
    progress: Progress = SILENT,
) -> tuple[BacktestResult, Limits]:
    """Backtest a policy under a deployment's limits, over recorded bars; return the limits' counts
    too.

    Raises BacktestError for a window of fewer than two bars.
    """
    account = open_account(market, env.for_working(), name)
    limits = Limits(settings, whole=not env.fractional)
    strategy = make_strategy(policy, account, env, name)

    def step(account: BacktestAccount) -> Holdings | None:
        decision = decide(account, strategy(account), limits)
        if decision.resting is not None:
            account.replace_orders(decision.resting)
            return None
        return None if decision.orders is None else Holdings(account.held + decision.orders)

    return trade(step, account, name=name, progress=progress), limits
