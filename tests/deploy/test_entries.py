"""Entries of the journal come back as they were written, or are refused with a remedy."""

import datetime as dt
import json
import os
import signal
import sqlite3
from contextlib import closing

import pytest

from fintrader.backtesting.limits import LimitSettings
from fintrader.bars.corporate_actions import Action
from fintrader.deploy import entries
from fintrader.deploy.broker import Order, OrderReport
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.journal import Journal
from fintrader.deploy.reconcile import expect_holdings
from fintrader.errors import DeployError
from fintrader.records import RecordError
from tests.engines.deployments import make_older
from tests.quick import slow_but

EXAMPLES = [
    entries.DeploymentStart(
        1, "0a1b2c3d", "replay", "simulated", LimitSettings(weight=0.5), 1e6, "0a1b-5e"
    ),
    entries.BarDecision(
        bar=7,
        cash=1.5,
        equity=2.5,
        peak=3.0,
        first=2.0,
        shares={"AAA": 1.0},
        orders={"AAA": -1.0},
        prices={"AAA": 10.0},
        clipped=("weight",),
    ),
    entries.BarDecision(
        bar=8,
        cash=1.5,
        equity=2.5,
        peak=3.0,
        first=2.0,
        shares={},
        orders={},
        prices={},
        resting=(
            Order("ft-2", "AAA", 3.0, 9, limit_usd=9.5),
            Order("ft-3", "AAA", -3.0, 9, None, 0.0),
        ),
    ),
    entries.Mark(7, 2.5),
    OrderReport("ft-1", "AAA", "partial", 10.0, 4.0, 9.5),
    OrderReport("ft-2", "AAA", "accepted", 3.0, limit_usd=9.5),
    entries.OrderTerms("20160315T143000Z", 1, 2, 3, {"AAA": 10.0}),
    entries.PurchaseFit("20160315T143000Z", 0.5, 100.0),
    entries.Cancellation("ft-1"),
    entries.Checkpoint(
        "PA1", 100.0, {"AAA": 4.0}, ("ft-1",), {"AAA": 4.0}, {}, {"2026-01-02": 1.5}
    ),
    entries.Activity("1", "transfer", "2026-01-02", cash_usd=5.0),
    entries.CapitalMove("accepted", 0.5),
    entries.Adjustment("AAA split 4 for 1", {"AAA": 12.0}),
    entries.Mismatch((entries.Finding("cash", "PA1", "cash is 1, 2 expected"),)),
    entries.Adoption(("7 shares of AAA are held, 0 expected",)),
    entries.Halt("asked to halt"),
    entries.Resumption(),
    entries.Flattening(),
    entries.FlattenEnd({"MINE": 7.0}),
    entries.Alert("halt", "halted: asked to halt"),
    entries.LateBars(2, ("AAA", "BBB")),
    Action(symbol="AAA", day=dt.date(2024, 1, 2), split=4.0),
    entries.DeploymentEnd(),
]


def test_every_kind_comes_back_as_it_was_written(tmp_path):
    assert {type(record) for record in EXAMPLES} == set(entries.KINDS.values())
    with Journal(tmp_path / JOURNAL) as journal:
        journal.write(*EXAMPLES, at=5)
        found = list(reversed(journal.tail(100)))
    assert [entry.body for entry in found] == EXAMPLES
    assert {entry.time for entry in found} == {5}


@pytest.mark.parametrize(
    ("kind", "body", "problem"),
    [
        ("halt", {}, "why is missing"),
        ("halt", {"why": "x", "who": "y"}, "who is a field that this version does not know"),
        ("mark", {"bar": "soon", "equity": 1.0}, "bar is 'soon', not a whole number"),
        ("start", {"first_bar": 1}, "bundle is missing"),
        ("omen", {}, "omen is a kind that this version does not know"),
    ],
)
def test_an_entry_of_another_version_is_refused_with_a_remedy(tmp_path, kind, body, problem):
    path = tmp_path / JOURNAL
    with Journal(path) as journal:
        journal.write(entries.Mark(1, 1.0), at=1)
    with sqlite3.connect(path) as base:
        base.execute(
            "INSERT INTO entries (time, kind, key, body) VALUES (1, ?, '', ?)",
            (kind, json.dumps(body)),
        )
    for reading in (True, False):  # at the door, before anything is decided on the other entries
        with pytest.raises(DeployError, match=rf"entry 2 \({kind}\).*{problem}.*go on with the"):
            Journal(path, reading=reading)


