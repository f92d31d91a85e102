"""The real alpaca-py against a server on this machine: what each answer becomes, what is sent again
and what never."""

import datetime as dt
import logging
import socket
import sys
from dataclasses import replace

import pytest

from fintrader.deploy import remote
from fintrader.deploy.alpaca import AlpacaBroker, RequestLimits
from fintrader.deploy.broker import Order
from fintrader.deploy.journal import Journal
from fintrader.errors import BrokerError, BrokerUnsureError, DataError, DeployError, OrderTakenError
from tests.engines.alpaca_loopback import KEY, REFUSALS, SECRET, TRANSIENT, LoopbackAlpaca
from tests.engines.broker_words import collect_words
from tests.engines.order_driver import OPENED, trade

pytest.importorskip("alpaca", reason="alpaca-py is not installed")
STATES = {
    **dict.fromkeys(
        ("new", "accepted", "pending_new", "accepted_for_bidding", "pending_review", "held"),
        "accepted",
    ),
    **dict.fromkeys(("stopped", "suspended", "calculated", "done_for_day"), "accepted"),
    **dict.fromkeys(("pending_cancel", "pending_replace", "of tomorrow"), "accepted"),
    **dict.fromkeys(("canceled", "replaced"), "cancelled"),
    "partially_filled": "partial",
    "filled": "filled",
    "expired": "expired",
    "rejected": "rejected",
}
"""What Alpaca's statuses mean here, and one that it does not have yet."""


class Time:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now, self.slept = 1000.0, []  # type: float, list[float]

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def server():
    with LoopbackAlpaca(
        cash=1000.0, prices={"AAA": 10.0, "BRK.B": 7.0}, positions={"BRK.B": 4.0}
    ) as server:
        yield server


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def broker(server, clock):
    return AlpacaBroker(
        server.endpoint,
        limits=RequestLimits(2.0, monotonic=clock.monotonic, sleep=clock.sleep),
    )


def order(shares=10.0, symbol="AAA", name="ft-0a1b2c3d-20160315T143000Z-AAA"):
    return Order(name, symbol, shares, OPENED)


def posts(server):
    return [method for method, _ in server.seen].count("POST")


def test_an_order_is_a_market_order_of_the_day_and_its_fills_are_told(server, broker):
    sent = broker.submit(order())
    assert (sent.state, sent.shares, sent.filled) == ("accepted", 10.0, 0.0)
    states = [broker.order(sent.id) for _ in range(3)]
    assert [(one.state, one.filled, one.price_usd) for one in states if one] == [
        ("accepted", 0.0, 0.0),
        ("partial", 4.0, 10.0),
        ("filled", 10.0, 10.0),
    ]
    sold = broker.submit(order(-3.0, "BRK.B", "sold"))
    assert (sold.shares, sold.symbol) == (-3.0, "BRK.B")
    assert [(one.id, one.filled) for _ in range(3) for one in broker.orders(0)][-2:] == [
        (sent.id, 10),
        ("sold", -3),
    ]
    account = broker.account()
    assert (account.number, account.blocked) == ("PA1LOOPBACK", "")
    assert account.cash_usd == 1000.0 - 100.0 + 21.0
    assert account.shares == {"AAA": 10.0, "BRK.B": 1.0}
    assert (
        broker.time() == (1_458_052_200 * 1_000_000 + 123_456) * 1000
    )  # 2016-03-15 10:30 of New York
    assert server.by_client_id()[sent.id]["time_in_force"] == "day"


@pytest.mark.parametrize(
    ("shares", "price", "sent"),
    [
        (3.0, {"limit_usd": 9.5678}, ("limit", "day", 9.56)),
        (-3.0, {"limit_usd": 10.5612}, ("limit", "day", 10.57)),
        (-3.0, {"limit_usd": 10.1}, ("limit", "day", 10.1)),
        (2.0, {"limit_usd": 0.98765}, ("limit", "day", 0.9876)),
        (-3.0, {"stop_usd": 9.5678}, ("stop", "gtc", 9.57)),
        (-0.5, {"stop_usd": 9.5}, ("stop", "day", 9.5)),
        (-3.0, {"limit_usd": 0.0}, ("market", "day", None)),
        (-3.0, {"stop_usd": 0.0}, ("market", "day", None)),
    ],
)
def test_prices_and_times_are_those_that_alpaca_takes(server, broker, shares, price, sent):
    server.positions = {"AAA": 4.0}
    answer = broker.submit(replace(order(shares), **price))
    assert (answer.state, answer.shares) == ("accepted", shares)
    (row,) = server.orders.values()
    prices = [float(row[name]) for name in ("limit_price", "stop_price") if row.get(name)]
    assert (row["type"], row["time_in_force"], *(prices or [None])) == sent


