"""Comparison of two sets of bars: their agreement, their differences, and explanations of these.

Both sets are put on the calendar's grid; shorter bars are aggregated to the length of the longer
ones inside each session, so that minute bars compare with days. A *bar* is a symbol's row at one
time, a *cell* one column of it. Prices differ by `10^4 (b / a - 1)` bps, volumes by
`10^4 (b - a) / max(a, b)`, which is bounded. A bar agrees when its prices do, within a tolerance;
volumes of two vendors seldom do.

Possible explanations are named, never applied: a scale (a split, cents), a volume in lots, shifted
times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from fintrader.bars.bars import COLUMNS, Array, Bars, bar_length
from fintrader.bars.calendar import SessionGrid, session_date, session_grid
from fintrader.bars.clean import aggregate_to_grid
from fintrader.bars.detect import detect
from fintrader.bars.sources.listing import find_file_kind
from fintrader.config import Settings
from fintrader.errors import BarError, DataError
from fintrader.market.inspect import read_source
from fintrader.market.settings import DataSettings, read_settings

if TYPE_CHECKING:
    from fintrader.market.tensors import MarketTensors

SCALED = 0.01
SCALED_VOLUME = 3.0
"""Least difference that counts as another scale: 1 % for prices, a factor of 3 for volumes (vendors
differ by less)."""
EXPLAINS = 0.5
BETTER = 0.3
FEWEST = 10
"""A lag explains a session if a share of at least EXPLAINS of its cells, and of at least FEWEST
cells, agrees at that lag, BETTER more than without it."""
LAG_MINUTES = (1, 2, 5, 15, 30, 60, 120, 180, 240, 300)


class Side(NamedTuple):
    """One of the two sets of bars."""

    name: str
    bars: Bars


class CompareSettings(Settings):
    """Settings of a comparison of two sets of bars."""

    tolerance_bps: float = 0.1
    """Largest difference of prices that agree; it covers rounding to four decimals and to
    float32."""
    calendar: str = "XNAS"
    """Calendar of files; configurations and built markets name theirs."""
    timezone: str | None = None
    """Zone of times in files that carry none; detected unless set."""


@dataclass(frozen=True)
class Suspicion:
    """A possible explanation of a symbol's differences in the sessions `first` to `last`."""

    kind: str
    """`scale`, `volume_scale` or `shift`."""
    symbol: str
    first: str
    last: str
    sessions: int
    value: float
    """Ratio B / A; of a `shift`, minutes (of daily bars: sessions) by which B is later."""
    detail: str


@dataclass(frozen=True)
class ColumnDifference:
    """Differences of one column, absolute except for the mean; None without a common cell."""

    cells: int
    agree: float | None = None
    """Share of the cells within the tolerance."""
    median_bps: float | None = None
    p99_bps: float | None = None
    largest_bps: float | None = None
    mean_bps: float | None = None


@dataclass(frozen=True)
class SymbolDifference:
    """Numbers of bars of one symbol, and its differences by column."""

    symbol: str
    both: int
    agree: int
    only_a: int
    only_b: int
    columns: dict[str, ColumnDifference]


@dataclass(frozen=True)
class SideSummary:
    """Size of one side: rows read, and bars on the common grid."""

    name: str
    rows: int
    bars: int
    symbols: int
    repeated: int


@dataclass(frozen=True)
class BarComparison:
    """Two sets of bars compared cell by cell, on the days that both span."""

    a: SideSummary
    b: SideSummary
    calendar: str
    bar_minutes: int
    tolerance_bps: float
    sessions: tuple[str, ...]
    symbols: tuple[str, ...]
    symbols_only_a: tuple[str, ...]
    symbols_only_b: tuple[str, ...]
    both: int
    agree: int
    only_a: int
    only_b: int
    """`both`, `agree`, `only_a` and `only_b` are numbers of bars."""
    columns: dict[str, ColumnDifference]
    by_symbol: tuple[SymbolDifference, ...]
    suspicions: tuple[Suspicion, ...]
    days: dict[str, tuple[tuple[float | None, ...], ...]]
    """Tables `[symbols][sessions]`: `agree` (share of the bars of either that agree), `only_a`,
    `only_b` (bars), and for each column the largest absolute difference in bps (None where there is
    nothing to compare)."""

    @property
    def bars(self) -> int:
        """Bars that at least one side has."""
        return self.both + self.only_a + self.only_b


# --- reading --------------------------------------------------------------------------------------


