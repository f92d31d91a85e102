"""One step of many accounts, compiled for the CPU: `account.advance`, then `episodes.begin` for
those whose episodes end, then `observe`, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from fintrader.envs.fast.account import (
    copy_accounts,
    fill_orders,
    make_workspace,
    mark_to_market,
    measure_outcome,
    name_rows,
    place_orders,
)
from fintrader.envs.fast.buffers import AccountLog, Inputs, Outputs, Prices, Rules, State
from fintrader.envs.fast.compiled import njit_arrays, njit_entry, njit_inline
from fintrader.envs.fast.episodes import (
    begin,
    copy_row,
    observe,
    observe_private,
    prefetch_prices,
)

# Accounts that go through a stage together. Their arithmetic on single numbers overlaps, and their
# rows still fit into the nearest caches.
GROUP = 32


@njit_entry
def step_range(
    low: int,
    high: int,
    inputs: Inputs,
    old_buffers: Any,
    new_buffers: Any,
    prices: Prices,
    rules: Rules,
    out: Outputs,
) -> int:
    """Step accounts `low` to `high - 1` from one generation of buffers into another.

    Return the number of episodes that ended, or -1 where an action was not finite; the new buffers
    and outputs are then undefined.
    """
    # The stages are those of `envs.account.advance`.
    old = name_rows(old_buffers)
    new = name_rows(new_buffers)
    work = make_workspace(GROUP, old.shares.shape[1])
    log = make_empty_log()
    check = 0.0
    episodes = 0
    for first in range(low, high, GROUP):
        last = min(first + GROUP, high)
        prefetch_prices(first, last, old, prices)
        copy_accounts(first, last, old, new)
        check += place_orders(first, last, inputs.action, work, new, prices, rules, log)
        if not rules.is_limit:
            fill_orders(first, last, work, new, prices, rules)
        mark_to_market(first, last, work, new, prices, rules, log)
        measure_outcome(first, last, old, new, rules)
        episodes += end_episodes(first, last, inputs, new, prices, rules, out)
        observe(first, last, low, new, prices, rules, out)
    if out.is_flat and high > low:
        copy_row(high - 1, new.bar[high - 1], out.obs, out, out.is_streamed)
    return episodes if check == 0.0 else -1


@njit_inline
def end_episodes(
    first: int,
    last: int,
    inputs: Inputs,
    state: State,
    prices: Prices,
    rules: Rules,
    out: Outputs,
) -> int:
    """Write the last observation of accounts whose episodes ended, and begin their next episodes;
    return the number of ended episodes."""
    # Where nothing is reset, the accounts stay finished.
    episodes = 0
    for b in range(first, last):
        episodes += state.done[b]
        state.finished[b] = state.done[b] and not out.resets
        if state.done[b] and out.resets:
            observe_private(b, state, prices, rules, out.final_obs[b])
            if out.is_flat:
                copy_row(b, state.bar[b], out.final_obs, out, False)
            begin(b, inputs, prices, rules, state)
    return episodes


@njit_arrays
def make_empty_log() -> AccountLog:
    """Make a log that keeps nothing."""
    # Only backtests keep a log.
    none = np.zeros(0)
    flags = np.zeros(0, np.int64)
    rows = np.zeros((0, 0))
    return AccountLog(
        rows,
        none,
        none,
        none,
        none,
        flags,
        flags,
        flags,
        flags,
        none,
        none,
        none,
        flags,
        rows,
        none,
    )
