"""A broker and a market that live years in minutes, with their own books.

Nothing here comes from `fintrader.deploy` but the shapes of its calls. Money is counted in whole
cents and shares in billionths, so that no sum is ever rounded; a `World` moves from event to event
(`advance`), and everything that happens in it is drawn from one seed. `MarketFeed` and
`MarketBroker` show it to a deployment; `market_life_events` holds the kinds of event, and
`market_life_run` the deployment's lives and the checks.
"""

from __future__ import annotations

import datetime as dt
import heapq
import itertools
import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

import exchange_calendars as xc
import numpy as np
import pandas as pd
from exchange_calendars.exchange_calendar_xnys import XNYSExchangeCalendar

from fintrader.bars.bars import Bars
from fintrader.bars.corporate_actions import Action
from fintrader.deploy import broker as calls
from fintrader.deploy.broker import BrokerAccount, Order, OrderReport
from fintrader.errors import BrokerUnsureError, DataError, OrderTakenError

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NANO = 1_000_000_000
"""Billionths of a share."""
CALENDAR = "LIFE"
FIRST_YEAR, LAST_YEAR = 2008, 2024
YEAR = 250
MONTH = 20
"""Sessions of a market year, and of a month."""


class Killed(BaseException):
    """Stands for SIGKILL: nothing below the simulator catches it."""


# --- the calendar ---------------------------------------------------------------------------------


class LifeCalendar(XNYSExchangeCalendar):
    """New York's sessions, with half days more: one beside each change of the clocks."""

    name = CALENDAR

    @property
    def special_closes_adhoc(self) -> list[Any]:
        days = []
        for year in range(FIRST_YEAR, LAST_YEAR + 1):
            spring, autumn = clock_changes(year)
            days += [spring - dt.timedelta(days=2), autumn + dt.timedelta(days=2)]
        return [*super().special_closes_adhoc, (dt.time(13), pd.DatetimeIndex(days))]


def clock_changes(year: int) -> tuple[dt.date, dt.date]:
    """The second Sunday of March and the first one of November."""
    march, november = dt.date(year, 3, 8), dt.date(year, 11, 1)
    return tuple(day + dt.timedelta(days=6 - day.weekday()) for day in (march, november))  # type: ignore[return-value]


if CALENDAR not in xc.get_calendar_names():
    xc.register_calendar_type(CALENDAR, LifeCalendar)


@dataclass(frozen=True)
class Session:
    """A day of the exchange, in nanoseconds since 1970 UTC."""

    day: dt.date
    open: int
    close: int
    bars: tuple[tuple[int, int], ...]
    """Begin and end of each bar; the last may be shorter."""


@lru_cache(maxsize=8)
def list_sessions(year: int, bar_minutes: int) -> tuple[Session, ...]:
    """All sessions of two years, from the exchange's opens and closes alone."""
    calendar = xc.get_calendar(CALENDAR, start=f"{year}-01-01", end=f"{year + 1}-12-31")
    found = []
    for day, opens, closes in zip(
        calendar.sessions, calendar.opens.array, calendar.closes.array, strict=True
    ):
        begin, end = int(opens.timestamp()) * SECOND, int(closes.timestamp()) * SECOND
        starts = range(begin, end, bar_minutes * MINUTE)
        bars = tuple((start, min(start + bar_minutes * MINUTE, end)) for start in starts)
        found.append(Session(day.date(), begin, end, bars))
    return tuple(found)


# --- the ledger -----------------------------------------------------------------------------------


@dataclass
class Ticket:
    """An order as the broker has it; shares in billionths, negative to sell."""

    id: str
    symbol: str
    shares: int
    sent: int
    is_own: bool
    """False for an order of a person's hand."""
    state: str = "accepted"
    filled: int = 0
    paid: int = 0
    """Cents for the filled shares, negative to a seller's account."""
    reason: str = ""
    cut: Fraction | None = None
    """Share of it that fills; the rest stands until its end."""
    limit: int | None = None
    """Cents; None without one."""
    stop: int | None = None
    """Cents at which it becomes a market order; None without one, or once it was reached."""
    is_stop: bool = False
    """Good till cancelled; all others are for the day."""

    @property
    def is_open(self) -> bool:
        return self.state in ("accepted", "partial")

    @property
    def left(self) -> int:
        return self.shares - self.filled


