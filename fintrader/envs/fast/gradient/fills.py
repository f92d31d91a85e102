"""The fills of an account's orders, its splits and dividends, and the way back through them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fintrader.envs.fast.buffers import FILL, MARK, MOST, Prices, Rules
from fintrader.envs.fast.gradient.asks import above, ask, ask_back, compiled, inlined, sign
from fintrader.envs.fast.ledger import plus
from fintrader.envs.money import DUST_USD, USD_GRID

ADDED = 0
WANTED = 1
REDUCED = 2
"""Whose costs are differentiated."""
_UNIT = 1.0 / USD_GRID


class Tape(NamedTuple):
    """An account between its decision and the next, k bars, for the way back."""

    held: Any
    """`[N]`: shares before the fills, splits done."""
    want: Any
    """`[N]`: shares asked for."""
    kept: Any
    """`[N]`: shares after the reductions."""
    more: Any
    """`[N]`: additions wanted."""
    in_notional: Any
    """`[N]`: slope of an order's cost in its notional; where costs are proportional, their rate."""
    in_shares: Any
    """`[N]`: slope of an order's cost in its shares; where costs are proportional, 0."""
    g_want: Any
    """`[N]`: slope of the loss in `want`."""
    g_goal: Any
    """`[N]`: slope of the loss in what the volume lets through of `want`."""
    g_sold: Any
    """`[N]`: slope of the loss in the reductions."""
    stages: Any
    """`[S, N]`: shares after the fills, and after each change that follows (splits, ends, margin
    calls)."""
    stage: Any
    """`[k]` int64: the stage at which a bar begins."""
    called: Any
    """`[k]` bool: margin calls."""
    marks: Any
    """`[3, k]` USD: cash before interest, equity, and the peak before the bar."""


class Order(NamedTuple):
    """An account's orders as they were filled, USD."""

    cash: float
    left: float
    """Cash before it is kept from falling below 0."""
    cost: float
    turnover: float
    scale: float
    by_budget: float
    """Slope of the scale in the budget."""
    by_full: float
    """Slope of the scale in what all additions would cost."""
    unit: float
    """USD a weight of 1 asks for."""
    gross: float
    """Sum of the weights over the leverage."""


# --- costs ----------------------------------------------------------------------------------------


@inlined
def _variable_cost(
    shares: float, x: float, thin: float, spread: float, rules: Rules
) -> tuple[float, float, float]:
    """`envs.ledger.variable_cost` of an order of notional x, and its slopes in x and in the
    shares."""
    rate = rules.fee + spread
    if rules.impact == 0.0:
        return rate * x, rate, 0.0
    taken = np.sqrt(abs(shares)) * thin
    root = min(taken, 1.0) if shares != 0.0 else 1.0
    cost = rate * x + rules.impact * (x * root)
    in_shares = (
        rules.impact * x * 0.5 / np.sqrt(abs(shares)) * thin * sign(shares)
        if 0.0 < taken <= 1.0
        else 0.0
    )
    all_of_it = above(cost, x)
    return (
        min(cost, x),
        (1.0 - all_of_it) * (rate + rules.impact * root) + all_of_it,
        (1.0 - all_of_it) * in_shares,
    )


@inlined
def _trade_cost(
    shares: float, x: float, thin: float, spread: float, rules: Rules
) -> tuple[float, float, float]:
    """`envs.ledger.trade_cost`, and its slopes."""
    cost, in_x, in_shares = _variable_cost(shares, x, thin, spread, rules)
    short_of = (rules.least if x > DUST_USD else 0.0) - rules.fee * x
    if (rules.least > 0.0) & (short_of > 0.0):
        cost = cost + short_of
        in_x = in_x - rules.fee
    return cost, in_x, in_shares


@inlined
def closing_cost(
    shares: float, x: float, thin: float, spread: float, rules: Rules
) -> tuple[float, float, float]:
    """`envs.ledger.closing_cost`, and its slopes."""
    cost, in_x, in_shares = _trade_cost(shares, x, thin, spread, rules)
    all_of_it = above(cost, x)
    return min(cost, x), (1.0 - all_of_it) * in_x + all_of_it, (1.0 - all_of_it) * in_shares


# --- splits and dividends -------------------------------------------------------------------------


@inlined
def _split(shares: float, ratio: float, whole: bool) -> float:
    product = shares * ratio
    if not whole or ratio == 1.0:
        return product
    return float(np.trunc(product + np.sign(product) * 2.0**-20))


