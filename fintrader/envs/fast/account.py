"""`envs.account`, compiled for the CPU: the same functions, under the same names.

Each repeats the arithmetic of its namesake operation by operation. Amounts of money are whole units
(`envs.money`), so that sums are exact and may be taken in the fastest order. Prices come in units
of money: a product with shares needs no scaling.

Functions from `place_orders` to `measure_outcome` work on accounts `first` to `last - 1` of a
`State`, in place, with row `b - first` of a `Workspace` as scratch. Functions of one account take
rows `[N]`, and write to their last arguments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fintrader.envs.account import AGE, LEFT, ORDER_ROWS, PRICE
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
    PEAK,
    START,
    STEP_EQUITY,
    STEP_PEAK,
    TERMINATED,
    TRUNCATED,
    TURNOVER,
    WORTH,
    AccountLog,
    Prices,
    Rules,
    State,
    Workspace,
)
from fintrader.envs.fast.compiled import njit_arrays, njit_call, njit_inline
from fintrader.envs.market_view import FILL, LARGEST, MARK, MOST, STRIKE_POINT
from fintrader.envs.money import DUST_USD, EQUITY_FLOOR, SPLIT_NUDGE, USD_GRID, WEIGHT_GRID
from fintrader.envs.settings import MOST_IMPACT

ORDER = 0
FORCED = 1
SPLIT = 2
"""Kinds of trades in an `AccountLog`."""
CAPPED = 1
UNFILLED = 2
CANCELLED = 3
"""Places in `AccountLog.counts`; place 0 (`ORDER`) has the orders."""
UNIT = 1.0 / USD_GRID
"""USD of a unit of money."""
_PER_WEIGHT = USD_GRID / WEIGHT_GRID
"""Units of money for a unit of weight, in an account of 1 USD."""
_GRID = np.float32(WEIGHT_GRID)
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)


# --- state ----------------------------------------------------------------------------------------


@njit_arrays
def name_rows(packed: Any) -> State:
    """Name the rows of packed buffers (`Buffers`)."""
    # Packed, because each array handed over by Python costs as much as the work on one account.
    ints, floats, flags, shares, resting = packed
    return State(
        bar=ints[BAR],
        start_bar=ints[START],
        end_bar=ints[END],
        episode=ints[EPISODE],
        final_bar=ints[FINAL_BAR],
        cash=floats[CASH],
        equity=floats[EQUITY],
        peak_equity=floats[PEAK],
        first_equity=floats[FIRST],
        final_equity=floats[STEP_EQUITY],
        final_peak=floats[STEP_PEAK],
        cost=floats[COST],
        turnover=floats[TURNOVER],
        worth=floats[WORTH],
        terminated=flags[TERMINATED],
        truncated=flags[TRUNCATED],
        finished=flags[FINISHED],
        done=flags[DONE],
        shares=shares,
        resting=resting,
    )


@njit_arrays
def make_workspace(size: int, num_assets: int) -> Workspace:
    """Allocate scratch for `size` accounts."""
    # One block for all scalars: the compiler then knows that they do not overlap.
    scalars = np.empty((9, size))
    return Workspace(
        weights=np.empty((size, num_assets), np.float32),
        desired=np.empty((size, num_assets)),
        kept=np.empty((size, num_assets)),
        addition=np.empty((size, num_assets)),
        quote=np.empty((3, num_assets)),
        root=np.empty(num_assets),
        start=np.empty(num_assets),
        left=np.empty(num_assets),
        spread=np.empty(num_assets),
        fill_bar=np.empty(size, np.int64),
        unit=scalars[0],
        sales=scalars[1],
        sales_cost=scalars[2],
        ordered=scalars[3],
        variable_cost=scalars[4],
        commissions=scalars[5],
        budget=scalars[6],
        scale=scalars[7],
        value=scalars[8],
    )


@njit_inline
def copy_accounts(first: int, last: int, old: State, new: State) -> None:
    """Copy the old accounts to the new ones, which the step then changes."""
    # The step itself writes its results (`final_bar`, ...) and resting orders, but not stops.
    stop = new.resting.shape[1] - 1
    for b in range(first, last):
        new.bar[b] = old.bar[b]
        new.start_bar[b] = old.start_bar[b]
        new.end_bar[b] = old.end_bar[b]
        new.episode[b] = old.episode[b]
        new.cash[b] = old.cash[b]
        new.equity[b] = old.equity[b]
        new.peak_equity[b] = old.peak_equity[b]
        new.first_equity[b] = old.first_equity[b]
        for n in range(new.shares.shape[1]):
            new.shares[b, n] = old.shares[b, n]
        if stop % ORDER_ROWS == 0:
            for n in range(new.shares.shape[1]):
                new.resting[b, stop, n] = old.resting[b, stop, n]


@njit(fastmath={"reassoc"}, error_model="numpy", forceinline=True, cache=True)
def add_any_order(total: Any, value: Any) -> Any:
    """Add to a sum whose terms may be taken in any order, because it is exact."""
    return total + value


# --- orders ---------------------------------------------------------------------------------------


@njit_inline
def place_orders(
    first: int,
    last: int,
    action: Any,
    work: Workspace,
    state: State,
    prices: Prices,
    rules: Rules,
    log: AccountLog,
) -> Any:
    """Turn actions `[B, N]` float32 into holdings to reach, `work.desired`, in the bar of the fill,
    `work.fill_bar`. Return 0, or NaN where an action is not finite."""
    # Sizes are those of the decision; then splits before the fill apply to holdings and orders.
    check = size_orders(first, last, action, work, state, prices, rules)
    if rules.is_limit:
        return check + place_limits(first, last, action, work, state, prices, rules)
    for b in range(first, last):
        meet_events(b, b - first, work, state, prices, rules, log)
    return check


@njit_inline
def size_orders(
    first: int,
    last: int,
    action: Any,
    work: Workspace,
    state: State,
    prices: Prices,
    rules: Rules,
) -> float:
    """Write `work.desired` and `work.fill_bar` from prices known at the decision. Return 0, or NaN
    where an action is not finite."""
    lowest = np.float32(-1.0 if rules.is_short else 0.0)
    check = 0.0
    assets = state.shares.shape[1]
    for b in range(first, last):
        gross, finite = clip_weights(action[b, :assets], lowest, work.weights[b - first])
        work.unit[b - first] = gross
        check += np.float64(finite)
    # A loop of its own, so that the divisions of several accounts are one instruction.
    for b in range(first, last):
        i = b - first
        equity = max(state.equity[b], 0.0)
        work.unit[i] = weight_unit(work.unit[i], equity, rules)
        next_bar = min(state.bar[b] + 1, state.end_bar[b])
        work.fill_bar[i] = state.bar[b] if rules.is_same_bar else next_bar
    for b in range(first, last):
        i = b - first
        bar = state.bar[b]
        desired = work.desired[i]
        if prices.risk_off[bar]:
            # In turbulence everything is sold.
            desired[:] = 0.0
        elif rules.is_target:
            # Too small a change is no order.
            band = rules.band * max(state.equity[b], 0.0) * USD_GRID
            mark = prices.quotes[bar, MARK]
            target_shares(
                work.weights[i], work.unit[i], band, mark, state.shares[b], rules, desired
            )
        else:
            trade_shares(action[b], state.shares[b], rules, desired)
    return check


@njit_inline
def clip_weights(action: Any, lowest: Any, weights: Any) -> tuple[float, Any]:
    """Write actions `[N]` in whole units of weight, none below `lowest`. Return the sum of their
    magnitudes, and 0, or NaN where an action is not finite."""
    gross: Any = 0.0
    finite = _ZERO
    for n in range(len(weights)):
        a = action[n]
        # 0 * a is NaN for NaN and infinity, and 0 for all else.
        finite = add_any_order(finite, a * _ZERO)
        weight = np.rint(min(max(a, lowest), _ONE) * _GRID)
        weights[n] = weight
        gross = add_any_order(gross, np.float64(abs(weight)))
    return gross, finite


@njit_inline
def weight_unit(gross: float, equity: float, rules: Rules) -> float:
    """Units of money for a unit of weight: V / max(1, sum |w| / leverage)."""
    return equity / max(gross / WEIGHT_GRID / rules.max_leverage, 1.0) * _PER_WEIGHT


@njit_inline
def target_shares(
    weights: Any, unit: float, band: float, mark: Any, shares: Any, rules: Rules, desired: Any
) -> None:
    """Write the holdings `[N]` of the weights where the change exceeds `band` units of money or
    closes a position, else the present ones."""
    for n in range(len(desired)):
        # No price, no target.
        price = np.float64(mark[n])
        held = shares[n]
        target: Any = np.float64(weights[n]) * unit / (price if price > 0.0 else 1.0)
        target = target if price > 0.0 else 0.0
        gap = target - held
        near = (abs(gap) * price <= band) & (target != 0.0)
        desired[n] = held + (0.0 if near else step_towards(gap, rules))


@njit_inline
def step_towards(gap: float, rules: Rules) -> float:
    """Take the part `trade_rate` of the gap, but at least one of whole shares."""
    step: float = rules.trade_rate * gap
    if rules.is_whole:
        step = np.trunc(step)
        step = step if step != 0.0 else min(max(np.trunc(gap), -1.0), 1.0)
    return step


@njit_inline
def trade_shares(action: Any, shares: Any, rules: Rules, desired: Any) -> None:
    """Write the holdings `[N]` after the shares that an action `[N]` orders."""
    # In float32, as in `desired_shares`.
    band = np.float32(rules.band)
    most = np.float32(rules.max_shares)
    for n in range(len(desired)):
        a = min(max(action[n], -_ONE), _ONE)
        size = np.float64(a * most) if abs(a) > band else 0.0
        desired[n] = shares[n] + (np.trunc(size) if rules.is_whole else size)


@njit_inline
def place_limits(
    first: int, last: int, action: Any, work: Workspace, state: State, prices: Prices, rules: Rules
) -> Any:
    """Turn the holdings to reach and the prices `action[:, N:]`, or the prices of quotes, into the
    orders that rest from now on. Return 0, or NaN where an action is not finite."""
    # As `envs.resting.place_orders`: `size_orders` has written the holdings to reach.
    assets = state.shares.shape[1]
    finite: Any = _ZERO
    for b in range(first, last):
        bar = state.bar[b]
        resting = state.resting[b]
        shares = state.shares[b]
        desired = work.desired[b - first]
        mark = prices.quotes[bar, MARK]
        for n in range(assets, action.shape[1]):
            finite = add_any_order(finite, action[b, n] * _ZERO)
        if rules.is_quote:
            budget = rules.quote_weight * max(state.equity[b], 0.0)
            lay_quotes(action[b], budget, shares, mark, rules, resting)
        else:
            lay_limits(action[b], desired, shares, mark, rules, resting)
        if rules.has_stops:
            aim = shares if rules.is_quote else desired
            lay_stops(action[b], aim, shares, mark, rules, resting)
        if prices.risk_off[bar]:
            for n in range(assets):
                close_at_any_price(n, shares, rules, resting, False)
        work.fill_bar[b - first] = bar
        state.cost[b] = 0.0
        state.turnover[b] = 0.0
    return np.float64(finite)


@njit_inline
def lay_limits(
    action: Any, desired: Any, shares: Any, mark: Any, rules: Rules, resting: Any
) -> None:
    """Write an order of each asset that leads to the holdings desired `[N]`."""
    # Without branches, so that the loop is vectorised.
    assets = len(shares)
    floor = -np.inf if rules.is_short else 0.0
    for n in range(assets):
        offset = np.float64(min(max(action[assets + n], -_ONE), _ONE))
        left = max(desired[n], floor) - shares[n]
        price: Any = np.float64(mark[n]) * (1.0 + offset * rules.offset) * UNIT
        resting[LEFT, n] = left
        resting[PRICE, n] = price if left != 0.0 else 0.0
        resting[AGE, n] = 0.0


@njit_call
def lay_quotes(
    action: Any, budget: float, shares: Any, mark: Any, rules: Rules, resting: Any
) -> None:
    """Write a bid and an ask of `budget` USD each, of each asset that has a price."""
    # The formulas are in `envs.resting.lay_quotes`.
    assets = len(shares)
    for n in range(assets):
        usd = np.float64(mark[n])
        size: Any = budget / (usd * UNIT if usd > 0.0 else 1.0)
        size = np.trunc(size) if rules.is_whole else size
        size = size if usd > 0.0 else 0.0
        sale = size if rules.is_short else min(size, shares[n])
        below = (0.5 + 0.5 * np.float64(min(max(action[n], -_ONE), _ONE))) * rules.offset
        above = (0.5 + 0.5 * np.float64(min(max(action[assets + n], -_ONE), _ONE))) * rules.offset
        resting[LEFT, n] = size
        resting[PRICE, n] = usd * (1.0 - below) * UNIT if size != 0.0 else 0.0
        resting[AGE, n] = 0.0
        resting[ORDER_ROWS + LEFT, n] = 0.0 - sale
        resting[ORDER_ROWS + PRICE, n] = usd * (1.0 + above) * UNIT if sale != 0.0 else 0.0
        resting[ORDER_ROWS + AGE, n] = 0.0


@njit_call
def lay_stops(action: Any, aim: Any, shares: Any, mark: Any, rules: Rules, resting: Any) -> None:
    """Write the stops of the target holdings `aim` `[N]` or, where these are 0, of the present
    ones. A stop that a bar has reached keeps closing its position."""
    # The formulas are in `envs.resting.lay_stop`.
    assets = len(shares)
    floor = -np.inf if rules.is_short else 0.0
    stops = resting[len(resting) - 1]
    for n in range(assets):
        if abs(stops[n]) == LARGEST:
            close_at_any_price(n, shares, rules, resting, True)
        else:
            usd = np.float64(mark[n])
            side = find_side(max(aim[n], floor), usd)
            side = side if side != 0.0 else find_side(shares[n], usd)
            wish = np.float64(min(max(action[len(action) - assets + n], -_ONE), _ONE))
            away = (1.0 - wish) * rules.stop_offset
            stop = side * (usd * (1.0 - side * away)) * UNIT
            stops[n] = stop if wish > 0.0 else 0.0


@njit_call
def close_at_any_price(n: int, shares: Any, rules: Rules, resting: Any, is_stopped: bool) -> None:
    """Leave asset n with one order that closes its position at the next open, whatever it is."""
    stop = len(resting) - 1
    is_reached = rules.has_stops and abs(resting[stop, n]) == LARGEST
    clear_order(n, resting)
    resting[LEFT, n] = 0.0 - shares[n]  # which is no negative zero
    resting[PRICE, n] = LARGEST if shares[n] < 0.0 else 0.0
    if is_stopped or is_reached:
        resting[stop, n] = LARGEST if shares[n] > 0.0 else -LARGEST


# --- events ---------------------------------------------------------------------------------------


@njit_inline
def meet_events(
    b: int,
    i: int,
    work: Workspace,
    state: State,
    prices: Prices,
    rules: Rules,
    log: AccountLog,
) -> None:
    """Apply the splits and dividends of the bar of the fill to holdings and orders alike."""
    bar = work.fill_bar[i]
    row = prices.event_row[bar]
    if row > 0 and bar > state.bar[b]:
        split_orders(state.shares[b], prices.splits[row], rules, work.desired[i])
        state.cash[b] += apply_events(b, bar, state, prices, rules, log)


@njit_call
def split_orders(shares: Any, splits: Any, rules: Rules, desired: Any) -> None:
    """Convert the desired holdings `[N]` from old shares to new ones."""
    for n in range(len(desired)):
        order = split_shares(desired[n] - shares[n], splits[n], rules)
        desired[n] = split_shares(shares[n], splits[n], rules) + order


@njit_call
def apply_events(
    b: int, bar: int, state: State, prices: Prices, rules: Rules, log: AccountLog
) -> float:
    """Apply the splits of a bar to the shares of account b, and return the income of its events,
    USD."""
    row = prices.event_row[bar]
    income = 0.0
    for n in range(state.shares.shape[1]):
        # A fraction of a share left by a split is paid in cash, at the previous close.
        held = state.shares[b, n]
        split = prices.splits[row, n]
        after = split_shares(held, split, rules)
        rest = held * split - after
        mark = np.float64(prices.quotes[bar - 1, MARK, n]) / split
        income += np.rint(held * prices.dividends[row, n]) + np.rint(rest * mark)
        if after != held:
            record_trade(log, SPLIT, bar, bar, n, after - held, 0.0, 0.0)
        state.shares[b, n] = after
        if rules.is_limit:
            split_resting(n, split, rules, state.resting[b], log)
    if len(log.income) > 0:
        log.income[bar] += income * UNIT
    return income * UNIT


@njit_call
def split_resting(n: int, split: float, rules: Rules, resting: Any, log: AccountLog) -> None:
    """Apply a split to the orders that rest in asset n, and to its stop."""
    for side in range(1 + rules.is_quote):
        at = side * ORDER_ROWS
        resting[at + LEFT, n] = split_shares(resting[at + LEFT, n], split, rules)
        resting[at + PRICE, n] /= split
        if len(log.filled) > 0:
            log.filled[side, n] = split_shares(log.filled[side, n], split, rules)
    stop = len(resting) - 1
    if rules.has_stops and abs(resting[stop, n]) != LARGEST:
        resting[stop, n] /= split


@njit_inline
def split_shares(shares: float, split: float, rules: Rules) -> float:
    """Multiply shares by `split`; whole shares stay whole, rounded to zero."""
    product = shares * split
    if not rules.is_whole:
        return product
    return shares if split == 1.0 else np.trunc(product + np.sign(product) * SPLIT_NUDGE)


# --- fills ----------------------------------------------------------------------------------------


@njit_inline
def fill_orders(
    first: int, last: int, work: Workspace, state: State, prices: Prices, rules: Rules
) -> None:
    """Fill orders in their bar: sales first, then purchases."""
    # Sales bring holdings, also short ones, nearer to 0.
    for b in range(first, last):
        i = b - first
        bar = work.fill_bar[i]
        shares = state.shares[b]
        kept = work.kept[i]
        addition = work.addition[i]
        received, sales, ordered = sell(
            shares, work.desired[i], prices.quotes[bar], rules, kept, addition
        )
        price = prices.quotes[bar, FILL]
        root = prices.inverse_root_volume[bar]
        spread = prices.spread
        work.sales_cost[i] = total_cost(kept, shares, sales, price, root, spread, rules, True)
        variable, commissions = purchase_costs(addition, ordered, price, root, spread, rules)
        work.variable_cost[i] = variable
        work.commissions[i] = commissions
        work.sales[i] = sales * UNIT
        work.ordered[i] = ordered * UNIT
        state.cash[b] += received * UNIT - work.sales_cost[i]
        work.budget[i] = state.cash[b]
        if rules.is_short:
            row = prices.event_row[bar] if bar > state.bar[b] else 0
            mark = prices.quotes[state.bar[b], MARK]
            owed = find_owed(b, state.bar[b], state, prices, rules)
            work.budget[i] = purchase_budget(
                state.cash[b], owed, kept, price, mark, row, prices, rules
            )

    # Purchases are scaled by one factor to the budget.
    num_assets = state.shares.shape[1]
    for i in range(last - first):
        work.scale[i] = purchase_scale(
            work.ordered[i],
            work.variable_cost[i],
            work.commissions[i],
            work.budget[i],
            num_assets,
            rules,
        )

    # Purchases take holdings further from zero.
    for b in range(first, last):
        i = b - first
        bar = work.fill_bar[i]
        shares = state.shares[b]
        kept = work.kept[i]
        mark = prices.quotes[min(state.bar[b] + 1, state.end_bar[b]), MARK]
        paid, purchases, value = buy(
            kept, work.addition[i], work.scale[i], prices.quotes[bar], mark, rules, shares
        )
        price = prices.quotes[bar, FILL]
        root = prices.inverse_root_volume[bar]
        cost = total_cost(kept, shares, purchases, price, root, prices.spread, rules, False)
        cash = state.cash[b] - (paid * UNIT + cost)
        state.cash[b] = cash if rules.is_short else max(cash, 0.0)
        state.cost[b] = work.sales_cost[i] + cost
        state.turnover[b] = work.sales[i] + purchases * UNIT
        work.value[i] = value * UNIT


@njit_inline
def sell(
    shares: Any, desired: Any, quote: Any, rules: Rules, kept: Any, addition: Any
) -> tuple[float, float, float]:
    """Write the holdings `[N]` after the part of the orders that leads towards zero, and the
    additions still wanted. Return sums in units of money: proceeds, their magnitudes, and the
    additions' magnitudes."""
    # One pass for both kinds of orders, since each reads the same prices.
    received = 0.0
    sales = 0.0
    ordered = 0.0
    floor = -np.inf if rules.is_short else 0.0
    for n in range(len(kept)):
        signed = np.float64(quote[FILL, n])
        price = abs(signed)
        held = shares[n]
        limit = np.float64(quote[MOST, n])
        goal = min(max(max(desired[n], floor), held - limit), held + limit)
        left = min(max(goal, min(held, 0.0)), max(held, 0.0))
        left = left if price > 0.0 else held
        more = goal - left if signed > 0.0 else 0.0
        kept[n] = left
        addition[n] = more
        x = np.rint((held - left) * price)
        received = add_any_order(received, x)
        sales = add_any_order(sales, abs(x))
        ordered = add_any_order(ordered, abs(np.rint(more * price)))
    return received, sales, ordered


