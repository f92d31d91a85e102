"""Weeks of a deployment at the loopback Binance, with everything that goes wrong there.

The exchange's own books are decimal numbers that nothing of `fintrader.deploy` has touched. What
happens is drawn from a seed: deaths of the process, lost answers, orders that arrive late, parts
that expire, trades listed late, outages, clocks that go wrong, fees in other coins, trades by hand.
A person looks once a day, takes over what differs, and resumes an hour later. After each day the
journal is held against the books; each difference is a line of `problems`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from fintrader.deploy import control
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.entries import FlattenEnd, OrderTerms
from fintrader.deploy.journal import Journal
from fintrader.deploy.reconcile import expect_holdings
from fintrader.deploy.spot import shorten_id
from fintrader.errors import DeployError
from tests.engines.alpaca_paper import Killed
from tests.engines.binance_loopback import OPEN
from tests.engines.crypto_paper import LENGTH, PAIRS, CryptoMarket
from tests.engines.deployments import MINUTE
from tests.engines.resting_life import DrawnPolicy

HOUR = LENGTH * MINUTE
DAY = 24 * HOUR
LOST = ("504_after", "reset_after", "html_after", "reset", "503", "429", "truncated_after")


class CryptoLife:
    """A deployment's weeks at the exchange; `run` lives them."""

    env: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, home: Path, seed: int, *, days: int) -> None:
        """days: of the table; two fifths of them are traded."""
        self.seed = seed
        self.random = random.Random(seed)
        balances = {"USDT": 100_000.0, "BNB": 50.0}
        self.market = CryptoMarket(home, days=days, env=self.env, balances=balances)
        self.server = self.market.server
        self.problems: list[str] = []
        self.happened: Counter[str] = Counter()
        self.deaths = 0
        self.audits = 0
        self._plan: list[tuple[int, str, Callable[[], object]]] = []
        self._last_event = 0
        self._is_ending = False
        self.market.at_minute = self._pass
        first, last = (int(self.market.market.minutes[at]) for at in (0, -30))
        for begin in range(first + 6 * HOUR, last, DAY):
            for _ in range(self.random.randrange(1, 4)):
                name, event = self.random.choice(self.events)
                moment = begin + self.random.randrange(22 * 60) * MINUTE
                self._plan.append((moment, name, event))
            self._plan.append((begin + 23 * HOUR, "look", self._look))
        self._plan.sort(key=lambda one: one[0], reverse=True)

    @property
    def events(self) -> list[tuple[str, Callable[[], object]]]:
        return [
            ("death", self._die),
            ("death at an order", self._die_at_an_order),
            ("lost answer", lambda: self._fault_next_order(self.random.choice(LOST))),
            ("late order", lambda: self._fault_next_order("reset_late")),
            ("outage", self._outage),
            ("parts", self._parts),
            ("late trades", self._late_trades),
            ("clock", self._clock),
            ("fee coin", self._fee_coin),
            ("by hand", self._by_hand),
        ]

    def run(self) -> CryptoLife:
        """Live to the end, through all deaths, and end flat."""
        bars = self.market.market.num_bars
        with self.server:
            self._live(bars - 30)
            self.server.outage = ""
            self.server.faults = {}
            self.server.pace = {}
            self._plan = []
            self._is_ending = True
            control.ask(self.market.home, "flatten")
            self._live(bars - 3)
            with Journal(self.market.home / JOURNAL, reading=True) as journal:
                end = journal.last(FlattenEnd)
                if end is None or journal.is_flattening():
                    self.problems.append("the flatten has not ended")
                    return self
            for pair, price in self.server.prices.items():
                left = self.server.held(pair.split("/")[0])
                if left * price > 6.0 or abs(left - end.body.others.get(pair, 0.0)) > 1e-9:
                    self.problems.append(f"{left} of {pair} are left")
        return self

    def _live(self, bars: int) -> None:
        while True:
            try:
                self.market.trade(bars, change=self._arm).close()
                return
            except Killed:
                self.deaths += 1
                self.market.now += self.random.randrange(1, 90) * MINUTE
            except DeployError as error:  # a start that was refused: a person looks
                self.happened["refused start"] += 1
                if "differs" in str(error):
                    control.ask(self.market.home, "accept")
                self.market.now += 30 * MINUTE
                self.server.outage = ""

    def _arm(self, runner) -> None:
        submit = runner.broker.submit

        def mortal(order):
            end, self._death = getattr(self, "_death", ""), ""
            if end == "before":
                raise Killed
            report = submit(order)
            if end == "after":
                raise Killed
            return report

        runner.broker.submit = mortal

    def _pass(self, now: int) -> None:
        while self._plan and self._plan[-1][0] <= now:
            _, name, event = self._plan.pop()
            self.happened[name] += 1
            if name != "look":
                self._last_event = now
            event()

    def _later(self, minutes: int, event: Callable[[], object]) -> None:
        self._plan.append((self.market.now + minutes * MINUTE, "end", event))
        self._plan.sort(key=lambda one: one[0], reverse=True)

    # --- what happens ---

    def _die(self) -> None:
        raise Killed

    def _die_at_an_order(self) -> None:
        self._death = self.random.choice(("before", "after"))

    def _fault_next_order(self, fault: str) -> None:
        """Strike the next order that is sent, and the request that follows now."""

        def strike(asked: object) -> None:
            self.server.faults = {len(self.server.seen) + self.random.randrange(1, 6): fault}
            self.server.witness = None

        self.server.witness = strike
        self.server.faults = {len(self.server.seen) + self.random.randrange(1, 30): fault}

    def _outage(self) -> None:
        self.server.outage = self.random.choice(("503", "429", "reset", "504_after", "200_html"))
        self._later(self.random.randrange(3, 400), lambda: setattr(self.server, "outage", ""))

    def _parts(self) -> None:
        pair = self.random.choice(PAIRS)
        self.server.pace[pair] = self.random.choice([(0.4, -1.0), (0.3, 0.6, 1.0), (0.0, 1.0)])
        self._later(240, lambda: self.server.pace.pop(pair, None))

    def _late_trades(self) -> None:
        self.server.hidden_trades = self.random.randrange(2, 6)

    def _clock(self) -> None:
        off = self.random.choice((-90.0, -7.0, 3.0, 60.0))
        self.server.clock = lambda: self.market.now / 1e9 + off
        self._later(120, self._mend_clock)

    def _mend_clock(self) -> None:
        self.server.clock = lambda: self.market.now / 1e9

    def _fee_coin(self) -> None:
        self.server.fee_coin = self.random.choice(("received", "received", "BNB"))

    def _by_hand(self) -> None:
        pair = self.random.choice(PAIRS)
        coin = pair.split("/")[0]
        free = Decimal(self.server.held(coin)) - self.server._locked(coin)
        if float(free) * self.server.prices[pair] > 1_000.0:
            self.server.trade_by_hand(pair, -float(round(free / 10, 4)))

    # --- a person, and the checks ---

    def _look(self) -> None:
        with Journal(self.market.home / JOURNAL, reading=True) as journal:
            halt = journal.find_halt()
            if halt is None:
                self._audit(journal)
                return
        self.happened["halt"] += 1
        control.ask(self.market.home, "accept")
        self._later(60, lambda: control.ask(self.market.home, "resume"))

    def _audit(self, journal: Journal) -> None:
        """Hold the journal against the books, unless something is on its way."""
        names = [row["clientOrderId"] for row in self.server.rows]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            self.problems.append(f"sent twice: {sorted(twice)}")
        if self.server.outage or self.server.hidden_trades > 0 or not self._is_at_rest(journal):
            return
        known = expect_holdings(journal)
        if known.cash_usd is None:
            return
        self.audits += 1
        gap = known.cash_usd - self.server.held("USDT")
        for pair in PAIRS:
            apart = known.shares.get(pair, 0.0) - self.server.held(pair.split("/")[0])
            # A fill of an order that arrived late, or a trade by hand, is seen with the next bar.
            if abs(apart) > 2e-6 or abs(gap) > 5.0:
                self.problems.append(f"{self.market.now}: {pair} {apart:g}, cash {gap:.2f}")

    def _is_at_rest(self, journal: Journal) -> bool:
        """Whether the journal knows all that has happened to the orders."""
        is_open = any(row["status"] in OPEN for row in self.server.rows)
        return not is_open and all(report.is_over for report in journal.orders().values())


