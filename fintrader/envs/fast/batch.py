"""The fused CPU kernel: one pass over each account does the orders, the fills, the marks, the
reset, the observation.

It computes what `account.advance`, `episodes.begin` and `observe` compute, to the last bit, by the
functions of `envs.fast.ledger`; their sums are exact, so that only the order of additions is free.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fintrader.envs.fast.buffers import (
    BAR,
    CASH,
    COST,
    DONE,
    END,
    EPISODE,
    EQUITY,
    FINAL_BAR,
    FINISHED,
    FIRST,
    LOG_RETURN,
    MARK,
    PEAK,
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
from fintrader.envs.fast.ledger import (
    add,
    apply_events,
    ask_target,
    ask_trade,
    clean,
    cost_of_added,
    purchase_scale,
    reduce,
    reduce_at_cost,
    room,
    split_orders,
    unit_of,
    wait,
    worth,
    write_private,
)
from fintrader.envs.fast.simd import copy_bytes, prefetch, stream_bytes
from fintrader.envs.money import USD_GRID

_UNIT = 1.0 / USD_GRID
_INFINITY = np.int32(0x7F800000)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TOGETHER = (
    32  # accounts that go through a stage together: their temporaries fit into the nearest cache
)
_LINE = 64  # bytes the processor fetches at once
# Rows of `book`.
(
    _UNITS,
    _CLOSED,
    _ORDERED,
    _SCALE,
    _PAID,
    _OPENED,
    _VALUE,
    _CASH,
    _PEAK,
    _COST,
    _TURNOVER,
    _EQUITY,
) = range(12)
_CLOSING, _OWNED, _VARIABLE, _ORDERS = range(12, 16)


@njit(inline="always", error_model="numpy", cache=True)
def _mix(x: Any) -> Any:
    """SplitMix64's output function, on uint64."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def _copy_row(obs: Any, b: int, rows: Any, bar: int, size: int, stream: bool) -> None:
    """The market's row (`size` bytes: with a lookback, those of several bars) behind the private
    part; `stream` writes past the caches."""
    place = (b + 1) * obs.shape[1] * 4 - size
    origin = bar * rows.shape[1] * 4
    if stream:
        stream_bytes(obs, place, rows, origin, size)
    else:
        copy_bytes(obs, place, rows, origin, size)


@njit(error_model="numpy", cache=True, _nrt=False)
def _begin(b: int, random_start: bool, prices: Prices, given: Any, ints_0: Any, new: Any) -> None:
    """Account b at the start of its next episode, without the shares of what is not listed
    there."""
    _, _, key, give_cash, give_shares, give_bars = given
    ints_1, floats_1, _, shares_1 = new
    last = prices.quotes.shape[0] - 1
    episode = ints_0[EPISODE, b]
    length = min(give_bars[b], last) if give_bars[b] > 0 else 1
    bar = 0
    if random_start:
        drawn = _mix(np.uint64(key[b]) + np.uint64(episode) * _GOLDEN) >> np.uint64(1)
        bar = np.int64(drawn) % max(last - length + 1, 1)
    for n in range(shares_1.shape[1]):
        listed = prices.quotes[bar, MARK, n] > 0.0 and prices.last_bar[n] > bar
        shares_1[b, n] = give_shares[b, n] if listed else 0.0
    equity = give_cash[b] + worth(shares_1, b, prices.marks, bar)
    ints_1[BAR, b] = bar
    ints_1[START, b] = bar
    ints_1[EPISODE, b] = episode + 1
    ints_1[END, b] = min(bar + length, last) if give_bars[b] > 0 else last
    floats_1[CASH, b] = give_cash[b]
    floats_1[EQUITY, b] = equity
    floats_1[PEAK, b] = equity
    floats_1[FIRST, b] = equity


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def _finish(
    low: int,
    count: int,
    ruin: float,
    worth_of: int,
    book: Any,
    bars: Any,
    ints_0: Any,
    floats_0: Any,
    ints_1: Any,
    floats_1: Any,
    flags_1: Any,
) -> None:
    """After the marks of accounts low, low + 1, ...: their books, and whether their episodes
    ended."""
    for i in range(count):
        b = low + i
        before = floats_0[EQUITY, b]
        first = floats_0[FIRST, b]
        end = ints_0[END, b]
        bar = bars[i]
        equity = book[_EQUITY, i]
        peak = book[_PEAK, i]
        terminated = equity <= ruin * first
        truncated = (bar >= end) & (not terminated)
        floats_1[CASH, b] = book[_CASH, i]
        floats_1[EQUITY, b] = equity
        floats_1[PEAK, b] = peak
        floats_1[FIRST, b] = first
        floats_1[STEP_EQUITY, b] = equity
        floats_1[STEP_PEAK, b] = peak
        floats_1[COST, b], floats_1[TURNOVER, b] = book[_COST, i], book[_TURNOVER, i]
        least = 1e-6 * first
        floats_1[WORTH, b] = (
            max(equity, least) / max(before, least)
            if worth_of == LOG_RETURN
            else (equity - before) / first
        )
        flags_1[TERMINATED, b] = terminated
        flags_1[TRUNCATED, b] = truncated
        flags_1[DONE, b] = terminated | truncated
        ints_1[BAR, b] = bar
        ints_1[FINAL_BAR, b] = bar
        ints_1[END, b] = end
        ints_1[START, b], ints_1[EPISODE, b] = ints_0[START, b], ints_0[EPISODE, b]


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def _see(out: Any, b: int, new: Any, quotes: Any, clock: Any) -> None:
    """The private part of what account b sees."""
    ints, floats, _, shares = new
    bar = ints[BAR, b]
    end = ints[END, b]
    left = clock[bar]
    if left < 0.0:
        left = (end - bar) / max(end - ints[START, b], 1)
    write_private(
        out,
        b,
        floats[CASH, b],
        floats[EQUITY, b],
        floats[PEAK, b],
        floats[FIRST, b],
        left,
        shares,
        b,
        quotes,
        bar,
    )


