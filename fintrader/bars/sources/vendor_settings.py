"""Settings of the requests to each vendor."""

from __future__ import annotations

from typing import Literal

from fintrader.config import Settings


class VendorSettings(Settings):
    """Settings that all vendors share."""

    actions: bool = True
    """Ask for splits and dividends too: those that are not in the prices reach the accounts that
    hold the share."""


class YahooSettings(VendorSettings):
    """Bars from Yahoo Finance."""

    kind: Literal["yahoo"] = "yahoo"
    interval: Literal["1m", "5m", "1h", "1d"] = "1m"


class AlpacaSettings(VendorSettings):
    """Bars from Alpaca."""

    kind: Literal["alpaca"] = "alpaca"
    interval: Literal["1m", "5m", "1d"] = "1m"
    """Length of the bars. Alpaca's hours begin on the hour and not with the session, so they are
    not on offer."""
    feed: Literal["sip", "iex", "otc", "boats", "delayed_sip"] = "sip"
    adjustment: Literal["raw", "split", "dividend", "all"] = "raw"


class CcxtSettings(VendorSettings):
    """Pairs of one cryptocurrency exchange."""

    kind: Literal["ccxt"] = "ccxt"
    exchange: str = "binance"
    """The exchange's name in ccxt: binance, bitstamp, coinbase, kraken, okx, ..."""
    interval: Literal["1m", "5m", "15m", "1h", "1d"] = "1m"
    """Length of the bars (ccxt's timeframe). Symbols are pairs as ccxt writes them: BTC/USDT."""
