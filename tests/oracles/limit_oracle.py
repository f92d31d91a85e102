"""One account whose orders rest at a price of their own, in plain Python floats: slow, obvious, and
written from the trading contract."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tests.oracles.ledger_oracle import LedgerOracle, OracleStep


@dataclass
class Order:
    """What is left of an order, in shares (sales are negative), and its price."""

    shares: float
    price: float
    bars: int = 0
    """Bars that it has rested for."""
    at_any_price: bool = False


@dataclass
class Fill:
    """How much of an order a bar trades, at what price."""

    shares: float
    price: float
    waited: bool
    """At its own price, not at the bar's open."""


class LimitOracle(LedgerOracle):
    """A `LedgerOracle` for `action: limit`."""

    def __init__(self, market: Any, settings: Any, **given: Any) -> None:
        self.high = market.high.tolist()
        self.low = market.low.tolist()
        self.orders: dict[int, Order] = {}
        super().__init__(market, settings, **given)

    # --- orders -----------------------------------------------------------------------------------

    def place(self, action: list[float]) -> None:
        """Cancel what rests, and order anew."""
        s = self.s
        asked = self.wanted(action[: self.N])
        panic = any(self.context[self.t][column] > most for column, most in self.watched)
        self.orders = {}
        for n in range(self.N):
            offset = min(1.0, max(-1.0, action[self.N + n])) * s.limit_offset_bps / 1e4
            price = self.mark(n, self.t) * (1.0 + offset)
            shares = asked[n] - self.shares[n]
            if shares != 0.0:
                self.orders[n] = Order(shares, price, at_any_price=panic)

    def split_orders(self) -> None:
        """A split multiplies the shares of an order and divides its price."""
        for n, ratio in enumerate(self.ratios(self.t)):
            if n in self.orders:
                self.orders[n].shares = self.split(self.orders[n].shares, ratio)
                self.orders[n].price /= ratio
                if self.orders[n].shares == 0.0:
                    del self.orders[n]

    def find_fill(self, n: int) -> Fill | None:
        """What the bar would trade of the order, if its account can pay."""
        s = self.s
        t = self.t
        order = self.orders[n]
        if not self.tradable[t][n]:
            return None
        open_ = self.open[t][n]
        margin = s.limit_margin_bps / 1e4
        if order.at_any_price:
            price, waited = open_, False
        elif order.shares > 0:
            if not self.low[t][n] < order.price * (1.0 - margin):
                return None
            price, waited = min(order.price, open_), open_ > order.price
        else:
            if not self.high[t][n] > order.price * (1.0 + margin):
                return None
            price, waited = max(order.price, open_), open_ < order.price
        shares = order.shares
        if s.participation != "none":
            most = self.whole(self.volume[t][n] * s.participation)
            shares = min(max(shares, -most), most)
        return Fill(shares, price, waited)

    def has_ended(self, n: int) -> bool:
        """Is this symbol n's last bar before the data's end, or one after it?"""
        return self.last[n] < self.T - 1 and self.t >= self.last[n]

    def may_grow(self, n: int) -> bool:
        return self.member[self.t][n] and not self.has_ended(n)

    def trade(self) -> tuple[list[float], list[float], float, float]:
        """The bar's fills; returns shares and prices of each symbol, costs and turnover."""
        cost = turnover = 0.0
        traded = [0.0] * self.N
        prices = [0.0] * self.N
        fills = {}
        for n in self.orders:
            found = self.find_fill(n)
            if found is not None:
                fills[n] = found
        worth = [fills[n].price if n in fills else self.carried(n) for n in range(self.N)]
        room = self.room(worth)  # before the bar's sales
        # Each fill brings a position nearer to zero, then farther from it.
        additions = {}
        for n, fill in fills.items():
            held = self.shares[n]
            nearer = 0.0
            if held * fill.shares < 0:
                nearer = math.copysign(min(abs(held), abs(fill.shares)), fill.shares)
            if self.may_grow(n) and fill.shares != nearer:
                additions[n] = fill.shares - nearer
            if nearer:
                x = abs(nearer) * fill.price
                c = min(self.cost(n, self.t, nearer, x, waited=fill.waited), x)
                self.book(n, nearer, fill.price, c)
                cost += c
                turnover += x
                traded[n] += nearer
                prices[n] = fill.price
        # Costs of what went nearer to zero may have taken more room than it gave.
        scale = self.share_paid(additions, fills, min(room, self.room(worth)))
        for n, wish in additions.items():
            q = wish if scale == 1.0 else self.whole(scale * wish)
            if q == 0:
                continue
            fill = fills[n]
            x = abs(q) * fill.price
            c = self.cost(n, self.t, q, x, waited=fill.waited)
            self.book(n, q, fill.price, c)
            cost += c
            turnover += x
            traded[n] += q
            prices[n] = fill.price
        return traded, prices, cost, turnover

    def carried(self, n: int) -> float:
        """The close before, as it is worth after the bar's split and dividend."""
        ratio, dividend = self.events.get((self.t, n), (1.0, 0.0))
        return (self.mark(n, self.t - 1) - dividend) / ratio

    def room(self, worth: list[float]) -> float:
        """What additions may take: cash, or what is left below the largest leverage."""
        if not self.s.short:
            return self.cash
        values = [h * worth[n] for n, h in enumerate(self.shares)]
        return self.s.max_leverage * (self.cash + sum(values)) - sum(abs(v) for v in values)

    def book(self, n: int, shares: float, price: float, cost: float) -> None:
        self.cash -= shares * price + cost
        self.shares[n] += shares
        order = self.orders[n]
        order.shares -= shares
        if order.shares == 0.0:
            del self.orders[n]

    def share_paid(self, additions: dict[int, float], fills: dict[int, Fill], room: float) -> float:
        """The factor by which all additions fit into the room."""
        s = self.s
        L = s.max_leverage if s.short else 1.0
        full = least = 0.0
        for n, q in additions.items():
            x = abs(q) * fills[n].price
            c = self.cost(n, self.t, q, x, least=False, waited=fills[n].waited)
            full += x + L * c
            least += s.min_commission_usd * (x > 0.01)
        if full + L * least <= room:
            return 1.0
        room = max(0.0, room - L * (least + 2 * self.N / 2**20))
        return min(1.0, room / full) if full > 0 else 1.0

    def age(self) -> None:
        """The bar is over for the orders that rest."""
        s = self.s
        for n, order in list(self.orders.items()):
            order.bars += 1
            if order.bars == s.time_in_force or self.has_ended(n):
                del self.orders[n]

    def call_margin(self) -> tuple[float, float]:
        self.orders = {}
        return super().call_margin()

    # --- one decision -----------------------------------------------------------------------------

    def step(self, action: list[float]) -> OracleStep:
        before = self.equity()
        peak_before = self.peak
        began = self.t
        self.place(action)
        reference = [self.mark(n, self.t) for n in range(self.N)]
        result = OracleStep(0.0, False, False, 0.0, 0.0, 0.0, traded=[0.0] * self.N)
        for _ in range(self.s.decision_interval):
            if self.t < self.end:
                self.t += 1
                self.pass_bar(result, reference)
            result.bar_equity.append(self.equity())
        self.conclude(result, before, peak_before, began)
        return result

    def pass_bar(self, result: OracleStep, reference: list[float]) -> None:
        income, gained = self.turn(self.t, reference)
        result.income += income
        result.pnl += gained
        self.split_orders()
        held = list(self.shares)
        traded, prices, cost, turnover = self.trade()
        result.cost += cost
        result.turnover += turnover
        for n in range(self.N):
            if traded[n]:
                result.pnl += held[n] * (prices[n] - reference[n])
                reference[n] = prices[n]
                result.traded[n] += traded[n]
        self.age()
        gained, cost, turnover = self.close_bar(reference)
        result.pnl += gained
        result.cost += cost
        result.turnover += turnover

    def resting(self) -> list[list[float]]:
        """What is seen of orders: what is left, as a share of equity; price over close, less 1; the
        share of its time that is over."""
        seen = [[0.0] * self.N for _ in range(3)]
        for n, order in self.orders.items():
            mark = self.mark(n, self.t)
            seen[0][n] = order.shares * mark / self.equity()
            distance = order.price / mark - 1.0
            if order.at_any_price:
                distance = math.copysign(1.0, order.shares)
            seen[1][n] = min(1.0, max(-1.0, distance))
            seen[2][n] = order.bars / (self.s.time_in_force or self.s.decision_interval)
        return seen
