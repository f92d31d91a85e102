"""The market of the newest bars, which the build's functions make of the bars received so far.

A policy must see the same rows live as in training. So the rows of a decision come out of
`market.build.assemble`, over the sessions that the features reach back on and with the stored
statistics; nothing is computed a second way. Its row at a bar is, but for rounding, the row that a
build of all bars has there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fintrader.bars.bars import COLUMNS, MINUTE_NS, PRICES, Array, Bars, concat, wrap_columns
from fintrader.bars.calendar import SessionGrid, WindowSettings
from fintrader.bars.checks.kinds import STOPPING
from fintrader.bars.corporate_actions import Action
from fintrader.bars.sources.feed import Feed
from fintrader.deploy.journal import Bar
from fintrader.errors import ConfigError, DeployError
from fintrader.market import features as ft
from fintrader.market.build import assemble
from fintrader.market.settings import DataSettings, factor_column, raw_features
from fintrader.market.tensors import MarketTensors

SPARE_SESSIONS = 2
"""More than the features need: a window's first session opens on carried prices."""
Level = tuple[Array, Array]
"""Minutes and level of a source's index, `[K]` each."""


class History:
    """Bars by symbol as they were received, in order of time."""

    def __init__(self, symbols: Sequence[str], extras: Iterable[str]) -> None:
        self.symbols = tuple(symbols)
        self.extras = tuple(extras)
        self._parts: dict[str, list[Bars]] = {symbol: [] for symbol in symbols}

    def add(self, bars: Bars) -> Bars:
        """Take in the bars that are newer than the newest of their symbol; return the others."""
        late = np.zeros(len(bars), bool)
        for code, symbol in enumerate(bars.symbols):
            if symbol not in self._parts:
                continue
            at = np.flatnonzero(bars.symbol == code)
            at = at[np.argsort(bars.ts[at], kind="stable")]
            newest = self.newest(symbol)
            fresh = at if newest is None else at[bars.ts[at] > newest]
            fresh = fresh[np.diff(bars.ts[fresh], prepend=-1) > 0]
            late[np.setdiff1d(at, fresh)] = True
            if len(fresh):
                columns = {name: getattr(bars, name)[fresh] for name in COLUMNS}
                extras = {name: bars.extras[name][fresh] for name in self.extras}
                part = wrap_columns(symbol, bars.ts[fresh], columns, "received bars", extras=extras)
                self._parts[symbol].append(part)
        return bars.take(late)

    def carry(self, symbol: str, ts: int, close: float) -> None:
        """Begin with a last price, for a symbol that may have no bars any more."""
        columns = {**dict.fromkeys(PRICES, np.full(1, close)), "volume": np.zeros(1)}
        extras = dict.fromkeys(self.extras, np.ones(1))
        self.add(wrap_columns(symbol, np.array([ts]), columns, "last close", extras=extras))

    def newest(self, symbol: str) -> int | None:
        """Return the start of its newest bar, nanoseconds."""
        parts = self._parts[symbol]
        return int(parts[-1].ts[-1]) if parts else None

    def last_close(self, symbol: str) -> float:
        """Return a symbol's last close, USD; 0 without one, also for an unknown symbol."""
        parts = self._parts.get(symbol)
        return float(parts[-1].close[-1]) if parts else 0.0

    def between(self, symbol: str, first: int, stop: int) -> Bars:
        """Return the bars that begin in `[first, stop)`; a close carried into the first comes as a
        bar without volume there."""
        parts = self._parts[symbol]
        # As in a binary counter a part is joined by all later ones once they are as long, so that a
        # bar is copied a logarithmic number of times while the history grows.
        cut = len(parts)
        size = 0
        while cut and (not size or len(parts[cut - 1]) <= size):
            cut -= 1
            size += len(parts[cut])
        parts[cut:] = [join_bars(parts[cut:])] if size else []
        bars = join_bars([_take_near(part, first, stop) for part in parts])
        start = int(np.searchsorted(bars.ts, first))
        found = bars.take(slice(start, None))
        if start > 0 and first not in found.ts[:1]:
            last = bars.take(slice(start - 1, start))
            flat: Any = dict.fromkeys(PRICES, last.close)
            carried = replace(last, ts=np.array([first]), volume=np.zeros(1), **flat)
            found = join_bars([carried, found])
        return found


