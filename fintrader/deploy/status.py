"""What a deployment is doing, read from what lies in its folder; needs no torch, and writes
nothing."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from fintrader.backtesting.limits import LimitSettings
from fintrader.bars.calendar import timezone_of
from fintrader.deploy.broker import OrderReport
from fintrader.deploy.control import list_aliases, list_requests
from fintrader.deploy.journal import Entry, Journal
from fintrader.deploy.reconcile import expect_holdings, sum_fills
from fintrader.errors import DataError, DeployError, FintraderError
from fintrader.files import read_json, unseal
from fintrader.storage.lease import is_held
from fintrader.storage.objects import ObjectStore

BUNDLE = "bundle/bundle.json"
JOURNAL = "journal.sqlite"
HEARTBEAT = "heartbeat.json"
REPORT = "drift.json"
SHOWN_ORDERS = 100
SILENT_NS = 120 * 1_000_000_000
"""A live loop writes its beat every ten seconds; requests to a broker may hold it up for longer."""
_NEWS = ("alert", "halt", "resume")


@dataclass(frozen=True)
class Status:
    """A deployment as it stands. Parts that are not there yet are empty."""

    name: str
    bundle: Mapping[str, Any]
    """`bundle.json`."""
    state: str
    """not begun, running, silent (it holds its lease and its loop stands still), halted, stopped,
    finished."""
    why: str = ""
    """Of a halt."""
    flattening: bool = False
    """Whether a flatten was asked for that has not ended; `why` then says what is left."""
    role: str = ""
    """champion, challenger, or neither."""
    started: Mapping[str, Any] = field(default_factory=dict)
    """Feed, broker, limits, and the first bar."""
    decision: Entry | None = None
    """The newest."""
    held: Mapping[str, float] = field(default_factory=dict)
    """Symbol -> shares, as they are now by the journal."""
    cash_usd: float = 0.0
    """As `held`."""
    next_decision: int | None = None
    """Nanoseconds since 1970 UTC, of one that runs live."""
    beat: int | None = None
    """When the loop of a live one was last seen, ns since 1970 UTC."""
    orders: tuple[OrderReport, ...] = ()
    """The newest ones, newest first."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Orders by state, all of them."""
    curve: tuple[tuple[int, float], ...] = ()
    """Start of the bar and equity, oldest first."""
    journal: tuple[Entry, ...] = ()
    """The newest entries, newest first, orders left out."""
    news: tuple[Entry, ...] = ()
    """The newest alerts, halts and resumptions, newest first."""
    requests: tuple[str, ...] = ()
    """What was asked of it (halt, resume, flatten) and not done yet."""
    report: Mapping[str, Any] | None = None
    """The drift report, once there is one."""

    @property
    def equity(self) -> float | None:
        """USD, at the newest bar at which it is known."""
        return self.curve[-1][1] if self.curve else None

    @property
    def timezone(self) -> str:
        """The market's own time zone, an IANA name; UTC where the bundle names no calendar that is
        known."""
        try:
            return timezone_of(str(self.bundle.get("calendar")))
        except DataError:
            return "UTC"

    def headroom(self) -> dict[str, tuple[float, float]]:
        """Limit -> how much of it is used, and the limit, as shares of equity."""
        if self.decision is None:
            return {}
        body = self.decision.body
        limits = LimitSettings.model_validate(self.started.get("limits", {}))
        day = 86_400_000_000_000
        today = int(body["bar"]) // day
        before = [equity for bar, equity in self.curve if bar // day < today] or [self.curve[0][1]]
        equity = float(body["equity"])
        held = {name: n * float(body["prices"].get(name, 0.0)) for name, n in self.held.items()}
        largest = max((abs(value) for value in held.values()), default=0.0)
        return {
            "Loss of the day": (max(1 - equity / before[-1], 0.0), limits.day_loss),
            "Loss from the peak": (max(1 - equity / float(body["peak"]), 0.0), limits.drawdown),
            "Turnover of the day": (float(body["traded"]) / equity, limits.turnover),
            "All positions": (sum(map(abs, held.values())) / equity, limits.gross),
            "Largest position": (largest / equity, limits.weight),
        }


def list_names(folder: Path) -> list[str]:
    """Deployments in a folder."""
    frozen = {path.parent.parent.name for path in folder.glob(f"*/{BUNDLE}")}
    return sorted(frozen | {path.parent.name for path in folder.glob(f"*/{JOURNAL}")})


def read_status(home: Path) -> Status:
    """Raises DeployError for a folder that holds none, or a damaged one."""
    path = home / BUNDLE
    if not path.is_file():
        if (home / JOURNAL).is_file():
            raise DeployError(
                f"{path} is missing beside its journal; restore it, or freeze the run again"
            )
        raise DeployError(f"{home} holds no deployment; make one with `fintrader paper RUN`")
    bundle = unseal(
        path.read_bytes(), DeployError(f"{path} was changed or is damaged; freeze the run again")
    )
    try:
        named = {name: alias for alias, name in list_aliases(home.parent).items()}
        beat = read_json(home / HEARTBEAT) if (home / HEARTBEAT).is_file() else {}
        report = read_json(home / REPORT) if (home / REPORT).is_file() else None
        role = named.get(home.name, "")
        seen, following = (
            None if name not in beat else int(beat[name]) for name in ("time", "next_decision")
        )
        if report is not None and not {"daily", "shortfall", "equity"} <= set(report):
            raise ValueError(f"{REPORT} is no drift report")
    except (FintraderError, ValueError, TypeError, AttributeError) as error:
        raise DeployError(
            f"{home.parent}: a file beside the journal is damaged ({error}); remove it"
        ) from None
    if not (home / JOURNAL).is_file():
        return Status(home.name, bundle, "not begun", role=role)
    with Journal(home / JOURNAL, reading=True) as journal:
        started = journal.last("start")
        ended = journal.last("end")
        halted = journal.last("halt")
        resumed = journal.last("resume")
        decisions = journal.entries("decision")
        known = {
            int(e.body["bar"]): float(e.body["equity"])
            for e in (*journal.entries("mark"), *decisions)
        }
        orders = journal.orders()
        tail = [entry for entry in journal.tail(400) if entry.kind != "order"]
        newest = decisions[-1] if decisions else None
        held, cash = _value_standing(journal, started, newest)
        why = "" if halted is None else str(halted.body["why"])
        flattening = journal.is_flattening()
        if flattening:
            why += f"; {_flatten_text(journal)}"
        news = sorted(
            (e for kind in _NEWS for e in journal.entries(kind)), key=lambda entry: -entry.seq
        )
    stopped = halted is not None and (resumed is None or resumed.seq < halted.seq)
    if flattening and not is_held(ObjectStore(home)):
        why += "; nothing runs it: start it again to go on"
    if ended is not None:
        state = "finished"
    elif stopped:
        state = "halted"
    else:
        state = "running" if is_held(ObjectStore(home)) else "stopped"
        if state == "running" and seen is not None and time.time_ns() - seen > SILENT_NS:
            state = "silent"
    return Status(
        name=home.name,
        bundle=bundle,
        state=state,
        why=why if stopped else "",
        flattening=flattening,
        role=role,
        started={} if started is None else started.body,
        decision=newest,
        held=held,
        cash_usd=cash,
        next_decision=following,
        beat=seen,
        orders=tuple(reversed([*orders.values()][-SHOWN_ORDERS:])),
        counts=Counter(report.state for report in orders.values()),
        curve=tuple(sorted(known.items())),
        journal=tuple(tail[:60]),
        news=tuple(news[:20]),
        requests=tuple(kind for _, kind in list_requests(home)),
        report=report,
    )


def _flatten_text(journal: Journal) -> str:
    """What a flatten that has not ended said last."""
    asked = journal.last("flatten")
    told = journal.last("alert", "flatten")
    if asked is None or told is None or told.seq < asked.seq:
        return "not flat yet"
    return str(told.body["text"])


def _value_standing(
    journal: Journal, started: Entry | None, decision: Entry | None
) -> tuple[dict[str, float], float]:
    """Shares by symbol and cash, USD, as they are now."""
    if started is not None and started.body["broker"] != "simulated":
        known = expect_holdings(journal)
        return dict(known.shares), known.cash_usd or 0.0
    if decision is None:
        return {}, 0.0
    # The embedded broker's account has what earlier orders filled before the journal says so.
    held = {str(name): float(count) for name, count in decision.body["shares"].items()}
    cash = (
        float(decision.body["cash"]) + sum_fills(journal, decision.seq, held, begun_since=True)[0]
    )
    return {name: count for name, count in held.items() if abs(count) > 1e-9}, cash


def as_json(status: Status) -> dict[str, Any]:
    """The same as plain JSON, for programs."""
    decision = None if status.decision is None else dict(status.decision.body)
    return {
        "name": status.name,
        "state": status.state,
        "why": status.why,
        "flattening": status.flattening,
        "role": status.role,
        "run": status.bundle.get("run"),
        "feed": status.started.get("feed"),
        "broker": status.started.get("broker"),
        "equity_usd": status.equity,
        "decision": decision,
        "held": dict(status.held),
        "cash_usd": status.cash_usd,
        "next_decision": status.next_decision,
        "beat": status.beat,
        "orders": dict(status.counts),
        "requests": list(status.requests),
        "headroom": {
            name: {"used": used, "limit": limit}
            for name, (used, limit) in status.headroom().items()
        },
    }


def describe(status: Status) -> str:
    """A few lines for a terminal."""
    lines = [f"{status.name}: {status.state}" + (f" ({status.why})" if status.why else "")]
    if status.role:
        lines[0] += f", the {status.role}"
    if status.started:
        lines.append(f"  {status.started['feed']} bars, {status.started['broker']} broker")
    if status.decision is not None:
        body = status.decision.body
        lines.append(
            f"  decided {format_moment(int(body['bar']))} with {float(body['equity']):,.2f} USD"
        )
    if status.started:
        cash = (
            f"cash {status.cash_usd:,.2f} USD"
            if status.decision is not None or status.held
            else "nothing decided yet"
        )
        lines.append(
            f"  now {len(status.held)} positions, {cash}; orders: {_format_counts(status.counts)}"
        )
    lines += [f"  asked to {request}, not done yet" for request in status.requests]
    if status.next_decision is not None and status.next_decision > time.time_ns():
        lines.append(f"  next decision {format_moment(status.next_decision)}")
    return "\n".join(lines)


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items())) or "none"


def format_moment(ns: int, timezone: str = "UTC") -> str:
    """A time as text, to the minute, in a time zone (an IANA name)."""
    return f"{dt.datetime.fromtimestamp(ns // 1_000_000_000, ZoneInfo(timezone)):%Y-%m-%d %H:%M %Z}"
