"""Train, embargo, validation, embargo, test: whole sessions, never overlapping."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from fintrader.config import Settings
from fintrader.data.sessions import SessionGrid
from fintrader.data.tensors import Windows
from fintrader.errors import DataError

DateRange = tuple[dt.date, dt.date]


class WindowSettings(Settings):
    """Either three date ranges (both days included) or three fractions of the sessions."""

    train: DateRange | None = None
    validation: DateRange | None = None
    test: DateRange | None = None
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """Shares of the sessions for train, validation and test, when no dates are given."""
    embargo_sessions: int = Field(1, ge=0)
    """Sessions that belong to no window before validation and before test; taken from the end of the earlier one."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        dates = [window for window in (self.train, self.validation, self.test) if window is not None]
        if len(dates) not in (0, 3):
            raise ValueError("give all three of train, validation and test as dates, or none")
        edges = [edge for window in dates for edge in window]
        if edges != sorted(edges) or any(a >= b for a, b in zip(edges[1::2], edges[2::2], strict=False)):
            raise ValueError("the dates of train, validation and test must be in order and not overlap")
        if not dates and (min(self.fractions) <= 0 or sum(self.fractions) > 1 + 1e-9):
            raise ValueError("fractions must be positive and sum to at most 1")
        return self


def make_windows(settings: WindowSettings, grid: SessionGrid) -> Windows:
    """Ranges of bars. Raises DataError when a window is empty after the embargo."""
    if settings.train is not None and settings.validation is not None and settings.test is not None:
        ranges = [_sessions(grid, window) for window in (settings.train, settings.validation, settings.test)]
    else:
        cuts = np.cumsum((0.0, *settings.fractions)) * grid.num_sessions
        edges = [round(float(cut)) for cut in cuts]
        ranges = list(itertools.pairwise(edges))
    bars = []
    for number, (name, (start, stop)) in enumerate(zip(Windows._fields, ranges, strict=True)):
        if number < 2:
            stop = min(stop, ranges[number + 1][0] - settings.embargo_sessions)
        if stop <= start:
            raise DataError(
                f"the {name} window holds no session after an embargo of {settings.embargo_sessions}; the data has "
                f"{grid.num_sessions} sessions from {grid.dates[0]} to {grid.dates[-1]}: widen data.windows"
            )
        bars.append((int(grid.first_bar[start]), int(grid.first_bar[stop])))
    return Windows(*bars)


def _sessions(grid: SessionGrid, window: DateRange) -> tuple[int, int]:
    first, last = (np.datetime64(day) for day in window)
    return int(np.searchsorted(grid.dates, first)), int(np.searchsorted(grid.dates, last, side="right"))
