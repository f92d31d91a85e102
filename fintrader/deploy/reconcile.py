"""Compare the broker's orders, positions and cash with the journal's, at the start and ever after.

The expected account is the last one on which both agreed, with the fills since and the announced
adjustments (splits, deposits). Fills are never added up as they come in: the last report of an
order counts, so a fill that is reported ten times counts once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fintrader.deploy.broker import Broker, BrokerAccount, OrderReport
from fintrader.deploy.entries import (
    Adjustment,
    Adoption,
    Checkpoint,
    Finding,
    Mismatch,
    OrderTerms,
)
from fintrader.deploy.journal import Entry, Journal
from fintrader.deploy.orders import SECOND, find_sender, format_decision_stamp, order_prefix
from fintrader.errors import DeployError

_LOOK_BACK = 300 * SECOND
_RECENT = 7 * 86_400 * SECOND
"""Time before the first start in which orders of another deployment count."""
_NAMED = 5
"""Most findings that a refusal names; the journal has them all."""
SAME_SHARES = 1e-6
"""Largest difference between equal counts of shares: brokers keep nine decimals."""


@dataclass(frozen=True)
class Expected:
    """The account as the journal expects it."""

    number: str
    """The account's own name; empty before the first agreement."""
    cash_usd: float | None
    """None before the first agreement, which takes the account as it is."""
    shares: Mapping[str, float]
    traded_usd: float
    """Notional of the fills since the last agreement."""


class Tolerance(NamedTuple):
    """Largest difference between equal amounts of cash."""

    usd: float = 5.0
    bps: float = 10.0
    """Share of the notional since the last agreement."""


def expect_holdings(journal: Journal) -> Expected:
    """Compute positions and cash from the journal alone."""
    agreed = journal.last(Checkpoint)
    seq = agreed.seq if agreed else 0
    shares = dict(agreed.body.shares) if agreed else {}
    cash, traded = sum_fills(journal, seq, shares)
    for entry in journal.entries(Adjustment, after=seq):
        cash += entry.body.cash_usd
        for symbol, count in entry.body.shares.items():
            shares[symbol] = shares.get(symbol, 0.0) + count
    return Expected(
        number=agreed.body.account if agreed else "",
        cash_usd=agreed.body.cash_usd + cash if agreed else None,
        shares={
            symbol: count for symbol, count in sorted(shares.items()) if abs(count) > SAME_SHARES
        },
        traded_usd=traded,
    )


def sum_fills(
    journal: Journal, seq: int, shares: dict[str, float], *, begun_since: bool = False
) -> tuple[float, float]:
    """Add the fills after an entry to `shares`; return the cash they brought and the notional, USD.

    `begun_since`: only fills of orders that began after the entry.
    """
    cash = 0.0
    traded = 0.0
    for name in dict.fromkeys(entry.key for entry in journal.entries(OrderReport, after=seq)):
        history = journal.entries(OrderReport, key=name)
        before = [entry.body for entry in history if entry.seq <= seq]
        if begun_since and before:
            continue
        now = history[-1].body
        was = before[-1] if before else replace(now, filled=0.0, cost_usd=0.0)
        shares[now.symbol] = shares.get(now.symbol, 0.0) + now.filled - was.filled
        paid = now.filled * now.price_usd - was.filled * was.price_usd
        cash -= paid + now.cost_usd - was.cost_usd
        traded += abs(paid)
    return cash, traded


def reconcile(
    journal: Journal,
    broker: Broker,
    *,
    bundle: str,
    at: int,
    start: bool = False,
    adopt: bool = False,
    tolerance: Tolerance = Tolerance(),  # noqa: B008
    pause: Callable[[float], None] = time.sleep,
) -> tuple[Finding, ...]:
    """Journal the reports of the orders, and compare; an agreement is journalled as a `Checkpoint`.

    An own order that stands though its time is over is cancelled. Nothing else at the broker is
    ever touched. Orders with the id of a deployment (`find_sender`) that the journal does not know,
    open or recent, were sent by another one: they are a difference. Cash may be off by a tolerance
    for fees that come later, and interest. A difference counts once it has outlived three looks, a
    second (`pause`) apart, between which no order moved: orders and positions are asked for one
    after the other.

    At the start (`start`) a difference raises DeployError, unless `adopt`: then the broker's state
    is taken as it is, foreign orders into the journal too, and journalled as an `Adoption`. Later
    the findings are returned and journalled as a `Mismatch`. Raises BrokerUnsureError when the
    broker does not answer.
    """
    found: tuple[Finding, ...] = ()
    unmoved = 0
    for _ in range(12):
        reports, moved = _take_up(journal, broker, bundle, at)
        account = broker.account()
        foreign = [report for report in reports if _is_foreign(journal, report)]
        known = expect_holdings(journal)
        slack_usd = tolerance.usd + tolerance.bps * 1e-4 * known.traded_usd
        found = _compare(known, account, foreign, slack_usd)
        if not found:
            _record_agreement(journal, account, at)
            return ()
        if start and adopt:
            _record_adoption(journal, account, foreign, found, at)
            return ()
        unmoved = 0 if moved else unmoved + 1
        if unmoved >= 3:
            break
        pause(1.0)
    journal.write(Mismatch(found), at=at)
    if start:
        text = "; ".join(finding.text for finding in found[:_NAMED])
        if len(found) > _NAMED:
            text += f"; and {len(found) - _NAMED} more"
        if any(find_sender(report.id) for report in foreign):
            raise DeployError(
                f"another deployment trades this account ({text}); stop it or give "
                "this one the keys of another account, or, if it has ended for good, start with "
                "--adopt"
            )
        raise DeployError(
            f"the account differs from the journal ({text}); correct the account, or start with"
            " --adopt"
        )
    return found


