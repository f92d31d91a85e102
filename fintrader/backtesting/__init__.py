"""Backtests: simulate a policy and its baselines over a window, measure them, write the files."""

from typing import TYPE_CHECKING

from fintrader.seams import import_on_use

if TYPE_CHECKING:
    from fintrader.backtesting.all_baselines import simulate_all_baselines
    from fintrader.backtesting.assessment import assess
    from fintrader.backtesting.baselines import simulate_baselines
    from fintrader.backtesting.desk import Desk, OrderRule
    from fintrader.backtesting.null_models import information_free
    from fintrader.backtesting.result import BacktestResult
    from fintrader.backtesting.simulation import simulate
    from fintrader.backtesting.writer import write_backtest
    from fintrader.results.backtest_files import StoredBacktest, read_backtest
    from fintrader.results.context import BacktestContext
    from fintrader.verdict.sharpe import expected_best_sharpe

__all__ = [
    "BacktestContext",
    "BacktestResult",
    "Desk",
    "OrderRule",
    "StoredBacktest",
    "assess",
    "expected_best_sharpe",
    "information_free",
    "read_backtest",
    "simulate",
    "simulate_all_baselines",
    "simulate_baselines",
    "write_backtest",
]

_HOMES = {
    "BacktestContext": "results.context",
    "BacktestResult": "backtesting.result",
    "Desk": "backtesting.desk",
    "OrderRule": "backtesting.desk",
    "StoredBacktest": "results.backtest_files",
    "assess": "backtesting.assessment",
    "expected_best_sharpe": "verdict.sharpe",
    "information_free": "backtesting.null_models",
    "read_backtest": "results.backtest_files",
    "simulate": "backtesting.simulation",
    "simulate_all_baselines": "backtesting.all_baselines",
    "simulate_baselines": "backtesting.baselines",
    "write_backtest": "backtesting.writer",
}

__getattr__, __dir__ = import_on_use(__name__, _HOMES)
