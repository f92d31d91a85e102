"""The loop of a deployment: bar after bar, what was received, decided and ordered. One for replays,
paper and money.

A process may end at any moment. Everything it knows stands in the journal, so the same command goes
on; what was missed meanwhile is skipped, never made up for.

A flatten is a state of the journal, too (`flatten` until `flat`). It ends once the broker confirms
that nothing is held of the bundle's symbols and none of the deployment's orders is open; no error
of the broker ends it before.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.limits import Limits
from fintrader.backtesting.shadow import Decision, decide
from fintrader.bars.bars import Array
from fintrader.bars.calendar import SessionGrid
from fintrader.deploy.accounts import Accounts, hold_account
from fintrader.deploy.alerts import Alerts
from fintrader.deploy.broker import Broker, OrderReport, refuse_real_money
from fintrader.deploy.bundle import Bundle
from fintrader.deploy.clock import SECOND_NS, Clock
from fintrader.deploy.control import list_requests
from fintrader.deploy.decisions import decide_row
from fintrader.deploy.feed import LiveFeed
from fintrader.deploy.gauges import Gauges
from fintrader.deploy.journal import Entry, Journal
from fintrader.deploy.orders import Execution, order_prefix
from fintrader.deploy.reconcile import expect_holdings
from fintrader.deploy.recorder import Levels, Recorder, skip_level
from fintrader.deploy.settings import PaperSettings
from fintrader.errors import BrokerError, BrokerUnsureError, DataError, FintraderError, StorageError
from fintrader.files import write_json
from fintrader.market.tensors import MarketTensors
from fintrader.storage.lease import StoreLease

log = logging.getLogger("fintrader.deploy")
JOURNAL = "journal.sqlite"
HEARTBEAT = "heartbeat.json"
BEAT_SECONDS = 10.0
_SELL_AGAIN = 60 * SECOND_NS
"""A flatten in which nothing moves tries again so often, which is with every bar of a minute."""
_ASK_SOON = 5 * SECOND_NS
_COUNTED_LATE = 120 * SECOND_NS
"""For so long after a fill the broker's positions may be those before it."""
_SAME = 1e-6
"""Shares that two counts may differ by."""
_AHEAD = dt.timedelta(days=14)
_DAY_NS = 86_400 * SECOND_NS


