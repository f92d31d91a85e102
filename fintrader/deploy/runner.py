"""The loop of a deployment: receive, decide and order, bar after bar. Replays, paper and real money
have the same loop.

A process may end at any moment. All its state is in the journal, so the same command resumes it;
decisions missed meanwhile are skipped.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.limits import Limits
from fintrader.backtesting.shadow import Decision, decide
from fintrader.bars.bars import Array
from fintrader.bars.calendar import SessionGrid
from fintrader.config import split_address
from fintrader.deploy.accounts import Accounts, hold_account
from fintrader.deploy.alerts import Alerts
from fintrader.deploy.broker import Broker, Order, OrderReport, refuse_real_money
from fintrader.deploy.bundle import Bundle
from fintrader.deploy.clock import SECOND_NS, Clock
from fintrader.deploy.control import HEARTBEAT, Heartbeat, list_requests
from fintrader.deploy.decisions import Decider, Turn
from fintrader.deploy.entries import (
    Alert,
    BarDecision,
    CapitalMove,
    DeploymentEnd,
    DeploymentStart,
    FlattenEnd,
    Halt,
    Mark,
    Resumption,
)
from fintrader.deploy.feed import LiveFeed
from fintrader.deploy.flatten import SELL_AGAIN, Flatten
from fintrader.deploy.gauges import Gauges
from fintrader.deploy.journal import Journal
from fintrader.deploy.orders import Execution, OrderRules, read_sender
from fintrader.deploy.reconcile import SAME_SHARES, expect_holdings
from fintrader.deploy.recorder import Recorder
from fintrader.deploy.resting_orders import lay_out_sales, list_orders
from fintrader.deploy.settings import PaperSettings
from fintrader.deploy.status import format_moment
from fintrader.deploy.supervisor import describe_rest, format_shares
from fintrader.deploy.venue_orders import VenueExecution
from fintrader.errors import (
    BrokerError,
    BrokerUnsureError,
    DataError,
    DeployError,
    EnvError,
    FintraderError,
    RunError,
    StorageError,
)
from fintrader.files import write_json
from fintrader.market.tensors import MarketTensors
from fintrader.numerals import format_count
from fintrader.records import to_json
from fintrader.storage.lease import StoreLease

BEAT_SECONDS = 10.0
_ASK_SOON = 5 * SECOND_NS
_HOUR_NS = 3600 * SECOND_NS
_DAY_NS = 86_400 * SECOND_NS
_LAST_DAYS = 5
"""Days before the end of a consent in which each session is followed by an alert."""
_FRESH = 120 * SECOND_NS
"""Largest age of the last read of splits and the account when orders are sent, ns."""


@dataclass(frozen=True)
class Connections:
    """A runner's clock, feed, broker and journal."""

    clock: Clock
    feed: LiveFeed
    broker: Broker
    journal: Journal