@njit_inline
def buy(
    kept: Any, addition: Any, scale: float, quote: Any, mark: Any, rules: Rules, shares: Any
) -> tuple[float, float, float]:
    """Write the holdings `[N]` after the scaled additions. Return sums in units of money: payments,
    their magnitudes, and the value of the holdings at `mark`."""
    # Most steps have one close: summing its value here saves a second pass over the holdings.
    paid = 0.0
    purchases = 0.0
    value = 0.0
    for n in range(len(kept)):
        more = scale * addition[n]
        now = kept[n] + (np.trunc(more) if rules.is_whole else more)
        shares[n] = now
        x = np.rint((now - kept[n]) * abs(np.float64(quote[FILL, n])))
        paid = add_any_order(paid, x)
        purchases = add_any_order(purchases, abs(x))
        value = add_any_order(value, np.rint(now * np.float64(mark[n])))
    return paid, purchases, value


@njit_call
def purchase_budget(
    cash: float,
    owed: float,
    held: Any,
    price: Any,
    mark: Any,
    row: int,
    prices: Prices,
    rules: Rules,
) -> Any:
    """USD that purchases may take with shorts: L V - G, with equity V and gross exposure G of
    holdings `[N]`; the option was worth `owed`. `mark` `[N]`: the last close, before the splits and
    dividends of `row`."""
    value = 0.0
    gross = 0.0
    for n in range(len(held)):
        # Holdings that cannot trade count at the last close, per share of the fill's bar.
        usd = abs(np.float64(price[n]))
        last = (np.float64(mark[n]) - prices.dividends[row, n]) / prices.splits[row, n]
        x = np.rint(held[n] * (usd if usd > 0.0 else last))
        value = add_any_order(value, x)
        gross = add_any_order(gross, abs(x))
    return rules.max_leverage * (cash + value * UNIT - owed) - gross * UNIT


