"""The orders of a decision: in which order they leave, how large, until when, and what the journal
says of each."""

import pytest
from requests.adapters import HTTPAdapter

from fintrader.deploy.broker import OrderReport
from fintrader.deploy.entries import Cancellation, PurchaseFit
from fintrader.deploy.orders import (
    SECOND,
    Execution,
    OrderRules,
    find_sender,
    format_decision_stamp,
    order_id,
)
from fintrader.errors import BrokerError, DeployError
from tests.engines.alpaca_loopback import LoopbackAlpaca
from tests.engines.order_driver import BUNDLE, OPENED, Crash, connect
from tests.engines.waiting import until

pytest.importorskip("alpaca", reason="alpaca-py is not installed")
MINUTE = 60 * SECOND
PRICES = {"AAA": 10.0, "BBB": 20.0, "CCC": 5.0, "STUCK": 3.0, "HALF": 4.0, "RACE": 1.0}


@pytest.fixture
def server():
    pace = {"STUCK": (0.0,), "RACE": (0.0,), "HALF": (0.0, 0.5)}
    held = {"AAA": 50.0, "STUCK": 100.0}
    with LoopbackAlpaca(
        cash=1000.0,
        prices=PRICES,
        positions=held,
        pace=pace,
        races=["RACE"],
        margin=True,
        hang_s=1.3,
    ) as server:
        yield server


@pytest.fixture
def broker(server, monkeypatch):
    """However slow the machine, a request is over once the server has seen it, and only one that
    is to hang comes to its limit."""
    send = HTTPAdapter.send

    def send_patiently(self, request, **how):
        number = len(server.seen) + 1
        hangs = server.faults.get(number, "").startswith("hang")
        try:
            return send(self, request, **how | {"timeout": (60.0, 0.3 if hangs else 60.0)})
        finally:
            until(lambda: len(server.seen) >= number)

    monkeypatch.setattr(HTTPAdapter, "send", send_patiently)
    return connect(server.endpoint)


@pytest.fixture
def execution(broker, journal):
    return Execution(broker, journal, OrderRules(BUNDLE, cushion=0.0))


def begin(execution, orders, at=OPENED, **terms):
    usual = {"decision": at, "not_before": at, "until": at + MINUTE, "prices": PRICES}
    execution.begin(orders=orders, at=at, **usual | terms)


def finish(execution, now):
    for _ in range(200):
        if execution.step(now):
            return now
        now += 2 * SECOND
    raise AssertionError(execution.reports)


def states(journal, symbol, at=OPENED):
    return [
        entry.body.state for entry in journal.entries(OrderReport, key=order_id(BUNDLE, at, symbol))
    ]


def posted(server):
    return [row["symbol"] for row in server.orders.values()]


def methods(server):
    return [method for method, _ in server.seen]


def row_of(server, symbol, at=OPENED):
    return server.by_client_id()[order_id(BUNDLE, at, symbol)]


@pytest.mark.parametrize("sender", ["0a1b2c3d", "0a1b2c3d-5e6f7a8b"])
def test_an_id_names_sender_decision_and_symbol(sender):
    name = order_id(sender, 1_458_052_200_000_000_000, "BRK.B")
    assert name == f"ft-{sender}-20160315T143000Z-BRK.B"
    assert (find_sender(name), format_decision_stamp(name)) == (sender, "20160315T143000Z")
    assert find_sender("by hand") == format_decision_stamp("ft-anything") == ""


def test_a_split_turns_an_order_into_whole_new_shares(execution, journal):
    """100 times 1.15 is 114.99999999999999 in floats."""
    begin(execution, {"CCC": 100.0})
    execution.rescale("CCC", 1.15, before=OPENED, reason="the split", at=OPENED)
    assert journal.orders()[order_id(BUNDLE, OPENED, "CCC")].shares == 115.0


def test_purchases_leave_once_sales_are_over_and_share_the_cash(server, execution, journal):
    begin(execution, {"BBB": 60.0, "AAA": -50.0, "CCC": 240.0})
    assert {entry.body.state for entry in journal.entries(OrderReport)} == {"intended"}
    assert server.seen == []
    execution.step(OPENED)
    assert posted(server) == ["AAA"]
    for turn in range(1, 4):
        execution.step(OPENED + turn * SECOND)
    assert posted(server) == ["AAA", "BBB", "CCC"]
    finish(execution, OPENED + 4 * SECOND)
    # 1,000 USD and 500 from the sale buy 1,500 of 2,400 USD: five eighths of 60 (37.5) and of 240
    assert server.positions == {"STUCK": 100.0, "BBB": 37.0, "CCC": 150.0}
    assert states(journal, "AAA") == ["intended", "sent", "accepted", "partial", "filled"]
    assert states(journal, "BBB") == [
        "intended",
        "intended",
        "sent",
        "accepted",
        "partial",
        "filled",
    ]
    fitted = journal.last(PurchaseFit)
    assert (fitted.body.factor, fitted.body.cash_usd) == (0.625, 1500.0)


