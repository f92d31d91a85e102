"""One account, compiled: orders, fills, and every bar until the next decision.

The arithmetic of `envs.account`, operation by operation, for every
setting: amounts of money are whole units (`USD_GRID`) here too, so that their sums are exact and
may be taken in the fastest order. The environment steps thousands of accounts with these functions
(`envs.fast.batch`), the backtest one (`envs.fast.account`).

Accounts are rows `b` of `shares [B, N]`; `kept`, `added` and `wish` are scratch, rows `i`. Prices
come in units of money, so that a product with shares needs no scaling.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fintrader.envs.fast.buffers import FILL, MARK, MOST, Prices, Rules
from fintrader.envs.money import DUST_USD, USD_GRID, WEIGHT_GRID

ORDER = 0
FORCED = 1
SPLIT = 2
"""Kinds of change in what is held."""
_GRID = np.float32(WEIGHT_GRID)
_UNIT = 1.0 / USD_GRID
_PER_WEIGHT = USD_GRID / WEIGHT_GRID
_MAGNITUDE = np.int32(0x7FFFFFFF)
_ONE = np.float32(1.0)


@njit(fastmath={"reassoc"}, error_model="numpy", forceinline=True, cache=True)
def plus(total: Any, value: Any) -> Any:
    """A sum whose terms may be taken in any order, because it is exact."""
    return total + value


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def clean(action: Any, bits: Any, b: int, lowest: Any, wish: Any, i: int) -> tuple[float, Any]:
    """Actions in units of the weight grid, none below `lowest`; returns their exposure in these
    units and the largest magnitude's bits."""
    gross: Any = 0.0
    worst = np.int32(0)
    for n in range(wish.shape[1]):
        worst = max(worst, bits[b, n] & _MAGNITUDE)
        a = np.rint(min(max(action[b, n], lowest), _ONE) * _GRID)
        wish[i, n] = a
        gross = plus(gross, np.float64(abs(a)))
    return gross, worst


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def unit_of(gross: float, value: float, leverage: float) -> float:
    """Units of money that a unit of the weight grid asks for."""
    return value / max(gross / WEIGHT_GRID / leverage, 1.0) * _PER_WEIGHT


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def ask_target(
    wish: Any,
    i: int,
    unit: float,
    band: float,
    rules: Rules,
    quotes: Any,
    now: int,
    shares: Any,
    b: int,
    want: Any,
) -> None:
    """`want[i]`: holdings that the wished weights mean, where they differ by more than `band` units
    of money."""
    pace = rules.pace
    whole = rules.whole
    for n in range(want.shape[1]):
        price = np.float64(quotes[now, MARK, n])
        held = shares[b, n]
        target: Any = np.float64(wish[i, n]) * unit / (price if price > 0.0 else 1.0)
        target = target if price > 0.0 else 0.0
        gap = target - held
        order: Any = pace * gap
        if whole:
            order = np.trunc(order)
            order = order if order != 0.0 else min(max(np.trunc(gap), -1.0), 1.0)
        near = (abs(gap) * price <= band) & (target != 0.0)
        want[i, n] = held + (0.0 if near else order)


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def ask_trade(action: Any, b: int, rules: Rules, shares: Any, want: Any, i: int) -> None:
    """`want[i]`: holdings after the shares that the action orders."""
    dead_band = np.float32(rules.dead_band)
    most = np.float32(rules.max_shares)
    for n in range(want.shape[1]):
        a = min(max(action[b, n], -_ONE), _ONE)
        size = np.float64(a * most) if abs(a) > dead_band else 0.0
        want[i, n] = shares[b, n] + (np.trunc(size) if rules.whole else size)


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def reduce(
    want: Any, i: int, floor: float, quotes: Any, filled: int, shares: Any, b: int, kept: Any
) -> tuple[float, float, float]:
    """Holdings after the reductions in `kept[i]`, additions wanted in `want[i]`.

    `floor` is the least holding. Returns units of money: what the reductions bring, their
    notionals, and those of the additions.
    """
    brought = 0.0
    closed = 0.0
    ordered = 0.0
    for n in range(want.shape[1]):
        signed = np.float64(quotes[filled, FILL, n])
        price = abs(signed)
        held = shares[b, n]
        most = np.float64(quotes[filled, MOST, n])
        goal = min(max(max(want[i, n], floor), held - most), held + most)
        left = min(max(goal, min(held, 0.0)), max(held, 0.0))
        left = left if price > 0.0 else held
        more = goal - left if signed > 0.0 else 0.0
        kept[i, n] = left
        want[i, n] = more
        x = np.rint((held - left) * price)
        brought = plus(brought, x)
        closed = plus(closed, abs(x))
        ordered = plus(ordered, abs(np.rint(more * price)))
    return brought, closed, ordered


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def add(
    kept: Any,
    want: Any,
    i: int,
    scale: float,
    whole: bool,
    quotes: Any,
    filled: int,
    shares: Any,
    b: int,
    bar: int,
) -> tuple[float, float, float]:
    """Write the holdings after the scaled additions; returns units of money: what those cost, their
    notionals, and what the holdings are worth at the close of `bar`."""
    paid = 0.0
    opened = 0.0
    value = 0.0
    for n in range(kept.shape[1]):
        more = scale * want[i, n]
        now = kept[i, n] + (np.trunc(more) if whole else more)
        shares[b, n] = now
        x = np.rint((now - kept[i, n]) * abs(np.float64(quotes[filled, FILL, n])))
        paid = plus(paid, x)
        opened = plus(opened, abs(x))
        value = plus(value, np.rint(now * np.float64(quotes[bar, MARK, n])))
    return paid, opened, value


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def worth(shares: Any, b: int, marks: Any, bar: int) -> float:
    """USD: what the holdings are worth at the close of `bar`."""
    value = 0.0
    for n in range(shares.shape[1]):
        value = plus(value, np.rint(shares[b, n] * np.float64(marks[bar, n])))
    usd: float = value * _UNIT
    return usd


