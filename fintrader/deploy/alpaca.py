"""Orders at Alpaca, through alpaca-py (extra `alpaca`), by default in a paper account.

By itself alpaca-py repeats requests: a POST that ends in 504 is sent up to four times, which places
an order without an id as often. Here it repeats nothing, a request ends after 10 seconds, and an
order of unknown fate raises BrokerUnsureError. Errors are read by `status_code`, since `code`
parses the body and fails on HTML.

Keys come only from the environment and go only to a checked endpoint; no message, journal or log
shows them, even if a server sends them back.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fintrader.bars.sources.alpaca import REAL_MONEY_HOST, restrict
from fintrader.deploy.broker import Activity, ActivityKind, BrokerAccount, Order, OrderReport, State
from fintrader.deploy.remote import (
    USUAL_LIMITS,
    Answer,
    RemoteBroker,
    RequestLimits,
    parse_number,
    parse_seconds,
    report_rejection,
)
from fintrader.errors import (
    BrokerUnsureError,
    DeployError,
    OrderTakenError,
    install_command,
)

PAPER_HOST = "paper-api.alpaca.markets"
_PAGE = 500
_ACTIVITIES = 100
"""Most activities of a page."""
_STATES: Mapping[str, State] = {
    "filled": "filled",
    "canceled": "cancelled",
    "replaced": "cancelled",  # by an order with another id
    "expired": "expired",
    "rejected": "rejected",
}
"""Final statuses of an order. All others are open: new, accepted, pending_new,
accepted_for_bidding, pending_review, held, stopped, suspended, calculated, done_for_day,
pending_cancel, pending_replace, partially_filled, and any that Alpaca adds."""
_TRANSFERS = {"CSD", "CSW", "CSR", "JNL", "JNLC", "JNLS", "ACATC", "ACATS", "FOPT"}
_KINDS: Mapping[str, ActivityKind] = {"SPLIT": "split", "NC": "rename"}
"""Types of activities; DIV and its variants are dividends, all others fees and the like."""
_ORDINARY = {"new", "accepted", "pending_new", "partially_filled", "filled"}


class AlpacaBroker(RemoteBroker):
    """An account at Alpaca; `Broker` describes the calls.

    endpoint: Alpaca's address (that of paper accounts, unless `real_money`) or a server on this
    machine. real_money: trade the real account; refused while real-money trading is closed
    (`broker.refuse_real_money`). fractional: also buy fractions of shares; fractions that a split
    leaves can always be sold. Alpaca refuses a purchase while a stop of the same symbol rests, and
    a stop while a purchase rests.

    Raises DeployError for refused real money, an endpoint that is not allowed, a missing package or
    missing keys.
    """

    kind = "alpaca"
    takes_bids_over_stops = False
    variables = (
        ("APCA_API_KEY_ID", "APCA_API_SECRET_KEY"),
        ("APCA_LIVE_API_KEY_ID", "APCA_LIVE_API_SECRET_KEY"),
    )

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        real_money: bool = False,
        fractional: bool = False,
        limits: RequestLimits = USUAL_LIMITS,
    ) -> None:
        host = REAL_MONEY_HOST if real_money else PAPER_HOST
        super().__init__(endpoint, host, limits, real_money=real_money)
        try:
            from alpaca.trading.client import TradingClient
        except ImportError:
            raise DeployError(
                f"the broker alpaca needs alpaca-py: {install_command('alpaca')}"
            ) from None
        self._fractional = fractional
        key, secret = self._read_keys()
        self._client: Any = TradingClient(key, secret, raw_data=True, url_override=self.endpoint)
        self._client._retry = 0
        restrict(self._client._session, self.endpoint, limits.seconds)

    def submit(self, order: Order) -> OrderReport:
        """Send one order; shares are rounded to the nine decimals that Alpaca takes.

        A stop of whole shares is good till cancelled. All others are for the day, as fractions of a
        share must be, so that bids and asks end with their session even if this process is dead.
        Prices have two decimals from 1 USD on and four below (docs.alpaca.markets, Placing Orders);
        prices of purchases are rounded down, those of sales up.
        """
        shares = round(abs(order.shares), 9)
        is_purchase = order.shares > 0
        if is_purchase and not self._fractional and shares != math.floor(shares):
            return report_rejection(
                order,
                f"{order.shares:g} are no whole shares, and env.fractional is false",
            )
        kind = "limit" if order.limit_usd else "stop" if order.stop_usd else "market"
        request = {
            "symbol": order.symbol,
            "qty": shares,
            "side": "buy" if is_purchase else "sell",
            "type": kind,
            "time_in_force": "gtc" if kind == "stop" and shares % 1.0 == 0.0 else "day",
            "client_order_id": order.id,
        }
        usd = order.limit_usd or order.stop_usd
        if usd:
            scale = 100.0 if usd >= 1.0 else 10_000.0
            side = math.copysign(1.0, order.shares)
            request[f"{kind}_price"] = side * math.floor(round(side * usd * scale, 6)) / scale
        answer = self._call(self._client.post, "/orders", request)
        if answer.status == 200:
            return self._read(lambda: _report(answer.body, order.id))
        if answer.status == 422 and all(
            word in answer.message for word in ("client_order_id", "unique")
        ):
            raise OrderTakenError(f"alpaca has an order {order.id} already")
        if answer.status in (400, 422) or (answer.status == 403 and answer.code // 10_000 == 4031):
            return report_rejection(order, answer.message or f"status {answer.status}")
        raise self._explain_refusal(answer)

    def cancel(self, report: OrderReport) -> None:
        """Cancel an order; a finished one stays unchanged."""
        name = report.broker_id or getattr(self.order(report.id), "broker_id", "")
        if name:
            self._call(self._client.cancel_order_by_id, name, allowed=(200, 404, 422))

    def order(self, order_id: str) -> OrderReport | None:
        ask = self._client.get_order_by_client_id
        answer = self._call(ask, order_id, repeats=True, allowed=(200, 404))
        if answer.status == 200:
            return self._read(lambda: _report(answer.body, order_id))
        if not answer.message:
            raise BrokerUnsureError(
                "a server before alpaca answers that the page does not exist; it is asked again"
            )
        return None

    def orders(self, since: int) -> Sequence[OrderReport]:
        """Report the orders sent since then, and all open ones, however old."""
        reports = self._read_pages("all", since) | self._read_pages("open", 0)
        return [report for _, report in sorted(reports.values(), key=lambda item: item[0])]

    def account(self) -> BrokerAccount:
        account = self._ask(self._client.get_account)
        positions = self._ask(self._client.get_all_positions)
        return self._read(lambda: _parse_account(account, positions))

    def size_sale(self, symbol: str, shares: float, price_usd: float) -> float:
        """Return the whole shares, or a fraction alone: a refused fraction must not stop a sale of
        whole shares."""
        return float(math.trunc(shares)) or shares

    def activities(self, since: int) -> Sequence[Activity]:
        after = dt.datetime.fromtimestamp(since / 1e9, tz=dt.UTC).isoformat()
        wanted = {"category": "non_trade_activity", "after": after, "direction": "asc"}
        booked: dict[str, Activity] = {}
        token: dict[str, str] = {}
        while True:
            rows = self._ask(
                self._client.get,
                "/account/activities",
                {**wanted, "page_size": str(_ACTIVITIES), **token},
            )
            page = self._read(functools.partial(_parse_activities, rows))
            if len(page) < _ACTIVITIES or page.keys() <= booked.keys():
                booked |= page
                return [one for one in booked.values() if one.shares or one.cash_usd]
            booked |= page
            token = {"page_token": [*page][-1]}

    def time(self) -> int:
        clock = self._ask(self._client.get_clock)
        return self._read(lambda: _parse_time(clock["timestamp"]))

    def _read_pages(self, status: str, since: int) -> dict[str, tuple[int, OrderReport]]:
        """Read the orders of a status with the times they were sent at. Pages overlap by a
        millisecond: `after` leaves out its own moment, and two orders may share it."""
        orders: dict[str, tuple[int, OrderReport]] = {}
        after = since
        while True:
            moment = dt.datetime.fromtimestamp(after / 1e9, tz=dt.UTC).isoformat()
            wanted = {"status": status, "limit": _PAGE, "after": moment, "direction": "asc"}
            rows = self._ask(self._client.get, "/orders", wanted)
            page = self._read(functools.partial(_parse_orders, rows))
            if len(page) >= _PAGE and page.keys() <= orders.keys():
                raise BrokerUnsureError("alpaca repeats a page of orders; they are asked for again")
            orders.update(page)
            if len(page) < _PAGE:
                return orders
            after = max(sent for sent, _ in page.values()) - 1_000_000

    def _call_once(self, call: Callable[..., Any], arguments: Sequence[Any]) -> Answer:
        """Send one request. Errors are not passed on: their requests have the keys in the
        headers."""
        from alpaca.common.exceptions import APIError

        try:
            return Answer(200, call(*arguments))
        except APIError as error:
            status = error.status_code or 0
            response = error.response
            code, message = _parse_error(getattr(response, "text", ""))
            headers = getattr(response, "headers", {})
            return Answer(
                status, None, code, self._clean(message), parse_seconds(headers.get("Retry-After"))
            )
        except (OSError, ValueError) as error:  # unreadable JSON is a ValueError
            return Answer(0, message=type(error).__name__)


def _parse_error(text: str) -> tuple[int, str]:
    """Read code and message of an error's body, which may be HTML or nothing."""
    try:
        body = json.loads(text)
        return int(body.get("code") or 0), str(body.get("message") or "")
    except (ValueError, TypeError, AttributeError):
        return 0, ""


