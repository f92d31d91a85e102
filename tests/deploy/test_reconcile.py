"""The account against the journal: what is taken up, what stops a start, what is a mismatch, what
is left alone."""

import time

import pytest

from fintrader.deploy.broker import Activity, OrderReport
from fintrader.deploy.entries import Adjustment, Adoption, Checkpoint, Mismatch
from fintrader.deploy.journal import Journal
from fintrader.deploy.orders import SECOND, Execution, OrderRules, order_id
from fintrader.deploy.reconcile import Tolerance, expect_holdings, reconcile
from fintrader.deploy.venue_orders import VenueExecution
from fintrader.errors import BrokerUnsureError, DeployError
from tests.engines.alpaca_loopback import LoopbackAlpaca
from tests.engines.order_driver import BUNDLE, OPENED, connect

pytest.importorskip("alpaca", reason="alpaca-py is not installed")
PRICES = {"AAA": 10.0, "BBB": 20.0, "STUCK": 3.0}


@pytest.fixture
def server():
    with LoopbackAlpaca(cash=1000.0, prices=PRICES, pace={"STUCK": (0.0,)}) as server:
        yield server


@pytest.fixture
def broker(server):
    return connect(server.endpoint)


def look(journal, broker, at=OPENED, **how):
    return reconcile(journal, broker, at=at, pause=lambda _: None, **how)


def begun(journal, broker, orders, at=OPENED, seconds=100):
    execution = Execution.resume(broker, journal, OrderRules(BUNDLE), at=at)
    terms = {"decision": at, "at": at, "not_before": at, "until": at + seconds * SECOND}
    execution.begin(orders=orders, prices=PRICES, **terms)
    execution.step(at)
    return execution


@pytest.mark.parametrize("kind", [Execution, VenueExecution])
@pytest.mark.parametrize("decided", [OPENED, OPENED - 60 * SECOND])
def test_an_adopted_order_is_cancelled_whenever_it_was_decided(
    server, journal, broker, kind, decided
):
    """Also where this deployment decided at the same moment; orders by hand stay."""
    look(journal, broker, start=True)
    execution = kind(broker, journal, OrderRules(BUNDLE))
    terms = {"decision": OPENED, "at": OPENED, "not_before": OPENED}
    execution.begin(orders={"AAA": 1.0}, prices=PRICES, until=OPENED + 3600 * SECOND, **terms)
    for second in range(0, 10, 2):
        execution.step(OPENED + second * SECOND)
    name = order_id("ffffffff-5e6f7a8b", decided, "STUCK")
    server.accept("STUCK", 5.0, name)
    server.accept("STUCK", 5.0, "by hand")
    assert look(journal, broker, OPENED + 12 * SECOND, start=True, adopt=True) == ()
    execution.take_on_open(OPENED + 12 * SECOND)
    for second in range(13, 60, 2):
        execution.step(OPENED + second * SECOND)
    assert server.by_client_id()[name]["status"] == "canceled"
    assert server.by_client_id()["by hand"]["status"] == "new"


def traded(journal, broker, orders, at):
    execution = begun(journal, broker, orders, at, 40)
    for now in range(at, at + 90 * SECOND, SECOND):
        if execution.step(now):
            return
    raise AssertionError(execution.reports)


def asked_only(server):
    return {method for method, _ in server.seen} <= {"GET"}


def test_the_first_start_begins_with_the_cash_that_is_there(journal, broker):
    assert expect_holdings(journal).cash_usd is None
    assert look(journal, broker, start=True) == ()
    assert expect_holdings(journal).cash_usd == 1000.0
    written = len(journal.tail(10_000))
    assert look(journal, broker) == ()
    assert len(journal.tail(10_000)) == written  # what the journal says already is not said again


def test_positions_of_others_stop_the_start_and_are_left_alone(server, journal, broker):
    server.positions = {"AAA": 7.0}
    with pytest.raises(
        DeployError,
        match=r"7 shares of AAA are held, 0 expected\); correct the account, or start with --adopt",
    ):
        look(journal, broker, start=True)
    assert look(journal, broker, start=True, adopt=True) == ()
    assert expect_holdings(journal).shares == {"AAA": 7.0}
    assert look(journal, broker, start=True) == ()
    adopted = journal.last(Adoption)
    assert adopted.body.findings == ("7 shares of AAA are held, 0 expected",)
    assert asked_only(server)


