"""Bars of tickers or of an index's members from a vendor, in the store where a run looks for them.

It plans a download (calendar, days, size), makes it, and describes the bars like detected files.
"""

from __future__ import annotations

import datetime as dt
import difflib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fintrader.bars.bars import DAY_MINUTES
from fintrader.bars.calendar import session_date
from fintrader.bars.checks.gates import name_faults, suggest_waivers
from fintrader.bars.checks.kinds import STOPPING
from fintrader.bars.detect import Detection, Sure
from fintrader.bars.propose_calendar import CALENDARS, propose, usual_step
from fintrader.bars.sources.feed import Feed
from fintrader.bars.sources.tickers import calendar_of, read_pair
from fintrader.bars.sources.vendor import VendorFeed
from fintrader.bars.sources.vendor_settings import (
    AlpacaSettings,
    CcxtSettings,
    VendorSettings,
    YahooSettings,
)
from fintrader.config import validate
from fintrader.errors import BarError, ConfigError, DataError
from fintrader.market.bar_source import bar_store, open_feed, open_source
from fintrader.market.data_config import DataConfig
from fintrader.market.inspect import quality_report
from fintrader.market.settings import DataSettings
from fintrader.market.universe import index_tickers
from fintrader.progress import Progress
from fintrader.results.market_description import MOST_OUTSIDE

_DAY = dt.timedelta(days=1)
_USUAL_DAYS = {1: 29, 5: 59}
"""Minutes of a bar -> days that are asked for by default, as many as Yahoo keeps."""
_ALL_YEARS = 400
_SLICE_SYMBOLS = 5
_SLICE_SESSIONS = 60
_FEW_ROWS = 2_000_000
"""Faults are looked for in all of so many rows."""


@dataclass(frozen=True)
class Wanted:
    """Bars that a user asks a vendor for; None: by default."""

    tickers: tuple[str, ...]
    index: str | None = None
    """Name of an index, whose members are meant, instead of tickers."""
    vendor: str | None = None
    """yahoo, alpaca, or an exchange that ccxt knows."""
    bar_minutes: int | None = None
    calendar: str | None = None
    start: dt.date | None = None
    end: dt.date | None = None
    days: int | None = None


@dataclass
class Download(Detection):
    """A vendor's bars, planned or there."""

    data: dict[str, Any] = field(default_factory=dict)
    """Settings of `data` that name them."""
    num_rows: int = 0

    @property
    def data_settings(self) -> DataSettings:
        """The bars as settings."""
        return validate(DataSettings, {"calendar": self.calendar, **self.data}, "init")

    def open(self) -> VendorFeed:
        """Open the bars where a run looks for them."""
        feed = open_source(self.data_settings, CACHE)
        assert isinstance(feed, VendorFeed)
        return feed


CACHE = DataConfig().cache


def plan_download(wanted: Wanted) -> Download:
    """Find the source, the days and the calendar of bars. Raises ConfigError or DataError.

    A few bars are requested where the tickers name no calendar.
    """
    source, tickers = _choose_source(wanted)
    today = dt.datetime.now(dt.UTC).date()
    universe = {"members": wanted.index} if wanted.index else {"symbols": tickers}
    values = source.model_dump(exclude={"actions", "feed", "adjustment"})
    is_daily = source.bar_minutes == DAY_MINUTES
    found = Download("", "24/7", data={"source": values, "universe": universe})
    name = values.get("exchange", values["kind"])
    sure: Sure = "given" if wanted.vendor else "assumed"
    why = "" if wanted.vendor else "others: --from alpaca, binance, coinbase, kraken, ..."
    found.note("source", name, sure, why)
    first, last = _choose_days(wanted, source, today)
    found.data |= {"start": first, "end": last}
    vendor = found.open().vendor
    earliest = vendor.earliest(today)
    if earliest is not None and first < earliest:
        days = (last - earliest).days + 1
        remedy = f"ask for --days {days} at most" if wanted.days else f"--start {earliest}"
        raise ConfigError(
            f"{name} has no bars of {source.bar_minutes} minutes before {earliest} any more;"
            f" {remedy}, or longer bars (--bar-minutes 1440 are days)"
            if days > 0
            else f"{name} has no bars before {earliest}; choose a later --end"
        )
    _choose_calendar(found, wanted, tickers, is_daily)
    for trap, sentence in vendor.list_traps().items():
        found.note(trap, name, "sure", sentence)
    if any(ticker.startswith("^") for ticker in tickers):
        found.note("index", "^", "sure", "nobody can buy an index; a fund on it has a ticker")
    return found


