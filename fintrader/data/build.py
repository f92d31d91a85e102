"""Bars to a market file: sources → cleaning → the exchange's grid → features → windows → `MarketTensors`.

A market file is addressed by what goes into it: settings, the content of the input files and the version of this code.
An equal request finds the finished file; a build that was killed left nothing under that name, so the same call builds
it again and arrives at the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fintrader.config import refuse_url
from fintrader.data import features as ft
from fintrader.data.bars import MINUTE_NS, Array, Bars
from fintrader.data.calendar import SessionGrid, make_windows, session_date, session_grid, timezone_of
from fintrader.data.clean import REPAIRS, SessionAlignment, SymbolBars, clean, symbol_bars, to_grid
from fintrader.data.corporate_actions import as_traded, bars_of_actions, hold_through, load_actions
from fintrader.data.index_level import EQUAL_WEIGHT, daily_level, equal_weight, file_benchmark
from fintrader.data.scaling import cross_section, standardise
from fintrader.data.settings import DataSettings, open_feed, planted_description, raw_features
from fintrader.data.sources.base import Feed
from fintrader.data.sources.planted_in import PlantedInSettings, plant
from fintrader.data.tensors import Events, MarketTensors
from fintrader.data.universe import (
    Coverage,
    Interval,
    choose,
    companies,
    describe,
    load_membership,
    load_shares,
    member_days,
    missing_members,
    share_days,
    survivorship,
)
from fintrader.errors import DataError
from fintrader.files import seal
from fintrader.progress import SILENT, Progress
from fintrader.storage.mirror import Markets
from fintrader.storage.objects import Objects, read_whole

log = logging.getLogger("fintrader.data")

_BLOCK_BARS = 4096
RECORD = "build.json"
"""Beside every market: what it was made from and what was repaired, sealed."""
BUILD_VERSION = 7
"""Goes into every address; raised when the same settings would give other numbers, or files of another form."""


def build_market(
    settings: DataSettings, *, cache: Path, progress: Progress | None = None, markets: Markets | None = None
) -> Path:
    """The market file of these settings, built unless it is there already, in the cache or among shared `markets`.

    Lies at `cache/<address>/market.safetensors`, beside `build.json`, which says what it was made from and what was
    repaired. Bars pass through a store of chunks (`settings.store`), so that a later build reads only what is new.
    Raises DataError or a subclass of it, or StorageError when bars or markets cannot be stored or fetched; nothing is
    half-written then.
    """
    refuse_url(cache, "cache")
    settings = settings.effective()
    feed = open_feed(settings, cache)
    if feed.inputs_need_bars:
        feed.prepare(progress)  # what a vendor has is only known once it was asked
    path = market_path(settings, feed, cache)
    folder = Objects(path.parent)
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
        folder.put(RECORD, seal(record | report, indent=2))
        market.save(path)  # last: once it is there, everything is
        return _shared(path, markets)


def _shared(path: Path, markets: Markets | None) -> Path:
    """Make sure that a built market is among the shared ones."""
    if markets is not None:
        files = {file.name: file for file in (path.with_name(RECORD), path) if file.is_file()}
        markets.keep([path.parent.name, MarketTensors.stored_hash(path)], files)
    return path


def market_path(settings: DataSettings, feed: Feed, cache: Path) -> Path:
    """Where the market of these (effective) settings and bars lies, built or not."""
    text = json.dumps([BUILD_VERSION, portable(settings), inputs_of(settings, feed)], sort_keys=True)
    return Path(cache) / hashlib.sha256(text.encode()).hexdigest()[:16] / "market.safetensors"


def inputs_of(settings: DataSettings, feed: Feed) -> dict[str, Any]:
    """What the market is made from, without any path: kind, and the content of every file."""
    inputs = dict(feed.inputs)
    daily = [(f"features.daily.{name}", path) for name, path in settings.features.daily.items()]
    for name, path, setting in (
        ("benchmark", settings.benchmark.path, "data.benchmark.path"),
        ("actions", settings.adjust.path, "data.adjust.path"),
        ("membership", settings.universe.membership, "data.universe.membership"),
        ("shares_outstanding", settings.universe.shares_outstanding, "data.universe.shares_outstanding"),
        *((name, path, f"data.{name}") for name, path in daily),
    ):
        if path is not None:
            inputs[name] = hashlib.sha256(read_whole(path, setting)).hexdigest()
    return inputs


def portable(settings: DataSettings) -> dict[str, Any]:
    """Settings as JSON with file names instead of paths: where a file lies changes nothing."""
    values: dict[str, Any] = json.loads(settings.model_dump_json())
    del values["store"]
    for part in (values["source"], values["benchmark"], values["adjust"]):
        if part.get("path"):
            part["path"] = None  # its content counts, see `inputs_of`
    values["universe"]["membership"] = values["universe"]["shares_outstanding"] = None
    values["features"]["daily"] = sorted(values["features"]["daily"])
    return values


def make_market(settings: DataSettings, *, progress: Progress | None = None) -> tuple[MarketTensors, dict[str, Any]]:
    """Build in memory, without store or cache; also what was repaired and left out."""
    settings = settings.effective()
    return assemble(settings, open_feed(settings, None), progress=progress)


def assemble(
    settings: DataSettings, feed: Feed, *, progress: Progress | None = None
) -> tuple[MarketTensors, dict[str, Any]]:
    """Bars to a market; each symbol is read once. Deterministic: equal inputs give equal tensors, to the bit."""
    feed.prepare(progress)
    inputs = inputs_of(settings, feed)
    begin, end = (session_date(settings.calendar, ts) for ts in feed.span())
    grid = session_grid(settings.calendar, settings.start or begin, settings.end or end, settings.bar_minutes)
    reader = _Reader(settings, feed, grid)
    windows = make_windows(settings.windows, grid)
    membership = load_membership(settings.universe)
    names = (*settings.features.names, *settings.features.extra, *raw_features(settings))
    candidates, left_out = _candidates(settings, feed, membership, grid)
    symbols, cells, dropped = _read_all(settings, reader, candidates, windows.train, names, progress)
    left_out |= dropped
    repairs = {kind: sum(reader.repairs[symbol][kind] for symbol in symbols) for kind in REPAIRS}
    for kind, count in repairs.items():
        if count:
            log.warning("%s: %d %s", feed.inputs["kind"], count, REPAIRS[kind])
    ended = [symbol for symbol in symbols if symbol in reader.ended]
    events = Events.of(
        (bar, column, split, dividend)
        for column, name in enumerate(symbols)
        for bar, split, dividend in reader.events[name]
    )
    growth = events.growth(torch.from_numpy(cells.close))
    open_, close = (
        prices if growth is None else (prices * growth.numpy()).astype(np.float32)
        for prices in (cells.open, cells.close)
    )
    first = grid.first_bar
    day_close = close[first[1:] - 1].astype(np.float64)
    days = member_days(symbols, membership, grid.dates, settings.universe.aliases)
    benchmark, benchmark_name, foreign = _benchmark(settings, feed, close, grid)
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
    chosen, member = settings.features, days[grid.session]
    for name in ft.market_wide(chosen.names):
        cells.features[:, :, names.index(name)] = ft.market_feature(name, close, member)
    planted = planted_description(settings, len(symbols))
    if isinstance(settings.source, PlantedInSettings):
        signal, planted = plant(settings.source, open_, member, windows, tuple(symbols))
        cells.features[:, :, names.index(settings.source.column)] = signal
    shares = load_shares(settings.universe)
    context_names = (*chosen.context, *chosen.daily)
    table = ft.context_features(
        chosen.context,
        benchmark=benchmark,
        session=grid.session,
        day_close=day_close,
        turbulence_days=chosen.turbulence_days,
    )
    context = np.column_stack([table, *(daily_level(name, path, grid) for name, path in chosen.daily.items())])
    scaled = np.array([chosen.standardise and name not in raw_features(settings) for name in names], dtype=bool)
    if chosen.cross_sectional != "none":
        relative = len(names) - len(raw_features(settings))
        cross_section(cells.features, member, range(relative), chosen.cross_sectional, chosen.clip)
        scaled[:] = False
    common = np.full(len(context_names), chosen.standardise)
    scales = {
        "features": standardise(cells.features, names, windows.train, scaled, chosen.clip),
        "context": standardise(context[:, None, :], context_names, windows.train, common, chosen.clip),
        "clip": chosen.clip,
        "cross_sectional": chosen.cross_sectional,
    }
    market = MarketTensors(
        open=torch.from_numpy(cells.open),
        close=torch.from_numpy(cells.close),
        volume=torch.from_numpy(cells.volume),
        features=torch.from_numpy(cells.features),
        context=torch.from_numpy(context.astype(np.float32)),
        tradable=torch.from_numpy(cells.tradable),
        member=torch.from_numpy(member),
        session=torch.from_numpy(grid.session),
        minutes=torch.from_numpy(grid.minutes),
        benchmark=torch.from_numpy(benchmark),
        symbols=tuple(symbols),
        feature_names=names,
        context_names=context_names,
        benchmark_name=benchmark_name,
        bar_minutes=settings.bar_minutes,
        windows=windows,
        events=events,
        shares_outstanding=None
        if shares is None
        else torch.from_numpy(share_days(symbols, shares, grid.dates)[grid.session]),
        meta={
            "source": inputs,
            "calendar": settings.calendar,
            "timezone": timezone_of(settings.calendar),
            "normalisation": scales,
            "planted": planted,
            **report,
        },
    )
    return market, report


def _candidates(
    settings: DataSettings, feed: Feed, membership: dict[str, list[Interval]] | None, grid: SessionGrid
) -> tuple[list[str], dict[str, str]]:
    """The symbols that may be in the market, sorted, as far as this is known without their bars; why others may not."""
    universe, available = settings.universe, feed.symbols
    missing = [name for name in universe.symbols if name not in available]
    if missing:
        raise DataError(f"no bars of {', '.join(missing)}; remove them from data.universe.symbols or add their bars")
    candidates = sorted(universe.symbols or available)
    days = member_days(candidates, membership, grid.dates, universe.aliases)
    ever = {name: bool(days[:, column].any()) for column, name in enumerate(candidates)}
    if not any(ever.values()):
        raise DataError("no symbol of the source was ever a member; check data.universe.index and aliases")
    left_out = {name: "never a member in the range" for name in candidates if not ever[name]}
    return [name for name in candidates if ever[name]], left_out


def _read_all(
    settings: DataSettings,
    reader: _Reader,
    candidates: Sequence[str],
    train: tuple[int, int],
    names: Sequence[str],
    progress: Progress | None,
) -> tuple[list[str], _Cells, dict[str, str]]:
    """The chosen symbols, their cells and features, and why other candidates were left out.

    The choice depends on the bars (`universe.min_coverage`, `max_symbols`), and every symbol is read once: what has too
    few bars gets no column, and what a later symbol surpasses in turnover cedes its own to it.
    """
    universe, grid, coverage = settings.universe, reader.grid, Coverage(train)
    room = min(len(candidates), universe.max_symbols or len(candidates))
    planted = [settings.source.column] if isinstance(settings.source, PlantedInSettings) else []
    later = {*ft.market_wide(settings.features.names), *planted}
    cells = _Cells.empty(grid.num_bars, room, len(names))
    column_of: dict[str, int] = {}
    left_out: dict[str, str] = {}
    with (progress or SILENT).task("features", total=len(candidates), unit="symbols") as task:
        for symbol in candidates:
            merged = reader.read(symbol)
            task.advance(note=symbol)
            if len(merged) == 0:
                left_out[symbol] = "no bars in the range"
                continue
            coverage.add(symbol, merged.ts, merged.close, merged.volume)
            if coverage.share[symbol] < universe.min_coverage:
                continue
            column = len(column_of)
            if column == room:
                last = max((*column_of, symbol), key=coverage.rank)
                if last == symbol:
                    continue
                column = column_of.pop(last)
            column_of[symbol] = column
            one, adjusted, events = hold_through(
                symbol_bars(merged, grid, reader.sessions_over), bars_of_actions(reader.actions, symbol, grid)
            )
            reader.events[symbol] = events
            cells.fill(column, one, ft.symbol_features(adjusted, names, later))
            reader.ended |= {symbol} if one.ended else set()
    if not coverage.share:
        raise DataError(f"no bar from {grid.dates[0]} to {grid.dates[-1]}; choose other dates")
    kept, dropped = choose(universe, coverage)
    return kept, cells.columns([column_of[symbol] for symbol in kept]), left_out | dropped


class _Reader:
    """One symbol's bars on the grid: cleaned, as traded, put together; remembers what was repaired."""

    def __init__(self, settings: DataSettings, feed: Feed, grid: SessionGrid) -> None:
        self.settings, self.feed, self.grid = settings, feed, grid
        self.ended: set[str] = set()
        """Symbols whose bars stop for good before the grid's end."""
        self.events: dict[str, list[tuple[int, float, float]]] = {}
        """Bar, split and dividend of what happened to each symbol."""
        self.alignment = SessionAlignment(grid)
        ends = grid.minutes[grid.first_bar[1:] - 1]
        half_hour = 30 * MINUTE_NS  # the last minutes of a session may be silent
        self.sessions_over = int(np.count_nonzero(ends <= feed.span()[1] + half_hour))
        self.actions = (*load_actions(settings.adjust), *feed.actions)
        self.repairs: dict[str, dict[str, int]] = {}
        """How many rows of each symbol were repaired, by kind."""
        self._ahead: dict[str, Bars] = {}
        first = feed.symbols[0]  # a wrong zone or label shows in any symbol: say so before anything else
        self._ahead[first] = self.read(first)

    def read(self, symbol: str) -> Bars:
        """Sorted rows whose `ts` is the number of the grid's bar."""
        if symbol in self._ahead:
            return self._ahead.pop(symbol)
        bars, counts = clean(self.feed.bars(symbol))
        bars = as_traded(bars, self.settings.adjust.factor_column)
        if self.settings.start is not None or self.settings.end is not None:
            quarter = 6 * 60 * MINUTE_NS  # what was not asked for counts as nothing wrong
            minutes = self.grid.exchange_minutes
            bars = bars.take((bars.ts >= minutes[0] - quarter) & (bars.ts <= minutes[-1] + quarter))
        merged, counts["outside_session"] = to_grid(bars, self.grid)
        self.alignment.check(bars)
        self.repairs[symbol] = counts
        return merged