class RestingCryptoLife(CryptoLife):
    """Days whose bids, asks and stops rest at the exchange.

    Its policy draws targets, limit prices and stops from the seed and the hour alone, and prices
    walk through each bar's range. Orders fill while they are being cancelled. Beyond the checks of
    `CryptoLife`, no order of a quiet time is refused for coins or quotes that another order binds,
    and what a stop protects lies in open sales.
    """

    env = MappingProxyType(
        {
            "action": "limit",
            "decision_interval": 1,
            "limit_offset_bps": 60.0,
            "stop_offset_bps": 250.0,
            "clock": "session",
        }
    )

    def __init__(self, home: Path, seed: int, *, days: int) -> None:
        super().__init__(home, seed, days=days)
        bundle = self.market.bundle
        bundle.__dict__["policy"] = DrawnPolicy(bundle.policy, self)
        self.market.show_prices = self._show_prices  # type: ignore[method-assign]
        self.protected = 0
        """Looks at a holding with a stop."""
        self._refused = 0
        self._refused_at = 0
        self._hour = 0

    @property
    def events(self) -> list[tuple[str, Callable[[], object]]]:
        return [*super().events, ("race", self._race)]

    def draw_key(self) -> str:
        """The seed and the hour: the same for a process that begins again."""
        return f"{self.seed} {self.market.now // HOUR}"

    def _race(self) -> None:
        pair = self.random.choice(PAIRS)
        self.server.races = {*self.server.races, pair}
        self._later(300, lambda: setattr(self.server, "races", self.server.races - {pair}))

    def _show_prices(self) -> None:
        """Walk from a bar's open by its low and high to its close, or by its high first."""
        passed = self.market.now % HOUR / HOUR
        at = pd.Timestamp(self.market.now, tz="UTC")
        prices = {}
        for name, rows in self.market._rows.items():
            row = rows.iloc[rows.index.searchsorted(at, side="right") - 1]
            turns = [row.low, row.high] if row.close > row.open else [row.high, row.low]
            path = [row.open, *turns, row.close]
            leg = min(int(passed * 3), 2)
            price = path[leg] + (passed * 3 - leg) * (path[leg + 1] - path[leg])
            prices[name] = round(float(price), 2)
        self.server.prices = prices

    def _pass(self, now: int) -> None:
        self._show_prices()
        self.server._go_on()
        refused = self.server.refusals[self._refused :]
        self._refused += len(refused)
        for words in refused:
            self._refused_at = now
            if "insufficient" in words and self._is_quiet():
                self.problems.append(f"{now}: {words}")
        super()._pass(now)
        if now % HOUR >= HOUR // 2 and now // HOUR != self._hour:
            self._hour = now // HOUR
            self._look_each_hour()

    def _look_each_hour(self) -> None:
        """Check in the middle of the hour, when no decision is on its way."""
        if not self._is_ending:
            self._look()

    def _is_quiet(self) -> bool:
        """Whether nothing has happened for two hours."""
        return self.market.now > self._last_event + 2 * HOUR

    def _is_at_rest(self, journal: Journal) -> bool:
        """Orders may rest, but each has filled as far as the journal knows."""
        known = {shorten_id(name): report for name, report in journal.orders().items()}
        for row in self.server.rows:
            report = known.get(row["clientOrderId"])
            if report is None:
                if not row["clientOrderId"].startswith("web_"):
                    return False
            elif abs(abs(report.filled) - float(row["executedQty"])) > 1e-9:
                return False
        return True

    def _audit(self, journal: Journal) -> None:
        super()._audit(journal)
        terms = journal.last(OrderTerms)
        # A stop that is refused since the price has reached it is a market order a minute later.
        is_quiet = self._is_quiet() and self.market.now > self._refused_at + 5 * MINUTE
        if terms is None or not is_quiet or not self._is_at_rest(journal):
            return
        for pair, price in terms.body.stops.items():
            coin = pair.split("/")[0]
            held = self.server.held(coin)
            if not price or held * self.server.prices[pair] < 2 * self.server.least_usd:
                continue
            offered = float(
                sum(
                    Decimal(row["origQty"]) - Decimal(row["executedQty"])
                    for row in self.server.rows
                    if row["status"] in OPEN
                    and row["side"] == "SELL"
                    and self.server.pairs[row["symbol"]] == pair
                )
            )
            self.protected += 1
            if held - offered > 2e-5 + self.server.least_usd / self.server.prices[pair]:
                self.problems.append(f"{self.market.now}: of {held} {coin} {offered} are offered")
