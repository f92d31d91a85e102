"""The account of a backtest, compiled: a batch of one, whose bars and trades are all recorded."""

from __future__ import annotations

from typing import Any

import numpy as np

from fintrader.envs.account import LEFT, ORDER_ROWS
from fintrader.envs.fast.account import (
    CANCELLED,
    CAPPED,
    ORDER,
    UNFILLED,
    UNIT,
    cancel_orders,
    closing_cost,
    fill_orders,
    in_usd,
    make_workspace,
    mark_bars,
    meet_events,
    name_rows,
    place_limits,
    record_trade,
    size_orders,
    trade_cost,
)
from fintrader.envs.fast.buffers import (
    BAR,
    TERMINATED,
    AccountLog,
    Prices,
    Rules,
    State,
    Workspace,
)
from fintrader.envs.fast.compiled import njit_entry, njit_inline, njit_inner
from fintrader.envs.fast.episodes import observe_private
from fintrader.envs.market_view import FILL, LARGEST, MARK, MOST


@njit_entry
def size_desired(action: Any, buffers: Any, prices: Prices, rules: Rules, desired: Any) -> None:
    """Write to `desired` `[1, N]` the holdings that an action `[1, A]` float32 asks for."""
    state = name_rows(buffers)
    work = make_workspace(1, state.shares.shape[1])
    size_orders(0, 1, action, work, state, prices, rules)
    for n in range(state.shares.shape[1]):
        desired[0, n] = work.desired[0, n]


@njit_entry
def set_resting_orders(action: Any, buffers: Any, prices: Prices, rules: Rules) -> None:
    """Place the limit orders of an action `[1, A]` float32 among the account's resting orders."""
    state = name_rows(buffers)
    work = make_workspace(1, state.shares.shape[1])
    size_orders(0, 1, action, work, state, prices, rules)
    place_limits(0, 1, action, work, state, prices, rules)


@njit_entry
def decide_and_wait(
    stop: int,
    action: Any,
    desired: Any,
    buffers: Any,
    prices: Prices,
    rules: Rules,
    log: AccountLog,
    seen: Any,
) -> bool:
    """Order the holdings that an action `[1, A]` float32 asks for, and write them to `desired`
    `[N]`; with an empty action, order towards `desired`; if both are empty, order nothing. Then
    mark every bar up to `stop`, and write the private part of the observation to `seen` `[P]`.
    Return True if the account is ruined at the end of an interval; it then stays at that bar."""
    # `decide_each` shares this memory among accounts: allocating it takes as long as a fill.
    work = make_workspace(1, buffers[3].shape[1])
    is_ruined: bool = run_decision(stop, action, desired, buffers, (prices, rules, log), seen, work)
    return is_ruined


@njit_inner
def run_decision(
    stop: int, action: Any, desired: Any, buffers: Any, shared: Any, seen: Any, work: Workspace
) -> bool:
    """Carry out `decide_and_wait`."""
    prices, rules, log = shared
    state = name_rows(buffers)
    bar = state.bar[0]
    size_holdings(action, desired, work, state, prices, rules, log)
    if rules.is_limit and (action.size or desired.size):
        cancel_all(bar, False, state, prices, rules, log)
    if rules.is_limit and action.size:
        place_limits(0, 1, action, work, state, prices, rules)
        count_placed(state.resting[0], rules, log)
    else:
        work.fill_bar[0] = bar if rules.is_same_bar else min(bar + 1, stop)
        meet_events(0, 0, work, state, prices, rules, log)
    if desired.size and not (rules.is_limit and action.size):
        held = work.start
        for n in range(len(held)):
            held[n] = state.shares[0, n]
        fill_orders(0, 1, work, state, prices, rules)
        if len(log.kind) > 0:
            record_fills(held, work, state, prices, rules, log)
    # Ruin is checked at the end of every decision interval, however long the wait.
    is_ruined = False
    while state.bar[0] < stop and not is_ruined:
        look = min(state.bar[0] + rules.interval, stop)
        mark_bars(0, look, work.fill_bar[0], work, state, prices, rules, log)
        is_ruined = state.equity[0] <= rules.ruin_fraction * state.first_equity[0]
    observe_private(0, state, prices, rules, seen)
    if rules.is_limit and state.bar[0] == state.end_bar[0]:
        cancel_all(state.bar[0], True, state, prices, rules, log)
    return is_ruined


# Copies go element by element: compiling an assignment of rows takes seconds.
@njit_inline
def size_holdings(
    action: Any,
    desired: Any,
    work: Workspace,
    state: State,
    prices: Prices,
    rules: Rules,
    log: AccountLog,
) -> None:
    """Size the holdings that an action asks for, and write them to `desired` where orders are
    logged; without an action, take those in `desired`, or the present ones."""
    if action.size:
        size_orders(0, 1, action, work, state, prices, rules)
        if len(log.kind) > 0:
            for n in range(len(desired)):
                desired[n] = work.desired[0, n]
    else:
        wanted = desired if desired.size else state.shares[0]
        for n in range(state.shares.shape[1]):
            work.desired[0, n] = wanted[n]