def _take_near(bars: Bars, first: int, stop: int) -> Bars:
    """Take the bars that begin in `[first, stop)`, and the one before them."""
    start, end = np.searchsorted(bars.ts, [first, stop])
    return bars.take(slice(max(int(start) - 1, 0), int(end)))


def join_bars(parts: Sequence[Bars]) -> Bars:
    """Join tables of bars, of which some may be empty."""
    whole = [part for part in parts if len(part)]
    if whole:
        return replace(concat(whole), row=None)
    nothing: Any = dict.fromkeys(COLUMNS, np.empty(0))
    return Bars(ts=np.empty(0, np.int64), symbol=np.empty(0, np.int32), symbols=(), **nothing)


class _Recent(Feed):
    """The feed of a window: bars that were received by a moment, and nothing later."""

    def __init__(self, rows: RecentMarket, first: int, stop: int) -> None:
        self._history = rows.history
        self._first = first
        self._stop = stop
        self._level = rows.level
        self.inputs = {"kind": rows.settings.source.kind}
        self.actions = rows.actions
        self.companies = rows.companies
        self.symbols = [name for name in rows.history.symbols if len(self.bars(name))]

    def span(self) -> tuple[int, int]:
        return self._first, self._stop - MINUTE_NS

    def bars(self, symbol: str) -> Bars:
        return self._history.between(symbol, self._first, self._stop)

    def index(self, grid: SessionGrid) -> Array | None:
        if self._level is None:
            return None
        minutes, level = self._level
        known = minutes < self._stop
        at = np.searchsorted(minutes[known], grid.minutes, side="right") - 1
        return np.asarray(level[known][np.maximum(at, 0)])


