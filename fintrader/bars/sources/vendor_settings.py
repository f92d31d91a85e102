"""Settings of the vendors of bars."""

from __future__ import annotations

import datetime as dt
from typing import Literal

from pydantic import Field, field_validator

from fintrader.config import Settings

INTERVALS = {1: "1m", 5: "5m", 15: "15m", 60: "1h", 1440: "1d"}
"""Length of bars in minutes -> its name in yfinance and ccxt."""


class VendorSettings(Settings):
    """Settings that all vendors share."""

    actions: bool = True
    """Request splits and dividends too. Those not yet in the prices are applied to the accounts
    that hold the share."""
    bar_minutes: int = 1

    @field_validator("bar_minutes", mode="before")
    @classmethod
    def _read_text(cls, value: object) -> object:
        """Convert text from the command line to a whole number."""
        return int(value) if isinstance(value, str) and value.isdecimal() else value

    @property
    def interval(self) -> str:
        """Length of the bars as yfinance and ccxt name it."""
        return INTERVALS[self.bar_minutes]


class YahooSettings(VendorSettings):
    """Bars from Yahoo Finance."""

    kind: Literal["yahoo"] = "yahoo"
    bar_minutes: Literal[1, 5, 60, 1440] = 1
    """Length of the bars in minutes; 1440 is a day."""


class AlpacaSettings(VendorSettings):
    """Bars from Alpaca."""

    kind: Literal["alpaca"] = "alpaca"
    bar_minutes: Literal[1, 5, 1440] = 1
    """Length of the bars in minutes; 1440 is a day. Bars of 60 minutes are not offered, because
    Alpaca's begin on the hour and not with the session."""
    feed: Literal["sip", "iex", "otc", "boats", "delayed_sip"] = "sip"
    adjustment: Literal["raw", "split", "dividend", "all"] = "raw"


class CcxtSettings(VendorSettings):
    """Bars of pairs at one cryptocurrency exchange, from ccxt."""

    kind: Literal["ccxt"] = "ccxt"
    exchange: str = "binance"
    """The exchange's name in ccxt: binance, bitstamp, coinbase, kraken, okx, ..."""
    bar_minutes: Literal[1, 5, 15, 60, 1440] = 1
    """Length of the bars in minutes; 1440 is a day. Symbols are pairs as ccxt writes them:
    BTC/USDT."""


class DownloadOptions(Settings):
    """Options of a download: vendor, days and bar length."""

    vendor: str | None = None
    """Vendor of the bars: yahoo (the default), alpaca, or an exchange in ccxt (binance, coinbase,
    kraken)."""
    index: Literal["nasdaq100", "sp500", "dow30"] | None = None
    """Download an index's members by date, instead of tickers."""
    days: int | None = Field(None, ge=1)
    """Days to download, up to yesterday or --end; by default 400; of minutes 29, of
    five-minute bars 59."""
    start: dt.date | None = None
    """First day to download, instead of --days."""
    end: dt.date | None = None
    """Last day to download; yesterday by default."""
    bar_minutes: int | None = Field(None, ge=1, le=1440)
    """Length of the bars, minutes: by default 1440 (a day), or 1 for an index from Alpaca."""
    calendar: str | None = None
    """The exchange's calendar, by its name in exchange_calendars, or FX; detected by default."""
