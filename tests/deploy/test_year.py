"""A look at a deployment costs the same after a year of minutes as after its first days."""

import json
import sqlite3

import pytest

from fintrader.deploy import journal as journals
from fintrader.deploy import status
from fintrader.deploy.broker import OrderReport
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.entries import Alert, BarDecision, DeploymentStart, Mark, encode
from fintrader.deploy.journal import Journal
from fintrader.deploy.simulated import SimulatedBroker
from tests.engines.deployments import FREE, LiveClock, frozen, live_runner, settings

DAY_NS = 86_400_000_000_000
YEAR = 252


def write_days(path, days):
    """A journal of before, without counts and curve: a decision a minute, and two orders each."""
    decision = BarDecision(0, 1e5, 1e6, 1e6, 1e6, {"S000": 9.0}, {"S000": 1.0}, {"S000": 50.0})
    body = encode(decision)[2]
    start = DeploymentStart(0, "0a1b2c3d", "alpaca", "simulated", FREE, 1e6)
    with sqlite3.connect(path) as base:
        base.executescript(f"{journals._SCHEMA} PRAGMA user_version = {journals.FORMAT}")
        put = "INSERT INTO entries (time, kind, key, body)"
        base.execute(f"{put} VALUES (0, ?, ?, ?)", encode(start))
        for day in range(days):
            base.execute(
                f"WITH RECURSIVE m (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM m WHERE n < 389) {put}"
                " SELECT ?1 + n * 60000000000, kind, replace(key, '#', n),"
                " replace(body, '\"bar\": 0', '\"bar\": ' || (?1 + n * 60000000000)) FROM m JOIN ("
                " SELECT 1 AS place, 'decision' AS kind, '' AS key, ?2 AS body"
                " UNION ALL SELECT 2, 'order', 'A' || ?1 || '-#', json_set(?3, '$.state', 'sent')"
                " UNION ALL SELECT 3, 'order', 'B' || ?1 || '-#', json_set(?3, '$.state', 'sent')"
                " UNION ALL SELECT 4, 'order', 'A' || ?1 || '-#', ?3"
                " UNION ALL SELECT 5, 'order', 'B' || ?1 || '-#', ?3"
                " UNION ALL SELECT 6, 'alert', 'missed', '{\"text\": \"one\"}') ORDER BY n, place",
                (day * DAY_NS, body, encode(OrderReport("", "S000", "filled", 1.0))[2]),
            )
    base.close()


@pytest.fixture
def steps(monkeypatch):
    """Counts the steps of SQLite's machine, in hundreds, and the rows it hands out."""
    connect = sqlite3.connect
    taken = []

    def connect_counted(*args, **options):
        base = connect(*args, **options)
        base.set_progress_handler(lambda: taken.append(1), 100)
        return base

    monkeypatch.setattr(sqlite3, "connect", connect_counted)
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("days", [pytest.param(YEAR, marks=pytest.mark.slow), 25])
def test_a_look_costs_the_same_after_a_year(tmp_path, steps, days):
    costs = []
    data = settings(features={"names": ["return_1", "sma_26"]})
    for name, length in (("young", 10), ("old", days)):
        bundle, market = frozen(tmp_path / name, data)
        path = tmp_path / name / JOURNAL
        write_days(path, length)
        Journal(path).close()  # the next start adds counts and curve
        del steps[:]
        found = status.read_status(tmp_path / name)
        costs.append(len(steps))
        assert found.counts == {"filled": 780 * length}
        assert (len(found.orders), len(found.news)) == (status.SHOWN_ORDERS, status.SHOWN_NEWS)
        assert found.curve[0] == (0, 1e6)
        assert len(found.curve) <= status.SHOWN_BARS + length
        with Journal(path) as journal:
            broker = SimulatedBroker(market, bundle.env, lambda: 0)
            runner = live_runner(bundle, market, 9, LiveClock(0), broker, journal)
            del steps[:]
            values, orders = runner._read_gauges()
        costs.append(len(steps))
        assert (values["decisions"], values["missed"], orders) == (
            390 * length,
            390 * length,
            {"filled": 780 * length},
        )
    young, young_scrape, old, old_scrape = costs
    assert old <= young + days  # a hundred steps for each further day of the curve
    assert old_scrape <= young_scrape + 1 < 40


def test_counts_and_curve_are_those_of_the_entries(tmp_path):
    path = tmp_path / JOURNAL
    write_days(path, 3)
    with Journal(path, reading=True) as before:  # nothing is written to a journal that is only read
        curve = before.read_curve()
        counts = before.count(OrderReport)
    with Journal(path) as journal:
        assert (journal.read_curve(), journal.count(OrderReport)) == (curve, counts)
        assert len(curve) == 3 * 390
        assert journal.read_curve(5) == [curve[0], curve[389], curve[779], *curve[-5:]]
        assert journal.read_curve(500) == [curve[0], curve[389], *curve[-500:]]
        assert journal.read_curve(390) == [curve[0], curve[389], *curve[779:]]
        assert journal.read_curve(1) == [curve[0], curve[389], curve[779], curve[-1]]
        for state in ("intended", "sent", "expired", "accepted"):
            journal.write(OrderReport("new", "S000", state, 1.0), at=1)
            assert journal.count(OrderReport) == counts | {state: 1}
        journal.write(Mark(5, 7.0), Alert("missed", "x"), at=1)
        decision = json.loads(encode(journal.last(BarDecision).body)[2]) | {"bar": 5, "equity": 8.0}
        journal.write(BarDecision(**decision), Mark(5, 9.0), at=1)
        assert journal.read_curve()[1] == (5, 8.0)
        assert journal.count(Alert) == {"missed": 3 * 390 + 1}
        assert sum(journal.count(BarDecision).values()) == 3 * 390 + 1
