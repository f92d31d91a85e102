"""Fake Yahoo, Alpaca and Binance, which answer with the table of a test and can misbehave: as a
library in place of requests, or as a server on loopback."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pandas as pd
import responses

PAGE = 500


class Fake:
    """Minute bars of a table by ticker, the requests that came, and faults to answer with."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table.assign(
            ts=table.ts.dt.tz_localize("America/New_York").dt.tz_convert("UTC")
        )
        self.requests: list[dict[str, str]] = []
        self.faults: list[int] = []
        """HTTP states to answer the next requests for bars with."""
        self.keys: list[tuple[str, str]] = []
        self.daily = bool((table.ts == table.ts.dt.normalize()).all())
        self.actions: list[tuple[str, str, float, float]] = []
        """(ticker, ex-date, split, dividend as paid) of what is announced."""
        self.asked_for_actions: list[str] = []
        """The tickers of each request for announcements."""
        self.now = "2100-01-01"
        """Prices are adjusted for splits up to this day where a request (or Yahoo) wants it."""

    def later(self, ticker: str, days: pd.Series) -> pd.Series:
        """New shares for one of each day, by the splits after it."""
        ratio = pd.Series(1.0, days.index)
        for name, day, split, _ in self.actions:
            if name == ticker and day <= self.now:
                ratio[days < day] *= split
        return ratio

    def adjusted(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Prices and volumes for splits."""
        if rows.empty or not self.actions:
            return rows
        days = rows.ts.dt.tz_convert("America/New_York").dt.strftime("%Y-%m-%d")
        ratio = self.later(str(rows.ticker.iloc[0]), days)
        prices = {name: rows[name] / ratio for name in ("open", "high", "low", "close")}
        return rows.assign(**prices, volume=rows.volume * ratio)

    def rows(self, ticker: str, start: pd.Timestamp, stop: pd.Timestamp) -> pd.DataFrame:
        mine = self.table[self.table.ticker == ticker]
        return mine[(mine.ts >= start) & (mine.ts < stop)]


@contextmanager
def serve(fake: Fake, answer: Any) -> Iterator[Fake]:
    """Every request gets what `answer(fake, path, query, headers) -> (status, body)` says."""

    def reply(request: Any) -> tuple[int, dict[str, str], str]:
        status, body = answer(fake, urlsplit(request.url).path, request.params, request.headers)
        return status, {}, body if isinstance(body, str) else json.dumps(body)

    with responses.RequestsMock(assert_all_requests_are_fired=False) as network:
        network.add_callback(
            responses.GET, re.compile("https?://"), reply, content_type="application/json"
        )
        yield fake


@contextmanager
def listen(fake: Fake, answer: Any) -> Iterator[str]:
    """Serve like `serve`, on loopback; yields the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query))
            status, body = answer(fake, unquote(parts.path), query, self.headers)
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Ignore a client that was stopped."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def leading_to(address: str, session: Any) -> Any:
    """Redirect all requests of a client's session (requests or curl_cffi) to an address."""
    real = session.request

    def request(method: str, url: str, *args: Any, **values: Any) -> Any:
        parts = urlsplit(url)
        query = f"?{parts.query}" if parts.query else ""
        return real(method, f"{address}{parts.path}{query}", *args, **values)

    session.request = request
    return session


def binance(fake: Fake, path: str, query: dict[str, str], _: Any) -> tuple[int, Any]:
    """The public endpoints of Binance, as ccxt calls them; of futures it has none."""
    if path.endswith("/exchangeInfo"):
        names = sorted(set(fake.table.ticker)) if path.startswith("/api/") else []
        return 200, {"symbols": [_list_pair(*name.split("/")) for name in names]}
    if not path.endswith("/klines"):
        return 404, {"code": -1, "msg": path}
    fake.requests.append(query)
    if fake.faults:
        status = fake.faults.pop(0)
        if status == 451:
            return status, {"code": 0, "msg": "Service unavailable from a restricted location"}
        return status, {"code": -1003, "msg": "Too many requests."}
    mine = fake.table[fake.table.ticker.str.replace("/", "") == query["symbol"]]
    time = mine.ts.astype("datetime64[ms, UTC]").astype("int64")
    inside = (time >= int(query["startTime"])) & (time <= int(query.get("endTime", 2**60)))
    page = mine[inside].head(int(query["limit"]))
    columns = (page.open, page.high, page.low, page.close, page.volume)
    rows = zip(time[page.index], *columns, strict=True)
    return 200, [[one[0], *map(str, one[1:]), one[0] + 1, "0", 1, "0", "0", "0"] for one in rows]


def _list_pair(base: str, quote: str) -> dict[str, Any]:
    asset = {"baseAsset": base, "quoteAsset": quote, "status": "TRADING"}
    precision = dict.fromkeys(
        ("baseAssetPrecision", "quotePrecision", "baseCommissionPrecision"), 8
    )
    permissions = {"isSpotTradingAllowed": True, "permissions": ["SPOT"], "permissionSets": []}
    return {"symbol": base + quote, **asset, **precision, **permissions, "filters": []}


