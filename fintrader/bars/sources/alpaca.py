"""Bars from Alpaca, through alpaca-py (extra `alpaca`).

Minute bars since 2016. The feed `sip` (all exchanges) needs a subscription for the last 15 minutes
only; `iex` is one exchange with a few per cent of the volume, so most of its minutes are silent.
Adjustment is raw unless asked for. The free plan allows 200 requests a minute; pages of 10,000 bars
are followed to the end. Bars outside the exchange's session are left out.

Keys come from the environment and from nowhere else: APCA_API_KEY_ID and APCA_API_SECRET_KEY. They
are in no message, no manifest and no configuration.
"""

from __future__ import annotations

import datetime as dt
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from zoneinfo import ZoneInfo

import numpy as np
from pydantic import Field

from fintrader.bars.bars import COLUMNS, Bars
from fintrader.bars.corporate_actions import Action
from fintrader.bars.sources.vendor import Busy, Refused, VendorSettings
from fintrader.errors import DataError, install_command

_NEW_YORK = ZoneInfo("America/New_York")
_RETRY = {408, 429, 500, 502, 503, 504}


class AlpacaSettings(VendorSettings):
    """Bars from Alpaca; see the module for its limits."""

    kind: Literal["alpaca"] = "alpaca"
    interval: Literal["1m", "5m", "1d"] = "1m"
    """Alpaca's hours begin on the hour and not with the session, so they are not on offer."""
    feed: Literal["sip", "iex", "otc", "boats", "delayed_sip"] = "sip"
    adjustment: Literal["raw", "split", "dividend", "all"] = "raw"
    batch: int = Field(20, ge=1, le=100)
    """Tickers per request."""
    endpoint: str | None = None
    """Another address of the data service (a proxy, a test)."""
    timeout_seconds: float = Field(20.0, gt=0)
    """A request that has said nothing for so long is given up and asked again."""


