"""Download a vendor's bars of tickers or of an index's members into the store that a run reads.

A download is planned (source, days, calendar), then run, and its bars are described like detected
files.
"""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fintrader.bars.bars import DAY_MINUTES, bar_length
from fintrader.bars.calendar import session_date
from fintrader.bars.checks.kinds import STOPPING
from fintrader.bars.detect import Detection, Sure
from fintrader.bars.propose_calendar import USUAL, propose
from fintrader.bars.sources.feed import Feed
from fintrader.bars.sources.tickers import find_ticker_calendar, read_pair
from fintrader.bars.sources.vendor import VendorFeed
from fintrader.bars.sources.vendor_settings import (
    AlpacaSettings,
    CcxtSettings,
    DownloadOptions,
    VendorSettings,
    YahooSettings,
)
from fintrader.config import validate
from fintrader.errors import BarError, ConfigError, DataError
from fintrader.market.bar_source import open_feed, open_source
from fintrader.market.data_config import DataConfig
from fintrader.market.inspect import quality_report
from fintrader.market.settings import DataSettings
from fintrader.market.universe import index_tickers
from fintrader.progress import Progress, shorten_list
from fintrader.results.market_description import MOST_OUTSIDE

FEWEST = 3
"""Sessions that three windows need."""
_DAY = dt.timedelta(days=1)
_USUAL_DAYS = {1: 29, 5: 59}
"""Minutes of a bar -> default days, as many as Yahoo keeps."""
_MANY_DAYS = 400
_SLICE_SYMBOLS = 5
_SLICE_SESSIONS = 60
_FEW_ROWS = 2_000_000
"""Most rows that are checked for faults."""


@dataclass
class Download(Detection):
    """A vendor's bars, planned or downloaded."""

    name: str = ""
    """The vendor, or the exchange."""
    data: dict[str, Any] = field(default_factory=dict)
    """Settings of `data` that name the bars."""

    @property
    def data_settings(self) -> DataSettings:
        """Settings of the bars."""
        return validate(DataSettings, {"calendar": self.calendar, **self.data}, "init")

    def open(self) -> VendorFeed:
        """Open the bars where a run looks for them."""
        feed = open_source(self.data_settings, CACHE)
        assert isinstance(feed, VendorFeed)
        return feed


CACHE = DataConfig().cache


def plan_download(words: Sequence[str], options: DownloadOptions) -> Download:
    """Find the source, the days and the calendar of bars. Raises ConfigError or DataError.

    If the tickers imply no calendar, it requests a few bars.
    """
    source, tickers = _choose_source(words, options)
    today = dt.datetime.now(dt.UTC).date()
    first, last = _choose_days(options, source, today)
    universe = {"members": options.index} if options.index else {"symbols": tickers}
    kind = source.model_dump(include={"kind", "exchange"})
    name = kind.get("exchange", kind["kind"])
    days = {"start": first, "end": last}
    found = Download("", "24/7", name=name, data=days)
    found.data |= {"source": kind | {"bar_minutes": source.bar_minutes}, "universe": universe}
    sure: Sure = "given" if options.vendor else "assumed"
    others = "" if options.vendor else "others: --from alpaca, binance, coinbase, kraken, ..."
    found.note("source", name, sure, others)
    vendor = found.open().vendor
    earliest = vendor.earliest(today)
    if earliest is not None and first < earliest:
        most = f"--days {(last - earliest).days + 1} at most" if options.days else ""
        remedy = most if earliest <= last else "a later --end"
        raise ConfigError(
            f"{name} keeps no bars of {source.bar_minutes} minutes before {earliest}; choose"
            f" {remedy or f'--start {earliest}'}, or longer bars (--bar-minutes 1440 for daily)"
        )
    _choose_calendar(found, options.calendar, tickers)
    for trap, sentence in vendor.list_traps().items():
        found.note(trap, name, "sure", sentence)
    if any(ticker.startswith("^") for ticker in tickers):
        found.note("index", "^", "sure", "an index cannot be bought; a fund on it can")
    return found


def _choose_source(
    words: Sequence[str], options: DownloadOptions
) -> tuple[VendorSettings, list[str]]:
    """Choose the source's settings, and write tickers in its style."""
    pairs = [pair for pair in map(read_pair, words) if pair]
    vendor = options.vendor or ("binance" if pairs else "yahoo")
    vendor = {"yfinance": "yahoo"}.get(vendor, vendor)
    usual = 1 if options.index and vendor == "alpaca" else DAY_MINUTES
    minutes = options.bar_minutes or usual
    if vendor in ("yahoo", "alpaca"):
        if pairs:
            hint = f"{pairs[0].partition('/')[0]}-USD is Yahoo's ticker, and "
            raise ConfigError(
                f"{pairs[0]} is a pair of coins; {hint * (vendor == 'yahoo')}an exchange has pairs:"
                " --from binance"
            )
        model = YahooSettings if vendor == "yahoo" else AlpacaSettings
        values = {"kind": vendor, "bar_minutes": minutes}
        return validate(model, values, "data.source"), list(words)
    if options.index:
        raise ConfigError(f"--index: {vendor} has no shares; choose --from yahoo or alpaca")
    values = {"kind": "ccxt", "exchange": vendor, "bar_minutes": minutes}
    tickers = dict.fromkeys(read_pair(word, is_certain=True) or word for word in words)
    return validate(CcxtSettings, values, "data.source"), list(tickers)


def _choose_days(
    options: DownloadOptions, source: VendorSettings, today: dt.date
) -> tuple[dt.date, dt.date]:
    """Choose the first and the last day, both completed."""
    if options.days is not None and options.start is not None:
        raise ConfigError("--days and --start both set the first day; omit one")
    last = min(options.end or today, today - _DAY)
    days = options.days or _USUAL_DAYS.get(source.bar_minutes, _MANY_DAYS)
    first = options.start or last - (days - 1) * _DAY
    if first > last:
        raise ConfigError(
            f"--start {first} is after {last}, the last day to download; choose an earlier one"
        )
    return first, last


