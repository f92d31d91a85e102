"""The differentiable step of many accounts, and the way back: one pass over the accounts each.

Rows of `floats`, `ints` and `flags` are those of `envs.fast.buffers`; `g_x`: the loss's slope in x.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fintrader.envs.fast.batch import _begin, _copy_row, _see
from fintrader.envs.fast.buffers import (
    BAR,
    CASH,
    COST,
    DONE,
    END,
    EPISODE,
    EQUITY,
    FILL,
    FINAL_BAR,
    FINISHED,
    FIRST,
    LOG_RETURN,
    MARK,
    NEXT_STEP,
    PEAK,
    SAME_STEP,
    START,
    STEP_EQUITY,
    STEP_PEAK,
    TERMINATED,
    TRUNCATED,
    TURNOVER,
    WORTH,
    Prices,
    Rules,
)
from fintrader.envs.fast.gradient.asks import above, compiled, inlined, sign
from fintrader.envs.fast.gradient.fills import (
    Tape,
    closing_cost,
    events,
    events_back,
    fill_orders,
    fill_orders_back,
)
from fintrader.envs.fast.ledger import plus
from fintrader.envs.money import USD_GRID

_UNIT = 1.0 / USD_GRID
_LEAST = 1e-6
"""Equity is taken for at least this share of the first where something is divided by it."""


@njit(error_model="numpy", cache=True)
def make_tape(stages: int, bars: int, num_assets: int, rate: float) -> Tape:
    """Room for one account."""
    rows = np.zeros((9, num_assets))
    rows[4] = rate
    return Tape(
        rows[0],
        rows[1],
        rows[2],
        rows[3],
        rows[4],
        rows[5],
        rows[6],
        rows[7],
        rows[8],
        np.empty((stages, num_assets)),
        np.empty(bars, np.int64),
        np.empty(bars, np.bool_),
        np.empty((3, bars)),
    )


# --- bars -----------------------------------------------------------------------------------------


@inlined
def _leaves(prices: Prices, bar: int, n: int, called: bool) -> bool:
    left: bool = prices.quotes[bar, FILL, n] != 0.0 if called else prices.last_bar[n] == bar
    return left


@compiled
def _close(
    stages: Any, i: int, prices: Prices, bar: int, called: bool, rules: Rules
) -> tuple[float, float, float]:
    """Write to `stages[i + 1]` what is left of `stages[i]` at the close of `bar`, where positions
    end or (`called`) all that trade are closed; returns proceeds, cost and notional, USD."""
    value = 0.0
    cost = 0.0
    notional = 0.0
    for n in range(stages.shape[1]):
        held = stages[i, n]
        stages[i + 1, n] = held
        if _leaves(prices, bar, n, called):
            x = held * (np.float64(prices.quotes[bar, MARK, n]) * _UNIT)
            thin = np.float64(prices.thinness[bar, n])
            each, _, _ = closing_cost(held, abs(x), thin, prices.spread[n], rules)
            value = value + x
            cost = cost + each
            notional = notional + abs(x)
            stages[i + 1, n] = 0.0
    return value, cost if rules.each else rules.rate * notional, notional


@compiled
def _close_back(
    stages: Any,
    i: int,
    prices: Prices,
    bar: int,
    called: bool,
    rules: Rules,
    g_shares: Any,
    g_cash: float,
    g_cost: float,
    g_turnover: float,
) -> None:
    g_total = g_cost - g_cash
    for n in range(stages.shape[1]):
        if _leaves(prices, bar, n, called):
            held = stages[i, n]
            price = np.float64(prices.quotes[bar, MARK, n]) * _UNIT
            thin = prices.thinness[bar, n]
            in_x = rules.rate
            in_shares = 0.0
            if rules.each:
                _, in_x, in_shares = closing_cost(
                    held, abs(held * price), np.float64(thin), prices.spread[n], rules
                )
            g_notional = g_turnover + g_total * in_x
            g_shares[n] = (g_cash + sign(held * price) * g_notional) * price + g_total * in_shares


@compiled
def _owed(shares: Any, i: int, cash: float, prices: Prices, bar: int) -> float:
    """USD borrowed on the way to `bar`: short positions at the close before, and cash."""
    row = prices.event_row[bar]
    owed = max(-cash, 0.0)
    for n in range(shares.shape[1]):
        before = np.float64(prices.quotes[bar - 1, MARK, n]) * _UNIT / prices.splits[row, n]
        owed += max(-(shares[i, n] * before), 0.0)
    return owed


@inlined
def _worth(shares: Any, i: int, prices: Prices, bar: int) -> tuple[float, float]:
    """USD of the holdings at the close of `bar`, and of their exposure."""
    value = 0.0
    exposed = 0.0
    for n in range(shares.shape[1]):
        x = shares[i, n] * (np.float64(prices.quotes[bar, MARK, n]) * _UNIT)
        value = plus(value, x)
        exposed = plus(exposed, abs(x))
    return value, exposed


@inlined
def mark_bars(
    start: int,
    end: int,
    interval: int,
    cash: float,
    peak: float,
    prices: Prices,
    rules: Rules,
    tape: Tape,
) -> tuple[float, float, float, float, float, int]:
    """Mark `interval` bars after `start`, none after `end`; returns cash, equity, peak, cost,
    turnover (USD) and the stage of the shares."""
    stages = tape.stages
    i = 0
    equity = 0.0
    cost = 0.0
    turnover = 0.0
    for j in range(interval):
        bar = min(start + j + 1, end)
        moves = start + j < end
        tape.stage[j] = i
        tape.called[j] = False
        tape.marks[2, j] = peak
        if moves and prices.event_row[bar] > 0 and (j > 0 or rules.same_bar):
            cash += events(stages, i, prices, bar, rules.whole, stages, i + 1)
            i += 1
        tape.marks[0, j] = cash
        if moves and rules.borrow > 0.0:
            interest = _owed(stages, i, cash, prices, bar) * rules.borrow * prices.years[bar]
            cash = cash - interest
            cost = cost + interest
        if moves and prices.ends[bar]:
            value, due, notional = _close(stages, i, prices, bar, False, rules)
            cash = cash + (value - due)
            cost = cost + due
            turnover = turnover + notional
            i = i + 1
        if moves or j == 0:
            value, exposed = _worth(stages, i, prices, bar)
            equity = cash + value
            if moves and rules.margin > 0.0 and equity < rules.margin * exposed:
                tape.called[j] = True
                value, due, notional = _close(stages, i, prices, bar, True, rules)
                cash = cash + (value - due)
                cost = cost + due
                turnover = turnover + notional
                i = i + 1
                value, _ = _worth(stages, i, prices, bar)
                equity = cash + value
        tape.marks[1, j] = equity
        peak = max(peak, equity)
    return cash, equity, peak, cost, turnover, i


@inlined
def mark_bars_back(
    start: int,
    end: int,
    interval: int,
    g_shares: Any,
    g_cash: float,
    g_equity: float,
    g_peak: float,
    g_cost: float,
    g_turnover: float,
    prices: Prices,
    rules: Rules,
    tape: Tape,
) -> tuple[float, float]:
    """Make of the slopes in the shares `g_shares [N]`, cash, equity and peak after the bars those
    in the shares and the cash after the fills, and in the peak before."""
    stages = tape.stages
    for j in range(interval - 1, -1, -1):
        bar = min(start + j + 1, end)
        moves = start + j < end
        rose = above(tape.marks[1, j], tape.marks[2, j])
        g_equity = g_equity + g_peak * rose
        g_peak = g_peak * (1.0 - rose)
        if not moves and j > 0:
            continue  # it stands where it stood: the slope in equity goes on to the bar before
        happens = moves and prices.event_row[bar] > 0 and (j > 0 or rules.same_bar)
        i = tape.stage[j] + happens + (moves and prices.ends[bar])
        if g_equity != 0.0:
            g_cash += g_equity
            for n in range(len(g_shares)):
                g_shares[n] += g_equity * (np.float64(prices.quotes[bar, MARK, n]) * _UNIT)
        g_equity = 0.0
        if tape.called[j]:
            _close_back(stages, i, prices, bar, True, rules, g_shares, g_cash, g_cost, g_turnover)
        if moves and prices.ends[bar]:
            i -= 1
            _close_back(stages, i, prices, bar, False, rules, g_shares, g_cash, g_cost, g_turnover)
        if moves and rules.borrow > 0.0:
            row = prices.event_row[bar]
            g_owed = (g_cost - g_cash) * rules.borrow * prices.years[bar]
            for n in range(len(g_shares)):
                before = np.float64(prices.quotes[bar - 1, MARK, n]) * _UNIT / prices.splits[row, n]
                g_shares[n] -= g_owed * before if stages[i, n] * before < 0.0 else 0.0
            g_cash -= g_owed if tape.marks[0, j] < 0.0 else 0.0
        if happens:
            events_back(g_shares, g_cash, prices, bar, rules.whole)
    return g_cash, g_peak


# --- what is made of an account -------------------------------------------------------------------


@inlined
def _see_back(
    g_obs: Any,
    b: int,
    step: Any,
    prices: Prices,
    bar: int,
    shares: Any,
    i: int,
    g_shares: Any,
    g: Any,
) -> None:
    """Add to `g_shares [N]` and `g [4]` (cash, equity, peak, first equity) the slopes of
    `ledger.write_private`."""
    cash, equity, peak, first = step
    least = _LEAST * first
    safe = max(equity, least)
    share = 1.0 / safe
    g_safe = g_obs[b, 1] / first - g_obs[b, 0] * cash / (safe * safe)
    g_share = 0.0
    for n in range(len(g_shares)):
        price = np.float64(prices.quotes[bar, MARK, n]) * _UNIT
        g_weight = np.float64(g_obs[b, 4 + n])
        g_share = plus(g_share, g_weight * shares[i, n] * price)
        g_shares[n] += g_weight * price * share
    g_safe -= g_share / (safe * safe)
    own = above(equity, least)
    g[CASH] += g_obs[b, 0] / safe
    g[EQUITY] += g_safe * own + g_obs[b, 2] / peak
    g[PEAK] -= g_obs[b, 2] * equity / (peak * peak)
    g[FIRST] += g_safe * (1.0 - own) * _LEAST - g_obs[b, 1] * safe / (first * first)


@inlined
def _worth_of_step(worth_of: int, before: float, equity: float, first: float) -> float:
    if worth_of == LOG_RETURN:
        return max(equity, _LEAST * first) / max(before, _LEAST * first)
    return (equity - before) / first


@inlined
def _worth_of_step_back(
    worth_of: int, g_worth: float, before: float, equity: float, first: float
) -> tuple[float, float, float]:
    """Slopes in the equity before, the equity and the first equity."""
    if worth_of != LOG_RETURN:
        return -g_worth / first, g_worth / first, -g_worth * (equity - before) / (first * first)
    least = _LEAST * first
    top = max(equity, least)
    bottom = max(before, least)
    g_top = g_worth / bottom
    g_bottom = -g_worth * top / (bottom * bottom)
    own_top = above(equity, least)
    own_bottom = above(before, least)
    g_first = _LEAST * (g_top * (1.0 - own_top) + g_bottom * (1.0 - own_bottom))
    return g_bottom * own_bottom, g_top * own_top, g_first


@njit(nogil=True, error_model="numpy", cache=True)
def step_range(
    low: int,
    high: int,
    mode: int,
    flat: bool,
    stream: bool,
    worth_of: int,
    interval: int,
    stages: int,
    row_width: int,
    single: bool,
    prices: Prices,
    rules: Rules,
    rows: Any,
    action: Any,
    old: Any,
    new: Any,
    obs: Any,
) -> int:
    """Step accounts [low, high); `obs` shows them before any reset. Returns how many begin a new
    episode now, or -1 if an action was not finite; then what was written means nothing."""
    tape = make_tape(stages, interval, action.shape[1], rules.rate)
    restarts: int = _step_accounts(
        low,
        high,
        mode,
        flat,
        stream,
        worth_of,
        interval,
        row_width,
        single,
        prices,
        rules,
        rows,
        action,
        old,
        new,
        obs,
        tape,
    )
    return restarts


@compiled
def _step_accounts(
    low: int,
    high: int,
    mode: int,
    flat: bool,
    stream: bool,
    worth_of: int,
    interval: int,
    row_width: int,
    single: bool,
    prices: Prices,
    rules: Rules,
    rows: Any,
    action: Any,
    old: Any,
    new: Any,
    obs: Any,
    tape: Tape,
) -> int:
    ints_0, floats_0, flags_0, shares_0 = old
    ints_1, floats_1, flags_1, shares_1 = new
    restarts = 0
    wild = 0
    for b in range(low, high):
        for n in range(action.shape[1]):
            wild += not (abs(action[b, n]) < np.inf)
        start = ints_0[BAR, b]
        end = ints_0[END, b]
        before = floats_0[EQUITY, b]
        first = floats_0[FIRST, b]
        filled = start if rules.same_bar else min(start + 1, end)
        order = fill_orders(
            action,
            b,
            single,
            start,
            filled,
            floats_0[CASH, b],
            before,
            shares_0,
            prices,
            rules,
            tape,
        )
        cash, equity, peak, cost, turnover, stage = mark_bars(
            start, end, interval, order.cash, floats_0[PEAK, b], prices, rules, tape
        )
        bar = min(start + interval, end)
        for n in range(action.shape[1]):
            shares_1[b, n] = tape.stages[stage, n]
        terminated = equity <= rules.ruin * first
        truncated = (bar >= end) & (not terminated)
        began = mode == NEXT_STEP and flags_0[FINISHED, b]
        done = (terminated | truncated) & (not began)
        floats_1[CASH, b] = cash
        floats_1[EQUITY, b] = equity
        floats_1[PEAK, b] = peak
        floats_1[FIRST, b] = first
        floats_1[STEP_EQUITY, b] = equity
        floats_1[STEP_PEAK, b] = peak
        floats_1[COST, b], floats_1[TURNOVER, b] = order.cost + cost, order.turnover + turnover
        floats_1[WORTH, b] = _worth_of_step(worth_of, before, equity, first)
        ints_1[BAR, b], ints_1[FINAL_BAR, b], ints_1[START, b], ints_1[END, b] = (
            bar,
            bar,
            ints_0[START, b],
            end,
        )
        ints_1[EPISODE, b] = ints_0[EPISODE, b]
        flags_1[TERMINATED, b] = terminated & done
        flags_1[TRUNCATED, b] = truncated & done
        flags_1[DONE, b] = done
        flags_1[FINISHED, b] = done & (mode != SAME_STEP)
        if began:  # its step counts for nothing
            floats_1[STEP_EQUITY, b], floats_1[STEP_PEAK, b] = before, floats_0[PEAK, b]
            floats_1[COST, b] = 0.0
            floats_1[TURNOVER, b] = 0.0
            floats_1[WORTH, b] = 1.0 if worth_of == LOG_RETURN else 0.0
            ints_1[FINAL_BAR, b] = start
        restarts += began | (done & (mode == SAME_STEP))
        _see(obs, b, new, prices.quotes, prices.clock)
        if flat:
            _copy_row(obs, b, rows, bar, row_width * 4, stream)
    return -1 if wild else restarts


@njit(nogil=True, error_model="numpy", cache=True)
def restart(
    mode: int,
    flat: bool,
    row_width: int,
    random_start: bool,
    prices: Prices,
    rows: Any,
    given: Any,
    old: Any,
    new: Any,
    obs: Any,
) -> None:
    """Begin the episodes that are due, and show in `obs` where they begin."""
    ints_0, _, flags_0, _ = old
    ints_1, _, flags_1, _ = new
    for b in range(len(obs)):
        if flags_1[DONE, b] if mode == SAME_STEP else flags_0[FINISHED, b]:
            _begin(b, random_start, prices, given, ints_0, new)
            _see(obs, b, new, prices.quotes, prices.clock)
            if flat:
                _copy_row(obs, b, rows, ints_1[BAR, b], row_width * 4, False)


@njit(nogil=True, error_model="numpy", cache=True)
def step_range_back(
    low: int,
    high: int,
    mode: int,
    worth_of: int,
    interval: int,
    stages: int,
    single: bool,
    prices: Prices,
    rules: Rules,
    action: Any,
    old: Any,
    flags_1: Any,
    above_it: Any,
    below_it: Any,
) -> int:
    """From the slopes in what a step made, `above_it` (floats `[9, B]`, shares, observations, those
    before a reset; either observation may be empty), to those in what it was made of, `below_it`
    (action, floats `[9, B]`, shares)."""
    tape = make_tape(stages, interval, action.shape[1], rules.rate)
    _step_accounts_back(
        low,
        high,
        mode,
        worth_of,
        interval,
        single,
        prices,
        rules,
        action,
        old,
        flags_1,
        above_it,
        below_it,
        tape,
        np.empty(4),
    )
    return 0


@compiled
def _step_accounts_back(
    low: int,
    high: int,
    mode: int,
    worth_of: int,
    interval: int,
    single: bool,
    prices: Prices,
    rules: Rules,
    action: Any,
    old: Any,
    flags_1: Any,
    above_it: Any,
    below_it: Any,
    tape: Tape,
    g: Any,
) -> None:
    ints_0, floats_0, flags_0, shares_0 = old
    g_floats_1, g_shares_1, g_obs, g_final = above_it
    g_action, g_floats_0, g_shares_0 = below_it
    num_assets = action.shape[1]
    for b in range(low, high):
        g_shares = g_shares_0[b]
        ended = mode == SAME_STEP and flags_1[DONE, b]
        for n in range(num_assets):
            g_shares[n] = 0.0 if ended else g_shares_1[b, n]
        for place in range(4):
            g[place] = 0.0 if ended else g_floats_1[place, b]
        if mode == NEXT_STEP and flags_0[FINISHED, b]:
            for n in range(num_assets):
                g_action[b, n] = 0.0
                g_shares[n] = 0.0
            for place in range(9):
                g_floats_0[place, b] = 0.0
            continue
        start = ints_0[BAR, b]
        end = ints_0[END, b]
        before = floats_0[EQUITY, b]
        first = floats_0[FIRST, b]
        filled = start if rules.same_bar else min(start + 1, end)
        order = fill_orders(
            action,
            b,
            single,
            start,
            filled,
            floats_0[CASH, b],
            before,
            shares_0,
            prices,
            rules,
            tape,
        )
        cash, equity, peak, _, _, stage = mark_bars(
            start, end, interval, order.cash, floats_0[PEAK, b], prices, rules, tape
        )
        bar = min(start + interval, end)
        step = (cash, equity, peak, first)
        if len(g_obs) and not ended:
            _see_back(g_obs, b, step, prices, bar, tape.stages, stage, g_shares, g)
        if len(g_final):
            _see_back(g_final, b, step, prices, bar, tape.stages, stage, g_shares, g)
        g_before, g_equity, g_first = _worth_of_step_back(
            worth_of, g_floats_1[WORTH, b], before, equity, first
        )
        g[EQUITY] += g_equity + g_floats_1[STEP_EQUITY, b]
        g[PEAK] += g_floats_1[STEP_PEAK, b]
        g_cost = g_floats_1[COST, b]
        g_turnover = g_floats_1[TURNOVER, b]
        g_cash, g_peak = mark_bars_back(
            start,
            end,
            interval,
            g_shares,
            g[CASH],
            g[EQUITY],
            g[PEAK],
            g_cost,
            g_turnover,
            prices,
            rules,
            tape,
        )
        g_cash, g_equity = fill_orders_back(
            action,
            b,
            single,
            start,
            filled,
            before,
            order,
            shares_0,
            g_shares,
            g_cash,
            g_cost,
            g_turnover,
            prices,
            rules,
            tape,
            g_action,
        )
        for place in range(FIRST + 1, 9):
            g_floats_0[place, b] = 0.0
        g_floats_0[CASH, b] = g_cash
        g_floats_0[EQUITY, b] = g_equity + g_before
        g_floats_0[PEAK, b], g_floats_0[FIRST, b] = g_peak, g[FIRST] + g_first