@inlined
def _split_slope(ratio: float, whole: bool) -> float:
    return ratio if not whole else (1.0 if ratio == 1.0 else 0.0)


@compiled
def events(
    source: Any, i: int, prices: Prices, bar: int, whole: bool, target: Any, j: int
) -> float:
    """Write to `target[j]` what the shares `source[i]` become in `bar`; returns the income."""
    row = prices.event_row[bar]
    income = 0.0
    for n in range(target.shape[1]):
        held = source[i, n]
        ratio = prices.splits[row, n]
        after = _split(held, ratio, whole)
        left = (held * ratio - after) * (np.float64(prices.quotes[bar - 1, MARK, n]) / ratio)
        income += (held * prices.dividends[row, n] + left) * _UNIT
        target[j, n] = after
    return income


@compiled
def events_back(g_shares: Any, g_cash: float, prices: Prices, bar: int, whole: bool) -> None:
    """`g_shares [N]` in the shares after the events becomes that in those before."""
    row = prices.event_row[bar]
    for n in range(len(g_shares)):
        ratio = prices.splits[row, n]
        slope = _split_slope(ratio, whole)
        left = (ratio - slope) * (np.float64(prices.quotes[bar - 1, MARK, n]) / ratio)
        g_shares[n] = g_shares[n] * slope + g_cash * (prices.dividends[row, n] + left) * _UNIT


# --- orders ---------------------------------------------------------------------------------------


@inlined
def _scale(
    ordered: float, variable: float, count: int, budget: float, num_assets: int, rules: Rules
) -> tuple[float, float, float]:
    """`envs.ledger.purchase_scale`, and its slopes in the budget and in what all additions would
    cost."""
    least = rules.least * count
    full = ordered + rules.leverage * variable
    if full + rules.leverage * least <= budget:
        return 1.0, 0.0, 0.0
    room = budget - rules.leverage * (least + 2.0 * _UNIT * num_assets)
    over = full if full > 0.0 else 1.0
    scale = max(room, 0.0) / over
    if scale > 1.0:
        return 1.0, 0.0, 0.0
    return scale, 1.0 / over if room > 0.0 else 0.0, -scale / over if full > 0.0 else 0.0


@inlined
def _goal(want: float, held: float, most: float) -> float:
    return min(max(want, held - most), held + most)


@inlined
def _before(prices: Prices, bar: int, filled: int, n: int) -> float:
    """What the close at the decision is worth today, splits and dividends between them done;
    USD."""
    row = prices.event_row[filled] if filled > bar else 0
    close: float = (
        (np.float64(prices.quotes[bar, MARK, n]) - prices.dividends[row, n])
        * _UNIT
        / prices.splits[row, n]
    )
    return close


