"""Attribution, execution and factors of a result, which need the market that it was traded in."""

from __future__ import annotations

from fintrader.backtesting.attribution import attribute, symbol_returns
from fintrader.backtesting.execution import measure_execution
from fintrader.backtesting.factors import factor_returns, fit_factors
from fintrader.backtesting.result import Results
from fintrader.market.tensors import Markets, MarketTensors
from fintrader.results.analysis import Analysis
from fintrader.results.formatting import main_strategy


def analyse(results: Results, market: MarketTensors | Markets | None) -> Analysis | None:
    """Analyse the main strategy; None if the market is not that of the results, or without
    positions.

    `market`: the window that was traded, or those of a walk-forward in their order.
    """
    markets = [market] if isinstance(market, MarketTensors) else list(market or ())
    name = main_strategy(list(results))
    result = results[name]
    is_same_window = sum(window.num_bars for window in markets) == len(result.minutes)
    is_same_universe = all(window.symbols == result.symbols for window in markets)
    if not (is_same_window and is_same_universe and result.has_positions):
        return None
    portfolio = results.get(result.portfolio_name)
    factors = factor_returns(markets)
    fits = {
        strategy: fit_factors(results[strategy].daily_returns, factors, result.sessions_a_year)
        for strategy in (name, result.portfolio_name)
        if strategy in results
    }
    return Analysis(
        attribution=attribute(result, portfolio, symbol_returns(markets)),
        execution=measure_execution(result, markets),
        factors={strategy: fit for strategy, fit in fits.items() if fit is not None},
    )
