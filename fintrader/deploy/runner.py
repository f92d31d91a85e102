"""The loop of a deployment: bar after bar, what was received, decided and ordered. One for replays, paper and money.

A process may end at any moment. Everything it knows stands in the journal, so the same command goes on; what was missed
meanwhile is skipped, never made up for.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fintrader.backtesting.account import BacktestAccount
from fintrader.data.bars import COLUMNS, MINUTE_NS, Array, Bars
from fintrader.data.calendar import SessionGrid, session_date, session_grid
from fintrader.data.tensors import MarketTensors
from fintrader.deploy.alerts import Alerts
from fintrader.deploy.broker import Broker, Order
from fintrader.deploy.bundle import Bundle
from fintrader.deploy.clock import SECOND_NS, Clock
from fintrader.deploy.control import waiting
from fintrader.deploy.decisions import Decision, decide, one_row
from fintrader.deploy.feed import LiveFeed
from fintrader.deploy.journal import Entry, Journal
from fintrader.deploy.limits import Limits
from fintrader.deploy.orders import Execution, order_id
from fintrader.deploy.reconcile import expected, reconcile
from fintrader.deploy.rows import Level, RecentMarket
from fintrader.deploy.settings import PaperSettings
from fintrader.deploy.simulated import SimulatedBroker
from fintrader.errors import BrokerError, BrokerUnsureError, DataError, DeployError

log = logging.getLogger("fintrader.deploy")
JOURNAL = "journal.sqlite"
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
        level: Callable[[SessionGrid], Level | None] = lambda grid: None,
        told: Callable[[str], None] = log.info,
    ) -> None:
        """window: start of the first and the last bar of a replay, ns; None: from the next bar on, without end."""
        self.folder, self.bundle, self.settings = folder, bundle, settings
        self.clock, self.feed, self.broker, self.journal = clock, feed, broker, journal
        self.data, self.env, self.window, self.told = bundle.data, bundle.env, window, told
        self.policy = bundle.policy
        self.length = self.data.bar_minutes * MINUTE_NS
        self.alerts = Alerts(settings.alerts, bundle.name)
        self.limits = Limits(settings.limits, whole=not self.env.fractional)
        self.rows = RecentMarket(
            self.data, bundle.symbols, bundle.normalisation, companies=bundle.body["companies"],
            warm_up_sessions=settings.warm_up_sessions, lookback=self.env.lookback,
        )  # fmt: skip
        self._level = level
        self.simulated = broker if isinstance(broker, SimulatedBroker) else None
        self.execution: Execution | None = None
        self.grid: SessionGrid
        self.first, self.last = 0, -1
        """Bars of the grid: the first that is decided upon, and a replay's last."""
        self.stopped = False
        self.decisions = 0
        self._since = 0
        """Start of the newest bar that was received."""

    # --- the loop --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the window is over, or somebody stops it. Raises DeployError when it cannot begin."""
        self._begin()
        for bar in self._bars():
            moment = int(self.grid.minutes[bar]) + self.length
            self.clock.sleep_until(moment + int(self.settings.grace_seconds * SECOND_NS), self._look)
            if self.stopped:
                return
            self._turn(bar)
        self._pursue()
        self.journal.write("end", at=self.clock.now())

    def _bars(self) -> Iterator[int]:
        """Bars to wake at: each as it is made; of a replay the decisions', and each session's last."""
        bar = self._next
        while True:
            if self.window is not None and bar > self.last:
                return
            if bar >= self.grid.num_bars - 1 and self.window is None:
                minute = int(self.grid.minutes[self.first])
                self._make_grid(session_date(self.data.calendar, int(self.grid.minutes[-1])))
                bar += int(np.searchsorted(self.grid.minutes, minute)) - self.first
                self.first = int(np.searchsorted(self.grid.minutes, minute))
            ends = bar == self.grid.num_bars - 1 or self.grid.session[bar + 1] != self.grid.session[bar]
            if self.clock.live or ends or self._is_due(bar) or bar == self.last:
                yield bar
            bar += 1

    def _is_due(self, bar: int) -> bool:
        return (bar - self.first) % self.env.decision_interval == 0 and bar != self.last

    def _turn(self, bar: int) -> None:
        """What there is to do once a bar has closed."""
        now, closed = self.clock.now(), int(self.grid.minutes[bar]) + self.length
        self._pursue()
        try:
            self._receive(now)
            if self._is_due(bar):
                if self.clock.live and now > closed + self.length:
                    self._news("missed", f"the decision of {_time(closed)} was missed: nothing was ordered", now)
                else:
                    self._decide(bar, now)
            elif self.grid.session[bar] != self.grid.session[min(bar + 1, self.grid.num_bars - 1)] or bar == self.last:
                self._mark(bar, now)
        except (DataError, BrokerUnsureError) as error:
            self._news("skipped", f"nothing was decided at {_time(closed)}: {error}", now)
        except BrokerError as error:
            self._halt(str(error), now)

    # --- how it begins ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        now, started = self.clock.now(), self.journal.last("start")
        first = self.window[0] if self.window is not None else int(started.body["first_bar"] if started else now)
        self._make_grid(session_date(self.data.calendar, max(now, first)), session_date(self.data.calendar, first))
        self.first = int(np.searchsorted(self.grid.minutes, first))
        self.last = -1 if self.window is None else int(np.searchsorted(self.grid.minutes, self.window[1]))
        begins = int(self.grid.minutes[self.first])
        for symbol, close in self.bundle.body["last_close"].items():
            self.rows.history.carry(symbol, int(self.grid.minutes[0]) - MINUTE_NS, close)
        self.rows.level = self._level(self.grid)
        self._morning(int(self.grid.session[self.first]))
        if started is None:
            self._keep(self.feed.history(int(self.grid.minutes[0]), begins), now)
            self.journal.write(
                "start", at=now, first_bar=begins, bundle=self.bundle.id, feed=self.feed.kind, broker=self.broker.kind,
                limits=self.settings.limits.model_dump(), initial_cash_usd=self.env.initial_cash_usd,
            )  # fmt: skip
            self._next = self.first
            self._take_over(now)
            return
        self._restore_bars()
        done = [*self.journal.entries("decision"), *self.journal.entries("mark")]
        newest = max((int(entry.body["bar"]) for entry in done), default=begins - self.length)
        self._next = int(np.searchsorted(self.grid.minutes, newest, side="right"))
        for entry in sorted(done, key=lambda entry: entry.seq):
            self._remember(entry)
        if (last := self.journal.last("decision")) is not None and self.simulated is not None:
            self._restore_ledger(last)
        self._take_over(now)

    def _make_grid(self, until: dt.date, start: dt.date | None = None) -> None:
        """Sessions from as far back as the features reach to some days ahead."""
        if start is None:
            start = session_date(self.data.calendar, int(self.grid.minutes[self.first]))
        back = dt.timedelta(days=int(self.rows.history_sessions * 1.6) + 20)
        end = until + _AHEAD if self.window is None else session_date(self.data.calendar, self.window[1])
        grid = session_grid(self.data.calendar, start - back, end, self.data.bar_minutes, self.data.hours)
        here = int(np.searchsorted(grid.dates, np.datetime64(start)))
        first = max(here - self.rows.history_sessions, 0)
        self.grid = session_grid(
            self.data.calendar, grid.dates[first].item(), end, self.data.bar_minutes, self.data.hours
        )

    def _take_over(self, now: int) -> None:
        """Agree with the broker before anything is ordered, and go on with the orders of before."""
        halted = self.journal.last("halt")
        resumed = self.journal.last("resume")
        if halted is not None and (resumed is None or resumed.seq < halted.seq):
            self.limits.halted = str(halted.body["why"])
        if self.simulated is not None:
            return
        reconcile(self.journal, self.broker, bundle=self.bundle.id, at=now, start=True, adopt=self.settings.adopt)
        self.execution = Execution.resume(self.broker, self.journal, at=now, **self._terms())

    # --- bars ------------------------------------------------------------------------------------------------

    def _receive(self, now: int) -> None:
        bars = self.feed.poll(self._since, now)
        fresh_from = self._since
        again = self._keep(bars, now)
        odd = again.take(again.ts > fresh_from)
        if len(odd):
            self.journal.write(
                "late", at=now, bars=len(odd), symbols=sorted({odd.symbols[code] for code in odd.symbol})
            )

    def _keep(self, bars: Bars, now: int) -> Bars:
        """Take bars in; returns those that came too late, or again with other numbers."""
        if not len(bars):
            return bars
        late = self.rows.history.add(bars)
        names = [bars.symbols[code] for code in bars.symbol.tolist()]
        extras = [
            json.dumps(dict(zip(bars.extras, row, strict=True))) for row in zip(*bars.extras.values(), strict=True)
        ]
        columns = [getattr(bars, name).tolist() for name in COLUMNS]
        rows = zip(bars.ts.tolist(), names, *columns, extras or [""] * len(bars), [now] * len(bars), strict=True)
        self.journal.keep_bars(rows)
        self._since = max(self._since, int(bars.ts.max()))
        return late

    def _restore_bars(self) -> None:
        rows = self.journal.bars()
        if not rows:
            raise DeployError(f"{self.journal.path} holds no bars; remove {self.folder} to begin again")
        self._since = self.rows.take(rows)

    def _morning(self, session: int) -> None:
        """Splits and dividends up to this session's day."""
        first, last = self.grid.dates[0].item(), self.grid.dates[session].item()
        found = tuple(self.feed.actions(first, last))
        for action in found:
            if action not in self.rows.actions:
                self.journal.write("action", action.symbol, at=self.clock.now(), **action.model_dump(mode="json"))
        self.rows.actions = tuple(self.journal.actions())
        self._actions_of = session

    # --- decisions -------------------------------------------------------------------------------------------

    def _decide(self, bar: int, now: int) -> None:
        session = int(self.grid.session[bar])
        if session != self._actions_of:
            self._morning(session)
        market, row, report = self.rows.at(self.grid, bar)
        if "passed" in report:
            self._news("faults", f"the bars hold faults that would stop a build: {report['passed']}", now)
        account = self._account(market, row, now)
        action = one_row(self.policy, account) if not self.limits.halted else None
        decision = decide(account, action, self.limits)
        if not self.clock.live or not self._clock_is_off(now):
            self._order(bar, now, market, account, decision)

    def _order(self, bar: int, now: int, market: MarketTensors, account: BacktestAccount, decision: Decision) -> None:
        prices = dict(zip(market.symbols, account.prices.tolist(), strict=True))
        orders: dict[str, float] = {}
        if decision.orders is not None:
            wanted = zip(market.symbols, decision.orders.tolist(), strict=True)
            orders = {symbol: shares for symbol, shares in wanted if shares and prices[symbol] > 0}
        peak, first = account.capital
        weights = () if decision.weights is None else decision.weights.tolist()
        closed = int(self.grid.minutes[bar]) + self.length
        with self.journal.together():
            self.journal.write(
                "decision", at=now, bar=int(self.grid.minutes[bar]), cash=account.cash, equity=account.equity,
                peak=peak, first=first, shares=self._held(market.symbols, account.held), orders=orders, why=decision.why,
                clipped=list(decision.clipped_by), traded=self.limits.traded_usd,
                weights={name: round(w, 6) for name, w in zip(market.symbols, weights, strict=False) if w},
                prices={name: prices[name] for name in orders},
            )  # fmt: skip
        self.decisions += 1
        if decision.halted:
            self._halt(decision.why, now)
        elif decision.why:
            self._news("held", decision.why, now)
        if orders:
            self._send(orders, prices, closed, bar, now)

    def _send(self, orders: dict[str, float], prices: dict[str, float], closed: int, bar: int, now: int) -> None:
        following = min(bar + 1, self.grid.num_bars - 1)
        opens = int(self.grid.minutes[following])
        if self.execution is None:
            self.execution = Execution(self.broker, self.journal, **self._terms())
        self.execution.begin(
            decision=closed, orders=orders, prices=prices, at=now, until=opens + self.length,
            not_before=now if self.broker.takes_baskets else max(opens, now),
        )  # fmt: skip
        self._pursue()

    def _account(self, market: MarketTensors, row: int, now: int) -> BacktestAccount:
        """The account as it stands at a bar's close, with this market's prices."""
        if self.simulated is not None:
            if self.window is None:
                self.simulated.grow(market, row + 1)
            cash, equity, peak, first = self.simulated.state
            held = self.simulated.account().shares
        else:
            wrong = reconcile(self.journal, self.broker, bundle=self.bundle.id, at=now)
            if wrong:
                self._halt("; ".join(finding.text for finding in wrong), now)
            known = expected(self.journal)
            cash, held = known.cash_usd or 0.0, known.shares
            shares = np.array([held.get(symbol, 0.0) for symbol in market.symbols])
            equity = cash + float(shares @ np.nan_to_num(market.close[row].numpy().astype(np.float64)))
            first = self._first_usd or equity
            peak = max(self._peak_usd, equity)
            self._first_usd, self._peak_usd = first, peak
        shares = np.array([held.get(symbol, 0.0) for symbol in market.symbols])
        return BacktestAccount.standing(
            market, self.env, bar=row, cash=cash, equity=equity, peak=peak, first=first, shares=shares
        )

    _first_usd = 0.0
    _peak_usd = 0.0

    def _mark(self, bar: int, now: int) -> None:
        """What the account is worth at a session's last close."""
        if self.simulated is not None and self.window is not None:
            equity = self.simulated.equity
        else:
            market, row, _ = self.rows.at(self.grid, bar)
            equity = self._account(market, row, now).equity
        self.journal.write("mark", at=now, bar=int(self.grid.minutes[bar]), equity=equity)

    def _remember(self, entry: Entry) -> None:
        """What the limits and the account's memory hold of an earlier decision or mark."""
        equity = float(entry.body["equity"])
        if entry.kind == "decision":
            self.limits.watch(int(entry.body["bar"]) // _DAY_NS, equity)
            self.limits.traded_usd = float(entry.body["traded"])
            self._first_usd, self._peak_usd = float(entry.body["first"]), float(entry.body["peak"])
            self.decisions += 1

    def _restore_ledger(self, entry: Entry) -> None:
        assert self.simulated is not None
        body, symbols = entry.body, self.bundle.symbols
        shares = np.array([body["shares"].get(symbol, 0.0) for symbol in symbols])
        reports = self.journal.orders()
        closed = int(body["bar"]) + self.length
        known = [Order(r.id, r.symbol, r.shares, closed) for r in reports.values() if r.id in self._ids(body, closed)]
        if self.window is None:
            market, _, _ = self.rows.at(self.grid, int(np.searchsorted(self.grid.minutes, body["bar"])))
            self.simulated.market = market
        self.simulated.restore(
            int(body["bar"]), body["cash"], body["equity"], body["peak"], body["first"], shares, known
        )
        self.execution = Execution.resume(self.broker, self.journal, at=self.clock.now(), **self._terms())

    def _ids(self, body: Any, closed: int) -> set[str]:
        return {order_id(self.bundle.id, closed, symbol) for symbol in body["orders"]}

    # --- requests, halts, news -------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Called while it waits: requests are carried out, orders pursued."""
        now = self.clock.now()
        for path, request in waiting(self.folder):
            if request == "resume":
                self.limits.halted, self.limits.peak_usd = "", 0.0
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
        newest = {name: self.rows.history.last_close(name) for name in symbols}
        orders = {name: -shares for name, shares in held.items() if name in newest}
        self._send(orders, newest, now, max(bar, 0), now)

    def _pursue(self) -> None:
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
        last, resumed = self.journal.last("halt"), self.journal.last("resume")
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
            self._news("clock", f"this machine's clock and the broker's are {off:.1f} s apart: nothing is ordered", now)
            return True
        return False

    def _terms(self) -> dict[str, Any]:
        """What orders are carried out by."""
        return {"bundle": self.bundle.id, "fee_rate": self.env.fee_rate, "fractional": self.env.fractional}

    @staticmethod
    def _held(symbols: tuple[str, ...], shares: Array) -> dict[str, float]:
        return {symbol: float(n) for symbol, n in zip(symbols, shares, strict=True) if n}

    def describe(self) -> dict[str, Any]:
        """How it is set up, for whoever asks."""
        return {"feed": self.feed.kind, "broker": self.broker.kind, **asdict(self.limits)}


def _time(moment: int) -> str:
    return f"{np.datetime_as_string(np.datetime64(moment, 'ns'), unit='m')}Z"
