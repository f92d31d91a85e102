"""Whether the broker's orders, positions and cash are what the journal says: asked at the start and
ever after.

What is expected is the last point at which both agreed, with the fills since, and with what
`adjust` announced (splits, dividends, deposits). Fills are never added up as they come in: what an
order has filled is what was last written of it, so one that is told ten times counts once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fintrader.deploy.broker import Broker, BrokerAccount, OrderReport
from fintrader.deploy.journal import Entry, Journal
from fintrader.deploy.orders import SECOND, format_decision_stamp, order_prefix
from fintrader.errors import DeployError

_LOOK_BACK = 300 * SECOND
_RECENT = 7 * 86_400 * SECOND
"""The first start looks back so far for orders of another deployment of the bundle."""
_NAMED = 5
"""Findings that a refusal names; the journal has them all."""
_SAME = 1e-6
"""Shares that two counts may differ by: brokers keep nine decimals."""


@dataclass(frozen=True)
class Finding:
    """Something at the broker that the journal does not explain."""

    kind: Literal["order", "position", "cash", "account"]
    name: str
    """The order's id, the symbol, the account's number."""
    text: str
    """What is there and what was expected."""


@dataclass(frozen=True)
class Expected:
    """What the account must hold by the journal."""

    number: str
    """The account's own name; empty before the first agreement."""
    cash_usd: float | None
    """None before the first agreement: what is there then is what the deployment begins with."""
    shares: Mapping[str, float]
    traded_usd: float
    """Notional of the fills since the last agreement."""


def adjust(
    journal: Journal,
    *,
    at: int,
    reason: str,
    shares: Mapping[str, float] | None = None,
    cash_usd: float = 0.0,
) -> None:
    """Announce what changes positions or cash without an order: shares to add by symbol, USD to
    add."""
    journal.write("adjust", at=at, reason=reason, shares=dict(shares or {}), cash_usd=cash_usd)


def expect_holdings(journal: Journal) -> Expected:
    """Positions and cash by the journal alone."""
    agreed = journal.last("checkpoint")
    seq = agreed.seq if agreed else 0
    body: Mapping[str, Any] = agreed.body if agreed else {}
    shares = {str(symbol): float(count) for symbol, count in body.get("shares", {}).items()}
    cash, traded = sum_fills(journal, seq, shares)
    for entry in journal.entries("adjust", after=seq):
        cash += float(entry.body["cash_usd"])
        for symbol, count in entry.body["shares"].items():
            shares[symbol] = shares.get(symbol, 0.0) + float(count)
    return Expected(
        number=str(body.get("account", "")),
        cash_usd=float(body["cash_usd"]) + cash if agreed else None,
        shares={symbol: count for symbol, count in sorted(shares.items()) if abs(count) > _SAME},
        traded_usd=traded,
    )


def sum_fills(
    journal: Journal, seq: int, shares: dict[str, float], *, begun_since: bool = False
) -> tuple[float, float]:
    """Add what was filled after an entry to `shares`, `begun_since`: only of orders that began
    after it, too; returns the cash it brought and what was traded, USD."""
    cash = 0.0
    traded = 0.0
    for name in dict.fromkeys(entry.key for entry in journal.entries("order", after=seq)):
        history = journal.entries("order", key=name)
        if begun_since and history[0].seq <= seq:
            continue
        symbol, filled, paid, cost = _sum_since(history, seq)
        shares[symbol] = shares.get(symbol, 0.0) + filled
        cash -= paid + cost
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
    tolerance_usd: float = 5.0,
    tolerance_bps: float = 10.0,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[Finding, ...]:
    """Take up what became of the orders, and compare; nothing found is journalled as an agreement
    (`checkpoint`).

    An own order that stands though its time is over is cancelled. Nothing else at the broker is
    ever touched. Orders whose ids begin with the bundle's and that the journal does not know, open
    or recent, were sent by another deployment of the bundle: they are a difference. Cash may be off
    by `tolerance_usd` and `tolerance_bps` of what was traded since the last agreement (fees that
    come later, interest). A difference counts once it has outlived three looks, a second (`pause`)
    apart, between which no order moved: orders and positions are asked for one after the other.

    At the start (`start`) a difference raises DeployError, unless `adopt`: then what the broker has
    is taken as it is, orders of others into the journal too, and what was taken is journalled.
    Later the findings are returned and journalled (`mismatch`). Raises BrokerUnsureError when the
    broker cannot be asked: then nothing is known.
    """
    found: tuple[Finding, ...] = ()
    unmoved = 0
    for _ in range(12):
        reports, moved = _take_up(journal, broker, bundle, at)
        account = broker.account()
        foreign = [report for report in reports if _is_foreign(journal, bundle, report)]
        known = expect_holdings(journal)
        tolerance = tolerance_usd + tolerance_bps * 1e-4 * known.traded_usd
        found = _compare(known, account, foreign, tolerance, bundle)
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
    journal.write(
        "mismatch",
        at=at,
        findings=[{"kind": f.kind, "name": f.name, "text": f.text} for f in found],
    )
    if start:
        told = "; ".join(finding.text for finding in found[:_NAMED])
        if len(found) > _NAMED:
            told += f"; and {len(found) - _NAMED} more"
        if any(report.id.startswith(order_prefix(bundle)) for report in foreign):
            raise DeployError(
                f"another deployment of this bundle trades this account ({told}); stop it or give "
                "this one the keys of another account, or, if it has ended for good, start with "
                "--adopt"
            )
        raise DeployError(
            f"the account does not hold what the journal says ({told}); see to it, or start with"
            " --adopt"
        )
    return found


