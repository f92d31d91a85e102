"""Bids, asks and stops at the venues: replaced without a share twice, through kills, lost answers
and races."""

import itertools
import random
from decimal import Decimal

import pytest

pytest.importorskip("alpaca", reason="alpaca-py is not installed")
pytest.importorskip("ccxt", reason="ccxt is not installed")

from fintrader.deploy.broker import Order
from fintrader.deploy.journal import Journal
from fintrader.deploy.orders import SECOND, OrderRules, order_id
from fintrader.deploy.reconcile import reconcile
from fintrader.deploy.venue_orders import VenueExecution
from tests.engines.alpaca_loopback import TRANSIENT
from tests.engines.chaos import amount
from tests.engines.order_driver import OPENED, Boundaries, Crash
from tests.engines.resting_driver import PRICE, SENDER, Venue, find_problems, trade
from tests.quick import slow_but

VENUES = ("alpaca", "binance")


def session_of(broker):
    client = broker._client
    return client._session if broker.kind == "alpaca" else client.session


def live(venue, folder, kill_at=0, **how):
    """One life, killed at a request's boundary (0: none); the boundaries it passed, or -1."""
    boundaries = Boundaries(kill_at, by_signal=False)
    with Journal(folder / "journal.sqlite", durable=False) as journal:
        broker = venue.connect(0.5)
        session = session_of(broker)
        session.request = boundaries.around(session.request)
        try:
            assert trade(venue, journal, broker, **how) == []
        except Crash:
            return -1
        finally:
            session.close()
        assert find_problems(venue, journal) == []
    return boundaries.passed


def test_decisions_replace_what_rests(tmp_path):
    """At Alpaca the test of lost answers lives so."""
    venue = Venue("binance")
    with venue.server:
        live(venue, tmp_path)


def kill_at_each(name, root, step):
    """A life killed at every so-manyeth boundary of a request, and the next one to the end."""
    whole = root / "whole"
    whole.mkdir()
    venue = Venue(name)
    with venue.server:
        passed = live(venue, whole)
    for kill_at in range(step, passed + 1, step):
        folder = root / str(kill_at)
        folder.mkdir()
        venue = Venue(name)
        with venue.server:
            assert live(venue, folder, kill_at) == -1, kill_at
            live(venue, folder)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "step"), [("alpaca", amount(29, 1)), ("binance", amount(131, 3))])
def test_a_kill_at_many_requests_trades_no_share_twice(tmp_path, name, step):
    kill_at_each(name, tmp_path, step)


FAULTS = [fault for fault in TRANSIENT if not fault.startswith("hang")]


@pytest.mark.parametrize(("name", "seed"), slow_but(0, every=itertools.product(VENUES, range(2))))
def test_lost_answers_and_kills_in_the_middle_of_a_replacement_trade_no_share_twice(
    tmp_path, name, seed
):
    """A fifth of the requests fail, are put off (429), or arrive without an answer."""
    check_faults(tmp_path, name, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [*itertools.product(VENUES, range(2, amount(5, 20)))])
def test_many_lost_answers_and_kills_trade_no_share_twice(tmp_path, name, seed):
    check_faults(tmp_path, name, seed)


def check_faults(folder, name, seed):
    draw = random.Random(f"{name} {seed}")
    # Binance takes no request that is older than five seconds.
    kinds = [fault for fault in FAULTS if name == "alpaca" or fault != "reset_late"]
    plan = {number: draw.choice(kinds) for number in range(1, 4000) if draw.random() < 0.2}
    venue = Venue(name, faults=plan)
    with venue.server:
        for _ in range(60):
            kill_at = draw.randrange(1, 800) if draw.random() < 0.7 else 0
            if live(venue, folder, kill_at, times=3) >= 0:
                break
        else:
            raise AssertionError("it never ended")
    assert len(venue.server.fired) > 20


# --- one order after the other --------------------------------------------------------------------


class Desk:
    """A venue, a journal and an execution that restarts at will, for one symbol held 100 times."""

    def __init__(self, name, folder):
        held = {"positions": {"LATE": 100.0}} if name == "alpaca" else {}
        self.venue = Venue(name, **held)
        self.venue.server.pace = {}
        if name != "alpaca":
            self.venue.server.balances["LATE"] = Decimal(100)
        self.symbol = self.venue.rename("LATE/USDT")
        self.journal = Journal(folder / "journal.sqlite", durable=False)
        self.decision = OPENED

    def start(self, *, adopt=False):
        venue = self.venue
        self.broker = venue.connect()
        how = {"at": venue.now, "start": True, "pause": lambda _: None}
        how["adopt"] = adopt
        rules = OrderRules(SENDER, poll_s=0.0, cushion=0.0)
        self.execution = VenueExecution.resume(self.broker, self.journal, rules, at=venue.now)
        reconcile(self.journal, self.broker, **how)

    def decide(self, *orders):
        self.decision = self.venue.now = self.venue.now + 60 * SECOND
        name = order_id(SENDER, self.decision, self.symbol)
        resting = [
            Order(name + end, self.symbol, shares, self.decision, **{f"{kind}_usd": price})
            for end, shares, kind, price in orders
        ]
        terms = {"not_before": self.decision, "until": self.decision + 600 * SECOND}
        prices = {self.symbol: PRICE}
        self.execution.begin(
            decision=self.decision,
            orders={},
            prices=prices,
            at=self.decision,
            resting=resting,
            **terms,
        )

    def step(self, count=1):
        for _ in range(count):
            self.execution.step(self.venue.now)
            self.venue.now += 4 * SECOND

    def states(self):
        return {
            name.partition("Z-")[2]: report.state for name, report in self.journal.orders().items()
        }


