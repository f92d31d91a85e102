"""The fused CPU kernel: one pass over each account does the orders, the fills, the mark, the reset, the observation.

It computes what `core.advance`, `core.begin` and `core.observe` compute, to the last bit: float32 prices times whole
shares, summed in float64, are exact, so the order of summation is free to be the fastest one, and everything else is
done in the same order with the same roundings. Only the sums are compiled with leave to reassociate. Whole shares and
actions on their grid are exact in float32 too, where twice as many fit into a register.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fintrader.envs.kernels.buffers import (
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
)
from fintrader.envs.kernels.simd import copy_bytes, prefetch, stream_bytes
from fintrader.envs.ledger import MAX_WHOLE_SHARES, WEIGHT_GRID

# Numbers the kernel works with; float32 ones keep float32 arithmetic what it is.
_GRID, _INVERSE_GRID = np.float32(WEIGHT_GRID), 1.0 / WEIGHT_GRID
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_MOST = MAX_WHOLE_SHARES
_MAGNITUDE, _INFINITY = np.int32(0x7FFFFFFF), np.int32(0x7F800000)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ACCOUNT_WIDTH = 4
_DIVISOR = _ACCOUNT_WIDTH  # row of `seen`, below the account features
_TOGETHER = 32  # accounts that go through a stage together: their temporaries fit into the nearest cache
_WANTED, _UNIT, _SOLD, _ORDERED, _BUDGET, _SCALE, _BOUGHT, _VALUE, _ENDED, _BOOK = range(10)  # rows of `book`
_LINE = 64  # bytes the processor fetches at once


@njit(inline="always", error_model="numpy", cache=True)
def _mix(x: Any) -> Any:
    """SplitMix64's output function, on uint64."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@njit(fastmath={"reassoc"}, error_model="numpy", forceinline=True, cache=True)
def _clean(action: Any, bits: Any, b: int, positive: Any, i: int) -> tuple[float, Any]:
    """Positive parts of the actions in units of the grid; returns their sum, which is exact, and the largest
    magnitude's bits."""
    total, worst = 0.0, np.int32(0)
    for n in range(positive.shape[1]):
        worst = max(worst, bits[b, n] & _MAGNITUDE)
        a = np.rint(min(max(action[b, n], _ZERO), _ONE) * _GRID)
        positive[i, n] = a
        total += np.float64(a)
    return total, worst


@njit(error_model="numpy", cache=True)
def _want_target(positive: Any, i: int, unit: float, quotes: Any, t: int, want: Any) -> None:
    """floor(relu(a) * unit / price), 0 without a price; `unit` is V / max(1, sum relu(a)) for a unit of the grid."""
    for n in range(want.shape[0]):
        price = np.float64(quotes[t, MARK, n])
        listed = price > 0.0
        shares = np.floor(np.float64(positive[i, n]) * unit / (price if listed else 1.0))
        want[n] = min(shares, _MOST) if listed else 0.0


@njit(error_model="numpy", cache=True)
def _keep_near(held: Any, b: int, quotes: Any, t: int, band: float, want: Any) -> None:
    """Leave holdings alone that are within `band` USD of their target."""
    for n in range(want.shape[0]):
        holding = np.float64(held[b, n])
        if abs(want[n] - holding) * np.float64(quotes[t, MARK, n]) <= band and want[n] != 0.0:
            want[n] = holding


@njit(error_model="numpy", cache=True)
def _want_trade(action: Any, held: Any, b: int, dead_band: float, max_shares: float, want: Any) -> None:
    """held + trunc(a * max_shares), not below zero."""
    for n in range(want.shape[0]):
        a = min(max(action[b, n], -_ONE), _ONE)
        size = abs(np.float64(np.rint(a * _GRID))) * _INVERSE_GRID
        order = np.floor(size * max_shares) if size > dead_band else 0.0
        want[n] = min(max(np.float64(held[b, n]) + (-order if a < _ZERO else order), 0.0), _MOST)


@njit(fastmath={"reassoc"}, error_model="numpy", cache=True)
def _sell(held: Any, b: int, want: Any, quotes: Any, t: int, kept: Any, addition: Any, i: int) -> tuple[float, float]:
    """Holdings after the sales, wanted additions; returns the value sold and the value wanted.

    Fill prices are negative where a symbol may be sold only and 0 where it does not trade.
    """
    sold, ordered = 0.0, 0.0
    for n in range(kept.shape[1]):
        signed = np.float64(quotes[t, FILL, n])
        p = abs(signed)
        holding = np.float64(held[b, n])
        left = min(want[n], holding) if p > 0.0 else holding
        more = want[n] - left if signed > 0.0 else 0.0
        kept[i, n] = np.float32(left)
        addition[i, n] = np.float32(more)
        sold += (holding - left) * p
        ordered += more * p
    return sold, ordered


