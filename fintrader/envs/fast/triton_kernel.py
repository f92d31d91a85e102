"""The fused CUDA kernel: one Triton program for each account does the orders, the fills, the marks,
the reset and the observation in one launch.

Its results are those of `account.advance`, `episodes.begin` and `observe` to the last bit, because
sums of money are exact (see `envs.money`). Launch it with `enable_fp_fusion=False`, because a fused
product and sum are rounded once, and torch rounds twice. Numbers come in float64 tensors: Triton
passes Python floats on as float32. Needs triton, which torch installs on Linux with CUDA; with
`TRITON_INTERPRET=1` it runs, slowly, on CPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fintrader.envs.fast import buffers
from fintrader.envs.money import DUST_USD, SPLIT_NUDGE, USD_GRID, WEIGHT_GRID

# As in `buffers`.
_BAR, _START, _END, _EPISODE, _FINAL_BAR = map(tl.constexpr, buffers.INTS)
_CASH, _EQUITY, _PEAK, _FIRST, _STEP_EQUITY, _STEP_PEAK, _COST, _TURNOVER, _WORTH = map(
    tl.constexpr, buffers.FLOATS
)
_TERMINATED, _TRUNCATED, _FINISHED, _DONE = map(tl.constexpr, buffers.FLAGS)
_LOG_RETURN = tl.constexpr(buffers.LOG_RETURN)
_PROFIT = tl.constexpr(buffers.PROFIT)
_GRID = tl.constexpr(WEIGHT_GRID)
_INVERSE_GRID = tl.constexpr(1.0 / WEIGHT_GRID)
_UNIT = tl.constexpr(1.0 / USD_GRID)
_PER_USD = tl.constexpr(USD_GRID)
_PER_WEIGHT = tl.constexpr(USD_GRID / WEIGHT_GRID)


# Adding and subtracting 1.5 * 2^52 rounds a float64 to the nearest integer, halves to even, as
# torch.round does.
_ROUNDER = tl.constexpr(6755399441055744.0)
_GOLDEN = tl.constexpr(-7046029254386353131)
_MIX_1 = tl.constexpr(-4658895280553007687)
_MIX_2 = tl.constexpr(-7723592293110705685)
_ACCOUNT_WIDTH = tl.constexpr(4)


NUMBERS = (
    *("cost_rate", "ruin_fraction", "max_shares", "band"),
    *("fee_rate", "impact_rate", "min_commission_usd", "trade_rate"),
)
"""Fields of `buffers.Rules` that the kernel reads, after `EQUITY_FLOOR`."""
_LEAST, _RATE, _RUIN, _MAX_SHARES, _BAND, _FEE, _IMPACT, _COMMISSION, _PACE = map(
    tl.constexpr, range(1 + len(NUMBERS))
)
_DUST = tl.constexpr(DUST_USD)
_NUDGE = tl.constexpr(SPLIT_NUDGE)


@triton.jit
def _shift_right(x, BITS: tl.constexpr):
    """Shift int64 to the right, filling with zeros."""
    return (x >> BITS) & ((1 << (64 - BITS)) - 1)


@triton.jit
def _mix(x):
    """Scramble int64 by SplitMix64's output function."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


@triton.jit
def _rint(x):
    """Round to the nearest integer, halves to even, up to 2^51, a quarter of the largest sum of
    money."""
    return (x + _ROUNDER) - _ROUNDER


@triton.jit
def _trunc(x):
    """Round towards zero."""
    return tl.where(x < 0.0, -tl.floor(-x), tl.floor(x))


@triton.jit
def _load_row(table, row, n, N: tl.constexpr):
    """Load the columns `n` of a row of `[R, N]`, 0 where there are none."""
    return tl.load(table + row * N + n, mask=n < N, other=0.0)


@triton.jit
def _worth(shares, mark):
    """Value shares in USD, in whole units of money."""
    return tl.sum(_rint(shares * mark.to(tl.float64)), 0) * _UNIT


@triton.jit
def _variable_cost(shares, x, thin, spread, rules):
    """Compute the cost, USD, of orders of x USD, without a minimum commission
    (`envs.account.variable_cost`)."""
    cost = (tl.load(rules + _FEE) + spread) * x
    impact = tl.load(rules + _IMPACT)
    root = tl.minimum(tl.sqrt(tl.abs(shares)) * thin, 1.0)
    return tl.minimum(cost + impact * (x * root), x)


