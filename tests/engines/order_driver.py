"""A small deployment of journal, reconciliation, execution and the Alpaca broker, which can be
killed anywhere.

`trade` is the deployment. `Driver` runs it in processes forked from one that has everything
imported, killed (SIGKILL) at a chosen boundary: before or after a statement that SQLite is given or
a request that leaves. Its clock goes on by `STEP` at each turn of the loop and stands in the
journal, so nothing hangs on the machine's speed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fintrader.deploy.alpaca import AlpacaBroker, RequestLimits
from fintrader.deploy.broker import Broker, OrderReport
from fintrader.deploy.entries import Mark
from fintrader.deploy.journal import Journal
from fintrader.deploy.orders import SECOND, Execution, OrderRules
from fintrader.deploy.reconcile import expect_holdings, reconcile
from fintrader.errors import BrokerError, BrokerUnsureError
from tests import ROOT
from tests.engines.alpaca_loopback import KEY, SECRET, LoopbackAlpaca

BUNDLE = "0a1b2c3d"
OPENED = 1_458_052_200 * SECOND  # 2016-03-15 14:30 UTC
STEP = 4 * SECOND
UNTIL = 44 * SECOND
PRICES = {"AAA": 10.0, "BBB": 20.0, "CCC": 5.0, "DDD": 8.0, "HALF": 4.0, "STUCK": 3.0}
PACE = {"HALF": (0.0, 0.5), "STUCK": (0.0,)}
CASH = 10_000.0
DECISIONS: tuple[Mapping[str, float], ...] = (
    {"AAA": 300.0, "BBB": 100.0, "CCC": 400.0, "HALF": 100.0},
    {
        "AAA": -300.0,
        "BBB": -50.0,
        "CCC": 900.0,
        "DDD": 800.0,
        "STUCK": 10.0,
    },  # more than the cash suffices for
    {"CCC": -100.0, "HALF": -20.0, "AAA": 40.0},
)
ENDED = 0
HALTED = 3
REFUSED = 4
LOST = 5


def loopback(**how: Any) -> LoopbackAlpaca:
    return LoopbackAlpaca(cash=CASH, prices=PRICES, pace=PACE, margin=True, **how)


def connect(endpoint: str, limit_s: float = 5.0) -> AlpacaBroker:
    os.environ["APCA_API_KEY_ID"] = KEY
    os.environ["APCA_API_SECRET_KEY"] = SECRET
    return AlpacaBroker(endpoint, limits=RequestLimits(limit_s, 0.0, 1_000_000))


def trade(journal: Journal, broker: Broker, *, turns: int = 20_000, times: int = 1) -> int:
    """Carry all decisions to their end, from wherever the journal stands; an exit status.

    Orders have so many `times` as long, which those need that many faults delay.
    """
    tail = journal.tail(1)
    now = max(OPENED, tail[0].time if tail else 0)
    left = iter(range(turns))

    def agree(start: bool) -> int | None:
        for _ in left:
            try:
                found = reconcile(journal, broker, at=now, start=start, pause=lambda _: None)
            except BrokerUnsureError:
                continue
            return HALTED if found else None
        return LOST

    try:
        if (code := agree(True)) is not None:
            return code
        rules = OrderRules(BUNDLE, sales_wait_s=36.0 * times, poll_s=0.0)
        execution = Execution.resume(broker, journal, rules, at=now)
        for number, orders in enumerate(DECISIONS):
            decision = OPENED + number * 3600 * SECOND
            if number in {entry.body.bar for entry in journal.entries(Mark)}:  # it is done
                continue
            now = max(now, decision)
            terms = {"not_before": decision, "until": max(decision, now) + UNTIL * times}
            execution.begin(decision=decision, orders=orders, prices=PRICES, at=now, **terms)
            while not execution.step(now):
                now += STEP
                if next(left, None) is None:
                    return LOST
            if (code := agree(False)) is not None:
                return code
            journal.write(Mark(number, CASH), at=now)
    except BrokerError:
        return REFUSED
    return ENDED


class Crash(BaseException):
    """Stands for SIGKILL inside a process: nothing below catches it."""


@dataclass
class Boundaries:
    """Counts boundaries, and dies at number `kill_at` (1, 2, 3 …)."""

    kill_at: int = 0
    passed: int = 0
    by_signal: bool = True
    dead: bool = False

    def cross(self) -> None:
        self.passed += 1
        if self.dead or self.passed == self.kill_at:
            self.dead = True
            if self.by_signal:
                os.kill(os.getpid(), signal.SIGKILL)
            raise Crash

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def crossing(*arguments: Any, **named: Any) -> Any:
            self.cross()
            answer = call(*arguments, **named)
            self.cross()
            return answer

        return crossing

    def watch(self, journal: Journal, broker: AlpacaBroker) -> None:
        journal._base = _Statements(journal._base, self)  # type: ignore[assignment]
        session = broker._client._session
        session.request = self.around(session.request)


class _Statements:
    """A connection to SQLite whose every statement is a boundary; one that is dead writes nothing
    more."""

    def __init__(self, base: Any, boundaries: Boundaries) -> None:
        self._base = base
        self._boundaries = boundaries
        self.execute = boundaries.around(base.execute)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)


def _child(folder: str, endpoint: str, kill_at: int) -> int:
    boundaries = Boundaries(kill_at)
    with Journal(Path(folder) / "journal.sqlite") as journal:
        broker = connect(endpoint)
        boundaries.watch(journal, broker)
        code = trade(journal, broker)
    (Path(folder) / "passed").write_text(str(boundaries.passed))
    return code


def problems(server: LoopbackAlpaca, folder: Path) -> list[str]:
    """What is lost, doubled, unjournalled or unexplained once all is over."""
    found = []
    with Journal(folder / "journal.sqlite", reading=True) as journal:
        told = server.by_client_id()
        known = journal.orders()
        if len(told) != len(server.orders):
            found.append("an id stands twice")
        found += [f"{name} is in no journal" for name in told.keys() - known.keys()]
        for name, report in known.items():
            row = told.get(name)
            if not report.is_over:
                found.append(f"{name} is not over: {report.state}")
            if (float(row["filled_qty"]) if row else 0.0) != abs(report.filled):
                found.append(
                    f"{name} has filled {row and row['filled_qty']} and {report.filled} by the"
                    " journal"
                )
            if row is None and report.state not in ("expired", "rejected"):
                found.append(f"{name} is lost: {report.state}")
        if expect_holdings(journal).shares != dict(sorted(server.positions.items())):
            found.append(f"{server.positions} are held, {expect_holdings(journal).shares} expected")
    if server.least_cash < 0.0:
        found.append(f"cash was {server.least_cash}")
    return found


class Witness:
    """Sees to it that each order that arrives at a server has stood in the journal before."""

    def __init__(self, folder: Path) -> None:
        self.unwritten: list[str] = []
        self._path = folder / "journal.sqlite"

    def __call__(self, body: Mapping[str, Any]) -> None:
        with Journal(self._path, reading=True) as journal:
            written = [
                entry.body for entry in journal.entries(OrderReport, key=body["client_order_id"])
            ]
        if not any(
            line.state == "sent" and abs(line.shares) == float(body["qty"]) for line in written
        ):
            self.unwritten.append(body["client_order_id"])


class Driver:
    """`run` does one life of the deployment in a process of its own; -9 where it was killed."""

    def __enter__(self) -> Driver:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engines.order_driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, folder: Path, endpoint: str, kill_at: int = 0) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([str(folder), endpoint, kill_at]), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


def _serve() -> None:
    for line in sys.stdin:
        folder, endpoint, kill_at = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 99
            try:
                code = _child(folder, endpoint, kill_at)
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    connect("http://127.0.0.1:9")  # imports what alpaca-py imports late
    _serve()