def test_orders_of_others_stop_the_start_and_are_left_alone(server, journal, broker):
    row = server.accept("STUCK", 5.0, "by hand", age_s=86_400.0)
    server.accept("AAA", 5.0, "of an app")["status"] = "canceled"
    with pytest.raises(DeployError, match="order by hand of 5 STUCK is none of this deployment"):
        look(journal, broker, start=True)
    assert look(journal, broker, start=True, adopt=True) == ()
    server.pace["STUCK"] = (1.0,)
    assert look(journal, broker, OPENED + SECOND) == ()  # its fill is explained
    assert expect_holdings(journal).shares == {"STUCK": 5.0}
    assert row["status"] == "filled"
    assert asked_only(server)


def test_orders_of_the_bundle_that_the_journal_does_not_know_stop_the_start(
    server, tmp_path, journal, broker
):
    look(journal, broker, start=True)
    traded(journal, broker, {"AAA": 30.0}, OPENED)
    server.accept("STUCK", 5.0, order_id(BUNDLE, OPENED, "STUCK"))
    with Journal(
        tmp_path / "another.sqlite"
    ) as another:  # the first one is lost, or of another deployment
        server.positions.clear()
        server.pace["AAA"] = (0.0,)
        with pytest.raises(
            DeployError, match=f"{order_id(BUNDLE, OPENED, 'AAA')} of 30 AAA is none"
        ) as caught:
            look(another, broker, start=True)
        assert (
            "the keys of another account, or, if it has ended for good, start with --adopt"
            in str(caught.value)
        )
        assert another.orders() == {}
        assert server.by_client_id()[order_id(BUNDLE, OPENED, "STUCK")]["status"] == "new"
        server.positions["AAA"] = 30.0
        assert look(another, broker, start=True, adopt=True) == ()
        assert {report.symbol: report.filled for report in another.orders().values()} == {
            "AAA": 30.0,
            "STUCK": 0.0,
        }
        assert expect_holdings(another).shares == {"AAA": 30.0}
        look(another, broker)
        look(another, broker)
    assert (
        server.by_client_id()[order_id(BUNDLE, OPENED, "STUCK")]["status"] == "canceled"
    )  # no decision has it


def test_recent_orders_of_another_bundle_stop_the_start(server, journal, broker):
    name = "ft-ffffffff-5e6f7a8b-20160315T143000Z-AAA"
    server.accept("AAA", 5.0, name)["status"] = "canceled"
    with pytest.raises(DeployError, match=r"another deployment .*ffffffff-5e6f7a8b") as caught:
        look(journal, broker, start=True)
    assert "--adopt" in str(caught.value)
    assert look(journal, broker, start=True, adopt=True) == ()
    assert look(journal, broker) == ()


def test_open_orders_of_another_deployment_are_cancelled_once_adopted(server, journal, broker):
    name = "ft-ffffffff-5e6f7a8b-20160315T143000Z-STUCK"
    server.accept("STUCK", 5.0, name)
    server.accept("STUCK", 5.0, "by hand")
    with pytest.raises(DeployError):
        look(journal, broker, start=True)
    assert server.by_client_id()[name]["status"] == "new"
    assert look(journal, broker, start=True, adopt=True) == ()
    look(journal, broker)
    assert look(journal, broker) == ()
    rows = server.by_client_id()
    assert (rows[name]["status"], rows["by hand"]["status"]) == ("canceled", "new")


def test_old_orders_of_the_bundle_stop_no_start(server, journal, broker):
    month = 30 * 86_400
    name = order_id(BUNDLE, OPENED, "AAA")
    server.accept("AAA", 5.0, name, age_s=month)["status"] = "canceled"
    now = time.time_ns()
    assert look(journal, broker, now, start=True) == ()
    assert look(journal, broker, now + month * SECOND) == ()
    server.accept("STUCK", 5.0, f"{name}2", age_s=month)  # one that is open stops it, however old
    with pytest.raises(DeployError, match=f"but of the deployment {BUNDLE}"):
        look(journal, broker, now, start=True)


