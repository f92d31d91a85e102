"""A backtest's result, and those of its fields that are copied from the market."""

from __future__ import annotations

from typing import Any

from fintrader.market.tensors import MarketTensors
from fintrader.metrics import Array as Array
from fintrader.results.backtest_result import BacktestResult as BacktestResult
from fintrader.results.backtest_result import Results as Results
from fintrader.results.backtest_result import measured_against as measured_against
from fintrader.results.backtest_result import refuse_other_bars as refuse_other_bars


def collect_market_fields(market: MarketTensors) -> dict[str, Any]:
    """Collect the fields of a `BacktestResult` that its window decides."""
    arrays = {name: market.to_numpy(name) for name in ("minutes", "session", "benchmark")}
    names = ("symbols", "benchmark_name", "bar_minutes", "timezone", "sessions_a_year", "cut_from")
    return arrays | {name: getattr(market, name) for name in (*names, "provenance")}
