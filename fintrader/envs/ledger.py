"""The ledger: accounts, orders, fills and costs, as pure functions over `[B]` and `[B, N]` tensors.

A trade of notional x (USD, x >= 0) costs

    fee(x) = max(m * [x > dust], f x) + h x + kappa x^2

with f commission, h half-spread, kappa impact and m the least commission of an order. Prices stay the bar's;
everything a trade loses is in its cost, so that for each account and step

    V[t+1] - V[t] = sum_i (price P&L of holdings and fills)_i - costs

Cash is float64. With float32 prices and whole shares every product price * shares is exact in float64, and sums
of them are exact up to about 1e9 USD: the order of tickers cannot matter.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fintrader.envs.settings import EnvSettings

WEIGHT_GRID = float(1 << 24)
"""Whole-share actions are rounded to this grid, which makes their sum exact in float64."""

MAX_WHOLE_SHARES = float(1 << 23)
"""Most shares of a symbol a whole-share account holds: float32 counts exactly up to twice that."""

DUST_USD = 0.01
"""Notionals up to a cent are rounding of fractional shares, not orders: they owe no least commission."""

_SHAVE = 1.0 - 2.0**-44
"""Keeps a scaled-down fractional purchase below the cash by more than rounding can add."""


class Account(NamedTuple):
    """B accounts. Times are bar numbers of the environment's window."""

    bar: Tensor
    """`[B]` int64: the bar whose close the account stands at."""
    cash: Tensor
    """`[B]` float64, USD."""
    shares: Tensor
    """`[B, N]`."""
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


def round_to_zero(shares: Tensor, settings: EnvSettings) -> Tensor:
    """Whole shares, towards zero, unless fractions trade."""
    return shares if settings.fractional else torch.trunc(shares)


def clean_action(action: Tensor, settings: EnvSettings) -> Tensor:
    """`[B, N]` float64 in [-1, 1]; whole-share actions lie on a grid whose sums are exact."""
    action = action.to(torch.float64).clamp(-1.0, 1.0)
    return action if settings.fractional else torch.round(action * WEIGHT_GRID) / WEIGHT_GRID


def target_values(action: Tensor, equity: Tensor, settings: EnvSettings) -> Tensor:
    """`[B, N]` USD: w V with w = relu(a) / max(1, sum relu(a)), the rest is cash; with shorts
    w = a / max(1, sum |a| / leverage)."""
    value = torch.relu(equity).unsqueeze(1)
    if settings.short:
        return action * (value / torch.clamp(action.abs().sum(1, keepdim=True) / settings.max_leverage, min=1.0))
    positive = torch.relu(action)
    return positive * (value / torch.clamp(positive.sum(1, keepdim=True), min=1.0))


def desired_shares(
    action: Tensor, shares: Tensor, equity: Tensor, mark: Tensor, flat: Tensor | None, settings: EnvSettings
) -> Tensor:
    """`[B, N]` float64: holdings the action asks for, sized with the prices known at the decision.

    `mark` is the close at the decision (0 where the symbol has no price), `flat` `[B]` bool closes everything.
    """
    held = shares.to(torch.float64)
    price = mark.to(torch.float64)
    action = clean_action(action, settings)
    if settings.action == "target":
        values = target_values(action, equity, settings)
        listed = price > 0
        safe_price = torch.where(listed, price, torch.ones_like(price))
        want = torch.where(listed, round_to_zero(values / safe_price, settings), torch.zeros_like(price))
        if settings.rebalance_band > 0.0:
            near = (want - held).abs() * price <= settings.rebalance_band * torch.relu(equity).unsqueeze(1)
            want = torch.where(near & (want != 0), held, want)
    else:
        order = torch.where(action.abs() > settings.dead_band, action, torch.zeros_like(action)) * settings.max_shares
        want = held + round_to_zero(order, settings)
    if not settings.short:
        want = torch.relu(want)
    if not settings.fractional:
        want = want.clamp(-MAX_WHOLE_SHARES, MAX_WHOLE_SHARES)
    if flat is not None:
        want = torch.where(flat.unsqueeze(1), torch.zeros_like(want), want)
    return want


def trade_cost(notional: Tensor, settings: EnvSettings) -> Tensor:
    """`[B, N]` USD: cost of orders of these notionals (`[B, N]` USD, >= 0)."""
    if settings.min_commission_usd == 0.0:
        cost = (settings.fee_rate + settings.spread_rate) * notional
    else:
        ordered = (notional > DUST_USD).to(notional.dtype)
        fee = torch.maximum(settings.min_commission_usd * ordered, settings.fee_rate * notional)
        cost = fee + settings.spread_rate * notional
    if settings.impact_rate > 0.0:
        cost = cost + settings.impact_rate * notional * notional
    return cost