@njit(error_model="numpy", cache=True, _nrt=False)
def exposure(shares: Any, b: int, marks: Any, bar: int) -> float:
    """USD: the holdings at the close of `bar`, short ones counted as long."""
    gross = 0.0
    for n in range(shares.shape[1]):
        gross = plus(gross, abs(np.rint(shares[b, n] * np.float64(marks[bar, n]))))
    usd: float = gross * _UNIT
    return usd


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def variable_cost(shares: float, x: float, thin: float, spread: float, rules: Rules) -> float:
    """USD of an order of notional x USD, without a least commission."""
    root = min(np.sqrt(abs(shares)) * thin, 1.0)
    cost: float = min((rules.fee + spread) * x + rules.impact * (x * root), x)
    return cost


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def trade_cost(shares: float, x: float, thin: float, spread: float, rules: Rules) -> float:
    """USD of an order of notional x USD (`envs.account.trade_cost`)."""
    short_of = max((rules.least if x > DUST_USD else 0.0) - rules.fee * x, 0.0)
    cost = variable_cost(shares, x, thin, spread, rules) + (short_of if rules.least > 0.0 else 0.0)
    rounded: float = np.rint(cost * USD_GRID) * _UNIT
    return rounded


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def reduce_at_cost(
    want: Any,
    i: int,
    floor: float,
    prices: Prices,
    filled: int,
    shares: Any,
    b: int,
    kept: Any,
    rules: Rules,
) -> tuple[float, float, float, float, float, int]:
    """As `reduce`; further, USD of the reductions' costs, of the additions' without least
    commissions, and how many additions owe one."""
    brought, closed, ordered = reduce(want, i, floor, prices.quotes, filled, shares, b, kept)
    closing = 0.0
    variable = 0.0
    count = 0
    for n in range(kept.shape[1]):
        price = abs(np.float64(prices.quotes[filled, FILL, n]))
        thin = np.float64(prices.thinness[filled, n])
        sold = shares[b, n] - kept[i, n]
        more = want[i, n]
        spread = prices.spread[n]
        x = abs(np.rint(sold * price)) * _UNIT
        y = abs(np.rint(more * price)) * _UNIT
        closing = plus(closing, min(trade_cost(sold, x, thin, spread, rules), x))
        variable = plus(
            variable, np.rint(variable_cost(more, y, thin, spread, rules) * USD_GRID) * _UNIT
        )
        count += y > DUST_USD
    return brought, closed, ordered, closing, variable, count


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def cost_of_added(
    shares: Any, b: int, kept: Any, i: int, prices: Prices, filled: int, rules: Rules
) -> float:
    """USD, order by order, of the holdings that `add` wrote."""
    total = 0.0
    for n in range(kept.shape[1]):
        bought = shares[b, n] - kept[i, n]
        thin = np.float64(prices.thinness[filled, n])
        x = abs(np.rint(bought * abs(np.float64(prices.quotes[filled, FILL, n])))) * _UNIT
        total = plus(total, trade_cost(bought, x, thin, prices.spread[n], rules))
    return total


