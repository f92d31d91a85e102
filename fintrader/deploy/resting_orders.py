"""The orders of the embedded broker's account in two forms: single orders, as in a journal, and, if
they rest, rows of its ledger (`envs.account.Account.resting`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fintrader.backtesting.account import BacktestAccount
from fintrader.bars.bars import Array
from fintrader.deploy.broker import Order, OrderReport
from fintrader.deploy.orders import ASK, STOP, order_id
from fintrader.envs.account import LEFT, ORDER_ROWS
from fintrader.envs.market_view import LARGEST
from fintrader.envs.money import DUST_USD, USD_GRID
from fintrader.envs.settings import EnvSettings


def list_orders(
    resting: Array, account: BacktestAccount, sender: str, decision: int
) -> tuple[Order, ...]:
    """List the orders of rows `[R, N]` for an account. A stop covers the largest position that
    its symbol may have; once it was reached, its sale is the only order.

    sender, decision: as in `orders.order_id`.
    """
    env = account.settings
    orders = []
    for asset, symbol in enumerate(account.market.symbols):
        name = order_id(sender, decision, symbol)
        rows = resting[:, asset].tolist()
        stop = 0.0 if env.stop_offset_bps is None else rows[-1]
        position = float(account.held[asset])
        for side in range(0 if stop == LARGEST else env.num_sides):
            left, price, _ = rows[side * ORDER_ROWS :][:ORDER_ROWS]
            if left:
                orders.append(Order(name + side * ASK, symbol, left, decision, limit_usd=price))
                position += max(left, 0.0)
        if stop and position:
            trigger = 0.0 if stop == LARGEST else stop
            orders.append(Order(name + STOP, symbol, -position, decision, stop_usd=trigger))
    return tuple(orders)


def lay_out_orders(
    orders: Iterable[Order], column: Mapping[str, int], env: EnvSettings, *, age: int = 0
) -> Array:
    """Lay orders out as the ledger's rows `[R, N]`; `column`: symbol -> number, `age`: bars since
    their decision."""
    resting: Array = np.zeros((env.resting_rows, len(column)))
    for order in orders:
        asset = column[order.symbol]
        if order.stop_usd == 0.0:
            resting[-1, asset] = LARGEST
            resting[LEFT, asset] = order.shares
        elif order.stop_usd is not None:
            resting[-1, asset] = order.stop_usd
        if order.limit_usd is not None:
            first = ORDER_ROWS if order.id.endswith(ASK) else 0
            resting[first : first + ORDER_ROWS, asset] = order.shares, order.limit_usd, age
    return resting


def lay_out_sales(resting: Array, held: Array) -> Array:
    """Lay out the sale of all that is held `[N]` at the next open, in place of rows `[R, N]`."""
    sales = np.zeros_like(resting)
    sales[LEFT] = -held
    return sales


def trace_order(
    account: BacktestAccount,
    report: OrderReport,
    place: tuple[int, int],
    trades: Sequence[tuple[Any, ...]],
    stop: float | None,
) -> list[tuple[int, OrderReport]]:
    """Trace an accepted order by the account's log: its report after each bar that changed it, with
    the bar's start (ns). `place`: numbers of its asset and of its decision's bar; `trades`: rows of
    `BacktestAccount.list_trades` since then; `stop`: `Order.stop_usd` of its symbol."""
    asset, bar = place
    fills = [
        (at, shares, price, cost)
        for kind, _, at, traded, shares, price, cost in trades
        if kind == 0 and traded == asset and (shares > 0) == (report.shares > 0)
    ]
    is_stop = report.stop_usd is not None
    is_reached = stop == 0.0
    level = stop or 0.0
    left = report.shares
    reports = []
    for at in range(bar + 1, account.bar + 1):
        split = float(account.splits_at(at)[asset])
        left *= split
        level /= split
        before = report
        for _, shares, price, cost in (fill for fill in fills if fill[0] == at):
            if is_stop == is_reached:
                left -= shares
                filled = report.filled + shares
                mean = report.price_usd + (price - report.price_usd) * (shares / filled)
                cost += report.cost_usd
                report = replace(
                    report, state="partial", filled=filled, price_usd=mean, cost_usd=cost
                )
        # `envs.resting.reach_stops`: by the shares that are held after the bar's fills.
        held = account.trade_log.shares[at, asset]
        if level > 0.0 and not is_reached:
            low = float(account.view.ranges[at, 0, asset])
            is_reached = held > 0.0 < low <= level * USD_GRID
        # A split may leave a part of a share, and fractions a rounding error, that never trade.
        is_whole = abs(left) < 1.0
        if account.settings.fractional:
            is_whole = abs(left) * report.price_usd <= DUST_USD
        if report.filled and (held == 0.0 if is_stop else is_whole):
            report = replace(report, state="filled")
        else:
            report = _end_order(report, account, at, at - bar, is_reached)
        if report != before:
            reports.append((int(account.market.minutes[at]), report))
        if report.is_over:
            break
    return reports


def _end_order(
    report: OrderReport, account: BacktestAccount, at: int, bars: int, is_reached: bool
) -> OrderReport:
    """End an order that rests no longer after bar `at`, its `bars`-th; return others unchanged."""
    reason = ""
    if (report.limit_usd, report.stop_usd) == (None, None):
        reason = "the bar's volume, the cash or the limits allow no more"
    elif is_reached and report.stop_usd is None:
        reason = "its position's stop was reached"
    elif account.settings.time_in_force == bars and report.stop_usd is None:
        return replace(report, state="expired", reason="its time in force is over")
    elif at == account.bar:
        reason = "the next decision replaces it"
    return replace(report, state="cancelled", reason=reason) if reason else report
