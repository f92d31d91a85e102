"""Everything that a calendar, a broker and people bring: one function for each kind of event.

An event is called with its life six hours before the open of its session, and draws its stock, size
and moment; it returns False where it cannot happen.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from fintrader.bars.corporate_actions import Action
from fintrader.deploy.bundle import Bundle
from tests.engines.market_life import DAY, HOUR, MINUTE, MONTH, NANO, SECOND, YEAR, Session, Ticket
from tests.engines.market_life_run import Life

Event = Callable[[Life, Session], object]
RATIOS = tuple(map(Fraction, ("2", "3/2", "4", "3", "5/4", "10", "20", "7", "11/10")))
REVERSE = tuple(map(Fraction, ("1/10", "1/4", "1/8", "1/3", "1/20", "1/2", "1/15")))
NEAR = 3
"""Sessions within which two events are a pair."""


def draw_moment(life: Life, session: Session) -> int:
    """A second of the session."""
    return session.open + life.random.randrange((session.close - session.open) // SECOND) * SECOND


def announce(life: Life, symbol: str, session: Session, known: int, **what: float) -> None:
    action = Action(symbol=symbol, day=session.day, **what)
    life.world.announced.append((known, action))


# --- corporate actions ----------------------------------------------------------------------------


def _split(life: Life, session: Session, ratios: Sequence[Fraction], known: int = 0) -> object:
    symbol = life.pick()
    if symbol is None:
        return False
    cents = life.world.stocks[symbol].cents
    fitting = [ratio for ratio in ratios if 500 <= cents / ratio <= 80_000]
    if not fitting:
        return False
    ratio = life.random.choice(fitting)
    life.mark_odd(symbol, session.close)
    announce(life, symbol, session, known or life.world.now, split=float(ratio))
    life.world.at(session.open - 5 * HOUR, lambda: life.split(symbol, ratio))
    return None


def split(life: Life, session: Session) -> object:
    return _split(life, session, RATIOS)


def reverse_split(life: Life, session: Session) -> object:
    return _split(life, session, REVERSE)


def late_action(life: Life, session: Session) -> object:
    """A split that the feed knows an hour after the open."""
    if _split(life, session, RATIOS, session.open + HOUR) is False:
        return False
    life.may_halt("a split that is not announced")
    life.disturb(session.open - DAY, session.close)
    return None


def dividend(life: Life, session: Session) -> object:
    symbol = life.pick(is_held=True)
    if symbol is None:
        return False
    world = life.world
    stock = world.stocks[symbol]
    cents = life.random.randrange(1, max(stock.cents // 60, 2))
    life.mark_odd(symbol, session.close)
    announce(life, symbol, session, world.now, dividend_usd=cents / 100)
    stock.cents -= cents
    stock.split_at = world.now
    world.pay_dividend(symbol, cents, session.open - HOUR + life.random.randrange(40) * DAY)
    return None


def _count_gone(life: Life) -> int:
    return sum(stock.gone is not None for stock in life.world.stocks.values())


def symbol_change(life: Life, session: Session) -> object:
    symbol = life.pick(is_held=True)
    world = life.world
    if symbol is None or _count_gone(life) >= life.most_gone:
        return False
    name = f"{symbol}X"
    old = world.stocks[symbol]
    life.mark_odd(symbol, life.end)
    old.gone = world.now
    world.stocks[name] = replace(old, symbol=name, gone=None)
    world.quotes[name] = []
    life.mark_odd(name, life.end)
    shares = world.ledger.shares.get(symbol, 0)
    world.ledger.book(world.now, "rename", symbol, -shares)
    world.ledger.book(world.now, "rename", name, shares)
    return None


def delisting(life: Life, session: Session) -> object:
    """A stock goes, and its holders get cash."""
    symbol = life.pick()
    world = life.world
    if symbol is None or _count_gone(life) >= life.most_gone:
        return False
    stock = world.stocks[symbol]
    life.mark_odd(symbol, life.end)
    stock.gone = world.now
    shares = world.ledger.shares.get(symbol, 0)
    if shares:
        world.ledger.book(world.now, "delisting", symbol, -shares, world.value(symbol, shares))
    for cause in life.causes:  # what is left of such a trade is cash, perhaps cents
        cause.must &= cause.name != f"a hand trade in {symbol}"
    return None


# --- the account ----------------------------------------------------------------------------------


def _book(life: Life, moment: int, kind: str, cents: int) -> None:
    world = life.world
    world.at(moment, lambda: world.ledger.book(world.now, kind, "", 0, cents))


def fee(life: Life, session: Session) -> None:
    """The regulator's fees of the day before."""
    _book(life, session.open - 3 * HOUR, "fee", -life.random.randrange(50, 4_000))


