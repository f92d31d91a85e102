"""The whole way in one place: bars → market → tournament → backtest, from one configuration."""

from fintrader.market.commands import (
    build_data,
    collect_garbage,
    rehearse_data,
    report_quality,
    verify_data,
)
from fintrader.pipeline.config import CHOICES, BacktestSettings, RunConfig, load_config
from fintrader.pipeline.data import check_lookahead
from fintrader.pipeline.estimates import Record, estimate, record_of
from fintrader.pipeline.inputs import missing_inputs
from fintrader.pipeline.reproduce import reproduce
from fintrader.pipeline.run import backtest_run, run, run_tournament, walk_forward
from fintrader.pipeline.session import open_run, open_store, refresh
from fintrader.pipeline.train import replay_run, train_one

__all__ = [
    "CHOICES",
    "BacktestSettings",
    "Record",
    "RunConfig",
    "backtest_run",
    "build_data",
    "check_lookahead",
]
__all__ += [
    "collect_garbage",
    "estimate",
    "load_config",
    "missing_inputs",
    "open_run",
    "open_store",
    "record_of",
]
__all__ += [
    "refresh",
    "rehearse_data",
    "replay_run",
    "report_quality",
    "reproduce",
    "run",
    "run_tournament",
]
__all__ += ["train_one", "verify_data", "walk_forward"]
