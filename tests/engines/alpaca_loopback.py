"""A server on this machine that answers as Alpaca's trading service does: accounts, orders, a
matching engine, faults.

It runs in a thread of its own and keeps its state in memory; clients in other processes may die as
they please. An order moves one tick at each request for orders, so what becomes of it hangs on no
clock. Faults are planned by the number of a request (1, 2, 3 …), or by `outage` for all of them;
`seen` says what came in, and `keys` with which keys.

Limit orders fill while the symbol's price is at theirs or better, stops once it has reached theirs;
`end_day` ends the orders of a day. As at Alpaca, prices have no fractions of a cent, fractions of a
share are for the day, and no purchase stands next to a stop of its symbol. As there, open sales bind the shares they are for: a sale of more than is left is refused (403,
40310000). A cancel is only asked for: the order stands, and binds its shares, until `cancel_ticks`
later.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import os
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

KEY = "PKCANARYKEY0123456789"
SECRET = "canary-secret-value-abcdef"
TRANSIENT = (
    *("302", "408", "429", "500", "502_html", "503", "504"),
    *("200_html", "truncated", "empty", "null", "object", "strange"),
    *(
        "hang",
        "reset",
        "500_after",
        "504_after",
        "html_after",
        "truncated_after",
        "hang_after",
        "reset_after",
    ),
    "reset_late",
)
"""Faults that pass; with `_after` the request has been carried out all the same, with `_late` an
order arrives when LATE more requests have."""
LATE = 4
REFUSALS = ("400", "401", "403", "404", "422")
"""Faults by which the server refuses for good, as far as the client can know."""
OPEN = {"new", "accepted", "pending_new", "partially_filled", "pending_cancel"}
BODIES = {"empty": b"", "null": b"null", "object": b"{}", "strange": b'{"a": [1]}'}
"""Faults by which an answer of status 200 holds something else."""


class Refusal(Exception):
    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"code": code, "message": message}


class LoopbackAlpaca:
    """`with LoopbackAlpaca(cash=…, prices={…}) as server: AlpacaBroker(server.endpoint)`.

    `pace` gives the share of an order of a symbol that is filled after each tick, (0, 0.4, 1) where
    it gives none; an order whose pace ends below 1 stands there until it is cancelled. Symbols of
    `races` fill whole when they are cancelled. With `margin` nobody minds whether the cash
    suffices. `witness` sees each order before it is taken.
    """

    def __init__(
        self,
        *,
        cash: float,
        prices: Mapping[str, float],
        positions: Mapping[str, float] | None = None,
        pace: Mapping[str, Sequence[float]] | None = None,
        races: Sequence[str] = (),
        margin: bool = False,
        faults: Mapping[int, str] | None = None,
        hang_s: float = 0.3,
        witness: Callable[[Mapping[str, Any]], None] | None = None,
        cancel_ticks: int = 1,
        whole_only: Sequence[str] = (),
    ) -> None:
        """cancel_ticks: after which a cancel is done; whole_only: symbols of whole shares alone."""
        self.cash = cash
        self.prices = dict(prices)
        self.positions = dict(positions or {})
        self.pace = dict(pace or {})
        self.races = set(races)
        self.margin = margin
        self.retry_after = "0"
        self.faults = dict(faults or {})
        self.hang_s = hang_s
        self.witness = witness
        self.orders: dict[str, dict[str, Any]] = {}
        self.number = "PA1LOOPBACK"
        self.blocked = False
        self.echo = False
        """Whether refusals quote the keys that came with the request."""
        self.outage = ""
        """A fault that strikes every request of the trading service while it is set."""
        self.redirect_to = ""
        """Where answers of status 302 point to."""
        self.cancel_ticks = cancel_ticks
        self.whole_only = set(whole_only)
        self.keys: list[tuple[str | None, str | None]] = []
        """Key and secret that came with each request."""
        self.stale = 0
        """So many answers about positions are those before the newest fill."""
        self._before: tuple[int, dict[str, float]] = (0, {})
        self.activities: list[dict[str, Any]] = []
        """Bookings without an order, oldest first."""
        self.refusals: list[str] = []
        """What orders were refused with."""
        self.seen: list[tuple[str, str]] = []
        self.fired: list[str] = []
        self.least_cash = cash
        self.lock = threading.RLock()
        self._ticks: dict[str, int] = {}
        self._cancel_left: dict[str, int] = {}
        self._on_the_way: list[tuple[int, Any]] = []

    handler: type[Handler]

    def __enter__(self) -> Self:
        handler = type("Handler", (self.handler,), {"alpaca": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def by_client_id(self) -> dict[str, dict[str, Any]]:
        return {row["client_order_id"]: row for row in self.orders.values()}

    def accept(
        self, symbol: str, shares: float, client_id: str, *, age_s: float = 0.0, **terms: Any
    ) -> dict[str, Any]:
        """An order as if it had been sent, `age_s` ago; a market order for the day without other
        terms."""
        sent = dt.datetime.now(tz=dt.UTC) - dt.timedelta(seconds=age_s)
        row = {
            "id": str(uuid.uuid4()),
            "client_order_id": client_id,
            "symbol": symbol,
            "status": "accepted",
            "qty": f"{abs(shares):.12g}",
            "filled_qty": "0",
            "filled_avg_price": None,
            "side": "buy" if shares > 0 else "sell",
            "type": "market",
            "time_in_force": "day",
            "submitted_at": sent.isoformat().replace("+00:00", "123Z"),
            **terms,
        }
        self.orders[row["id"]] = row
        return row

    def book(
        self,
        kind: str,
        usd: float = 0.0,
        symbol: str = "",
        shares: float = 0.0,
        *,
        day: str = "2026-01-02",
        listed: bool = True,
        **more: Any,
    ) -> None:
        """Change cash and shares as the back office does, with an activity that is `listed`."""
        self.cash += usd
        held = self.positions.pop(symbol, 0.0) + (0.0 if kind == "DIV" and usd else shares)
        if held and symbol:
            self.positions[symbol] = held
        row = {
            "id": f"{day.replace('-', '')}000000000::{uuid.uuid4()}",
            "activity_type": kind,
            "date": day,
            "net_amount": f"{usd:.2f}",
            "status": "executed",
        }
        if symbol:
            row |= {"symbol": symbol, "qty": f"{shares:.12g}"}
        if listed:
            self.activities.append(row | more)

    def split(self, symbol: str, ratio: float, *, fraction: bool = True, **how: Any) -> None:
        """Split what is held of a symbol, in two bookings; without `fraction` parts of a share are
        paid in cash."""
        held = self.positions.get(symbol, 0.0)
        new = held * ratio
        self.prices[symbol] /= ratio
        whole = new if fraction else float(math.floor(new))
        self.book("SPLIT", symbol=symbol, shares=-held, **how)
        self.book("SPLIT", symbol=symbol, shares=whole, **how)
        if new != whole:
            self.book("CIL", round((new - whole) * self.prices[symbol], 2), symbol, **how)

    def tick(self) -> None:
        """Every standing order goes on by one."""
        for row in self.orders.values():
            if row["status"] == "pending_cancel":
                self._cancel_left[row["id"]] -= 1
                if self._cancel_left[row["id"]] > 0:
                    continue
                if row["symbol"] in self.races and self._is_met(row):
                    self._fill(row, 1.0)
                else:
                    row["status"] = "canceled"
            elif row["status"] in OPEN and self._is_met(row):
                tick = self._ticks[row["id"]] = self._ticks.get(row["id"], -1) + 1
                pace = self.pace.get(row["symbol"], (0.0, 0.4, 1.0))
                self._fill(row, pace[min(tick, len(pace) - 1)])

    def _is_met(self, row: dict[str, Any]) -> bool:
        """Whether an order fills at the price of now; a stop goes on once it was reached."""
        price = self.prices[row["symbol"]]
        if row["type"] == "limit":
            limit = float(row["limit_price"])
            return price <= limit if row["side"] == "buy" else price >= limit
        if row["type"] == "stop" and price <= float(row["stop_price"]):
            row["type"] = "market"
        return row["type"] == "market"

    def end_day(self) -> None:
        """The orders of the day expire."""
        for row in self.orders.values():
            if row["status"] in OPEN and row["time_in_force"] == "day":
                row["status"] = "expired"

    def delay(self, method: str, body: Any) -> None:
        if method == "POST":
            self._on_the_way.append((len(self.seen) + LATE, body))

    def arrive(self) -> None:
        """What was on the way and is due."""
        due = [item for item in self._on_the_way if item[0] <= len(self.seen)]
        for item in due:
            self._on_the_way.remove(item)
            with contextlib.suppress(Refusal):
                self._submit(item[1])

    def _fill(self, row: dict[str, Any], share: float) -> None:
        asked = float(row["qty"])
        before = float(row["filled_qty"])
        filled = asked if share == 1.0 else math.floor(asked * share)
        sign = 1.0 if row["side"] == "buy" else -1.0
        symbol = row["symbol"]
        price = self.prices[symbol]
        if filled != before:
            self._before = (self.stale, dict(self.positions))
        self.cash -= sign * (filled - before) * price
        self.least_cash = min(self.least_cash, self.cash)
        held = self.positions.pop(symbol, 0.0) + sign * (filled - before)
        if held:
            self.positions[symbol] = held
        row["filled_qty"] = f"{filled:.12g}"
        mean = float(row["filled_avg_price"] or price)
        mean += (price - mean) * (filled - before) / filled if filled else 0.0
        row["filled_avg_price"] = f"{mean:.12g}" if filled else None
        row["status"] = "filled" if filled == asked else "partially_filled" if filled else "new"

    def answer(
        self, method: str, path: str, query: Mapping[str, str], body: Any
    ) -> tuple[int, Any]:
        """What is done and said; Refusal for what is refused."""
        match method, path.removeprefix("/v2/").split("/"):
            case "POST", ["orders"]:
                return 200, self._submit(body)
            case "DELETE", ["orders", name]:
                return self._cancel(name)
            case "GET", ["account"]:
                return 200, {
                    "account_number": self.number,
                    "status": "ACTIVE",
                    "currency": "USD",
                    "cash": f"{self.cash:.4f}",
                    "trading_blocked": self.blocked,
                    "account_blocked": False,
                }
            case "GET", ["positions"]:
                return 200, [
                    {
                        "symbol": symbol,
                        "qty": f"{held:.12g}",
                        "side": "long" if held > 0 else "short",
                    }
                    for symbol, held in self._seen_positions().items()
                ]
            case "GET", ["clock"]:
                return 200, {"timestamp": "2016-03-15T10:30:00.123456789-04:00", "is_open": True}
            case "GET", ["account", "activities"]:
                return 200, self._list_activities(query)
            case "GET", ["orders"]:
                self.tick()
                return 200, self._listed(query)
            case "GET", ["orders:by_client_order_id"]:
                self.tick()
                row = self.by_client_id().get(query["client_order_id"])
                if row is None:
                    raise Refusal(404, 40410000, "order not found")
                return 200, row
        raise Refusal(404, 0, "endpoint not found.")

    def _list_activities(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        assert query["category"] == "non_trade_activity"
        assert query["direction"] == "asc"
        after = dt.datetime.fromisoformat(query["after"]).date().isoformat()
        rows = [row for row in self.activities if row["date"] >= after]
        names = [row["id"] for row in rows]
        first = names.index(query["page_token"]) + 1 if "page_token" in query else 0
        return rows[first : first + min(int(query["page_size"]), 100)]

    def _seen_positions(self) -> Mapping[str, float]:
        left, before = self._before
        self._before = (left - 1, before)
        return before if left > 0 else self.positions

    def _left(self, side: str, worth: Callable[[str], float]) -> float:
        """What is still open of all orders of a side, by the `worth` of a share of their
        symbols."""
        return sum(
            (float(row["qty"]) - float(row["filled_qty"])) * worth(row["symbol"])
            for row in self.orders.values()
            if row["status"] in OPEN and row["side"] == side
        )

    def _submit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        name = body["client_order_id"]
        symbol = body["symbol"]
        shares = float(body["qty"])
        terms = {
            k: body[k] for k in ("type", "time_in_force", "limit_price", "stop_price") if k in body
        }
        self._check_terms(body, shares)
        if shares != round(shares, 9):
            raise Refusal(422, 42210000, "qty must be limited to 9 decimal places")
        if name in self.by_client_id():
            raise Refusal(422, 40010001, "client_order_id must be unique")
        if symbol not in self.prices:
            raise Refusal(422, 42210000, f'asset "{symbol}" not found')
        if symbol in self.whole_only and shares != math.floor(shares):
            raise Refusal(403, 40310000, f'asset "{symbol}" is not fractionable')
        if body["side"] == "buy":
            bound = self._left("buy", self.prices.__getitem__)
            price = float(body.get("limit_price") or self.prices[symbol])
            if not self.margin and shares * price > self.cash - bound + 1e-9:
                raise Refusal(403, 40310000, "insufficient buying power")
        else:
            bound = self._left("sell", lambda other: float(other == symbol))
            available = self.positions.get(symbol, 0.0) - bound
            if shares > available:
                amounts = f"(requested: {shares:.12g}, available: {available:.12g})"
                raise Refusal(403, 40310000, f"insufficient qty available for order {amounts}")
        if self.witness:
            self.witness(body)
        return self.accept(symbol, shares if body["side"] == "buy" else -shares, name, **terms)

    def _check_terms(self, body: Mapping[str, Any], shares: float) -> None:
        """Refuse what Alpaca does not take of prices, times and opposite orders."""
        kind, side = body["type"], body["side"]
        assert kind in ("market", "limit", "stop")
        price = self.prices.get(body["symbol"], 0.0)
        wanted = float(body.get("limit_price") or body.get("stop_price") or price)
        cents = wanted * (100 if wanted >= 1.0 else 10_000)
        if kind != "market" and abs(cents - round(cents)) > 1e-6:
            what = "sub-penny increment does not fulfill minimum pricing criteria"
            raise Refusal(422, 42210000, f"invalid {kind}_price {wanted}. {what}")
        if shares != math.floor(shares) and body["time_in_force"] != "day":
            raise Refusal(422, 42210000, "fractional orders must be DAY orders")
        if kind == "stop" and wanted > price / 1.001:
            raise Refusal(
                422, 42210000, f"stop price must not be greater than base price / 1.001 ({price})"
            )
        for row in self.orders.values():
            if row["status"] not in OPEN or row["symbol"] != body["symbol"] or row["side"] == side:
                continue
            limits = kind == row["type"] == "limit"
            bid, ask = wanted, float(row.get("limit_price") or 0.0)
            if side == "sell":
                bid, ask = ask, bid
            if not limits or bid >= ask:
                raise Refusal(403, 40310000, "potential wash trade detected. use complex orders")

    def _cancel(self, name: str) -> tuple[int, Any]:
        row = self.orders.get(name)
        if row is None:
            raise Refusal(404, 40410000, "order not found")
        if row["status"] not in OPEN:
            raise Refusal(422, 42210000, f'order is already in "{row["status"]}" state')
        if row["status"] != "pending_cancel":
            self._cancel_left[name] = self.cancel_ticks
        row["status"] = "pending_cancel"
        return 204, None

    def _listed(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        after = dt.datetime.fromisoformat(query.get("after", "1970-01-01T00:00:00+00:00"))
        rows = [
            row
            for row in self.orders.values()
            if dt.datetime.fromisoformat(row["submitted_at"]) > after
        ]
        if query.get("status", "open") == "open":
            rows = [row for row in rows if row["status"] in OPEN]
        rows.sort(
            key=lambda row: row["submitted_at"], reverse=query.get("direction", "desc") == "desc"
        )
        return rows[: min(int(query.get("limit", 50)), 500)]


class Handler(BaseHTTPRequestHandler):
    alpaca: LoopbackAlpaca
    word = "message"
    """The field of an error's words."""
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self) -> None:
        alpaca = self.alpaca
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with alpaca.lock:
            alpaca.seen.append((self.command, parts.path))
            alpaca.keys.append(self._keys)
            fault = alpaca.faults.get(len(alpaca.seen), alpaca.outage)
            if fault:
                alpaca.fired.append(fault)
            alpaca.arrive()
            status = 0
            body = None
            asked = self._parse(text) if text else None
            if fault.endswith("_late"):
                alpaca.delay(self.command, asked)
            if not fault or fault.endswith("_after"):
                status, body = self._answered(parts.path, query, asked)
        if not fault:
            self._say(status, b"" if body is None else json.dumps(body).encode())
        else:
            self._fail(fault.removesuffix("_after").removesuffix("_late"), body)

    do_GET = do_POST = do_DELETE = _serve

    def _parse(self, text: bytes) -> Any:
        return json.loads(text)

    @property
    def _keys(self) -> tuple[str | None, str | None]:
        return self.headers.get("APCA-API-KEY-ID"), self.headers.get("APCA-API-SECRET-KEY")

    def _answered(self, path: str, query: Mapping[str, str], body: Any) -> tuple[int, Any]:
        if self._keys != (KEY, SECRET):
            return 401, {"code": 40110000, "message": "request is not authorized"}
        try:
            return self.alpaca.answer(self.command, path, query, body)
        except Refusal as refusal:
            if self.command == "POST":
                self.alpaca.refusals.append(refusal.body["message"])
            if self.alpaca.echo:
                refusal.body["message"] += f" for {self._keys}"
            return refusal.status, refusal.body

    def _fail(self, fault: str, body: Any) -> None:
        html = b"<html><body><h1>Bad Gateway</h1></body></html>"
        if fault == "hang":
            time.sleep(self.alpaca.hang_s)
            self.close_connection = True
        elif fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
            self.close_connection = True
        elif fault.endswith("html"):
            self._say(
                int(fault.split("_")[0]) if "_" in fault else 200,
                html,
                {"Content-Type": "text/html"},
            )
        elif fault == "truncated":
            whole = json.dumps(body or {"id": str(uuid.uuid4()), "status": "accepted"}).encode()
            self._say(200, whole[: len(whole) // 2])
        elif fault in BODIES:
            self._say(200, BODIES[fault])
        else:
            told = {"code": int(fault) * 100_000, self.word: f"status {fault}"}
            if self.alpaca.echo:
                told[self.word] += f" for {self._keys}"
            headers = {}
            if fault == "429":
                headers["Retry-After"] = self.alpaca.retry_after
            if fault == "302" and self.alpaca.redirect_to:
                headers["Location"] = self.alpaca.redirect_to
            self._say(int(fault), json.dumps(told).encode(), headers)

    def _say(
        self, status: int, body: bytes, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.send_response(status)
        usual = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        for name, value in {**usual, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


LoopbackAlpaca.handler = Handler
