"""Bars from Yahoo Finance, through yfinance.

Yahoo's limits: one-minute bars of the last 30 days, at most 7 days per request; five-minute bars of
the last 60 days; hourly bars of the last 730 days; daily bars without limit. Prices are adjusted
for splits, and not for dividends, as of the day of the request. The volume of a session's first and
last minute lacks the auctions. Yahoo gives no guarantee: use these bars for research.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from fintrader.bars.bars import COLUMNS, PRICES, Bars, wrap_columns
from fintrader.bars.corporate_actions import Action
from fintrader.bars.sources.announced import Adjustment
from fintrader.bars.sources.vendor import TIMEOUT_SECONDS, Busy, Vendor, spell_share_class
from fintrader.bars.sources.vendor_settings import YahooSettings

_DAYS_KEPT = {"1m": 30, "5m": 60, "1h": 730}
_DAYS_PER_REQUEST = {"1m": 7, "5m": 60, "1h": 700, "1d": 20_000}


class Yahoo(Vendor):
    """Requests to Yahoo. session: HTTP session for yfinance; tests pass one that leads to a server
    on this machine."""

    name = "yahoo"
    batch = 10
    adjustment: Adjustment = "split"
    settings: YahooSettings

    def __init__(self, settings: YahooSettings, session: Any = None) -> None:
        import yfinance

        # make yfinance raise errors: by default it logs them and returns an empty table
        yfinance.config.debug.hide_exceptions = False
        logging.getLogger("yfinance").setLevel(logging.CRITICAL)
        self._yfinance = yfinance
        self.settings = settings
        self._session = session

    @property
    def identity(self) -> dict[str, str]:
        return {**super().identity, "adjustment": self.adjustment}

    @property
    def page(self) -> int | None:
        return {"1m": 5 * 390, "5m": 42 * 78}.get(self.settings.interval)

    def list_traps(self) -> dict[str, str]:
        traps = {
            "prices": "adjusted for splits, not for dividends, which data.source.actions pays to"
            " the accounts",
        }
        days = _DAYS_KEPT.get(self.settings.interval)
        if days is not None:
            traps["reach"] = (
                f"yahoo keeps bars of {self.settings.bar_minutes} minutes for {days} days; older"
                " ones are only in the store"
            )
            traps["volume"] = "of the first and the last bar of a session lacks the auctions"
        return {**traps, "terms": "Yahoo gives no guarantee and may refuse; for research"}

    def earliest(self, today: dt.date) -> dt.date | None:
        days = _DAYS_KEPT.get(self.settings.interval)
        return None if days is None else today - dt.timedelta(days=days - 1)

    def fetch_ticker(self, symbol: str, first: dt.date, last: dt.date) -> Bars | None:
        import pandas as pd

        frames = []
        step = dt.timedelta(days=_DAYS_PER_REQUEST[self.settings.interval])
        while first <= last:
            stop = min(first + step, last + dt.timedelta(days=1))
            frames.append(self._request(symbol, first, stop, self.settings.interval))
            first = stop
        if not any(map(len, frames)):
            return None
        table = pd.concat([frame for frame in frames if len(frame)])
        table = table[~table.index.duplicated()].dropna(subset=[name.title() for name in PRICES])
        index = table.index
        # daily bars carry midnight of the exchange, of which only the date counts
        is_daily = self.settings.interval == "1d"
        stamps = index.tz_localize(None) if is_daily else index.tz_convert(None)
        ts = stamps.to_numpy().astype("datetime64[ns]").astype(np.int64)
        table = table.fillna({"Volume": 0})
        columns = {name: table[name.title()].to_numpy(dtype=np.float64) for name in COLUMNS}
        return wrap_columns(symbol, ts, columns, "yahoo")

    def announced(self, symbols: Sequence[str], first: dt.date, last: dt.date) -> list[Action]:
        actions = []
        for name in symbols:
            table = self._request(name, first, last + dt.timedelta(days=1), "1d", actions=True)
            if not len(table):
                continue
            # Yahoo states dividends per share of today: later splits are undone
            later = 1.0
            rows = zip(table.index, table["Stock Splits"], table["Dividends"], strict=True)
            for stamp, split, dividend in reversed(list(rows)):
                ratio = float(split) or 1.0
                later *= ratio
                paid = float(dividend) * later
                action = Action(symbol=name, day=stamp.date(), split=ratio, dividend_usd=paid)
                if action.effects():
                    actions.append(action)
        return actions

    def _request(
        self, symbol: str, first: dt.date, stop: dt.date, interval: str, actions: bool = False
    ) -> Any:
        errors = self._yfinance.exceptions
        name = spell_share_class(symbol, "-")
        try:
            return self._yfinance.Ticker(name, session=self._session).history(
                interval=interval,
                start=str(first),
                end=str(stop),
                auto_adjust=False,
                actions=actions,
                prepost=False,
                repair=False,
                timeout=TIMEOUT_SECONDS,
            )
        except errors.YFRateLimitError:
            raise Busy("too many requests") from None
        except (errors.YFTzMissingError, errors.YFPricesMissingError, errors.YFTickerMissingError):
            return ()  # no bars: an error only if all months lack them
        except errors.YFDataException as error:
            raise Busy(str(error), error) from None
        except (LookupError, TypeError, AttributeError):  # the answer has an unexpected form
            raise
        except Exception as error:  # requests and curl_cffi each raise their own for a broken line
            if getattr(getattr(error, "response", None), "status_code", None) == 404:
                return ()  # Yahoo does not know the ticker
            raise Busy(type(error).__name__, error) from None
