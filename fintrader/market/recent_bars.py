"""Bars of several symbols on the grid of the last sessions, extended as bars arrive.

A build reads a whole table; a live loop receives a few bars at a time. `RecentBars` holds the
columns that a build would make of the window, bit for bit. New bars are appended. If an earlier
bar, an action or a symbol's end changes, the build's functions make its columns again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from fintrader.bars.bars import COLUMNS, MINUTE_NS, PRICES, Array, Bars
from fintrader.bars.calendar import SessionGrid
from fintrader.bars.clean import SymbolBars, aggregate_to_grid, fill_silent_bars, merge_rows
from fintrader.bars.corporate_actions import (
    Action,
    accumulate_growth,
    adjust_for_events,
    place_actions,
)
from fintrader.market.features import mean_return
from fintrader.market.reading import count_finished

_NO_END = np.iinfo(np.int64).max
_NO_TIME = pd.DatetimeIndex([])


class RecentBars:
    """Columns `[N, T]` of the bars of a window, from its first to the newest."""

    def __init__(
        self, symbols: Sequence[str], extras: Sequence[str], read: Callable[[str], Bars]
    ) -> None:
        """read: a symbol's clean bars of the window, as traded."""
        self.symbols = tuple(symbols)
        self.extras = tuple(extras)
        self.grid: SessionGrid
        self.size = 0
        """T: number of bars of the window so far."""
        self.changed = 0
        """First bar of the window that the last `advance` wrote or corrected."""
        self.events: dict[str, list[tuple[int, float, float]]] = {}
        """Bar, split and dividend of each symbol."""
        self._read = read
        self._start = 0
        """Position of the window's first bar in the columns."""
        self._columns: dict[str, Array] = {}
        count = len(self.symbols)
        self._first = np.zeros(count, dtype=np.int64)
        self._last = np.zeros(count, dtype=np.int64)
        """`_first`, `_last`: positions of each symbol's first and newest bar; `_stop`: of the first
        bar after its end."""
        self._stop = np.zeros(count, dtype=np.int64)
        self._happened: dict[str, Mapping[object, tuple[float, float]]] = {}
        self._factors = np.ones((3, count))
        """`[3, N]` factors that adjust new prices, numbers of shares, and closes in float32 as a
        market holds them."""

    def __getitem__(self, name: str) -> Array:
        """Return a column `[N, T]`: one of `COLUMNS`, adjusted forward, or as traded with `held_`
        before its name; `tradable`; `steps` (log returns); `level` and `returns` (closes as a
        market holds them, adjusted, and their log returns); `mean` `[1, T]`, their mean; or an
        extra column."""
        return self._columns[name][:, self._start : self._start + self.size]

    @property
    def is_whole(self) -> bool:
        """True where every symbol has a price from the window's first bar on."""
        return bool((self._first <= self._start).all())

    def bars(self, wanted: int) -> SymbolBars:
        """Return all symbols' bars, adjusted forward; features are needed for the last `wanted`
        bars."""
        columns: Any = {name: self[name] for name in (*COLUMNS, "tradable")}
        bars = SymbolBars(
            symbol="",
            first=0,
            ended=False,
            session=self.grid.session[: self.size],
            extras={name: self[name] for name in self.extras},
            time=_NO_TIME,
            wanted=wanted,
            **columns,
        )
        vars(bars)["steps"] = self["steps"]
        return bars

    def advance(
        self,
        grid: SessionGrid,
        size: int,
        new: Bars,
        actions: Sequence[Action],
        member: Array,
    ) -> None:
        """Advance to the first `size` bars of the window on `grid`. new: the clean bars, as traded,
        received since the last call, symbol numbers as in `symbols`; member: `[S, N]` bool, in the
        index."""
        anew = self._roll(grid, size)
        done = self.size
        at = grid.locate(new.ts)
        inside = (at >= 0) & (at < size)
        late = inside & (at < done)
        self.changed = int(min(at[late], default=done)) if not anew.any() else 0
        ahead = inside & (at >= done)
        fresh = merge_rows(replace(new.take(ahead), ts=at[ahead], row=None))
        placed = place_actions(actions, self.symbols, grid)
        for number, (symbol, events) in enumerate(placed.items()):
            happened = {grid.dates[day]: event for day, event in events.items() if day > 0}
            if happened != self._happened.get(symbol, {}):
                anew[number] = True
                self.changed = 0
            self._happened[symbol] = happened
        self.size = size
        if not anew.all() and size > done:
            self._append(done, fresh)
        finished = count_finished(
            grid, int(grid.minutes[size - 1]) + (grid.bar_minutes - 1) * MINUTE_NS
        )
        session = grid.session[np.maximum(self._last - self._start, 0)]
        has_ended = (session < finished - 1) & (self._first != _NO_END)
        stop = np.where(has_ended, self._last + 1, _NO_END)
        if (stop != self._stop).any():
            anew |= stop != self._stop
            self.changed = 0
        anew[new.symbol[late]] = True
        for number in np.flatnonzero(anew).tolist():
            self._fill(number, placed[self.symbols[number]], finished)
        if anew.any():
            self._derive(np.flatnonzero(anew), 0)
        first = self._start
        rows = slice(first + max(self.changed, 1), first + size)
        returns = np.ascontiguousarray(self._columns["returns"][:, rows].T)
        days = member[grid.session[rows.start - first : size]]
        self._columns["mean"][0, rows] = mean_return(returns, days)

    def _roll(self, grid: SessionGrid, size: int) -> Array:
        """Move the window's start to the grid's first bar; return a mask `[N]` of the symbols to
        read again."""
        drop = self.size
        if self.size:
            drop = min(int(np.searchsorted(self.grid.minutes, grid.minutes[0])), self.size)
            if grid.minutes[0] < self.grid.minutes[0] or size < self.size - drop:
                drop = self.size
        self.grid = grid
        if drop >= self.size or self._start + drop + grid.num_bars > self._room:
            self._move(grid, drop)
        else:
            self._start += drop
        self.size -= drop
        self.events = {
            name: [(bar - drop, split, dividend) for bar, split, dividend in own]
            for name, own in self.events.items()
        }
        if self.size == 0:
            return np.ones(len(self.symbols), dtype=bool)
        if drop == 0:
            return np.zeros(len(self.symbols), dtype=bool)
        # The window's first bar may hold carried prices; it counts as each symbol's first trade.
        odd = np.asarray((self._first > self._start) | (self._stop != _NO_END))
        first = self._start
        self._columns["tradable"][:, first] = True
        for name in ("steps", "returns", "mean"):
            self._columns[name][:, first] = 0.0
        self._last = np.maximum(self._last, first)
        return odd

    @property
    def _room(self) -> int:
        return int(self._columns["close"].shape[1]) if self._columns else 0

    def _move(self, grid: SessionGrid, drop: int) -> None:
        """Move the window's bars after the first `drop` to the beginning of new columns."""
        names = (*COLUMNS, *(f"held_{name}" for name in COLUMNS), "tradable", "steps", "level")
        room = max(self._room, 2 * grid.num_bars)
        kept = slice(self._start + drop, self._start + self.size)
        for name in (*names, "returns", "mean", *self.extras):
            kind = {"tradable": np.bool_, "level": np.float32}.get(name, np.float64)
            column: Array = np.zeros((1 if name == "mean" else len(self.symbols), room), dtype=kind)
            if kept.start < kept.stop:
                column[:, : kept.stop - kept.start] = self._columns[name][:, kept]
            self._columns[name] = column
        self._start = 0
        for places in (self._first, self._last, self._stop):
            places[places != _NO_END] -= kept.start

    def _append(self, done: int, fresh: Bars) -> None:
        """Append the bars from number `done` on; symbols without a row carry their last close."""
        shape = len(self.symbols), self.size - done
        cells = fresh.symbol, fresh.ts - done
        first = self._start + done
        new = slice(first, first + shape[1])
        there = np.zeros(shape, dtype=bool)
        there[cells] = True
        latest = np.maximum.accumulate(np.where(there, np.arange(shape[1]), -1), axis=1)

        def place(values: Array, otherwise: Array) -> Array:
            block = otherwise.copy()
            block[cells] = values
            return block

        def carry(values: Array, before: Array, known: Array = latest) -> Array:
            """Place rows, and carry each forward."""
            block = place(values, np.zeros(shape))
            carried = np.take_along_axis(block, np.maximum(known, 0), axis=1)
            return np.where(known >= 0, carried, before[:, None])

        price, shares, growth = self._factors[:, :, None]
        close = carry(fresh.close, self._columns["held_close"][:, first - 1])
        held = {"close": close, "volume": place(fresh.volume, np.zeros(shape))}
        for name in PRICES[:-1]:
            held[name] = place(getattr(fresh, name), close)
        for name, values in held.items():
            adjusted = values / shares if name == "volume" else values * price
            self._columns[name][:, new] = adjusted
            self._columns[f"held_{name}"][:, new] = values
        self._columns["tradable"][:, new] = there
        self._columns["level"][:, new] = close.astype(np.float32) * growth
        for name in self.extras:
            values = fresh.extras[name]
            known = np.full(shape, -1)
            known[cells] = np.where(np.isnan(values), -1, fresh.ts - done)
            known = np.maximum.accumulate(known, axis=1)
            column = self._columns[name]
            column[:, new] = carry(values, column[:, first - 1], known)
        np.maximum.at(self._last, fresh.symbol, first + cells[1])
        self._derive(slice(None), done)

    def _fill(
        self, number: int, happened: Mapping[int, tuple[float, float]], finished: int
    ) -> None:
        """Make a symbol's columns from all its bars of the window."""
        symbol = self.symbols[number]
        merged, _ = aggregate_to_grid(self._read(symbol), self.grid)
        first = self._start
        window = slice(first, first + self.size)
        for name, column in self._columns.items():
            if name == "mean":
                continue
            column[number, window] = 0 if name in ("volume", "held_volume", "tradable") else np.nan
        self._first[number] = self._stop[number] = _NO_END
        self.events[symbol] = []
        if len(merged) == 0:
            return
        own = fill_silent_bars(merged, self.grid, finished)
        held, adjusted, events = adjust_for_events(own, happened, self.grid)
        rows = slice(first + own.first, first + min(own.stop, self.size))
        count = rows.stop - rows.start
        columns = {name: getattr(adjusted, name) for name in (*COLUMNS, "tradable")}
        columns |= {f"held_{name}": getattr(held, name) for name in COLUMNS} | dict(own.extras)
        level = held.close.astype(np.float32)
        before = [(bar - own.first, split, dividend) for bar, split, dividend in events]
        steps, growth = accumulate_growth(before, level)
        at = np.searchsorted(steps, np.arange(len(own)), side="right")
        columns["level"] = level * growth[at] if events else level
        for name, values in columns.items():
            self._columns[name][number, rows] = values[:count]
        self.events[symbol] = [event for event in events if event[0] < self.size]
        splits = float(np.prod([split for _, split, _ in events]))
        price = accumulate_growth(before, held.close)[1][-1]
        self._factors[:, number] = price, splits, growth[-1]
        self._first[number] = rows.start
        self._last[number] = first + int(merged.ts[-1])
        self._stop[number] = rows.stop if own.ended else _NO_END

    def _derive(self, symbols: slice | Array, done: int) -> None:
        """Write the log returns of these symbols, from the bar `done` on."""
        first = self._start + max(done, 1)
        stop = self._start + self.size
        for name, source in (("steps", "close"), ("returns", "level")):
            values = self._columns[source][symbols, first - 1 : stop].astype(np.float64)
            self._columns[name][symbols, first:stop] = np.diff(np.log(values))
            if done == 0:
                self._columns[name][symbols, first - 1] = 0.0