@njit(fastmath={"reassoc"}, error_model="numpy", forceinline=True, cache=True)
def _target_and_sell(
    unit: float, quotes: Any, now: int, held: Any, b: int, t: int, kept: Any, addition: Any, i: int
) -> tuple[float, float]:
    """`_want_target` and `_sell` in one pass, where every symbol has a price and may be bought; `kept` holds the
    positive actions before."""
    sold, ordered = 0.0, 0.0
    for n in range(kept.shape[1]):
        want = np.float32(np.floor(np.float64(kept[i, n]) * unit / np.float64(quotes[now, MARK, n])))
        p = np.float64(quotes[t, FILL, n])
        order = want - held[b, n]
        more, less = max(order, _ZERO), max(-order, _ZERO)
        kept[i, n] = held[b, n] - less
        addition[i, n] = more
        sold += np.float64(less) * p
        ordered += np.float64(more) * p
    return sold, ordered


@njit(fastmath={"reassoc"}, error_model="numpy", forceinline=True, cache=True)
def _buy(
    kept: Any, addition: Any, i: int, scale: float, quotes: Any, t: int, shares: Any, b: int, bar: int
) -> tuple[float, float]:
    """Add floor(scale * addition); returns the value bought and the value of the holdings at the close of `bar`."""
    bought, value = 0.0, 0.0
    for n in range(kept.shape[1]):
        more = np.floor(scale * np.float64(addition[i, n]))
        now = kept[i, n] + np.float32(more)
        shares[b, n] = now
        bought += more * np.float64(quotes[t, FILL, n])  # nothing is added where that is not positive
        value += np.float64(now) * np.float64(quotes[bar, MARK, n])
    return bought, value


@njit(fastmath={"reassoc"}, error_model="numpy", cache=True)
def _value(shares: Any, b: int, quotes: Any, t: int) -> float:
    """Sum of shares times closes, exact."""
    total = 0.0
    for n in range(shares.shape[1]):
        total += np.float64(shares[b, n]) * np.float64(quotes[t, MARK, n])
    return total


@njit(error_model="numpy", cache=True)
def _close_ended(shares: Any, b: int, quotes: Any, last_bar: Any, bar: int) -> float:
    """Sell what ends at this bar; returns its value."""
    total = 0.0
    for n in range(shares.shape[1]):
        if last_bar[n] == bar:
            total += np.float64(shares[b, n]) * np.float64(quotes[bar, MARK, n])
            shares[b, n] = _ZERO
    return total


@njit(error_model="numpy", forceinline=True, cache=True)
def _features(seen: Any, i: int, cash: float, equity: float, peak: float, first: float, left: int, length: int) -> None:
    """Account features, and what holdings are divided by for their weights."""
    safe = max(equity, 1e-6 * first)
    seen[0, i] = np.float32(cash / safe)
    seen[1, i] = np.float32(safe / first - 1.0)
    seen[2, i] = np.float32(equity / peak - 1.0)
    seen[3, i] = np.float32(left / max(length, 1))
    seen[_DIVISOR, i] = np.float32(safe)


@njit(error_model="numpy", forceinline=True, cache=True)
def _write_private(obs: Any, b: int, seen: Any, i: int, shares: Any, quotes: Any, t: int) -> None:
    """Account features and holdings weights."""
    for column in range(_ACCOUNT_WIDTH):
        obs[b, column] = seen[column, i]
    divisor = seen[_DIVISOR, i]
    for n in range(shares.shape[1]):
        obs[b, _ACCOUNT_WIDTH + n] = shares[b, n] * quotes[t, MARK, n] / divisor


@njit(error_model="numpy", forceinline=True, cache=True)
def _copy_row(obs: Any, b: int, rows: Any, bar: int, stream: bool) -> None:
    """The market's row behind the private part; `stream` writes past the caches."""
    size = rows.shape[1] * 4
    place = (b + 1) * obs.shape[1] * 4 - size
    if stream:
        stream_bytes(obs, place, rows, bar * size, size)
    else:
        copy_bytes(obs, place, rows, bar * size, size)


