"""One decision of one account, compiled: orders, fills, and every bar until the next decision.

The arithmetic of the torch ledger (`envs.ledger`) in float64 and in its order, without the price of an operation on
each small array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fintrader.envs.ledger import DUST_USD, MAX_WHOLE_SHARES, WEIGHT_GRID

CASH, EQUITY, PEAK, FIRST = 0, 1, 2, 3
"""Places in `state`, all USD."""
ORDER, FORCED = 0, 1
"""Kinds of fill."""
_GRID, _MOST, _DUST = WEIGHT_GRID, MAX_WHOLE_SHARES, DUST_USD
_SHAVE = 1.0 - 2.0**-40


@njit(error_model="numpy", cache=True)
def _cost(notional: Any, rules: Any) -> Any:
    """USD: commission, half-spread and impact of one order."""
    fee, spread, impact, least = rules[0], rules[1], rules[2], rules[3]
    if least == 0.0:
        cost = (fee + spread) * notional
    else:
        commission = fee * notional
        if notional > _DUST and commission < least:
            commission = least
        cost = commission + spread * notional
    return cost + impact * notional * notional if impact > 0.0 else cost


@njit(error_model="numpy", cache=True)
def _total_cost(notional: Any, rules: Any, closing: bool) -> Any:
    """USD: proportional costs are taken of the sum, which is exact."""
    total = 0.0
    if rules[3] == 0.0 and rules[2] == 0.0:
        for n in range(notional.size):
            total += notional[n]
        return (rules[0] + rules[1]) * total
    for n in range(notional.size):
        cost = _cost(notional[n], rules)
        total += min(cost, notional[n]) if closing else cost
    return total


@njit(error_model="numpy", cache=True)
def _scale(notional: Any, budget: float, rules: Any, fractional: bool) -> float:
    """The common factor by which purchases are scaled to fit the cash (`ledger.purchase_scale`)."""
    ordered, orders, squares = 0.0, 0, 0.0
    for n in range(notional.size):
        ordered += notional[n]
        orders += notional[n] > _DUST
        squares += notional[n] * notional[n]
    if ordered + _total_cost(notional, rules, False) <= budget:
        return 1.0
    if rules[3] > 0.0:
        budget -= rules[3] * orders
    budget = max(budget, 0.0)
    b = (1.0 + (rules[0] + rules[1])) * ordered
    if rules[2] > 0.0:
        b = 0.5 * (b + (np.sqrt(b * b + 4.0 * (rules[2] * squares) * budget) if b > 0.0 else 1.0))
    scale = budget / (b if b > 0.0 else 1.0)
    if fractional:
        scale *= _SHAVE
    return min(scale, 1.0)


@njit(error_model="numpy", cache=True)
def _desired(action: Any, equity: float, held: Any, price: Any, calm: bool, rules: Any, flags: Any, want: Any) -> None:
    """Shares the action asks for, sized at the prices of the decision (`ledger.desired_shares`)."""
    fractional, target = flags[0], flags[1]
    band, dead, largest = rules[4], rules[5], rules[6]
    total = 0.0
    for n in range(want.size):
        a = min(max(np.float64(action[n]), -1.0), 1.0)
        if not fractional:
            a = np.rint(a * _GRID) / _GRID
        want[n] = a
        total += max(a, 0.0)
    value = max(equity, 0.0)
    unit = value / max(total, 1.0)
    for n in range(want.size):
        a = want[n]
        if target:
            shares = max(a, 0.0) * unit / price[n] if price[n] > 0.0 else 0.0
            shares = shares if fractional else np.trunc(shares)
            if band > 0.0 and shares != 0.0 and abs(shares - held[n]) * price[n] <= band * value:
                shares = held[n]
        else:
            order = a * largest if abs(a) > dead else 0.0
            shares = max(held[n] + (order if fractional else np.trunc(order)), 0.0)
        if not fractional:
            shares = min(shares, _MOST)
        want[n] = shares if calm else 0.0


@njit(error_model="numpy", cache=True)
def _note(
    fills: Any, count: int, kind: int, decided: int, filled: int, n: int, shares: float, price: float, cost: float
) -> int:
    kinds, decisions, bars, assets, amounts, prices, costs = fills
    kinds[count], decisions[count], bars[count], assets[count] = kind, decided, filled, n
    amounts[count], prices[count], costs[count] = shares, price, cost
    return count + 1


@njit(error_model="numpy", cache=True)
def _order(
    action: Any, bar: int, state: Any, held: Any, rules: Any, flags: Any, market: Any, book: Any, fills: Any,
    count: int, work: Any,
) -> int:  # fmt: skip
    """Carry an action out; returns the number of fills noted so far."""
    mark, fill, buyable, risk_off, _ = market
    want, kept, closing, opening = work
    end = mark.shape[0] - 1
    filled = bar if flags[2] else min(bar + 1, end)
    _desired(action, state[EQUITY], held, mark[bar], not risk_off[bar], rules, flags, want)
    sold = 0.0
    for n in range(held.size):
        price = fill[filled, n]
        trades = price > 0.0
        kept[n] = min(want[n], held[n]) if trades else held[n]
        want[n] = want[n] - kept[n] if trades and buyable[filled, n] else 0.0
        closing[n] = (held[n] - kept[n]) * price
        opening[n] = want[n] * price
        sold += closing[n]
    cash = state[CASH] + (sold - _total_cost(closing, rules, True))
    scale = _scale(opening, cash, rules, flags[0])
    bought, turnover, costs, first = 0.0, 0.0, 0.0, count
    for n in range(held.size):
        price = fill[filled, n]
        added = scale * want[n]
        added = added if flags[0] else np.trunc(added)
        opening[n] = added * price
        bought += opening[n]
        after = kept[n] + added
        if after != held[n]:
            cost = min(_cost(closing[n], rules), closing[n]) + _cost(opening[n], rules)
            traded = after - held[n]
            count = _note(fills, count, ORDER, bar, filled, n, traded, price, cost)
            turnover += abs(traded * price)
            costs += cost
        held[n] = after
    state[CASH] = max(cash - (bought + _total_cost(opening, rules, False)), 0.0)
    if count > first:
        shown = min(bar + 1, end)
        book[2][shown] += costs
        book[3][shown] += turnover
    return count


@njit(error_model="numpy", cache=True)
def _close(
    bar: int, state: Any, held: Any, rules: Any, market: Any, book: Any, fills: Any, count: int, work: Any
) -> int:
    """Sell what ends at this bar, at its close."""
    mark, last_bar, notional = market[0], market[4], work[2]
    total, turnover, costs, first = 0.0, 0.0, 0.0, count
    for n in range(held.size):
        notional[n] = held[n] * mark[bar, n] if last_bar[n] == bar else 0.0
        total += notional[n]
    paid = _total_cost(notional, rules, True)
    for n in range(held.size):
        if last_bar[n] == bar and held[n] != 0.0:
            cost = min(_cost(notional[n], rules), notional[n])
            count = _note(fills, count, FORCED, bar, bar, n, -held[n], mark[bar, n], cost)
            turnover += notional[n]
            costs += cost
            held[n] = 0.0
    if count > first:
        state[CASH] = state[CASH] + (total - paid)
        book[2][bar] += costs
        book[3][bar] += turnover
    return count


@njit(nogil=True, error_model="numpy", cache=True)
def decide_and_wait(
    action: Any, times: Any, state: Any, held: Any, rules: Any, flags: Any, market: Any, book: Any, fills: Any,
    count: int, work: Any,
) -> tuple[int, int, bool]:  # fmt: skip
    """Order at `times[0]` (an empty `action`: nothing), then mark every bar up to `times[1]`.

    `times`: bar, bar to stop at, decision interval. `rules`: fee, spread and impact rates, least commission, rebalance
    band, dead band, most shares an order, ruin fraction. `flags`: fractional, target weights, fills at the decision's
    own close. `market`: mark, fill, buyable `[T, N]`, risk_off `[T]`, last_bar `[N]`. `book`: shares `[T, N]`, equity,
    costs, turnover `[T]`. `fills`: columns with room for 2 N more rows an ending. Ruin is looked for at the end of
    every interval. Returns the bar reached, the number of fills, and whether the account is ruined there.
    """
    mark, last_bar = market[0], market[4]
    shares, equities = book[0], book[1]
    start, stop, interval = times
    if action.size:
        count = _order(action, start, state, held, rules, flags, market, book, fills, count, work)
    for bar in range(start + 1, stop + 1):
        ends, value = False, 0.0
        for n in range(held.size):
            value += mark[bar, n] * held[n]
            ends |= last_bar[n] == bar
        if ends:
            count = _close(bar, state, held, rules, market, book, fills, count, work)
            value = 0.0
            for n in range(held.size):
                value += mark[bar, n] * held[n]
        equity = state[CASH] + value
        shares[bar] = held
        equities[bar] = equity
        state[EQUITY] = equity
        state[PEAK] = max(state[PEAK], equity)
        if ((bar - start) % interval == 0 or bar == stop) and equity <= rules[7] * state[FIRST]:
            return bar, count, True
    return stop, count, False


@njit(nogil=True, error_model="numpy", cache=True)
def see(bar: int, state: Any, held: Any, mark: Any, out: Any) -> None:
    """`out [A + N]` float32: account features and holdings weights, as `envs.observation.private_part`."""
    end = mark.shape[0] - 1
    safe = max(state[EQUITY], 1e-6 * state[FIRST])
    out[0] = state[CASH] / safe
    out[1] = safe / state[FIRST] - 1.0
    out[2] = state[EQUITY] / state[PEAK] - 1.0
    out[3] = (end - bar) / max(end, 1)
    for n in range(held.size):
        out[4 + n] = held[n] * mark[bar, n] / safe
