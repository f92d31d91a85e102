"""The real ccxt against a server on this machine that speaks Binance's REST: what each answer
becomes, what is sent again and what never."""

import logging
import re
import sys
from dataclasses import replace
from decimal import Decimal
from typing import get_args

import pytest

pytest.importorskip("ccxt", reason="ccxt is missing: pip install '.[crypto]'")

from fintrader.deploy import remote
from fintrader.deploy.broker import Order
from fintrader.deploy.journal import Journal
from fintrader.deploy.orders import SECOND, Execution, OrderRules, order_id
from fintrader.deploy.reconcile import expect_holdings, reconcile
from fintrader.deploy.remote import RequestLimits
from fintrader.deploy.settings import PaperSettings
from fintrader.deploy.spot import CcxtBroker, restore_id, shorten_id
from fintrader.errors import (
    BrokerError,
    BrokerUnsureError,
    ConfigError,
    DataError,
    DeployError,
    OrderTakenError,
)
from tests.engines.alpaca_loopback import TRANSIENT
from tests.engines.binance_loopback import KEY, SECRET, LoopbackBinance
from tests.engines.broker_words import collect_words
from tests.engines.order_driver import OPENED

PAIRS = ("BTC/USDT", "ETH/USDT")
PRICES = dict(zip(PAIRS, (50_000.0, 3_000.0), strict=True))
SENDER = "0a1b2c3d-5e6f7a8b"


class Time:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now = 1000.0
        self.slept = []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def server():
    with LoopbackBinance(balances={"USDT": 10_000.0, "ETH": 2.0}, prices=PRICES) as server:
        server.clock = lambda: OPENED / 1e9
        yield server


def connect(server, clock=None, **how):
    clock = clock or Time()
    limits = RequestLimits(2.0, 1.0, 1_000_000, clock.monotonic, clock.sleep)
    broker = CcxtBroker("binance", PAIRS, server.endpoint, limits=limits, **how)
    broker._client.enableRateLimit = False
    broker._client.milliseconds = lambda: int(server.clock() * 1000)
    return broker


@pytest.fixture
def broker(server, clock):
    return connect(server, clock)


def order(shares=0.1, symbol="BTC/USDT", number=0):
    return Order(order_id(SENDER, OPENED + number * SECOND, symbol), symbol, shares, OPENED)


def posts(server):
    return [method for method, _ in server.seen].count("POST")


# --- ids ------------------------------------------------------------------------------------------


def test_an_id_fits_the_exchange_and_comes_back():
    names = set()
    for sender in ("0a1b2c3d", SENDER):
        for symbol in (*PAIRS, "1000SATS/USDT", "币安人生/USDT"):
            for number in (0, 1, 86_400):
                for end in ("", "-ask", "-stop"):
                    name = order_id(sender, OPENED + number * SECOND, symbol) + end
                    short = shorten_id(name)
                    assert re.fullmatch(r"[A-Za-z0-9_-]{1,36}", short)
                    assert restore_id(short, symbol) == name
                    names.add(short)
    assert len(names) == 3 * 24
    for other in ("web_7d2", "ft-none-of-ours", "x-TKT5PX2F22ecb58eb9074fb1be018c"):
        assert restore_id(other, "BTC/USDT") == other


# --- an order's life ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "price", "kind", "sent"),
    [
        (0.1, {"limit_usd": 49_000.128}, "LIMIT", ("49000.13", "0.00000000")),
        (-0.1, {"limit_usd": 51_000.0}, "LIMIT", ("51000.00", "0.00000000")),
        (-0.1, {"stop_usd": 48_000.004}, "STOP_LOSS", ("0.00000000", "48000.00")),
        (-0.1, {"stop_usd": 0.0}, "MARKET", ("0.00000000", "0.00000000")),
        (-0.1, {"limit_usd": 0.0}, "MARKET", ("0.00000000", "0.00000000")),
    ],
)
def test_orders_that_rest_have_the_exchange_s_ticks(server, broker, shares, price, kind, sent):
    server.balances["BTC"] = Decimal("0.1")
    server.pace["BTC/USDT"] = (0.0,)
    answer = broker.submit(replace(order(shares), **price))
    assert (answer.state, answer.filled) == ("accepted", 0.0)
    (row,) = server.rows
    prices = [Decimal(row[name]) for name in ("price", "stopPrice")]
    assert (row["type"], row["timeInForce"]) == (kind, "GTC")
    assert prices == [Decimal(one) for one in sent]