def _check_rows(value: Any) -> list[Any]:
    if not isinstance(value, list):  # an empty object is not the same as no orders and no positions
        raise TypeError
    return value


def _parse_time(text: str) -> int:
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError
    return round(moment.timestamp() * 1e6) * 1000


def _report(row: Any, order_id: str | None = None) -> OrderReport:
    """Read a report from Alpaca's JSON. Raises ValueError for another order than `order_id`."""
    if order_id is not None and row["client_order_id"] != order_id:
        raise ValueError
    sign = -1.0 if row["side"] == "sell" else 1.0
    filled = parse_number(row["filled_qty"] or 0.0)
    status = str(row["status"])
    shares = parse_number(row["qty"] or filled)  # null for an order of an amount of money
    state: State = _STATES.get(status) or ("partial" if filled > 0.0 else "accepted")
    if shares > 0.0 and filled >= shares:
        state = "filled"
    return OrderReport(
        id=str(row["client_order_id"]),
        symbol=str(row["symbol"]),
        state=state,
        shares=sign * shares,
        filled=sign * filled,
        price_usd=parse_number(row["filled_avg_price"] or 0.0),
        broker_id=str(row["id"]),
        reason="" if status in _ORDINARY else status,
    )


def _parse_orders(rows: Any) -> dict[str, tuple[int, OrderReport]]:
    return {
        str(row["id"]): (_parse_time(row["submitted_at"]), _report(row))
        for row in _check_rows(rows)
    }


