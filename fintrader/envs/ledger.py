"""The ledger: accounts, orders, fills and costs, as pure functions over `[B]` and `[B, N]` tensors.

A trade of notional x (USD, x >= 0) costs

    max(m * [x > dust] - f x, 0) + min(f x + h x + kappa x^2, x)

with f commission, h half-spread, kappa impact and m the least commission of an order. Prices stay the bar's;
everything a trade loses is in its cost, so that for each account and step

    V[t+1] - V[t] = sum_i (price P&L of holdings and fills)_i - costs

Shares and cash are float64, prices the market's float32. Every amount of money is counted in units of 2^-20 USD
before amounts are added up, so that sums up to 8.6 billion USD are exact: neither the order of tickers nor the engine
that adds can matter.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fintrader.envs.settings import EnvSettings

WEIGHT_GRID = float(1 << 24)
"""Target weights are rounded to this grid, which makes their sum exact in float64."""

USD_GRID = float(1 << 20)
"""Units of money in a USD. Sums of whole units are exact up to 2^53 of them."""

LEAST_CHANGE = 2.0**-22
"""A target within this share of equity of what is held is what is held: a float32 weight cannot say it finer."""

DUST_USD = 0.01
"""Notionals up to a cent are rounding of fractional shares, not orders: they owe no least commission."""


class Account(NamedTuple):
    """B accounts. Times are bar numbers of the environment's window."""

    bar: Tensor
    """`[B]` int64: the bar whose close the account stands at."""
    cash: Tensor
    """`[B]` float64, USD."""
    shares: Tensor
    """`[B, N]` float64."""
    equity: Tensor
    """`[B]` float64: cash + shares marked at the close of `bar`."""
    peak_equity: Tensor
    """`[B]` float64: highest equity at any close of this episode."""
    first_equity: Tensor
    """`[B]` float64: equity at the episode's start."""
    start_bar: Tensor
    """`[B]` int64."""
    end_bar: Tensor
    """`[B]` int64: the episode is truncated at the close of this bar."""
    episode: Tensor
    """`[B]` int64: episodes begun since the seeding."""
    memory: Tensor
    """`[B, 2]` float64: moments of the step returns, for the differential Sharpe ratio."""
    finished: Tensor
    """`[B]` bool: the last step ended the episode and the account was not reset yet."""


class Fills(NamedTuple):
    """What one round of orders did."""

    cash: Tensor
    """`[B]` after the fills."""
    shares: Tensor
    """`[B, N]` after the fills."""
    traded: Tensor
    """`[B, N]` signed: bought > 0, sold < 0."""
    cost: Tensor
    """`[B]` USD."""
    turnover: Tensor
    """`[B]` USD, sum of the notionals."""
    closing: Tensor
    """`[B, N]` USD: notionals of the reductions."""
    opening: Tensor
    """`[B, N]` USD: notionals of the additions."""


def to_grid(value: Tensor, units: float) -> Tensor:
    """Rounded to 1/`units`, halves to even; as it is where a gradient is wanted, which rounding has none of."""
    return value if value.requires_grad else torch.round(value * units) / units


def in_usd(shares: Tensor, price: Tensor) -> Tensor:
    """`[B, N]` float64 USD: shares times prices, in whole units of money."""
    return to_grid(shares * price.to(torch.float64), USD_GRID)


def round_to_zero(shares: Tensor, settings: EnvSettings) -> Tensor:
    """Whole shares, towards zero, unless fractions trade."""
    return shares if settings.fractional else torch.trunc(shares)


def target_shares(action: Tensor, equity: Tensor, price: Tensor, settings: EnvSettings) -> Tensor:
    """`[B, N]` shares: w V / price with w = relu(a) / max(1, sum relu(a)), the rest is cash; with shorts
    w = a / max(1, sum |a| / leverage). 0 where there is no price."""
    action = to_grid(action.to(torch.float64), WEIGHT_GRID)
    if not settings.short:
        action = torch.relu(action)
    gross = action.abs().sum(1) / settings.max_leverage
    values = action * (torch.relu(equity) / torch.clamp(gross, min=1.0)).unsqueeze(1)
    listed = price > 0
    return torch.where(listed, values / torch.where(listed, price, torch.ones_like(price)), torch.zeros_like(price))


def desired_shares(
    action: Tensor, held: Tensor, equity: Tensor, mark: Tensor, flat: Tensor | None, settings: EnvSettings
) -> Tensor:
    """`[B, N]` float64: holdings the action asks for, sized with the prices known at the decision.

    What is rounded is the order, not the position: who asks for what he holds orders nothing. `mark` is the close at
    the decision (0 where the symbol has no price), `flat` `[B]` bool closes everything.
    """
    price = mark.to(torch.float64)
    action = (action if action.requires_grad else action.to(torch.float32)).clamp(-1.0, 1.0)
    if settings.action == "target":
        target = target_shares(action, equity, price, settings)
        gap = target - held
        band = max(settings.rebalance_band, LEAST_CHANGE) * torch.relu(equity).unsqueeze(1)
        near = (gap.abs() * price <= band) & (target != 0)
        order = torch.where(near, torch.zeros_like(gap), round_to_zero(gap, settings))
    else:
        # In float32, as actions are: 0.29 * 100 is 29, which its float64 product is not.
        size = torch.where(action.abs() > settings.dead_band, action * settings.max_shares, torch.zeros_like(action))
        order = round_to_zero(size.to(torch.float64), settings)
    want = held + order
    if not settings.short:
        want = torch.relu(want)
    if flat is not None:
        want = torch.where(flat.unsqueeze(1), torch.zeros_like(want), want)
    return want