@njit(nogil=True, error_model="numpy", cache=True)
def step_range(
    low: int,
    high: int,
    resets: bool,
    flat: bool,
    stream: bool,
    worth_of: int,
    random_start: bool,
    interval: int,
    row_width: int,
    prices: Prices,
    rules: Rules,
    rows: Any,
    given: Any,
    old: Any,
    new: Any,
    obs: Any,
    final_obs: Any,
    nothing: Any,
) -> int:
    """Step accounts [low, high). The tuples are packed in `step.FusedStep`, which names their
    parts; `nothing` are the empty curves and fills of `ledger.wait`.

    Some accounts at a time go through each stage together, so that a stage's arithmetic on single
    numbers is vectorised over them and nobody waits for one account's sums. Returns how many
    episodes ended, or -1 if an action was not finite; then what was written means nothing.
    """
    quotes = prices.quotes
    action = given[0]
    bits = given[1]
    ints_0, floats_0, _, shares_0 = old
    ints_1, floats_1, flags_1, shares_1 = new
    num_bars = quotes.shape[0]
    num_assets = quotes.shape[2]
    quote_bytes = num_assets * 12
    row_bytes = row_width * 4
    row_stride = rows.shape[1] * 4
    kept = np.empty((_TOGETHER, num_assets))
    want = np.empty((_TOGETHER, num_assets))
    wish = np.empty((_TOGETHER, num_assets), np.float32)
    book = np.empty((16, _TOGETHER))
    bars = np.empty(_TOGETHER, np.int64)
    fill_bars = np.empty(_TOGETHER, np.int64)
    turns = np.empty(_TOGETHER, np.bool_)
    lowest = np.float32(-1.0 if rules.short else 0.0)
    floor = -np.inf if rules.short else 0.0
    curves, fills = nothing
    plain = interval == 1 and rules.borrow == 0.0 and rules.margin == 0.0
    strange = np.int32(0)
    episodes = 0
    for first in range(low, high, _TOGETHER):
        count = min(_TOGETHER, high - first)
        for i in range(count):
            b = first + i
            ahead = (
                min(ints_0[BAR, b], num_bars - 2) * quote_bytes
            )  # its prices lie anywhere: ask for them now
            for line in range(num_assets * 8, 2 * quote_bytes, _LINE):
                prefetch(quotes, ahead + line)
            book[_UNITS, i], worst = clean(action, bits, b, lowest, wish, i)
            strange = max(strange, worst)
        for i in range(count):
            book[_UNITS, i] = unit_of(
                book[_UNITS, i], max(floats_0[EQUITY, first + i], 0.0), rules.leverage
            )
            bar = ints_0[BAR, first + i]
            end = ints_0[END, first + i]
            bars[i] = min(bar + interval, end)
            fill_bars[i] = bar if rules.same_bar else min(bar + 1, end)
            turns[i] = fill_bars[i] > bar and prices.event_row[fill_bars[i]] > 0
        for i in range(count):
            b = first + i
            bar = ints_0[BAR, b]
            if prices.risk_off[bar]:
                want[i] = 0.0
            elif rules.target:
                band = rules.band * max(floats_0[EQUITY, b], 0.0) * USD_GRID
                ask_target(wish, i, book[_UNITS, i], band, rules, quotes, bar, shares_0, b, want)
            else:
                ask_trade(action, b, rules, shares_0, want, i)
            held = shares_0
            book[_OWNED, i] = floats_0[CASH, b]
            if turns[i]:
                # Splits and dividends come before the fills: from here on holdings stand where they
                # will be written.
                split_orders(shares_0, b, want, i, prices, fill_bars[i], rules.whole)
                income, _ = apply_events(
                    shares_0, b, prices, fill_bars[i], rules.whole, shares_1, fills, 0
                )
                book[_OWNED, i] += income
                held = shares_1
            if rules.each:
                brought, closed, ordered, closing, variable, orders = reduce_at_cost(
                    want, i, floor, prices, fill_bars[i], held, b, kept, rules
                )
                book[_CLOSING, i] = closing
                book[_VARIABLE, i] = variable
                book[_ORDERS, i] = orders
            else:
                brought, closed, ordered = reduce(
                    want, i, floor, quotes, fill_bars[i], held, b, kept
                )
            book[_PAID, i] = brought * _UNIT
            book[_CLOSED, i] = closed * _UNIT
            book[_ORDERED, i] = ordered * _UNIT
        for i in range(count):
            if not rules.each:
                book[_CLOSING, i], book[_VARIABLE, i] = (
                    rules.rate * book[_CLOSED, i],
                    rules.rate * book[_ORDERED, i],
                )
                book[_ORDERS, i] = 0.0
            book[_CASH, i] = book[_OWNED, i] + (book[_PAID, i] - book[_CLOSING, i])
        for i in range(count):
            budget = book[_CASH, i]
            if rules.short:
                budget = room(
                    budget, kept, i, prices, ints_0[BAR, first + i], fill_bars[i], rules.leverage
                )
            orders = book[_ORDERS, i]
            book[_SCALE, i] = purchase_scale(
                book[_ORDERED, i], book[_VARIABLE, i], orders, budget, num_assets, rules
            )
        for i in range(count):
            b = first + i
            bar = min(ints_0[BAR, first + i] + 1, ints_0[END, first + i])
            paid, opened, value = add(
                kept, want, i, book[_SCALE, i], rules.whole, quotes, fill_bars[i], shares_1, b, bar
            )
            book[_PAID, i] = paid * _UNIT
            book[_OPENED, i] = opened * _UNIT
            book[_VALUE, i] = value * _UNIT
        for i in range(count):
            opening = rules.rate * book[_OPENED, i]
            if rules.each:
                opening = cost_of_added(shares_1, first + i, kept, i, prices, fill_bars[i], rules)
            cash = book[_CASH, i] - (book[_PAID, i] + opening)
            cash = cash if rules.short else max(cash, 0.0)
            book[_COST, i], book[_TURNOVER, i] = (
                book[_CLOSING, i] + opening,
                book[_CLOSED, i] + book[_OPENED, i],
            )
            book[_CASH, i], book[_EQUITY, i] = cash, cash + book[_VALUE, i]
            book[_PEAK, i] = max(floats_0[PEAK, first + i], book[_EQUITY, i])
        for i in range(count):
            b = first + i
            bar = ints_0[BAR, first + i]
            happens = prices.ends[bars[i]] or (rules.same_bar and prices.event_row[bars[i]] > 0)
            if not plain or (bar < bars[i] and happens):
                fresh = bar + 1 if rules.same_bar else bar + 2
                cash, equity, peak, cost, turnover, _ = wait(
                    b,
                    bar,
                    bars[i],
                    fresh,
                    book[_CASH, i],
                    floats_0[PEAK, b],
                    book[_COST, i],
                    book[_TURNOVER, i],
                    shares_1,
                    prices,
                    rules,
                    curves,
                    fills,
                    0,
                )
                if bar < bars[i]:
                    book[_CASH, i] = cash
                    book[_EQUITY, i] = equity
                    book[_PEAK, i] = peak
                    book[_COST, i] = cost
                    book[_TURNOVER, i] = turnover
        _finish(
            first,
            count,
            rules.ruin,
            worth_of,
            book,
            bars,
            ints_0,
            floats_0,
            ints_1,
            floats_1,
            flags_1,
        )
        for i in range(count):
            b = first + i
            done = flags_1[DONE, b]
            episodes += done
            flags_1[FINISHED, b] = done and not resets
            if done and resets:
                _see(final_obs, b, new, quotes, prices.clock)
                if flat:
                    _copy_row(final_obs, b, rows, bars[i], row_bytes, False)
                _begin(b, random_start, prices, given, ints_0, new)
            bar = ints_1[BAR, b]
            if flat:
                for line in range(0, row_bytes, _LINE):
                    prefetch(rows, bar * row_stride + line)
            _see(obs, b, new, quotes, prices.clock)
            if flat and b > low:  # one behind: its row has arrived meanwhile
                _copy_row(obs, b - 1, rows, ints_1[BAR, b - 1], row_bytes, stream)
    if flat and high > low:
        _copy_row(obs, high - 1, rows, ints_1[BAR, high - 1], row_bytes, stream)
    return -1 if strange >= _INFINITY else episodes