def test_orders_that_alpaca_refuses_for_their_price_or_side_are_rejections(server, broker):
    server.positions = {"AAA": 4.0}
    above = broker.submit(replace(order(-4.0), stop_usd=10.0))
    assert "stop price must not be greater than base price" in above.reason
    broker.submit(replace(order(-4.0), stop_usd=9.0))
    bid = broker.submit(replace(order(1.0, name="bid"), limit_usd=8.0))
    ask = broker.submit(replace(order(-1.0, name="ask"), limit_usd=11.0))
    assert [one.state for one in (above, bid, ask)] == ["rejected"] * 3
    assert "wash trade" in bid.reason
    assert "insufficient qty available" in ask.reason


def test_every_status_of_alpaca_has_a_state(server, broker):
    from alpaca.trading.enums import OrderStatus

    assert {status.value for status in OrderStatus} < STATES.keys()
    row = server.accept("AAA", -10.0, "one")
    server.tick = lambda: None
    for status, state in STATES.items():
        row["status"] = status
        row["filled_qty"] = {"filled": "10", "partially_filled": "4"}.get(status, "0")
        report = broker.order("one")
        assert (status, report.state) == (status, state)
    row["status"] = "held"
    row["filled_qty"] = "4"
    row["filled_avg_price"] = "9.5"
    report = broker.order("one")
    assert (report.state, report.filled, report.price_usd) == ("partial", -4.0, 9.5)