@pytest.mark.parametrize(
    ("price", "why"),
    [
        ({"limit_usd": 70_000.0}, "PERCENT_PRICE_BY_SIDE"),
        ({"stop_usd": 50_000.0}, "Stop price would trigger immediately."),
    ],
)
def test_a_price_that_the_exchange_refuses_is_a_rejection(server, broker, price, why):
    server.balances["BTC"] = Decimal("0.1")
    answer = broker.submit(replace(order(-0.1), **price))
    assert answer.state == "rejected"
    assert why in answer.reason
    assert server.rows == []


def test_a_purchase_pays_its_fee_in_its_own_coin(server, broker):
    sent = broker.submit(order(0.1))
    assert (sent.state, sent.shares, sent.filled) == ("filled", 0.1, 0.1)
    assert (sent.price_usd, sent.cost_usd) == (50_000.0, 0.0)
    assert sent.fee_shares == {"BTC/USDT": pytest.approx(0.0001)}
    assert server.held("BTC") == pytest.approx(0.0999)
    account = broker.account()
    assert account.number == "354937868"
    assert account.shares == {"BTC/USDT": pytest.approx(0.0999), "ETH/USDT": 2.0}
    assert account.cash_usd == 5_000.0
    (row,) = server.rows
    assert len(row["clientOrderId"]) == 36
    assert broker.order(sent.id) == sent
    assert broker.orders(OPENED - SECOND) == [sent]


def test_a_sale_pays_its_fee_in_cash(server, broker):
    sold = broker.submit(order(-1.0, "ETH/USDT"))
    assert (sold.state, sold.shares, sold.filled) == ("filled", -1.0, -1.0)
    assert (sold.price_usd, sold.cost_usd, sold.fee_shares) == (3_000.0, pytest.approx(3.0), {})
    assert broker.account().cash_usd == pytest.approx(12_997.0)


def test_a_fee_in_another_coin_is_no_part_of_the_account(server, broker):
    server.fee_coin = "BNB"
    server.balances["BNB"] = server.balances["USDT"]
    bought = broker.submit(order(0.1))
    assert (bought.cost_usd, bought.fee_shares) == (0.0, {})
    assert broker.account().shares == {"BTC/USDT": 0.1, "ETH/USDT": 2.0}


def test_a_fee_in_the_coin_of_another_pair_makes_its_shares_fewer(server, broker):
    server.fee_coin = "ETH"
    bought = broker.submit(order(0.1))
    (fee,) = bought.fee_shares.items()
    assert fee == ("ETH/USDT", pytest.approx(5_000.0 * 0.001 / 3_000.0, abs=1e-8))
    assert broker.account().shares["ETH/USDT"] == pytest.approx(2.0 - fee[1])


def test_an_amount_is_cut_to_the_step_and_too_little_is_rejected(server, broker):
    assert broker.submit(order(0.0123456789)).shares == 0.01234
    nothing = broker.submit(order(0.000001, number=1))
    assert nothing.state == "rejected"
    assert "minimum amount precision" in nothing.reason
    assert posts(server) == 1  # it was not even sent
    little = broker.submit(order(0.00009, number=2))
    assert (little.state, little.reason) == ("rejected", "Filter failure: NOTIONAL")
    poor = broker.submit(order(10.0, number=3))
    assert poor.state == "rejected"
    assert "insufficient balance" in poor.reason
    server.step = "0.0001"  # the exchange's step has changed since its pairs were loaded
    odd = broker.submit(order(0.01235, number=4))
    assert (odd.state, odd.reason) == ("rejected", "Filter failure: LOT_SIZE")
    assert broker.submit(order(0.29999999999999993, "ETH/USDT", number=5)).shares == 0.3


