"""How bars are asked for from each vendor."""

from __future__ import annotations

import datetime as dt
from typing import Literal

from pydantic import Field

from fintrader.config import Settings, Ticker


class VendorSettings(Settings):
    """What all vendors share."""

    symbols: tuple[Ticker, ...] = ()
    """Tickers to ask for; those of `data.universe` (its list, or its index) when empty."""
    start: dt.date
    """First day."""
    end: dt.date | None = None
    """Last day, included; yesterday by default (today's bars are not over)."""
    retries: int = Field(4, ge=0)
    """How often a request that failed for a passing reason is made again."""
    backoff_seconds: float = Field(2.0, gt=0)
    """Wait before the first repetition; doubles with each one."""
    actions: bool = True
    """Ask for splits and dividends too: those that are not in the prices reach the accounts that
    hold the share."""


class YahooSettings(VendorSettings):
    """Bars from Yahoo Finance."""

    kind: Literal["yahoo"] = "yahoo"
    interval: Literal["1m", "5m", "1h", "1d"] = "1m"
    batch: int = Field(10, ge=1, le=100)
    """Tickers that count as one step of progress."""
    timeout_seconds: float = Field(20.0, gt=0)


class AlpacaSettings(VendorSettings):
    """Bars from Alpaca."""

    kind: Literal["alpaca"] = "alpaca"
    interval: Literal["1m", "5m", "1d"] = "1m"
    """Alpaca's hours begin on the hour and not with the session, so they are not on offer."""
    feed: Literal["sip", "iex", "otc", "boats", "delayed_sip"] = "sip"
    adjustment: Literal["raw", "split", "dividend", "all"] = "raw"
    batch: int = Field(20, ge=1, le=100)
    """Tickers per request."""
    endpoint: str | None = None
    """A server on this machine in the place of https://data.alpaca.markets, for tests. Keys are
    sent to no other host."""
    timeout_seconds: float = Field(20.0, gt=0)
    """A request that has said nothing for so long is given up and asked again."""


class CcxtSettings(VendorSettings):
    """Pairs of one cryptocurrency exchange."""

    kind: Literal["ccxt"] = "ccxt"
    exchange: str = "binance"
    """As ccxt calls it: binance, bitstamp, coinbase, kraken, okx, ..."""
    interval: Literal["1m", "5m", "15m", "1h", "1d"] = "1m"
    """Length of the bars (ccxt's timeframe). Symbols are pairs as ccxt writes them: BTC/USDT."""
