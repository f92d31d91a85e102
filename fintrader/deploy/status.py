"""The state of a deployment, read from its folder; needs no torch, and writes nothing."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from fintrader.bars.calendar import find_exchange_timezone
from fintrader.deploy.broker import OrderReport
from fintrader.deploy.bundle_record import BundleRecord, read_record
from fintrader.deploy.control import (
    BUNDLE,
    HEARTBEAT,
    JOURNAL,
    REPORT,
    SILENT_SECONDS,
    Heartbeat,
    list_aliases,
    list_requests,
)
from fintrader.deploy.drift_report import DriftReport, read_report
from fintrader.deploy.entries import (
    Alert,
    BarDecision,
    DeploymentEnd,
    DeploymentStart,
    Flattening,
    Halt,
    Resumption,
)
from fintrader.deploy.journal import Entry, Journal
from fintrader.deploy.reconcile import expect_holdings, sum_fills
from fintrader.errors import DataError, DeployError, FintraderError
from fintrader.files import read_json
from fintrader.numerals import format_count
from fintrader.records import from_json, to_json
from fintrader.storage.lease import is_held
from fintrader.storage.objects import ObjectStore

SHOWN_ORDERS = 100
SHOWN_NEWS = 20
SHOWN_BARS = 2000
"""Newest bars of the curve; of earlier days the last bar is shown."""
_NEWS = (Alert, Halt, Resumption)


@dataclass(frozen=True)
class Status:
    """The present state of a deployment. Missing parts are empty."""

    name: str
    bundle: BundleRecord
    state: str
    """not begun, running, silent (it holds its lease and its loop does nothing), halted, stopped,
    finished."""
    why: str = ""
    """Reason of a halt."""
    flattening: bool = False
    """True while a flatten has not ended; `why` then names the rest."""
    role: str = ""
    """champion, challenger, or neither."""
    started: DeploymentStart | None = None
    decision: BarDecision | None = None
    """The newest decision."""
    held: Mapping[str, float] = field(default_factory=dict)
    """Symbol -> shares now, by the journal."""
    cash_usd: float = 0.0
    """Cash now, by the journal."""
    next_decision: int | None = None
    """Time of a live deployment's next decision, nanoseconds since 1970 UTC."""
    beat: int | None = None
    """Last sign of life of a live deployment's loop, ns since 1970 UTC."""
    orders: tuple[OrderReport, ...] = ()
    """The newest ones, newest first."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """State -> number of all its orders."""
    curve: tuple[tuple[int, float], ...] = ()
    """Start of the bar and equity, oldest first."""
    journal: tuple[Entry[Any], ...] = ()
    """The newest entries, newest first, orders left out."""
    news: tuple[Entry[Any], ...] = ()
    """The newest alerts, halts and resumptions, newest first."""
    requests: tuple[str, ...] = ()
    """Requests (halt, resume, flatten) that are not carried out yet."""
    report: DriftReport | None = None
    """The drift report, once there is one."""

    @property
    def equity(self) -> float | None:
        """Equity at the newest bar of the curve, USD."""
        return self.curve[-1][1] if self.curve else None

    @property
    def growth(self) -> float | None:
        """Return since the first decision, without deposits and withdrawals, at the newest one."""
        decision = self.decision
        return (
            None if decision is None or not decision.first else decision.equity / decision.first - 1
        )

    @property
    def resting(self) -> tuple[OrderReport, ...]:
        """Those of `orders` that rest at a price."""
        return tuple(order for order in self.orders if order.rests)

    @property
    def is_beating(self) -> bool:
        """True if the loop showed a recent sign of life, also while it is halted."""
        return self.beat is not None and time.time() - self.beat / 1e9 <= SILENT_SECONDS

    @property
    def timezone(self) -> str:
        """The market's time zone, an IANA name; UTC if the bundle names no known calendar."""
        try:
            return find_exchange_timezone(str(self.bundle.calendar))
        except DataError:
            return "UTC"

    def headroom(self) -> dict[str, tuple[float, float]]:
        """Compare each limit with its use: limit -> use and limit, as shares of equity."""
        decision = self.decision
        if decision is None or self.started is None or decision.equity <= 0.0:
            return {}
        limits = self.started.limits
        equity = decision.equity
        losses: dict[str, tuple[float, float]] = {}
        if decision.limits_from is not None:
            peak, opening = decision.limits_from
            losses = {
                "Loss of the day": (max(1 - equity / opening, 0.0), limits.day_loss),
                "Loss from the peak": (max(1 - equity / peak, 0.0), limits.drawdown),
            }
        held = [abs(n) * decision.prices.get(name, 0.0) for name, n in self.held.items()]
        largest = max(held, default=0.0)
        return {
            **losses,
            "Turnover of the day": (decision.traded / equity, limits.turnover),
            "All positions": (sum(held) / equity, limits.gross),
            "Largest position": (largest / equity, limits.weight),
        }