def test_pages_are_followed_to_the_end(server, broker):
    for number in range(1203):
        server.accept("AAA", 1.0, f"o{number}", age_s=1000.0 - number / 2 // 1)["status"] = "filled"
    ages = [server.by_client_id()[name]["submitted_at"] for name in ("o499", "o500")]
    server.by_client_id()["o499"]["submitted_at"] = ages[
        1
    ]  # one page would end between two of the same moment
    names = [report.id for report in broker.orders(0)]
    assert len(names) == 1203
    assert set(names) == {f"o{number}" for number in range(1203)}
    assert names[-1] in ("o1202", "o1201")
    assert len(server.seen) == 4  # three pages, and those that stand


def test_an_order_that_stands_is_told_however_old(server, broker):
    server.accept("AAA", 1.0, "old", age_s=5000.0)
    server.accept("AAA", 1.0, "over", age_s=5000.0)["status"] = "filled"
    now = 2_000_000_000 * 1_000_000_000
    assert [report.id for report in broker.orders(now)] == ["old"]


def test_refusals_of_an_order_are_rejections_with_their_reason(server, broker):
    for asked, reason in (
        (order(101.0), "insufficient buying power"),
        (order(-5.0, "BRK.B"), "insufficient qty available for order (requested: 5, available: 4)"),
        (order(1.0, "NOPE"), 'asset "NOPE" not found'),
        (order(0.5), "no whole shares"),
    ):
        report = broker.submit(asked)
        assert (report.state, report.shares) == ("rejected", asked.shares)
        assert reason in report.reason
    assert server.orders == {}
    assert posts(server) == 3


def test_fractional_shares_where_they_are_asked_for(server):
    assert AlpacaBroker(server.endpoint, fractional=True).submit(order(0.25)).shares == 0.25
    assert next(iter(server.orders.values()))["qty"] == "0.25"


@pytest.mark.parametrize(
    ("shares", "fractional", "sent"),
    [
        (74.99999999999999, False, "75"),
        (0.1 + 0.2, True, "0.3"),
        (7.123456789987654, True, "7.12345679"),
    ],
)
def test_no_rounding_error_is_sent(server, shares, fractional, sent):
    """Alpaca takes nine decimals, and 75 whole shares."""
    AlpacaBroker(server.endpoint, fractional=fractional).submit(order(shares))
    (row,) = server.orders.values()
    assert float(row["qty"]) == float(sent)


def test_fractions_that_are_held_can_be_sold(server, broker):
    server.positions["BRK.B"] = 3.5
    report = broker.submit(order(-3.5, "BRK.B"))
    assert (report.state, report.shares) == ("accepted", -3.5)
    assert next(iter(server.orders.values()))["qty"] == "3.5"


def test_an_id_that_is_taken_is_not_sent_twice(server, broker):
    broker.submit(order())
    with pytest.raises(OrderTakenError, match=order().id):
        broker.submit(order())
    assert len(server.orders) == 1


def test_an_order_that_never_was_is_none(server, broker):
    assert broker.order("nobody") is None
    server.faults = {2: "404_html"}
    with pytest.raises(BrokerUnsureError, match="a server before alpaca"):
        broker.order("nobody")


@pytest.mark.parametrize("fault", ["401", "403"])
def test_refused_keys_are_named_by_their_variables(fault, server, broker):
    server.faults = {1: fault, 2: fault}
    server.echo = True
    with pytest.raises(BrokerError, match="check APCA_API_KEY_ID and APCA_API_SECRET_KEY"):
        broker.account()
    with pytest.raises(BrokerError, match=f"status {fault}"):
        broker.submit(order())
    assert len(server.seen) == 2


@pytest.mark.parametrize("fault", [fault for fault in TRANSIENT if fault != "429"])
def test_an_order_is_sent_once_whatever_comes_back(fault, server, broker):
    server.faults = {1: fault}
    with pytest.raises(BrokerUnsureError):
        broker.submit(order())
    assert posts(server) == 1
    assert len(server.orders) == fault.endswith("_after")
    found = broker.order(order().id)
    assert (found is not None) == fault.endswith("_after")


@pytest.mark.parametrize("fault", TRANSIENT)
def test_what_only_asks_is_repeated(fault, server, broker):
    unreadable = fault in (
        "empty",
        "null",
        "object",
        "strange",
    )  # an answer, but not to this question
    server.faults = {1: fault, 2: fault} if not unreadable else {}
    assert broker.account().shares == {"BRK.B": 4.0}
    assert len(server.seen) == (2 if unreadable else 4)
    server.faults = dict.fromkeys(range(len(server.seen) + 1, 100), fault)
    with pytest.raises(BrokerUnsureError):
        broker.account()


def test_an_empty_object_is_not_an_empty_account(server, broker):
    server.faults = {2: "object", 3: "object"}
    with pytest.raises(BrokerUnsureError, match="cannot be read"):
        broker.account()
    with pytest.raises(BrokerUnsureError, match="cannot be read"):
        broker.orders(0)


def test_a_server_that_hangs_a_minute_is_left_at_the_limit(server, broker):
    server.faults = {1: "hang_after"}
    server.hang_s = 60.0
    with pytest.raises(BrokerUnsureError, match="ReadTimeout"):
        broker.submit(order())
    found = broker.order(order().id)
    assert found.state == "accepted"


def test_asking_ends(server, broker, clock):
    server.faults = dict.fromkeys(range(1, 100), "503")
    with pytest.raises(BrokerUnsureError, match="status 503"):
        broker.time()
    assert len(server.seen) == 4
    assert clock.slept == [0.25, 0.5, 1.0]


def test_too_many_requests_wait_as_told_and_send_again(server, broker, clock):
    server.faults = {1: "429", 2: "429"}
    server.retry_after = "2"
    assert broker.submit(order()).state == "accepted"
    assert clock.slept == [2.0, 2.0]
    assert len(server.orders) == 1
    server.faults = {4: "429"}
    server.retry_after = "Mon, 23 Nov 2026 08:00:00 GMT"
    broker.time()
    assert clock.slept[2:] == [0.25]


def test_a_long_closure_is_no_wait(server, broker, clock):
    server.faults = {1: "429"}
    server.retry_after = "30"
    with pytest.raises(BrokerUnsureError, match="30 seconds"):
        broker.submit(order())
    with pytest.raises(BrokerUnsureError, match="30 seconds"):
        broker.account()
    assert len(server.seen) == 1
    clock.now += 30.0
    assert broker.submit(order()).state == "accepted"


def test_no_more_requests_leave_in_a_minute_than_allowed(server, clock):
    broker = AlpacaBroker(
        server.endpoint,
        limits=RequestLimits(per_minute=3, monotonic=clock.monotonic, sleep=clock.sleep),
    )
    left = []
    for _ in range(3):
        broker.time()
        left.append(clock.now)
        clock.now += 10.0
    with pytest.raises(BrokerUnsureError, match="30 seconds"):
        broker.time()
    clock.now += 26.0
    for _ in range(2):
        broker.time()
        left.append(clock.now)
        clock.now += 6.0
    assert left == [1000.0, 1010.0, 1020.0, 1060.0, 1070.0]
    assert len(server.seen) == 5


def test_a_cancel_reaches_what_stands_and_leaves_what_is_over(server, broker):
    sent = broker.submit(order())
    broker.cancel(sent)
    found = broker.order(sent.id)
    assert found.state == "cancelled"
    broker.cancel(found)
    server.faults = {len(server.seen) + 1: "503"}
    with pytest.raises(BrokerUnsureError):
        broker.cancel(sent)


PAPER_HOST = "paper-api.alpaca.markets"
REFUSED = {
    "https://evil.example": "evil.example is not allowed",
    "https://paper-api.alpaca.markets.evil.example": "paper-api.alpaca.markets.evil.example is not",
    "https://paper-api.alpaca.markets@evil.example": "evil.example is not allowed",
    "https://paper-api.alpaca.markets%40evil.example": (
        "paper-api.alpaca.markets@evil.example is not"
    ),
    "https://evil.example\\@paper-api.alpaca.markets": "backslash",
    "https://paper-api.alpaca.markets\\.evil.example": "is not allowed",
    "https://user:hidden-word@paper-api.alpaca.markets": "a user or a password",
    "https://user:hidden-word@127.0.0.1": "a user or a password",
    "https://api.alpaca.markets": "api.alpaca.markets trades real money",
    "https://api.alpaca.markets.": "api.alpaca.markets trades real money",
    "https://api.alpaca.markets..": "api.alpaca.markets trades real money",
    "https://API.Alpaca.Markets:443/v2": "api.alpaca.markets trades real money",
    "https://api.alpaca.markets%2e": "api.alpaca.markets trades real money",
    "https://api%2Ealpaca%2Emarkets": "api.alpaca.markets trades real money",
    "https://api\u3002alpaca\uff0emarkets": "api.alpaca.markets trades real money",
    "https://\uff41pi.alpaca.markets": "api.alpaca.markets trades real money",
    "https://p\u0430per-api.alpaca.markets": r"p\u0430per-api.alpaca.markets is not allowed",
    "https://xn--pper-api-6fg.alpaca.markets": "is not allowed",
    "https://data.alpaca.markets": "data.alpaca.markets is not allowed",
    "https://broker-api.alpaca.markets": "is not allowed",
    "http://paper-api.alpaca.markets": "does not use https",
    "ftp://127.0.0.1": "does not use https",
    "https://paper-api.alpaca.markets:8443": "uses port 8443",
    "https://paper-api.alpaca.markets:99999": "has invalid brackets or an invalid port",
    "https://paper-api.alpaca.markets/other": "a path",
    "https://paper-api.alpaca.markets/?x=1": "a query",
    "https://paper-api.alpaca.markets#x": "a fragment",
    " https://paper-api.alpaca.markets": "a space",
    "https://paper-api.alpaca.markets\n": "a control character",
    "https://paper-api.alpaca.markets\t.evil.example": "is not allowed",
    "http://127.0.0.1.evil.example": "127.0.0.1.evil.example is not allowed",
    "http://127.0.0.1%20.evil.example": "is not allowed",
    "http://localhost.evil.example": "localhost.evil.example is not allowed",
    "http://0.0.0.0": "0.0.0.0 is not allowed",
    "http://128.0.0.1": "128.0.0.1 is not allowed",
    "http://3232235521": "192.168.0.1 is not allowed",
    "http://0xc0.0xa8.1": "192.168.0.1 is not allowed",
    "http://[::ffff:127.0.0.1]": "is not allowed",
    "http://[::2]": "::2 is not allowed",
    "https://[::1": "an address without a host",
    "paper-api.alpaca.markets": "an address without a host",
    "": "an address without a host",
}
"""Endpoints, and what is said of each."""
SAME = (
    "https://paper-api.alpaca.markets/",
    "https://paper-api.alpaca.markets/v2/",
    "HTTPS://Paper-API.Alpaca.Markets.:443",
    "https://paper-api.alpaca.markets%2e",
    "https://paper-api\u3002alpaca\uff61markets",
)
"""Other ways to write the one address that is asked."""
LOOPBACK = (
    "127.0.0.1",
    "127.1",
    "0x7f.1",
    "0177.0.0.1",
    "2130706433",
    "LOCALHOST.",
    "127.0.0.1%2e",
)
"""Ways to write this machine."""


@pytest.fixture
def asked(monkeypatch):
    """Every host that is looked up, and no other is reached."""
    hosts = []

    def look_up(host, *_, **__):
        hosts.append(str(host))
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return hosts


@pytest.mark.parametrize("endpoint", REFUSED)
def test_endpoints_that_are_not_allowed_are_not_even_looked_up(endpoint, asked, monkeypatch):
    from fintrader.bars.sources.alpaca import Alpaca
    from fintrader.bars.sources.vendor_settings import AlpacaSettings

    with pytest.raises(DeployError) as caught:
        AlpacaBroker(endpoint, limits=RequestLimits(patience_s=0.0)).account()
    told = str(caught.value)
    assert REFUSED[endpoint] in told
    assert (
        f"allowed are https://{PAPER_HOST} and, for tests, http:// or https:// on localhost" in told
    )
    assert "hidden-word" not in told
    monkeypatch.setenv("APCA_API_DATA_URL", endpoint.replace("data.", "paper-api."))
    source = Alpaca(AlpacaSettings())
    for ask in (source.fetch, source.announced):
        with pytest.raises(DataError, match=r"allowed are https://data\.alpaca\.markets"):
            ask(["AAA"], dt.date(2024, 1, 2), dt.date(2024, 1, 3))
    assert asked == []


def test_keys_go_to_the_hosts_of_the_list_and_nowhere_else(asked, monkeypatch):
    from fintrader.bars.sources.alpaca import Alpaca
    from fintrader.bars.sources.vendor import Busy
    from fintrader.bars.sources.vendor_settings import AlpacaSettings

    for endpoint in SAME:
        broker = AlpacaBroker(endpoint, limits=RequestLimits(patience_s=0.0))
        assert broker.endpoint == f"https://{PAPER_HOST}"
        with pytest.raises(BrokerUnsureError):
            broker.account()
    assert set(asked) == {PAPER_HOST}
    asked.clear()
    for address in (None, "https://data.alpaca.markets", "https://DATA.alpaca.markets.:443/"):
        if address is not None:
            monkeypatch.setenv("APCA_API_DATA_URL", address)
        source = Alpaca(AlpacaSettings())
        with pytest.raises(Busy):
            source.fetch(["AAA"], dt.date(2024, 1, 2), dt.date(2024, 1, 3))
    assert set(asked) == {"data.alpaca.markets"}


@pytest.mark.parametrize("host", LOOPBACK)
def test_this_machine_is_allowed_however_it_is_written(host, server):
    port = server.endpoint.rpartition(":")[2]
    broker = AlpacaBroker(f"http://{host}:{port}/")
    assert broker.endpoint in (f"http://127.0.0.1:{port}", f"http://localhost:{port}")
    assert broker.account().number == "PA1LOOPBACK"
    assert set(server.keys) == {(KEY, SECRET)}


def test_a_redirect_takes_no_key_along(server, broker):
    with LoopbackAlpaca(cash=0.0, prices={}) as other:
        server.redirect_to = f"{other.endpoint}/v2/account"
        server.outage = "302"
        with pytest.raises(BrokerUnsureError, match="RedirectError"):
            broker.account()
        with pytest.raises(BrokerUnsureError, match="RedirectError"):
            broker.submit(order())
        session = broker._client._session
        with pytest.raises(OSError, match="status 302"):  # also where a client would follow
            session.get(
                f"{server.endpoint}/v2/account", headers=broker._client._get_default_headers()
            )
        assert other.keys == []
    assert set(server.keys) == {(KEY, SECRET)}


def test_a_redirect_of_the_data_service_takes_no_key_along(server, monkeypatch):
    from fintrader.bars.sources.alpaca import Alpaca
    from fintrader.bars.sources.vendor import Busy
    from fintrader.bars.sources.vendor_settings import AlpacaSettings

    with LoopbackAlpaca(cash=0.0, prices={}) as other:
        server.redirect_to = f"{other.endpoint}/v2/stocks/bars"
        server.outage = "302"
        monkeypatch.setenv("APCA_API_DATA_URL", server.endpoint)
        source = Alpaca(AlpacaSettings())
        for ask in (source.fetch, source.announced):
            with pytest.raises(Busy, match="RedirectError"):
                ask(["AAA"], dt.date(2024, 1, 2), dt.date(2024, 1, 3))
        assert other.keys == []


def test_no_proxy_of_the_environment_reads_the_keys(server, monkeypatch):
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with LoopbackAlpaca(cash=0.0, prices={}) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.endpoint)
        monkeypatch.setenv("http_proxy", proxy.endpoint)
        assert AlpacaBroker(server.endpoint).account().number == "PA1LOOPBACK"
        assert proxy.keys == []


