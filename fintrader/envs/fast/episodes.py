"""`envs.episodes`, compiled for the CPU: the start of accounts, and their observations."""

from __future__ import annotations

from typing import Any

import numpy as np

from fintrader.envs.account import AGE, LEFT, ORDER_ROWS, PRICE
from fintrader.envs.fast.account import UNIT, find_gap, find_owed, value_shares
from fintrader.envs.fast.buffers import Inputs, Outputs, Prices, Rules, State
from fintrader.envs.fast.compiled import njit_call, njit_inline
from fintrader.envs.fast.simd import copy_bytes, prefetch, stream_bytes
from fintrader.envs.market_view import MARK, PER_DEVIATION
from fintrader.envs.money import EQUITY_FLOOR, USD_GRID

# SplitMix64's constants, as in `envs.episodes`.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_LINE = 64
"""Bytes that the processor fetches at once."""


@njit_inline
def mix(x: Any) -> Any:
    """Scramble uint64 by SplitMix64's output function."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@njit_call
def begin(b: int, inputs: Inputs, prices: Prices, rules: Rules, state: State) -> None:
    """Begin the next episode of account b, without the shares of symbols not listed there."""
    # The lengths and the draw are those of `envs.episodes.begin`.
    last = prices.quotes.shape[0] - 1
    episode = state.episode[b]
    wanted = inputs.episode_bars[b]
    length = min(wanted, last) if wanted > 0 else 1
    drawn = mix(np.uint64(inputs.key[b]) + np.uint64(episode) * _GOLDEN) >> np.uint64(1)
    if rules.starts_anywhere:
        bar = np.int64(drawn) % max(last - length + 1, 1)
    else:
        bar = prices.starts[np.int64(drawn) % len(prices.starts)]
    stop = prices.stops[bar]
    for n in range(state.shares.shape[1]):
        is_listed = prices.quotes[bar, MARK, n] > 0.0 and prices.last_bar[n] > bar
        state.shares[b, n] = inputs.shares[b, n] if is_listed else 0.0
        for row in range(state.resting.shape[1]):
            state.resting[b, row, n] = 0.0
    equity = inputs.cash[b] + value_shares(state.shares[b], prices.quotes[bar, MARK])
    state.bar[b] = bar
    state.start_bar[b] = bar
    state.episode[b] = episode + 1
    state.end_bar[b] = min(bar + length, stop) if wanted > 0 else stop
    state.equity[b] = equity
    state.peak_equity[b] = equity
    state.first_equity[b] = equity
    state.cash[b] = inputs.cash[b] + find_owed(b, bar, state, prices, rules)


@njit_inline
def observe_private(b: int, state: State, prices: Prices, rules: Rules, out: Any) -> None:
    """Write to `out` float32 the part `[P]` of account b's observation that is its own."""
    # The formulas are in `envs.episodes.observe_private`.
    bar = state.bar[b]
    end = state.end_bar[b]
    equity = state.equity[b]
    first = state.first_equity[b]
    left = prices.clock[bar]
    if left < 0.0:
        left = (end - bar) / max(end - state.start_bar[b], 1)
    safe = max(equity, EQUITY_FLOOR * first)
    out[0] = np.float32(state.cash[b] / safe)
    out[1] = np.float32(safe / first - 1.0)
    out[2] = np.float32(equity / state.peak_equity[b] - 1.0)
    out[3] = np.float32(left)
    place = 4
    if rules.has_option:
        gap, alive = find_gap(state.start_bar[b], bar, prices.underlying, prices.option_value)
        away = gap * (prices.option_scale[-1] * (1.0 / PER_DEVIATION))
        out[place] = np.float32(away if alive > 0 else 0.0)
        place += 1
    share = 1.0 / safe * UNIT
    mark = prices.quotes[bar, MARK]
    shares = state.shares[b]
    for n in range(len(shares)):
        out[place + n] = np.float32(shares[n] * np.float64(mark[n]) * share)
    if rules.is_limit:
        observe_resting(state.resting[b], mark, share, rules, out[place + len(shares) :])


@njit_inline
def observe_resting(resting: Any, mark: Any, share: float, rules: Rules, out: Any) -> None:
    """Write to `out` `[R N]` weight, distance and age of the orders that rest, then the distance of
    the stops."""
    # The formulas are in `envs.episodes.observe_resting`. A loop for each column is vectorised.
    assets = len(mark)
    for side in range(1 + rules.is_quote):
        at = side * ORDER_ROWS
        for n in range(assets):
            out[at * assets + n] = np.float32(resting[at + LEFT, n] * np.float64(mark[n]) * share)
        for n in range(assets):
            distance = find_distance(resting[at + PRICE, n], mark[n])
            out[(at + 1) * assets + n] = np.float32(
                distance if resting[at + LEFT, n] != 0.0 else 0.0
            )
        for n in range(assets):
            out[(at + 2) * assets + n] = np.float32(resting[at + AGE, n] * rules.per_bar)
    if rules.has_stops:
        row = len(resting) - 1
        for n in range(assets):
            distance = find_distance(abs(resting[row, n]), mark[n])
            out[row * assets + n] = np.float32(distance if resting[row, n] != 0.0 else 0.0)


@njit_inline
def find_distance(price: float, mark: float) -> Any:
    """Return a price over the close, less 1, clipped to ±1."""
    usd = np.float64(mark)
    distance = price * USD_GRID / (usd if usd > 0.0 else USD_GRID) - 1.0
    return min(max(distance, -1.0), 1.0)


@njit_inline
def observe(
    first: int, last: int, low: int, state: State, prices: Prices, rules: Rules, out: Outputs
) -> None:
    """Observe accounts `first` to `last - 1` of a range that begins at `low`; the market's row of
    the last one is left to the next call."""
    row_bytes = out.row_bytes
    stride = out.rows.shape[1] * 4
    for b in range(first, last):
        # Rows are scattered in memory: prefetch this one, copy the one prefetched before.
        if out.is_flat:
            for place in range(0, row_bytes, _LINE):
                prefetch(out.rows, state.bar[b] * stride + place)
        observe_private(b, state, prices, rules, out.obs[b])
        if out.is_flat and b > low:
            copy_row(b - 1, state.bar[b - 1], out.obs, out, out.is_streamed)


@njit_inline
def copy_row(b: int, bar: int, obs: Any, out: Outputs, is_streamed: bool) -> None:
    """Copy the market's row (with a lookback, those of several bars) after the private part."""
    # Streamed writes bypass the caches, which are too small to keep all rows for the caller.
    place = (b + 1) * obs.shape[1] * 4 - out.row_bytes
    origin = bar * out.rows.shape[1] * 4
    if is_streamed:
        stream_bytes(obs, place, out.rows, origin, out.row_bytes)
    else:
        copy_bytes(obs, place, out.rows, origin, out.row_bytes)


@njit_inline
def prefetch_prices(first: int, last: int, state: State, prices: Prices) -> None:
    """Prefetch the prices of the accounts' bars, which are scattered in memory."""
    # The range begins at a bar's closes and ends with the next bar's quotes.
    num_bars, _, num_assets = prices.quotes.shape
    quote_bytes = num_assets * 12
    for b in range(first, last):
        place = min(state.bar[b], num_bars - 2) * quote_bytes
        for line in range(num_assets * 8, 2 * quote_bytes, _LINE):
            prefetch(prices.quotes, place + line)