@dataclass(frozen=True)
class Activity:
    """A line of the account's statement that is no fill."""

    number: int
    time: int
    kind: str
    """fee, interest, dividend, split, lieu, rename, delisting, deposit, withdrawal, bust."""
    symbol: str
    shares: int
    cents: int


KINDS_OF_LINES = {
    **dict.fromkeys(("deposit", "withdrawal"), "transfer"),
    "split": "split",
    "dividend": "dividend",
    "rename": "rename",
}
"""Kind of a line -> kind of an activity; all others are `other`."""


@dataclass
class Ledger:
    """Cash and shares of one account, and the statement that explains them."""

    cents: int
    shares: dict[str, int] = field(default_factory=dict)
    fills: list[tuple[int, str, int, int]] = field(default_factory=list)
    """Time, symbol, billionths of shares, cents."""
    activities: list[Activity] = field(default_factory=list)
    first_cents: int = 0

    def __post_init__(self) -> None:
        self.first_cents = self.cents

    def move(self, symbol: str, shares: int) -> None:
        left = self.shares.get(symbol, 0) + shares
        self.shares[symbol] = left
        if not left:
            del self.shares[symbol]

    def book(self, time: int, kind: str, symbol: str = "", shares: int = 0, cents: int = 0) -> None:
        """Book a change that is no fill."""
        if shares:
            self.move(symbol, shares)
        self.cents += cents
        number = len(self.activities) + 1
        self.activities.append(Activity(number, time, kind, symbol, shares, cents))

    def check(self) -> None:
        """Add the statement up, which has to make the account."""
        shares: Counter[str] = Counter()
        for line in self.activities:
            shares[line.symbol] += line.shares
        for _, symbol, count, _ in self.fills:
            shares[symbol] += count
        cents = self.first_cents + sum(line.cents for line in self.activities)
        assert cents - sum(paid for *_, paid in self.fills) == self.cents
        assert {name: count for name, count in shares.items() if count} == self.shares


# --- the market -----------------------------------------------------------------------------------


@dataclass
class Stock:
    """A symbol's price in cents, from bar to bar."""

    symbol: str
    cents: int
    base: int
    """The price that it returns to."""
    halts: list[tuple[int, int]] = field(default_factory=list)
    """Times in which it does not trade, ns."""
    gone: int | None = None
    """When it was delisted or renamed."""
    split_at: int = 0
    """When its price last changed by a split or a dividend."""

    def is_halted(self, moment: int) -> bool:
        return any(begin <= moment < end for begin, end in self.halts)


@dataclass(frozen=True)
class Quote:
    """A bar of a symbol, in cents."""

    begin: int
    end: int
    symbol: str
    open: int
    high: int
    low: int
    close: int
    volume: int


