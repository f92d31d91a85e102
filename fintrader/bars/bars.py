"""`Bars`: the long table in which every source delivers its bars."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fintrader.errors import BarError

Array = np.ndarray[Any, np.dtype[Any]]
PRICES = ("open", "high", "low", "close")
COLUMNS = (*PRICES, "volume")
MINUTE_NS = 60_000_000_000
DAY_MINUTES = 1440


@dataclass(frozen=True, eq=False)
class Bars:
    """`R` rows of bars, in any order until `sorted` is called."""

    ts: Array
    """`[R]` int64: START of the bar, nanoseconds since 1970 UTC."""
    symbol: Array
    """`[R]` int32: index into `symbols`."""
    symbols: tuple[str, ...]
    open: Array
    """`[R]` float64, USD; `high`, `low` and `close` likewise."""
    high: Array
    low: Array
    close: Array
    volume: Array
    """`[R]` float64, shares."""
    extras: Mapping[str, Array] = field(default_factory=dict)
    """Name -> further numeric column, `[R]` float64, known when the bar has closed."""
    row: Array | None = None
    """`[R]` int64: number of the row in its file, for messages; None for bars that come from no
    file."""
    origin: str = "bars"
    """The source's name in messages, usually that of a file."""
    files: tuple[tuple[int, str], ...] = ()
    """Number of the first row and name of each file, in order, where the numbers in `row` run on
    from file to file."""

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, index: Array | slice) -> Bars:
        """Select rows by integers, a mask or a slice."""
        columns = {name: getattr(self, name)[index] for name in ("ts", "symbol", *COLUMNS)}
        extras = {name: values[index] for name, values in self.extras.items()}
        return replace(
            self, **columns, extras=extras, row=None if self.row is None else self.row[index]
        )

    def empty(self) -> Array:
        """`[R]` bool: rows without any price, and rows whose high, low and volume are 0, which some
        sources write where nothing traded."""
        empty = np.ones(len(self), dtype=bool)
        for name in PRICES:
            empty &= np.isnan(getattr(self, name))
        return np.asarray(empty | ((self.high == 0) & (self.low == 0) & (self.volume == 0)))

    def without_empty(self) -> Bars:
        """Drop the rows that `empty` marks."""
        empty = self.empty()
        return self.take(~empty) if empty.any() else self

    def drop_unused_symbols(self) -> Bars:
        """Drop the symbols that have no row."""
        used, codes = np.unique(self.symbol, return_inverse=True)
        return replace(
            self, symbol=codes.astype(np.int32), symbols=tuple(self.symbols[code] for code in used)
        )

    def sorted(self) -> Bars:
        """Sort rows by symbol, then time (stable); sorted bars are returned as they are."""
        return self if self.is_sorted() else self.take(np.lexsort((self.ts, self.symbol)))

    def by_symbol(self) -> dict[str, Bars]:
        """Split sorted bars into one `Bars` per symbol; symbols without rows are left out."""
        edges = np.searchsorted(self.symbol, np.arange(len(self.symbols) + 1)).tolist()
        parts = map(self.take, itertools.starmap(slice, itertools.pairwise(edges)))
        return {
            name: replace(part, symbol=np.zeros_like(part.symbol), symbols=(name,))
            for name, part in zip(self.symbols, parts, strict=True)
            if len(part)
        }

    def repeats(self) -> Array:
        """`[R]` bool: rows with the same symbol and time as the row before."""
        again = np.zeros(len(self), dtype=bool)
        again[1:] = (np.diff(self.ts) == 0) & (np.diff(self.symbol) == 0)
        return again

    def contradictions(self) -> Array:
        """`[R]` bool: rows of sorted bars whose values differ from the first row with the same
        symbol and time; NaN equals NaN."""
        again = self.repeats()
        rows = np.flatnonzero(again)
        first = np.maximum.accumulate(np.where(again, 0, np.arange(len(self))))[rows]
        differs = np.zeros(len(self), dtype=bool)
        for values in (*(getattr(self, name) for name in COLUMNS), *self.extras.values()):
            is_nan = np.isnan(values[rows]) & np.isnan(values[first])
            differs[rows] |= (values[rows] != values[first]) & ~is_nan
        return differs

    def is_sorted(self) -> bool:
        """True if rows ascend by symbol, then time."""
        change = np.diff(self.symbol)
        return bool(np.all((change > 0) | ((change == 0) & (np.diff(self.ts) >= 0))))

    def describe_row(self, index: int, *, zoned: bool = True) -> str:
        """Return `FILE, row R (SYMBOL at TIME UTC)` for a message; `zoned=False` omits UTC, for a
        time that was read from text without a zone."""
        stamp = str(self.ts[index].astype("datetime64[ns]"))[:19]
        origin = self.origin
        row = int(self.row[index]) if self.row is not None else index
        if self.files and self.row is not None:
            first, origin = self.files[
                bisect.bisect_right([first for first, _ in self.files], row) - 1
            ]
            row -= first
        return (
            f"{origin}, row {row} ({self.symbols[self.symbol[index]]} at"
            f" {stamp}{' UTC' if zoned else ''})"
        )


