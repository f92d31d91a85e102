"""Execution of orders: their share of the bars' volume, and the distance of their fills from the
price that the decision saw.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fintrader.backtesting.result import BacktestResult
from fintrader.market.tensors import MarketTensors
from fintrader.results.analysis import ExecutionCosts, FillGroup

Array = NDArray[np.float64]
CLASSES = {
    0.001: "up to 0.1 %",
    0.01: "0.1 to 1 %",
    0.05: "1 to 5 %",
    0.1: "5 to 10 %",
    np.inf: "above 10 %",
}
"""Upper edge of each class by share of the bar's volume, itself included."""
NO_VOLUME = "no volume in the bar"


def measure_execution(
    result: BacktestResult, markets: Sequence[MarketTensors]
) -> ExecutionCosts | None:
    """Group the fills of orders by participation; None for a strategy without orders.

    `slippage_bps` is the fill's price beyond the close at which it was decided, against the trader
    > 0, weighted by notional; `cost_bps` are fees, spread and impact. Fills without volume in their
    bar are a class of their own. `markets`: the windows one after another; each began with the
    capital of the first, so shares that a walk-forward scaled to what it had are counted as its
    account traded them.
    """
    trades = result.trades[result.trades["kind"] == "order"]
    if trades.empty:
        return None
    column = {symbol: k for k, symbol in enumerate(result.symbols)}
    asset = np.array([column[str(symbol)] for symbol in trades["symbol"]])
    decided, filled = (trades[name].to_numpy() for name in ("decision_bar", "fill_bar"))
    shares = trades["shares"].to_numpy()
    price = trades["price_usd"].to_numpy()
    notional = trades["notional_usd"].to_numpy()
    cost = trades["cost_usd"].to_numpy()
    volume = np.concatenate([market.volume.cpu().numpy() for market in markets])[
        filled, asset
    ].astype(np.float64)
    scale = _scale(result, markets)[filled]
    growth = _growth(markets)
    seen = result.mark[decided, asset] * growth[decided, asset] / growth[filled, asset]
    known = seen > 0
    slipped = np.divide(
        np.sign(shares) * (price - seen), seen, out=np.zeros_like(price), where=known
    )
    share = np.divide(
        np.abs(shares) / scale, volume, out=np.full_like(price, np.nan), where=volume > 0
    )
    kind = np.searchsorted(list(CLASSES), share, side="left")  # NaN comes after all of them
    names = [*CLASSES.values(), NO_VOLUME]
    groups = [
        _summarise(name, kind == k, share, notional, slipped, cost) for k, name in enumerate(names)
    ]
    every = np.ones(len(shares), dtype=bool)
    return ExecutionCosts(
        groups=tuple(group for group in groups if group.fills),
        total=_summarise("all", every, share, notional, slipped, cost),
        slippage_usd=float((slipped * notional).sum()),
        cost_usd=float(cost.sum()),
    )


def _summarise(
    name: str, which: NDArray[np.bool_], share: Array, notional: Array, slipped: Array, cost: Array
) -> FillGroup:
    """Put the fills of one group together."""
    weight = float(notional[which].sum())
    some = share[which & ~np.isnan(share)]

    def mean_bps(usd: Array) -> float | None:
        return 1e4 * float(usd[which].sum()) / weight if weight > 0 else None

    return FillGroup(
        participation=name,
        fills=int(which.sum()),
        notional_usd=weight,
        mean_participation=float(some.mean()) if some.size else None,
        most_participation=float(some.max()) if some.size else None,
        slippage_bps=mean_bps(slipped * notional),
        cost_bps=mean_bps(cost),
    )


def _scale(result: BacktestResult, markets: Sequence[MarketTensors]) -> Array:
    """`[T]`: by how much a bar's shares were scaled to the capital that earlier windows left."""
    starts = np.cumsum([0, *[market.num_bars for market in markets]])
    factors = result.equity[starts[:-1]] / result.equity[0]
    whole: Array = np.repeat(factors, np.diff(starts))
    return whole


def _growth(markets: Sequence[MarketTensors]) -> Array:
    """`[T, N]`: what a share of a window's first bar has become, so that prices across a split can
    be compared."""
    parts = []
    for market in markets:
        growth = market.events.growth(market.close)
        parts.append(np.ones(market.close.shape) if growth is None else growth.cpu().numpy())
    whole: Array = np.concatenate(parts)
    return whole