@njit_inline
def cancel_all(
    bar: int, is_over: bool, state: State, prices: Prices, rules: Rules, log: AccountLog
) -> None:
    """Cancel the resting orders at the close of `bar`; unless the window `is_over`, keep those of
    reached stops."""
    for n in range(state.shares.shape[1]):
        if is_over or not is_stopped(n, state.resting[0], rules):
            cancel_orders(bar, n, state.resting[0], prices, rules, log)


@njit_inline
def count_placed(resting: Any, rules: Rules, log: AccountLog) -> None:
    """Count the orders that a decision has placed."""
    for n in range(resting.shape[1]):
        if len(log.counts) > 0 and not is_stopped(n, resting, rules):
            for side in range(1 + rules.is_quote):
                log.counts[ORDER] += resting[side * ORDER_ROWS + LEFT, n] != 0.0


@njit_inline
def is_stopped(n: int, resting: Any, rules: Rules) -> bool:
    """Return True if a bar has reached the stop of asset n, whose position is not closed yet."""
    return rules.has_stops and abs(resting[len(resting) - 1, n]) == LARGEST


# One call for all accounts, since each call from Python costs time.
@njit_entry
def decide_each(
    stop: int,
    actions: Any,
    desired: Any,
    accounts: Any,
    shared: Any,
    seen: Any,
    equity: Any,
) -> None:
    """Call `decide_and_wait` for B accounts, of which account b sets its action in asset b to 0.

    Their buffers have B as first axis; actions are `[B, 1, N]`, or `[1, 1, N]` for all. Writes
    `seen` `[B, P]` (with an action for all only its first row) and `equity` `[B, T]`. `shared`:
    prices, rules, and a log that keeps only equity. A ruined account trades no more."""
    ints, floats, flags, shares, resting = accounts
    log = shared[2]
    work = make_workspace(1, shares.shape[2])
    for b in range(len(ints)):
        bar = ints[b, BAR, 0]
        buffers = (ints[b], floats[b], flags[b], shares[b], resting[b])
        if not flags[b, TERMINATED, 0]:
            row = min(b, len(actions) - 1)
            action = actions[row]
            own = action[0, b]
            action[0, b] = 0.0
            is_ruined = run_decision(stop, action, desired, buffers, shared, seen[row], work)
            action[0, b] = own
            flags[b, TERMINATED, 0] = is_ruined
            for t in range(bar + 1, equity.shape[1] if is_ruined else stop + 1):
                equity[b, t] = log.equity[min(t, ints[b, BAR, 0])]


@njit_inline
def record_fills(
    held: Any, work: Workspace, state: State, prices: Prices, rules: Rules, log: AccountLog
) -> None:
    """Record the orders and fills that led from holdings `held` `[N]` to the present ones."""
    bar = state.bar[0]
    fill_bar = work.fill_bar[0]
    quote = prices.quotes[fill_bar]
    # A bar's costs are booked at its close; a fill at the close of `bar` belongs to the next one.
    shown = min(bar + 1, len(prices.quotes) - 1)
    floor = -np.inf if rules.is_short else 0.0
    for n in range(len(held)):
        ordered = max(work.desired[0, n], floor) - held[n]
        traded = state.shares[0, n] - held[n]
        if ordered != 0.0:
            log.counts[ORDER] += 1.0
            log.counts[CAPPED] += abs(ordered) > quote[MOST, n]
            log.counts[UNFILLED] += traded == 0.0
            log.counts[CANCELLED] += abs(ordered - traded) * np.float64(quote[MARK, n]) * UNIT
        if traded != 0.0:
            price = abs(np.float64(quote[FILL, n]))
            root = np.float64(prices.inverse_root_volume[fill_bar, n])
            sold = held[n] - work.kept[0, n]
            bought = state.shares[0, n] - work.kept[0, n]
            sale = abs(in_usd(sold, price))
            purchase = abs(in_usd(bought, price))
            cost = closing_cost(sold, sale, root, prices.spread[n], rules)
            cost += trade_cost(bought, purchase, root, prices.spread[n], rules)
            record_trade(log, ORDER, bar, fill_bar, n, traded, price * UNIT, cost)
            log.costs[shown] += cost
            log.turnover[shown] += sale + purchase


@njit_entry
def observe_account(buffers: Any, prices: Prices, rules: Rules, out: Any) -> None:
    """Write to `out` `[P]` float32 the private part of the observation."""
    observe_private(0, name_rows(buffers), prices, rules, out)
