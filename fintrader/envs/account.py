"""One account, from a decision to the next: orders → fills → mark_to_market → outcome.

`advance` carries out the whole step; the functions below it follow in the order of its calls. All
are pure: none changes its arguments, draws from a generator or waits for the device. `envs.fast`
holds the same functions, under the same names, compiled for the CPU.

A trade of q shares and notional x (USD, both >= 0) costs

    max(m [x > dust] - f x, 0) + min(f x + h x + kappa x sqrt(min(q / v, 1)) + c(x) x, x)

with f commission, h half-spread, kappa impact (the square-root law: Almgren et al. 2005, Toth et
al. 2011), v the bar's volume in shares, c the account's own move of the price where traders share
the market in training (`envs.games`) and m an order's minimum commission. An order takes at most a
share `participation` of v; its rest is cancelled. Trades fill at the bar's price and lose only
their cost, so that for each account and step

    V[t+1] - V[t] = sum_i (price P&L of holdings and fills)_i + dividends - costs

Shapes: B accounts, N assets, k bars of a decision interval. Shares and cash are float64, prices the
market's float32, amounts of money whole units (`envs.money`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fintrader.envs.market_view import STRIKE_POINT, MarketView, Quote
from fintrader.envs.money import (
    DUST_USD,
    LEAST_CHANGE,
    SPLIT_NUDGE,
    USD_GRID,
    WEIGHT_GRID,
    in_usd,
    round_to_zero,
    to_grid,
)
from fintrader.envs.reward import REMEMBERING, Outcome, Reward, update_memory
from fintrader.envs.settings import MOST_IMPACT, EnvSettings

MovePrices = Callable[[Tensor, Tensor], Tensor]
"""Maps orders (signed shares) and quoted prices to the prices at which the orders fill, `[B, N]`
each; 0 stays 0."""

# An interval is marked in one operation while its products, [B, k, N] float64, stay below 1 MB,
# within a core's cache; beyond that, marking in parts is up to twice as fast.
MARKS_AT_ONCE = 1 << 17

LEFT, PRICE, AGE = range(3)
"""Rows of an order in `Account.resting`."""
ORDER_ROWS = 3


class Account(NamedTuple):
    """B accounts. Times are bar numbers of the environment's window."""

    bar: Tensor
    """`[B]` int64: the bar at whose close the account is."""
    cash: Tensor
    """`[B]` float64, USD."""
    shares: Tensor
    """`[B, N]` float64."""
    equity: Tensor
    """`[B]` float64: cash + shares marked at the close of `bar`, less the option's value."""
    peak_equity: Tensor
    """`[B]` float64: highest equity at any close of this episode."""
    first_equity: Tensor
    """`[B]` float64: equity at the episode's start."""
    start_bar: Tensor
    """`[B]` int64."""
    end_bar: Tensor
    """`[B]` int64: the episode is truncated at the close of this bar."""
    episode: Tensor
    """`[B]` int64: episodes begun since the seeding."""
    memory: Tensor
    """`[B, 2]` float64: moments of the step returns, for the differential Sharpe ratio."""
    finished: Tensor
    """`[B]` bool: the last step ended the episode and the account was not reset yet."""
    resting: Tensor
    """`[B, R, N]` float64: one order of each asset, or with `quote` actions a bid, then an ask.
    Three rows each: shares still to trade, > 0 to buy; limit price, USD; bars since the decision.
    With stops the last row has their prices, USD: negative where a short position is bought back,
    the largest number (`market_view.LARGEST`) once a bar has reached the stop. `[B, 0, N]` unless
    orders rest."""


class Orders(NamedTuple):
    """Holdings to reach in the bar of the fill, after its splits and dividends."""

    bar: Tensor
    """`[B]` int64: the bar of the fill."""
    cash: Tensor
    """`[B]` USD before the fill."""
    shares: Tensor
    """`[B, N]` before the fill."""
    desired: Tensor
    """`[B, N]` shares after a complete fill."""
    mark: Tensor
    """`[B, N]` USD: the last close, adjusted for the fill bar's splits and dividends."""
    income: Tensor
    """`[B]` USD of the bar's events."""
    owed: Tensor | float
    """`[B]` USD: value of the option at the previous close; 0.0 without an option."""