def test_parts_are_told_as_they_fill_and_a_cancel_ends_them(server, broker):
    server.pace = {"BTC/USDT": (0.5, 0.5, 0.75)}
    sent = broker.submit(order(0.1))
    assert (sent.state, sent.filled, sent.fee_shares) == (
        "partial",
        0.05,
        {"BTC/USDT": pytest.approx(0.00005)},
    )
    broker.order(sent.id)
    later = broker.orders(OPENED - SECOND)[0]
    assert (later.state, later.filled) == ("partial", pytest.approx(0.075))
    assert later.fee_shares == {"BTC/USDT": pytest.approx(0.000075)}
    broker.cancel(later)
    ended = broker.order(sent.id)
    assert (ended.state, ended.filled) == ("cancelled", pytest.approx(0.075))
    broker.cancel(ended)  # once more: it is over
    assert server.rows[0]["status"] == "CANCELED"


def test_an_order_that_expires_without_a_market_is_over(server, broker):
    server.pace = {"BTC/USDT": (0.5, -1.0)}
    sent = broker.submit(order(0.1))
    ended = broker.order(sent.id)
    assert (ended.state, ended.filled) == ("expired", 0.05)


def test_an_order_stands_until_all_its_trades_are_listed(server, broker):
    server.hidden_trades = 3
    sent = broker.submit(order(0.1))
    assert (sent.state, sent.filled) == ("accepted", 0.0)
    while server.hidden_trades > 0:
        assert broker.order(sent.id).state == "accepted"
    whole = broker.order(sent.id)
    assert (whole.state, whole.filled, whole.fee_shares) == (
        "filled",
        0.1,
        {"BTC/USDT": pytest.approx(0.0001)},
    )


def test_an_order_that_never_was_is_none_and_a_duplicate_is_taken(server, broker):
    assert broker.order(order(number=9).id) is None
    assert broker.order("web_none") is None
    server.pace = {"BTC/USDT": (0.0,)}
    broker.submit(order(0.1))
    with pytest.raises(OrderTakenError, match=order().id):
        broker.submit(order(0.1))
    assert len(server.rows) == 1


def test_orders_of_two_weeks_and_of_others_are_listed_once(server, broker):
    now = OPENED / 1e9
    for number in range(28):
        server.clock = lambda at=now + (number - 28) * 43_200: at
        broker.submit(order(0.001, number=number - 28 * 43_200))
    server.trade_by_hand("ETH/USDT", -0.5)
    server.pace = {"ETH/USDT": (0.0,)}
    server.trade_by_hand("ETH/USDT", -0.25)
    server.clock = lambda: now
    found = broker.orders(OPENED - 15 * 86_400 * SECOND)
    assert len(found) == 30
    assert [one.state for one in found].count("filled") == 29
    (open_one,) = [one for one in found if not one.is_over]
    assert (open_one.id, open_one.shares) == ("web_29", -0.25)
    assert [one.id for one in broker.orders(OPENED)] == ["web_29"]  # it stands, however old


def test_dust_is_no_sale(server, broker):
    broker.account()
    assert broker.size_sale("BTC/USDT", 0.512345678, 50_000.0) == 0.51234
    assert broker.size_sale("BTC/USDT", 9_500.0, 50_000.0) == 9_000.0  # the most of one order
    assert broker.size_sale("BTC/USDT", 0.000009, 50_000.0) == 0.0  # less than a step
    assert broker.size_sale("BTC/USDT", 0.0001, 50_000.0) == 0.0  # 5 USDT, by the last price
    assert broker.size_sale("BTC/USDT", 0.00012, 50_000.0) == 0.00012
    assert broker.size_sale("BTC/USDT", 0.0001, 0.0) == 0.0001  # no price: the exchange decides


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [fault for fault in TRANSIENT if fault != "429"])
def test_an_order_is_sent_once_whatever_comes_back(fault, server, broker):
    broker.account()
    server.faults = {len(server.seen) + 1: fault}
    with pytest.raises(BrokerUnsureError):
        broker.submit(order())
    assert posts(server) == 1
    arrived = fault.endswith("_after")
    assert len(server.rows) == arrived
    found = broker.order(order().id)
    assert (found is not None) == arrived
    assert not arrived or (found.state, found.filled) == ("filled", 0.1)


@pytest.mark.parametrize("fault", TRANSIENT)
def test_what_only_asks_is_repeated(fault, server, broker):
    broker.account()
    unreadable = fault.removesuffix("_after") in (
        *("empty", "null", "object", "strange"),
        *("200_html", "html", "truncated"),
    )
    count = len(server.seen)
    server.faults = {} if unreadable else {count + 1: fault, count + 2: fault}
    assert broker.account().shares == {"ETH/USDT": 2.0}
    server.faults = dict.fromkeys(range(len(server.seen) + 1, 200), fault)
    with pytest.raises(BrokerUnsureError):
        broker.account()


