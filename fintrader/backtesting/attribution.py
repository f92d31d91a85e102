"""Attribution of a strategy's profit over its benchmark portfolio to selection, timing, fills and
costs.

With w the strategy's weights at the close of a bar and b the portfolio's, both as parts of equity,
r the symbols' returns over the next bar and V the strategy's equity, the profit of a bar is

    V (Σ w r + fills - costs),

where `fills` is the profit of trades between the price they filled at and the bar's close. The
portfolio's profit on the strategy's capital is V (Σ b r + its fills - its costs). The difference of
the two, over all bars, is

    selection  Σ V (w̄ - b̄) r                   profit of holding the mean weights throughout
    timing     Σ V ((w - w̄) - (b - b̄)) r        profit of changing them
    fills, -costs                               the strategy's less the portfolio's.

Their sum is the difference to the cent.
"""

from __future__ import annotations

import numpy as np

from fintrader.backtesting.result import Array, BacktestResult
from fintrader.market.tensors import Markets
from fintrader.metrics import divide
from fintrader.results.analysis import Attribution, SymbolAttribution

_BLOCK = 4096
"""Bars processed at once, so that no array `[T, N]` is copied as a whole."""


def symbol_returns(markets: Markets) -> Array:
    """Compute the return `[T, N]` of each symbol over each bar of the windows, one after another.

    Splits and dividends are included. 0 at the first bar of a window, and where either price is
    missing.
    """
    parts = []
    for market in markets:
        close = market.to_numpy("adjusted_close")
        with np.errstate(invalid="ignore", divide="ignore"):
            steps = np.vstack([np.zeros((1, close.shape[1])), close[1:] / close[:-1] - 1])
        parts.append(np.where(np.isfinite(steps), steps, 0.0))
    return np.concatenate(parts)


def attribute(
    result: BacktestResult, portfolio: BacktestResult | None, returns: Array
) -> Attribution:
    """Split the profit as above, in total and by symbol.

    `portfolio`: None for cash; a portfolio without positions (an index) cannot be split and is
    replaced by cash. `returns`: `[T, N]`, from `symbol_returns`.
    """
    rival = portfolio if portfolio is not None and portfolio.has_positions else None
    # Equity at the close before each bar; the first bar earns nothing.
    capital = np.append(0.0, result.equity[:-1])
    own_mean, own_total = _average_weights(result, returns, capital)
    their_mean, their_total = (
        (0.0 * own_mean, 0.0 * own_total)
        if rival is None
        else _average_weights(rival, returns, capital)
    )
    selection = (own_mean - their_mean) * (capital @ returns)
    timing = own_total - their_total - selection
    pnl = float(result.equity[-1] - result.equity[0])
    theirs, their_costs = (0.0, 0.0) if rival is None else _scale_to_capital(rival, capital)
    costs = their_costs - float(result.costs_usd.sum())
    active = pnl - theirs
    order = np.argsort(-np.abs(selection + timing), kind="stable")
    columns = (own_mean, their_mean, selection, timing)
    by_symbol = tuple(
        SymbolAttribution(result.symbols[k], *(float(column[k]) for column in columns))
        for k in order
    )
    return Attribution(
        portfolio="cash" if rival is None else rival.name,
        pnl_usd=pnl,
        portfolio_pnl_usd=theirs,
        active_usd=active,
        selection_usd=float(selection.sum()),
        timing_usd=float(timing.sum()),
        fills_usd=active - float(selection.sum() + timing.sum()) - costs,
        costs_usd=costs,
        symbols=by_symbol,
    )


def _average_weights(result: BacktestResult, returns: Array, capital: Array) -> tuple[Array, Array]:
    """Compute the mean weight before each bar and Σ V w r, `[N]` each."""
    bars = len(returns)
    mean = np.zeros(returns.shape[1])
    total = np.zeros(returns.shape[1])
    for start in range(1, bars, _BLOCK):
        stop = min(start + _BLOCK, bars)
        before = result.weights(slice(start - 1, stop - 1))
        mean += before.sum(axis=0)
        total += (before * returns[start:stop] * capital[start:stop, None]).sum(axis=0)
    return mean / (bars - 1), total


def _scale_to_capital(result: BacktestResult, capital: Array) -> tuple[float, float]:
    """Sum a result's profit and costs, scaled to this capital, USD."""
    before = result.equity[:-1]
    steps = divide(result.equity[1:], before, 1.0) - 1
    costs = divide(result.costs_usd[1:], before)
    return float(capital[1:] @ steps), float(capital[1:] @ costs)
