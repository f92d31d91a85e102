"""What is wrong, missing or odd in a set of bars, by symbol and day, without changing anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fintrader.data.bars import Array, Bars
from fintrader.data.build import DataSettings, read_source
from fintrader.data.clean import clean, to_grid
from fintrader.data.sessions import SessionGrid, session_date, session_grid


def quality_report(settings: DataSettings) -> dict[str, Any]:
    """Coverage and holes of the bars that these settings name, as plain JSON.

    `coverage` is the share of the exchange's minutes in which each symbol traded, `[symbols][sessions]`;
    `holes` names sessions without any bar of a listed symbol, `market_holes` minutes without a bar of anybody,
    `listings` each symbol's first and last day, `early_closes` the half days. Raises DataError when the bars cannot
    be read.
    """
    settings = settings.effective()
    raw = read_source(settings)
    bars, repairs = clean(raw.bars)
    first = settings.start or session_date(settings.calendar, int(bars.ts.min()))
    last = settings.end or session_date(settings.calendar, int(bars.ts.max()))
    grid = session_grid(settings.calendar, first, last)
    merged, repairs["outside_session"] = to_grid(bars, grid)
    return {"repairs": repairs, **_coverage(merged, grid)}


def _coverage(merged: Bars, grid: SessionGrid) -> dict[str, Any]:
    num_symbols = len(merged.symbols)
    counts = np.zeros((num_symbols, grid.num_sessions), dtype=np.int64)
    np.add.at(counts, (merged.symbol, grid.session[merged.ts]), 1)
    minutes = grid.session_minutes
    dates = [str(day) for day in grid.dates]
    listings, holes = {}, {}
    for code, name in enumerate(merged.symbols):
        days = np.flatnonzero(counts[code])
        if len(days) == 0:
            continue
        listings[name] = {"first": dates[days[0]], "last": dates[days[-1]]}
        silent = [dates[day] for day in range(days[0], days[-1]) if counts[code, day] == 0]
        if silent:
            holes[name] = silent
    anybody = np.bincount(merged.ts, minlength=grid.num_bars) > 0
    return {
        "symbols": list(merged.symbols),
        "sessions": dates,
        "coverage": np.round(counts / minutes, 4).tolist(),
        "listings": listings,
        "ended": sorted(name for name, days in listings.items() if days["last"] != dates[-1]),
        "late": sorted(name for name, days in listings.items() if days["first"] != dates[0]),
        "holes": holes,
        "early_closes": [date for date, count in zip(dates, minutes, strict=True) if count < minutes.max()],
        "market_holes": _market_holes(anybody, grid),
    }


def _market_holes(anybody: Array, grid: SessionGrid) -> Mapping[str, int]:
    silent = np.bincount(grid.session[~anybody], minlength=grid.num_sessions)
    return {str(grid.dates[day]): int(silent[day]) for day in np.flatnonzero(silent)}
