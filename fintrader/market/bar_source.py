"""The feed of bars that the data settings name."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fintrader.bars.bars import Bars, concat
from fintrader.bars.calendar import day_starts, exchange_days
from fintrader.bars.companies import overlaps
from fintrader.bars.sources.alpaca import Alpaca
from fintrader.bars.sources.bar_files import read_rows, select_files, split_by_layout
from fintrader.bars.sources.by_company import join_by_company
from fintrader.bars.sources.crypto import Ccxt
from fintrader.bars.sources.feed import Feed, MemoryFeed
from fintrader.bars.sources.feeds import FilesFeed, identify_files, iterate_checked
from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.listing import list_bar_files
from fintrader.bars.sources.vendor import CalendarDays, VendorFeed
from fintrader.bars.sources.vendor_settings import VendorSettings
from fintrader.bars.sources.yahoo import Yahoo
from fintrader.errors import DataError
from fintrader.market.features import FeatureSettings
from fintrader.market.planted_in import PlantedInSettings
from fintrader.market.settings import DataSettings
from fintrader.market.synthetic import SyntheticFeed, SyntheticSettings
from fintrader.market.universe import index_tickers, load_membership
from fintrader.storage.objects import ObjectStore

_SLICE_SYMBOLS = 5
_SLICE_DAYS = 60
_SLICE_FILES = 60
_SLICE_ROWS = 500_000
_FEWEST_DAYS = 6


def open_feed(settings: DataSettings, cache: Path | None) -> Feed:
    """Open the source as a feed, grouped by company if an index is set; nothing is downloaded or
    stored yet.

    Without a cache, the bars of files are read into memory.
    """
    universe = settings.universe
    feed = join_by_company(
        open_source(settings, cache),
        universe.index,
        settings.calendar,
        tickers_as_of=universe.tickers_as_of,
        aliases=universe.aliases,
        wanted=universe.symbols,
    )
    feed.daily = open_daily(settings)
    return feed


def open_daily(settings: DataSettings) -> Feed | None:
    """Open the bars of `data.daily` in memory, with the layout that `fintrader init` detects; None
    if it is not set. Raises DataError for bars that are not daily or cannot be read."""
    if settings.daily is None:
        return None
    from fintrader.bars.detect import detect

    try:
        found = detect(settings.daily, calendar=settings.calendar)
    except DataError as error:
        raise type(error)(f"data.daily: {error}") from None
    if found.bar_minutes < found.session_minutes:
        raise DataError(
            f"data.daily: {settings.daily} holds {found.bar_minutes}-minute bars; give one bar a"
            " day"
        )
    changes = {
        "path": settings.daily,
        "source": found.settings(),
        "daily": None,
        "features": FeatureSettings(),  # extra columns are those of the other bars
    }
    return open_feed(settings.model_copy(update=changes).effective(), None)


def open_source(settings: DataSettings, cache: Path | None) -> Feed:
    """Open the source as `open_feed` does, but with the source's own symbols."""
    source = settings.source
    if isinstance(source, SyntheticSettings):
        if cache is not None:
            open_bar_store(settings, cache)  # nothing is stored, but a wrong store is refused
        return SyntheticFeed(source, settings.calendar, settings.bar_minutes, settings.start)
    if isinstance(source, VendorSettings):
        if cache is None:
            raise DataError(f"bars of {source.kind} pass through the store; build with a cache")
        if settings.hours == "extended":
            raise DataError(
                f"data.hours: bars from {source.kind} are kept in regular hours only; set it to"
                " regular"
            )
        assert settings.start is not None  # `DataSettings` requires it
        tickers, listed = _tickers(settings, settings.start)
        days = CalendarDays(settings.calendar, settings.start, settings.end)
        store = open_bar_store(settings, cache)
        vendor: type[Any] = {"yahoo": Yahoo, "alpaca": Alpaca, "ccxt": Ccxt}[source.kind]
        return VendorFeed(vendor(source), tickers, days, store, listed=listed)
    files = source.files() if isinstance(source, PlantedInSettings) else source
    if cache is None:
        found = select_files(files, settings.bar_path)
        bars = read_rows(found, files)
        bars = replace(bars, ts=day_starts(settings.calendar, files.timezone, bars.ts))
        feed: Feed = MemoryFeed(bars, identify_files(found, [file.digest()[0] for file in found]))
    else:
        feed = FilesFeed(
            files, settings.bar_path, open_bar_store(settings, cache), settings.calendar
        )
    feed.inputs = {**feed.inputs, "kind": source.kind}
    return feed


def open_slice(source: FilesSettings, path: str, calendar: str) -> tuple[MemoryFeed, list[dt.date]]:
    """Open the first bars of files, at most 5 symbols and 60 days; return them and their days,
    sorted. Raises DataError for files that cannot be read."""
    parts: list[Bars] = []
    names: list[str] = []
    days = np.array([], dtype="datetime64[D]")
    rows = 0
    for batch in _iterate_files(source, path):
        batch = batch.without_empty()
        rows += len(batch)
        names += [name for name in batch.symbols if name not in names]
        wanted = [code for code, one in enumerate(batch.symbols) if one in names[:_SLICE_SYMBOLS]]
        part = batch.take(np.isin(batch.symbol, wanted)).drop_unused_symbols()
        parts.append(replace(part, ts=day_starts(calendar, source.timezone, part.ts)))
        days = np.union1d(days, exchange_days(calendar, parts[-1].ts))
        if rows >= _SLICE_ROWS and len(days) > _FEWEST_DAYS:  # the last day may be incomplete
            break
    days = days[:_SLICE_DAYS]
    bars = concat(parts)
    bars = bars.take(exchange_days(calendar, bars.ts) <= days[-1]).drop_unused_symbols()
    return MemoryFeed(bars, {"kind": source.kind}), days.tolist()


def _iterate_files(source: FilesSettings, path: str) -> Iterator[Bars]:
    files, _ = split_by_layout(list_bar_files(source, path), source)
    if "{symbol" in (source.name_pattern or ""):  # the first files may all hold one day
        symbols = [(source.read_name(file.place) or ("", None))[0] for file in files]
        wanted = [*dict.fromkeys(symbols)][:_SLICE_SYMBOLS]
        files = [file for file, symbol in zip(files, symbols, strict=True) if symbol in wanted]
    for file in files[:_SLICE_FILES]:
        yield from iterate_checked(file, source)


def _tickers(settings: DataSettings, start: dt.date) -> tuple[list[str], bool]:
    """Return the tickers to request from a vendor, and whether each must have bars: the universe's
    list (True), else all members in the range (False: those without bars are reported)."""
    universe = settings.universe
    if universe.symbols:
        return list(universe.symbols), True
    today = dt.datetime.now(dt.UTC).date()
    end = settings.end or today
    if universe.index is not None:
        return index_tickers(universe.index, start, end, universe.tickers_as_of or today), False
    members = load_membership(universe) or {}
    return sorted(
        name
        for name, intervals in members.items()
        if any(overlaps(interval, start, end) for interval in intervals)
    ), False


def open_bar_store(settings: DataSettings, cache: Path) -> ObjectStore:
    """Open the store of chunks of bars: `settings.store`, or `bars` next to (or in) the cache of
    markets."""
    if settings.store is not None:
        return ObjectStore(settings.store)
    return ObjectStore(cache.parent / "bars" if cache.name == "tensors" else cache / "bars")