@triton.jit
def _trade_cost(shares, x, thin, spread, rules):
    """Compute the cost, USD, of orders of x USD (`envs.account.trade_cost`)."""
    owed = tl.where(x > _DUST, tl.load(rules + _COMMISSION), 0.0)
    cost = _variable_cost(shares, x, thin, spread, rules) + tl.maximum(
        owed - tl.load(rules + _FEE) * x, 0.0
    )
    return _rint(cost * _PER_USD) * _UNIT


@triton.jit
def _closing_cost(shares, x, thin, spread, rules):
    """Compute the cost, USD, of all orders that close positions, each at most its notional
    (`envs.account.closing_cost`)."""
    return tl.sum(tl.minimum(_trade_cost(shares, x, thin, spread, rules), x), 0)


@triton.jit
def _split(shares, split, WHOLE: tl.constexpr):
    """Split shares (`envs.account.split_shares`)."""
    product = shares * split
    if WHOLE:
        nudge = tl.where(product > 0.0, _NUDGE, tl.where(product < 0.0, -_NUDGE, 0.0))
        product = tl.where(split == 1.0, shares, _trunc(product + nudge))
    return product


@triton.jit
def _income(shares, after, split, dividend, mark):
    """USD of dividends, and of fractions of a share left by a split; `dividend` and `mark` in units
    of money."""
    left = shares * split - after
    return (tl.sum(_rint(shares * dividend), 0) + tl.sum(_rint(left * (mark / split)), 0)) * _UNIT


# The compiler resolves branches on constants, so each kernel holds only one kind of orders.
@triton.jit
def _size_orders(action, held, mark, equity, rules, TARGET: tl.constexpr, WHOLE: tl.constexpr):
    """Holdings that an action asks for (`envs.account.desired_shares`); `mark` in units of
    money."""
    if TARGET:
        wish = tl.maximum(_rint(action.to(tl.float64) * _GRID), 0.0)
        unit = equity / tl.maximum(tl.sum(wish, 0) * _INVERSE_GRID, 1.0) * _PER_WEIGHT
        target = tl.where(mark > 0.0, wish * unit / tl.where(mark > 0.0, mark, 1.0), 0.0)
        gap = target - held
        near = (tl.abs(gap) * mark <= tl.load(rules + _BAND) * equity * _PER_USD) & (target != 0.0)
        step = tl.load(rules + _PACE) * gap
        if WHOLE:
            step = _trunc(step)
            step = tl.where(step == 0.0, tl.minimum(tl.maximum(_trunc(gap), -1.0), 1.0), step)
        want = tl.where(near, held, held + step)
    else:
        size = (action * tl.load(rules + _MAX_SHARES).to(tl.float32)).to(tl.float64)
        if WHOLE:
            size = _trunc(size)
        is_order = tl.abs(action) > tl.load(rules + _BAND).to(tl.float32)
        want = held + tl.where(is_order, size, 0.0)
    return tl.maximum(want, 0.0)


@triton.jit
def _write_worth(out, before, equity, first, least, WORTH: tl.constexpr):
    """Write the part of the reward that the kernel prepares: growth or profit."""
    if WORTH == _LOG_RETURN:
        low = least * first
        tl.store(out, tl.maximum(equity, low) / tl.maximum(before, low))
    if WORTH == _PROFIT:
        tl.store(out, (equity - before) / first)


@triton.jit
def _draw_start(key, episode, span, RANDOM_START: tl.constexpr):
    """Draw an episode's first bar below `span` (`envs.episodes.draw`); 0 without random starts."""
    start = tl.zeros_like(episode)
    if RANDOM_START:
        drawn = _shift_right(_mix(tl.load(key) + episode * _GOLDEN), 1)
        start = drawn % tl.maximum(span, 1)
    return start


@triton.jit
def _write_account(out, mask, cash, equity, peak, first, safe, left):
    """Write the account features at `out` (`envs.episodes.observe_private`) if `mask`."""
    kind = out.dtype.element_ty
    tl.store(out, (cash / safe).to(tl.float32).to(kind), mask=mask)
    tl.store(out + 1, (safe / first - 1.0).to(tl.float32).to(kind), mask=mask)
    tl.store(out + 2, (equity / peak - 1.0).to(tl.float32).to(kind), mask=mask)
    tl.store(out + 3, left.to(tl.float32).to(kind), mask=mask)