def _choose_calendar(found: Download, calendar: str | None, tickers: Sequence[str]) -> None:
    """Take the given calendar, that of the tickers, or one that fits some of their bars."""
    sure: Sure = "likely"
    why = "named by the tickers"
    is_daily = found.data["source"]["bar_minutes"] == DAY_MINUTES
    named = {find_ticker_calendar(ticker, is_daily=is_daily): ticker for ticker in tickers}
    calendars = {one: ticker for one, ticker in named.items() if one} or {"XNAS": ""}
    if calendar is not None:
        sure = "given"
        why = ""
    elif found.data["source"]["kind"] == "ccxt":
        calendar = "24/7"
        sure = "sure"
        why = "coins trade around the clock"
    elif len(calendars) > 1:
        shown = ", ".join(f"{ticker} on {one}" for one, ticker in calendars.items())
        raise ConfigError(
            f"a market has one calendar, but these trade on several: {shown}; make a configuration"
            " for each, or name one with --calendar"
        )
    elif None not in named:
        (calendar,) = calendars
    else:
        bars = found.open().sample(named[None])
        if bars is None:
            raise DataError(_explain_missing(found, [named[None]]))
        spans = [(int(bars.ts.min()), int(bars.ts.max()))]
        proposal = propose(bars, USUAL, ("UTC",), bar_length(bars, DAY_MINUTES), spans)
        calendar = proposal.best.calendar
        others = shorten_list(proposal.calendars)
        why = f"fits the days of {named[None]}" + f"; {others} would fit, too" * bool(others)
    found.calendar = calendar
    found.note("calendar", calendar, sure, f"{why} (--calendar)" if sure == "likely" else why)


def download(found: Download, is_forced: bool, progress: Progress) -> None:
    """Download the missing bars, and describe all. Raises DataError for tickers without bars, and
    BarError for many rows outside of the calendar unless `is_forced`."""
    feed = found.open()
    try:
        feed.prepare(progress)
        if feed.list_requests():  # ask again where sessions had no bars
            feed.prepare(progress)
    except DataError as error:
        if not feed.missing:
            raise
        raise type(error)(_explain_missing(found, feed.missing)) from None
    chunks = [chunk for name in feed.symbols for chunk in feed.list_chunks(name)]
    num_rows = sum(chunk.rows for chunk in chunks)
    share = feed.num_outside / (num_rows + feed.num_outside)
    if share > MOST_OUTSIDE and not is_forced:
        raise BarError(
            f"{share:.1%} of the rows are outside the sessions of {found.calendar}; name the"
            " right calendar with --calendar, or this one to leave these rows out"
        )
    edges = min(chunk.first for chunk in chunks), max(chunk.last for chunk in chunks)
    first, last = (session_date(found.calendar, ts) for ts in edges)
    span = max(first, found.data["start"]), min(last, found.data["end"])
    sessions = feed.list_sessions(*span)
    if len(sessions) < FEWEST:
        raise BarError(
            f"{found.name} has bars of {len(sessions)} sessions, but windows need {FEWEST} or"
            " more; choose more --days, or longer bars with --bar-minutes"
        )
    found.first = sessions[0]
    found.last = sessions[-1]
    found.sessions = tuple(sessions)
    found.symbols = tuple(feed.symbols)
    found.session_minutes = feed.session_minutes
    found.bar_minutes = min(found.data["source"]["bar_minutes"], feed.session_minutes)
    found.has_volume = any(feed.bars(name).volume.any() for name in feed.symbols[:_SLICE_SYMBOLS])
    found.note("symbols", len(found.symbols), "given", shorten_list(found.symbols))
    if feed.missing:
        found.note("without bars", len(feed.missing), "sure", shorten_list(feed.missing))
    summary = f"{len(sessions)} sessions of {found.calendar}, {num_rows:,} bars"
    found.note("range", f"{found.first} to {found.last}", "sure", summary)
    if num_rows <= _FEW_ROWS:
        report = quality_report(found.data_settings, cache=CACHE)
        found.note_faults([fault for fault in report.faults if fault.kind in STOPPING])


def _explain_missing(found: Download, missing: Sequence[str]) -> str:
    """Explain that some tickers have no bars, and how to get the others."""
    data = found.data
    problem = (
        f"{found.name} has no bars of {', '.join(missing)} from {data['start']} to {data['end']},"
        " and no file or folder here has that name; check the spelling, or whether it was listed"
        " then"
    )
    others = [ticker for ticker in data["universe"].get("symbols", ()) if ticker not in missing]
    if others:
        problem += f". The others: fintrader init {shlex.join(others)} (with the same options)"
    return problem


def open_last(found: Download, settings: DataSettings) -> tuple[DataSettings, Feed, list[dt.date]]:
    """Return settings and a feed of the last sessions of a few tickers, and these sessions."""
    days = [*found.sessions[-_SLICE_SESSIONS:]]
    feed = found.open()
    (collection,) = feed.stored()
    months = sorted({f"{day:%Y-%m}" for day in days})
    held = [name for name in feed.asked if collection.list_chunks(name, months)]
    if settings.universe.index is not None:
        members = index_tickers(settings.universe.index, days[0], days[-1], feed.today)
        held = [name for name in held if name in members]
    universe = settings.universe.model_copy(update={"symbols": tuple(held[:_SLICE_SYMBOLS])})
    narrow = {"universe": universe, "start": days[0], "end": days[-1]}
    settings = settings.model_copy(update=narrow)
    return settings, open_feed(settings, CACHE), days
