"""Orders, fills, cancels, faults, crashes and restarts in any order that hypothesis can think
of."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fintrader.deploy.journal import Journal
from fintrader.deploy.orders import SECOND, Execution, OrderRules
from fintrader.deploy.reconcile import Tolerance, expect_holdings, reconcile
from fintrader.errors import BrokerUnsureError
from tests.engines.alpaca_loopback import TRANSIENT, LoopbackAlpaca
from tests.engines.order_driver import BUNDLE, OPENED, Boundaries, Crash, Witness, connect, problems
from tests.factories import examples

pytest.importorskip("alpaca", reason="alpaca-py is not installed")
PRICES = {"AAA": 10.0, "BBB": 20.0, "HALF": 4.0, "STUCK": 3.0, "RACE": 7.0}
PACE = {"HALF": (0.0, 0.5), "STUCK": (0.0,), "RACE": (0.0, 0.2)}
FAULTS = [fault for fault in TRANSIENT if not fault.startswith("hang")]
WANTED = st.dictionaries(st.sampled_from(sorted(PRICES)), st.integers(-40, 80), max_size=4)


class Deployment(RuleBasedStateMachine):
    """The server lives through everything; of the deployment only what stands on the disk lives
    on."""

    @initialize(cash=st.integers(0, 2000))
    def open(self, cash):
        self.folder = Path(tempfile.mkdtemp())
        self.witness = Witness(self.folder)
        self.server = LoopbackAlpaca(
            cash=float(cash),
            prices=PRICES,
            pace=PACE,
            races=["RACE"],
            margin=True,
            witness=self.witness,
        ).__enter__()
        self.now, self.execution = OPENED, None  # type: int, Execution | None
        self.journal = None
        self.restart()

    def restart(self):
        """As a process that begins: everything but the journal is new, and a difference stops
        it."""
        if self.journal is not None:
            self.journal.close()
        self.journal = Journal(self.folder / "journal.sqlite")
        self.broker = connect(self.server.endpoint)
        self.boundaries = Boundaries(by_signal=False)
        self.boundaries.watch(self.journal, self.broker)
        self.execution = None
        try:
            self.look(start=True)
            rules = OrderRules(BUNDLE, cushion=0.0, poll_s=0.0)
            self.execution = Execution.resume(self.broker, self.journal, rules, at=self.now)
        except BrokerUnsureError:
            return

    def look(self, *, start=False):
        assert self.journal is not None
        how = {"at": self.now, "start": start, "pause": lambda _: None}
        assert reconcile(self.journal, self.broker, tolerance=Tolerance(1e-6, 0.0), **how) == ()

    def live(self, work):
        """Do it; who crashes in it begins anew."""
        try:
            work()
        except BrokerUnsureError:
            pass
        except Crash:
            self.restart()

    @precondition(lambda self: self.execution is not None)
    @rule(orders=WANTED, minutes=st.integers(0, 2), wait=st.integers(0, 40))
    def decide(self, orders, minutes, wait):
        self.now += 60 * SECOND
        begin = self.execution.begin
        terms = {"decision": self.now, "at": self.now, "not_before": self.now + wait * SECOND}
        until = self.now + minutes * 60 * SECOND
        wanted = {symbol: float(shares) for symbol, shares in orders.items()}
        self.live(lambda: begin(orders=wanted, prices=PRICES, until=until, **terms))

    @precondition(lambda self: self.execution is not None)
    @rule(seconds=st.integers(0, 30))
    def step(self, seconds):
        self.now += seconds * SECOND
        assert self.execution is not None
        execution = self.execution
        self.live(lambda: execution.step(self.now))

    @precondition(lambda self: self.execution is not None)
    @rule()
    def reconcile(self):
        self.live(self.look)

    @rule()
    def fill(self):
        with self.server.lock:
            self.server.tick()

    @rule(kind=st.sampled_from(FAULTS), ahead=st.integers(1, 6))
    def fault(self, kind, ahead):
        self.server.faults[len(self.server.seen) + ahead] = kind

    @rule(ahead=st.integers(1, 40))
    def crash(self, ahead):
        """At the so-manyeth boundary from here."""
        self.boundaries.kill_at = self.boundaries.passed + ahead

    @rule()
    def begin_anew(self):
        self.restart()

    @invariant()
    def holds(self):
        if not hasattr(self, "server"):
            return
        assert self.server.least_cash >= 0.0
        filled = {}
        for row in self.server.orders.values():
            sign = 1.0 if row["side"] == "buy" else -1.0
            filled[row["symbol"]] = filled.get(row["symbol"], 0.0) + sign * float(row["filled_qty"])
        assert {
            symbol: shares for symbol, shares in filled.items() if shares
        } == self.server.positions
        assert self.witness.unwritten == []

    def teardown(self):
        if not hasattr(self, "server"):
            return
        try:
            self.server.faults = {}
            self.restart()
            assert self.journal is not None
            for _ in range(60):
                self.now += 20 * SECOND
                if self.execution.step(self.now):
                    break
            self.look()
            assert problems(self.server, self.folder) == []
            assert expect_holdings(self.journal).cash_usd == pytest.approx(
                self.server.cash, abs=1e-6
            )
            self.journal.close()
        finally:
            self.server.__exit__()
            shutil.rmtree(self.folder)


Deployment.TestCase.settings = settings(
    max_examples=examples(60, quick=8),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestDeployment = Deployment.TestCase