class World:
    """The market, the account and what happens to both; `now` is the exchange's time."""

    def __init__(
        self,
        seed: int,
        symbols: Sequence[str],
        *,
        sessions: int,
        warm_up: int = 6,
        bar_minutes: int = 130,
        cash_usd: int = 1_000_000,
        begin_minutes: int | None = None,
    ) -> None:
        """begin_minutes: time after the first open at which a deployment begins, which decides at
        which bar of a session it decides; drawn unless given."""
        self.seed = seed
        self.random = random.Random(seed)
        year = self.random.randrange(FIRST_YEAR, LAST_YEAR, 4)
        whole = list_sessions(year, bar_minutes)
        first = self.random.randrange(warm_up, len(whole) - max(sessions, YEAR) - 1)
        self.sessions = whole[first - warm_up : first + sessions]
        self.warm_up = warm_up
        self.bars_a_day = max(len(session.bars) for session in self.sessions)
        self.symbols = tuple(symbols)
        self.stocks = {}
        for symbol in symbols:
            cents = self.random.randrange(3_000, 20_000)
            self.stocks[symbol] = Stock(symbol, cents, cents)
        self.ledger = Ledger(cash_usd * 100)
        self.number = f"LIFE{seed}"
        self.tickets: dict[str, Ticket] = {}
        self.sent_at: list[int] = []
        self.stops: list[Ticket] = []
        """Those that stand, and the last ones that do not any more."""
        self.refused: list[Ticket] = []
        self.quotes: dict[str, list[Quote]] = {symbol: [] for symbol in symbols}
        self.announced: list[tuple[int, Action]] = []
        """From when on the feed knows each action."""
        self.drift = 0
        """Basis points that every stock moves with each bar."""
        self.now = self.sessions[0].open - HOUR
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._owed_cents = 0
        self._count = itertools.count()
        for session in self.sessions:
            for begin, end in session.bars:
                self.at(begin, lambda begin=begin, end=end: self._trade_bar(begin, end))
            self.at(session.close, self._end_day)
        if begin_minutes is None:
            begin_minutes = self.random.choice((-60, 60, 180, 180, 180))
        self.advance(self.sessions[warm_up].open + begin_minutes * MINUTE)

    # --- time ---

    def at(self, moment: int, action: Callable[[], object]) -> None:
        """Let something happen at a moment."""
        heapq.heappush(self._due, (moment, next(self._count), action))

    def advance(self, moment: int) -> None:
        """Live up to a moment."""
        while self._due and self._due[0][0] <= moment:
            due, _, action = heapq.heappop(self._due)
            self.now = max(self.now, due)
            action()
        self.now = max(self.now, moment)

    @property
    def next_event(self) -> int:
        return self._due[0][0] if self._due else 1 << 62

    def session_at(self, moment: int) -> Session | None:
        """The session in whose hours a moment lies."""
        at = bisect_right(self.sessions, moment, key=lambda session: session.open) - 1
        session = self.sessions[max(at, 0)]
        return session if session.open <= moment < session.close else None

    def next_open(self, moment: int) -> int:
        """The next time at which the exchange is open; a day after its last one at the end."""
        for session in self.sessions[bisect_right(self.sessions, moment, key=_closes) :]:
            return max(session.open, moment)
        return moment + DAY

    # --- prices ---

    def _trade_bar(self, begin: int, end: int) -> None:
        """Draw the bar that begins now; it is known once it has closed."""
        share = (end - begin) / (130 * MINUTE)
        for stock in self.stocks.values():
            draw = self.random.gauss(0.0, 12.0 * math.sqrt(share))
            draw += share * (40.0 * (stock.base - stock.cents) / stock.base + self.drift)
            opened = stock.cents
            closed = max(opened + round(opened * draw / 10_000), 20)
            if stock.gone is None and not stock.is_halted(begin):
                high = max(opened, closed) + self.random.randrange(3)
                low = min(opened, closed) - self.random.randrange(3)
                quote = Quote(begin, end, stock.symbol, opened, high, low, closed, 400_000)
                self.quotes[stock.symbol].append(quote)
                stock.cents = closed

    def price(self, symbol: str) -> int:
        """Cents at this moment: within a bar on the straight line from its open to its close."""
        stock = self.stocks[symbol]
        quotes = self.quotes[symbol]
        if not quotes or self.now >= quotes[-1].end:
            return stock.cents
        bar = quotes[-1]
        share = Fraction(self.now - bar.begin, bar.end - bar.begin)
        return round(bar.open + share * (bar.close - bar.open))

    def value(self, symbol: str, shares: int) -> int:
        """Cents that shares are worth now."""
        return _to_cents(shares * self.price(symbol))

    @property
    def equity_cents(self) -> int:
        held = self.ledger.shares.items()
        return self.cents + sum(self.value(symbol, shares) for symbol, shares in held)

    @property
    def cents(self) -> int:
        """The account's cash, with the dividends that are due."""
        return self.ledger.cents + self._owed_cents

    def pay_dividend(self, symbol: str, cents: int, moment: int) -> None:
        """Owe the dividend of a share of `symbol` from now on, and book it at a moment."""
        paid = self.ledger.shares[symbol] * cents // NANO
        self._owed_cents += paid

        def book() -> None:
            self._owed_cents -= paid
            self.ledger.book(self.now, "dividend", symbol, 0, paid)

        self.at(moment, book)

    # --- orders ---

    def submit(self, ticket: Ticket) -> Ticket:
        """Take an order as a broker does: it is refused for what the account cannot bear."""
        if ticket.id in self.tickets:
            raise OrderTakenError(f"an order {ticket.id} stands already")
        stock = self.stocks.get(ticket.symbol)
        others = list(self.open_tickets())
        if ticket.reason:
            pass
        elif stock is None or stock.gone is not None:
            ticket.reason = f"asset {ticket.symbol} is not active"
        elif ticket.shares < 0:
            bound = sum(-one.left for one in others if one.symbol == ticket.symbol and one.left < 0)
            free = self.ledger.shares.get(ticket.symbol, 0) - bound
            if -ticket.shares > free:
                ticket.reason = "insufficient qty available for order"
            elif ticket.stop is not None and ticket.stop * 1001 > self.price(ticket.symbol) * 1000:
                ticket.reason = "stop price must not be greater than base price / 1.001"
        else:
            bound = sum(self._cost(one) for one in others if one.left > 0)
            if self._cost(ticket) > self.ledger.cents - bound:
                ticket.reason = "insufficient buying power"
        if not ticket.reason and any(self._crosses(ticket, one) for one in others):
            ticket.reason = "potential wash trade detected. use complex orders"
        if ticket.reason:
            ticket.state = "rejected"
            self.refused.append(ticket)
        else:
            self.tickets[ticket.id] = ticket
            if ticket.is_stop:
                self.stops = [one for one in self.stops if one.is_open]
                self.stops.append(ticket)
            self.sent_at.append(ticket.sent)
            self.at(self.now + self.random.randrange(1, 4) * SECOND, lambda: self._fill(ticket))
        return ticket

    def _cost(self, ticket: Ticket) -> int:
        """Cents that a purchase may take."""
        if ticket.limit is None:
            return self.value(ticket.symbol, ticket.left)
        return _to_cents(ticket.left * ticket.limit)

    def _crosses(self, ticket: Ticket, other: Ticket) -> bool:
        """Whether two orders that rest may not stand next to each other, as Alpaca has it."""
        if ticket.symbol != other.symbol or (ticket.shares > 0) == (other.shares > 0):
            return False
        if ticket.limit is None or other.limit is None:
            return ticket.is_stop or other.is_stop
        bid, ask = (ticket, other) if ticket.shares > 0 else (other, ticket)
        return bid.limit >= ask.limit  # type: ignore[operator]

    def open_tickets(self) -> Iterator[Ticket]:
        """Orders that stand, of the last day, and stops."""
        yield from [one for one in self.stops if one.is_open and one.sent < self.now - DAY]
        for ticket in reversed(self.tickets.values()):
            if ticket.sent < self.now - DAY:
                return
            if ticket.is_open:
                yield ticket

    def _is_met(self, ticket: Ticket) -> bool:
        """Whether an order that rests trades at the price of now."""
        price = self.price(ticket.symbol)
        if ticket.stop is not None and price <= ticket.stop:
            ticket.stop = None
        if ticket.limit is not None:
            return price <= ticket.limit if ticket.shares > 0 else price >= ticket.limit
        return ticket.stop is None

    def _fill(self, ticket: Ticket) -> None:
        if not ticket.is_open:
            return
        stock = self.stocks.get(ticket.symbol)
        if stock is None or stock.gone is not None:
            return self.end(ticket, "cancelled", "the asset is not active any more")
        if self.session_at(self.now) is None or stock.is_halted(self.now):
            wait = MINUTE
            if ticket.is_stop and self.session_at(self.now) is None:  # it may stand for months
                wait = max(self.next_open(self.now) - self.now, MINUTE)
            self.at(self.now + wait, lambda: self._fill(ticket))
            return None
        if not self._is_met(ticket):
            self.at(self.now + 5 * MINUTE, lambda: self._fill(ticket))
            return None
        shares = ticket.left
        if ticket.cut is not None:
            part = int(ticket.left * ticket.cut / NANO) * NANO
            is_rest_due = self.random.random() < 0.5
            ticket.cut = None
            shares = part
            if is_rest_due:
                wait = self.random.choice((20 * SECOND, 5 * MINUTE, HOUR))
                self.at(self.now + wait, lambda: self._fill(ticket))
        if shares:
            paid = _to_cents(shares * self.price(ticket.symbol))
            ticket.filled += shares
            ticket.paid += paid
            self.ledger.cents -= paid
            self.ledger.move(ticket.symbol, shares)
            self.ledger.fills.append((self.now, ticket.symbol, shares, paid))
            ticket.state = "partial" if ticket.left else "filled"
        return None

    def cancel(self, name: str) -> None:
        """Ask for an order's end, which comes a little later; a fill may come before it."""
        ticket = self.tickets[name]
        wait = self.random.randrange(3) * SECOND
        self.at(self.now + wait, lambda: self.end(ticket, "cancelled"))

    def end(self, ticket: Ticket, state: str, reason: str = "") -> None:
        if ticket.is_open:
            ticket.state = state
            ticket.reason = reason

    def _end_day(self) -> None:
        for ticket in list(self.open_tickets()):
            if not ticket.is_stop:
                self.end(ticket, "expired")
        for quotes in self.quotes.values():
            del quotes[: -12 * self.bars_a_day]

    # --- splits and dividends ---

    def split(self, symbol: str, ratio: Fraction) -> None:
        """Split the account's shares and the price; a reverse split pays for fractions later."""
        stock = self.stocks[symbol]
        stock.cents = max(round(stock.cents / ratio), 1)
        stock.base = max(round(stock.base / ratio), 1)
        stock.split_at = self.now
        for ticket in list(self.open_tickets()):
            if ticket.symbol == symbol and ticket.is_stop:
                self.end(ticket, "cancelled", "corporate action")
        before = self.ledger.shares.get(symbol, 0)
        if not before:
            return
        after = int(before * ratio)
        rest = 0
        if ratio < 1:
            rest = after % NANO
            after -= rest
        self.ledger.book(self.now, "split", symbol, after - before)
        if rest:
            paid = _to_cents(rest * stock.cents)
            wait = self.random.randrange(4) * DAY
            self.at(self.now + wait, lambda: self.ledger.book(self.now, "lieu", symbol, 0, paid))