@pytest.mark.parametrize("fault", ["object", "empty", "200_html", "503"])
def test_an_exchange_that_lists_no_pairs_is_asked_again(fault, server, broker):
    server.faults = dict.fromkeys(range(1, 99), fault)
    with pytest.raises(BrokerUnsureError):
        broker.account()
    with pytest.raises(BrokerUnsureError):
        broker.orders(OPENED)
    server.faults = {}
    assert broker.orders(OPENED) == []
    assert broker.account().cash_usd == 10_000.0


def test_too_many_requests_wait_as_told_and_send_again(server, broker, clock):
    broker.account()
    server.retry_after = "0.5"
    server.faults = {len(server.seen) + 1: "429"}
    assert broker.submit(order()).state == "filled"
    assert clock.slept == [0.5]
    assert len(server.rows) == 1
    server.retry_after = "30"
    server.faults = {len(server.seen) + 1: "429"}
    with pytest.raises(BrokerUnsureError, match="gets no more requests for 30 seconds"):
        broker.submit(order(number=1))
    assert len(server.rows) == 1


@pytest.mark.parametrize("seconds", [-60.0, 60.0])
def test_a_clock_that_is_off_is_set_and_the_order_sent_again(seconds, server, broker):
    broker.account()
    real = server.clock
    server.clock = lambda: real() + seconds
    broker._client.milliseconds = lambda: int(real() * 1000)
    assert broker.submit(order()).state == "filled"
    assert (len(server.rows), server.refusals) == (
        1,
        ["Timestamp for this request is outside of the recvWindow."],
    )
    assert broker.time() == int(server.clock() * 1000) * 1_000_000  # which a runner compares


def test_a_request_is_dead_after_five_seconds(server, broker):
    """The time after which an order that the exchange does not have never comes."""
    broker.account()
    server.witness = lambda asked: recorded.append(asked["recvWindow"])
    recorded = []
    broker.submit(order())
    assert recorded == ["5000"]


def test_refused_keys_are_named_by_their_variables(server, monkeypatch):
    monkeypatch.setenv("FINTRADER_CCXT_KEY", "another")
    with pytest.raises(BrokerError, match="check FINTRADER_CCXT_KEY and FINTRADER_CCXT_SECRET"):
        connect(server).account()
    monkeypatch.setenv("FINTRADER_CCXT_KEY", KEY)
    monkeypatch.setenv("FINTRADER_CCXT_SECRET", "another")
    with pytest.raises(BrokerError, match="refuses the keys"):
        connect(server).account()


def test_pairs_that_the_exchange_does_not_have_are_named(server):
    broker = CcxtBroker("binance", ["BTC/USDT", "NOPE/USDT"], server.endpoint)
    with pytest.raises(BrokerError, match="no spot pair NOPE/USDT"):
        broker.account()


def test_a_blocked_account_says_why(server, broker):
    server.blocked = True
    assert "does not let it trade" in broker.account().blocked


# --- an order of unknown fate ---------------------------------------------------------------------


def carry_out(broker, journal, shares=0.1, seconds=120):
    rules = OrderRules(SENDER, fractional=True)
    execution = Execution.resume(broker, journal, rules, at=OPENED)
    execution.begin(
        decision=OPENED,
        orders={"BTC/USDT": shares, "ETH/USDT": -1.0},
        prices=PRICES,
        at=OPENED,
        not_before=OPENED,
        until=OPENED + 600 * SECOND,
    )
    for second in range(seconds):
        if execution.step(OPENED + second * SECOND):
            break
    return {report.symbol: report for report in execution.reports.values()}


@pytest.mark.parametrize("fault", ["hang_after", "504_after", "reset_after", "html_after"])
def test_an_order_whose_answer_was_lost_is_asked_for_and_never_sent_twice(
    fault, server, broker, journal
):
    broker.account()
    server.faults = {len(server.seen) + 1: fault}
    server.hang_s = 4.0
    reports = carry_out(broker, journal)
    assert [report.state for report in reports.values()] == ["filled", "filled"]
    assert posts(server) == 2
    assert len({row["clientOrderId"] for row in server.rows}) == len(server.rows) == 2


