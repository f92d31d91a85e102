"""Cleaning: raw bars become bars on the exchange's grid.

Repaired and counted: rows out of order (sorted), exact duplicates (one row is kept), rows outside
of trading hours (left out), rows without a price (left out), and an open or close outside of its
bar's low and high, or a low above the high (the range is widened to include all four prices; if
more than 1 % of a symbol's lows lie above the highs, `bars.checks.gates` stops the build).

Refused with a BarError that names the remedy and, for a single bad row, its file and number: two
different rows for one symbol and time, a price that is zero, negative or not finite, a negative
volume, a bar from the future, and data that lies mostly outside the exchange's hours.

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
    "outside_session": "rows outside of trading hours were left out",
    "extended_hours": (
        "rows before the open or after the close were left out (data.hours: extended keeps them)"
    ),
    "opening_print": "opening prints were made part of the first bar",
    "ohlc_widened": "bars whose open or close lay outside of low and high were widened",
}


@dataclass(frozen=True, eq=False)
class SymbolBars:
    """One symbol's bars on the grid, `L` bars from its first to its last, or to the end of the grid
    if the symbol is still listed. For several symbols with the same bars the arrays are `[N, L]`,
    except `session` and `time`, which stay `[L]`.

    A bar without a trade has the last earlier close as all four prices, volume 0 and `tradable`
    False.
    """

    symbol: str
    first: int
    """Number of the grid's bar at which the symbol begins."""
    ended: bool
    """True where the symbol's bars stop at least one whole session before the data ends."""
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
    """Name -> `[L]` float64: the last value known at each bar."""
    time: pd.DatetimeIndex
    """`[L]`: start of each bar, in the exchange's time zone."""
    skipped: int = 0
    """Number of the symbol's earlier bars that `since` left out."""
    wanted: int = 0
    """Number of last bars for which features are needed; 0: all bars."""

    @cached_property
    def steps(self) -> Array:
        """`[L]`: log return of each bar, ln(close / close before); 0 at the first bar."""
        return np.diff(np.log(self.close), prepend=np.log(self.close[..., :1]))

    def since(self, row: int) -> SymbolBars:
        """Return the bars from number `row` on, as views of the same arrays."""
        names = [*COLUMNS, "tradable", "session", *(["time"] if len(self.time) else [])]
        part = {name: getattr(self, name)[..., row:] for name in names}
        extras = {name: values[..., row:] for name, values in self.extras.items()}
        cut = replace(self, **part, extras=extras, skipped=self.skipped + row)
        vars(cut)["steps"] = self.steps[..., row:]
        return cut

    def to_pandas(self) -> pd.DataFrame:
        """Return prices, volume and extra columns as a table with the index `time`."""
        import pandas as pd  # imported here: settings load this module, and not pandas

        columns = {name: getattr(self, name) for name in COLUMNS}
        return pd.DataFrame(columns | dict(self.extras), index=self.time)

    def until(self, row: int) -> SymbolBars:
        """Copy the bars before number `row`, as of a symbol that is still listed."""
        names = [*COLUMNS, "tradable", "session", "time"]
        cut = {name: getattr(self, name)[:row].copy() for name in names}
        extras = {name: values[:row].copy() for name, values in self.extras.items()}
        return replace(self, **cut, extras=extras, ended=False)

    def __len__(self) -> int:
        return int(self.close.shape[-1])

    @property
    def stop(self) -> int:
        """Number of the grid's bar after the symbol's last one."""
        return self.first + len(self)


def clean(bars: Bars) -> tuple[Bars, dict[str, int]]:
    """Sort rows, drop duplicates and rows without a price, and widen ranges; return the bars and
    the number of repairs by kind (`REPAIRS`). Raises BarError for rows that the module's docstring
    lists as refused."""
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
                f"{bars.describe_row(int(differs.argmax()))}: a second, different row for the same"
                f" symbol and time ({differs.sum()} such); keep one of them, or the first of"
                " each by data.waive: [conflicting_duplicate]"
            )
        counts["exact_duplicates"] = int(again.sum())
        bars = bars.take(~again)
    high = np.maximum(bars.open, bars.close)
    low = np.minimum(bars.open, bars.close)
    np.maximum(high, np.maximum(bars.high, bars.low), out=high)
    np.minimum(low, np.minimum(bars.high, bars.low), out=low)
    counts["ohlc_widened"] = int(np.count_nonzero((high != bars.high) | (low != bars.low)))
    return replace(bars, high=high, low=low), counts


