"""The whole way in one place: bars → market → tournament → backtest, from one configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fintrader.seams import import_on_use

if TYPE_CHECKING:
    from fintrader.pipeline.config import CHOICES, BacktestSettings, RunConfig, load_config
    from fintrader.pipeline.data import check_lookahead
    from fintrader.pipeline.estimates import EarlierRun, estimate, record_of
    from fintrader.pipeline.inputs import missing_inputs
    from fintrader.pipeline.run_stages import backtest_run, run, run_tournament, walk_forward
    from fintrader.pipeline.session import open_run, open_store, refresh
    from fintrader.pipeline.train import train_one

__all__ = [
    "CHOICES",
    "BacktestSettings",
    "EarlierRun",
    "RunConfig",
    "backtest_run",
    "check_lookahead",
    "estimate",
    "load_config",
    "missing_inputs",
    "open_run",
    "open_store",
    "record_of",
    "refresh",
    "run",
    "run_tournament",
    "train_one",
    "walk_forward",
]

_HOMES = {
    "BacktestSettings": "pipeline.config",
    "CHOICES": "pipeline.config",
    "EarlierRun": "pipeline.estimates",
    "RunConfig": "pipeline.config",
    "backtest_run": "pipeline.run_stages",
    "check_lookahead": "pipeline.data",
    "estimate": "pipeline.estimates",
    "load_config": "pipeline.config",
    "missing_inputs": "pipeline.inputs",
    "open_run": "pipeline.session",
    "open_store": "pipeline.session",
    "record_of": "pipeline.estimates",
    "refresh": "pipeline.session",
    "run": "pipeline.run_stages",
    "run_tournament": "pipeline.run_stages",
    "train_one": "pipeline.train",
    "walk_forward": "pipeline.run_stages",
}

__getattr__, __dir__ = import_on_use(__name__, _HOMES)
