"""One account whose orders rest at prices of their own, and whose positions may have stops, in plain
Python floats: slow, obvious, and written from the trading contract."""

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


@dataclass
class Stop:
    """What closes a position, once a bar reaches its price."""

    side: float
    """1 below a long position, -1 above a short one."""
    price: float
    reached: bool = False
    """From then on an order closes the position, until nothing is left."""


@dataclass
class Bar:
    """What one bar's fills depend on, and what the fills so far have left."""

    held: list[float]
    """Shares before the bar."""
    worth: list[float]
    """Of a share: the price of its fill, or else the close before."""
    room: float | None = None
    """What additions may take; unknown before the first fills."""


Side = dict[int, Order]
"""At most one order of each symbol."""


class LimitOracle(LedgerOracle):
    """A `LedgerOracle` for `action: limit` and `action: quote`."""

    def __init__(self, market: Any, settings: Any, **given: Any) -> None:
        self.high = market.high.tolist()
        self.low = market.low.tolist()
        self.sides: list[Side] = self.no_orders(settings)  # a quote's bids, then its asks
        self.stops: dict[int, Stop] = {}
        super().__init__(market, settings, **given)

    # --- orders -----------------------------------------------------------------------------------

    @staticmethod
    def no_orders(settings: Any) -> list[Side]:
        return [{}, {}] if settings.action == "quote" else [{}]

    def place(self, action: list[float]) -> None:
        """Cancel what rests, and order anew; but nothing comes between a stop that was reached and
        the end of its position."""
        s = self.s
        parts = [min(1.0, max(-1.0, a)) for a in action]
        asked, *rest = [parts[i : i + self.N] for i in range(0, len(parts), self.N)]
        panic = any(self.context[self.t][column] > most for column, most in self.watched)
        aims = self.wanted(asked) if s.action == "limit" else list(self.shares)
        self.stops = {n: stop for n, stop in self.stops.items() if stop.reached}
        old = self.sides[0]
        self.sides = self.no_orders(s)
        for n in range(self.N):
            if n in self.stops:
                self.sides[0][n] = old[n]
                continue
            if s.action == "limit":
                self.limit(n, aims[n], rest[0][n], panic)
            elif panic:
                self.order(0, n, -self.shares[n], 0.0, at_any_price=True)
            else:
                self.quote(n, asked[n], rest[0][n])
            if s.stop_offset_bps is not None and not panic:
                mark = self.mark(n, self.t)
                aimed = [h for h in (aims[n], self.shares[n]) if abs(h) * mark > 0.01]
                self.stop(n, aimed[0] if aimed else 0.0, rest[1][n])

    def limit(self, n: int, aim: float, b: float, panic: bool) -> None:
        price = self.mark(n, self.t) * (1.0 + b * self.s.limit_offset_bps / 1e4)
        self.order(0, n, aim - self.shares[n], price, at_any_price=panic)

    def quote(self, n: int, b: float, c: float) -> None:
        s = self.s
        mark = self.mark(n, self.t)
        if mark == 0.0:
            return
        farthest = s.limit_offset_bps / 1e4
        most = self.whole(s.quote_weight * max(0.0, self.equity()) / mark)
        self.order(0, n, most, mark * (1.0 - (1.0 + b) / 2.0 * farthest))
        offered = most if s.short else min(most, self.shares[n])
        self.order(1, n, -offered, mark * (1.0 + (1.0 + c) / 2.0 * farthest))

    def order(
        self, side: int, n: int, shares: float, price: float, at_any_price: bool = False
    ) -> None:
        if shares != 0.0:
            self.sides[side][n] = Order(shares, price, at_any_price=at_any_price)

    def stop(self, n: int, position: float, nearness: float) -> None:
        if nearness > 0.0 and position != 0.0:
            side = math.copysign(1.0, position)
            away = (1.0 - nearness) * self.s.stop_offset_bps / 1e4
            self.stops[n] = Stop(side, self.mark(n, self.t) * (1.0 - side * away))

    def split_orders(self) -> None:
        """A split multiplies the shares of an order and divides its price, and that of a stop."""
        for n, ratio in enumerate(self.ratios(self.t)):
            for side in self.sides:
                if n in side:
                    side[n].shares = self.split(side[n].shares, ratio)
                    side[n].price /= ratio
                    if side[n].shares == 0.0:
                        del side[n]
            if n in self.stops:
                self.stops[n].price /= ratio

    # --- stops ------------------------------------------------------------------------------------

    def reaches_stop(self, n: int) -> bool:
        """Does the bar reach the stop of what is held now?"""
        stop = self.stops.get(n)
        if stop is None or stop.reached or not self.tradable[self.t][n]:
            return False
        if stop.side * self.shares[n] * self.high[self.t][n] <= 0.01:
            return False
        if stop.side > 0.0:
            return self.low[self.t][n] <= stop.price
        return self.high[self.t][n] >= stop.price

    def turn_stops(self) -> None:
        """Stops that the bar reached become orders that close; those that have closed are over."""
        for n, stop in list(self.stops.items()):
            if self.reaches_stop(n):
                stop.reached = True
                for side in self.sides:
                    side.pop(n, None)
                self.order(0, n, -self.shares[n], 0.0, at_any_price=True)
            elif stop.reached and self.shares[n] == 0.0:
                del self.stops[n]

    # --- fills ------------------------------------------------------------------------------------

    def find_fill(self, n: int, order: Order, bar: Bar) -> Fill | None:
        """What the bar would trade of the order, if its account can pay."""
        s = self.s
        t = self.t
        if not self.tradable[t][n]:
            return None
        if self.reaches_stop(n) and order.shares * self.shares[n] < 0.0:
            return None  # the worse comes first
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
        if not s.short:
            shares = max(shares, -bar.held[n])
        return Fill(shares, price, waited)

    def has_ended(self, n: int) -> bool:
        """Is this symbol n's last bar before the data's end, or one after it?"""
        return self.last[n] < self.T - 1 and self.t >= self.last[n]

    def may_grow(self, n: int) -> bool:
        return self.member[self.t][n] and not self.has_ended(n)

    def trade(self, side: Side, bar: Bar) -> tuple[list[float], list[float], float, float]:
        """The bar's fills of a side; returns shares and prices of each symbol, costs and
        turnover."""
        L = self.s.max_leverage if self.s.short else 1.0
        cost = turnover = added = 0.0
        traded = [0.0] * self.N
        prices = [0.0] * self.N
        fills = {}
        worth = list(bar.worth)
        for n, order in side.items():
            found = self.find_fill(n, order, bar)
            if found is not None:
                fills[n] = found
                worth[n] = found.price
        if bar.room is None:
            bar.room = self.room(worth)  # before the bar's sales
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
                self.book(side, n, nearer, fill.price, c)
                cost += c
                turnover += x
                traded[n] += nearer
                prices[n] = fill.price
        # Costs of what went nearer to zero may have taken more room than it gave.
        scale = self.share_paid(additions, fills, min(bar.room, self.room(worth)))
        for n, wish in additions.items():
            q = wish if scale == 1.0 else self.whole(scale * wish)
            if q == 0:
                continue
            fill = fills[n]
            x = abs(q) * fill.price
            c = self.cost(n, self.t, q, x, waited=fill.waited)
            self.book(side, n, q, fill.price, c)
            cost += c
            turnover += x
            added += x
            traded[n] += q
            prices[n] = fill.price
        bar.room -= added + L * cost
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
        equity = self.cash + sum(values) - self.owed(self.t - 1)
        return self.s.max_leverage * equity - sum(abs(v) for v in values)

    def book(self, side: Side, n: int, shares: float, price: float, cost: float) -> None:
        self.cash -= shares * price + cost
        self.shares[n] += shares
        side[n].shares -= shares
        if side[n].shares == 0.0:
            del side[n]

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
        """The bar is over for the orders that rest, and for stops. What closes a position does not
        age."""
        self.turn_stops()
        self.stops = {n: stop for n, stop in self.stops.items() if not self.has_ended(n)}
        for side in self.sides:
            for n, order in list(side.items()):
                closes = n in self.stops and self.stops[n].reached
                order.bars += not closes
                if order.bars == self.s.time_in_force or self.has_ended(n):
                    del side[n]

    def call_margin(self) -> tuple[float, float]:
        self.sides = self.no_orders(self.s)
        self.stops = {}
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
        bar = Bar(list(self.shares), [self.carried(n) for n in range(self.N)])
        for side in self.sides:
            held = list(self.shares)
            traded, prices, cost, turnover = self.trade(side, bar)
            result.cost += cost
            result.turnover += turnover
            for n in range(self.N):
                if traded[n]:
                    result.pnl += held[n] * (prices[n] - reference[n])
                    reference[n] = prices[n]
                    result.traded[n] += traded[n]
        self.age()
        gained, cost, turnover = self.close_bar(reference)
        if self.s.close_at_end and self.t == self.end:
            self.sides = self.no_orders(self.s)
            self.stops = {}
        result.pnl += gained
        result.cost += cost
        result.turnover += turnover

    def resting(self) -> list[list[float]]:
        """What is seen of each side's orders: what is left, as a share of equity; price over close,
        less 1; the share of its time that is over. Then price over close, less 1, of stops."""
        rows = []
        for side in self.sides:
            seen = [[0.0] * self.N for _ in range(3)]
            for n, order in side.items():
                seen[0][n] = order.shares * self.mark(n, self.t) / self.equity()
                seen[1][n] = self.distance(n, order.price)
                if order.at_any_price:
                    seen[1][n] = math.copysign(1.0, order.shares)
                seen[2][n] = order.bars / (self.s.time_in_force or self.s.decision_interval)
            rows += seen
        if self.s.stop_offset_bps is not None:
            seen = [0.0] * self.N
            for n, stop in self.stops.items():
                seen[n] = 1.0 if stop.reached else self.distance(n, stop.price)
            rows.append(seen)
        return rows

    def distance(self, n: int, price: float) -> float:
        return min(1.0, max(-1.0, price / self.mark(n, self.t) - 1.0))
