"""Read bars onto the grid, symbol by symbol and once each, and choose a market's symbols."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fintrader.bars.bars import MINUTE_NS, Array, Bars
from fintrader.bars.calendar import SessionGrid, session_grid
from fintrader.bars.checks.gates import Gate
from fintrader.bars.clean import SymbolBars, aggregate_to_grid, clean, fill_silent_bars
from fintrader.bars.companies import Interval
from fintrader.bars.corporate_actions import (
    add_announced,
    adjust_for_events,
    load_actions,
    place_actions,
    undo_adjustment,
)
from fintrader.bars.evidence import SessionEvidence, has_opening_prints, merge_opening_prints
from fintrader.bars.sources.feed import Feed
from fintrader.bars.sources.layout import FilesSettings
from fintrader.errors import DataError
from fintrader.market import features as ft
from fintrader.market.columns import ColumnStore
from fintrader.market.moving import find_latest
from fintrader.market.planted_in import PlantedInSettings
from fintrader.market.settings import DataSettings, factor_column
from fintrader.market.synthetic import SIGNAL, SyntheticSettings
from fintrader.market.universe import Coverage, choose, member_days
from fintrader.progress import Progress, shorten_list

log = logging.getLogger("fintrader.market")


def list_candidates(
    settings: DataSettings,
    feed: Feed,
    membership: dict[str, list[Interval]] | None,
    grid: SessionGrid,
) -> tuple[dict[str, Array], dict[str, str]]:
    """Map the symbols that may be in the market, sorted, to their member days `[S]` bool, and the
    others to the reasons against them. Reads no bars."""
    universe = settings.universe
    universe.refuse_missing(feed.symbols)
    candidates = sorted(universe.symbols or feed.symbols)
    days = member_days(candidates, membership, grid.dates, {**universe.aliases, **feed.companies})
    member = dict(zip(candidates, days.T, strict=True))
    if not days.any():
        raise DataError(
            f"no symbol of the source was a member from {grid.dates[0]} to {grid.dates[-1]}; check "
            "data.universe.members, tickers_as_of and aliases"
        )
    # symbols that the settings name are kept in any case
    kept = {name: own for name, own in member.items() if own.any() or name in universe.symbols}
    return kept, {name: "never a member in the range" for name in candidates if name not in kept}


def read_all(
    settings: DataSettings,
    reader: Reader,
    candidates: Mapping[str, Array],
    train: tuple[int, int],
    names: Sequence[str],
    columns: ColumnStore,
    progress: Progress,
) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Fill the columns; return the chosen symbols, and symbol -> reason of those left out: for too
    few days, and for anything else. candidates: symbol -> member days `[S]` bool.

    The choice depends on the bars (`universe.min_coverage`, `max_symbols`), and every symbol is
    read once. A symbol with too few bars gets no column. Once `max_symbols` columns are taken, a
    symbol with more turnover replaces the one with the least.
    """
    universe = settings.universe
    grid = reader.grid
    coverage = Coverage(train, grid.session)
    room = min(len(candidates), universe.max_symbols or len(candidates))
    planted = [SIGNAL] if isinstance(settings.source, PlantedInSettings) else []
    later = {*ft.market_wide(settings.features.names), *planted}
    column_of: dict[str, int] = {}
    left_out: dict[str, str] = {}
    with progress.task("features", total=len(candidates), unit="symbols") as task:
        for symbol, member in candidates.items():
            merged = reader.read(symbol)
            task.advance(note=symbol)
            if len(merged) == 0:
                left_out[symbol] = "no bars in the range"
                continue
            coverage.add(symbol, merged.ts, merged.close, merged.volume, member)
            if coverage.share[symbol] < universe.min_coverage:
                continue
            column = len(column_of)
            if column == room:
                last = max((*column_of, symbol), key=coverage.rank)
                if last == symbol:
                    continue
                column = column_of.pop(last)
            column_of[symbol] = column
            happened = place_actions(reader.actions, [symbol], grid)[symbol]
            own = delay_extras(fill_silent_bars(merged, grid, reader.sessions_over), settings, grid)
            held, adjusted, events = adjust_for_events(own, happened, grid)
            reader.events[symbol] = events
            table = ft.symbol_features(adjusted, names, later, np.float32)
            columns.fill(column, held, table, events)
            undefined = ft.count_undefined(names, table, later, own.extras)
            reader.history[symbol] = own.first, own.first + undefined
            reader.ended |= {symbol} if held.ended else set()
    if not coverage.share:
        raise DataError(f"no bar from {grid.dates[0]} to {grid.dates[-1]}; choose other dates")
    kept, sparse, small = choose(universe, coverage)
    columns.slots = [column_of[symbol] for symbol in kept]
    return kept, sparse, left_out | small


def carry_extras(bars: Bars, known_at: Mapping[str, str]) -> Bars:
    """Carry the last value of each extra column through empty cells of one symbol's sorted rows. A
    value whose own time (`known_at`) is empty does not count."""
    extras = {}
    for name, values in bars.extras.items():
        moments = bars.extras.get(known_at.get(name, ""))
        there = ~np.isnan(values) & (True if moments is None else ~np.isnan(moments))
        last = np.maximum.accumulate(np.where(there, np.arange(len(values)), -1))
        extras[name] = np.where(last >= 0, values[last], np.nan)
    return replace(bars, extras=extras)


def start_short_bars(bars: Bars, grid: SessionGrid, settings: DataSettings) -> Bars:
    """Move the starts of bars of files that are stamped with their ends, where a bar is shorter
    than the others (`SessionGrid.start_short_bars`)."""
    source = settings.source
    if not isinstance(source, FilesSettings) or source.label != "end":
        return bars
    return replace(bars, ts=grid.start_short_bars(bars.ts, source.bar_minutes))


