"""The feed of bars that the data settings name."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

from fintrader.bars.bars import concat
from fintrader.bars.calendar import day_starts
from fintrader.bars.companies import overlaps
from fintrader.bars.sources.alpaca import Alpaca
from fintrader.bars.sources.bar_files import iterate, own_files
from fintrader.bars.sources.by_company import join_by_company
from fintrader.bars.sources.crypto import Ccxt
from fintrader.bars.sources.feed import Feed, MemoryFeed
from fintrader.bars.sources.feeds import FilesFeed, file_inputs
from fintrader.bars.sources.vendor import CalendarDays, Vendor, VendorFeed
from fintrader.bars.sources.vendor_settings import (
    AlpacaSettings,
    CcxtSettings,
    VendorSettings,
    YahooSettings,
)
from fintrader.bars.sources.yahoo import Yahoo
from fintrader.errors import DataError
from fintrader.market.planted_in import PlantedInSettings
from fintrader.market.settings import DataSettings
from fintrader.market.synthetic import SyntheticFeed, SyntheticSettings
from fintrader.market.universe import index_tickers, load_membership
from fintrader.storage.objects import ObjectStore


def open_feed(settings: DataSettings, cache: Path | None) -> Feed:
    """The source as a feed, by the companies of an index if one is set; nothing is downloaded or
    cut yet.

    Without a cache, bars are read into memory.
    """
    universe = settings.universe
    return join_by_company(
        open_source(settings, cache),
        universe.index,
        settings.calendar,
        tickers_as_of=universe.tickers_as_of,
        aliases=universe.aliases,
        wanted=universe.symbols,
    )


def open_source(settings: DataSettings, cache: Path | None) -> Feed:
    """The source's bars by the source's own symbols; else like `open_feed`."""
    source = settings.source
    if isinstance(source, SyntheticSettings):
        if cache is not None:
            bar_store(
                settings, cache
            )  # nothing goes there, but a store that cannot be one is an error now
        return SyntheticFeed(source, settings.calendar, settings.bar_minutes, settings.start)
    if isinstance(source, VendorSettings):
        if cache is None:
            raise DataError(f"bars of {source.kind} pass through the store; build with a cache")
        assert settings.start is not None  # as `DataSettings` makes sure
        tickers, listed = _tickers(settings, settings.start)
        days = CalendarDays(settings.calendar, settings.start, settings.end)
        store = bar_store(settings, cache)
        return VendorFeed(_vendor(source), tickers, days, store, listed=listed)
    files = source.files() if isinstance(source, PlantedInSettings) else source
    if cache is None:
        found = own_files(files, settings.bar_path)
        bars = concat([batch for file in found for batch in iterate(file, files)])
        bars = replace(bars, ts=day_starts(settings.calendar, files.timezone, bars.ts))
        feed: Feed = MemoryFeed(bars, file_inputs(found, [file.sha256() for file in found]))
    else:
        feed = FilesFeed(files, settings.bar_path, bar_store(settings, cache), settings.calendar)
    feed.inputs = {**feed.inputs, "kind": source.kind}
    return feed


def _vendor(source: VendorSettings) -> Vendor:
    if isinstance(source, YahooSettings):
        return Yahoo(source)
    if isinstance(source, AlpacaSettings):
        return Alpaca(source)
    assert isinstance(source, CcxtSettings)  # the last of `SourceSettings`
    return Ccxt(source)


def _tickers(settings: DataSettings, start: dt.date) -> tuple[list[str], bool]:
    """Return the tickers to request from a vendor, and whether each must have bars: the universe's
    list (True), else all members in the range (False: those without bars are reported)."""
    universe = settings.universe
    if universe.symbols:
        return list(universe.symbols), True
    today = dt.datetime.now(dt.UTC).date()
    end = settings.end or today
    if universe.index is not None:
        return (
            index_tickers(universe.index, start, end, universe.tickers_as_of or today),
            False,
        )
    members = load_membership(universe) or {}
    return sorted(
        name
        for name, intervals in members.items()
        if any(overlaps(interval, start, end) for interval in intervals)
    ), False


def bar_store(settings: DataSettings, cache: Path) -> ObjectStore:
    """The store of chunks of bars: `settings.store`, or `bars` next to (or in) the cache of
    markets."""
    if settings.store is not None:
        return ObjectStore(settings.store)
    cache = Path(cache)
    return ObjectStore(cache.parent / "bars" if cache.name == "tensors" else cache / "bars")
