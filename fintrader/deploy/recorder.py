"""The bars that a deployment has received, on the exchange's grid, with splits and dividends, all
in the journal."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping

import numpy as np

from fintrader.bars.bars import COLUMNS, MINUTE_NS, Array, Bars
from fintrader.bars.calendar import SessionGrid, session_date, session_grid
from fintrader.bars.corporate_actions import Action
from fintrader.deploy.bundle import Bundle
from fintrader.deploy.entries import DeploymentStart, LateBars
from fintrader.deploy.feed import LiveFeed
from fintrader.deploy.journal import Journal
from fintrader.deploy.rows import Level, RecentMarket
from fintrader.errors import DeployError
from fintrader.market.tensors import MarketTensors

_AHEAD = dt.timedelta(days=14)
Levels = Callable[[SessionGrid], "Level | None"]
"""The source's index on a grid, where it has one."""


class Recorder:
    """Bars and events from the oldest session that the features read to some days ahead."""

    def __init__(
        self,
        bundle: Bundle,
        journal: Journal,
        *,
        warm_up_sessions: int | None = None,
        level: Levels = lambda grid: None,
    ) -> None:
        self.bundle = bundle
        self.journal = journal
        self.data = bundle.data
        self._level = level
        self.length = self.data.bar_minutes * MINUTE_NS
        """Length of a bar, ns."""
        self.rows = RecentMarket(
            self.data,
            bundle.symbols,
            bundle.normalisation,
            companies=bundle.record.companies,
            warm_up_sessions=warm_up_sessions,
            lookback=bundle.env.lookback,
        )
        self.grid: SessionGrid
        self.since = 0
        """Start of the newest bar received."""
        self._actions_until: dt.date | None = None

    def lay_out(self, first: int, last: int | None, now: int = 0) -> int:
        """Make the grid around the bar that begins at `first`, to `last` or some days beyond `now`;
        return the bar's number.

        Raises DeployError where the calendar has too few sessions before it, or a bar's length of
        time contains a lunch break.
        """
        calendar = self.data.calendar
        day = session_date(calendar, first)
        back = dt.timedelta(days=int(self.rows.history_sessions * 1.6) + 20)
        if last is None:
            end = session_date(calendar, max(first, now)) + _AHEAD
        else:
            end = session_date(calendar, last)
        wide = session_grid(calendar, day - back, end, self.data.bar_minutes, self.data.hours)
        bar = min(int(np.searchsorted(wide.minutes, first)), wide.num_bars - 1)
        begins = wide.dates[max(wide.session[bar] - self.rows.history_sessions, 0)].item()
        self.grid = session_grid(calendar, begins, end, self.data.bar_minutes, self.data.hours)
        begin = self.grid.minutes
        is_over_next = (begin[:-1] + self.length > begin[1:]) & (np.diff(self.grid.session) == 0)
        if is_over_next.any() or (self.grid.ends > begin + self.length).any():
            raise DeployError(
                f"bars of {self.data.bar_minutes} minutes of {calendar} are longer than its lunch"
                " break, and such bars cannot be deployed; train on bars of at most 60 minutes"
            )
        for symbol, close in self.bundle.record.last_close.items():
            self.rows.history.carry(symbol, int(self.grid.minutes[0]) - MINUTE_NS, close)
        self.rows.level = self._level(self.grid)
        return int(np.searchsorted(self.grid.minutes, first))

    def receive(self, feed: LiveFeed, at: int) -> None:
        """Take in the bars that have come. A bar no newer than the newest of its symbol changes
        no row; the journal keeps it unless it has one of that time."""
        newest = self.since
        bars = feed.poll(newest, at)
        missed = ~self.keep(bars, at) & (bars.ts <= newest)
        if missed.any():
            codes = set(bars.symbol[missed].tolist())
            names = tuple(sorted(bars.symbols[code] for code in codes))
            self.journal.write(LateBars(int(missed.sum()), names), at=at)

    def keep(self, bars: Bars, at: int) -> Array:
        """Take bars in and journal them; return a mask `[R]` of those not newer than the newest of
        their symbol."""
        late = self.rows.history.add(bars)
        if not len(bars):
            return late
        names = [bars.symbols[code] for code in bars.symbol.tolist()]
        extras = _write_rows(bars.extras) if bars.extras else [""] * len(bars)
        columns = [getattr(bars, name).tolist() for name in COLUMNS]
        self.journal.keep_bars(
            zip(bars.ts.tolist(), names, *columns, extras, [at] * len(bars), strict=True)
        )
        self.since = max(self.since, int(bars.ts.max()))
        return late

    def restore(self) -> None:
        """Take in the journal's bars and events. Raises DeployError where it has no bars."""
        rows = self.journal.bars()
        if not rows:
            raise DeployError(
                f"{self.journal.path} holds no bars; remove its folder to begin again"
            )
        self.since = self.rows.take(rows)
        self.rows.actions = tuple(self.journal.actions())

    def request_actions(
        self, feed: LiveFeed, session: int, at: int, *, again: bool = False
    ) -> list[Action]:
        """Request the splits and dividends up to a session's day, once or `again`; return those
        of the last ten days."""
        day = self.grid.dates[session].item()
        if self._actions_until == day and not again:
            return []
        known = self.journal.actions()
        for action in feed.actions(self.grid.dates[0].item(), day):
            if action not in known:
                self.journal.write(action, at=at)
        self.rows.actions = tuple(self.journal.actions())
        self._actions_until = day
        return [action for action in self.rows.actions if 0 <= (day - action.day).days <= 10]

    def find_open(self, day: dt.date) -> int:
        """Find the open of the first session from a day on, ns."""
        session = int(np.searchsorted(self.grid.dates, np.datetime64(day)))
        return int(self.grid.minutes[self.grid.first_bar[session]])

    def build_market(self) -> MarketTensors:
        """Build the market of the received bars, from the first bar with a decision. Raises
        DeployError."""
        started = self.journal.last(DeploymentStart)
        if started is None:
            raise DeployError(
                f"{self.journal.path}: nothing has begun here; run `fintrader paper` first"
            )
        rows = self.journal.bars()
        first = started.body.first_bar
        last = max((int(row[0]) for row in rows), default=0)
        self.lay_out(first, last)
        self.restore()
        return self.rows.whole(self.grid, first, last)


def _write_rows(columns: Mapping[str, Array]) -> list[str]:
    """Write the rows of columns `[R]` as JSON objects, by one call of `json` for each column: one
    for each row takes several times as long."""
    cells = (
        [f"{json.dumps(name)}: {text}" for text in json.dumps(values.tolist())[1:-1].split(", ")]
        for name, values in columns.items()
    )
    return ["{" + ", ".join(row) + "}" for row in zip(*cells, strict=True)]