def closing_cost(notional: Tensor, settings: EnvSettings) -> Tensor:
    """`[B, N]`: as `trade_cost`, but an order that reduces a position never costs more than its notional."""
    return torch.minimum(trade_cost(notional, settings), notional)


def total_cost(notional: Tensor, settings: EnvSettings, *, closing: bool) -> Tensor:
    """`[B]` USD: cost of all orders of an account. Proportional costs are taken of the sum, which is exact."""
    if settings.min_commission_usd == 0.0 and settings.impact_rate == 0.0:
        return (settings.fee_rate + settings.spread_rate) * notional.sum(1)
    return (closing_cost if closing else trade_cost)(notional, settings).sum(1)


def purchase_scale(notional: Tensor, budget: Tensor, settings: EnvSettings) -> Tensor:
    """`[B]` in [0, 1]: the common factor s by which all new positions are scaled to fit the budget; 1 if they fit.

    Long-only, with X = sum x, Q = sum x^2 and fee rate c = f + h, the cash must cover

        (1 + c) X s + kappa Q s^2 <= cash

    so s = 2 R / (b + sqrt(b^2 + 4 a R)) with R the budget, b = (1 + c) X, a = kappa Q. With leverage L the budget
    is R = L V - G (equity and gross exposure after the reductions) and costs weigh L-fold: b = (1 + L c) X,
    a = L kappa Q. A least commission m is reserved for each order first, which bounds the cost from above.
    """
    ordered = notional.sum(1)
    rate = settings.fee_rate + settings.spread_rate
    leverage = settings.max_leverage
    fits = ordered + leverage * total_cost(notional, settings, closing=False) <= budget
    if settings.min_commission_usd > 0.0:
        budget = budget - leverage * settings.min_commission_usd * (notional > DUST_USD).sum(1)
    budget = torch.relu(budget)
    b = (1.0 + leverage * rate) * ordered
    if settings.impact_rate > 0.0:
        a = leverage * settings.impact_rate * (notional * notional).sum(1)
        root = torch.sqrt(torch.where(b > 0, b * b + 4.0 * a * budget, torch.ones_like(b)))
        b = 0.5 * (b + root)
    scale = budget / torch.where(b > 0, b, torch.ones_like(b))
    if settings.fractional:
        scale = scale * _SHAVE
    return torch.where(fits, torch.ones_like(scale), torch.clamp(scale, max=1.0))


def fill_orders(
    cash: Tensor, shares: Tensor, want: Tensor, price: Tensor, buyable: Tensor, mark: Tensor, settings: EnvSettings
) -> Fills:
    """Move holdings from `shares` towards `want` at `price`: reductions first, then additions, scaled to fit.

    `price` `[B, N]` is 0 where nothing trades; `buyable` says where positions may grow; `mark` values
    holdings that cannot trade against the leverage limit. Long-only accounts keep cash >= 0 and shares >= 0.
    """
    price = price.to(torch.float64)
    held = shares.to(torch.float64)
    trades = price > 0
    # The part of the way that leads towards zero, and what lies beyond it.
    nearest = torch.minimum(torch.maximum(want, torch.clamp(held, max=0.0)), torch.clamp(held, min=0.0))
    kept = torch.where(trades, nearest, held)
    addition = torch.where(buyable & trades, want - kept, torch.zeros_like(want))

    reduced = (held - kept) * price
    closing = reduced.abs()
    closing_total = total_cost(closing, settings, closing=True)
    cash = cash + (reduced.sum(1) - closing_total)
    notional = addition.abs() * price
    budget = cash
    if settings.short:
        value = kept * torch.where(trades, price, mark.to(torch.float64))
        equity = cash + value.sum(1)
        budget = settings.max_leverage * equity - value.abs().sum(1)
    scale = purchase_scale(notional, budget, settings)
    filled = (kept + round_to_zero(scale.unsqueeze(1) * addition, settings)).to(shares.dtype)
    added = filled.to(torch.float64) - kept
    opening = added.abs() * price
    opening_total = total_cost(opening, settings, closing=False)
    cash = cash - ((added * price).sum(1) + opening_total)
    if not settings.short:
        cash = torch.relu(cash)  # rounding of an exactly exhausted budget, below 1e-9 USD
    return Fills(
        cash=cash,
        shares=filled,
        traded=filled.to(torch.float64) - held,
        cost=closing_total + opening_total,
        turnover=(closing + opening).sum(1),
        closing=closing,
        opening=opening,
    )
