"""Orders that rest in accounts until the bars trade through them: limits, quotes and stops.

`advance_resting` is `account.advance` for `action: limit` and `quote`. The action's orders replace
the resting ones; then each bar fills the orders that it trades through. Nothing inside a bar
happens in the account's favour: a bar that only touches a price fills nothing, no sale pays for a
purchase in the same bar, and where a bar reaches the stop of a position, no limit closes the
position first. An order that fills at its limit price provides liquidity and pays the commission
alone; an order that fills at a bar's open takes liquidity, and pays half-spread and impact, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fintrader.envs.account import (
    LEFT,
    ORDER_ROWS,
    PRICE,
    Account,
    Advanced,
    Fills,
    Marks,
    Orders,
    Record,
    apply_events,
    desired_shares,
    end_interval,
    fill_orders,
    find_owed,
    mark_to_market,
    may_hold,
    purchase_budget,
    record_step,
    split_shares,
)
from fintrader.envs.episodes import select
from fintrader.envs.market_view import LARGEST, MarketView, Quote
from fintrader.envs.money import DUST_USD, USD_GRID, in_usd, round_to_zero
from fintrader.envs.reward import Reward
from fintrader.envs.settings import EnvSettings


class Auction(NamedTuple):
    """The orders that a bar's opening auction meets, S of each asset: one, or a bid and an ask."""

    price: Tensor
    """`[B, N]` USD, 0 where nothing trades."""
    is_met: Tensor
    """`[B, S, N]` bool: the order is as good as the price, or better."""
    shares: Tensor
    """`[B, S, N]`, signed: the part of a met order that finds a counterparty."""
    outside: Tensor
    """`[B, S, N]`: share of it that trades with the market, not with other traders."""


OpenBar = Callable[[Tensor, Tensor, Tensor], Auction]
"""Maps orders (signed shares, and the worst opening prices that they accept, `[B, S, N]` each) and
quoted prices `[B, N]` to the auction's result."""


class BarTrade(NamedTuple):
    """One order of each asset in one bar: `limit` actions have one, `quote` actions a bid and an
    ask."""

    orders: Orders
    quote: Quote
    """Fill prices, 0 without a fill."""
    fills: Fills


def advance_resting(
    view: MarketView,
    account: Account,
    action: Tensor,
    settings: EnvSettings,
    reward: Reward,
    *,
    record: bool,
    open_bar: OpenBar | None = None,
) -> Advanced:
    """Carry each account from one decision to its next one, as `account.advance` does; `action`
    `[B, A]`. `open_bar` lets orders move each opening price, and match among themselves.

    A record's `ordered` holds the orders as placed, the bid minus the ask; its fills cover the
    whole interval: sums of shares and costs, and mean prices.
    """
    now = account._replace(resting=place_orders(view, account, action, settings))
    placed = now.resting[:, LEFT : settings.num_sides * ORDER_ROWS : ORDER_ROWS].sum(1)
    cost = turnover = torch.zeros_like(account.cash)
    bars = []
    closes = []
    entries = []
    for _ in range(settings.decision_interval):
        moves = now.bar < now.end_bar
        start, rested = begin_bar(view, now, settings)
        sides = trade_bar(view, start, rested, settings, open_bar)
        fills = sides[-1].fills._replace(
            cost=sum((side.fills.cost for side in sides), cost),
            turnover=sum((side.fills.turnover for side in sides), turnover),
        )
        marks = mark_to_market(view, now, start.bar, fills, settings, 1)
        resting = rest_on(view, sides, rested, marks, settings)
        if settings.close_at_end:
            resting = torch.where((start.bar == now.end_bar).view(-1, 1, 1), 0.0, resting)
        after = now._replace(
            bar=start.bar,
            cash=marks.books.cash,
            shares=marks.books.shares,
            equity=marks.equity,
            resting=resting,
        )
        cost = torch.where(moves, marks.books.cost, cost)
        turnover = torch.where(moves, marks.books.turnover, turnover)
        if record:
            passed = [record_step(account.bar, *side, marks, settings) for side in sides]
            entries.append([entry.without(~moves) for entry in passed])
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


# --- orders ---------------------------------------------------------------------------------------


