"""Lives of a real deployment in a `World`, and the checks that its own books allow.

A `Life` is one market year of one seed: the real `Runner` over the world's feed and broker, killed
and begun again, with operators who hear its alerts. After every session the deployment's journal is
held against the world's ledger; each difference is a line of `problems`.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import functools
import os
import random
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import get_args
from unittest.mock import patch

import torch
from torch import Tensor

from fintrader.agents.policy import PolicyModule
from fintrader.backtesting.limits import LimitSettings
from fintrader.deploy import accounts, alerts, control
from fintrader.deploy.broker import Broker, OrderReport
from fintrader.deploy.bundle import Bundle
from fintrader.deploy.entries import Alert, Checkpoint, FlattenEnd, Halt
from fintrader.deploy.journal import Journal
from fintrader.deploy.reconcile import expect_holdings, reconcile
from fintrader.deploy.runner import Connections, Runner
from fintrader.deploy.settings import PaperSettings
from tests.engines.deployments import frozen, settings
from tests.engines.market_life import (
    CALENDAR,
    DAY,
    HOUR,
    MINUTE,
    NANO,
    SECOND,
    YEAR,
    Killed,
    MarketBroker,
    MarketFeed,
    Quote,
    Session,
    Ticket,
    Troubles,
    World,
)

SYMBOLS = 8
MOST = 1024
"""Shares of an action of 1, so that whole shares are exact in 32 bits."""
LIMITS = LimitSettings()
LOOKS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 60, 120, 300)
"""Seconds after a bar's open at which the loop looks up."""


def freeze_life(folder: Path, *, bar_minutes: int = 130, interval: int = 3) -> Bundle:
    """Freeze the bundle that all lives share; its own policy is never asked."""
    data = settings(
        bar_minutes=bar_minutes,
        calendar=CALENDAR,
        source={"num_symbols": SYMBOLS, "num_sessions": 40},
        features={"names": ["return_1"], "context": []},
    )
    rules = {"action": "trade", "max_shares": MOST, "dead_band": 0.0, "trade_rate": 1.0}
    return frozen(folder, data, decision_interval=interval, cost_bps=0.0, **rules)[0]


@dataclass
class Consult:
    """A question to the policy, its answer, and the account at that moment by the world's books."""

    time: int
    wishes: Mapping[str, int]
    """Whole shares."""
    orders: Mapping[str, int]
    """Billionths of shares that the limits leave of them."""
    most: Mapping[str, int]
    """The most that may be ordered, with doubtful prices."""
    cents: int
    cost: int
    """Cents of all purchases."""
    odd: frozenset[str]
    """Symbols whose bars or trading were not as usual."""
    factor: Fraction | None = None
    """Share of the purchases that the cash suffices for, once one has left."""
    sent: dict[str, int] = field(default_factory=dict)
    ratios: dict[str, Fraction] = field(default_factory=dict)
    """Splits since, by symbol."""
    is_checked: bool = False


@dataclass
class Cause:
    """A reason for which the deployment may halt, or has to."""

    time: int
    name: str
    must: bool


class ScriptedPolicy(PolicyModule):
    """Asks the life for its action."""

    def __init__(self, like: PolicyModule, life: Life) -> None:
        super().__init__()
        self.layout = like.layout
        self.meta = like.meta
        self.life = life

    def forward(self, obs: Tensor) -> Tensor:
        wishes = self.life.consult().wishes
        row = [wishes.get(symbol, 0) / MOST for symbol in self.life.world.symbols]
        return torch.tensor([row] * len(obs))


class LifeClock:
    """The world's time as a `Clock`: it moves from look to look."""

    live = True

    def __init__(self, life: Life) -> None:
        self.life = life

    def now(self) -> int:
        return self.life.world.now

    def sleep_until(self, moment: int, look: Callable[[], bool]) -> None:
        life = self.life
        while not look() and life.world.now < moment:
            life.pass_until(min(life.next_look(), moment))


