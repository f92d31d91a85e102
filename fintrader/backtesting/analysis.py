"""What an allocator asks of a result and only its market can answer: attribution, execution,
factors. Plain JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fintrader.backtesting.attribution import attribute, symbol_returns
from fintrader.backtesting.execution import execution
from fintrader.backtesting.factors import factor_betas, factor_returns
from fintrader.backtesting.result import BacktestResult
from fintrader.market.tensors import MarketTensors
from fintrader.results.formatting import main_strategy


def analyse(
    results: Mapping[str, BacktestResult], market: MarketTensors | Sequence[MarketTensors] | None
) -> dict[str, Any]:
    """`attribution`, `execution` and `factors` of the main strategy; empty where the market is not
    that of the results.

    `market`: the window that was traded, or those of a walk-forward in their order.
    """
    markets = [market] if isinstance(market, MarketTensors) else list(market or ())
    name = main_strategy(list(results))
    result = results[name]
    bars = sum(one.num_bars for one in markets)
    if (
        bars != len(result.minutes)
        or not result.has_positions
        or any(m.symbols != result.symbols for m in markets)
    ):
        return {}
    daily = {
        one: results[one].daily_returns
        for one in dict.fromkeys((name, result.portfolio_name))
        if one in results
    }
    factors = factor_returns(markets)
    year = result.sessions_a_year
    betas = {
        one: found
        for one, returns in daily.items()
        if (found := factor_betas(returns, factors, year))
    }
    portfolio = results.get(result.portfolio_name)
    return {
        "attribution": attribute(result, portfolio, symbol_returns(markets)),
        "execution": execution(result, markets),
        "factors": betas,
    }
