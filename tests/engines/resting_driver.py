"""A small deployment of bids, asks and stops at a server of this machine, which can be killed
anywhere.

It wants up to `MOST` shares of each symbol, then `LEAST`, and at the end a fall of the prices reaches
the stops. Whatever happens in between, more than `MOST` are never held, no ask sells below `LEAST`,
and before the fall every share of a protected symbol lies in an open sale.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fintrader.deploy.alpaca import AlpacaBroker
from fintrader.deploy.broker import Order
from fintrader.deploy.entries import OrderTerms
from fintrader.deploy.journal import Journal
from fintrader.deploy.orders import ASK, SECOND, STOP, OrderRules, order_id
from fintrader.deploy.reconcile import expect_holdings, reconcile
from fintrader.deploy.remote import RequestLimits
from fintrader.deploy.spot import CcxtBroker
from fintrader.deploy.venue_orders import VenueExecution
from fintrader.errors import BrokerUnsureError
from tests.engines import alpaca_loopback, binance_loopback
from tests.engines.alpaca_loopback import LoopbackAlpaca
from tests.engines.binance_loopback import LoopbackBinance
from tests.engines.order_driver import OPENED

SENDER = "0a1b2c3d-5e6f7a8b"
MINUTE = 60 * SECOND
STEP = 4 * SECOND
MOST = 100.0
LEAST = 20.0
PRICE = 100.0
FALLEN = 80.0
SYMBOLS = ("RACE/USDT", "HALF/USDT", "LATE/USDT")
PACE = {"RACE": (0.0, 0.3), "HALF": (0.0, 0.4), "LATE": (0.0, 0.0, 0.0, 1.0)}
"""Symbols of the first stand after a part, and fill whole when they are cancelled; of the last the
whole order fills a little later."""
FALL = 6
"""Number of the decision before which the prices fall."""


class Venue:
    """A server, its broker, and the time of both."""

    def __init__(self, name: str, **how: Any) -> None:
        self.name = name
        self.now = OPENED
        prices = {self.rename(symbol): PRICE for symbol in SYMBOLS}
        self.symbols = tuple(prices)
        pace = {self.rename(f"{coin}/USDT"): share for coin, share in PACE.items()}
        shared = {"prices": prices, "pace": pace, "races": [self.rename("RACE/USDT")], **how}
        if name == "alpaca":
            self.server: LoopbackAlpaca = LoopbackAlpaca(cash=100_000.0, **shared)
        else:
            self.server = LoopbackBinance(balances={"USDT": 100_000.0}, fee_rate="0", **shared)
            self.server.clock = lambda: self.now / SECOND

    def rename(self, symbol: str) -> str:
        return symbol.partition("/")[0] if self.name == "alpaca" else symbol

    def connect(self, seconds: float = 5.0) -> AlpacaBroker | CcxtBroker:
        limits = RequestLimits(seconds, 1.0, 1_000_000, sleep=lambda seconds: None)
        if self.name == "alpaca":
            os.environ["APCA_API_KEY_ID"] = alpaca_loopback.KEY
            os.environ["APCA_API_SECRET_KEY"] = alpaca_loopback.SECRET
            return AlpacaBroker(self.server.endpoint, limits=limits)
        os.environ["FINTRADER_CCXT_KEY"] = binance_loopback.KEY
        os.environ["FINTRADER_CCXT_SECRET"] = binance_loopback.SECRET
        broker = CcxtBroker("binance", self.symbols, self.server.endpoint, limits=limits)
        broker._client.enableRateLimit = False
        broker._client.milliseconds = lambda: self.now // 1_000_000
        return broker

    def held(self, symbol: str) -> float:
        server = self.server
        if isinstance(server, LoopbackBinance):
            return server.held(symbol.partition("/")[0])
        return server.positions.get(symbol, 0.0)

    def offered(self, symbol: str) -> float:
        """Shares of a symbol in open sales."""
        server = self.server
        if isinstance(server, LoopbackBinance):
            return float(server._locked(symbol.partition("/")[0]))
        return server._left("sell", lambda other: float(other == symbol))

    def has_bought(self, symbol: str) -> bool:
        return any(
            row["symbol"] == symbol and row["side"] == "buy" and row["filled"]
            for row in self.list_orders()
        )

    def list_orders(self) -> list[dict[str, Any]]:
        """Every order that the server took: id, symbol, side, type, shares filled, and whether it
        is open."""
        server = self.server
        if isinstance(server, LoopbackBinance):
            return [
                {
                    "id": row["clientOrderId"],
                    "symbol": server.pairs[row["symbol"]],
                    "side": row["side"].lower(),
                    "filled": float(row["executedQty"]),
                    "open": row["status"] in binance_loopback.OPEN,
                }
                for row in server.rows
            ]
        return [
            {
                "id": row["client_order_id"],
                "symbol": row["symbol"],
                "side": row["side"],
                "filled": float(row["filled_qty"]),
                "open": row["status"] in alpaca_loopback.OPEN,
            }
            for row in server.orders.values()
        ]


def decide(number: int, decision: int, held: Mapping[str, float], symbols: Any) -> list[Order]:
    """The orders of a decision: bids for what is missing, asks for what is too much, and stops but
    at the second decision."""
    found = []
    for symbol in symbols:
        name = order_id(SENDER, decision, symbol)
        count = held.get(symbol, 0.0)
        if number < 3 and count < MOST:
            price = PRICE + 0.01 * (number + 1)
            found.append(Order(name, symbol, MOST - count, decision, limit_usd=price))
        if number in (3, 4) and count > LEAST:
            price = PRICE - 0.01 * number
            found.append(Order(name + ASK, symbol, LEAST - count, decision, limit_usd=price))
        if number != 1:
            stop = 90.0 - 0.01 * number
            found.append(Order(name + STOP, symbol, -MOST, decision, stop_usd=stop))
    return found


def trade(
    venue: Venue, journal: Journal, broker: Any, *, turns: int = 4000, times: int = 1
) -> list[str]:
    """Carry all decisions out, from wherever the journal stands; return what was wrong on the way.

    times: decisions have so many times as long, where faults delay them; the faults end with the fall.
    """
    length = 2 * MINUTE * times
    wrong: list[str] = []
    left = iter(range(turns))

    def agree(start: bool) -> None:
        for _ in left:
            try:
                how = {"at": venue.now, "start": start}
                found = reconcile(journal, broker, **how, pause=lambda _: None)  # type: ignore[arg-type]
                wrong.extend(finding.text for finding in found)
                return
            except BrokerUnsureError:
                venue.now += STEP
        raise AssertionError("the broker never answered")

    def watch() -> None:
        counts = {symbol: venue.held(symbol) for symbol in venue.symbols}
        wrong.extend(
            f"{count} of {name} are held" for name, count in counts.items() if count > MOST
        )

    rules = OrderRules(SENDER, poll_s=0.0, cushion=0.0)
    execution = VenueExecution.resume(broker, journal, rules, at=venue.now)
    agree(True)
    for number in range(FALL + 2):
        decision = OPENED + number * length
        if number == FALL:
            venue.server.prices |= dict.fromkeys(venue.symbols, FALLEN)
            venue.server.faults = {}
            venue.server.pace = dict.fromkeys(venue.symbols, (0.0, 0.5, 1.0))
        if venue.now >= decision + length:
            continue
        venue.now = max(venue.now, decision)
        stamp = order_id("", decision, "").split("-")[-2]
        if number < FALL and journal.last(OrderTerms, stamp) is None:
            agree(False)
            orders = decide(number, decision, expect_holdings(journal).shares, venue.symbols)
            prices = dict.fromkeys(venue.symbols, PRICE)
            until = decision + length + 90 * SECOND
            terms = {"not_before": decision, "until": until, "prices": prices}
            execution.begin(decision=decision, orders={}, at=venue.now, resting=orders, **terms)  # type: ignore[arg-type]
        while venue.now < decision + length:
            execution.step(venue.now)
            watch()
            venue.now += STEP
            if next(left, None) is None:
                raise AssertionError("it does not end")
        if number == FALL - 1:
            for symbol in venue.symbols:
                if abs(venue.held(symbol) - venue.offered(symbol)) > 1e-9:
                    wrong.append(
                        f"of {venue.held(symbol)} {symbol} {venue.offered(symbol)} are offered"
                    )
                # faults may have kept all of a symbol's bids from the venue
                least = 1e-9 if venue.has_bought(symbol) else 0.0
                if not least <= venue.held(symbol) <= MOST:
                    wrong.append(f"{venue.held(symbol)} of {symbol} are left before the fall")
    while any(venue.held(symbol) for symbol in venue.symbols):
        execution.step(venue.now)
        venue.now += STEP
        if next(left, None) is None:
            raise AssertionError("the stops do not sell")
    for _ in range(3):
        execution.step(venue.now)
        venue.now += STEP
    agree(False)
    return wrong


def find_problems(venue: Venue, journal: Journal) -> list[str]:
    """What the journal and the server do not agree upon once all is over."""
    from fintrader.deploy.spot import restore_id

    found = []
    known = journal.orders()
    rows = venue.list_orders()
    names = [row["id"] for row in rows]
    if len({*names}) < len(names):
        found.append("an id stands twice")
    for row in rows:
        name = restore_id(row["id"], row["symbol"])
        report = known.get(name)
        if row["open"]:
            found.append(f"{name} is open")
        if report is None:
            found.append(f"{name} is in no journal")
        elif abs(abs(report.filled) - row["filled"]) > 1e-9 or not report.is_over:
            found.append(f"{name} filled {row['filled']}, {report.filled} by the journal")
    arrived = {restore_id(row["id"], row["symbol"]) for row in rows}
    found += [
        f"{name} is lost: {report.state}"
        for name, report in known.items()
        if name not in arrived and report.state not in ("expired", "rejected")
    ]
    found += [
        f"refused: {text}"
        for text in venue.server.refusals
        if "insufficient" in text or "wash" in text
    ]
    sold: dict[str, float] = {}
    for row in rows:
        name = restore_id(row["id"], row["symbol"])
        if name.endswith(ASK):
            sold[row["symbol"]] = sold.get(row["symbol"], 0.0) + row["filled"]
    bought = sum(row["filled"] for row in rows if row["side"] == "buy")
    found += [f"asks sold {count} {name}" for name, count in sold.items() if count > MOST - LEAST]
    if not bought:
        found.append("nothing was bought")
    return found
