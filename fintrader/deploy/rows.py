"""The market of the newest bars, which the build's functions make of the bars received so far.

A policy must see the same rows live as in training. So the rows of a decision come from
`market.build.assemble`, over the sessions that the features read and with the stored statistics;
nothing is computed a second way. Except for rounding, the row at a bar is the row of a build of all
bars.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fintrader.bars.bars import COLUMNS, MINUTE_NS, PRICES, Array, Bars
from fintrader.bars.calendar import SessionGrid, WindowSettings
from fintrader.bars.checks.kinds import STOPPING
from fintrader.bars.clean import clean
from fintrader.bars.corporate_actions import (
    Action,
    add_announced,
    load_actions,
    undo_adjustment,
)
from fintrader.bars.sources.feed import Feed
from fintrader.bars.sources.layout import FilesSettings
from fintrader.deploy.journal import Bar
from fintrader.deploy.received_bars import ReceivedBars, join_bars
from fintrader.errors import ConfigError, DataError, DeployError
from fintrader.market import features as ft
from fintrader.market.build import assemble, fit_features, scale_context
from fintrader.market.index_level import daily_level, equal_weight, file_benchmark
from fintrader.market.market_file import refuse_bad_cells
from fintrader.market.planted_in import PlantedInSettings
from fintrader.market.reading import Reader, carry_extras
from fintrader.market.recent_bars import RecentBars
from fintrader.market.scaling import apply_scale
from fintrader.market.settings import DataSettings, factor_column, raw_features
from fintrader.market.synthetic import SyntheticSettings
from fintrader.market.tensors import Events, MarketTensors
from fintrader.market.universe import load_membership, load_shares, member_days, share_days
from fintrader.results.market_description import Fault, MarketDescription

SPARE_SESSIONS = 2
"""Sessions beyond the features' reach: a window's first session opens on carried prices."""
Level = tuple[Array, Array]
"""Minutes and level of a source's index, `[K]` each."""


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
        known = np.minimum(grid.minutes, self._stop - 1)
        return None if self._level is None else _look_up(self._level, known)


