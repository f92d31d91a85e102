"""The orders of a decision, carried to their end: sales first, purchases fitted to the cash,
nothing sent unwritten.

An order's life stands in the journal and nowhere else. It is written as `sent`, and is on the disk,
before it leaves; whoever is killed at any moment therefore finds in the journal every order that
may stand at the broker, and asks there by the order's id. An id is the same however often an order
is sent, and the broker takes each id once: what nobody can say of is asked, and sent again only
where the broker says that it never had it.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fintrader.deploy.broker import Broker, Order, OrderReport
from fintrader.deploy.journal import Journal
from fintrader.errors import BrokerError, BrokerUnsureError, DeployError, OrderTakenError

SECOND = 1_000_000_000
_GROUP = 10
"""Orders that are written as sent together: few syncs for a hundred orders, few to ask after for
one that is killed."""
_CANCEL_AGAIN = 5 * SECOND
_QUIET = 5
"""Answers without news after which the broker is asked more seldom: requests are counted."""
_LOOK_BACK = 60 * SECOND
"""The broker's clock may be behind ours by so much."""


def order_prefix(bundle8: str) -> str:
    """How the ids of all orders of a bundle begin."""
    return f"ft-{bundle8}-"


def order_id(bundle8: str, decision_ns: int, symbol: str) -> str:
    """`ft-<bundle8>-<decision UTC>-<symbol>`, such as ft-0a1b2c3d-20160315T143000Z-AAPL: one a
    symbol and decision.

    Alpaca takes up to 128 characters.
    """
    return f"{order_prefix(bundle8)}{_format_stamp(decision_ns)}-{symbol}"


def format_decision_stamp(bundle8: str, name: str) -> str:
    """The decision's time in an order's id, by which the journal keeps what belongs to all orders
    of a decision."""
    return name.removeprefix(order_prefix(bundle8)).split("-", 1)[0]


