"""From settings to bars: the feed of a source, and where its chunks are kept."""

from __future__ import annotations

import datetime as dt
from functools import partial
from pathlib import Path
from typing import cast

from fintrader.data.bars import Bars
from fintrader.data.settings import DataSettings
from fintrader.data.sources.alpaca import Alpaca, AlpacaSettings
from fintrader.data.sources.base import Feed, FilesFeed, MadeFeed, MemoryFeed, file_inputs
from fintrader.data.sources.files import FilesSettings, list_files, read_files
from fintrader.data.sources.synthetic import SyntheticSettings, generate, synthetic_grid
from fintrader.data.sources.vendor import VendorFeed, VendorSettings
from fintrader.data.sources.yahoo import Yahoo, YahooSettings
from fintrader.data.universe import load_membership
from fintrader.errors import DataError
from fintrader.storage.objects import Objects


def open_feed(settings: DataSettings, cache: Path | None) -> Feed:
    """The source as a feed; nothing is downloaded or cut yet. Without a cache, bars are read into memory."""
    source = settings.source
    if isinstance(source, SyntheticSettings):
        if cache is not None:
            bar_store(settings, cache)  # nothing goes there, but a store that cannot be one is an error now
        made = MadeFeed({"kind": "synthetic"}, partial(_synthetic, source, settings.calendar, settings.bar_minutes))
        return cast(Feed, made)
    if isinstance(source, YahooSettings | AlpacaSettings):
        vendor = Yahoo(source) if isinstance(source, YahooSettings) else Alpaca(source)
        if cache is None:
            raise DataError(f"bars of {source.kind} pass through the store; build with a cache")
        return VendorFeed(vendor, source, _tickers(settings, source), settings.calendar, bar_store(settings, cache))
    if cache is None:
        files = list_files(source)
        return MemoryFeed(read_files(source), file_inputs(files, [file.sha256() for file in files]))
    return FilesFeed(source, bar_store(settings, cache))


def _synthetic(source: SyntheticSettings, calendar: str, bar_minutes: int) -> MemoryFeed:
    grid = synthetic_grid(source, calendar, bar_minutes)
    made = generate(source, grid)
    return MemoryFeed(made.bars, {"kind": "synthetic"}, made.index, grid.minutes, made.actions)


def _tickers(settings: DataSettings, source: VendorSettings) -> list[str]:
    """What to ask a vendor for: its own list, else the universe's, else all members of the index in the range."""
    explicit = source.symbols or settings.universe.symbols
    if explicit:
        return list(explicit)
    members = load_membership(settings.universe) or {}
    end = source.end or dt.date.today()
    return sorted(
        name
        for name, intervals in members.items()
        if any(first <= end and (stop is None or stop > source.start) for first, stop in intervals)
    )


def bar_store(settings: DataSettings, cache: Path) -> Objects:
    """Where chunks of bars are kept: `settings.store`, or `bars` beside (or in) the cache of markets."""
    if settings.store is not None:
        return Objects(settings.store)
    cache = Path(cache)
    return Objects(cache.parent / "bars" if cache.name == "tensors" else cache / "bars")


def read_source(settings: DataSettings) -> Bars:
    """All bars that the source has, as they are, in memory. Raises DataError."""
    source = settings.source
    if isinstance(source, SyntheticSettings):
        return generate(source, synthetic_grid(source, settings.calendar, settings.bar_minutes)).bars
    if not isinstance(source, FilesSettings):
        raise DataError(f"bars of {source.kind} pass through the store; build with a cache")
    return read_files(source, settings.universe.symbols)