@njit(error_model="numpy", forceinline=True, cache=True)
def _pay_and_mark(
    low: int, count: int, rate: float, ruin: float, worth: int, book: Any, bars: Any, ints_0: Any, floats_0: Any,
    ints_1: Any, floats_1: Any, flags_1: Any, seen: Any,
) -> None:  # fmt: skip
    """After the fills of accounts low, low + 1, ...: their books, whether their episodes ended, what they see."""
    for i in range(count):
        b = low + i
        sold, bought, ended = book[_SOLD, i], book[_BOUGHT, i], book[_ENDED, i]
        before, first, end, bar = floats_0[EQUITY, b], floats_0[FIRST, b], ints_0[END, b], bars[i]
        opening_cost, ended_cost = rate * bought, rate * ended
        cash = max(book[_BUDGET, i] - (bought + opening_cost), 0.0) + (ended - ended_cost)
        equity = cash + book[_VALUE, i]
        peak = max(floats_0[PEAK, b], equity)
        terminated = equity <= ruin * first
        truncated = (bar >= end) & (not terminated)
        floats_1[CASH, b], floats_1[EQUITY, b], floats_1[PEAK, b], floats_1[FIRST, b] = cash, equity, peak, first
        floats_1[STEP_EQUITY, b], floats_1[STEP_PEAK, b] = equity, peak
        floats_1[COST, b] = (rate * sold + opening_cost) + ended_cost
        floats_1[TURNOVER, b] = (sold + bought) + ended
        least = 1e-6 * first
        floats_1[WORTH, b] = (
            max(equity, least) / max(before, least) if worth == LOG_RETURN else (equity - before) / first
        )
        flags_1[TERMINATED, b], flags_1[TRUNCATED, b], flags_1[DONE, b] = terminated, truncated, terminated | truncated
        start = ints_0[START, b]
        ints_1[BAR, b], ints_1[END, b], ints_1[START, b], ints_1[EPISODE, b] = bar, end, start, ints_0[EPISODE, b]
        ints_1[FINAL_BAR, b] = bar
        _features(seen, i, cash, equity, peak, first, end - bar, end - start)


@njit(error_model="numpy", cache=True)
def _begin(b: int, random_start: bool, quotes: Any, last_bar: Any, given: Any, ints_0: Any, new: Any) -> None:
    """Account b at the start of its next episode, without the shares of what is not listed there."""
    _, _, key, give_cash, give_shares, give_bars = given
    ints_1, floats_1, _, shares_1 = new
    last, episode = quotes.shape[0] - 1, ints_0[EPISODE, b]
    length = min(give_bars[b], last) if give_bars[b] > 0 else 1
    bar = 0
    if random_start:
        drawn = _mix(np.uint64(key[b]) + np.uint64(episode) * _GOLDEN) >> np.uint64(1)
        bar = np.int64(drawn) % max(last - length + 1, 1)
    for n in range(shares_1.shape[1]):
        shares_1[b, n] = give_shares[b, n] if quotes[bar, MARK, n] > 0.0 and last_bar[n] > bar else 0.0
    equity = give_cash[b] + _value(shares_1, b, quotes, bar)
    ints_1[BAR, b], ints_1[START, b], ints_1[EPISODE, b] = bar, bar, episode + 1
    ints_1[END, b] = min(bar + length, last) if give_bars[b] > 0 else last
    floats_1[CASH, b], floats_1[EQUITY, b], floats_1[PEAK, b], floats_1[FIRST, b] = give_cash[b], equity, equity, equity