def place_orders(
    view: MarketView, account: Account, action: Tensor, settings: EnvSettings
) -> Tensor:
    """Turn actions `[B, A]` into the orders `[B, R, N]` that rest from now on. A stop that a bar
    has reached keeps closing its position."""
    mark = view.mark_at(account.bar)
    parts = torch.split(action.float().clamp(-1.0, 1.0), account.shares.shape[1], 1)
    if settings.action == "quote":
        orders = lay_quotes(parts[0], parts[1], account, mark, settings)
        aim = account.shares
    else:
        aim = desired_shares(parts[0], account.shares, account.equity, mark, settings)
        offset = parts[1].double() * (settings.limit_offset_bps / 1e4)
        orders = lay_order(aim - account.shares, mark.double() * (1.0 + offset))
    if settings.stop_offset_bps is not None:
        stop = lay_stop(parts[-1], aim, account.shares, mark, settings.stop_offset_bps / 1e4)
        orders = torch.cat((orders, stop.unsqueeze(1)), 1)
    if settings.turbulence:
        # In turbulence everything is sold, at any price.
        risk_off = view.risk_off[account.bar].view(-1, 1, 1)
        orders = torch.where(risk_off, close_at_any_price(account.shares, settings), orders)
    if settings.has_stops:
        is_reached = account.resting[:, -1:].abs() == LARGEST
        orders = torch.where(is_reached, account.resting, orders)
    return orders


def lay_order(left: Tensor, price: Tensor) -> Tensor:
    """Lay out orders `[B, 3, N]` of signed shares `[B, N]` at prices `[B, N]` USD."""
    orders = torch.stack((left, price, torch.zeros_like(left)), 1)
    return torch.where((left != 0).unsqueeze(1), orders, 0.0)


def lay_quotes(
    below: Tensor, above: Tensor, account: Account, mark: Tensor, settings: EnvSettings
) -> Tensor:
    """Lay out a bid and an ask for each asset, `[B, 6, N]`, from the actions that name their
    distances, `[B, N]` each: -1 is the close, 1 `limit_offset_bps` away from it."""
    widest = settings.limit_offset_bps / 1e4
    usd = settings.quote_weight * torch.relu(account.equity).unsqueeze(1)
    price = torch.where(mark > 0, mark, 1.0).double()
    size = torch.where(mark > 0, round_to_zero(usd / price, settings), 0.0)
    sale = size if settings.short else torch.minimum(size, account.shares)
    bid = lay_order(size, mark.double() * (1.0 - (0.5 + 0.5 * below.double()) * widest))
    ask = lay_order(-sale, mark.double() * (1.0 + (0.5 + 0.5 * above.double()) * widest))
    return torch.cat((bid, ask), 1)


def lay_stop(wish: Tensor, aim: Tensor, shares: Tensor, mark: Tensor, farthest: float) -> Tensor:
    """Price `[B, N]` of stops: USD, negative where a short position is bought back. Stops protect
    the target holdings `aim` or, where these are 0, the present `shares`. `wish` `[B, N]`: there is
    no stop up to 0; just above 0 the stop is `farthest` from the close, a fraction of its price; at
    1 it is at the close."""
    side = find_side(aim, mark)
    side = torch.where(side == 0, find_side(shares, mark), side)
    away = (1.0 - wish.double()) * farthest
    stop = side * (mark.double() * (1.0 - side * away))
    return torch.where(wish > 0, stop, 0.0)


def close_at_any_price(shares: Tensor, settings: EnvSettings) -> Tensor:
    """Orders `[B, R, N]` that close all holdings at the next open, whatever it is."""
    price = torch.where(shares < 0, LARGEST, 0.0).double()
    rows = lay_order(-shares, price)
    rest = rows.new_zeros(len(rows), settings.resting_rows - ORDER_ROWS, rows.shape[2])
    return torch.cat((rows, rest), 1)


# --- a bar ----------------------------------------------------------------------------------------


def begin_bar(view: MarketView, account: Account, settings: EnvSettings) -> tuple[Orders, Tensor]:
    """Apply the next bar's splits and dividends. Returns the books before its fills, and the
    resting orders `[B, R, N]`."""
    bar = torch.minimum(account.bar + 1, account.end_bar)
    mark = view.mark_at(account.bar)
    cash = account.cash
    shares = account.shares
    income = torch.zeros_like(cash)
    rested = account.resting
    row = view.event_row.index_select(0, bar)
    if view.has_events and may_hold(row > 0):
        split = view.splits[row]
        dividends = view.dividends[row]
        cash, shares, income = apply_events(cash, shares, mark, split, dividends, settings)
        mark = (mark.double() - dividends) / split
        rested = rested.clone()
        for first in range(0, settings.num_sides * ORDER_ROWS, ORDER_ROWS):
            rested[:, first + LEFT] = split_shares(rested[:, first + LEFT], split, settings)
            rested[:, first + PRICE] /= split
        if settings.has_stops:
            stop = rested[:, -1]
            rested[:, -1] = torch.where(stop.abs() == LARGEST, stop, stop / split)
    owed = find_owed(view, account, account.bar)
    return Orders(bar, cash, shares, shares, mark, income, owed), rested