class Fills(NamedTuple):
    """The part of the orders that filled."""

    cash: Tensor
    """`[B]` USD after the fills."""
    shares: Tensor
    """`[B, N]` after the fills."""
    sold: Tensor
    """`[B, N]`, signed: the part of a holding that was closed, > 0 where shares were sold."""
    bought: Tensor
    """`[B, N]`, signed: the part added to a holding, > 0 where shares were bought."""
    cost: Tensor
    """`[B]` USD."""
    turnover: Tensor
    """`[B]` USD, sum of the notionals."""


class Change(NamedTuple):
    """Books after one bar at which holdings or cash change without an order."""

    number: Tensor
    """`[B]` int64: the bar's place in the interval, from 0; k where there is no such bar."""
    cash: Tensor
    """`[B]` USD after the bar."""
    shares: Tensor
    """`[B, N]` after the bar."""
    cost: Tensor
    """`[B]` USD paid since the decision."""
    turnover: Tensor
    """`[B]` USD traded since the decision."""
    income: Tensor
    """`[B]` USD of the bar's events."""
    interest: Tensor
    """`[B]` USD."""
    closed: Tensor
    """`[B, N]` shares, signed as trades: closed because the symbol ended, or by a margin call."""
    closed_cost: Tensor
    """`[B, N]` USD."""
    called: Tensor
    """`[B]` bool: there was a margin call."""


Books = Fills | Change
"""Cash, shares, cost and turnover at some bar of the interval."""


class Marks(NamedTuple):
    """The account at the close of each bar of the interval; bars after an early end repeat the
    last."""

    bars: Tensor
    """`[B, k]` int64."""
    closes: Tensor
    """`[B, k]` USD: equity at each close."""
    equity: Tensor
    """`[B]` USD at the last close."""
    highest: Tensor
    """`[B]` USD: largest of `closes`."""
    books: Books
    """Books at the last close."""
    changes: list[Change]
    """Changes of an interval in their order."""


class Record(NamedTuple):
    """The events between two decisions, in k = decision_interval bars; bars after an early end
    repeat the last one."""

    decision_bar: Tensor
    """`[B]`: the bar at whose close the orders were decided."""
    fill_bar: Tensor
    """`[B]`: the bar in which they filled."""
    ordered: Tensor
    """`[B, N]` shares, signed, after the fill bar's splits. The unfilled part was cancelled:
    nothing traded, the order exceeded its share of the volume, or cash ran out."""
    fill_shares: Tensor
    """`[B, N]`, signed: bought > 0."""
    fill_price: Tensor
    """`[B, N]`, 0 where the symbol did not trade."""
    fill_cost: Tensor
    """`[B, N]` USD: fees, spread and impact of the fills."""
    bars: Tensor
    """`[B, k]`: the bars passed; an account whose episode ends early stays at its last one."""
    bar_equity: Tensor
    """`[B, k]` USD at each bar's close."""
    closed_shares: Tensor
    """`[B, k, N]`, signed as `fill_shares`: forced at the close of that bar (symbol ended, margin
    call)."""
    closed_cost: Tensor
    """`[B, k, N]` USD: cost of the forced trades."""
    interest: Tensor
    """`[B, k]` USD: paid for borrowed stock and cash."""
    income: Tensor
    """`[B, k]` USD: dividends, and cash for fractions of a share that splits left; negative where
    shares were owed."""
    cost: Tensor
    """`[B]` USD: everything paid."""
    turnover: Tensor
    """`[B]` USD: all notionals traded."""

    def without(self, mask: Tensor) -> Record:
        """Clear trades and payments in the rows of `mask` `[B]`."""
        flows = {
            name: torch.where(mask.view(-1, *[1] * (value.ndim - 1)), 0.0, value)
            for name, value in self._asdict().items()
            if name not in ("decision_bar", "fill_bar", "fill_price", "bars", "bar_equity")
        }
        return self._replace(**flows)


Advanced = tuple[Account, Tensor, Tensor, Tensor, Record | None]
"""Account, reward `[B]` float64, terminated `[B]`, truncated `[B]`, record."""