def _format_stamp(decision_ns: int) -> str:
    return dt.datetime.fromtimestamp(decision_ns // SECOND, tz=dt.UTC).strftime("%Y%m%dT%H%M%SZ")


@dataclass
class _Slot:
    """An order and the terms of its decision."""

    stamp: str
    decision: int
    price: float
    begun: int
    not_before: int
    until: int
    report: OrderReport
    sent: int = 0
    cancelled: int = -_CANCEL_AGAIN
    absent: bool = False
    """Whether the broker has just said that it never had it."""

    @property
    def is_sale(self) -> bool:
        return self.report.shares < 0

    @property
    def is_asked(self) -> bool:
        """Whether only the broker knows what became of it."""
        return self.report.state != "intended" and not self.report.is_over


class Execution:
    """Carries orders to their end; a runner's loop calls `begin` at a decision and `step` until it
    is True.

    Settings: `bundle` (its first 8 characters), `cushion` (share of the cash that purchases leave
    alone, for prices that move until they fill), `fee_rate` (fees as a share of the notional),
    `fractional` (shares of six decimals instead of whole ones), `sales_wait_s` (purchases wait so
    long for sales), `settle_s` (an order that the broker does not have is given up so long after it
    was sent, and not before), `poll_s` (the broker is asked no oftener, and a quarter as often
    while nothing happens), `interrupted` (asked before each group of orders: while it says True
    nothing is sent).
    """

    def __init__(
        self,
        broker: Broker,
        journal: Journal,
        *,
        bundle: str,
        cushion: float = 0.01,
        fee_rate: float = 0.0,
        fractional: bool = False,
        sales_wait_s: float = 20.0,
        settle_s: float = 15.0,
        poll_s: float = 1.0,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.bundle = bundle
        self.trouble = ""
        """Why the broker could not be asked or sent to in the last step; empty when it could."""
        self._broker = broker
        self._journal = journal
        self._cushion = cushion
        self._fee_rate = fee_rate
        self._fractional = fractional
        self._sales_wait, self._settle, self._poll = (
            round(s * SECOND) for s in (sales_wait_s, settle_s, poll_s)
        )
        self._interrupted = interrupted
        self._slots: dict[str, _Slot] = {}
        self._fitted: set[str] = set()
        self._ask_at = 0
        self._quiet = 0

    @classmethod
    def resume(cls, broker: Broker, journal: Journal, *, at: int, **settings: Any) -> Execution:
        """Go on with every order of the bundle that the journal does not call over, whichever
        decision's it was.

        Orders without a decision in the journal (adopted ones) are brought to an end at once.
        """
        execution = cls(broker, journal, **settings)
        for name, report in journal.orders().items():
            if not report.is_over and name.startswith(order_prefix(execution.bundle)):
                execution._take_on(report, at)
        return execution

    @property
    def is_over(self) -> bool:
        """Whether nothing more can happen to any order."""
        return all(slot.report.is_over for slot in self._slots.values())

    @property
    def reports(self) -> Mapping[str, OrderReport]:
        """What is known of the last decision's orders, and of earlier ones that were not over when
        it began, by id."""
        return {name: slot.report for name, slot in self._slots.items()}

    def begin(
        self,
        *,
        decision: int,
        orders: Mapping[str, float],
        prices: Mapping[str, float],
        at: int,
        not_before: int,
        until: int,
    ) -> None:
        """Take on a decision's orders (symbol -> shares, negative to sell); nothing is sent before
        `step`.

        `prices` are the last ones, USD; `not_before` and `until` (close of the bar they fill in)
        bound the time in which orders are sent and stand. A decision that the journal has already
        is not begun twice. Orders of earlier decisions that are not over are brought to their end
        beside it. Raises DeployError for a purchase that has no price.
        """
        stamp = _format_stamp(decision)
        if self._journal.last("execution", stamp) is not None:
            return
        wanted = {symbol: float(shares) for symbol, shares in sorted(orders.items()) if shares}
        for symbol, shares in wanted.items():
            if not math.isfinite(shares) or (shares > 0.0 and not prices.get(symbol, 0.0) > 0.0):
                raise DeployError(
                    f"{symbol} has no price or no size, so it cannot be bought; leave it out"
                )
        self._slots = {name: slot for name, slot in self._slots.items() if not slot.report.is_over}
        if not wanted:
            return
        used = {symbol: float(prices.get(symbol, 0.0)) for symbol in wanted}
        with self._journal.together():
            self._journal.write(
                "execution",
                stamp,
                at=at,
                decision=decision,
                not_before=not_before,
                until=until,
                prices=used,
            )
            for symbol, shares in wanted.items():
                report = OrderReport(
                    order_id(self.bundle, decision, symbol), symbol, "intended", shares
                )
                slot = _Slot(stamp, decision, used[symbol], at, not_before, until, report)
                self._journal.write_order(report, at=at)
                self._slots[report.id] = slot

    def step(self, now: int) -> bool:
        """Ask, send, cancel what is due now (nanoseconds); True once everything is over.

        A broker that cannot be reached makes no error here (see `trouble`); it is asked again in
        the next step. Raises BrokerError when it refuses the account altogether, DeployError when
        the journal cannot be written.
        """
        self.trouble = ""
        self._expire(now)
        try:
            self._ask(now)
            self._expire(now)
            self._cancel(now)
            due = [
                slot
                for slot in self._slots.values()
                if slot.not_before <= now < slot.until
                and (slot.report.state == "intended" or slot.absent)
            ]
            if self._broker.takes_baskets:
                self._send(sorted(due, key=lambda slot: not slot.is_sale), now)
            else:
                self._send([slot for slot in due if slot.is_sale], now)
                self._send(self._select_purchases(due, now), now)
        except BrokerUnsureError as error:
            self.trouble = str(error)
        return self.is_over

    def stop(self, at: int, reason: str) -> None:
        """Send nothing more: what has not left expires now, the rest is cancelled by the steps that
        follow."""
        for slot in self._slots.values():
            slot.until = min(slot.until, at)
        unsent = [slot for slot in self._slots.values() if slot.report.state == "intended"]
        self._note_all(
            [(slot, replace(slot.report, state="expired", reason=reason)) for slot in unsent], at
        )

    def _take_on(self, report: OrderReport, at: int) -> None:
        """An order from the journal, with the terms of its decision as they stand there."""
        stamp = format_decision_stamp(self.bundle, report.id)
        entry = self._journal.last("execution", stamp)
        terms: Mapping[str, Any] = entry.body if entry else {}
        price = terms.get("prices", {}).get(report.symbol, 0.0)
        decision, not_before, until = (
            terms.get(name, 0) for name in ("decision", "not_before", "until")
        )
        begun = entry.time if entry else 0
        sent = 0 if report.state == "intended" else at
        slot = _Slot(stamp, decision, price, begun, not_before, until, report, sent=sent)
        self._slots[report.id] = slot
        if self._journal.last("purchases", stamp) is not None:
            self._fitted.add(stamp)

    def _ask(self, now: int) -> None:
        """What became of the orders that left: one request for all that stand, one by id for each
        that is not there."""
        for slot in self._slots.values():
            slot.absent = False
        asked = [slot for slot in self._slots.values() if slot.is_asked]
        if not asked or now < self._ask_at:
            return
        self._ask_at = now + self._poll
        known = [slot.report for slot in asked]
        told: dict[str, OrderReport] = {}
        if len(asked) > 1:
            since = min(max(slot.begun, slot.not_before) for slot in asked) - _LOOK_BACK
            told = {report.id: report for report in self._broker.orders(max(0, since))}
        for slot in asked:
            report = told.get(slot.report.id) or self._broker.order(slot.report.id)
            if report is not None:
                if abs(report.filled) >= abs(
                    slot.report.filled
                ):  # an older answer than one that is known says nothing
                    self._note(slot, report, now)
            elif slot.report.state in ("sent", "unknown"):
                slot.absent = True
            else:
                self.trouble = (
                    f"the broker took the order {slot.report.id} and has none of this id now"
                )
        moved = any(slot.absent for slot in asked) or known != [slot.report for slot in asked]
        self._quiet = 0 if moved else self._quiet + 1
        if self._quiet >= _QUIET:
            self._ask_at = now + 4 * self._poll

    def _expire(self, now: int) -> None:
        """Write off what has had its time and is at no broker; it needs none that answers."""
        late = [slot for slot in self._slots.values() if now >= slot.until]
        unsent = [(slot, "not sent in time") for slot in late if slot.report.state == "intended"]
        lost = [
            (slot, "the broker never had it")
            for slot in late
            if slot.absent and now - slot.sent >= self._settle
        ]
        self._note_all(
            [
                (slot, replace(slot.report, state="expired", reason=why))
                for slot, why in unsent + lost
            ],
            now,
        )

    def _cancel(self, now: int) -> None:
        for slot in self._slots.values():
            is_open = slot.report.state in ("accepted", "partial")
            if is_open and now >= slot.until and now - slot.cancelled >= _CANCEL_AGAIN:
                slot.cancelled = now
                self._ask_at = now + self._poll
                self._quiet = 0
                self._journal.write("cancel", slot.report.id, at=now)
                self._broker.cancel(slot.report)

    def _select_purchases(self, due: Sequence[_Slot], now: int) -> list[_Slot]:
        """Purchases that may leave now: those that are fitted, and those whose sales are over or
        were waited for."""
        ready: list[_Slot] = []
        for stamp in dict.fromkeys(slot.stamp for slot in due if not slot.is_sale):
            own = [slot for slot in self._slots.values() if slot.stamp == stamp]
            purchases = [
                slot for slot in own if not slot.is_sale and slot.report.state == "intended"
            ]
            waits = any(slot.is_sale and not slot.report.is_over for slot in own)
            if stamp not in self._fitted:
                if waits and now < max(own[0].begun, own[0].not_before) + self._sales_wait:
                    continue
                self._fit(stamp, purchases, now)
            ready += [
                slot
                for slot in due
                if slot.stamp == stamp and not slot.is_sale and not slot.report.is_over
            ]
        return ready

    def _fit(self, stamp: str, purchases: Sequence[_Slot], now: int) -> None:
        """Scale a decision's purchases by one factor, once, so that the cash suffices for all of
        them."""
        cash = self._broker.account().cash_usd - self._bound(stamp)
        room = max(0.0, cash) * (1.0 - self._cushion)
        cost = sum(slot.report.shares * slot.price for slot in purchases) * (1.0 + self._fee_rate)
        factor = min(1.0, room / cost)
        with self._journal.together():
            self._journal.write("purchases", stamp, at=now, factor=factor, cash_usd=cash)
            for slot in purchases:
                self._note(slot, self._scale_order(slot.report, factor), now)
        self._fitted.add(stamp)

    def _bound(self, stamp: str) -> float:
        """USD that purchases of other decisions may still take, those included that are fitted and
        about to leave."""
        leaving = [
            slot for slot in self._slots.values() if slot.is_asked or slot.stamp in self._fitted
        ]
        others = [
            slot
            for slot in leaving
            if slot.stamp != stamp and not slot.is_sale and not slot.report.is_over
        ]
        open_usd = sum((slot.report.shares - slot.report.filled) * slot.price for slot in others)
        return open_usd * (1.0 + self._fee_rate)

    def _scale_order(self, report: OrderReport, factor: float) -> OrderReport:
        if factor == 1.0:
            return report
        grain = 1e6 if self._fractional else 1.0
        shares = math.floor(report.shares * factor * grain) / grain
        if shares <= 0.0:
            return replace(report, state="expired", reason="no cash is left for it")
        return replace(
            report,
            shares=shares,
            reason=f"{factor:.4f} of {report.shares:g}: the cash suffices for no more",
        )

    def _send(self, slots: Sequence[_Slot], now: int) -> None:
        for first in range(0, len(slots), _GROUP):
            if self._interrupted():
                return
            self._send_group(slots[first : first + _GROUP], now)

    def _send_group(self, group: Sequence[_Slot], now: int) -> None:
        """Write all as sent, then send one after the other; where nobody answers, the rest waits to
        be asked after."""
        new = {slot.report.id for slot in group if not slot.sent}
        with self._journal.together():
            for slot in group:
                slot.sent = now
                slot.absent = False
                self._note(slot, replace(slot.report, state="sent"), now)
        self._ask_at = now + self._poll
        self._quiet = 0
        answers: list[tuple[_Slot, OrderReport]] = []
        try:
            for slot in group:
                report = slot.report
                try:
                    order = Order(report.id, report.symbol, report.shares, slot.decision)
                    answers.append((slot, self._broker.submit(order)))
                except OrderTakenError as error:
                    if report.id in new:
                        text = f"{error}: another deployment of this bundle trades this account"
                        answers.append((slot, replace(report, state="rejected", reason=text)))
                        raise BrokerError(f"{text}; stop it") from None
                    self._ask_at = now  # it arrived late, and is asked for next
                except BrokerUnsureError as error:
                    answers.append((slot, replace(report, state="unknown", reason=str(error))))
                    raise
                except BrokerError as error:
                    answers.append((slot, replace(report, state="rejected", reason=str(error))))
                    raise
        finally:
            self._note_all(answers, now)

    def _note_all(self, news: Sequence[tuple[_Slot, OrderReport]], now: int) -> None:
        if news:
            with self._journal.together():
                for slot, report in news:
                    self._note(slot, report, now)

    def _note(self, slot: _Slot, report: OrderReport, now: int) -> None:
        if report != slot.report:
            self._journal.write_order(report, at=now)
            slot.report = report