class MortalJournal(Journal):
    """A journal before and after whose every write the process may end."""

    cross: Callable[[str], object] = staticmethod(lambda call: None)

    def write(self, *records: object, at: int) -> None:
        self.cross("before write")
        super().write(*records, at=at)
        self.cross("after write")


class Life:
    """One market year of a deployment. `run` it, and read `problems`."""

    def __init__(
        self,
        seed: int,
        home: Path,
        bundle: Bundle,
        *,
        sessions: int = YEAR,
        events: Sequence[tuple[int, str, Callable[[Life, Session], object]]] = (),
        change: Callable[[Runner], object] = lambda runner: None,
        begin_minutes: int | None = None,
        enough: int = 20,
        most_gone: int = 1,
    ) -> None:
        """events: number of the session, name, what happens before its open. change: gets each
        runner before it begins. begin_minutes: of `World`. enough: problems after which the life
        ends. most_gone: stocks that may be delisted or renamed; once two are gone, too few trade
        for a decision."""
        self.enough = enough
        self.most_gone = most_gone
        self.seed = seed
        self.home = home
        self.bundle = copy.copy(bundle)
        self.bundle.__dict__["policy"] = ScriptedPolicy(bundle.policy, self)
        self.change = change
        self.world = World(
            seed,
            bundle.symbols,
            sessions=sessions,
            bar_minutes=bundle.data.bar_minutes,
            begin_minutes=begin_minutes,
        )
        self.random = random.Random(f"life {seed}")
        """Of the newest event: what one draws changes no other."""
        self.troubles = Troubles()
        self.broker = MarketBroker(self.world, self.troubles, self.cross)
        self.broker.arrive = self._explain
        self.connection: Broker = self.broker
        """The broker that the runner gets."""
        self.feed = MarketFeed(self.world, self.troubles)
        self.problems: list[str] = []
        self.first_problem = 0
        """Sessions up to the first of them."""
        self.heard: list[tuple[int, Alert]] = []
        """Alerts that left, with their times."""
        self.happened: list[tuple[int, str]] = []
        """Number of the session and kind of each event."""
        self.consults: list[Consult] = []
        self.causes: list[Cause] = []
        self.disturbed: list[tuple[int, int]] = []
        """Times in which an order may be lost, or a look missing."""
        self.cut: list[tuple[int, int]] = []
        """Times without a process or without a broker."""
        self.lives = 0
        self.deaths = 0
        """Lives in a row that an error ended."""
        self.kill_at = 1 << 62
        self.kill_call = ""
        self.is_adopting = False
        self.is_alive = False
        self.downtime = MINUTE
        self.flatten_asked = 0
        self.odd: set[str] = set()
        """Symbols whose bars or trading are not as usual."""
        self._peak_cents = 0
        self._opening_cents = 0
        self._seen = 0
        """Number of the journal's last entry that was checked."""
        self._dead_since = self.world.now
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "bundle").exists():
            (home / "bundle").symlink_to(bundle.folder)
        self.traded = self.world.sessions[self.world.warm_up :]
        self.end = self.traded[-1].bars[-1][0] + bundle.data.bar_minutes * MINUTE
        for number, session in enumerate(self.traded):
            for begin, end in session.bars:
                self.world.at(end, self._watch_losses)
                self.world.at(end, functools.partial(self._watch_flatten, begin, end))
            self.world.at(session.close + 90 * MINUTE, functools.partial(self._audit, session))
            operator_at = session.open + self.random.randrange(45) * 4 * MINUTE
            self.world.at(operator_at, self._operate)
            if session.close - session.open < 5 * HOUR:
                self.world.at(session.open, functools.partial(self._name, number, "half_day"))
            before = self.world.sessions[self.world.warm_up + number - 1]
            if (session.open - before.open) % DAY:
                self.world.at(session.open, functools.partial(self._name, number, "clock_change"))
            for order, (at, name, event) in enumerate(events):
                if at == number:
                    happen = functools.partial(self._happen, order, number, name, event, session)
                    self.world.at(session.open - 6 * HOUR, happen)

    # --- running ---

    def run(self) -> Life:
        """Live to the end, through all deaths."""
        with self._in_virtual_time():
            while self.world.now < self.end and len(self.problems) < self.enough:
                self._live()
        self.world.advance(self.end + DAY)
        self.world.ledger.check()
        return self

    @contextlib.contextmanager
    def _in_virtual_time(self) -> Iterator[None]:
        """Throttles and pauses of the deployment go by the world's clock."""
        clock = SimpleNamespace(monotonic=lambda: self.world.now / SECOND)
        patient = functools.partial(
            reconcile, pause=lambda seconds: self.pass_until(self.world.now + int(seconds * SECOND))
        )
        with (
            patch.object(alerts, "time", clock),
            patch.object(accounts, "reconcile", patient),
            patch.object(os, "fsync", lambda file: None),
        ):
            yield

    def _live(self) -> None:
        """One life of the process."""
        self.lives += 1
        self.disturb(self._dead_since, self.world.now + 5 * MINUTE)
        self.cut.append((self._dead_since, self.world.now))
        journal = MortalJournal(self.home / control.JOURNAL, durable=False)
        journal.cross = self.cross
        self.is_alive = True
        begun = self.world.now
        try:
            runner = Runner(
                self.bundle,
                PaperSettings(adopt=self.is_adopting, limits=LIMITS),
                Connections(LifeClock(self), self.feed, self.connection, journal),
                window=None,
                until=self.end,
            )
            for cause in self.causes if self.is_adopting else ():
                cause.must = False  # the start's alert names the difference
            self.is_adopting = False
            self._listen(runner)
            self.change(runner)
            runner.run()
        except Killed:
            self.is_alive = False
            self.deaths = 0
        except Exception as error:
            self.is_alive = False
            told = [alert for at, alert in self.heard if at >= self.world.now - MINUTE]
            if not any(alert.kind == "ended" for alert in told):
                self._note(f"died of {error!r}, and nobody was told")
            self.deaths += 1
            # It may refuse a start for a reason, which is told; it is begun again later.
            is_feedless = self.troubles.feed == "outage" and self.world.now < begun + MINUTE
            is_due = self.troubles.broker or is_feedless or (self.causes and self.deaths <= 2)
            if not is_due:
                self._note(f"died of {type(error).__name__}: {error}")
            for cause in self.causes:
                cause.must = False
            self.is_adopting = True  # a person looks, and begins it again
            self.downtime = HOUR
        finally:
            self.is_alive = False
            journal.close()
        self.kill_at = 1 << 62
        self.kill_call = ""
        self._dead_since = self.world.now
        self.world.advance(self.world.now + self.downtime)

    def _listen(self, runner: Runner) -> None:
        send = runner.alerts.send

        def hear(alert: Alert) -> bool:
            is_sent = self.is_alive and send(alert)
            if is_sent:
                self.heard.append((self.world.now, alert))
            return is_sent

        runner.alerts.send = hear  # type: ignore[method-assign]

    def cross(self, call: str) -> None:
        """Die here if that is planned; one that is dead does nothing more."""
        if self.is_alive and self.kill_call and call == self.kill_call:
            self._die()
        if not self.is_alive:
            raise Killed

    def _die(self) -> None:
        self.is_alive = False
        raise Killed

    def pass_until(self, moment: int) -> None:
        """Let the world go on, and die on the way if that is planned."""
        if len(self.problems) >= self.enough:
            self._die()
        if self.kill_at <= moment:
            self.world.advance(max(self.kill_at, self.world.now))
            self._die()
        self.world.advance(moment)

    def next_look(self) -> int:
        """The next moment at which the loop looks up: often while orders are under way."""
        now = self.world.now
        session = self.world.session_at(now)
        if session is None:
            return self.world.next_open(now)
        if self.flatten_asked:
            return now + (MINUTE if now % MINUTE else 5 * SECOND)
        at = bisect_right(session.bars, (now, 1 << 62)) - 1
        begin, end = session.bars[at]
        looks = [begin + after * SECOND for after in LOOKS]
        is_busy = self.consults and self.consults[-1].time >= begin - DAY / 2
        is_busy = is_busy or any(True for _ in self.world.open_tickets())
        looks = [look for look in looks if look > now] if is_busy else []
        # A second alert of a kind waits for a minute.
        looks += [at + MINUTE for at, _ in self.heard[-3:] if at + MINUTE > now]
        return min([*looks, now + 10 * MINUTE, end if now < end else now + MINUTE])

    # --- the policy and its limits ---

    def consult(self) -> Consult:
        """Answer for the policy; the wish hangs on the seed and the moment alone."""
        world = self.world
        draw = random.Random(f"{self.seed} {world.now // MINUTE}")
        held = world.ledger.shares
        equity = world.equity_cents
        greed = draw.choice((40, 70, 100, 115))
        wishes = {}
        for symbol in world.symbols:
            goal = draw.randrange(2 * greed)  # thousandths of the equity
            if draw.random() < 0.5 and world.stocks[symbol].gone is None:
                price = world.stocks[symbol].cents
                gap = (equity * goal // 1000 // price) - held.get(symbol, 0) // NANO
                wishes[symbol] = max(-MOST, min(MOST, gap))
        prices = {symbol: self.last_close(symbol) for symbol in world.symbols}
        orders = limit_orders(wishes, held, prices, world.cents)
        newest = [self._last_quote(symbol) for symbol in world.symbols]
        last = max((quote.end for quote in newest if quote), default=0)
        seen = sum(quote is not None and quote.end == last for quote in newest)
        if seen < LIMITS.symbols_with_bars * len(newest):
            orders = {}  # too few stocks trade; those that are gone may not count
        loose = {symbol: price * Fraction(97, 100) for symbol, price in prices.items()}
        most = limit_orders(wishes, held, loose, world.cents * 103 // 100)
        cost = sum(prices[symbol] * count for symbol, count in orders.items() if count > 0)
        cents, odd = world.ledger.cents, frozenset(self.odd)
        found = Consult(world.now, wishes, orders, most, cents, int(cost) // NANO, odd)
        self.consults.append(found)
        return found

    def _last_quote(self, symbol: str) -> Quote | None:
        """The newest bar that has closed."""
        known = [quote for quote in self.world.quotes[symbol][-2:] if quote.end <= self.world.now]
        return known[-1] if known else None

    def last_close(self, symbol: str) -> Fraction:
        """Cents at which a stock has closed, with splits since."""
        quote = self._last_quote(symbol)
        stock = self.world.stocks[symbol]
        is_split = quote is None or quote.end < stock.split_at
        return Fraction(stock.cents if is_split or quote is None else quote.close)

    # --- events, people ---

    def _happen(
        self,
        order: int,
        number: int,
        name: str,
        event: Callable[[Life, Session], object],
        session: Session,
    ) -> None:
        self.random = random.Random(f"{self.seed} {order} {number} {name}")
        if event(self, session) is not False:
            self._name(number, name)

    def _name(self, number: int, name: str) -> None:
        self.happened.append((number, name))

    def split(self, symbol: str, ratio: Fraction) -> None:
        """Split a stock and what is wished of it."""
        self.world.split(symbol, ratio)
        for consult in self.consults[-2:]:
            consult.ratios[symbol] = consult.ratios.get(symbol, Fraction(1)) * ratio

    def pick(self, *, is_held: bool = False) -> str | None:
        """Draw a stock with which nothing is the matter; None without one."""
        odd = self.odd
        names = [n for n, stock in self.world.stocks.items() if stock.gone is None and n not in odd]
        if is_held:
            names = [name for name in names if name in self.world.ledger.shares]
        return self.random.choice(names) if names else None

    def mark_odd(self, symbol: str, until: int) -> None:
        """Keep other events away from a stock until a moment."""
        self.odd.add(symbol)
        self.world.at(until, lambda: self.odd.discard(symbol))

    def disturb(self, begin: int, end: int) -> None:
        """Orders may be lost in this time, and looks missing."""
        self.disturbed.append((begin, end))

    def may_halt(self, name: str, *, must: bool = False) -> None:
        """A halt is explained from now on."""
        self.causes.append(Cause(self.world.now, name, must))

    def ask(self, request: control.Request) -> None:
        """A person's request."""
        control.ask(self.home, request)
        if request in ("halt", "flatten"):
            self.may_halt(f"asked to {request}")
            self.disturb(self.world.now, self.world.now + DAY)
        if request == "resume":
            self._peak_cents = self.world.equity_cents
        if request == "flatten" and not self.flatten_asked:
            self.flatten_asked = self.world.now

    def _operate(self) -> None:
        """Once a session a person looks, takes over what differs, and resumes an hour later."""
        with self._reading() as journal:
            if journal is None or journal.find_halt() is None or journal.is_flattening():
                return
            known = expect_holdings(journal)
        self.disturb(self.world.now - DAY, self.world.now + HOUR)
        cents = round((known.cash_usd or 0.0) * 100)
        if known.shares == self._held() and cents == self.world.ledger.cents:
            self.ask("resume")
            # A request may still be unread, and an order of a person's hand under way.
            self.causes = [cause for cause in self.causes if cause.time > self.world.now - 5 * DAY]
            for cause in self.causes:
                cause.must = False
            return
        if "accept" in get_args(control.Request):
            self.ask("accept")  # type: ignore[arg-type]
        elif self.is_alive:
            self.is_adopting = True
            self.kill_at = self.world.now
            self.downtime = MINUTE
        self.world.at(self.world.now + HOUR, self._operate)

    def _held(self) -> dict[str, float]:
        return {name: count / NANO for name, count in sorted(self.world.ledger.shares.items())}

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Journal | None]:
        path = self.home / control.JOURNAL
        if not path.exists():
            yield None
            return
        with Journal(path, reading=True) as journal:
            yield journal

    # --- checks ---

    def _note(self, problem: str) -> None:
        day = next(
            (s.day for s in reversed(self.traded) if s.open - 6 * HOUR <= self.world.now), ""
        )
        recent = [name for number, name in self.happened[-6:]]
        if not self.problems:
            self.first_problem = sum(session.open <= self.world.now for session in self.traded)
        self.problems.append(f"{day}: {problem} (last events: {', '.join(recent)})")

    def _watch_losses(self) -> None:
        equity = self.world.equity_cents
        self._opening_cents = self._opening_cents or equity
        self._peak_cents = max(self._peak_cents, equity)
        day = Fraction(equity, self._opening_cents) - 1
        peak = Fraction(equity, self._peak_cents) - 1
        if day <= Fraction(-25, 1000) or peak <= Fraction(-9, 100):
            self.may_halt("loss")

    def _audit(self, session: Session) -> None:
        """Hold the journal against the ledger, after a session's close."""
        self._opening_cents = self.world.equity_cents
        with self._reading() as journal:
            if journal is None:
                return
            self._check_halts(journal)
            self._check_orders(journal)
            self._check_lost(session, journal)
            self._check_account(journal)
            self._seen = journal.tail(1)[0].seq

    def _check_halts(self, journal: Journal) -> None:
        for entry in journal.entries(Halt, after=self._seen):
            if not any(cause.time <= entry.time for cause in self.causes):
                self._note(f"false halt: {entry.body.why}")
            if not any(
                alert.kind == "halt" and entry.time <= at <= entry.time + MINUTE
                for at, alert in self.heard
            ) and not self.is_cut(entry.time, entry.time + MINUTE):
                self._note(f"nobody heard of the halt: {entry.body.why}")
            for cause in self.causes:
                cause.must &= cause.time > entry.time
        for cause in self.causes:
            is_old = cause.must and cause.time < self.world.now - DAY
            if is_old and journal.find_halt() is None and self.is_alive:
                self._note(f"unnoticed: {cause.name}")
                cause.must = False

    def is_cut(self, begin: int, end: int) -> bool:
        """Check whether the process was dead, or the broker away, in a time."""
        if not self.is_alive or self.troubles.broker:
            return True
        return any(first <= end and begin <= last for first, last in self.cut[-30:])

    def is_disturbed(self, begin: int, end: int) -> bool:
        """Check whether a disturbance lies in a time."""
        dead = (self._dead_since, self.world.now) if not self.is_alive else (0, 0)
        return any(first <= end and begin <= last for first, last in (*self.disturbed[-60:], dead))

    def _check_orders(self, journal: Journal) -> None:
        """The journal knows every order at the broker, and its fills."""
        for ticket in reversed(self.world.tickets.values()):
            if ticket.sent < self.world.now - 2 * DAY:
                break
            if not ticket.is_own:
                continue
            entry = journal.last(OrderReport, ticket.id)
            report = None if entry is None else entry.body
            if report is None:
                self._note(f"{ticket.id} stands at the broker and in no journal")
                continue
            is_settled = not self._is_unsettled() and not ticket.is_open
            if is_settled and abs(report.filled - ticket.filled / NANO) > 1e-6:
                counts = f"{ticket.filled / NANO:g}, {report.filled:g} by the journal"
                self._note(f"{ticket.id} has filled {counts}")

    def _explain(self, ticket: Ticket) -> None:
        """Check an order that has just arrived: the policy and the limits explain it."""
        world = self.world
        name = f"{ticket.shares / NANO:g} {ticket.symbol} ({ticket.id})"
        self._end_flatten()
        if world.session_at(world.now) is None:
            self._note(f"{name} is sent while the exchange is closed")
        if self.flatten_asked:
            if -ticket.shares > max(world.ledger.shares.get(ticket.symbol, 0), 0):
                self._note(f"{name} sells more than is held")
            return
        consult = self._find_consult(ticket)
        if consult is None:
            return self._note(f"{name} is no decision's")
        if consult.factor is None and ticket.shares > 0:
            others = [one for one in world.open_tickets() if one.left > 0 and one is not ticket]
            bound = sum(world.value(one.symbol, one.left) for one in others)
            room = Fraction(99, 100) * max(world.ledger.cents - bound, 0)
            consult.factor = min(Fraction(1), room / max(consult.cost, 1))
        ratio = consult.ratios.get(ticket.symbol, Fraction(1))
        most = consult.most.get(ticket.symbol, 0) * ratio
        sent = consult.sent.get(ticket.symbol, 0) + ticket.shares
        if sent * most <= 0 or abs(sent) > abs(most) + NANO:
            self._note(f"{name} makes {sent / NANO:g}, and {float(most) / NANO:g} are explained")
        if ticket.state != "rejected":
            consult.sent[ticket.symbol] = sent
        return None

    def _find_consult(self, ticket: Ticket) -> Consult | None:
        """The question to the policy that an order's id names by its bar."""
        found = re.search(r"\d{8}T\d{6}Z", ticket.id)
        if found is None:
            return None
        stamp = dt.datetime.strptime(found[0] + "+0000", "%Y%m%dT%H%M%SZ%z")
        closed = int(stamp.timestamp()) * SECOND
        length = self.bundle.data.bar_minutes * MINUTE
        for consult in reversed(self.consults[-8:]):
            if closed <= consult.time < closed + 2 * length:
                return consult
        return None

    def _check_lost(self, session: Session, journal: Journal) -> None:
        """Each decision of before the session's last minutes has led to its orders, unless a halt
        came with it, whose reason is checked elsewhere."""
        halts = [entry.time for entry in journal.entries(Halt, after=self._seen)]
        for consult in self.consults[-8:]:
            if consult.is_checked or consult.time > session.close - 10 * MINUTE:
                continue
            consult.is_checked = True
            is_halted = any(consult.time <= at <= session.close for at in halts)
            if is_halted or self.is_disturbed(consult.time - DAY, session.close):
                continue
            for symbol, shares in consult.orders.items():
                is_odd = symbol in self.odd | consult.odd
                refused = any(
                    t.symbol == symbol and t.sent >= consult.time for t in self.world.refused[-9:]
                )
                if is_odd or refused:
                    continue
                if shares > 0 and consult.factor is None and consult.cents < consult.cost * 2:
                    continue  # no cash was left for it, perhaps
                ratio = consult.ratios.get(symbol, Fraction(1))
                factor = ratio * (1 if shares < 0 else consult.factor or 1)
                due = int(shares * factor / NANO)
                sent = int(Fraction(consult.sent.get(symbol, 0), NANO))
                if abs(due - sent) > 1 + abs(due) // 100:
                    self._note(f"{sent} {symbol} were ordered, {due} are due")

    def _is_unsettled(self) -> bool:
        return self.is_disturbed(self.world.now - 8 * HOUR, self.world.now)

    def _check_account(self, journal: Journal) -> None:
        """The journal's account is the ledger's, to the share and the cent."""
        agreed = journal.last(Checkpoint)
        if agreed is None or self.causes or self._is_unsettled():
            return
        known = expect_holdings(journal)
        if known.shares != self._held():
            self._note(f"the journal has {dict(known.shares)}, the account {self._held()}")
        later = sum(line.cents for line in self.world.ledger.activities if line.time > agreed.time)
        gap = self.world.ledger.cents - later - round((known.cash_usd or 0.0) * 100)
        if gap:
            self._note(f"the journal's cash is off by {gap / 100:.2f} USD")

    def _end_flatten(self) -> None:
        """Note the end of a flatten, which leaves nothing."""
        asked = self.flatten_asked
        if not asked:
            return
        with self._reading() as journal:
            ended = None if journal is None else journal.last(FlattenEnd)
            if journal is None or journal.is_flattening() or ended is None or ended.time < asked:
                return
        self.flatten_asked = 0
        later = [t.symbol for t in self.world.tickets.values() if t.sent >= ended.time]
        own = [name for name in self._held() if name in self.world.symbols and name not in later]
        moved = any(word in cause.name for cause in self.causes for word in ("hand", "busted"))
        if own and not moved:
            self._note(f"the flatten has ended with {own}")

    def _watch_flatten(self, begin: int, end: int) -> None:
        """At the end of a bar, look for a flatten that is neither over nor heard of."""
        self._end_flatten()
        asked = self.flatten_asked
        length = end - begin
        if not asked or asked > begin - length or self.is_cut(asked, end):
            return
        left = [
            name
            for name in self._held()
            if name in self.world.symbols and not self.world.stocks[name].is_halted(begin)
        ]
        told = [at for at, alert in self.heard if alert.kind == "flatten" and at >= begin - length]
        if left and not told:
            self._note(f"a flatten leaves {left} after two bars and says nothing")


def limit_orders(
    wishes: Mapping[str, int],
    held: Mapping[str, int],
    prices: Mapping[str, Fraction | int],
    cents: int,
    limits: LimitSettings = LIMITS,
) -> dict[str, int]:
    """Cut a policy's wishes (whole shares) to the limits, in exact arithmetic; billionths of
    shares.

    Neither the turnover's limit nor a benchmark binds in these lives.
    """
    held = {name: count for name, count in held.items() if name in prices}
    equity = cents + sum(Fraction(count, NANO) * prices[name] for name, count in held.items())
    goals = {}
    for name, wish in wishes.items():
        have = Fraction(held.get(name, 0), NANO)
        price = prices[name]
        order = max(Fraction(wish), -have)
        if order > 0:
            room = max(Fraction(str(limits.weight)) * equity / price - have, Fraction(0))
            if room < order:
                order = Fraction(int(room))
        largest = Fraction(str(limits.order)) * equity / price
        if abs(order) > largest:
            order = Fraction(int(largest)) * (1 if order > 0 else -1)
        goals[name] = order
    gross = equity * Fraction(str(limits.gross))
    whole = {name: Fraction(count, NANO) + goals.get(name, 0) for name, count in held.items()}
    whole |= {name: order for name, order in goals.items() if name not in held}
    value = sum(count * prices[name] for name, count in whole.items())
    if value > gross:
        kept = sum(
            min(count, Fraction(held.get(name, 0), NANO)) * prices[name]
            for name, count in whole.items()
        )
        share = max(gross - kept, Fraction(0)) / (value - kept)
        for name, order in goals.items():
            if order > 0:
                goals[name] = Fraction(int(order * share))
    return {name: int(order * NANO) for name, order in goals.items() if order}