@njit(error_model="numpy", cache=True, _nrt=False)
def apply_events(
    source: Any, b: int, prices: Prices, bar: int, whole: bool, shares: Any, fills: Any, count: int
) -> tuple[float, int]:
    """Write to `shares` what the holdings of `source` become by the splits of `bar`; returns the
    income (USD) and the fills noted so far."""
    row = prices.event_row[bar]
    income = 0.0
    for n in range(shares.shape[1]):
        held = source[b, n]
        split = prices.splits[row, n]
        after = split_shares(held, split, whole)
        left = held * split - after
        worth_of_left = left * (np.float64(prices.quotes[bar - 1, MARK, n]) / split)
        income += np.rint(held * prices.dividends[row, n]) + np.rint(worth_of_left)
        if after != held:
            count = note(fills, count, SPLIT, bar, bar, n, after - held, 0.0, 0.0)
        shares[b, n] = after
    return income * _UNIT, count


@njit(error_model="numpy", cache=True, _nrt=False)
def split_shares(shares: float, split: float, whole: bool) -> float:
    """`envs.account.split_shares`."""
    product = shares * split
    if not whole:
        return product
    return shares if split == 1.0 else np.trunc(product + np.sign(product) * 2.0**-20)


@njit(error_model="numpy", cache=True, _nrt=False)
def split_orders(
    held: Any, b: int, want: Any, i: int, prices: Prices, bar: int, whole: bool
) -> None:
    """Make of the holdings wanted in old shares those wanted in new ones."""
    row = prices.event_row[bar]
    for n in range(want.shape[1]):
        split = prices.splits[row, n]
        order = split_shares(want[i, n] - held[b, n], split, whole)
        want[i, n] = split_shares(held[b, n], split, whole) + order


@njit(error_model="numpy", cache=True, _nrt=False)
def room(
    cash: float, kept: Any, i: int, prices: Prices, now: int, filled: int, leverage: float
) -> float:
    """USD of exposure that equity at the fill prices leaves after the reductions."""
    value = 0.0
    gross = 0.0
    row = prices.event_row[filled] if filled > now else 0
    for n in range(kept.shape[1]):
        price = abs(np.float64(prices.quotes[filled, FILL, n]))
        before = (
            np.float64(prices.quotes[now, MARK, n]) - prices.dividends[row, n]
        ) / prices.splits[row, n]
        x = np.rint(kept[i, n] * (price if price > 0.0 else before))
        value = plus(value, x)
        gross = plus(gross, abs(x))
    return leverage * (cash + value * _UNIT) - gross * _UNIT


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def purchase_scale(
    ordered: float, variable: float, count: float, budget: float, num_assets: int, rules: Rules
) -> float:
    """`envs.account.purchase_scale`, all arguments USD."""
    least = rules.least * count
    full = ordered + rules.leverage * variable
    room = max(budget - rules.leverage * (least + 2.0 * _UNIT * num_assets), 0.0)
    scale = min(room / (full if full > 0.0 else 1.0), 1.0)
    return 1.0 if full + rules.leverage * least <= budget else scale


@njit(error_model="numpy", cache=True, _nrt=False)
def close_positions(
    shares: Any,
    b: int,
    prices: Prices,
    bar: int,
    called: bool,
    rules: Rules,
    fills: Any,
    count: int,
) -> tuple[float, float, float, int]:
    """Close at the close of `bar` what ends there, or (`called`) all that trades; USD: proceeds,
    cost, notional."""
    value = 0.0
    notional = 0.0
    cost = 0.0
    for n in range(shares.shape[1]):
        leaves = prices.quotes[bar, FILL, n] != 0.0 if called else prices.last_bar[n] == bar
        if leaves and shares[b, n] != 0.0:
            price = np.float64(prices.quotes[bar, MARK, n])
            x = np.rint(shares[b, n] * price) * _UNIT
            thin = np.float64(prices.thinness[bar, n])
            each = min(trade_cost(shares[b, n], abs(x), thin, prices.spread[n], rules), abs(x))
            value = value + x
            notional = notional + abs(x)
            cost = cost + each
            count = note(fills, count, FORCED, bar, bar, n, -shares[b, n], price * _UNIT, each)
            shares[b, n] = 0.0
    return value, cost if rules.each else rules.rate * notional, notional, count


