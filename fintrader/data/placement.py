"""Do bars stand where the exchange's sessions are? A wrong time zone or label leaves a pattern on every day.

Most rows of a zone one to three hours off still fall into the session, so counting those outside does not tell.
"""

from __future__ import annotations

import numpy as np

from fintrader.data.bars import MINUTE_NS, Array, Bars
from fintrader.data.sessions import SessionGrid
from fintrader.errors import BarError

_STEP = 30 * MINUTE_NS
"""Zones differ by multiples of this."""
_NEAR = _STEP // 2
_LONGEST = 60 * MINUTE_NS
"""Bars longer than this are too few a day to show a pattern."""


class Placement:
    """The sessions of a grid, to hold one symbol's sorted bars against."""

    def __init__(self, grid: SessionGrid) -> None:
        edges = np.searchsorted(grid.session[grid.bar_of_minute], np.arange(grid.num_sessions + 1))
        self.calendar = grid.calendar
        self.open = grid.exchange_minutes[edges[:-1]]
        """`[S]` int64: start of each session's first minute."""
        self.close = grid.exchange_minutes[edges[1:] - 1] + MINUTE_NS
        """`[S]` int64: end of each session's last minute."""
        night = (self.open[1:] - self.close[:-1]) // 2
        self._borders = np.concatenate([[self.open[0] - _LONGEST * 12], self.close[:-1] + night])

    def check(self, bars: Bars) -> None:
        """Raise BarError when most days of these bars are displaced: by half hours, or by the length of one bar."""
        start = np.searchsorted(bars.ts, self._borders)
        stop = np.append(start[1:], np.searchsorted(bars.ts, self.close[-1] + _LONGEST * 12))
        days = np.flatnonzero(stop - start >= 2)
        if len(days) == 0:
            return
        first, last = bars.ts[start[days]], bars.ts[stop[days] - 1]
        length = int(np.median(np.diff(bars.ts[start[days[0]] : stop[days[-1]]])))
        if not 0 < length <= _LONGEST:
            return
        early, late = first - self.open[days], last + length - self.close[days]
        self._refuse_label(bars, early, last - self.close[days], length)
        self._refuse_zone(bars, early, late, length)

    def _refuse_zone(self, bars: Bars, early: Array, late: Array, length: int) -> None:
        """Both ends of most days have moved the same way by about the same half hours."""
        moved = np.round(early / _STEP).astype(np.int64) * _STEP
        # a session's last bar may be shorter than the others
        same = (moved != 0) & (np.abs(early - moved) < _NEAR) & (late > moved - _NEAR) & (late < moved + _NEAR + length)
        if np.count_nonzero(same) * 2 > len(early):
            minutes = int(np.median(moved[same])) // MINUTE_NS
            raise BarError(
                f"{self._of(bars)} stand {abs(minutes)} minutes {'after' if minutes > 0 else 'before'} the sessions of "
                f"{self.calendar} on {np.count_nonzero(same)} of {len(early)} days; correct data.source.timezone (or "
                "data.calendar)"
            )

    def _refuse_label(self, bars: Bars, early: Array, last: Array, length: int) -> None:
        """Nearly every day begins and ends exactly one bar after, or before, a day of starts of bars would."""
        for sign, label in ((1, "end"), (-1, "start")):
            displaced = (early == sign * length) & (last == (sign - 1) * length)
            days = int(np.count_nonzero(displaced))
            if days * 10 >= 9 * len(early):
                raise BarError(
                    f"{self._of(bars)} begin and end one bar too {'late' if sign > 0 else 'early'} on {days} of "
                    f"{len(early)} days, as if their times were the {label}s of bars; set data.source.label to {label}"
                    + (", or correct data.source.timezone" if length >= _STEP else "")
                )

    def _of(self, bars: Bars) -> str:
        return f"{bars.origin}: the bars of {bars.symbols[bars.symbol[0]]}"