def advance(
    view: MarketView,
    account: Account,
    action: Tensor,
    settings: EnvSettings,
    reward: Reward,
    *,
    record: bool,
    move_prices: MovePrices | None = None,
) -> Advanced:
    """Advance each account from one decision to its next one.

    `action` `[B, N]`; `move_prices` lets the orders change the fill prices before anything fills.
    """
    # The action becomes holdings to reach, sized at the close of the decision's bar.
    orders = place_orders(view, account, action, settings)

    # Orders fill in their bar: first sales, then purchases, scaled to the available cash.
    quote = view.quote(orders.bar)
    if move_prices is not None:
        moved = move_prices(orders.desired - orders.shares, quote.price)
        quote = quote._replace(price=moved)
    fills = fill_orders(orders, quote, settings)

    # Cash and holdings are marked at every close up to the next decision.
    marks = mark_to_market(view, account, orders.bar, fills, settings, settings.decision_interval)
    after, value, terminated, truncated = end_interval(view, account, marks, settings, reward)
    entry = record_step(account.bar, orders, quote, fills, marks, settings) if record else None
    return after, value, terminated, truncated, entry


def end_interval(
    view: MarketView, account: Account, marks: Marks, settings: EnvSettings, reward: Reward
) -> tuple[Account, Tensor, Tensor, Tensor]:
    """Reward the change of equity, and end episodes on ruin or at the time limit.

    Returns account, reward `[B]` float64, terminated `[B]`, truncated `[B]`.
    """
    outcome = measure_outcome(view, account, marks)
    memory = update_memory(outcome, settings) if settings.reward in REMEMBERING else account.memory
    bar = marks.bars[:, -1]
    terminated = outcome.equity <= settings.ruin_fraction * account.first_equity
    truncated = (bar >= account.end_bar) & ~terminated
    after = account._replace(
        bar=bar,
        cash=marks.books.cash,
        shares=marks.books.shares,
        equity=outcome.equity,
        peak_equity=outcome.peak,
        memory=memory,
        finished=terminated | truncated,
    )
    return after, settings.reward_scale * reward(outcome), terminated, truncated


# --- orders ---------------------------------------------------------------------------------------


def place_orders(
    view: MarketView, account: Account, action: Tensor, settings: EnvSettings
) -> Orders:
    """Turn actions `[B, N]` into holdings to reach in the bar of the fill."""
    at_close = settings.fill == "close"
    bar = account.bar if at_close else torch.minimum(account.bar + 1, account.end_bar)
    # Orders are sized with the prices, equity and shares at the decision.
    mark = view.mark_at(account.bar)
    desired = desired_shares(action, account.shares, account.equity, mark, settings)
    if settings.turbulence:
        # In turbulence everything is sold.
        desired = torch.where(view.risk_off[account.bar].unsqueeze(1), 0.0, desired)
    owed = find_owed(view, account, account.bar)
    row = view.event_row.index_select(0, bar)
    if at_close or not view.has_events or not may_hold(row > 0):
        nothing = torch.zeros_like(account.cash)
        return Orders(bar, account.cash, account.shares, desired, mark, nothing, owed)
    # A split before the fill applies to holdings and orders alike.
    split = view.splits[row]
    order = split_shares(desired - account.shares, split, settings)
    cash, shares, income = apply_events(
        account.cash, account.shares, mark, split, view.dividends[row], settings
    )
    new_mark = (mark.double() - view.dividends[row]) / split
    return Orders(bar, cash, shares, shares + order, new_mark, income, owed)


def desired_shares(
    action: Tensor, shares: Tensor, equity: Tensor, mark: Tensor, settings: EnvSettings
) -> Tensor:
    """Size the holdings `[B, N]` float64 that actions ask for, with prices known at the decision
    (`mark`, 0 without a price).

    The order is rounded, not the holding: an action that asks for the present holding orders
    nothing.
    """
    action = (action if action.requires_grad else action.float()).clamp(-1.0, 1.0)
    if settings.action != "trade":
        price = mark.double()
        target = target_shares(action, equity, price, settings)
        gap = target - shares
        order = step_towards(gap, settings)
        # Too small a change is no order, unless it closes the position.
        band = max(settings.band, LEAST_CHANGE) * torch.relu(equity).unsqueeze(1)
        near = (gap.abs() * price <= band) & (target != 0)
        order = torch.where(near, 0.0, order)
    else:
        # In float32, where 0.29 * 100 is 29, as intended; in float64 it truncates to 28.
        size = action * settings.max_shares
        size = torch.where(action.abs() > settings.band, size, 0.0)
        order = round_to_zero(size.double(), settings)
    desired = shares + order
    return desired if settings.short else torch.relu(desired)


