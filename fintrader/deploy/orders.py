"""The execution of a decision's orders: sales first, purchases fitted to the cash, every order
journalled before it is sent.

Only the journal holds the state of an order. Before an order is sent, the journal on the disk says
`sent`. So whenever the process is killed, the journal names every order that the broker may have,
and the broker is asked for it by its id.

An order of unknown fate that the broker says it never had may still arrive. If the broker takes
each id only once (`Broker.takes_ids_once`, as Alpaca), the order is sent again with the same id.
Other brokers, such as exchanges through ccxt, accept a finished order's id again: there the order
is never sent again, and is written off once the broker still does not have it after 15 seconds.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fintrader.deploy.broker import Broker, Order, OrderReport
from fintrader.deploy.entries import Cancellation, DeploymentStart, OrderTerms, PurchaseFit
from fintrader.deploy.journal import Journal
from fintrader.errors import BrokerError, BrokerUnsureError, DeployError, OrderTakenError

SECOND = 1_000_000_000
_GROUP = 10
"""Orders written as sent together: few syncs for a hundred orders, few questions after a kill."""
_CANCEL_AGAIN = 5 * SECOND
_SETTLE = 15 * SECOND
"""Time after which an order that the broker does not have is given up."""
_QUIET = 5
"""Answers without news after which the broker, which limits requests, is asked less often."""
_DAY = 86_400 * SECOND
_LOOK_BACK = 60 * SECOND
"""Largest lag of the broker's clock behind ours."""
ASK = "-ask"
STOP = "-stop"
"""Suffixes of the ids of a symbol's second order and of its stops."""
_ID = re.compile(r"ft-([0-9a-f]+(?:-[0-9a-f]+)?)-(\d{8}T\d{6}Z)-")


def order_id(sender: str, decision_ns: int, symbol: str) -> str:
    """Return `ft-<sender>-<decision UTC>-<symbol>`, such as
    ft-0a1b2c3d-5e6f7a8b-20160315T143000Z-AAPL: one for each symbol and decision.

    sender: see `read_sender`. Alpaca takes up to 128 characters.
    """
    return f"ft-{sender}-{_format_stamp(decision_ns)}-{symbol}"


def read_sender(journal: Journal, bundle8: str) -> str:
    """Read a deployment's name in its orders' ids: the bundle's id if the account is private."""
    started = journal.last(DeploymentStart)
    return (started.body.sender if started else "") or bundle8


def find_sender(name: str) -> str:
    """Read the deployment's name in an order's id; empty for an id that no deployment made."""
    match = _ID.match(name)
    return match[1] if match else ""


def format_decision_stamp(name: str) -> str:
    """Return the decision's time in an order's id, the journal's key for the terms of a
    decision; empty for an id that no deployment made."""
    match = _ID.match(name)
    return match[2] if match else ""