def yahoo(fake: Fake, path: str, query: dict[str, str], _: Any) -> tuple[int, Any]:
    """The chart endpoint of Yahoo, as yfinance calls it."""
    if path.endswith("getcrumb"):
        return 200, "crumb"
    if re.match(
        r"/v\d+/finance/(quote|quoteSummary)", path
    ):  # asked of a ticker that the charts do not know
        error = {"code": "Not Found", "description": "Quote not found for symbol"}
        return 404, {
            "quoteSummary": {"result": None, "error": error},
            "quoteResponse": {"result": [], "error": error},
        }
    if "/chart/" not in path:
        return 200, ""
    ticker = path.rsplit("/", 1)[-1]
    events = "period1" in query and query.get("interval") == "1d" and not fake.daily
    if events:
        fake.asked_for_actions.append(ticker)
    elif "period1" in query:
        fake.requests.append({"ticker": ticker, **query})
        if fake.faults:
            status = fake.faults.pop(0)
            return status, "Too Many Requests" if status == 429 else "trouble"
    if ticker not in set(fake.table.ticker):
        error = {"code": "Not Found", "description": "No data found, symbol may be delisted"}
        return 404, {"chart": {"result": None, "error": error}}
    start = int(query.get("period1", 0))
    stop = int(query.get("period2", 2**33))
    if query.get("interval") == "1m" and stop - start > 7 * 86_400 + 3_600:
        error = {
            "code": "Unprocessable Entity",
            "description": "Only 7 days worth of 1m granularity data are allowed",
        }
        return 422, {"chart": {"result": None, "error": error}}
    rows = fake.rows(
        ticker, pd.Timestamp(start, unit="s", tz="UTC"), pd.Timestamp(stop, unit="s", tz="UTC")
    )
    rows = fake.adjusted(
        rows.groupby(rows.ts.dt.normalize(), as_index=False).last() if events else rows
    )
    quote = {name: rows[name].tolist() for name in ("open", "high", "low", "close", "volume")}
    meta = {
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
            [
                {
                    "timezone": "EST",
                    "start": int(a.timestamp()),
                    "end": int(b.timestamp()),
                    "gmtoffset": -18_000,
                }
            ]
            for a, b in hours
        ]
    result = {
        "meta": meta,
        "indicators": {"quote": [quote], "adjclose": [{"adjclose": quote["close"]}]},
    }
    if events:
        result["events"] = yahoo_events(fake, ticker)
    if len(rows):
        result["timestamp"] = [int(stamp.timestamp()) for stamp in rows.ts]
    else:
        result["indicators"] = {"quote": [{}], "adjclose": [{}]}
    return 200, {"chart": {"result": [result], "error": None}}


def yahoo_events(fake: Fake, ticker: str) -> dict[str, Any]:
    """Splits, and dividends for a share of today, as Yahoo states them."""
    found = {"splits": {}, "dividends": {}}
    for name, day, split, dividend in fake.actions:
        moment = int(pd.Timestamp(f"{day} 09:30", tz="America/New_York").timestamp())
        if name != ticker or day > fake.now:
            continue
        if split != 1:
            ratio = {"numerator": split, "denominator": 1.0, "splitRatio": f"{split:g}:1"}
            found["splits"][str(moment)] = {"date": moment, **ratio}
        if dividend:
            days = pd.Series([day])
            amount = dividend / float(fake.later(ticker, days).iloc[0]) / split
            found["dividends"][str(moment)] = {"date": moment, "amount": amount}
    return found


def alpaca(fake: Fake, path: str, query: dict[str, str], headers: Any) -> tuple[int, Any]:
    """The bars endpoint of Alpaca, pages of PAGE bars over all tickers, and that of corporate
    actions."""
    if path.endswith("/v1/corporate-actions"):
        fake.asked_for_actions.append(query["symbols"])
        wanted = [
            one
            for one in fake.actions
            if one[0] in query["symbols"].split(",") and one[1] <= query["end"]
        ]
        splits = [
            {"symbol": a, "ex_date": b, "new_rate": c, "old_rate": 1}
            for a, b, c, _ in wanted
            if c != 1
        ]
        paid = [{"symbol": a, "ex_date": b, "rate": d} for a, b, _, d in wanted if d]
        return 200, {
            "corporate_actions": {"forward_splits": splits, "cash_dividends": paid},
            "next_page_token": None,
        }
    fake.requests.append(query)
    fake.keys.append((headers.get("APCA-API-KEY-ID", ""), headers.get("APCA-API-SECRET-KEY", "")))
    if fake.faults:
        status = fake.faults.pop(0)
        return status, {"code": status, "message": f"fault for {fake.keys[-1]}"}
    if not path.endswith("/v2/stocks/bars"):
        return 404, {"message": "no such endpoint"}
    start = pd.Timestamp(query["start"])
    stop = pd.Timestamp(query["end"])
    start, stop = (
        moment if moment.tzinfo else moment.tz_localize("UTC") for moment in (start, stop)
    )
    parts = [fake.rows(name, start, stop) for name in query["symbols"].split(",")]
    if query.get("adjustment") in ("split", "all"):
        parts = [fake.adjusted(part) for part in parts]
    rows = pd.concat(parts)
    first = int(query.get("page_token") or 0)
    page = rows.iloc[first : first + PAGE]
    short = {"open": "o", "high": "h", "low": "l", "close": "c", "volume": "v"}
    told = page.rename(columns=short).assign(
        t=page.ts.dt.strftime("%Y-%m-%dT%H:%M:%SZ"), n=1, vw=page.close
    )
    bars = {
        name: rows.drop(columns=["ts", "ticker"]).to_dict("records")
        for name, rows in told.groupby("ticker")
    }
    more = first + PAGE < len(rows)
    return 200, {"bars": bars, "next_page_token": str(first + PAGE) if more else None}
