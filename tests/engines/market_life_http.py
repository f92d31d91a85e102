"""A `World` behind Alpaca's addresses on this machine, for lives through alpaca-py and HTTP."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from fintrader.deploy.alpaca import AlpacaBroker, RequestLimits
from fintrader.deploy.broker import Order, OrderReport
from fintrader.errors import OrderTakenError
from tests.engines.alpaca_loopback import LoopbackAlpaca, Refusal
from tests.engines.market_life import NANO, SECOND, Ticket
from tests.engines.market_life_run import Life

TYPES = {
    "fee": "FEE",
    "interest": "INT",
    "dividend": "DIV",
    "split": "SPLIT",
    "lieu": "CIL",
    "rename": "NC",
    "delisting": "MA",
    "deposit": "CSD",
    "withdrawal": "CSW",
}
"""Kind of a line of the statement -> Alpaca's type of activity."""
FAULTS = {"": "", "outage": "503", "limit": "429", "after": "504_after"}
STATES = {"cancelled": "canceled", "partial": "partially_filled"}


class LoopbackWorld(LoopbackAlpaca):
    """The account of a life, as Alpaca's trading service shows it."""

    def __init__(self, life: Life) -> None:
        self.life = life
        super().__init__(cash=0.0, prices={})

    @property
    def outage(self) -> str:
        return FAULTS[self.life.troubles.broker]

    @outage.setter
    def outage(self, fault: str) -> None:
        """The life's troubles set it."""

    def answer(
        self, method: str, path: str, query: Mapping[str, str], body: Any
    ) -> tuple[int, Any]:
        world = self.life.world
        ledger = world.ledger
        match method, path.removeprefix("/v2/").split("/"):
            case "POST", ["orders"]:
                return 200, _row(self._take(body))
            case "DELETE", ["orders", name]:
                if not world.tickets[name].is_open:
                    raise Refusal(422, 42210000, "order is over")
                world.cancel(name)
                return 204, None
            case "GET", ["account"]:
                cash = f"{ledger.cents / 100:.2f}"
                flags = {"trading_blocked": False, "account_blocked": False}
                return 200, {
                    "account_number": world.number,
                    "status": "ACTIVE",
                    "cash": cash,
                    **flags,
                }
            case "GET", ["positions"]:
                return 200, [
                    {"symbol": symbol, "qty": f"{held / NANO:.9f}", "side": "long"}
                    for symbol, held in ledger.shares.items()
                ]
            case "GET", ["clock"]:
                return 200, {"timestamp": _stamp(world.now - self.life.troubles.skew)}
            case "GET", ["account", "activities"]:
                return 200, self._lines(query)
            case "GET", ["orders"]:
                after = dt.datetime.fromisoformat(query["after"]).timestamp() * SECOND
                found = [t for t in world.tickets.values() if t.sent > after]
                if query["status"] == "open":
                    found = list(world.open_tickets())
                return 200, [_row(ticket) for ticket in found[:500]]
            case "GET", ["orders:by_client_order_id"]:
                ticket = world.tickets.get(query["client_order_id"])
                if ticket is None:
                    raise Refusal(404, 40410000, "order not found")
                return 200, _row(ticket)
        raise Refusal(404, 0, "endpoint not found.")

    def _take(self, body: Mapping[str, Any]) -> Ticket:
        shares = float(body["qty"]) * (1 if body["side"] == "buy" else -1)
        prices = {
            name: float(body[f"{kind}_price"])
            for kind, name in (("limit", "limit_usd"), ("stop", "stop_usd"))
            if body["type"] == kind
        }
        order = Order(body["client_order_id"], body["symbol"], shares, 0, **prices)
        try:
            ticket = self.life.broker.take(order)
        except OrderTakenError as error:
            raise Refusal(422, 40010001, "client_order_id must be unique") from error
        if ticket.state == "rejected":
            raise Refusal(403, 40310000, ticket.reason)
        return ticket

    def _lines(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        after = dt.datetime.fromisoformat(query["after"]).date().isoformat()
        rows = []
        for line in self.life.world.ledger.activities:
            day = dt.datetime.fromtimestamp(line.time // SECOND, dt.UTC).date().isoformat()
            if day < after or line.kind == "bust":
                continue
            name = f"{day.replace('-', '')}000000000::{line.number:08d}"
            row = {"id": name, "activity_type": TYPES[line.kind], "date": day}
            row |= {"net_amount": f"{line.cents / 100:.2f}", "status": "executed"}
            if line.symbol:
                row |= {"symbol": line.symbol, "qty": f"{line.shares / NANO:.9f}"}
            rows.append(row)
        first = 0
        if "page_token" in query:
            first = [row["id"] for row in rows].index(query["page_token"]) + 1
        return rows[first : first + min(int(query["page_size"]), 100)]


class MortalAlpaca(AlpacaBroker):
    """alpaca-py in a life's time, which may end inside a call."""

    def __init__(self, server: LoopbackWorld, life: Life) -> None:
        self.life = life
        super().__init__(
            server.endpoint,
            limits=RequestLimits(
                monotonic=lambda: life.world.now / SECOND,
                sleep=lambda seconds: life.pass_until(life.world.now + int(seconds * SECOND) + 1),
            ),
        )

    def submit(self, order: Order) -> OrderReport:
        self.life.cross("before submit")
        report = super().submit(order)
        self.life.cross("after submit")
        return report

    def cancel(self, report: OrderReport) -> None:
        self.life.cross("cancel")
        super().cancel(report)
        self.life.cross("after cancel")

    def order(self, order_id: str) -> OrderReport | None:
        self.life.cross("order")
        return super().order(order_id)

    def account(self) -> Any:
        self.life.cross("account")
        return super().account()


def live_over_http(life: Life) -> Life:
    """Live a life with alpaca-py and a server of this machine between runner and world."""
    with LoopbackWorld(life) as server:
        life.connection = MortalAlpaca(server, life)
        return life.run()


def _row(ticket: Ticket) -> dict[str, Any]:
    price = ticket.paid * NANO / ticket.filled / 100 if ticket.filled else None
    return {
        "id": ticket.id,
        "client_order_id": ticket.id,
        "symbol": ticket.symbol,
        "status": STATES.get(ticket.state, ticket.state),
        "qty": f"{abs(ticket.shares) / NANO:.9f}",
        "filled_qty": f"{abs(ticket.filled) / NANO:.9f}",
        "filled_avg_price": None if price is None else f"{price:.8f}",
        "side": "buy" if ticket.shares > 0 else "sell",
        "submitted_at": _stamp(ticket.sent),
    }


def _stamp(moment: int) -> str:
    return dt.datetime.fromtimestamp(moment / SECOND, dt.UTC).isoformat()
