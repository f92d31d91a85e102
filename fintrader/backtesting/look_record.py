"""What the ledger of looks (`results/looks.py`) is told of results over windows of a market."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fintrader.backtesting.result import BacktestResult
from fintrader.market.tensors import MarketTensors
from fintrader.results.looks import Look, Window, result_hash
from fintrader.runs import commit, versions


def bars_of(markets: Sequence[MarketTensors]) -> Window:
    """The bars of one window, or of several one after another, as the ledger knows them."""
    first = markets[0]
    minutes, close = (
        np.concatenate([getattr(market, name).cpu().numpy() for market in markets])
        for name in ("minutes", "close")
    )
    return Window.of(first.symbols, minutes, close, first.provenance.is_synthetic)


def look_at(
    markets: Sequence[MarketTensors],
    results: Mapping[str, BacktestResult],
    chosen: Sequence[str],
    **known: Any,
) -> Look:
    """A look at what was `chosen` among the results over these windows, which are one look
    together; `known` is the rest of a `Look`."""
    return Look(
        bars=bars_of(markets),
        strategies=tuple(chosen),
        result=result_hash({name: results[name].daily_returns for name in chosen}),
        commit=commit(),
        version=versions().get("fintrader"),
        **known,
    )
