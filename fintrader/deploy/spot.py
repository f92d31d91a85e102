"""Orders at a spot exchange of cryptocurrencies, through ccxt (extra `crypto`), by default in its
sandbox.

A pair such as BTC/USDT is a symbol, amounts of its base coin are shares, and its quote coin is the
account's cash, counted as USD. Balances of other coins are no part of the account. A fee taken in a
coin of the pairs reduces that coin's shares (`OrderReport.fee_shares`), so a fill counts only once
the exchange lists its trade with the fee.

An exchange accepts the id of a finished order again. So an order of unknown fate is never sent
again; the exchange is asked for it instead. A request is valid for five seconds (`recvWindow`), so
an order that the exchange does not have after that time will never arrive.

Keys come only from the environment and go only to the exchange's own hosts. ccxt quotes addresses
with signatures in its errors and logs headers with the key; neither leaves this module.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fintrader.bars.sources.alpaca import restrict
from fintrader.bars.sources.crypto import open_exchange
from fintrader.deploy.broker import Activity, BrokerAccount, Order, OrderReport, State
from fintrader.deploy.orders import ASK, SECOND, STOP, find_sender, format_decision_stamp, order_id
from fintrader.deploy.reconcile import format_day
from fintrader.deploy.remote import (
    Answer,
    RemoteBroker,
    RequestLimits,
    parse_seconds,
    report_rejection,
)
from fintrader.errors import BrokerError, BrokerUnsureError, DeployError, OrderTakenError
from fintrader.files import hash_bytes

_LIMITS = RequestLimits(per_minute=1200)
"""ccxt keeps the exchange's own pace."""
_MS = 1_000_000
_SPAN_MS = 43_200_000
"""Span of a request for orders, 12 hours: a page holds an order of a pair for each minute."""
_PAGE = 1000
_REMEMBERED = 2000
"""Most reports of finished orders that are kept."""
_STATES: Mapping[str, State] = {
    "closed": "filled",
    "canceled": "cancelled",
    "expired": "expired",
    "rejected": "rejected",
}
"""Final statuses of an order in ccxt; all others are open."""
_STATUSES = {
    **dict.fromkeys(("InvalidNonce", "RateLimitExceeded", "DDoSProtection"), 429),
    **dict.fromkeys(("InvalidOrder", "InsufficientFunds", "BadRequest", "OperationRejected"), 422),
    "AuthenticationError": 401,
    "OrderNotFound": 404,
    "NotSupported": 405,
}
"""Error of ccxt, or its base -> status of `RemoteBroker`: put off, refused, or, for all others,
unknown."""
_SHORT = re.compile(r"ft-([0-9a-f]+(?:-[0-9a-f]+)?)-([0-9a-f]{8})-[0-9a-f]{6}")


def shorten_id(name: str) -> str:
    """Shorten a deployment's id of an order to the 36 letters, digits and hyphens that exchanges
    take: `ft-<sender>-<seconds of the decision>-<digest of the symbol and its suffix>`."""
    seconds = dt.datetime.fromisoformat(format_decision_stamp(name)).timestamp()
    digest = hash_bytes(name.partition("Z-")[2].encode())[:6]
    return f"ft-{find_sender(name)}-{int(seconds):08x}-{digest}"


def restore_id(short: str, symbol: str) -> str:
    """Restore the id that `shorten_id` shortened; return any other id unchanged."""
    match = _SHORT.fullmatch(short)
    if not match:
        return short
    name = order_id(match[1], int(match[2], 16) * SECOND, symbol)
    return next((name + end for end in ("", ASK, STOP) if shorten_id(name + end) == short), name)