@inlined
def fill_orders(
    action: Any,
    b: int,
    single: bool,
    bar: int,
    filled: int,
    cash: float,
    equity: float,
    shares: Any,
    prices: Prices,
    rules: Rules,
    tape: Tape,
) -> Order:
    """Decide at the close of `bar`, fill in `filled`; the shares afterwards are the tape's first
    stage."""
    num_assets = action.shape[1]
    quotes = prices.quotes
    thinness = prices.thinness
    whole = rules.whole
    unit, gross = ask(action, b, single, bar, max(equity, 0.0), shares, prices, rules, tape.want)
    for n in range(num_assets):
        tape.held[n] = shares[b, n]
    if filled > bar and prices.event_row[filled] > 0:
        row = prices.event_row[filled]
        cash += events(shares, b, prices, filled, whole, tape.stages, 0)
        for n in range(num_assets):
            change = _split(tape.want[n] - tape.held[n], prices.splits[row, n], whole)
            tape.held[n] = tape.stages[0, n]
            tape.want[n] = tape.held[n] + change
    brought = 0.0
    closed = 0.0
    ordered = 0.0
    for n in range(num_assets):
        price = abs(np.float64(quotes[filled, FILL, n])) * _UNIT
        held = tape.held[n]
        goal = _goal(tape.want[n], held, np.float64(quotes[filled, MOST, n]))
        kept = min(max(goal, min(held, 0.0)), max(held, 0.0))
        kept = kept if price > 0.0 else held
        tape.kept[n] = kept
        x = (held - kept) * price
        brought = plus(brought, x)
        closed = plus(closed, abs(x))
    for n in range(num_assets):
        price = np.float64(quotes[filled, FILL, n]) * _UNIT
        goal = _goal(tape.want[n], tape.held[n], np.float64(quotes[filled, MOST, n]))
        more = goal - tape.kept[n]
        more = more if price > 0.0 else 0.0
        tape.more[n] = more
        ordered = plus(ordered, abs(more * price))
    closing = rules.rate * closed
    variable = rules.rate * ordered
    count = 0
    if rules.each:
        closing = 0.0
        variable = 0.0
        for n in range(num_assets):
            price = abs(np.float64(quotes[filled, FILL, n])) * _UNIT
            thin = np.float64(thinness[filled, n])
            sold = tape.held[n] - tape.kept[n]
            x = abs(tape.more[n] * price)
            cost, _, _ = closing_cost(sold, abs(sold * price), thin, prices.spread[n], rules)
            closing = plus(closing, cost)
            cost, _, _ = _variable_cost(tape.more[n], x, thin, prices.spread[n], rules)
            variable = plus(variable, cost)
            count += x > DUST_USD
    cash = cash + (brought - closing)
    budget = cash
    if rules.short:
        value = 0.0
        exposed = 0.0
        for n in range(num_assets):
            price = abs(np.float64(quotes[filled, FILL, n])) * _UNIT
            x = tape.kept[n] * (price if price > 0.0 else _before(prices, bar, filled, n))
            value = value + x
            exposed = exposed + abs(x)
        budget = rules.leverage * (cash + value) - exposed
    scale, by_budget, by_full = _scale(ordered, variable, count, budget, num_assets, rules)
    paid = 0.0
    opened = 0.0
    opening = 0.0
    for n in range(num_assets):
        more = scale * tape.more[n]
        price = abs(np.float64(quotes[filled, FILL, n])) * _UNIT
        now = tape.kept[n] + (np.trunc(more) if whole else more)
        tape.stages[0, n] = now
        x = (now - tape.kept[n]) * price
        paid = plus(paid, x)
        opened = plus(opened, abs(x))
    opening = rules.rate * opened
    if rules.each:
        opening = 0.0
        for n in range(num_assets):
            price = abs(np.float64(quotes[filled, FILL, n])) * _UNIT
            thin = np.float64(thinness[filled, n])
            bought = tape.stages[0, n] - tape.kept[n]
            cost, _, _ = _trade_cost(bought, abs(bought * price), thin, prices.spread[n], rules)
            opening = plus(opening, cost)
    left = cash - (paid + opening)
    cash = left if rules.short else max(left, 0.0)
    return Order(
        cash, left, closing + opening, closed + opened, scale, by_budget, by_full, unit, gross
    )


@compiled
def _slopes_of_costs(kind: int, prices: Prices, filled: int, rules: Rules, tape: Tape) -> None:
    """`in_notional` and `in_shares` of the additions made, of those wanted, or of the
    reductions."""
    for n in range(len(tape.held)):
        price = abs(np.float64(prices.quotes[filled, FILL, n])) * _UNIT
        thin = np.float64(prices.thinness[filled, n])
        spread = prices.spread[n]
        if kind == ADDED:
            added = tape.stages[0, n] - tape.kept[n]
            _, in_x, in_shares = _trade_cost(added, abs(added * price), thin, spread, rules)
        elif kind == WANTED:
            _, in_x, in_shares = _variable_cost(
                tape.more[n], abs(tape.more[n] * price), thin, spread, rules
            )
        else:
            sold = tape.held[n] - tape.kept[n]
            _, in_x, in_shares = closing_cost(sold, abs(sold * price), thin, spread, rules)
        tape.in_notional[n] = in_x
        tape.in_shares[n] = in_shares


@inlined
def _kept_slopes(price: float, goal: float, held: float) -> tuple[float, float]:
    """Slopes of min(max(goal, min(held, 0)), max(held, 0)), what is kept where something trades, in
    goal and held."""
    low = min(held, 0.0)
    high = max(held, 0.0)
    inner = above(high, max(goal, low))
    in_goal = inner * above(goal, low)
    in_held = (inner - in_goal if held <= 0.0 else 0.0) + (1.0 - inner if held >= 0.0 else 0.0)
    return in_goal if price > 0.0 else 0.0, in_held if price > 0.0 else 1.0