def test_an_order_that_never_arrived_is_written_off_after_its_request_is_dead(
    server, broker, journal
):
    broker.account()
    server.faults = {len(server.seen) + 1: "reset"}
    reports = carry_out(broker, journal, seconds=10)
    assert reports["ETH/USDT"].state == "unknown"
    reports = carry_out(broker, journal)
    assert (reports["ETH/USDT"].state, reports["ETH/USDT"].reason) == (
        "expired",
        "the broker never had it",
    )
    assert reports["BTC/USDT"].state == "filled"
    assert [row["side"] for row in server.rows] == ["BUY"]  # the sale was not sent again


def test_an_order_that_arrives_late_is_no_second_one(server, broker, journal):
    """The exchange takes an id once more when the order that had it is over."""
    broker.account()
    server.faults = {len(server.seen) + 1: "reset_late"}
    reports = carry_out(broker, journal)
    assert [report.state for report in reports.values()] == ["filled", "filled"]
    assert sorted(row["side"] for row in server.rows) == ["BUY", "SELL"]
    assert server.held("ETH") == 1.0


# --- reconciliation -------------------------------------------------------------------------------


@pytest.mark.parametrize("coin", ["received", "BNB", "ETH"])
def test_fees_in_any_coin_are_no_difference(coin, server, broker, journal):
    server.balances["BNB"] = server.balances["ETH"]
    server.fee_coin = coin
    agree = {"pause": lambda _: None}
    assert reconcile(journal, broker, at=OPENED, start=True, adopt=True, **agree) == ()
    carry_out(broker, journal)
    known = expect_holdings(journal)
    assert known.cash_usd == pytest.approx(broker.account().cash_usd, abs=1e-6)
    assert dict(known.shares) == pytest.approx(broker.account().shares)
    assert reconcile(journal, broker, at=OPENED + 300 * SECOND, **agree) == ()
    server.trade_by_hand("BTC/USDT", -0.01)
    wrong = reconcile(journal, broker, at=OPENED + 600 * SECOND, **agree)
    assert {finding.kind for finding in wrong} == {"position", "cash"}


def transfer(kind, coin, amount, *, at, **more):
    return {"id": f"{kind}{amount}", "coin": coin, "amount": str(amount), **more, **at}


def test_deposits_and_withdrawals_explain_a_difference(server, journal, monkeypatch):
    monkeypatch.setattr(remote, "refuse_real_money", lambda is_wanted: None)
    for name in ("KEY", "SECRET"):
        monkeypatch.setenv(f"FINTRADER_CCXT_LIVE_{name}", {"KEY": KEY, "SECRET": SECRET}[name])
    broker = connect(server, real_money=True)
    assert broker._client.isSandboxModeEnabled is False
    agree = {"pause": lambda _: None}
    assert reconcile(journal, broker, at=OPENED, start=True, adopt=True, **agree) == ()
    moment = int(server.clock() * 1000)
    at = {"insertTime": moment, "applyTime": "2016-03-15 14:30:00", "network": "ETH"}
    server.transfers["deposit"] = [
        transfer("d", "USDT", 500.0, at=at, status=1),
        transfer("d", "DOGE", 7.0, at=at, status=1),
        transfer("d", "USDT", 900.0, at=at, status=0),  # on its way
    ]
    server.transfers["withdraw"] = [
        transfer("w", "ETH", 0.5, at=at, status=6, transactionFee="0.01"),
        transfer("w", "ETH", 0.1, at=at, status=1, transactionFee="0.01"),  # cancelled
    ]
    server.balances["USDT"] += 500
    server.balances["ETH"] -= Decimal("0.51")
    found = {one.id: (one.symbol, one.shares, one.cash_usd) for one in broker.activities(0)}
    assert found == {
        "deposit-d500.0": ("", 0.0, 500.0),
        "withdrawal-w0.5": ("ETH/USDT", pytest.approx(-0.51), 0.0),
    }
    assert reconcile(journal, broker, at=OPENED + 300 * SECOND, **agree) == ()
    server.balances["USDT"] += 500
    wrong = reconcile(journal, broker, at=OPENED + 600 * SECOND, **agree)
    assert [finding.kind for finding in wrong] == ["cash"]