def _choose_source(wanted: Wanted) -> tuple[VendorSettings, list[str]]:
    """Choose the source's settings, and write tickers as it does."""
    pairs = [read_pair(ticker) for ticker in wanted.tickers]
    vendor = wanted.vendor or ("binance" if any(pairs) else "yahoo")
    vendor = {"yfinance": "yahoo"}.get(vendor, vendor)
    is_index = wanted.index is not None
    minutes = wanted.bar_minutes or (1 if is_index and vendor == "alpaca" else DAY_MINUTES)
    values: dict[str, Any] = {"kind": vendor, "bar_minutes": minutes}
    if vendor in ("yahoo", "alpaca"):
        mixed = next((pair for pair in pairs if pair), None)
        if mixed:
            hint = f"{mixed.partition('/')[0]}-USD is Yahoo's ticker, and " * (vendor == "yahoo")
            raise ConfigError(
                f"{mixed} is a pair of coins; {hint}an exchange has pairs: --from binance"
            )
        model = YahooSettings if vendor == "yahoo" else AlpacaSettings
        return validate(model, values, "data.source"), list(wanted.tickers)
    if is_index:
        raise ConfigError(f"--index: {vendor} has no shares; choose --from yahoo or alpaca")
    near = difflib.get_close_matches(vendor, ("yahoo", "alpaca"), n=1)
    if near:
        raise ConfigError(f"--from: {vendor!r} is unknown; did you mean {near[0]}?")
    stocks = [ticker for ticker in wanted.tickers if read_pair(ticker, is_certain=True) is None]
    if stocks and wanted.vendor is None:
        raise ConfigError(
            f"{', '.join(stocks)} and pairs of coins have different calendars; make two"
            " configurations"
        )
    values |= {"kind": "ccxt", "exchange": vendor}
    spelt = [read_pair(ticker, is_certain=True) or ticker for ticker in wanted.tickers]
    return validate(CcxtSettings, values, "data.source"), list(dict.fromkeys(spelt))


def _choose_days(wanted: Wanted, source: VendorSettings, today: dt.date) -> tuple[dt.date, dt.date]:
    """Choose the first and the last day; only days that are over are asked for."""
    if wanted.days is not None and wanted.start is not None:
        raise ConfigError("--days and --start say the same; leave one of them out")
    last = min(wanted.end or today, today - _DAY)
    days = wanted.days or _USUAL_DAYS.get(source.bar_minutes, _ALL_YEARS)
    first = wanted.start or last - (days - 1) * _DAY
    if first > last:
        raise ConfigError(
            f"--start {first} lies after {last}, the last day that is asked for; choose an earlier"
            " one"
        )
    return first, last


def _choose_calendar(
    found: Download, wanted: Wanted, tickers: Sequence[str], is_daily: bool
) -> None:
    """Take the calendar that is given, that the tickers name, or that fits some of their bars."""
    if wanted.calendar is not None:
        found.calendar = wanted.calendar
        found.note("calendar", found.calendar, "given", "")
        return
    if found.data["source"]["kind"] == "ccxt":
        found.note("calendar", "24/7", "sure", "coins trade around the clock")
        return
    named = {ticker: calendar_of(ticker, is_daily=is_daily) for ticker in tickers} or {"": "XNAS"}
    calendars = {calendar: ticker for ticker, calendar in named.items() if calendar}
    if len(calendars) > 1:
        shown = ", ".join(f"{ticker} on {calendar}" for calendar, ticker in calendars.items())
        raise ConfigError(
            f"a market has one calendar, and these trade on several: {shown}; make a configuration"
            " for each, or name the one whose sessions count with --calendar"
        )
    if calendars:
        found.calendar = next(iter(calendars))
        found.note("calendar", found.calendar, "likely", "named by the tickers (--calendar)")
        return
    bars = found.open().sample(tickers[0])
    if bars is None:
        raise DataError(_explain_missing(found, [tickers[0]], list(tickers)))
    spans = [(int(bars.ts.min()), int(bars.ts.max()))]
    proposal = propose(bars, CALENDARS, ("UTC",), usual_step(bars), spans)
    found.calendar = proposal.best.calendar
    others = ", ".join(proposal.calendars[:3])
    why = f"fits the times of {tickers[0]}" + (f"; {others} would, too" if others else "")
    found.note("calendar", found.calendar, "assumed" if others else "sure", f"{why} (--calendar)")