def open_side(source: str, settings: CompareSettings, cache: Path) -> tuple[Side, str]:
    """Read the bars of a built market (`.safetensors`), of files, or of a configuration's source;
    return their calendar too.

    Raises ConfigError or DataError (BarError) where they cannot be read.
    """
    path = Path(source)
    if path.suffix == ".safetensors":
        from fintrader.market.tensors import MarketTensors  # needs torch

        market = MarketTensors.load(path)
        return Side(path.parent.name, _market_bars(market)), str(
            market.provenance.calendar or settings.calendar
        )
    if find_file_kind(source) or path.is_dir() or any(mark in source for mark in "*?["):
        zone = {} if settings.timezone is None else {"timezone": settings.timezone}
        found = detect(source, calendar=settings.calendar, known=zone)
        chosen = DataSettings(path=source, source=found.settings(), calendar=settings.calendar)
        return Side(path.name, read_source(chosen)), settings.calendar
    chosen = read_settings(source).effective()
    return Side(path.stem, read_source(chosen, cache)), chosen.calendar


def _market_bars(market: MarketTensors) -> Bars:
    """The bars in which a symbol traded."""
    at, symbol = np.nonzero(market.to_numpy("tradable"))
    columns: Any = {name: market.to_numpy(name)[at, symbol].astype(np.float64) for name in COLUMNS}
    return Bars(
        ts=market.to_numpy("minutes")[at],
        symbol=symbol.astype(np.int32),
        symbols=market.symbols,
        origin="the market",
        **columns,
    ).sorted()


# --- comparing ------------------------------------------------------------------------------------


def compare_bars(
    a: Side, b: Side, calendar: str = "XNAS", *, tolerance_bps: float = 0.1
) -> BarComparison:
    """Compare two sets of bars. Raises DataError when they have no day or no symbol in common."""
    grid = _common_grid(a, b, calendar)
    symbols = sorted(set(a.bars.symbols) & set(b.bars.symbols))
    if not symbols:
        raise DataError(
            f"{a.name} and {b.name} have no symbol in common; rename those of one of them"
        )
    merged = [_merge(side, grid) for side in (a, b)]
    rows: list[SymbolDifference] = []
    suspicions: list[Suspicion] = []
    gathered: dict[str, list[Array]] = {name: [] for name in COLUMNS}
    days: dict[str, tuple[tuple[float | None, ...], ...]] = {}
    for symbol in symbols:
        ours, theirs = (_dense(bars, symbol, grid.num_bars) for bars in merged)
        pair = _Symbol(symbol, ours, theirs, grid, tolerance_bps)
        rows.append(pair.summarise())
        for name, values in pair.by_session().items():
            days[name] = (*days.get(name, ()), values)
        for name in COLUMNS:
            gathered[name].append(pair.known(name).astype(np.float32))
        suspicions += pair.find_suspicions()
    numbers = ("both", "agree", "only_a", "only_b")
    return BarComparison(
        a=_summarise(a, merged[0]),
        b=_summarise(b, merged[1]),
        calendar=calendar,
        bar_minutes=grid.bar_minutes,
        tolerance_bps=tolerance_bps,
        sessions=tuple(str(day) for day in grid.dates),
        symbols=tuple(symbols),
        symbols_only_a=tuple(sorted(set(a.bars.symbols) - set(symbols))),
        symbols_only_b=tuple(sorted(set(b.bars.symbols) - set(symbols))),
        **{name: sum(getattr(row, name) for row in rows) for name in numbers},
        columns={
            name: _measure_column(np.concatenate(gathered[name]), tolerance_bps) for name in COLUMNS
        },
        by_symbol=tuple(rows),
        suspicions=tuple(suspicions),
        days=days,
    )


def _summarise(side: Side, merged: Bars) -> SideSummary:
    bars = side.bars
    repeated = int(bars.repeats().sum())
    return SideSummary(side.name, len(bars), len(merged), len(bars.symbols), repeated)


def _common_grid(a: Side, b: Side, calendar: str) -> SessionGrid:
    """Lay the sessions that both sides span, in the longer of their two bar lengths."""
    spans = []
    for side in (a, b):
        if len(side.bars) == 0:
            raise BarError(f"{side.name}: holds no bar; check its path and dates")
        spans.append(
            [session_date(calendar, int(ts)) for ts in (side.bars.ts.min(), side.bars.ts.max())]
        )
    starts, ends = zip(*spans, strict=True)
    first = max(starts)
    last = min(ends)
    if last < first:
        raise DataError(
            f"{a.name} ({starts[0]} to {ends[0]}) and {b.name} ({starts[1]} to {ends[1]}) have no"
            " day in common; choose others"
        )
    grid = session_grid(calendar, first, last)
    # a daily bar is as long as a session, though daily bars are a day apart
    longest = int(grid.session_minutes.max())
    minutes = max(bar_length(side.bars.sorted(), longest) for side in (a, b))
    return session_grid(calendar, first, last, min(minutes, longest))