@njit(error_model="numpy", cache=True, _nrt=False)
def wait(
    b: int,
    start: int,
    stop: int,
    fresh: int,
    cash: float,
    peak: float,
    cost: float,
    turnover: float,
    shares: Any,
    prices: Prices,
    rules: Rules,
    curves: Any,
    fills: Any,
    count: int,
) -> tuple[float, float, float, float, float, int]:
    """Mark every bar after `start` up to `stop`; returns cash, equity, peak, cost, turnover (USD)
    and fills noted.

    Splits and dividends have been applied up to the bar before `fresh`. `curves` (shares `[T, N]`,
    equity, costs, turnover, income `[T]`; empty: not kept) take what happened at each bar.
    """
    equity = 0.0
    keeps = len(curves[1]) > 0
    for bar in range(start + 1, stop + 1):
        paid = 0.0
        traded = 0.0
        row = prices.event_row[bar]
        if row > 0 and bar >= fresh:
            earned, count = apply_events(shares, b, prices, bar, rules.whole, shares, fills, count)
            cash += earned
            if keeps:
                curves[4][bar] += earned
        if rules.borrow > 0.0:
            owed = 0.0
            for n in range(shares.shape[1]):
                before = np.float64(prices.quotes[bar - 1, MARK, n]) / prices.splits[row, n]
                owed += max(-np.rint(shares[b, n] * before), 0.0)
            paid = (owed * _UNIT + max(-cash, 0.0)) * rules.borrow * prices.years[bar]
            cash = cash - paid
            cost = cost + paid
        if prices.ends[bar]:
            brought, due, notional, count = close_positions(
                shares, b, prices, bar, False, rules, fills, count
            )
            cash = cash + (brought - due)
            cost = cost + due
            turnover = turnover + notional
            paid = paid + due
            traded = traded + notional
        equity = cash + worth(shares, b, prices.marks, bar)
        if rules.margin > 0.0 and equity < rules.margin * exposure(shares, b, prices.marks, bar):
            brought, due, notional, count = close_positions(
                shares, b, prices, bar, True, rules, fills, count
            )
            cash = cash + (brought - due)
            cost = cost + due
            turnover = turnover + notional
            paid = paid + due
            traded = traded + notional
            equity = cash + worth(shares, b, prices.marks, bar)
        peak = max(peak, equity)
        if keeps:
            for n in range(
                shares.shape[1]
            ):  # an assignment of rows would compile, and check shapes, for seconds
                curves[0][bar, n] = shares[b, n]
            curves[1][bar] = equity
            curves[2][bar] += paid
            curves[3][bar] += traded
    return cash, equity, peak, cost, turnover, count


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def note(
    fills: Any,
    count: int,
    kind: int,
    decided: int,
    filled: int,
    n: int,
    shares: float,
    price: float,
    cost: float,
) -> int:
    kinds, decisions, bars, assets, amounts, prices, costs = fills
    if not len(kinds):
        return count
    kinds[count] = kind
    decisions[count] = decided
    bars[count] = filled
    assets[count] = n
    amounts[count] = shares
    prices[count] = price
    costs[count] = cost
    return count + 1


@njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
def write_private(
    out: Any,
    b: int,
    cash: float,
    equity: float,
    peak: float,
    first: float,
    left: float,
    shares: Any,
    row: int,
    quotes: Any,
    bar: int,
) -> None:
    """`out[b, :A + N]` float32: account features and holdings weights
    (`envs.observation.private_part`)."""
    safe = max(equity, 1e-6 * first)
    out[b, 0] = np.float32(cash / safe)
    out[b, 1] = np.float32(safe / first - 1.0)
    out[b, 2] = np.float32(equity / peak - 1.0)
    out[b, 3] = np.float32(left)
    share = 1.0 / safe * _UNIT
    for n in range(shares.shape[1]):
        out[b, 4 + n] = np.float32(shares[row, n] * np.float64(quotes[bar, MARK, n]) * share)