@njit_inline
def purchase_scale(
    ordered: float,
    variable: float,
    commissions: float,
    budget: float,
    num_assets: int,
    rules: Rules,
) -> float:
    """Scale in [0, 1] of all purchases, so that they fit the budget: all amounts USD, `commissions`
    a number of orders."""
    # The formula is in `envs.account.purchase_scale`.
    owed = rules.min_commission_usd * commissions
    full = ordered + rules.max_leverage * variable
    room = max(budget - rules.max_leverage * (owed + 2.0 * UNIT * num_assets), 0.0)
    scale = min(room / (full if full > 0.0 else 1.0), 1.0)
    return 1.0 if full + rules.max_leverage * owed <= budget else scale


# --- orders that rest -----------------------------------------------------------------------------


@njit_inline
def fill_resting(
    b: int,
    bar: int,
    work: Workspace,
    state: State,
    prices: Prices,
    rules: Rules,
    log: AccountLog,
) -> None:
    """Fill the orders of account b that `bar` trades through, bids before asks; the others rest on,
    or end."""
    resting = state.resting[b]
    shares = state.shares[b]
    ranges = prices.ranges[bar]
    is_plain = not (rules.is_quote or rules.has_stops)
    if not is_plain:
        for n in range(len(shares)):
            work.start[n] = shares[n]
    work.budget[0] = state.cash[b]
    for side in range(1 + rules.is_quote):
        for n in range(len(shares)):
            work.left[n] = resting[side * ORDER_ROWS + LEFT, n]
        if not is_plain:
            hold_back(ranges, resting, shares, work.start, rules, work.left)
        fill_side(b, bar, side, work, state, prices, rules, log)
    if rules.has_stops:
        meet_stops(bar, resting, shares, prices, rules, log)