def trade_cost(notional: Tensor, settings: EnvSettings) -> Tensor:
    """`[B, N]` USD: cost of orders of these notionals (`[B, N]` USD, >= 0)."""
    cost = variable_cost(notional, settings)
    if settings.min_commission_usd > 0.0:
        orders = (notional > DUST_USD).to(torch.float64)
        short_of = settings.min_commission_usd * orders - settings.fee_rate * notional
        cost = cost + torch.relu(short_of)
    return to_grid(cost, USD_GRID)


def variable_cost(notional: Tensor, settings: EnvSettings) -> Tensor:
    """`[B, N]` USD: what grows with an order's size, at least in proportion, up to all of its notional."""
    cost = (settings.fee_rate + settings.spread_rate) * notional
    if settings.impact_rate == 0.0:
        return cost
    return torch.minimum(cost + settings.impact_rate * (notional * notional), notional)


def closing_cost(notional: Tensor, settings: EnvSettings) -> Tensor:
    """`[B, N]`: as `trade_cost`, but an order that reduces a position never costs more than its notional."""
    return torch.minimum(trade_cost(notional, settings), notional)


def total_cost(notional: Tensor, settings: EnvSettings, *, closing: bool) -> Tensor:
    """`[B]` USD: cost of all orders of an account. Proportional costs are taken of the sum, which is exact."""
    if settings.costs_are_proportional:
        return (settings.fee_rate + settings.spread_rate) * notional.sum(1)
    return (closing_cost if closing else trade_cost)(notional, settings).sum(1)


def purchase_scale(notional: Tensor, budget: Tensor, settings: EnvSettings) -> Tensor:
    """`[B]` in [0, 1]: the common factor s by which all new positions are scaled to fit the budget; 1 if they fit.

    With X = sum x, c the orders' variable costs and a least commission m for each of n orders, long-only cash covers

        s X + s sum c(x) + n m <= cash

    which bounds the cost of the scaled orders from above: c(s x) <= s c(x), and no commission exceeds f s x + m. Where
    not all of it fits, the rounding of amounts is kept back too. With leverage L the budget is L V - G (equity and
    gross exposure after the reductions) and costs weigh L-fold.
    """
    ordered, leverage = notional.sum(1), settings.max_leverage
    if settings.costs_are_proportional:
        variable = (settings.fee_rate + settings.spread_rate) * ordered
    else:
        variable = to_grid(variable_cost(notional, settings), USD_GRID).sum(1)
    least = settings.min_commission_usd * (notional > DUST_USD).sum(1, dtype=torch.float64)
    full = ordered + leverage * variable
    room = torch.relu(budget - leverage * (least + 2.0 / USD_GRID * notional.shape[1]))
    scale = torch.clamp(room / torch.where(full > 0, full, torch.ones_like(full)), max=1.0)
    return torch.where(full + leverage * least <= budget, torch.ones_like(scale), scale)


def fill_orders(
    cash: Tensor, shares: Tensor, want: Tensor, price: Tensor, buyable: Tensor, mark: Tensor, settings: EnvSettings
) -> Fills:
    """Move holdings from `shares` towards `want` at `price`: reductions first, then additions, scaled to fit.

    `price` `[B, N]` is 0 where nothing trades; `buyable` says where positions may grow; `mark` values
    holdings that cannot trade against the leverage limit. Long-only accounts keep cash >= 0 and shares >= 0.
    """
    trades = price > 0
    # The part of the way that leads towards zero, and what lies beyond it.
    nearest = torch.minimum(torch.maximum(want, torch.clamp(shares, max=0.0)), torch.clamp(shares, min=0.0))
    kept = torch.where(trades, nearest, shares)
    addition = torch.where(buyable & trades, want - kept, torch.zeros_like(want))

    reduced = in_usd(shares - kept, price)
    closing = reduced.abs()
    closing_total = total_cost(closing, settings, closing=True)
    cash = cash + (reduced.sum(1) - closing_total)
    budget = cash
    if settings.short:
        value = in_usd(kept, torch.where(trades, price, mark))
        budget = settings.max_leverage * (cash + value.sum(1)) - value.abs().sum(1)
    scale = purchase_scale(in_usd(addition, price).abs(), budget, settings)
    filled = kept + round_to_zero(scale.unsqueeze(1) * addition, settings)
    added = in_usd(filled - kept, price)
    opening = added.abs()
    opening_total = total_cost(opening, settings, closing=False)
    cash = cash - (added.sum(1) + opening_total)
    if not settings.short:
        cash = torch.relu(cash)  # the rounding of an exactly exhausted budget, far below a unit of money
    return Fills(
        cash=cash,
        shares=filled,
        traded=filled - shares,
        cost=closing_total + opening_total,
        turnover=(closing + opening).sum(1),
        closing=closing,
        opening=opening,
    )
