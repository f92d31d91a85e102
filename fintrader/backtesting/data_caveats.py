"""Caveats of a verdict from the data of its window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fintrader.backtesting.result import BacktestResult
from fintrader.market.tensors import MarketTensors

_MANY_OUTSIDE = 0.01
"""Share of rows outside of the sessions above which a verdict names them."""


def list_data_caveats(
    windows: Sequence[MarketTensors],
    results: Mapping[str, BacktestResult],
    participation: float | str | None,
) -> list[str]:
    """List the caveats of these windows, in words that complete "with ..."."""
    market = windows[0].provenance
    survivors = market.survivorship
    found = []
    if survivors is not None and survivors.survivors_only and survivors.describe():
        found.append("a universe of survivors")
    found += describe_absences(windows, results, participation).values()
    if market.planted_signal is not None and market.planted_signal.ic != 0:
        found.append("a planted feature that knows the future")
    return found


def describe_absences(
    windows: Sequence[MarketTensors],
    results: Mapping[str, BacktestResult],
    participation: float | str | None,
) -> dict[str, str]:
    """State the share of rows left out, and why buy and hold is little invested."""
    found = {}
    market = windows[0].provenance
    if market.outside > _MANY_OUTSIDE:
        found["rows_outside"] = (
            f"{market.outside:.1%} of the rows left out, outside of the sessions of"
            f" {market.calendar}"
        )
    held = results.get("buy_and_hold")
    invested = None if held is None else held.metrics.invested_share
    if held is None or invested is None or invested >= 0.5:
        return found
    traded = [window.tradable.any(dim=1).numpy() for window in windows]
    session = [window.session.numpy() for window in windows]
    silent = sum(
        len(np.setdiff1d(one, one[busy])) for one, busy in zip(session, traded, strict=True)
    )
    idle = 1 - float(np.mean([float(window.tradable.float().mean()) for window in windows]))
    on_offer = sum(float((window.volume * window.close).nansum()) for window in windows)
    capital = float(held.equity[0])
    if isinstance(participation, float) and participation * on_offer < capital:
        why = (
            f"orders take {participation:.0%} of a bar's volume (env.participation), which is"
            f" {participation * on_offer:,.0f} USD in all bars, for a capital of {capital:,.0f} USD"
        )
    elif silent:
        sessions = sum(len(np.unique(one)) for one in session)
        why = f"{silent} of {sessions} sessions hold no trade (see data.calendar)"
    else:
        why = f"{idle:.0%} of the cells hold no trade"
    found["little_invested"] = f"buy and hold {invested:.0%} invested on average, because {why}"
    return found