def clip_weights(action: Tensor, settings: EnvSettings) -> Tensor:
    """Round actions `[B, N]` to the grid of weights; without shorts, negative ones to 0."""
    weights = to_grid(action.double(), WEIGHT_GRID)
    return weights if settings.short else torch.relu(weights)


def target_shares(action: Tensor, equity: Tensor, price: Tensor, settings: EnvSettings) -> Tensor:
    """Holdings `[B, N]` of the weights w = relu(a) / max(1, sum relu(a)), the rest cash; with
    shorts w = a / max(1, sum |a| / leverage). 0 where there is no price."""
    weights = clip_weights(action, settings)
    gross = weights.abs().sum(1)
    if settings.short:
        gross = gross / settings.max_leverage
    usd = weights * (torch.relu(equity) / torch.clamp(gross, min=1.0)).unsqueeze(1)
    priced = price > 0
    return torch.where(priced, usd / torch.where(priced, price, 1.0), 0.0)


def step_towards(gap: Tensor, settings: EnvSettings) -> Tensor:
    """Scale the gap `[B, N]` to the target by `trade_rate`; whole shares move by at least one."""
    step = gap if settings.trade_rate == 1.0 else settings.trade_rate * gap
    if settings.fractional:
        return step
    step = torch.trunc(step)
    return torch.where(step == 0, torch.trunc(gap).clamp(-1.0, 1.0), step)


# --- events ---------------------------------------------------------------------------------------