def _take_up(
    journal: Journal, broker: Broker, bundle: str, at: int
) -> tuple[Sequence[OrderReport], bool]:
    """Journal the broker's news of our orders; return all its orders, and True if any of ours
    moved."""
    agreed = journal.last(Checkpoint)
    standing = _list_standing(journal, agreed)
    begun = [agreed.time if agreed else at - _RECENT]
    begun += [journal.entries(OrderReport, key=name)[0].time for name in standing]
    reports = list(broker.orders(max(0, min(begun) - _LOOK_BACK)))
    listed = {report.id for report in reports}
    asked = [broker.order(name) for name in sorted(standing - listed)]
    reports += [report for report in asked if report is not None]
    moved = False
    for report in reports:
        known = journal.last(OrderReport, report.id)
        if known is None:
            continue
        if _is_news(known.body, report):
            journal.write(report, at=at)
            moved = True
        if (
            not report.is_over
            and report.id.startswith(order_prefix(bundle))
            and _is_late(journal, report, at)
        ):
            broker.cancel(report)
    return reports, moved


def _list_standing(journal: Journal, agreed: Entry[Checkpoint] | None) -> set[str]:
    """List the orders that left and whose end the journal does not know."""
    names = set(agreed.body.standing) if agreed else set()
    later = journal.entries(OrderReport, after=agreed.seq if agreed else 0)
    names.update(entry.key for entry in later)
    standing = set()
    for name in names:
        entry = journal.last(OrderReport, name)
        if entry is not None and entry.body.state != "intended" and not entry.body.is_over:
            standing.add(name)
    return standing


def _is_foreign(journal: Journal, report: OrderReport) -> bool:
    """Check that an order is unknown to the journal, and open or of another deployment."""
    is_known = journal.last(OrderReport, report.id) is not None
    return not is_known and (not report.is_over or bool(find_sender(report.id)))


def _is_news(known: OrderReport, report: OrderReport) -> bool:
    """Check that a report says more than the journal; an older one does not."""
    more = abs(report.filled) - abs(known.filled)
    if more < -SAME_SHARES:
        return False
    # `expired` is our own word for an order that never arrived; it may arrive all the same.
    is_over = known.state in ("filled", "cancelled", "rejected")
    is_changed = (known.state, known.price_usd) != (report.state, report.price_usd)
    return more > SAME_SHARES or (not is_over and is_changed)


def _is_late(journal: Journal, report: OrderReport, at: int) -> bool:
    """Check that an order of ours is beyond its time, or has none (its decision is in no
    journal)."""
    terms = journal.last(OrderTerms, format_decision_stamp(report.id))
    return terms is None or at >= terms.body.until


def _compare(
    known: Expected,
    account: BrokerAccount,
    foreign: Iterable[OrderReport],
    tolerance_usd: float,
) -> tuple[Finding, ...]:
    found: list[Finding] = []
    if account.blocked:
        found.append(
            Finding("account", account.number, f"the account takes no orders: {account.blocked}")
        )
    if known.number and known.number != account.number:
        text = f"the keys are of account {account.number}, the journal of {known.number}"
        return (*found, Finding("account", account.number, text))
    for report in foreign:
        text = f"order {report.id} of {report.shares:g} {report.symbol} is none of this deployment"
        sender = find_sender(report.id)
        if sender:
            text += f", but of the deployment {sender}"
        found.append(Finding("order", report.id, text))
    for symbol in sorted({*known.shares, *account.shares}):
        held = account.shares.get(symbol, 0.0)
        due = known.shares.get(symbol, 0.0)
        if abs(held - due) > SAME_SHARES:
            found.append(
                Finding(
                    "position", symbol, f"{held:g} shares of {symbol} are held, {due:g} expected"
                )
            )
    if known.cash_usd is not None and abs(account.cash_usd - known.cash_usd) > tolerance_usd:
        text = f"cash is {account.cash_usd:,.2f} USD, {known.cash_usd:,.2f} expected"
        found.append(Finding("cash", account.number, text))
    return tuple(found)


def _record_agreement(journal: Journal, account: BrokerAccount, at: int) -> None:
    """Journal the account on which both agree, unless the journal says so already."""
    agreed = journal.last(Checkpoint)
    standing = tuple(sorted(_list_standing(journal, agreed)))
    now = Checkpoint(account.number, account.cash_usd, dict(account.shares), standing)
    if (
        agreed is None
        or now != agreed.body
        or any(journal.entries(kind, after=agreed.seq) for kind in (OrderReport, Adjustment))
    ):
        journal.write(now, at=at)


def _record_adoption(
    journal: Journal,
    account: BrokerAccount,
    foreign: Iterable[OrderReport],
    found: Iterable[Finding],
    at: int,
) -> None:
    if account.blocked:
        raise DeployError(f"the account takes no orders ({account.blocked}); ask the broker why")
    with journal.together():
        adoption = Adoption(tuple(finding.text for finding in found))
        journal.write(adoption, *foreign, at=at)
        _record_agreement(journal, account, at)