def _merge(side: Side, grid: SessionGrid) -> Bars:
    """Aggregate the rows inside sessions to the grid's bars; `ts` becomes the bar's number."""
    bars = side.bars.sorted()
    bars = bars.take(grid.locate(bars.ts) >= 0)
    if len(bars) == 0:
        raise BarError(
            f"{side.name}: no bar is in the sessions of {grid.calendar}; check the time zone"
        )
    return aggregate_to_grid(bars, grid)[0]


def _dense(merged: Bars, symbol: str, num_bars: int) -> Array:
    """`[T, 5]` float64: open, high, low, close, volume of one symbol, NaN where it has no bar."""
    code = merged.symbols.index(symbol)
    first, stop = np.searchsorted(merged.symbol, [code, code + 1])
    table = np.full((num_bars, len(COLUMNS)), np.nan)
    table[merged.ts[first:stop]] = np.column_stack(
        [getattr(merged, name)[first:stop] for name in COLUMNS]
    )
    return table


def differences_bps(ours: Array, theirs: Array) -> Array:
    """`[T, 5]`, NaN where either has no value: see the module."""
    with np.errstate(divide="ignore", invalid="ignore"):
        prices = 1e4 * (theirs[:, :4] / ours[:, :4] - 1)
        most = np.maximum(ours[:, 4], theirs[:, 4])
        volume = np.where(most == 0, 0.0, 1e4 * (theirs[:, 4] - ours[:, 4]) / most)
    return np.column_stack([prices, volume])


