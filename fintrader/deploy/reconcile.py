"""Compare the broker's orders, positions and cash with the journal's, at the start and from then
on.

The expected account is the last one on which both agreed, with the fills since and the announced
splits. Fills are never added up as they come in: the last report of an order counts, so a fill that
is reported ten times counts once.

Three things explain a difference: the broker's activities (splits, dividends, fees, deposits), each
of which counts once; a split that is not booked yet, or whose fraction is paid in cash; and, for
cash alone, a small size, since fees and interest are booked before they are listed. Unexplained
cash stays open for `_RECENT`, and its sum over that time must be as small as fees are.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fintrader.deploy.broker import Activity, Broker, BrokerAccount, OrderReport
from fintrader.deploy.entries import (
    Adjustment,
    Adoption,
    Checkpoint,
    DeploymentStart,
    Finding,
    Mismatch,
    OrderTerms,
)
from fintrader.deploy.journal import Entry, Journal
from fintrader.deploy.orders import SECOND, find_sender, format_decision_stamp, read_sender
from fintrader.errors import BrokerError, BrokerUnsureError, DeployError
from fintrader.progress import shorten_list

_LOOK_BACK = 300 * SECOND
_DAY = 86_400 * SECOND
_RECENT = 7 * _DAY
"""Time in which cash may be explained later, and time before the first start in which orders of
another deployment count."""
_BOOKED_LATER = 3 * _DAY
"""Most days between an activity's day and its booking."""
_CENT = 0.01
_FEW = 60
"""Most activities for which subsets other than all or none are tried."""
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
    owed: Mapping[str, float] = field(default_factory=dict)
    """Part of `shares` from announced splits that may not be booked yet."""


class Tolerance(NamedTuple):
    """Most unexplained cash of the last seven days."""

    usd: float = 5.0
    bps: float = 10.0
    """Share of the notional of these days."""
    due_usd: float = 0.0
    """Cash that may have come without an announcement: dividends, fractions of shares."""
    split: frozenset[str] = frozenset()
    """Symbols that were split within the last days."""


@dataclass(frozen=True)
class _Balance:
    """The account compared with the expected one."""

    findings: tuple[Finding, ...]
    counted: tuple[Activity, ...] = ()
    """Activities that explain a difference."""
    owed: Mapping[str, float] = field(default_factory=dict)
    left_usd: float = 0.0
    """Unexplained cash of the last days."""