@njit_inline
def fill_side(
    b: int,
    bar: int,
    side: int,
    work: Workspace,
    state: State,
    prices: Prices,
    rules: Rules,
    log: AccountLog,
) -> None:
    """Fill account b's bids (or only orders), side 0, or its asks, for at most `work.left` shares.
    Subtract their spending from `work.budget[0]`, USD for additions; with shorts, side 0 computes
    it first."""
    # The stages are those of `envs.resting`: `meet_bar`, `fill_orders` and `rest_on`. All are
    # inlined: passing the tuples of arrays takes longer than the work.
    shares = state.shares[b]
    resting = state.resting[b]
    desired = work.desired[0]
    kept = work.kept[0]
    addition = work.addition[0]
    quote = work.quote
    price = quote[FILL]
    root = work.root
    spread = work.spread
    meet_bar(bar, resting[side * ORDER_ROWS + PRICE], shares, prices, rules, work)

    cash = state.cash[b]
    received, sales, ordered = sell(shares, desired, quote, rules, kept, addition)
    sales_cost = total_cost(kept, shares, sales, price, root, spread, rules, True)
    variable, commissions = purchase_costs(addition, ordered, price, root, spread, rules)
    state.cash[b] += received * UNIT - sales_cost
    budget = state.cash[b]
    if rules.is_short:
        row = prices.event_row[bar]
        mark = prices.quotes[bar - 1, MARK]
        owed = find_owed(b, bar - 1, state, prices, rules)
        budget = purchase_budget(budget, owed, kept, price, mark, row, prices, rules)
        if side == 0:
            work.budget[0] = purchase_budget(cash, owed, shares, price, mark, row, prices, rules)
    budget = min(budget, work.budget[0])
    scale = purchase_scale(ordered * UNIT, variable, commissions, budget, len(shares), rules)
    for n in range(len(shares)):
        desired[n] = shares[n]
    paid, purchases, _ = buy(kept, addition, scale, quote, prices.quotes[bar, MARK], rules, shares)
    cost = total_cost(kept, shares, purchases, price, root, spread, rules, False)
    cash = state.cash[b] - (paid * UNIT + cost)
    state.cash[b] = cash if rules.is_short else max(cash, 0.0)
    state.cost[b] += sales_cost + cost
    state.turnover[b] += (sales + purchases) * UNIT
    work.budget[0] -= purchases * UNIT + rules.max_leverage * (sales_cost + cost)
    rest_on(bar, side, resting, shares, prices, rules, work, log)


