"""A server on this machine that answers as Binance's spot REST service does, as ccxt calls it.

Faults, outages and requests are those of `LoopbackAlpaca`. A market order fills when it is taken,
by the first share of its symbol's `pace`; one whose pace goes on fills further with each look at
it; so does a limit order while the price is at its limit or better, and a stop (`STOP_LOSS`) once the
price has reached it. Orders of symbols of `races` fill whole when they are cancelled. As at Binance, a client id is taken again once the order that had it is over; fees are taken in
the coin that was bought (`fee_coin` "received") or in another one; amounts have a step and a least
notional; and a signed request is refused for a wrong signature or a clock that is off.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.engines.alpaca_loopback import Handler, LoopbackAlpaca, Refusal

KEY = "binancecanarykey0123456789abcdef"
SECRET = "binancecanarysecretfedcba987654"
DAY_MS = 86_400_000
OPEN = ("NEW", "PARTIALLY_FILLED")


class LoopbackBinance(LoopbackAlpaca):
    """`with LoopbackBinance(balances={"USDT": 1e4}, prices={"BTC/USDT": 50_000.0}) as server`."""

    def __init__(
        self,
        *,
        balances: Mapping[str, float],
        prices: Mapping[str, float],
        step: str = "0.00001",
        least_usd: float = 5.0,
        most: float = 9000.0,
        fee_rate: str = "0.001",
        fee_coin: str = "received",
        **how: Any,
    ) -> None:
        super().__init__(cash=0.0, prices=prices, **how)
        self.balances = {coin: _decimal(amount) for coin, amount in balances.items()}
        self.step = step
        self.least_usd = least_usd
        self.most = most
        self.fee_rate = Decimal(fee_rate)
        self.fee_coin = fee_coin
        self.number = "354937868"
        self.clock: Callable[[], float] = time.time
        """The exchange's Unix time."""
        self.trades: list[dict[str, Any]] = []
        self.hidden_trades = 0
        """So many answers do not list the newest trades yet, nor give them with an order."""
        self.bars: Callable[[str, int], Sequence[Any]] = lambda pair, start: ()
        """Rows of klines of a pair from a time on, ms, the unfinished one too."""
        self.transfers: dict[str, list[dict[str, Any]]] = {"deposit": [], "withdraw": []}
        self.rows: list[dict[str, Any]] = []
        """Orders, oldest first."""

    @property
    def pairs(self) -> dict[str, str]:
        return {symbol.replace("/", ""): symbol for symbol in self.prices}

    def now_ms(self) -> int:
        return int(self.clock() * 1000)

    def held(self, coin: str) -> float:
        return float(self.balances.get(coin, Decimal(0)))

    def sent_with(self, name: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["clientOrderId"] == name]

    def trade_by_hand(self, symbol: str, shares: float) -> None:
        """A person's order, from the exchange's page."""
        side = "BUY" if shares > 0 else "SELL"
        name = f"web_{len(self.rows)}"
        asked = {"symbol": symbol.replace("/", ""), "side": side, "quantity": str(abs(shares))}
        self._take(asked | {"type": "MARKET", "newClientOrderId": name})

    # --- what is asked ---

    def delay(self, method: str, body: Any) -> None:
        if method == "POST":
            super().delay(method, {"query": body})

    def _submit(self, body: Any) -> Any:
        return self._take(dict(parse_qsl(body["query"])))

    def answer_signed(
        self, method: str, path: str, text: str, asked: Mapping[str, str]
    ) -> tuple[int, Any]:
        """Answer a request whose parameters stand in `text`."""
        if path.startswith("/sapi/") or path.split("/")[-1] in _PRIVATE:
            query, _, signature = text.rpartition("&signature=")
            made = hmac.new(SECRET.encode(), query.encode(), hashlib.sha256).hexdigest()
            if made != signature:
                raise Refusal(400, -1022, "Signature for this request is not valid.")
            ahead = int(asked["timestamp"]) - self.now_ms()
            if ahead >= 1000 or -ahead > int(asked["recvWindow"]):
                raise Refusal(
                    400, -1021, "Timestamp for this request is outside of the recvWindow."
                )
        return 200, self._answer(method, path, asked)

    def _answer(self, method: str, path: str, asked: Mapping[str, str]) -> Any:
        match method, path.removeprefix("/api/v3/"):
            case "GET", "time":
                return {"serverTime": self.now_ms()}
            case "GET", "exchangeInfo":
                return {"symbols": [self._list_pair(symbol) for symbol in self.prices]}
            case "GET", "klines":
                rows = self.bars(self.pairs[asked["symbol"]], int(asked["startTime"]))
                return rows[: int(asked["limit"])]
            case "GET", "account":
                return {
                    "uid": int(self.number),
                    "canTrade": not self.blocked,
                    "balances": [self._list_balance(coin) for coin in sorted(self.balances)],
                }
            case "POST", "order":
                return self._take(asked)
            case "GET", "order":
                self._go_on()
                found = self._find(asked)
                if found is None:
                    raise Refusal(400, -2013, "Order does not exist.")
                return found
            case "DELETE", "order":
                found = self._find(asked)
                if found is not None and self.pairs[found["symbol"]] in self.races:
                    self._fill_rest(found)
                if found is None or found["status"] not in OPEN:
                    raise Refusal(400, -2011, "Unknown order sent.")
                found["status"] = "CANCELED"
                return found
            case "GET", "openOrders":
                self._go_on()
                return [row for row in self.rows if row["status"] in OPEN]
            case "GET", "allOrders":
                return self._page(self.rows, asked)
            case "GET", "myTrades":
                self.hidden_trades -= 1
                shown = self.trades if self.hidden_trades < 0 else []
                if "orderId" in asked:
                    return [row for row in shown if row["orderId"] == int(asked["orderId"])]
                return self._page(shown, asked)
            case "GET", "/sapi/v1/capital/deposit/hisrec":
                return self.transfers["deposit"]
            case "GET", "/sapi/v1/capital/withdraw/history":
                return self.transfers["withdraw"]
        raise Refusal(404, -1, f"no {path}")

    def _page(self, rows: Sequence[Any], asked: Mapping[str, str]) -> list[Any]:
        start, end = int(asked["startTime"]), int(asked["endTime"])
        if end - start > DAY_MS:
            raise Refusal(400, -1127, "More than 24 hours between startTime and endTime.")
        mine = [row for row in rows if row["symbol"] == asked["symbol"]]
        return [row for row in mine if start <= row["time"] <= end][: int(asked["limit"])]

    def _find(self, asked: Mapping[str, str]) -> dict[str, Any] | None:
        for row in reversed(self.rows):
            if row["symbol"] != asked["symbol"]:
                continue
            if row["clientOrderId"] == asked.get("origClientOrderId"):
                return row
            if str(row["orderId"]) == asked.get("orderId"):
                return row
        return None

    # --- orders ---

    def _take(self, asked: Mapping[str, str]) -> dict[str, Any]:
        symbol = self.pairs[asked["symbol"]]
        base, quote = symbol.split("/")
        amount = Decimal(asked["quantity"])
        name = asked["newClientOrderId"]
        assert asked["type"] in ("MARKET", "LIMIT", "STOP_LOSS")
        assert len(name) <= 36
        self._check_price(asked, symbol)
        if any(row["status"] in OPEN for row in self.sent_with(name)):
            raise Refusal(400, -2010, "Duplicate order sent.")
        if amount % Decimal(self.step) or amount > _decimal(self.most):
            raise Refusal(400, -1013, "Filter failure: LOT_SIZE")
        if float(amount) * self.prices[symbol] < self.least_usd:
            raise Refusal(400, -1013, "Filter failure: NOTIONAL")
        is_buy = asked["side"] == "BUY"
        worth = Decimal(asked.get("price") or _decimal(self.prices[symbol]))
        need = amount * worth if is_buy else amount
        coin = quote if is_buy else base
        if need > self.balances.get(coin, Decimal(0)) - self._locked(coin):
            raise Refusal(400, -2010, "Account has insufficient balance for requested action.")
        if self.witness:
            self.witness(asked)
        row = {
            "symbol": asked["symbol"],
            "orderId": len(self.rows) + 1,
            "clientOrderId": name,
            "price": asked.get("price", "0.00000000"),
            "stopPrice": asked.get("stopPrice", "0.00000000"),
            "origQty": str(amount),
            "executedQty": "0",
            "cummulativeQuoteQty": "0",
            "status": "NEW",
            "timeInForce": "GTC",
            "type": asked["type"],
            "side": asked["side"],
            "time": self.now_ms(),
            "transactTime": self.now_ms(),
            "updateTime": self.now_ms(),
        }
        self.rows.append(row)
        self._ticks[name] = -1
        fills = self._tick(row)
        if self.hidden_trades > 0:
            fills = []
        return row | {"fills": fills}

    def _go_on(self) -> None:
        for row in self.rows:
            if row["status"] in OPEN:
                self._tick(row)

    def _tick(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Fill an order by the next share of its pace; a share below 0 ends it as expired."""
        symbol = self.pairs[row["symbol"]]
        if not self._is_met(row, symbol):
            return []
        pace = self.pace.get(symbol, (1.0,))
        tick = self._ticks[row["clientOrderId"]] = self._ticks[row["clientOrderId"]] + 1
        share = pace[min(tick, len(pace) - 1)]
        if share < 0:
            row["status"] = "EXPIRED"
            return []
        whole, done = Decimal(row["origQty"]), Decimal(row["executedQty"])
        wanted = whole * _decimal(share) // Decimal(self.step) * Decimal(self.step)
        if wanted <= done:
            return []
        trade = self._fill(row, symbol, wanted - done)
        row["executedQty"] = str(wanted)
        row["status"] = "FILLED" if wanted == whole else "PARTIALLY_FILLED"
        return [{"price": trade["price"], "qty": trade["qty"], **_pick_fee(trade)}]

    def _fill_rest(self, row: dict[str, Any]) -> None:
        left = Decimal(row["origQty"]) - Decimal(row["executedQty"])
        if row["status"] in OPEN and left and self._is_met(row, self.pairs[row["symbol"]]):
            self._fill(row, self.pairs[row["symbol"]], left)
            row["executedQty"] = row["origQty"]
            row["status"] = "FILLED"

    def _check_price(self, asked: Mapping[str, str], symbol: str) -> None:
        """Refuse prices that Binance's filters refuse, and a stop that is reached already."""
        price = _decimal(self.prices[symbol])
        wanted = Decimal(asked.get("price") or asked.get("stopPrice") or price)
        if asked["type"] != "MARKET" and wanted % Decimal("0.01"):
            raise Refusal(400, -1013, "Filter failure: PRICE_FILTER")
        if asked["type"] == "LIMIT":
            assert asked["timeInForce"] == "GTC"
            if not price * Decimal("0.8") <= wanted <= price * Decimal("1.2"):
                raise Refusal(400, -1013, "Filter failure: PERCENT_PRICE_BY_SIDE")
        if asked["type"] == "STOP_LOSS" and wanted >= price:
            raise Refusal(400, -2010, "Stop price would trigger immediately.")

    def _is_met(self, row: dict[str, Any], symbol: str) -> bool:
        """Whether an order fills at the price of now; a stop goes on once it was reached."""
        price = _decimal(self.prices[symbol])
        if row["type"] == "LIMIT":
            limit = Decimal(row["price"])
            return price <= limit if row["side"] == "BUY" else price >= limit
        if row["type"] == "STOP_LOSS" and price <= Decimal(row["stopPrice"]):
            row["type"] = "MARKET"
        return row["type"] == "MARKET"

    def _fill(self, row: dict[str, Any], symbol: str, amount: Decimal) -> dict[str, Any]:
        base, quote = symbol.split("/")
        price = _decimal(self.prices[symbol])
        paid = amount * price
        sign = 1 if row["side"] == "BUY" else -1
        coin = self.fee_coin
        fee = (amount * self.fee_rate).quantize(Decimal("1e-8"))
        if coin == "received":
            coin = base if sign > 0 else quote
        if coin != base:
            fee = (paid * self.fee_rate).quantize(Decimal("1e-8"))
            if coin != quote:  # BNB, by its price
                fee = (fee / _decimal(self.prices.get(f"{coin}/{quote}", 500.0))).quantize(
                    Decimal("1e-8")
                )
        for one, change in ((base, sign * amount), (quote, -sign * paid), (coin, -fee)):
            self.balances[one] = self.balances.get(one, Decimal(0)) + change
            assert self.balances[one] >= 0, one
        row["cummulativeQuoteQty"] = str(Decimal(row["cummulativeQuoteQty"]) + paid)
        trade = {
            "symbol": row["symbol"],
            "id": len(self.trades) + 1,
            "orderId": row["orderId"],
            "price": str(price),
            "qty": str(amount),
            "quoteQty": str(paid),
            "commission": str(fee),
            "commissionAsset": coin,
            "time": self.now_ms(),
            "isBuyer": sign > 0,
            "isMaker": False,
        }
        self.trades.append(trade)
        return trade

    def _locked(self, coin: str) -> Decimal:
        total = Decimal(0)
        for row in self.rows:
            symbol = self.pairs[row["symbol"]]
            base, quote = symbol.split("/")
            left = Decimal(row["origQty"]) - Decimal(row["executedQty"])
            if row["status"] in OPEN and row["side"] == "SELL" and coin == base:
                total += left
            if row["status"] in OPEN and row["side"] == "BUY" and coin == quote:
                total += left * (Decimal(row["price"]) or _decimal(self.prices[symbol]))
        return total

    def _list_balance(self, coin: str) -> dict[str, str]:
        locked = self._locked(coin)
        return {"asset": coin, "free": str(self.balances[coin] - locked), "locked": str(locked)}

    def _list_pair(self, symbol: str) -> dict[str, Any]:
        base, quote = symbol.split("/")
        lot = {"minQty": self.step, "maxQty": str(self.most), "stepSize": self.step}
        return {
            "symbol": base + quote,
            "status": "TRADING",
            "baseAsset": base,
            "quoteAsset": quote,
            "baseAssetPrecision": 8,
            "quotePrecision": 8,
            "orderTypes": ["LIMIT", "MARKET", "STOP_LOSS"],
            "isSpotTradingAllowed": True,
            "permissions": [],
            "permissionSets": [["SPOT"]],
            "filters": [
                {"filterType": "LOT_SIZE", **lot},
                {"filterType": "MARKET_LOT_SIZE", **lot, "minQty": "0", "stepSize": "0"},
                {"filterType": "NOTIONAL", "minNotional": str(self.least_usd)},
                {"filterType": "PRICE_FILTER", "tickSize": "0.01", "minPrice": "0.01"},
            ],
        }


_PRIVATE = ("account", "order", "openOrders", "allOrders", "myTrades")


class _BinanceHandler(Handler):
    word = "msg"

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The header Date says the exchange's time."""
        return super().date_time_string(int(self.alpaca.clock()))  # type: ignore[attr-defined]

    def _parse(self, text: bytes) -> Any:
        return text.decode()

    @property
    def _keys(self) -> tuple[str | None, str | None]:
        return self.headers.get("X-MBX-APIKEY"), None

    def _answered(self, path: str, query: Mapping[str, str], body: Any) -> tuple[int, Any]:
        server: Any = self.alpaca
        text = body or urlsplit(self.path).query
        asked = dict(parse_qsl(text))
        is_private = path.startswith("/sapi/") or path.split("/")[-1] in _PRIVATE
        try:
            if is_private and self._keys[0] != KEY:
                raise Refusal(401, -2015, "Invalid API-key, IP, or permissions for action.")
            return server.answer_signed(self.command, path, text, asked)
        except Refusal as refusal:
            words = refusal.body["message"]
            if self.command == "POST":
                server.refusals.append(words)
            if server.echo:
                words += f" for {self._keys[0]} {SECRET}"
            return refusal.status, {"code": refusal.body["code"], "msg": words}


LoopbackBinance.handler = _BinanceHandler


def _pick_fee(trade: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "commission": trade["commission"],
        "commissionAsset": trade["commissionAsset"],
        "tradeId": trade["id"],
    }


def _decimal(number: float) -> Decimal:
    return Decimal(f"{number:.10f}").normalize()
