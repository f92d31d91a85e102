"""The fused CPU kernel: one pass over each account does the orders, the fills, the mark, the reset, the observation.

It computes what `core.advance`, `core.begin` and `core.observe` compute, to the last bit: float32 prices times whole
shares, summed in float64, are exact, so the order of summation is free to be the fastest one, and everything else is
done in the same order with the same roundings. Only the sums are compiled with leave to reassociate. Needs numba
(the extra `fast`); without it the environment uses the torch core.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fintrader.envs.ledger import MAX_WHOLE_SHARES, WEIGHT_GRID

_GRID = WEIGHT_GRID
_INVERSE_GRID = 1.0 / WEIGHT_GRID
_MOST = MAX_WHOLE_SHARES
_LARGEST = float(np.finfo(np.float32).max)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ACCOUNT_WIDTH = 4
SAME_STEP, NEXT_STEP, DISABLED = 0, 1, 2


@intrinsic
def _prefetch(typing_context: Any, array: Any, offset: Any) -> Any:
    """Ask for the cache line at `array.data + offset` bytes."""
    signature = types.void(array, offset)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        import llvmlite.ir as ir

        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        pointer = builder.bitcast(data, ir.IntType(8).as_pointer())
        target = builder.gep(pointer, [args[1]])
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), *[ir.IntType(32)] * 3])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        number = ir.IntType(32)
        builder.call(function, [target, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _copy_bytes(
    typing_context: Any, target: Any, target_offset: Any, source: Any, source_offset: Any, size: Any
) -> Any:
    """memcpy between two arrays: four times a loop's speed, because it need not read the lines it overwrites."""
    signature = types.void(target, target_offset, source, source_offset, size)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointers = []
        for position in (0, 2):
            data = context.make_array(sig.args[position])(context, builder, args[position]).data
            start = builder.bitcast(data, cgutils.voidptr_t)
            pointers.append(builder.gep(start, [args[position + 1]]))
        cgutils.raw_memcpy(builder, pointers[0], pointers[1], args[4], 1)
        return context.get_dummy_value()

    return signature, generate