@triton.jit
def _write_weights(out, mask, n, count, shares, mark, safe):
    """Write the weights held behind the account features at `out` if `mask`; `mark` is in units of
    money."""
    weights = shares * mark.to(tl.float64) * (1.0 / safe * _UNIT)
    weights = weights.to(tl.float32).to(out.dtype.element_ty)
    tl.store(out + _ACCOUNT_WIDTH + n, weights, mask=n < tl.where(mask, count, 0))


@triton.jit
def _copy_row(out, row, mask, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Copy a market row if `mask`."""
    for start in range(0, WIDTH, BLOCK):
        place = start + tl.arange(0, BLOCK)
        chosen = place < tl.where(mask, WIDTH, 0)
        tl.store(out + place, tl.load(row + place, mask=chosen, other=0.0), mask=chosen)


# All stages in one launch: numbers of an account stay in registers from its orders to its
# observation, where separate launches would pass them through memory.
@triton.jit
def step_kernel(
    quotes,
    rows,
    row_stride,
    last_bar,
    risk_off,
    rules,
    thinness,
    spreads,
    event_row,
    splits,
    dividends,
    action,
    key,
    give_cash,
    give_shares,
    give_bars,
    ints_0,
    floats_0,
    flags_0,
    shares_0,
    ints_1,
    floats_1,
    flags_1,
    shares_1,
    obs,
    final_obs,
    B,
    T,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
    RESETS: tl.constexpr,
    FLAT: tl.constexpr,
    TARGET: tl.constexpr,
    SAME_BAR: tl.constexpr,
    RANDOM_START: tl.constexpr,
    TURBULENT: tl.constexpr,
    INTERVAL: tl.constexpr,
    ENDS: tl.constexpr,
    WORTH: tl.constexpr,
    EVERY_FINAL: tl.constexpr,
    WHOLE: tl.constexpr,
    EACH: tl.constexpr,
    EVENTS: tl.constexpr,
):
    """Step account `program_id(0)` from the buffers `_0` into `_1`, which may not overlap; see
    `buffers.Buffers`.

    `quotes` `[T, 3, N]`, `rows` `[T, WIDTH]` with stride `row_stride`, `rules` float64. With
    EVERY_FINAL the final observation is written for all accounts, otherwise only for those that
    finish. EACH: costs are those of each order, not of their sum.
    """
    b = tl.program_id(0).to(tl.int64)
    ints_0 += b
    floats_0 += b
    ints_1 += b
    floats_1 += b
    flags_1 += b
    n = tl.arange(0, BLOCK_N)
    inside = n < N
    rate = tl.load(rules + _RATE)
    ruin = tl.load(rules + _RUIN)
    least = tl.load(rules + _LEAST)
    old_bar = tl.load(ints_0 + _BAR * B)
    end = tl.load(ints_0 + _END * B)
    start = tl.load(ints_0 + _START * B)
    episode = tl.load(ints_0 + _EPISODE * B)
    old_cash = tl.load(floats_0 + _CASH * B)
    before = tl.load(floats_0 + _EQUITY * B)
    old_peak = tl.load(floats_0 + _PEAK * B)
    first = tl.load(floats_0 + _FIRST * B)
    held = _load_row(shares_0, b, n, N)

    # --- orders
    a_32 = _load_row(action, b, n, N).to(tl.float32)
    a_32 = tl.where(a_32 == a_32, a_32, 0.0)
    a_32 = tl.minimum(tl.maximum(a_32, -1.0), 1.0)
    mark = _load_row(quotes, old_bar * 3 + 2, n, N).to(tl.float64)
    want = _size_orders(a_32, held, mark, tl.maximum(before, 0.0), rules, TARGET, WHOLE)
    if TURBULENT:
        want = tl.where(tl.load(risk_off + old_bar) != 0, 0.0, want)

    # --- fills
    fill_bar = old_bar
    if not SAME_BAR:
        fill_bar = tl.minimum(old_bar + 1, end)
    owned = held
    cash = old_cash
    if EVENTS and not SAME_BAR:
        row = tl.load(event_row + fill_bar)
        split = tl.load(splits + row * N + n, mask=inside, other=1.0)
        owned = _split(held, split, WHOLE)
        want = owned + _split(want - held, split, WHOLE)
        cash += _income(held, owned, split, _load_row(dividends, row, n, N), mark)
    signed = _load_row(quotes, fill_bar * 3 + 1, n, N).to(tl.float64)
    most = _load_row(quotes, fill_bar * 3, n, N).to(tl.float64)
    price = tl.abs(signed)
    want = tl.minimum(tl.maximum(want, owned - most), owned + most)
    kept = tl.where(price > 0.0, tl.minimum(want, owned), owned)
    addition = tl.where(signed > 0.0, want - kept, 0.0)
    sales = _rint((owned - kept) * price) * _UNIT
    orders = _rint(addition * price) * _UNIT
    sold = tl.sum(sales, 0)
    ordered = tl.sum(orders, 0)
    closing_cost = rate * sold
    variable = rate * ordered
    commissions = 0.0 * rate
    if EACH:
        thin = _load_row(thinness, fill_bar, n, N).to(tl.float64)
        spread = _load_row(spreads, 0, n, N)
        closing_cost = _closing_cost(owned - kept, sales, thin, spread, rules)
        variable = tl.sum(
            _rint(_variable_cost(addition, orders, thin, spread, rules) * _PER_USD) * _UNIT, 0
        )
        commissions = tl.load(rules + _COMMISSION) * tl.sum(
            tl.where(orders > _DUST, 1.0, 0.0).to(tl.float64), 0
        )
    cash = cash + (sold - closing_cost)
    full = ordered + variable
    scale = tl.maximum(cash - (commissions + 2.0 * _UNIT * N), 0.0) / tl.where(
        full > 0.0, full, 1.0
    )
    scale = tl.where(full + commissions <= cash, 1.0, tl.minimum(scale, 1.0))
    more = scale * addition
    if WHOLE:
        more = tl.floor(more)
    shares = kept + more
    bought_shares = shares - kept
    buys = _rint(bought_shares * price) * _UNIT
    bought = tl.sum(buys, 0)
    opening_cost = rate * bought
    if EACH:
        opening_cost = tl.sum(_trade_cost(bought_shares, buys, thin, spread, rules), 0)
    cash = tl.maximum(cash - (bought + opening_cost), 0.0)
    cost = closing_cost + opening_cost
    turnover = sold + bought

    # --- marks
    bar = old_bar
    peak = old_peak
    equity = before
    mark_32 = _load_row(quotes, old_bar * 3 + 2, n, N)
    for number in range(INTERVAL):
        moving = bar < end
        bar = tl.where(moving, bar + 1, bar)
        before_32 = mark_32
        mark_32 = _load_row(quotes, bar * 3 + 2, n, N)
        if EVENTS:
            due = moving
            if not SAME_BAR:
                due = moving & (number > 0)
            row = tl.where(due, tl.load(event_row + bar), 0)
            split = tl.load(splits + row * N + n, mask=inside, other=1.0)
            after = _split(shares, split, WHOLE)
            paid = _load_row(dividends, row, n, N)
            cash += _income(shares, after, split, paid, before_32.to(tl.float64))
            shares = after
        if ENDS:
            gone = (tl.load(last_bar + n, mask=inside, other=-1) == bar) & moving
            leaving = tl.where(gone, shares, 0.0)
            worth = _rint(leaving * mark_32.to(tl.float64)) * _UNIT
            ended = tl.sum(worth, 0)
            ended_cost = rate * ended
            if EACH:
                thin = _load_row(thinness, bar, n, N).to(tl.float64)
                ended_cost = _closing_cost(leaving, worth, thin, spread, rules)
            shares = tl.where(gone, 0.0, shares)
            cash = cash + (ended - ended_cost)
            cost = cost + ended_cost
            turnover = turnover + ended
        equity = cash + _worth(shares, mark_32)
        peak = tl.maximum(peak, equity)

    # --- outcome
    terminated = equity <= ruin * first
    truncated = (bar >= end) & (terminated == 0)
    done = terminated | truncated
    tl.store(floats_1 + _STEP_EQUITY * B, equity)
    tl.store(floats_1 + _STEP_PEAK * B, peak)
    tl.store(floats_1 + _COST * B, cost)
    tl.store(floats_1 + _TURNOVER * B, turnover)
    _write_worth(floats_1 + _WORTH * B, before, equity, first, least, WORTH)
    tl.store(flags_1 + _TERMINATED * B, terminated.to(tl.int8))
    tl.store(flags_1 + _TRUNCATED * B, truncated.to(tl.int8))
    tl.store(flags_1 + _DONE * B, done.to(tl.int8))
    tl.store(ints_1 + _FINAL_BAR * B, bar)

    # --- the true last observation, and the next episode's start
    width = _ACCOUNT_WIDTH + N
    if FLAT:
        width = width + WIDTH
    finished = done
    if RESETS:
        finished = done & (done == 0)
        final_here = done
        if EVERY_FINAL:
            final_here = bar >= 0
        left = (end - bar).to(tl.float64) / tl.maximum(end - start, 1).to(tl.float64)
        safe = tl.maximum(equity, least * first)
        final = final_obs + b * width
        _write_account(final, final_here, cash, equity, peak, first, safe, left)
        _write_weights(final, final_here, n, N, shares, mark_32, safe)
        if FLAT:
            out = final + _ACCOUNT_WIDTH + N
            if final_here:
                _copy_row(out, rows + bar * row_stride, final_here, WIDTH, BLOCK_W)
        last = T - 1
        span = tl.load(give_bars + b)
        length = tl.where(span > 0, tl.minimum(span, last), 1)
        fresh = _draw_start(key + b, episode, last - length + 1, RANDOM_START)
        fresh_end = tl.where(span > 0, tl.minimum(fresh + length, last), last)
        fresh_shares = tl.load(give_shares + b * N + n, mask=n < tl.where(done, N, 0), other=0.0)
        fresh_32 = tl.load(
            quotes + (fresh * 3 + 2) * N + n, mask=n < tl.where(done, N, 0), other=0.0
        )
        # Shares of symbols that are not listed at that bar are left out.
        fresh_shares = tl.where(fresh_32 > 0.0, fresh_shares, 0.0)
        if ENDS:
            ends_at = tl.load(last_bar + n, mask=n < tl.where(done, N, 0), other=0)
            fresh_shares = tl.where(ends_at > fresh, fresh_shares, 0.0)
        fresh_cash = tl.load(give_cash + b)
        fresh_equity = fresh_cash + _worth(fresh_shares, fresh_32)
        bar = tl.where(done, fresh, bar)
        start = tl.where(done, fresh, start)
        end = tl.where(done, fresh_end, end)
        episode = tl.where(done, episode + 1, episode)
        cash = tl.where(done, fresh_cash, cash)
        equity = tl.where(done, fresh_equity, equity)
        peak = tl.where(done, fresh_equity, peak)
        first = tl.where(done, fresh_equity, first)
        shares = tl.where(done, fresh_shares, shares)
        mark_32 = tl.where(done, fresh_32, mark_32)

    # --- the account and its observation
    tl.store(ints_1 + _BAR * B, bar)
    tl.store(ints_1 + _START * B, start)
    tl.store(ints_1 + _END * B, end)
    tl.store(ints_1 + _EPISODE * B, episode)
    tl.store(floats_1 + _CASH * B, cash)
    tl.store(floats_1 + _EQUITY * B, equity)
    tl.store(floats_1 + _PEAK * B, peak)
    tl.store(floats_1 + _FIRST * B, first)
    tl.store(flags_1 + _FINISHED * B, finished.to(tl.int8))
    tl.store(shares_1 + b * N + n, shares, mask=inside)
    left = (end - bar).to(tl.float64) / tl.maximum(end - start, 1).to(tl.float64)
    everywhere = bar >= 0
    safe = tl.maximum(equity, least * first)
    seen = obs + b * width
    _write_account(seen, everywhere, cash, equity, peak, first, safe, left)
    _write_weights(seen, everywhere, n, N, shares, mark_32, safe)
    if FLAT:
        out = seen + _ACCOUNT_WIDTH + N
        _copy_row(out, rows + bar * row_stride, everywhere, WIDTH, BLOCK_W)
