"""Readers of tickers and pairs as users write them, and the calendars of their exchanges."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from fintrader.bars.calendar import FX
from fintrader.bars.sources.listing import find_file_kind
from fintrader.bars.sources.vendor import spell_share_class
from fintrader.config import is_url

_STABLE = "USDT|USDC|FDUSD|BUSD|TUSD"
_MONEY = f"{_STABLE}|USD|EUR|GBP|JPY|KRW|TRY|BRL|BTC|ETH"
_TICKER = re.compile(r"\^?[A-Z0-9][A-Z0-9.&=-]{0,18}", re.IGNORECASE)
_ENDINGS = """
XKRX KS KQ
XTKS T
XBOM NS BO
XHKG HK
XSHG SS SZ
XTAI TW TWO
XSES SI
XIDX JK
XBKK BK
XKLS KL
XASX AX
XNZE NZ
XETR DE
XFRA F
XLON L
XPAR PA
XAMS AS
XBRU BR
XMIL MI
XMAD MC
XLIS LS
XSWX SW
XWBO VI
XSTO ST
XHEL HE
XCSE CO
XOSL OL
XDUB IR
XWAR WA
XPRA PR
XIST IS
XTSE TO V NE CN
BVMF SA
XMEX MX
XBUE BA
XSGO SN
XJSE JO
XSAU SR
XMOS ME
"""
EXCHANGES = {
    ending: row.split()[0] for row in _ENDINGS.strip().splitlines() for ending in row.split()[1:]
}
"""Suffix of Yahoo's tickers -> calendar of the exchange."""


def is_path(word: str) -> bool:
    """Report whether a word is a path, a glob pattern or a URL: it exists, or it has the form of
    one and not that of a ticker."""
    if Path(word).exists() or is_url(word) or find_file_kind(word, text=True) is not None:
        return True
    return not is_ticker(word) or ("/" in word and Path(word).parent.is_dir())


def is_ticker(word: str) -> bool:
    """Report whether a word is a ticker or a pair, or several of them separated by commas."""
    parts = [part.strip() for part in word.split(",") if part.strip()]
    return bool(parts) and all(_TICKER.fullmatch(part) or read_pair(part) for part in parts)


def read_tickers(words: Iterable[str]) -> list[str]:
    """Read tickers from words, each of which may contain several separated by commas. Returns them
    in capitals, without repeats."""
    parts = (part.strip().upper() for word in words for part in word.split(","))
    return list(dict.fromkeys(part for part in parts if part))


def read_pair(word: str, *, is_certain: bool = False) -> str | None:
    """Read BTC/USDT, BTC-USDT or BTCUSDT as the pair BTC/USDT; None for anything else.

    is_certain: True if pairs of coins are meant. BTC-USD and ETHBTC are then pairs too, otherwise
    tickers.
    """
    quotes = {"/": _MONEY, "-": _STABLE, "": _STABLE}
    for sign, quote in quotes.items():
        quote = _MONEY if is_certain else quote
        match = re.fullmatch(rf"([A-Z0-9]{{2,12}}?){sign}({quote})", word, re.IGNORECASE)
        if match is not None:
            return f"{match[1]}/{match[2]}".upper()
    return None


def find_ticker_calendar(ticker: str, *, is_daily: bool) -> str | None:
    """Return the calendar of a Yahoo ticker: XNAS for one without a suffix, None for an index or an
    unknown suffix."""
    if ticker.startswith("^"):
        return None
    if ticker.endswith("=X"):
        return "24/5" if is_daily else FX  # which have the same days
    if ticker.endswith("=F"):
        return "CMES"
    if re.fullmatch(rf"[A-Z0-9]{{2,12}}-({_MONEY})", ticker):
        return "24/7"
    _, point, ending = spell_share_class(ticker, "-").rpartition(".")
    return EXCHANGES.get(ending) if point else "XNAS"