def delay_extras(bars: SymbolBars, settings: DataSettings, grid: SessionGrid) -> SymbolBars:
    """Show each extra column as it was known at the close of each bar (`features.known_at`), NaN
    before the first known value.

    Raises DataError where a column of times holds none.
    """
    extras = dict(bars.extras)
    ends = grid.ends[bars.first : bars.stop]
    for name, when in settings.features.known_at.items():
        if name in extras:
            lag = ft.lag_ns(when)
            known = bars.extras[when] if lag is None else ends + lag
            if known.min() < _FIRST_TIME:
                raise DataError(
                    f"{bars.symbol}: column {when!r} of data.features.known_at holds no times;"
                    " write dates like 2024-05-02, or times with a zone"
                )
            visible = np.maximum(np.arange(len(bars)), np.searchsorted(ends, known))
            latest = find_latest(visible, len(bars))
            extras[name] = np.where(latest >= 0, bars.extras[name][latest], np.nan)
    return replace(bars, extras=extras)


_FIRST_TIME = 10 * 365 * 1440 * MINUTE_NS
"""Least number of nanoseconds since 1970 that is taken for a time."""


def read_daily(feed: Feed, symbols: Sequence[str]) -> dict[str, Bars]:
    """Prepare a feed, and read its cleaned daily bars of these symbols. Raises DataError without
    any."""
    feed.prepare()
    names = sorted({*symbols} & {*feed.symbols})
    lacking = sorted({*symbols} - {*names})
    if not names:
        raise DataError(
            f"data.daily has no bars of {shorten_list(lacking)}; its symbols are"
            f" {shorten_list(feed.symbols)}: correct the path"
        )
    if lacking:
        log.warning("data.daily has no bars of %s", shorten_list(lacking))
    return {name: clean(feed.bars(name))[0] for name in names}


def count_finished(grid: SessionGrid, newest: int) -> int:
    """Count the sessions that are over, as far as bars show. newest: start of the newest bar."""
    last = grid.minutes[grid.first_bar[1:] - 1]
    half_hour = 30 * MINUTE_NS  # the last minutes of a session may be silent
    over = (last <= newest) | (last + grid.bar_minutes * MINUTE_NS <= newest + half_hour)
    return int(np.count_nonzero(over))


class Reader:
    """Reader of symbols' bars onto the grid: cleaned, as traded, aggregated. It counts the
    repairs."""

    def __init__(self, settings: DataSettings, feed: Feed, grid: SessionGrid) -> None:
        self.settings = settings
        self.feed = feed
        self.grid = grid
        self.ended: set[str] = set()
        """Symbols whose bars stop for good before the grid's end."""
        self.events: dict[str, list[tuple[int, float, float]]] = {}
        """Bar, split and dividend of each event, by symbol."""
        self.history: dict[str, tuple[int, int]] = {}
        """Each symbol's first bar, and the first with full feature windows."""
        source = settings.source
        files = source if isinstance(source, FilesSettings) else None
        self.is_end_labelled = files is not None and files.label == "end"
        self.evidence = SessionEvidence(
            grid, None if files is None else files.bar_minutes, is_moved=self.is_end_labelled
        )
        self.sessions_over = count_finished(grid, feed.span()[1])
        declared = load_actions(settings.actions, feed.holder)
        self.actions, self.contradictions = add_announced(declared, feed.actions)
        made_up = isinstance(settings.source, SyntheticSettings)
        dates = grid.dates
        regular = grid
        if settings.hours == "extended":  # the gate judges regular hours only
            regular = session_grid(
                settings.calendar, dates[0].item(), dates[-1].item(), settings.bar_minutes
            )
        daily = {} if feed.daily is None else read_daily(feed.daily, feed.symbols)
        self.gate = Gate(regular, settings.waive, self.actions, is_active=not made_up, daily=daily)
        self.repairs: dict[str, dict[str, int]] = {}
        """Number of repaired rows of each symbol, by kind."""
        self.rows: dict[str, int] = {}
        """Number of all rows of each symbol."""
        self._ahead: dict[str, Bars] = {}
        # a wrong zone or label shows in any symbol: refuse it before all else
        first = feed.symbols[0]
        self._ahead[first] = self.read(first)

    def read(self, symbol: str) -> Bars:
        """Read a symbol's sorted rows; `ts` becomes the number of the grid's bar."""
        if symbol in self._ahead:
            return self._ahead.pop(symbol)
        bars, counts = clean(self.gate.drop_waived_duplicates(self.feed.bars(symbol)))
        bars = undo_adjustment(bars, factor_column(self.settings))
        bars = carry_extras(bars, self.settings.features.known_at)
        if self.settings.start is not None or self.settings.end is not None:
            margin = 6 * 60 * MINUTE_NS  # faults outside start and end do not count
            minutes = self.grid.exchange_minutes
            bars = bars.take((bars.ts >= minutes[0] - margin) & (bars.ts <= minutes[-1] + margin))
        bars = start_short_bars(bars, self.grid, self.settings)
        days = self.evidence.examine(bars)
        if self.is_end_labelled and has_opening_prints(days):
            bars, counts["opening_print"] = merge_opening_prints(bars, days)
        # bars outside the sessions of most days are no fault of single days
        is_wide = days.wide.mean() > 0.5 if len(days.session) else False
        self.gate.check_symbol(bars.take(self.gate.grid.locate(bars.ts) >= 0) if is_wide else bars)
        merged, left_out = aggregate_to_grid(bars, self.grid)
        counts |= left_out
        self.repairs[symbol] = counts
        self.rows[symbol] = len(bars)
        return merged