def describe_size(found: Download) -> str:
    """Describe the requests, the room and the time that a download needs, as lines for a
    terminal; empty where the store holds all."""
    size = found.open().estimate()
    if not size.num_requests:
        return ""
    hours = f"{size.minutes / 60:.1f} hours" if size.minutes > 90 else f"{size.minutes:.0f} minutes"
    room = size.num_bytes / 1e6
    shown = f"{room / 1e3:.1f} GB" if room > 1000 else f"{max(room, 0.1):.1f} MB"
    return (
        f"to be downloaded: {size.num_symbols} tickers, {size.num_sessions:,} sessions, at most"
        f" {size.num_rows:,} bars;\nestimated: {shown} in"
        f" {bar_store(found.data_settings, CACHE)}, {size.num_requests:,} requests,"
        f" {hours if size.minutes >= 1 else 'a minute'} or more. When stopped, the same command"
        " goes on from there."
    )


def download(found: Download, is_forced: bool, progress: Progress) -> None:
    """Download the bars that the store lacks, and describe all. Raises DataError for tickers
    without bars, and BarError for many rows outside of the calendar unless `is_forced`."""
    feed = found.open()
    try:
        feed.prepare(progress)
        if feed.list_requests():  # silent sessions: a second answer settles them for today
            feed.prepare(progress)
    except DataError as error:
        if not feed.missing:
            raise
        names = list(found.data["universe"].get("symbols", ()))
        raise type(error)(_explain_missing(found, list(feed.missing), names)) from None
    share = feed.num_outside / max(feed.num_rows, 1)
    if share > MOST_OUTSIDE and not is_forced:
        raise BarError(
            f"{share:.1%} of the rows lie outside of the sessions of {found.calendar}; name the"
            " right calendar with --calendar, or this one to leave these rows out"
        )
    chunks = [chunk for name in feed.symbols for chunk in feed.list_chunks(name)]
    found.num_rows = sum(chunk.rows for chunk in chunks)
    found.first, found.last = (
        session_date(found.calendar, ts)
        for ts in (min(chunk.first for chunk in chunks), max(chunk.last for chunk in chunks))
    )
    found.symbols = tuple(feed.symbols)
    sessions = feed.list_sessions(found.first, found.last)
    found.sessions = tuple(sessions)
    minutes = found.data["source"]["bar_minutes"]
    found.session_minutes = feed.session_minutes
    found.bar_minutes = min(minutes, feed.session_minutes)
    found.has_volume = any(feed.bars(name).volume.any() for name in feed.symbols[:_SLICE_SYMBOLS])
    shown = ", ".join(found.symbols[:5]) + (", ..." if len(found.symbols) > 5 else "")
    found.note("symbols", len(found.symbols), "given", shown)
    if feed.missing:
        shown = ", ".join(feed.missing[:12]) + (", ..." if len(feed.missing) > 12 else "")
        found.note("without bars", len(feed.missing), "sure", shown)
    start = found.data["start"]
    late = f"; asked for from {start} on" if found.first - start > 5 * _DAY else ""
    said = f"{len(sessions)} sessions of {found.calendar}, {found.num_rows:,} bars{late}"
    found.note("range", f"{found.first} to {found.last}", "sure", said)
    if found.num_rows <= _FEW_ROWS:
        report = quality_report(found.data_settings, cache=CACHE)
        faults = [fault for fault in report.faults if fault.kind in STOPPING]
        if faults:
            found.waivers = suggest_waivers(faults)
            said = f"a build stops at {name_faults(faults)} (data.waive, data.actions)"
            found.note("faults", len(faults), "sure", said)


def _explain_missing(found: Download, missing: list[str], names: list[str]) -> str:
    """Explain that there are no bars of some tickers, and how to get those of the others."""
    data = found.data
    name = data["source"].get("exchange", data["source"]["kind"])
    problem = (
        f"{name} has no bars of {', '.join(missing)} from {data['start']} to {data['end']}, and no"
        " file or folder here is called so; check the spelling, or whether it was listed then"
    )
    others = [ticker for ticker in names if ticker not in missing]
    if others:
        problem += f". The others: fintrader init {shlex.join(others)} (with the same options)"
    return problem


def open_last(found: Download, settings: DataSettings) -> tuple[DataSettings, Feed, list[dt.date]]:
    """Open a part of the bars as a market's settings and feed: the last sessions, also returned, of
    a few tickers."""
    days = [*found.sessions[-_SLICE_SESSIONS:]]
    feed = found.open()
    names = {*feed.asked}
    index = settings.universe.index
    if index is not None:
        names &= {*index_tickers(index, days[0], days[-1], feed.today)}
    months = sorted({f"{day:%Y-%m}" for day in days})
    (collection,) = feed.stored()
    held = [name for name in sorted(names) if collection.list_chunks(name, months)]
    universe = settings.universe.model_copy(update={"symbols": tuple(held[:_SLICE_SYMBOLS])})
    narrow = {"universe": universe, "start": days[0], "end": days[-1]}
    settings = settings.model_copy(update=narrow)
    return settings, open_feed(settings, CACHE), days