@pytest.mark.parametrize(
    "endpoint", ["https://api.alpaca.markets", "https://api.alpaca.markets./v2/", None]
)
def test_real_money_is_refused_by_the_broker_itself(endpoint, server, asked):
    with pytest.raises(DeployError, match="closed until a market-life simulator has passed"):
        AlpacaBroker(endpoint or server.endpoint, real_money=True)
    assert asked == []
    assert server.seen == []


def test_the_paper_account_is_no_real_one():
    with pytest.raises(DeployError, match="closed until a market-life simulator has passed"):
        AlpacaBroker("https://paper-api.alpaca.markets", real_money=True)
    assert repr(AlpacaBroker()) == "AlpacaBroker('https://paper-api.alpaca.markets')"
    assert not AlpacaBroker().real_money


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.delenv("APCA_API_SECRET_KEY")
    with pytest.raises(DeployError, match="set APCA_API_KEY_ID and APCA_API_SECRET_KEY"):
        AlpacaBroker()
    monkeypatch.setattr(remote, "refuse_real_money", lambda is_wanted: None)
    with pytest.raises(DeployError, match="set APCA_LIVE_API_KEY_ID and APCA_LIVE_API_SECRET_KEY"):
        AlpacaBroker(real_money=True)
    monkeypatch.setenv("APCA_API_SECRET_KEY", SECRET)
    monkeypatch.setitem(sys.modules, "alpaca.trading.client", None)
    with pytest.raises(DeployError, match=r"pip install 'alpaca-py"):
        AlpacaBroker()


