"""Any policy over any window, beside its baselines: simulation, statistics, files."""

from fintrader.backtesting.baselines import simulate_baselines
from fintrader.backtesting.honesty import assess
from fintrader.backtesting.null_models import information_free
from fintrader.backtesting.result import BacktestResult
from fintrader.backtesting.simulate import simulate
from fintrader.backtesting.writer import write_backtest
from fintrader.backtesting.yardsticks import yardsticks
from fintrader.results.backtest_files import StoredBacktest, read_backtest
from fintrader.results.formatting import metrics_table
from fintrader.verdict.sharpe import expected_best_sharpe

__all__ = [
    "BacktestResult",
    "StoredBacktest",
    "assess",
    "expected_best_sharpe",
    "information_free",
    "metrics_table",
    "read_backtest",
    "simulate",
    "simulate_baselines",
    "write_backtest",
    "yardsticks",
]
