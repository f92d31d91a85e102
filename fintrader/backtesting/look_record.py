"""Entries of the ledger of looks (`verdict/looks.py`) for results over windows of a market."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fintrader.backtesting.result import Results
from fintrader.market.tensors import Markets
from fintrader.runs import commit, versions
from fintrader.verdict.looks import Look, Window, result_hash


def identify_bars(markets: Markets) -> Window:
    """Identify the bars of one window, or of several one after another, for the ledger."""
    first = markets[0]
    minutes, close, session = (
        np.concatenate([market.to_numpy(name) for market in markets])
        for name in ("minutes", "close", "session")
    )
    return Window.of(first.symbols, minutes, close, first.provenance.is_synthetic, session)


def look_at(
    markets: Markets,
    results: Results,
    chosen: Sequence[str],
    **known: Any,
) -> Look:
    """Describe one look at the `chosen` results over all of these windows; `known` has the other
    fields of a `Look`."""
    return Look(
        bars=identify_bars(markets),
        strategies=tuple(chosen),
        result=result_hash({name: results[name].daily_returns for name in chosen}),
        commit=commit(),
        version=versions().get("fintrader"),
        **known,
    )