def _sum_since(history: Sequence[Entry], seq: int) -> tuple[str, float, float, float]:
    """Of one order, after entry `seq`: its symbol, shares filled, USD paid for them (negative:
    received), fees."""
    sums = [(0.0, 0.0, 0.0)]
    sums += [_read_sums(entry.body) for entry in history if entry.seq <= seq][-1:]
    last = history[-1].body
    filled, paid, cost = (
        now - before for now, before in zip(_read_sums(last), sums[-1], strict=True)
    )
    return str(last["symbol"]), filled, paid, cost


def _read_sums(body: Mapping[str, Any]) -> tuple[float, float, float]:
    filled = float(body["filled"])
    return filled, filled * float(body["price_usd"]), float(body["cost_usd"])


def _take_up(
    journal: Journal, broker: Broker, bundle: str, at: int
) -> tuple[Sequence[OrderReport], bool]:
    """Journal what the broker says of our orders; all its orders, and whether any of ours moved."""
    agreed = journal.last("checkpoint")
    standing = _list_standing(journal, agreed)
    begun = [agreed.time if agreed else at - _RECENT]
    begun += [journal.entries("order", key=name)[0].time for name in standing]
    reports = list(broker.orders(max(0, min(begun) - _LOOK_BACK)))
    listed = {report.id for report in reports}
    asked = [broker.order(name) for name in sorted(standing - listed)]
    reports += [report for report in asked if report is not None]
    moved = False
    for report in reports:
        known = journal.last("order", report.id)
        if known is None:
            continue
        if _is_news(known.body, report):
            journal.write_order(report, at=at)
            moved = True
        if (
            not report.is_over
            and report.id.startswith(order_prefix(bundle))
            and _is_late(journal, bundle, report, at)
        ):
            broker.cancel(report)
    return reports, moved


def _list_standing(journal: Journal, agreed: Entry | None) -> set[str]:
    """Orders that left and whose end the journal does not know."""
    names: set[str] = set(agreed.body["standing"]) if agreed else set()
    names.update(entry.key for entry in journal.entries("order", after=agreed.seq if agreed else 0))
    standing = set()
    for name in names:
        entry = journal.last("order", name)
        if entry is not None and entry.body["state"] in ("sent", "unknown", "accepted", "partial"):
            standing.add(name)
    return standing


def _is_foreign(journal: Journal, bundle: str, report: OrderReport) -> bool:
    """Say whether an order is unknown to the journal, and open or of the same bundle."""
    is_known = journal.last("order", report.id) is not None
    return not is_known and (not report.is_over or report.id.startswith(order_prefix(bundle)))


def _is_news(known: Mapping[str, Any], report: OrderReport) -> bool:
    """Whether a report says more than the journal; one from before what is known does not."""
    more = abs(report.filled) - abs(float(known["filled"]))
    if more < -_SAME:
        return False
    # `expired` is our own word for what never arrived; what arrives all the same has not.
    over = known["state"] in ("filled", "cancelled", "rejected")
    return more > _SAME or (
        not over and (known["state"], known["price_usd"]) != (report.state, report.price_usd)
    )


def _is_late(journal: Journal, bundle: str, report: OrderReport, at: int) -> bool:
    """Whether an order of ours stands beyond its time, or has none (its decision is in no
    journal)."""
    terms = journal.last("execution", format_decision_stamp(bundle, report.id))
    return terms is None or at >= int(terms.body["until"])


def _compare(
    known: Expected,
    account: BrokerAccount,
    foreign: Iterable[OrderReport],
    tolerance_usd: float,
    bundle: str,
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
        if report.id.startswith(order_prefix(bundle)):
            text += ", but of its bundle"
        found.append(Finding("order", report.id, text))
    for symbol in sorted({*known.shares, *account.shares}):
        held = account.shares.get(symbol, 0.0)
        due = known.shares.get(symbol, 0.0)
        if abs(held - due) > _SAME:
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
    """Journal what both agree upon, unless the journal says so already."""
    agreed = journal.last("checkpoint")
    body = {
        "account": account.number,
        "cash_usd": account.cash_usd,
        "shares": dict(account.shares),
        "standing": sorted(_list_standing(journal, agreed)),
    }
    news = agreed is None or any(
        journal.entries(kind, after=agreed.seq) for kind in ("order", "adjust")
    )
    if news or agreed is None or body != dict(agreed.body):
        journal.write("checkpoint", at=at, **body)


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
        journal.write("adopted", at=at, findings=[finding.text for finding in found])
        for report in foreign:
            journal.write_order(report, at=at, adopted=True)
        _record_agreement(journal, account, at)
