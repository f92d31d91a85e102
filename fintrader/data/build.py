"""Bars to a market file: sources → cleaning → the exchange's grid → features → windows → `MarketTensors`.

A market file is addressed by what goes into it: settings, the content of the input files and the version of this code.
An equal request finds the finished file; a build that was killed left nothing under that name, so the same call builds
it again and arrives at the same bytes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from fintrader.config import Settings, overlay, validate
from fintrader.data import features as ft
from fintrader.data.bars import MINUTE_NS, Array, Bars
from fintrader.data.cache_key import BUILD_VERSION, inputs_of, market_path, portable, seal_record
from fintrader.data.cache_key import NAME as RECORD
from fintrader.data.calendar import SessionGrid, make_windows, session_date, session_grid
from fintrader.data.clean import REPAIRS, Placement, SymbolBars, clean, log_repairs, symbol_bars, to_grid
from fintrader.data.corporate_actions import adjust, load_actions
from fintrader.data.index_level import EQUAL_WEIGHT, daily_level, equal_weight, file_benchmark
from fintrader.data.place import Place, refuse_url
from fintrader.data.settings import DataSettings, planted_description, raw_features, read_settings
from fintrader.data.sources.base import Feed, open_feed, read_source, store_place
from fintrader.data.sources.files import FilesSettings
from fintrader.data.tensors import MarketTensors, Windows
from fintrader.data.universe import (
    Coverage,
    Interval,
    choose,
    companies,
    describe,
    ever_members,
    load_membership,
    member_days,
    missing_members,
    needs_coverage,
    survivorship,
)
from fintrader.errors import ConfigError, DataError
from fintrader.progress import SILENT, Progress
from fintrader.storage.markets import Markets

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "BUILD_VERSION",
    "DataSettings",
    "assemble",
    "build_market",
    "load_market",
    "make_market",
    "market_path",
    "open_feed",
    "read_settings",
    "read_source",
    "store_place",
]

log = logging.getLogger("fintrader.data")


def build_market(
    settings: DataSettings, *, cache: Path, progress: Progress | None = None, markets: Markets | None = None
) -> Path:
    """The market file of these settings, built unless it is there already, in the cache or among shared `markets`.

    Lies at `cache/<address>/market.safetensors`, beside `build.json`, which says what it was made from and what was
    repaired. Bars pass through a store of chunks (`settings.store`), so that a later build reads only what is new.
    Raises DataError or a subclass of it; nothing is half-written then.
    """
    refuse_url(cache, "cache")
    settings = settings.effective()
    feed = open_feed(settings, cache)
    if feed.inputs_need_bars:
        feed.prepare(progress)  # what a vendor has is only known once it was asked
    path = market_path(settings, feed, cache)
    folder = Place(path.parent)
    if path.is_file():
        return _shared(path, markets)
    with folder.lock():
        if path.is_file():  # somebody else built it while this process waited
            return _shared(path, markets)
        folder.sweep()
        if markets is not None and markets.fetch(path.parent.name, path.parent):
            return path
        market, report = assemble(settings, feed, progress=progress)
        record = {"settings": portable(settings), "inputs": inputs_of(settings, feed), "version": BUILD_VERSION}
        folder.write(RECORD, seal_record(record | report))
        market.save(path)  # last: once it is there, everything is
        return _shared(path, markets)


def _shared(path: Path, markets: Markets | None) -> Path:
    """Make sure that a built market is among the shared ones."""
    if markets is not None:
        files = {name: path.with_name(name) for name in ("build.json", "market.safetensors")}
        there = {name: file for name, file in files.items() if file.is_file()}
        markets.keep([path.parent.name, MarketTensors.stored_hash(path)], there)
    return path


def load_market(
    what: Settings | Mapping[str, Any] | pd.DataFrame | Path | str | None = None,
    *,
    cache: Path | str = "data/tensors",
    timezone: str | None = None,
    label: Literal["start", "end"] | None = None,
    **settings: Any,
) -> MarketTensors:
    """A market: out of the cache where it was built before, built first where it was not.

    `what`: a market file (`.safetensors`), a configuration (its name, a YAML file, or settings; a whole run's or only
    its `data` part), or bars in pandas: a long table (time, symbol, open, high, low, close, volume, in any order and in
    the usual spellings, the time also as index), a wide one with columns (field, symbol) or (symbol, field), or a
    dictionary of one table for each symbol. `settings` are fields of `DataSettings`, put over what the configuration
    says: `load_market(bars, bar_minutes=5, windows={"fractions": [0.6, 0.2, 0.2]})`.

    Of bars in pandas, `timezone` is the zone of times that carry none, `label` says whether a time is its bar's start
    (the default) or end, and `bar_minutes` is by default the length that the bars have.

    Raises ConfigError for a setting that is wrong, DataError (BarError, MarketError) for bars or a file that are.
    """
    from fintrader.data.sources import frames

    if frames.are_frames(what):
        return _market_of(what, timezone, label, settings)
    if timezone is not None or label is not None:
        raise ConfigError("timezone and label say how a DataFrame's times are read; of files, set them in `source`")
    if isinstance(what, str | Path) and Path(what).suffix == ".safetensors":
        if settings:
            raise ConfigError(
                f"{what} is built already, so {', '.join(settings)} cannot be set; give its configuration"
            )
        return MarketTensors.load(what)
    if (what is None or what == {}) and not settings:
        raise ConfigError("say which market: a configuration's name or path, a market file, bars, or settings")
    if not (what is None or isinstance(what, str | Path | Mapping | Settings)):
        raise ConfigError(
            f"no market can be made of {type(what).__name__}: give a configuration's name or path, a market file, "
            "settings, a DataFrame, or a dictionary of DataFrames"
        )
    chosen = read_settings({} if what is None else what, settings)
    return MarketTensors.load(build_market(chosen, cache=Path(cache)))


def _market_of(bars: Any, timezone: str | None, label: str | None, values: Mapping[str, Any]) -> MarketTensors:
    """The market of bars in pandas, built in memory by the same steps as that of files."""
    from fintrader.data.sources import frames

    reading = {name: one for name, one in (("timezone", timezone), ("label", label)) if one is not None}
    chosen = overlay({"source": {"kind": "files", **reading}}, values)
    settings = validate(DataSettings, chosen, "settings").effective()
    if not isinstance(settings.source, FilesSettings):
        raise ConfigError("the bars are those of the DataFrame, so `source` takes only how files are read")
    zoned = "timezone" in chosen["source"]
    feed, minutes = frames.frames_feed(bars, settings.source, zoned=zoned, calendar=settings.calendar)
    if "bar_minutes" not in values:
        settings = settings.model_copy(update={"bar_minutes": minutes})
    return assemble(settings, feed)[0]


def make_market(settings: DataSettings, *, progress: Progress | None = None) -> tuple[MarketTensors, dict[str, Any]]:
    """Build in memory, without store or cache; also what was repaired and left out."""
    settings = settings.effective()
    return assemble(settings, open_feed(settings, None), progress=progress)


def assemble(
    settings: DataSettings, feed: Feed, *, progress: Progress | None = None
) -> tuple[MarketTensors, dict[str, Any]]:
    """Bars to a market, symbol by symbol. Deterministic: equal inputs give equal tensors, to the bit."""
    feed.prepare(progress)
    inputs = inputs_of(settings, feed)
    grid = _grid(settings, feed)
    reader = _Reader(settings, feed, grid)
    reader.merged(feed.symbols[0])  # a wrong zone or label shows in any symbol: say so before anything else
    windows = make_windows(settings.windows, grid)
    membership = load_membership(settings.universe)
    symbols, left_out = _choose(settings, feed, reader, membership, windows, progress)
    names = (*settings.features.names, *settings.features.extra, *raw_features(settings))
    cells = _Cells.empty(grid.num_bars, len(symbols), len(names))
    ended = []
    reader.repairs.clear()
    with (progress or SILENT).task("features", total=len(symbols), unit="symbols") as task:
        for column, symbol in enumerate(symbols):
            one = symbol_bars(reader.merged(symbol), grid, reader.sessions_over)
            cells.fill(column, one, ft.symbol_features(one, names))
            ended += [symbol] if one.ended else []
            task.advance(note=symbol)
    log_repairs(str(feed.inputs["kind"]), reader.repairs)
    repairs = {kind: reader.repairs[kind] for kind in REPAIRS}
    first = grid.first_bar
    day_close = cells.close[first[1:] - 1].astype(np.float64)
    days = member_days(symbols, membership, grid.dates, settings.universe.aliases)
    benchmark, benchmark_name, foreign = _benchmark(settings, feed, cells.close, grid)
    survivors = survivorship(
        ended,
        day_close,
        days,
        missing=missing_members(
            feed.symbols, membership, companies(settings.universe), grid.dates, settings.universe.aliases
        ),
        index=benchmark[first[1:] - 1] if foreign else None,
        index_name=benchmark_name,
    )
    report = {"repairs": repairs, "left_out": left_out, "ended": ended, "survivorship": survivors}
    if survivors["survivors_only"]:
        log.warning("%s", describe(survivors))
    context = _context(settings, day_close, benchmark, grid)
    context_names = (*settings.features.context, *settings.features.daily)
    scales = _standardise(cells.features, context, names, settings, windows.train)
    market = MarketTensors(
        open=torch.from_numpy(cells.open),
        close=torch.from_numpy(cells.close),
        features=torch.from_numpy(cells.features),
        context=torch.from_numpy(context.astype(np.float32)),
        tradable=torch.from_numpy(cells.tradable),
        member=torch.from_numpy(days[grid.session]),
        session=torch.from_numpy(grid.session),
        minutes=torch.from_numpy(grid.minutes),
        benchmark=torch.from_numpy(benchmark),
        symbols=tuple(symbols),
        feature_names=names,
        context_names=context_names,
        benchmark_name=benchmark_name,
        bar_minutes=settings.bar_minutes,
        windows=windows,
        meta={
            "source": inputs,
            "calendar": settings.calendar,
            "normalisation": scales,
            "planted": planted_description(settings, len(symbols)),
            **report,
        },
    )
    return market, report


class _Reader:
    """One symbol's bars on the grid: cleaned, adjusted, put together; counts what was repaired."""

    def __init__(self, settings: DataSettings, feed: Feed, grid: SessionGrid) -> None:
        self.settings, self.feed, self.grid = settings, feed, grid
        self.repairs: Counter[str] = Counter()
        self.placement = Placement(grid)
        ends = grid.minutes[grid.first_bar[1:] - 1]
        half_hour = 30 * MINUTE_NS  # the last minutes of a session may be silent
        self.sessions_over = int(np.count_nonzero(ends <= feed.span()[1] + half_hour))
        self.actions = (*load_actions(settings.adjust), *feed.actions)

    def merged(self, symbol: str) -> Bars:
        """Sorted rows whose `ts` is the number of the grid's bar."""
        bars, counts = clean(self.feed.bars(symbol))
        bars = adjust(bars, self.actions, self.settings.calendar, self.settings.adjust.factor_column)
        if self.settings.start is not None or self.settings.end is not None:
            bars = _in_range(bars, self.grid)
        merged, counts["outside_session"] = to_grid(bars, self.grid)
        self.placement.check(bars)
        self.repairs.update(counts)
        return merged