def test_an_id_that_another_deployment_has_used_is_not_taken_for_its_own(
    server, execution, journal
):
    begin(execution, {"AAA": -50.0, "STUCK": -7.0})
    server.accept("AAA", -50.0, order_id(BUNDLE, OPENED, "AAA"))  # in the same second, elsewhere
    with pytest.raises(BrokerError, match="another deployment of this bundle trades this account"):
        execution.step(OPENED)
    assert states(journal, "AAA") == ["intended", "sent", "rejected"]
    assert posted(server) == ["AAA"]


def test_an_order_of_another_deployment_is_not_taken_for_one_that_got_lost(server, broker, journal):
    execution = Execution(broker, journal, OrderRules(f"{BUNDLE}-2222", cushion=0.0))
    begin(execution, {"AAA": -50.0, "STUCK": -7.0})
    theirs = order_id(f"{BUNDLE}-1111", OPENED, "AAA")
    server.accept("AAA", -50.0, theirs)  # the same decision, elsewhere
    server.faults = {1: "503"}  # and ours does not arrive
    execution.step(OPENED)
    assert execution.trouble
    execution.step(OPENED + 2 * SECOND)
    assert execution.stranger == theirs
    assert execution.reports[order_id(f"{BUNDLE}-2222", OPENED, "AAA")].filled == 0.0


def test_fees_and_cushion_are_left_over(server, broker, journal):
    rules = OrderRules(BUNDLE, cushion=0.1, fee_rate=0.002, fractional=True)
    execution = Execution(broker, journal, rules)
    begin(execution, {"AAA": 100.0})
    broker._fractional = True
    execution.step(OPENED)
    assert next(iter(execution.reports.values())).shares == 89.820359  # 900 USD / 1.002 / 10 USD


def test_sales_that_stand_are_waited_for_twenty_seconds(server, execution):
    begin(execution, {"STUCK": -100.0, "BBB": 60.0})
    for second in range(20):
        execution.step(OPENED + second * SECOND)
        assert posted(server) == ["STUCK"]
    execution.step(OPENED + 20 * SECOND)
    assert posted(server) == ["STUCK", "BBB"]
    assert row_of(server, "BBB")["qty"] == "50"  # no cash of the sale


def test_no_cash_leaves_a_purchase_unsent(server, execution, journal):
    server.cash = 4.0
    begin(execution, {"AAA": 5.0})
    assert execution.step(OPENED)
    assert states(journal, "AAA") == ["intended", "expired"]
    assert server.orders == {}


def test_what_stands_at_the_end_is_cancelled(server, execution, journal):
    begin(execution, {"HALF": 100.0, "RACE": 100.0, "CCC": 20.0})
    for second in range(60):
        assert not execution.step(OPENED + second * SECOND)
    assert "DELETE" not in methods(server)
    finish(execution, OPENED + MINUTE)
    assert states(journal, "HALF")[-3:] == ["accepted", "partial", "cancelled"]
    assert states(journal, "RACE")[-1] == "filled"  # its fill came before the cancellation
    assert server.positions == {
        "AAA": 50.0,
        "STUCK": 100.0,
        "HALF": 50.0,
        "RACE": 100.0,
        "CCC": 20.0,
    }
    assert {entry.key for entry in journal.entries(Cancellation)} == {
        order_id(BUNDLE, OPENED, name) for name in ("HALF", "RACE")
    }


def test_nothing_leaves_before_its_morning(server, execution):
    morning = OPENED + 1000 * MINUTE
    begin(execution, {"AAA": -10.0, "CCC": 4.0}, not_before=morning, until=morning + MINUTE)
    for now in (OPENED, OPENED + MINUTE, morning - 1):
        assert not execution.step(now)
    assert server.seen == []
    finish(execution, morning)
    assert server.positions == {"AAA": 40.0, "STUCK": 100.0, "CCC": 4.0}


def test_what_was_not_sent_in_time_never_is(server, execution, broker, journal):
    begin(execution, {"AAA": -10.0, "CCC": 4.0})
    resumed = Execution.resume(broker, journal, OrderRules(BUNDLE), at=OPENED + MINUTE)
    assert resumed.step(OPENED + MINUTE)
    assert server.seen == []
    assert states(journal, "AAA") == states(journal, "CCC") == ["intended", "expired"]