def trade_bar(
    view: MarketView,
    start: Orders,
    rested: Tensor,
    settings: EnvSettings,
    open_bar: OpenBar | None = None,
) -> list[BarTrade]:
    """Fill the resting orders that a bar trades through: bids, then asks."""
    quote = view.quote(start.bar)
    low, high = bar_range(view, start.bar)
    used = rested[:, : settings.num_sides * ORDER_ROWS]
    rows = used.view(len(used), settings.num_sides, ORDER_ROWS, used.shape[2])
    auction = None
    if open_bar is not None:
        held_back = [
            hold_back(row, rested, start.shares, start, low, high, settings)
            for row in rows[:, :, LEFT].unbind(1)
        ]
        left = torch.stack(held_back, 1)
        may_trade = quote.buyable.unsqueeze(1) | (left * start.shares.unsqueeze(1) < 0)
        most = quote.order_limit.double().unsqueeze(1)
        worst = accept_price(rows[:, :, LEFT], rows[:, :, PRICE], settings)
        wanted = torch.where(may_trade, left, 0.0).clamp(-most, most)
        auction = open_bar(wanted, worst, quote.price)
        quote = quote._replace(price=auction.price)
    sides = []
    room = None
    now = start
    for side in range(settings.num_sides):
        left, price, _ = rows[:, side].unbind(1)
        left = hold_back(left, rested, now.shares, start, low, high, settings)
        here = left, low, high, quote
        if auction is not None:
            here = meet_auction(*here, auction, side)
        orders, met = meet_bar(now, price, *here, settings)
        if room is None:
            room = purchase_budget(start.cash, start.shares, start, met, settings)
        fills = fill_orders(orders, met, settings, room=room)
        sides.append(BarTrade(orders, met, fills))
        now = orders._replace(cash=fills.cash, shares=fills.shares)
        bought = in_usd(fills.bought, met.price).abs().sum(1)
        room = room - (bought + settings.max_leverage * fills.cost)
    return sides


def hold_back(
    left: Tensor,
    rested: Tensor,
    shares: Tensor,
    start: Orders,
    low: Tensor,
    high: Tensor,
    settings: EnvSettings,
) -> Tensor:
    """Cut orders of signed shares `left` `[B, N]` to what a bar with these lows and highs may fill
    while `shares` `[B, N]` are held."""
    if settings.has_stops:
        # A stop that the bar reaches comes before any order that would close the position.
        stop = rested[:, -1]
        held_up = reach_stops(stop, shares, low, high) & (stop.abs() < LARGEST)
        left = torch.where(held_up & (left * shares < 0), 0.0, left)
    if not settings.short:
        # An ask cannot sell shares that a bid buys in the same bar.
        left = torch.maximum(left, -start.shares)
    return left


def accept_price(left: Tensor, price: Tensor, settings: EnvSettings) -> Tensor:
    """Find the prices that the market must reach for orders of signed shares `left` at a limit
    `price` to fill: lower for purchases, by the margin, and higher for sales."""
    margin = settings.limit_margin_bps / 1e4
    return price * torch.where(left > 0, 1.0 - margin, 1.0 + margin)


def meet_auction(
    left: Tensor, low: Tensor, high: Tensor, quote: Quote, auction: Auction, side: int
) -> tuple[Tensor, Tensor, Tensor, Quote]:
    """Prepare orders of one side (0: bids or all, 1: asks), a bar's range and its quote for
    `meet_bar`: an order that the auction meets fills there or waits for the next bar."""
    is_met = auction.is_met[:, side]
    part = torch.clamp(auction.shares[:, side], left.clamp(max=0.0), left.clamp(min=0.0))
    outside = torch.where(is_met, auction.outside[:, side], 1.0)
    quote = quote._replace(
        inverse_root_volume=quote.inverse_root_volume * outside, spread=quote.spread * outside
    )
    # Beyond every price, so that the bar trades through each order that the auction meets.
    low = torch.where(is_met, -1.0, low)
    high = torch.where(is_met, torch.inf, high)
    return torch.where(is_met, part, left), low, high, quote


def bar_range(view: MarketView, bar: Tensor) -> tuple[Tensor, Tensor]:
    """Lows and highs `[B, N]` USD of the bars `[B]`, 0 where nothing trades."""
    low, high = (view.ranges.index_select(0, bar).double() / USD_GRID).unbind(1)
    return low, high