@functools.lru_cache(maxsize=1)  # that of a decision's orders
def _format_stamp(decision_ns: int) -> str:
    return dt.datetime.fromtimestamp(decision_ns // SECOND, tz=dt.UTC).strftime("%Y%m%dT%H%M%SZ")


@dataclass
class OrderSlot:
    """An order and the terms of its decision."""

    terms: OrderTerms
    begun: int
    until: int
    """`terms.until`, or the end of sending."""
    report: OrderReport
    sent: int = 0
    cancelled: int = -_CANCEL_AGAIN
    absent: bool = False
    """True where the broker has just said that it never had the order."""

    @property
    def stamp(self) -> str:
        return self.terms.stamp

    @property
    def cost_usd(self) -> float:
        """Worth of the shares not filled yet, at their limit or the decision's price."""
        price = self.report.limit_usd or self.terms.prices.get(self.report.symbol, 0.0)
        return (self.report.shares - self.report.filled) * price

    @property
    def is_sale(self) -> bool:
        return self.report.shares < 0

    @property
    def is_asked(self) -> bool:
        """True if the broker has to be asked about its fate."""
        return self.report.state != "intended" and not self.report.is_over


@dataclass(frozen=True)
class OrderRules:
    """Constants of an execution."""

    sender: str
    """The deployment's name in its orders' ids (`read_sender`)."""
    fee_rate: float = 0.0
    """Fees as a share of the notional."""
    fractional: bool = False
    """True: shares have six decimals; False: whole shares."""
    cushion: float = 0.01
    """Share of the cash that purchases leave unused, since prices move until they fill."""
    sales_wait_s: float = 20.0
    """Longest wait of purchases for sales."""
    poll_s: float = 1.0
    """Time between two questions to the broker; four times that while nothing happens."""


class Execution:
    """Carries orders to their end; a runner's loop calls `begin` at a decision, and `step` until
    that returns True."""

    replaces = False
    """True where each decision replaces all resting orders, even if it gives none, and where its
    stops are terms (`OrderTerms.stops`) and no orders."""

    def __init__(self, broker: Broker, journal: Journal, rules: OrderRules) -> None:
        self.rules = rules
        self.sender = rules.sender
        self.trouble = ""
        """Reason for which the broker gave no answer in the last step; empty when it did."""
        self.stranger = ""
        """Another deployment's order that was seen next to its own; empty without any."""
        self._broker = broker
        self._journal = journal
        self._poll = round(rules.poll_s * SECOND)
        self._slots: dict[str, OrderSlot] = {}
        self._fitted: set[str] = set()
        self._ask_at = 0
        self._quiet = 0

    @classmethod
    def resume(cls, broker: Broker, journal: Journal, rules: OrderRules, *, at: int) -> Execution:
        """Go on with the orders of all decisions of a deployment that are not over by the journal.

        Orders without a decision in the journal, which were adopted from another deployment, are
        cancelled at once. Orders that a person placed at the broker are left alone.
        """
        execution = cls(broker, journal, rules)
        execution.take_on_open(at)
        return execution

    def take_on_open(self, at: int) -> None:
        """Track the journal's open orders of deployments that are not tracked yet, such as adopted
        ones."""
        for name, report in self._journal.orders().items():
            if not report.is_over and find_sender(name) and name not in self._slots:
                self._take_on(report, at)

    @property
    def is_over(self) -> bool:
        """True once all orders are in a final state."""
        return all(slot.report.is_over for slot in self._slots.values())

    @property
    def reports(self) -> Mapping[str, OrderReport]:
        """Id -> report of the last decision's orders and of earlier ones that were open when it
        began."""
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
        resting: Sequence[Order] = (),
    ) -> None:
        """Take on a decision's market orders (symbol -> shares, negative to sell) and those that
        rest; nothing is sent before `step`.

        `prices` are the last prices, USD; orders are sent and open only between `not_before` and
        `until` (close of the bar they fill in), ns. A decision that the journal has already is not
        begun twice. Open orders of earlier decisions are brought to their end meanwhile.
        Raises DeployError for a purchase that has no price.
        """
        stamp = _format_stamp(decision)
        if self._journal.last(OrderTerms, stamp) is not None:
            return
        wanted = {symbol: float(shares) for symbol, shares in sorted(orders.items()) if shares}
        for symbol, shares in wanted.items():
            if not math.isfinite(shares) or (shares > 0.0 and not prices.get(symbol, 0.0) > 0.0):
                raise DeployError(
                    f"{symbol} has no price or no size, so it cannot be bought; leave it out"
                )
        self._slots = {name: slot for name, slot in self._slots.items() if not slot.report.is_over}
        if not (wanted or resting or self.replaces):
            return
        symbols = dict.fromkeys([*wanted, *(order.symbol for order in resting)])
        used = {symbol: float(prices.get(symbol, 0.0)) for symbol in symbols}
        stops = {one.symbol: one.stop_usd for one in resting if one.stop_usd is not None}
        terms = OrderTerms(stamp, decision, not_before, until, used, stops)
        market = (
            Order(order_id(self.sender, decision, symbol), symbol, shares, decision)
            for symbol, shares in wanted.items()
        )
        sent = [one for one in resting if one.stop_usd is None or not self.replaces]
        reports = [order.report("intended") for order in (*market, *sent)]
        self._journal.write(terms, *reports, at=at)
        self._slots |= {report.id: OrderSlot(terms, at, until, report) for report in reports}

    def is_at_rest(self, now: int) -> bool:
        """Check at `now` (ns) that no order is open or to be sent, except for stops at the venue
        that were not reached."""
        reports = [slot.report for slot in self._slots.values()]
        return all(one.is_over or one.is_standing_stop for one in reports)

    def is_due(self, now: int) -> bool:
        """Check for an unsent order that may be sent now."""
        return any(
            slot.report.state == "intended" and slot.terms.not_before <= now < slot.until
            for slot in self._slots.values()
        )

    def rescale(self, symbol: str, split: float, *, before: int, reason: str, at: int) -> None:
        """Convert unsent orders that were decided `before` a split to shares after it. An order of
        less than a share expires."""
        for slot in self._slots.values():
            report = slot.report
            is_old = report.state == "intended" and slot.terms.decision <= before
            if report.symbol != symbol or not is_old:
                continue
            prices = slot.terms.prices
            terms = replace(slot.terms, prices={**prices, symbol: prices[symbol] / split})
            for other in self._slots.values():
                if other.stamp == slot.stamp:
                    other.terms = terms
            grain = 1e6 if self.rules.fractional else 1.0
            # 100 shares times 1.15 are 114.99999999999999.
            shares = math.trunc(round(report.shares * split * grain, 6)) / grain
            text = f"{report.shares:g} before {reason}"
            state = report.state if shares else "expired"
            size = shares or report.shares
            scaled = replace(report, shares=size, state=state, reason=text)
            self._note([(slot, scaled)], at, terms)

    def step(self, now: int, *, sends: bool = True) -> bool:
        """Ask about orders, send (if `sends`) and cancel those due `now` (ns); True once all are
        over.

        A broker that cannot be reached raises no error here (see `trouble`); it is asked again in
        the next step. Raises BrokerError when it refuses the account altogether, DeployError when
        the journal cannot be written.
        """
        self.trouble = ""
        self._expire(now)
        try:
            self._ask(now)
            self._expire(now)
            self._cancel(now)
            due = self._list_due(now) if sends else []
            if self._broker.takes_baskets:
                self._send(sorted(due, key=lambda slot: not slot.is_sale), now)
            else:
                self._send([slot for slot in due if slot.is_sale], now)
                self._send(self._select_purchases(due, now), now)
        except BrokerUnsureError as error:
            self.trouble = str(error)
        return self.is_over

    def stop(self, at: int, reason: str, *, keeps_stops: bool = False) -> None:
        """Send nothing more: unsent orders expire now, and the next steps cancel the others, except
        the stops if `keeps_stops`."""
        ending = [
            slot for slot in self._slots.values() if slot.report.stop_usd is None or not keeps_stops
        ]
        for slot in ending:
            slot.until = min(slot.until, at)
        self._write_off((slot for slot in ending if slot.report.state == "intended"), reason, at)

    def _list_due(self, now: int) -> list[OrderSlot]:
        """List the orders that may be sent now."""
        return [
            slot
            for slot in self._slots.values()
            if slot.terms.not_before <= now < slot.until
            and (slot.report.state == "intended" or (slot.absent and self._broker.takes_ids_once))
        ]

    def _take_on(self, report: OrderReport, at: int) -> None:
        """Take on an order from the journal, with the journalled terms of its decision."""
        stamp = format_decision_stamp(report.id)
        # An adopted order may be of a decision at the same time as one of ours.
        is_ours = find_sender(report.id) == self.sender
        entry = self._journal.last(OrderTerms, stamp) if is_ours else None
        terms = OrderTerms(stamp, 0, 0, 0, {}) if entry is None else entry.body
        begun = entry.time if entry else 0
        sent = 0 if report.state == "intended" else at
        self._slots[report.id] = OrderSlot(terms, begun, terms.until, report, sent=sent)
        if self._journal.last(PurchaseFit, stamp) is not None:
            self._fitted.add(stamp)

    def _ask(self, now: int) -> None:
        """Ask the broker about the orders that were sent: one request for all, then one by id for
        each order missing from the answer."""
        for slot in self._slots.values():
            slot.absent = False
        asked = [slot for slot in self._slots.values() if slot.is_asked]
        if not asked or now < self._ask_at:
            return
        self._ask_at = now + self._poll
        known = [slot.report for slot in asked]
        listed: dict[str, OrderReport] = {}
        if len(asked) > 1:
            since = min(max(slot.begun, slot.terms.not_before) for slot in asked) - _LOOK_BACK
            since = max(since, now - _DAY)  # older orders are asked for by their ids
            listed = {report.id: report for report in self._broker.orders(max(0, since))}
            self.stranger = next(filter(self._is_strange, listed), self.stranger)
        # Answers to one request are noted together, all others before the next question: a process
        # that is killed again and again still gets on.
        answered = [slot for slot in asked if slot.report.id in listed]
        self._note_all([(slot, listed[slot.report.id]) for slot in answered], now)
        for slot in asked:
            if slot.report.id in listed:
                continue
            report = self._broker.order(slot.report.id)
            if report is not None:
                self._note_all([(slot, report)], now)
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

    def _is_strange(self, name: str) -> bool:
        """Check for an order of a deployment that is not in the journal."""
        is_known = name in self._slots or self._journal.last(OrderReport, name) is not None
        return bool(find_sender(name)) and not is_known

    def _expire(self, now: int) -> None:
        """Write off, without asking the broker, unsent orders whose time is over, and sent orders
        that it does not have."""
        late = [slot for slot in self._slots.values() if now >= slot.until]
        doubtful = late if self._broker.takes_ids_once else self._slots.values()
        lost = [slot for slot in doubtful if slot.absent and now - slot.sent >= _SETTLE]
        unsent = [slot for slot in late if slot.report.state == "intended"]
        self._write_off(unsent, "not sent in time", now)
        self._write_off(lost, "the broker never had it", now)

    def _write_off(self, slots: Iterable[OrderSlot], reason: str, now: int) -> None:
        self._note_all(
            [(slot, replace(slot.report, state="expired", reason=reason)) for slot in slots], now
        )

    def _cancel(self, now: int) -> None:
        for slot in self._slots.values():
            is_open = slot.report.state in ("accepted", "partial")
            if is_open and now >= slot.until and now - slot.cancelled >= _CANCEL_AGAIN:
                slot.cancelled = now
                self._ask_at = now + self._poll
                self._quiet = 0
                self._journal.write(Cancellation(slot.report.id), at=now)
                self._broker.cancel(slot.report)

    def _select_purchases(self, due: Sequence[OrderSlot], now: int) -> list[OrderSlot]:
        """Select the purchases that may be sent now: fitted ones, and those whose sales are over or
        took too long."""
        waiting: set[str] = set()
        purchases = [slot for slot in due if not slot.is_sale]
        for stamp in dict.fromkeys(slot.stamp for slot in purchases):
            if stamp not in self._fitted:
                own = [slot for slot in self._slots.values() if slot.stamp == stamp]
                reports = [slot.report for slot in own if slot.is_sale]
                waits = any(not (report.is_over or report.rests) for report in reports)
                since = max(own[0].begun, own[0].terms.not_before)
                if waits and now < since + self.rules.sales_wait_s * SECOND:
                    waiting.add(stamp)
                else:
                    self._fit(stamp, own, now)
        return [slot for slot in purchases if slot.stamp not in waiting and not slot.report.is_over]

    def _fit(self, stamp: str, own: Sequence[OrderSlot], now: int) -> None:
        """Scale a decision's purchases by one factor, once, so that the cash suffices for all of
        them."""
        purchases = [slot for slot in own if not slot.is_sale and slot.report.state == "intended"]
        cash = self._broker.account().cash_usd - self._bound(stamp)
        room = max(0.0, cash) * (1.0 - self.rules.cushion)
        cost = sum(slot.cost_usd for slot in purchases) * (1.0 + self.rules.fee_rate)
        factor = min(1.0, room / cost)
        scaled = [(slot, self._scale_order(slot.report, factor)) for slot in purchases]
        self._note(scaled, now, PurchaseFit(stamp, factor, cash))
        self._fitted.add(stamp)

    def _bound(self, stamp: str) -> float:
        """Sum the USD that purchases of other decisions may still take, also those about to be
        sent."""
        others = (
            slot.cost_usd
            for slot in self._slots.values()
            if slot.stamp != stamp
            and not slot.is_sale
            and not slot.report.is_over
            and (slot.is_asked or slot.stamp in self._fitted)
        )
        return sum(others) * (1.0 + self.rules.fee_rate)

    def _scale_order(self, report: OrderReport, factor: float) -> OrderReport:
        if factor == 1.0:
            return report
        grain = 1e6 if self.rules.fractional else 1.0
        shares = math.floor(report.shares * factor * grain) / grain
        if shares <= 0.0:
            return replace(report, state="expired", reason="no cash is left for it")
        return replace(
            report,
            shares=shares,
            reason=f"{factor:.4f} of {report.shares:g}: the cash suffices for no more",
        )

    def _send(self, slots: Sequence[OrderSlot], now: int) -> None:
        # One by one where a second request could make a second order: no other waits as `sent`.
        most = _GROUP if self._broker.takes_ids_once else 1
        size = len(slots) or 1 if self._broker.takes_baskets else most
        for first in range(0, len(slots), size):
            self._send_group(slots[first : first + size], now)

    def _send_group(self, group: Sequence[OrderSlot], now: int) -> None:
        """Write all as sent, then send one after the other; after a missing answer the broker is
        asked about the rest."""
        new = {slot.report.id for slot in group if not slot.sent}
        for slot in group:
            slot.sent = now
            slot.absent = False
        self._note([(slot, replace(slot.report, state="sent")) for slot in group], now)
        self._ask_at = now + self._poll
        self._quiet = 0
        answers: list[tuple[OrderSlot, OrderReport]] = []
        try:
            for slot in group:
                report = slot.report
                try:
                    prices = (report.limit_usd, report.stop_usd)
                    order = Order(
                        report.id, report.symbol, report.shares, slot.terms.decision, *prices
                    )
                    answers.append((slot, self._broker.submit(order)))
                except OrderTakenError as error:
                    if report.id in new:
                        text = f"{error}: another deployment of this bundle trades this account"
                        answers.append((slot, replace(report, state="rejected", reason=text)))
                        raise BrokerError(f"{text}; stop it") from None
                    self._ask_at = now  # the earlier request arrived late; ask for the order next
                except BrokerUnsureError as error:
                    answers.append((slot, replace(report, state="unknown", reason=str(error))))
                    raise
                except BrokerError as error:
                    answers.append((slot, replace(report, state="rejected", reason=str(error))))
                    raise
        finally:
            self._note_all(answers, now)

    def _note_all(self, news: Sequence[tuple[OrderSlot, OrderReport]], now: int) -> None:
        """Note news in one transaction, without reports of fewer fills, which are outdated."""
        self._note(
            [
                (slot, new.keep_prices(slot.report))
                for slot, new in news
                if abs(new.filled) >= abs(slot.report.filled)
            ],
            now,
        )

    def _note(
        self, news: Sequence[tuple[OrderSlot, OrderReport]], now: int, *first: object
    ) -> None:
        """Write `first` and the reports that have changed in one transaction."""
        changed = [(slot, report) for slot, report in news if report != slot.report]
        records = [*first, *(report for _, report in changed)]
        if records:
            self._journal.write(*records, at=now)
        for slot, report in changed:
            slot.report = report