def expect_holdings(journal: Journal) -> Expected:
    """Compute positions and cash from the journal alone."""
    agreed = journal.last(Checkpoint)
    seq = agreed.seq if agreed else 0
    shares = dict(agreed.body.shares) if agreed else {}
    cash, traded = sum_fills(journal, seq, shares)
    owed = dict(agreed.body.owed) if agreed else {}
    for entry in journal.entries(Adjustment, after=seq):
        cash += entry.body.cash_usd
        for symbol, count in entry.body.shares.items():
            owed[symbol] = owed.get(symbol, 0.0) + count
    for symbol, count in owed.items():
        shares[symbol] = shares.get(symbol, 0.0) + count
    return Expected(
        number=agreed.body.account if agreed else "",
        cash_usd=agreed.body.cash_usd + cash if agreed else None,
        shares={
            symbol: count for symbol, count in sorted(shares.items()) if abs(count) > SAME_SHARES
        },
        traded_usd=traded,
        owed=owed,
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
        was = before[-1] if before else replace(now, filled=0.0, cost_usd=0.0, fee_shares={})
        shares[now.symbol] = shares.get(now.symbol, 0.0) + now.filled - was.filled
        for symbol, fee in now.fee_shares.items():
            shares[symbol] = shares.get(symbol, 0.0) - fee + was.fee_shares.get(symbol, 0.0)
        paid = now.filled * now.price_usd - was.filled * was.price_usd
        cash -= paid + now.cost_usd - was.cost_usd
        traded += abs(paid)
    return cash, traded


def reconcile(
    journal: Journal,
    broker: Broker,
    *,
    at: int,
    start: bool = False,
    adopt: bool | Mismatch = False,
    tolerance: Tolerance = Tolerance(),  # noqa: B008
    pause: Callable[[float], None] = time.sleep,
) -> tuple[Finding, ...]:
    """Journal the reports of the orders, and compare; an agreement is journalled as a `Checkpoint`.

    An order of the journal that is still open after its time is cancelled, unless it is a stop. So
    is one adopted from another deployment. Nothing else at the broker is ever touched. Orders with
    the id of a deployment (`find_sender`) that the journal does not know, open or recent, were sent
    by another deployment: they are a difference. A difference counts once it has outlived three
    looks, a second (`pause`) apart, between which no order moved: orders and positions are asked
    for one after the other.

    At the start (`start`) a difference raises DeployError, unless `adopt`: then the broker's state,
    with foreign orders, is taken over and journalled as an `Adoption`. A `Mismatch` as `adopt`
    takes over only its own findings. Later the findings are returned and journalled as a
    `Mismatch`. Raises BrokerUnsureError when the broker does not answer.
    """
    findings: tuple[Finding, ...] = ()
    unmoved = 0
    for _ in range(12):
        reports, moved = _take_up(journal, broker, at)
        account = broker.account()
        foreign = [report for report in reports if _is_foreign(journal, report)]
        known = expect_holdings(journal)
        findings = _find_strangers(known, account, foreign)
        balance = _Balance(())
        if all(finding.kind == "order" for finding in findings):
            balance = _explain(journal, broker, known, account, at, tolerance)
            findings = (*findings, *balance.findings)
        if not findings:
            _record_agreement(journal, account, at, known, balance)
            return ()
        unmoved = 0 if moved else unmoved + 1
        if (start and adopt is True) or (unmoved >= 3 and _is_accepted(adopt, findings)):
            _record_adoption(journal, account, foreign, replace(balance, findings=findings), at)
            return ()
        if unmoved >= 3:
            break
        pause(1.0)
    last = journal.last(Mismatch)
    if last is None or last.body != Mismatch(findings):
        journal.write(Mismatch(findings), at=at)
    if start:
        text = shorten_list([finding.text for finding in findings], "; ")
        if any(find_sender(report.id) for report in foreign):
            raise DeployError(
                f"another deployment trades this account ({text}); stop it or give "
                "this one the keys of another account, or, if it has ended for good, start with "
                "--adopt"
            )
        raise DeployError(
            f"the account differs from the journal ({text}); correct the account, or start with"
            " --adopt; `fintrader accept` and the name of the deployment accept these differences"
        )
    return findings


def _is_accepted(accepted: bool | Mismatch, findings: Iterable[Finding]) -> bool:
    """Check that a person has accepted these findings. Another account is never accepted."""
    return isinstance(accepted, Mismatch) and all(
        finding in accepted.findings and finding.kind != "account" for finding in findings
    )


def _take_up(journal: Journal, broker: Broker, at: int) -> tuple[Sequence[OrderReport], bool]:
    """Journal the broker's news of our orders; return all its orders, and True if any of ours
    moved."""
    agreed = journal.last(Checkpoint)
    standing = _list_standing(journal, agreed)
    begun = [agreed.time if agreed else at - _RECENT]
    # Older orders, such as stops, are listed while open, and asked for by their ids.
    begun += [max(journal.entries(OrderReport, key=name)[0].time, at - _DAY) for name in standing]
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
            journal.write(report.keep_prices(known.body), at=at)
            moved = True
        if (
            not report.is_over
            and known.body.stop_usd is None
            and find_sender(report.id)
            and _is_late(journal, report, at)
        ):
            broker.cancel(report)
    return reports, moved


def _list_standing(journal: Journal, agreed: Entry[Checkpoint] | None) -> set[str]:
    """List the orders that were sent and whose end is not in the journal."""
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
    """Check that an order in the journal is beyond its time, or is of no decision in it."""
    started = journal.last(DeploymentStart)
    sender = find_sender(report.id)
    is_ours = started is None or sender == read_sender(journal, started.body.bundle)
    terms = journal.last(OrderTerms, format_decision_stamp(report.id))
    return terms is None or not is_ours or at >= terms.body.until


def _find_strangers(
    known: Expected, account: BrokerAccount, foreign: Iterable[OrderReport]
) -> tuple[Finding, ...]:
    """Find foreign orders, and an account that is the wrong one or takes no orders."""
    findings: list[Finding] = []
    if account.blocked:
        findings.append(
            Finding("account", account.number, f"the account takes no orders: {account.blocked}")
        )
    if known.number and known.number != account.number:
        text = f"the keys are of account {account.number}, the journal of {known.number}"
        return (*findings, Finding("account", account.number, text))
    for report in foreign:
        text = f"order {report.id} of {report.shares:g} {report.symbol} is none of this deployment"
        sender = find_sender(report.id)
        if sender:
            text += f", but of the deployment {sender}"
        findings.append(Finding("order", report.id, text))
    return tuple(findings)


def _explain(
    journal: Journal,
    broker: Broker,
    known: Expected,
    account: BrokerAccount,
    at: int,
    tolerance: Tolerance,
) -> _Balance:
    """Compare shares and cash; ask for the broker's activities where they differ."""
    agreed = journal.last(Checkpoint)
    balance = _compare(agreed, known, account, at, tolerance, ())
    differs = balance.findings or abs(balance.left_usd) > _CENT
    if agreed is None or not differs:
        return balance
    since = min(agreed.time, at - _RECENT) - _BOOKED_LATER
    try:
        listed = broker.activities(max(since, 0))
    except (BrokerError, BrokerUnsureError):
        if balance.findings:
            raise
        return balance
    pending = [one for one in listed if journal.last(Activity, one.id) is None]
    return _compare(agreed, known, account, at, tolerance, pending)


def _compare(
    agreed: Entry[Checkpoint] | None,
    known: Expected,
    account: BrokerAccount,
    at: int,
    tolerance: Tolerance,
    pending: Sequence[Activity],
) -> _Balance:
    """Compare shares and cash, with the activities that were not counted before."""
    findings: list[Finding] = []
    counted: list[Activity] = []
    owed: dict[str, float] = {}
    for symbol in sorted({*known.shares, *account.shares, *known.owed}):
        rows = [one for one in reversed(pending) if one.symbol == symbol and one.shares]
        taken = _match_shares(symbol, known, account, rows, tolerance)
        if taken is None:
            held = account.shares.get(symbol, 0.0)
            due = known.shares.get(symbol, 0.0)
            text = f"{held:g} shares of {symbol} are held, {due:g} expected"
            findings.append(Finding("position", symbol, text))
            continue
        counted += taken.counted
        owed |= taken.owed
    if agreed is None or known.cash_usd is None:
        return _Balance(tuple(findings))
    recent = _list_days(at)
    was_open = sum(usd for day, usd in agreed.body.open_usd.items() if day in recent)
    traded = sum(usd for day, usd in agreed.body.traded_usd.items() if day in recent)
    slack = tolerance.usd + tolerance.bps * 1e-4 * (traded + known.traded_usd)
    left = was_open + account.cash_usd - known.cash_usd - sum(one.cash_usd for one in counted)
    bookings = [one for one in pending if not one.shares]
    paid = _pick(bookings, "cash_usd", left)
    left -= sum(one.cash_usd for one in paid)
    if not -slack <= left <= slack + tolerance.due_usd:
        text = f"cash is {account.cash_usd:,.2f} USD, {account.cash_usd - left:,.2f} expected"
        findings.append(Finding("cash", account.number, text))
    return _Balance(tuple(findings), (*counted, *paid), owed, left)


def _match_shares(
    symbol: str,
    known: Expected,
    account: BrokerAccount,
    rows: Sequence[Activity],
    tolerance: Tolerance,
) -> _Balance | None:
    """Explain the shares of a symbol; None where nothing explains them."""
    held = account.shares.get(symbol, 0.0)
    due = known.shares.get(symbol, 0.0)
    owed = known.owed.get(symbol, 0.0)
    is_split = symbol in tolerance.split
    for base in (due, due - owed) if owed else (due,):  # as announced, or not booked yet
        if abs(held - base) <= SAME_SHARES:
            return _Balance((), owed={symbol: owed} if base != due and is_split else {})
        # The fraction of a share that a split leaves is paid in cash, or made a whole one.
        is_whole = abs(held - round(held)) <= SAME_SHARES
        if is_split and base == due and is_whole and abs(held - due) < 1.0:
            return _Balance(())
        taken = _pick(rows, "shares", held - base)
        if taken and abs(held - base - sum(one.shares for one in taken)) <= SAME_SHARES:
            is_booked = base == due or any(one.kind == "split" for one in taken)
            return _Balance((), tuple(taken), {} if is_booked else {symbol: owed})
    return None


def _pick(rows: Sequence[Activity], name: str, target: float) -> Sequence[Activity]:
    """Pick rows whose amounts sum close to a target: none, all, or, of few rows, the best subset of
    a search that adds or drops one row at a time."""

    def measure(subset: Sequence[Activity]) -> float:
        total: float = sum(getattr(one, name) for one in subset)
        return round(abs(target - total), 6)

    picks: list[Sequence[Activity]] = [(), rows]
    while len(rows) <= _FEW and min(map(measure, picks)) > 0.0:
        flips = [
            [one for one in rows if (one in subset) != (one is flip)]
            for subset in picks
            for flip in rows
        ]
        closer = min(flips, key=measure, default=())
        if measure(closer) >= min(map(measure, picks)):
            break
        picks.append(closer)
    return min(picks, key=measure)


def _list_days(at: int) -> set[str]:
    """List the days (ISO 8601, UTC) in which cash may still be explained."""
    return {format_day(at - back * _DAY) for back in range(_RECENT // _DAY + 1)}


def format_day(at: int) -> str:
    """Format a time (ns) as its day, ISO 8601, UTC."""
    return dt.datetime.fromtimestamp(at // SECOND, dt.UTC).date().isoformat()


def _record_agreement(
    journal: Journal, account: BrokerAccount, at: int, known: Expected, balance: _Balance
) -> None:
    """Journal the account on which both agree, unless the journal says so already."""
    agreed = journal.last(Checkpoint)
    standing = tuple(sorted(_list_standing(journal, agreed)))
    recent = _list_days(at)
    today = format_day(at)
    traded, left = (
        {day: usd for day, usd in days.items() if day in recent}
        for days in ((agreed.body.traded_usd, agreed.body.open_usd) if agreed else ({}, {}))
    )
    if known.traded_usd:
        traded[today] = traded.get(today, 0.0) + known.traded_usd
    more = balance.left_usd - sum(left.values())
    if abs(balance.left_usd) < _CENT:
        left = {}
    elif more:
        left[today] = left.get(today, 0.0) + more
    now = Checkpoint(
        account.number,
        account.cash_usd,
        dict(account.shares),
        standing,
        {symbol: count for symbol, count in balance.owed.items() if count},
        traded,
        left,
    )
    if (
        agreed is None
        or now != agreed.body
        or any(journal.entries(kind, after=agreed.seq) for kind in (OrderReport, Adjustment))
    ):
        journal.write(*balance.counted, now, at=at)


def _record_adoption(
    journal: Journal,
    account: BrokerAccount,
    foreign: Iterable[OrderReport],
    balance: _Balance,
    at: int,
) -> None:
    """Journal the account as it is; activities that explain a part of the difference count, too."""
    if account.blocked:
        raise DeployError(f"the account takes no orders ({account.blocked}); ask the broker why")
    known = expect_holdings(journal)
    kinds = {finding.kind for finding in balance.findings}
    symbols = [finding.name for finding in balance.findings if finding.kind == "position"]
    adoption = Adoption(
        tuple(finding.text for finding in balance.findings),
        balance.left_usd if "cash" in kinds else 0.0,
        {name: account.shares.get(name, 0.0) - known.shares.get(name, 0.0) for name in symbols},
    )
    with journal.together():
        journal.write(adoption, *foreign, at=at)
        _record_agreement(journal, account, at, known, replace(balance, left_usd=0.0))