@njit(nogil=True, error_model="numpy", cache=True)
def step_range(
    low: int, high: int, mode: int, flat: bool, stream: bool, worth: int, market: Any, rules: Any, given: Any, old: Any,
    new: Any, obs: Any, final_obs: Any,
) -> int:  # fmt: skip
    """Step accounts [low, high). The tuples are packed in `fused.FusedStep`, which names their parts.

    Some accounts at a time go through each stage together, so that a stage's arithmetic on single numbers is
    vectorised over them and nobody waits for one account's sums. Returns how many episodes ended, or -1 if an action
    was not finite; then what was written means nothing.
    """
    quotes, lowest, rows, last_bar, ends, risk_off = market
    target, same_bar, random_start, rate, ruin, max_shares, dead_band, band, turbulent = rules
    action, bits = given[0], given[1]
    ints_0, floats_0, flags_0, shares_0 = old
    ints_1, floats_1, flags_1, shares_1 = new
    num_bars, num_assets = quotes.shape[0], quotes.shape[2]
    quote_bytes, row_bytes = num_assets * 8, rows.shape[1] * 4
    kept, addition = np.empty((_TOGETHER, num_assets), np.float32), np.empty((_TOGETHER, num_assets), np.float32)
    want = np.empty(num_assets)
    book, seen = np.empty((_BOOK, _TOGETHER)), np.empty((_DIVISOR + 1, _TOGETHER), np.float32)
    bars, fill_bars = np.empty(_TOGETHER, np.int64), np.empty(_TOGETHER, np.int64)
    strange, episodes = np.int32(0), 0
    for first in range(low, high, _TOGETHER):
        count = min(_TOGETHER, high - first)
        for i in range(count):
            b = first + i
            ahead = min(ints_0[BAR, b], num_bars - 2) * quote_bytes  # its prices lie anywhere: ask for them now
            for line in range(quote_bytes // 2, 2 * quote_bytes, _LINE):
                prefetch(quotes, ahead + line)
            book[_WANTED, i], worst = _clean(action, bits, b, kept, i)
            strange = max(strange, worst)
        for i in range(count):
            value = max(floats_0[EQUITY, first + i], 0.0)
            book[_UNIT, i] = value / max(book[_WANTED, i] * _INVERSE_GRID, 1.0) * _INVERSE_GRID
            bar, end = ints_0[BAR, first + i], ints_0[END, first + i]
            bars[i] = min(bar + 1, end)
            fill_bars[i] = bar if same_bar else bars[i]
        for i in range(count):
            b = first + i
            bar, fill_bar = ints_0[BAR, b], fill_bars[i]
            value, unit = max(floats_0[EQUITY, b], 0.0), book[_UNIT, i]
            calm = not (turbulent and risk_off[bar])
            # lowest is 0 where a symbol has no price or may not be bought
            if calm and target and band == 0.0 and value < _MOST * min(lowest[MARK, bar], lowest[FILL, fill_bar]):
                sold, ordered = _target_and_sell(unit, quotes, bar, shares_0, b, fill_bar, kept, addition, i)
            else:
                if not calm:
                    want[:] = 0.0
                elif target:
                    _want_target(kept, i, unit, quotes, bar, want)
                    if band > 0.0:
                        _keep_near(shares_0, b, quotes, bar, band * value, want)
                else:
                    _want_trade(action, shares_0, b, dead_band, max_shares, want)
                sold, ordered = _sell(shares_0, b, want, quotes, fill_bar, kept, addition, i)
            book[_SOLD, i], book[_ORDERED, i] = sold, ordered
        for i in range(count):
            sold, ordered = book[_SOLD, i], book[_ORDERED, i]
            cash = floats_0[CASH, first + i] + (sold - rate * sold)
            full = (1.0 + rate) * ordered
            scale = min(max(cash, 0.0) / (full if full > 0.0 else 1.0), 1.0)
            book[_SCALE, i] = scale if ordered + rate * ordered > cash else 1.0
            book[_BUDGET, i] = cash
        for i in range(count):
            b, bar = first + i, bars[i]
            bought, value = _buy(kept, addition, i, book[_SCALE, i], quotes, fill_bars[i], shares_1, b, bar)
            ended = 0.0
            if ends[bar] and ints_0[BAR, b] < ints_0[END, b]:
                ended = _close_ended(shares_1, b, quotes, last_bar, bar)
            book[_BOUGHT, i], book[_VALUE, i], book[_ENDED, i] = bought, value - ended, ended
        _pay_and_mark(first, count, rate, ruin, worth, book, bars, ints_0, floats_0, ints_1, floats_1, flags_1, seen)
        for i in range(count):
            b = first + i
            begins = mode == NEXT_STEP and flags_0[FINISHED, b]
            if begins:
                flags_1[TERMINATED, b] = flags_1[TRUNCATED, b] = flags_1[DONE, b] = False
                floats_1[STEP_EQUITY, b], floats_1[STEP_PEAK, b] = floats_0[EQUITY, b], floats_0[PEAK, b]
                floats_1[COST, b], floats_1[TURNOVER, b] = 0.0, 0.0
                floats_1[WORTH, b] = 1.0 if worth == LOG_RETURN else 0.0
                ints_1[FINAL_BAR, b] = ints_0[BAR, b]
            done = flags_1[DONE, b]
            episodes += done
            flags_1[FINISHED, b] = done and mode != SAME_STEP
            if done and mode == SAME_STEP:
                _write_private(final_obs, b, seen, i, shares_1, quotes, bars[i])
                if flat:
                    _copy_row(final_obs, b, rows, bars[i], False)
                begins = True
            if begins:
                _begin(b, random_start, quotes, last_bar, given, ints_0, new)
                equity, left = floats_1[EQUITY, b], ints_1[END, b] - ints_1[BAR, b]
                _features(seen, i, floats_1[CASH, b], equity, equity, equity, left, left)
            bar = ints_1[BAR, b]
            if flat:
                for line in range(0, row_bytes, _LINE):
                    prefetch(rows, bar * row_bytes + line)
            _write_private(obs, b, seen, i, shares_1, quotes, bar)
            if flat and b > low:  # one behind: its row has arrived meanwhile
                _copy_row(obs, b - 1, rows, ints_1[BAR, b - 1], stream)
    if flat and high > low:
        _copy_row(obs, high - 1, rows, ints_1[BAR, high - 1], stream)
    return -1 if strange >= _INFINITY else episodes