@njit_call
def hold_back(ranges: Any, resting: Any, shares: Any, start: Any, rules: Rules, left: Any) -> None:
    """Cut orders `left` `[N]` to what a bar of these `ranges` `[2, N]` may fill: nothing against a
    position whose stop it reaches; without shorts, no sale of shares bought in the same bar."""
    # Called only with stops or quotes: plain limits keep their vectorised loops.
    for n in range(len(shares)):
        if rules.has_stops:
            stop = resting[len(resting) - 1, n]
            is_held_up = reaches_stop(n, stop, shares[n], ranges) and abs(stop) < LARGEST
            if is_held_up and left[n] * shares[n] < 0.0:
                left[n] = 0.0
        if not rules.is_short:
            left[n] = max(left[n], -start[n])


@njit_inline
def reaches_stop(n: int, stop: float, shares: float, ranges: Any) -> Any:
    """Return True if a bar of these `ranges` `[2, N]` reaches the stop of a position in asset n."""
    # The range comes first, because few bars reach a stop.
    high = np.float64(ranges[1, n])
    is_in_range = high >= -stop * USD_GRID
    if stop > 0.0:
        is_in_range = np.float64(ranges[0, n]) <= stop * USD_GRID
    return is_in_range and stop * find_side(shares, high) > 0.0


@njit_inline
def find_side(shares: float, price: float) -> Any:
    """Return 1 for a long position, -1 for a short one, 0 for one worth a cent at most."""
    return np.sign(shares) if abs(shares) * price > DUST_USD * USD_GRID else 0.0


@njit_inline
def meet_stops(
    bar: int, resting: Any, shares: Any, prices: Prices, rules: Rules, log: AccountLog
) -> None:
    """Turn the stops that a bar has reached into orders at any price, until the positions are
    closed."""
    # Repeated at each bar, since holdings shrink; inlined, as `fill_side`.
    ranges = prices.ranges[bar]
    stops = resting[len(resting) - 1]
    for n in range(len(shares)):
        stop = stops[n]
        if stop != 0.0:
            was_reached = abs(stop) == LARGEST
            protects = shares[n] * stop > 0.0 and prices.last_bar[n] > bar
            if protects and (was_reached or reaches_stop(n, stop, shares[n], ranges)):
                # An order at any price counts for each bar of trade.
                if len(log.counts) > 0 and ranges[1, n] > 0.0:
                    count_all_cancelled(bar, n, resting, prices, rules, log)
                    log.counts[ORDER] += 1.0
                close_at_any_price(n, shares, rules, resting, True)
            elif was_reached or prices.last_bar[n] <= bar:
                stops[n] = 0.0


