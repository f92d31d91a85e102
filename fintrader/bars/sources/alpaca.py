"""Bars from Alpaca, through alpaca-py (extra `alpaca`).

Alpaca has bars since 2016. The feed `sip` has all exchanges, and needs a subscription only for the
last 15 minutes; `iex` is a single exchange with a few per cent of the volume, so it has no trade in
most minutes. Prices are as traded, unless the setting `adjustment` changes that. The free plan allows 200
requests a minute; a request returns pages of 10,000 bars, which are all read.

Keys come only from the environment: APCA_API_KEY_ID and APCA_API_SECRET_KEY. No message, manifest
or configuration contains them. They are sent only to data.alpaca.markets, or to a server on this
machine (`check_endpoint`); a redirect is refused.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import ipaddress
import os
import re
import socket
import unicodedata
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from zoneinfo import ZoneInfo

import numpy as np

from fintrader.bars.bars import COLUMNS, Bars, wrap_columns
from fintrader.bars.corporate_actions import Action
from fintrader.bars.sources.vendor import (
    TIMEOUT_SECONDS,
    Busy,
    RateLimit,
    Refused,
    Vendor,
    spell_share_class,
)
from fintrader.bars.sources.vendor_settings import AlpacaSettings
from fintrader.errors import DataError, FintraderError, install_command

DATA_HOST = "data.alpaca.markets"
REAL_MONEY_HOST = "api.alpaca.markets"
_NEW_YORK = ZoneInfo("America/New_York")
_SECOND = 1_000_000_000
_RETRY = {408, 429, 500, 502, 503, 504}
_DOTS = str.maketrans("\u3002\uff0e\uff61", "...")
"""Translation of the characters that browsers and resolvers read as the dot in a host's name."""

ENDPOINT = "APCA_API_DATA_URL"
"""Environment variable for tests: address of a server on this machine that stands in for Alpaca."""