def reach_stops(stop: Tensor, shares: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Find the positions `[B, N]` bool whose stops a bar reaches."""
    side = find_side(shares, high)
    sells = (side > 0) & (stop > 0) & (low <= stop)
    buys = (side < 0) & (stop < 0) & (high >= -stop)
    return sells | buys


def find_side(shares: Tensor, price: Tensor) -> Tensor:
    """Return 1 for long positions `[B, N]`, -1 for short ones, 0 for those worth a cent at most,
    which rounding may leave."""
    return torch.where(shares.abs() * price > DUST_USD, shares.sign(), 0.0)


def meet_bar(
    now: Orders,
    price: Tensor,
    left: Tensor,
    low: Tensor,
    high: Tensor,
    quote: Quote,
    settings: EnvSettings,
) -> tuple[Orders, Quote]:
    """Match orders of signed shares and prices `[B, N]` with a bar. Returns the orders of that bar
    and their fill prices."""
    buys = left > 0
    worst = accept_price(left, price, settings)
    through = torch.where(buys, low < worst, high > worst)
    fills = through & (left != 0) & (quote.price > 0)
    best = torch.where(buys, torch.minimum(price, quote.price), torch.maximum(price, quote.price))
    at_open = best == quote.price
    met = quote._replace(
        price=torch.where(fills, best, 0.0),
        inverse_root_volume=torch.where(at_open, quote.inverse_root_volume, 0.0),
        spread=torch.where(at_open, quote.spread, 0.0),
    )
    desired = now.shares + torch.where(fills, left, 0.0)
    desired = desired if settings.short else torch.relu(desired)
    return now._replace(desired=desired), met


def rest_on(
    view: MarketView,
    sides: list[BarTrade],
    rested: Tensor,
    marks: Marks,
    settings: EnvSettings,
) -> Tensor:
    """Return the orders `[B, R, N]` that still rest after a bar."""
    bar = sides[0].orders.bar
    ended = view.last_bar <= bar.unsqueeze(1)
    for change in marks.changes:
        ended = ended | change.called.unsqueeze(1)
    orders = []
    for number, side in enumerate(sides):
        left, price, age = rested[:, ORDER_ROWS * number :][:, :ORDER_ROWS].unbind(1)
        filled = side.fills.shares - side.orders.shares
        left = left - filled
        age = age + 1.0
        over = (left == 0) | ended
        if settings.fractional:  # which may leave a rounding error
            over = over | (left.abs() * side.orders.mark.double() <= DUST_USD) & (filled != 0)
        if settings.time_in_force is not None:
            over = over | (age >= settings.time_in_force)
        orders.append(torch.where(over.unsqueeze(1), 0.0, torch.stack((left, price, age), 1)))
    if not settings.has_stops:
        return torch.cat(orders, 1)

    # Stops that the bar reached close positions at the next opens, until nothing is left.
    shares = marks.books.shares
    stop = rested[:, -1]
    protects = (shares * stop > 0) & ~ended
    is_reached = reach_stops(stop, shares, *bar_range(view, bar)) | (stop.abs() == LARGEST)
    is_reached = is_reached & protects
    gone = ended | (stop.abs() == LARGEST) & ~protects
    rows = torch.cat((*orders, torch.where(gone, 0.0, stop).unsqueeze(1)), 1)
    closing = close_at_any_price(shares, settings)
    closing[:, -1] = torch.where(stop > 0, LARGEST, -LARGEST)
    return torch.where(is_reached.unsqueeze(1), closing, rows)


# --- records --------------------------------------------------------------------------------------


def join_records(entries: list[list[Record]], placed: Tensor, marks: Marks) -> Record:
    """Join the records of the sides of an interval's bars; `placed` `[B, N]`: the shares ordered at
    its decision."""
    sides = [entry for bar in entries for entry in bar]
    shares = torch.stack([entry.fill_shares for entry in sides])
    prices = torch.stack([entry.fill_price for entry in sides])
    weight = shares.abs()
    total = weight.sum(0)
    mean = (weight * prices).sum(0) / torch.where(total > 0, total, 1.0)

    def bar_by_bar(name: str) -> Tensor:
        return torch.cat([getattr(bar[0], name) for bar in entries], 1)

    return sides[0]._replace(
        ordered=placed,
        fill_shares=shares.sum(0),
        fill_price=mean,
        fill_cost=torch.stack([entry.fill_cost for entry in sides]).sum(0),
        bars=marks.bars,
        bar_equity=marks.closes,
        closed_shares=bar_by_bar("closed_shares"),
        closed_cost=bar_by_bar("closed_cost"),
        interest=bar_by_bar("interest"),
        income=bar_by_bar("income"),
        cost=marks.books.cost,
        turnover=marks.books.turnover,
    )