def _choose(
    settings: DataSettings,
    feed: Feed,
    reader: _Reader,
    membership: dict[str, list[Interval]] | None,
    windows: Windows,
    progress: Progress | None,
) -> tuple[list[str], dict[str, str]]:
    """The market's symbols, and why others are not among them."""
    universe, span = settings.universe, (settings.start, settings.end)
    available = feed.symbols
    missing = [name for name in universe.symbols if name not in available]
    if missing:
        raise DataError(f"no bars of {', '.join(missing)}; remove them from data.universe.symbols or add their bars")
    candidates = sorted(universe.symbols or available)
    candidates, strangers = ever_members(candidates, membership, reader.grid, universe.aliases)
    left_out = dict.fromkeys(strangers, "never a member in the range")
    if not candidates:
        raise DataError("no symbol of the source was ever a member; check data.universe.index and aliases")
    if not needs_coverage(universe) and span == (None, None):
        return candidates, left_out
    coverage = Coverage(windows.train)
    with (progress or SILENT).task("universe", total=len(candidates), unit="symbols") as task:
        for symbol in candidates:
            merged = reader.merged(symbol)
            task.advance(note=symbol)
            if len(merged):
                coverage.see(symbol, merged.ts, merged.close, merged.volume)
            else:
                left_out[symbol] = "no bars in the range"
    if not coverage.share:
        first, last = reader.grid.dates[[0, -1]]
        raise DataError(f"no bar from {first} to {last}; choose other dates")
    kept, dropped = choose(universe, coverage)
    return kept, left_out | dropped


