"""Bars of cryptocurrency pairs from about a hundred exchanges, through ccxt (extra `crypto`). No
keys are needed.

Set `data.calendar: 24/7`: a session is a UTC day of 1,440 minutes. ccxt limits the rate of requests
as each exchange wants it. Exchanges keep minute bars for different times (Kraken the last 720 bars,
others years); missing bars stay a gap. A pair trades in its quote currency, so all pairs of a
market should have the same one.
"""

from __future__ import annotations

import datetime as dt
import difflib
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

import numpy as np

from fintrader.bars.bars import COLUMNS, Bars, wrap_columns
from fintrader.bars.sources.alpaca import check_endpoint, restrict
from fintrader.bars.sources.announced import Adjustment
from fintrader.bars.sources.vendor import Busy, Vendor
from fintrader.bars.sources.vendor_settings import CcxtSettings
from fintrader.errors import DataError, install_command

_NS = 1_000_000
"""Nanoseconds of a millisecond."""
_OPTIONS = {
    "binance": {
        "fetchMarkets": {"types": ["spot"]},
        "fetchCurrencies": False,
        "fetchMargins": False,
        "fetchOpenOrders": {"warnWithoutSymbol": False},
        "recvWindow": 5000,
    }
}
ENDPOINT = "FINTRADER_CCXT_DATA_URL"
"""Environment variable for tests: address of a server on this machine that stands in for the
exchange."""
_PAGE = 500
"""Bars per request if ccxt does not know the exchange's own limit."""


class Ccxt(Vendor):
    """Requests to one exchange. client: ccxt's object for the exchange, by default a new one (tests
    pass their own).

    Raises DataError when the package is missing, ccxt knows no such exchange, or the exchange
    offers no bars of this length.
    """

    name = "ccxt"
    batch = 1
    adjustment: Adjustment = "raw"
    settings: CcxtSettings

    def __init__(self, settings: CcxtSettings, client: Any = None) -> None:
        exchange = open_exchange(settings.exchange)
        self._client = client or exchange
        self.settings = settings
        address = os.environ.get(ENDPOINT)
        if address and client is None:
            endpoint = check_endpoint(address, "localhost", DataError)
            restrict(self._client.session, endpoint, self._client.timeout / 1000)
        offered = self._client.timeframes or {}
        if not self._client.has.get("fetchOHLCV") or settings.interval not in offered:
            raise DataError(
                f"{settings.exchange} offers no bars of {settings.interval} through ccxt (it has "
                f"{', '.join(offered) or 'none'}); choose another data.source.bar_minutes or"
                " data.source.exchange"
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

    def fetch(self, symbols: Sequence[str], first: dt.date, last: dt.date) -> dict[str, Bars]:
        return self.between(symbols, _midnight(first), _midnight(last + dt.timedelta(days=1)))

    def between(self, symbols: Sequence[str], first: int, stop: int) -> dict[str, Bars]:
        """Return the bars that begin in `[first, stop)`, nanoseconds since 1970 UTC. Raises like
        `fetch`."""
        length = self.settings.bar_minutes * 60_000
        span = first // _NS, stop // _NS
        bars = {}
        for symbol in symbols:
            rows = fetch_pages(functools.partial(self._request, symbol), span, length, self.page)
            if rows:
                bars[symbol] = convert_rows(rows, symbol, f"ccxt {self.settings.exchange}")
        return bars

    def _request(self, symbol: str, since: int) -> list[Any]:
        """Request a page of bars, and leave out those that have not closed by the server's
        clock."""
        import ccxt as errors

        where = f"{self.settings.exchange} (ccxt)"
        try:
            self._client.load_markets()  # ccxt requests them once
            if symbol not in self._client.markets:
                hint = _suggest(symbol, self._client.markets, "pairs are written like BTC/USDT")
                raise DataError(f"{where} has no pair {symbol!r}; {hint}, or name another exchange")
            rows: list[Any] = self._client.fetch_ohlcv(
                symbol, self.settings.interval, since, self.page
            )
        except errors.NetworkError as error:  # its text quotes the URL, so it is not shown
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
        date = (self._client.last_response_headers or {}).get("Date")
        if not date:
            return rows
        clock = parsedate_to_datetime(date).timestamp() * 1000
        return [row for row in rows if row[0] + self.settings.bar_minutes * 60_000 <= clock]


def open_exchange(name: str) -> Any:
    """Make ccxt's object for the spot market of an exchange, without any request. Raises DataError
    when the package is missing, or ccxt knows no such exchange."""
    try:
        import ccxt
    except ImportError:
        raise DataError(f"the source ccxt needs ccxt: {install_command('crypto')}") from None
    if name not in ccxt.exchanges:
        known = ("yahoo", "alpaca", *ccxt.exchanges)
        hint = _suggest(name, known, "`ccxt.exchanges` lists them")
        raise DataError(f"ccxt knows no exchange {name!r}; {hint}")
    return getattr(ccxt, name)({"enableRateLimit": True, "options": _OPTIONS.get(name, {})})


def _suggest(name: str, known: Iterable[str], otherwise: str) -> str:
    close = difflib.get_close_matches(name, list(known), n=3)
    return f"did you mean {' or '.join(close)}?" if close else otherwise


def fetch_pages(
    ask: Callable[[int], Sequence[Sequence[Any]]], span: tuple[int, int], step: int, page: int
) -> list[Sequence[Any]]:
    """Fetch the rows [time, open, high, low, close, volume] with times in `span` `[first, stop)`,
    in order and without repeats.

    ask: requests at most `page` rows from a time on; step: length of a bar. All times are
    milliseconds since 1970 UTC. An empty page means that nothing traded for so long, or that the
    pair was not listed yet. Rows without a price are left out.
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
    """Return the start of a UTC day, nanoseconds since 1970."""
    return int(dt.datetime.combine(day, dt.time(), dt.UTC).timestamp()) * 1000 * _NS