@inlined
def fill_orders_back(
    action: Any,
    b: int,
    single: bool,
    bar: int,
    filled: int,
    equity: float,
    order: Order,
    shares: Any,
    g_shares: Any,
    g_cash: float,
    g_cost: float,
    g_turnover: float,
    prices: Prices,
    rules: Rules,
    tape: Tape,
    g_action: Any,
) -> tuple[float, float]:
    """Write `g_action[b]`, make of `g_shares [N]` the slopes in the shares at the decision, and
    return those in cash and equity there."""
    num_assets = len(g_shares)
    quotes = prices.quotes
    g_want = tape.g_want
    g_goal = tape.g_goal
    g_sold = tape.g_sold
    g_cash = g_cash if rules.short or order.left > 0.0 else 0.0
    g_opening = g_cost - g_cash
    g_scale = 0.0
    whole = rules.whole
    if rules.each:
        _slopes_of_costs(ADDED, prices, filled, rules, tape)
    for n in range(num_assets):
        price = abs(np.float64(quotes[filled, FILL, n])) * _UNIT
        added = tape.stages[0, n] - tape.kept[n]
        g_notional = g_turnover + g_opening * tape.in_notional[n]
        g_added = (sign(added * price) * g_notional - g_cash) * price + g_opening * tape.in_shares[
            n
        ]
        g_more = 0.0 if whole else g_shares[n] + g_added
        g_want[n] = g_more  # that of the scaled addition
        g_scale = plus(g_scale, g_more * tape.more[n])
    g_full = g_scale * order.by_full
    g_budget = g_scale * order.by_budget
    g_variable = rules.leverage * g_full
    g_cash += rules.leverage * g_budget if rules.short else g_budget
    if rules.each:
        _slopes_of_costs(WANTED, prices, filled, rules, tape)
    for n in range(num_assets):
        price = np.float64(quotes[filled, FILL, n]) * _UNIT
        more = tape.more[n]
        g_more = order.scale * g_want[n] + sign(more * price) * price * (
            g_full + g_variable * tape.in_notional[n]
        )
        g_more = g_more + g_variable * tape.in_shares[n]
        g_want[n] = g_more if price > 0.0 else 0.0  # that of the addition wanted
    if rules.short:
        for n in range(num_assets):
            price = abs(np.float64(quotes[filled, FILL, n])) * _UNIT
            price = price if price > 0.0 else _before(prices, bar, filled, n)
            g_shares[n] += g_budget * (rules.leverage - sign(tape.kept[n] * price)) * price
    g_closing = g_cost - g_cash
    if rules.each:
        _slopes_of_costs(REDUCED, prices, filled, rules, tape)
    for n in range(num_assets):
        price = abs(np.float64(quotes[filled, FILL, n])) * _UNIT
        sold = tape.held[n] - tape.kept[n]
        g_notional = g_turnover + g_closing * tape.in_notional[n]
        g_sold[n] = (g_cash + sign(sold * price) * g_notional) * price + g_closing * tape.in_shares[
            n
        ]
    for n in range(num_assets):
        price = abs(np.float64(quotes[filled, FILL, n])) * _UNIT
        held = tape.held[n]
        goal = _goal(tape.want[n], held, np.float64(quotes[filled, MOST, n]))
        in_goal, _ = _kept_slopes(price, goal, held)
        g_goal[n] = g_want[n] + (g_shares[n] - g_want[n] - g_sold[n]) * in_goal
    for n in range(num_assets):
        price = abs(np.float64(quotes[filled, FILL, n])) * _UNIT
        held = tape.held[n]
        goal = _goal(tape.want[n], held, np.float64(quotes[filled, MOST, n]))
        _, in_held = _kept_slopes(price, goal, held)
        g_shares[n] = g_sold[n] + (g_shares[n] - g_want[n] - g_sold[n]) * in_held
    for n in range(num_assets):
        held = tape.held[n]
        want = tape.want[n]
        most = np.float64(quotes[filled, MOST, n])
        lower = held - most
        g_want[n] = g_goal[n] * above(held + most, max(want, lower)) * above(want, lower)
    for n in range(num_assets):
        g_shares[n] += g_goal[n] - g_want[n]
    if filled > bar and prices.event_row[filled] > 0:
        row = prices.event_row[filled]
        for n in range(num_assets):
            g_shares[n] += g_want[n]
            g_want[n] *= _split_slope(prices.splits[row, n], whole)
        events_back(g_shares, g_cash, prices, filled, whole)
        for n in range(num_assets):
            g_shares[n] -= g_want[n]
    g_equity = ask_back(
        action,
        b,
        single,
        bar,
        max(equity, 0.0),
        order.unit,
        order.gross,
        shares,
        prices,
        rules,
        g_want,
        g_shares,
        g_action,
    )
    return g_cash, g_equity