def apply_events(
    cash: Tensor,
    shares: Tensor,
    mark: Tensor,
    split: Tensor,
    dividend: Tensor,
    settings: EnvSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply a bar's splits and dividends before anything trades in it: cash `[B]`, shares `[B, N]`,
    income `[B]` USD.

    `mark` is the previous close, `split` the new shares per old share, `dividend` USD per old
    share, `[B, N]` each. Where only whole shares trade, fractions are paid in cash, at that close.
    """
    after = split_shares(shares, split, settings)
    # With fractions the rest is rounding, far below a unit of money.
    rest = shares * split - after
    income = (in_usd(shares, dividend) + in_usd(rest, mark.double() / split)).sum(1)
    return cash + income, after, income


def split_shares(shares: Tensor, split: Tensor, settings: EnvSettings) -> Tensor:
    """Multiply shares `[B, N]` by `split`; unless `fractional`, truncate them."""
    product = shares * split
    if settings.fractional:
        return product
    whole = torch.trunc(product + torch.sign(product) * SPLIT_NUDGE)
    return torch.where(split == 1.0, shares, whole)


# --- fills ----------------------------------------------------------------------------------------


def fill_orders(
    orders: Orders, quote: Quote, settings: EnvSettings, *, room: Tensor | None = None
) -> Fills:
    """Fill orders in their bar: sales first, then purchases.

    Long-only accounts keep cash >= 0 and shares >= 0. `room` `[B]`: largest USD of purchases, for
    orders that fill inside the bar in an unknown sequence: no sale pays for a purchase there.
    """
    shares = orders.shares
    limit = quote.order_limit.double()
    # Limit each order to its share of the bar's volume.
    desired = torch.clamp(orders.desired, shares - limit, shares + limit)

    # Sales bring holdings, also short ones, nearer to 0.
    kept = sell(shares, desired, quote)
    sold = shares - kept
    received = in_usd(sold, quote.price)
    sales = received.abs()
    sales_cost = total_cost(sold, sales, quote, settings, closing=True)
    cash = orders.cash + (received.sum(1) - sales_cost)

    # Purchases take holdings further from zero, all scaled by one factor to fit the budget.
    budget = purchase_budget(cash, kept, orders, quote, settings)
    if room is not None:
        budget = torch.minimum(budget, room)
    filled = buy(kept, desired, budget, quote, settings)
    bought = filled - kept
    paid = in_usd(bought, quote.price)
    purchases = paid.abs()
    purchases_cost = total_cost(bought, purchases, quote, settings, closing=False)
    cash = cash - (paid.sum(1) + purchases_cost)
    if not settings.short:
        # Spending all cash may leave a rounding error, far below a unit.
        cash = torch.relu(cash)
    turnover = (sales + purchases).sum(1)
    return Fills(cash, filled, sold, bought, sales_cost + purchases_cost, turnover)


def sell(shares: Tensor, desired: Tensor, quote: Quote) -> Tensor:
    """Holdings `[B, N]` after the part of the orders that leads towards zero."""
    kept = torch.clamp(desired, torch.clamp(shares, max=0.0), torch.clamp(shares, min=0.0))
    return torch.where(quote.price > 0, kept, shares)


def buy(
    kept: Tensor, desired: Tensor, budget: Tensor, quote: Quote, settings: EnvSettings
) -> Tensor:
    """Holdings `[B, N]` after the part of the orders that leads beyond `kept`, scaled to the
    budget."""
    may_grow = quote.buyable & (quote.price > 0)
    addition = torch.where(may_grow, desired - kept, 0.0)
    scale = purchase_scale(addition, budget, quote, settings)
    return kept + round_to_zero(scale.unsqueeze(1) * addition, settings)


def purchase_budget(
    cash: Tensor, kept: Tensor, orders: Orders, quote: Quote, settings: EnvSettings
) -> Tensor:
    """USD `[B]` for purchases: the cash, or with shorts the room L V - G of the leverage limit L,
    with equity V and gross exposure G after the sales. Holdings that cannot trade count at the
    last close, as the option does."""
    if not settings.short:
        return cash
    value = in_usd(kept, torch.where(quote.price > 0, quote.price, orders.mark))
    equity = cash + value.sum(1) - orders.owed
    return settings.max_leverage * equity - value.abs().sum(1)


def purchase_scale(addition: Tensor, budget: Tensor, quote: Quote, settings: EnvSettings) -> Tensor:
    """Scale `[B]` in [0, 1] of all purchases, so that they fit the budget; 1 if they fit.

    With X = sum x, variable costs c of the orders and minimum commission m of each of n,
    long-only cash covers

        s X + s sum c(x) + n m <= cash

    which bounds the cost of the scaled orders from above: c(s x) <= s c(x), and no commission
    exceeds f s x + m. If the purchases do not fit, the rounding of amounts is reserved, too. With
    leverage L costs weigh L-fold.
    """
    notional = in_usd(addition, quote.price).abs()
    leverage = settings.max_leverage
    ordered = notional.sum(1)
    if settings.costs_are_proportional:
        variable = settings.cost_rate * ordered
    else:
        variable = to_grid(variable_cost(addition, notional, quote, settings), USD_GRID).sum(1)
    owed = settings.min_commission_usd * (notional > DUST_USD).sum(1, dtype=torch.float64)
    full = ordered + leverage * variable
    room = torch.relu(budget - leverage * (owed + 2.0 / USD_GRID * notional.shape[1]))
    scale = torch.clamp(room / torch.where(full > 0, full, 1.0), max=1.0)
    return torch.where(full + leverage * owed <= budget, 1.0, scale)


# --- costs ----------------------------------------------------------------------------------------


def total_cost(
    shares: Tensor, notional: Tensor, quote: Quote, settings: EnvSettings, *, closing: bool
) -> Tensor:
    """USD `[B]`: cost of all orders of an account. Proportional costs use the exact sum."""
    if settings.costs_are_proportional:
        return settings.cost_rate * notional.sum(1)
    return (closing_cost if closing else trade_cost)(shares, notional, quote, settings).sum(1)


def closing_cost(shares: Tensor, notional: Tensor, quote: Quote, settings: EnvSettings) -> Tensor:
    """USD `[B, N]`: `trade_cost`, but an order that reduces a position never costs more than its
    notional."""
    return torch.minimum(trade_cost(shares, notional, quote, settings), notional)


def trade_cost(shares: Tensor, notional: Tensor, quote: Quote, settings: EnvSettings) -> Tensor:
    """USD `[B, N]`: cost of orders of these shares (signed) and notionals (USD, >= 0)."""
    cost = variable_cost(shares, notional, quote, settings)
    if settings.min_commission_usd > 0.0:
        orders = (notional > DUST_USD).double()
        missing = settings.min_commission_usd * orders - settings.fee_rate * notional
        cost = cost + torch.relu(missing)
    return to_grid(cost, USD_GRID)


def variable_cost(shares: Tensor, notional: Tensor, quote: Quote, settings: EnvSettings) -> Tensor:
    """USD `[B, N]`: the part of the cost that grows with an order's size, at least in proportion,
    up to all of its notional."""
    rate = settings.fee_rate + quote.spread
    if settings.impact_per_usd > 0.0:
        # An account that trades alone moves the price by its own order, unless it waited for it.
        moved = torch.clamp(settings.impact_per_usd * notional, max=MOST_IMPACT)
        rate = rate + torch.where(quote.inverse_root_volume > 0, moved, 0.0)
    cost = rate * notional
    if settings.impact_rate == settings.impact_per_usd == 0.0:
        return cost
    # `where` differentiates both branches, and the root's slope at 0 is infinite.
    root = torch.sqrt(torch.where(shares == 0, 1.0, shares.abs()))
    share = torch.clamp(root * quote.inverse_root_volume.double(), max=1.0)
    return torch.minimum(cost + settings.impact_rate * (notional * share), notional)


# --- mark to market -------------------------------------------------------------------------------


def mark_to_market(
    view: MarketView,
    account: Account,
    fill_bar: Tensor,
    fills: Fills,
    settings: EnvSettings,
    interval: int,
) -> Marks:
    """Mark cash and holdings at each close of the next k = `interval` bars.

    Between two changes cash and holdings stay as they are, so that whole stretches of bars are
    marked in one operation.
    """
    ahead = account.bar.unsqueeze(1) + torch.arange(1, interval + 1, device=account.bar.device)
    bars = torch.minimum(ahead, account.end_bar.unsqueeze(1))

    # First update the books at the few bars at which something happens.
    happens = find_changes(view, bars, fill_bar, settings) & (ahead == bars)
    if settings.close_at_end:
        happens = happens | (ahead == account.end_bar.unsqueeze(1))
    changes = pass_changes(view, account, fills, bars, happens, fill_bar, settings)
    stages: list[Books] = [fills, *changes]
    books = stages[-1]

    # Then every bar is marked with the books of the last change up to it.
    stage = torch.zeros_like(bars)
    for change in changes:
        stage = stage + (ahead - account.bar.unsqueeze(1) > change.number.unsqueeze(1))
    if interval > 1 and books.cash.requires_grad:
        # Only the last and highest close get gradients: a graph of all closes costs k times more.
        with torch.no_grad():
            closes = mark_bars(view, account, stages, stage, bars)
        two = torch.stack((closes.argmax(1), torch.full_like(account.bar, interval - 1)), 1)
        marked = mark_bars(view, account, stages, stage.gather(1, two), bars.gather(1, two))
        highest, equity = marked.unbind(1)
    else:
        closes = mark_bars(view, account, stages, stage, bars)
        highest = closes.amax(1)
        equity = closes[:, -1]
    return Marks(bars, closes, equity, highest, books, changes)


def may_hold(mask: Tensor) -> bool:
    """Return True if any flag is set, and always on a GPU: reading the flags would wait for the
    device, which costs more than an unneeded pass."""
    return mask.device.type != "cpu" or bool(mask.any())


def find_changes(view: MarketView, bars: Tensor, fill_bar: Tensor, settings: EnvSettings) -> Tensor:
    """Find the bars `[B, k]` at which cash or holdings change without an order: `[B, k]` bool."""
    if view.max_changes == 0:
        return torch.zeros_like(bars, dtype=torch.bool)
    if settings.charges_interest or settings.maintenance_margin > 0.0:
        return torch.ones_like(bars, dtype=torch.bool)
    # Events of the fill's bar come before the orders.
    return view.ends[bars] | (view.event_row[bars] > 0) & (bars > fill_bar.unsqueeze(1))


def pass_changes(
    view: MarketView,
    account: Account,
    books: Books,
    bars: Tensor,
    happens: Tensor,
    fill_bar: Tensor,
    settings: EnvSettings,
) -> list[Change]:
    """Update each account's books at its bars `[B, k]` at which something `happens` `[B, k]`;
    return the books after the first such bar, after the second, and so on."""
    count = min(view.max_changes + settings.close_at_end, bars.shape[1])
    number = torch.arange(bars.shape[1], device=bars.device)
    changes = []
    for _ in range(count):
        if not may_hold(happens):
            break
        place = torch.where(happens, number, len(number)).amin(1)
        books = change_books(view, account, books, place, bars, fill_bar, settings)
        changes.append(books)
        happens = happens & (number > place.unsqueeze(1))
    return changes


def change_books(
    view: MarketView,
    account: Account,
    books: Books,
    place: Tensor,
    bars: Tensor,
    fill_bar: Tensor,
    settings: EnvSettings,
) -> Change:
    """Update books at the bar number `place` `[B]` of `bars` `[B, k]`, if there is one: events,
    interest, ends of symbols and episodes, a margin call."""
    interval = bars.shape[1]
    happens = place < interval
    column = place.clamp(max=interval - 1).unsqueeze(1)
    bar = bars.gather(1, column).squeeze(1)
    mark = view.mark_at(bar)
    before = view.mark_at(torch.clamp(bar - 1, min=0))
    cash = books.cash
    shares = books.shares
    income = interest = torch.zeros_like(cash)
    if view.has_events:
        row = torch.where(happens, view.event_row[bar], 0)
        due = torch.where(bar > fill_bar, row, 0)
        cash, shares, income = apply_events(
            cash, shares, before, view.splits[due], view.dividends[due], settings
        )
        before = before.double() / view.splits[row]
    if settings.charges_interest:
        # A year's rate on the short notional at the last close and on borrowed cash.
        borrowed = torch.relu(-in_usd(shares, before)).sum(1) + torch.relu(-cash)
        rate = settings.borrow_bps_per_year / 1e4
        interest = borrowed * rate * view.years[bar] * happens
        cash = cash - interest
    closed = torch.zeros_like(shares)
    change = Change(
        number=place,
        cash=cash,
        shares=shares,
        cost=books.cost + interest,
        turnover=books.turnover,
        income=income,
        interest=interest,
        closed=closed,
        closed_cost=closed,
        called=torch.zeros_like(happens),
    )
    quote = view.quote(bar)._replace(price=mark)
    if view.has_ends or settings.close_at_end:
        ends = view.last_bar == bar.unsqueeze(1)
        if settings.close_at_end:
            ends = ends | (bar == account.end_bar).unsqueeze(1)
        ends = ends & happens.unsqueeze(1)
        if may_hold(ends):
            change = close_positions(change, quote, ends, settings)
    if settings.maintenance_margin > 0.0:
        value = in_usd(change.shares, mark)
        exposure = value.abs().sum(1)
        equity = change.cash + value.sum(1) - find_owed(view, account, bar)
        called = happens & (equity < settings.maintenance_margin * exposure)
        trades = view.quote(bar).price > 0
        change = close_positions(change, quote, called.unsqueeze(1) & trades, settings)
        change = change._replace(called=called)
    return change


def close_positions(change: Change, quote: Quote, which: Tensor, settings: EnvSettings) -> Change:
    """Close the positions `which` `[B, N]` at the quote's price, with costs."""
    closed = torch.where(which, change.shares, 0.0)
    value = in_usd(closed, quote.price)
    notional = value.abs()
    cost = total_cost(closed, notional, quote, settings, closing=True)
    return change._replace(
        cash=change.cash + (value.sum(1) - cost),
        shares=torch.where(which, 0.0, change.shares),
        cost=change.cost + cost,
        turnover=change.turnover + notional.sum(1),
        closed=change.closed - closed,
        closed_cost=change.closed_cost + closing_cost(closed, notional, quote, settings),
    )


def mark_bars(
    view: MarketView, account: Account, stages: Sequence[Books], stage: Tensor, bars: Tensor
) -> Tensor:
    """Equity `[B, k]` USD at the closes of `bars` `[B, k]`, each with the books of its `stage`
    `[B, k]`."""
    cash = stages[0].cash.unsqueeze(1)
    shares = stages[0].shares.unsqueeze(1)
    if len(stages) > 1:
        accounts = torch.arange(len(bars), device=bars.device).unsqueeze(1)
        row = (len(stages) * accounts + stage).flatten()
        cash = torch.stack([books.cash for books in stages], 1).flatten()
        cash = cash.index_select(0, row).view(bars.shape)
        shares = torch.stack([books.shares for books in stages], 1).flatten(0, 1)
        shares = shares.index_select(0, row).view(*bars.shape, -1)
    is_exact = not stages[0].shares.requires_grad
    units = (shares * USD_GRID).expand(*bars.shape, shares.shape[2])
    width = max(1, MARKS_AT_ONCE // (shares.shape[0] * shares.shape[2]))
    values = []
    for held, bar in zip(torch.split(units, width, 1), torch.split(bars, width, 1), strict=True):
        mark = view.mark_at(bar.flatten()).view(held.shape)
        value = held * mark
        values.append((value.round_() if is_exact else value).sum(2))
    return cash + torch.cat(values, 1) * (1.0 / USD_GRID) - find_owed(view, account, bars)


def find_owed(view: MarketView, account: Account, bars: Tensor) -> Tensor | float:
    """USD that accounts owe for their option at the closes of `bars` `[B]` or `[B, k]`; 0.0
    without an option."""
    if not len(view.option_value):
        return 0.0
    form = (-1, *[1] * (bars.ndim - 1))
    gap, left = find_gap(view, account.start_bar.view(form), bars)
    place = gap * view.option_scale[left] + STRIKE_POINT
    # Beyond the table its outermost segments go on as straight lines.
    column = place.clamp(0, view.option_value.shape[1] - 2).long()
    low = view.option_value[left, column]
    slope = view.option_value[left, column + 1] - low
    share = low + (place - column) * slope
    return to_grid(account.first_equity.view(form) * share, USD_GRID)


def find_gap(view: MarketView, start: Tensor, bars: Tensor) -> tuple[Tensor, Tensor]:
    """Price over the strike, less 1, and bars left of an option sold at `start`; after its expiry,
    their values at expiry."""
    expiry = start + (len(view.option_value) - 1)
    now = torch.minimum(bars, expiry)
    return view.underlying[0][now] / view.underlying[1][start] - 1.0, expiry - now


# --- outcome --------------------------------------------------------------------------------------


def measure_outcome(view: MarketView, account: Account, marks: Marks) -> Outcome:
    """Compare the books at the end of the interval with those at the decision."""
    bar = marks.bars[:, -1]
    return Outcome(
        equity_before=account.equity,
        equity=marks.equity,
        peak_before=account.peak_equity,
        peak=torch.maximum(account.peak_equity, marks.highest),
        first_equity=account.first_equity,
        cost=marks.books.cost,
        turnover=marks.books.turnover,
        memory=account.memory,
        benchmark=view.benchmark[bar] - view.benchmark[account.bar],
    )


def record_step(
    decision_bar: Tensor,
    orders: Orders,
    quote: Quote,
    fills: Fills,
    marks: Marks,
    settings: EnvSettings,
) -> Record:
    """Record a step bar by bar."""
    number = torch.arange(marks.bars.shape[1], device=marks.bars.device)
    shape = (*marks.bars.shape, fills.shares.shape[1])
    closed = closed_cost = fills.shares.new_zeros(shape)
    interest = torch.zeros_like(marks.closes)
    income = torch.where(number == 0, orders.income.unsqueeze(1), interest)
    for change in marks.changes:
        here = (number == change.number.unsqueeze(1)).double()
        closed = closed + here.unsqueeze(2) * change.closed.unsqueeze(1)
        closed_cost = closed_cost + here.unsqueeze(2) * change.closed_cost.unsqueeze(1)
        interest = interest + here * change.interest.unsqueeze(1)
        income = income + here * change.income.unsqueeze(1)
    sold_value = in_usd(fills.sold, quote.price).abs()
    bought_value = in_usd(fills.bought, quote.price).abs()
    fill_cost = closing_cost(fills.sold, sold_value, quote, settings) + trade_cost(
        fills.bought, bought_value, quote, settings
    )
    return Record(
        decision_bar=decision_bar,
        fill_bar=orders.bar,
        ordered=orders.desired - orders.shares,
        fill_shares=fills.bought - fills.sold,
        fill_price=quote.price,
        fill_cost=fill_cost,
        bars=marks.bars,
        bar_equity=marks.closes,
        closed_shares=closed,
        closed_cost=closed_cost,
        interest=interest,
        income=income,
        cost=marks.books.cost,
        turnover=marks.books.turnover,
    )