def test_a_blocked_account_says_why(server, broker):
    server.blocked = True
    assert broker.account().blocked == "trading_blocked"


def test_no_key_is_written_anywhere(server, tmp_path, caplog):
    """Whatever the server sends back, and it sends back the keys."""
    caplog.set_level(logging.DEBUG)
    server.echo = True
    server.hang_s = 0.12
    broker = AlpacaBroker(server.endpoint, limits=RequestLimits(0.1, 0.0))
    said = [repr(broker), str(vars(broker))]
    calls = (
        lambda: broker.submit(order()),
        lambda: broker.submit(order(1.0, "NOPE", "no")),
        lambda: broker.order("x"),
        lambda: broker.orders(0),
        broker.account,
        broker.time,
    )
    said += collect_words(server, calls, (*TRANSIENT, *REFUSALS))
    server.faults = {
        number: REFUSALS[number % 5] for number in range(len(server.seen) + 3, 2000, 7)
    }
    for _ in range(20):
        with Journal(tmp_path / "journal.sqlite") as journal:
            trade(journal, broker, turns=50)
    said += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*")]
    said.append(caplog.text)
    assert "DEBUG" in caplog.text
    assert any("status 422 for ('…', '…')" in text for text in said)
    for text in said:
        assert KEY not in text
        assert SECRET not in text