class Runner:
    """Runs one deployment. The caller holds its lease (`deploy.deployment`)."""

    def __init__(
        self,
        folder: Path,
        bundle: Bundle,
        settings: PaperSettings,
        *,
        clock: Clock,
        feed: LiveFeed,
        broker: Broker,
        journal: Journal,
        window: tuple[int, int] | None,
        level: Levels = skip_level,
        until: int | None = None,
        cap_usd: float | None = None,
        daily: Callable[[], object] = lambda: None,
    ) -> None:
        """window: start of the first and the last bar of a replay, ns; None: from the next bar on,
        without end, or to the last bar that closes by `until`. cap_usd: what the account holds
        beyond it is left alone. daily: called after each session that is traded live.

        Raises DeployError for real money; a cap means real money, too.
        """
        refuse_real_money(broker.real_money or cap_usd is not None)
        self.folder = folder
        self.bundle = bundle
        self.settings = settings
        self.clock = clock
        self.feed = feed
        self.broker = broker
        self.journal = journal
        self.data = bundle.data
        self.env = bundle.env
        self.window = window
        self.until = until
        self._daily = daily
        self.policy = bundle.policy
        self.recorder = Recorder(
            bundle, journal, warm_up_sessions=settings.warm_up_sessions, level=level
        )
        self.length = self.recorder.length
        self.alerts = Alerts(settings.alerts, bundle.name)
        self.limits = Limits(settings.limits, whole=not self.env.fractional)
        self.accounts = Accounts(
            bundle,
            broker,
            journal,
            self.recorder,
            self._halt,
            replays=window is not None,
            adopt=settings.adopt,
            cap_usd=cap_usd,
        )
        self.simulated = self.accounts.simulated
        self.execution: Execution | None = None
        self.first = 0
        self.last = -1
        """Bars of the grid: the first that is decided upon, and a replay's last."""
        self.stopped = False
        self.flattening = journal.is_flattening()
        self._left: dict[str, float] | None = None
        """Shares by symbol that a flatten has to sell; None while the broker has not said."""
        self._obstacles: dict[str, str] = {}
        """Why they are not sold yet, by symbol, or for all of them by an empty name."""
        self._sell_at = 0
        """When a flatten asks the broker next."""
        self._again_at: dict[str, int] = {}
        """From when on a flatten sells a symbol again of which nothing was sold."""
        self._filled_at: dict[str, int] = {}
        self._lease: StoreLease | None = None
        self._beat = time.time()
        """When the loop was last seen, Unix time of this machine."""
        self._shown = 0.0
        self._following = 0

    @property
    def grid(self) -> SessionGrid:
        """All bars from the warm-up to some days ahead, or to a replay's end."""
        return self.recorder.grid

    # --- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the window is over, or somebody stops it. Raises DeployError when it cannot begin,
        ConfigError for a port that cannot be used. An error that ends it is told to people before
        it does."""
        port = self.settings.metrics_port
        with contextlib.ExitStack() as stack:
            stack.callback(self.alerts.finish)
            if port is not None:
                gauges = Gauges(self.bundle.name, port, self._read_gauges)
                stack.callback(gauges.close)
            try:
                self._lease = stack.enter_context(hold_account(self.broker, self.journal))
                self._run()
            except BaseException as error:  # who stops it knows, but perhaps not of a flatten
                if isinstance(error, Exception) or self.flattening:
                    self._tell_end(error)
                raise

    def _read_gauges(self) -> dict[str, float]:
        """What a scrape sees; on a connection of its own, since it runs in another thread."""
        with Journal(self.journal.path, reading=True) as journal:
            last = journal.last("decision")
            decisions = len(journal.entries("decision"))
            missed = sum(len(journal.entries("alert", key=kind)) for kind in ("missed", "skipped"))
            states = Counter(report.state for report in journal.orders().values())
        values = {
            "halted": float(bool(self.limits.halted)),
            "decisions": decisions,
            "missed": missed,
        }
        values["beat_timestamp_seconds"] = self._beat
        if last is not None:
            values |= {
                "equity_usd": float(last.body["equity"]),
                "cash_usd": float(last.body["cash"]),
            }
        return values | {f"orders:{state}": count for state, count in states.items()}

    def _run(self) -> None:
        self._begin()
        for bar in self._iterate_bars():
            moment = int(self.grid.minutes[bar]) + self.length
            if self.until is not None and moment > self.until:
                return
            self.clock.sleep_until(
                moment + int(self.settings.grace_seconds * SECOND_NS), self._look
            )
            if self.stopped:
                return
            self._turn(bar)
        self._pursue()
        self.journal.write("end", at=self.clock.now())

    def _iterate_bars(self) -> Iterator[int]:
        """Bars to wake at: each as it is made; of a replay the decisions', and each session's
        last."""
        bar = self._next
        while True:
            bar += self._passed_by(bar)
            if self.window is not None and bar > self.last:
                return
            if bar >= self.grid.num_bars - 1 and self.window is None:
                before = self.first
                self.first = self.recorder.lay_out(
                    int(self.grid.minutes[self.first]), None, int(self.grid.minutes[-1])
                )
                bar += self.first - before
            if self.clock.live or self._ends_session(bar) or self._is_due(bar) or bar == self.last:
                yield bar
            bar += 1

    def _passed_by(self, bar: int) -> int:
        """Bars from this one on that closed while nobody was looking: too old to act upon."""
        if not self.clock.live:
            return 0
        newest = (
            int(
                np.searchsorted(self.grid.minutes, self.clock.now() - 2 * self.length, side="right")
            )
            - 1
        )
        missed = sum(self._is_due(late) for late in range(bar, newest + 1))
        if missed:
            self._record_news(
                "missed",
                f"{missed} decision(s) were missed until {_format_time(self.clock.now())}",
                self.clock.now(),
            )
        return max(newest + 1 - bar, 0)

    def _is_due(self, bar: int) -> bool:
        return (bar - self.first) % self.env.decision_interval == 0 and bar != self.last

    def _ends_session(self, bar: int) -> bool:
        return bar == self.grid.num_bars - 1 or bool(
            self.grid.session[bar + 1] != self.grid.session[bar]
        )

    def _turn(self, bar: int) -> None:
        """What there is to do once a bar has closed."""
        now = self.clock.now()
        closed = int(self.grid.minutes[bar]) + self.length
        self._beat = time.time()
        if self.clock.live:
            due = next(
                later
                for later in range(bar + 1, bar + 2 + self.env.decision_interval)
                if self._is_due(later)
            )
            self._following = int(self.grid.minutes[min(due, self.grid.num_bars - 1)]) + self.length
            self._show_beat()
        self._pursue()
        if self.flattening:
            self._tell_left(now, is_repeated=True)
        try:
            self.recorder.receive(self.feed, now)
            now = self.clock.now()  # a feed may take its time, and what is decided is decided now
            if self._is_due(bar):
                self._decide(bar, now)
            elif self.clock.live and not self._ends_session(bar):
                self._check_limits(bar, now)
            elif self._ends_session(bar) or bar == self.last:
                self._mark(bar, now)
            if self.clock.live and self._ends_session(bar):
                self._report(now)
        except (DataError, BrokerUnsureError) as error:
            self._record_news(
                "skipped", f"nothing was decided at {_format_time(closed)}: {error}", now
            )
        except BrokerError as error:
            self._halt(str(error), now)
        except FintraderError as error:
            self._outlive(error, now)

    def _keep_account(self) -> None:
        """Raise RunError where another one has taken the account over while this process slept."""
        if self._lease is not None:
            with contextlib.suppress(StorageError):  # a disk that is away takes nothing over
                self._lease.check()

    def _outlive(self, error: FintraderError, now: int) -> None:
        """Go on after an error while a flatten is under way; otherwise raise it."""
        # Before the first agreement the account may be somebody else's.
        is_agreed = bool(expect_holdings(self.journal).number)
        if not self.flattening or not is_agreed:
            raise error
        self._record_news("skipped", f"the flatten goes on after an error: {error}", now)

    def _report(self, now: int) -> None:
        try:
            self._daily()
        except FintraderError as error:  # a report is worth no decision
            self._record_news("report", f"the drift report could not be written: {error}", now)

    # --- how it begins ----------------------------------------------------------------------------

    def _begin(self) -> None:
        now = self.clock.now()
        started = self.journal.last("start")
        first = (
            self.window[0]
            if self.window is not None
            else int(started.body["first_bar"] if started else now)
        )
        self.first = self.recorder.lay_out(
            first, None if self.window is None else self.window[1], now
        )
        self.last = (
            -1 if self.window is None else int(np.searchsorted(self.grid.minutes, self.window[1]))
        )
        begins = int(self.grid.minutes[self.first])
        try:
            self._start_session(self.first, now)
        except FintraderError as error:
            self._outlive(error, now)
        if started is None:
            self.recorder.warm_up(self.feed, begins, now)
            self.journal.write(
                "start",
                at=now,
                first_bar=begins,
                bundle=self.bundle.id,
                feed=self.feed.kind,
                broker=self.broker.kind,
                limits=self.settings.limits.model_dump(),
                initial_cash_usd=self.env.initial_cash_usd,
            )
            self._next = self.first
            self._take_over(now)
            return
        self.recorder.restore()
        done = [*self.journal.entries("decision"), *self.journal.entries("mark")]
        newest = max((int(entry.body["bar"]) for entry in done), default=begins - self.length)
        self._next = int(np.searchsorted(self.grid.minutes, newest, side="right"))
        for entry in sorted(done, key=lambda entry: entry.seq):
            self._record_entry(entry)
        if self.simulated is not None:
            self.accounts.restore(self.simulated)
            self.execution = Execution.resume(
                self.broker, self.journal, at=now, **self._describe_terms()
            )
        self._take_over(now)

    def _take_over(self, now: int) -> None:
        """Agree with the broker before anything is ordered, and go on with the orders of before."""
        halted = self.journal.last("halt")
        resumed = self.journal.last("resume")
        if halted is not None and (resumed is None or resumed.seq < halted.seq):
            self.limits.halted = str(halted.body["why"])
        if self.simulated is not None:
            return
        self._carry_out_requests(now)
        try:
            self.accounts.agreed(now, start=True)
        except FintraderError as error:
            self._outlive(error, now)
        self.execution = Execution.resume(
            self.broker, self.journal, at=now, **self._describe_terms()
        )
        if self.flattening:
            self.execution.stop(now, "flatten")
            self._filled_at = dict.fromkeys(self.bundle.symbols, now)  # any may just have been

    # --- decisions --------------------------------------------------------------------------------

    def _decide(self, bar: int, now: int) -> None:
        self._start_session(bar, now)
        market, row = self.recorder.rows.at(self.grid, bar)
        today = str(self.grid.dates[self.grid.session[bar]])
        if odd := [
            f"{fault.kind} of {fault.symbol}"
            for fault in market.provenance.waived
            if fault.day == today
        ]:
            self._record_news(
                "faults", f"today's bars hold faults that would stop a build: {', '.join(odd)}", now
            )
        account = self.accounts.at(market, row, now)
        action = decide_row(self.policy, account) if not self.limits.halted else None
        decision = decide(account, action, self.limits)
        if self.flattening and self.simulated is not None:
            decision = self._sell_simulated(account, now)
        if not self.clock.live or not self._is_clock_off(now):
            self._order(bar, now, market, account, decision)

    def _order(
        self,
        bar: int,
        now: int,
        market: MarketTensors,
        account: BacktestAccount,
        decision: Decision,
    ) -> None:
        prices = dict(zip(market.symbols, account.prices.tolist(), strict=True))
        orders: dict[str, float] = {}
        if decision.orders is not None:
            wanted = zip(market.symbols, decision.orders.tolist(), strict=True)
            orders = {symbol: shares for symbol, shares in wanted if shares and prices[symbol] > 0}
        peak, first = account.capital
        rest = np.zeros(len(market.symbols)) if decision.rounded is None else decision.rounded
        weights = () if decision.weights is None else decision.weights.tolist()
        closed = int(self.grid.minutes[bar]) + self.length
        with (
            self.journal.together()
        ):  # a decision stands in the journal with its orders, or not at all
            self.journal.write(
                "decision",
                at=now,
                bar=int(self.grid.minutes[bar]),
                cash=account.cash,
                equity=account.equity,
                peak=peak,
                first=first,
                shares=self._select_held(market.symbols, account.held),
                orders=orders,
                why=decision.why,
                clipped=list(decision.clipped_by),
                traded=self.limits.traded_usd,
                weights={
                    name: round(w, 6) for name, w in zip(market.symbols, weights, strict=False) if w
                },
                rounded={
                    name: float(n)
                    for name, n in zip(market.symbols, rest, strict=True)
                    if abs(n) > 1e-6
                },
                prices={name: prices[name] for name in market.symbols if prices[name] > 0},
            )
            if orders:
                self._record_intent(orders, prices, closed, bar, now)
        if decision.halted:
            self._halt(decision.why, now)
        elif decision.why:
            self._record_news("held", decision.why, now)
        self._pursue()

    def _record_intent(
        self, orders: dict[str, float], prices: dict[str, float], closed: int, bar: int, now: int
    ) -> None:
        """Write down the orders of a decision at the close of a bar: they may stand until the next
        bar's."""
        opens = int(self.grid.minutes[min(bar + 1, self.grid.num_bars - 1)])
        if self.execution is None:
            self.execution = Execution(self.broker, self.journal, **self._describe_terms())
        self.execution.begin(
            decision=closed,
            orders=orders,
            prices=prices,
            at=now,
            until=opens + self.length,
            not_before=now if self.broker.takes_baskets else max(opens, now),
        )

    def _start_session(self, bar: int, now: int) -> None:
        """Splits and dividends of the day."""
        for action in self.recorder.morning(self.feed, int(self.grid.session[bar]), now):
            self.accounts.split(action, now)

    def _mark(self, bar: int, now: int) -> None:
        """What the account is worth at a session's last close."""
        if self.window is None:
            market, row = self.recorder.rows.at(self.grid, bar)
            equity = self.accounts.at(market, row, now).equity
        else:
            equity = self.accounts.between(now)
        self.journal.write("mark", at=now, bar=int(self.grid.minutes[bar]), equity=equity)

    def _check_limits(self, bar: int, now: int) -> None:
        """Between decisions: losses are looked at with every bar."""
        if self.simulated is not None:
            return
        equity = self.accounts.between(now)
        if why := self.limits.watch(int(self.grid.minutes[bar]) // _DAY_NS, equity):
            self._halt(why, now)

    def _record_entry(self, entry: Entry) -> None:
        """What the limits and the account's memory hold of an earlier decision or mark."""
        equity = float(entry.body["equity"])
        if entry.kind == "decision":
            self.limits.watch(int(entry.body["bar"]) // _DAY_NS, equity)
            self.limits.traded_usd = float(entry.body["traded"])
            self.accounts.remember(entry.body)

    # --- requests, halts, news --------------------------------------------------------------------

    def _show_beat(self) -> None:
        """Let whoever watches see that the loop goes on."""
        self._shown = self._beat
        beat = {"time": int(self._beat * SECOND_NS), "next_decision": self._following}
        write_json(self.folder / HEARTBEAT, beat)

    def _look(self) -> bool:
        """Called while it waits: requests are carried out, orders pursued."""
        now = self.clock.now()
        self._beat = time.time()
        if self.clock.live and self._beat - self._shown > BEAT_SECONDS:
            self._show_beat()
        self._carry_out_requests(now)
        if self.clock.live and (self.execution is not None or self.flattening):
            self._pursue()
        return self.stopped

    def _carry_out_requests(self, now: int) -> None:
        for path, request in list_requests(self.folder):
            if request == "resume" and self.flattening:
                text = f"nothing is resumed before the flatten has ended: {self._describe_left()}"
                self._record_news("flatten", text, now)
            elif request == "resume":
                self.limits.halted = ""
                self.limits.peak_usd = 0.0
                self.journal.write("resume", at=now)
            else:
                self._halt(f"asked to {request}", now)
                if request == "flatten":
                    self._begin_flatten(now)
            path.unlink(missing_ok=True)

    # --- the flatten ---------------------------------------------------------------------------

    def _begin_flatten(self, now: int) -> None:
        """Write down that everything is to be sold; the halt before has stopped open orders."""
        if not self.flattening:
            self.journal.write("flatten", at=now)
            self.flattening = True
            self._sell_at = now
            self._filled_at = dict.fromkeys(self.bundle.symbols, now)  # any may just have been

    def _sell_left(self, now: int) -> None:
        """Sell what the broker holds of the bundle's symbols; end the flatten once it is nothing.

        Shares of a symbol whose orders are open are bound by them and wait for their end. Whole
        shares go first: a fraction that the broker does not take must not keep them.
        """
        if now < self._sell_at:
            return
        self._sell_at = now + _SELL_AGAIN
        self._obstacles.pop("", None)
        try:
            standing = self._list_standing(now)
            account = self.broker.account()
        except (BrokerError, BrokerUnsureError) as error:
            self._obstacles[""] = str(error)
            self._tell_left(now)
            return
        known = expect_holdings(self.journal)
        if account.number != known.number:
            text = f"the keys are of account {account.number}, and the flatten is of {known.number}"
            self._obstacles[""] = text
            self._tell_left(now)
            return
        symbols = set(self.bundle.symbols)
        self._left = {name: count for name, count in account.shares.items() if name in symbols}
        others = {name: count for name, count in account.shares.items() if name not in symbols}
        self._obstacles = {name: why for name, why in self._obstacles.items() if name in self._left}
        if not self._left and not standing:
            self._end_flatten(now, others)
            return
        self._obstacles |= {report.symbol: "an order is open" for report in standing}
        busy = {report.symbol for report in standing}
        busy.update(name for name, moment in self._again_at.items() if now < moment)
        doubtful = {name for name in self._left if self._is_doubtful(name, known.shares, now)}
        if doubtful:
            self._sell_at = min(self._sell_at, now + _ASK_SOON)
            why = "the broker's count is not the journal's yet"
            self._obstacles |= dict.fromkeys(doubtful, why)
        free = self._left.keys() - busy - doubtful
        orders = {name: -(float(math.trunc(self._left[name])) or self._left[name]) for name in free}
        if orders:
            self._sell(orders, now)
        self._tell_left(now)

    def _is_doubtful(self, name: str, known: Mapping[str, float], now: int) -> bool:
        """Say whether the broker's count may be older than a fill: sold twice is sold short."""
        left = {} if self._left is None else self._left
        differs = abs(left.get(name, 0.0) - known.get(name, 0.0)) > _SAME
        return differs and now < self._filled_at.get(name, -_COUNTED_LATE) + _COUNTED_LATE

    def _list_standing(self, now: int) -> list[OrderReport]:
        """List the open orders of this deployment; cancel those that nothing here pursues."""
        pursued = {} if self.execution is None else self.execution.reports
        standing = [report for report in pursued.values() if not report.is_over]
        for report in self.broker.orders(max(now - _DAY_NS, 0)):
            is_own = report.id.startswith(order_prefix(self.bundle.id))
            is_pursued = report.id in pursued and not pursued[report.id].is_over
            if report.is_over or not is_own or is_pursued:
                continue
            if self.journal.last("order", report.id) is not None:
                self.broker.cancel(report)
                self._sell_at = now + _ASK_SOON
                standing.append(report)
        return standing

    def _sell(self, orders: dict[str, float], now: int) -> None:
        """Write down a flatten's orders: at once, or at the next open, for the length of a bar."""
        history = self.recorder.rows.history
        prices = {name: history.last_close(name) for name in orders}
        sent = {name: count for name, count in orders.items() if count < 0 or prices[name] > 0}
        without_price = orders.keys() - sent.keys()
        self._obstacles.update(dict.fromkeys(without_price, "it has no price to buy it back at"))
        bar = int(np.searchsorted(self.grid.minutes, now - self.length, side="right"))
        opens = max(int(self.grid.minutes[min(bar, self.grid.num_bars - 1)]), now)
        if self.execution is None:
            self.execution = Execution(self.broker, self.journal, **self._describe_terms())
        self._again_at |= dict.fromkeys(orders, now + _SELL_AGAIN)
        self.execution.begin(
            decision=now,
            orders=sent,
            prices=prices,
            at=now,
            not_before=opens,
            until=opens + self.length,
        )

    def _note_ended(self, ended: list[OrderReport], now: int) -> None:
        """Ask soon where an order has ended that was not refused; sell again what has moved."""
        for report in ended:
            if report.filled:
                self._filled_at[report.symbol] = now
                self._again_at.pop(report.symbol, None)
            if report.state == "rejected":
                self._obstacles[report.symbol] = report.reason
            else:
                self._obstacles.pop(report.symbol, None)
                self._sell_at = min(self._sell_at, now + SECOND_NS)  # an order's id has its second

    def _sell_simulated(self, account: BacktestAccount, now: int) -> Decision:
        """Decide to hold nothing: the embedded broker fills orders of decisions, and no others."""
        self._left = self._select_held(account.market.symbols, account.held)
        if not self._left:
            self._end_flatten(now, {})
            return Decision(None)
        self._tell_left(now)
        return Decision(-account.held)

    def _end_flatten(self, now: int, others: Mapping[str, float]) -> None:
        self.journal.write("flat", at=now, others=dict(others))
        self.flattening = False
        text = "flat: nothing is held of its symbols, and none of its orders is open"
        if others:
            text += f"; {_format_shares(others)} are not of its symbols and stay"
        self._record_news("flat", text, now, is_repeated=True)

    def _describe_left(self) -> str:
        """What a flatten has not done yet, and why."""
        left = "what is left is not known yet"
        if self._left is not None:
            left = f"{_format_shares(self._left) or 'nothing'} left to sell"
        whys = [f"{name}: {why}" if name else why for name, why in self._obstacles.items()]
        return "; ".join([left, *whys])

    def _tell_left(self, now: int, *, is_repeated: bool = False) -> None:
        """Tell people that a flatten has not ended."""
        self._record_news(
            "flatten", f"not flat yet: {self._describe_left()}", now, is_repeated=is_repeated
        )

    def _pursue(self) -> None:
        self._keep_account()
        now = self.clock.now()
        if self.execution is not None:
            self._step(self.execution, now)
        if self.flattening and self.simulated is None:
            self._sell_left(now)

    def _step(self, execution: Execution, now: int) -> None:
        open_before = [name for name, report in execution.reports.items() if not report.is_over]
        try:
            over = execution.step(now)
            if execution.trouble:  # it is asked again with the next look
                self._record_news("broker", f"the broker does not answer: {execution.trouble}", now)
            elif over:
                self.execution = None
        except BrokerError as error:
            self._halt(str(error), now)
        if self.flattening:
            ended = [execution.reports[name] for name in open_before]
            self._note_ended([report for report in ended if report.is_over], now)

    def _halt(self, why: str, now: int) -> None:
        if not self.limits.halted or self.journal.last("halt") is None:
            self.limits.halted = why
        last = self.journal.last("halt")
        resumed = self.journal.last("resume")
        if self.execution is not None and self.clock.live and not self.flattening:
            self.execution.stop(now, "halted")
        if last is None or (resumed is not None and resumed.seq > last.seq):
            self.journal.write("halt", at=now, why=why)
            self._record_news(
                "halt", f"halted: {why}. `fintrader resume {self.bundle.name}` goes on", now
            )

    def _record_news(self, kind: str, text: str, now: int, *, is_repeated: bool = False) -> None:
        """Each new text once to the journal; to people once a minute, old ones if `is_repeated`."""
        last = self.journal.last("alert", kind)
        is_new = last is None or last.body["text"] != text
        if is_new:
            self.journal.write("alert", kind, at=now, text=text)
        if is_new or is_repeated:
            self.alerts.tell(kind, text)

    def _tell_end(self, error: BaseException) -> None:
        """Tell people that the process ends and what it leaves behind, also on a full disk."""
        why = str(error)
        if not isinstance(error, FintraderError):
            why = f"{type(error).__name__} {why}".strip()
        left = ""
        with contextlib.suppress(FintraderError):
            held = {} if self.simulated is not None else expect_holdings(self.journal).shares
            left = f"; nothing looks after what is held: {_format_shares(held)}" if held else ""
        if self.flattening:
            left += "; a flatten has not ended"
        text = f"ended: {why}{left}. Once that is mended, the same command goes on"
        self.alerts.tell("ended", text)
        with contextlib.suppress(FintraderError):
            self.journal.write("alert", "ended", at=self.clock.now(), text=text)

    def _is_clock_off(self, now: int) -> bool:
        theirs = self.broker.time()
        off = 0.0 if theirs is None else abs(theirs - self.clock.now()) / SECOND_NS
        if off > self.settings.limits.clock_seconds:
            self._record_news(
                "clock",
                f"this machine's clock and the broker's are {off:.1f} s apart: nothing is ordered",
                now,
            )
            return True
        return False

    def _describe_terms(self) -> dict[str, Any]:
        """What orders are carried out by."""
        return {
            "bundle": self.bundle.id,
            "fee_rate": self.env.fee_rate,
            "fractional": self.env.fractional,
        }

    @staticmethod
    def _select_held(symbols: tuple[str, ...], shares: Array) -> dict[str, float]:
        return {symbol: float(n) for symbol, n in zip(symbols, shares, strict=True) if n}

    def describe(self) -> dict[str, Any]:
        """How it is set up, for whoever asks."""
        return {"feed": self.feed.kind, "broker": self.broker.kind, **asdict(self.limits)}


def _format_shares(shares: Mapping[str, float]) -> str:
    """Shares by symbol as text."""
    return ", ".join(f"{count:.9g} {symbol}" for symbol, count in sorted(shares.items()))


def _format_time(moment: int) -> str:
    return f"{np.datetime_as_string(np.datetime64(moment, 'ns'), unit='m')}Z"
