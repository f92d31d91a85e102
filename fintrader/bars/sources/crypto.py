"""Bars of cryptocurrency pairs from some hundred exchanges, through ccxt (extra `crypto`). No keys
are needed.

Set `data.calendar: 24/7`: sessions are days of UTC of 1,440 minutes. ccxt keeps each exchange's own
pace. How far back minutes reach is the exchange's choice (Kraken keeps its last 720 bars, others
years); what it does not have stays a gap. A pair trades in its quote currency, so all pairs of a
market should have the same one.
"""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fintrader.bars.bars import COLUMNS, Bars, wrap_columns
from fintrader.bars.sources.announced import Adjustment
from fintrader.bars.sources.vendor import Busy, Vendor
from fintrader.bars.sources.vendor_settings import CcxtSettings
from fintrader.errors import DataError, install_command

_NS = 1_000_000
_PAGE = 500
"""Bars a request where ccxt does not know an exchange's own limit."""


class Ccxt(Vendor):
    """Requests to one exchange. `client` is ccxt's object for it (tests bring their own).

    Raises DataError when the package is missing, or ccxt knows no such exchange.
    """

    name = "ccxt"
    batch = 1
    adjustment: Adjustment = "raw"
    settings: CcxtSettings

    def __init__(self, settings: CcxtSettings, client: Any = None) -> None:
        try:
            import ccxt
        except ImportError:
            raise DataError(f"the source ccxt needs ccxt: {install_command('crypto')}") from None
        self._ccxt = ccxt
        self.settings = settings
        if settings.exchange not in ccxt.exchanges:
            known = ("yahoo", "alpaca", *ccxt.exchanges)
            hint = _suggest(settings.exchange, known, "`ccxt.exchanges` lists them")
            raise DataError(f"ccxt knows no exchange {settings.exchange!r}; {hint}")
        self._client = client or getattr(ccxt, settings.exchange)({"enableRateLimit": True})
        offered = self._client.timeframes or {}
        if not self._client.has.get("fetchOHLCV") or settings.interval not in offered:
            raise DataError(
                f"{settings.exchange} offers no bars of {settings.interval} through ccxt (it has "
                f"{', '.join(offered) or 'none'}); choose another data.source.bar_minutes or"
                " exchange"
            )

    @property
    def page(self) -> int:
        spot = (getattr(self._client, "features", None) or {}).get("spot") or {}
        return int((spot.get("fetchOHLCV") or {}).get("limit") or _PAGE)

    def list_traps(self) -> dict[str, str]:
        return {
            "reach": f"the choice of {self.settings.exchange} for bars of this length: years, or"
            " the last 720 bars of kraken",
            "prices": "in the quote currency, counted as USD; all pairs should share one",
        }

    def fetch_ticker(self, symbol: str, first: dt.date, last: dt.date) -> Bars | None:
        page = self.page
        rows = fetch_pages(
            lambda since: self._request(symbol, since, page),
            (_midnight(first), _midnight(last + dt.timedelta(days=1))),
            self.settings.bar_minutes * 60_000,
            page,
        )
        return convert_rows(rows, symbol, f"ccxt {self.settings.exchange}") if rows else None

    def _request(self, symbol: str, since: int, page: int) -> list[Any]:
        errors = self._ccxt
        where = f"{self.settings.exchange} (ccxt)"
        try:
            self._client.load_markets()  # asked for once
            if symbol not in self._client.markets:
                hint = _suggest(symbol, self._client.markets, "pairs are written like BTC/USDT")
                raise DataError(f"{where} has no pair {symbol!r}; {hint}, or name another exchange")
            found: list[Any] = self._client.fetch_ohlcv(symbol, self.settings.interval, since, page)
        except errors.NetworkError as error:  # their text quotes the URL
            if " 451 " in str(error):
                raise DataError(
                    f"{where} does not serve this country; choose another exchange, like kraken or"
                    " coinbase"
                ) from None
            raise Busy(type(error).__name__, error.__cause__) from None
        except errors.BaseError as error:
            raise DataError(
                f"{where} refuses the request for {symbol} ({type(error).__name__}); check the pair"
                " and the dates"
            ) from None
        return found


def _suggest(name: str, known: Iterable[str], otherwise: str) -> str:
    close = difflib.get_close_matches(name, list(known), n=3)
    return f"did you mean {' or '.join(close)}?" if close else otherwise


def fetch_pages(
    ask: Callable[[int], Sequence[Sequence[Any]]], span: tuple[int, int], step: int, page: int
) -> list[Sequence[Any]]:
    """Fetch rows of [time, open, high, low, close, volume] inside a span, once each and in order.

    Requests page after page of at most `page` rows from a time on; all times are milliseconds,
    `step` is a bar's length. An empty page is a stretch without a trade, or before the pair was
    listed. Rows without a price are left out.
    """
    since, stop = span
    rows: dict[int, Sequence[Any]] = {}
    while since < stop:
        fresh = [row for row in ask(since) if row[0] >= since]
        rows |= {int(row[0]): row for row in fresh if row[0] < stop and None not in row[1:5]}
        since = int(fresh[-1][0]) + step if fresh else since + page * step
    return [rows[time] for time in sorted(rows)]


def convert_rows(rows: Sequence[Sequence[Any]], symbol: str, origin: str) -> Bars:
    """Convert rows of [milliseconds, open, high, low, close, volume] to bars; a missing volume
    counts as 0."""
    table = np.array([[value or 0.0 for value in row[1:6]] for row in rows], dtype=np.float64)
    ts = np.array([row[0] for row in rows], dtype=np.int64) * _NS
    return wrap_columns(symbol, ts, dict(zip(COLUMNS, table.T, strict=True)), origin)


def _midnight(day: dt.date) -> int:
    """Milliseconds since 1970, UTC."""
    return int(dt.datetime.combine(day, dt.time(), dt.UTC).timestamp() * 1000)