class Alpaca:
    """Asks Alpaca. Raises DataError when the package or the keys are missing."""

    name = "alpaca"

    def __init__(self, settings: AlpacaSettings) -> None:
        self.settings = settings
        self.batch = settings.batch
        self.daily = settings.interval == "1d"
        self.adjustment = settings.adjustment
        self._client: Any = None

    @property
    def identity(self) -> Mapping[str, Any]:
        settings = self.settings
        return {
            "interval": settings.interval,
            "feed": settings.feed,
            "adjustment": settings.adjustment,
        }

    def earliest(self, today: dt.date) -> dt.date | None:
        return dt.date(2016, 1, 1)

    def fetch(self, symbols: Sequence[str], first: dt.date, last: dt.date) -> dict[str, Bars]:
        midnight = dt.time(tzinfo=_NEW_YORK)
        end = dt.datetime.combine(last + dt.timedelta(days=1), midnight) - dt.timedelta(seconds=1)
        return self._asked(symbols, dt.datetime.combine(first, midnight), end)

    def between(self, symbols: Sequence[str], first: int, stop: int) -> dict[str, Bars]:
        """Bars that begin in `[first, stop)`, nanoseconds since 1970 UTC: also of a day that is not
        over. Raises as `fetch`."""
        # Whole seconds: Alpaca's end is included, and a bar that begins there has not closed.
        start, end = (
            dt.datetime.fromtimestamp(moment // 1_000_000_000, dt.UTC)
            for moment in (first, stop - 1)
        )
        return self._asked(symbols, start, end) if stop > first else {}

    def _asked(
        self, symbols: Sequence[str], start: dt.datetime, end: dt.datetime
    ) -> dict[str, Bars]:
        client = self._connect()
        from alpaca.common.exceptions import APIError
        from alpaca.data.enums import Adjustment, DataFeed
        from alpaca.data.requests import StockBarsRequest
        from alpaca.data.timeframe import TimeFrame, TimeFrameUnit

        number, unit = {
            "1m": (1, TimeFrameUnit.Minute),
            "5m": (5, TimeFrameUnit.Minute),
            "1d": (1, TimeFrameUnit.Day),
        }[self.settings.interval]
        request = StockBarsRequest(
            symbol_or_symbols=list(symbols),
            timeframe=TimeFrame(number, unit),
            start=start,
            end=end,
            adjustment=Adjustment(self.settings.adjustment),
            feed=DataFeed(self.settings.feed),
        )
        try:
            answer = client.get_stock_bars(request)
        except APIError as error:
            raise self._explain(error, symbols) from None
        except (
            OSError,
            ValueError,
        ) as error:  # requests' errors are OSErrors; they quote the URL, so only the kind
            raise Busy(type(error).__name__) from None
        return {name: self._bars(name, rows) for name, rows in (answer or {}).items() if rows}

    def announced(self, symbols: Sequence[str], first: dt.date, last: dt.date) -> list[Action]:
        client = self._client_of("corporate_actions", "CorporateActionsClient")
        from alpaca.common.exceptions import APIError
        from alpaca.data.enums import CorporateActionsType as Type
        from alpaca.data.requests import CorporateActionsRequest

        types = [Type.FORWARD_SPLIT, Type.REVERSE_SPLIT, Type.STOCK_DIVIDEND, Type.CASH_DIVIDEND]
        request = CorporateActionsRequest(
            symbols=list(symbols), types=types, start=first, end=last, limit=None
        )
        try:
            answer = client.get_corporate_actions(request) or {}
        except APIError as error:
            status = getattr(error, "status_code", None)
            if status in _RETRY:
                raise Busy(f"status {status}") from None
            raise DataError(
                f"alpaca gives no splits and dividends (status {status}); check the keys, or set"
                " data.source.actions to false and declare them under data.adjust"
            ) from None
        except (OSError, ValueError) as error:
            raise Busy(type(error).__name__) from None
        return [_action(kind, row) for kind, rows in answer.items() for row in rows]

    def _connect(self) -> Any:
        if self._client is None:
            self._client = self._client_of("stock", "StockHistoricalDataClient")
        return self._client

    def _client_of(self, module: str, name: str) -> Any:
        try:
            found = getattr(importlib.import_module(f"alpaca.data.historical.{module}"), name)
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
        client = found(key, secret, raw_data=True, url_override=self.settings.endpoint)
        client._retry = 0  # repetitions are ours: they double their wait and are counted
        limit(client._session, self.settings.timeout_seconds)
        return client

    def _explain(self, error: Any, symbols: Sequence[str]) -> Exception:
        status = getattr(error, "status_code", None)
        if status in _RETRY:
            return Busy("too many requests" if status == 429 else f"status {status}")
        if status in (401, 403):
            return DataError(
                f"alpaca refuses the keys or the feed {self.settings.feed!r} (status {status});"
                " check APCA_API_KEY_ID and APCA_API_SECRET_KEY, and whether the plan includes the"
                " feed"
            )
        if status == 422 or status == 400:
            return Refused(
                f"alpaca does not accept the request for {', '.join(symbols)}; check the tickers"
                " and dates"
            )
        return DataError(f"alpaca answers with status {status}; try again later")

    def _bars(self, symbol: str, rows: list[dict[str, Any]]) -> Bars:
        ts = np.array([row["t"].rstrip("Z") for row in rows], dtype="datetime64[ns]")
        if self.daily:  # a day's bar carries midnight of New York in UTC
            ts = ts.astype("datetime64[D]").astype("datetime64[ns]")
        # Alpaca calls columns by their first letters.
        columns: dict[str, Any] = {
            name: np.array([row[name[0]] for row in rows], dtype=np.float64) for name in COLUMNS
        }
        return Bars(
            ts=ts.astype(np.int64),
            symbol=np.zeros(len(rows), dtype=np.int32),
            symbols=(symbol,),
            origin="alpaca",
            **columns,
        )


def limit(session: Any, limit_s: float) -> None:
    """End each request of a session: a third of the time to connect, the rest for the server to say
    something."""
    from requests.adapters import HTTPAdapter

    class Limited(HTTPAdapter):
        def send(self, request: Any, **how: Any) -> Any:  # type: ignore[override]
            return super().send(request, **{**how, "timeout": (0.3 * limit_s, 0.7 * limit_s)})

    for scheme in ("https://", "http://"):
        session.mount(scheme, Limited(max_retries=0))


def _action(kind: str, row: Mapping[str, Any]) -> Action:
    """One announcement of Alpaca's: rates are new and old shares, shares more for each one, or
    USD."""
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