# --- parts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Cells:
    """The market's big arrays, filled symbol by symbol."""

    open: Array
    close: Array
    tradable: Array
    features: Array

    @classmethod
    def empty(cls, bars: int, assets: int, features: int) -> _Cells:
        return cls(
            open=np.full((bars, assets), np.nan, dtype=np.float32),
            close=np.full((bars, assets), np.nan, dtype=np.float32),
            tradable=np.zeros((bars, assets), dtype=bool),
            features=np.full((bars, assets, features), np.nan, dtype=np.float32),
        )

    def fill(self, column: int, one: SymbolBars, features: Array) -> None:
        rows = slice(one.first, one.stop)
        self.open[rows, column] = one.open
        self.close[rows, column] = one.close
        self.tradable[rows, column] = one.tradable
        self.features[rows, column] = features


def _grid(settings: DataSettings, feed: Feed) -> SessionGrid:
    first, last = feed.span()
    return session_grid(
        settings.calendar,
        settings.start or session_date(settings.calendar, first),
        settings.end or session_date(settings.calendar, last),
        settings.bar_minutes,
    )


def _in_range(bars: Bars, grid: SessionGrid) -> Bars:
    """Rows of the days asked for; the rest was not asked for, so it counts as nothing wrong."""
    quarter = 6 * 3_600_000_000_000
    inside = (bars.ts >= grid.exchange_minutes[0] - quarter) & (bars.ts <= grid.exchange_minutes[-1] + quarter)
    return bars if inside.all() else bars.take(inside)


