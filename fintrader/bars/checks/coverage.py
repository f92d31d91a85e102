"""Faults of missing bars: single gaps, whole sessions, and minutes in which no symbol trades."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fintrader.bars.bars import Array
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.checks.kinds import UNLIKELY, list_runs
from fintrader.results.market_description import Fault

MARKET_HALTS = ("1997-10-27", "2020-03-09", "2020-03-12", "2020-03-16", "2020-03-18")
"""Days on which market-wide circuit breakers halted trading in New York
(https://www.nyse.com/trade/market-wide-circuit-breakers)."""


def find_coverage_faults(bars: Mapping[str, Array], grid: SessionGrid) -> Iterator[Fault]:
    """Find missing bars. bars: symbol -> `[T]` bool, True at the bars of the grid that the symbol
    has."""
    traded = np.stack([*bars.values()])
    day_names = [str(day) for day in grid.dates]
    counts = np.add.reduceat(traded, grid.first_bar[:-1], axis=1, dtype=np.int64)
    dead = _find_dead_minutes(traded, counts, grid)
    for number in np.unique(grid.session[dead]):
        silent = np.flatnonzero(dead & (grid.session == number))
        clock = [_name_clock(grid, row) for row in silent[[0, -1]]]
        kind = "market_halt" if day_names[number] in MARKET_HALTS else "market_hole"
        yield Fault(
            kind, "", day_names[number], len(silent), f"between {clock[0]} and {clock[1]} UTC"
        )
    for code, name in enumerate(bars):
        if counts[code].any():
            yield from _find_absences(name, traded[code], counts[code], dead, grid)


def _find_absences(
    name: str, traded: Array, count: Array, dead: Array, grid: SessionGrid
) -> Iterator[Fault]:
    """Find missing bars of one symbol.

    traded: `[T]` bool, bars that the symbol has; count: `[S]` their number by session; dead: `[T]`
    bool, bars in which all symbols are silent, which are no fault of this one.
    """
    length = np.maximum(np.bincount(grid.session[~dead], minlength=grid.num_sessions), 1)
    days = np.flatnonzero(count)
    first = int(days[0])
    last = int(days[-1])
    has_ended = last < grid.num_sessions - 1
    if first > 0:
        yield Fault("late_listing", name, str(grid.dates[first]), 1, "first session")
    if has_ended:
        yield Fault("ended", name, str(grid.dates[last]), 1, "last session")
    share = count / length
    usual = _find_usual_share(share[first : last + 1])
    for number in range(first, last + 1):
        day = str(grid.dates[number])
        bars = slice(*grid.first_bar[number : number + 2])
        if share[number] == 0 and not dead[bars].all():
            yield Fault("missing_session", name, day, len(dead[bars]))
        elif 0 < share[number] < 0.5 * usual:
            yield Fault(
                "thin_day", name, day, int(count[number]), f"{share[number]:.0%} of the bars"
            )
    # missing bars before the symbol's first one or after its end are no gap
    listed = np.flatnonzero(traded)
    live = np.arange(listed[0], listed[-1] + 1 if has_ended else grid.num_bars)
    live = live[~dead[live] & (share[grid.session[live]] > 0)]
    for start, stop in list_runs(~traded[live], grid.session[live]):
        if stop - start >= 5 and (stop - start) * _log_silence(usual) < UNLIKELY:
            day = str(grid.dates[grid.session[live[start]]])
            yield Fault(
                "gap", name, day, stop - start, f"from {_name_clock(grid, live[start])} UTC"
            )


def _name_clock(grid: SessionGrid, bar: int) -> str:
    return str(grid.minutes[bar].astype("datetime64[ns]"))[11:16]


def _find_usual_share(share: Array) -> float:
    """Return the share of a session's bars in which a symbol trades on its median day."""
    return float(np.median(share[share > 0]))


def _log_silence(usual: float) -> float:
    """Return log10 of the probability that a symbol does not trade in a bar; at least -3, because
    bars are not independent."""
    return float(np.log10(max(1.0 - usual, 1e-3)))


def _find_dead_minutes(traded: Array, counts: Array, grid: SessionGrid) -> Array:
    """Return `[T]` bool: runs of bars in which no symbol trades, too long for chance.

    traded: `[N, T]` bool; counts: `[N, S]` bars of each symbol and session. A single listed symbol
    is no evidence, except on the days of `MARKET_HALTS`.
    """
    dead: Array = np.zeros(grid.num_bars, dtype=bool)
    share = counts / np.diff(grid.first_bar)
    # log10 of the probability that a symbol does not trade in a bar; 0 where it is not listed
    chance = np.zeros((len(traded), grid.num_sessions))
    for code in np.flatnonzero(counts.any(axis=1)):
        days = np.flatnonzero(counts[code])
        listed = slice(int(days[0]), int(days[-1]) + 1)
        chance[code, listed] = _log_silence(_find_usual_share(share[code, listed]))
    joint = chance.sum(axis=0)
    listed_now = np.count_nonzero(chance, axis=0)
    halted = np.isin(grid.dates, np.array(MARKET_HALTS, dtype="datetime64[D]"))
    for start, stop in list_runs(np.asarray(~traded.any(axis=0)), grid.session):
        number = grid.session[start]
        if listed_now[number] > 1 or halted[number]:
            dead[start:stop] = joint[number] * (stop - start) < UNLIKELY
    return dead