def list_names(folder: Path) -> list[str]:
    """List the deployments in a folder."""
    files = (f"bundle/{BUNDLE}", JOURNAL)
    # A glob skips folders that may not be entered.
    paths = (path for file in files for path in folder.glob(f"*/{file}"))
    return sorted({path.relative_to(folder).parts[0] for path in paths})


def read_status(home: Path) -> Status:
    """Read the state of a deployment. Raises DeployError for a folder without one, or a damaged
    one."""
    path = home / "bundle" / BUNDLE
    if not path.is_file():
        if (home / JOURNAL).is_file():
            raise DeployError(
                f"{path} is missing and its journal is there; restore it, or freeze the run again"
            )
        raise DeployError(f"{home} holds no deployment; make one with `fintrader paper RUN`")
    record = read_record(home / "bundle")
    role, beat = _read_files(home)
    report = read_report(home / REPORT)
    status = Status(home.name, record, "not begun", role=role, report=report)
    if not (home / JOURNAL).is_file():
        return status
    if beat is not None:
        status = replace(status, beat=beat.time, next_decision=beat.next_decision)
    status = replace(status, requests=tuple(kind for _, kind in list_requests(home)))
    with Journal(home / JOURNAL, reading=True) as journal:
        status = _read_journal(status, journal)
        halt = journal.find_halt()
        has_ended = journal.last(DeploymentEnd) is not None
        flatten = f"; {_describe_flatten(journal)}" if status.flattening else ""
    is_running = is_held(ObjectStore(home))
    if status.flattening and not is_running:
        flatten += "; no process runs it: start it again to resume"
    is_silent = beat is not None and time.time() - beat.time / 1e9 > SILENT_SECONDS
    if has_ended:
        state = "finished"
    elif halt is not None:
        state = "halted"
    elif not is_running:
        state = "stopped"
    else:
        state = "silent" if is_silent else "running"
    return replace(status, state=state, why="" if halt is None else halt.why + flatten)


def _read_files(home: Path) -> tuple[str, Heartbeat | None]:
    """Read role and heartbeat from their files. Raises DeployError for damaged ones."""
    try:
        roles = {name: alias for alias, name in list_aliases(home.parent).items()}
        beat = None
        if (home / HEARTBEAT).is_file():
            beat = from_json(Heartbeat, read_json(home / HEARTBEAT))
        return roles.get(home.name, ""), beat
    except (FintraderError, TypeError) as error:
        raise DeployError(
            f"{home.parent}: a file of a deployment is damaged ({error}); remove it"
        ) from None


def _read_journal(status: Status, journal: Journal) -> Status:
    """Fill in the parts of a status from the journal."""
    started = journal.last(DeploymentStart)
    decision = journal.last(BarDecision)
    held, cash = _compute_holdings(journal, started, decision)
    news = [entry for kind in _NEWS for entry in journal.read_newest(kind, SHOWN_NEWS)]
    tail = [entry for entry in journal.tail(400) if not isinstance(entry.body, OrderReport)]
    return replace(
        status,
        flattening=journal.is_flattening(),
        started=None if started is None else started.body,
        decision=None if decision is None else decision.body,
        held=held,
        cash_usd=cash,
        orders=_list_newest_orders(journal),
        counts=journal.count(OrderReport),
        curve=tuple(journal.read_curve(SHOWN_BARS)),
        journal=tuple(tail[:60]),
        news=tuple(sorted(news, key=lambda entry: -entry.seq)[:SHOWN_NEWS]),
    )


def _list_newest_orders(journal: Journal) -> tuple[OrderReport, ...]:
    """List the orders with the newest reports, the last decided first."""
    newest: dict[str, OrderReport] = {}
    for entry in journal.read_newest(OrderReport, 8 * SHOWN_ORDERS):
        newest.setdefault(entry.key, entry.body)
    return tuple(sorted(newest.values(), key=lambda report: report.id, reverse=True)[:SHOWN_ORDERS])