@njit(inline="always", error_model="numpy", cache=True)
def _mix(x: Any) -> Any:
    """SplitMix64's output function, on uint64."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@njit(fastmath={"reassoc"}, error_model="numpy", cache=True)
def _clean(action: Any, b: int, cleaned: Any) -> tuple[float, float]:
    """Actions on the grid in [-1, 1]; returns the sum of the positive ones, which is exact, and how many are odd."""
    total, odd = 0.0, 0.0
    for n in range(cleaned.shape[0]):
        given = np.float64(action[b, n])
        odd += 0.0 if abs(given) <= _LARGEST else 1.0
        a = min(max(given, -1.0), 1.0)
        a = np.rint(a * _GRID) * _INVERSE_GRID
        cleaned[n] = a
        total += max(a, 0.0)
    return total, odd


@njit(error_model="numpy", cache=True)
def _want_target(cleaned: Any, unit: float, mark: Any, t: int, want: Any) -> None:
    """floor(relu(a) * unit / price), 0 without a price; `unit` is V / max(1, sum relu(a))."""
    for n in range(want.shape[0]):
        price = np.float64(mark[t, n])
        listed = price > 0.0
        shares = np.floor(max(cleaned[n], 0.0) * unit / (price if listed else 1.0))
        want[n] = min(shares, _MOST) if listed else 0.0


@njit(error_model="numpy", cache=True)
def _keep_near(held: Any, b: int, mark: Any, t: int, band: float, want: Any) -> None:
    """Leave holdings alone that are within `band` USD of their target."""
    for n in range(want.shape[0]):
        holding = np.float64(held[b, n])
        if abs(want[n] - holding) * np.float64(mark[t, n]) <= band and want[n] != 0.0:
            want[n] = holding


@njit(error_model="numpy", cache=True)
def _want_trade(cleaned: Any, held: Any, b: int, dead_band: float, max_shares: float, want: Any) -> None:
    """held + trunc(a * max_shares), not below zero."""
    for n in range(want.shape[0]):
        a = cleaned[n]
        size = np.floor(abs(a) * max_shares) if abs(a) > dead_band else 0.0
        order = -size if a < 0.0 else size
        want[n] = min(max(np.float64(held[b, n]) + order, 0.0), _MOST)


@njit(fastmath={"reassoc"}, error_model="numpy", cache=True)
def _sell(held: Any, b: int, want: Any, price: Any, t: int, kept: Any, addition: Any) -> tuple[float, float]:
    """Holdings after the sales, wanted additions; returns the value sold and the value wanted.

    `price` is negative where a symbol may be sold only and 0 where it does not trade.
    """
    sold, ordered = 0.0, 0.0
    for n in range(kept.shape[0]):
        signed = np.float64(price[t, n])
        p = abs(signed)
        holding = np.float64(held[b, n])
        left = min(want[n], holding) if p > 0.0 else holding
        more = want[n] - left if signed > 0.0 else 0.0
        kept[n] = left
        addition[n] = more
        sold += (holding - left) * p
        ordered += more * p
    return sold, ordered


@njit(fastmath={"reassoc"}, error_model="numpy", cache=True)
def _target_and_sell(
    cleaned: Any, unit: float, mark: Any, now: int, held: Any, b: int, price: Any, t: int, kept: Any, addition: Any
) -> tuple[float, float]:
    """`_want_target` and `_sell` in one pass."""
    sold, ordered = 0.0, 0.0
    for n in range(kept.shape[0]):
        close = np.float64(mark[now, n])
        listed = close > 0.0
        shares = min(np.floor(max(cleaned[n], 0.0) * unit / (close if listed else 1.0)), _MOST)
        want = shares if listed else 0.0
        signed = np.float64(price[t, n])
        p = abs(signed)
        holding = np.float64(held[b, n])
        left = min(want, holding) if p > 0.0 else holding
        more = want - left if signed > 0.0 else 0.0
        kept[n] = left
        addition[n] = more
        sold += (holding - left) * p
        ordered += more * p
    return sold, ordered


@njit(fastmath={"reassoc"}, error_model="numpy", cache=True)
def _buy(
    kept: Any, addition: Any, scale: float, price: Any, t: int, shares: Any, b: int, mark: Any, bar: int
) -> tuple[float, float]:
    """Add floor(scale * addition); returns the value bought and the value of the holdings at the close of `bar`."""
    bought, value = 0.0, 0.0
    for n in range(kept.shape[0]):
        more = np.floor(scale * addition[n])
        now = kept[n] + more
        shares[b, n] = np.float32(now)
        bought += more * abs(np.float64(price[t, n]))
        value += now * np.float64(mark[bar, n])
    return bought, value


@njit(fastmath={"reassoc"}, error_model="numpy", cache=True)
def _value(shares: Any, b: int, mark: Any, t: int) -> float:
    """Sum of shares times prices, exact."""
    total = 0.0
    for n in range(shares.shape[1]):
        total += np.float64(shares[b, n]) * np.float64(mark[t, n])
    return total


@njit(error_model="numpy", cache=True)
def _close_ended(shares: Any, b: int, mark: Any, last_bar: Any, bar: int) -> float:
    """Sell what ends at this bar; returns its value."""
    total = 0.0
    for n in range(shares.shape[1]):
        if last_bar[n] == bar:
            total += np.float64(shares[b, n]) * np.float64(mark[bar, n])
            shares[b, n] = np.float32(0.0)
    return total


@njit(error_model="numpy", cache=True)
def _write_private(
    obs: Any,
    b: int,
    cash: float,
    equity: float,
    peak: float,
    first: float,
    left: float,
    shares: Any,
    mark: Any,
    t: int,
) -> None:
    """Account features and holdings weights."""
    safe = max(equity, 1e-6 * first)
    obs[b, 0] = np.float32(cash / safe)
    obs[b, 1] = np.float32(safe / first - 1.0)
    obs[b, 2] = np.float32(equity / peak - 1.0)
    obs[b, 3] = np.float32(left)
    divisor = np.float32(safe)
    for n in range(shares.shape[1]):
        obs[b, _ACCOUNT_WIDTH + n] = shares[b, n] * mark[t, n] / divisor


@njit(nogil=True, error_model="numpy", cache=True)
def step_range(
    low: int, high: int, mode: int, flat: bool, market: Any, rules: Any, old: Any, new: Any, out: Any
) -> bool:
    """Step accounts [low, high). The tuples are packed in `fused.FusedStep`, which names their parts.

    Returns whether all actions were finite; if not, what was written means nothing.
    """
    mark, price, rows, last_bar, ends, risk_off = market
    target, same_bar, random_start, rate, ruin, max_shares, dead_band, band, turbulent = rules
    (action, key, give_cash, give_shares, give_bars, bar_0, cash_0, shares_0, equity_0, peak_0, first_0, start_0,
     end_0, episode_0, finished_0) = old  # fmt: skip
    bar_1, cash_1, shares_1, equity_1, peak_1, first_1, start_1, end_1, episode_1, finished_1 = new
    equity_out, peak_out, cost_out, turnover_out, terminated_out, truncated_out, final_bar, obs, final_obs = out
    num_bars, num_assets = mark.shape
    width = _ACCOUNT_WIDTH + num_assets
    obs_width, row_bytes = obs.shape[1], rows.shape[1] * 4
    cleaned, want = np.empty(num_assets), np.empty(num_assets)
    kept, addition = np.empty(num_assets), np.empty(num_assets)
    strange = 0.0
    for b in range(low, high):
        if b + 1 < high:  # where the next account's prices begin; the processor follows from there
            ahead = min(bar_0[b + 1] + 1, num_bars - 1) * num_assets * 4
            for line in range(0, 192, 64):
                _prefetch(mark, ahead + line)
                _prefetch(price, ahead + line)
        bar, end, start, episode = bar_0[b], end_0[b], start_0[b], episode_0[b]
        cash, equity, peak, first = cash_0[b], equity_0[b], peak_0[b], first_0[b]
        begins = mode == NEXT_STEP and finished_0[b]
        terminated = truncated = False
        cost = turnover = 0.0
        if not begins:
            total, odd = _clean(action, b, cleaned)
            strange += odd
            fill_bar = bar if same_bar else min(bar + 1, end)
            value = max(equity, 0.0)
            calm = not (turbulent and risk_off[bar])
            if calm and target and band == 0.0:
                unit = value / max(total, 1.0)
                sold, ordered = _target_and_sell(cleaned, unit, mark, bar, shares_0, b, price, fill_bar, kept, addition)
            else:
                if not calm:
                    want[:] = 0.0
                elif target:
                    _want_target(cleaned, value / max(total, 1.0), mark, bar, want)
                    _keep_near(shares_0, b, mark, bar, band * value, want)
                else:
                    _want_trade(cleaned, shares_0, b, dead_band, max_shares, want)
                sold, ordered = _sell(shares_0, b, want, price, fill_bar, kept, addition)
            closing_cost = rate * sold
            cash = cash + (sold - closing_cost)
            scale = 1.0
            if ordered + rate * ordered > cash:
                budget, full = max(cash, 0.0), (1.0 + rate) * ordered
                scale = min(budget / full, 1.0) if full > 0.0 else 1.0
            moving = bar < end
            bar = bar + 1 if moving else bar
            bought, value = _buy(kept, addition, scale, price, fill_bar, shares_1, b, mark, bar)
            opening_cost = rate * bought
            cash = max(cash - (bought + opening_cost), 0.0)
            cost, turnover = closing_cost + opening_cost, sold + bought
            if moving and ends[bar]:
                ended = _close_ended(shares_1, b, mark, last_bar, bar)
                ended_cost = rate * ended
                cash = cash + (ended - ended_cost)
                cost, turnover, value = cost + ended_cost, turnover + ended, value - ended
            equity = cash + value
            peak = max(peak, equity)
            terminated = equity <= ruin * first
            truncated = bar >= end and not terminated
        equity_out[b], peak_out[b], cost_out[b], turnover_out[b] = equity, peak, cost, turnover
        terminated_out[b], truncated_out[b], final_bar[b] = terminated, truncated, bar
        finished = terminated or truncated
        if mode == SAME_STEP and finished:
            left = (end - bar) / max(end - start, 1)
            _write_private(final_obs, b, cash, equity, peak, first, left, shares_1, mark, bar)
            if flat:
                _copy_bytes(final_obs, (b * obs_width + width) * 4, rows, bar * row_bytes, row_bytes)
        if begins or (mode == SAME_STEP and finished):
            last = num_bars - 1
            length = min(give_bars[b], last) if give_bars[b] > 0 else 1
            bar = 0
            if random_start:
                drawn = _mix(np.uint64(key[b]) + np.uint64(episode) * _GOLDEN) >> np.uint64(1)
                bar = np.int64(drawn) % max(last - length + 1, 1)
            start, end, episode = bar, min(bar + length, last) if give_bars[b] > 0 else last, episode + 1
            for n in range(num_assets):
                shares_1[b, n] = give_shares[b, n]
            cash = give_cash[b]
            equity = cash + _value(shares_1, b, mark, bar)
            peak = first = equity
        bar_1[b], end_1[b], start_1[b], episode_1[b] = bar, end, start, episode
        cash_1[b], equity_1[b], peak_1[b], first_1[b] = cash, equity, peak, first
        finished_1[b] = finished and mode != SAME_STEP
        left = (end - bar) / max(end - start, 1)
        _write_private(obs, b, cash, equity, peak, first, left, shares_1, mark, bar)
    if flat:  # in a pass of its own, so that the copies overlap
        for b in range(low, high):
            if b + 1 < high:  # the next account's row lies anywhere in the market: ask for it now
                ahead = bar_1[b + 1]
                for line in range(0, row_bytes, 64):
                    _prefetch(rows, ahead * row_bytes + line)
            _copy_bytes(obs, (b * obs_width + width) * 4, rows, bar_1[b] * row_bytes, row_bytes)
    return strange == 0.0
