"""Performance metrics in empyrical's conventions (252 sessions a year, risk-free rate 0).

`performance` reads one series of returns, `relative` one beside a benchmark; `resample` makes daily returns of an
equity curve. All of it is pure arithmetic: nothing here knows a market, an environment or a strategy.
"""

from __future__ import annotations

from fintrader.metrics.performance import (
    annual_return,
    annual_volatility,
    calmar,
    cumulative_return,
    drawdowns,
    max_drawdown,
    sharpe,
    sortino,
)
from fintrader.metrics.resample import (
    TRADING_DAYS,
    daily_equity,
    daily_returns,
    returns_of,
    session_ends,
    session_starts,
)

__all__ = [
    "TRADING_DAYS", "annual_return", "annual_volatility", "calmar", "cumulative_return", "daily_equity",
    "daily_returns", "drawdowns", "max_drawdown", "returns_of", "session_ends", "session_starts", "sharpe", "sortino",
]  # fmt: skip
