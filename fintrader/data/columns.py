"""The market's big arrays while it is built: symbol after symbol on disk, read back for all of them in blocks of bars.

Bars come by symbol and a market is stored by bar. In between lies this scratch file, which has no name, so that a
process that is killed leaves nothing. Whatever the market's size, memory holds one symbol and one block.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fintrader.data.bars import Array
from fintrader.data.clean import SymbolBars
from fintrader.errors import MarketError

BLOCK_BYTES = 16 << 20
_TRANSPOSED = 4096
"""So many bars at a time from tables by column into one by bar: both then stay in the processor's cache."""
_PRICES = ("open", "close")


class Sheet:
    """An array `[T, ...]` that is read as its rows are asked for; a block is kept for the next slice."""

    def __init__(self, shape: tuple[int, ...], read: Callable[[int, int], Array], block: int) -> None:
        self.shape = shape
        self._read, self._block = read, block
        self._first, self._rows = 0, read(0, 0)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        """Rows of a slice without step, not to be written to."""
        start, stop, _ = rows.indices(len(self))
        stop = max(start, stop)
        if not self._first <= start <= stop <= self._first + len(self._rows):
            self._rows = self._read(start, min(max(stop, start + self._block), len(self)))
            self._first = start
        return self._rows[start - self._first : stop - self._first]


class Columns:
    """Room for columns of `bars` bars, numbered from 0; a column may be written again."""

    def __init__(self, folder: Path | None, bars: int, features: int) -> None:
        """`folder`: where the scratch file lies; None: among the system's temporary files."""
        self.bars, self.features, self._folder = bars, features, folder
        self.slots: Sequence[int] = ()
        """The columns that make the market, in its order, once that is known."""
        self._kinds: dict[str, tuple[np.dtype[Any], int]] = {
            name: (np.dtype(np.float32), 1) for name in (*_PRICES, "volume")
        }
        self._kinds |= {"tradable": (np.dtype(bool), 1), "features": (np.dtype(np.float32), features)}
        self._offset, self._size = {}, 0
        for name, (kind, width) in self._kinds.items():
            self._offset[name] = self._size
            self._size += bars * width * kind.itemsize
        self._growth: dict[int, tuple[Array, Array]] = {}
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as the build goes on

    def __len__(self) -> int:
        return self.bars

    def __enter__(self) -> Columns:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def fill(
        self, slot: int, one: SymbolBars, features: Array, events: Sequence[tuple[int, float, float]] = ()
    ) -> None:
        """Write a whole column, over whatever stood in it; NaN where the symbol has no price.

        features: `[L, F]`; events: bar, split and dividend, in order, each with a price before it.
        """
        for name, values, absent in (
            ("open", one.open, np.nan),
            ("close", one.close, np.nan),
            ("volume", one.volume, 0.0),
            ("tradable", one.tradable, False),
            ("features", features, np.nan),
        ):
            kind, _ = self._kinds[name]
            column = np.full((self.bars, *values.shape[1:]), absent, dtype=kind)
            listed = column[one.first : one.stop]
            for first in range(0, len(values), _TRANSPOSED):
                listed[first : first + _TRANSPOSED] = values[first : first + _TRANSPOSED]
            if name == "close":
                self._growth[slot] = _growth(events, column)
            self._put(slot, name, column)

    def put_feature(self, slot: int, number: int, values: Array) -> None:
        """Write one feature `[T]` of a column."""
        table = self._get(slot, "features", 0, self.bars)
        table[:, number] = values
        self._put(slot, "features", table)

    def adjusted_close(self, slot: int) -> Array:
        """`[T]` float32: one column's closes adjusted forward, NaN where it has no price."""
        return self._adjusted(slot, "close", 0, self.bars)

    def rows(self, name: str, start: int, stop: int) -> Array:
        """`[B, N]`, of features `[B, N, F]`: bars `[start, stop)` of the market's columns."""
        kind, width = self._kinds[name]
        shape = (stop - start, len(self.slots), width) if name == "features" else (stop - start, len(self.slots))
        block = np.empty(shape, dtype=kind)
        for column, slot in enumerate(self.slots):
            block[:, column] = self._get(slot, name, start, stop)
        return block

    def adjusted(self, name: str) -> Sheet:
        """`[T, N]` float32: `open` or `close` adjusted forward, so that its changes are returns."""

        def read(start: int, stop: int) -> Array:
            block = np.empty((stop - start, len(self.slots)), dtype=np.float32)
            for column, slot in enumerate(self.slots):
                block[:, column] = self._adjusted(slot, name, start, stop)
            return block

        return Sheet((self.bars, len(self.slots)), read, self.block(4))

    def table(self) -> Sheet:
        """`[T, N, F]` float32: the features."""
        shape = (self.bars, len(self.slots), self.features)
        return Sheet(shape, lambda start, stop: self.rows("features", start, stop), self.block(4 * self.features))

    def block(self, cell_bytes: int | None = None) -> int:
        """How many bars to take at a time, by the bytes of a cell (those of all arrays by default)."""
        width = len(self.slots) * (16 + 4 * self.features if cell_bytes is None else cell_bytes)
        return min(max(BLOCK_BYTES // max(width, 1), 16), self.bars)

    def _adjusted(self, slot: int, name: str, start: int, stop: int) -> Array:
        values = self._get(slot, name, start, stop)
        bars, growth = self._growth[slot]
        if not len(bars):
            return values
        at = np.searchsorted(bars, np.arange(start, stop), side="right")
        return (values * growth[at]).astype(np.float32)

    def _put(self, slot: int, name: str, values: Array) -> None:
        try:
            self._file.seek(slot * self._size + self._offset[name])
            self._file.write(values.data)
        except OSError as error:
            raise MarketError(
                f"{tempfile.gettempdir() if self._folder is None else self._folder}: no room to build the market "
                f"({error.strerror or error}); free some space, or choose another cache"
            ) from None

    def _get(self, slot: int, name: str, start: int, stop: int) -> Array:
        kind, width = self._kinds[name]
        values = np.empty((stop - start, width) if name == "features" else stop - start, dtype=kind)
        self._file.seek(slot * self._size + self._offset[name] + start * width * kind.itemsize)
        if self._file.readinto(values.data) != values.nbytes:
            raise MarketError("the build's scratch file was cut short; run the same command again")
        return values


def _growth(events: Sequence[tuple[int, float, float]], close: Array) -> tuple[Array, Array]:
    """Bars `[E]` from which on a share of the first bar has become something else, and what: `[E + 1]`, from 1 on."""
    bars = np.array([bar for bar, _, _ in events], dtype=np.int64)
    steps = [split / (1.0 - dividend / float(close[bar - 1])) for bar, split, dividend in events]
    return bars, np.cumprod([1.0, *steps])