def aggregate_to_grid(bars: Bars, grid: SessionGrid) -> tuple[Bars, dict[str, int]]:
    """Aggregate sorted bars to the grid's bars (`merge_rows`); their `ts` becomes the number of the
    grid's bar. Return them and the number of rows left out, by kind (`REPAIRS`).

    Raises BarError when more than half of the rows lie outside of both the sessions and the
    exchange's extended hours.
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
    return merge_rows(replace(bars, ts=at, row=None)), left_out


def merge_rows(bars: Bars) -> Bars:
    """Merge sorted rows with the same symbol and time into one: open of the first row, highest
    high, lowest low, close of the last row, total volume, last value of each extra column."""
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


def fill_silent_bars(merged: Bars, grid: SessionGrid, sessions_over: int) -> SymbolBars:
    """Fill the bars without a trade of one symbol with its last close.

    merged: result of `aggregate_to_grid` for one symbol, with at least one bar. sessions_over:
    number of the grid's sessions that are complete in the data. The symbol counts as ended if it
    has no bar in the last of them; a session that is still running is no evidence.
    """
    first = int(merged.ts[0])
    last = int(merged.ts[-1])
    ended = bool(grid.session[last] < sessions_over - 1)
    stop = last + 1 if ended else grid.num_bars
    tradable = np.zeros(stop - first, dtype=bool)
    tradable[merged.ts - first] = True
    known = np.cumsum(tradable) - 1  # number of the last row at or before each bar
    columns = {name: getattr(merged, name)[known].astype(np.float64) for name in COLUMNS}
    for name in PRICES:
        columns[name] = np.where(tradable, columns[name], columns["close"])
    columns["volume"][~tradable] = 0.0
    return SymbolBars(
        symbol=merged.symbols[0],
        first=first,
        ended=ended,
        tradable=tradable,
        session=grid.session[first:stop],
        time=grid.times[first:stop],
        extras={name: values[known] for name, values in merged.extras.items()},
        **columns,
    )


_SMALLEST = 1e-12
_LARGEST = 1e15
"""Prices outside [_SMALLEST, _LARGEST] and volumes above _LARGEST count as mistakes. The float32 of
a market can represent all prices in between."""


def refuse_bad_rows(bars: Bars) -> None:
    """Raise BarError for the first impossible price, volume, extra value or time."""
    if len(bars) and bars.ts.max() > time.time() * 1e9:
        raise BarError(
            f"{bars.describe_row(int(bars.ts.argmax()))}: the bar lies in the future; correct its"
            " time or remove the row"
        )
    refuse_bad_values(bars)


def refuse_bad_values(bars: Bars, *, zoned: bool = True) -> None:
    """Raise BarError for the first impossible price, volume or extra value in a row that has a
    price. zoned: False where times were read without a zone, so that the message does not call them
    UTC."""
    bars = bars.without_empty()

    def refuse(name: str, values: Array, lowest: float, highest: float, why: str) -> None:
        # two reductions need no memory; with a NaN both comparisons are False
        if len(values) == 0 or (values.min() >= lowest and values.max() <= highest):
            return
        bad = ~((values >= lowest) & (values <= highest))
        row = int(bad.argmax())
        raise BarError(
            f"{bars.describe_row(row, zoned=zoned)}, column {name!r}: {values[row]}"
            f" {why.format(int(bad.sum()))}"
        )

    for name in PRICES:
        why = "is no price ({} such); correct the rows or remove them"
        refuse(name, getattr(bars, name), _SMALLEST, _LARGEST, why)
    why = "is no volume ({} such); correct the rows, remove them, or read no volumes"
    why += " (data.source.columns: {{volume: null}}, or --volume none)"
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
