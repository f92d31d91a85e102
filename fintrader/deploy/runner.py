"""The loop of a deployment: bar after bar, what was received, decided and ordered. One for replays,
paper and money.

A process may end at any moment. Everything it knows stands in the journal, so the same command goes
on; what was missed meanwhile is skipped, never made up for.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fintrader.backtesting.account import BacktestAccount
from fintrader.bars.bars import Array
from fintrader.bars.calendar import SessionGrid
from fintrader.deploy.accounts import Accounts, hold_account
from fintrader.deploy.alerts import Alerts
from fintrader.deploy.broker import Broker, refuse_real_money
from fintrader.deploy.bundle import Bundle
from fintrader.deploy.clock import SECOND_NS, Clock
from fintrader.deploy.control import waiting
from fintrader.deploy.decisions import Decision, decide, one_row
from fintrader.deploy.feed import LiveFeed
from fintrader.deploy.gauges import Gauges
from fintrader.deploy.journal import Entry, Journal
from fintrader.deploy.limits import Limits
from fintrader.deploy.orders import Execution
from fintrader.deploy.recorder import Levels, Recorder, no_level
from fintrader.deploy.settings import PaperSettings
from fintrader.errors import BrokerError, BrokerUnsureError, DataError, FintraderError, StorageError
from fintrader.files import write_json
from fintrader.market.tensors import MarketTensors
from fintrader.storage.lease import StoreLease

log = logging.getLogger("fintrader.deploy")
JOURNAL = "journal.sqlite"
HEARTBEAT = "heartbeat.json"
BEAT_SECONDS = 10.0
_AHEAD = dt.timedelta(days=14)
_DAY_NS = 86_400 * SECOND_NS


class Runner:
    """Runs one deployment. The caller holds its lease (`pipeline.deployment`)."""

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
        level: Levels = no_level,
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
        ConfigError for a port that cannot be used."""
        port = self.settings.metrics_port
        with contextlib.ExitStack() as stack:
            if port is not None:
                gauges = Gauges(self.bundle.name, port, self._gauges)
                stack.callback(gauges.close)
            self._lease = stack.enter_context(hold_account(self.broker))
            self._run()

    def _gauges(self) -> dict[str, float]:
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
        for bar in self._bars():
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

    def _bars(self) -> Iterator[int]:
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
            self._news(
                "missed",
                f"{missed} decision(s) were missed until {_time(self.clock.now())}",
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
        try:
            self.recorder.receive(self.feed, now)
            now = self.clock.now()  # a feed may take its time, and what is decided is decided now
            if self._is_due(bar):
                self._decide(bar, now)
            elif self.clock.live and not self._ends_session(bar):
                self._watch(bar, now)
            elif self._ends_session(bar) or bar == self.last:
                self._mark(bar, now)
            if self.clock.live and self._ends_session(bar):
                self._report(now)
        except (DataError, BrokerUnsureError) as error:
            self._news("skipped", f"nothing was decided at {_time(closed)}: {error}", now)
        except BrokerError as error:
            self._halt(str(error), now)

    def _keep_account(self) -> None:
        """Raise RunError where another one has taken the account over while this process slept."""
        if self._lease is not None:
            with contextlib.suppress(StorageError):  # a disk that is away takes nothing over
                self._lease.check()

    def _report(self, now: int) -> None:
        try:
            self._daily()
        except FintraderError as error:  # a report is worth no decision
            self._news("report", f"the drift report could not be written: {error}", now)

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
        self._morning(self.first, now)
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
            self._remember(entry)
        if self.simulated is not None:
            self.accounts.restore(self.simulated)
            self.execution = Execution.resume(self.broker, self.journal, at=now, **self._terms())
        self._take_over(now)

    def _take_over(self, now: int) -> None:
        """Agree with the broker before anything is ordered, and go on with the orders of before."""
        halted = self.journal.last("halt")
        resumed = self.journal.last("resume")
        if halted is not None and (resumed is None or resumed.seq < halted.seq):
            self.limits.halted = str(halted.body["why"])
        if self.simulated is not None:
            return
        self.accounts.agreed(now, start=True)
        self.execution = Execution.resume(self.broker, self.journal, at=now, **self._terms())

    # --- decisions --------------------------------------------------------------------------------

    def _decide(self, bar: int, now: int) -> None:
        self._morning(bar, now)
        market, row, report = self.recorder.rows.at(self.grid, bar)
        today = str(self.grid.dates[self.grid.session[bar]])
        if odd := [
            f"{fault['kind']} of {fault['symbol']}"
            for fault in report["waived"]
            if fault["day"] == today
        ]:
            self._news(
                "faults", f"today's bars hold faults that would stop a build: {', '.join(odd)}", now
            )
        account = self.accounts.at(market, row, now)
        action = one_row(self.policy, account) if not self.limits.halted else None
        decision = decide(account, action, self.limits)
        if not self.clock.live or not self._clock_is_off(now):
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
                shares=self._held(market.symbols, account.held),
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
                self._intend(orders, prices, closed, bar, now)
        if decision.halted:
            self._halt(decision.why, now)
        elif decision.why:
            self._news("held", decision.why, now)
        self._pursue()

    def _intend(
        self, orders: dict[str, float], prices: dict[str, float], closed: int, bar: int, now: int
    ) -> None:
        """Write down the orders of a decision at the close of a bar: they may stand until the next
        bar's."""
        opens = int(self.grid.minutes[min(bar + 1, self.grid.num_bars - 1)])
        if self.execution is None:
            self.execution = Execution(self.broker, self.journal, **self._terms())
        self.execution.begin(
            decision=closed,
            orders=orders,
            prices=prices,
            at=now,
            until=opens + self.length,
            not_before=now if self.broker.takes_baskets else max(opens, now),
        )

    def _morning(self, bar: int, now: int) -> None:
        """Splits and dividends of the day."""
        for action in self.recorder.morning(self.feed, int(self.grid.session[bar]), now):
            self.accounts.split(action, now)

    def _mark(self, bar: int, now: int) -> None:
        """What the account is worth at a session's last close."""
        if self.window is None:
            market, row, _ = self.recorder.rows.at(self.grid, bar)
            equity = self.accounts.at(market, row, now).equity
        else:
            equity = self.accounts.between(now)
        self.journal.write("mark", at=now, bar=int(self.grid.minutes[bar]), equity=equity)

    def _watch(self, bar: int, now: int) -> None:
        """Between decisions: losses are looked at with every bar."""
        if self.simulated is not None:
            return
        equity = self.accounts.between(now)
        if why := self.limits.watch(int(self.grid.minutes[bar]) // _DAY_NS, equity):
            self._halt(why, now)

    def _remember(self, entry: Entry) -> None:
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
        for path, request in waiting(self.folder):
            if request == "resume":
                self.limits.halted = ""
                self.limits.peak_usd = 0.0
                self.journal.write("resume", at=now)
            else:
                self._halt(f"asked to {request}", now)
                if request == "flatten":
                    self._flatten(now)
            path.unlink(missing_ok=True)
        if self.execution is not None and self.clock.live:
            self._pursue()
        return self.stopped

    def _flatten(self, now: int) -> None:
        """Sell everything, at once or with the next open."""
        held = dict(self.broker.account().shares)
        if not held:
            return
        bar = int(np.searchsorted(self.grid.minutes, now - self.length, side="right")) - 1
        symbols = self.bundle.symbols
        newest = {name: self.recorder.rows.history.last_close(name) for name in symbols}
        orders = {name: -shares for name, shares in held.items() if name in newest}
        self._intend(orders, newest, now, max(bar, 0), now)
        self._pursue()

    def _pursue(self) -> None:
        self._keep_account()
        if self.execution is None:
            return
        now = self.clock.now()
        try:
            over = self.execution.step(now)
            if self.execution.trouble:  # it is asked again with the next look
                self._news("broker", f"the broker does not answer: {self.execution.trouble}", now)
            elif over:
                self.execution = None
        except BrokerError as error:
            self._halt(str(error), now)

    def _halt(self, why: str, now: int) -> None:
        if not self.limits.halted or self.journal.last("halt") is None:
            self.limits.halted = why
        last = self.journal.last("halt")
        resumed = self.journal.last("resume")
        if self.execution is not None and self.clock.live:
            self.execution.stop(now, "halted")
        if last is None or (resumed is not None and resumed.seq > last.seq):
            self.journal.write("halt", at=now, why=why)
            self._news("halt", f"halted: {why}. `fintrader resume {self.bundle.name}` goes on", now)

    def _news(self, kind: str, text: str, now: int) -> None:
        """Once for each new text to the journal; to people once a minute."""
        last = self.journal.last("alert", kind)
        if last is None or last.body["text"] != text:
            self.journal.write("alert", kind, at=now, text=text)
            self.alerts.tell(kind, text)

    def _clock_is_off(self, now: int) -> bool:
        theirs = self.broker.time()
        off = 0.0 if theirs is None else abs(theirs - self.clock.now()) / SECOND_NS
        if off > self.settings.limits.clock_seconds:
            self._news(
                "clock",
                f"this machine's clock and the broker's are {off:.1f} s apart: nothing is ordered",
                now,
            )
            return True
        return False

    def _terms(self) -> dict[str, Any]:
        """What orders are carried out by."""
        return {
            "bundle": self.bundle.id,
            "fee_rate": self.env.fee_rate,
            "fractional": self.env.fractional,
        }

    @staticmethod
    def _held(symbols: tuple[str, ...], shares: Array) -> dict[str, float]:
        return {symbol: float(n) for symbol, n in zip(symbols, shares, strict=True) if n}

    def describe(self) -> dict[str, Any]:
        """How it is set up, for whoever asks."""
        return {"feed": self.feed.kind, "broker": self.broker.kind, **asdict(self.limits)}


def _time(moment: int) -> str:
    return f"{np.datetime_as_string(np.datetime64(moment, 'ns'), unit='m')}Z"
