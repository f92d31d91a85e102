"""The bars that a deployment has received and still needs, kept in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fintrader.bars.bars import COLUMNS, PRICES, Array, Bars, concat, wrap_columns

_NEVER = np.iinfo(np.int64).max


class ReceivedBars:
    """Bars by symbol as they were received, in order of time."""

    def __init__(self, symbols: Sequence[str], extras: Iterable[str]) -> None:
        self.symbols = tuple(symbols)
        self.extras = tuple(extras)
        self.fresh: list[Bars] = []
        """Bars received since the list was last emptied."""
        self.needed = 0
        """Time from which bars are kept, nanoseconds since 1970 UTC; the last bar before it is kept
        too."""
        self._names = (*COLUMNS, *self.extras)
        self._rows = {symbol: _Rows(len(self._names)) for symbol in symbols}

    def add(self, bars: Bars) -> Array:
        """Store the bars that are newer than the newest one of their symbol; return a mask `[R]` of
        those that were late or repeated. Bars of other symbols are ignored."""
        if not len(bars):
            return np.zeros(0, dtype=bool)
        known = self._rows
        newest = np.array(
            [known[name].newest if name in known else _NEVER for name in bars.symbols]
        )
        order = np.lexsort((bars.ts, bars.symbol))
        ts = bars.ts[order]
        codes = bars.symbol[order]
        repeats = (np.diff(ts, prepend=-1) == 0) & (np.diff(codes, prepend=-1) == 0)
        taken = order[(ts > newest[codes]) & ~repeats]
        late = newest[bars.symbol] < _NEVER
        late[taken] = False
        new = replace(bars, extras={name: bars.extras[name] for name in self.extras}).take(taken)
        table = np.stack([*(getattr(new, name) for name in COLUMNS), *new.extras.values()])
        edges = np.searchsorted(new.symbol, np.arange(len(newest) + 1)).tolist()
        for name, (start, stop) in zip(bars.symbols, itertools.pairwise(edges), strict=True):
            if start < stop:
                known[name].add(new.ts[start:stop], table[:, start:stop], self.needed)
        if len(new):
            self.fresh.append(new)
        return np.asarray(late)

    def carry(self, symbol: str, ts: int, close: float) -> None:
        """Give a symbol a last price before its first bar: store a bar at `ts` (ns) with `close`
        (USD) as all prices, no volume, and 1 in extra columns."""
        columns = {**dict.fromkeys(PRICES, np.full(1, close)), "volume": np.zeros(1)}
        extras = dict.fromkeys(self.extras, np.ones(1))
        self.add(wrap_columns(symbol, np.array([ts]), columns, "last close", extras=extras))

    def newest(self, symbol: str) -> int | None:
        """Return the start of a symbol's newest bar, ns; None without one."""
        rows = self._rows.get(symbol)
        return rows.newest if rows is not None and rows.size else None

    def last_close(self, symbol: str) -> float:
        """Return a symbol's last close, USD; 0 without one, also for an unknown symbol."""
        rows = self._rows.get(symbol)
        return float(rows.values[3, rows.size - 1]) if rows is not None and rows.size else 0.0

    def between(self, symbol: str, first: int, stop: int) -> Bars:
        """Return the bars that begin in `[first, stop)`, ns. If none begins at `first`, and one
        precedes it, one is added there, at the previous close and without volume."""
        rows = self._rows[symbol]
        start, end = np.searchsorted(rows.ts[: rows.size], [first, stop]).tolist()
        is_carried = start > 0 and first not in rows.ts[start:end][:1]
        part = slice(start - is_carried, end)
        ts = rows.ts[part]
        values = rows.values[:, part]
        if is_carried:
            ts = np.append(first, ts[1:])
            values = values.copy()
            values[:4, 0] = values[3, 0]
            values[4, 0] = 0.0
        columns = dict(zip(self._names, values, strict=True))
        extras = {name: columns.pop(name) for name in self.extras}
        return wrap_columns(symbol, ts, columns, "received bars", extras=extras)


class _Rows:
    """Rows of one symbol, in order of time, in arrays with room for more."""

    def __init__(self, columns: int) -> None:
        self.size = 0
        self.newest = -1
        """Start of the newest bar, nanoseconds."""
        self.ts = np.zeros(64, dtype=np.int64)
        self.values = np.zeros((columns, 64))

    def add(self, ts: Array, values: Array, needed: int) -> None:
        """Append one row or more: `ts` `[R]`, values `[C, R]`. If there is no room for them, drop
        the rows before the time `needed`, except the last one, and make more room."""
        stop = self.size + len(ts)
        if stop > len(self.ts):
            old = slice(max(int(np.searchsorted(self.ts[: self.size], needed)) - 1, 0), self.size)
            self.size = old.stop - old.start
            stop = self.size + len(ts)
            room = 2 * stop
            kept = self.ts[old], self.values[:, old]
            self.ts = np.zeros(room, dtype=np.int64)
            self.values = np.zeros((len(values), room))
            self.ts[: self.size], self.values[:, : self.size] = kept
        self.ts[self.size : stop] = ts
        self.values[:, self.size : stop] = values
        self.size = stop
        self.newest = int(ts[-1])


def join_bars(parts: Sequence[Bars]) -> Bars:
    """Join tables of bars; some or all of them may be empty."""
    whole = [part for part in parts if len(part)]
    if whole:
        return replace(concat(whole), row=None)
    nothing: Any = dict.fromkeys(COLUMNS, np.empty(0))
    return Bars(ts=np.empty(0, np.int64), symbol=np.empty(0, np.int32), symbols=(), **nothing)