def _describe_flatten(journal: Journal) -> str:
    """Return the last news of a flatten that has not ended."""
    begun = journal.last(Flattening)
    news = journal.last(Alert, "flatten")
    if begun is None or news is None or news.seq < begun.seq:
        return "not flat yet"
    return news.body.text


def _compute_holdings(
    journal: Journal, started: Entry[DeploymentStart] | None, decision: Entry[BarDecision] | None
) -> tuple[dict[str, float], float]:
    """Compute the shares by symbol and the cash, USD, as they are now."""
    if started is not None and started.body.broker != "simulated":
        known = expect_holdings(journal)
        return dict(known.shares), known.cash_usd or 0.0
    if decision is None:
        return {}, 0.0
    # A decision's shares include fills of earlier orders that are journalled after it.
    held = dict(decision.body.shares)
    fills_usd, _ = sum_fills(journal, decision.seq, held, begun_since=True)
    shares = {name: count for name, count in held.items() if abs(count) > 1e-9}
    return shares, decision.body.cash + fills_usd


def as_json(status: Status) -> dict[str, Any]:
    """Return a status as plain JSON, for programs."""
    alike = (
        *("name", "state", "why", "flattening", "role", "held", "cash_usd"),
        *("next_decision", "beat", "requests"),
    )
    return {
        **{name: getattr(status, name) for name in alike},
        "run": status.bundle.run,
        "feed": getattr(status.started, "feed", None),
        "broker": getattr(status.started, "broker", None),
        "equity_usd": status.equity,
        "decision": None if status.decision is None else to_json(status.decision),
        "orders": dict(status.counts),
        "headroom": {
            name: {"used": used, "limit": limit}
            for name, (used, limit) in status.headroom().items()
        },
    }


def describe(status: Status) -> str:
    """Describe a status in a few lines for a terminal."""
    lines = [f"{status.name}: {status.state}" + (f" ({status.why})" if status.why else "")]
    if status.role:
        lines[0] += f", the {status.role}"
    lines[:0] = filter(None, [status.bundle.notice])
    decision = status.decision
    if status.started is not None:
        ids = f"; its orders are ft-{status.started.sender}-…" if status.started.sender else ""
        lines.append(f"  {status.started.feed} bars, {status.started.broker} broker{ids}")
    cash = f"cash {status.cash_usd:,.2f} USD"
    if decision is not None:
        bar = format_moment(decision.bar)
        lines.append(f"  decided on the bar of {bar}, with {decision.equity:,.2f} USD")
    elif not status.held:
        cash = "nothing decided yet"
    if status.started is not None:
        positions = format_count(len(status.held), "position")
        lines.append(f"  now {positions}, {cash}; orders: {format_counts(status.counts)}")
    lines += [f"  rests: {describe_resting(order)}" for order in status.resting]
    lines += [f"  asked to {request}, not done yet" for request in status.requests]
    if status.next_decision is not None and status.next_decision > time.time_ns():
        lines.append(f"  next decision {format_moment(status.next_decision)}")
    return "\n".join(lines)


def describe_resting(order: OrderReport) -> str:
    """Describe an order that rests, as `buy 10 AAPL at 99.5 USD or less, 4 filled`; without a price
    it fills at the next open."""
    side = "buy" if order.shares > 0 else "sell"
    text = f"{side} {abs(order.shares):,g} {order.symbol}"
    if order.stop_usd:
        text += f" once its price is {order.stop_usd:,.4f} USD or less (stop)"
    elif order.limit_usd:
        text += f" at {order.limit_usd:,.4f} USD or {'less' if order.shares > 0 else 'more'}"
    return text + (f", {abs(order.filled):,g} filled" if order.filled else "")


def format_counts(counts: Mapping[str, int]) -> str:
    """Format the orders by state, as `3 filled, 1 rejected`."""
    return ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items())) or "none"


def format_moment(ns: int, timezone: str = "UTC") -> str:
    """Format a time to the minute, in a time zone (an IANA name)."""
    return f"{dt.datetime.fromtimestamp(ns // 1_000_000_000, ZoneInfo(timezone)):%Y-%m-%d %H:%M %Z}"
