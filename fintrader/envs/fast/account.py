"""The account of a backtest, compiled: one decision a call, and every bar until the next one,
written down."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fintrader.envs.fast.buffers import FILL, MARK, MOST, Prices, Rules
from fintrader.envs.fast.ledger import (
    ORDER,
    add,
    apply_events,
    ask_target,
    ask_trade,
    clean,
    cost_of_added,
    note,
    purchase_scale,
    reduce,
    reduce_at_cost,
    room,
    split_orders,
    trade_cost,
    unit_of,
    wait,
    write_private,
)
from fintrader.envs.money import USD_GRID

_UNIT = 1.0 / USD_GRID
CASH, EQUITY, PEAK, FIRST, ORDERS, CAPPED, UNFILLED, CANCELLED = range(8)
"""Places in the `state` of a backtest's account: four amounts in USD; orders given, those among
them that asked for more than their share of the volume, those of which nothing filled; and USD of
all that was cancelled."""


@njit(nogil=True, error_model="numpy", cache=True)
def ask(
    action: Any,
    bar: int,
    state: Any,
    shares: Any,
    prices: Prices,
    rules: Rules,
    wish: Any,
    want: Any,
) -> None:
    """Write to `want [1, N]` the holdings that an action `[1, N]` float32 asks for; `wish` is
    scratch."""
    value = max(state[EQUITY], 0.0)
    if prices.risk_off[bar]:
        want[:] = 0.0
    elif rules.target:
        gross, _ = clean(
            action, action.view(np.int32), 0, np.float32(-1.0 if rules.short else 0.0), wish, 0
        )
        unit = unit_of(gross, value, rules.leverage)
        band = rules.band * value * USD_GRID
        ask_target(wish, 0, unit, band, rules, prices.quotes, bar, shares, 0, want)
    else:
        ask_trade(action, 0, rules, shares, want, 0)


@njit(nogil=True, error_model="numpy", cache=True)
def decide_and_wait(
    times: Any,
    state: Any,
    shares: Any,
    prices: Prices,
    rules: Rules,
    curves: Any,
    fills: Any,
    count: int,
    want: Any,
    kept: Any,
) -> tuple[int, int, bool]:
    """Order towards `want [1, N]` at `times[0]` (an empty `want`: nothing), then mark every bar up
    to `times[1]`.

    `times`: bar, bar to stop at, decision interval. `fills`: columns with room for 2 N more rows an
    ending. Ruin is looked for at the end of every interval. Returns the bar reached, the number of
    fills, and whether the account is ruined there.
    """
    start, stop, interval = times
    fresh = start + 1
    if not rules.same_bar and start < stop:
        fresh = start + 2
        if prices.event_row[start + 1] > 0:
            if want.size:
                split_orders(shares, 0, want, 0, prices, start + 1, rules.whole)
            earned, count = apply_events(
                shares, 0, prices, start + 1, rules.whole, shares, fills, count
            )
            state[CASH] += earned
            curves[4][start + 1] += earned
    if want.size:
        count = _order(start, state, shares, prices, rules, curves, fills, count, want, kept)
    bar = start
    while bar < stop:
        next_look = min(bar + interval, stop)
        cash, equity, peak, _, _, count = wait(
            0,
            bar,
            next_look,
            fresh,
            state[CASH],
            state[PEAK],
            0.0,
            0.0,
            shares,
            prices,
            rules,
            curves,
            fills,
            count,
        )
        state[CASH] = cash
        state[EQUITY] = equity
        state[PEAK] = peak
        bar = next_look
        if equity <= rules.ruin * state[FIRST]:
            return bar, count, True
    return bar, count, False


@njit(error_model="numpy", cache=True)
def _order(
    bar: int,
    state: Any,
    shares: Any,
    prices: Prices,
    rules: Rules,
    curves: Any,
    fills: Any,
    count: int,
    want: Any,
    kept: Any,
) -> int:
    """Carry out orders; returns the fills noted so far."""
    quotes = prices.quotes
    last = len(prices.quotes) - 1
    filled = bar if rules.same_bar else min(bar + 1, last)
    floor = -np.inf if rules.short else 0.0
    held = shares[0].copy()
    asked = np.maximum(want[0], floor) - shares[0]
    if rules.each:
        brought, closed, ordered, closing, variable, orders = reduce_at_cost(
            want, 0, floor, prices, filled, shares, 0, kept, rules
        )
    else:
        brought, closed, ordered = reduce(want, 0, floor, quotes, filled, shares, 0, kept)
        closing = rules.rate * (closed * _UNIT)
        variable = rules.rate * (ordered * _UNIT)
        orders = 0
    cash = state[CASH] + (brought * _UNIT - closing)
    budget = room(cash, kept, 0, prices, bar, filled, rules.leverage) if rules.short else cash
    scale = purchase_scale(ordered * _UNIT, variable, orders, budget, shares.shape[1], rules)
    paid, opened, _ = add(kept, want, 0, scale, rules.whole, quotes, filled, shares, 0, filled)
    opening = (
        cost_of_added(shares, 0, kept, 0, prices, filled, rules)
        if rules.each
        else rules.rate * (opened * _UNIT)
    )
    cash = cash - (paid * _UNIT + opening)
    state[CASH] = cash if rules.short else max(cash, 0.0)
    shown = min(bar + 1, last)
    for n in range(len(held)):
        traded = shares[0, n] - held[n]
        if asked[n] != 0.0:
            state[ORDERS] += 1.0
            state[UNFILLED] += traded == 0.0
            state[CAPPED] += abs(asked[n]) > quotes[filled, MOST, n]
            state[CANCELLED] += abs(asked[n] - traded) * np.float64(quotes[filled, MARK, n]) * _UNIT
        if traded != 0.0:
            price = abs(np.float64(quotes[filled, FILL, n]))
            thin = np.float64(prices.thinness[filled, n])
            sold = held[n] - kept[0, n]
            bought = shares[0, n] - kept[0, n]
            x = abs(np.rint(sold * price)) * _UNIT
            y = abs(np.rint(bought * price)) * _UNIT
            each = min(trade_cost(sold, x, thin, prices.spread[n], rules), x)
            each += trade_cost(bought, y, thin, prices.spread[n], rules)
            count = note(fills, count, ORDER, bar, filled, n, traded, price * _UNIT, each)
            curves[2][shown] += each
            curves[3][shown] += x + y
    return count


@njit(nogil=True, error_model="numpy", cache=True)
def see(bar: int, state: Any, shares: Any, prices: Prices, out: Any) -> None:
    """`out [1, A + N]` float32: what the account of a backtest sees of itself."""
    end = len(prices.quotes) - 1
    left = prices.clock[bar]
    if left < 0.0:
        left = (end - bar) / max(end, 1)
    write_private(
        out,
        0,
        state[CASH],
        state[EQUITY],
        state[PEAK],
        state[FIRST],
        left,
        shares,
        0,
        prices.quotes,
        bar,
    )