@pytest.fixture
def desk(request, tmp_path):
    made = Desk(request.param, tmp_path)
    with made.venue.server:
        made.start(adopt=True)
        yield made
    made.journal.close()


each_venue = pytest.mark.parametrize("desk", VENUES, indirect=True)
ASK_AND_STOP = (("-ask", -80.0, "limit", 110.0), ("-stop", -100.0, "stop", 90.0))


@each_venue
@pytest.mark.parametrize("is_dead", [False, True])
def test_a_stop_that_is_reached_ends_the_ask_and_sells_all(desk, is_dead):
    desk.decide(*ASK_AND_STOP)
    desk.step(3)
    assert desk.venue.offered(desk.symbol) == 100.0
    desk.venue.server.prices[desk.symbol] = 89.0
    if is_dead:
        desk.venue.now += 3600 * SECOND
        desk.start()
    desk.step(20)
    assert desk.venue.held(desk.symbol) == 0.0
    assert desk.execution.stops == {desk.symbol: 0.0}
    states = desk.states()
    assert (states[f"{desk.symbol}-ask"], states[f"{desk.symbol}-stop"]) == ("cancelled", "filled")
    assert desk.venue.server.refusals == []


@each_venue
def test_a_stop_that_is_reached_while_it_is_replaced_lets_nothing_new_rest(desk):
    desk.decide(*ASK_AND_STOP)
    desk.step(3)
    server = desk.venue.server
    server.races.add(desk.symbol)  # what is reached fills, though it is being cancelled
    server.prices[desk.symbol] = 89.0
    desk.decide(("", 50.0, "limit", 95.0), ("-stop", -100.0, "stop", 80.0))
    desk.step(20)
    bought = [row for row in desk.venue.list_orders() if row["side"] == "buy" and row["filled"]]
    assert bought == []
    assert desk.venue.held(desk.symbol) == 0.0


@pytest.mark.parametrize("desk", ["binance"], indirect=True)
def test_a_rejected_replacement_leaves_the_journal_right_and_the_stop_in_place(desk):
    desk.decide(*ASK_AND_STOP)
    desk.step(3)
    desk.decide(("-ask", -80.0, "limit", 1000.0), ("-stop", -100.0, "stop", 85.0))
    desk.step(12)
    report = desk.journal.orders()[order_id(SENDER, desk.decision, desk.symbol) + "-ask"]
    assert report.state == "rejected"
    assert "PERCENT_PRICE" in report.reason
    assert desk.venue.offered(desk.symbol) == 100.0
    assert desk.execution.stops == {desk.symbol: 85.0}
    assert not any("insufficient" in text for text in desk.venue.server.refusals)


@each_venue
def test_a_stop_below_which_the_price_has_fallen_before_it_is_placed_sells_at_the_market(desk):
    """The process dies between a stop's cancellation and the placing of its successor."""
    desk.decide(*ASK_AND_STOP)
    desk.step(3)
    desk.decide(("-stop", -100.0, "stop", 88.0))
    desk.execution._expire(desk.venue.now)
    desk.execution._cancel(desk.venue.now)
    desk.venue.server.prices[desk.symbol] = 100.0
    for _ in range(3):
        desk.broker.orders(OPENED)  # the cancellation is done
    assert desk.venue.offered(desk.symbol) == 0.0
    desk.venue.server.prices[desk.symbol] = 80.0
    desk.start()
    desk.step(20)
    assert desk.venue.held(desk.symbol) == 0.0
    assert "rejected" in [report.state for report in desk.journal.orders().values()]


@each_venue
def test_shares_of_a_cancelled_ask_get_a_stop_before_orders_are_at_rest(desk):
    """As at the end of a consent."""
    desk.decide(*ASK_AND_STOP)
    desk.step(3)
    assert not desk.execution.is_at_rest(desk.venue.now)
    desk.execution.stop(desk.venue.now, "the consent has ended", keeps_stops=True)
    for _ in range(20):
        if desk.execution.is_at_rest(desk.venue.now):
            break
        desk.step()
    assert desk.venue.offered(desk.symbol) == desk.venue.held(desk.symbol) == 100.0


@each_venue
def test_the_sale_of_a_reached_stop_is_followed_to_its_end(desk):
    """A sale that fills in parts is not at rest before all shares are sold."""
    desk.decide(("-stop", -100.0, "stop", 90.0))
    desk.step(3)
    assert desk.execution.is_at_rest(desk.venue.now)
    desk.venue.server.prices[desk.symbol] = 89.0
    desk.execution.stop(desk.venue.now, "the consent has ended", keeps_stops=True)
    for _ in range(30):
        desk.step()
        if desk.execution.stops == {desk.symbol: 0.0} and desk.execution.is_at_rest(desk.venue.now):
            break
    assert desk.venue.held(desk.symbol) == 0.0
