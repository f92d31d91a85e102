"""Settings of the requests to each vendor."""

from __future__ import annotations

import datetime as dt
from typing import Literal

from pydantic import Field, field_validator

from fintrader.config import Settings

INTERVALS = {1: "1m", 5: "5m", 15: "15m", 60: "1h", 1440: "1d"}
"""Length of bars in minutes -> its name at Yahoo and in ccxt."""


class VendorSettings(Settings):
    """Settings that all vendors share."""

    actions: bool = True
    """Ask for splits and dividends too: those that are not in the prices reach the accounts that
    hold the share."""
    bar_minutes: int = 1

    @field_validator("bar_minutes", mode="before")
    @classmethod
    def _read_text(cls, value: object) -> object:
        """Read the text of a whole number, as the command line gives it."""
        return int(value) if isinstance(value, str) and value.isdecimal() else value

    @property
    def interval(self) -> str:
        """Length of the bars, as Yahoo and ccxt call it."""
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
    """Length of the bars in minutes; 1440 is a day. Alpaca's hours begin on the hour and not with
    the session, so they are not on offer."""
    feed: Literal["sip", "iex", "otc", "boats", "delayed_sip"] = "sip"
    adjustment: Literal["raw", "split", "dividend", "all"] = "raw"


class CcxtSettings(VendorSettings):
    """Pairs of one cryptocurrency exchange."""

    kind: Literal["ccxt"] = "ccxt"
    exchange: str = "binance"
    """The exchange's name in ccxt: binance, bitstamp, coinbase, kraken, okx, ..."""
    bar_minutes: Literal[1, 5, 15, 60, 1440] = 1
    """Length of the bars in minutes; 1440 is a day. Symbols are pairs as ccxt writes them:
    BTC/USDT."""


class DownloadOptions(Settings):
    """Tickers to download, their vendor and days."""

    vendor: str | None = None
    """Vendor of the tickers: yahoo (the default), alpaca, or a ccxt exchange (binance, coinbase,
    kraken)."""
    index: Literal["nasdaq100", "sp500", "dow30"] | None = None
    """Download the members of an index by date, instead of tickers."""
    days: int | None = Field(None, ge=1)
    """Days to download, up to yesterday or --end; 400 by default, 29 for minutes."""
    start: dt.date | None = None
    """First day to download, instead of --days."""
    end: dt.date | None = None
    """Last day to download; yesterday by default."""
    bar_minutes: int | None = Field(None, ge=1)
    """Length of the bars; for tickers 1, 5, 60 or 1440 (a day, the default)."""
    calendar: str | None = None
    """The exchange's calendar, by its name in exchange_calendars, or FX; detected by default."""