@dataclass(frozen=True, eq=False)
class _Cells:
    """The market's big arrays, filled symbol by symbol."""

    open: Array
    close: Array
    volume: Array
    tradable: Array
    features: Array

    @classmethod
    def empty(cls, bars: int, assets: int, features: int) -> _Cells:
        """Memory for so many; the system hands out a page when it is first written, so spare columns cost little."""
        open_, close, volume = (np.empty((bars, assets), dtype=np.float32) for _ in range(3))
        features_ = np.empty((bars, assets, features), dtype=np.float32)
        return cls(open_, close, volume, np.empty((bars, assets), dtype=bool), features_)

    def fill(self, column: int, one: SymbolBars, features: Array) -> None:
        """Write a whole column, over whatever stood in it; NaN where the symbol has no price."""
        rows = slice(one.first, one.stop)
        for cells, values in ((self.open, one.open), (self.close, one.close), (self.features, features)):
            cells[: one.first, column] = np.nan
            cells[rows, column] = values
            cells[one.stop :, column] = np.nan
        self.tradable[:, column] = False
        self.volume[:, column] = 0.0
        self.volume[rows, column] = one.volume
        self.tradable[rows, column] = one.tradable

    def columns(self, order: Sequence[int]) -> _Cells:
        """These columns in this order. The same memory is written over, so that a market never exists twice."""
        if list(order) == list(range(self.close.shape[1])):
            return self
        return _Cells(*(_gather(getattr(self, field.name), order) for field in fields(self)))


def _gather(cells: Array, order: Sequence[int]) -> Array:
    """`cells[:, order]`, at the front of the same memory: a row's new end lies never behind its old one."""
    bars, width = len(cells), int(np.prod(cells.shape[2:], dtype=np.int64))
    flat = cells.reshape(-1)
    for begin in range(0, bars, _BLOCK_BARS):
        block = cells[begin : begin + _BLOCK_BARS, order].reshape(-1)
        at = begin * len(order) * width
        flat[at : at + len(block)] = block
    return flat[: bars * len(order) * width].reshape(bars, len(order), *cells.shape[2:])


def _benchmark(settings: DataSettings, feed: Feed, close: Array, grid: SessionGrid) -> tuple[Array, str, bool]:
    """Level, name, and whether it is an index of its own and not made of the universe."""
    if settings.benchmark.path is not None:
        return *file_benchmark(settings.benchmark, grid), True
    index = feed.index(grid)
    if index is not None:
        return index, settings.benchmark.name or "synthetic index", True
    return equal_weight(close, grid), settings.benchmark.name or EQUAL_WEIGHT, False