def _parse_activities(rows: Any) -> dict[str, Activity]:
    """Read a page of activities by id. A cash dividend names the shares that it is paid for, which
    do not change; a cancelled booking changes nothing."""
    activities = {}
    for row in _check_rows(rows):
        name = str(row["activity_type"])
        cash_usd = parse_number(row.get("net_amount") or 0.0)
        shares = parse_number(row.get("qty") or 0.0)
        kind: ActivityKind = "transfer" if name in _TRANSFERS else _KINDS.get(name, "other")
        if name.startswith("DIV"):
            kind = "dividend" if cash_usd else "split"
        if kind == "dividend" or not row.get("symbol"):
            shares = 0.0
        if row.get("status") == "canceled":
            shares = cash_usd = 0.0
        words = (name, row.get("activity_sub_type"), row.get("description"))
        activities[str(row["id"])] = Activity(
            id=str(row["id"]),
            kind=kind,
            day=dt.date.fromisoformat(str(row["date"])[:10]).isoformat(),
            symbol=str(row.get("symbol") or ""),
            shares=shares,
            cash_usd=cash_usd,
            text=" ".join(str(word) for word in words if word)[:200],
        )
    return activities


def _parse_account(account: Any, positions: Any) -> BrokerAccount:
    flags = ("trading_blocked", "account_blocked", "trade_suspended_by_user")
    blocked = [name for name in flags if account.get(name)]
    if str(account["status"]) != "ACTIVE":
        blocked.append(f"status {account['status']}")
    signs = {"long": 1.0, "short": -1.0}
    shares = {
        str(row["symbol"]): abs(parse_number(row["qty"])) * signs[row["side"]]
        for row in _check_rows(positions)
    }
    return BrokerAccount(
        number=str(account["account_number"]),
        cash_usd=parse_number(account["cash"]),
        shares={symbol: count for symbol, count in sorted(shares.items()) if count},
        blocked=", ".join(blocked),
    )