def test_bookings_are_read_by_what_they_change(server, broker):
    server.book("CSD", 500.0)
    server.book("DIV", 28.25, "AAA", 113.0)  # of a dividend the shares are those it is paid for
    server.book("DIV", 0.0, "AAA", 0.5, activity_sub_type="SDIV")
    server.book("SPLIT", symbol="AAA", shares=-10.0)
    server.book("NC", symbol="BBB", shares=-3.0)
    server.book("FEE", -0.02, activity_sub_type="TAF", description="TAF fee")
    server.book("FEE", -9.0, status="canceled")
    found = broker.activities(0)
    assert [(one.kind, one.symbol, one.shares, one.cash_usd) for one in found] == [
        ("transfer", "", 0.0, 500.0),
        ("dividend", "AAA", 0.0, 28.25),
        ("split", "AAA", 0.5, 0.0),
        ("split", "AAA", -10.0, 0.0),
        ("rename", "BBB", -3.0, 0.0),
        ("other", "", 0.0, -0.02),
    ]
    assert found[-1].text == "FEE TAF TAF fee"
    assert {one.day for one in found} == {"2026-01-02"}


@pytest.mark.parametrize("count", [99, 100, 101, 250])
def test_bookings_come_from_all_pages(server, broker, count):
    for _ in range(count):
        server.book("FEE", -0.01)
    assert len({one.id for one in broker.activities(0)}) == count
    server.activities[-1]["net_amount"] = "nan"
    with pytest.raises(BrokerUnsureError, match="cannot be read"):
        broker.activities(0)
