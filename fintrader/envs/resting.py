"""Limit orders that rest in accounts until the bars trade through them.

`advance_resting` is `account.advance` for `action: limit`. The action's orders replace the resting
ones; then each bar fills the orders that it trades through. Nothing inside a bar happens in the
account's favour: a bar that only touches a price fills nothing, and no sale pays for a purchase in
the same bar. An order that fills at its limit price provides liquidity and pays the commission
alone; an order that fills at a bar's open takes liquidity, and pays half-spread and impact, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fintrader.envs.account import (
    LEFT,
    Account,
    Fills,
    Marks,
    Orders,
    Record,
    apply_events,
    desired_shares,
    end_interval,
    fill_orders,
    mark_to_market,
    may_hold,
    record_step,
    split_shares,
)
from fintrader.envs.episodes import select
from fintrader.envs.market_view import LARGEST, MarketView, Quote
from fintrader.envs.money import DUST_USD, USD_GRID
from fintrader.envs.reward import Reward
from fintrader.envs.settings import EnvSettings


def advance_resting(
    view: MarketView,
    account: Account,
    action: Tensor,
    settings: EnvSettings,
    reward: Reward,
    *,
    record: bool,
) -> tuple[Account, Tensor, Tensor, Tensor, Record | None]:
    """Carry each account from one decision to its next one, as `account.advance` does; `action`
    `[B, 2 N]`.

    A record's `ordered` holds the orders as placed; its fills cover the whole interval: sums of
    shares and costs, and mean prices.
    """
    now = account._replace(resting=place_limits(view, account, action, settings))
    placed = now.resting[:, LEFT]
    cost = torch.zeros_like(account.cash)
    turnover = torch.zeros_like(account.cash)
    bars = []
    closes = []
    entries = []
    for _ in range(settings.decision_interval):
        moves = now.bar < now.end_bar
        orders, quote, rested = meet_bar(view, now, settings)
        fills = fill_orders(orders, quote, settings, inside=True)
        fills = fills._replace(cost=cost + fills.cost, turnover=turnover + fills.turnover)
        marks = mark_to_market(view, now, orders.bar, fills, settings, 1)
        after = now._replace(
            bar=orders.bar,
            cash=marks.books.cash,
            shares=marks.books.shares,
            equity=marks.equity,
            resting=rest_on(view, orders, rested, fills, marks, settings),
        )
        cost = torch.where(moves, marks.books.cost, cost)
        turnover = torch.where(moves, marks.books.turnover, turnover)
        if record:
            passed = record_step(account.bar, orders, quote, fills, marks, settings)
            entries.append(passed.without(~moves))
        now = select(moves, after, now)
        bars.append(now.bar)
        closes.append(now.equity)
    nothing = torch.zeros_like(now.shares)
    each = torch.stack(closes, 1)
    marks = Marks(
        bars=torch.stack(bars, 1),
        closes=each,
        equity=now.equity,
        highest=each.amax(1),
        books=Fills(now.cash, now.shares, nothing, nothing, cost, turnover),
        changes=[],
    )
    after, value, terminated, truncated = end_interval(view, account, marks, settings, reward)
    entry = join_records(entries, placed, marks) if entries else None
    return after._replace(resting=now.resting), value, terminated, truncated, entry


def place_limits(
    view: MarketView, account: Account, action: Tensor, settings: EnvSettings
) -> Tensor:
    """Turn actions `[B, 2 N]`, weights and prices, into resting orders `[B, 3, N]`."""
    weights, offset = action.float().clamp(-1.0, 1.0).chunk(2, 1)
    mark = view.mark_at(account.bar)
    left = desired_shares(weights, account.shares, account.equity, mark, settings) - account.shares
    price = mark.double() * (1.0 + offset.double() * (settings.limit_offset_bps / 1e4))
    if settings.turbulence:
        # In turbulence everything is sold, at any price.
        risk_off = view.risk_off[account.bar].unsqueeze(1)
        left = torch.where(risk_off, -account.shares, left)
        price = torch.where(risk_off, torch.where(left > 0, LARGEST, 0.0), price)
    orders = torch.stack((left, price, torch.zeros_like(left)), 1)
    return torch.where((left != 0).unsqueeze(1), orders, 0.0)


def meet_bar(
    view: MarketView, account: Account, settings: EnvSettings
) -> tuple[Orders, Quote, Tensor]:
    """Match the resting orders with the next bar. Returns the orders of that bar, their fill prices
    (0 without a fill), and the resting orders after the bar's splits."""
    bar = torch.minimum(account.bar + 1, account.end_bar)
    mark = view.mark_at(account.bar)
    cash = account.cash
    shares = account.shares
    income = torch.zeros_like(cash)
    left, price, age = account.resting.unbind(1)
    row = view.event_row.index_select(0, bar)
    if view.has_events and may_hold(row > 0):
        split = view.splits[row]
        dividends = view.dividends[row]
        cash, shares, income = apply_events(cash, shares, mark, split, dividends, settings)
        mark = (mark.double() - dividends) / split
        left = split_shares(left, split, settings)
        price = price / split
    rested = torch.stack((left, price, age), 1)

    quote = view.quote(bar)
    low, high = (view.ranges.index_select(0, bar).double() / USD_GRID).unbind(1)
    margin = settings.limit_margin_bps / 1e4
    buys = left > 0
    through = torch.where(buys, low < price * (1.0 - margin), high > price * (1.0 + margin))
    fills = through & (left != 0) & (quote.price > 0)
    best = torch.where(buys, torch.minimum(price, quote.price), torch.maximum(price, quote.price))
    at_open = best == quote.price
    quote = quote._replace(
        price=torch.where(fills, best, 0.0),
        inverse_root_volume=torch.where(at_open, quote.inverse_root_volume, 0.0),
        spread=torch.where(at_open, quote.spread, 0.0),
    )
    desired = shares + torch.where(fills, left, 0.0)
    desired = desired if settings.short else torch.relu(desired)
    return Orders(bar, cash, shares, desired, mark, income), quote, rested


