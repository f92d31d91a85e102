"""Cleaning: raw bars become bars on the exchange's grid.

Repaired, counted and logged: rows out of order (sorted), exact duplicates (one is kept), rows while
the exchange is closed (left out), a high or low that the bar's own open or close exceeds (widened
to hold them), rows without a price (left out). Refused with a BarError that names file, row, column
and remedy: two different rows for one symbol and time, a price that is zero, negative or not
finite, a negative volume, a bar from the future, and data most of which lies outside the exchange's
hours. A range with its low above the high is widened, too; many stop a build at the gate.
`evidence` checks bars against their declared label, length and zone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fintrader.bars.bars import COLUMNS, PRICES, Array, Bars
from fintrader.bars.calendar import SessionGrid
from fintrader.errors import BarError

if TYPE_CHECKING:
    import pandas as pd

REPAIRS = {
    "empty_rows": "rows without a price were left out",
    "shuffled_rows": "rows out of order were sorted",
    "exact_duplicates": "rows that repeat another exactly were dropped",
    "outside_session": "rows while the exchange is closed were left out",
    "extended_hours": (
        "rows before the open or after the close were left out (data.hours: extended keeps them)"
    ),
    "opening_print": "opening prints were made part of the first bar",
    "ohlc_widened": "bars whose high or low did not hold their open and close were widened",
}


@dataclass(frozen=True, eq=False)
class SymbolBars:
    """One symbol on the grid, from its first bar to its last (or to the end of the grid if it goes
    on), `L` bars. Of several symbols with the same bars the arrays are `[N, L]`, `session` and
    `time` still `[L]`.

    Bars without a trade carry the last past close in all four prices, volume 0 and `tradable`
    False.
    """

    symbol: str
    first: int
    """Bar of the grid at which it begins."""
    ended: bool
    """Its bars stop for good at least one full session before the grid's end."""
    open: Array
    """`[L]` float64, USD; `high`, `low` and `close` likewise."""
    high: Array
    low: Array
    close: Array
    volume: Array
    """`[L]` float64, shares."""
    tradable: Array
    """`[L]` bool."""
    session: Array
    """`[L]` int64, number of the session."""
    extras: Mapping[str, Array]
    """`[L]` float64 each, the last value known at each bar."""
    time: pd.DatetimeIndex
    """`[L]`: start of each bar, in the exchange's time zone."""
    skipped: int = 0
    """Number of its bars before the first of these (`since`)."""
    wanted: int = 0
    """Number of last bars of which features are asked for; 0: of all."""

    @cached_property
    def steps(self) -> Array:
        """`[L]`: the logarithm of close / close before; 0 at the first bar."""
        return np.diff(np.log(self.close), prepend=np.log(self.close[..., :1]))

    def since(self, row: int) -> SymbolBars:
        """The bars from `row` on, as views."""
        names = [*COLUMNS, "tradable", "session", *(["time"] if len(self.time) else [])]
        part = {name: getattr(self, name)[..., row:] for name in names}
        extras = {name: values[..., row:] for name, values in self.extras.items()}
        cut = replace(self, **part, extras=extras, skipped=self.skipped + row)
        vars(cut)["steps"] = self.steps[..., row:]
        return cut

    def to_pandas(self) -> pd.DataFrame:
        """Return prices (adjusted forward), volume and extra columns as a table; index: `time`."""
        import pandas as pd  # settings of features load none

        columns = {name: getattr(self, name) for name in COLUMNS}
        return pd.DataFrame(columns | dict(self.extras), index=self.time)

    def until(self, row: int) -> SymbolBars:
        """Copy the bars before `row`, as if the symbol went on."""
        names = [*COLUMNS, "tradable", "session", "time"]
        cut = {name: getattr(self, name)[:row].copy() for name in names}
        extras = {name: values[:row].copy() for name, values in self.extras.items()}
        return replace(self, **cut, extras=extras, ended=False)

    def __len__(self) -> int:
        return int(self.close.shape[-1])

    @property
    def stop(self) -> int:
        """The bar of the grid after its last one."""
        return self.first + len(self)


def clean(bars: Bars) -> tuple[Bars, dict[str, int]]:
    """Sort rows, drop duplicates and widen ranges; returns also the number of repairs by kind
    (`REPAIRS`). Raises BarError (see the module)."""
    counts = dict.fromkeys(REPAIRS, 0)
    rows = len(bars)
    bars = bars.without_empty()
    counts["empty_rows"] = rows - len(bars)
    refuse_bad_rows(bars)
    if not bars.is_sorted():
        backwards = (np.diff(bars.ts) < 0) & (np.diff(bars.symbol) == 0)
        counts["shuffled_rows"] = int((backwards | (np.diff(bars.symbol) < 0)).sum())
        bars = bars.sorted()
    again = bars.repeats()
    if again.any():
        differs = bars.contradictions()
        if differs.any():
            raise BarError(
                f"{bars.where(int(differs.argmax()))}: a second, different row for the same symbol"
                f" and time ({differs.sum()} such); keep one of them, or the first of all by"
                " data.waive: [conflicting_duplicate]"
            )
        counts["exact_duplicates"] = int(again.sum())
        bars = bars.take(~again)
    high = np.maximum(bars.open, bars.close)
    low = np.minimum(bars.open, bars.close)
    np.maximum(high, np.maximum(bars.high, bars.low), out=high)
    np.minimum(low, np.minimum(bars.high, bars.low), out=low)
    counts["ohlc_widened"] = int(np.count_nonzero((high != bars.high) | (low != bars.low)))
    return replace(bars, high=high, low=low), counts