@dataclass
class _Symbol:
    """One symbol of both sides, `[T, 5]` each, on the grid."""

    symbol: str
    ours: Array
    theirs: Array
    grid: SessionGrid
    tolerance: float

    def __post_init__(self) -> None:
        self.bps = differences_bps(self.ours, self.theirs)
        here, there = (np.isfinite(side[:, 3]) for side in (self.ours, self.theirs))
        # a value missing on one side is NaN and counts as no difference
        apart = (np.abs(self.bps[:, :4]) > self.tolerance).any(axis=1)
        self.masks = {
            "both": here & there,
            "agree": here & there & ~apart,
            "only_a": here & ~there,
            "only_b": there & ~here,
        }

    def known(self, column: str) -> Array:
        """The differences in bps of all bars that have this column on both sides."""
        values = self.bps[:, COLUMNS.index(column)]
        return values[np.isfinite(values)]

    def summarise(self) -> SymbolDifference:
        """Count the bars, and measure the differences by column."""
        return SymbolDifference(
            symbol=self.symbol,
            **{name: int(which.sum()) for name, which in self.masks.items()},
            columns={name: _measure_column(self.known(name), self.tolerance) for name in COLUMNS},
        )

    def by_session(self) -> dict[str, tuple[float | None, ...]]:
        """Return one row of each table in `BarComparison.days`."""
        both, agree, only_a, only_b = map(self._sum_by_session, self.masks.values())
        bars = both + only_a + only_b
        share = np.divide(agree, bars, out=np.full(len(bars), np.nan), where=bars > 0)
        largest = np.fmax.reduceat(np.abs(self.bps), self.grid.first_bar[:-1])
        return {
            "agree": _round(share, 4),
            "only_a": tuple(only_a.tolist()),
            "only_b": tuple(only_b.tolist()),
            **{name: _round(largest[:, k], 3) for k, name in enumerate(COLUMNS)},
        }

    def _sum_by_session(self, which: Array) -> Array:
        return np.add.reduceat(which.astype(np.int64), self.grid.first_bar[:-1])

    def find_suspicions(self) -> Iterator[Suspicion]:
        """Find sessions on which all prices, or the volumes, differ by about one ratio, and those
        on which B agrees with A at another time (no ratio is sought there)."""
        lags = self._find_lags()
        shifts = _runs(lags, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(self.theirs / self.ours)
        for kind, name, columns, least, spread, apart in (
            ("scale", "prices", slice(4), SCALED, 0.3, 0.1),
            ("volume_scale", "volumes", slice(4, 5), np.log(SCALED_VOLUME), 0.5, 1.0),
        ):
            centre = np.full(self.grid.num_sessions, np.nan)
            for day, cells in enumerate(np.split(ratios[:, columns], self.grid.first_bar[1:-1])):
                found = cells[np.isfinite(cells)]
                middle = float(np.median(found)) if len(found) else 0.0
                # another scale affects all cells, a wrong price only some of them
                if abs(middle) > least and np.quantile(np.abs(found - middle), 0.9) < spread * abs(
                    middle
                ):
                    centre[day] = middle
            for days in shifts:
                centre[days[0] : days[-1] + 1] = np.nan
            for days in _runs(centre, apart):
                ratio = float(np.exp(np.median(centre[days])))
                yield self._suspect(kind, days, ratio, f"B's {name} are {ratio:.4g} times A's")
        unit, length = ("session", 1) if self._is_daily else ("minute", self.grid.bar_minutes)
        for days in shifts:
            value = lags[days[0]] * length
            how = f"{abs(value):.0f} {unit}{'s' if abs(value) > 1 else ''}"
            way = "later" if value > 0 else "earlier"
            yield self._suspect("shift", days, value, f"B's bars are {how} {way} than A's")

    @property
    def _is_daily(self) -> bool:
        return self.grid.num_bars == self.grid.num_sessions

    def _find_lags(self) -> Array:
        """`[S]`: lag in bars by which B is later than A, for sessions that agree at that lag and
        not in place; else NaN."""
        lags = np.full(self.grid.num_sessions, np.nan)
        best = self._measure_agreement(0) + BETTER
        if not (best < 1).any():
            return lags
        length = self.grid.bar_minutes
        steps = (1, 2) if self._is_daily else [m // length for m in LAG_MINUTES if m % length == 0]
        for lag in (sign * step for step in steps for sign in (1, -1)):
            share = self._measure_agreement(lag)
            more = (share >= EXPLAINS) & (share > best)
            best = np.where(more, share, best)
            lags = np.where(more, lag, lags)
        return lags

    def _measure_agreement(self, lag: int) -> Array:
        """`[S]`: share of the price cells within 1 bp (or the tolerance, if larger) if B is read
        `lag` bars later; for daily bars, over the FEWEST sessions around each. NaN with too few
        cells."""
        moved = pd.DataFrame(self.theirs).shift(-lag).to_numpy()
        bps = differences_bps(self.ours, moved)[:, :4]
        cells = self._sum_by_session(np.isfinite(bps).sum(axis=1))
        good = self._sum_by_session((np.abs(bps) <= max(self.tolerance, 1.0)).sum(axis=1))
        if self._is_daily:
            around = np.ones(min(FEWEST, len(cells)))
            cells, good = (np.convolve(values, around, mode="same") for values in (cells, good))
        return np.where(cells >= FEWEST, good / np.maximum(cells, 1), np.nan)

    def _suspect(self, kind: str, days: Array, value: float, detail: str) -> Suspicion:
        first, last = (str(self.grid.dates[day]) for day in (days[0], days[-1]))
        return Suspicion(kind, self.symbol, first, last, len(days), float(value), detail)


def _round(values: Array, digits: int) -> tuple[float | None, ...]:
    """Round the numbers; None in place of NaN."""
    return tuple(round(one, digits) if np.isfinite(one) else None for one in values.tolist())


def _runs(values: Array, apart: float) -> list[Array]:
    """Split the sessions with a value into runs. A new run begins where the value differs from the
    run's first by more than `apart`, or after a gap of 5 sessions or more."""
    days = np.flatnonzero(np.isfinite(values))
    runs: list[list[int]] = []
    for day in days.tolist():
        if runs and abs(values[day] - values[runs[-1][0]]) <= apart and day - runs[-1][-1] <= 5:
            runs[-1].append(day)
        else:
            runs.append([day])
    return [np.array(run) for run in runs]


def _measure_column(bps: Array, tolerance_bps: float) -> ColumnDifference:
    """Measure the differences of a column."""
    if not len(bps):
        return ColumnDifference(0)
    size = np.abs(bps)
    numbers = (
        (size <= tolerance_bps).mean(),
        np.median(size),
        np.quantile(size, 0.99),
        size.max(),
        bps.mean(dtype=np.float64),
    )
    return ColumnDifference(len(bps), *(round(float(number), 4) for number in numbers))