def test_fills_count_once_however_often_they_are_told(server, journal, broker):
    look(journal, broker, start=True)
    execution = begun(journal, broker, {"AAA": 10.0})
    server.pace["AAA"] = (0.0, 0.1, 0.1, 0.3, 0.3, 0.3, 0.6, 0.6, 0.6, 0.6, 1.0)
    seen = []
    for turn in range(12):
        assert look(journal, broker, OPENED + turn * SECOND) == ()
        seen.append(expect_holdings(journal).shares.get("AAA", 0.0))
        if turn % 3 == 0:
            execution.step(OPENED + turn * SECOND)
    assert seen[-1] == 10.0
    assert seen == sorted(seen)
    assert len(set(seen)) > 3
    assert expect_holdings(journal).cash_usd == server.cash == 900.0


def test_a_fill_between_two_questions_is_no_mismatch(server, journal, broker, monkeypatch):
    look(journal, broker, start=True)
    begun(journal, broker, {"AAA": 10.0})
    server.pace["AAA"] = tuple(number / 10 for number in range(11))
    account = broker.account

    def after_a_fill():
        server.tick()
        return account()

    monkeypatch.setattr(broker, "account", after_a_fill)
    assert look(journal, broker, OPENED + SECOND) == ()
    assert expect_holdings(journal).shares == {"AAA": 10.0}


def test_what_nobody_explains_is_a_mismatch(server, journal, broker):
    look(journal, broker, start=True)
    traded(journal, broker, {"AAA": 30.0, "BBB": 10.0}, OPENED)
    assert look(journal, broker) == ()
    server.positions = {"AAA": 29.0, "STUCK": 4.0, "XXX": 2.0}
    server.cash -= 300.0
    server.accept("STUCK", 1.0, "by hand")
    found = look(journal, broker, OPENED + SECOND)
    assert [(one.kind, one.name) for one in found] == [
        ("order", "by hand"),
        *[("position", name) for name in ("AAA", "BBB", "STUCK", "XXX")],
        ("cash", "PA1LOOPBACK"),
    ]
    assert found[1].text == "29 shares of AAA are held, 30 expected"
    assert found[-1].text == "cash is 200.00 USD, 500.00 expected"
    mismatch = journal.last(Mismatch)
    assert len(mismatch.body.findings) == 6
    assert look(journal, broker, OPENED + 2 * SECOND) == found  # nothing heals it but somebody
    with pytest.raises(DeployError, match=r"29 shares of AAA .* and 1 more\)"):
        look(journal, broker, OPENED + 3 * SECOND, start=True)
    assert look(journal, broker, OPENED + 4 * SECOND, start=True, adopt=True) == ()
    assert look(journal, broker, OPENED + 5 * SECOND) == ()


def test_cash_may_be_off_by_fees_and_no_more(server, journal, broker):
    look(journal, broker, start=True)
    server.cash -= 4.5
    assert look(journal, broker) == ()
    server.cash -= 1.0  # a week's sum counts
    assert [one.kind for one in look(journal, broker)] == ["cash"]
    server.cash += 1.0
    traded(journal, broker, {"AAA": 80.0}, OPENED)
    server.cash -= 1.2  # 800 USD were traded, of which 10 bps are 0.8 USD
    assert look(journal, broker) == ()
    day = 86_400 * SECOND
    server.cash -= 1.2
    assert look(journal, broker, OPENED + 7 * day) != ()
    assert look(journal, broker, OPENED + 8 * day) == ()


def test_fees_count_once_whether_they_are_listed_before_they_are_booked_or_after(
    server, journal, broker
):
    look(journal, broker, start=True)
    server.cash -= 4.5
    assert look(journal, broker) == ()
    server.book("FEE", -4.5)
    server.cash += 4.5  # it was booked before
    assert look(journal, broker) == ()
    assert journal.last(Checkpoint).body.open_usd == {}
    server.book("FEE", -4.5)
    server.cash += 4.5  # it is listed, and not booked yet
    assert look(journal, broker) == ()
    assert len(journal.entries(Activity)) == 1
    server.cash -= 4.5
    assert look(journal, broker) == ()
    assert len(journal.entries(Activity)) == 2
    assert journal.last(Checkpoint).body.open_usd == {}
    server.book("FEE", -500.0, status="canceled")
    server.cash += 500.0
    assert look(journal, broker) == ()


