"""The ledger: accounts, orders, fills and costs, as pure functions over `[B]` and `[B, N]` tensors.

An order takes at most a share `participation` of its bar's volume v (shares); the rest of it is
cancelled. A trade of q shares and notional x (USD, both >= 0) costs

    max(m * [x > dust] - f x, 0) + min(f x + h x + kappa x sqrt(min(q / v, 1)), x)

with f commission, h half-spread, kappa impact (the square-root law: Almgren et al. 2005, Toth et
al. 2011) and m the least commission of an order. Prices stay the bar's; everything a trade loses is
in its cost, so that for each account and step

    V[t+1] - V[t] = sum_i (price P&L of holdings and fills)_i + dividends - costs

Shares and cash are float64, prices the market's float32. Every amount of money is counted in units
of 2^-20 USD before amounts are added up, so that sums up to 8.6 billion USD are exact: neither the
order of tickers nor the engine that adds can matter.
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
"""A target within this share of equity of what is held is what is held: a float32 weight cannot say
it finer."""

DUST_USD = 0.01
"""Notionals up to a cent are rounding of fractional shares, not orders: they owe no least
commission."""


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


class Bar(NamedTuple):
    """What a bar means to orders that fill in it."""

    price: Tensor
    """`[B, N]` USD, 0 where nothing trades."""
    buyable: Tensor
    """`[B, N]` bool: positions may grow."""
    most: Tensor
    """`[B, N]` shares that an order takes at most."""
    thinness: Tensor
    """`[B, N]`: 1 / sqrt(volume in shares), very large without volume."""
    spread: Tensor
    """`[N]` float64: half-spread as a share of the notional."""


class Fills(NamedTuple):
    """What one round of orders did."""

    cash: Tensor
    """`[B]` after the fills."""
    shares: Tensor
    """`[B, N]` after the fills."""
    reduced: Tensor
    """`[B, N]`, signed: sold > 0, of what was held."""
    added: Tensor
    """`[B, N]`, signed: bought > 0, beyond it."""
    cost: Tensor
    """`[B]` USD."""
    turnover: Tensor
    """`[B]` USD, sum of the notionals."""


def to_grid(value: Tensor, units: float) -> Tensor:
    """Rounded to 1/`units`, halves to even; as it is where a gradient is wanted, which rounding has
    none of."""
    return value if value.requires_grad else torch.round(value * units) / units


def in_usd(shares: Tensor, price: Tensor) -> Tensor:
    """`[B, N]` float64 USD: shares times prices, in whole units of money."""
    return to_grid(shares * price.to(torch.float64), USD_GRID)


def round_to_zero(shares: Tensor, settings: EnvSettings) -> Tensor:
    """Whole shares, towards zero, unless fractions trade."""
    return shares if settings.fractional else torch.trunc(shares)


def target_shares(action: Tensor, equity: Tensor, price: Tensor, settings: EnvSettings) -> Tensor:
    """`[B, N]` shares: w V / price with w = relu(a) / max(1, sum relu(a)), the rest is cash; with
    shorts w = a / max(1, sum |a| / leverage). 0 where there is no price."""
    action = to_grid(action.to(torch.float64), WEIGHT_GRID)
    if not settings.short:
        action = torch.relu(action)
    gross = action.abs().sum(1) / settings.max_leverage
    values = action * (torch.relu(equity) / torch.clamp(gross, min=1.0)).unsqueeze(1)
    listed = price > 0
    return torch.where(
        listed, values / torch.where(listed, price, torch.ones_like(price)), torch.zeros_like(price)
    )


def desired_shares(
    action: Tensor,
    held: Tensor,
    equity: Tensor,
    mark: Tensor,
    flat: Tensor | None,
    settings: EnvSettings,
) -> Tensor:
    """`[B, N]` float64: holdings the action asks for, sized with the prices known at the decision.

    What is rounded is the order, not the position: who asks for what he holds orders nothing.
    `mark` is the close at the decision (0 where the symbol has no price), `flat` `[B]` bool closes
    everything.
    """
    price = mark.to(torch.float64)
    action = (action if action.requires_grad else action.to(torch.float32)).clamp(-1.0, 1.0)
    if settings.action == "target":
        target = target_shares(action, equity, price, settings)
        gap = target - held
        band = max(settings.rebalance_band, LEAST_CHANGE) * torch.relu(equity).unsqueeze(1)
        near = (gap.abs() * price <= band) & (target != 0)
        order = torch.where(near, torch.zeros_like(gap), step_towards(gap, settings))
    else:
        # In float32, as actions are: 0.29 * 100 is 29, which its float64 product is not.
        size = torch.where(
            action.abs() > settings.dead_band,
            action * settings.max_shares,
            torch.zeros_like(action),
        )
        order = round_to_zero(size.to(torch.float64), settings)
    want = held + order
    if not settings.short:
        want = torch.relu(want)
    if flat is not None:
        want = torch.where(flat.unsqueeze(1), torch.zeros_like(want), want)
    return want


def apply_events(
    cash: Tensor,
    shares: Tensor,
    mark: Tensor,
    split: Tensor,
    dividend: Tensor,
    settings: EnvSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    """Splits and dividends of a bar, before anything trades in it: cash `[B]`, shares `[B, N]`,
    income `[B]` USD.

    `mark` `[B, N]` is the close before, `split` (new shares for an old one) and `dividend` (USD an
    old share) `[B, N]`. Where only whole shares trade, what a split leaves of one is paid in cash,
    at that close.
    """
    after = split_shares(shares, split, settings)
    # What is left of a share: rounding, where the ratio is a fraction, is far below a unit of
    # money.
    left = shares * split - after
    income = (in_usd(shares, dividend) + in_usd(left, mark.to(torch.float64) / split)).sum(1)
    return cash + income, after, income


def split_shares(shares: Tensor, split: Tensor, settings: EnvSettings) -> Tensor:
    """`[B, N]`: shares times `split`, whole ones unless fractions trade (2^-20 makes good what
    rounding took)."""
    product = shares * split
    if settings.fractional:
        return product
    return torch.where(split == 1.0, shares, torch.trunc(product + torch.sign(product) * 2.0**-20))


def step_towards(gap: Tensor, settings: EnvSettings) -> Tensor:
    """`[B, N]` shares: the part of the gap to the target that is traded now, of whole shares at
    least one."""
    step = settings.trade_rate * gap
    if settings.fractional:
        return step
    step = torch.trunc(step)
    return torch.where(step == 0, torch.trunc(gap).clamp(-1.0, 1.0), step)


def trade_cost(shares: Tensor, notional: Tensor, bar: Bar, settings: EnvSettings) -> Tensor:
    """`[B, N]` USD: cost of orders of so many shares (signed) and these notionals (USD, >= 0)."""
    cost = variable_cost(shares, notional, bar, settings)
    if settings.min_commission_usd > 0.0:
        orders = (notional > DUST_USD).to(torch.float64)
        short_of = settings.min_commission_usd * orders - settings.fee_rate * notional
        cost = cost + torch.relu(short_of)
    return to_grid(cost, USD_GRID)


def variable_cost(shares: Tensor, notional: Tensor, bar: Bar, settings: EnvSettings) -> Tensor:
    """`[B, N]` USD: what grows with an order's size, at least in proportion, up to all of its
    notional."""
    cost = (settings.fee_rate + bar.spread) * notional
    if settings.impact_rate == 0.0:
        return cost
    # Both ways of a `where` are differentiated, and the square root has no slope at 0.
    taken = torch.sqrt(torch.where(shares == 0, torch.ones_like(shares), shares.abs()))
    impact = settings.impact_rate * (
        notional * torch.clamp(taken * bar.thinness.to(torch.float64), max=1.0)
    )
    return torch.minimum(cost + impact, notional)


def closing_cost(shares: Tensor, notional: Tensor, bar: Bar, settings: EnvSettings) -> Tensor:
    """`[B, N]`: as `trade_cost`, but an order that reduces a position never costs more than its
    notional."""
    return torch.minimum(trade_cost(shares, notional, bar, settings), notional)


def total_cost(
    shares: Tensor, notional: Tensor, bar: Bar, settings: EnvSettings, *, closing: bool
) -> Tensor:
    """`[B]` USD: cost of all orders of an account. Proportional costs are taken of the sum, which
    is exact."""
    if settings.costs_are_proportional:
        return (settings.fee_rate + settings.spread_rate) * notional.sum(1)
    return (closing_cost if closing else trade_cost)(shares, notional, bar, settings).sum(1)


def purchase_scale(addition: Tensor, bar: Bar, budget: Tensor, settings: EnvSettings) -> Tensor:
    """`[B]` in [0, 1]: the common factor s by which all new positions are scaled to fit the budget;
    1 if they fit.

    With X = sum x, c the orders' variable costs and a least commission m for each of n orders,
    long-only cash covers

        s X + s sum c(x) + n m <= cash

    which bounds the cost of the scaled orders from above: c(s x) <= s c(x), and no commission
    exceeds f s x + m. Where not all of it fits, the rounding of amounts is kept back too. With
    leverage L the budget is L V - G (equity and gross exposure after the reductions) and costs
    weigh L-fold.
    """
    notional = in_usd(addition, bar.price).abs()
    leverage = settings.max_leverage
    ordered = notional.sum(1)
    if settings.costs_are_proportional:
        variable = (settings.fee_rate + settings.spread_rate) * ordered
    else:
        variable = to_grid(variable_cost(addition, notional, bar, settings), USD_GRID).sum(1)
    least = settings.min_commission_usd * (notional > DUST_USD).sum(1, dtype=torch.float64)
    full = ordered + leverage * variable
    room = torch.relu(budget - leverage * (least + 2.0 / USD_GRID * notional.shape[1]))
    scale = torch.clamp(room / torch.where(full > 0, full, torch.ones_like(full)), max=1.0)
    return torch.where(full + leverage * least <= budget, torch.ones_like(scale), scale)


def fill_orders(
    cash: Tensor, shares: Tensor, want: Tensor, bar: Bar, mark: Tensor, settings: EnvSettings
) -> Fills:
    """Move holdings from `shares` towards `want` in `bar`: reductions first, then additions, scaled
    to fit.

    `mark` values holdings that cannot trade against the leverage limit. Long-only accounts keep
    cash >= 0 and shares >= 0.
    """
    trades = bar.price > 0
    most = bar.most.to(torch.float64)
    want = torch.minimum(torch.maximum(want, shares - most), shares + most)
    # The part of the way that leads towards zero, and what lies beyond it.
    nearest = torch.minimum(
        torch.maximum(want, torch.clamp(shares, max=0.0)), torch.clamp(shares, min=0.0)
    )
    kept = torch.where(trades, nearest, shares)
    addition = torch.where(bar.buyable & trades, want - kept, torch.zeros_like(want))

    reduced = shares - kept
    brought = in_usd(reduced, bar.price)
    closing = brought.abs()
    closing_total = total_cost(reduced, closing, bar, settings, closing=True)
    cash = cash + (brought.sum(1) - closing_total)
    budget = cash
    if settings.short:
        value = in_usd(kept, torch.where(trades, bar.price, mark))
        budget = settings.max_leverage * (cash + value.sum(1)) - value.abs().sum(1)
    scale = purchase_scale(addition, bar, budget, settings)
    filled = kept + round_to_zero(scale.unsqueeze(1) * addition, settings)
    added = filled - kept
    paid = in_usd(added, bar.price)
    opening = paid.abs()
    opening_total = total_cost(added, opening, bar, settings, closing=False)
    cash = cash - (paid.sum(1) + opening_total)
    if not settings.short:
        cash = torch.relu(
            cash
        )  # the rounding of an exactly exhausted budget, far below a unit of money
    cost = closing_total + opening_total
    turnover = (closing + opening).sum(1)
    return Fills(cash, filled, reduced, added, cost, turnover)


def fill_costs(fills: Fills, bar: Bar, settings: EnvSettings) -> Tensor:
    """`[B, N]` USD: what each order of a round cost."""
    closing, opening = (in_usd(shares, bar.price).abs() for shares in (fills.reduced, fills.added))
    paid = closing_cost(fills.reduced, closing, bar, settings)
    return paid + trade_cost(fills.added, opening, bar, settings)