def interest(life: Life, session: Session) -> None:
    _book(life, session.open - 2 * HOUR, "interest", life.random.randrange(50, 300_000))


def deposit(life: Life, session: Session) -> None:
    cents = life.random.randrange(1_000, 5_000_000)
    _book(life, draw_moment(life, session), "deposit", cents)


def withdrawal(life: Life, session: Session) -> object:
    cents = min(life.world.ledger.cents // 3, life.random.randrange(1_000, 3_000_000))
    _book(life, draw_moment(life, session), "withdrawal", -cents)
    return None


def busted_trade(life: Life, session: Session) -> object:
    """The newest fill is undone."""
    world = life.world

    def undo() -> None:
        fills = [fill for fill in world.ledger.fills if fill[0] > world.now - DAY]
        if not fills:
            return
        _, symbol, shares, cents = fills[-1]
        if world.stocks[symbol].gone is None and symbol not in life.odd:
            left = world.ledger.shares.get(symbol, 0) - shares
            if left >= 0 and world.ledger.cents + cents >= 0:
                for cause in life.causes:  # the fill may be the one that the hand made
                    cause.must &= cause.name != f"a hand trade in {symbol}"
                life.may_halt("a busted trade")
                life.disturb(world.now - DAY, world.now + DAY)
                world.ledger.book(world.now, "bust", symbol, -shares, cents)

    world.at(session.close - HOUR, undo)
    return None


# --- trading and bars -----------------------------------------------------------------------------


def _halt(life: Life, begin: int, end: int) -> object:
    symbol = life.pick()
    if symbol is None:
        return False
    life.world.stocks[symbol].halts.append((begin, end))
    life.mark_odd(symbol, end + HOUR)
    odd = [n for n in life.odd if n in life.bundle.symbols]
    if len(odd) > 1:  # too few have bars, so that nothing is decided
        life.disturb(begin - DAY, end + HOUR)
    return None


def halt_of_a_bar(life: Life, session: Session) -> object:
    begin, end = life.random.choice(session.bars)
    return _halt(life, begin, end)


def halt_of_days(life: Life, session: Session) -> object:
    return _halt(life, session.open, session.close + life.random.randrange(6) * DAY)


def _mark_bars(life: Life, session: Session, mark: Callable[[tuple[str, int]], object]) -> object:
    """Mark two of a stock's bars, each by its symbol and its start."""
    symbol = life.pick()
    if symbol is None:
        return False
    life.mark_odd(symbol, session.close + 12 * HOUR)
    bars = life.random.sample(session.bars, min(2, len(session.bars)))
    life.disturb(session.open, session.close + DAY)
    for begin, _ in bars:
        mark((symbol, begin))
    return None


def late_bars(life: Life, session: Session) -> object:
    def delay(key: tuple[str, int]) -> None:
        life.troubles.delay[key] = life.random.choice((20 * SECOND, 10 * MINUTE, 3 * HOUR))

    return _mark_bars(life, session, delay)


def missing_bars(life: Life, session: Session) -> object:
    return _mark_bars(life, session, life.troubles.missing.add)


def corrected_bars(life: Life, session: Session) -> object:
    return _mark_bars(life, session, life.troubles.corrected.add)


def disordered_bars(life: Life, session: Session) -> None:
    _trouble(life, session.open, session.close, "is_disordered", True, is_harmless=True)


# --- broker and feed ------------------------------------------------------------------------------


def _trouble(
    life: Life, begin: int, end: int, name: str, value: object, *, is_harmless: bool = False
) -> None:
    troubles = life.troubles
    usual = type(troubles)().__dict__[name]
    if not is_harmless:
        life.disturb(begin - DAY, end + 8 * HOUR)
    if name == "broker":
        life.cut.append((begin, end))
    life.world.at(begin, lambda: setattr(troubles, name, value))
    life.world.at(end, lambda: setattr(troubles, name, usual))


def _from_an_open(life: Life, session: Session) -> int:
    """Just before a bar, when orders leave, or at any time."""
    begin = life.random.choice(session.bars)[0]
    return begin - 2 * SECOND if life.random.random() < 0.6 else draw_moment(life, session)


def rate_limit(life: Life, session: Session) -> None:
    begin = _from_an_open(life, session)
    _trouble(life, begin, begin + life.random.randrange(2, 90) * SECOND, "broker", "limit")


def outage(life: Life, session: Session) -> None:
    begin = _from_an_open(life, session)
    _trouble(life, begin, begin + life.random.randrange(1, 240) * MINUTE, "broker", "outage")


def lost_answers(life: Life, session: Session) -> None:
    """Orders arrive, and nothing comes back."""
    begin = _from_an_open(life, session)
    _trouble(life, begin, begin + life.random.randrange(2, 300) * SECOND, "broker", "after")


def feed_outage(life: Life, session: Session) -> None:
    begin = draw_moment(life, session)
    kind = life.random.choice(("outage", "silent"))
    _trouble(life, begin, begin + life.random.randrange(1, 300) * MINUTE, "feed", kind)


def clock_skew(life: Life, session: Session) -> None:
    begin = draw_moment(life, session)
    skew = life.random.choice((-40, -3, 3, 90)) * SECOND
    _trouble(life, begin, begin + 3 * HOUR, "skew", skew)


def partial_fill(life: Life, session: Session) -> None:
    for _ in range(life.random.randrange(1, 4)):
        life.broker.cuts.append(Fraction(life.random.randrange(10), 10))


def refused_for_cash(life: Life, session: Session) -> None:
    life.broker.refusals.append("insufficient buying power")


def refused_for_shares(life: Life, session: Session) -> None:
    life.broker.refusals.append("insufficient qty available for order")


# --- people and machines --------------------------------------------------------------------------


def hand_trade(life: Life, session: Session) -> None:
    """A person buys or sells in the account."""
    world = life.world

    def trade() -> None:
        symbol = life.pick()
        if symbol is None or world.session_at(world.now) is None:
            return
        held = world.ledger.shares.get(symbol, 0)
        shares = -held if held and life.random.random() < 0.5 else 7 * NANO
        ticket = world.submit(Ticket(f"hand-{world.now}", symbol, shares, world.now, False))
        if ticket.is_open:
            is_due = not world.stocks[symbol].is_halted(world.now)
            life.may_halt(f"a hand trade in {symbol}", must=is_due)
            life.disturb(world.now - DAY, world.now + DAY)

    world.at(min(draw_moment(life, session), session.close - MINUTE), trade)


def restart(life: Life, session: Session) -> None:
    """The machine goes at any moment, for a second or a day."""
    downtime = life.random.choice((SECOND, MINUTE, HOUR, DAY))

    def plan() -> None:
        life.kill_at = life.world.now
        life.downtime = downtime

    moment = _from_an_open(life, session) + life.random.randrange(8) * SECOND
    life.world.at(moment, plan)


CALLS = (
    *("before submit", "after submit", "cancel", "after cancel", "order", "orders", "account"),
    *("time", "before write", "after write"),
)


def restart_in_a_call(life: Life, session: Session) -> None:
    """The process ends inside a call of the broker or beside a write of the journal."""

    def plan() -> None:
        life.kill_call = life.random.choice(CALLS)
        life.downtime = life.random.choice((SECOND, MINUTE, HOUR))

    life.world.at(_from_an_open(life, session), plan)


def operator_halt(life: Life, session: Session) -> None:
    life.world.at(draw_moment(life, session), lambda: life.ask("halt"))


def flatten(life: Life, session: Session) -> None:
    life.world.at(draw_moment(life, session), lambda: life.ask("flatten"))


def two_operators(life: Life, session: Session) -> None:
    """Two people who do not speak with each other."""
    moment = draw_moment(life, session)
    for _ in range(life.random.randrange(3, 9)):
        moment += life.random.choice((0, SECOND, MINUTE, 20 * MINUTE))
        request = life.random.choice(("halt", "resume", "resume", "flatten"))
        life.world.at(moment, lambda request=request: life.ask(request))


def crash(life: Life, session: Session) -> None:
    """All prices fall for a while, beyond the limits now and then."""
    world = life.world
    begin = draw_moment(life, session)
    world.at(begin, lambda: setattr(world, "drift", -life.random.choice((60, 150, 400))))
    world.at(begin + 4 * HOUR, lambda: setattr(world, "drift", 0))


KINDS: dict[str, Event] = {
    event.__name__: event
    for event in (
        *(split, reverse_split, late_action, dividend, symbol_change, delisting),
        *(fee, interest, deposit, withdrawal, busted_trade),
        *(halt_of_a_bar, halt_of_days, late_bars, missing_bars, corrected_bars, disordered_bars),
        *(rate_limit, outage, lost_answers, feed_outage, clock_skew),
        *(partial_fill, refused_for_cash, refused_for_shares),
        *(hand_trade, restart, restart_in_a_call, operator_halt, flatten, two_operators, crash),
    )
}
OF_THE_CALENDAR = ("half_day", "clock_change")
"""Kinds that the calendar itself brings."""


@dataclass
class Years:
    """What several market years came to."""

    sessions: int = 0
    decisions: int = 0
    orders: int = 0
    restarts: int = 0
    events: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    memory_mib: list[float] = field(default_factory=list)
    """Of the process, after each year."""

    def add(self, life: Life) -> None:
        self.sessions += len(life.traded)
        self.decisions += len(life.consults)
        self.orders += len(life.world.tickets) + len(life.world.refused)
        self.restarts += life.lives - 1
        self.events.update(name for _, name in life.happened)
        self.pairs.update(count_pairs(life.happened))
        self.memory_mib.append(read_memory_mib())


def live_year(
    seed: int, home: Path, bundle: Bundle, kinds: Iterable[str], sessions: int = YEAR
) -> Life:
    """Live one seed's year. Raises AssertionError with the seed and the shortest prefix that shows
    a problem."""
    events = draw_events(seed, kinds)
    life = Life(seed, home, bundle, sessions=sessions, events=events).run()
    if life.problems:
        prefix = life.first_problem
        near = [event[:2] for event in events if prefix - 8 <= event[0] < prefix]
        problems = "\n  ".join(life.problems[:8])
        raise AssertionError(
            f"seed {seed} has {len(life.problems)} problems; the first {prefix} sessions show the"
            f" first: live_year({seed}, home, bundle, kinds, {prefix + 1})\n  {problems}\n"
            f"  its events before: {near}"
        )
    return life


def live_years(
    seeds: Iterable[int], home: Path, bundle: Bundle, kinds: Iterable[str], sessions: int = YEAR
) -> Years:
    """Live the years of several seeds, one after the other."""
    years = Years()
    for seed in seeds:
        place = home / f"year-{seed}"
        years.add(live_year(seed, place, bundle, kinds, sessions))
        shutil.rmtree(place)
    return years


def read_memory_mib() -> float:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def draw_events(
    seed: int, kinds: Iterable[str], rate: float | None = None
) -> list[tuple[int, str, Event]]:
    """Draw a year's events: in some years few, in some several a session."""
    draw = random.Random(f"events {seed}")
    names = sorted(kinds)
    rate = draw.choice((0.1, 0.4, 1.0)) if rate is None else rate
    found = []
    for number in range(YEAR):
        while names and draw.random() < rate / (1 + rate):
            name = draw.choice(names)
            found.append((number, name, KINDS[name]))
    return found


def draw_month(seed: int) -> list[tuple[int, str, Event]]:
    """Draw the events of a month in which one stock goes and another gets a new name: in a year
    both are rare."""
    draw = random.Random(f"month {seed}")
    events = [event for event in draw_events(seed, KINDS, 1.0) if event[0] < MONTH]
    events += [
        (draw.randrange(4, MONTH - 6), name, KINDS[name]) for name in ("delisting", "symbol_change")
    ]
    return sorted(events, key=lambda event: event[0])


def count_pairs(happened: Iterable[tuple[int, str]]) -> Counter[tuple[str, str]]:
    """Count the pairs of kinds that happened within three sessions of each other."""
    pairs: Counter[tuple[str, str]] = Counter()
    ordered = sorted(happened)
    for at, (number, name) in enumerate(ordered):
        for later, other in ordered[at + 1 :]:
            if later > number + NEAR:
                break
            pairs[min(name, other), max(name, other)] += 1
    return pairs