@pytest.mark.parametrize(
    "fault", ["reset", "reset_after", "504", "504_after", "hang", "hang_after", "truncated_after"]
)
def test_an_order_that_nobody_knows_of_is_asked_and_stands_once(fault, server, execution, journal):
    server.faults = {1: fault}
    begin(execution, {"AAA": -10.0})
    execution.step(OPENED)
    assert states(journal, "AAA") == ["intended", "sent", "unknown"]
    assert "gives no answer" in execution.trouble
    finish(execution, OPENED + SECOND)
    assert execution.trouble == ""
    assert len(server.orders) == 1
    assert server.positions["AAA"] == 40.0
    arrived = fault.endswith("_after")
    assert methods(server).count("POST") == (1 if arrived else 2)
    assert states(journal, "AAA")[3] == ("accepted" if arrived else "sent")


def test_an_unknown_order_is_asked_before_it_is_sent_again(server, execution):
    server.faults = {1: "reset"} | dict.fromkeys(range(2, 9), "503")
    begin(execution, {"AAA": -10.0})
    for turn in range(6):
        execution.step(OPENED + turn * SECOND)
    assert methods(server) == ["POST"] + 5 * ["GET"]


def test_an_unknown_order_is_not_sent_after_its_time_and_given_up_late(server, execution, journal):
    server.faults = {1: "reset"}
    late = OPENED + MINUTE
    begin(execution, {"AAA": -10.0}, until=OPENED + SECOND)
    execution.step(OPENED)
    for now in range(OPENED + SECOND, OPENED + 15 * SECOND, SECOND):
        assert not execution.step(now)
    assert states(journal, "AAA") == ["intended", "sent", "unknown"]
    assert execution.step(late)
    assert states(journal, "AAA")[-1] == "expired"
    assert methods(server).count("POST") == 1


def test_an_order_that_arrives_when_it_was_sent_again_stands_once(server, execution):
    server.faults = {1: "reset_late"}
    begin(execution, {"AAA": -10.0})
    finish(execution, OPENED)
    for _ in range(9):
        execution._broker.time()
    assert methods(server).count("POST") == 2
    assert len(server.orders) == 1
    assert server.positions["AAA"] == 40.0


def test_an_order_that_arrives_after_its_time_is_waited_for(server, execution):
    server.faults = {1: "reset_late"}
    until = OPENED + SECOND
    begin(execution, {"STUCK": -10.0}, until=until)
    for now in range(OPENED, until + 10 * SECOND, SECOND):
        execution.step(now)
    assert [report.state for report in execution.reports.values()] == ["cancelled"]
    assert methods(server).count("POST") == 1


def test_faults_in_a_basket_of_many_leave_each_order_once(server, execution, journal):
    server.prices |= {f"S{number:02}": 1.0 for number in range(35)}
    server.faults = {4: "reset_after", 15: "500", 37: "hang_after"}
    wanted = dict.fromkeys(server.prices.keys() - PRICES.keys(), 2.0)
    begin(execution, wanted, prices=server.prices)
    finish(execution, OPENED)
    assert all(server.positions[f"S{number:02}"] == 2.0 for number in range(35))
    assert len(server.orders) == 35
    assert all(report.state == "filled" for report in journal.orders().values())


def test_brokers_that_fit_baskets_themselves_get_all_at_once(server, execution, broker):
    broker.takes_baskets = True
    begin(execution, {"CCC": 500.0, "STUCK": -10.0})
    execution.step(OPENED)
    assert posted(server) == ["STUCK", "CCC"]
    assert row_of(server, "CCC")["qty"] == "500"


def test_a_decision_is_begun_once(server, execution, journal):
    begin(execution, {"AAA": -10.0})
    written = len(journal.tail(10_000))
    begin(execution, {"AAA": -20.0, "CCC": 4.0})
    assert len(journal.tail(10_000)) == written
    now = finish(execution, OPENED)
    begin(execution, {}, at=now + MINUTE)
    assert execution.step(now + MINUTE)
    assert len(server.orders) == 1


def test_a_purchase_without_a_price_is_refused(execution, journal):
    for orders in ({"NOPE": 1.0}, {"AAA": float("nan")}):
        with pytest.raises(DeployError, match="cannot be bought"):
            begin(execution, orders)
    assert journal.tail(1) == []


