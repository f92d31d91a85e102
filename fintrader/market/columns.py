"""A market's large arrays during its build: written to disk by symbol, read back in blocks of bars.

Bars arrive by symbol, but a market is stored by bar. In between they are kept in scratch files, one
for each stretch of bars. These files have no names, so that a killed process leaves none behind.
Memory holds one symbol and one block, whatever the market's size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fintrader.bars.bars import PRICES, Array
from fintrader.bars.clean import SymbolBars
from fintrader.bars.corporate_actions import accumulate_growth
from fintrader.errors import MarketError
from fintrader.market.market_file import ARRAYS
from fintrader.system import read_into, write_at

BLOCK_BYTES = 16 << 20
_STRETCH = 1 << 14
_MOST_FILES = 64
"""Least number of bars in one scratch file, and largest number of scratch files."""
CELLS = (*PRICES, "volume", "tradable", "features")
"""Arrays with a value for each bar and symbol."""


class Sheet:
    """An array `[T, ...]` whose rows are read on access, in blocks; the last block stays in memory
    for the next slice."""

    def __init__(
        self, shape: tuple[int, ...], read: Callable[[int, int], Array], block: int
    ) -> None:
        self.shape = shape
        self._read = read
        self._block = block
        self._first = 0
        self._rows = read(0, 0)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        """Return the rows of a slice without a step; do not write to them."""
        start, stop, _ = rows.indices(len(self))
        stop = max(start, stop)
        if not self._first <= start <= stop <= self._first + len(self._rows):
            self._rows = self._read(start, min(max(stop, start + self._block), len(self)))
            self._first = start
        return self._rows[start - self._first : stop - self._first]


class ColumnStore:
    """Columns on disk, one for each symbol, numbered from 0, with `bars` bars each. A column may be
    overwritten."""

    def __init__(self, folder: Path | None, bars: int, features: int) -> None:
        """folder: for the scratch files, None for the system's temporary folder; bars: T; features:
        F."""
        self.bars = bars
        self.features = features
        self._folder = folder
        self.slots: Sequence[int] = ()
        """Numbers of the columns of the market's symbols, in the market's order; set once the
        symbols are chosen."""
        self._kinds = {
            name: (np.dtype(ARRAYS[name]), features if name == "features" else 1) for name in CELLS
        }
        self._stretch = max(_STRETCH, -(-bars // _MOST_FILES))
        self._offset = {}
        self._size = 0
        for name, (kind, width) in self._kinds.items():
            self._offset[name] = self._size
            self._size += min(self._stretch, bars) * width * kind.itemsize
        self._growth: dict[int, tuple[Array, Array]] = {}
        stretches = range(-(-bars // self._stretch))
        # each file stays open until its bars are in the market
        self._files = [
            tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            for _ in stretches
        ]

    def __len__(self) -> int:
        return self.bars

    def __enter__(self) -> ColumnStore:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def forget(self, bar: int) -> None:
        """Free the scratch files of the bars before `bar`, which must not be read again."""
        for file in self._files[: bar // self._stretch]:
            file.close()

    def fill(
        self,
        slot: int,
        bars: SymbolBars,
        features: Array,
        events: Sequence[tuple[int, float, float]] = (),
    ) -> None:
        """Write or overwrite a whole column. Where the symbol has no bar, volume and tradable are
        0, and all other values NaN.

        features: `[L, F]`; events: (bar, split, dividend in USD) in order of time, each after a bar
        with a price.
        """
        from fintrader.bars import kernels

        whole = {name: getattr(bars, name) for name in CELLS[:-1]} | {"features": features}
        for name, values in whole.items():
            kind = self._kinds[name][0]
            absent = np.nan if name not in ("volume", "tradable") else 0
            column = np.full((self.bars, *values.shape[1:]), absent, dtype=kind)
            if name == "features":
                kernels.copy_by_row(values, column[bars.first : bars.stop])
            else:
                column[bars.first : bars.stop] = values
            self._put(slot, name, column)
            if name == "close":
                self._growth[slot] = accumulate_growth(events, column)

    def put_feature(self, slot: int, number: int, values: Array) -> None:
        """Overwrite the feature of this number in a column; values: `[T]`."""
        table = self._get(slot, "features", 0, self.bars)
        table[:, number] = values
        self._put(slot, "features", table)

    def adjusted_close(self, slot: int) -> Array:
        """Read `[T]` float32: a column's closes, adjusted forward; NaN where it has no price."""
        return self._adjusted(slot, "close", 0, self.bars)

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Read the bars `[start, stop)` of an array (one of `CELLS`) for the market's symbols: `[B,
        N]`, features `[B, N, F]`."""
        kind, width = self._kinds[name]
        shape = (stop - start, len(self.slots), width)
        block = np.empty(shape if name == "features" else shape[:2], dtype=kind)
        for column, slot in enumerate(self.slots):
            block[:, column] = self._get(slot, name, start, stop)
        return block

    def adjusted(self, name: str) -> Sheet:
        """Return `[T, N]` float32: `open` or `close`, adjusted forward so that its changes are
        returns."""

        def read(start: int, stop: int) -> Array:
            block = np.empty((stop - start, len(self.slots)), dtype=np.float32)
            for column, slot in enumerate(self.slots):
                block[:, column] = self._adjusted(slot, name, start, stop)
            return block

        return Sheet((self.bars, len(self.slots)), read, self.block(4))

    def table(self) -> Sheet:
        """Return `[T, N, F]` float32: the features of the market's symbols."""
        shape = (self.bars, len(self.slots), self.features)
        return Sheet(
            shape,
            lambda start, stop: self.rows("features", start, stop),
            self.block(4 * self.features),
        )

    def block(self, cell_bytes: int | None = None) -> int:
        """Return the number of bars that need about `BLOCK_BYTES`; cell_bytes: bytes for each bar
        and symbol, by default those of all arrays."""
        width = len(self.slots) * (24 + 4 * self.features if cell_bytes is None else cell_bytes)
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
            for number, file in enumerate(self._files):
                rows = values[number * self._stretch : (number + 1) * self._stretch]
                part = memoryview(rows.reshape(-1).view(np.uint8).data)
                offset = slot * self._size + self._offset[name]
                write_at(file.fileno(), part, offset)
        except OSError as error:
            raise MarketError(
                f"{tempfile.gettempdir() if self._folder is None else self._folder}: no room to"
                f" build the market ({error.strerror or error}); free some space, or choose another"
                " cache"
            ) from None

    def _get(self, slot: int, name: str, start: int, stop: int) -> Array:
        kind, width = self._kinds[name]
        values = np.empty((stop - start, width) if name == "features" else stop - start, dtype=kind)
        for number in range(start // self._stretch, -(-stop // self._stretch)):
            first = number * self._stretch
            low = max(start, first)
            high = min(stop, first + self._stretch)
            part = values[low - start : high - start]
            offset = slot * self._size + self._offset[name] + (low - first) * width * kind.itemsize
            if read_into(self._files[number].fileno(), part.data, offset) != part.nbytes:
                raise MarketError(
                    "the build's scratch file was cut short; run the same command again"
                )
        return values
