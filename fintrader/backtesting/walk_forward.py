"""Walk-forward: windows that move through a market, and one result of all their tests.

for fold in make_folds(market, WalkForwardSettings()):
    part = cut_fold(market, fold)      # a market with the fold's windows
    ...                                   # simulate a policy of `part` on part.split().test
whole = stitch(results)                   # one result over all test windows, each bar tested once
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from fintrader.backtesting.result import BacktestResult
from fintrader.backtesting.settings import WalkForwardSettings
from fintrader.backtesting.trade_log import MINUTE_NS
from fintrader.errors import BacktestError
from fintrader.market.tensors import MarketTensors, Windows
from fintrader.results.backtest_files import TRADE_COLUMNS, TradeRows, trade_frame
from fintrader.results.history import OrderCounts
from fintrader.results.market_description import ColumnScale

UNSCALED = ColumnScale(0.0, 1.0)
"""Scale of a column that is not standardised."""


class Fold(NamedTuple):
    """Half-open ranges of bars of the whole market."""

    number: int
    train: tuple[int, int]
    validation: tuple[int, int]
    test: tuple[int, int]


def make_folds(
    market: MarketTensors, lengths: WalkForwardSettings | int, embargo: int = 1
) -> list[Fold]:
    """List all folds that fit; the last test window may be shorter, down to half.

    `lengths`: lengths of the windows, or a number of folds. With a number, the first fold trains on
    the market's training window (half of its sessions if it has none); the later sessions are one
    validation window and that number of test windows, all of equal length. `embargo`: sessions left
    out before validation and before test. Raises BacktestError if no fold fits, or not as many as
    asked for.
    """
    if not isinstance(lengths, WalkForwardSettings):
        return make_folds(market, _choose_lengths(market, lengths, embargo), embargo)[:lengths]
    ends = market.session_ends
    starts = np.concatenate([[0], ends + 1])
    sessions = len(ends)
    train_length, validation_length, test_length = lengths.sessions
    folds: list[Fold] = []
    first = 0
    while True:
        train = first + train_length
        validation = train + embargo, train + embargo + validation_length
        test = validation[1] + embargo
        stop = min(test + test_length, sessions)
        if stop - test < max(1, test_length // 2):
            break
        begin = 0 if lengths.anchored else first
        ranges = [(begin, train), validation, (test, stop)]
        bars = [(int(starts[a]), int(starts[b])) for a, b in ranges]
        folds.append(Fold(len(folds), *bars))
        first += test_length
    if not folds:
        needed = sum(lengths.sessions) + 2 * embargo
        raise BacktestError(
            f"{sessions} sessions are too few for a fold of {needed}; shorten the windows or give"
            " more data"
        )
    return folds


def _choose_lengths(market: MarketTensors, count: int, embargo: int) -> WalkForwardSettings:
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise BacktestError(f"folds must be a whole number of at least 1, not {count!r}")
    ends = market.session_ends
    train = len(ends) // 2
    if market.windows is not None:
        train = int(np.searchsorted(ends, market.windows.train[1] - 1, side="right"))
    length = (len(ends) - train - 2 * embargo) // (count + 1)
    if min(train, length) < 1:
        raise BacktestError(
            f"{len(ends)} sessions, {train} of them for training, are too few for {count} folds;"
            " ask for fewer, or give more data"
        )
    return WalkForwardSettings(sessions=(train, int(length), int(length)))


def cut_fold(market: MarketTensors, fold: Fold) -> MarketTensors:
    """Cut the bars of one fold into a market with the fold's windows.

    Features keep the scale of the market's training window, unless that window ends later than the
    fold's; then they are standardised again on the fold's. The fold keeps the market's `cut_from`.
    """
    if market.windows is None or market.windows.train[1] > fold.train[1]:
        market = _standardise(market, fold.train)
    start = fold.train[0]
    stop = fold.test[1]
    windows = Windows(
        *((a - start, b - start) for a, b in (fold.train, fold.validation, fold.test))
    )
    provenance = market.provenance.add_change(f"fold {fold.number}, bars [{start}, {stop})")
    bars = market.window(start, stop)
    return replace(bars, windows=windows, provenance=provenance, cut_from=market.cut_from)


def _standardise(market: MarketTensors, train: tuple[int, int]) -> MarketTensors:
    """Standardise the scaled columns anew on the bars `train`, so that their statistics use no
    later bars."""
    known = market.normalisation
    if known is None:
        return market
    parts = {}
    scales = {}
    for part, names in (("features", market.feature_names), ("context", market.context_names)):
        columns: Mapping[str, ColumnScale] = getattr(known, part)
        moved = getattr(market, part).clone()
        scales[part] = dict(columns)
        for place, name in enumerate(names):
            before = columns.get(name, UNSCALED)
            column = moved[..., place]
            values = column[slice(*train)]
            values = values[values != 0].double()  # a cell without a value is 0
            if before == UNSCALED or not len(values):
                continue
            spread, mean = (float(value) for value in torch.std_mean(values, correction=0))
            spread = spread or 1.0
            standardised = ((column - mean) / spread).clamp(-known.clip, known.clip)
            column.copy_(torch.where(column != 0, standardised, 0.0))
            scales[part][name] = ColumnScale(before.mean + mean * before.std, before.std * spread)
        parts[part] = moved
    moved_scales = replace(known, features=scales["features"], context=scales["context"])
    return replace(market, **parts, normalisation=moved_scales, trusted=True)


def stitch(results: Sequence[BacktestResult], *, name: str | None = None) -> BacktestResult:
    """Join test windows into one result, each starting with the capital that the one before left.

    All windows but the last end with a sale of the positions at the last mark, with costs; the next
    window begins in cash. Shares and trades are scaled to the capital carried over, so they may be
    fractions. For active figures, stitch the benchmark portfolio's windows too, and use
    `result.measured_against`. Raises BacktestError if windows overlap or trade different symbols.
    """
    parts = _chain(results)
    session_counts = [int(part.session[-1] - part.session[0]) + 1 for part in parts]
    first_sessions = np.cumsum([0, *session_counts])
    sessions = [
        part.session - part.session[0] + first
        for part, first in zip(parts, first_sessions, strict=False)
    ]
    levels = [parts[0].benchmark]
    for part in parts[1:]:
        levels.append(part.benchmark * (levels[-1][-1] / part.benchmark[0]))
    cut_from = {name for part in parts for name in part.cut_from}
    names = ("minutes", "equity", "shares", "mark", "costs_usd", "turnover_usd", "income_usd")
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in names
    }
    trades = [part.trades for part in parts if len(part.trades)]
    frame = (
        pd.concat(trades, ignore_index=True).astype(TRADE_COLUMNS) if trades else parts[0].trades
    )
    return replace(
        parts[0],
        name=name or parts[0].name,
        session=np.concatenate(sessions),
        benchmark=np.concatenate(levels),
        trades=frame,
        orders=OrderCounts(
            *(sum(counts) for counts in zip(*(part.orders for part in parts), strict=True))
        ),
        closing_cost_usd=parts[-1].closing_cost_usd,
        ruined=any(part.ruined for part in parts),
        cut_from=tuple(name for name in Windows._fields if name in cut_from),
        is_seen=any(part.is_seen for part in parts),
        caveats=tuple(dict.fromkeys(caveat for part in parts for caveat in part.caveats)),
        provenance=replace(
            parts[0].provenance, is_adjacent=any(part.provenance.is_adjacent for part in parts)
        ),
        last_bar=None,
        portfolio=None,
        portfolio_name="",
        note=parts[0].note or f"{len(parts)} test windows in a row",
        **joined,
    )


def _chain(results: Sequence[BacktestResult]) -> list[BacktestResult]:
    """Close every window but the last, and scale each to the capital left by the one before."""
    if not results:
        raise BacktestError("there is no test window to join")
    carried = 1.0
    bars = 0
    parts: list[BacktestResult] = []
    for number, result in enumerate(results):
        if number and (
            result.symbols != results[0].symbols
            or result.minutes[0] <= results[number - 1].minutes[-1]
        ):
            raise BacktestError(
                f"test window {number + 1} overlaps the one before it, or trades other symbols;"
                " pass windows in the order of time, of the same symbols"
            )
        is_last = number == len(results) - 1
        closed = result if is_last else _close(result)
        parts.append(_scale(closed, carried, bars))
        bars += len(result.minutes)
        carried *= float(closed.equity[-1]) / closed.initial_cash_usd
        if carried <= 0 and not is_last:
            raise BacktestError(
                f"test window {number + 1} left no capital; the windows after it cannot be traded"
            )
    return parts


def _close(result: BacktestResult) -> BacktestResult:
    """Sell everything at the last bar's mark."""
    held = result.shares[-1]
    cost = result.closing_cost_usd
    if cost is None or not held.any():
        return result
    notional = np.abs(held * result.mark[-1])
    last = len(result.minutes) - 1
    fills = TradeRows.of("forced", last, last, -held, result.mark[-1], cost)
    time = np.full(len(fills.asset), int(result.minutes[-1]) + result.bar_minutes * MINUTE_NS)
    sold = trade_frame(fills, result.symbols, time, time)
    trades = pd.concat([result.trades, sold], ignore_index=True) if len(result.trades) else sold
    changes = {"equity": -cost.sum(), "costs_usd": cost.sum(), "turnover_usd": notional.sum()}
    closed: dict[str, Any] = {name: getattr(result, name).copy() for name in (*changes, "shares")}
    for name, change in changes.items():
        closed[name][-1] += change
    closed["shares"][-1] = 0.0
    return replace(result, trades=trades, **closed)


def _scale(result: BacktestResult, factor: float, bars: int) -> BacktestResult:
    """Multiply everything in USD or shares by `factor`, and count bars from `bars`."""
    trades = result.trades.copy()
    for column in ("shares", "notional_usd", "cost_usd"):
        trades[column] *= factor
    for column in ("decision_bar", "fill_bar"):
        trades[column] += bars
    names = ("equity", "shares", "costs_usd", "turnover_usd", "income_usd")
    scaled: dict[str, Any] = {name: getattr(result, name) * factor for name in names}
    orders = result.orders._replace(
        cancelled_usd=result.orders.cancelled_usd * factor,
        improved_usd=result.orders.improved_usd * factor,
    )
    cost = result.closing_cost_usd
    scaled["closing_cost_usd"] = None if cost is None else cost * factor
    return replace(result, orders=orders, trades=trades, **scaled)