def wrap_columns(
    symbol: str, ts: Array, columns: Mapping[str, Array], origin: str, **fields: Any
) -> Bars:
    """Make `Bars` of one symbol. columns: name in `COLUMNS` -> `[R]`; fields: further fields of
    `Bars`."""
    code = np.zeros(len(ts), dtype=np.int32)
    values: Any = {**columns, **fields}
    return Bars(ts=ts, symbol=code, symbols=(symbol,), origin=origin, **values)


def concat(parts: Sequence[Bars]) -> Bars:
    """Join bars; symbols are merged by name. Raises BarError if there are no parts, or if their
    extra columns differ."""
    if not parts:
        raise BarError("there are no bars at all; check the path and the date range")
    if len(parts) == 1:
        return parts[0]
    symbols = tuple(sorted({name for part in parts for name in part.symbols}))
    code = {name: index for index, name in enumerate(symbols)}
    names = set(parts[0].extras)
    for part in parts:
        if set(part.extras) != names:
            raise BarError(
                f"{part.origin}: extra columns {sorted(part.extras)} differ from {sorted(names)}"
                " elsewhere; deliver the same extra columns everywhere"
            )
    recoded = [
        np.array([code[name] for name in part.symbols], dtype=np.int32)[part.symbol]
        for part in parts
    ]
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in ("ts", *COLUMNS)
    }
    return Bars(
        symbol=np.concatenate(recoded),
        symbols=symbols,
        extras={
            name: np.concatenate([part.extras[name] for part in parts]) for name in sorted(names)
        },
        row=np.concatenate(
            [part.row if part.row is not None else np.arange(len(part)) for part in parts]
        ),
        origin=(
            parts[0].origin if len({part.origin for part in parts}) == 1 else f"{len(parts)} files"
        ),
        **joined,
    )


def bar_length(bars: Bars, default: int = 1) -> int:
    """Return the length of the bars in minutes: the most frequent step between bars of a symbol, if
    more than 70 % of the steps are multiples of it, or 30 % equal it and the others are at least
    1.3 times as long; else 1. Steps over half a day count only if the most frequent one is such a
    step. `default`: where no symbol has two bars within a day. The bars must be sorted."""
    steps = np.diff(bars.ts)[np.diff(bars.symbol) == 0] // MINUTE_NS
    steps = steps[(steps > 0) & (steps <= DAY_MINUTES)]
    if len(steps) == 0:
        return default
    usual = int(np.bincount(steps).argmax())
    if usual <= DAY_MINUTES // 2:
        steps = steps[steps <= DAY_MINUTES // 2]  # without the nights
    # steps over a lunch break need not be multiples
    is_least = (
        np.mean(steps == usual) > 0.3 and steps[steps != usual].min(initial=720) > 1.3 * usual
    )
    return usual if is_least or np.mean(steps % usual == 0) > 0.7 else 1
