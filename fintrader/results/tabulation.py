"""Results of strategies over the same bars, laid out in the tables of a stored backtest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap
from typing import Any

import numpy as np
import pandas as pd

from fintrader import metrics as m
from fintrader.errors import BacktestError
from fintrader.results.analysis import Analysis, Variation
from fintrader.results.backtest_files import TABLES, StoredBacktest, empty_trades
from fintrader.results.backtest_result import BacktestResult, Results, refuse_other_bars
from fintrader.results.context import BacktestContext
from fintrader.results.explanation import Explanation
from fintrader.results.history import gross_exposure
from fintrader.verdict.verdict import Verdict

NO_CONTEXT = BacktestContext()


def tabulate(
    results: Results,
    context: BacktestContext = NO_CONTEXT,
    verdict: Verdict | None = None,
    sensitivity: Sequence[Variation] = (),
    analysis: Analysis | None = None,
    explanation: Explanation | None = None,
) -> StoredBacktest:
    """Lay out results in the tables to be stored. Raises BacktestError without results, or if their
    bars differ."""
    if not results:
        raise BacktestError("there is no result to write; simulate at least one strategy first")
    first = next(iter(results.values()))
    refuse_other_bars(results, first)
    parts = {
        "equity": pd.concat(starmap(_list_equity, results.items()), ignore_index=True),
        "positions": pd.concat(starmap(_list_positions, results.items()), ignore_index=True),
        "trades": _list_trades(results),
        "prices": _list_prices(results),
        "context": replace(
            context,
            strategies={name: result.note for name, result in results.items()},
            timezone=first.timezone,
            market=context.market if first.provenance.source is None else first.provenance,
            portfolio=first.portfolio_name or None,
        ),
        "verdict": verdict,
        "sensitivity": tuple(sensitivity),
        "changed": "",
        "analysis": analysis,
        "explanation": explanation,
    }
    return StoredBacktest({name: result.metrics for name, result in results.items()}, parts)


def _to_times(minutes: Any) -> pd.DatetimeIndex:
    return pd.to_datetime(np.asarray(minutes).astype("datetime64[ns]"), utc=True)


def _list_equity(name: str, result: BacktestResult) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "strategy": name,
            "bar": np.arange(len(result.minutes)),
            "minute": _to_times(result.minutes),
            "session": result.session,
            "equity_usd": result.equity,
            "cash_usd": result.cash,
            "cost_usd": result.costs_usd,
            "turnover_usd": result.turnover_usd,
            "exposure": gross_exposure(result.shares, result.mark, result.equity),
        }
    )


def _list_positions(name: str, result: BacktestResult) -> pd.DataFrame:
    ends = m.find_session_ends(result.session)
    rows, assets = np.nonzero(result.shares[ends])
    bars = ends[rows]
    return pd.DataFrame(
        {
            "strategy": pd.Series([name] * len(bars), dtype="str"),
            "minute": _to_times(result.minutes[bars]),
            "session": result.session[bars],
            "symbol": pd.Series(np.array(result.symbols, dtype=object)[assets], dtype="str"),
            "shares": result.shares[bars, assets],
            "price_usd": result.mark[bars, assets],
            "weight": result.weights(ends)[rows, assets],
        }
    )


def _list_prices(results: Results) -> pd.DataFrame:
    """List the session closes of the market that the strategies traded in."""
    traded = [result for result in results.values() if result.has_positions]
    if not traded:
        return pd.DataFrame(columns=list(TABLES["prices"]))
    result = traded[0]
    ends = m.find_session_ends(result.session)
    close = result.mark[ends].copy()
    if result.last_bar is not None:  # an ended symbol keeps its mark, but has no price
        close[m.find_session_starts(result.session)[:, None] > result.last_bar] = 0.0
    rows, assets = np.nonzero(close)
    return pd.DataFrame(
        {
            "minute": _to_times(result.minutes[ends[rows]]),
            "session": result.session[ends[rows]],
            "symbol": pd.Series(np.array(result.symbols, dtype=object)[assets], dtype="str"),
            "close_usd": close[rows, assets],
        }
    )


def _list_trades(results: Results) -> pd.DataFrame:
    parts = []
    for name, result in results.items():
        trades = result.trades if len(result.trades) else empty_trades()
        parts.append(
            trades.assign(strategy=pd.Series([name] * len(trades), index=trades.index, dtype="str"))
        )
    filled = [part for part in parts if len(part)] or parts[:1]
    return pd.concat(filled, ignore_index=True)[list(TABLES["trades"])]
