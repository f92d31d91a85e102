"""Orders that rest at a venue: bids, asks and stops, from one decision to the next.

A decision replaces all bids and asks of earlier ones. A new order leaves once the broker has
confirmed the end of the orders that it replaces. It is smaller by the shares that were filled since
the decision, also by those that were filled during the cancellation. So no share is bought or sold
twice.

A decision gives a stop's price (`OrderTerms.stops`) and no order. Every held share that no ask
offers gets a stop, good till cancelled. Brokers refuse two sales of the same share, so the stop is
for the shares that no ask offers. Linked orders (OCO) are not used: Alpaca chooses the id of the
second order, so that a restart would not find it, and ccxt has none for spot accounts.

Some venues take no bid while a stop rests in its symbol (`Broker.takes_bids_over_stops`). There a
bid is dropped where a stop protects shares, and after its first fill the rest of a bid is
cancelled. A stop counts as reached once it has a fill, or if the venue refuses it because it would
trigger at once. Then the symbol's bids and asks end, and all its shares are sold at the market.

The process may die between any two calls. States at that moment, and the restart's next step:

1. A decision is journalled, and nothing was sent: cancel the earlier orders, then send the
   decision's, if their time is not over.
2. A cancellation was not sent, or its answer is missing: send it until the venue reports the end of
   the order.
3. The old orders are over, and the new ones were not sent: send them, sized by the fills since the
   decision.
4. A new order is `sent`, and the venue may have it or not: ask for it by its id. A stop that the
   venue does not have is made anew.
5. A stop was cancelled, and its successor was not sent: send it. Until then the shares lack a stop.
6. A bid was filled meanwhile: send its stop. Until then the shares lack a stop.
7. A stop was reached meanwhile: journal its fills and the price 0 (reached), and sell the rest.
8. The fills of a stop are journalled, and the price 0 is not: the rest gets a stop at the same
   price. If the venue refuses it, the price is still reached, and the rest is sold.
9. The price 0 is journalled, and the rest was not sold: sell it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fintrader.backtesting.account import BacktestAccount
from fintrader.bars.bars import Array
from fintrader.deploy.broker import Order, OrderReport
from fintrader.deploy.entries import OrderTerms
from fintrader.deploy.orders import SECOND, STOP, Execution, OrderSlot, order_id
from fintrader.deploy.reconcile import SAME_SHARES, expect_holdings, sum_fills
from fintrader.deploy.resting_orders import lay_out_orders

_PAUSE = 20 * SECOND
"""Least time between two stops of a symbol. The first stop of a decision has the decision's time in
its id, a later stop its own time."""
_NEVER = 1 << 62
_WOULD_TRIGGER = re.compile("would trigger immediately|stop price must not be")
"""Words by which Binance and Alpaca refuse a stop whose price is reached, or nearly reached."""


class VenueExecution(Execution):
    """Carries out orders that rest at a venue."""

    replaces = True

    @property
    def _newest(self) -> OrderTerms:
        """Terms of the newest decision."""
        entry = self._journal.last(OrderTerms)
        return entry.body if entry else OrderTerms("", 0, 0, 0, {})

    @property
    def stops(self) -> Mapping[str, float]:
        """Symbol -> price of its stop, USD, 0 once it was reached."""
        return self._newest.stops

    @property
    def is_over(self) -> bool:
        return super().is_over and not self.stops

    def lay_out(self, account: BacktestAccount) -> Array:
        """Lay out the resting orders as the ledger's rows `[R, N]`, for a decision's account."""
        column = {symbol: number for number, symbol in enumerate(account.market.symbols)}
        orders = [
            Order(name, report.symbol, report.shares - report.filled, 0, report.limit_usd)
            for name, report in self.reports.items()
            if report.rests and report.stop_usd is None
        ]
        for symbol, price in self.stops.items():
            held = float(account.held[column[symbol]])
            # Dust that no order sells must not hold the symbol's orders up.
            if price or self._broker.size_sale(symbol, held, self._newest.prices[symbol]):
                orders.append(Order(STOP, symbol, -held, 0, stop_usd=price))
        env = account.settings
        return lay_out_orders(orders, column, env, age=env.decision_interval)

    def is_at_rest(self, now: int) -> bool:
        return super().is_at_rest(now) and not any(self._size_free(one, now) for one in self.stops)

    def is_due(self, now: int) -> bool:
        """Check for orders that may be sent now; always true with stops, since a fill may need
        another stop."""
        return super().is_due(now) or bool(self.stops)

    def rescale(self, symbol: str, split: float, *, before: int, reason: str, at: int) -> None:
        """Scale the price of the symbol's stop, and end its orders, which the venue may have
        changed."""
        stops = {**self.stops}
        super().rescale(symbol, split, before=before, reason=reason, at=at)
        if symbol in stops and self._newest.decision <= before:
            stops[symbol] /= split
        self._write_stops(stops, at)
        self._end(self._list_open(symbol), at)

    def stop(self, at: int, reason: str, *, keeps_stops: bool = False) -> None:
        super().stop(at, reason, keeps_stops=keeps_stops)
        if not keeps_stops:
            self._write_stops({}, at)

    def _take_on(self, report: OrderReport, at: int) -> None:
        super()._take_on(report, at)
        if report.stop_usd is not None:
            self._slots[report.id].until = _NEVER

    def _expire(self, now: int) -> None:
        """End the orders that the newest decision replaces, and the bids and asks of a symbol whose
        stop was reached. A stop stays while its price is unchanged."""
        for slot in self._slots.values():
            report = slot.report
            stop = self.stops.get(report.symbol)
            is_ended = report.rests and (slot.stamp != self._newest.stamp or stop == 0.0)
            if report.stop_usd is not None:
                is_ended = stop not in (report.stop_usd, 0.0)
                if stop and (report.filled or _WOULD_TRIGGER.search(report.reason)):
                    self._write_stops({**self.stops, report.symbol: 0.0}, now)
            if is_ended:
                self._end([slot], now)
        super()._expire(now)

    def _write_stops(self, stops: Mapping[str, float], at: int) -> None:
        if stops != self.stops:
            self._journal.write(replace(self._newest, stops=stops), at=at)

    def _end(self, slots: Sequence[OrderSlot], at: int) -> None:
        for slot in slots:
            slot.until = min(slot.until, at)

    def _list_open(self, symbol: str) -> list[OrderSlot]:
        """List a symbol's orders that are not over."""
        return [
            one
            for one in self._slots.values()
            if one.report.symbol == symbol and not one.report.is_over
        ]

    # --- orders that leave ------------------------------------------------------------------------

    def _list_due(self, now: int) -> list[OrderSlot]:
        due = [slot for slot in super()._list_due(now) if not self._waits(slot, now)]
        return due + self._make_stops(now)

    def _waits(self, slot: OrderSlot, now: int) -> bool:
        """Check that an order has to wait for orders that are being ended: those of its symbol and,
        for a bid, all bids. An ask that lacks shares ends the symbol's stops."""
        report = slot.report
        if report.limit_usd is None or slot.sent:
            return False
        if slot.is_sale and self._count_free(report.symbol, now, slot) < -report.shares:
            for other in self._list_open(report.symbol):
                if other.report.stop_usd is not None:
                    self._end([other], now)
        return any(
            one.report.symbol == report.symbol or not (one.is_sale or slot.is_sale)
            for one in self._slots.values()
            if one.is_asked and now >= one.until
        )

    def _count_free(self, symbol: str, now: int, but: OrderSlot | None = None) -> float:
        """Count the held shares that no open sale (except `but`) offers. An ask that waits for the
        exchange's open offers none yet."""
        sales = [
            one.report
            for one in self._list_open(symbol)
            if one.is_sale and one is not but and (one.is_asked or one.terms.not_before <= now)
        ]
        held = expect_holdings(self._journal).shares.get(symbol, 0.0)
        return held + sum(report.shares - report.filled for report in sales)

    def _size_free(self, symbol: str, now: int) -> float:
        """Size a sale of the held shares that no open sale offers, 0 if they are too few."""
        free = self._count_free(symbol, now)
        if free <= SAME_SHARES:
            return 0.0
        return self._broker.size_sale(symbol, free, self._newest.prices[symbol])

    def _make_stops(self, now: int) -> list[OrderSlot]:
        """Make stops for shares that have none, or market sales where a stop was reached. Bids next
        to which the venue takes no stop end first."""
        made = []
        for symbol, price in self.stops.items():
            if self._count_free(symbol, now) <= SAME_SHARES:
                continue
            size = self._size_free(symbol, now)
            bids = [one for one in self._list_open(symbol) if one.is_asked and not one.is_sale]
            name = order_id(self.sender, self._newest.decision, symbol) + STOP
            if self._journal.last(OrderReport, name):
                name = order_id(self.sender, now // _PAUSE * _PAUSE, symbol) + STOP
            if bids and not self._broker.takes_bids_over_stops:
                self._end(bids, now)
            elif size and not self._journal.last(OrderReport, name):
                report = Order(name, symbol, -size, now, stop_usd=price).report("intended")
                made.append(OrderSlot(self._newest, now, _NEVER, report))
        return made

    def _send_group(self, group: Sequence[OrderSlot], now: int) -> None:
        self._note([(slot, self._size_order(slot)) for slot in group], now)
        # A stop that is not sent is dropped: the next look makes one of the size needed then.
        self._slots |= {slot.report.id: slot for slot in group}
        super()._send_group([slot for slot in group if not slot.report.is_over], now)

    def _size_order(self, slot: OrderSlot) -> OrderReport:
        """Reduce an order, before it is sent, by the fills since its decision."""
        report = slot.report
        if slot.sent or report.limit_usd is None:
            return report
        symbol = report.symbol
        decided = self._journal.entries(OrderTerms, key=slot.stamp)[0].seq
        filled = {symbol: 0.0}
        sum_fills(self._journal, decided, filled)
        if slot.is_sale:
            left = max(report.shares - min(filled[symbol], 0.0), -self._count_free(symbol, 0, slot))
        else:
            left = report.shares - max(filled[symbol], 0.0)
            is_protected = symbol in self.stops and symbol in expect_holdings(self._journal).shares
            if is_protected and not self._broker.takes_bids_over_stops:
                left = 0.0
        if left * report.shares > 0.0:
            return replace(report, shares=left)
        reason = "fills since the decision, or a stop, leave no shares for it"
        return replace(report, state="expired", reason=reason)
