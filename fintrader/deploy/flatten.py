"""The sale of everything that a deployment holds of its symbols at a broker.

A flatten is a state of the journal (`flatten` until `flat`). It ends once the broker confirms that
nothing is held of the bundle's symbols that an order could sell, and none of the deployment's
orders is open; no error of the broker ends it before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fintrader.deploy.broker import Broker, OrderReport
from fintrader.deploy.clock import SECOND_NS
from fintrader.deploy.entries import Flattening
from fintrader.deploy.journal import Journal
from fintrader.deploy.orders import Execution, find_sender
from fintrader.deploy.reconcile import SAME_SHARES, Expected, expect_holdings
from fintrader.deploy.supervisor import format_shares
from fintrader.errors import BrokerError, BrokerUnsureError

SELL_AGAIN = 60 * SECOND_NS
"""Time between two tries to sell if nothing was filled, ns: the length of a minute bar."""
_ASK_SOON = 5 * SECOND_NS
_COUNTED_LATE = 120 * SECOND_NS
"""Time after a fill in which the broker's positions may still lack it, ns."""
_DAY_NS = 86_400 * SECOND_NS
_UNBOOKED = "the broker has not booked its split yet"


@dataclass
class Flatten:
    """A flatten of one deployment: its state, the shares left, and the obstacles."""

    broker: Broker
    journal: Journal
    symbols: frozenset[str]
    is_on: bool = False
    left: dict[str, float] | None = None
    """Shares by symbol that are to be sold; None before the broker's answer."""
    others: dict[str, float] = field(default_factory=dict)
    """Shares that stay: of symbols that are not the bundle's, or too few for an order."""
    obstacles: dict[str, str] = field(default_factory=dict)
    """Symbol -> reason for which its shares are not sold yet; the empty name stands for all."""
    _ask_at: int = 0
    """Time of the next request to the broker."""
    _again_at: dict[str, int] = field(default_factory=dict)
    """Symbol -> time from which it is sold again if nothing was filled."""
    _filled_at: dict[str, int] = field(default_factory=dict)
    _unread_since: int | None = None
    """Time from which splits cannot be read; None if they can."""

    def begin(self, now: int) -> None:
        """Note in the journal that everything is sold from now on."""
        if not self.journal.is_flattening():
            self.journal.write(Flattening(), at=now)
            self._ask_at = now
            self.doubt(now)
        self.is_on = True

    def doubt(self, now: int) -> None:
        """Treat the broker's counts as outdated: any symbol may just have been filled."""
        self._filled_at = dict.fromkeys(self.symbols, now)

    def is_due(self, now: int) -> bool:
        """Check whether it is time to ask the broker again."""
        return now >= self._ask_at

    def waits_for_splits(self, error: Exception, now: int) -> bool:
        """Check whether a sale waits because splits cannot be read: for a minute after the first
        error. An unread reverse split would make it sell too many shares."""
        if self._unread_since is None:
            self._unread_since = now
        if now >= self._unread_since + SELL_AGAIN:
            return False
        self.obstacles[""] = f"splits cannot be read: {error}"
        self._ask_at = now + _ASK_SOON
        return True

    def note_splits(self) -> None:
        """Note that splits can be read."""
        self._unread_since = None

    def find_sales(
        self, execution: Execution | None, now: int, price: Callable[[str], float]
    ) -> dict[str, float] | None:
        """Ask the broker; return the orders that sell what is left, shares by symbol, or None once
        nothing is left to sell and no order is open. price: returns a symbol's last price.

        Shares of a symbol wait for the end of its open orders.
        """
        self._ask_at = now + SELL_AGAIN
        self.obstacles.pop("", None)
        known = expect_holdings(self.journal)
        try:
            standing = self._list_standing(execution, now)
            account = self.broker.account()
            if account.number != known.number:
                raise BrokerError(
                    f"the keys are of account {account.number}, and the flatten is of"
                    f" {known.number}"
                )
        except (BrokerError, BrokerUnsureError) as error:
            self.obstacles[""] = str(error)
            return {}
        held = account.shares
        sizes = {
            name: self.broker.size_sale(name, count, price(name))
            for name, count in held.items()
            if name in self.symbols
        }
        left = self.left = {name: held[name] for name, size in sizes.items() if size}
        self.others = {name: count for name, count in held.items() if name not in left}
        self.obstacles = {name: why for name, why in self.obstacles.items() if name in left}
        unbooked = _find_unbooked(known, held)
        if not left and not standing:
            late = [name for name, due in unbooked.items() if abs(due) >= 1.0]
            self.obstacles = dict.fromkeys(late, _UNBOOKED)
            return {} if late else None
        self.obstacles |= {report.symbol: "an order is open" for report in standing}
        busy = {report.symbol for report in standing}
        busy.update(name for name, moment in self._again_at.items() if now < moment)
        doubtful = {
            name
            for name, count in left.items()
            if abs(count - known.shares.get(name, 0.0)) > SAME_SHARES
            and now < self._filled_at.get(name, -_COUNTED_LATE) + _COUNTED_LATE
        }
        if doubtful:  # the broker's count may be older than a fill: a second sale would be short
            self._ask_at = min(self._ask_at, now + _ASK_SOON)
            why = "the broker's count is not the journal's yet"
            self.obstacles |= dict.fromkeys(doubtful, why)
        free = left.keys() - busy - doubtful
        for name in free & unbooked.keys():
            count = _cap_count(held[name], unbooked[name])
            sizes[name] = self.broker.size_sale(name, count, price(name))
            self.obstacles[name] = _UNBOOKED
        return {name: -sizes[name] for name in free if sizes.get(name)}

    def wait(self, opens: int) -> None:
        """Ask again at the next open."""
        self.obstacles[""] = "the exchange is closed"
        self._ask_at = min(self._ask_at, opens)

    def note_sent(self, symbols: Iterable[str], now: int) -> None:
        """Note that orders in these symbols are on their way."""
        self._again_at |= dict.fromkeys(symbols, now + SELL_AGAIN)

    def note_ended(self, reports: Iterable[OrderReport], now: int) -> None:
        """Ask the broker soon after an order ended unrefused; sell a symbol again after a fill."""
        for report in reports:
            if report.filled:
                self._filled_at[report.symbol] = now
                self._again_at.pop(report.symbol, None)
            if report.state == "rejected":
                self.obstacles[report.symbol] = report.reason
            else:
                self.obstacles.pop(report.symbol, None)
                self._ask_at = min(self._ask_at, now + SECOND_NS)  # an order's id has its second

    def describe(self) -> str:
        """Describe what is left, and the obstacles."""
        left = "the shares left are not known yet"
        if self.left is not None:
            left = f"{format_shares(self.left) or 'nothing'} left to sell"
        whys = [f"{name}: {why}" if name else why for name, why in self.obstacles.items()]
        return "; ".join([left, *whys])

    def _list_standing(self, execution: Execution | None, now: int) -> list[OrderReport]:
        """List the open orders of this deployment, with adopted ones of another; cancel those that
        no execution pursues."""
        pursued = {} if execution is None else execution.reports
        standing = [report for report in pursued.values() if not report.is_over]
        for report in self.broker.orders(max(now - _DAY_NS, 0)):
            is_pursued = report.id in pursued and not pursued[report.id].is_over
            if report.is_over or not find_sender(report.id) or is_pursued:
                continue
            if self.journal.last(OrderReport, report.id) is not None:
                self.broker.cancel(report)
                self._ask_at = now + _ASK_SOON
                standing.append(report)
        return standing


def _find_unbooked(known: Expected, held: Mapping[str, float]) -> dict[str, float]:
    """Return the shares after the split of each symbol whose split the broker has not booked: its
    count is nearer to the shares without the split."""
    found = {}
    for name, owed in known.owed.items():
        count = held.get(name, 0.0)
        due = known.shares.get(name, 0.0)
        if abs(count - (due - owed)) < abs(count - due):
            found[name] = count + owed
    return found


def _cap_count(held: float, due: float) -> float:
    """Return the shares to sell of those that the broker counts, if `due` are left after a split
    that it has not booked: it counts too many before a reverse split."""
    if abs(due) >= abs(held):
        return held
    return float(math.trunc(due)) if due * held > 0.0 else 0.0
