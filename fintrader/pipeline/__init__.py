"""The whole way in one place: bars → market → tournament → backtest, from one configuration."""

from fintrader.pipeline.again import backtest_run
from fintrader.pipeline.configuration import CHOICES, BacktestSettings, RunConfig, load_config
from fintrader.pipeline.single import replay_run, train_one
from fintrader.pipeline.stages import (
    RunOutcome,
    build_data,
    check_lookahead,
    rehearse_data,
    report_quality,
    run,
    run_tournament,
    verify_data,
)
from fintrader.pipeline.walkforward import walk_forward
from fintrader.pipeline.workplace import open_run, open_store, refresh

__all__ = [
    "CHOICES",
    "BacktestSettings",
    "RunConfig",
    "RunOutcome",
    "backtest_run",
    "build_data",
    "check_lookahead",
    "load_config",
    "open_run",
    "open_store",
    "refresh",
    "rehearse_data",
    "replay_run",
    "report_quality",
    "run",
    "run_tournament",
    "train_one",
    "verify_data",
    "walk_forward",
]