@njit_inline
def meet_bar(
    bar: int, limits: Any, shares: Any, prices: Prices, rules: Rules, work: Workspace
) -> None:
    """Write `work.desired[0]`, the holdings after all fills of the orders `work.left` at prices
    `limits` `[N]` in a bar, and their prices and costs: `work.quote`, `work.root` and
    `work.spread`."""
    # A price of 0 marks an order that does not fill, as for a symbol that does not trade.
    below = 1.0 - rules.margin
    above = 1.0 + rules.margin
    floor = -np.inf if rules.is_short else 0.0
    desired = work.desired[0]
    left = work.left
    most = work.quote[MOST]
    fill = work.quote[FILL]
    quote = prices.quotes[bar]
    low = prices.ranges[bar, 0]
    high = prices.ranges[bar, 1]
    # Short loops over few arrays, a comparison a line: the compiler vectorises no others.
    for n in range(len(shares)):
        signed = np.float64(quote[FILL, n])
        opened = abs(signed)
        limit = limits[n] * USD_GRID
        extreme = np.float64(low[n]) if left[n] > 0.0 else -np.float64(high[n])
        bound = limit * below if left[n] > 0.0 else -limit * above
        lower = min(limit, opened)
        higher = max(limit, opened)
        price: Any = lower if left[n] > 0.0 else higher
        price = price if extreme < bound else 0.0
        price = price if left[n] != 0.0 else 0.0
        price = price if opened > 0.0 else 0.0
        fill[n] = price if signed > 0.0 else -price
    for n in range(len(shares)):
        filled = left[n] if fill[n] != 0.0 else 0.0
        desired[n] = max(shares[n] + filled, floor)
    for n in range(len(shares)):
        most[n] = np.float64(quote[MOST, n])
    if not rules.is_proportional:  # otherwise there is neither impact nor spread
        for n in range(len(shares)):
            is_at_open = abs(fill[n]) == abs(np.float64(quote[FILL, n]))
            root = np.float64(prices.inverse_root_volume[bar, n])
            work.root[n] = root if is_at_open else 0.0
            work.spread[n] = prices.spread[n] if is_at_open else 0.0


@njit_inline
def rest_on(
    bar: int,
    side: int,
    resting: Any,
    shares: Any,
    prices: Prices,
    rules: Rules,
    work: Workspace,
    log: AccountLog,
) -> None:
    """Age an account's bids (or only orders), side 0, or its asks, and end those that are done or
    too old. `work.desired[0]` has the holdings before they filled."""
    # As `envs.resting.rest_on`; it also writes the log.
    oldest = np.float64(rules.time_in_force) if rules.time_in_force > 0 else np.inf
    row = prices.event_row[bar]
    at = side * ORDER_ROWS
    held = work.desired[0]
    if not rules.is_whole:
        # Fractions of a share may leave a rounding error.
        for n in range(len(shares)):
            filled = shares[n] - held[n]
            mark = np.float64(prices.quotes[bar - 1, MARK, n]) - prices.dividends[row, n]
            usd = abs(resting[at + LEFT, n] - filled) * (mark / prices.splits[row, n])
            if filled != 0.0 and usd <= DUST_USD * USD_GRID:
                resting[at + LEFT, n] = filled
    if len(log.kind) > 0:
        for n in range(len(shares)):
            if resting[at + LEFT, n] != 0.0:
                record_limit_fill(bar, side, n, shares[n], resting, rules, work, log)
                if resting[at + AGE, n] + 1.0 >= oldest or prices.last_bar[n] <= bar:
                    count_cancelled(
                        bar, side, n, resting[at + LEFT, n] - (shares[n] - held[n]), prices, log
                    )
    for n in range(len(shares)):
        left = resting[at + LEFT, n] - (shares[n] - held[n])
        age = resting[at + AGE, n] + 1.0
        left = left if age < oldest else 0.0
        left = left if prices.last_bar[n] > bar else 0.0
        price = resting[at + PRICE, n]
        resting[at + LEFT, n] = left
        resting[at + PRICE, n] = price if left != 0.0 else 0.0
        resting[at + AGE, n] = age if left != 0.0 else 0.0


@njit_call
def cancel_orders(
    bar: int, n: int, resting: Any, prices: Prices, rules: Rules, log: AccountLog
) -> None:
    """Cancel the orders and the stop of asset n at the close of `bar`."""
    count_all_cancelled(bar, n, resting, prices, rules, log)
    clear_order(n, resting)


@njit_inline
def clear_order(n: int, resting: Any) -> None:
    """Leave asset n without an order."""
    # Called rarely: `rest_on` ends orders in a loop that is vectorised.
    for row in range(resting.shape[0]):
        resting[row, n] = 0.0


@njit_call
def record_limit_fill(
    bar: int,
    side: int,
    n: int,
    shares: float,
    resting: Any,
    rules: Rules,
    work: Workspace,
    log: AccountLog,
) -> None:
    """Record the fill of an order of asset n, the bid (or only one), side 0, or the ask."""
    # The part that brings a position nearer to 0 costs at most its notional, as in `fill_orders`.
    held = work.desired[0, n]
    filled = shares - held
    age = resting[side * ORDER_ROWS + AGE, n]
    so_far = log.filled[side]
    so_far[n] = filled if age == 0.0 else so_far[n] + filled
    if filled == 0.0:
        return
    is_first = so_far[n] == filled
    left = abs(resting[side * ORDER_ROWS + LEFT, n])
    log.counts[CAPPED] += is_first and left > work.quote[MOST, n]
    usd = abs(work.quote[FILL, n])
    sale = abs(in_usd(work.kept[0, n] - held, usd))
    bought = filled - (work.kept[0, n] - held)
    purchase = abs(in_usd(bought, usd))
    root = 0.0 if rules.is_proportional else work.root[n]
    spread = 0.0 if rules.is_proportional else work.spread[n]
    cost = closing_cost(work.kept[0, n] - held, sale, root, spread, rules)
    cost += trade_cost(bought, purchase, root, spread, rules)
    decided = bar - 1 - int(age)
    record_trade(log, ORDER, decided, bar, n, filled, usd * UNIT, cost)
    log.costs[bar] += cost
    log.turnover[bar] += sale + purchase


@njit_call
def count_all_cancelled(
    bar: int, n: int, resting: Any, prices: Prices, rules: Rules, log: AccountLog
) -> None:
    """Count the orders of asset n as cancelled at the close of `bar`."""
    for side in range(1 + rules.is_quote):
        count_cancelled(bar, side, n, resting[side * ORDER_ROWS + LEFT, n], prices, log)


@njit_call
def count_cancelled(
    bar: int, side: int, n: int, left: float, prices: Prices, log: AccountLog
) -> None:
    """Count the shares left of an order of asset n as cancelled at the close of `bar`."""
    # Only backtests keep counts.
    if len(log.counts) > 0 and left != 0.0:
        log.counts[CANCELLED] += abs(left) * np.float64(prices.quotes[bar, MARK, n]) * UNIT
        log.counts[UNFILLED] += log.filled[side, n] == 0.0