def to_grid(bars: Bars, grid: SessionGrid) -> tuple[Bars, dict[str, int]]:
    """Aggregate sorted bars to the grid's bars (`put_together`): `ts` becomes the number of the
    bar. Returns also the number of rows left out, by kind (`REPAIRS`).

    Raises BarError when more than half of the rows lie outside the sessions and the exchange's
    extended hours.
    """
    at = grid.locate(bars.ts)
    inside = at >= 0
    outside = bars.ts[~inside]
    around = int(np.count_nonzero(grid.early_or_late(outside)))
    left_out = {"extended_hours": around, "outside_session": len(outside) - around}
    if len(bars) and left_out["outside_session"] * 2 > len(bars):
        raise BarError(
            f"{bars.origin}: {left_out['outside_session']} of {len(bars)} rows lie outside the"
            f" sessions of {grid.calendar}; check data.source.timezone, data.source.label and"
            " data.calendar"
        )
    if len(outside):
        bars = bars.take(inside)
        at = at[inside]
    return put_together(replace(bars, ts=at, row=None)), left_out


def put_together(bars: Bars) -> Bars:
    """Put sorted rows of one symbol and time together: open of the first row, highest high, lowest
    low, close of the last row, summed volume, last value of the extras."""
    again = bars.repeats()
    if not again.any():
        return bars
    start = np.flatnonzero(~again)
    last = np.append(start[1:], len(bars)) - 1
    return replace(
        bars,
        ts=bars.ts[start],
        symbol=bars.symbol[start],
        open=bars.open[start],
        high=np.maximum.reduceat(bars.high, start),
        low=np.minimum.reduceat(bars.low, start),
        close=bars.close[last],
        volume=np.add.reduceat(bars.volume, start),
        extras={name: values[last] for name, values in bars.extras.items()},
        row=None,
    )


def symbol_bars(merged: Bars, grid: SessionGrid, sessions_over: int) -> SymbolBars:
    """Carry the last close through the silent bars of one symbol.

    `merged` comes from `to_grid` and holds at least one bar. The symbol has ended when at least one
    whole session at the end holds no bar of it. `sessions_over` is the number of sessions that the
    data reaches through: a session that is still running proves
    nothing.
    """
    from fintrader.bars import kernels

    at = merged.ts
    first = int(at[0])
    last = int(at[-1])
    ended = bool(grid.session[last] < sessions_over - 1)
    stop = last + 1 if ended else grid.num_bars
    length = stop - first
    columns = (np.ascontiguousarray(getattr(merged, name), dtype=np.float64) for name in COLUMNS)
    open_, high, low, close, volume, tradable = kernels.on_grid(at, length, *columns)
    extras = {}
    if merged.extras:
        known = np.cumsum(tradable) - 1  # index of the last row at or before each bar
        extras = {name: values[known] for name, values in merged.extras.items()}
    return SymbolBars(
        symbol=merged.symbols[0],
        first=first,
        ended=ended,
        tradable=tradable,
        session=grid.session[first:stop],
        time=grid.times[first:stop],
        extras=extras,
        open=open_,
        high=high,
        low=low,
        close=close,
        volume=volume,
    )


_SMALLEST = 1e-12
_LARGEST = 1e15
"""Prices outside [_SMALLEST, _LARGEST] are mistakes, as are volumes above _LARGEST; a market's
float32 holds all prices between."""


def refuse_bad_rows(bars: Bars) -> None:
    """Raise BarError for the first impossible price, volume, extra value or time."""
    if len(bars) and bars.ts.max() > time.time() * 1e9:
        raise BarError(
            f"{bars.where(int(bars.ts.argmax()))}: the bar lies in the future; correct its time or"
            " remove the row"
        )
    refuse_bad_values(bars)


def refuse_bad_values(bars: Bars, *, zoned: bool = True) -> None:
    """Raise BarError for the first impossible price, volume or extra value of a row that has a
    price; without `zoned` its message shows the time as it was read."""
    bars = bars.without_empty()

    def refuse(name: str, values: Array, lowest: float, highest: float, why: str) -> None:
        # NaN is neither; the extremes take no memory.
        if len(values) == 0 or (values.min() >= lowest and values.max() <= highest):
            return
        bad = ~((values >= lowest) & (values <= highest))
        row = int(bad.argmax())
        raise BarError(
            f"{bars.where(row, zoned=zoned)}, column {name!r}: {values[row]}"
            f" {why.format(int(bad.sum()))}"
        )

    for name in PRICES:
        why = "is no price ({} such); correct the rows or remove them"
        refuse(name, getattr(bars, name), _SMALLEST, _LARGEST, why)
    why = "is no volume ({} such); correct the rows or remove them"
    refuse("volume", bars.volume, 0.0, _LARGEST, why)
    most = float(np.finfo(np.float64).max)
    for name, values in bars.extras.items():
        refuse(
            name,
            np.where(np.isnan(values), 0.0, values),
            -most,
            most,
            "is not finite; correct or remove the row",
        )