def test_stop_ends_everything(server, execution, journal):
    begin(execution, {"STUCK": -10.0, "CCC": 4.0})
    execution.step(OPENED)
    execution.stop(OPENED + SECOND, "halted")
    assert states(journal, "CCC") == ["intended", "expired"]
    finish(execution, OPENED + SECOND)
    assert states(journal, "STUCK")[-1] == "cancelled"
    assert posted(server) == ["STUCK"]


def test_purchases_are_fitted_once_also_by_who_resumes(server, broker, journal):
    names = [f"S{number:02}" for number in range(20)]
    server.prices |= dict.fromkeys(names, 1.0)
    first = Execution(broker, journal, OrderRules(BUNDLE, cushion=0.0))
    submit = broker.submit

    def die_after_ten(order):
        if len(server.orders) == 10:
            raise Crash
        return submit(order)

    broker.submit = die_after_ten
    begin(first, dict.fromkeys(names, 100.0), prices=server.prices)
    with pytest.raises(Crash):
        first.step(OPENED)
    broker.submit = submit
    server.cash -= 300.0  # a fee of somebody's; the sizes stand
    resumed = Execution.resume(broker, journal, OrderRules(BUNDLE, cushion=0.0), at=OPENED + SECOND)
    finish(resumed, OPENED + SECOND)
    assert [server.positions[name] for name in names] == 20 * [50.0]
    assert len(journal.entries(PurchaseFit)) == 1


def test_an_older_answer_takes_nothing_back(server, execution, journal):
    begin(execution, {"HALF": 100.0})
    for second in range(4):
        execution.step(OPENED + second * SECOND)
    row = row_of(server, "HALF")
    assert row["filled_qty"] == "50"
    server.tick = lambda: None
    row["filled_qty"] = "20"
    row["status"] = "partially_filled"
    for second in range(4, 20):
        execution.step(OPENED + second * SECOND)
    assert [entry.body.filled for entry in journal.entries(OrderReport)] == [0.0, 0.0, 0.0, 50.0]


@pytest.mark.parametrize("late", range(4))
def test_the_broker_is_asked_more_seldom_while_nothing_happens(late, server, execution):
    until = OPENED + MINUTE + late * SECOND
    begin(execution, {"STUCK": -10.0}, until=until)
    for now in range(OPENED, until, SECOND):
        execution.step(now)
    assert len(server.seen) <= 21
    assert not execution.step(until)
    assert execution.step(until + SECOND)  # and soon once it was told to cancel


def test_a_rejected_sale_holds_nothing_up(server, execution, journal):
    begin(execution, {"AAA": -60.0, "BBB": 40.0})
    finish(execution, OPENED)
    assert states(journal, "AAA") == ["intended", "sent", "rejected"]
    assert "insufficient qty" in execution.reports[order_id(BUNDLE, OPENED, "AAA")].reason
    assert server.positions["BBB"] == 40.0


def test_refused_keys_end_the_step(server, execution, journal):
    server.faults = {1: "401"}
    begin(execution, {"AAA": -10.0})
    with pytest.raises(BrokerError, match="APCA_API_KEY_ID"):
        execution.step(OPENED)
    assert states(journal, "AAA") == ["intended", "sent", "rejected"]


def test_purchases_of_an_earlier_decision_bind_their_cash(server, execution, journal):
    begin(execution, {"HALF": 200.0})  # 400 of its 800 USD are never filled
    for second in range(4):
        execution.step(OPENED + second * SECOND)
    later = OPENED + 4 * SECOND
    begin(execution, {"BBB": 60.0}, at=later, until=later + MINUTE)
    finish(execution, later)
    assert row_of(server, "BBB", later)["qty"] == "10"  # 1,000 - 400 - 400 USD
    assert states(journal, "HALF")[-1] == "cancelled"


def test_resume_ends_orders_that_no_decision_explains(server, broker, journal):
    for name in (
        f"ft-{BUNDLE}-20160314T150000Z-STUCK",
        "ft-ffffffff-20160314T150000Z-STUCK",
        "by hand",
    ):
        server.accept("STUCK", -5.0, name)
    for report in broker.orders(0):
        journal.write(report, at=OPENED)
    resumed = Execution.resume(broker, journal, OrderRules(BUNDLE), at=OPENED)
    finish(resumed, OPENED)
    assert {row["client_order_id"]: row["status"] for row in server.orders.values()} == {
        f"ft-{BUNDLE}-20160314T150000Z-STUCK": "canceled",
        "ft-ffffffff-20160314T150000Z-STUCK": "canceled",
        "by hand": "new",
    }
