"""Fake Yahoo and fake Alpaca on loopback, which serve the table of a test and can misbehave."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pandas as pd
import requests
from requests.adapters import HTTPAdapter

PAGE = 500


class Fake:
    """Minute bars of a table by ticker, the requests that came, and faults to answer with."""

    def __init__(self, table: pd.DataFrame, interval_seconds: int = 60) -> None:
        stamps = table.ts.dt.tz_localize("America/New_York").dt.tz_convert("UTC")
        self.table = table.assign(ts=stamps)
        self.requests: list[dict[str, str]] = []
        self.faults: list[int] = []
        """HTTP states to answer the next requests for bars with."""
        self.keys: list[tuple[str, str]] = []
        self.interval_seconds = interval_seconds
        self.url = ""

    def rows(self, ticker: str, start: pd.Timestamp, stop: pd.Timestamp) -> pd.DataFrame:
        mine = self.table[self.table.ticker == ticker]
        return mine[(mine.ts >= start) & (mine.ts < stop)]


@contextmanager
def serve(fake: Fake, answer: Any) -> Iterator[Fake]:
    """Run `answer(fake, path, query, headers) -> (status, body)` on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            status, body = answer(fake, parts.path, query, self.headers)
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()


def yahoo(fake: Fake, path: str, query: dict[str, str], _: Any) -> tuple[int, Any]:
    """The chart endpoint of Yahoo, as yfinance calls it."""
    if path.endswith("getcrumb"):
        return 200, "crumb"
    if "/chart/" not in path:
        return 200, ""
    ticker = path.rsplit("/", 1)[-1]
    if "period1" in query:
        fake.requests.append({"ticker": ticker, **query})
        if fake.faults:
            status = fake.faults.pop(0)
            return status, "Too Many Requests" if status == 429 else "trouble"
    if ticker not in set(fake.table.ticker):
        error = {"code": "Not Found", "description": "No data found, symbol may be delisted"}
        return 404, {"chart": {"result": None, "error": error}}
    start, stop = int(query.get("period1", 0)), int(query.get("period2", 2**33))
    if query.get("interval") == "1m" and stop - start > 7 * 86_400 + 3_600:
        error = {"code": "Unprocessable Entity", "description": "Only 7 days worth of 1m granularity data are allowed"}
        return 422, {"chart": {"result": None, "error": error}}
    rows = fake.rows(ticker, pd.Timestamp(start, unit="s", tz="UTC"), pd.Timestamp(stop, unit="s", tz="UTC"))
    quote = {name: rows[name].tolist() for name in ("open", "high", "low", "close", "volume")}
    meta: dict[str, Any] = {
        "currency": "USD",
        "symbol": ticker,
        "instrumentType": "EQUITY",
        "exchangeTimezoneName": "America/New_York",
        "timezone": "EST",
        "gmtoffset": -18_000,
        "validRanges": ["1d", "max"],
        "dataGranularity": query.get("interval", "1m"),
        "priceHint": 2,
    }
    if query.get("interval", "1d") != "1d":
        days = sorted(set(rows.ts.dt.tz_convert("America/New_York").dt.normalize()))
        hours = [(day + pd.Timedelta("9h30min"), day + pd.Timedelta("16h")) for day in days]
        meta["tradingPeriods"] = [
            [{"timezone": "EST", "start": int(a.timestamp()), "end": int(b.timestamp()), "gmtoffset": -18_000}]
            for a, b in hours
        ]
    result: dict[str, Any] = {
        "meta": meta,
        "indicators": {"quote": [quote], "adjclose": [{"adjclose": quote["close"]}]},
    }
    if len(rows):
        result["timestamp"] = [int(stamp.timestamp()) for stamp in rows.ts]
    else:
        result["indicators"] = {"quote": [{}], "adjclose": [{}]}
    return 200, {"chart": {"result": [result], "error": None}}


def alpaca(fake: Fake, path: str, query: dict[str, str], headers: Any) -> tuple[int, Any]:
    """The bars endpoint of Alpaca: pages of PAGE bars over all tickers."""
    fake.requests.append(query)
    fake.keys.append((headers.get("APCA-API-KEY-ID", ""), headers.get("APCA-API-SECRET-KEY", "")))
    if fake.faults:
        status = fake.faults.pop(0)
        return status, {"code": status, "message": f"fault for {fake.keys[-1]}"}
    if not path.endswith("/v2/stocks/bars"):
        return 404, {"message": "no such endpoint"}
    start, stop = pd.Timestamp(query["start"]), pd.Timestamp(query["end"])
    start, stop = (moment if moment.tzinfo else moment.tz_localize("UTC") for moment in (start, stop))
    rows = pd.concat([fake.rows(name, start, stop) for name in query["symbols"].split(",")])
    first = int(query.get("page_token") or 0)
    page = rows.iloc[first : first + PAGE]
    bars: dict[str, list[dict[str, Any]]] = {}
    for row in page.itertuples():
        bars.setdefault(row.ticker, []).append(
            {
                "t": row.ts.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "o": row.open,
                "h": row.high,
                "l": row.low,
                "c": row.close,
                "v": int(row.volume),
                "n": 1,
                "vw": row.close,
            }
        )
    more = first + PAGE < len(rows)
    return 200, {"bars": bars, "next_page_token": str(first + PAGE) if more else None}


class Detour(HTTPAdapter):
    """Sends every request to loopback instead."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    def send(self, request: Any, *rest: Any, **more: Any) -> Any:
        parts = urlsplit(request.url)
        request.url = f"{self._url}{parts.path}" + (f"?{parts.query}" if parts.query else "")
        return super().send(request, *rest, **{**more, "proxies": {}})


def session_to(url: str) -> requests.Session:
    """A session for yfinance's `session=` whose every request ends at `url`."""
    session = requests.Session()
    session.trust_env = False
    for scheme in ("https://", "http://"):
        session.mount(scheme, Detour(url))
    return session
