"""A bar's opening among traders whose orders rest, in plain Python: one asset, one order after the
other.

Slow and obvious: the price is found by halving an interval, and every rule stands on its own line.
"""

from __future__ import annotations

LARGEST_MOVE = 0.1


def demand_at(orders: list[tuple[float, float]], price: float) -> float:
    """Net shares that orders (signed shares, limit) want at a price that is no order's limit."""
    buys = sum(shares for shares, limit in orders if shares > 0 and limit > price)
    sales = sum(shares for shares, limit in orders if shares < 0 and limit < price)
    return buys + sales


def respond(demand: float, quoted: float, kappa: float) -> float:
    """The price at which the market trades these shares."""
    return quoted * (1.0 + max(-LARGEST_MOVE, min(LARGEST_MOVE, kappa * quoted * demand)))


def open_bar(
    orders: list[tuple[float, float]], quoted: float, kappa: float
) -> tuple[float, list[float]]:
    """The opening price, and the shares of each order that fill at it."""
    low = quoted * (1.0 - LARGEST_MOVE)
    high = quoted * (1.0 + LARGEST_MOVE)
    for _ in range(200):
        middle = 0.5 * (low + high)
        if respond(demand_at(orders, middle), quoted, kappa) > middle:
            low = middle
        else:
            high = middle
    price = 0.5 * (low + high)
    near = [limit for shares, limit in orders if shares and abs(limit - price) < 1e-9 * price]
    if near:
        price = near[0]
    fills = []
    for shares, limit in orders:
        accepts = limit > price if shares > 0 else limit < price
        fills.append(shares if accepts and limit != price else 0.0)
    if not near:
        return price, fills

    # Orders at the price take what the market has left for them, as many shares as possible.
    need = (price / quoted - 1.0) / (kappa * quoted) - sum(fills)
    buys = sum(shares for shares, limit in orders if limit == price and shares > 0)
    sales = -sum(shares for shares, limit in orders if limit == price and shares < 0)
    sold = min(sales, buys - need)
    bought = sold + need
    for k, (shares, limit) in enumerate(orders):
        if shares and limit == price:
            fills[k] = shares * (bought / buys if shares > 0 else sold / sales)
    return price, fills