# --- costs ----------------------------------------------------------------------------------------


@njit_inline
def in_usd(shares: float, price: float) -> Any:
    """Multiply shares by a price in units of money: USD, in whole units."""
    return np.rint(shares * price) * UNIT


@njit_inline
def total_cost(
    before: Any,
    after: Any,
    notional: float,
    price: Any,
    root: Any,
    spread: Any,
    rules: Rules,
    is_closing: bool,
) -> float:
    """USD: cost of the orders that lead from holdings `[N]` to others, at prices, roots and spreads
    `[N]`. Proportional costs use the exact sum, `notional` units of money."""
    if rules.is_proportional:
        return rules.cost_rate * (notional * UNIT)
    # `before` and `after` may be exchanged: a purchase costs as much as the sale of as many shares.
    total = 0.0
    for n in range(len(before)):
        shares = after[n] - before[n]
        usd = abs(in_usd(shares, np.float64(price[n])))
        cost = trade_cost(shares, usd, np.float64(root[n]), spread[n], rules)
        total = add_any_order(total, min(cost, usd) if is_closing else cost)
    return total


@njit_inline
def purchase_costs(
    addition: Any, notional: float, price: Any, root: Any, spread: Any, rules: Rules
) -> tuple[float, int]:
    """USD cost of additions `[N]` without minimum commissions, and the number of orders that owe
    one."""
    if rules.is_proportional:
        return rules.cost_rate * (notional * UNIT), 0
    # As `total_cost`, of orders not yet scaled.
    variable = 0.0
    commissions = 0
    for n in range(len(addition)):
        usd = abs(in_usd(addition[n], np.float64(price[n])))
        cost = variable_cost(addition[n], usd, np.float64(root[n]), spread[n], rules)
        variable = add_any_order(variable, np.rint(cost * USD_GRID) * UNIT)
        commissions += usd > DUST_USD
    return variable, commissions


@njit_inline
def closing_cost(shares: float, notional: float, root: float, spread: float, rules: Rules) -> Any:
    """USD: `trade_cost`, but never more than the notional."""
    return min(trade_cost(shares, notional, root, spread, rules), notional)


@njit_inline
def trade_cost(shares: float, notional: float, root: float, spread: float, rules: Rules) -> Any:
    """USD: cost of an order; `root` is 1 / sqrt(volume)."""
    cost = variable_cost(shares, notional, root, spread, rules)
    if rules.min_commission_usd > 0.0:
        least = rules.min_commission_usd if notional > DUST_USD else 0.0
        cost = cost + max(least - rules.fee_rate * notional, 0.0)
    return np.rint(cost * USD_GRID) * UNIT


@njit_inline
def variable_cost(shares: float, notional: float, root: float, spread: float, rules: Rules) -> Any:
    """USD: the part of the cost that grows with the order, up to all of its notional."""
    impact = notional * min(np.sqrt(abs(shares)) * root, 1.0)
    moved = min(rules.impact_per_usd * notional, MOST_IMPACT) if root > 0.0 else 0.0
    rate = rules.fee_rate + spread + moved
    return min(rate * notional + rules.impact_rate * impact, notional)


# --- mark to market -------------------------------------------------------------------------------


@njit_inline
def mark_to_market(
    first: int,
    last: int,
    work: Workspace,
    state: State,
    prices: Prices,
    rules: Rules,
    log: AccountLog,
) -> None:
    """Mark cash and holdings at each close up to the next decision."""
    # For an interval of one bar without changes, `buy` has already summed the holdings' value.
    is_plain = rules.interval == 1 and rules.borrow_rate == 0.0 and rules.maintenance_margin == 0.0
    is_plain = is_plain and not rules.is_limit
    for b in range(first, last):
        i = b - first
        stop = min(state.bar[b] + rules.interval, state.end_bar[b])
        happens = prices.ends[stop] or (rules.is_same_bar and prices.event_row[stop] > 0)
        happens = happens or (rules.closes_at_end and stop == state.end_bar[b])
        if is_plain and not happens:
            owed = find_owed(b, stop, state, prices, rules)
            equity = state.cash[b] + work.value[i] - owed
            state.equity[b] = equity
            state.peak_equity[b] = max(state.peak_equity[b], equity)
            state.bar[b] = stop
        else:
            mark_bars(b, stop, work.fill_bar[i], work, state, prices, rules, log)


@njit_inline
def mark_bars(
    b: int,
    stop: int,
    fill_bar: int,
    work: Workspace,
    state: State,
    prices: Prices,
    rules: Rules,
    log: AccountLog,
) -> None:
    """Advance account b to the close of bar `stop`, bar by bar: events after the fill, orders that
    rest, interest, ends of symbols, the mark, a margin call."""
    is_logged = len(log.equity) > 0
    for bar in range(state.bar[b] + 1, stop + 1):
        if prices.event_row[bar] > 0 and bar > fill_bar:
            state.cash[b] += apply_events(b, bar, state, prices, rules, log)
        if rules.is_limit:
            fill_resting(b, bar, work, state, prices, rules, log)
        if rules.borrow_rate > 0.0:
            charge_interest(b, bar, state, prices, rules, log)
        if prices.ends[bar] or (rules.closes_at_end and bar == state.end_bar[b]):
            close_positions(b, bar, False, state, prices, rules, log)
        mark = prices.quotes[bar, MARK]
        owed = find_owed(b, bar, state, prices, rules)
        equity = state.cash[b] + value_shares(state.shares[b], mark) - owed
        margin = rules.maintenance_margin
        if margin > 0.0 and equity < margin * exposure(state.shares[b], mark):
            close_positions(b, bar, True, state, prices, rules, log)
            equity = state.cash[b] + value_shares(state.shares[b], mark) - owed
        state.equity[b] = equity
        state.peak_equity[b] = max(state.peak_equity[b], equity)
        if is_logged:
            log.equity[bar] = equity
            # Copy element by element: compiling a row assignment, with shape checks, takes seconds.
            if len(log.shares) > 0:
                for n in range(state.shares.shape[1]):
                    log.shares[bar, n] = state.shares[b, n]
    state.bar[b] = stop