@pytest.mark.parametrize(
    ("kind", "usd"), [("FEE", -28.0), ("CSD", 5e4), ("CSW", -900.0), ("DIV", 40.0), ("INT", -12.0)]
)
def test_bookings_explain_cash(server, journal, broker, kind, usd):
    look(journal, broker, start=True)
    for _ in range(120):
        server.book("FEE", -0.01)  # more than a page
    server.book(kind, usd, **({"symbol": "AAA", "shares": 80.0} if kind == "DIV" else {}))
    assert look(journal, broker) == ()
    assert expect_holdings(journal).cash_usd == pytest.approx(server.cash)
    written = len(journal.tail(10_000))
    assert look(journal, broker) == ()
    assert len(journal.tail(10_000)) == written
    server.cash += usd  # and the same again is no such booking
    assert [one.kind for one in look(journal, broker)] == ["cash"]


@pytest.mark.parametrize("ratio", [2.0, 1.5, 0.1, 7.0])
@pytest.mark.parametrize("fraction", [True, False])
def test_bookings_explain_a_split(server, journal, broker, ratio, fraction):
    look(journal, broker, start=True)
    traded(journal, broker, {"AAA": 37.0}, OPENED)
    server.split("AAA", ratio, fraction=fraction)
    assert look(journal, broker) == ()
    assert expect_holdings(journal).shares == pytest.approx(server.positions)
    assert expect_holdings(journal).cash_usd == pytest.approx(server.cash)


@pytest.mark.parametrize("fraction", [True, False])
def test_an_announced_split_counts_once_before_and_after_it_is_booked(
    server, journal, broker, fraction
):
    look(journal, broker, start=True)
    traded(journal, broker, {"AAA": 37.0}, OPENED)
    look(journal, broker)
    journal.write(Adjustment("AAA split 1.5 for 1", {"AAA": 18.5}), at=OPENED)
    split = {"tolerance": Tolerance(split=frozenset({"AAA"}))}
    for _ in range(2):
        assert look(journal, broker, **split) == ()
        assert expect_holdings(journal).shares == {"AAA": 55.5}
        assert expect_holdings(journal).owed == {"AAA": 18.5}
    server.split("AAA", 1.5, fraction=fraction)
    for _ in range(2):
        assert look(journal, broker, **split) == ()
        assert expect_holdings(journal).shares == server.positions
        assert not expect_holdings(journal).owed
    server.positions["AAA"] -= 1.0
    assert [one.kind for one in look(journal, broker, **split)] == ["position"]


def test_a_split_that_is_never_booked_is_forgotten(server, journal, broker):
    look(journal, broker, start=True)
    traded(journal, broker, {"AAA": 37.0}, OPENED)
    look(journal, broker)
    journal.write(Adjustment("AAA split 1.5 for 1", {"AAA": 18.5}), at=OPENED)
    look(journal, broker, tolerance=Tolerance(split=frozenset({"AAA"})))
    assert expect_holdings(journal).shares == {"AAA": 55.5}
    assert look(journal, broker) == ()  # it is older than ten days
    assert expect_holdings(journal).shares == {"AAA": 37.0}


@pytest.mark.parametrize("held", [55.0, 56.0])
def test_a_fraction_is_paid_in_cash_or_rounded_up(server, journal, broker, held):
    look(journal, broker, start=True)
    traded(journal, broker, {"AAA": 37.0}, OPENED)
    look(journal, broker)
    journal.write(Adjustment("AAA split 1.5 for 1", {"AAA": 18.5}), at=OPENED)
    server.positions["AAA"] = held
    server.cash += 3.3
    lately = Tolerance(due_usd=6.67, split=frozenset({"AAA"}))
    assert look(journal, broker, tolerance=lately) == ()
    server.positions["AAA"] = held - 2.0
    assert [one.kind for one in look(journal, broker, tolerance=lately)] == ["position"]


def test_a_merger_and_a_new_name_are_explained(server, journal, broker):
    look(journal, broker, start=True)
    traded(journal, broker, {"AAA": 30.0, "BBB": 10.0}, OPENED)
    server.book("MA", 0.0, "AAA", -30.0)
    server.book("MA", 310.0, "AAA")
    server.book("NC", 0.0, "BBB", -10.0)
    server.book("NC", 0.0, "CCC", 10.0)
    assert look(journal, broker) == ()
    assert expect_holdings(journal).shares == {"CCC": 10.0} == server.positions