class Alpaca(Vendor):
    """Requests to Alpaca. Raises DataError when the package or the keys are missing."""

    name = "alpaca"
    batch = 20
    requests_a_minute = 190  # below the free plan's 200, since Alpaca counts other minutes
    settings: AlpacaSettings

    def __init__(
        self, settings: AlpacaSettings, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self.settings = settings
        self.timeout_seconds = timeout_seconds
        self.adjustment = settings.adjustment
        self._pace = RateLimit(self.requests_a_minute)

    @property
    def page(self) -> int | None:
        # pages of 10,000 include bars before the open and after the close
        return 10_000 if self.settings.bar_minutes > 60 else 7_000

    def list_traps(self) -> dict[str, str]:
        held = "as traded" if self.adjustment == "raw" else f"adjusted ({self.adjustment})"
        return {
            "prices": f"{held}; splits and dividends are downloaded too (data.source.actions)",
            "feed": f"{self.settings.feed}; sip holds all exchanges, iex one with a few per cent of"
            " the volume and few minutes with trades",
            "keys": "from APCA_API_KEY_ID and APCA_API_SECRET_KEY in the environment; never"
            " written to a file",
        }

    def earliest(self, today: dt.date) -> dt.date | None:
        return dt.date(2016, 1, 1)

    def fetch(self, symbols: Sequence[str], first: dt.date, last: dt.date) -> dict[str, Bars]:
        midnights = (
            dt.datetime.combine(day, dt.time(tzinfo=_NEW_YORK))
            for day in (first, last + dt.timedelta(days=1))
        )
        return self.between(symbols, *(int(one.timestamp()) * _SECOND for one in midnights))

    def between(self, symbols: Sequence[str], first: int, stop: int) -> dict[str, Bars]:
        """Return the bars that begin in `[first, stop)`, nanoseconds since 1970 UTC, also of the
        present day. Raises like `fetch`."""
        if stop <= first:
            return {}
        client = self._stocks
        from alpaca.data.enums import Adjustment, DataFeed
        from alpaca.data.requests import StockBarsRequest
        from alpaca.data.timeframe import TimeFrame, TimeFrameUnit

        # stop - 1: Alpaca includes the end, and a bar that begins there does not belong to the span
        start, end = (
            dt.datetime.fromtimestamp(moment // _SECOND, dt.UTC) for moment in (first, stop - 1)
        )
        names = {spell_share_class(name, "."): name for name in symbols}
        interval = self.settings.interval
        unit = TimeFrameUnit.Day if interval == "1d" else TimeFrameUnit.Minute
        request = StockBarsRequest(
            symbol_or_symbols=list(names),
            timeframe=TimeFrame(int(interval[:-1]), unit),
            start=start,
            end=end,
            adjustment=Adjustment(self.settings.adjustment),
            feed=DataFeed(self.settings.feed),
        )
        answer = _ask(client.get_stock_bars, request, partial(self._explain, symbols))
        return {
            names[name]: self._convert(names[name], rows) for name, rows in answer.items() if rows
        }

    def announced(self, symbols: Sequence[str], first: dt.date, last: dt.date) -> list[Action]:
        client = self._open_client("corporate_actions", "CorporateActionsClient")
        from alpaca.data.enums import CorporateActionsType as Type
        from alpaca.data.requests import CorporateActionsRequest

        names = {spell_share_class(name, "."): name for name in symbols}
        types = [Type.FORWARD_SPLIT, Type.REVERSE_SPLIT, Type.STOCK_DIVIDEND, Type.CASH_DIVIDEND]
        request = CorporateActionsRequest(
            symbols=list(names), types=types, start=first, end=last, limit=None
        )
        answer = _ask(client.get_corporate_actions, request, _explain_actions)
        return [
            _read_action(kind, {**row, "symbol": names.get(row["symbol"], row["symbol"])})
            for kind, rows in answer.items()
            for row in rows
        ]

    @cached_property
    def _stocks(self) -> Any:
        return self._open_client("stock", "StockHistoricalDataClient")

    def _open_client(self, module: str, name: str) -> Any:
        address = os.environ.get(ENDPOINT, f"https://{DATA_HOST}")
        endpoint = check_endpoint(address, DATA_HOST, DataError)
        try:
            client_class = getattr(
                importlib.import_module(f"alpaca.data.historical.{module}"), name
            )
        except ImportError:
            raise DataError(
                f"the source alpaca needs alpaca-py: {install_command('alpaca')}"
            ) from None
        key = os.environ.get("APCA_API_KEY_ID")
        secret = os.environ.get("APCA_API_SECRET_KEY")
        if not key or not secret:
            raise DataError(
                "alpaca needs keys; set APCA_API_KEY_ID and APCA_API_SECRET_KEY in the environment"
            )
        client = client_class(key, secret, raw_data=True, url_override=endpoint)
        client._retry = 0  # `VendorFeed` repeats requests itself, with doubling waits
        restrict(client._session, endpoint, self.timeout_seconds, self._pace)
        return client

    def _explain(self, symbols: Sequence[str], status: int | None) -> DataError:
        if status in (401, 403):
            return DataError(
                f"alpaca refuses the keys or the feed {self.settings.feed!r} (status {status});"
                " check APCA_API_KEY_ID and APCA_API_SECRET_KEY, and whether the plan includes the"
                " feed"
            )
        if status in (400, 422):
            return Refused(
                f"alpaca does not accept the request for {', '.join(symbols)}; check the tickers"
                " and dates"
            )
        return DataError(f"alpaca answers with status {status}; try again later")

    def _convert(self, symbol: str, rows: Sequence[Any]) -> Bars:
        ts = np.array([row["t"].rstrip("Z") for row in rows], dtype="datetime64[ns]")
        if self.settings.interval == "1d":  # daily bars carry midnight of New York, in UTC
            ts = ts.astype("datetime64[D]").astype("datetime64[ns]")
        # Alpaca names columns by their first letters.
        columns = {
            name: np.array([row[name[0]] for row in rows], dtype=np.float64) for name in COLUMNS
        }
        return wrap_columns(symbol, ts.astype(np.int64), columns, "alpaca")


def _ask(
    ask: Callable[[Any], Any], request: Any, explain: Callable[[int | None], DataError]
) -> dict[str, list[Any]]:
    """Return the answer to a request. Raises Busy for a failure that may pass, and the result of
    `explain` for any other status."""
    from alpaca.common.exceptions import APIError

    try:
        return ask(request) or {}
    except APIError as error:
        status = getattr(error, "status_code", None)
        if status in _RETRY:
            raise Busy("too many requests" if status == 429 else f"status {status}") from None
        raise explain(status) from None
    except (OSError, ValueError) as error:
        # errors of requests are OSErrors; their text quotes the URL, so only their class is shown
        raise Busy(type(error).__name__, error) from None


def _explain_actions(status: int | None) -> DataError:
    return DataError(
        f"alpaca gives no splits and dividends (status {status}); check the keys, or set"
        " data.source.actions to false and declare them under data.actions"
    )


class RedirectError(OSError):
    """The server redirected a request to another address; keys are not sent there."""


def restrict(
    session: Any,
    endpoint: str,
    limit_s: float,
    pace: RateLimit | None = None,
    *,
    host: str = "",
) -> None:
    """Limit a session's requests in time and rate, and let its keys reach only the checked
    endpoint.

    endpoint: address to which all requests are sent; empty: each request goes to its own address.
    limit_s: seconds for the connection (30 % of them) and for the server's first answer (70 %).
    pace: limit on the rate. host: if given, requests for other hosts, or not by https, raise
    RedirectError; so does every redirect. Plain http is allowed only to this machine, and then
    bypasses the proxies of the environment, which could read the keys.
    """
    from requests.adapters import HTTPAdapter

    class Limited(HTTPAdapter):
        def send(self, request: Any, **how: Any) -> Any:  # type: ignore[override]
            if pace is not None:
                pace.wait()
            if host and not request.url.startswith(f"https://{host}/"):
                raise RedirectError(f"an address that is not at {host}")
            if endpoint:
                request.url = f"{endpoint}/{request.url.split('/', 3)[3]}"
            limits = (0.3 * limit_s, 0.7 * limit_s)
            response = super().send(request, **{**how, "timeout": limits})
            if 300 <= response.status_code < 400:
                response.close()
                raise RedirectError(f"status {response.status_code}")
            return response

    if endpoint.startswith("http://"):
        session.trust_env = False
    for scheme in ("https://", "http://"):
        session.mount(scheme, Limited(max_retries=0))


def check_endpoint(endpoint: str, host: str, error: type[FintraderError]) -> str:
    """Return the address to which keys may be sent: `host` by https, or a server on this machine.

    The address is put together from the checked parts, so nothing else in `endpoint` can decide
    where keys go. Raises `error` for every other address.
    """
    name = ""
    try:
        parts = urlsplit(endpoint)
        name = _normalised_host(parts.hostname or "")
        fault = _find_endpoint_fault(endpoint, parts, name, host)
    except ValueError:
        fault = "has invalid brackets or an invalid port"
    if fault:
        shown = name.encode("ascii", "backslashreplace").decode()
        shown = "".join(sign for sign in shown if sign.isprintable())[:100]
        raise error(
            f"keys are not sent to this endpoint: {shown or 'an address without a host'} {fault}; "
            f"allowed are https://{host} and, for tests, http:// or https:// on localhost, "
            "127.0.0.0/8 and [::1], without a user, a path or a query"
        )
    if name == host:
        return f"https://{host}"
    bracketed = f"[{name}]" if ":" in name else name
    return f"{parts.scheme}://{bracketed}" + ("" if parts.port is None else f":{parts.port}")


def _normalised_host(name: str) -> str:
    """Return a host's name as resolvers read it: without escapes, and with unusual spellings of
    dots, letters and numbers replaced."""
    plain = unicodedata.normalize("NFKC", unquote(name)).translate(_DOTS).lower().rstrip(".")
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(plain))
    if re.fullmatch(r"[0-9a-fx.]+", plain):  # 127.1, 0x7f000001, 2130706433
        with contextlib.suppress(OSError):
            return socket.inet_ntoa(socket.inet_aton(plain))
    return plain


def _is_loopback(name: str) -> bool:
    """Report whether a normalised host is this machine."""
    if name in ("localhost", "::1"):
        return True
    try:
        return ipaddress.IPv4Address(name).is_loopback
    except ValueError:
        return False


def _find_endpoint_fault(endpoint: str, parts: SplitResult, name: str, host: str) -> str:
    """Return the reason why keys are not sent to an address, as a clause without its subject; empty
    if they may be sent.

    Raises ValueError for an invalid port.
    """
    is_local = _is_loopback(name)
    if name == REAL_MONEY_HOST and name != host:
        return "trades real money"
    if name != host and not is_local:
        return "is not allowed"
    if any(sign.isspace() or not sign.isprintable() or sign == "\\" for sign in endpoint):
        return "contains a space, a control character or a backslash"
    if "@" in endpoint:
        return "contains a user or a password"
    if "?" in endpoint or "#" in endpoint or parts.path not in ("", "/", "/v2", "/v2/"):
        return "contains a path, a query or a fragment"
    if parts.scheme != "https" and not (is_local and parts.scheme == "http"):
        return "does not use https"
    port = parts.port
    if not is_local and port not in (None, 443):
        return f"uses port {port}"
    return ""


def _read_action(kind: str, row: Any) -> Action:
    """Read an announcement of Alpaca. Its rates are new and old shares for splits, additional
    shares per share for stock dividends, and USD per share for cash dividends."""
    split = 1.0
    dividend = 0.0
    if kind in ("forward_splits", "reverse_splits"):
        split = float(row["new_rate"]) / float(row["old_rate"])
    elif kind == "stock_dividends":
        split = 1.0 + float(row["rate"])
    elif kind == "cash_dividends":
        dividend = float(row["rate"])
    day = dt.date.fromisoformat(row["ex_date"])
    return Action(symbol=row["symbol"], day=day, split=split, dividend_usd=dividend)