class CcxtBroker(RemoteBroker):
    """A spot account at an exchange; `Broker` describes the calls.

    name: the exchange in ccxt; symbols: pairs with one quote coin; endpoint: address of the
    exchange unless set, or a server on this machine; real_money: trade the real account instead of
    the sandbox.

    Raises DeployError for real money while it is closed (`broker.refuse_real_money`), pairs with
    several quote coins, an endpoint that is not allowed, a missing package or missing keys.
    """

    takes_ids_once = False
    variables = (
        ("FINTRADER_CCXT_KEY", "FINTRADER_CCXT_SECRET"),
        ("FINTRADER_CCXT_LIVE_KEY", "FINTRADER_CCXT_LIVE_SECRET"),
    )

    def __init__(
        self,
        name: str,
        symbols: Sequence[str],
        endpoint: str | None = None,
        *,
        real_money: bool = False,
        limits: RequestLimits = _LIMITS,
    ) -> None:
        self.kind = name
        quotes = {symbol.partition("/")[2] for symbol in symbols}
        if len(quotes) != 1:
            raise DeployError(
                f"an account at {name} has one cash coin; give all pairs the same quote, like"
                f" BTC/USDT and ETH/USDT, not {', '.join(symbols)}"
            )
        self._symbols = symbols
        self._names = {symbol.partition("/")[0]: symbol for symbol in symbols}
        self._names |= dict.fromkeys(quotes, "")
        """Coin -> its pair, an empty name for the cash."""
        self._client = open_exchange(name)
        self._client.logger = logging.Logger("ccxt", logging.CRITICAL)
        self._client.set_sandbox_mode(not real_money)
        host = self._client.urls["api"]["private"].split("/")[2]
        super().__init__(endpoint, host, limits, real_money=real_money)
        self._client.apiKey, self._client.secret = self._read_keys()
        restrict(self._client.session, self.endpoint, limits.seconds, host=host)
        self._reports: dict[tuple[str, str], OrderReport] = {}
        """Reports of finished orders, by symbol and the exchange's number."""

    def submit(self, order: Order) -> OrderReport:
        """Send one order; ccxt cuts its shares to the exchange's step and rounds its price to the
        exchange's tick. Limits and stops (market orders once triggered: Binance's `STOP_LOSS`) are
        good till cancelled. A price too far from the market (`PERCENT_PRICE_BY_SIDE`) is a
        rejection."""
        trigger = {"stopLossPrice": order.stop_usd} if order.stop_usd else {}
        answer = self._call(
            self._client.create_order,
            order.symbol,
            "limit" if order.limit_usd else "market",
            "buy" if order.shares > 0 else "sell",
            round(abs(order.shares), 9),  # 74.99999999999999 coins are 75 before they are cut
            order.limit_usd or None,
            {"clientOrderId": shorten_id(order.id), **trigger},
            allowed=(200, 422),
        )
        if answer.status == 200:
            return self._read(lambda: self._report(answer.body))
        if "uplicate order" in answer.message:
            raise OrderTakenError(f"{self.kind} has an order {order.id} already")
        return report_rejection(order, answer.message)

    def cancel(self, report: OrderReport) -> None:
        """Cancel an order; a finished one stays unchanged."""
        ended = (200, 404, 422)
        self._call(self._client.cancel_order, report.broker_id, report.symbol, allowed=ended)

    def order(self, order_id: str) -> OrderReport | None:
        """Report an order of a deployment; None for other ids, which do not name their pair."""
        symbol = order_id.partition("Z-")[2].partition("-")[0]
        if symbol not in self._symbols:
            return None
        answer = self._call(
            self._client.fetch_order,
            None,
            symbol,
            {"clientOrderId": shorten_id(order_id)},
            repeats=True,
            allowed=(200, 404),
        )
        return None if answer.status == 404 else self._read(lambda: self._report(answer.body))

    def orders(self, since: int) -> Sequence[OrderReport]:
        """Report the orders of the pairs sent since then, and all open ones, however old."""
        rows = self._ask(self._client.fetch_open_orders)
        stop = self.time() // _MS
        for symbol in self._symbols:
            for first in range(since // _MS, stop + 1, _SPAN_MS):
                rows += self._ask(
                    self._client.fetch_orders, symbol, first, _PAGE, {"until": first + _SPAN_MS}
                )
        reports = self._read(
            lambda: {(row["symbol"], row["id"]): self._report(row) for row in rows}
        )
        return [*reports.values()]

    def account(self) -> BrokerAccount:
        """Read cash and positions. Raises BrokerError for symbols that the exchange does not trade,
        too."""
        markets = self._ask(self._client.load_markets)
        wrong = [symbol for symbol in self._symbols if not markets.get(symbol, {}).get("spot")]
        if wrong:
            error = BrokerError if markets else BrokerUnsureError
            raise error(f"{self.kind} lists no spot pair {', '.join(wrong)}; trade its pairs")
        body = self._ask(self._client.fetch_balance)
        return self._read(lambda: self._parse_account(body))

    def size_sale(self, symbol: str, shares: float, price_usd: float) -> float:
        """Treat less than 110 % of the exchange's least order value as dust, since it values orders
        at its own price."""
        limits = self._client.markets[symbol]["limits"]
        most = min(round(shares, 9), limits["market"]["max"] or math.inf)
        answer = self._call_once(self._client.amount_to_precision, (symbol, most))
        size = float(answer.body or 0.0)
        least_usd = 1.1 * (limits["cost"]["min"] or 0.0)
        is_dust = size < (limits["amount"]["min"] or 0.0) or 0.0 < size * price_usd < least_usd
        return 0.0 if is_dust else size

    def activities(self, since: int) -> Sequence[Activity]:
        """Report deposits and withdrawals; none where the exchange or its sandbox lists none."""
        rows: list[Any] = []
        for fetch in (self._client.fetch_deposits, self._client.fetch_withdrawals):
            answer = self._call(fetch, None, since // _MS, repeats=True, allowed=(200, 405))
            rows += answer.body or ()
        return self._read(lambda: self._parse_transfers(rows))

    def time(self) -> int:
        return self._read(lambda: int(self._ask(self._client.fetch_time))) * _MS

    def _report(self, row: Any) -> OrderReport:
        """Read a report from an order of ccxt and its trades, which are asked for unless they came
        with it. Until all are known with their fees, an order of a deployment counts as open."""
        key = row["symbol"], row["id"]
        own = restore_id(row["clientOrderId"], row["symbol"])
        if key in self._reports:
            return self._reports[key]
        state = _STATES.get(row["status"])
        parts = [{**row, "amount": row["filled"]}]
        if find_sender(own):
            if not _has_fees(row):
                row["trades"] = self._ask(self._client.fetch_order_trades, row["id"], row["symbol"])
            if not _has_fees(row):
                state = None
            parts = row["trades"]
        filled = sum(part["amount"] or 0.0 for part in parts)
        paid = sum(part["cost"] or 0.0 for part in parts)
        fees = self._sum_fees(parts)
        sign = -1.0 if row["side"] == "sell" else 1.0
        report = OrderReport(
            id=own,
            symbol=row["symbol"],
            state=state or ("partial" if filled else "accepted"),
            shares=sign * row["amount"],
            filled=sign * filled,
            price_usd=paid / filled if filled else 0.0,
            cost_usd=fees.pop("", 0.0),
            broker_id=row["id"],
            fee_shares=fees,
        )
        if report.is_over:
            self._reports[key] = report
            if len(self._reports) > _REMEMBERED:
                self._reports.clear()
        return report

    def _sum_fees(self, parts: Any) -> dict[str, float]:
        """Sum the fees by symbol, cash under an empty name, without fees in other coins."""
        fees: dict[str, float] = {}
        for fee in [part["fee"] for part in parts if part["fee"]]:
            symbol = self._names.get(fee["currency"])
            if symbol is not None and fee["cost"]:
                fees[symbol] = fees.get(symbol, 0.0) + fee["cost"]
        return fees

    def _parse_account(self, body: Any) -> BrokerAccount:
        total = body["total"]
        held = {name: total.get(coin) or 0.0 for coin, name in self._names.items()}
        return BrokerAccount(
            number=str(body["info"]["uid"]),
            cash_usd=held.pop(""),
            shares={symbol: count for symbol, count in held.items() if count},
            blocked=""
            if body["info"].get("canTrade", True)
            else "the exchange does not let it trade",
        )

    def _parse_transfers(self, rows: Any) -> list[Activity]:
        """Read deposits that have come and withdrawals that have left, with their fees."""
        transfers = []
        for row in rows:
            symbol = self._names.get(row["currency"])
            is_out = row["type"] == "withdrawal"
            if symbol is None or row["status"] not in ("ok", "pending" if is_out else ""):
                continue
            amount = row["amount"] * (-1.0 if is_out else 1.0)
            amount -= (row["fee"] or {}).get("cost") or 0.0
            transfers.append(
                Activity(
                    id=f"{row['type']}-{row['id'] or row['txid']}",
                    kind="transfer",
                    day=format_day(row["timestamp"] * _MS),
                    symbol=symbol,
                    shares=amount if symbol else 0.0,
                    cash_usd=0.0 if symbol else amount,
                )
            )
        return transfers

    def _call_once(self, call: Callable[..., Any], arguments: Sequence[Any]) -> Answer:
        try:
            return Answer(200, call(*arguments))
        except Exception as error:  # ccxt meets an answer that it cannot read with any error
            kinds = [kind.__name__ for kind in type(error).__mro__]
            text = str(error)
        status = next((_STATUSES[kind] for kind in kinds if kind in _STATUSES), 0)
        if not self._client.markets and kinds[0] == "BadSymbol":
            # Without a list of pairs in the answer, let ccxt ask for it again.
            self._client.markets = None
            status = 0
        words = re.search(r'"msg"\s*:\s*"([^"]*)"', text)
        message = words[1] if words else text if status == 422 else kinds[0]
        # Refused where the clocks differ: sent again once their difference is known.
        if kinds[0] == "InvalidNonce":
            answer = self._call_once(self._client.load_time_difference, ())
            status = 429 if answer.status else 0
        wait_s = parse_seconds((self._client.last_response_headers or {}).get("Retry-After"))
        return Answer(status, message=self._clean(message), wait_s=wait_s)


def _has_fees(row: Any) -> bool:
    """Check that an order's trades sum to its fills, each with its fee."""
    fees = [(trade["fee"] or {}).get("cost") for trade in row["trades"]]
    filled = sum(trade["amount"] for trade in row["trades"])
    return None not in fees and math.isclose(filled, row["filled"] or 0.0, rel_tol=1e-9)