def test_without_an_answer_about_bookings_nothing_is_a_difference(
    server, journal, broker, monkeypatch
):
    look(journal, broker, start=True)

    def away(since):
        raise BrokerUnsureError("no answer")

    server.cash -= 1.0
    monkeypatch.setattr(broker, "activities", away)
    assert look(journal, broker) == ()
    server.cash -= 100.0
    with pytest.raises(BrokerUnsureError):
        look(journal, broker)
    assert journal.last(Mismatch) is None


def test_a_person_accepts_the_differences_that_were_named_and_no_others(server, journal, broker):
    look(journal, broker, start=True)
    traded(journal, broker, {"AAA": 30.0}, OPENED)
    server.positions["AAA"] = 29.0
    server.cash += 10.0
    found = look(journal, broker)
    named = journal.last(Mismatch).body
    server.cash -= 100.0
    others = look(journal, broker, adopt=named)
    assert others != found
    assert look(journal, broker, adopt=named) == others
    named = journal.last(Mismatch).body
    assert look(journal, broker, adopt=named) == ()
    assert look(journal, broker) == look(journal, broker, start=True) == ()
    adopted = journal.last(Adoption).body
    assert (adopted.cash_usd, adopted.shares) == (pytest.approx(-90.0), {"AAA": -1.0})
    server.split("AAA", 2.0)  # is explained, and counts, as a part of an adoption
    server.cash -= 70.0
    assert [one.kind for one in look(journal, broker)] == ["cash"]
    assert look(journal, broker, adopt=journal.last(Mismatch).body) == ()
    adopted = journal.last(Adoption).body
    assert (adopted.cash_usd, adopted.shares) == (pytest.approx(-70.0), {})
    assert {one.body.kind for one in journal.entries(Activity)} == {"split"}
    server.number = "PA2"
    look(journal, broker)
    assert look(journal, broker, adopt=journal.last(Mismatch).body) != ()


def test_splits_and_dividends_that_were_announced(server, journal, broker):
    look(journal, broker, start=True)
    traded(journal, broker, {"AAA": 30.0}, OPENED)
    assert look(journal, broker) == ()
    server.positions["AAA"] = 120.0
    server.cash += 60.0
    assert len(look(journal, broker)) == 2
    journal.write(Adjustment("split 4:1 and dividend", {"AAA": 90.0}, 60.0), at=OPENED)
    assert look(journal, broker) == ()
    assert expect_holdings(journal).shares == {"AAA": 120.0}


def test_an_order_that_arrives_after_it_was_given_up_is_taken_up_and_cancelled(
    server, journal, broker
):
    look(journal, broker, start=True)
    server.faults = {len(server.seen) + 2: "reset"}
    execution = begun(journal, broker, {"AAA": 10.0}, seconds=1)
    assert execution.step(OPENED + 20 * SECOND)
    name = order_id(BUNDLE, OPENED, "AAA")
    assert journal.orders()[name].state == "expired"
    look(journal, broker, OPENED + 21 * SECOND)
    server.pace["AAA"] = (0.0, 0.0, 0.4)
    server.accept("AAA", 10.0, name)
    assert look(journal, broker, OPENED + 22 * SECOND) == ()
    assert "accepted" in [entry.body.state for entry in journal.entries(OrderReport, key=name)]
    assert look(journal, broker, OPENED + 23 * SECOND) == ()
    assert journal.orders()[name].state == "cancelled"
    assert expect_holdings(journal).shares == server.positions == {}


def test_another_account_and_a_blocked_one(server, journal, broker):
    look(journal, broker, start=True)
    server.blocked = True
    assert [one.text for one in look(journal, broker)] == [
        "the account takes no orders: trading_blocked"
    ]
    with pytest.raises(DeployError, match="ask the broker why"):
        look(journal, broker, start=True, adopt=True)
    server.blocked = False
    server.number = "PA2"
    assert [one.text for one in look(journal, broker)] == [
        "the keys are of account PA2, the journal of PA1LOOPBACK"
    ]


def test_a_broker_that_does_not_answer_is_no_agreement(server, journal, broker):
    server.faults = dict.fromkeys(range(1, 9), "503")
    with pytest.raises(BrokerUnsureError):
        look(journal, broker, start=True)
    assert journal.last(Checkpoint) is None