def _look_up(index: Level, moments: Array) -> Array:
    """Look up an index at these moments, ns."""
    minutes, level = index
    at = np.searchsorted(minutes, moments, side="right") - 1
    return np.asarray(level[np.maximum(at, 0)])


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
        """settings, symbols, normalisation (a file of statistics): of the market of the training.
        warm_up_sessions: replaces the features' reach.

        Raises DeployError where the features do not know their reach.
        """
        self.settings = settings
        self.symbols = tuple(symbols)
        self.companies = dict(companies)
        extras = (*settings.features.extra, *raw_features(settings), factor_column(settings))
        self.history = ReceivedBars(symbols, dict.fromkeys(filter(None, extras)))
        self.level: Level | None = None
        self.actions: tuple[Action, ...] = ()
        self.lookback = lookback
        chosen = settings.features
        self.context = chosen.context
        self.sessions = warm_up_sessions or self._count_needed_sessions()
        days = enumerate(map(ft.turbulence_days, chosen.context))
        self._turbulent = {column: of for column, of in days if of is not None}
        """Column of the context with turbulence -> days that it looks back on."""
        self._turbulence: dict[int, Array] = {}
        """Number of a session -> the values of these columns."""
        # Five sessions more than turbulence asks for: a symbol may be silent in the first of them.
        self.daily_sessions = max((of + 7 for of in self._turbulent.values()), default=0)
        features = chosen.model_copy(update={"normalisation": str(normalisation)})
        universe = settings.universe.model_copy(
            update={"symbols": self.symbols, "max_symbols": None, "min_coverage": 0.0}
        )
        windows = WindowSettings(fractions=(0.4, 0.3, 0.3), embargo_sessions=0)
        # A fault that would stop a build is journalled here: a market with it is better than none.
        self._asked = settings.model_copy(
            update={
                "features": features,
                "universe": universe,
                "windows": windows,
                "waive": tuple(STOPPING),
            }
        )
        names = (*chosen.names, *chosen.extra, *raw_features(settings))
        size = len(self.symbols), len(names)
        self._scaling = fit_features(self._asked, np.empty((0, *size)), names, (0, 0))
        columns = (*chosen.context, *chosen.daily)
        empty = np.empty((0, len(columns)))
        self._context_scales = scale_context(self._asked, empty, columns, (0, 0))
        source = settings.source
        self._is_plain = not (
            any(":" in name for name in names)
            or isinstance(source, PlantedInSettings)
            or (isinstance(source, FilesSettings) and source.label == "end")
            or not set(chosen.known_at).isdisjoint(chosen.extra)
        )
        """True if new rows can be appended; users' own features read all bars."""
        self._recent = RecentBars(self.symbols, self.history.extras, self._read)
        self._description: MarketDescription
        self._is_described = False
        self._window: SessionGrid
        self._days_open = np.empty(0)
        self._stop = self._taken = self._look_at = self._since = 0

    def _count_needed_sessions(self) -> int:
        try:
            bars, sessions = ft.reach(self.settings.features.names, self.context)
        except ConfigError as error:
            raise DeployError(f"{error}: set warm_up_sessions") from None
        a_session = max(1, 390 // self.settings.bar_minutes)
        return max(-(-(bars + self.lookback) // a_session), sessions) + SPARE_SESSIONS

    @property
    def history_sessions(self) -> int:
        """Whole sessions of bars that are needed before the first decision."""
        return max(self.sessions, self.daily_sessions)

    def at(self, grid: SessionGrid, bar: int, since: int = 0) -> tuple[MarketTensors, int]:
        """Build the market whose newest closed bar is `bar` of `grid`; return it and the bar's row.

        The market begins with the session, or earlier: with the first of its `lookback` bars of
        features, or the bar that begins at `since`, ns. Raises DeployError when the received
        bars do not reach back far enough, DataError for invalid bars.
        """
        if not self._is_described:
            market, row = self._build_window(grid, bar, self.sessions)
            self._description = replace(market.description, windows=None)
            self._is_described = True
        self._since = since
        if self._is_plain:
            self._open_window(grid, bar)
            self._extend(bar + 1 - self._first)
            if self._recent.is_whole:
                return self._lay_out(grid, bar, since)
        market, row = self._build_window(grid, bar, self._count_sessions(grid, bar))
        self._add_turbulence(market.context.numpy(), market.session.numpy(), grid, bar, row)
        return market, row

    def _count_sessions(self, grid: SessionGrid, bar: int) -> int:
        """Count the sessions before that of `bar` which the market needs: those of the features, or
        more if the bar that begins at `_since` lies before them."""
        at = min(int(np.searchsorted(grid.minutes, self._since)), bar) if self._since else bar
        return max(self.sessions, int(grid.session[bar] - grid.session[at]))

    def _open_window(self, grid: SessionGrid, bar: int) -> None:
        """Lay out all that stays the same in a session."""
        sessions = self._count_sessions(grid, bar)
        session = int(grid.session[bar])
        first = session - sessions
        if first < 0:
            raise self._miss_sessions(grid, session, sessions)
        days = grid.dates[[first, session]]
        if np.array_equal(days, self._days_open):
            return
        self._days_open = days
        self._window = window = grid.cut(first, session)
        oldest = min(max(session - self.history_sessions, 0), first)
        self.history.needed = int(grid.minutes[grid.first_bar[oldest]])
        asked = self._asked
        self._first = int(grid.first_bar[first])
        self._days = self._member_days(window)
        shares = load_shares(asked.universe)
        self._shares = None if shares is None else share_days(self.symbols, shares, window.dates)
        self._index = np.empty(0)
        if asked.benchmark is not None:
            self._index = file_benchmark(asked.benchmark, window)[0]
        elif self.level is not None:
            self._index = _look_up(self.level, window.minutes)
        known_at = asked.features.known_at
        self._daily = [
            daily_level(name, path, window, known_at.get(name, ft.TRUSTED))
            for name, path in asked.features.daily.items()
        ]
        self._declared = load_actions(asked.actions, None)

    def _extend(self, size: int) -> None:
        """Take the received bars into the columns of the window's first `size` bars."""
        window = self._window
        before = self._stop
        self._stop = int(window.minutes[size - 1]) + self.settings.bar_minutes * MINUTE_NS
        if min(before, self._stop) < self._taken:  # the same bars are taken in again
            self._recent.size = 0
        self._taken = max(self._taken, self._stop)
        fresh = join_bars(self.history.fresh)
        if not len(fresh):
            fresh = replace(fresh, extras=dict.fromkeys(self.history.extras, np.empty(0)))
        codes = np.array([self.symbols.index(name) for name in fresh.symbols], dtype=np.int32)
        fresh = replace(fresh, symbol=codes[fresh.symbol], symbols=self.symbols).sorted()
        actions = add_announced(self._declared, self.actions)[0]
        later = fresh.ts >= self._stop
        new = self._clean(fresh.take(~later))
        self._recent.advance(window, size, new, actions, self._days)
        # Only now: bars that an error interrupts are taken in again.
        self.history.fresh = [fresh.take(later)] if later.any() else []

    def _read(self, symbol: str) -> Bars:
        """Read a symbol's clean bars of the window."""
        bars = self._read_between(symbol, int(self._window.minutes[0]), self._stop)
        return carry_extras(bars, self.settings.features.known_at)

    def _read_between(self, symbol: str, first: int, stop: int) -> Bars:
        """Read a symbol's clean bars that begin in `[first, stop)`, ns."""
        return self._clean(self.history.between(symbol, first, stop))

    def _clean(self, bars: Bars) -> Bars:
        return undo_adjustment(clean(bars)[0], factor_column(self.settings))

    def _lay_out(self, grid: SessionGrid, bar: int, since: int) -> tuple[MarketTensors, int]:
        """Lay out the market of the window's last bars, to the end of the session; the bars to come
        carry the last prices."""
        window = self._window
        recent = self._recent
        size = recent.size
        begin = min(int(window.first_bar[-2]), size - self.lookback)
        if since:
            begin = min(begin, int(np.searchsorted(window.minutes, since)))
        rows = slice(max(begin, 0), window.num_bars)
        session = window.session[rows]
        row = size - 1 - rows.start
        cells = len(session), len(self.symbols)
        arrays: dict[str, Array] = {"tradable": np.zeros(cells, bool)}
        arrays["tradable"][: row + 1] = recent["tradable"][:, rows].T
        for name in COLUMNS:
            arrays[name] = np.zeros(cells, np.float32)
            arrays[name][: row + 1] = recent[f"held_{name}"][:, rows].T
        for name in PRICES:
            arrays[name][row + 1 :] = recent["held_close"][:, -1]
        arrays["member"] = self._days[session]
        shown = slice(max(row + 1 - self.lookback, 0), row + 1)
        names = self._description.feature_names
        block = ft.last_features(
            recent.bars(shown.stop - shown.start),
            names,
            shown.stop - shown.start,
            recent["returns"],
            recent["mean"][0],
        )
        self._scaling.apply(block, arrays["member"][shown])
        arrays["features"] = np.zeros((*cells, len(names)), dtype=np.float32)
        arrays["features"][shown] = block
        refuse_bad_cells(arrays)
        known = self._find_benchmark()
        benchmark = np.append(known, np.full(window.num_bars - size, known[-1]))
        arrays |= {"session": session, "minutes": window.minutes[rows]}
        arrays["benchmark"] = benchmark[rows]
        arrays["context"] = self._find_context(benchmark, rows)
        self._add_turbulence(arrays["context"], session, grid, bar, row)
        if self._shares is not None:
            arrays["shares_outstanding"] = self._shares[session]
        events = [
            (bar - rows.start, column, split, dividend)
            for column, name in enumerate(self.symbols)
            for bar, split, dividend in recent.events[name]
            if bar >= rows.start
        ]
        tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
        market = MarketTensors.of(self._description, tensors, Events.of(events), trusted=True)
        return market, row

    def _find_benchmark(self) -> Array:
        """Find the level of the benchmark at each bar of the window, `[T]`."""
        window = self._window
        size = self._recent.size
        if self._asked.benchmark is not None or self.level is not None:
            return self._index[:size]
        opened = int(window.first_bar[-2])
        close = self._recent["level"].T
        if not len(self._index) or self._recent.changed < opened:
            self._index = equal_weight(close[:opened], window.first_bar[:-1], self._days)
        today = np.array([0, size - opened])
        base = float(self._index[-1])
        reference = close[opened - 1].astype(np.float64)
        level = equal_weight(close[opened:], today, self._days[-1:], base, reference)
        return np.append(self._index, level)

    def _find_context(self, benchmark: Array, rows: slice) -> Array:
        """Compute the context of some of the window's bars, `[R, M]`."""
        window = self._window
        names = self.context
        plain = [name for column, name in enumerate(names) if column not in self._turbulent]
        table = ft.context_features(
            plain,
            window.session,
            benchmark=benchmark,
            day_close=np.empty(0),
            member=self._days,
        )
        columns = dict(zip(plain, table.T, strict=True))
        missing = np.full(window.num_bars, np.nan)
        values = [columns.get(name, missing)[rows] for name in names]
        values += [level[rows] for level in self._daily]
        context = np.column_stack([np.empty((rows.stop - rows.start, 0)), *values])
        return self._scale_context(context)

    def find_faults(self, grid: SessionGrid, bar: int) -> list[Fault]:
        """Find the faults of a bar's session that would stop a build, at most every half an hour;
        bars that cannot be read are left to the next market's error."""
        minute = int(grid.minutes[bar])
        if isinstance(self.settings.source, SyntheticSettings) or minute < self._look_at:
            return []
        self._look_at = minute + 30 * MINUTE_NS
        self._open_window(grid, bar)
        feed = _Recent(self, int(self._window.minutes[0]), self._stop)
        try:
            reader = Reader(self._asked, feed, self._window)
            for symbol in feed.symbols:
                reader.read(symbol)
            reader.evidence.judge()
            faults = reader.gate.judge(feed.symbols)[0]
        except DataError:
            self._is_described = False
            return []
        return [fault for fault in faults if fault.day == str(self._window.dates[-1])]

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
        """Build the market from the bar that begins at `first` to the bar that contains `last`."""
        start, stop = (
            int(np.searchsorted(grid.minutes, moment, side="right")) - 1 for moment in (first, last)
        )
        sessions = int(grid.session[stop] - grid.session[start]) + self.history_sessions
        market, row = self._build_window(grid, stop, min(sessions, int(grid.session[stop])))
        return market.window(row - (stop - start), row + 1)

    def _miss_sessions(self, grid: SessionGrid, session: int, needed: int) -> DeployError:
        return DeployError(
            f"the bars received begin {session} sessions before {grid.dates[session]}, and"
            f" {needed} are needed; begin later, or give a feed that reaches back further"
        )

    def _build_window(
        self, grid: SessionGrid, bar: int, sessions: int
    ) -> tuple[MarketTensors, int]:
        session = int(grid.session[bar])
        first = session - sessions
        if first < 0:
            raise self._miss_sessions(grid, session, sessions)
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

    def _add_turbulence(
        self, context: Array, session: Array, grid: SessionGrid, bar: int, row: int
    ) -> None:
        """Write the turbulence of the shown bars into `context` `[R, M]`, once computed for each
        session: it looks back on months of daily closes, and is the same all day. session: `[R]`;
        bar, row: numbers of the newest bar in `grid` and here."""
        columns = [*self._turbulent]
        if not columns:
            return
        oldest = int(session[max(row + 1 - self.lookback, 0)])
        newest = int(session[row])
        for here in range(oldest, newest + 1):
            number = int(grid.session[bar]) - newest + here
            if number not in self._turbulence:
                self._turbulence[number] = self._find_turbulence(grid, number, bar)[columns]
            rows = slice(*np.searchsorted(session, [here, here + 1]))
            context[rows, columns] = self._turbulence[number]

    def _find_turbulence(self, grid: SessionGrid, number: int, bar: int) -> Array:
        """Compute the context `[M]` of a session's opening, of which only turbulence is used; `bar`
        is the newest."""
        opening = min(int(grid.first_bar[number]), bar)
        first = number - self.daily_sessions
        if first < 0 or not self._is_plain:
            wide, at = self._build_window(grid, opening, self.daily_sessions)
            return np.asarray(wide.to_numpy("context")[at])
        window = grid.cut(first, number)
        begin = int(grid.minutes[grid.first_bar[first]])
        stop = int(grid.minutes[opening]) + self.settings.bar_minutes * MINUTE_NS
        recent = RecentBars(
            self.symbols,
            (),
            lambda name: replace(self._read_between(name, begin, stop), extras={}),
        )
        actions = add_announced(self._declared, self.actions)[0]
        size = opening + 1 - int(grid.first_bar[first])
        member = self._member_days(window)
        recent.advance(window, size, join_bars([]), actions, member)
        day_close = recent["level"][:, window.first_bar[1:-1] - 1].T.astype(np.float64)
        context = np.full((1, len(self._description.context_names)), np.nan)
        for column, days in self._turbulent.items():
            rows = slice(len(day_close) - days - 2, len(day_close))
            turbulence = ft.turbulence(day_close[rows], member[rows], days)[-1]
            context[0, column] = np.log1p(turbulence)
        return np.asarray(self._scale_context(context)[0])

    def _member_days(self, window: SessionGrid) -> Array:
        universe = self._asked.universe
        aliases = {**universe.aliases, **self.companies}
        return member_days(self.symbols, load_membership(universe), window.dates, aliases)

    def _scale_context(self, context: Array) -> Array:
        """Scale context `[R, M]` by the stored statistics."""
        chosen = self._asked.features
        every = np.full(context.shape[1], chosen.standardise)
        apply_scale(context[:, None, :], *self._context_scales, every, chosen.clip)
        return context.astype(np.float32)