@njit_inline
def value_shares(shares: Any, mark: Any) -> float:
    """USD: holdings `[N]` at prices `[N]`."""
    value = 0.0
    for n in range(len(shares)):
        value = add_any_order(value, np.rint(shares[n] * np.float64(mark[n])))
    return value * UNIT


@njit_inline
def find_owed(b: int, bar: int, state: State, prices: Prices, rules: Rules) -> Any:
    """USD that account b owes for its option at the close of `bar`."""
    if not rules.has_option:
        return 0.0
    start = state.start_bar[b]
    first = state.first_equity[b]
    return value_option(
        start, bar, first, prices.underlying, prices.option_value, prices.option_scale
    )


@njit_call
def value_option(
    start: int, bar: int, first: float, underlying: Any, table: Any, scale: Any
) -> Any:
    """USD that an option sold at `start` is worth at the close of `bar`."""
    # The formulas are in `envs.account.find_owed`. A call, because few accounts have an option.
    gap, left = find_gap(start, bar, underlying, table)
    place = gap * scale[left] + STRIKE_POINT
    column = np.int64(min(max(place, 0.0), table.shape[1] - 2.0))
    low = table[left, column]
    share = low + (place - column) * (table[left, column + 1] - low)
    return np.rint(first * share * USD_GRID) * UNIT


@njit_inline
def find_gap(start: int, bar: int, underlying: Any, table: Any) -> tuple[Any, int]:
    """Price over the strike, less 1, and bars left of an option sold at `start`; after its expiry,
    their values at expiry."""
    expiry = start + len(table) - 1
    now = min(bar, expiry)
    return underlying[0, now] / underlying[1, start] - 1.0, expiry - now


@njit_call
def exposure(shares: Any, mark: Any) -> float:
    """USD: holdings `[N]` at prices `[N]`, short ones counted as long."""
    gross = 0.0
    for n in range(len(shares)):
        gross = add_any_order(gross, abs(np.rint(shares[n] * np.float64(mark[n]))))
    return gross * UNIT


@njit_call
def charge_interest(
    b: int, bar: int, state: State, prices: Prices, rules: Rules, log: AccountLog
) -> None:
    """Pay a year's rate on the short notional at the last close and on borrowed cash."""
    short = 0.0
    row = prices.event_row[bar]
    for n in range(state.shares.shape[1]):
        # The last close, adjusted for this bar's split.
        before = np.float64(prices.quotes[bar - 1, MARK, n]) / prices.splits[row, n]
        short += max(-np.rint(state.shares[b, n] * before), 0.0)
    borrowed = short * UNIT + max(-state.cash[b], 0.0)
    interest = borrowed * rules.borrow_rate * prices.years[bar]
    state.cash[b] -= interest
    add_costs(b, bar, interest, 0.0, state, log)


@njit_call
def close_positions(
    b: int,
    bar: int,
    is_called: bool,
    state: State,
    prices: Prices,
    rules: Rules,
    log: AccountLog,
) -> None:
    """Close positions at the close of `bar`: those of symbols that end there, all at an episode's
    end, or all that trade after a margin call."""
    is_over = rules.closes_at_end and bar == state.end_bar[b]
    value = 0.0
    notional = 0.0
    cost = 0.0
    for n in range(state.shares.shape[1]):
        shares = state.shares[b, n]
        trades = prices.quotes[bar, FILL, n] != 0.0
        closes = trades if is_called else prices.last_bar[n] == bar or is_over
        if closes and shares != 0.0:
            price = np.float64(prices.quotes[bar, MARK, n])
            root = np.float64(prices.inverse_root_volume[bar, n])
            x = in_usd(shares, price)
            closing = closing_cost(shares, abs(x), root, prices.spread[n], rules)
            value += x
            notional += abs(x)
            cost += closing
            record_trade(log, FORCED, bar, bar, n, -shares, price * UNIT, closing)
            state.shares[b, n] = 0.0
        if (is_called or is_over) and rules.is_limit:
            cancel_orders(bar, n, state.resting[b], prices, rules, log)
    if rules.is_proportional:
        # Compute proportional costs from the exact sum, as in `total_cost`.
        cost = rules.cost_rate * notional
    state.cash[b] += value - cost
    add_costs(b, bar, cost, notional, state, log)


@njit_inline
def add_costs(
    b: int, bar: int, cost: float, notional: float, state: State, log: AccountLog
) -> None:
    """Add USD paid and traded at the close of a bar."""
    state.cost[b] += cost
    state.turnover[b] += notional
    if len(log.costs) > 0:
        log.costs[bar] += cost
        log.turnover[bar] += notional


@njit_inline
def record_trade(
    log: AccountLog,
    kind: int,
    decision_bar: int,
    fill_bar: int,
    asset: int,
    shares: float,
    price: float,
    cost: float,
) -> None:
    """Append a change of a holding to the log, if one is kept."""
    # Columns have room for all trades until the next decision.
    if len(log.kind) > 0:
        row = log.size[0]
        log.kind[row] = kind
        log.decision_bar[row] = decision_bar
        log.fill_bar[row] = fill_bar
        log.asset[row] = asset
        log.amount[row] = shares
        log.price[row] = price
        log.cost[row] = cost
        log.size[0] = row + 1


# --- outcome --------------------------------------------------------------------------------------


@njit_inline
def measure_outcome(first: int, last: int, old: State, new: State, rules: Rules) -> None:
    """Compare accounts at the end of the interval with those at the decision, and end episodes."""
    # Leave the reward's logarithm to torch: numba's may differ from it in the last bit.
    for b in range(first, last):
        before = old.equity[b]
        equity = new.equity[b]
        first_equity = new.first_equity[b]
        least = EQUITY_FLOOR * first_equity
        growth = max(equity, least) / max(before, least)
        profit = (equity - before) / first_equity
        is_ruined = equity <= rules.ruin_fraction * first_equity
        is_over = (new.bar[b] >= new.end_bar[b]) & (not is_ruined)
        new.worth[b] = growth if rules.reward == LOG_RETURN else profit
        new.final_bar[b] = new.bar[b]
        new.final_equity[b] = equity
        new.final_peak[b] = new.peak_equity[b]
        new.terminated[b] = is_ruined
        new.truncated[b] = is_over
        new.done[b] = is_ruined | is_over
