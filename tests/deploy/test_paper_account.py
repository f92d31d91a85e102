"""The whole loop against a paper account: alpaca-py, a server on this machine, bars that come bar
by bar."""

import json
import os
import shutil
import signal
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("alpaca", reason="alpaca-py is missing: pip install '.[alpaca]'")

from fintrader.deploy import control, status
from fintrader.deploy.broker import OrderReport
from fintrader.deploy.bundle import Bundle
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.entries import BarDecision, DeploymentStart, Halt, Mismatch
from fintrader.deploy.journal import Journal
from fintrader.deploy.reconcile import expect_holdings
from fintrader.deploy.settings import AlertSettings
from fintrader.errors import DeployError, RunError
from fintrader.storage.lease import claim
from tests.engines.alpaca_paper import ConstantPolicy, account, trade
from tests.engines.deployments import frozen, make_older
from tests.quick import slow_but


@pytest.fixture
def mine(tmp_path):
    """A deployment that has not begun, and the server of its account."""
    home = tmp_path / "deployments" / "mine"
    bundle, market = frozen(home, trade_rate=1.0)
    with account(market) as server:
        yield home, bundle, market, server


def test_a_deployment_trades_a_paper_account(mine):
    home, _bundle, _market, server = mine
    journal = trade(*mine, 22)
    assert [entry.body.why for entry in journal.entries(Halt)] == []
    decided = journal.entries(BarDecision)
    assert len(decided) == 5
    assert server.positions
    assert dict(expect_holdings(journal).shares) == pytest.approx(server.positions)
    told = status.read_status(home)
    assert dict(told.held) == pytest.approx(server.positions)
    assert told.cash_usd == pytest.approx(server.cash)
    assert server.least_cash >= 0
    known = journal.orders()
    assert {order["client_order_id"] for order in server.orders.values()} <= set(known)
    largest = max(
        abs(shares) * server.prices[name] for e in decided for name, shares in e.body.orders.items()
    )
    assert largest <= 0.1 * 1e6 * 1.1  # the limits stand between
    journal.close()

    journal = trade(*mine, 42)  # another process goes on
    assert len(journal.entries(BarDecision)) == 9
    assert len(journal.entries(DeploymentStart)) == 1
    assert dict(expect_holdings(journal).shares) == pytest.approx(server.positions)
    journal.close()

    control.ask(home, "flatten")
    journal = trade(*mine, 50)
    assert server.positions == {}
    assert status.read_status(home).held == {}
    assert len(journal.entries(Halt)) == 1
    assert not any(e.body.orders for e in journal.entries(BarDecision)[9:])
    journal.close()


@pytest.mark.slow
def test_a_journal_of_an_earlier_version_is_completed_beside_open_positions(mine):
    home, bundle, _market, server = mine
    path = home / JOURNAL

    def earlier(runner):  # orders had the bundle's name alone
        runner.rules = replace(runner.rules, sender=bundle.id)

    trade(*mine, 22, change=earlier).close()
    held = dict(server.positions)
    assert held
    before = status.read_status(home)
    make_older(path)
    with Journal(path, reading=True) as journal:
        assert dict(expect_holdings(journal).shares) == pytest.approx(held)
    assert "tallies" not in str(sqlite3.connect(path).execute("SELECT * FROM sqlite_master"))
    told = status.read_status(home)
    assert (told.held, told.cash_usd, told.orders) == (before.held, before.cash_usd, before.orders)
    journal = trade(*mine, 42)
    assert journal.find_halt() is None
    assert len(journal.entries(DeploymentStart)) == 1
    assert len(journal.entries(BarDecision)) == journal.count(BarDecision)[""] == 9
    assert sum(journal.count(OrderReport).values()) == len(server.orders)
    assert dict(expect_holdings(journal).shares) == pytest.approx(server.positions)
    assert server.positions != held
    journal.close()
    control.ask(home, "flatten")
    trade(*mine, 50).close()
    assert server.positions == {}


def second(home):
    """Another deployment of the same bundle."""
    other = home.with_name("other")
    shutil.copytree(home / "bundle", other / "bundle")
    return other, Bundle.open(other / "bundle")


def test_a_second_deployment_is_refused_while_the_first_runs(mine):
    home, _bundle, market, server = mine
    other, same = second(home)
    refused = []

    def beside(runner):
        def start(now):
            if not refused:
                refused.append("")
                with pytest.raises(DeployError) as caught:
                    trade(other, same, market, server, 12, adopt=True)
                refused[0] = str(caught.value)

        runner.clock.at_minute = start

    trade(*mine, 12, change=beside).close()
    assert "another deployment trades the account PA1LOOPBACK on this machine" in refused[0]
    with Journal(home / JOURNAL, reading=True) as journal:
        assert set(server.by_client_id()) == set(journal.orders())
    server.positions.clear()
    server.number = "PA2OTHER"  # an account of its own
    server.orders.clear()
    trade(other, same, market, server, 12).close()
    assert server.orders