def rest_on(
    view: MarketView,
    orders: Orders,
    rested: Tensor,
    fills: Fills,
    marks: Marks,
    settings: EnvSettings,
) -> Tensor:
    """Return the orders `[B, 3, N]` that still rest after a bar."""
    filled = fills.shares - orders.shares
    left, price, age = rested.unbind(1)
    left = left - filled
    age = age + 1.0
    over = (left == 0) | (view.last_bar <= orders.bar.unsqueeze(1))
    if settings.fractional:  # which may leave a rounding error
        over = over | (left.abs() * orders.mark.double() <= DUST_USD) & (filled != 0)
    for change in marks.changes:
        over = over | change.called.unsqueeze(1)
    if settings.time_in_force is not None:
        over = over | (age >= settings.time_in_force)
    return torch.where(over.unsqueeze(1), 0.0, torch.stack((left, price, age), 1))


def join_records(entries: list[Record], placed: Tensor, marks: Marks) -> Record:
    """Join the records of an interval's bars; `placed` `[B, N]`: the shares ordered at its
    decision."""
    shares = torch.stack([entry.fill_shares for entry in entries])
    prices = torch.stack([entry.fill_price for entry in entries])
    weight = shares.abs()
    total = weight.sum(0)
    mean = (weight * prices).sum(0) / torch.where(total > 0, total, 1.0)

    def bar_by_bar(name: str) -> Tensor:
        return torch.cat([getattr(entry, name) for entry in entries], 1)

    return entries[0]._replace(
        ordered=placed,
        fill_shares=shares.sum(0),
        fill_price=mean,
        fill_cost=torch.stack([entry.fill_cost for entry in entries]).sum(0),
        bars=marks.bars,
        bar_equity=marks.closes,
        closed_shares=bar_by_bar("closed_shares"),
        closed_cost=bar_by_bar("closed_cost"),
        interest=bar_by_bar("interest"),
        income=bar_by_bar("income"),
        cost=marks.books.cost,
        turnover=marks.books.turnover,
    )