class RecentMarket:
    """Markets of the last sessions, up to a bar."""

    def __init__(
        self,
        settings: DataSettings,
        symbols: Sequence[str],
        normalisation: Path,
        *,
        companies: Mapping[str, str],
        warm_up_sessions: int | None,
        lookback: int,
    ) -> None:
        """settings, symbols, normalisation: of the market that was trained on, the last a file of
        its statistics. warm_up_sessions: in place of the features' reach.

        Raises DeployError where the features do not know their reach.
        """
        self.settings = settings
        self.symbols = tuple(symbols)
        self.companies = dict(companies)
        extras = (*settings.features.extra, *raw_features(settings), factor_column(settings))
        self.history = History(symbols, dict.fromkeys(filter(None, extras)))
        self.level: Level | None = None
        self.actions: tuple[Action, ...] = ()
        self.lookback = lookback
        chosen = settings.features
        self.context = chosen.context
        self._turbulence: dict[int, list[float]] = {}
        self.sessions = warm_up_sessions or self._count_needed_sessions()
        days = [ft.turbulence_days(name) for name in chosen.context]
        self.daily_sessions = max((of + 3 for of in days if of is not None), default=0)
        features = chosen.model_copy(update={"normalisation": str(normalisation)})
        universe = settings.universe.model_copy(
            update={"symbols": self.symbols, "max_symbols": None, "min_coverage": 0.0}
        )
        windows = WindowSettings(fractions=(0.4, 0.3, 0.3), embargo_sessions=0)
        # A fault that stops a build is journalled here: half a day with it is better than no
        # market.
        self._asked = settings.model_copy(
            update={
                "features": features,
                "universe": universe,
                "windows": windows,
                "waive": tuple(STOPPING),
            }
        )

    def _count_needed_sessions(self) -> int:
        try:
            bars, sessions = ft.reach(self.settings.features.names, self.context)
        except ConfigError as error:
            raise DeployError(f"{error}: set warm_up_sessions") from None
        a_session = max(1, 390 // self.settings.bar_minutes)
        return max(-(-(bars + self.lookback) // a_session), sessions) + SPARE_SESSIONS

    @property
    def history_sessions(self) -> int:
        """Whole sessions of bars that the first decision needs before it."""
        return max(self.sessions, self.daily_sessions)

    def at(self, grid: SessionGrid, bar: int) -> tuple[MarketTensors, int]:
        """Build the market whose newest closed bar is `bar` of `grid`; return it and the bar's row.

        Raises DeployError when the received bars do not reach back far enough, DataError for bars
        that are none.
        """
        market, row = self._build_window(grid, bar, self.sessions)
        if self.daily_sessions:
            market = self._with_turbulence(market, grid, bar, row)
        return market, row

    def take(self, rows: Sequence[Bar]) -> int:
        """Take in a journal's bars; return the start of the newest, 0 without any."""
        if not rows:
            return 0
        table = pd.DataFrame(rows, columns=["ts", "symbol", *COLUMNS, "extras", "received"])
        codes, symbols = pd.factorize(table["symbol"], sort=True)
        more = [json.loads(text) if text else {} for text in table["extras"]]
        columns: Any = {name: table[name].to_numpy(np.float64) for name in COLUMNS}
        extras = {name: np.array([row[name] for row in more]) for name in self.history.extras}
        ts = table["ts"].to_numpy(np.int64)
        self.history.add(Bars(ts, codes.astype(np.int32), tuple(symbols), **columns, extras=extras))
        return int(ts.max())

    def whole(self, grid: SessionGrid, first: int, last: int) -> MarketTensors:
        """Build the market from the bar that begins at `first` to the one in which `last` lies."""
        start, stop = (
            int(np.searchsorted(grid.minutes, moment, side="right")) - 1 for moment in (first, last)
        )
        sessions = int(grid.session[stop] - grid.session[start]) + self.history_sessions
        market, row = self._build_window(grid, stop, min(sessions, int(grid.session[stop])))
        return market.window(row - (stop - start), row + 1)

    def _build_window(
        self, grid: SessionGrid, bar: int, sessions: int
    ) -> tuple[MarketTensors, int]:
        session = int(grid.session[bar])
        first = session - sessions
        if first < 0:
            raise DeployError(
                f"the bars received begin {session} sessions before {grid.dates[session]}, and"
                f" {sessions} are needed; begin later, or give a feed that reaches back further"
            )
        start, end = (grid.dates[at].astype(object) for at in (first, session))
        asked = self._asked.model_copy(update={"start": start, "end": end})
        opened = int(grid.minutes[grid.first_bar[first]])
        stop = int(grid.minutes[bar]) + self.settings.bar_minutes * MINUTE_NS
        market = assemble(asked, _Recent(self, opened, stop))
        if market.symbols != self.symbols:
            absent = ", ".join(sorted(set(self.symbols) - set(market.symbols)))
            raise DeployError(
                f"no bars were received of {absent}, which the policy was trained on; see the feed"
            )
        row = bar - int(grid.first_bar[first])
        return market, row

    def _with_turbulence(
        self, market: MarketTensors, grid: SessionGrid, bar: int, row: int
    ) -> MarketTensors:
        """Add turbulence, which looks back on months of daily closes, once a session: it is the
        same all day."""
        columns = [
            column
            for column, name in enumerate(market.context_names)
            if ft.turbulence_days(name) is not None
        ]
        context = market.context.clone()
        first = int(grid.session[bar]) - int(market.session[row])
        for session in np.unique(
            market.session[max(0, row - self.lookback + 1) : row + 1].numpy()
        ).tolist():
            number = first + session
            if number not in self._turbulence:
                opening = min(int(grid.first_bar[number]), bar)
                wide, at = self._build_window(grid, opening, self.daily_sessions)
                self._turbulence[number] = wide.context[at, columns].tolist()
            for column, value in zip(columns, self._turbulence[number], strict=True):
                context[market.session == session, column] = value
        return replace(market, context=context, trusted=True)