def _benchmark(settings: DataSettings, feed: Feed, close: Array, grid: SessionGrid) -> tuple[Array, str, bool]:
    """Level, name, and whether it is an index of its own and not made of the universe."""
    if settings.benchmark.path is not None:
        return *file_benchmark(settings.benchmark, grid), True
    index = feed.index(grid)
    if index is not None:
        return index, settings.benchmark.name or "synthetic index", True
    return equal_weight(close, grid), settings.benchmark.name or EQUAL_WEIGHT, False


def _context(settings: DataSettings, day_close: Array, benchmark: Array, grid: SessionGrid) -> Array:
    first = grid.first_bar
    table = ft.context_features(
        settings.features.context,
        bar_of_session=np.arange(grid.num_bars) - first[grid.session],
        bars_in_session=np.diff(first)[grid.session],
        benchmark=benchmark,
        session=grid.session,
        day_close=day_close,
        turbulence_days=settings.features.turbulence_days,
    )
    daily = [daily_level(name, path, grid) for name, path in settings.features.daily.items()]
    return np.column_stack([table, *daily])


def _standardise(
    features: Array, context: Array, names: Sequence[str], settings: DataSettings, train: tuple[int, int]
) -> dict[str, Any]:
    """In place: (x − mean) / std with the training window's statistics over all symbols, cut off, 0 where undefined."""
    raw, clip, on = raw_features(settings), settings.features.clip, settings.features.standardise
    scaled = np.array([on and name not in raw for name in names], dtype=bool)
    mean, spread = ft.scale(features, train, scaled)
    ft.apply_scale(features, mean, spread, clip, scaled)
    common = np.full(context.shape[1], on)
    context_mean, context_spread = ft.scale(context[:, None, :], train, common)
    ft.apply_scale(context[:, None, :], context_mean, context_spread, clip, common)
    return {
        "features": ft.describe(names, mean, spread),
        "context": ft.describe((*settings.features.context, *settings.features.daily), context_mean, context_spread),
        "clip": clip,
    }