def _closes(session: Session) -> int:
    return session.close


def _to_cents(nano_cents: int) -> int:
    """Round billionths of cents to whole ones, half away from zero."""
    sign = -1 if nano_cents < 0 else 1
    return sign * ((abs(nano_cents) + NANO // 2) // NANO)


# --- as a deployment sees it ----------------------------------------------------------------------


@dataclass
class Troubles:
    """What stands between a deployment and the world, now."""

    broker: str = ""
    """outage: no call is answered; after: an order arrives all the same; limit: too many
    requests."""
    feed: str = ""
    """outage: it raises; silent: it has no bars."""
    skew: int = 0
    """The broker's clock, ns before ours."""
    delay: dict[tuple[str, int], int] = field(default_factory=dict)
    """(symbol, begin of the bar) -> ns by which it is late."""
    missing: set[tuple[str, int]] = field(default_factory=set)
    corrected: set[tuple[str, int]] = field(default_factory=set)
    """Bars that come again with other numbers."""
    is_disordered: bool = False


class MarketFeed:
    """The world's bars, as a `LiveFeed`."""

    kind = "alpaca"

    def __init__(self, world: World, troubles: Troubles) -> None:
        self.world = world
        self.troubles = troubles

    def history(self, first: int, stop: int) -> Bars:
        return self._bars(first, stop, self.world.now)

    def poll(self, since: int, now: int) -> Bars:
        if self.troubles.feed == "outage":
            raise DataError("the feed does not answer; it is asked again")
        if self.troubles.feed == "silent":
            return self._bars(0, 0, now)
        return self._bars(since, now, now)

    def actions(self, first: dt.date, last: dt.date) -> Sequence[Action]:
        if self.troubles.feed == "outage":
            raise DataError("the feed does not answer; it is asked again")
        known = [action for known, action in self.world.announced if known <= self.world.now]
        return [action for action in known if first <= action.day <= last]

    def level(self, grid: object) -> None:
        return None

    def _bars(self, first: int, stop: int, now: int) -> Bars:
        rows = []
        troubles = self.troubles
        for symbol in self.world.symbols:  # nobody asks for a new name
            for quote in reversed(self.world.quotes[symbol]):
                if quote.begin < first:
                    break
                key = quote.symbol, quote.begin
                known = quote.end + troubles.delay.get(key, 0)
                if quote.begin < stop and known <= now and key not in troubles.missing:
                    rows.append(quote)
                    if key in troubles.corrected:
                        rows.append(quote)
        rows.sort(key=lambda quote: (quote.symbol, quote.begin))
        if troubles.is_disordered:
            rows = self.world.random.sample(rows, len(rows)) * 2
        names = tuple(sorted({quote.symbol for quote in rows}))
        values = np.array(
            [(q.open, q.high, q.low, q.close, q.volume * 100) for q in rows], float
        ).reshape(-1, 5)
        again: set[tuple[str, int]] = set()
        for row, quote in enumerate(rows):
            key = quote.symbol, quote.begin
            if key in again and key in troubles.corrected:
                values[row, :4] *= 1.01
            again.add(key)
        prices = dict(zip(("open", "high", "low", "close", "volume"), values.T / 100, strict=True))
        codes = [names.index(quote.symbol) for quote in rows]
        begins = [quote.begin for quote in rows]
        extras = {"signal": np.zeros(len(rows))}  # as the made-up market of the bundle has it
        ts, symbol = np.array(begins, np.int64), np.array(codes, np.int32)
        return Bars(ts, symbol, names, **prices, extras=extras)


class MarketBroker:
    """The world's account, as a `Broker`."""

    kind = "alpaca"
    real_money = False
    takes_baskets = False
    takes_ids_once = True
    takes_bids_over_stops = False

    def __init__(
        self, world: World, troubles: Troubles, cross: Callable[[str], object] = lambda call: None
    ) -> None:
        """`cross` is called before and after each call, and may end the process there."""
        self.world = world
        self.troubles = troubles
        self.cross = cross
        self.arrive: Callable[[Ticket], object] = lambda ticket: None
        """Called with each order that has arrived."""
        self.cuts: list[Fraction] = []
        """Shares of the next orders that fill at first."""
        self.refusals: list[str] = []
        """Reasons for which the next orders are rejected."""

    def submit(self, order: Order) -> OrderReport:
        self.cross("before submit")
        if self.troubles.broker in ("outage", "limit"):
            raise BrokerUnsureError("the broker gives no answer")
        ticket = self.take(order)
        self.cross("after submit")
        if self.troubles.broker == "after":
            raise BrokerUnsureError("the broker gives no answer")
        return report(ticket)

    def take(self, order: Order) -> Ticket:
        """Let an order arrive."""
        nano = round(order.shares * NANO)
        ticket = Ticket(order.id, order.symbol, nano, self.world.now, True)
        if order.limit_usd:
            rounded = math.floor if nano > 0 else math.ceil
            ticket.limit = rounded(round(order.limit_usd * 100, 6))
        elif order.stop_usd:
            ticket.stop = math.ceil(round(order.stop_usd * 100, 6))
            ticket.is_stop = nano % NANO == 0
        if self.refusals:
            ticket.reason = self.refusals.pop()
        elif self.cuts:
            ticket.cut = self.cuts.pop()
        self.world.submit(ticket)
        self.arrive(ticket)
        return ticket

    def cancel(self, known: OrderReport) -> None:
        self._ask("cancel")
        self.world.cancel(known.id)
        self.cross("after cancel")

    def order(self, order_id: str) -> OrderReport | None:
        self._ask("order")
        ticket = self.world.tickets.get(order_id)
        return None if ticket is None else report(ticket)

    def orders(self, since: int) -> Sequence[OrderReport]:
        self._ask("orders")
        start = bisect_right(self.world.sent_at, since)
        return [report(t) for t in itertools.islice(self.world.tickets.values(), start, None)]

    def account(self) -> BrokerAccount:
        self._ask("account")
        ledger = self.world.ledger
        shares = {symbol: count / NANO for symbol, count in sorted(ledger.shares.items())}
        return BrokerAccount(self.world.number, ledger.cents / 100, shares)

    def activities(self, since: int) -> list[Any]:
        """The statement's lines, in the deployment's shape."""
        self._ask("activities")
        lines = self.world.ledger.activities
        start = bisect_right(lines, since - 1, key=lambda line: line.time)
        return [
            calls.Activity(  # type: ignore[attr-defined]
                str(line.number),
                KINDS_OF_LINES.get(line.kind, "other"),
                dt.datetime.fromtimestamp(line.time // SECOND, dt.UTC).date().isoformat(),
                line.symbol,
                line.shares / NANO,
                line.cents / 100,
                line.kind,
            )
            for line in lines[start:]
            if line.kind != "bust"
        ]

    def size_sale(self, symbol: str, shares: float, price_usd: float) -> float:
        return float(math.trunc(shares)) or shares

    def time(self) -> int | None:
        self._ask("time")
        return self.world.now - self.troubles.skew

    def _ask(self, call: str) -> None:
        self.cross(call)
        if self.troubles.broker:
            raise BrokerUnsureError("the broker gives no answer")


def report(ticket: Ticket) -> OrderReport:
    """Report an order in the deployment's shape."""
    price = ticket.paid * NANO / ticket.filled / 100 if ticket.filled else 0.0
    return OrderReport(
        ticket.id,
        ticket.symbol,
        ticket.state,  # type: ignore[arg-type]
        ticket.shares / NANO,
        ticket.filled / NANO,
        price,
        broker_id=ticket.id,
        reason=ticket.reason,
    )
