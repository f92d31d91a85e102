"""Execution of orders: their share of the bars' volume, and their slippage from the price at the
decision."""

from __future__ import annotations

import numpy as np

from fintrader.backtesting.result import Array, BacktestResult
from fintrader.market.tensors import Markets
from fintrader.metrics import Flags, divide
from fintrader.results.analysis import ExecutionCosts, FillGroup

CLASSES = {
    0.001: "up to 0.1 %",
    0.01: "0.1 to 1 %",
    0.05: "1 to 5 %",
    0.1: "5 to 10 %",
    np.inf: "above 10 %",
}
"""Classes of orders by their share of the bar's volume, each with its upper edge, inclusive."""
NO_VOLUME = "no volume in the bar"


def measure_execution(result: BacktestResult, markets: Markets) -> ExecutionCosts | None:
    """Group the fills of orders by participation; None for a strategy without orders.

    `slippage_bps` is the distance of the fill's price from the close at the decision, positive
    against the trader, weighted by notional; `cost_bps` are fees, spread and impact. Fills without
    volume in their bar are a separate class. `markets`: the windows one after another. A
    walk-forward scales shares to the capital of earlier windows; participation counts the shares
    that the window's own account traded.
    """
    trades = result.trades[result.trades["kind"] == "order"]
    if trades.empty:
        return None
    column = {symbol: k for k, symbol in enumerate(result.symbols)}
    asset = np.array([column[str(symbol)] for symbol in trades["symbol"]])
    names = ("decision_bar", "fill_bar", "shares", "price_usd", "notional_usd", "cost_usd")
    decided, filled, shares, price, notional, cost = (trades[name].to_numpy() for name in names)
    volume = np.concatenate([market.to_numpy("volume") for market in markets])[
        filled, asset
    ].astype(np.float64)
    scale = _scale(result, markets)[filled]
    growth = _trace_growth(markets)
    seen = result.mark[decided, asset] * growth[decided, asset] / growth[filled, asset]
    slipped = divide(np.sign(shares) * (price - seen), seen)
    share = divide(np.abs(shares) / scale, volume, np.nan)
    # A fill at an edge rounds to either side of it. NaN sorts last.
    kind = np.searchsorted(list(CLASSES), share * (1 - 1e-9))
    classes = [*CLASSES.values(), NO_VOLUME]
    groups = [
        _summarise(name, kind == k, share, notional, slipped, cost)
        for k, name in enumerate(classes)
    ]
    every = np.ones(len(shares), dtype=bool)
    return ExecutionCosts(
        groups=tuple(group for group in groups if group.fills),
        total=_summarise("all", every, share, notional, slipped, cost),
        slippage_usd=float((slipped * notional).sum()),
        cost_usd=float(cost.sum()),
    )


def _summarise(
    name: str, which: Flags, share: Array, notional: Array, slipped: Array, cost: Array
) -> FillGroup:
    """Summarise the fills of one group."""
    weight = float(notional[which].sum())
    known = share[which & ~np.isnan(share)]

    def mean_bps(usd: Array) -> float | None:
        return 1e4 * float(usd[which].sum()) / weight if weight > 0 else None

    return FillGroup(
        participation=name,
        fills=int(which.sum()),
        notional_usd=weight,
        mean_participation=float(known.mean()) if known.size else None,
        most_participation=float(known.max()) if known.size else None,
        slippage_bps=mean_bps(slipped * notional),
        cost_bps=mean_bps(cost),
    )


def _scale(result: BacktestResult, markets: Markets) -> Array:
    """Factors `[T]` by which each bar's shares were scaled to the capital left by earlier
    windows."""
    starts = np.cumsum([0, *[market.num_bars for market in markets]])
    factors = result.equity[starts[:-1]] / result.equity[0]
    return np.repeat(factors, np.diff(starts))


def _trace_growth(markets: Markets) -> Array:
    """Shares `[T, N]` that one share of the window's first bar has grown to, by splits and
    dividends."""
    parts = []
    for market in markets:
        growth = market.events.growth(market.close)
        parts.append(np.ones(market.close.shape) if growth is None else growth.cpu().numpy())
    return np.concatenate(parts)