class Runner:
    """Runs one deployment. The caller holds its lease (`deploy.deployment`)."""

    def __init__(
        self,
        bundle: Bundle,
        settings: PaperSettings,
        world: Connections,
        *,
        window: tuple[int, int] | None,
        until: int | None = None,
        cap_usd: float | None = None,
        daily: Callable[[], str | None] = lambda: None,
    ) -> None:
        """window: start of the first and the last bar of a replay, nanoseconds since 1970 UTC;
        None: live trading from the next bar on, up to the last bar that closes by `until` (ns), if
        that is set. cap_usd: most USD of the account that are traded with real money. daily: called
        after each session that is traded live; the text that it returns is sent as an alert.

        Raises DeployError if the broker spends real money, or `cap_usd` is set, while real-money
        trading is closed (`refuse_real_money`).
        """
        refuse_real_money(world.broker.real_money or cap_usd is not None)
        self.bundle = bundle
        self.settings = settings
        self.clock = world.clock
        self.feed = world.feed
        self.broker = world.broker
        self.journal = world.journal
        self.folder = self.journal.path.parent
        self.env = bundle.env.for_working()
        self.window = window
        self.until = until
        self._daily = daily
        self.policy = bundle.policy
        self._decide_action = Decider(bundle.env)
        self.recorder = Recorder(
            bundle,
            self.journal,
            warm_up_sessions=settings.warm_up_sessions,
            level=self.feed.level,
        )
        self.length = self.recorder.length
        self.alerts = Alerts(settings.alerts, bundle.name)
        self.limits = Limits(settings.limits, whole=not self.env.fractional)
        sender = read_sender(self.journal, bundle.id)
        if self.journal.last(DeploymentStart) is None and world.broker.kind != "simulated":
            sender += f"-{secrets.token_hex(4)}"
        self.rules = OrderRules(sender, fee_rate=self.env.fee_rate, fractional=self.env.fractional)
        self.accounts = Accounts(
            self.broker,
            self.recorder,
            self.limits,
            self._halt,
            functools.partial(self._record_news, is_repeated=True),
            replays=window is not None,
            cap_usd=cap_usd,
        )
        self.simulated = self.accounts.simulated
        rests = self.env.orders_rest and self.simulated is None
        self._execution_kind = VenueExecution if rests else Execution
        self.execution: Execution | None = None
        self.first = 0
        self.last = -1
        """Bars of the grid: the first that is decided upon, and a replay's last."""
        self.stopped = False
        self.flatten = Flatten(
            self.broker,
            self.journal,
            frozenset(bundle.symbols),
            is_on=self.journal.is_flattening(),
        )
        self._reported_at = 0
        """Time of a flatten's newest alert."""
        self._read_at = self._retry_at = 0
        """Times of the last read of the account before orders, and of the next try to read it."""
        self._lease: StoreLease | None = None
        self._beat = time.time()
        """Last sign of life of the loop, Unix time of this machine."""
        self._shown = 0.0
        self._following = 0

    @property
    def grid(self) -> SessionGrid:
        """All bars from the warm-up to some days ahead, or to a replay's end."""
        return self.recorder.grid

    # --- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until the window is over or a person stops it. Raises DeployError when it cannot
        begin, ConfigError for a port that cannot be used. An error that ends the loop is sent to
        people first."""
        address = self.settings.metrics
        with contextlib.ExitStack() as stack:
            stack.callback(self.alerts.finish)
            if address is not None:
                gauges = Gauges(self.bundle.name, *split_address(address), self._read_gauges)
                stack.callback(gauges.close)
            try:
                self._lease = stack.enter_context(hold_account(self.broker, self.journal))
                self._run()
            # A person who stops the loop knows of the stop, but perhaps not of a flatten.
            except BaseException as error:
                if isinstance(error, Exception) or self.flatten.is_on:
                    is_known = isinstance(error, FintraderError)
                    self.report_end(str(error) if is_known else f"{type(error).__name__} {error}")
                raise

    def _read_gauges(self) -> tuple[dict[str, float], dict[str, int]]:
        """Read the gauges through another connection, since a scrape runs in another thread."""
        with Journal(self.journal.path, reading=True) as journal:
            last = journal.last(BarDecision)
            decisions = sum(journal.count(BarDecision).values())
            alerts = journal.count(Alert)
            states = journal.count(OrderReport)
        values = {
            "halted": float(bool(self.limits.halted)),
            "flattening": float(self.flatten.is_on),
            "decisions": decisions,
            "missed": alerts.get("missed", 0) + alerts.get("skipped", 0),
            "beat_timestamp_seconds": self._beat,
        }
        if last is not None:
            values |= {"equity_usd": last.body.equity, "cash_usd": last.body.cash}
        return values, states

    def _run(self) -> None:
        self._begin()
        for bar in self._iterate_bars():
            moment = int(self.grid.minutes[bar]) + self.length
            if self._is_over(moment):
                return
            self.clock.sleep_until(
                moment + int(self.settings.grace_seconds * SECOND_NS), self._look
            )
            if self.stopped or self._is_over(moment):
                return
            self._process_bar(bar)
        self._pursue()
        self.journal.write(DeploymentEnd(), at=self.clock.now())

    def _is_over(self, moment: int) -> bool:
        """Check before a bar that closes at `moment` whether the loop ends. With real money the loop
        lasts to the end of the consent, and then until a flatten is over; it cancels other
        orders, except for stops, and waits until the broker confirms it."""
        if self.until is None or moment <= self.until:
            return False
        if self.accounts.cap_usd is None:
            return True
        self.clock.sleep_until(self.until, self._look)
        self._end_orders(self.clock.now())
        least = self.clock.now() + _FRESH  # a request may come in the last moments
        alerted = self.clock.now()
        while not (self.stopped or self.flatten.is_on) and self._has_open_orders(least):
            now = self.clock.now()
            if now >= alerted + _HOUR_NS:
                alerted = now
                text = "the consent has ended, but orders are open, or shares are without a stop"
                self._record_news("consent", text, now, is_repeated=True)
            self.clock.sleep_until(now + _ASK_SOON, self._look)
        return not self.flatten.is_on

    def _end_orders(self, now: int) -> None:
        """Cancel the orders, except for stops, unless a flatten goes on."""
        if self.execution is not None and not self.flatten.is_on:
            self.execution.stop(now, "the consent has ended", keeps_stops=True)

    def _has_lapsed(self, now: int) -> bool:
        """Report whether real money was traded with a consent that has ended."""
        return self.accounts.cap_usd is not None and self.until is not None and now > self.until

    def _has_open_orders(self, least: int) -> bool:
        """Before the moment `least`, ns, report whether there is an execution; after it, whether
        any of its orders is open, except for stops at the broker."""
        if self.execution is None:
            return False
        now = self.clock.now()
        return now < least or not self.execution.is_at_rest(now)

    def _iterate_bars(self) -> Iterator[int]:
        """Yield the bars to wake at: live every bar, in a replay those of decisions and each
        session's last."""
        bar = self._next
        while True:
            bar += self._count_missed(bar)
            if self.window is not None and bar > self.last:
                return
            if bar >= self.grid.num_bars - 1 and self.window is None:
                before = self.first
                newest = max(int(self.grid.minutes[-1]), self.clock.now())
                self.first = self.recorder.lay_out(int(self.grid.minutes[self.first]), None, newest)
                bar += self.first - before
                bar += self._count_missed(bar)
            if self.clock.live or self._ends_session(bar) or self._is_due(bar) or bar == self.last:
                yield bar
            bar += 1

    def _count_missed(self, bar: int) -> int:
        """Count the bars from this one on that closed unseen and are too old to act upon."""
        if not self.clock.live:
            return 0
        now = self.clock.now()
        seen = int(np.searchsorted(self.grid.minutes, now - 2 * self.length, side="right"))
        missed = sum(self._is_due(late) for late in range(bar, seen))
        if missed:
            text = f"{format_count(missed, 'decision')} missed until {format_moment(now)}"
            self._record_news("missed", text, now)
        return max(seen - bar, 0)

    def _is_due(self, bar: int) -> bool:
        return (bar - self.first) % self.env.decision_interval == 0 and bar != self.last

    def _ends_session(self, bar: int) -> bool:
        return self.grid.session[bar] not in self.grid.session[bar + 1 : bar + 2]

    def _process_bar(self, bar: int) -> None:
        """Process a bar that has closed."""
        now = self.clock.now()
        closed = int(self.grid.minutes[bar]) + self.length
        self._beat = time.time()
        if self.clock.live:
            due = next(later for later in itertools.count(bar + 1) if self._is_due(later))
            self._following = int(self.grid.minutes[min(due, self.grid.num_bars - 1)]) + self.length
            self._show_beat()
        self._pursue()
        try:
            self._start_session(bar, now)
            self.recorder.receive(self.feed, now)
            now = self.clock.now()  # a feed may take its time
            if self._is_due(bar) and not self._has_lapsed(now):
                self._decide(bar, now)
            elif self.clock.live and not self._ends_session(bar):
                self._check_limits(bar, now)
            else:
                self._mark(bar, now)
            if self.clock.live and self._ends_session(bar):
                self._report(now)
        except (DataError, EnvError, BrokerUnsureError) as error:  # EnvError: no bar has volume
            self._record_news(
                "skipped", f"nothing was decided at {format_moment(closed)}: {error}", now
            )
        except BrokerError as error:
            self._halt(str(error), now)
        except Exception as error:
            self._raise_unless_flattening(error, now)

    def _raise_unless_flattening(self, error: Exception, now: int) -> None:
        """Go on after an error while a flatten is under way; otherwise raise it."""
        # Before the first agreement the account may be another person's.
        is_agreed = bool(expect_holdings(self.journal).number)
        if isinstance(error, RunError) or not self.flatten.is_on or not is_agreed:
            raise error
        self._record_news("skipped", f"the flatten goes on after an error: {error}", now)

    def _report(self, now: int) -> None:
        if self.accounts.cap_usd is not None and self.until is not None:
            days = (self.until - now) // _DAY_NS
            if 0 <= days < _LAST_DAYS:
                text = f"the consent lapses on {format_moment(self.until)}"
                self._record_news("consent", f"{text}; positions then stay", now)
        try:
            alarm = self._daily()
            if alarm:
                self._record_news("drift", alarm, now)
        except FintraderError as error:  # a failed report must cost no decision
            self._record_news("report", f"the drift report could not be written: {error}", now)

    # --- the start --------------------------------------------------------------------------------

    def _begin(self) -> None:
        now = self.clock.now()
        started = self.journal.last(DeploymentStart)
        if self.window is not None:
            first, last = self.window
            self.first = self.recorder.lay_out(first, last, now)
            self.last = int(np.searchsorted(self.grid.minutes, last))
        else:
            self.first = self.recorder.lay_out(
                started.body.first_bar if started else now, None, now
            )
        begins = int(self.grid.minutes[self.first])
        self.execution = self._execution_kind.resume(self.broker, self.journal, self.rules, at=now)
        try:
            self._start_session(self._find_bar(now), now)
        except Exception as error:
            self._raise_unless_flattening(error, now)
        if started is None:
            # A live bar in progress is received once it has closed.
            stop = begins if self.window is not None else min(begins, now - self.length + 1)
            self.recorder.keep(self.feed.history(int(self.grid.minutes[0]), stop), now)
            start = DeploymentStart(
                first_bar=begins,
                bundle=self.bundle.id,
                feed=self.feed.kind,
                broker=self.broker.kind,
                limits=self.settings.limits,
                initial_cash_usd=self.env.initial_cash_usd,
                sender=self.rules.sender,
                warm_up_sessions=self.settings.warm_up_sessions,
            )
            self.journal.write(start, at=now)
        else:
            self.recorder.restore()
        newest = max((bar for bar, _ in self.journal.read_curve(1)), default=begins - self.length)
        self._next = int(np.searchsorted(self.grid.minutes, newest, side="right"))
        kinds = (BarDecision, Mark, Resumption, CapitalMove)
        past = [entry for kind in kinds for entry in self.journal.entries(kind)]
        for entry in sorted(past, key=lambda entry: entry.seq):
            if isinstance(entry.body, BarDecision):
                self.limits.watch(self._find_session(entry.body.bar), entry.body.equity)
                self.limits.traded_usd = entry.body.traded
                self.accounts.remember(entry.body)
                if entry.body.goal:
                    self._decide_action.restore(entry.body)
            elif isinstance(entry.body, Mark):
                if self.simulated is None:
                    self.limits.watch(self._find_session(entry.body.bar), entry.body.equity)
            elif isinstance(entry.body, CapitalMove):
                self.accounts.move(entry.body)
            else:
                self.limits.resume()
        self._take_over(now)

    def _find_session(self, minute: int) -> int:
        """Find the open (ns) of the session of a bar that begins at `minute`."""
        bar = max(int(np.searchsorted(self.grid.minutes, minute, side="right")) - 1, 0)
        return int(self.grid.minutes[self.grid.first_bar[self.grid.session[bar]]])

    def _find_bar(self, now: int) -> int:
        """Find the newest bar that has begun, or the first bar of decisions if that is later."""
        begun = int(np.searchsorted(self.grid.minutes, now, side="right")) - 1
        return max(begun, self.first)

    def _take_over(self, now: int) -> None:
        """Agree with the broker before anything is ordered, and go on with earlier orders."""
        halt = self.journal.find_halt()
        self.limits.halted = "" if halt is None else halt.why
        if self.simulated is not None:
            self.accounts.restore(self.simulated)
            if self.window is not None:  # a replay's clock jumps to the next decision
                self._pursue()
        else:
            self._carry_out_requests(now)
            try:
                self.accounts.agreed(now, start=True, adopt=self.settings.adopt)
                self._open_execution().take_on_open(now)  # adopted orders are cancelled
            except Exception as error:
                self._raise_unless_flattening(error, now)
            if self.limits.halted:
                self._open_execution().stop(now, "halted", keeps_stops=True)
        if self.flatten.is_on and self.simulated is None:
            self._open_execution().stop(now, "flatten")
            self.flatten.doubt(now)

    # --- decisions --------------------------------------------------------------------------------

    def _decide(self, bar: int, now: int) -> None:
        self._start_session(bar, now)
        market, row = self.recorder.rows.at(self.grid, bar, self.accounts.since)
        account = self.accounts.at(market, row, now)
        self._read_at = now
        if isinstance(self.execution, VenueExecution):
            account.replace_orders(self.execution.lay_out(account))
        elapsed = (bar - self.first) % self.bundle.env.decision_interval
        turn = Turn(elapsed, int(self.grid.minutes[bar - elapsed]))
        action = None
        if not self.limits.halted and account.equity > 0.0:
            action = self._decide_action(self.policy, account, turn)
        decision = decide(account, action, self.limits)
        if self.flatten.is_on and self.simulated is not None:
            decision = self._sell_simulated(account, now)
        if not self.clock.live or not self._is_clock_off(now):
            is_new = elapsed == 0 and action is not None
            goal = self._decide_action.list_goal(account) if is_new else {}
            self._order(bar, now, market, account, decision, goal)
        faults = self.recorder.rows.find_faults(self.grid, bar)
        if faults:
            odd = [f"{fault.kind} of {fault.symbol}" for fault in faults]
            self._record_news(
                "faults", f"today's bars hold faults that would stop a build: {', '.join(odd)}", now
            )

    def _order(
        self,
        bar: int,
        now: int,
        market: MarketTensors,
        account: BacktestAccount,
        decision: Decision,
        goal: Mapping[str, float],
    ) -> None:
        names = market.symbols
        prices = {name: usd for name, usd in _by_symbol(names, account.prices).items() if usd > 0}
        begins = int(self.grid.minutes[bar])
        closed = begins + self.length
        wanted = _by_symbol(names, decision.orders)
        resting: tuple[Order, ...] = ()
        if decision.resting is not None:
            wanted = {}
            resting = list_orders(decision.resting, account, self.rules.sender, closed)
        unbooked = self.accounts.unbooked & wanted.keys()
        orders = {
            name: count for name, count in wanted.items() if name in prices and name not in unbooked
        }
        weights = _by_symbol(names, decision.weights)
        rest = _by_symbol(names, decision.rounded)
        peak, first = account.capital
        record = BarDecision(
            bar=begins,
            cash=account.cash,
            equity=account.equity,
            peak=peak,
            first=first,
            shares=_by_symbol(names, account.held),
            orders=orders,
            why=decision.why,
            clipped=tuple(decision.clipped_by),
            traded=self.limits.traded_usd,
            weights={name: round(weight, 6) for name, weight in weights.items()},
            rounded={name: count for name, count in rest.items() if abs(count) > SAME_SHARES},
            prices=prices,
            outside_usd=self.accounts.outside_usd,
            resting=resting,
            goal=goal,
            limits_from=(self.limits.peak_usd, self.limits.opening_usd),
        )
        # The orders stay open until the close of the next bar, or rest until the next decision.
        last = self.grid.num_bars - 1
        opens = int(self.grid.minutes[min(bar + 1, last)])
        bars = min(self.env.order_bars, self.env.decision_interval) if self.env.orders_rest else 1
        until = int(self.grid.minutes[min(bar + bars, last)]) + self.length
        execution = self._open_execution()
        if execution.replaces and bars == self.env.decision_interval:
            until += _FRESH  # the next decision ends the orders, unless it is missed
        with self.journal.together():  # a decision is written with its orders, or not at all
            self.journal.write(record, at=now)
            if orders or resting or execution.replaces:
                execution.begin(
                    decision=closed,
                    orders=orders,
                    prices=prices,
                    at=now,
                    until=until,
                    not_before=now if self.broker.takes_baskets else max(opens, now),
                    resting=resting,
                )
        if decision.halted:
            self._halt(decision.why, now)
        elif decision.why:
            self._record_news("held", decision.why, now)
        elif unbooked:
            text = f"the broker has not booked the split of {', '.join(sorted(unbooked))} yet"
            self._record_news("held", f"{text}: nothing is ordered in it", now)
        self._pursue()

    def _open_execution(self) -> Execution:
        """Return the execution of the open orders, a new one where none is open."""
        if self.execution is None:
            self.execution = self._execution_kind(self.broker, self.journal, self.rules)
        return self.execution

    def _start_session(self, bar: int, now: int, *, again: bool = False) -> None:
        """Take in the day's splits and dividends, once or `again`, and apply them to orders
        that were decided before."""
        session = int(self.grid.session[bar])
        for action in self.recorder.request_actions(self.feed, session, now, again=again):
            opened = self.recorder.find_open(action.day)
            with self.journal.together():  # both or none, and once
                split = self.accounts.expect(action, opened, now)
                if split == 1.0 or self.execution is None:
                    continue
                reason = f"the split {split:g} for 1 of {action.day}"
                if self.flatten.is_on:  # its orders were sized by the broker's count
                    self.execution.stop(now, reason)
                    self.flatten.doubt(now)
                else:
                    self.execution.rescale(
                        action.symbol, split, before=opened, reason=reason, at=now
                    )

    def _may_send(self, execution: Execution, now: int) -> bool:
        """Read splits and the account again before sending orders that were decided some time ago;
        a flatten's orders are sent even if that fails."""
        is_fresh = now - self._read_at < _FRESH
        if self.simulated is not None or is_fresh or not execution.is_due(now):
            return True
        if now < self._retry_at:
            return self.flatten.is_on
        caught = (Exception,) if self.flatten.is_on else (DataError, BrokerUnsureError)
        self._retry_at = now + _ASK_SOON
        try:
            self._start_session(self._find_bar(now), now, again=True)
            self.accounts.agreed(now)
        except caught as error:
            if not self.flatten.is_on:
                text = f"no order leaves before the account is read: {error}"
                self._record_news("skipped", text, now)
            return self.flatten.is_on
        self._read_at = now
        return True

    def _mark(self, bar: int, now: int) -> None:
        """Journal the account's worth at a session's last close."""
        if self.window is None:
            market, row = self.recorder.rows.at(self.grid, bar, self.accounts.since)
            equity = self.accounts.at(market, row, now).equity
            if self.simulated is not None:
                equity = self.simulated.measure(row)
        else:
            equity = self.accounts.between(now)
        self.journal.write(Mark(int(self.grid.minutes[bar]), equity), at=now)
        self._check_limits(bar, now, equity)

    def _check_limits(self, bar: int, now: int, equity: float | None = None) -> None:
        """Check the losses of an account at a broker with every bar between two decisions; an
        embedded account and its twin check them only at decisions."""
        if self.simulated is not None:
            return
        equity = self.accounts.between(now) if equity is None else equity
        why = self.limits.watch(self._find_session(int(self.grid.minutes[bar])), equity)
        if why:
            self._halt(why, now)

    # --- requests, halts, news --------------------------------------------------------------------

    def _show_beat(self) -> None:
        self._shown = self._beat
        beat = Heartbeat(int(self._beat * SECOND_NS), self._following)
        write_json(self.folder / HEARTBEAT, to_json(beat))

    def _look(self) -> bool:
        """Carry requests out and pursue orders, while the loop waits."""
        now = self.clock.now()
        self._beat = time.time()
        self.alerts.look()
        if self.clock.live and self._beat - self._shown > BEAT_SECONDS:
            self._show_beat()
        self._carry_out_requests(now)
        if self.clock.live and (self.execution is not None or self.flatten.is_on):
            self._pursue()
        if self.flatten.is_on and now - self._reported_at >= SELL_AGAIN:
            self._report_left(now, is_repeated=True)
        return self.stopped

    def _carry_out_requests(self, now: int) -> None:
        for path, request in list_requests(self.folder):
            if request == "resume" and self.flatten.is_on:
                text = f"nothing is resumed before the flatten has ended: {self.flatten.describe()}"
                self._record_news("flatten", text, now)
            elif request == "resume":
                self.limits.resume()
                self.journal.write(Resumption(), at=now)
            elif request == "accept":
                self._accept(now)
            elif request == "halt":
                self._halt("asked to halt", now)
            else:
                try:
                    self._begin_flatten(now)
                except DeployError as error:  # a full disk: the request stays
                    self.flatten.is_on = True
                    self.flatten.obstacles[""] = str(error)
                    continue
            path.unlink(missing_ok=True)

    def _begin_flatten(self, now: int) -> None:
        """Halt, which stops open orders; then sell everything."""
        self._halt("asked to flatten", now)
        self.flatten.begin(now)
        if self.simulated is None:
            self._open_execution().stop(now, "flatten")

    def _accept(self, now: int) -> None:
        try:
            self._start_session(self._find_bar(now), now)
            self.accounts.accept(now)
            self._open_execution().take_on_open(now)
        except FintraderError as error:
            self._record_news("accept", f"nothing was accepted: {error}; ask again", now)

    # --- the flatten ---------------------------------------------------------------------------

    def _sell_left(self, now: int) -> None:
        """Sell what is left at the broker; end the flatten once there is nothing."""
        if not self.flatten.is_due(now):
            return
        try:
            self._start_session(self._find_bar(now), now)  # a split changes the shares due
            self.flatten.note_splits()
        except Exception as error:
            if self.flatten.waits_for_splits(error, now):
                return
        orders = self.flatten.find_sales(self.execution, now, self.recorder.rows.history.last_close)
        if orders is None:
            self._end_flatten(now)
            return
        if orders:
            self._sell(orders, now)
        self._report_left(now)

    def _sell(self, orders: dict[str, float], now: int) -> None:
        """Journal a flatten's orders for the length of a bar; while the exchange is closed, ask
        again at its open, since the shares may change overnight."""
        last = self.grid.num_bars - 1
        bar = min(int(np.searchsorted(self.grid.minutes, now - self.length, side="right")), last)
        if now >= self.grid.end[self.grid.session[bar]]:  # a session's last bar may be shorter
            bar = min(int(self.grid.first_bar[self.grid.session[bar] + 1]), last)
        if now < self.grid.minutes[bar]:
            self.flatten.wait(int(self.grid.minutes[bar]))
            return
        closes = int(self.grid.end[self.grid.session[bar]])
        history = self.recorder.rows.history
        prices = {name: history.last_close(name) for name in orders}
        sent = {name: count for name, count in orders.items() if count < 0 or prices[name] > 0}
        without_price = orders.keys() - sent.keys()
        self.flatten.obstacles |= dict.fromkeys(without_price, "it has no price to buy it back at")
        self.flatten.note_sent(orders, now)
        self._open_execution().begin(
            decision=now,
            orders=sent,
            prices=prices,
            at=now,
            not_before=now,
            until=min(now + self.length, closes),  # sent before the close, or not
        )

    def _sell_simulated(self, account: BacktestAccount, now: int) -> Decision:
        """Decide to hold nothing: the embedded broker fills orders of decisions, and no others."""
        self.flatten.left = _by_symbol(account.market.symbols, account.held)
        resting = lay_out_sales(account.resting, account.held) if self.env.orders_rest else None
        if not self.flatten.left:
            self._end_flatten(now)
            return Decision(None, resting=resting)
        self._report_left(now)
        return Decision(-account.held, resting=resting)

    def _end_flatten(self, now: int) -> None:
        others = self.flatten.others
        self.journal.write(FlattenEnd(others), at=now)
        self.flatten.is_on = False
        self.alerts.drop("flatten")
        text = "flat: it holds no sellable shares of its symbols, and has no open orders"
        if others:
            text += f"; {format_shares(others)} stay: of other symbols, or too few for an order"
        self._record_news("flat", text, now, is_repeated=True)

    def _report_left(self, now: int, *, is_repeated: bool = False) -> None:
        """Send an alert of a flatten that has not ended."""
        self._reported_at = now if is_repeated else self._reported_at
        text = f"not flat yet: {self.flatten.describe()}"
        self._record_news("flatten", text, now, is_repeated=is_repeated)

    def _pursue(self) -> None:
        """Go on with orders and flatten. Raises RunError where another process has taken the
        account over while this one slept."""
        if self._lease is not None:
            with contextlib.suppress(StorageError):  # an unreachable disk is no takeover
                self._lease.check()
        now = self.clock.now()
        try:
            if self.execution is not None:
                self._step(self.execution, now)
            if self.flatten.is_on and self.simulated is None:
                self._sell_left(now)
        except Exception as error:
            self.flatten.obstacles[""] = str(error)
            self._raise_unless_flattening(error, now)

    def _step(self, execution: Execution, now: int) -> None:
        if self._has_lapsed(now):
            self._end_orders(now)
        open_before = [name for name, report in execution.reports.items() if not report.is_over]
        try:
            over = execution.step(now, sends=self._may_send(execution, now))
            if execution.trouble:  # it is asked again with the next look
                self._record_news("broker", f"the broker does not answer: {execution.trouble}", now)
            elif over:
                self.execution = None
            if execution.stranger:
                name = execution.stranger
                self._halt(f"order {name} is of another deployment, which trades this account", now)
        except BrokerError as error:
            self._halt(str(error), now)
        if self.flatten.is_on:
            ended = [execution.reports[name] for name in open_before]
            self.flatten.note_ended([report for report in ended if report.is_over], now)

    def _halt(self, why: str, now: int) -> None:
        if not self.limits.halted or self.journal.last(Halt) is None:
            self.limits.halted = why
        if self.execution is not None and self.clock.live and not self.flatten.is_on:
            self.execution.stop(now, "halted", keeps_stops=True)
        if self.journal.find_halt() is None:
            self.journal.write(Halt(why), at=now)
            text = f"halted: {why}. `fintrader resume {self.bundle.name}` goes on"
            self._record_news("halt", text, now, is_repeated=True)

    def _record_news(self, kind: str, text: str, now: int, *, is_repeated: bool = False) -> None:
        """Journal each new text once, and send an alert; of an old text only if `is_repeated`."""
        alert = Alert(kind, text)
        last = self.journal.last(Alert, kind)
        is_new = last is None or last.body != alert
        if is_new or is_repeated:
            self.alerts.send(alert)  # first: the journal may lie on a full disk
        if is_new:
            with contextlib.suppress(*(DeployError,) if self.flatten.is_on else ()):
                self.journal.write(alert, at=now)

    def report_end(self, why: str) -> None:
        """Send an alert of the end of the process, with its open positions, also on a full disk."""
        rest = describe_rest(self.folder)
        text = f"ended: {why.strip()}{rest}. After the repair, run the same command again"
        alert = Alert("ended", text)
        self.alerts.send(alert)
        with contextlib.suppress(FintraderError):
            self.journal.write(alert, at=self.clock.now())

    def _is_clock_off(self, now: int) -> bool:
        theirs = self.broker.time()
        off = 0.0 if theirs is None else abs(theirs - self.clock.now()) / SECOND_NS
        is_off = off > self.settings.limits.clock_seconds
        if is_off:
            self._record_news(
                "clock",
                f"this machine's clock and the broker's are {off:.1f} s apart: nothing is ordered",
                now,
            )
        return is_off


def _by_symbol(symbols: tuple[str, ...], values: Array | None) -> dict[str, float]:
    """Map symbols to their values `[N]`, zeros left out; empty without any."""
    pairs = () if values is None else zip(symbols, values.tolist(), strict=True)
    return {symbol: value for symbol, value in pairs if value}