def test_a_sandbox_lists_no_deposits(server, broker):
    assert broker.activities(0) == []


# --- doors ----------------------------------------------------------------------------------------


def test_an_account_has_one_cash_coin(server):
    with pytest.raises(DeployError, match="the same quote"):
        CcxtBroker("binance", ["BTC/USDT", "ETH/USDC"], server.endpoint)
    assert server.seen == []


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.delenv("FINTRADER_CCXT_SECRET")
    with pytest.raises(DeployError, match="set FINTRADER_CCXT_KEY and FINTRADER_CCXT_SECRET"):
        CcxtBroker("binance", PAIRS)
    monkeypatch.setitem(sys.modules, "ccxt", None)
    with pytest.raises(DataError, match="needs ccxt"):
        CcxtBroker("binance", PAIRS)


def test_real_money_is_refused_and_the_sandbox_is_the_only_host(server):
    with pytest.raises(DeployError, match="closed until a market-life simulator has passed"):
        connect(server, real_money=True)
    broker = CcxtBroker("binance", PAIRS)
    assert broker.endpoint == "https://testnet.binance.vision"
    assert broker._client.isSandboxModeEnabled
    assert not broker.real_money
    assert server.seen == []


def test_an_exchange_without_a_sandbox_is_refused():
    with pytest.raises(ConfigError, match="'binance', got 'kraken'"):
        PaperSettings(feed="kraken", broker="kraken")
    import ccxt

    for name in get_args(PaperSettings.model_fields["broker"].annotation)[2:]:
        assert getattr(ccxt, name)().urls["test"]


@pytest.mark.parametrize(
    "endpoint",
    ["https://api.binance.com", "https://example.org", "http://testnet.binance.vision", ""],
)
def test_endpoints_that_are_not_allowed_are_refused(endpoint):
    with pytest.raises(DeployError, match="keys are not sent to this endpoint"):
        CcxtBroker("binance", PAIRS, endpoint)


def test_no_other_host_is_asked(server, broker):
    """Whatever address ccxt makes up."""
    for address in (
        "https://api.binance.com/api/v3/time",
        "http://testnet.binance.vision/api/v3/time",
        "https://testnet.binance.vision.example.org/api/v3/time",
    ):
        with pytest.raises(OSError, match=r"not at testnet\.binance\.vision"):
            broker._client.session.get(address)
    assert server.seen == []
    assert broker._client.session.get("https://testnet.binance.vision/api/v3/time").ok
    assert server.seen == [("GET", "/api/v3/time")]


def test_a_redirect_takes_no_key_along(server, broker):
    with LoopbackBinance(balances={}, prices=PRICES) as elsewhere:
        server.redirect_to = f"{elsewhere.endpoint}/api/v3/account"
        broker._client.load_markets()
        server.outage = "302"
        with pytest.raises(BrokerUnsureError, match="RedirectError"):
            broker.account()
        assert elsewhere.seen == []


def test_no_key_is_written_anywhere(server, tmp_path, caplog):
    """Whatever the server sends back, and it sends back the keys."""
    caplog.set_level(logging.DEBUG)
    server.echo = True
    server.hang_s = 0.15
    limits = RequestLimits(0.1, 0.0, 1_000_000, sleep=lambda seconds: None)
    broker = CcxtBroker("binance", PAIRS, server.endpoint, limits=limits)
    broker._client.enableRateLimit = False
    said = [repr(broker), str(vars(broker))]
    calls = (
        lambda: broker.submit(order()),
        lambda: broker.submit(order(0.00009, number=1)),
        lambda: broker.order(order().id),
        lambda: broker.orders(OPENED),
        broker.account,
        broker.time,
        lambda: broker.activities(OPENED),
    )
    broker._client.milliseconds = lambda: int(server.clock() * 1000)
    refusals = ("400", "401", "403", "404", "418", "422")
    said += collect_words(server, calls, (None, *TRANSIENT, *refusals))
    with Journal(tmp_path / "journal.sqlite") as journal:
        carry_out(broker, journal, seconds=30)
    said += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*")]
    said.append(caplog.text)
    assert "DEBUG" in caplog.text
    assert any("… …" in text for text in said)
    for text in said:
        assert KEY not in text
        assert SECRET not in text