@pytest.mark.slow
def test_orders_of_another_deployment_of_the_bundle_halt_it(mine):
    _home, bundle, _market, server = mine
    trade(*mine, 12).close()
    name = f"ft-{bundle.id}-20990101T000000Z-S000"

    def elsewhere(runner):
        runner.clock.at_minute = lambda now: (
            None if name in server.by_client_id() else server.accept("S000", -3.0, name)
        )

    journal = trade(*mine, 22, change=elsewhere)
    halted = journal.last(Halt)
    assert (
        f"order {name} of -3 S000 is none of this deployment, but of the deployment {bundle.id}"
        in halted.body.why
    )
    assert journal.last(OrderReport, name) is None
    assert server.by_client_id()[name]["status"] == "filled"  # it was not cancelled
    journal.close()


def test_an_order_of_another_deployment_halts_it_before_it_sends_more(mine):
    _home, bundle, _market, server = mine
    name = f"ft-{bundle.id}-5e6f7a8b-20160315T143000Z-S000"

    def beside(runner):
        submit = runner.broker.submit

        def both(order):
            if name not in server.by_client_id():
                server.accept("S000", 1.0, name)
            return submit(order)

        runner.broker.submit = both

    journal = trade(*mine, 12, change=beside)
    why = f"order {name} is of another deployment, which trades this account"
    assert [entry.body.why for entry in journal.entries(Halt)] == [why]
    assert journal.last(OrderReport, name) is None
    journal.close()


def test_the_same_bundle_in_a_folder_of_another_machine_is_another_deployment(
    mine, tmp_path, monkeypatch
):
    home, bundle, market, server = mine
    other, same = second(home)

    def start_elsewhere(runner):
        def start(now):
            if not (other / JOURNAL).exists():
                monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
                trade(other, same, market, server, 3).close()

        runner.clock.at_minute = start

    journal = trade(*mine, 12, change=start_elsewhere)
    with Journal(other / JOURNAL, reading=True) as its:
        senders = {one.last(DeploymentStart).body.sender for one in (journal, its)}
        assert set(server.by_client_id()) == set(its.orders())
        (sender,) = senders - {journal.last(DeploymentStart).body.sender}
    assert all(one.startswith(f"{bundle.id}-") for one in senders)
    assert f"none of this deployment, but of the deployment {sender}" in journal.last(Halt).body.why
    assert sender in journal.last(Mismatch).body.findings[0].text
    assert journal.orders() == {}
    journal.close()

    shutil.rmtree(home)
    frozen(home, trade_rate=1.0)
    with pytest.raises(DeployError, match=f"another deployment trades this account .*{sender}"):
        trade(*mine, 12)


def test_an_account_that_was_taken_over_is_left_at_once(mine):
    _home, _bundle, market, server = mine

    def sleep_through(runner):
        def take_over(now):
            if (
                now > int(market.minutes[3])
                and runner._lease is not None
                and not runner._lease.is_lost
            ):
                claim(runner._lease.objects)  # as another process does once this one is silent
                runner._lease.renew()
                sent.append(len(server.orders))

        runner.clock.at_minute = take_over

    sent = []
    with pytest.raises(RunError, match="another process has taken this run over; this one stops"):
        trade(*mine, 22, change=sleep_through)
    assert sent == [len(server.orders)]


def test_a_killed_deployment_starts_again_at_once(mine):
    _home, _bundle, _market, server = mine

    def die(runner):
        def kill(now):
            if runner.journal.orders():
                os.kill(os.getpid(), signal.SIGKILL)

        runner.clock.at_minute = kill

    child = os.fork()
    if child == 0:
        try:
            trade(*mine, 22, change=die)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    state = Path(os.environ["XDG_STATE_HOME"])
    (lease,) = state.rglob("lease/*.json")
    record = json.loads(lease.read_text())
    assert not record["released"]
    assert record["id"]["pid"] == child
    journal = trade(*mine, 22)
    assert dict(expect_holdings(journal).shares) == pytest.approx(server.positions)
    assert server.positions
    journal.close()


def with_nan(runner):
    runner.policy = ConstantPolicy(runner.policy, float("nan"))


def with_a_bug(runner):
    class Feed:
        def __getattr__(self, name):
            return getattr(feed, name)

        def poll(self, since, now):
            raise ZeroDivisionError("a bug")

    feed = runner.feed
    runner.feed = Feed()


def with_a_full_disk(runner):
    runner.journal._base.execute(
        "PRAGMA max_page_count = 1"
    )  # what SQLite says of a disk that is full


@pytest.mark.parametrize(
    ("fault", "error", "why"),
    slow_but(
        2,
        every=[
            (with_nan, DeployError, "the policy's action holds NaN or infinity"),
            (with_a_bug, ZeroDivisionError, "ZeroDivisionError a bug"),
            (with_a_full_disk, DeployError, "database or disk is full"),
        ],
    ),
)
def test_what_ends_it_is_told_before_it_ends(mine, tmp_path, fault, error, why):
    _home, _bundle, _market, server = mine
    told = tmp_path / "told.json"
    alerts = AlertSettings(command=("sh", "-c", 'cat > "$0"', str(told)))
    trade(*mine, 12).close()
    held = ", ".join(f"{count:g} {symbol}" for symbol, count in sorted(server.positions.items()))
    with pytest.raises(error):
        trade(*mine, 22, change=fault, alerts=alerts)
    alert = json.loads(told.read_text())
    assert (alert["kind"], alert["deployment"]) == ("ended", "test")
    assert why in alert["text"]
    assert f"open positions that no process manages now: {held}" in alert["text"]
