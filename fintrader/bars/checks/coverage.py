"""Minutes, days and ranges in which bars are missing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from fintrader.bars.bars import Array, Bars
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.checks.kinds import Fault, runs

MARKET_HALTS = ("1997-10-27", "2020-03-09", "2020-03-12", "2020-03-16", "2020-03-18")
"""Days of market-wide circuit breakers in New York
(https://www.nyse.com/trade/market-wide-circuit-breakers)."""

_UNLIKELY = -15.0
"""Chance, as a power of ten, below which silence is no chance."""


def coverage_faults(bars: Bars, at: Array, grid: SessionGrid) -> Iterator[Fault]:
    """Of valid bars, each inside bar `at` `[R]` of the grid, which is as fine as the bars are."""
    num = len(bars.symbols)
    traded: Array = np.zeros((num, grid.num_bars), dtype=bool)
    traded[bars.symbol, at] = True
    day_of = [str(day) for day in grid.dates]
    counts = np.stack(
        [np.bincount(grid.session[row], minlength=grid.num_sessions) for row in traded]
    )
    dead = _dead_minutes(traded, counts, grid)
    for number in np.unique(grid.session[dead]):
        silent = np.flatnonzero(dead & (grid.session == number))
        clock = [str(grid.minutes[row].astype("datetime64[ns]"))[11:16] for row in silent[[0, -1]]]
        kind = "market_halt" if day_of[number] in MARKET_HALTS else "market_hole"
        yield Fault(kind, "", day_of[number], len(silent), f"between {clock[0]} and {clock[1]} UTC")
    edges = grid.first_bar
    length = np.maximum(np.bincount(grid.session[~dead], minlength=grid.num_sessions), 1)
    for code, name in enumerate(bars.symbols):
        count = counts[code]
        days = np.flatnonzero(count)
        if len(days) == 0:
            continue
        first = int(days[0])
        last = int(days[-1])
        if first > 0:
            yield Fault("late_listing", name, day_of[first], 1, "first session")
        if last < grid.num_sessions - 1:
            yield Fault("ended", name, day_of[last], 1, "last session")
        listed = np.flatnonzero(
            traded[code]
        )  # what lies before the first bar or after the end is no gap
        begin = int(listed[0])
        end = int(listed[-1]) + 1 if last < grid.num_sessions - 1 else grid.num_bars
        share = count / length
        usual = _usual(share[first : last + 1])
        for number in range(first, last + 1):
            if share[number] == 0:
                if not dead[edges[number] : edges[number + 1]].all():
                    yield Fault(
                        "missing_session",
                        name,
                        day_of[number],
                        int(edges[number + 1] - edges[number]),
                    )
                continue
            if share[number] < 0.5 * usual:
                yield Fault(
                    "thin_day",
                    name,
                    day_of[number],
                    int(count[number]),
                    f"{share[number]:.0%} of the minutes",
                )
            rows = slice(max(int(edges[number]), begin), min(int(edges[number + 1]), end))
            yield from _gaps(
                traded[code, rows], ~dead[rows], usual, name, day_of[number], grid.minutes[rows]
            )


def _usual(share: Array) -> float:
    """The share of a session's minutes in which a symbol trades on a day like any other."""
    return float(np.median(share[share > 0]))


def _silence(usual: float) -> float:
    """log10 of the chance of a silent minute; never less than -3, because minutes are not
    independent."""
    return float(np.log10(max(1.0 - usual, 1e-3)))


def _dead_minutes(traded: Array, counts: Array, grid: SessionGrid) -> Array:
    """`[T]` bool: runs of minutes in which all of these symbols fall silent, as good as never by
    chance.

    One symbol alone says nothing of the market, unless the day is known for a halt.
    """
    dead: Array = np.zeros(grid.num_bars, dtype=bool)
    share = counts / np.diff(grid.first_bar)
    chance = np.zeros(
        (len(traded), grid.num_sessions)
    )  # log10 of the chance of one silent minute, where listed
    for code in np.flatnonzero(counts.any(axis=1)):
        days = np.flatnonzero(counts[code])
        listed = slice(int(days[0]), int(days[-1]) + 1)
        chance[code, listed] = _silence(_usual(share[code, listed]))
    joint = chance.sum(axis=0)
    listed_now = np.count_nonzero(chance, axis=0)
    halted = np.isin(grid.dates, np.array(MARKET_HALTS, dtype="datetime64[D]"))
    quiet: Array = np.asarray(~traded.any(axis=0))
    # a run ends with its session
    ends = np.flatnonzero(np.diff(np.where(quiet, grid.session, -1), prepend=-1, append=-1))
    for start, stop in itertools.pairwise(ends):
        number = grid.session[start]
        if quiet[start] and (listed_now[number] > 1 or halted[number]):
            dead[start:stop] = joint[number] * (stop - start) < _UNLIKELY
    return dead


def _gaps(
    traded: Array, open_: Array, usual: float, name: str, day: str, minutes: Array
) -> Iterator[Fault]:
    """Runs of silent minutes, of which a symbol that usually trades in a share `usual` has less
    than 1 in 10^15."""
    stamps = minutes[open_]
    for start, stop in runs(~traded[open_]):
        run = stop - start
        if run >= 5 and run * _silence(usual) < _UNLIKELY:
            begin = str(stamps[start].astype("datetime64[ns]"))[11:16]
            yield Fault("gap", name, day, run, f"from {begin} UTC")
