"""Caveats of a verdict from the data of its window."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from fintrader.backtesting.attribution import symbol_returns
from fintrader.backtesting.result import Array, Results
from fintrader.market.tensors import Markets
from fintrader.results.market_description import Provenance

_MANY_OUTSIDE = 0.01
"""Share of rows outside of the sessions above which a verdict names them."""
EXITS = 0.11
"""Share of a universe that leaves it in a year: the NASDAQ-100's from 2010 to 2024; the S&P 500's
is 0.04."""


def list_data_caveats(market: Provenance) -> list[str]:
    """List the caveats of a market, in words that complete "with ..."."""
    signal = market.planted_signal
    caveats = {
        describe_outside(market): True,
        "no embargo between the windows": market.is_adjacent,
        "a planted feature that knows the future": signal is not None and signal.ic != 0,
    }
    return [caveat for caveat, applies in caveats.items() if caveat and applies]


def describe_outside(market: Provenance) -> str:
    """State the share of rows left out; empty for a small one."""
    if market.outside <= _MANY_OUTSIDE:
        return ""
    return (
        f"{market.outside:.1%} of the rows left out, outside of the sessions of {market.calendar}"
    )


def describe_idle(
    windows: Markets,
    results: Results,
    participation: float | str | None,
) -> str:
    """State why buy and hold is little invested; empty if it is not."""
    held = results.get("buy_and_hold")
    invested = None if held is None else held.metrics.invested_share
    if held is None or invested is None or invested >= 0.5:
        return ""
    traded = [window.to_numpy("tradable").any(axis=1) for window in windows]
    session = [window.to_numpy("session") for window in windows]
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
    return f"buy and hold {invested:.0%} invested on average, because {why}"


def bound_survivorship(windows: Markets) -> float | None:
    """Bound the effect of a universe of survivors on alpha, a year; None for other universes, and
    for a single name, which shows no spread of growth."""
    market = windows[0].provenance
    survivors = market.survivorship
    if survivors is None or not survivors.survivors_only or windows[0].num_assets < 2:
        return None
    growth = np.log1p(np.maximum(symbol_returns(windows), -0.999)).sum(axis=0)
    sessions = sum(len(window.session_starts) for window in windows)
    years = sessions / market.sessions_a_year
    return bound_absence(growth, years, survivors.member_days_without_bars)


def bound_absence(growth: Array, years: float, absent: float = 0.0) -> float:
    """Bound the alpha, a year, that a universe owes to the absence of other names.

    `growth` `[N]`: log growth of the remaining names over `years`; `absent`: share of the missing
    names, if known. Assume as many missing names as leave an index in that time (`EXITS`), each
    with less growth than any remaining one, all from one normal distribution. The remaining names
    then grow by σφ(z)/(1 - e) more than all names, with e the missing share and z the normal
    e-quantile. A strategy that would have held the missing ones twice as heavily as its benchmark
    portfolio would have lost as much alpha.
    """
    share = max(1 - (1 - EXITS) ** years, absent)
    edge = float(stats.norm.ppf(share))
    lift = float(stats.norm.pdf(edge)) / (1 - share)
    deviation = np.std(growth, ddof=1) / math.sqrt(1 + edge * lift - lift**2)
    return float(deviation * lift / years)