def test_a_journal_of_a_later_format_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / JOURNAL
    Journal(path).close()
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA user_version = 2")
    before = path.read_bytes()
    for reading in (True, False):
        with pytest.raises(DeployError, match=r"format 2, not 1\); go on with the version"):
            Journal(path, reading=reading)
    assert path.read_bytes() == before


@pytest.mark.parametrize("steps", slow_but(0, 3, every=[0, 3, 10, 30, 100, 300]))
def test_a_kill_while_a_journal_is_completed_costs_nothing(tmp_path, steps, monkeypatch):
    """Killed after so many thousands of the database's steps; readers look before and after."""
    path = tmp_path / JOURNAL
    reports = [OrderReport(f"ft-{n}", "AAA", "filled", 1.0, 1.0) for n in range(2000)]
    with Journal(path, durable=False) as journal:
        journal.write(*EXAMPLES, *reports, at=5)
        wanted = {kind: journal.count(kind) for kind in entries.KINDS.values()}
        curve = journal.read_curve()
    make_older(path)
    child = os.fork()
    if child == 0:
        connect = sqlite3.connect

        def killed(*words, **named):
            base = connect(*words, **named)
            left = iter(range(steps))
            base.set_progress_handler(
                lambda: next(left, None) is None and os.kill(os.getpid(), signal.SIGKILL), 1000
            )
            return base

        monkeypatch.setattr(sqlite3, "connect", killed)
        Journal(path)
        os._exit(0)
    _, code = os.waitpid(child, 0)
    assert code == signal.SIGKILL or steps == 300
    for reading in (True, False, True):
        with Journal(path, reading=reading) as journal:
            assert {kind: journal.count(kind) for kind in entries.KINDS.values()} == wanted
            assert journal.read_curve() == curve
            assert len(journal.tail(9999)) == len(EXAMPLES) + len(reports)


def test_entries_of_before_have_the_defaults_of_what_came_later(tmp_path):
    """Fields of a journal that an earlier version wrote."""
    old = {
        "checkpoint": ("", {"account": "PA1", "cash_usd": 1.5, "shares": {}, "standing": []}),
        "adjust": ("", {"reason": "AAA split 4 for 1", "shares": {"AAA": 12.0}, "cash_usd": 0.0}),
        "adopted": ("", {"findings": ["7 shares"]}),
    }
    for kind, (key, fields) in old.items():
        body = entries.decode(kind, key, json.dumps(fields))
        assert entries.decode(*entries.encode(body)) == body
    assert entries.decode("adopted", "", '{"findings": []}') == entries.Adoption(())
    with pytest.raises(RecordError, match="findings"):
        entries.decode("adopted", "", "{}")


def test_questions_of_a_decision_cost_the_same_after_years(tmp_path):
    """Counted in steps of the database, of which a row that is read takes several."""
    costs = []
    steps = []
    for years in (1, 20):
        with Journal(tmp_path / f"{years}.sqlite", durable=False) as journal, journal.together():
            journal.write(entries.Halt("once"), entries.Resumption(), at=0)
            for day in range(years * 25):
                reports = [
                    OrderReport(f"ft-{day}-{n}", "AAA", "filled", 1.0, 1.0) for n in range(8)
                ]
                journal.write(
                    entries.Checkpoint("PA1", 1.0, {}, ()), entries.Mark(day, 1.0), at=day
                )
                journal.write(*reports, entries.Adjustment("fees", {}, -1.0), at=day)
            steps.clear()
            journal._base.set_progress_handler(lambda: steps.append(1), 1)
            expect_holdings(journal)
            journal.find_halt()
            journal.is_flattening()
            journal.last(entries.Alert, "halt")
            journal._base.set_progress_handler(None, 1)
        costs.append(len(steps))
    assert costs[1] < 1.2 * costs[0]
